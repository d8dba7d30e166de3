"""From tokens to the text that is shown, in whole characters and up to its end."""

from collections import deque
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.config import SampleConfig
from tinygpt_jax.sampling.stops import StopSearch
from tinygpt_jax.text import StreamDecoder, Tokenizer

Finish = Literal["length", "stop", "eos"]
"""What ended a text: max_tokens, a stop string, or the tokenizer's end-of-text token."""


class Reader:
    """Makes text of one row's tokens as they come, and finds its end."""

    def __init__(self, tokenizer: Tokenizer, config: SampleConfig) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None
        self._eos, self._max_tokens = tokenizer.eos_id, config.max_tokens
        # A chunk at once, unless it matters which token completes a stop string.
        self._one_by_one = bool(config.stop)
        self._decoder = StreamDecoder(tokenizer)
        self._search = StopSearch(config.stop)
        self._shown: list[str] = []  # pieces: a text that grew by each would be copied each time
        self._held: deque[str] = deque()  # may be the beginning of a stop string
        self._length = 0

    @property
    def text(self) -> str:
        """What is certain so far."""
        return "".join(self._shown)

    def push(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> str:
        """Takes the next tokens, none after the end; returns the text that is now certain."""
        before = len(self._shown)
        stride = 1 if self._one_by_one else len(ids)
        for i in range(0, len(ids), stride):
            if self.finish is None:
                self._take(ids[i : i + stride].tolist(), logprobs[i : i + stride].tolist())
        return "".join(self._shown[before:])

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
            if self.finish is None:
                self._release(self._search.length)
                self.finish = "eos" if shown < count else "length"

    def _show(self, text: str) -> None:
        """Adds text up to a stop string, and holds back what may become one."""
        self._held.append(text)
        start = self._search.push(text)
        if start is not None:
            self.finish = "stop"
        self._release(self._search.length - self._search.pending if start is None else start)

    def _release(self, end: int) -> None:
        """Shows what is held back up to the text's first `end` characters."""
        while self._held and self._length < end:
            piece = self._held.popleft()
            self._shown.append(piece[: end - self._length])
            if rest := piece[end - self._length :]:
                self._held.appendleft(rest)
            self._length += len(self._shown[-1])
