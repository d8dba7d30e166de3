"""Which font draws a character: the figures' own, else the first of the system's that has it."""

import functools
import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from tinygpt_jax.figures import require_matplotlib

OWN = "DejaVu Sans"
"""It comes with matplotlib."""


def families(text: str) -> list[str]:
    """The fonts that draw a text, the figures' own first. Their order is always the same, and so is each character's
    font, whatever stands beside it."""
    chosen = {OWN, *map(font_of, set(text))}
    return [family for family in _families() if family in chosen]


@functools.cache
def font_of(character: str) -> str | None:
    """The family that draws a character; None where no family has it, for control characters, and for scripts whose
    letters matplotlib would put in the wrong order or leave unjoined."""
    if unicodedata.category(character)[0] == "C":
        return None
    family = next((family for family in _families() if ord(character) in _characters(family)), None)
    turns = unicodedata.bidirectional(character) in ("R", "AL", "AN")
    apart = unicodedata.east_asian_width(character) in ("W", "F")  # each a square of its own
    return family if _shapes() or apart or (family == OWN and not turns) else None


@contextmanager
def quietly() -> Iterator[None]:
    """Without matplotlib's complaint that a font has no bold letters, of which it then draws the others."""
    logger = logging.getLogger("matplotlib.font_manager")

    def other(record: logging.LogRecord) -> bool:
        return "Failed to find font weight" not in record.getMessage()

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


@functools.cache
def _families() -> list[str]:
    """The figures' own, those without serifs, and the others; not those that draw a box for every character."""
    require_matplotlib()
    from matplotlib.font_manager import fontManager

    names = {font.name for font in fontManager.ttflist if "lastresort" not in font.name.lower().replace(" ", "")}
    return sorted(names, key=lambda name: (name != OWN, "Sans" not in name, name))


@functools.cache
def _characters(family: str) -> frozenset[int]:
    """Those that a family has in both weights that figures are written in."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    with quietly():
        files = [findfont(FontProperties(family=[family], weight=weight)) for weight in ("normal", "bold")]
    normal, bold = (frozenset(get_font(file).get_charmap()) for file in files)
    return normal & bold


def _shapes() -> bool:
    """Whether this matplotlib joins letters and orders text from right to left; with 3.11 it began to."""
    import matplotlib

    return matplotlib.__version_info__ >= (3, 11)
