"""A clean and a corrupted run side by side: what every kind of patching shares."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.forward_pass import Forward, forward
from tinygpt_jax.lab.engine import extent, lab_rows, padded_rows, rows_of_all_layers
from tinygpt_jax.lab.intervention import Lab
from tinygpt_jax.lab.measure import check_measured, make_lab
from tinygpt_jax.lab.metrics import Data, MetricLike, as_examples, measurable
from tinygpt_jax.lab.result import Definition, data_fingerprint
from tinygpt_jax.params import Params

DIRECTIONS = {"denoise": "clean activation", "noise": "corrupted activation"}
"""`denoise` restores the corrupted run with clean activations, `noise` breaks the clean run with corrupted ones."""
ALL = -1
"""In place of a head's or a position's number."""


class Contrast(NamedTuple):
    """A clean and a corrupted run, and which is patched into which."""

    lab: Lab
    """its examples are the clean ones, whose targets and answers every run is scored on"""
    base: np.ndarray
    """(B, T) ids of the run patched into"""
    other: np.ndarray
    """(B, T) ids of the run the activations are from"""
    data: str
    """fingerprint of both"""
    direction: str

    def definition(self, **choices: Any) -> Definition:
        """The definition of a result, given its granularity and component; and what else differs."""
        common = {"value": DIRECTIONS[self.direction], "direction": self.direction, "seed": None, "data": self.data}
        return self.lab.definition(**{**common, "set": "each alone", **choices})


class Pair(NamedTuple):
    """Both runs on some of the examples, as compiled programs take them."""

    lab: Lab
    ids: Any
    """(B, T) of the run patched into"""
    base: Forward
    other: Forward
    clean: Any
    """the clean run's logits"""

    def metric(self, logits: jax.Array) -> jax.Array:
        """(B,) of logits (B, T, V)."""
        return self.lab.metric.values(logits, self.lab.examples, self.clean)


class Measured(NamedTuple):
    """The metric (float64) of N patched runs and of the two they are made of."""

    patched: np.ndarray
    """(N, B)"""
    base: np.ndarray
    """(B,)"""
    other: np.ndarray
    """(B,)"""


def make_contrast(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    direction: str,
    metric: MetricLike,
    *,
    positions: Sequence[int] | None,
    tokens_at_once: int | None,
) -> Contrast:
    """Checks everything that all kinds of patching share."""
    if direction not in DIRECTIONS:
        raise UserError(f"direction {direction!r} is unknown{nearest(str(direction), DIRECTIONS)}")
    clean, corrupted = measurable(params, clean, cfg), as_examples(corrupted, cfg)
    shapes = np.shape(clean.ids), np.shape(corrupted.ids)
    if shapes[0] != shapes[1]:
        raise UserError(
            f"clean ids have shape {shapes[0]}, corrupted ones {shapes[1]}: each clean example needs a corrupted one "
            "of as many tokens"
        )
    lab = make_lab(params, clean, cfg, fill="zero", metric=metric, positions=positions, tokens_at_once=tokens_at_once)
    data = data_fingerprint((*clean.asked, corrupted.ids))
    ids = [np.asarray(examples.ids) for examples in (corrupted, clean)]
    base, other = ids if direction == "denoise" else ids[::-1]
    return Contrast(lab, base, other, data, direction)


def in_chunks(
    runs: Contrast,
    patches: Any,
    layers: np.ndarray,
    sites: tuple[str, ...],
    program: Callable[[Pair, Any, int], jax.Array],
) -> Measured:
    """Runs `program(pair, some patches, their layer)` -> (patches, B) for patches in one layer at a time, as many and
    on as many examples as suit the device.

    Args:
        patches: a NamedTuple of arrays (N,)
        layers: (N,) the layer of each
        sites: what both runs leave for the program
    """
    lab, (B, T) = runs.lab, runs.base.shape
    tokens_at_once = lab.intervention.tokens_at_once
    largest = int(np.unique(layers, return_counts=True)[1].max())
    at_once, width = extent(lab.cfg, largest, B, T, tokens_at_once, None)
    rows = rows_of_all_layers(lab.cfg, B, T, tokens_at_once)
    width = min(largest, at_once * width // rows)
    patched, ends = np.empty((len(layers), B)), np.empty((2, B))
    for where, pair, metrics in pairs(runs, rows, sites):
        for metric in metrics:
            check_measured(metric, lab.metric.name)
        ends[:, where] = metrics
        for layer, chosen in _groups(layers, width):
            few = type(patches)(*(a[np.resize(chosen, width)] for a in patches))
            found = np.asarray(program(pair, few, layer))
            patched[chosen, where] = found[: len(chosen), : metrics.shape[1]]
    return Measured(patched, *ends)


def pairs(runs: Contrast, rows: int, sites: tuple[str, ...]) -> Iterator[tuple[slice, Pair, np.ndarray]]:
    """All examples, `rows` at a time: which these are (the last ones may be there more than once), both runs with what
    they leave at these sites, and the metric (2, how many) of base and other, each example once."""
    lab, B = runs.lab, len(runs.base)
    for i in range(0, B, rows):
        ids = padded_rows((runs.base, runs.other), i, rows)
        base, other = (_tapped(lab.params, some, lab.cfg, (*sites, "resid_pre")) for some in ids)
        clean = (other if runs.direction == "denoise" else base).logits
        pair = Pair(lab_rows(lab, i, rows), ids[0], base, other, clean)
        yield slice(i, i + rows), pair, np.asarray(_ends(pair))[:, : B - i]


def _groups(layers: np.ndarray, width: int) -> Iterator[tuple[int, np.ndarray]]:
    """(layer, at most `width` of the patches that are in it), until all were there."""
    for layer in np.unique(layers):
        inside = np.flatnonzero(layers == layer)
        for j in range(0, len(inside), width):
            yield int(layer), inside[j : j + width]


@functools.partial(jax.jit, static_argnames=("cfg", "sites"))
def _tapped(params: Params, ids: jax.Array, cfg: GPTConfig, sites: tuple[str, ...]) -> Forward:
    return forward(params, ids, cfg, taps=sites)


@jax.jit
def _ends(pair: Pair) -> jax.Array:
    """(2, B): the metric of base and other."""
    return jnp.stack([pair.metric(pair.base.logits), pair.metric(pair.other.logits)])


def is_one(number: jax.Array, n: int) -> jax.Array:
    """(n,) true at this number; everywhere where it is `ALL`."""
    return (number == ALL) | (number == jnp.arange(n, dtype=jnp.int32))
