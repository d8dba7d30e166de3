"""What the norm before a layer's attention does to one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states, split_layers
from tinygpt_jax.lab.metrics import one_text
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import norm
from tinygpt_jax.params import Params


@dataclass(frozen=True, eq=False)
class NormRows(Result):
    """One text before, within and after a layer's first norm."""

    mean: np.ndarray
    """(S, T) of each row, over channels"""
    deviation: np.ndarray
    """(S, T) its standard deviation"""
    size: np.ndarray
    """(S, T) its root mean square"""
    values: np.ndarray
    """(S, T, C)"""
    stages: tuple[str, ...]
    """S = 3 names: `before`, `normalised`, and after the gain and, where there is one, the shift"""
    tokens: tuple[str, ...]
    """T tokens as text"""
    layer: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("mean", "deviation", "size"), ("stage", "position")),
        "values": ("stage", "position", "channel"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.stages if axis == "stage" else range(size)


def norm_rows(
    params: Params, ids: np.ndarray, cfg: GPTConfig, tokens: Sequence[str] | None = None, layer: int = 0
) -> NormRows:
    """What the norm before a layer's attention does to one text, ids (T,), with its tokens as text (default: the ids).

    Ba et al. 2016; Zhang and Sennrich 2019.

    Raises:
        UserError: the model has no norm or no such layer, or the ids or tokens do not fit.
    """
    if check(cfg).norm == "none":
        raise UserError("norm is 'none': this model has no norm to show; open one with layernorm or rmsnorm")
    text = one_text(ids, cfg, layer)
    names = tuple(map(str, text.ids[0].tolist() if tokens is None else tokens))
    if len(names) != text.ids.shape[1]:
        raise UserError(f"there are {len(names)} tokens for {text.ids.shape[1]} ids: give one for each")
    values = np.asarray(_normed(params, text.ids, cfg, layer))
    wide = values.astype(np.float64)
    definition = reading(
        params, cfg, text, granularity="row", component="resid_pre, ln1", metric=f"{cfg.norm} of layer {layer}"
    )
    return NormRows(
        definition,
        wide.mean(-1),
        wide.std(-1),
        np.sqrt(np.square(wide).mean(-1)),
        values,
        ("before", "normalised", "after gain and shift" if cfg.norm == "layernorm" else "after gain"),
        names,
        layer,
    )


def _norm_stages(params: Params, ids: jax.Array, cfg: GPTConfig, layer: int) -> jax.Array:
    """(3, T, C) float32"""
    p = split_layers(params, cfg)["blocks"][layer]
    x = hidden_states(params, ids, cfg, taps=("resid_pre",)).taps["resid_pre"][layer, 0]
    bare = {"ln1g": jnp.ones_like(p["ln1g"]), "ln1b": jnp.zeros_like(p["ln1g"])}
    return jnp.stack([x, norm(x, bare, "ln1", cfg), norm(x, p, "ln1", cfg)]).astype(jnp.float32)


_normed = jax.jit(_norm_stages, static_argnames=("cfg", "layer"))
