"""Bars, one a component, with their errors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, Theme, new_figure, say, zero_line
from tinygpt_jax.figures.words import Words, safe, short

MOST = 50
"""Bars of one figure; of more, the largest are drawn."""


def bar_chart(
    names: Sequence[str],
    values: ArrayLike,
    errors: ArrayLike | None,
    words: Words,
    *,
    beside: tuple[str, str, ArrayLike, ArrayLike | None] | None = None,
    signed: bool = False,
    theme: str = "light",
) -> Figure:
    """A figure of N bars, the first on top, each with its number and a whisker of one standard error.

    Args:
        beside: what the bars are, what else is drawn at each of them as a point, its values (N,) and their errors
        signed: a number above 0 has its `+`, as a difference should

    Raises:
        UserError: there are no bars, or the arrays do not have the same length.
    """
    values, errors = _row("values", values, n := len(names)), None if errors is None else _row("errors", errors, n)
    if not n:
        raise UserError("there are no bars: give one name and value or more")
    chosen = _largest(values, MOST)
    if len(chosen) < len(values):
        words = words._replace(caption=f"The {len(chosen)} largest of {len(values)}. {words.caption}")
    places = np.arange(len(chosen))
    with new_figure(WIDTH, 1.5 + 0.2 * len(chosen) + 0.15 * bool(beside), theme) as (figure, colors):
        ax = figure.add_subplot()
        zero_line(ax, colors, "x")
        ax.barh(places, values[chosen], height=0.68, color=colors.lines[0], alpha=0.85, label=beside and beside[0])
        if errors is not None:
            ax.errorbar(
                values[chosen],
                places - 0.15 * bool(beside),
                xerr=errors[chosen],
                fmt="none",
                ecolor=colors.ink,
                elinewidth=0.9,
            )
        if beside:
            _points(ax, beside, names, chosen, colors)
        ax.set_yticks(places, [short(names[i], 28) for i in chosen], size=SMALL)
        ax.set_ylim(len(chosen) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(safe(words.label) + "; whiskers: ± 1 standard error" * (errors is not None))
        _write(ax, values[chosen], None if errors is None else errors[chosen], signed)
        say(figure, words.headline, words.caption)
    return figure


def _row(name: str, values: ArrayLike, places: int) -> NDArray[np.float64]:
    """Numbers (places,), gaps where they cannot be drawn; raises UserError where there are more or fewer."""
    row = with_gaps(values)
    if row.shape != (places,):
        raise UserError(f"{name} has shape {row.shape}: must be ({places},), one number for each place")
    return row


def _largest(values: NDArray, most: int) -> NDArray:
    """Numbers of the places of largest magnitude, in their own order."""
    size = np.where(np.isfinite(values), np.abs(values), -1)
    return np.sort(np.argsort(-size, kind="stable")[:most])


def _points(
    ax: Axes, beside: tuple[str, str, ArrayLike, ArrayLike | None], names: Sequence[str], chosen: NDArray, theme: Theme
) -> None:
    _, name, values, errors = beside
    values = _row(name, values, len(names))[chosen]
    bars = None if errors is None else _row(f"errors of {name}", errors, len(names))[chosen]
    ax.errorbar(
        values, np.arange(len(chosen)) + 0.17, xerr=bars, fmt="D", markersize=3.5, color=theme.lines[1], elinewidth=0.9,
        markeredgecolor=theme.paper, markeredgewidth=0.4, label=name,
    )  # fmt: skip
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)


def _write(ax: Axes, values: NDArray, errors: NDArray | None, signed: bool) -> None:
    """The numbers, in a column on the right."""
    places = decimals(values, errors)
    for i, value in enumerate(values):
        text = with_error(value, None if errors is None else errors[i], places, signed)
        ax.text(1.01, i, text, transform=ax.get_yaxis_transform(), va="center", ha="left", size=SMALL)
