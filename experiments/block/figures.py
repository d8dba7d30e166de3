"""Figures of the walk-through that `tinygpt_jax.figures` does not have, of arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.maps import Axis, heat_map
from tinygpt_jax.figures.style import WIDTH, new_figure, say, zero_line
from tinygpt_jax.figures.words import Words, short_token

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def softmax_bars(scores: ArrayLike, shares: ArrayLike, sharp: ArrayLike, times: float, theme: str) -> Figure:
    """The share of each score (N,), and its share once all scores are multiplied."""
    words = Words(
        "Softmax: one more in a score is e times the share",
        "share",
        f"Each score, and below it the same score once all are multiplied by {times:g}. The same number added to all "
        "changes nothing.",
    )
    names = [f"score {score:g}{also}" for score in np.asarray(scores) for also in ("", f" times {times:g}")]
    return bar_chart(names, np.ravel(np.column_stack([shares, sharp])), None, words, theme=theme)


def score_map(scores: ArrayLike, tokens: Sequence[str], theme: str) -> Figure:
    """Scores (T, T) of one head; NaN, a gap, where a key comes after the query."""
    names = [short_token(token) for token in tokens]
    words = Words(
        "Scores of one head: a query sees no later key",
        "score, q · k / sqrt(K)",
        "Head 0.0, first window. Hatched: masked, which counts as minus infinity.",
    )
    return heat_map(scores, None, Axis("query", names), Axis("key", names), words, theme=theme)


def write_bars(sizes: Mapping[str, float], theme: str) -> Figure:
    """Root mean square of what each head writes, and of the sum."""
    words = Words(
        "What each head writes into the stream, and all together",
        "root mean square of the write",
        "First block, all windows. A head writes its z through its own rows of Wo; the attention's write is the sum.",
    )
    return bar_chart(list(sizes), list(sizes.values()), None, words, signed=False, theme=theme)


def tangent(moves: ArrayLike, losses: ArrayLike, slope: float, weight: str, theme: str) -> Figure:
    """The change of the loss (N,) as one weight is moved, and the line with the slope that jax.grad gives."""
    with new_figure(WIDTH, 3.2, theme) as (figure, colors):
        ax = figure.add_subplot()
        zero_line(ax, colors, "x")
        zero_line(ax, colors, "y")
        ax.plot(moves, 1000 * np.asarray(losses), marker="o", markersize=3, label="loss, a forward pass each")
        ax.plot(moves, 1000 * slope * np.asarray(moves), linestyle="--", label="slope by jax.grad")
        ax.set_xlabel(f"added to {weight}")
        ax.set_ylabel("change of the loss (millinats per token)")
        ax.legend()
        say(
            figure,
            "The gradient is the tangent of the loss",
            "The steepest weight of W1; all others stay. NumPy, float64.",
        )
    return figure


def time_bars(times: Mapping[str, tuple[float, float]], repeats: int, theme: str) -> Figure:
    """Milliseconds and their standard error, by way of running the blocks."""
    values, errors = zip(*times.values(), strict=True)
    words = Words(
        "The same blocks, run in three ways",
        "milliseconds of processor time a call",
        f"Mean of {repeats} calls, after a first one that is not counted: it compiles.",
    )
    return bar_chart(list(times), values, errors, words, signed=False, theme=theme)


def influence_map(change: ArrayLike, tokens: Sequence[str], size: float, theme: str) -> Figure:
    """Change (T, T) of each token's output, a column, as numbers of that size are added to each token's input, a row;
    the diagonal a gap."""
    names = [short_token(token) for token in tokens]
    words = Words(
        "A change reaches later tokens, never earlier ones",
        "change of the output (root mean square)",
        f"Each row: one token of the first window changed by random numbers of root mean square {size:.2f}. "
        "Hatched: the changed token itself, which keeps its change.",
    )
    off_diagonal = np.where(np.eye(len(tokens), dtype=bool), np.nan, np.asarray(change, np.float64))
    rows, columns = Axis("token that is changed", names), Axis("token whose output is looked at", names)
    return heat_map(off_diagonal, None, rows, columns, words, kind="sequential", theme=theme)
