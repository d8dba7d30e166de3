"""Bars, one a component, with their errors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.words import Words, safe, short

MOST = 50
"""Bars of one figure; of more, the largest are drawn."""


def bar_chart(
    names: Sequence[str],
    values: ArrayLike,
    errors: ArrayLike | None,
    words: Words,
    *,
    signed: bool = False,
    theme: str = "light",
) -> Figure:
    """A figure of N bars, the first on top, each with its number and a whisker of one standard error.

    Args:
        signed: a number above 0 has its `+`, as a difference should

    Raises:
        UserError: there are no bars, or the arrays do not have the same length.
    """
    values, errors = with_gaps(values), None if errors is None else with_gaps(errors)
    shapes = {one.shape for one in (values, errors) if one is not None}
    if shapes != {(len(names),)} or not len(names):
        said = ", ".join(map(str, sorted(shapes)))
        raise UserError(f"values and errors have shapes {said} for {len(names)} names: give one each, at least one")
    size = np.where(np.isfinite(values), np.abs(values), -1)
    chosen = np.sort(np.argsort(-size, kind="stable")[:MOST])
    if len(chosen) < len(values):
        words = words._replace(caption=f"The {len(chosen)} largest of {len(values)}. {words.caption}")
    places = np.arange(len(chosen))
    with new_figure(WIDTH, 1.5 + 0.2 * len(chosen), theme) as (figure, colors):
        ax = figure.add_subplot()
        zero_line(ax, colors, "x")
        ax.barh(places, values[chosen], height=0.68, color=colors.lines[0], alpha=0.85)
        if errors is not None:
            ax.errorbar(values[chosen], places, xerr=errors[chosen], fmt="none", ecolor=colors.ink, elinewidth=0.9)
        ax.set_yticks(places, [short(names[i], 28) for i in chosen], size=SMALL)
        ax.set_ylim(len(chosen) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(safe(words.label) + "; whiskers: ± 1 standard error" * (errors is not None))
        _write(ax, values[chosen], None if errors is None else errors[chosen], signed)
        say(figure, words.headline, words.caption)
    return figure


def _write(ax: Axes, values: NDArray, errors: NDArray | None, signed: bool) -> None:
    """The numbers, in a column on the right."""
    places = decimals(values, errors)
    for i, value in enumerate(values):
        text = with_error(value, None if errors is None else errors[i], places, signed)
        ax.text(1.01, i, text, transform=ax.get_yaxis_transform(), va="center", ha="left", size=SMALL)
