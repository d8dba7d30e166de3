"""Words that mean something to matplotlib or HTML, or that are far too long, in every text of every kind of result: a
figure of moderate size and a piece of HTML."""

import dataclasses

import numpy as np
import pytest

from tests.figures.made import results
from tests.pages import Page
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.style import encoded

NASTY = (
    "$", "$$", "$x", "_{a}^{b", "$\\frac{1}{0}$", "$\\undefined{$", "\\", "%s{}", "a\nb\n\nc", "\r", "\x1b[2J\x07",
    "</script><img src=x onerror=alert(1)>", "&lt;", "x" * 100_000, "w\u0301\u0302" * 5_000, " " * 3_000, "\u202e$",
    "\ud800", "\n" * 2_000,
)  # fmt: skip
MOST_PIXELS = 600


def nasty(value, words):
    """The value with a nasty word for each of its texts."""
    if isinstance(value, str):
        return next(words)
    if isinstance(value, tuple):
        return tuple(nasty(one, words) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, np.ndarray):
        changed = {f.name: nasty(getattr(value, f.name), words) for f in dataclasses.fields(value)}
        fixed = {name: getattr(value, name) for name in ("over", "kinds", "direction") if hasattr(value, name)}
        return dataclasses.replace(value, **{**changed, **fixed})
    return value


def cycled(start):
    i = start
    while True:
        yield NASTY[i % len(NASTY)]
        i += 1


QUICK = ("layers", "lens", "sets")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in results(1)]


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # where little room is left beside the words
@pytest.mark.parametrize("kind", KINDS)
def test_any_word_is_drawn(kind):
    for start in (0, 7):
        result = nasty(results(3)[kind], cycled(start))
        png = encoded(draw(result), "png", 30)
        assert max(int.from_bytes(png[at : at + 4]) for at in (16, 20)) < MOST_PIXELS
        page = Page(result.to_html())
        assert not page.named("script")
        assert not page.named("img")
