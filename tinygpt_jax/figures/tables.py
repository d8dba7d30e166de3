"""Tables of channels: positions, the rows of one text before and after a norm, and queries split into heads."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, MARKERS
from tinygpt_jax.figures.maps import Axis, bar_below, draw_map, name_places, numbered
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, Theme, new_figure, say, zero_line
from tinygpt_jax.figures.words import caption, short, short_token
from tinygpt_jax.lab.read.block import HeadSplit, NormRows, PositionTables

ABREAST = 3
"""The most maps of positions in one row of a figure."""
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
MARKED = 64
"""The most rows of a norm whose points are marked."""
BOXES = 4
"""Steps in one row of boxes."""


def positions_figure(result: PositionTables, theme: str = "light") -> Figure:
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


def norm_rows_figure(result: NormRows, theme: str = "light") -> Figure:
    stages = dict(zip(result.stages, result.values, strict=True))
    said = caption(result.definition, "Each row is a token, each column a channel of the residual stream.")
    return draw_norm_rows(stages, result.tokens, caption=said, theme=theme)


def draw_norm_rows(
    stages: Mapping[str, ArrayLike], tokens: Sequence[str], *, caption: str = "", theme: str = "light"
) -> Figure:
    """Named stages of a norm (T, C), a map each, and beside them the mean and the deviation of every row.

    Raises:
        UserError: there are not T tokens.
    """
    maps = {name: with_gaps(stage) for name, stage in stages.items()}
    T, C = next(iter(maps.values())).shape
    if len(tokens) != T:
        raise UserError(f"stages have shape {(T, C)} for {len(tokens)} tokens: give one token for each row")
    rows = Axis("token", [short_token(token) for token in tokens])
    tall = min(max(T * 0.14, 1.2), 5.0)
    with new_figure(max(WIDTH, len(maps) + 2.5), tall + 1.9, theme) as (figure, colors):
        axes = figure.subplots(1, len(maps) + 2, width_ratios=[1.0] * len(maps) + [0.8, 0.8])
        for i, (ax, (name, stage)) in enumerate(zip(axes, maps.items(), strict=False)):
            image = draw_map(ax, stage, colors, "diverging")
            name_places(ax, Axis("", []) if i else rows, numbered("channel", C), (3 / len(maps) / C, tall / T))
            ax.set_title(short(name, 22), size=SMALL)
            bar_below(figure, image, ax, "value")
        for ax, of, what in ((axes[-2], np.mean, "mean"), (axes[-1], np.std, "standard deviation")):
            for i, (name, stage) in enumerate(maps.items()):
                ax.plot(
                    of(stage, -1), range(T), color=colors.lines[i % len(colors.lines)],
                    marker=MARKERS[i % len(MARKERS)] if T <= MARKED else None,
                    markersize=2.5, linewidth=0.5, label=short(name, 22),
                )  # fmt: skip
            zero_line(ax, colors, "x")
            ax.set_ylim(T - 0.5, -0.5)
            ax.set_yticks([])
            ax.locator_params(axis="x", nbins=3)
            ax.set_title("of each row", size=SMALL)
            ax.set_xlabel(what)
        where = {"loc": "upper center", "bbox_to_anchor": (-0.15, 0), "borderaxespad": 4.5}  # beside the maps' bars
        axes[-1].legend(**where, ncols=-(-len(maps) // 4)).set_in_layout(False)
        spreads = [f"{_span(stage.std(-1))} {name}" for name, stage in maps.items()]
        said = "The norm brings every token to one size: standard deviation"
        say(figure, f"{said} {', '.join(spreads)}", caption)
    return figure


def _span(values: NDArray) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "-"
    places = max(decimals(finite), 2)
    low, high = (number(value, min(places, 3)) for value in (finite.min(), finite.max()))
    return low if low == high else f"{low} to {high}"


Shapes = Sequence[tuple[str, tuple[int, ...]]]


def head_split_figure(result: HeadSplit, theme: str = "light") -> Figure:
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
