"""What a block reads and writes: positions, the norm, the split into heads, and the residual stream."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states, site_hook, split_layers
from tinygpt_jax.lab.metrics import Data, measurable, one_text
from tinygpt_jax.lab.read.lens import parts_of
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import default_positions, merge_heads, norm, positional_encoding, rotate, transformer_block
from tinygpt_jax.params import Params, check_finite, of_model
from tinygpt_jax.statistics import standard_error


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


@of_model
def position_tables(params: Params, cfg: GPTConfig) -> PositionTables:
    """The tables of all `block_size` positions: sinusoids (Vaswani et al. 2017), and what this model has of its own,
    a learned table or the factors of rotary positions (Su et al. 2021)."""
    cfg = check(cfg)
    check_finite(params)
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
    PLACES = {"stage": "stages"}


@of_model
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
    text = one_text(ids, cfg, layer, params)
    names = tuple(map(str, text.ids[0].tolist() if tokens is None else tokens))
    if len(names) != text.ids.shape[1]:
        raise UserError(f"there are {len(names)} tokens for {text.ids.shape[1]} ids: give one for each")
    values = np.asarray(_norm_stages(params, text.ids, cfg, layer))
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


@functools.partial(jax.jit, static_argnames=("cfg", "layer"))
def _norm_stages(params: Params, ids: jax.Array, cfg: GPTConfig, layer: int) -> jax.Array:
    """(3, T, C) float32"""
    p = split_layers(params, cfg)["blocks"][layer]
    x = hidden_states(params, ids, cfg, taps=("resid_pre",)).taps["resid_pre"][layer, 0]
    bare = {"ln1g": jnp.ones_like(p["ln1g"]), "ln1b": jnp.zeros_like(p["ln1g"])}
    return jnp.stack([x, norm(x, bare, "ln1", cfg), norm(x, p, "ln1", cfg)]).astype(jnp.float32)


@dataclass(frozen=True, eq=False)
class HeadSplit(Result):
    """The queries of one layer on one text, and the shapes on the way through its attention."""

    queries: np.ndarray
    """(T, H, K), before rotary positions where the model has them"""
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    """(what, its shape), in order"""
    layer: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {"queries": ("position", "head", "channel")}


@of_model
def head_split(params: Params, ids: np.ndarray, cfg: GPTConfig, layer: int = 0) -> HeadSplit:
    """The queries of a layer on one text, ids (T,), and the shapes on the way through `multi_head_attention`.

    Raises:
        UserError: there is no such layer, it has no head left, or the ids do not fit.
    """
    text = one_text(ids, cfg, layer, params)
    q, *arrays = _attention_steps(params, text.ids, cfg, layer)
    own = "x Wq" if cfg.norm == "none" else "norm(x) Wq"
    names = ("stream x", own, "split into heads", "scores of q · k", "pattern · v", "heads merged", "times Wo")
    steps = tuple((name, array.shape) for name, array in zip(names, arrays, strict=True))
    definition = reading(params, cfg, text, granularity="head", component="q", metric=f"queries of layer {layer}")
    return HeadSplit(definition, np.asarray(q[0].transpose(1, 0, 2), np.float32), steps, layer)


@functools.partial(jax.jit, static_argnames=("cfg", "layer"))
def _attention_steps(params: Params, ids: jax.Array, cfg: GPTConfig, layer: int) -> tuple[jax.Array, ...]:
    """The queries by head, and then what attention computes, step by step."""
    p = split_layers(params, cfg)["blocks"][layer]
    x = hidden_states(params, ids, cfg, taps=("resid_pre",)).taps["resid_pre"][layer]
    at, seen = site_hook({}, ("q", "pattern", "z", "attn_out"))
    transformer_block(x, p, cfg.n_head, cfg, at=at)
    q, z = seen["q"], seen["z"]
    return q, x, merge_heads(q), q, seen["pattern"], z, merge_heads(z), seen["attn_out"]


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
    PLACES = {"site": "names"}


@of_model
def residual_writes(params: Params, examples: Data, cfg: GPTConfig) -> ResidualWrites:
    """The root mean square of what each attention and MLP writes, and of the stream before and after (Elhage et al.
    2021 on the stream), over tokens and channels.

    Without residuals (`cfg.residual` off) each write takes the place of the stream, and its size is both.

    Raises:
        UserError: the examples do not fit the model.
    """
    data = measurable(params, examples, cfg)
    found = [np.asarray(_mean_squares(params, part.ids, cfg)) for part in parts_of(data, cfg)]
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


@functools.partial(jax.jit, static_argnames="cfg")
def _mean_squares(params: Params, ids: jax.Array, cfg: GPTConfig) -> jax.Array:
    """(N, B) in the order of `_sites`, over tokens and channels."""
    written = ("attn_out", "mlp_out", "resid_post") if cfg.mlp_width else ("attn_out", "resid_post")
    taps = hidden_states(params, ids, cfg, taps=("resid_pre", *written)).taps
    sizes = {name: jnp.square(x.astype(jnp.float32)).mean((-2, -1)) for name, x in taps.items()}  # (L, B) each
    blocks = jnp.stack([sizes[name] for name in written], 1)
    return jnp.concatenate([sizes["resid_pre"][:1], blocks.reshape(-1, len(ids))])
