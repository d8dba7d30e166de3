"""Tables of positions: maps, and a few channels as curves."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.figures.lines import BESIDE
from tinygpt_jax.figures.maps import bar_below, draw_map, name_places, numbered
from tinygpt_jax.figures.style import WIDTH, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.words import caption, short
from tinygpt_jax.lab.read.positions import PositionTables

ABREAST = 3
"""The most maps in one row of a figure."""
CURVES = 5
"""The most channels that are drawn over the positions."""
MOVED = 0.25
"""A channel is drawn if its range is at least this share of the largest."""
SAID = {
    "rope": "Rotary positions: each turns queries and keys by angles of its own",
    "learned": "Learned positions: each adds a row of its own to the embedding",
    "sinusoidal": "Sinusoidal positions: each adds waves, from fast to slow, to the embedding",
}
"""The positions that a model uses -> what they do."""


def figure(result: PositionTables, theme: str = "light") -> Figure:
    """The model's own table first, whose channels are drawn as curves."""
    own = result.positions
    tables = {
        "learned": result.learned,
        "rotary (cosines, then sines)": result.rotary,
        "sinusoidal" if own == "sinusoidal" else "sinusoidal, for comparison": result.sinusoidal,
    }
    shown = "Each row is a position, each column a channel; below, a few channels of the first table."
    if own == "rope":
        shown += " The rotary factors multiply queries and keys; nothing is added to the residual stream."
    return draw_positions(
        {name: table for name, table in tables.items() if table is not None},
        SAID.get(own, "This model has no positions of its own; sinusoidal ones for comparison"),
        caption=caption(result.definition, shown),
        theme=theme,
    )


def draw_positions(
    tables: Mapping[str, ArrayLike], headline: str, *, caption: str = "", theme: str = "light"
) -> Figure:
    """Named tables of positions (T, C), one map each, and a few channels of the first as curves over the position."""
    maps = {name: with_gaps(table) for name, table in tables.items()}
    first, across = next(iter(maps)), min(len(maps), ABREAST)
    rows = -(-len(maps) // ABREAST)
    with new_figure(WIDTH, 2.3 * rows + 2.9, theme) as (figure, colors):
        grid = figure.add_gridspec(rows + 1, across, height_ratios=[2.3] * rows + [1.6])
        for i, (name, table) in enumerate(maps.items()):
            ax = figure.add_subplot(grid[divmod(i, ABREAST)])
            image = draw_map(ax, table, colors, "diverging")
            cell = (0.78 * WIDTH / across / table.shape[1], 1.8 / len(table))
            down = numbered("position" * (i % ABREAST == 0), len(table))
            name_places(ax, down, numbered("channel", table.shape[1]), cell)
            ax.set_title(short(name, 28))
            bar_below(figure, image, ax, "value")
        ax = figure.add_subplot(grid[rows, :])
        zero_line(ax, colors, "y")
        for i, channel in enumerate(_moving(maps[first])):
            ax.plot(maps[first][:, channel], color=colors.lines[i], label=str(channel), marker="o", markersize=1.5)
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("position")
        ax.set_ylabel("value")
        ax.set_title(f"A few channels: {short(first, 28)}")
        ax.legend(title="channel", **BESIDE)
        say(figure, headline, caption)
    return figure


def _moving(table: NDArray) -> list[int]:
    """A few channels of (positions, channels), from first to last of those that move most, all of one phase: in
    sinusoids sine and cosine take turns, and are slower the further along."""
    even = np.arange(0, table.shape[1], 2)
    moved = np.ptp(np.nan_to_num(table[:, even]), axis=0)
    there = even[moved >= MOVED * moved.max()]
    return there[np.unique(np.linspace(0, len(there) - 1, CURVES).round().astype(int))].tolist()
