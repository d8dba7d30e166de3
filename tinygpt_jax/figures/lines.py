"""Curves with bands, legends beside them, logarithmic axes, and names beside points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.figures.style import SMALL, Axes

MARKERS = "osD^vP"
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "title_fontsize": SMALL}
"""Where a legend goes that would cover lines."""
MARKED = 40
"""The most points of a line that have a marker each."""


def draw_line(ax: Axes, x: NDArray, y: ArrayLike, error: ArrayLike | None, color: str, name: str, marker: str) -> None:
    y = with_gaps(y)
    ax.plot(x, y, color=color, label=name, marker=marker if len(x) <= MARKED else None, markersize=3)
    if error is not None:
        error = with_gaps(error)
        ax.fill_between(x, y - error, y + error, color=color, alpha=0.22, linewidth=0)


def log_axis(ax: Axes) -> None:
    """A logarithmic scale upwards, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


MOST_TRIED = 2000
"""Points that may have a name."""


def name_points(ax: Axes, x: NDArray, y: NDArray, names: Sequence[str], size: NDArray, up: float = 0) -> None:
    """Names of points (N,), right or left of them and so many points up, the largest size first; none over another name
    or another point. For a figure that is laid out."""
    figure: Any = ax.figure
    points = ax.transData.transform(np.column_stack([x, y])) * 72 / figure.dpi  # in points
    there = np.flatnonzero(np.isfinite(points).all(1))
    taken = np.column_stack([points[there] - 1.5, points[there] + 1.5])  # left, bottom, right, top
    for i in there[np.argsort(-size[there], kind="stable")][:MOST_TRIED]:
        width = SMALL * 0.62 * cell_len(names[i])
        for side, left in (("left", 3.0), ("right", -3.0 - width)):
            low = points[i] + (left, up - SMALL / 2)
            high = low + (width, SMALL)
            if ((taken[:, :2] < high) & (low < taken[:, 2:])).all(1).any():
                continue
            taken = np.append(taken, [[*low, *high]], axis=0)
            ax.annotate(
                names[i], (x[i], y[i]), (3 if side == "left" else -3, up), textcoords="offset points", size=SMALL,
                ha=side, va="center", in_layout=False, annotation_clip=False,
            )  # fmt: skip
            break
