"""Optimal ablation: the constant replacement that costs the least loss (Li and Janson 2024, "Optimal ablation for
interpretability")."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tinygpt_jax.lab.engine import counted_rows, edited_metric, extent, lab_rows, run_intact
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.intervention import Fill, Gates, Lab
from tinygpt_jax.lab.metrics import METRICS
from tinygpt_jax.text import Examples

STEPS = 40
RATE = 0.1
"""Adam's rate, in root mean squares of what is replaced."""
FOLDS = 4
"""Parts of the examples, each judged by constants that were fitted on the others."""


def optimal_values(lab: Lab, gates: Gates) -> np.ndarray:
    """`fitted_values` (N, B) of each quarter of the examples, with constants fitted on the other three: on the examples
    they were fitted on, constants cost less than they do elsewhere, and few examples would hide the effect.

    Where examples are windows in the order of a text, a quarter is a stretch of it.
    """
    N, (B, T) = len(gates.heads), lab.examples.ids.shape
    folds = np.array_split(np.arange(B), min(FOLDS, B))
    how, longest = lab.intervention, B - B // len(folds)
    at_once = extent(lab.cfg, N, longest, T, how.tokens_at_once, None)  # one for all folds, which share programs
    values = np.empty((N, B), np.float32)
    for i, fold in enumerate(folds):
        others = np.concatenate(folds[:i] + folds[i + 1 :])
        fitted, judged = (
            jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], lab.examples) for rows in (others, fold)
        )
        start = dataclasses.replace(lab, examples=fitted, fill=mean_fill(lab.params, fitted.ids, lab.cfg))

        def progress(done: int, total: int, before: int = i) -> None:
            how.progress(before * total + done, len(folds) * total)

        values[:, fold] = fitted_values(start, judged, gates, at_once, progress=progress)
    return values


def fitted_values(
    lab: Lab,
    judged: Examples,
    gates: Gates,
    at_once: tuple[int, int],
    *,
    steps: int = STEPS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """The metric of the examples `judged` (B) under every mask (N, B), with constants fitted for that mask on the lab's
    examples: one per component, for all examples and positions, by Adam from the lab's fill on the mean loss; `at_once`
    examples and masks at a time.

    The best of zero, the fill and all that Adam passed through is taken, so that on the examples it was fitted on its
    loss is no higher than theirs.
    """
    N, B, (rows, lanes) = len(gates.heads), len(judged.ids), at_once
    asked = dataclasses.replace(lab, examples=judged)
    values = np.empty((N, B), np.float32)
    for first in range(0, N, lanes):
        progress(first, N)
        places = np.minimum(np.arange(first, first + lanes), N - 1)
        few = Gates(*(jnp.asarray(np.asarray(a, np.float32)[places]) for a in gates))
        constants = _fit(lab, few, rows, steps)
        for i in range(0, B, rows):
            found = np.asarray(_judged(lab_rows(asked, i, rows), few, constants))
            values[first : first + lanes, i : i + rows] = found[: N - first, : B - i]
    progress(N, N)
    return values


def _fit(lab: Lab, gates: Gates, rows: int, steps: int) -> Fill:
    """The best constants found for each of the masks, with a leading axis for them."""
    B, lanes, mean = len(lab.examples.ids), len(gates.heads), lab.fill
    lab = dataclasses.replace(lab, metric=METRICS["loss"])

    def loss_and_slope(constants: Fill) -> tuple[np.ndarray, Fill]:
        total, slope = np.zeros(lanes), jax.tree.map(jnp.zeros_like, constants)
        for i in range(0, B, rows):
            some, grads = _slopes(lab_rows(lab, i, rows), gates, constants, counted_rows(i, rows, B))
            total, slope = total + np.asarray(some), jax.tree.map(jnp.add, slope, grads)
        return total / B, jax.tree.map(lambda g: g / B, slope)

    start = jax.tree.map(lambda a: jnp.broadcast_to(a, (lanes, *a.shape)), mean)
    zero = jax.tree.map(jnp.zeros_like, start)
    best, lowest = zero, loss_and_slope(zero)[0]
    scale = jax.tree.map(lambda a: jnp.sqrt(jnp.square(a).mean((-1, -2), keepdims=True)) + 1e-6, mean)
    constants, state = start, optax.adam(RATE).init(start)
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


def _values(lab: Lab, gates: Gates, constants: Fill) -> jax.Array:
    """(lanes, B): the metric under each mask with its own constants."""
    intact = run_intact(lab.params, lab.examples.ids, lab.cfg, lab.held)

    def value(gates: Gates, constants: Fill) -> jax.Array:
        return edited_metric(dataclasses.replace(lab, fill=constants), intact, gates, 0)

    return jax.vmap(value)(gates, constants)


_judged = jax.jit(_values)


@jax.jit
def _slopes(lab: Lab, gates: Gates, constants: Fill, counted: jax.Array) -> tuple[jax.Array, Fill]:
    """The metric summed over the counted examples under each mask, (lanes,), and its gradient by the constants."""

    def total(constants: Fill) -> tuple[jax.Array, jax.Array]:
        values = _values(lab, gates, constants) @ counted
        return values.sum(), values

    (_, values), grads = jax.value_and_grad(total, has_aux=True)(constants)
    return values, grads


def _where(first: np.ndarray, a: Fill, b: Fill) -> Fill:
    """a where `first` (lanes,) is true, b elsewhere."""
    return jax.tree.map(lambda x, y: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), x, y), a, b)
