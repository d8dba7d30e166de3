"""The compiled decoding loop: from a window of tokens to the next ones, with a cache of keys and values.

The window policy, with and without the cache: a model sees at most T = block_size tokens. When they are all in use, the
oldest are dropped, the latest max(1, T // 2) are encoded again at positions from 0, and the window grows from there.
Where a window starts is thus a function of the number of tokens alone, and decoding never needs more memory.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.forward_pass import FAR, KVCache, hidden_states, init_cache
from tinygpt_jax.model import unembed
from tinygpt_jax.params import Params
from tinygpt_jax.sampling.filters import Filters, filter_logits

CHUNK = 32
"""The most tokens per dispatch: the host looks for the end of a text only in between."""


def window_start(n: int, T: int) -> int:
    """Where the window over the first n tokens starts, for a context of T: it holds n - start of them, 1 to T."""
    stride = T + 1 - max(1, T // 2)
    return stride * max(0, -((T - n) // stride))


class Request(NamedTuple):
    """What stays the same from the first new token to the last."""

    filters: Filters
    known: jax.Array
    """(V,) bool, the ids that stand for a token: no other is drawn"""
    edits: Mapping[str, Edit]


class Decoding(NamedTuple):
    """What changes from token to token. The cache lacks the window's last token, whose turn is next."""

    window: jax.Array
    """(B, T) int32, the tokens in view, at the slots of their positions"""
    size: jax.Array
    """(B,) int32, how many those are, 1 to T"""
    cache: KVCache | None
    """None where every step runs the whole window"""
    stale: jax.Array
    """(B,) bool, rows whose window has moved since their cache was filled"""
    seen: jax.Array | None
    """(B, V) bool, the tokens of prompt and output; None without a repetition penalty"""


@functools.partial(jax.jit, static_argnames=("cfg", "copies"))
def prefill(
    params: Params, ids: jax.Array, size: jax.Array, edits: Mapping[str, Edit], cfg: GPTConfig, copies: int = 1
) -> KVCache:
    """A cache for block_size positions that holds the first `size` (B,) of ids (B, P), each row `copies` times over."""
    slots = jnp.arange(ids.shape[1], dtype=jnp.int32)
    pos = jnp.where(slots < size[:, None], slots, FAR)
    cache = init_cache(cfg, len(ids), cfg.block_size)
    filled = hidden_states(params, ids, cfg, pos=pos, cache=cache, edits=edits).cache
    assert filled is not None
    return jax.tree.map(lambda part: jnp.repeat(part, copies, axis=0), filled)


@jax.jit
def token_keys(key: jax.Array, sample: jax.Array, t: jax.Array | int) -> jax.Array:
    """Keys (CHUNK, B) of tokens t and on: for token t of sample j (B,), the seed's key folded with j and with t."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(fold, (0, None), 1)(fold(key, sample), t + jnp.arange(CHUNK, dtype=jnp.int32))


@functools.partial(jax.jit, static_argnames=("cfg",), donate_argnames=("state",))
def advance(
    params: Params, state: Decoding, request: Request, keys: jax.Array, steps: jax.Array | int, cfg: GPTConfig
) -> tuple[Decoding, jax.Array, jax.Array]:
    """Writes `steps` tokens, at most CHUNK: (state, ids (B, CHUNK) int32, log-probabilities (B, CHUNK) float32).

    keys (CHUNK, B) are the new tokens' own. `steps` is data, so that one program serves chunks of every length.
    """
    B = len(state.window)

    def write(carry):
        i, state, ids, logprobs = carry
        x, cache = _last_hidden(params, state, request.edits, cfg)
        logits = jnp.where(request.known, unembed(params, x, cfg), -jnp.inf)
        new = _draw(filter_logits(logits, request.filters, state.seen), keys[i], request.filters.temperature)
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), new[:, None], axis=-1)[:, 0]
        state = _append(state._replace(cache=cache), new, cfg)
        return i + 1, state, ids.at[:, i].set(new), logprobs.at[:, i].set(logprob)

    def write_until_stale(carry):
        i, state, *out = carry
        carry = i, _refill(params, state, request.edits, cfg), *out
        return jax.lax.while_loop(lambda carry: (carry[0] < steps) & ~carry[1].stale.any(), write, carry)

    # Two loops, because XLA copies the cache for every token where the inner one holds anything but plain steps.
    start = (jnp.zeros((), jnp.int32), state, jnp.zeros((B, CHUNK), jnp.int32), jnp.zeros((B, CHUNK), jnp.float32))
    return jax.lax.while_loop(lambda carry: carry[0] < steps, write_until_stale, start)[1:]


def _last_hidden(
    params: Params, state: Decoding, edits: Mapping[str, Edit], cfg: GPTConfig
) -> tuple[jax.Array, KVCache | None]:
    """The residual stream at each window's last token, (B, C), and the cache that now holds that token."""
    last = state.size[:, None] - 1
    if state.cache is not None:
        ids = jnp.take_along_axis(state.window, last, axis=1)
        hidden = hidden_states(params, ids, cfg, pos=last, cache=state.cache, edits=edits)
        return hidden.x[:, 0], hidden.cache
    slots = jnp.arange(cfg.block_size, dtype=jnp.int32)
    pos = jnp.where(slots <= last, slots, FAR)
    x = hidden_states(params, state.window, cfg, pos=pos, edits=edits).x
    return jnp.take_along_axis(x, last[..., None], axis=1)[:, 0], None


def _draw(scores: jax.Array, keys: jax.Array, temperature: jax.Array) -> jax.Array:
    """One id per row, scores (B, V) and keys (B,) -> (B,) int32: the largest under Gumbel noise samples the softmax."""
    noise = jax.vmap(lambda key: jax.random.gumbel(key, scores.shape[1:], jnp.float32))(keys)
    # No noise at temperature 0, where it would choose among equals by chance.
    return jnp.argmax(scores + jnp.where(temperature > 0, noise, 0), axis=-1).astype(jnp.int32)


def _append(state: Decoding, new: jax.Array, cfg: GPTConfig) -> Decoding:
    """The state with one more token in each row; windows that were full move on first."""
    kept = _kept(cfg) - 1  # the new token makes up the new window
    full = state.size == cfg.block_size
    window = jnp.where(full[:, None], jnp.roll(state.window, kept - cfg.block_size, axis=1), state.window)
    size = jnp.where(full, kept, state.size)
    rows = jnp.arange(len(new), dtype=jnp.int32)
    return Decoding(
        window=window.at[rows, size].set(new),
        size=size + 1,
        cache=state.cache,
        stale=state.stale if state.cache is None else full,
        seen=None if state.seen is None else state.seen.at[rows, new].set(True),
    )


def _refill(params: Params, state: Decoding, edits: Mapping[str, Edit], cfg: GPTConfig) -> Decoding:
    """The state with the stale rows of its cache made anew from their windows, all but the last token.

    An eighth of the batch at a time: a lone row then costs little, and rows that move together few passes.
    """
    if state.cache is None:
        return state
    B, kept = len(state.window), _kept(cfg) - 1
    group = -(-B // 8)

    def refill(carry):
        # Without the barrier XLA moves the forward pass out of this loop and runs it where no row is stale as well.
        cache, stale, window = jax.lax.optimization_barrier((*carry, state.window[:, : max(kept, 1)]))
        rows = jnp.nonzero(stale, size=group, fill_value=B)[0].astype(jnp.int32)  # B is no row: dropped below
        fresh = prefill(params, window.at[rows].get(mode="clip"), jnp.full(group, kept, jnp.int32), edits, cfg)
        cache = jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), cache, fresh)
        return cache, stale.at[rows].set(False, mode="drop")

    cache, stale = jax.lax.while_loop(lambda carry: carry[1].any(), refill, (state.cache, state.stale))
    return state._replace(cache=cache, stale=stale)


def _kept(cfg: GPTConfig) -> int:
    """How many tokens a window has right after it moved."""
    return max(1, cfg.block_size // 2)
