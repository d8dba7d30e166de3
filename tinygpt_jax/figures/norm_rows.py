"""What a norm does to the rows of one text."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import MARKERS
from tinygpt_jax.figures.maps import Axis, bar_below, draw_map, name_places, numbered
from tinygpt_jax.figures.style import SMALL, WIDTH, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.words import caption, short, short_token
from tinygpt_jax.lab.read.norm_rows import NormRows

MARKED = 64
"""The most rows whose points are marked."""


def figure(result: NormRows, theme: str = "light") -> Figure:
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
