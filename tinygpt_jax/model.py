"""The GPT in JAX: pure functions of (params, ids, config), line for line those of `tinygpt_jax.reference`.

`gpt_forward` is the one to read; what trains, samples and measures is `tinygpt_jax.forward_pass`, held equal to it.

Shapes: B batch, T query time, S key time, L layers, C model width, H heads, K head width, F MLP width, V vocabulary.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit, check_edits
from tinygpt_jax.ids import check_input
from tinygpt_jax.params import Params, check_params, whole

Array = jax.Array
Site = Callable[[str, Array], Array]
"""at(name, value) -> the value, edited; trace-time only."""
Scaled = Callable[[Array], Array]
"""scaled(a norm's 1 / deviation) -> the value it is to take."""
Attend = Callable[..., Array]
"""attend(q, k, v, pos, at, smear) -> z, as `attend` does: with a cache, or by a library's kernel."""

# The pieces


def untouched(name: str, x: Array) -> Array:
    """An `at` that changes nothing."""
    return x


def unchanged(x: Array) -> Array:
    return x


def positional_encoding(T: int, C: int) -> Array:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5), (T, C): sine in even columns, cosine in odd ones."""
    pos = jnp.arange(T, dtype=float)[:, None]
    rate = jnp.exp(jnp.arange(0, C, 2, dtype=float) * (-math.log(10000.0) / C))
    angle = pos * rate
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(T, -1)[:, :C]


def layer_norm(x: Array, g: Array, b: Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> Array:
    """Each row to mean 0 and variance 1, then scaled by g and shifted by b, (C) each (Ba et al. 2016)."""
    x32 = x.astype(jnp.float32)
    mean = x32.mean(-1, keepdims=True)
    var = jnp.square(x32 - mean).mean(-1, keepdims=True)
    return ((x32 - mean) * scaled(jax.lax.rsqrt(var + eps)) * g + b).astype(x.dtype)


def rms_norm(x: Array, g: Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> Array:
    """Each row to root mean square 1, then scaled by g (C) (Zhang and Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    return (x32 * scaled(jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + eps)) * g).astype(x.dtype)


def gelu(x: Array) -> Array:
    """The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def softmax(scores: Array) -> Array:
    """Over the last axis, in float32."""
    return jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(scores.dtype)


def linear(x: Array, W: Array, b: Array | None = None) -> Array:
    """x @ W + b over the last axis. The other axes are flattened first: XLA then needs no transpose for dW."""
    y = jax.lax.collapse(x, 0, -1) @ W.astype(x.dtype)
    y = y if b is None else y + b.astype(x.dtype)
    return y.reshape(*x.shape[:-1], W.shape[-1])


def default_positions(B: int, T: int) -> Array:
    """(B, T) int32: 0 .. T-1 in every row."""
    return jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))


def rotate(x: Array, pos: Array) -> Array:
    """Rotary positions (Su et al. 2021): the pair (i, i + K/2) of x (B, H, T, K) is turned by pos · 10000^(-2i/K)."""
    half = x.shape[-1] // 2
    rate = jnp.exp(jnp.arange(half, dtype=float) * (-math.log(10000.0) / half))
    angle = pos[:, None, :, None].astype(rate.dtype) * rate
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def smear_keys(k: Array, smear: Array, pos: Array) -> Array:
    """Each key of k (B, H, S, K) becomes sigmoid(smear) of itself and the rest of the key before, smear (H).

    The key before is that of the previous slot; where that does not hold the previous position (so at position 0 and
    after padding), a key stays as it is. Olsson et al. 2022, "In-context learning and induction heads".
    """
    follows = pos == jnp.roll(pos, 1, axis=1) + 1
    own = jnp.where(follows[:, None], sigmoid(smear)[:, None], 1.0)[..., None].astype(k.dtype)
    return own * k + (1 - own) * jnp.roll(k, 1, axis=2)


def split_heads(x: Array, K: int) -> Array:
    """(B, T, H K) -> (B, H, T, K)"""
    B, T, _ = x.shape
    return x.reshape(B, T, -1, K).transpose(0, 2, 1, 3)


def merge_heads(z: Array) -> Array:
    """(B, H, T, K) -> (B, T, H K)"""
    B, H, T, K = z.shape
    return z.transpose(0, 2, 1, 3).reshape(B, T, H * K)


def attend(
    q: Array, k: Array, v: Array, pos: Array, at: Site, smear: Array | None = None, pos_S: Array | None = None
) -> Array:
    """Queries (B, H, T, K) at positions pos (B, T) look at keys and values (B, H, S, K) at pos_S -> (B, H, T, K).

    A query sees the keys whose position is not after its own. `smear` (H) mixes each key with the one before;
    `pos_S` (B, S) defaults to `pos`.
    """
    pos_S = pos if pos_S is None else pos_S
    k = k if smear is None else smear_keys(k, smear, pos_S)
    scores = jnp.einsum("bhtk,bhsk->bhts", q / math.sqrt(q.shape[-1]), k)
    visible = pos_S[:, None, None, :] <= pos[:, None, :, None]
    pattern = at("pattern", softmax(jnp.where(visible, scores, -math.inf)))
    return jnp.einsum("bhts,bhsk->bhtk", pattern, v)


def multi_head_attention(
    x: Array,
    Wq: Array,
    Wk: Array,
    Wv: Array,
    Wo: Array,
    n_head: int,
    bias: Mapping[str, Array] | None = None,
    pos: Array | None = None,
    rope: bool = False,
    at: Site = untouched,
    attend: Attend = attend,
) -> Array:
    """Causal self-attention (Vaswani et al. 2017, section 3.2), (B, T, C) -> (B, T, C), by heads of width C / n_head.

    `bias` may hold bq bk bv bo (C) and smear (H); `pos` (B, T) defaults to 0 .. T-1.
    """
    bias = bias or {}
    pos = default_positions(*x.shape[:2]) if pos is None else pos
    K = x.shape[-1] // n_head
    q = at("q", split_heads(linear(x, Wq, bias.get("bq")), K))
    k = at("k", split_heads(linear(x, Wk, bias.get("bk")), K))
    v = at("v", split_heads(linear(x, Wv, bias.get("bv")), K))
    if rope:
        q, k = rotate(q, pos), rotate(k, pos)
    z = at("z", attend(q, k, v, pos, at, bias.get("smear")))
    return linear(merge_heads(z), Wo, bias.get("bo"))


def feed_forward(x: Array, W1: Array, b1: Array, W2: Array, b2: Array, activation: str = "gelu") -> Array:
    """The two-layer MLP, (B, T, C) -> (B, T, C) through width F."""
    h = linear(x, W1, b1)
    h = gelu(h) if activation == "gelu" else jnp.maximum(h, 0)
    return linear(h, W2, b2)


def norm(x: Array, p: Params, name: str, cfg: GPTConfig, at: Site = untouched) -> Array:
    """The norm whose parameters are `name`g and `name`b, and whose 1 / deviation (B, T, 1) is the site `name`_scale."""
    scaled = functools.partial(at, name + "_scale")
    if cfg.norm == "layernorm":
        return layer_norm(x, p[name + "g"], p[name + "b"], cfg.norm_eps, scaled)
    return rms_norm(x, p[name + "g"], cfg.norm_eps, scaled) if cfg.norm == "rmsnorm" else x


def transformer_block(
    x: Array,
    p: Params,
    n_head: int,
    cfg: GPTConfig | None = None,
    pos: Array | None = None,
    at: Site = untouched,
    attend: Attend = attend,
) -> Array:
    """A pre-norm block, (B, T, C) -> (B, T, C): x + attention(norm(x)), then x + MLP(norm(x)).

    `p` is one layer's slice of `params["blocks"]`; `cfg` chooses the variants (default: LayerNorm, GELU, residuals).
    """
    cfg = cfg or GPTConfig(n_head=n_head, n_embd=x.shape[-1])
    rope = cfg.positions == "rope"
    x = at("resid_pre", x)
    h = norm(x, p, "ln1", cfg, at)
    a = multi_head_attention(h, p["Wq"], p["Wk"], p["Wv"], p["Wo"], n_head, p, pos, rope, at, attend)
    a = at("attn_out", a)
    x = at("resid_mid", x + a if cfg.residual else a)
    if "W1" in p:
        h = norm(x, p, "ln2", cfg, at)
        m = at("mlp_out", feed_forward(h, p["W1"], p["b1"], p["W2"], p["b2"], cfg.activation))
        x = x + m if cfg.residual else m
    return at("resid_post", x)


# The whole model


def embed(params: Params, ids: Array, pos: Array, cfg: GPTConfig) -> Array:
    """Token embedding plus the position's, (B, T) -> (B, T, C) in the compute dtype."""
    x = params["tok_emb"][ids]
    if cfg.positions == "learned":
        x = x + jnp.take(params["pos_emb"], pos, axis=0, mode="clip")
    if cfg.positions == "sinusoidal":
        table = positional_encoding(max(cfg.block_size, ids.shape[1]), cfg.n_embd)
        x = x + jnp.take(table, pos, axis=0, mode="clip").astype(x.dtype)
    return x.astype(cfg.compute_dtype)


def unembed(params: Params, x: Array, cfg: GPTConfig) -> Array:
    """Logits of the next token, (..., C) -> (..., V) float32; padding rows of the vocabulary are left out."""
    W = params["tok_emb" if cfg.tied else "head"].astype(x.dtype)
    logits = jnp.dot(x.reshape(-1, cfg.n_embd), W.T, preferred_element_type=jnp.float32)
    return logits[:, : cfg.vocab_size].reshape(*x.shape[:-1], cfg.vocab_size)


def hook(layer: int, edits: Mapping[str, Edit], taps: dict[str, list[Array]] | None) -> Site:
    """One layer's `at`, which edits what it is given and then adds it to `taps`, if there are any."""

    def at(name: str, x: Array) -> Array:
        keep, add = edits.get(name, (None, None))
        x = x if keep is None else x * keep[layer].astype(x.dtype)
        x = x if add is None else x + add[layer].astype(x.dtype)
        if taps is not None:
            taps.setdefault(name, []).append(x)
        return x

    return at


def forward(
    params: Params, ids: Array, cfg: GPTConfig, edits: Mapping[str, Edit] | None = None, tapped: bool = True
) -> tuple[Array, dict[str, Array]]:
    """Logits (B, T, V) for ids (B, T), and where `tapped`, the value at every site the model has, (L, ...)."""
    pos = default_positions(*ids.shape)
    taps: dict[str, list[Array]] | None = {} if tapped else None
    x = embed(params, ids, pos, cfg)
    for layer in range(cfg.n_layer):
        p = {name: leaf[layer] for name, leaf in params["blocks"].items()}
        x = transformer_block(x, p, cfg.n_head, cfg, pos, hook(layer, edits or {}, taps))
    logits = unembed(params, norm(x, params, "lnf", cfg), cfg)
    return logits, {name: jnp.stack(values) for name, values in (taps or {}).items()}


def gpt_forward(params: Params, ids: Array, cfg: GPTConfig, *, edits: Mapping[str, Edit] | None = None) -> Array:
    """Logits of the next token at every position: ids (B, T) -> (B, T, V) float32, and (T,) -> (T, V).

    Raises UserError for parameters, ids or edits that do not fit the model; ids that are being traced by jit cannot be
    checked.
    """
    check_input(ids, cfg)
    check_params(params, cfg)
    params, cfg = whole(params, cfg)
    ids = jnp.asarray(ids)
    edits = check_edits(edits, cfg, *jnp.atleast_2d(ids).shape)
    logits, _ = forward(params, jnp.atleast_2d(ids), cfg, edits, tapped=False)
    return logits if ids.ndim == 2 else logits[0]
