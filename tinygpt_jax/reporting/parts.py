"""Parts of the figures of pieces: boxes in a chain, names along an axis, shading, headlines; and checks of what is
given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import SMALL, Theme
from tinygpt_jax.figures.words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOXES = 4
"""Steps in one row of a chain."""
CURVES = 5
"""The most channels that are drawn over the positions."""
MOVED = 0.25
"""A channel is drawn if its range is at least this share of the largest."""


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


def moving_channels(table: NDArray) -> list[int]:
    """A few channels of (positions, channels), from first to last of those that move most, all of one phase: in
    sinusoids sine and cosine take turns, and are slower the further along."""
    even = np.arange(0, table.shape[1], 2)
    moved = np.ptp(np.nan_to_num(table[:, even]), axis=0)
    there = even[moved >= MOVED * moved.max()]
    return there[np.unique(np.linspace(0, len(there) - 1, CURVES).round().astype(int))].tolist()


def said_of_curves(x: NDArray, lines: Mapping[str, NDArray], inputs: NDArray | None) -> str:
    names = list(lines)
    said = f"{names[0]} over its input"
    if len(lines) > 1:
        gap = np.abs(lines[names[0]] - lines[names[1]])
        at = int(np.argmax(np.nan_to_num(gap, nan=-1.0)))
        said = f"{names[0]} and {names[1]} are at most {number(gap[at], 2)} apart, at {number(x[at], 2)}"
    if inputs is None or not np.nansum(inputs) > 0:
        return said
    below = np.nansum(inputs[x < 0]) / np.nansum(inputs)
    return f"{said}; {100 * below:.0f} % of this model's inputs are below 0"


def said_of_sizes(kinds: Sequence[str], sizes: NDArray, errors: NDArray | None) -> str:
    stream = [i for i, kind in enumerate(kinds) if kind == "stream" and np.isfinite(sizes[i])]
    if len(stream) < 2:
        return f"How large {len(sizes)} writes into the residual stream are"
    ends = sizes[[stream[0], stream[-1]]]
    noise = np.full(2, np.nan) if errors is None else errors[[stream[0], stream[-1]]]
    first, last = (_briefly(value, error) for value, error in zip(ends, noise, strict=True))
    return f"The residual stream goes from {first} to {last} (root mean square, no unit)"


def _briefly(value: float, error: float) -> str:
    """Three digits of the value, and the error where it is large enough to be seen in them."""
    places = decimals(value)
    return with_error(value, error, places) if np.isfinite(error) and round(error, places) else number(value, places)


def some(what: str, given: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
    if not isinstance(given, Mapping):
        raise UserError(f"{what} are a {type(given).__name__}: give a dict with one or more, by name")
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
