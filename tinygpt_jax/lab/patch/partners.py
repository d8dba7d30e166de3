"""A clean and a corrupted run side by side: what every kind of patching shares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.forward_pass import Forward, forward
from tinygpt_jax.lab.engine import extent, padded_rows, rows_of_all_layers
from tinygpt_jax.lab.intervention import Data, Lab, make_lab
from tinygpt_jax.lab.metrics import Metric, MetricLike, as_examples
from tinygpt_jax.lab.result import Definition, data_fingerprint
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

DIRECTIONS = {"denoise": "clean activation", "noise": "corrupted activation"}
"""`denoise` mends the corrupted run with clean activations, `noise` breaks the clean run with corrupted ones."""
ALL = -1
"""In place of a head's or a position's number."""


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


class Measured(NamedTuple):
    """The metric (float64) of N patched runs and of the two they are made of."""

    patched: np.ndarray
    """(N, B)"""
    base: np.ndarray
    """(B,)"""
    other: np.ndarray
    """(B,)"""


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
    data = data_fingerprint((*clean.asked, corrupted.ids))
    ids = [np.asarray(examples.ids) for examples in (corrupted, clean)]
    base, other = ids if direction == "denoise" else ids[::-1]
    return Runs(lab, base, other, data, direction)


def in_chunks(
    runs: Runs, lanes: Any, layers: np.ndarray, sites: tuple[str, ...], program: Callable[..., jax.Array]
) -> Measured:
    """Runs `program(base, other, some lanes, their layer, acts, examples, clean logits)` -> (lanes, B) for lanes in one
    layer at a time, as many and on as many examples as suit the device."""
    lab, (B, T) = runs.lab, runs.base.shape
    largest = int(np.unique(layers, return_counts=True)[1].max())
    at_once, width = extent(lab.cfg, largest, B, T, lab.how.tokens_at_once, None)
    rows = rows_of_all_layers(lab.cfg, B, T, lab.how.tokens_at_once)
    width = min(largest, at_once * width // rows)
    patched, ends = np.empty((len(layers), B)), np.empty((2, B))
    for part in parts(runs, rows, sites):
        ends[:, part.where] = part.metrics
        for layer, chosen in _groups(layers, width):
            few = type(lanes)(*(a[np.resize(chosen, width)] for a in lanes))
            found = program(part.base, part.other, few, layer, lab.acts > 0, part.examples, part.clean)
            patched[chosen, part.where] = np.asarray(found)[: len(chosen), : part.metrics.shape[1]]
    return Measured(patched, *ends)


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


def is_one(number: jax.Array, n: int) -> jax.Array:
    """(n,) true at this number; everywhere where it is `ALL`."""
    return (number == ALL) | (number == jnp.arange(n, dtype=jnp.int32))
