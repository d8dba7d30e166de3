"""Heat maps: a number a cell, its error beside it, gaps hatched where there is none."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from tinygpt_jax.digits import decimals, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import (
    NORMAL,
    SMALL,
    WIDTH,
    Axes,
    AxesImage,
    Figure,
    Theme,
    colormap,
    ink_on,
    lay_out,
    new_figure,
    say,
)
from tinygpt_jax.figures.words import Words, safe, short

WIDEST = 12
"""The most columns that have room for numbers."""
NUMBERED = 100
"""The most cells that have their numbers written in them."""
MARKED = 0.08
"""Inches, the least side of a cell that has room for a dot."""
SMALLEST = 4.5  # points, of a number in a cell
BAR = 1.7
"""Inches, the least height of a colour bar: its label is as long."""
MARK_NOTE = "Dot: more than two standard errors from 0."


Kind = Literal["diverging", "sequential"]


class Axis(NamedTuple):
    """One side of a map: what it counts, and the name of each place."""

    title: str
    names: Sequence[str]
    """ready to be drawn"""


def named(title: str, names: Sequence[str]) -> Axis:
    return Axis(title, [short(name) for name in names])


def numbered(title: str, places: int) -> Axis:
    """An axis of numbers from 0."""
    return Axis(title, [str(i) for i in range(places)])


def heat_map(
    values: ArrayLike,
    errors: ArrayLike | None,
    rows: Axis,
    columns: Axis,
    words: Words,
    *,
    kind: Kind = "diverging",
    limits: tuple[float, float] | None = None,
    shown: ArrayLike | None = None,
    signed: bool = False,
    most: int = NUMBERED,
    theme: str = "light",
) -> Figure:
    """A figure of one map (R, N). Small maps have `value ± error` in each cell; on those of more than `most` cells a
    dot marks what is more than two standard errors from 0. What is not finite is a hatched gap.

    Args:
        limits: of the colours; default: as far as the values go, on both sides of 0 where they diverge
        shown: numbers to write, whose errors are given, in place of the values that give the colours
        signed: a number above 0 has its `+`, as a difference should

    Raises:
        UserError: values are no map, or errors or names do not fit them.
    """
    values = _checked(values, rows, columns, errors, shown)
    errors = None if errors is None else np.asarray(errors, np.float64)
    shown = values if shown is None else np.asarray(shown, np.float64)
    written = values.size <= most and values.shape[1] <= WIDEST
    cell = _cell(values.shape, written)
    size = _figure_size(values.shape, cell, rows, columns)
    with new_figure(*size, theme) as (figure, colors):
        ax = figure.add_subplot()
        image = draw_map(ax, values, colors, kind, limits)
        color_bar(figure, image, ax, safe(words.label), fraction=0.05, aspect=14, pad=0.02)
        name_places(ax, rows, columns, cell)
        marked = errors is not None and not written and min(cell) >= MARKED
        say(figure, words.headline, f"{words.caption} {MARK_NOTE}" if marked else words.caption)
        lay_out(figure)  # numbers are as large as cells allow
        backs = np.asarray(image.to_rgba(np.ma.masked_invalid(values)))
        if written:
            _write_numbers(ax, backs, shown, errors, signed)
        elif errors is not None and marked:
            _mark(ax, backs, shown, errors)
    return figure


def draw_map(
    ax: Axes, values: NDArray, theme: Theme, kind: Kind = "sequential", limits: tuple[float, float] | None = None
) -> AxesImage:
    """The colours of a map (R, N) alone, the first row on top."""
    ax.patch.set(hatch="//////", edgecolor=theme.muted, linewidth=0)  # seen where there is no number
    ax.spines[:].set_visible(False)
    far = float(np.nanmax(np.abs(values), initial=0, where=np.isfinite(values))) or 1.0
    low, high = limits or ((-far, far) if kind == "diverging" else (0.0, far))
    masked = np.ma.masked_invalid(values)
    return ax.imshow(masked, cmap=colormap(kind, theme), vmin=low, vmax=high, aspect="auto", interpolation="nearest")


def color_bar(figure: Figure, image: AxesImage, ax: Any, label: str, **where: Any) -> Axes:
    """The colours of a map beside it, or of several on one scale; gives the bar's own axes."""
    bar = figure.colorbar(image, ax=ax, label=label, **where)
    bar.outline.set_visible(False)
    return bar.ax


def bar_below(figure: Figure, image: AxesImage, ax: Axes, label: str) -> None:
    """A colour bar under a narrow map, with few numbers."""
    color_bar(figure, image, ax, label, location="bottom", aspect=18, fraction=0.05).locator_params(nbins=3)


def name_places(ax: Axes, rows: Axis, columns: Axis, cell: tuple[float, float], size: float = SMALL) -> None:
    """Names the rows and columns, as many as there is room for in cells of so many inches."""
    wide, tall = (side * 72 for side in cell)
    upright = max(map(cell_len, columns.names), default=0) * size * 0.62 > wide
    every = _step(len(columns.names), wide, size)
    ax.set_xticks(range(0, len(columns.names), every), columns.names[::every], rotation=90 * upright, size=size)
    every = _step(len(rows.names), tall, size)
    ax.set_yticks(range(0, len(rows.names), every), rows.names[::every], size=size)
    ax.tick_params(length=0)
    ax.set_xlabel(columns.title)
    ax.set_ylabel(rows.title)


def _step(places: int, room: float, size: float) -> int:
    """One name in how many places keeps names apart, at `room` points each: all, or a round number."""
    return next(
        (step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128) if step * room >= 1.15 * size), places
    )


def _checked(values: ArrayLike, rows: Axis, columns: Axis, *beside: ArrayLike | None) -> NDArray:
    values = with_gaps(values)
    shapes = {values.shape, (len(rows.names), len(columns.names)), *(np.shape(a) for a in beside if a is not None)}
    if len(shapes) > 1 or not values.size:
        said = ", ".join(map(str, sorted(shapes)))
        raise UserError(f"values, names and errors of a map have shapes {said}: give one of each for every place")
    return values


def square_cells(shape: tuple[int, ...]) -> float:
    """Side of a cell without numbers, in inches."""
    return min(4.6 / shape[1], 6.5 / shape[0], 0.4)


def _cell(shape: tuple[int, ...], written: bool) -> tuple[float, float]:
    """Width and height of a cell, in inches."""
    rows, columns = shape
    if written:
        return min(4.8 / columns, 0.9), min(max(4.0 / rows, 0.3), 0.5)
    side = square_cells(shape)
    wide, tall = min(4.6 / columns, 0.4), min(6.5 / rows, 0.4)
    return (side, side) if max(wide, tall) < 2 * side else (wide, tall)


def _figure_size(shape: tuple[int, ...], cell: tuple[float, float], rows: Axis, columns: Axis) -> tuple[float, float]:
    longest = [max(map(cell_len, axis.names)) * SMALL * 0.62 / 72 for axis in (rows, columns)]
    width = max(shape[1] * cell[0] + longest[0] + 1.2, 3.6)
    height = max(shape[0] * cell[1], BAR) + 0.4 + (longest[1] if longest[1] > cell[0] else 0.1)
    words = 1.5 if width < WIDTH * 0.8 else 1.1  # headline and caption take more lines where they are narrow
    return width, height + words


def _write_numbers(ax: Axes, backs: NDArray, values: NDArray, errors: NDArray | None, signed: bool) -> None:
    places = decimals(values, errors)
    texts = {}
    for place in np.argwhere(np.isfinite(values)):
        row, column = map(int, place)
        error = None if errors is None else errors[row, column]
        texts[row, column] = with_error(values[row, column], error, places, signed).replace(" ± ", "\n± ")
    if not texts:
        return
    box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    wide, tall = box.width * 72 / values.shape[1], box.height * 72 / values.shape[0]
    longest = max(len(line) for text in texts.values() for line in text.split("\n"))
    size = min(0.92 * wide / (longest * 0.62), 0.86 * tall / (2.4 if errors is not None else 1.2), NORMAL)
    for (row, column), text in texts.items():
        ax.text(
            column, row, text, ha="center", va="center", size=max(size, SMALLEST), color=ink_on(backs[row, column]),
            in_layout=False, linespacing=1.1,
        )  # fmt: skip


def _mark(ax: Axes, backs: NDArray, values: NDArray, errors: NDArray) -> None:
    with np.errstate(invalid="ignore"):
        rows, columns = np.nonzero(np.abs(values) > 2 * errors)
    box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    side = min(box.width / values.shape[1], box.height / values.shape[0]) * 72
    inks = [ink_on(backs[place]) for place in zip(rows, columns, strict=True)]
    ax.scatter(columns, rows, s=(side * 0.18) ** 2, c=inks, linewidths=0)
