"""Where a model's embedding puts its tokens."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.figures.lines import BESIDE
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, Theme, lay_out, new_figure, say
from tinygpt_jax.figures.words import caption, short_token
from tinygpt_jax.lab.read.tokens import EmbeddingMap

MOST_TRIED = 2000
"""Points, the farthest out, that may have a name."""
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
        _name_points(ax, x, y, tokens, colors)
    return figure


def _kind(token: str) -> str:
    """Of its first character that is not white space."""
    text = token.strip()
    if not text:
        return "white space" if token else "other"
    kinds = {"L": "letter", "N": "digit", "P": "punctuation", "S": "punctuation"}
    return kinds.get(unicodedata.category(text[0])[0], "other")


def _name_points(ax: Axes, x: NDArray, y: NDArray, tokens: Sequence[str], theme: Theme) -> None:
    """Names beside points, right or left, those farthest out first; none over another name or another point."""
    figure: Any = ax.figure
    points = ax.transData.transform(np.column_stack([x, y])) * 72 / figure.dpi  # in points
    there = np.flatnonzero(np.isfinite(points).all(1))
    if not len(there):
        return
    points, far = points[there], np.linalg.norm(points[there] - points[there].mean(0), axis=1)
    taken = np.column_stack([points - 1.5, points + 1.5])  # left, bottom, right, top
    for i in np.argsort(-far, kind="stable")[:MOST_TRIED]:
        name = short_token(tokens[there[i]])
        width = SMALL * 0.62 * cell_len(name)
        for side, left in (("left", 3.0), ("right", -3.0 - width)):
            low = points[i] + (left, -SMALL / 2)
            high = low + (width, SMALL)
            if ((taken[:, :2] < high) & (low < taken[:, 2:])).all(1).any():
                continue
            taken = np.append(taken, [[*low, *high]], axis=0)
            ax.annotate(
                name, (x[there[i]], y[there[i]]), (3 if side == "left" else -3, 0), textcoords="offset points",
                size=SMALL, ha=side, va="center", color=theme.ink, in_layout=False, annotation_clip=False,
            )  # fmt: skip
            break
