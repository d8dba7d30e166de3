"""How the width is split into heads, and the shapes on the way through attention."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import draw_map, name_places, numbered
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, Theme, new_figure, say
from tinygpt_jax.figures.words import caption, short
from tinygpt_jax.lab.read.head_split import HeadSplit

Shapes = Sequence[tuple[str, tuple[int, ...]]]

BOXES = 4
"""Steps in one row of boxes."""


def figure(result: HeadSplit, theme: str = "light") -> Figure:
    T, H, _ = np.shape(result.queries)
    queries = np.reshape(result.queries, (T, -1))
    shown = "Each row is a position, each column a channel of its query; boxes: the shape at each step of attention."
    said = caption(result.definition, shown)
    return draw_head_split(queries, H, result.steps, what="queries", caption=said, theme=theme)


def draw_head_split(
    values: ArrayLike, n_head: int, steps: Shapes, *, what: str = "values", caption: str = "", theme: str = "light"
) -> Figure:
    """Values (T, C) of all heads side by side, with each head's block of K channels marked; below, the named steps of
    attention and the shape at each.

    Args:
        what: name of the values, such as `queries`

    Raises:
        UserError: n_head does not divide the width.
    """
    table = with_gaps(values)
    T, C = table.shape
    if n_head < 1 or C % n_head:
        raise UserError(f"n_head is {n_head} for {C} channels: must divide them into blocks of the same width")
    rows, tall = -(-len(steps) // BOXES), min(max(T * 0.1, 1.2), 3.2)
    with new_figure(WIDTH, tall + 1.9 + 0.62 * rows, theme) as (figure, colors):
        grid = figure.add_gridspec(2, 2, width_ratios=[1, 0.025], height_ratios=[tall + 0.5, max(0.62 * rows, 0.01)])
        ax = figure.add_subplot(grid[0, 0])
        image = draw_map(ax, table, colors, "diverging")
        name_places(ax, numbered("position", T), numbered("channel", C), (4.9 / C, tall / T))
        bar = figure.colorbar(image, cax=figure.add_subplot(grid[0, 1]), label="value")
        bar.outline.set_visible(False)
        _mark_heads(ax, n_head, C // n_head, colors)
        _chain(figure.add_subplot(grid[1, :]), steps, colors)
        heads = f"{n_head} head{'s' * (n_head > 1)}"
        say(figure, f"The {C} channels of the {what} are split into {heads} of {C // n_head}", caption)
    return figure


def _mark_heads(ax: Axes, heads: int, width: int, theme: Theme) -> None:
    """Lines between the columns of one head and the next, which are numbered above."""
    for head in range(1, heads):
        ax.axvline(head * width - 0.5, color=theme.ink, linewidth=1.0)
    top = ax.secondary_xaxis("top")
    named = range(0, heads, max(1, -(-heads // 32)))
    top.set_xticks([(head + 0.5) * width - 0.5 for head in named], list(map(str, named)), size=SMALL)
    top.tick_params(length=0)
    top.spines[:].set_visible(False)
    top.set_xlabel("head")


def _chain(ax: Axes, steps: Shapes, theme: Theme) -> None:
    """Boxes from left to right and on from row to row: a step's name, and the shape that it leaves."""
    ax.set_axis_off()
    ax.set_xlim(0, BOXES)
    ax.set_ylim(-(-len(steps) // BOXES) or 1, 0)
    for i, (name, shape) in enumerate(steps):
        row, column = divmod(i, BOXES)
        ax.text(
            column + 0.44, row + 0.5, f"{short(name, 26)}\n{tuple(map(int, shape))}", ha="center", va="center",
            size=SMALL, linespacing=1.4, bbox={"boxstyle": "round,pad=0.4", "fc": "none", "ec": theme.muted, "lw": 0.6},
        )  # fmt: skip
        if i:
            ax.text(column - 0.06, row + 0.5, "→", ha="center", va="center", color=theme.muted)
