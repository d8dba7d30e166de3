"""Parts of the figures of pieces: boxes in a chain, names along an axis, shading; and checks of what is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.views.style import SMALL, Theme
from tinygpt_jax.views.words import decimals, number, short, with_gaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOXES = 4
"""Steps in one row of a chain."""


def span(values: NDArray) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "-"
    places = max(decimals(finite), 2)
    low, high = (number(value, min(places, 3)) for value in (finite.min(), finite.max()))
    return low if low == high else f"{low} to {high}"


def color_bar(figure: Figure, ax: Axes, image: Any, label: str) -> None:
    bar = figure.colorbar(image, ax=ax, label=label, location="bottom", aspect=18, fraction=0.05)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=3)


def shade(ax: Axes, x: NDArray, density: NDArray, theme: Theme) -> None:
    """Where inputs lie, on an axis of its own without numbers: only where there are many of them matters."""
    back = ax.twinx()
    back.fill_between(x, density, color=theme.muted, alpha=0.3, linewidth=0)
    back.set_ylim(0, 1.15 * max(np.nanmax(density, initial=0), 1e-9))
    back.set_yticks([])
    back.spines[:].set_visible(False)


def chain(ax: Axes, shapes: Sequence[tuple[str, tuple[int, ...]]], theme: Theme) -> None:
    """Boxes from left to right and on from row to row: a step's name, and the shape that it leaves."""
    ax.set_axis_off()
    ax.set_xlim(0, BOXES)
    ax.set_ylim(-(-len(shapes) // BOXES) or 1, 0)
    for i, (name, shape) in enumerate(shapes):
        row, column = divmod(i, BOXES)
        ax.text(
            column + 0.44, row + 0.5, f"{short(name, 26)}\n{tuple(map(int, shape))}", ha="center", va="center",
            size=SMALL, linespacing=1.4, bbox={"boxstyle": "round,pad=0.4", "fc": "none", "ec": theme.muted, "lw": 0.6},
        )  # fmt: skip
        if i:
            ax.text(column - 0.06, row + 0.5, "→", ha="center", va="center", color=theme.muted)


def mark_blocks(ax: Axes, blocks: int, width: int, title: str, theme: Theme) -> None:
    """Lines between blocks of so many columns of a map, which are numbered above it."""
    for block in range(1, blocks):
        ax.axvline(block * width - 0.5, color=theme.ink, linewidth=1.0)
    top = ax.secondary_xaxis("top")
    named = range(0, blocks, max(1, -(-blocks // 32)))
    top.set_xticks([(block + 0.5) * width - 0.5 for block in named], list(map(str, named)), size=SMALL)
    top.tick_params(length=0)
    top.spines[:].set_visible(False)
    top.set_xlabel(title)


def log_axis(ax: Axes) -> None:
    """A logarithmic scale upwards, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def name_along(ax: Axes, names: Sequence[str]) -> None:
    every = max(1, -(-len(names) // 40))
    ax.set_xticks(range(0, len(names), every), [short(name, 22) for name in names[::every]], rotation=90, size=SMALL)
    ax.tick_params(axis="x", length=0)


def some(what: str, given: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
    if not given:
        raise UserError(f"{what} are empty: give one or more, by name")
    return given


def table_of(name: str, values: ArrayLike) -> NDArray[np.float64]:
    table = with_gaps(values)
    if table.ndim != 2 or not table.size:
        raise UserError(f"{name} has shape {table.shape}: must be (positions, channels), one or more of each")
    return table


def row_of(name: str, values: ArrayLike, x: NDArray) -> NDArray[np.float64]:
    row = with_gaps(values)
    if row.shape != x.shape:
        raise UserError(f"{name} has shape {row.shape}: must be {x.shape}, one number for each place")
    return row
