"""The pieces of a transformer block in pictures: positions, norms, heads, the MLP, what is written into the stream."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import Axis, draw_map, name_places, numbered
from tinygpt_jax.figures.style import SMALL, WIDTH, new_figure, say, zero_line
from tinygpt_jax.figures.words import short, visible
from tinygpt_jax.reporting.parts import (
    BOXES,
    chain,
    color_bar,
    log_axis,
    mark_blocks,
    moving_channels,
    name_along,
    row_of,
    said_of_curves,
    said_of_sizes,
    shade,
    some,
    span,
    table_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABREAST = 3
"""The most maps in one row of a figure."""
KINDS = {"stream": "o", "attention": "s", "MLP": "D"}
"""What has a size in the residual stream, and its marker."""
MARKED = 64
"""The most rows whose points are marked."""
LOG_FROM = 30
"""How far apart the largest and the smallest are where a logarithmic scale tells more."""


def position_maps(
    tables: Mapping[str, ArrayLike], *, headline: str | None = None, caption: str = "", theme: str = "light"
) -> Figure:
    """Named tables of positions (T, C), one map each, and a few channels of the first as curves over the position.

    Args:
        headline: default: the names of the tables

    Raises:
        UserError: there is no table, or one has no name or is not (positions, channels).
    """
    maps = {name: table_of(name, table) for name, table in some("tables", tables).items()}
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
            color_bar(figure, ax, image, "value (no unit)")
        ax = figure.add_subplot(grid[rows, :])
        zero_line(ax, colors, "y")
        for i, channel in enumerate(moving_channels(maps[first])):
            ax.plot(maps[first][:, channel], color=colors.lines[i], label=str(channel), marker="o", markersize=1.5)
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("position")
        ax.set_ylabel("value (no unit)")
        ax.set_title(f"A few channels: {short(first, 28)}")
        ax.legend(title="channel", title_fontsize=SMALL, loc="upper left", bbox_to_anchor=(1, 1))
        places = f"{len(maps[first])} position{'s' * (len(maps[first]) > 1)}"
        say(figure, headline or f"What tells {places} apart: {'; '.join(maps)}", caption)
    return figure


def norm_rows(
    stages: Mapping[str, ArrayLike],
    *,
    tokens: Sequence[str] | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Named stages of a norm (T, C), a map each, and beside them the mean and the deviation of every row.

    Args:
        tokens: T of them, as text; default: the positions' numbers

    Raises:
        UserError: there is no stage, the stages differ in shape, or there are not T tokens.
    """
    maps = {name: table_of(name, stage) for name, stage in some("stages", stages).items()}
    T, C = next(iter(maps.values())).shape
    given = T if tokens is None else len(tokens)
    if given != T or any(stage.shape != (T, C) for stage in maps.values()):
        shapes = [stage.shape for stage in maps.values()]
        raise UserError(f"stages have shapes {shapes} for {given} tokens: must be (tokens, channels), the same for all")
    rows = numbered("position", T) if tokens is None else Axis("token", [visible(token) for token in tokens])
    tall = min(max(T * 0.14, 1.2), 5.0)
    with new_figure(max(WIDTH, len(maps) + 2.5), tall + 1.9, theme) as (figure, colors):
        axes = figure.subplots(1, len(maps) + 2, width_ratios=[1.0] * len(maps) + [0.8, 0.8])
        for i, (ax, (name, stage)) in enumerate(zip(axes, maps.items(), strict=False)):
            image = draw_map(ax, stage, colors, "diverging")
            name_places(ax, Axis("", []) if i else rows, numbered("channel", C), (3 / len(maps) / C, tall / T))
            ax.set_title(short(name, 22), size=SMALL)
            color_bar(figure, ax, image, "value (no unit)")
        for ax, of, what in ((axes[-2], _row_mean, "row mean"), (axes[-1], _row_sd, "row standard\ndeviation")):
            for i, (name, stage) in enumerate(maps.items()):
                ax.plot(
                    of(stage), range(T), color=colors.lines[i % len(colors.lines)],
                    marker="osD^vP"[i % 6] if T <= MARKED else None,
                    markersize=2.5, linewidth=0.5, label=short(name, 22),
                )  # fmt: skip
            zero_line(ax, colors, "x")
            ax.set_ylim(T - 0.5, -0.5)
            ax.set_yticks([])
            ax.locator_params(axis="x", nbins=3)
            ax.set_title(what, size=SMALL)
            ax.set_xlabel("no unit")
        where = {"loc": "upper center", "bbox_to_anchor": (-0.15, 0), "borderaxespad": 4.5}  # beside the maps' bars
        axes[-1].legend(**where, ncols=-(-len(maps) // 4)).set_in_layout(False)
        spreads = [f"{span(_row_sd(stage))} {name}" for name, stage in maps.items()]
        say(figure, f"Standard deviation of the rows: {', '.join(spreads)}", caption)
    return figure


def head_split(
    values: ArrayLike,
    n_head: int,
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    *,
    what: str = "values",
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Values (T, C) of all heads side by side, with each head's block of K channels marked; below, the named steps of
    attention and the shape at each.

    Args:
        what: name of the values, such as `queries`

    Raises:
        UserError: values are no such table, or n_head does not divide its width.
    """
    table = table_of("values", values)
    T, C = table.shape
    if n_head < 1 or C % n_head:
        raise UserError(f"n_head is {n_head} for {C} channels: must divide them into blocks of the same width")
    rows, tall = -(-len(shapes) // BOXES), min(max(T * 0.1, 1.2), 3.2)
    with new_figure(WIDTH, tall + 1.9 + 0.62 * rows, theme) as (figure, colors):
        grid = figure.add_gridspec(2, 2, width_ratios=[1, 0.025], height_ratios=[tall + 0.5, max(0.62 * rows, 0.01)])
        ax = figure.add_subplot(grid[0, 0])
        image = draw_map(ax, table, colors, "diverging")
        name_places(ax, numbered("position", T), numbered("channel", C), (4.9 / C, tall / T))
        bar = figure.colorbar(image, cax=figure.add_subplot(grid[0, 1]), label="value (no unit)")
        bar.outline.set_visible(False)
        mark_blocks(ax, n_head, C // n_head, "head", colors)
        chain(figure.add_subplot(grid[1, :]), shapes, colors)
        heads = f"{n_head} head{'s' * (n_head > 1)}"
        say(figure, f"{C} channels of the {what} are {heads} of {C // n_head}", caption)
    return figure


def activation_curves(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    slopes: Mapping[str, ArrayLike] | None = None,
    density: ArrayLike | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Named functions (N,) over their input x (N,), and their slopes; shaded, where a model's own inputs lie.

    Args:
        slopes: (N,) of those functions that have a kink; default: from neighbours, which rounds a kink off
        density: (N,) of the inputs, per unit of x

    Raises:
        UserError: x has fewer than two points or does not rise, there is no curve, or a length differs.
    """
    x = np.asarray(x, np.float64)
    if x.ndim != 1 or len(x) < 2 or not (np.diff(x) > 0).all():
        raise UserError(f"x has shape {x.shape}: must be two or more numbers that rise")
    lines = {name: row_of("curve " + name, curve, x) for name, curve in some("curves", curves).items()}
    exact = {name: row_of("slope " + name, slope, x) for name, slope in (slopes or {}).items()}
    inputs = None if density is None else row_of("density", density, x)
    with new_figure(WIDTH, 3.5, theme) as (figure, colors):
        axes = figure.subplots(1, 2)
        for ax, label in zip(axes, ("output (no unit)", "slope (no unit)"), strict=True):
            zero_line(ax, colors, "x")
            zero_line(ax, colors, "y")
            for i, (name, line) in enumerate(lines.items()):
                drawn = line if ax is axes[0] else exact[name] if name in exact else np.gradient(line, x)
                ax.plot(x, drawn, color=colors.lines[i % len(colors.lines)], label=short(name, 22), dashes=(4, 1.5 * i))
            ax.set_xlabel("input (no unit)")
            ax.set_ylabel(label)
            ax.set_xlim(x[0], x[-1])
            if inputs is not None:
                shade(ax, x, inputs, colors)
        axes[0].legend(loc="upper left")
        say(figure, said_of_curves(x, lines, inputs), caption)
    return figure


def mlp_widths(stages: Sequence[tuple[str, int, int]], *, caption: str = "", theme: str = "light") -> Figure:
    """How wide the MLP is at each stage, to scale: (name, width, parameters of the step into it), in order.

    Raises:
        UserError: there is no stage, or a width is not above 0.
    """
    if not stages or any(width < 1 for _, width, _ in stages):
        raise UserError(f"stages are {list(stages)!r}: name one or more, each with a width above 0")
    widths = [width for _, width, _ in stages]
    top = max(widths)
    with new_figure(max(WIDTH, 1.05 * len(stages)), 3.4, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (name, width, parameters) in enumerate(stages):
            ax.plot([i, i], [-width / 2, width / 2], color=colors.lines[0], linewidth=5, solid_capstyle="butt")
            ax.text(i, -0.53 * top, f"{width:,} wide", ha="center", va="top", size=SMALL)
            ax.text(i, 0.53 * top, short(name, 22), ha="center", va="bottom", size=SMALL)
            if i:
                before = widths[i - 1]
                sides = [-before / 2, -width / 2], [before / 2, width / 2]
                ax.fill_between([i - 1, i], *sides, color=colors.lines[0], alpha=0.18, linewidth=0)
                count = f"{parameters:,}\nparameters" if parameters else "no\nparameters"
                ax.text(i - 0.5, 0, count, ha="center", va="center", size=SMALL)
        ax.set_xlim(-0.4, max(len(stages) - 0.6, 0.4))
        ax.set_ylim(-0.64 * top, 0.64 * top)
        ax.set_axis_off()
        total = sum(parameters for *_, parameters in stages)
        say(
            figure,
            f"{' → '.join(f'{w:,}' for w, _ in itertools.groupby(widths))} numbers wide, {total:,} parameters",
            caption,
        )
    return figure


def residual_writes(
    names: Sequence[str],
    kinds: Sequence[str],
    rms: ArrayLike,
    se: ArrayLike | None = None,
    *,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """The size (root mean square) of the residual stream and of what is written into it, N of them in their order.

    Args:
        kinds: of each: `stream`, `attention` or `MLP`
        rms: (N,), and `se` its standard errors

    Raises:
        UserError: a kind is unknown, or there is not one kind, size and error for each name.
    """
    places = np.arange(len(names))
    sizes, errors = row_of("rms", rms, places), None if se is None else row_of("se", se, places)
    if not len(names) or len(kinds) != len(names) or not set(kinds) <= set(KINDS):
        raise UserError(f"kinds are {list(kinds)!r}: must be {', '.join(KINDS)}, one for each of {len(names)} names")
    with new_figure(WIDTH, 3.6, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(KINDS.items()):
            at = np.flatnonzero([one == kind for one in kinds])
            if at.size:
                ax.errorbar(
                    at, sizes[at], yerr=None if errors is None else errors[at], color=colors.lines[i], marker=marker,
                    markersize=4, linewidth=0.8, elinewidth=0.9, label=kind,
                )  # fmt: skip
        positive = sizes[sizes > 0]
        if positive.size and positive.max() > LOG_FROM * positive.min():
            log_axis(ax)
        else:
            ax.set_ylim(bottom=0)
        name_along(ax, names)
        ax.set_ylabel("root mean square (no unit)")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
        note = "" if errors is None or not np.isfinite(errors).any() else "Whiskers: ± 1 standard error."
        say(figure, said_of_sizes(kinds, sizes, errors), f"{caption} {note}".strip())
    return figure


def _row_mean(table: NDArray) -> NDArray:
    return table.mean(-1)


def _row_sd(table: NDArray) -> NDArray:
    return table.std(-1)
