"""Importance by gradient: what the metric's slope along a head's gate says of switching that head off, beside what
switching it off does."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.engine import counted_rows, edited_metric, lab_rows, rows_of_all_layers, run_intact, with_donors
from tinygpt_jax.lab.intervention import Choices, Donors, Fill, Gates, Lab
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import Data
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.result import Result
from tinygpt_jax.measure import check_memory
from tinygpt_jax.params import Params, of_model
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


@of_model
def head_importance(
    params: Params, data: Data, cfg: GPTConfig, *, steps: int = STEPS, **choices: Unpack[Choices]
) -> Importance:
    """Slopes, integrated slopes and second derivatives of the metric by the gates of all heads, beside true effects.

        tg.head_importance(params, ids, cfg, fill="mean").correlation

    Args:
        data: ids (B, T), or `Examples` with targets and answers
        steps: points of the line that `integrated` takes the mean over (midpoint rule)
        choices: fields of `Intervention`: fill, metric, positions, hold_patterns, freeze_norms, seed, …

    Raises:
        UserError: something does not fit the model, there are fewer than two examples, or the fill is `optimal`.
    """
    lab = make_lab(params, data, cfg, **choices)
    if lab.intervention.fill_name == "optimal":
        raise UserError("fill 'optimal' is fitted anew for each set, so gates have no one line to it: use mean or zero")
    whole("steps", steps, 1, MOST)
    slopes = 8 * steps * cfg.n_layer * cfg.n_head * len(lab.examples.ids)
    check_memory(slopes, f"slopes at {steps:,} points", "lower steps")
    alone = make_sets("heads", cfg)
    everything = Gates(np.zeros_like(alone.gates.heads[:1]), alone.gates.mlps[:1])
    values, baseline = measure(lab, Gates(*map(np.concatenate, zip(alone.gates, everything, strict=True))))
    effects = values.astype(np.float64) - baseline
    estimates = gradient_estimates(lab, steps)
    found: dict[str, np.ndarray] = {}
    for name, per_example in {**estimates, "effect": effects[:-1]}.items():
        mean, se = mean_and_se(per_example, lab.ordered)
        found |= {name: mean.reshape(cfg.n_layer, -1), f"{name}_se": se.reshape(cfg.n_layer, -1)}
    correlation, correlation_se = _agreement(lab, estimates, effects[:-1])
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


def gradient_estimates(lab: Lab, steps: int) -> dict[str, np.ndarray]:
    """Each of ESTIMATES for every head and example, (P, B) float64."""
    line = (np.arange(steps, dtype=np.float32) + 0.5) / steps
    slopes = gate_slopes(lab, np.append(line, np.float32(1)))
    return {"absolute": np.abs(slopes[-1]), "signed": -slopes[-1], "integrated": -slopes[:-1].mean(0)}


def _agreement(lab: Lab, estimates: dict[str, np.ndarray], effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank correlations of the estimates with the effects (P, B), of `absolute` with their size, and the errors."""
    sizes = effects * np.where(effects.mean(-1, keepdims=True) < 0, -1, 1)
    pairs = [
        rank_correlation_and_se(
            one, sizes if name == "absolute" else effects, seed=lab.intervention.seed, ordered=lab.ordered
        )
        for name, one in estimates.items()
    ]
    correlation, correlation_se = np.array(pairs).T
    return correlation, correlation_se


def gate_slopes(lab: Lab, points: np.ndarray) -> np.ndarray:
    """d metric / d gate of every head and example where all heads' gates have the same value, for each of n values:
    (n, P, B) float64."""
    slopes = np.empty((len(points), lab.cfg.n_layer * lab.cfg.n_head, len(lab.examples.ids)))
    for i, counted, part in _parts(lab):
        found = np.asarray(_slopes(part, jnp.asarray(points)))
        slopes[..., i : i + len(counted)] = found[..., : slopes.shape[-1] - i]
    return slopes


def gate_hessian(lab: Lab) -> np.ndarray:
    """Second derivatives of the mean metric by the heads' gates, at gates one: (P, P) float64, symmetric."""
    total = np.zeros((lab.cfg.n_layer * lab.cfg.n_head,) * 2)
    for _, counted, part in _parts(lab):
        total += np.asarray(_hessian(part, counted))
    return (total + total.T) / (2 * len(lab.examples.ids))  # the two triangles differ by rounding


def _parts(lab: Lab) -> Iterator[tuple[int, np.ndarray, Lab]]:
    """Chunks of the examples: the first's number, which are counted (rows,), and the lab with these alone."""
    B, T = lab.examples.ids.shape
    rows = rows_of_all_layers(lab.cfg, B, T, lab.intervention.tokens_at_once)
    for i in range(0, B, rows):
        yield i, counted_rows(i, rows, B), lab_rows(lab, i, rows)


def _gated(lab: Lab) -> Callable[[jax.Array], jax.Array]:
    """The metric (B,) as a function of the heads' gates, (P,), with derivatives."""
    intact = run_intact(lab.params, lab.examples.ids, lab.cfg, lab.held)
    lab, mlps = with_donors(lab, intact), jnp.ones(lab.cfg.n_layer)

    def values(gates: jax.Array) -> jax.Array:
        return edited_metric(lab, intact, Gates(gates.reshape(lab.cfg.n_layer, lab.cfg.n_head), mlps), 0)

    return values


@jax.jit
def _slopes(lab: Lab, points: jax.Array) -> jax.Array:
    """(n, P, B)"""

    def slopes_of(example: Examples, fill: Fill, donor: Donors | None) -> jax.Array:
        example, donor = jax.tree.map(lambda a: a[None], (example, donor))
        fill = Fill(*(a[:, None] for a in fill))
        values = _gated(dataclasses.replace(lab, examples=example, fill=fill, donors=donor))
        slope = jax.grad(lambda gates: values(gates)[0])
        return jax.lax.map(lambda point: slope(jnp.full(lab.cfg.n_layer * lab.cfg.n_head, point)), points)

    B = len(lab.examples.ids)
    fill = jax.tree.map(lambda a: jnp.broadcast_to(a, (a.shape[0], B, *a.shape[2:])), lab.fill)
    return jax.vmap(slopes_of, in_axes=(0, 1, 0), out_axes=-1)(lab.examples, fill, lab.donors)


@jax.jit
def _hessian(lab: Lab, counted: jax.Array) -> jax.Array:
    """(P, P), summed over the counted examples."""
    values = _gated(lab)
    slope = jax.grad(lambda gates: values(gates) @ counted)
    _, along = jax.linearize(slope, jnp.ones(lab.cfg.n_layer * lab.cfg.n_head))
    return jax.lax.map(along, jnp.eye(lab.cfg.n_layer * lab.cfg.n_head))
