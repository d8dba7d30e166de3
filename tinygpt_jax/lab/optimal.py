"""Optimal ablation: the constant whose place-taking costs the least loss (Li and Janson 2024, "Optimal ablation for
interpretability")."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.engine import Fill, Gates, Held, counted_rows, extent, padded_rows, run_edited, run_intact
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.metrics import METRICS, Metric
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

STEPS = 40
RATE = 0.1
"""Adam's rate, in root mean squares of what is replaced."""
FOLDS = 4
"""Parts of the examples, each judged by constants that were fitted on the others."""


def optimal_values(
    params: Params,
    examples: Examples,
    cfg: GPTConfig,
    gates: Gates,
    metric: Metric,
    *,
    tokens_at_once: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> np.ndarray:
    """`fitted_values` (N, B) of each quarter of the examples, with constants fitted on the other three: on the examples
    they were fitted on, constants cost less than they do elsewhere, and few examples would hide the effect.

    Where examples are windows in the order of a text, a quarter is a stretch of it.
    """
    N, (B, T) = len(gates.heads), examples.ids.shape
    folds = np.array_split(np.arange(B), min(FOLDS, B))
    at_once = extent(cfg, N, B - B // len(folds), T, tokens_at_once, None)  # one for all folds, which share programs
    values = np.empty((N, B), np.float32)
    for i, fold in enumerate(folds):
        others = np.concatenate(folds[:i] + folds[i + 1 :])
        fitted, judged = (jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], examples) for rows in (others, fold))
        mean = mean_fill(params, fitted.ids, cfg)

        def told(done: int, total: int, before: int = i) -> None:
            progress(before * total + done, len(folds) * total)

        options |= {"at_once": at_once, "progress": told}
        values[:, fold] = fitted_values(params, fitted, judged, cfg, gates, mean, metric, **options)
    return values


def fitted_values(
    params: Params,
    examples: Examples,
    judged: Examples,
    cfg: GPTConfig,
    gates: Gates,
    mean: Fill,
    metric: Metric,
    *,
    acts: np.ndarray,
    held: Held,
    at_once: tuple[int, int],
    steps: int = STEPS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """The metric of the examples `judged` (B) under every mask (N, B), with constants fitted for that mask on
    `examples`: one per component, for all examples and positions, by Adam on the mean loss; `at_once` examples and
    masks at a time.

    The best of zero, the mean and all that Adam passed through is taken, so that on the examples it was fitted on its
    loss is no higher than theirs.
    """
    N, B, (rows, lanes) = len(gates.heads), len(judged.ids), at_once
    values = np.empty((N, B), np.float32)
    for first in range(0, N, lanes):
        progress(first, N)
        places = np.minimum(np.arange(first, first + lanes), N - 1)
        few = Gates(*(jnp.asarray(np.asarray(a, np.float32)[places]) for a in gates))
        constants = _fit(params, examples, cfg, few, mean, acts, held, rows, steps)
        for i in range(0, B, rows):
            part = padded_rows(judged, i, rows)
            found = np.asarray(_metric(params, part, constants, few, acts, cfg, metric, held))
            values[first : first + lanes, i : i + rows] = found[: N - first, : B - i]
    progress(N, N)
    return values


def _fit(
    params: Params,
    examples: Examples,
    cfg: GPTConfig,
    gates: Gates,
    mean: Fill,
    acts: np.ndarray,
    held: Held,
    rows: int,
    steps: int,
) -> Fill:
    """The best constants found for each of the masks, with a leading axis for them."""
    B, lanes = len(examples.ids), len(gates.heads)
    loss = METRICS["loss"]

    def loss_and_slope(constants: Fill) -> tuple[np.ndarray, Fill]:
        total, slope = np.zeros(lanes), jax.tree.map(jnp.zeros_like, constants)
        for i in range(0, B, rows):
            part, counted = padded_rows(examples, i, rows), counted_rows(i, rows, B)
            some, grads = _slopes(params, part, counted, constants, gates, acts, cfg, loss, held)
            total, slope = total + np.asarray(some), jax.tree.map(jnp.add, slope, grads)
        return total / B, jax.tree.map(lambda g: g / B, slope)

    start = jax.tree.map(lambda a: jnp.broadcast_to(a, (lanes, *a.shape)), mean)
    zero = jax.tree.map(jnp.zeros_like, start)
    best, lowest = zero, loss_and_slope(zero)[0]
    scale = jax.tree.map(lambda a: jnp.sqrt(jnp.square(a).mean((-1, -2), keepdims=True)) + 1e-6, mean)
    rule = optax.adam(RATE)
    constants, state = start, rule.init(start)
    for step in range(steps + 1):
        now, slope = loss_and_slope(constants)
        best = _where(now < lowest, constants, best)
        lowest = np.minimum(now, lowest)
        if step < steps:
            constants, state = _step(constants, state, slope, scale)
    return best


@jax.jit
def _step(constants: Fill, state: optax.OptState, slope: Fill, scale: Fill) -> tuple[Fill, optax.OptState]:
    with jax.numpy_dtype_promotion("standard"):  # which optax relies on
        updates, state = optax.adam(RATE).update(slope, state)
    return jax.tree.map(lambda c, u, s: c + u * s, constants, updates, scale), state


def _values(
    params: Params,
    examples: Examples,
    constants: Fill,
    gates: Gates,
    acts: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    held: Held,
) -> jax.Array:
    """(lanes, B): the metric under each mask with its own constants."""
    intact = run_intact(params, examples.ids, cfg, held)

    def value(constants: Fill, gates: Gates) -> jax.Array:
        logits = run_edited(params, intact, gates, constants, acts, 0, cfg, held)
        return metric.values(logits, examples, intact.logits)

    return jax.vmap(value)(constants, gates)


_metric = functools.partial(jax.jit, static_argnums=(5, 6, 7))(_values)


@functools.partial(jax.jit, static_argnums=(6, 7, 8))
def _slopes(params, examples, counted, constants, gates, acts, cfg, metric, held):
    """Summed loss of the counted examples under each mask, (lanes,), and its gradient by the constants."""

    def total(constants):
        values = _values(params, examples, constants, gates, acts, cfg, metric, held) @ counted
        return values.sum(), values

    (_, values), grads = jax.value_and_grad(total, has_aux=True)(constants)
    return values, grads


def _where(first: np.ndarray, a: Fill, b: Fill) -> Fill:
    """a where `first` (lanes,) is true, b elsewhere."""
    return jax.tree.map(lambda x, y: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), x, y), a, b)
