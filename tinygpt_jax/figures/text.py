"""Results in words, for a terminal: what was done, the numbers with their errors, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len

from tinygpt_jax.digits import with_error
from tinygpt_jax.lab.order import by_size, does
from tinygpt_jax.lab.remove.importance import ESTIMATES
from tinygpt_jax.lab.result import Result
from tinygpt_jax.statistics import mean_and_se

MOST_ROWS, MOST_PAIRS = 400, 16


def lines(name: str, result: Result) -> list[str]:
    """A result of the head lab: its definition, the intact model's metric, its table, and what follows from it."""
    d = result.definition
    head = [f"{name}: {d.line()}", f"  {d.measured()}", *(f"  {line}" for line in intact(result))]
    return [*head, *SAID.get(type(result).__name__, _table)(result), *(f"  {line}" for line in result.closing())]


def intact(result: Result) -> list[str]:
    """A line with the intact model's metric, where the result has it of two examples or more."""
    baseline = getattr(result, "baseline", None)
    if baseline is None or len(baseline) < 2:
        return []
    mean, se = map(float, mean_and_se(baseline, result.definition.ordered))
    return [f"intact model: {with_error(mean, se)} {result.definition.unit}"]


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """A table with right-aligned columns."""
    widths = [max(map(cell_len, column)) for column in zip(head, *body, strict=True)]
    return [
        "  " + "  ".join(" " * (w - cell_len(c)) + c for c, w in zip(cells, widths, strict=True))
        for cells in (head, *body)
    ]


def _table(result: Result) -> list[str]:
    """The result's table, each value with its error."""
    if not 0 < (count := int(result.present().sum())) <= MOST_ROWS:
        return [f"  {count:,} rows: see the CSV"]
    return aligned(*result.cells())


def _pairs(result: Any) -> list[str]:
    first, second = np.triu_indices(len(result.names), 1)
    order = by_size(result.changes())
    body = [
        [
            f"{result.names[i]} with {result.names[j]}",
            with_error(result.joint[i, j], result.joint_se[i, j], signed=True),
            with_error(result.interaction[i, j], result.interaction_se[i, j], signed=True),
        ]
        for i, j in zip(first[order[:MOST_PAIRS]], second[order[:MOST_PAIRS]], strict=True)
    ]
    title = f"  interaction: the joint effect less both alone; the largest of {len(first):,} pairs"
    return [title, *aligned(["pair", "joint", "interaction"], body)]


def _shapley(result: Any) -> list[str]:
    lowers = does(-1, result.definition.metric)
    orders = ["  errors: over examples and orders together"] * bool(np.any(result.sampling_se))
    return [*_table(result), f"  a value below 0: the head {lowers}; they add up to intact less all off", *orders]


def _importance(result: Any) -> list[str]:
    found = zip(ESTIMATES, result.correlation, result.correlation_se, strict=True)
    said = ", ".join(f"{name} {value:.2f} ± {se:.2f}" for name, value, se in found)
    return [
        *_table(result),
        "  absolute: mean |slope| along the gate; signed: the effect to first order; integrated: a share of the effect",
        "  of switching all heads off together; effect: switched off alone",
        f"  rank correlation with the effect, of absolute with its size: {said}",
    ]


def _gates(result: Any) -> list[str]:
    L, H = result.kept.shape[2:]
    body = []
    for i, j in np.ndindex(result.kept.shape[:2]):
        closed = [f"{layer}.{head}" for layer, head in np.argwhere(~result.kept[i, j])]
        rise = with_error(result.rise[i, j], result.rise_se[i, j], signed=True)
        kept = f"{result.kept[i, j].sum()} of {L * H}"
        body.append([f"{result.strengths[i]:g}", str(result.seeds[j]), kept, rise, ", ".join(closed) or "-"])
    title = "  price: nats per token for each open head"
    return [title, *aligned(["price", "seed", "heads kept", "rise of the loss", "closed"], body)]


def _pruning(result: Any) -> list[str]:
    share, n = f"{100 * result.tolerance:g} %", len(result.order)
    return [
        *_table(result),
        "  the error of random orders is over orders and examples together",
        f"  before the loss is {share} up, {result.free} ± {result.free_se:.1f} of {n} heads can go in this order, "
        f"{result.random_free:.1f} ± {result.random_free_se:.1f} in a random one",
    ]


def _attention(result: Any) -> list[str]:
    L, H, T, _ = result.patterns.shape
    return [f"  {L} layers x {H} heads, {T} tokens: see the figure, or the CSV"]


def _inputs(result: Any) -> list[str]:
    if result.below.shape[-1] < 2:
        below = [with_error(share) for share in result.below.mean(-1)]
    else:
        below = [with_error(*both) for both in zip(*mean_and_se(result.below, result.definition.ordered), strict=True)]
    body = [[str(i), *both] for i, both in enumerate(zip(below, map(with_error, result.outside), strict=True))]
    title = f"  inputs of {result.activation} by layer, as shares of 1; their density: see the CSV"
    return [title, *aligned(["layer", "below 0", "beyond the bins"], body)]


def _widths(result: Any) -> list[str]:
    stages = zip(result.stages, result.width.tolist(), result.parameters.tolist(), strict=True)
    return aligned(["stage", "width", "parameters"], [[name, f"{w:,}", f"{n:,}"] for name, w, n in stages])


SAID: dict[str, Callable[[Any], list[str]]] = {
    "ActivationCurves": _inputs,
    "AttentionMaps": _attention,
    "Importance": _importance,
    "LearnedGates": _gates,
    "MlpWidths": _widths,
    "Pairs": _pairs,
    "PruningCurve": _pruning,
    "Shapley": _shapley,
}
"""Kind of a result -> what is said below its definition; others: their table."""
