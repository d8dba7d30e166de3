"""Strings that end a text: whether one can come at all, and where the first one is."""

from collections.abc import Sequence

from tinygpt_jax.config import SampleConfig
from tinygpt_jax.errors import UserError, shown
from tinygpt_jax.text import Tokenizer


def check_stops(config: SampleConfig, tokenizer: Tokenizer) -> None:
    """Raises UserError for a stop string that no text of `max_tokens` tokens can hold."""
    for stop in config.stop:
        if lacking := tokenizer.lacking(stop):
            raise UserError(f"stop is {shown(stop)}: it can never come, since the tokenizer has no {shown(lacking)}")
        if len(stop) > (most := config.max_tokens * tokenizer.longest):
            raise UserError(
                f"stop has {len(stop):,} characters: it can never come, since max_tokens {config.max_tokens} give "
                f"{most:,} at most; raise max_tokens"
            )


class StopSearch:
    """Where a text that comes in pieces first holds one of some strings: time in proportion to the text, however long
    the strings are (Knuth, Morris and Pratt 1977)."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self.length = 0
        """characters of the text so far"""

    @property
    def pending(self) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def push(self, text: str) -> int | None:
        """Takes the next piece; the least start of a stop string that ends within it, if any."""
        starts = []
        for k, (stop, borders) in enumerate(self._stops):
            matched = self._matched[k]
            for i, char in enumerate(text):
                while matched and stop[matched] != char:
                    matched = borders[matched - 1]
                matched += stop[matched] == char
                if matched == len(stop):
                    starts.append(self.length + i + 1 - len(stop))
                    break
            self._matched[k] = matched
        self.length += len(text)
        return min(starts, default=None)


def _borders(stop: str) -> list[int]:
    """Of each beginning of a string, the length of the longest shorter beginning that it also ends with."""
    borders, matched = [0], 0
    for char in stop[1:]:
        while matched and stop[matched] != char:
            matched = borders[matched - 1]
        matched += stop[matched] == char
        borders.append(matched)
    return borders
