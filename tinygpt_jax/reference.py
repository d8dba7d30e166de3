"""The GPT in NumPy: the readable oracle that `tinygpt_jax.model` is held to, line for line.

Everything runs in the dtype of the parameters given, float32 or float64; in float64 (see `as_float64`) it is the truth
that tests compare with. It has no dropout and no checks of its own beyond NumPy's.

Shapes: B batch, T query time, S key time, L layers, C model width, H heads, K head width, F MLP width, V vocabulary.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tinygpt_jax.config import GPTConfig

Array = np.ndarray
Params = dict[str, Any]
Edit = tuple[Array | None, Array | None]
"""(keep, add): `x * keep + add` at a site, each with a leading L axis; None leaves that half out."""
Site = Callable[[str, Array], Array]
"""at(name, value) -> the value, edited."""
Scaled = Callable[[Array], Array]
"""scaled(a norm's 1 / deviation) -> the value it is to take."""
Attend = Callable[..., Array]
"""attend(q, k, v, pos, at, smear) -> z, as `attend` does."""

# The pieces


def untouched(name: str, x: Array) -> Array:
    """An `at` that changes nothing."""
    return x


def unchanged(x: Array) -> Array:
    return x


def positional_encoding(T: int, C: int) -> Array:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5), (T, C): sine in even columns, cosine in odd ones."""
    pos = np.arange(T, dtype=float)[:, None]
    rate = np.exp(np.arange(0, C, 2, dtype=float) * (-math.log(10000.0) / C))
    angle = pos * rate
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(T, -1)[:, :C]


def layer_norm(x: Array, g: Array, b: Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> Array:
    """Each row to mean 0 and variance 1, then scaled by g and shifted by b, (C) each (Ba et al. 2016)."""
    mean = x.mean(-1, keepdims=True)
    var = np.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * scaled(1 / np.sqrt(var + eps)) * g + b


def rms_norm(x: Array, g: Array, eps: float = 1e-5, scaled: Scaled = unchanged) -> Array:
    """Each row to root mean square 1, then scaled by g (C) (Zhang and Sennrich 2019)."""
    return x * scaled(1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)) * g


def gelu(x: Array) -> Array:
    """The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(scores: Array) -> Array:
    """Over the last axis; the largest score is taken off first, so that exp cannot overflow."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def linear(x: Array, W: Array, b: Array | None = None) -> Array:
    """x @ W + b over the last axis."""
    y = x @ W
    return y if b is None else y + b


def default_positions(B: int, T: int) -> Array:
    """(B, T) int32: 0 .. T-1 in every row."""
    return np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))


def rotate(x: Array, pos: Array) -> Array:
    """Rotary positions (Su et al. 2021): the pair (i, i + K/2) of x (B, H, T, K) is turned by pos · 10000^(-2i/K)."""
    half = x.shape[-1] // 2
    rate = np.exp(np.arange(half, dtype=float) * (-math.log(10000.0) / half))
    angle = pos[:, None, :, None].astype(rate.dtype) * rate
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def smear_keys(k: Array, smear: Array, pos: Array) -> Array:
    """Each key of k (B, H, S, K) becomes sigmoid(smear) of itself and the rest of the key before, smear (H).

    The key before is that of the previous slot; where that does not hold the previous position (so at position 0 and
    after padding), a key stays as it is. Olsson et al. 2022, "In-context learning and induction heads".
    """
    follows = pos == np.roll(pos, 1, axis=1) + 1
    own = np.where(follows[:, None], sigmoid(smear)[:, None], 1.0)[..., None].astype(k.dtype)
    return own * k + (1 - own) * np.roll(k, 1, axis=2)


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
    scores = np.einsum("bhtk,bhsk->bhts", q / math.sqrt(q.shape[-1]), k)
    visible = pos_S[:, None, None, :] <= pos[:, None, :, None]
    pattern = at("pattern", softmax(np.where(visible, scores, -math.inf)))
    return np.einsum("bhts,bhsk->bhtk", pattern, v)


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
    h = gelu(h) if activation == "gelu" else np.maximum(h, 0)
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
    """Token embedding plus the position's, (B, T) -> (B, T, C)."""
    x = params["tok_emb"][ids]
    if cfg.positions == "learned":
        x = x + np.take(params["pos_emb"], pos, axis=0, mode="clip")
    if cfg.positions == "sinusoidal":
        table = positional_encoding(max(cfg.block_size, ids.shape[1]), cfg.n_embd)
        x = x + np.take(table, pos, axis=0, mode="clip").astype(x.dtype)
    return x


def unembed(params: Params, x: Array, cfg: GPTConfig) -> Array:
    """Logits of the next token, (..., C) -> (..., V); padding rows of the vocabulary are left out."""
    W = params["tok_emb" if cfg.tied else "head"]
    return (x @ W.T)[..., : cfg.vocab_size]


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
    return logits, {name: np.stack(values) for name, values in (taps or {}).items()}


def gpt_forward(params: Params, ids: Array, cfg: GPTConfig, *, edits: Mapping[str, Edit] | None = None) -> Array:
    """Logits of the next token at every position: ids (B, T) -> (B, T, V), and (T,) -> (T, V)."""
    ids = np.asarray(ids)
    logits, _ = forward(params, np.atleast_2d(ids), cfg, edits, tapped=False)
    return logits if ids.ndim == 2 else logits[0]


# The loss and its gradient


def as_float64(params: Mapping[str, Any]) -> Params:
    """A float64 copy of a parameter tree, of NumPy or JAX arrays."""
    return {k: as_float64(v) if isinstance(v, Mapping) else np.array(v, np.float64) for k, v in params.items()}


def loss(
    params: Params, ids: Array, targets: Array, cfg: GPTConfig, *, edits: Mapping[str, Edit] | None = None
) -> float:
    """Mean cross-entropy in nats over the targets that are not negative; ids and targets (B, T) or (T,)."""
    logits, targets = gpt_forward(params, ids, cfg, edits=edits), np.asarray(targets)
    counted = targets >= 0
    p = softmax(logits[counted])
    return float(-np.log(p[np.arange(len(p)), targets[counted]]).mean())


def numeric_gradient(
    params: Params,
    ids: Array,
    targets: Array,
    cfg: GPTConfig,
    entries: Iterable[tuple[str, tuple[int, ...]]],
    step: float = 1e-5,
) -> Array:
    """The loss's gradient at chosen entries, such as ("blocks.Wq", (0, 1, 2)), by central differences in float64.

    One number an entry, in their order; about 1e-9 off where the loss is smooth.
    """
    params = as_float64(params)

    def slope(name: str, index: tuple[int, ...]) -> float:
        leaf: Any = params
        for part in name.split("."):
            leaf = leaf[part]
        value = leaf[index]
        leaf[index] = value + step
        up = loss(params, ids, targets, cfg)
        leaf[index] = value - step
        down = loss(params, ids, targets, cfg)
        leaf[index] = value
        return (up - down) / (2 * step)

    return np.array([slope(name, index) for name, index in entries])
