"""What takes the place of a component that is switched off."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.engine import counted_rows, extent, padded_rows
from tinygpt_jax.lab.intervention import Donors, Fill, FillLike, zero_fill
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
