"""The settings of text generation and its filters: on logits before a token is drawn, on text before it is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.config import _number, _require, _whole
from tinygpt_jax.text import StreamDecoder, Tokenizer

Finish = Literal["length", "stop", "eos"]
"""What ended a text: max_tokens, a stop string, or the tokenizer's end-of-text token."""


@dataclass(frozen=True)
class SampleConfig:
    """How text is generated; `filter_logits` says in which order the filters act."""

    max_tokens: int = 200
    """The most new tokens written for one sample."""
    temperature: float = 0.8
    """Logits are divided by it: below 1 is safer, above 1 wilder; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Only the k likeliest tokens stay, and all that tie with the last of them."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability stay, and all that tie with the last of them."""
    min_p: float | None = None
    """Only tokens at least this share as likely as the likeliest stay."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that were already written or stood in the prompt become less likely (Keskar et al. 2019)."""
    stop: tuple[str, ...] = ()
    """Strings that end a text; they are not part of it."""
    seed: int = 0
    """Fixes every random choice."""
    n: int = 1
    """Samples per prompt; the first ones do not depend on how many follow."""
    cache: bool = True
    """Keep keys and values of earlier tokens; without, every step runs the whole window: the same text, slowly."""

    def __post_init__(self) -> None:
        # One string is a sequence of strings as well, but nobody means its characters.
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        given = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        _whole(self, 1, "max_tokens", "n", *({"top_k"} & set(given)))
        _whole(self, 0, "seed")
        _require(self.seed < 2**63, "seed", self.seed, "must be below 2**63")
        _number(self, 0, math.inf, "temperature", "repetition_penalty")
        _number(self, 0, 1, *({"top_p"} & set(given)))
        _number(self, 0, 1, *({"min_p"} & set(given)), open_high=True)
        _require(self.top_p != 0, "top_p", self.top_p, "must be above 0; for the likeliest token set temperature to 0")
        penalty = self.repetition_penalty
        _require(penalty > 0, "repetition_penalty", penalty, "must be above 0; 1 turns it off")
        for text in self.stop:
            _require(isinstance(text, str) and text != "", "stop", text, "must be text of one character or more")


class Filters(NamedTuple):
    """The numbers of the filters, as data: other values compile nothing anew. A filter that is None is not traced."""

    temperature: jax.Array
    """() float32, 0 or more."""
    repetition_penalty: jax.Array | None = None
    """() float32, above 0."""
    top_k: jax.Array | None = None
    """() int32, 1 or more."""
    top_p: jax.Array | None = None
    """() float32, above 0 and at most 1."""
    min_p: jax.Array | None = None
    """() float32, 0 or more and below 1."""


def make_filters(config: SampleConfig) -> Filters:
    """The filters that these settings ask for; those that would change nothing are None."""

    def number(value: float | None, off: float | None = None) -> jax.Array | None:
        return None if value in (None, off) else jnp.asarray(value, jnp.float32)

    return Filters(
        temperature=jnp.asarray(config.temperature, jnp.float32),
        repetition_penalty=number(config.repetition_penalty, off=1.0),
        top_k=None if config.top_k is None else jnp.asarray(min(config.top_k, 2**31 - 1), jnp.int32),
        top_p=number(config.top_p, off=1.0),
        min_p=number(config.min_p, off=0.0),
    )


def filter_logits(logits: jax.Array, filters: Filters, seen: jax.Array | None = None) -> jax.Array:
    """The logits to draw from, (B, V) -> (B, V) float32: the largest is 0, and -inf is what the filters leave out.

    logits  float32; -inf for a token that must not come, but not for all
    seen    (B, V) bool, the tokens that the repetition penalty is for

    Order, as in Hugging Face: repetition penalty, temperature, top-k, top-p, min-p. Each of the last three keeps what
    is not below a bound, so equal logits share one fate and the likeliest token always stays.
    """
    chex.assert_rank(logits, 2)
    if filters.repetition_penalty is not None:
        assert seen is not None
        chex.assert_equal_shape([logits, seen])
        logits = jnp.where(seen, penalise(logits, filters.repetition_penalty), logits)
    # The largest becomes 0 before the division, which then cannot overflow upwards; at temperature 0 it alone stays 0.
    z = logits - logits.max(-1, keepdims=True)
    z = z / jnp.maximum(filters.temperature, jnp.finfo(jnp.float32).tiny)
    bound = jnp.full((len(z), 1), -jnp.inf) if filters.min_p is None else jnp.log(filters.min_p)
    if filters.top_k is not None or filters.top_p is not None:
        bound = jnp.maximum(bound, rank_bound(z, filters.top_k, filters.top_p))
    return jnp.where(z >= bound, z, -jnp.inf)


def penalise(logits: jax.Array, penalty: jax.Array) -> jax.Array:
    """Logits made smaller by a penalty above 1: divided where positive, else multiplied (Keskar et al. 2019, CTRL)."""
    return jnp.where(logits > 0, logits / penalty, logits * penalty)


def rank_bound(z: jax.Array, top_k: jax.Array | None, top_p: jax.Array | None) -> jax.Array:
    """The least logit that top-k, and top-p among what that leaves, keep: (B, V) -> (B, 1).

    Top-p keeps the fewest tokens that together have probability `top_p` (Holtzman et al. 2020). What lies below is
    summed from the small end, where float32 still tells small from none.
    """
    V = z.shape[-1]
    ascending = jnp.sort(z, axis=-1)
    bound = ascending[:, :1]
    if top_k is not None:
        bound = ascending[:, V - jnp.minimum(top_k, V)][:, None]
        ascending = jnp.where(ascending >= bound, ascending, -jnp.inf)
    if top_p is not None:
        below = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
        left_out = jnp.sum(below <= 1 - top_p, axis=-1, keepdims=True, dtype=jnp.int32)
        bound = jnp.take_along_axis(ascending, jnp.minimum(left_out, V - 1), axis=-1)
    return bound


class Reader:
    """Makes text of one row's tokens as they come, and finds its end."""

    def __init__(self, tokenizer: Tokenizer, config: SampleConfig) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish: Finish | None = None
        self._eos, self._stop, self._max_tokens = tokenizer.eos_id, config.stop, config.max_tokens
        self._decoder = StreamDecoder(tokenizer)
        self._held = ""  # may be the beginning of a stop string

    def push(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> str:
        """Takes the next tokens, none after the end; returns the text that is now certain."""
        before = len(self.text)
        # A chunk at once, unless it matters which token completes a stop string.
        stride = 1 if self._stop else len(ids)
        for i in range(0, len(ids), stride):
            if self.finish is None:
                self._take(ids[i : i + stride].tolist(), logprobs[i : i + stride].tolist())
        return self.text[before:]

    def _take(self, ids: list[int], logprobs: list[float]) -> None:
        shown = count = min(len(ids), self._max_tokens - len(self.tokens))
        if self._eos in ids[:count]:
            shown = ids.index(self._eos)
            count = shown + 1
        self.tokens += ids[:count]
        self.logprobs += logprobs[:count]
        self._show(self._decoder.push(ids[:shown]))
        if self.finish is None and (shown < count or len(self.tokens) == self._max_tokens):
            self._show(self._decoder.flush())
            self.text += self._held
            self.finish = self.finish or ("eos" if shown < count else "length")

    def _show(self, text: str) -> None:
        """Adds text up to a stop string, and holds back what may become one."""
        text, self._held = self._held + text, ""
        starts = [start for start in (text.find(stop) for stop in self._stop) if start >= 0]
        if starts:
            self.finish, end = "stop", min(starts)
        else:
            end = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
            self._held = text[end:]
        self.text += text[:end]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins, all of `stop` aside."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)
