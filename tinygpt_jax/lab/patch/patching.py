"""Activation patching: one run's activations put into another, place by place (Vig et al. 2020; Meng et al. 2022).

Where a patch acts is data: a layer, a head, a position, each a number or all of them. One compiled program serves every
place, and a patched run starts at the first layer it touches.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import check_sites
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.lab.metrics import Data, MetricLike
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.patch.contrast import ALL, Contrast, Measured, Pair, in_chunks, is_one, make_contrast
from tinygpt_jax.lab.result import OVER, Result
from tinygpt_jax.model import default_positions, norm, transformer_block, unembed
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import mean_and_se, ratio_and_se

HEAD_SITES = ("q", "k", "v", "pattern", "z")
SITES = (*HEAD_SITES, "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post")
AXES = ("layer", "head", "position")


@dataclass(frozen=True, eq=False)
class Patching(Result):
    """What each patch does to the run it is put into, arrays over the axes `over`: some of layer, head, position."""

    over: tuple[str, ...]
    positions: tuple[int, ...]
    """what the places along the axis position are, where there is one"""
    effect: np.ndarray
    """mean over examples of the metric of the patched run, less that of the run it is put into"""
    se: np.ndarray
    """standard error of `effect` over examples; paired"""
    normalised: np.ndarray
    """`effect` as a share of the whole way: 0 the run patched into, 1 the run the activations are from; NaN where both
    runs have the same metric"""
    normalised_se: np.ndarray
    """standard error of that ratio of means over examples, to first order"""
    per_example: np.ndarray
    """(..., B) the effect on each example"""
    baseline: np.ndarray
    """(B,) the metric of the run patched into"""
    donor: np.ndarray
    """(B,) the metric of the run the activations are from"""

    AXES: ClassVar = {
        **dict.fromkeys(("effect", "se", "normalised", "normalised_se"), (OVER,)),
        "per_example": (OVER, "example"),
        **dict.fromkeys(("baseline", "donor"), ("example",)),
    }

    DIFFERENCES = ("effect",)

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return self.positions if axis == "position" else range(size)

    def changes(self) -> Changes:
        names = self.places(self.over, self.effect.shape, brief=True)
        return changes_of(self.definition, names, self.effect, self.se, self.per_example)

    order, closing = order_of, closing_of


class Place(NamedTuple):
    """Where patches act, arrays of N; `ALL` for all heads or positions."""

    site: Any
    """its number among the sites of the program"""
    head: Any
    position: Any


@of_model
def patch(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    site: str = "resid_pre",
    by: str | Sequence[str] = ("layer", "position"),
    direction: str = "denoise",
    *,
    metric: MetricLike = "loss",
    positions: Sequence[int] | None = None,
    tokens_at_once: int | None = None,
) -> Patching:
    """Patches one site place by place and measures what changes.

        tg.patch(params, clean, corrupted, cfg, "z", by=("layer", "head"), metric="log-prob").normalised

    Args:
        clean: examples whose answer the model knows; their targets and answers are asked of the corrupted run as well
        corrupted: examples, or ids, of the same shape
        site: q, k, v, pattern, z (these by head too), attn_out, mlp_out, resid_pre, resid_mid or resid_post; of a
            pattern a position is that of the query
        by: which of layer, head and position are patched one by one; along the others all are patched together
        direction: `denoise` (the corrupted run, with clean activations) or `noise` (the other way round)
        metric: as in `Intervention`; `kl` is the divergence from the clean run
        positions: the tokens at which to patch, by index; default: all
        tokens_at_once: as in `Intervention`

    Raises:
        UserError: the shapes differ, there are fewer than two examples, or no such site, axis or direction.
    """
    runs = make_contrast(
        params, clean, corrupted, cfg, direction, metric, positions=positions, tokens_at_once=tokens_at_once
    )
    by = check_by(by, (site,), cfg)
    places, layers, shape = make_places(runs, by)
    return patching(runs, site, by, shape, run_patches(runs, places, layers, (site,)))


def check_by(by: str | Sequence[str], sites: Sequence[str], cfg: GPTConfig) -> tuple[str, ...]:
    """The axes in their order; raises UserError for a site that is not there or an axis that it has not."""
    for site in sites:
        if site not in SITES:
            raise UserError(f"site {site!r} cannot be patched{nearest(str(site), SITES)}")
    check_sites(sites, cfg)
    by = (by,) if isinstance(by, str) else tuple(by)
    for axis in by:
        if axis not in AXES:
            raise UserError(f"by {axis!r} is unknown{nearest(str(axis), AXES)}")
    if not by:
        raise UserError(f"by is empty: name at least one of {', '.join(AXES)}")
    if "head" in by and (without := [site for site in sites if site not in HEAD_SITES]):
        raise UserError(f"by 'head': site {without[0]!r} has no heads; take one of {', '.join(HEAD_SITES)}")
    return tuple(axis for axis in AXES if axis in by)


def make_places(runs: Contrast, by: Sequence[str], site: int = 0) -> tuple[Place, np.ndarray, tuple[int, ...]]:
    """Every place along these axes, the layer of each (`ALL` for all), and the sizes of the axes."""
    choices = {"layer": range(runs.lab.cfg.n_layer), "head": range(runs.lab.cfg.n_head), "position": acting(runs)}
    taken = [choices[axis] if axis in by else (ALL,) for axis in AXES]
    layer, head, position = np.array(list(itertools.product(*taken)), np.int32).T
    return Place(np.full_like(layer, site), head, position), layer, tuple(len(choices[axis]) for axis in by)


def acting(runs: Contrast) -> tuple[int, ...]:
    """The positions at which patches act."""
    return tuple(np.flatnonzero(runs.lab.acts).tolist())


def patching(runs: Contrast, site: str, by: tuple[str, ...], shape: tuple[int, ...], found: Measured) -> Patching:
    """The result of what was measured place by place."""
    per_example = found.patched - found.base
    effect, se = mean_and_se(per_example, runs.lab.ordered)
    share, share_se = ratio_and_se(per_example.T, (found.other - found.base)[:, None], runs.lab.ordered)
    definition = runs.definition(granularity="/".join(by), component=site)
    arrays = {"effect": effect, "se": se, "normalised": share, "normalised_se": share_se, "per_example": per_example}
    shaped = {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}
    return Patching(definition, by, acting(runs), baseline=found.base, donor=found.other, **shaped)


# The engine


def run_patches(runs: Contrast, places: Place, layers: np.ndarray, sites: tuple[str, ...]) -> Measured:
    """The metric under every patch; `layers` (N,) holds the layer of each, or `ALL`."""

    def program(pair: Pair, few: Place, layer: int) -> jax.Array:
        first, last = (0, runs.lab.cfg.n_layer - 1) if layer == ALL else (layer, layer)
        return _patched(pair, few, np.int32(first), np.int32(last), sites)

    return in_chunks(runs, places, layers, sites, program)


@functools.partial(jax.jit, static_argnames="sites")
def _patched(pair: Pair, places: Place, first: jax.Array, last: jax.Array, sites: tuple[str, ...]) -> jax.Array:
    """(patches, B): the metric of the base run with the other's activations at each place, in layers first .. last."""
    params, cfg, acts = pair.lab.params, pair.lab.cfg, pair.lab.acts > 0
    pos = default_positions(*pair.ids.shape)

    def value(place: Place) -> jax.Array:
        def block(layer: jax.Array, x: jax.Array) -> jax.Array:
            p, theirs = jax.tree.map(lambda a: a[layer], (params["blocks"], pair.other.taps))

            def at(name: str, x: jax.Array) -> jax.Array:
                if name not in sites:
                    return x
                here = (place.site == sites.index(name)) & (layer <= last)
                here = here & (acts & is_one(place.position, len(acts)))[:, None]  # (T, 1)
                here = here & is_one(place.head, cfg.n_head)[:, None, None] if name in HEAD_SITES else here
                return jnp.where(here, theirs[name], x)

            return transformer_block(x, p, cfg.n_head, cfg=cfg, pos=pos, at=at)

        x = jax.lax.fori_loop(first, cfg.n_layer, block, pair.base.taps["resid_pre"][first])
        return pair.metric(unembed(params, norm(x, params, "lnf", cfg), cfg))

    return jax.vmap(value)(places)
