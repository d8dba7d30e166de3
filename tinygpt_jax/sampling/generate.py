"""Text generation: prompts in, texts out, a chunk of tokens at a time."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.arguments import takes
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, SampleConfig
from tinygpt_jax.edits import Edit, as_edits
from tinygpt_jax.errors import UserError, shown
from tinygpt_jax.forward_pass import split_layers
from tinygpt_jax.measure import check_memory
from tinygpt_jax.memory import decode_bytes
from tinygpt_jax.runs import Model, load
from tinygpt_jax.sampling.decode import CHUNK, Decoding, Request, advance, prefill, token_keys, window_start
from tinygpt_jax.sampling.filters import make_filters
from tinygpt_jax.sampling.reader import Finish, Reader
from tinygpt_jax.sampling.stops import check_stops
from tinygpt_jax.text import Tokenizer, check_ids

_split_layers = jax.jit(split_layers, static_argnums=1)
STREAM_CHUNK = 8
"""Tokens per dispatch where someone waits for every word."""
TOKEN_BYTES = 40
"""What a new token takes on the host: its place in two lists, and its log-probability."""


@dataclass(frozen=True, kw_only=True)
class Asked(SampleConfig):
    """The arguments of `sample`, `generate` and `stream`."""

    model: Model | str | os.PathLike[str] = field(kw_only=False)
    """A loaded model, or the run directory of one."""
    prompt: str | Sequence[str] = field(default="", kw_only=False)
    """One text, or several; for `stream`, one."""
    stop: str | Sequence[str] = ()
    """One string that ends a text, or several; they are not part of it."""
    edits: Mapping[str, Edit] | None = None
    """Interventions in every forward pass; each must be the same for all rows and all positions."""


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


@takes(Asked)
def generate(asked: Asked) -> str | list[str]:
    """The prompt and what the model writes after it: a str, or a list of them for several prompts or n > 1.

        text = generate(model, "ROMEO:", max_tokens=200, temperature=0.8, seed=1)

    Everything is as in `sample`.
    """
    texts = [one.prompt + one.text for one in _samples(asked)]
    return texts[0] if isinstance(asked.prompt, str) and len(texts) == 1 else texts


@takes(Asked)
def sample(asked: Asked) -> list[Sample]:
    """`n` samples for each prompt, prompt by prompt.

    An empty prompt starts from one token that is not shown: the tokenizer's end of text, else a newline, else its
    first token.
    Token t of sample j is drawn by key(seed) folded with j and t, whatever else is in the batch.

    The arguments are the fields of `Asked` and of `SampleConfig`, which say what each does.

    Raises:
        UserError: a setting or an edit cannot be used, a prompt has characters that the tokenizer lacks, or the model's
            outputs are not finite.
    """
    return _samples(asked)


@takes(Asked)
def stream(asked: Asked) -> Iterator[str]:
    """The text of `sample` with the same arguments, piece by piece as it is written, in whole characters.

    Raises:
        UserError: as `sample`, at the call; and where n is not 1 or the prompt no single text.
    """
    asked = check(asked)
    if asked.n != 1:
        raise UserError(f"n is {asked.n}: a stream is one text; set n to 1, or use sample")
    if not isinstance(asked.prompt, str):
        raise UserError(f"prompt is {shown(asked.prompt)}: a stream is of one text; give one, or use sample")
    model = _loaded(asked)
    chunks = _chunks(model, [asked.prompt], asked, STREAM_CHUNK)
    reader = Reader(model.tokenizer, asked)

    def pieces() -> Iterator[str]:
        for ids, logprobs in chunks:
            if piece := reader.push(ids[0], logprobs[0]):
                yield piece
            if reader.finish:
                return

    return pieces()


def _loaded(asked: Asked) -> Model:
    return asked.model if isinstance(asked.model, Model) else load(asked.model)


def _samples(asked: Asked) -> list[Sample]:
    asked = check(asked)
    model = _loaded(asked)
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else list(asked.prompt)
    chunks = _chunks(model, prompts, asked, CHUNK)
    readers = [Reader(model.tokenizer, asked) for _ in range(len(prompts) * asked.n)]
    for ids, logprobs in chunks:
        for reader, row_ids, row_logprobs in zip(readers, ids, logprobs, strict=True):
            reader.push(row_ids, row_logprobs)
        if all(reader.finish for reader in readers):
            break
    return [
        Sample(prompts[i // asked.n], reader.text, reader.tokens, reader.logprobs, reader.finish or "length")
        for i, reader in enumerate(readers)
    ]


# From prompts to chunks of tokens, on the host


def _chunks(
    model: Model, prompts: Sequence[str], config: Asked, pace: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """Ids and log-probabilities (B, up to `pace`) of new tokens, B = prompts × n, max_tokens of them in all.

    What is wrong with the arguments is raised at once, not when the first chunk is asked for.
    """
    params, cfg, tokenizer = model = model._replace(cfg=check(model.cfg))
    checked = _same_everywhere(config.edits, cfg)
    ids = [check_ids(tokenizer.encode(prompt), cfg.vocab_size, "the prompt") for prompt in prompts]
    check_stops(config, tokenizer)
    _check_memory(config, model, len(ids) * config.n)
    known = np.resize(tokenizer.known, cfg.vocab_size)
    known[tokenizer.vocab_size :] = False
    request = Request(make_filters(config), jnp.asarray(known), checked)
    # jax.random.key(seed), but with all of a seed's 63 bits instead of 32.
    key = jax.random.wrap_key_data(jnp.array(divmod(config.seed, 2**32), jnp.uint32), impl="threefry2x32")
    streams = key, np.tile(np.arange(config.n, dtype=np.int32), len(ids))

    def run() -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        state = _start(model, ids, config, request.edits)
        split = _split_layers(params, cfg)
        for done in range(0, config.max_tokens, pace):
            steps = min(pace, config.max_tokens - done)
            state, new, logprobs = advance(split, state, request, token_keys(*streams, done), steps, cfg)
            new, logprobs = np.asarray(new)[:, :steps], np.asarray(logprobs)[:, :steps]
            if not np.isfinite(logprobs).all():
                raise UserError("the model's outputs are not finite: its weights are damaged or its training diverged")
            yield new, logprobs

    return run() if prompts else iter(())


def _check_memory(config: SampleConfig, model: Model, rows: int) -> None:
    """Raises UserError where that many texts at once take more memory than there is."""
    _, cfg, tokenizer = model
    needed = decode_bytes(cfg, rows, config.cache) + rows * 8 * cfg.padded_vocab_size  # logits and noise
    if not config.stop and tokenizer.eos_id is None:  # or texts may be shorter than max_tokens
        needed += rows * config.max_tokens * TOKEN_BYTES
    check_memory(needed, f"writing {rows:,} texts of {config.max_tokens:,} tokens at once", "ask for fewer with n")


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
        newline = tokenizer.encode("\n").tolist()
    except UserError:
        newline = []
    return int(newline[0]) if len(newline) == 1 else int(np.argmax(tokenizer.known))


def _same_everywhere(edits: Mapping[str, Edit] | None, cfg: GPTConfig) -> dict[str, Edit]:
    """The edits; raises UserError for one that would mean different things with another batch, window or cache."""
    checked = as_edits(edits, cfg)
    for site, edit in checked.items():
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
    return checked
