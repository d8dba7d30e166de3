"""Activation patching: one run's activations put into another, place by place (Vig et al. 2020; Meng et al. 2022).

Where a patch acts is data: a layer, a head, a position, each a number or all of them. One compiled program serves every
place, and a patched run starts at the first layer it touches.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig, nearest
from tinygpt_jax.errors import UserError
from tinygpt_jax.heads.lab import Data, Lab, make_lab
from tinygpt_jax.heads.metrics import Metric, MetricLike, as_examples
from tinygpt_jax.heads.results import Definition, Result, data_fingerprint
from tinygpt_jax.heads.statistics import mean_and_se
from tinygpt_jax.heads.sweep import extent, padded_rows
from tinygpt_jax.hooks import check_sites
from tinygpt_jax.model import Forward, default_positions, forward, norm, transformer_block, unembed
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

HEAD_SITES = ("q", "k", "v", "pattern", "z")
SITES = (*HEAD_SITES, "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post")
AXES = ("layer", "head", "position")
DIRECTIONS = {"denoise": "clean activation", "noise": "corrupted activation"}
"""`denoise` mends the corrupted run with clean activations, `noise` breaks the clean run with corrupted ones."""
ALL = -1
"""In place of a head's or a position's number."""


@dataclass(frozen=True, eq=False)
class Patching(Result):
    """What each patch does to the run it is put into, arrays over the axes `over`: some of layer, head, position."""

    over: tuple[str, ...]
    positions: tuple[int, ...]
    """what the places along the axis position are, where there is one"""
    effect: np.ndarray
    """mean over examples of the metric of the patched run, less that of the run it is put into"""
    se: np.ndarray
    """standard error of `effect` over examples, taken as independent; paired"""
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

    AXES: ClassVar = dict.fromkeys(
        ("effect", "se", "normalised", "normalised_se", "per_example", "baseline", "donor"), ()
    )

    def axes(self, field: str) -> tuple[str, ...]:
        if field in ("baseline", "donor"):
            return ("example",)
        return (*self.over, "example") if field == "per_example" else self.over

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return self.positions if axis == "position" else range(size)


class Runs(NamedTuple):
    """A clean and a corrupted run, and which is patched into which."""

    lab: Lab
    """its examples are the clean ones, whose questions are asked of every run"""
    base: np.ndarray
    """(B, T) ids of the run patched into"""
    other: np.ndarray
    """(B, T) ids of the run the activations are from"""
    data: str
    direction: str

    def definition(self, **choices: Any) -> Definition:
        """The definition of a result, given its granularity and component; and what else differs."""
        common = {"value": DIRECTIONS[self.direction], "direction": self.direction, "seed": None, "data": self.data}
        return self.lab.definition(**{**common, "set": "each alone", **choices})


class Place(NamedTuple):
    """Where patches act, arrays of N; `ALL` for all heads or positions."""

    site: Any
    """its number among the sites of the program"""
    head: Any
    position: Any


class Measured(NamedTuple):
    """The metric (float64) of N patched runs and of the two they are made of."""

    patched: np.ndarray
    """(N, B)"""
    base: np.ndarray
    """(B,)"""
    other: np.ndarray
    """(B,)"""


def patch(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    site: str = "resid_pre",
    by: str | Sequence[str] = ("layer", "position"),
    direction: str = "denoise",
    metric: MetricLike = "loss",
    *,
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
        by: which of layer, head and position are told apart; along the others all are patched together
        direction: `denoise` (the corrupted run, with clean activations) or `noise` (the other way round)
        metric: as in `How`; `kl` is the divergence from the clean run
        positions: the tokens at which to patch, by index; default: all
        tokens_at_once: as in `How`

    Raises:
        UserError: the shapes differ, there are fewer than two examples, or no such site, axis or direction.
    """
    runs = make_runs(params, clean, corrupted, cfg, direction, metric, positions, tokens_at_once)
    by = check_by(by, (site,), cfg)
    places, layers, shape = make_places(runs, by)
    return patching(runs, site, by, shape, measure(runs, places, layers, (site,)))


def make_runs(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    direction: str,
    metric: MetricLike,
    positions: Sequence[int] | None,
    tokens_at_once: int | None,
) -> Runs:
    """Checks everything that all kinds of patching share."""
    if direction not in DIRECTIONS:
        raise UserError(f"direction {direction!r} is unknown{nearest(str(direction), DIRECTIONS)}")
    clean, corrupted = as_examples(clean, cfg), as_examples(corrupted, cfg)
    shapes = np.shape(clean.ids), np.shape(corrupted.ids)
    if shapes[0] != shapes[1]:
        raise UserError(
            f"clean ids have shape {shapes[0]}, corrupted ones {shapes[1]}: they must be partners, one to one"
        )
    lab = make_lab(params, clean, cfg, fill="zero", metric=metric, positions=positions, tokens_at_once=tokens_at_once)
    data = data_fingerprint((*clean, corrupted.ids))
    ids = [np.asarray(examples.ids) for examples in (corrupted, clean)]
    base, other = ids if direction == "denoise" else ids[::-1]
    return Runs(lab, base, other, data, direction)


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


def make_places(runs: Runs, by: Sequence[str], site: int = 0) -> tuple[Place, np.ndarray, tuple[int, ...]]:
    """Every place told apart by these axes, the layer of each (`ALL` for all), and the sizes of the axes."""
    choices = {"layer": range(runs.lab.cfg.n_layer), "head": range(runs.lab.cfg.n_head), "position": acting(runs)}
    taken = [choices[axis] if axis in by else (ALL,) for axis in AXES]
    layer, head, position = np.array(list(itertools.product(*taken)), np.int32).T
    return Place(np.full_like(layer, site), head, position), layer, tuple(len(choices[axis]) for axis in by)


def acting(runs: Runs) -> tuple[int, ...]:
    """The positions at which patches act."""
    return tuple(np.flatnonzero(runs.lab.acts).tolist())


def patching(runs: Runs, site: str, by: tuple[str, ...], shape: tuple[int, ...], found: Measured) -> Patching:
    """The result of what was measured place by place."""
    per_example = found.patched - found.base
    effect, se = mean_and_se(per_example)
    share, share_se = share_and_se(per_example, found.other - found.base)
    definition = runs.definition(granularity="/".join(by), component=site)
    arrays = {"effect": effect, "se": se, "normalised": share, "normalised_se": share_se, "per_example": per_example}
    laid = {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}
    return Patching(definition, by, acting(runs), baseline=found.base, donor=found.other, **laid)


def share_and_se(per_example: np.ndarray, span: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each row (..., B) over the mean of span (B,), and its standard error by the delta method."""
    whole = span.mean() or np.nan
    share = per_example.mean(-1) / whole
    return share, mean_and_se(per_example - share[..., None] * span)[1] / abs(whole)


# The engine


def measure(runs: Runs, places: Place, layers: np.ndarray, sites: tuple[str, ...]) -> Measured:
    """The metric under every patch; `layers` (N,) holds the layer of each, or `ALL`."""

    def program(base: Forward, other: Forward, few: Place, layer: int, *asked: Any) -> jax.Array:
        first, last = (0, runs.lab.cfg.n_layer - 1) if layer == ALL else (layer, layer)
        span = np.int32(first), np.int32(last)
        return _patched(runs.lab.params, base, other, few, *span, *asked, runs.lab.cfg, runs.lab.metric, sites)

    return in_chunks(runs, places, layers, sites, program)


def in_chunks(
    runs: Runs, lanes: Any, layers: np.ndarray, sites: tuple[str, ...], program: Callable[..., jax.Array]
) -> Measured:
    """Runs `program(base, other, some lanes, their layer, acts, examples, clean logits)` -> (lanes, B) for lanes in one
    layer at a time, as many and on as many examples as suit the device."""
    lab, (B, T) = runs.lab, runs.base.shape
    largest = int(np.unique(layers, return_counts=True)[1].max())
    at_once, width = extent(lab.cfg, largest, B, T, lab.how.tokens_at_once, None)
    rows = rows_of_all_layers(runs)
    width = min(largest, width * (at_once // rows))
    patched, ends = np.empty((len(layers), B)), np.empty((2, B))
    for part in parts(runs, rows, sites):
        ends[:, part.where] = part.metrics
        for layer, chosen in _groups(layers, width):
            few = type(lanes)(*(a[np.resize(chosen, width)] for a in lanes))
            found = program(part.base, part.other, few, layer, lab.acts > 0, part.examples, part.clean)
            patched[chosen, part.where] = np.asarray(found)[: len(chosen), : part.metrics.shape[1]]
    return Measured(patched, *ends)


def rows_of_all_layers(runs: Runs) -> int:
    """Examples at once where what every layer leaves is kept, for a backward pass or to be patched in."""
    return max(
        1, extent(runs.lab.cfg, 1, *runs.base.shape, runs.lab.how.tokens_at_once, None)[0] // runs.lab.cfg.n_layer
    )


class Part(NamedTuple):
    """Both runs on some of the examples."""

    where: slice
    """which of all examples these are; the last ones may be there more than once"""
    examples: Examples
    ids: np.ndarray
    """of the run patched into"""
    base: Forward
    other: Forward
    clean: jax.Array
    """the clean run's logits"""
    metrics: np.ndarray
    """(2, how many) of base and other, each example once"""


def parts(runs: Runs, rows: int, sites: tuple[str, ...]) -> Iterator[Part]:
    """All examples, `rows` at a time, with what both runs leave at these sites."""
    lab, B = runs.lab, len(runs.base)
    for i in range(0, B, rows):
        examples, *ids = padded_rows((lab.examples, runs.base, runs.other), i, rows)
        base, other = (_tapped(lab.params, some, lab.cfg, (*sites, "resid_pre")) for some in ids)
        clean = (other if runs.direction == "denoise" else base).logits
        metrics = [np.asarray(_metric(run.logits, examples, clean, lab.metric)) for run in (base, other)]
        yield Part(slice(i, i + rows), examples, ids[0], base, other, clean, np.stack(metrics)[:, : B - i])


def _groups(layers: np.ndarray, width: int) -> Iterator[tuple[int, np.ndarray]]:
    """(layer, at most `width` of the lanes that are in it), until all were there."""
    for layer in np.unique(layers):
        inside = np.flatnonzero(layers == layer)
        for j in range(0, len(inside), width):
            yield int(layer), inside[j : j + width]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _tapped(params: Params, ids: jax.Array, cfg: GPTConfig, sites: tuple[str, ...]) -> Forward:
    return forward(params, ids, cfg, taps=sites)


@functools.partial(jax.jit, static_argnums=3)
def _metric(logits: jax.Array, examples: Examples, clean: jax.Array, metric: Metric) -> jax.Array:
    return metric.values(logits, examples, clean)


@functools.partial(jax.jit, static_argnums=(9, 10, 11))
def _patched(
    params: Params,
    base: Forward,
    other: Forward,
    places: Place,
    first: jax.Array,
    last: jax.Array,
    acts: jax.Array,
    examples: Examples,
    clean: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    sites: tuple[str, ...],
) -> jax.Array:
    """(lanes, B): the metric of the base run with the other's activations at each place, in layers first .. last."""
    pos = default_positions(*examples.ids.shape)

    def value(place: Place) -> jax.Array:
        def block(layer: jax.Array, x: jax.Array) -> jax.Array:
            p, theirs = jax.tree.map(lambda a: a[layer], (params["blocks"], other.taps))

            def at(name: str, x: jax.Array) -> jax.Array:
                if name not in sites:
                    return x
                here = (place.site == sites.index(name)) & (layer <= last)
                here = here & (acts & is_one(place.position, len(acts)))[:, None]  # (T, 1)
                here = here & is_one(place.head, cfg.n_head)[:, None, None] if name in HEAD_SITES else here
                return jnp.where(here, theirs[name], x)

            return transformer_block(x, p, cfg.n_head, cfg, pos, at=at)

        x = jax.lax.fori_loop(first, cfg.n_layer, block, base.taps["resid_pre"][first])
        return metric.values(unembed(params, norm(x, params, "lnf", cfg), cfg), examples, clean)

    return jax.vmap(value)(places)


def is_one(number: jax.Array, n: int) -> jax.Array:
    """(n,) true at this number; everywhere where it is `ALL`."""
    return (number == ALL) | (number == jnp.arange(n, dtype=jnp.int32))
