"""What tells positions apart in a model: its own table or rotations, and sinusoids beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import (
    default_positions,
    positional_encoding,
    rotate,
)
from tinygpt_jax.params import Params


@dataclass(frozen=True, eq=False)
class PositionTables(Result):
    """What tells positions apart: the model's own table, where it has one, and the sinusoids beside it."""

    sinusoidal: np.ndarray
    """(T, C) what is added to the embedding of a model with sinusoidal positions"""
    learned: np.ndarray | None
    """(T, C) `pos_emb`, which is added to the embedding"""
    rotary: np.ndarray | None
    """(T, K) the cosines and then the sines by which the K/2 pairs of a query or key are turned"""
    positions: str
    """which of them the model uses"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sinusoidal": ("position", "channel"),
        "learned": ("position", "channel"),
        "rotary": ("position", "factor"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        pairs = range(size // 2)
        return [*(f"cos {i}" for i in pairs), *(f"sin {i}" for i in pairs)] if axis == "factor" else range(size)


def position_tables(params: Params, cfg: GPTConfig) -> PositionTables:
    """The tables of all `block_size` positions: sinusoids (Vaswani et al. 2017), and what this model has of its own,
    a learned table or the factors of rotary positions (Su et al. 2021)."""
    cfg = check(cfg)
    T, K = cfg.block_size, cfg.head_width
    rotary = learned = None
    if cfg.positions == "learned":
        learned = np.asarray(params["pos_emb"])
    if cfg.positions == "rope":
        pair = jnp.broadcast_to(jnp.arange(K, dtype=jnp.int32) < K // 2, (1, 1, T, K)).astype(jnp.float32)
        rotary = np.asarray(rotate(pair, default_positions(1, T))[0, 0])  # (1, 0) turned is (cos, sin)
    where = {"rope": "q, k", "none": "-"}.get(cfg.positions, "resid_pre")
    definition = reading(params, cfg, None, granularity="position", component=where, metric="position table")
    return PositionTables(definition, np.asarray(positional_encoding(T, cfg.n_embd)), learned, rotary, cfg.positions)
