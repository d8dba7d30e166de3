"""Where a model's embedding puts its tokens."""

import unicodedata

import numpy as np

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.figures.lines import BESIDE
from tinygpt_jax.figures.points import name_points
from tinygpt_jax.figures.style import WIDTH, Figure, lay_out, new_figure, say
from tinygpt_jax.figures.words import caption, short_token
from tinygpt_jax.lab.read.tokens import EmbeddingMap

KINDS = {"letter": "o", "digit": "s", "white space": "D", "punctuation": "^", "other": "v"}
"""What a token is made of, and its marker."""


def figure(result: EmbeddingMap, theme: str = "light") -> Figure:
    """A marker a token, and the names of as many as there is room for."""
    x, y, tokens = with_gaps(result.x), with_gaps(result.y), result.tokens
    kinds = np.array([_kind(token) for token in tokens])
    with new_figure(WIDTH, 5.2, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(KINDS.items()):
            chosen = kinds == kind
            if chosen.any():
                ax.scatter(x[chosen], y[chosen], s=9, marker=marker, color=colors.lines[i], alpha=0.75, label=kind)
        first, second = (f"({100 * part:.0f} % of the variance)" for part in np.asarray(result.share))
        ax.set_xlabel(f"first direction of largest variance {first}")
        ax.set_ylabel(f"second direction {second}")
        ax.margins(0.06)
        ax.legend(title="made of", borderpad=0, **BESIDE)
        held = f"the two largest directions hold {100 * np.sum(result.share):.0f} % of the variance"
        shown = "Each point is a token's embedding. Named: the farthest out, as many as there is room for."
        say(figure, f"Embedding of {len(tokens):,} tokens: {held}", caption(result.definition, shown))
        lay_out(figure)  # names go where there is room
        far = np.hypot(x - np.nanmean(x), y - np.nanmean(y)) if np.isfinite(x + y).any() else x
        name_points(ax, x, y, list(map(short_token, tokens)), far)
    return figure


def _kind(token: str) -> str:
    """Of its first character that is not white space."""
    text = token.strip()
    if not text:
        return "white space" if token else "other"
    kinds = {"L": "letter", "N": "digit", "P": "punctuation", "S": "punctuation"}
    return kinds.get(unicodedata.category(text[0])[0], "other")
