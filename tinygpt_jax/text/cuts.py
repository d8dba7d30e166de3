"""Where a text may be cut for byte-level BPE, so that work and memory stay in proportion to it."""

import re
from collections.abc import Iterable, Iterator

STRETCH_CHARS = 1 << 16
"""A stretch of so many characters without a safe cut is cut all the same."""
WORD_CHARS = 1 << 10
"""The longest word that merges are learned from: the library takes time with the square of a word's length."""
# GPT-2's pre-tokenizer never joins white space to what stands before it: text cut there gives the same ids.
_SAFE_CUT = re.compile(r"\S(?=[ \n])")
# The first, which is quick, finds all that the second may cut: letters and digits, white space, and the rest.
_MAYBE_LONG = re.compile(rf"\S{{{WORD_CHARS}}}|\s{{{WORD_CHARS}}}")
_LONG = re.compile(rf"\w{{{WORD_CHARS}}}|\s{{{WORD_CHARS}}}|(?:[^\w\s]|_){{{WORD_CHARS}}}")


def chunks(text: str, size: int) -> Iterator[str]:
    """The text in pieces of `size` characters or somewhat more, cut before white space.

    Where `STRETCH_CHARS` from a multiple of that number on have no such place, they end in a cut, whatever `size` is.
    """
    start, size = 0, max(size, 1)
    for block in range(0, len(text), STRETCH_CHARS):
        end = min(block + STRETCH_CHARS, len(text))
        if not _SAFE_CUT.search(text, block, end + 1):
            yield text[start:end]
            start = end
        while cut := _SAFE_CUT.search(text, max(start + size, block), end + 1):
            yield text[start : cut.end()]
            start = cut.end()
    if start < len(text):
        yield text[start:]


def short_words(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces, cut once more within every word of `WORD_CHARS` or longer."""
    for piece in pieces:
        start = 0
        for word in _LONG.finditer(piece) if _MAYBE_LONG.search(piece) else ():
            yield piece[start : word.end()]
            start = word.end()
        yield piece[start:]
