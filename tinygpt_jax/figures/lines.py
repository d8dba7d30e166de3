"""Curves: a line with its band of one standard error, legends beside them, logarithmic axes."""

from typing import Any

from numpy.typing import ArrayLike, NDArray

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
