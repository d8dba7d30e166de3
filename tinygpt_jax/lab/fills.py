"""What takes the place of a component that is switched off; for optimal ablation, fitted constants."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.engine import counted_rows, edited_metric, extent, lab_rows, padded_rows, run_intact
from tinygpt_jax.lab.intervention import Donors, Fill, FillLike, Gates, Lab, zero_fill
from tinygpt_jax.lab.metrics import METRICS
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

FILLS = ("zero", "mean", "position-mean", "resample", "optimal")


def make_fill(
    fill: FillLike, params: Params, examples: Examples, cfg: GPTConfig, seed: int
) -> tuple[Fill, Donors | None]:
    """A fill by name, or from an array that broadcasts to (L, B, H, T, K) for heads, or `Fill` of two such; and the
    examples whose activations are added to it.

    `zero`; `mean` over all examples and positions; `position-mean`: for each example the mean over the others, position
    by position, since a mean of few that holds the example itself lies too close to it and hides the effect;
    `resample`: the activations on another of the examples, drawn by the seed. For `optimal` the mean, and nothing is
    fitted yet. In `mean` an example's share is that of one activation among all tokens: no effect of it was found.

    Raises:
        UserError: there is no such fill, or an array does not fit.
    """
    if not isinstance(fill, str):
        return _checked(fill, examples, cfg), None
    if fill not in FILLS:
        raise UserError(f"fill {fill!r} is unknown{nearest(fill, FILLS)}")
    if fill == "zero":
        return zero_fill(cfg), None
    if fill == "resample":
        donors = np.asarray(examples.ids)[derangement(len(examples.ids), seed)]
        return zero_fill(cfg), Donors(donors, np.ones(len(donors), np.float32))
    if fill == "position-mean":
        return others_mean(params, examples.ids, cfg)
    return mean_fill(params, examples.ids, cfg), None


def others_mean(params: Params, ids: np.ndarray, cfg: GPTConfig) -> tuple[Fill, Donors]:
    """For each of the examples ids (B, T), B of two or more, the mean activations of the others by position.

    A mean of few is a noisy one, which adds to effects about 1/B of what resampling adds to them.
    """
    whole, weight = mean_fill(params, ids, cfg, by_position=True), np.float32(1 / (len(ids) - 1))
    return jax.tree.map(lambda a: a * (1 + weight), whole), Donors(None, np.full(len(ids), -weight))


def mean_fill(params: Params, ids: np.ndarray, cfg: GPTConfig, *, by_position: bool = False) -> Fill:
    """Mean activations over the examples ids (B, T), and over their positions unless `by_position`."""
    ids = np.asarray(ids)
    (B, T), total = ids.shape, None
    rows, _ = extent(cfg, 1, B, T, None, None)
    for i in range(0, B, rows):
        part = _sums(params, padded_rows(ids, i, rows), counted_rows(i, rows, B), cfg)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    means = jax.tree.map(lambda a: a / B, total)
    return means if by_position else jax.tree.map(lambda a: a.mean(-2, keepdims=True), means)


@functools.partial(jax.jit, static_argnames="cfg")
def _sums(params: Params, ids: jax.Array, weights: jax.Array, cfg: GPTConfig) -> Fill:
    """Weighted sums over the batch, (L, 1, H, T, K) and (L, 1, T, C) float32."""
    taps = hidden_states(params, ids, cfg, taps=("z", "mlp_out") if cfg.mlp_width else ("z",)).taps
    heads = jnp.einsum("lbhtk,b->lhtk", taps["z"].astype(jnp.float32), weights)[:, None]
    if not cfg.mlp_width:
        return Fill(heads, jnp.zeros((cfg.n_layer, 1, ids.shape[1], cfg.n_embd)))
    return Fill(heads, jnp.einsum("lbtc,b->ltc", taps["mlp_out"].astype(jnp.float32), weights)[:, None])


def derangement(n: int, seed: int) -> np.ndarray:
    """A random permutation of n in one cycle, so that nothing stays where it is (n of 1 has none)."""
    if n < 2:
        raise UserError("fill 'resample' takes activations from other examples, and there is only one: give more")
    order = np.random.default_rng(seed).permutation(n)
    donors = np.empty(n, np.int64)
    donors[order] = np.roll(order, 1)
    return donors


def _checked(fill: Any, examples: Examples, cfg: GPTConfig) -> Fill:
    heads, mlps = fill if isinstance(fill, Fill) else (fill, zero_fill(cfg).mlps)
    (B, T), L = examples.ids.shape, cfg.n_layer
    sites = {"heads": (L, B, cfg.n_head, T, cfg.head_width), "mlps": (L, B, T, cfg.n_embd)}
    checked = []
    for (name, site), array in zip(sites.items(), (heads, mlps), strict=True):
        try:
            array = np.asarray(array, np.float32)
        except (TypeError, ValueError) as error:
            given = type(array).__name__
            raise UserError(
                f"fill of the {name} is a {given}: must be an array, or one of {', '.join(FILLS)}"
            ) from error
        if array.ndim > len(site) or any(n not in (1, m) for n, m in zip(array.shape[::-1], site[::-1], strict=False)):
            raise UserError(f"fill of the {name} has shape {array.shape}: must broadcast to {site}")
        if not np.isfinite(array).all():
            raise UserError(f"fill of the {name} holds a value that is not finite")
        full = tuple(m if i in (0, 2) and name == "heads" or i == 0 else 1 for i, m in enumerate(site))
        array = array.reshape((1,) * (len(site) - array.ndim) + array.shape)
        checked.append(np.broadcast_to(array, np.broadcast_shapes(array.shape, full)))
    return Fill(*checked)


# Optimal ablation: the constant that costs the least (Li and Janson 2024, "Optimal ablation for interpretability")

FIT_STEPS = 40
FIT_RATE = 0.1
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
    steps: int = FIT_STEPS,
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
    constants, state = start, optax.adam(FIT_RATE).init(start)
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
        updates, state = optax.adam(FIT_RATE).update(slope, state)
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
