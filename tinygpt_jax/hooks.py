"""What the forward threads through its blocks: sites to edit and tap, dropout, the cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest

SITES = (
    "q", "k", "v", "pattern", "z", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post",
    "ln1_scale", "ln2_scale",
)  # fmt: skip
"""Where the forward can be edited and tapped. Per layer: q k v z (B, H, T, K), pattern (B, H, T, S), the norms' scales
(B, T, 1) float32, others (B, T, C). `z` is a head's output before `Wo`; attn_out and mlp_out are what is written into
the residual stream; a scale is what a norm multiplies by, 1 / deviation."""

PER_HEAD = ("q", "k", "v", "pattern", "z")
"""The sites with a head axis."""

FAR = 2**30
"""The position of a token that no real token may see: padding, and cache slots not yet written."""


class Edit(NamedTuple):
    """An intervention at one site, `x * keep + add`: arrays (L, ...) whose rest broadcasts to the site's shape."""

    keep: jax.Array | None = None
    add: jax.Array | None = None


class KVCache(NamedTuple):
    """Keys and values already computed, a slot for each position; layers apart, so that each is written in place."""

    k: tuple[jax.Array, ...]
    """L of (B, H, S, K); H by layer where heads are pruned"""
    v: tuple[jax.Array, ...]
    """L of (B, H, S, K)"""
    pos: jax.Array
    """(B, S) int32, the position each slot holds; FAR where empty."""


Site = Callable[[str, jax.Array], jax.Array]
"""at(name, value) -> the value, edited; trace-time only."""
Scaled = Callable[[jax.Array], jax.Array]
"""scaled(a norm's 1 / deviation) -> the value it is to take."""
Drop = Callable[[jax.Array], jax.Array]
Recall = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""recall(k, v) -> every key, value and key position that may be attended to."""


def untouched(name: str, x: jax.Array) -> jax.Array:
    return x


def unchanged(x: jax.Array) -> jax.Array:
    return x


no_drop: Drop = unchanged


def init_cache(cfg: GPTConfig, batch_size: int, length: int) -> KVCache:
    """An empty cache for `length` positions."""
    shapes = [(batch_size, heads, length, cfg.head_width) for heads in cfg.heads_per_layer]
    k, v = (tuple(jnp.zeros(shape, cfg.compute_dtype) for shape in shapes) for _ in range(2))
    return KVCache(k, v, jnp.full((batch_size, length), FAR, jnp.int32))


def check_sites(names: Iterable[str], cfg: GPTConfig) -> None:
    """Raises UserError for a site that this model does not have."""
    for name in names:
        if name not in SITES:
            raise UserError(f"site {name!r} is unknown{nearest(str(name), SITES)}")
        if name in ("mlp_out", "ln2_scale") and not cfg.mlp_width:
            raise UserError(f"site {name!r} is not there: mlp_ratio is 0, so the model has no MLP; name another site")
        if name.endswith("_scale") and cfg.norm == "none":
            raise UserError(f"site {name!r} is not there: norm is 'none'; name another site")
        if cfg.heads and (name in PER_HEAD or (name == "ln1_scale" and 0 in cfg.heads)):
            left = ", ".join(map(str, cfg.heads))
            raise UserError(
                f"site {name!r} differs from layer to layer: heads pruned to {left}; "
                "name a site of the residual stream, or take the model before pruning"
            )


def as_edits(edits: Mapping[str, Edit] | None, cfg: GPTConfig) -> dict[str, Edit]:
    """The edits as a dict; raises UserError for one that is no `Edit` of arrays of numbers at a site of this model."""
    if edits is not None and not isinstance(edits, Mapping):
        raise UserError(f"edits are {_brief(edits)}: must be a dict of site and Edit, such as {{'z': Edit(keep=mask)}}")
    edits = dict(edits or {})
    check_sites(edits, cfg)
    for site, edit in edits.items():
        if not isinstance(edit, Edit):
            raise UserError(
                f"edits[{site!r}] is {_brief(edit)}: must be an Edit(keep=array, add=array), "
                f"which makes x * keep + add of the site's value x"
            )
        for part, array in edit._asdict().items():
            dtype = getattr(array, "dtype", None)
            kinds = (np.floating, np.integer, np.bool_)
            real = dtype is not None and any(jnp.issubdtype(dtype, kind) for kind in kinds)
            if array is not None and not real:
                raise UserError(f"edits[{site!r}].{part} is {_brief(array)}: must be an array of real numbers, or None")
    return edits


def _brief(value: object) -> str:
    """What was given in place of something else, in a few words."""
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}" if dtype is None else f"an array of {dtype}"


def check_edits(edits: Mapping[str, Edit], cfg: GPTConfig, B: int, T: int, S: int) -> None:
    """Raises UserError for an edit whose arrays do not fit its site, for B rows of T queries and S keys."""
    shapes: dict[str, tuple[int, ...]] = {
        "pattern": (B, cfg.n_head, T, S),
        **dict.fromkeys("qkvz", (B, cfg.n_head, T, cfg.head_width)),
    }
    shapes |= {"ln1_scale": (B, T, 1), "ln2_scale": (B, T, 1)}
    for name, edit in edits.items():
        site = (cfg.n_layer, *shapes.get(name, (B, T, cfg.n_embd)))
        for part, array in edit._asdict().items():
            shape = np.shape(array)
            fits = shape[:1] == site[:1] and len(shape) <= len(site)
            fits = fits and all(n in (1, m) for n, m in zip(shape[:0:-1], site[:0:-1], strict=False))
            if array is not None and not fits:
                wanted = f"must be {cfg.n_layer} layers of what broadcasts to {site[1:]}"
                raise UserError(f"edits[{name!r}].{part} has shape {shape}: {wanted}")


def site_hook(edits: Mapping[str, Edit], taps: Sequence[str]) -> tuple[Site, dict[str, jax.Array]]:
    """One layer's `at`, and the dict in which it leaves what was tapped (after the edit)."""
    seen: dict[str, jax.Array] = {}

    def at(name: str, x: jax.Array) -> jax.Array:
        if name in edits:
            keep, add = edits[name]
            x = x if keep is None else x * keep.astype(x.dtype)
            x = x if add is None else x + add.astype(x.dtype)
        if name in taps:
            seen[name] = x
        return x

    return at, seen


def dropper(key: jax.Array, rate: float) -> Drop:
    """Zeroes a share `rate` of each array it is given and scales up the rest, with a fresh mask at each call."""
    calls = iter(range(1 << 30))

    def drop(x: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(jax.random.fold_in(key, next(calls)), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))

    return drop


def with_positions(cache: KVCache, pos: jax.Array) -> KVCache:
    """The cache with pos (B, T) noted in the slots they name; FAR names none."""
    rows = jnp.arange(len(pos), dtype=jnp.int32)[:, None]
    return cache._replace(pos=cache.pos.at[rows, pos].set(pos, mode="drop"))


def recaller(cache: KVCache, layer: int, pos: jax.Array) -> tuple[Recall, list[jax.Array]]:
    """One layer's `recall`, which writes its keys and values at pos (B, T), and the list it leaves these slots in."""
    slots = [cache.k[layer], cache.v[layer]]
    rows = jnp.arange(len(pos), dtype=jnp.int32)[:, None]

    def recall(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        for i, new in enumerate((k, v)):
            # FAR is outside the cache: such a token is dropped, not kept.
            slots[i] = slots[i].at[rows, :, pos].set(new.transpose(0, 2, 1, 3), mode="drop")
        return slots[0], slots[1], cache.pos

    return recall, slots
