"""Attention maps: who looks at what."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import Axis, color_bar, draw_map, name_places
from tinygpt_jax.figures.style import SMALL, Axes, Figure, new_figure, say
from tinygpt_jax.figures.words import caption, short_token
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.read.lens import AttentionMaps

TOKEN_SIZE = 5.0  # points, of tokens beside the maps
WIDEST = 9.0
"""Inches that a row of maps may take, so that every token has its name."""
SHOWN = "Each row is a query, each column a key: the darker, the more of the query's attention the key has."


def figure(result: AttentionMaps, theme: str = "light") -> Figure:
    return draw_attention(result.patterns, result.tokens, caption=caption(result.definition, SHOWN), theme=theme)


def lines(result: AttentionMaps) -> list[str]:
    L, H, T, _ = result.patterns.shape
    return [f"  {L} layers x {H} heads, {T} tokens: see the figure, or the CSV"]


def draw_attention(patterns: ArrayLike, tokens: Sequence[str], *, caption: str = "", theme: str = "light") -> Figure:
    """Patterns (T, T), (H, T, T) or (L, H, T, T), all on one scale.

    Args:
        tokens: T of them, as text

    Raises:
        UserError: the patterns have another shape, or there are not T tokens.
    """
    patterns = np.asarray(patterns, np.float64)
    patterns = patterns[(None,) * max(0, 4 - patterns.ndim)]
    if patterns.ndim != 4 or not patterns.size or patterns.shape[2:] != (len(tokens), len(tokens)):
        raise UserError(
            f"patterns have shape {patterns.shape} for {len(tokens)} tokens: must be (layers, heads, tokens, tokens)"
        )
    L, H, T = patterns.shape[:3]
    side = max(min(5.2 / H, 0.16 * T + 0.4, 3.2), 0.62)
    labelled = 1.16 * TOKEN_SIZE / 72 * T  # where every token has its name
    side = max(side, labelled) if H * labelled <= WIDEST else side
    cell, top = (side / T, side / T), float(np.nanmax(patterns, initial=0, where=np.isfinite(patterns)))
    with new_figure(max(H * side + 1.3, 3.6), L * (side + 0.2) + 1.6, theme) as (figure, colors):
        axis = Axis("", [short_token(token) for token in tokens])
        grid = figure.subplots(L, H, squeeze=False)
        for layer, head in np.ndindex(L, H):
            ax = cast("Axes", grid[layer, head])
            image = draw_map(ax, patterns[layer, head], colors, limits=(0, top or 1))
            ax.spines[:].set_visible(True)
            ax.set_title(f"head {head_name(layer, head)}" if side > 1 else head_name(layer, head), size=SMALL, pad=2)
            below, left = (axis if at_edge else Axis("", []) for at_edge in (layer == L - 1, head == 0))
            name_places(ax, left, below, cell, TOKEN_SIZE)
        color_bar(figure, image, grid, "attention weight", shrink=min(1, 1.6 / (L * side)), aspect=14)
        say(figure, f"What {L * H} head{'s attend' if L * H > 1 else ' attends'} to, by layer and head", caption)
    return figure
