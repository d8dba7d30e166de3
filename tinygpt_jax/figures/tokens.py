"""Tokens: what a model expects after each, and where its embedding puts them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from tinygpt_jax.digits import number, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import draw_map
from tinygpt_jax.figures.style import SMALL, WIDTH, Theme, ink_on, lay_out, new_figure, say
from tinygpt_jax.figures.words import caption as caption_of
from tinygpt_jax.figures.words import clipped, visible
from tinygpt_jax.markup import marked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS, COLUMNS = 24, 6
"""The most positions and candidates that one figure shows: the last positions, the likeliest candidates."""
MOST_TRIED = 2000
"""Points, the farthest out, that may have a name."""
KINDS = {"letter": "o", "digit": "s", "white space": "D", "punctuation": "^", "other": "v"}
"""What a token is made of, and its marker."""


def token_probabilities(
    probability: ArrayLike,
    candidates: Sequence[Sequence[str]],
    tokens: Sequence[str],
    given: ArrayLike | None = None,
    *,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """What a model expects after each of T tokens: a row a token, its N likeliest candidates and how likely they are.

    Args:
        probability: (T, N), the likeliest first
        candidates: T times N tokens as text
        tokens: T, as text
        given: (T,) the probability of the token that did follow; NaN where none is known

    Raises:
        UserError: the arrays do not fit each other.
    """
    probability = with_gaps(probability)
    T = len(tokens)
    if probability.ndim != 2 or not probability.size or len(probability) != T or len(candidates) != T:
        raise UserError(f"probability has shape {probability.shape} for {T} tokens: must be (tokens, candidates)")
    if any(len(row) != probability.shape[1] for row in candidates):
        raise UserError(f"candidates are not {T} x {probability.shape[1]}: give one for each probability")
    given = np.full(T, np.nan) if given is None else with_gaps(given)
    if given.shape != (T,):
        raise UserError(f"given has shape {given.shape} for {T} tokens: give one probability for each")
    shown = probability[-ROWS:, :COLUMNS]
    rows, columns = shown.shape
    start = T - rows
    with new_figure(WIDTH, 1.7 + 0.24 * rows, theme) as (figure, colors):
        ax = figure.add_subplot()
        image = draw_map(ax, shown, colors, limits=(0, 1))
        backs = np.asarray(image.to_rgba(np.ma.masked_invalid(shown)))
        for i, j in np.ndindex(rows, columns):
            text = f"{visible(candidates[start + i][j])}  {_share(float(shown[i, j]))}"
            right = start + i + 1 < T and candidates[start + i][j] == tokens[start + i + 1]
            ax.text(
                j, i, text, ha="center", va="center", size=SMALL, color=ink_on(backs[i, j]),
                weight="bold" if right else "normal", in_layout=False,
            )  # fmt: skip
        names = [visible(tokens[start + i]) for i in range(rows)]
        ax.set_yticks(range(rows), names, size=SMALL)
        ax.set_xticks(range(columns), [f"{j + 1}." for j in range(columns)])
        ax.tick_params(length=0)
        ax.set_xlabel("likeliest next tokens, with their probability (share of 1); bold: the one that followed")
        ax.set_ylabel("after the token")
        if np.isfinite(given[start:]).any():
            _given(ax, given[start:])
        bar = figure.colorbar(image, ax=ax, label="probability (share of 1)", fraction=0.05, pad=0.02, shrink=0.6)
        bar.outline.set_visible(False)
        say(figure, _expectation(tokens, candidates, probability), _which(rows, T) + caption)
    return figure


def embedding_map(
    x: ArrayLike,
    y: ArrayLike,
    tokens: Sequence[str],
    *,
    share: ArrayLike | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """V token embeddings in the plane, a marker each, and the names of as many as there is room for.

    Args:
        x: (V,) along the first direction
        y: (V,) along the second
        tokens: V, as text
        share: (2,) of the variance that each direction has

    Raises:
        UserError: the arrays do not fit the tokens, or there are none.
    """
    x, y = with_gaps(x), with_gaps(y)
    if x.shape != (len(tokens),) or y.shape != x.shape or not len(tokens):
        raise UserError(f"x and y have shapes {x.shape} and {y.shape} for {len(tokens)} tokens: give one for each")
    kinds = np.array([_kind(token) for token in tokens])
    of = ["", ""] if share is None else [f" ({100 * part:.0f} % of the variance)" for part in np.asarray(share)]
    with new_figure(WIDTH, 5.2, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(KINDS.items()):
            chosen = kinds == kind
            if chosen.any():
                ax.scatter(x[chosen], y[chosen], s=9, marker=marker, color=colors.lines[i], alpha=0.75, label=kind)
        ax.set_xlabel(f"first direction of largest variance{of[0]}")
        ax.set_ylabel(f"second{of[1]}")
        ax.margins(0.06)
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), title="made of", title_fontsize=SMALL, borderpad=0)
        held = "" if share is None else f": two directions hold {100 * np.sum(share):.0f} % of their variance"
        note = "Named: tokens far from the centre first, as many as there is room for. "
        say(figure, f"The embedding of {len(tokens):,} tokens{held}", note + caption)
        lay_out(figure)  # names go where there is room
        _name_points(ax, x, y, tokens, colors)
    return figure


def next_tokens_figure(result: Any, *, theme: str = "light") -> Figure:
    """The figure of `NextTokens`."""
    return token_probabilities(
        result.probability,
        result.candidates,
        result.tokens,
        result.given,
        caption=caption_of(result.definition),
        theme=theme,
    )


def embedding_figure(result: Any, *, theme: str = "light") -> Figure:
    """The figure of an `EmbeddingMap`."""
    caption = caption_of(result.definition)
    return embedding_map(result.x, result.y, result.tokens, share=result.share, caption=caption, theme=theme)


def _given(ax: Axes, given: NDArray) -> None:
    """The probability of what did follow, in a column on the right."""
    for i, value in enumerate(given):
        ax.text(1.01, i, _share(value), transform=ax.get_yaxis_transform(), va="center", ha="left", size=SMALL)
    ax.text(1.01, -0.75, "what followed", transform=ax.get_yaxis_transform(), va="bottom", ha="left", size=SMALL)


def _expectation(tokens: Sequence[str], candidates: Sequence[Sequence[str]], probability: NDArray) -> str:
    text = clipped("".join(map(marked, tokens[-12:])), 40)
    likeliest = f"“{clipped(marked(candidates[-1][0]))}”, probability {_share(float(probability[-1, 0]))}"
    return f"After “{text}” the likeliest next token is {likeliest}"


def _share(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else number(value, 2)


def _which(rows: int, T: int) -> str:
    return f"The last {rows} of {T} tokens. " if rows < T else ""


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
        name = visible(tokens[there[i]])
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
