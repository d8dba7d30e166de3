"""Importance by gradient: what the metric's slope along a head's gate says of switching that head off, beside what
switching it off does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.engine import (
    Donors,
    Fill,
    Gates,
    Held,
    counted_rows,
    donated,
    fill_rows,
    padded_rows,
    rows_of_all_layers,
    run_edited,
    run_intact,
)
from tinygpt_jax.lab.intervention import Data, Lab, make_lab
from tinygpt_jax.lab.metrics import Metric
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.result import Result
from tinygpt_jax.params import Params
from tinygpt_jax.statistics import mean_and_se, rank_correlation_and_se
from tinygpt_jax.text import Examples

STEPS = 16
"""Points on the line from all heads off to all heads on."""
ESTIMATES = ("absolute", "signed", "integrated")


@dataclass(frozen=True, eq=False)
class Importance(Result):
    """Three estimates of what each head does, (L, H), beside its true effect; errors are standard errors over examples.

    All but `absolute` have the sign of an effect: above 0 where the metric rises when the head is switched off. The
    metric `kl` is least at the intact model, where its slopes are 0: of the three only `integrated` says anything.
    """

    names: tuple[str, ...]
    """the P = L H heads, layer by layer"""
    absolute: np.ndarray
    """mean of |d metric / d gate| over examples, at gates one (Michel, Levy and Neubig 2019, section 4.1)"""
    absolute_se: np.ndarray
    signed: np.ndarray
    """mean of -d metric / d gate at gates one: the effect to first order"""
    signed_se: np.ndarray
    integrated: np.ndarray
    """mean of -d metric / d gate along the line on which all heads' gates go together from 0 to 1 (Sundararajan, Taly
    and Yan 2017, equation 1): a head's share of the effect of switching all of them off"""
    integrated_se: np.ndarray
    effect: np.ndarray
    """of switching the head off alone, measured"""
    effect_se: np.ndarray
    hessian: np.ndarray
    """(P, P) second derivatives of the mean metric by the gates, at gates one: beside the diagonal, the interaction of
    two heads to second order; half the diagonal is what `signed` lacks to second order"""
    correlation: np.ndarray
    """(3,) Spearman's, of each estimate with `effect` over the heads, of `absolute` with its size; NaN where one of
    them is the same for all"""
    correlation_se: np.ndarray
    """bootstrap standard error over examples"""
    residual: np.ndarray
    """() sum of `integrated` less the effect of switching all heads off: what the steps were too coarse for"""
    baseline: np.ndarray
    """(B,) the intact model's metric"""

    AXES: ClassVar = {
        **{f"{name}{end}": ("layer", "head") for name in (*ESTIMATES, "effect") for end in ("", "_se")},
        "hessian": ("first", "second"),
        "correlation": ("estimate",),
        "correlation_se": ("estimate",),
        "residual": (),
        "baseline": ("example",),
    }
    DIFFERENCES = ("signed", "integrated", "effect")

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return {"first": self.names, "second": self.names, "estimate": ESTIMATES}.get(axis, range(size))

    def changes(self) -> Changes:
        return changes_of(self.definition, self.names, self.effect, self.effect_se)

    order, closing = order_of, closing_of


def head_importance(params: Params, data: Data, cfg: GPTConfig, *, steps: int = STEPS, **how: Any) -> Importance:
    """Slopes, integrated slopes and second derivatives of the metric by the gates of all heads, beside true effects.

        tg.head_importance(params, ids, cfg, fill="mean").correlation

    Args:
        data: ids (B, T), or `Examples` with targets and answers
        steps: points of the line that `integrated` takes the mean over (midpoint rule)
        how: fields of `How`: fill, metric, positions, hold_patterns, freeze_norms, seed, …

    Raises:
        UserError: something does not fit the model, there are fewer than two examples, or the fill is `optimal`.
    """
    lab = make_lab(params, data, cfg, **how)
    if lab.filling.name == "optimal":
        raise UserError("fill 'optimal' is fitted anew for each set, so gates have no one line to it: use mean or zero")
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise UserError(f"steps is {steps!r}: must be a whole number, 1 or more")
    alone = make_sets("heads", cfg)
    everything = Gates(np.zeros_like(alone.gates.heads[:1]), alone.gates.mlps[:1])
    values, baseline = lab.measure(Gates(*map(np.concatenate, zip(alone.gates, everything, strict=True))))
    effects = values.astype(np.float64) - baseline

    line = (np.arange(steps, dtype=np.float32) + 0.5) / steps
    slopes = gate_slopes(lab, np.append(line, np.float32(1)))
    estimates = {"absolute": np.abs(slopes[-1]), "signed": -slopes[-1], "integrated": -slopes[:-1].mean(0)}
    found: dict[str, np.ndarray] = {}
    for name, per_example in {**estimates, "effect": effects[:-1]}.items():
        mean, se = mean_and_se(per_example, lab.ordered)
        found |= {name: mean.reshape(cfg.n_layer, -1), f"{name}_se": se.reshape(cfg.n_layer, -1)}
    sizes = effects[:-1] * np.where(effects[:-1].mean(-1, keepdims=True) < 0, -1, 1)
    drawn: dict[str, Any] = {"seed": lab.how.seed, "ordered": lab.ordered}
    pairs = [
        rank_correlation_and_se(one, sizes if name == "absolute" else effects[:-1], **drawn)
        for name, one in estimates.items()
    ]
    correlation, correlation_se = np.array(pairs).T
    return Importance(
        lab.definition(
            granularity="head", component="z", direction="remove", set="each alone", flags=(f"{steps} points",)
        ),
        alone.names,
        **found,
        hessian=gate_hessian(lab),
        correlation=correlation,
        correlation_se=correlation_se,
        residual=found["integrated"].sum() - effects[-1].mean(),
        baseline=baseline,
    )


def gate_slopes(lab: Lab, points: np.ndarray) -> np.ndarray:
    """d metric / d gate of every head and example where all heads' gates have the same value, for each of n values:
    (n, P, B) float64."""
    slopes = np.empty((len(points), lab.cfg.n_layer * lab.cfg.n_head, len(lab.examples.ids)))
    for i, counted, part in _parts(lab):
        found = np.asarray(_slopes(lab.params, *part, jnp.asarray(points), lab.acts, lab.cfg, lab.metric, lab.held))
        slopes[..., i : i + len(counted)] = found[..., : slopes.shape[-1] - i]
    return slopes


def gate_hessian(lab: Lab) -> np.ndarray:
    """Second derivatives of the mean metric by the heads' gates, at gates one: (P, P) float64, symmetric."""
    total = np.zeros((lab.cfg.n_layer * lab.cfg.n_head,) * 2)
    for _, counted, part in _parts(lab):
        total += np.asarray(_hessian(lab.params, *part, counted, lab.acts, lab.cfg, lab.metric, lab.held))
    return (total + total.T) / (2 * len(lab.examples.ids))  # the two triangles differ by rounding


def _parts(lab: Lab) -> Any:
    """Chunks of the examples: (first, counted (rows,), (examples, fill, donors))."""
    B, T = lab.examples.ids.shape
    rows = rows_of_all_layers(lab.cfg, B, T, lab.how.tokens_at_once)
    for i in range(0, B, rows):
        examples, donors = padded_rows((lab.examples, lab.filling.donors), i, rows)
        yield i, counted_rows(i, rows, B), (examples, fill_rows(lab.filling.fill, i, rows), donors)


def _gated(
    params: Params,
    examples: Examples,
    fill: Fill,
    donors: Donors | None,
    acts: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    held: Held,
) -> Callable[[jax.Array], jax.Array]:
    """The metric (B,) as a function of the heads' gates, (P,), with derivatives."""
    intact, fill = run_intact(params, examples.ids, cfg, held), donated(params, donors, fill, cfg)
    mlps = jnp.ones(cfg.n_layer)

    def values(gates: jax.Array) -> jax.Array:
        gated = Gates(gates.reshape(cfg.n_layer, cfg.n_head), mlps)
        return metric.values(run_edited(params, intact, gated, fill, acts, 0, cfg, held), examples, intact.logits)

    return values


@functools.partial(jax.jit, static_argnums=(6, 7, 8))
def _slopes(
    params: Params,
    examples: Examples,
    fill: Fill,
    donors: Donors | None,
    points: jax.Array,
    acts: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    held: Held,
) -> jax.Array:
    """(n, P, B)"""

    def slopes_of(example: Examples, fill: Fill, donor: Donors | None) -> jax.Array:
        example, donor = jax.tree.map(lambda a: a[None], (example, donor))
        values = _gated(params, example, Fill(*(a[:, None] for a in fill)), donor, acts, cfg, metric, held)
        slope = jax.grad(lambda gates: values(gates)[0])
        return jax.lax.map(lambda point: slope(jnp.full(cfg.n_layer * cfg.n_head, point)), points)

    B = len(examples.ids)
    fill = jax.tree.map(lambda a: jnp.broadcast_to(a, (a.shape[0], B, *a.shape[2:])), fill)
    return jax.vmap(slopes_of, in_axes=(0, 1, 0), out_axes=-1)(examples, fill, donors)


@functools.partial(jax.jit, static_argnums=(6, 7, 8))
def _hessian(
    params: Params,
    examples: Examples,
    fill: Fill,
    donors: Donors | None,
    counted: jax.Array,
    acts: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    held: Held,
) -> jax.Array:
    """(P, P), summed over the counted examples."""
    values = _gated(params, examples, fill, donors, acts, cfg, metric, held)
    slope = jax.grad(lambda gates: values(gates) @ counted)
    _, along = jax.linearize(slope, jnp.ones(cfg.n_layer * cfg.n_head))
    return jax.lax.map(along, jnp.eye(cfg.n_layer * cfg.n_head))
