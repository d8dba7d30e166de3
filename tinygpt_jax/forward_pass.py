"""What runs the model for everyone else: the scan over layers, with a cache, edits, taps, dropout and kernels.

`model` says what is computed, for a reader; here it is computed fast, and can be watched and changed on the way.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit, check_edits, check_sites
from tinygpt_jax.errors import UserError
from tinygpt_jax.ids import check_input, check_positions
from tinygpt_jax.model import (
    Attend,
    Site,
    attend,
    default_positions,
    embed,
    norm,
    smear_keys,
    transformer_block,
    unembed,
)
from tinygpt_jax.params import Params, check_params, pick, with_headless

FAR = 2**30
"""The position of a token that no real token may see: padding, and cache slots not yet written."""

DROPPED = ("pattern", "attn_out", "mlp_out")
"""The sites where dropout acts, besides the embedding; a place here is folded into the key of the mask."""
CUDNN_WIDTHS = range(8, 129, 8)
"""Head widths K that cuDNN's attention takes."""


class KVCache(NamedTuple):
    """Keys and values already computed, a slot for each position; layers apart, so that each is written in place."""

    k: tuple[jax.Array, ...]
    """L of (B, H, S, K); H by layer where heads are pruned"""
    v: tuple[jax.Array, ...]
    """L of (B, H, S, K)"""
    pos: jax.Array
    """(B, S) int32, the position each slot holds; FAR where empty."""


class Hidden(NamedTuple):
    """What the blocks leave behind."""

    x: jax.Array
    """(B, T, C) the residual stream after the final norm."""
    taps: dict[str, jax.Array]
    """site -> values with a leading L axis."""
    cache: KVCache | None


class Forward(NamedTuple):
    logits: jax.Array
    """(B, T, V) float32."""
    taps: dict[str, jax.Array]
    cache: KVCache | None


def forward(
    params: Params,
    ids: jax.Array,
    cfg: GPTConfig,
    *,
    pos: jax.Array | None = None,
    cache: KVCache | None = None,
    edits: Mapping[str, Edit] | None = None,
    taps: Sequence[str] = (),
    key: jax.Array | None = None,
    fused: bool = False,
) -> Forward:
    """`hidden_states`, whose arguments these are, and the output head."""
    hidden = hidden_states(params, ids, cfg, pos=pos, cache=cache, edits=edits, taps=taps, key=key, fused=fused)
    return Forward(unembed(params, hidden.x, cfg), hidden.taps, hidden.cache)


def hidden_states(
    params: Params,
    ids: jax.Array,
    cfg: GPTConfig,
    *,
    pos: jax.Array | None = None,
    cache: KVCache | None = None,
    edits: Mapping[str, Edit] | None = None,
    taps: Sequence[str] = (),
    key: jax.Array | None = None,
    fused: bool = False,
) -> Hidden:
    """Runs the blocks over ids (B, T), without the output head.

    pos    (B, T) int32 positions; FAR for padding, which is computed but never seen nor cached
    cache  earlier keys and values; the new ones are written at the slot of their position
    edits  site -> Edit; an absent site traces nothing
    taps   sites whose values are wanted
    key    turns dropout on
    fused  lets `cfg.attention` choose a library's kernel where nobody looks inside: for values and first gradients

    Raises UserError for what does not fit the model, each other or the cache; of ids and positions that are being
    traced by jit only shapes are known.
    """
    check_run(params, ids, cfg, pos, cache)
    cfg, ids = check(cfg), jnp.asarray(ids)
    B, T = ids.shape
    edits = check_edits(edits, cfg, B, T, T if cache is None else cache.pos.shape[1])
    taps = check_sites((taps,) if isinstance(taps, str) else taps, cfg)
    key = key if cfg.dropout > 0 else None
    plain = pos is None and cache is None and key is None and not edits and not taps
    kernel = attention_kernel(cfg, T) if fused and plain else None
    attending = attend if kernel is None else functools.partial(attend_fused, kernel=kernel)
    pos = default_positions(B, T) if pos is None else jnp.asarray(pos)

    def block(x, layer, attending=attending):
        p, edit, index = layer
        layer_key = None if key is None else jax.random.fold_in(key, index + 1)
        at, seen = site_hook(edit, taps, layer_key, cfg.dropout)
        return transformer_block(x, with_headless(p, cfg), cfg.n_head, cfg, pos, at, attending), seen

    x = embed(params, ids, pos, cfg)
    x = x if key is None else dropout(x, jax.random.fold_in(key, 0), 0, cfg.dropout)
    layers = (params["blocks"], edits, jnp.arange(cfg.n_layer, dtype=jnp.int32))
    in_turn = cache is not None or isinstance(params["blocks"], tuple)
    if cfg.remat and cache is None:
        block = jax.checkpoint(block, prevent_cse=in_turn)  # a loop keeps it from being undone
    if in_turn:
        x, seen, cache = layers_in_turn(block, x, layers, cache, pos)
    else:
        x, seen = jax.lax.scan(block, x, layers, unroll=cfg.n_layer <= cfg.unroll_layers and not cfg.remat)
    return Hidden(norm(x, params, "lnf", cfg), seen, cache)


def check_run(params: Params, ids: jax.Array, cfg: GPTConfig, pos: jax.Array | None, cache: KVCache | None) -> None:
    """Raises UserError for arguments of `hidden_states` that do not fit each other. A position without a place in the
    cache would lose its key, one without a place in the model would have the last one's embedding."""
    check_input(ids, cfg)
    if not (isinstance(params, Mapping) and is_split(params, cfg)):
        check_params(params, cfg)
    if len(np.shape(ids)) != 2:
        raise UserError(f"ids have shape {np.shape(ids)}: must be (B, T); give one window as ids[None]")
    (B, T), slots = np.shape(ids), FAR
    if cache is not None:
        slots = cache.pos.shape[-1]
        want = jax.eval_shape(lambda: init_cache(cfg, B, slots))
        if [(x.shape, x.dtype) for x in jax.tree.leaves(cache)] != [(x.shape, x.dtype) for x in jax.tree.leaves(want)]:
            raise UserError(f"the cache does not fit {B} rows of this model: make it by init_cache(cfg, {B}, length)")
    table = {"learned": cfg.block_size, "sinusoidal": max(cfg.block_size, T)}.get(cfg.positions, FAR)
    if pos is not None or cache is not None:
        check_positions(np.tile(np.arange(T), (B, 1)) if pos is None else pos, (B, T), min(slots, table), FAR)


def layers_in_turn(
    block: Callable[..., tuple[jax.Array, dict[str, jax.Array]]],
    x: jax.Array,
    layers: tuple[Any, Any, jax.Array],
    cache: KVCache | None,
    pos: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array], KVCache | None]:
    """What a scan of `block` over `layers` gives, with a cache: (x, taps, cache). A scan would copy each layer's keys,
    values and weights for every token; `split_layers` sees to the weights."""
    cache = None if cache is None else with_positions(cache, pos)
    seen, slots = [], []
    for i in range(len(layers[-1])):
        layer = tuple(part[i] if isinstance(part, tuple) else pick(part, i) for part in layers)
        if cache is None:
            x, tapped = block(x, layer)
        else:
            through_cache, written = attend_cached(cache, i, pos)
            x, tapped = block(x, layer, through_cache)
            slots.append(written)
        seen.append(tapped)
    if cache is not None:
        k, v = zip(*slots, strict=True)
        cache = cache._replace(k=k, v=v)
    return x, jax.tree.map(lambda *values: jnp.stack(values), *seen), cache


def split_layers(params: Params, cfg: GPTConfig) -> Params:
    """The same parameters with `blocks` a tuple of L trees: what a loop over tokens should be given, since there each
    slice of a stacked weight would be copied at every turn."""
    if isinstance(params["blocks"], tuple):  # as a pruned model's are
        return params
    return {**params, "blocks": tuple(pick(params["blocks"], i) for i in range(cfg.n_layer))}


def is_split(params: Params, cfg: GPTConfig) -> bool:
    """Whether these are what `split_layers` makes of stacked blocks, which were checked before."""
    return not cfg.heads and isinstance(params.get("blocks"), tuple)


# What acts at the sites


def site_hook(
    edits: Mapping[str, Edit], taps: Sequence[str], key: jax.Array | None = None, rate: float = 0.0
) -> tuple[Site, dict[str, jax.Array]]:
    """One layer's `at`, and the dict in which it leaves what was tapped. Dropout, where there is a key, comes first: an
    edit has the last word, and a tap shows what goes on."""
    seen: dict[str, jax.Array] = {}

    def at(name: str, x: jax.Array) -> jax.Array:
        if key is not None and name in DROPPED:
            x = dropout(x, key, DROPPED.index(name), rate)
        if name in edits:
            keep, add = edits[name]
            x = x if keep is None else x * keep.astype(x.dtype)
            x = x if add is None else x + add.astype(x.dtype)
        if name in taps:
            seen[name] = x
        return x

    return at, seen


def dropout(x: jax.Array, key: jax.Array, place: int, rate: float) -> jax.Array:
    """Zeroes a share `rate` of x and scales up the rest, by a mask of its own for each key and place."""
    kept = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


# Other ways to attend: with a cache, or by a library's kernel


def init_cache(cfg: GPTConfig, batch_size: int, length: int) -> KVCache:
    """An empty cache for `length` positions."""
    shapes = [(batch_size, heads, length, cfg.head_width) for heads in cfg.heads_per_layer]
    k, v = (tuple(jnp.zeros(shape, cfg.compute_dtype) for shape in shapes) for _ in range(2))
    return KVCache(k, v, jnp.full((batch_size, length), FAR, jnp.int32))


def with_positions(cache: KVCache, pos: jax.Array) -> KVCache:
    """The cache with pos (B, T) noted in the slots they name; FAR names none."""
    rows = jnp.arange(len(pos), dtype=jnp.int32)[:, None]
    return cache._replace(pos=cache.pos.at[rows, pos].set(pos, mode="drop"))


def attend_cached(cache: KVCache, layer: int, pos: jax.Array) -> tuple[Attend, list[jax.Array]]:
    """One layer's `attend`, which writes its keys and values at pos (B, T) and looks at all that the cache holds, and
    the list in which it leaves these. Keys are kept as they are made, rotated but not smeared: that takes the next."""
    slots = [cache.k[layer], cache.v[layer]]
    rows = jnp.arange(len(pos), dtype=jnp.int32)[:, None]

    def through_cache(
        q: jax.Array, k: jax.Array, v: jax.Array, pos: jax.Array, at: Site, smear: jax.Array | None
    ) -> jax.Array:
        for i, new in enumerate((k, v)):
            # FAR is outside the cache: such a token is dropped, not kept.
            slots[i] = slots[i].at[rows, :, pos].set(new.transpose(0, 2, 1, 3), mode="drop")
        all_k, all_v = slots
        return attend(q, all_k, all_v, pos, at, smear, cache.pos)

    return through_cache, slots


def attend_fused(
    q: jax.Array, k: jax.Array, v: jax.Array, pos: jax.Array, at: Site, smear: jax.Array | None, *, kernel: str
) -> jax.Array:
    """`attend` over positions 0 .. T-1 by `jax.nn.dot_product_attention`, which does not show the pattern."""
    if not q.size:  # every head is pruned
        return v
    k = k if smear is None else smear_keys(k, smear, pos)
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    with jax.numpy_dtype_promotion("standard"):  # which JAX's own code relies on in bfloat16
        z = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kernel)  # type: ignore[call-overload]
    return z.transpose(0, 2, 1, 3)


def attention_kernel(cfg: GPTConfig, T: int) -> str | None:
    """Which implementation of `jax.nn.dot_product_attention` should be used on T tokens: `cudnn`, `xla`, or None.

    cuDNN's wants bfloat16, certain head widths and an even T (its gradient refuses an odd one), and has neither
    forward-mode nor second derivatives.
    """
    wanted = cfg.attention != "einsum" and cfg.compute_dtype == "bfloat16"
    if wanted and cfg.head_width in CUDNN_WIDTHS and T % 2 == 0 and has_cudnn_attention():
        return "cudnn"
    return "xla" if cfg.attention == "fused" else None


def has_cudnn_attention() -> bool:
    """Whether the default device is an NVIDIA GPU that cuDNN's attention runs on: Ampere or newer."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = default if isinstance(default, jax.Device) else jax.devices(default)[0]
    return "cuda" in device.client.platform_version and float(getattr(device, "compute_capability", 0)) >= 8.0
