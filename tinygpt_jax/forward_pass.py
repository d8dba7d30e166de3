"""What runs the model for everyone else: the scan over layers, with a cache, edits, taps, dropout and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.hooks import (
    Edit,
    KVCache,
    as_edits,
    check_edits,
    check_sites,
    dropper,
    no_drop,
    recaller,
    site_hook,
    with_positions,
)
from tinygpt_jax.kernels import attention_kernel
from tinygpt_jax.model import default_positions, embed, norm, transformer_block, unembed
from tinygpt_jax.params import Params, pick
from tinygpt_jax.text import check_ids as check_range


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
    """
    cfg = check(cfg)
    edits, taps = as_edits(edits, cfg), (taps,) if isinstance(taps, str) else taps
    B, T = ids.shape
    check_edits(edits, cfg, B, T, T if cache is None else cache.pos.shape[1])
    check_sites(taps, cfg)
    key = key if cfg.dropout > 0 else None
    plain = pos is None and cache is None and key is None and not edits and not taps
    kernel = attention_kernel(cfg, T) if fused and plain else None
    pos = default_positions(B, T) if pos is None else pos
    chex.assert_equal_shape([ids, pos])
    cache = None if cache is None else with_positions(cache, pos)

    def block(x, layer, recall=None):
        p, edit, index = layer
        at, seen = site_hook(edit, taps)
        drop = dropper(jax.random.fold_in(key, index + 1), cfg.dropout) if key is not None else no_drop
        n_head = p["Wq"].shape[-1] // cfg.head_width  # cfg.n_head, or fewer in a pruned layer
        return transformer_block(x, p, n_head, cfg, pos, recall, at, drop, kernel), seen

    x = embed(params, ids, pos, cfg)
    x = x if key is None else dropper(jax.random.fold_in(key, 0), cfg.dropout)(x)
    layers = (params["blocks"], edits, jnp.arange(cfg.n_layer, dtype=jnp.int32))
    in_turn = cache is not None or isinstance(params["blocks"], tuple)
    if cfg.remat and cache is None:
        block = jax.checkpoint(block, prevent_cse=in_turn)  # a loop keeps it from being undone
    if in_turn:
        x, seen, cache = layers_in_turn(block, x, layers, cache, pos)
    else:
        unroll = cfg.n_layer <= cfg.unroll_layers and not cfg.remat
        x, seen = jax.lax.scan(block, x, layers, unroll=unroll)
    return Hidden(norm(x, params, "lnf", cfg), seen, cache)


def layers_in_turn(
    block: Callable[..., tuple[jax.Array, dict[str, jax.Array]]],
    x: jax.Array,
    layers: tuple[Any, Any, jax.Array],
    cache: KVCache | None,
    pos: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array], KVCache | None]:
    """What a scan of `block` over `layers` gives, with a cache: (x, taps, cache). A scan would copy each layer's keys,
    values and weights for every token; `split_layers` sees to the weights."""
    seen, slots = [], []
    for i in range(len(layers[-1])):
        layer = tuple(part[i] if isinstance(part, tuple) else pick(part, i) for part in layers)
        recall, written = (None, []) if cache is None else recaller(cache, i, pos)
        x, tapped = block(x, layer, recall)
        seen.append(tapped)
        slots.append(written)
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


def forward(params: Params, ids: jax.Array, cfg: GPTConfig, **options) -> Forward:
    """`hidden_states` (same options) and the output head. Ids are taken as they are; `gpt_forward` checks them."""
    hidden = hidden_states(params, ids, cfg, **options)
    return Forward(unembed(params, hidden.x, cfg), hidden.taps, hidden.cache)


def check_ids(ids: jax.Array | np.ndarray, cfg: GPTConfig) -> None:
    """Raises UserError where `cfg` makes no sense or JAX would clamp or wrap: a bad shape, dtype, id or length."""
    cfg = check(cfg)
    try:
        ids = ids if isinstance(ids, jax.core.Tracer) else np.asarray(ids)
    except ValueError as error:
        raise UserError("ids have rows of different lengths: pad them, or pass one at a time") from error
    shape, dtype = ids.shape, ids.dtype
    if len(shape) not in (1, 2) or 0 in shape or not jnp.issubdtype(dtype, jnp.integer):
        raise UserError(f"ids have shape {shape} and dtype {dtype}: must be integers (B, T) or (T,), and not empty")
    if cfg.positions == "learned" and shape[-1] > cfg.block_size:
        raise UserError(f"{shape[-1]} tokens, but block_size is {cfg.block_size}: pass at most that many at once")
    if isinstance(ids, np.ndarray):
        check_range(ids, cfg.vocab_size)
