"""How large the residual stream is, and what each attention and MLP writes into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.metrics import Data, as_examples
from tinygpt_jax.lab.read.lens import parts_of
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.params import Params
from tinygpt_jax.statistics import standard_error


@dataclass(frozen=True, eq=False)
class ResidualWrites(Result):
    """How large the residual stream is after the embedding and each block, and what attention and MLPs write."""

    rms: np.ndarray
    """(N,) root mean square over tokens, channels and examples"""
    se: np.ndarray
    """(N,) its standard error over examples"""
    per_example: np.ndarray
    """(N, B) root mean square over tokens and channels"""
    names: tuple[str, ...]
    """N names: `embedding`, then of each layer `attention 0`, `MLP 0` where it has one, `after block 0`"""
    kinds: tuple[str, ...]
    """of each: `stream`, `attention` or `MLP`"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rms": ("site",),
        "se": ("site",),
        "per_example": ("site", "example"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.names if axis == "site" else range(size)


def residual_writes(params: Params, examples: Data, cfg: GPTConfig) -> ResidualWrites:
    """The root mean square of what each attention and MLP writes, and of the stream before and after (Elhage et al.
    2021 on the stream), over tokens and channels.

    Without residuals (`cfg.residual` off) each write takes the place of the stream, and its size is both.

    Raises:
        UserError: the examples do not fit the model.
    """
    data = as_examples(examples, cfg)
    found = [np.asarray(_squares(params, part.ids, cfg)) for part in parts_of(data, cfg)]
    squares = np.concatenate(found, -1)[:, : len(data.ids)].astype(np.float64)
    mean, se = squares.mean(-1), standard_error(squares, data.ordered)
    rms = np.sqrt(mean)
    names, kinds = zip(*_sites(cfg), strict=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        se = np.where(rms > 0, se / (2 * rms), se)  # to first order; what is 0 in every example has the error 0
    component = "resid_pre, attn_out, mlp_out, resid_post" if cfg.mlp_width else "resid_pre, attn_out, resid_post"
    definition = reading(params, cfg, data, granularity="site", component=component, metric="root mean square")
    if not cfg.residual:
        definition = dataclasses.replace(definition, flags=("no residual: writes take the place of the stream",))
    return ResidualWrites(definition, rms, se, np.sqrt(squares), names, kinds)


def _sites(cfg: GPTConfig) -> list[tuple[str, str]]:
    """Name and kind of each place in the order of the forward pass."""
    sites = [("embedding", "stream")]
    for layer in range(cfg.n_layer):
        sites.append((f"attention {layer}", "attention"))
        sites += [(f"MLP {layer}", "MLP")] if cfg.mlp_width else []
        sites.append((f"after block {layer}", "stream"))
    return sites


def _mean_squares(params: Params, ids: jax.Array, cfg: GPTConfig) -> jax.Array:
    """(N, B) in the order of `_sites`, over tokens and channels."""
    written = ("attn_out", "mlp_out", "resid_post") if cfg.mlp_width else ("attn_out", "resid_post")
    taps = hidden_states(params, ids, cfg, taps=("resid_pre", *written)).taps
    sizes = {name: jnp.square(x.astype(jnp.float32)).mean((-2, -1)) for name, x in taps.items()}  # (L, B) each
    blocks = jnp.stack([sizes[name] for name in written], 1)
    return jnp.concatenate([sizes["resid_pre"][:1], blocks.reshape(-1, len(ids))])


_squares = jax.jit(_mean_squares, static_argnames="cfg")
