"""How the queries of a layer are split into heads, and the shapes on the way through its attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.forward_pass import hidden_states, site_hook, split_layers
from tinygpt_jax.lab.metrics import one_text
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import (
    merge_heads,
    transformer_block,
)
from tinygpt_jax.params import Params


@dataclass(frozen=True, eq=False)
class HeadSplit(Result):
    """The queries of one layer on one text, and the shapes on the way through its attention."""

    queries: np.ndarray
    """(T, H, K), before rotary positions where the model has them"""
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    """(what, its shape), in order"""
    layer: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {"queries": ("position", "head", "channel")}


def head_split(params: Params, ids: np.ndarray, cfg: GPTConfig, layer: int = 0) -> HeadSplit:
    """The queries of a layer on one text, ids (T,), and the shapes on the way through `multi_head_attention`.

    Raises:
        UserError: there is no such layer, it has no head left, or the ids do not fit.
    """
    text = one_text(ids, cfg, layer)
    q, *arrays = _attended(params, text.ids, cfg, layer)
    own = "x Wq" if cfg.norm == "none" else "norm(x) Wq"
    names = ("stream x", own, "split into heads", "scores of q · k", "pattern · v", "heads merged", "times Wo")
    steps = tuple((name, array.shape) for name, array in zip(names, arrays, strict=True))
    definition = reading(params, cfg, text, granularity="head", component="q", metric=f"queries of layer {layer}")
    return HeadSplit(definition, np.asarray(q[0].transpose(1, 0, 2), np.float32), steps, layer)


def _attention_steps(params: Params, ids: jax.Array, cfg: GPTConfig, layer: int) -> tuple[jax.Array, ...]:
    """The queries by head, and then what attention computes, step by step."""
    p = split_layers(params, cfg)["blocks"][layer]
    x = hidden_states(params, ids, cfg, taps=("resid_pre",)).taps["resid_pre"][layer]
    at, seen = site_hook({}, ("q", "pattern", "z", "attn_out"))
    transformer_block(x, p, cfg.n_head, cfg, at=at)
    q, z = seen["q"], seen["z"]
    return q, x, merge_heads(q), q, seen["pattern"], z, merge_heads(z), seen["attn_out"]


_attended = jax.jit(_attention_steps, static_argnames=("cfg", "layer"))
