"""What the walk-through starts from: one set of weights, one input, and three ways to run the pieces on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax import model, reference
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.params import SEEN_STD, Params, init_params, pick
from tinygpt_jax.text import char_tokenizer

TEXT = "a block reads the stream, adds what it found, and hands the stream on"
FULL = GPTConfig(block_size=16, n_layer=3, n_head=4, n_embd=64, positions="sinusoidal", tied=False)
QUICK = GPTConfig(block_size=8, n_layer=2, n_head=2, n_embd=16, positions="sinusoidal", tied=False)
SHARPER = 8.0
"""Wq and Wk are so many times the usual ones: scores then differ by one or two, as in a trained head, not by 0.03."""
TRUTH = "NumPy, float64"
"""The side that the others are compared with."""


class Given(NamedTuple):
    """The model and its input."""

    cfg: GPTConfig
    params: Params
    """float32: token embedding of unit variance, everything else as the package starts a model, but for SHARPER"""
    ids: np.ndarray
    """(B, T) int32"""
    targets: np.ndarray
    """(B, T) int32, the character that follows"""
    tokens: tuple[str, ...]
    """T characters, those of the first window"""


class Side(NamedTuple):
    """One way to run the pieces."""

    pieces: Any
    """`tinygpt_jax.reference` or `tinygpt_jax.model`: the same functions, argument for argument"""
    params: Params
    x: Any
    """(B, T, C) the input of the first block, in the dtype of the parameters"""

    def layer(self, i: int = 0) -> Params:
        """The parameters of one block."""
        return pick(self.params["blocks"], i)


Sides = dict[str, Side]


def given(quick: bool = False) -> Given:
    """Windows of TEXT, and weights from seed 0: batch 4, 16 tokens, width 64, 4 heads, 256 in the MLP."""
    tokenizer = char_tokenizer(TEXT)
    cfg = dataclasses.replace(QUICK if quick else FULL, vocab_size=tokenizer.vocab_size)
    B, T = (2 if quick else 4), cfg.block_size
    ids = tokenizer.encode(TEXT)
    windows, targets = (ids[shift : shift + B * T].reshape(B, T) for shift in (0, 1))
    return Given(cfg, weights(cfg), windows, targets, tuple(TEXT[:T]))


def weights(cfg: GPTConfig) -> Params:
    """Fresh parameters whose token embedding has unit variance and whose scores differ by one or two."""
    params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), cfg)
    blocks = params["blocks"] | {name: params["blocks"][name] * SHARPER for name in ("Wq", "Wk")}
    return params | {"tok_emb": params["tok_emb"] / SEEN_STD, "blocks": blocks}


def sides(start: Given) -> Sides:
    """Name -> NumPy in float64, NumPy in float32 and JAX in float32, on the same weights and input."""
    params = {
        TRUTH: (reference, reference.as_float64(start.params)),
        "NumPy, float32": (reference, jax.tree.map(np.asarray, start.params)),
        "JAX, float32": (model, start.params),
    }
    return {name: Side(pieces, tree, embedded(pieces, tree, start)) for name, (pieces, tree) in params.items()}


def embedded(pieces: Any, params: Params, start: Given) -> Any:
    """(B, T, C): the embedding of each character plus that of its position."""
    B, T = start.ids.shape
    return pieces.embed(params, start.ids, pieces.default_positions(B, T), start.cfg)


def on_each(every: Sides, f: Callable[[Side], Any]) -> dict[str, np.ndarray]:
    """f(side) on each side, as NumPy arrays."""
    return {name: np.asarray(f(side)) for name, side in every.items()}


def apart(values: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest absolute difference from NumPy in float64, by side."""
    truth = values[TRUTH]
    return {name: float(np.abs(value - truth).max()) for name, value in values.items() if name != TRUTH}


def watcher() -> tuple[Callable[[str, Any], Any], dict[str, list[Any]]]:
    """An `at` that changes nothing, and the values it saw at each site, block by block."""
    seen: dict[str, list[Any]] = {}

    def at(name: str, x: Any) -> Any:
        seen.setdefault(name, []).append(x)
        return x

    return at, seen


def rms(x: Any) -> float:
    """Root mean square over all entries."""
    return float(np.sqrt(np.square(np.asarray(x, np.float64)).mean()))
