"""What each piece of a block does on a trained model: positions, a norm, the split into heads, the MLP, the writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states, site_hook, split_layers
from tinygpt_jax.lab.intervention import Data
from tinygpt_jax.lab.metrics import as_examples
from tinygpt_jax.lab.read.kinds import (
    ActivationCurves,
    HeadSplit,
    MlpWidths,
    NormRows,
    PositionTables,
    ResidualWrites,
)
from tinygpt_jax.lab.read.lens import parts_of
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Definition
from tinygpt_jax.model import (
    default_positions,
    feed_forward,
    linear,
    merge_heads,
    norm,
    positional_encoding,
    rotate,
    transformer_block,
)
from tinygpt_jax.params import Params
from tinygpt_jax.statistics import ratio_and_se, standard_error
from tinygpt_jax.text import Examples

NO_UNIT = "no unit"
REACH, BINS = 6.0, 240
"""Inputs of an activation are counted from -REACH to REACH, in bins of which 0 is an edge."""


# Positions


def position_tables(params: Params, cfg: GPTConfig) -> PositionTables:
    """The tables of all `block_size` positions: sinusoids (Vaswani et al. 2017), and what this model has of its own,
    a learned table or the factors of rotary positions (Su et al. 2021)."""
    T, K = cfg.block_size, cfg.head_width
    rotary = learned = None
    if cfg.positions == "learned":
        learned = np.asarray(params["pos_emb"])
    if cfg.positions == "rope":
        pair = jnp.broadcast_to(jnp.arange(K, dtype=jnp.int32) < K // 2, (1, 1, T, K)).astype(jnp.float32)
        rotary = np.asarray(rotate(pair, default_positions(1, T))[0, 0])  # (1, 0) turned is (cos, sin)
    where = {"rope": "q, k", "none": "-"}.get(cfg.positions, "resid_pre")
    definition = _read(params, cfg, None, granularity="position", component=where, metric="position table")
    return PositionTables(definition, np.asarray(positional_encoding(T, cfg.n_embd)), learned, rotary, cfg.positions)


# One norm, one layer's heads, on one text


def norm_rows(
    params: Params, ids: np.ndarray, cfg: GPTConfig, tokens: Sequence[str] | None = None, layer: int = 0
) -> NormRows:
    """What the norm before a layer's attention does to one text, ids (T,), with its tokens as text (default: the ids).

    Ba et al. 2016; Zhang and Sennrich 2019.

    Raises:
        UserError: the model has no norm or no such layer, or the ids or tokens do not fit.
    """
    if cfg.norm == "none":
        raise UserError("norm is 'none': this model has no norm to show; open one with layernorm or rmsnorm")
    text = _one_text(ids, cfg, layer)
    names = tuple(map(str, text.ids[0].tolist() if tokens is None else tokens))
    if len(names) != text.ids.shape[1]:
        raise UserError(f"there are {len(names)} tokens for {text.ids.shape[1]} ids: give one for each")
    values = np.asarray(_normed(params, text.ids, cfg, layer))
    wide = values.astype(np.float64)
    definition = _read(
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


def head_split(params: Params, ids: np.ndarray, cfg: GPTConfig, layer: int = 0) -> HeadSplit:
    """The queries of a layer on one text, ids (T,), and the shapes on the way through `multi_head_attention`.

    Raises:
        UserError: there is no such layer, or the ids do not fit.
    """
    text = _one_text(ids, cfg, layer)
    q, *arrays = _attended(params, text.ids, cfg, layer)
    own = "x Wq" if cfg.norm == "none" else "norm(x) Wq"
    names = ("stream x", own, "split into heads", "scores of q · k", "pattern · v", "heads merged", "times Wo")
    steps = tuple((name, array.shape) for name, array in zip(names, arrays, strict=True))
    definition = _read(params, cfg, text, granularity="head", component="q", metric=f"queries of layer {layer}")
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


def _one_text(ids: np.ndarray, cfg: GPTConfig, layer: int) -> Examples:
    """One example of ids (T,), once they, the layer and its heads are known to be there."""
    if np.ndim(ids) != 1:
        raise UserError(f"ids have shape {np.shape(ids)}: give those of one text, (T,)")
    if not 0 <= layer < cfg.n_layer:
        raise UserError(f"layer is {layer}: the model has 0 to {cfg.n_layer - 1}")
    return as_examples(np.asarray(ids)[None], cfg)


# The MLP


def activation_curves(params: Params, examples: Data, cfg: GPTConfig) -> ActivationCurves:
    """GELU (Hendrycks and Gimpel 2016) and ReLU, and where the inputs lie that a model's MLPs give theirs.

    Raises:
        UserError: the model has no MLP, or the examples do not fit it.
    """
    _need_mlp(cfg)
    data = as_examples(examples, cfg)
    B, width = len(data.ids), 2 * REACH / BINS
    found = [_counted(params, part.ids, cfg) for part in parts_of(data, cfg)]
    counts, below = (np.concatenate([np.asarray(a) for a in some], 1)[:, :B] for some in zip(*found, strict=True))
    inputs = np.full((B, 1), data.ids.shape[1] * cfg.mlp_width, np.float64)  # of one example, in each layer
    density, se = ratio_and_se(counts.sum(0), inputs * cfg.n_layer, data.ordered)
    by_layer = counts.sum(1) / inputs.sum()
    x = (np.arange(BINS) + 0.5) * width - REACH
    gelu, relu = (np.asarray(_activation(x, name), np.float64) for name in ("gelu", "relu"))
    definition = _read(
        params, cfg, data, granularity="layer", component="input of the activation", metric="density of inputs"
    )
    return ActivationCurves(
        definition,
        x,
        gelu,
        relu,
        density / width,
        se / width,
        by_layer / width,
        below / inputs[0],
        1 - by_layer.sum(-1),
        cfg.activation,
    )


def _count_inputs(params: Params, ids: jax.Array, cfg: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """How many inputs of each layer and example lie in each bin, (L, B, N), and below 0, (L, B)."""
    taps = hidden_states(params, ids, cfg, taps=("resid_mid",)).taps["resid_mid"]
    edges = jnp.linspace(-REACH, REACH, BINS + 1, dtype=jnp.float32)
    layers = zip(split_layers(params, cfg)["blocks"], taps, strict=True)
    inputs = jnp.stack([linear(norm(x, p, "ln2", cfg), p["W1"], p["b1"]) for p, x in layers]).astype(jnp.float32)
    L, B = inputs.shape[:2]
    counts = jax.lax.map(lambda h: jnp.histogram(h, edges)[0], inputs.reshape(L * B, -1))
    return counts.reshape(L, B, BINS), (inputs < 0).sum((-2, -1))


_counted = jax.jit(_count_inputs, static_argnames="cfg")


def _activation(x: np.ndarray, name: str) -> jax.Array:
    """The model's own function of numbers (N,): an MLP of width 1 that does nothing else."""
    one, zero = jnp.ones((1, 1), jnp.float32), jnp.zeros(1, jnp.float32)
    return feed_forward(jnp.asarray(x, jnp.float32)[None, :, None], one, zero, one, zero, name)[0, :, 0]


def mlp_widths(params: Params, cfg: GPTConfig) -> MlpWidths:
    """How wide a layer's MLP is from stage to stage, and how many parameters each step takes; all layers are alike.

    Raises:
        UserError: the model has no MLP.
    """
    _need_mlp(cfg)
    p = split_layers(params, cfg)["blocks"][0]

    def size(*names: str) -> int:
        return sum(p[name].size for name in names if name in p)

    C, F = p["W1"].shape
    stages = [
        ("residual stream", C, 0),
        ("normalised", C, size("ln2g", "ln2b")),
        ("hidden", F, size("W1", "b1")),
        (f"after {NAMES[cfg.activation]}", F, 0),
        ("written back", C, size("W2", "b2")),
    ]
    names, widths, parameters = zip(*(s for s in stages if s[0] != "normalised" or cfg.norm != "none"), strict=True)
    definition = _read(
        params, cfg, None, granularity="mlp", component="W1, W2", metric="width", unit="numbers; parameters"
    )
    return MlpWidths(definition, np.array(widths), np.array(parameters), names)


NAMES = {"gelu": "GELU", "relu": "ReLU"}


def _need_mlp(cfg: GPTConfig) -> None:
    if not cfg.mlp_width:
        raise UserError("mlp_ratio is 0: this model has no MLP to show; open one with an mlp_ratio above 0")


# The residual stream


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
    definition = _read(params, cfg, data, granularity="site", component=component, metric="root mean square")
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


def _read(params: Params, cfg: GPTConfig, examples: Examples | None, *, unit: str = NO_UNIT, **what: str) -> Definition:
    return reading(params, cfg, examples, unit=unit, **what)
