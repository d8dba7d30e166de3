"""From tokens to the text that is shown, in whole characters and up to its end."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.config import SampleConfig
from tinygpt_jax.text import StreamDecoder, Tokenizer

Finish = Literal["length", "stop", "eos"]
"""What ended a text: max_tokens, a stop string, or the tokenizer's end-of-text token."""


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
