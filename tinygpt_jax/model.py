"""The GPT in JAX: pure functions of (params, ids, config), line for line those of `tinygpt_jax.reference`.

Shapes: B batch, T query time, S key time, L layers, C model width, H heads, K head width, F MLP width, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.hooks import (
    Drop,
    Edit,
    Recall,
    Scaled,
    Site,
    no_drop,
    unchanged,
    untouched,
)
from tinygpt_jax.kernels import fused_attention
from tinygpt_jax.params import Params

# The pieces, as in the reference


def positional_encoding(T: int, C: int) -> jax.Array:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5), (T, C): sine in even columns, cosine in odd ones."""
    pos = jnp.arange(T, dtype=jnp.float32)[:, None]
    rate = jnp.exp(jnp.arange(0, C, 2, dtype=jnp.float32) * (-math.log(10000.0) / C))
    angle = pos * rate
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(T, -1)[:, :C]


def layer_norm(x: jax.Array, g: jax.Array, b: jax.Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> jax.Array:
    """Each row to mean 0 and variance 1, then scaled by g and shifted by b, (C) each; statistics in float32."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    var = jnp.square(x32 - mean).mean(-1, keepdims=True)
    return ((x32 - mean) * scaled(jax.lax.rsqrt(var + eps)) * g + b).astype(x.dtype)


def rms_norm(x: jax.Array, g: jax.Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> jax.Array:
    """Each row to root mean square 1, then scaled by g (C) (Zhang and Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    return (x32 * scaled(jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + eps)) * g).astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def linear(x: jax.Array, W: jax.Array, b: jax.Array | None = None) -> jax.Array:
    """x @ W + b over the last axis. The other axes are flattened first: XLA then needs no transpose for dW."""
    y = x.reshape(-1, x.shape[-1]) @ W.astype(x.dtype)
    y = y if b is None else y + b.astype(x.dtype)
    return y.reshape(*x.shape[:-1], W.shape[-1])


def rotate(x: jax.Array, pos: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021): the pair (i, i + K/2) of x (B, H, T, K) is turned by pos · 10000^(-2i/K)."""
    half = x.shape[-1] // 2
    rate = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(10000.0) / half))
    angle = pos[:, None, :, None].astype(jnp.float32) * rate
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def smear_keys(k: jax.Array, smear: jax.Array, pos: jax.Array) -> jax.Array:
    """Each key of k (B, H, S, K) becomes sigmoid(smear) of itself and the rest of the key before, smear (H).

    The key before is that of the previous slot; where that does not hold the previous position (so at position 0 and
    after padding), a key stays as it is. Olsson et al. 2022, "In-context learning and induction heads".
    """
    follows = pos == jnp.roll(pos, 1, axis=1) + 1
    own = jnp.where(follows[:, None], jax.nn.sigmoid(smear)[:, None], 1.0)[..., None].astype(k.dtype)
    return own * k + (1 - own) * jnp.roll(k, 1, axis=2)


def split_heads(x: jax.Array, n_head: int) -> jax.Array:
    """(B, T, C) -> (B, H, T, K)"""
    B, T, C = x.shape
    return x.reshape(B, T, n_head, C // n_head).transpose(0, 2, 1, 3)


def merge_heads(z: jax.Array) -> jax.Array:
    """(B, H, T, K) -> (B, T, C)"""
    B, H, T, K = z.shape
    return z.transpose(0, 2, 1, 3).reshape(B, T, H * K)


def softmax(scores: jax.Array) -> jax.Array:
    """Over the last axis, in float32."""
    return jax.nn.softmax(scores.astype(jnp.float32), axis=-1)


def multi_head_attention(
    x: jax.Array,
    Wq: jax.Array,
    Wk: jax.Array,
    Wv: jax.Array,
    Wo: jax.Array,
    n_head: int,
    bias: Mapping[str, jax.Array] | None = None,
    pos: jax.Array | None = None,
    rope: bool = False,
    recall: Recall | None = None,
    at: Site = untouched,
    drop: Drop = no_drop,
    kernel: str | None = None,
) -> jax.Array:
    """Causal self-attention, (B, T, C) -> (B, T, C): a query sees the keys whose position is not after its own.

    `bias` may hold bq bk bv bo (C) and smear (H); `pos` (B, T) int32 defaults to 0 .. T-1; `recall` brings keys and
    values from a cache, unsmeared; `kernel` leaves the lines from scores to z to a library.
    Vaswani et al. 2017, section 3.2.
    """
    bias = bias or {}
    pos = default_positions(*x.shape[:2]) if pos is None else pos
    q = at("q", split_heads(linear(x, Wq, bias.get("bq")), n_head))
    k = at("k", split_heads(linear(x, Wk, bias.get("bk")), n_head))
    v = at("v", split_heads(linear(x, Wv, bias.get("bv")), n_head))
    if rope:
        q, k = rotate(q, pos), rotate(k, pos)
    k, v, pos_S = (k, v, pos) if recall is None else recall(k, v)
    k = smear_keys(k, bias["smear"], pos_S) if "smear" in bias else k
    if kernel is not None:
        return linear(merge_heads(at("z", fused_attention(q, k, v, kernel))), Wo, bias.get("bo"))
    scores = jnp.einsum("bhtk,bhsk->bhts", q / math.sqrt(q.shape[-1]), k)
    visible = pos_S[:, None, None, :] <= pos[:, None, :, None]
    pattern = softmax(jnp.where(visible, scores, -1e30)).astype(x.dtype)
    pattern = drop(at("pattern", pattern))
    z = at("z", jnp.einsum("bhts,bhsk->bhtk", pattern, v))
    return linear(merge_heads(z), Wo, bias.get("bo"))


def feed_forward(
    x: jax.Array, W1: jax.Array, b1: jax.Array, W2: jax.Array, b2: jax.Array, activation: str = "gelu"
) -> jax.Array:
    """The two-layer MLP, (B, T, C) -> (B, T, C) through width F."""
    h = linear(x, W1, b1)
    h = gelu(h) if activation == "gelu" else jnp.maximum(h, 0)
    return linear(h, W2, b2)


def norm(x: jax.Array, p: Params, name: str, cfg: GPTConfig, at: Site = untouched) -> jax.Array:
    """The norm whose parameters are `name`g and `name`b, and whose 1 / deviation (B, T, 1) is the site `name`_scale."""
    scaled = functools.partial(at, name + "_scale")
    if cfg.norm == "layernorm":
        return layer_norm(x, p[name + "g"], p[name + "b"], cfg.norm_eps, scaled)
    return rms_norm(x, p[name + "g"], cfg.norm_eps, scaled) if cfg.norm == "rmsnorm" else x


def transformer_block(
    x: jax.Array,
    p: Params,
    n_head: int,
    cfg: GPTConfig | None = None,
    pos: jax.Array | None = None,
    recall: Recall | None = None,
    at: Site = untouched,
    drop: Drop = no_drop,
    kernel: str | None = None,
) -> jax.Array:
    """A pre-norm block, (B, T, C) -> (B, T, C): x + attention(norm(x)), then x + MLP(norm(x)).

    `p` is one layer's slice of `params["blocks"]`; `cfg` chooses the variants (default: LayerNorm, GELU, residuals).
    """
    cfg = cfg or GPTConfig(n_head=n_head, n_embd=x.shape[-1])
    x = at("resid_pre", x)
    if n_head:
        h = norm(x, p, "ln1", cfg, at)
        a = multi_head_attention(
            h, p["Wq"], p["Wk"], p["Wv"], p["Wo"], n_head, p, pos, cfg.positions == "rope", recall, at, drop, kernel
        )
    else:  # every head is pruned: zeros, or bo
        a = jnp.broadcast_to(p.get("bo", jnp.zeros(())), x.shape).astype(x.dtype)
    a = at("attn_out", drop(a))
    x = at("resid_mid", x + a if cfg.residual else a)
    if "W1" in p:
        h = norm(x, p, "ln2", cfg, at)
        m = at("mlp_out", drop(feed_forward(h, p["W1"], p["b1"], p["W2"], p["b2"], cfg.activation)))
        x = x + m if cfg.residual else m
    return at("resid_post", x)


# The whole model


def default_positions(B: int, T: int) -> jax.Array:
    """(B, T) int32: 0 .. T-1 in every row."""
    return jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))


def embed(params: Params, ids: jax.Array, pos: jax.Array, cfg: GPTConfig) -> jax.Array:
    """Token embedding plus the position's, (B, T) -> (B, T, C) in the compute dtype."""
    x = params["tok_emb"][ids]
    if cfg.positions == "learned":
        x = x + params["pos_emb"].at[pos].get(mode="clip")
    if cfg.positions == "sinusoidal":
        table = positional_encoding(max(cfg.block_size, ids.shape[1]), cfg.n_embd)
        x = x + table.at[pos].get(mode="clip")
    return x.astype(cfg.compute_dtype)


def unembed(params: Params, x: jax.Array, cfg: GPTConfig) -> jax.Array:
    """Logits of the next token, (..., C) -> (..., V) float32; padding rows of the vocabulary are left out."""
    W = params["tok_emb" if cfg.tied else "head"].astype(x.dtype)
    logits = jnp.dot(x.reshape(-1, cfg.n_embd), W.T, preferred_element_type=jnp.float32)
    return logits[:, : cfg.vocab_size].reshape(*x.shape[:-1], cfg.vocab_size)


def gpt_forward(
    params: Params, ids: jax.Array, cfg: GPTConfig, *, edits: Mapping[str, Edit] | None = None
) -> jax.Array:
    """Logits of the next token at every position: ids (B, T) -> (B, T, V) float32, and (T,) -> (T, V).

    Raises UserError for an id outside the vocabulary and for more tokens than a learned position table has; ids that
    are being traced by jit cannot be checked.
    """
    from tinygpt_jax.forward_pass import check_ids, forward

    check_ids(ids, cfg)
    ids = jnp.asarray(ids)
    logits = forward(params, jnp.atleast_2d(ids), cfg, edits=edits).logits
    return logits if ids.ndim == 2 else logits[0]
