"""Text generation: a compiled decoding loop over a window of tokens, and the text that is read from its chunks.

The window policy, with and without the cache: a model sees at most T = block_size tokens. When they are all in use, the
oldest are dropped, the latest max(1, T // 2) are encoded again at positions from 0, and the window grows from there.
Where a window starts is thus a function of the number of tokens alone, and decoding never needs more memory.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.filters import Filters, Finish, Reader, SampleConfig, filter_logits, make_filters
from tinygpt_jax.model import FAR, Edit, KVCache, check_sites, hidden_states, init_cache, unembed
from tinygpt_jax.params import Params
from tinygpt_jax.runs import Model
from tinygpt_jax.text import Tokenizer, check_ids

CHUNK = 32  # tokens per dispatch: the host looks for the end of a text only in between
STREAM_CHUNK = 8  # the same where someone waits for every word
Edits = Mapping[str, Edit] | None


class Sample(NamedTuple):
    """One generated text."""

    prompt: str
    text: str
    """What follows the prompt, without the stop string or end-of-text token that ended it."""
    tokens: list[int]
    """Every new token, those of the stop string or the end-of-text token included."""
    logprobs: list[float]
    """nats, one per token: log softmax of the model's own logits, before temperature and filters."""
    finish: Finish


def generate(
    model: Model, prompt: str | Sequence[str] = "", *, edits: Edits = None, **settings: Any
) -> str | list[str]:
    """The prompt and what the model writes after it: a str, or a list of them for several prompts or n > 1.

    `settings` are the fields of `SampleConfig`; everything else is as in `sample`.

        text = generate(model, "ROMEO:", max_tokens=200, temperature=0.8, seed=1)
    """
    samples = sample(model, prompt, edits=edits, **settings)
    texts = [one.prompt + one.text for one in samples]
    return texts[0] if isinstance(prompt, str) and len(texts) == 1 else texts


def sample(
    model: Model,
    prompt: str | Sequence[str] = "",
    config: SampleConfig | None = None,
    *,
    edits: Edits = None,
    **settings: Any,
) -> list[Sample]:
    """`n` samples for each prompt, prompt by prompt; `settings` are fields of `SampleConfig` laid over `config`.

    An empty prompt starts from one token that is not shown: the tokenizer's end of text, else a newline, else id 0.
    Token t of sample j is drawn by key(seed) folded with j and t, whatever else is in the batch.
    `edits` intervene in every forward pass; each must be the same for all rows and all positions.

    Raises:
        UserError: a setting or an edit cannot be used, a prompt has characters that the tokenizer lacks, or the model's
            outputs are not finite.
    """
    config = dataclasses.replace(config or SampleConfig(), **settings)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    chunks = _chunks(model, prompts, config, edits, CHUNK)
    readers = [Reader(model.tokenizer, config) for _ in range(len(prompts) * config.n)]
    for ids, logprobs in chunks:
        for reader, row_ids, row_logprobs in zip(readers, ids, logprobs, strict=True):
            reader.push(row_ids, row_logprobs)
        if all(reader.finish for reader in readers):
            break
    return [
        Sample(prompts[i // config.n], reader.text, reader.tokens, reader.logprobs, reader.finish or "length")
        for i, reader in enumerate(readers)
    ]


def stream(
    model: Model, prompt: str = "", config: SampleConfig | None = None, *, edits: Edits = None, **settings: Any
) -> Iterator[str]:
    """The text of `sample` with the same arguments, piece by piece as it is written, in whole characters.

    Raises:
        UserError: as `sample`, at the call; and where n is not 1.
    """
    config = dataclasses.replace(config or SampleConfig(), **settings)
    if config.n != 1:
        raise UserError(f"n is {config.n}: a stream is one text; set n to 1, or use sample")
    chunks = _chunks(model, [prompt], config, edits, STREAM_CHUNK)
    reader = Reader(model.tokenizer, config)

    def pieces() -> Iterator[str]:
        for ids, logprobs in chunks:
            if piece := reader.push(ids[0], logprobs[0]):
                yield piece
            if reader.finish:
                return

    return pieces()


# From prompts to chunks of tokens, on the host


def window_start(n: int, T: int) -> int:
    """Where the window over the first n tokens starts, for a context of T: it holds n - start of them, 1 to T."""
    stride = T + 1 - max(1, T // 2)
    return stride * max(0, -((T - n) // stride))


def _chunks(
    model: Model, prompts: Sequence[str], config: SampleConfig, edits: Edits, pace: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """Ids and log-probabilities (B, up to `pace`) of new tokens, B = prompts × n, max_tokens of them in all.

    What is wrong with the arguments is raised at once, not when the first chunk is asked for.
    """
    params, cfg, tokenizer = model
    _check_edits(edits, cfg)
    ids = [check_ids(tokenizer.encode(prompt), cfg.vocab_size, "the prompt") for prompt in prompts]
    known = jnp.asarray(min(tokenizer.vocab_size, cfg.vocab_size), jnp.int32)
    request = Request(make_filters(config), known, dict(edits or {}))
    # jax.random.key(seed), but with all of a seed's 63 bits instead of 32.
    key = jax.random.wrap_key_data(jnp.array(divmod(config.seed, 2**32), jnp.uint32), impl="threefry2x32")
    streams = key, np.tile(np.arange(config.n, dtype=np.int32), len(ids))

    def run() -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        state = _start(model, ids, config, request.edits)
        split = split_layers(params, cfg)
        for done in range(0, config.max_tokens, pace):
            steps = min(pace, config.max_tokens - done)
            state, new, logprobs = advance(split, state, request, token_keys(*streams, done), steps, cfg)
            new, logprobs = np.asarray(new)[:, :steps], np.asarray(logprobs)[:, :steps]
            if not np.isfinite(logprobs).all():
                raise UserError("the model's outputs are not finite: its weights are damaged or its training diverged")
            yield new, logprobs

    return run() if prompts else iter(())


def _start(model: Model, prompts: list[NDArray[Any]], config: SampleConfig, edits: Mapping[str, Edit]) -> Decoding:
    """The state before the first new token, `n` rows for each prompt."""
    params, cfg, tokenizer = model
    T, n = cfg.block_size, config.n
    window = np.zeros((len(prompts), T), np.int32)
    size = np.zeros(len(prompts), np.int32)
    seen = np.zeros((len(prompts), cfg.vocab_size), bool)
    for row, ids in enumerate(prompts):
        seen[row, ids] = True
        view = ids[window_start(len(ids), T) :] if len(ids) else [_first_token(tokenizer)]
        size[row] = len(view)
        window[row, : len(view)] = view
    cache = None
    if config.cache:
        # Padded to a power of two, prompts of all lengths share a few compiled programs.
        width = min(T, 1 << max(0, int(size.max()) - 2).bit_length())
        cache = prefill(params, jnp.asarray(window[:, :width]), jnp.asarray(size - 1), edits, cfg, n)
    return Decoding(
        window=jnp.array(np.repeat(window, n, axis=0)),
        size=jnp.array(np.repeat(size, n)),
        cache=cache,
        stale=jnp.zeros(len(prompts) * n, bool),
        seen=jnp.array(np.repeat(seen, n, axis=0)) if config.repetition_penalty != 1 else None,
    )


def _first_token(tokenizer: Tokenizer) -> int:
    """The token before an empty prompt."""
    if tokenizer.eos_id is not None:
        return tokenizer.eos_id
    try:
        newline = tokenizer.encode("\n")
    except UserError:
        return 0
    return int(newline[0]) if len(newline) == 1 else 0


def _check_edits(edits: Edits, cfg: GPTConfig) -> None:
    """Raises UserError for an edit that would mean different things with another batch, window or cache."""
    check_sites(list(edits or {}))
    for site, edit in (edits or {}).items():
        if site == "pattern" and edit.add is not None:
            raise UserError("edits['pattern'].add attends to tokens that are not there yet: use `keep` alone")
        rank = 5 if site in ("q", "k", "v", "pattern", "z") else 4  # layers, batch, (heads,) time, width
        for array in edit:
            if array is None:
                continue
            layers, *rest = np.shape(array) or (0,)
            rest = [1] * (rank - 1 - len(rest)) + rest
            shared = [rest[0], *(rest[-2:] if site == "pattern" else rest[-2:-1])]
            if layers != cfg.n_layer or any(size != 1 for size in shared):
                raise UserError(
                    f"edits[{site!r}] has shape {np.shape(array)}: must be one for all rows and positions, "
                    f"so of size {cfg.n_layer} along layers and 1 along batch and time"
                )


# On the device


class Request(NamedTuple):
    """What stays the same from the first new token to the last."""

    filters: Filters
    known: jax.Array
    """() int32, ids from here on are padding of the vocabulary, never drawn"""
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
    filled = hidden_states(join_layers(params), ids, cfg, pos=pos, cache=cache, edits=edits).cache
    assert filled is not None
    k, v = (jnp.repeat(part, copies, axis=1) for part in (filled.k, filled.v))
    return KVCache(k, v, jnp.repeat(filled.pos, copies, axis=0))


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
    known = jnp.arange(cfg.vocab_size, dtype=jnp.int32) < request.known

    def write(carry):
        i, state, ids, logprobs = carry
        x, cache = _last_hidden(params, state, request.edits, cfg)
        logits = jnp.where(known, unembed(params, x, cfg), -jnp.inf)
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
    params, last = join_layers(params), state.size[:, None] - 1
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
        (k, v, pos), stale, window = jax.lax.optimization_barrier((*carry, state.window[:, : max(kept, 1)]))
        rows = jnp.nonzero(stale, size=group, fill_value=B)[0].astype(jnp.int32)  # B is no row: dropped below
        fresh = prefill(params, window.at[rows].get(mode="clip"), jnp.full(group, kept, jnp.int32), edits, cfg)
        k = k.at[:, rows].set(fresh.k, mode="drop")
        v = v.at[:, rows].set(fresh.v, mode="drop")
        pos = pos.at[rows].set(fresh.pos, mode="drop")
        return KVCache(k, v, pos), stale.at[rows].set(False, mode="drop")

    cache, stale = jax.lax.while_loop(lambda carry: carry[1].any(), refill, (state.cache, state.stale))
    return state._replace(cache=cache, stale=stale)


def _kept(cfg: GPTConfig) -> int:
    """How many tokens a window has right after it moved."""
    return max(1, cfg.block_size // 2)


@functools.partial(jax.jit, static_argnames="cfg")
def split_layers(params: Params, cfg: GPTConfig) -> Params:
    """Parameters whose `blocks` are a tuple of L trees, where the model unrolls its layers.

    In a loop, XLA copies each layer's slice of a stacked weight at every step. `join_layers` inside the loop stacks the
    layers again, and a slice of that compiles to the layer's own weight, not copied.
    """
    if cfg.n_layer > cfg.unroll_layers:
        return params
    layers = (jax.tree.map(operator.itemgetter(i), params["blocks"]) for i in range(cfg.n_layer))
    return {**params, "blocks": tuple(layers)}


def join_layers(params: Params) -> Params:
    """Parameters as the model takes them, of those that `split_layers` gave or of its own kind."""
    if isinstance(params["blocks"], tuple):
        return {**params, "blocks": jax.tree.map(lambda *layers: jnp.stack(layers), *params["blocks"])}
    return params
