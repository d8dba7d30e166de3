"""Attribution patching: every patch at once, to first order, from two runs and one backward pass (Nanda 2023; Syed,
Rager and Conmy 2023)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.engine import rows_of_all_layers
from tinygpt_jax.lab.metrics import Data, MetricLike
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.patch.contrast import Contrast, Pair, make_contrast, pairs
from tinygpt_jax.lab.patch.patching import HEAD_SITES, SITES, Place, acting, check_by, make_places, run_patches
from tinygpt_jax.lab.result import OVER, Result
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import mean_and_se, rank_correlation_and_se


@dataclass(frozen=True, eq=False)
class Attribution(Result):
    """Patching to first order beside patching, arrays over `site` and the axes `over`."""

    over: tuple[str, ...]
    sites: tuple[str, ...]
    positions: tuple[int, ...]
    """what the places along the axis position are, where there is one"""
    estimate: np.ndarray
    """mean over examples of (other - base) · d metric / d site at the base run: the patch's effect to first order"""
    estimate_se: np.ndarray
    """standard errors over examples"""
    baseline: np.ndarray
    """(B,) the metric of the run patched into"""
    donor: np.ndarray
    """(B,) the metric of the run the activations are from"""
    effect: np.ndarray | None = None
    """the effect of the patch itself, where it was asked for"""
    effect_se: np.ndarray | None = None
    correlation: np.ndarray | None = None
    """(site,) Spearman's, of estimate and effect over a site's places; NaN where one of them is everywhere the same"""
    correlation_se: np.ndarray | None = None
    """bootstrap standard error over examples"""

    AXES: ClassVar = {
        **dict.fromkeys(("estimate", "estimate_se", "effect", "effect_se"), ("site", OVER)),
        **dict.fromkeys(("correlation", "correlation_se"), ("site",)),
        **dict.fromkeys(("baseline", "donor"), ("example",)),
    }
    DIFFERENCES = ("estimate", "effect")

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return {"site": self.sites, "position": self.positions}.get(axis, range(size))

    def changes(self) -> Changes:
        """Of the patches themselves, or of their estimates where those are all there is."""
        field = "estimate" if self.effect is None else "effect"
        values, errors = getattr(self, field), getattr(self, f"{field}_se")
        names = self.places(self.axes(field), values.shape, brief=True)
        return changes_of(self.definition, names, values, errors, what=field)

    order, closing = order_of, closing_of


@of_model
def attribution_patch(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    sites: Sequence[str] | None = None,
    by: str | Sequence[str] = ("layer", "position"),
    direction: str = "denoise",
    *,
    metric: MetricLike = "loss",
    compare: bool = True,
    positions: Sequence[int] | None = None,
    tokens_at_once: int | None = None,
) -> Attribution:
    """`patch` at many sites to first order, and how well its ranks agree with those of patching itself.

    Args:
        sites: default: all that the model has, or those with heads where `by` has head
        by: as in `patch`, with layer among them: patches in several layers interact, which no sum shows
        compare: also patch place by place
        clean, corrupted, direction, metric, positions, tokens_at_once: as in `patch`

    Raises:
        UserError: as in `patch`, or `by` lacks layer.
    """
    runs = make_contrast(
        params, clean, corrupted, cfg, direction, metric, positions=positions, tokens_at_once=tokens_at_once
    )
    sites, by = _sites(sites, by, cfg)
    estimates, base, other = first_order(runs, sites, by)
    shape = (len(sites), *make_places(runs, by)[2])

    def summary(name: str, per_example: np.ndarray) -> dict[str, np.ndarray]:
        mean, se = mean_and_se(per_example, runs.lab.ordered)
        return {name: mean.reshape(shape), f"{name}_se": se.reshape(shape)}

    found = summary("estimate", estimates)
    if compare:
        effects = _patched(runs, sites, by)
        pairs = [
            rank_correlation_and_se(a, b, ordered=runs.lab.ordered) for a, b in zip(estimates, effects, strict=True)
        ]
        correlation, correlation_se = np.array(pairs).T
        found |= {**summary("effect", effects), "correlation": correlation, "correlation_se": correlation_se}
    definition = runs.definition(granularity="/".join(by), component=", ".join(sites), flags=("first order",))
    return Attribution(definition, by, sites, acting(runs), baseline=base, donor=other, **found)


def _sites(
    sites: Sequence[str] | None, by: str | Sequence[str], cfg: GPTConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sites and axes, checked."""
    if sites is None:
        sites = HEAD_SITES if "head" in by else [site for site in SITES if site != "mlp_out" or cfg.mlp_width]
    sites = (sites,) if isinstance(sites, str) else tuple(sites)
    by = check_by(by, sites, cfg)
    if len(set(sites)) < len(sites):
        raise UserError(f"sites are {sites!r}: name each once")
    if not sites or "layer" not in by:
        raise UserError(f"sites are {sites!r}, by is {by!r}: name a site, and patch by 'layer' at least")
    return sites, by


def first_order(runs: Contrast, sites: tuple[str, ...], by: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The estimate for every site, place and example (sites, N, B) float64, and the metric (B,) of both runs."""
    estimates, ends, lab, (B, T) = [], [], runs.lab, runs.base.shape
    rows = rows_of_all_layers(lab.cfg, B, T, lab.intervention.tokens_at_once)
    for _, pair, metrics in pairs(runs, rows, sites):
        found = _first_order(pair, sites)
        n = metrics.shape[1]
        estimates.append([_reduced(np.asarray(found[site], np.float64)[:, :n], lab.acts, by) for site in sites])
        ends.append(metrics)
    return np.concatenate(estimates, axis=-1), *np.concatenate(ends, axis=-1)


def _reduced(estimate: np.ndarray, acts: np.ndarray, by: Sequence[str]) -> np.ndarray:
    """(L, B, T) or (L, B, H, T) -> (N, B): summed over what is patched together."""
    estimate = estimate[..., acts > 0]
    estimate = estimate if estimate.ndim == 4 else estimate[:, :, None]
    together = tuple(axis for axis, name in ((2, "head"), (3, "position")) if name not in by)
    estimate = estimate.sum(together, keepdims=True).transpose(0, 2, 3, 1)
    return estimate.reshape(-1, estimate.shape[-1])


@functools.partial(jax.jit, static_argnames="sites")
def _first_order(pair: Pair, sites: tuple[str, ...]) -> dict[str, jax.Array]:
    """site -> (L, B, T) float32, or (L, B, H, T) where it has heads."""

    def total(nudges: dict[str, jax.Array]) -> jax.Array:
        edits = {site: Edit(add=nudge) for site, nudge in nudges.items()}
        return pair.metric(forward(pair.lab.params, pair.ids, pair.lab.cfg, edits=edits).logits).sum()

    ours, theirs = ({site: run.taps[site] for site in sites} for run in (pair.base, pair.other))
    slopes = jax.grad(total)(jax.tree.map(jnp.zeros_like, ours))
    theirs, ours, slopes = jax.tree.map(lambda a: a.astype(jnp.float32), (theirs, ours, slopes))
    return jax.tree.map(lambda a, b, slope: ((a - b) * slope).sum(-1), theirs, ours, slopes)


def _patched(runs: Contrast, sites: tuple[str, ...], by: Sequence[str]) -> np.ndarray:
    """The effects (sites, N, B) of patching itself: places at all sites together, in one program."""
    alone = [make_places(runs, by, site) for site in range(len(sites))]
    places = Place(*map(np.concatenate, zip(*(one[0] for one in alone), strict=True)))
    found = run_patches(runs, places, np.concatenate([one[1] for one in alone]), sites)
    return (found.patched - found.base).reshape(len(sites), -1, found.base.size)
