"""What heads do, as maps and bars: effects, interactions, scores, attention, patching, attribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.maps import Axis, draw_map, heat_map, name_places, named, names_of_heads, numbered
from tinygpt_jax.figures.style import SMALL, new_figure, say
from tinygpt_jax.figures.words import Words, largest, visible
from tinygpt_jax.figures.words import caption as caption_of
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.order import WORSE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOKEN_SIZE = 5.0  # points, of tokens beside attention maps
WIDEST_MAPS = 9.0
"""Inches that a row of attention maps may take, so that every token has its name."""


def effect_map(result: Any, *, theme: str = "light") -> Figure:
    """The effects of an `Ablation`: a map of layers and heads, or bars of its layers or sets."""
    d, effect, changes = result.definition, np.asarray(result.effect, np.float64), result.changes()
    names = [f"head {name}" for name in result.names] if "head" in result.over else result.names
    words = Words(largest(changes._replace(names=names)), f"change of {d.metric} ({d.unit})", caption_of(d))
    if effect.ndim == 1:
        return bar_chart(result.names, effect, result.se, words, signed=True, theme=theme)
    rows, columns = (numbered(axis, size) for axis, size in zip(result.over, effect.shape, strict=True))
    return heat_map(effect, result.se, rows, columns, words, signed=True, theme=theme)


def interaction_matrix(pairs: Any, *, theme: str = "light") -> Figure:
    """The interactions of `Pairs`, each with each; the diagonal, where there is none, is a gap."""
    d, names = pairs.definition, pairs.names
    values = np.array(pairs.interaction, np.float64)
    np.fill_diagonal(values, np.nan)
    errors = np.asarray(pairs.interaction_se, np.float64)
    label = f"joint effect − sum of both alone ({d.unit})"
    side = {1: "Above 0, they stand in for each other. ", -1: "Below 0, they stand in for each other. "}
    said = f"{side.get(WORSE.get(d.metric, 0), '')}{caption_of(d)}"
    words = Words(largest(pairs.changes()), label, said)
    return heat_map(values, errors, named("one", names), named("the other", names), words, signed=True, theme=theme)


def score_table(result: Any, *, theme: str = "light") -> Figure:
    """The scores of `HeadScores`, one row a head: every array (L, H) of the result, and its errors where it has them;
    in the last row, what a score is by chance.

    Colours say how large a score is beside 1 or, where a column goes past 1, beside the largest of that column.
    """
    scores = [name for name, axes in result.AXES.items() if axes == ("layer", "head") and not name.endswith("_se")]
    L, H = np.shape(getattr(result, scores[0]))
    missing = np.full((L, H), np.nan)
    columns = [(getattr(result, name), getattr(result, f"{name}_chance", np.nan)) for name in scores]
    values = np.stack([np.append(one, chance) for one, chance in columns], -1).astype(np.float64)
    errors = np.stack([np.append(getattr(result, f"{name}_se", missing), np.nan) for name in scores], -1)
    size = np.where(np.isfinite(values), np.abs(values), 0).max(0)
    names = names_of_heads(L, H)
    on = "".join(f", {flag}" for flag in result.definition.flags)
    return heat_map(
        values / np.maximum(size, 1),
        errors,
        named("head", [*names, "by chance"]),
        Axis("", [name.replace("_", " ") for name in scores]),
        Words(
            f"Scores of {len(names)} head{'s' * (len(names) > 1)}{on} ({result.definition.unit})",
            "score; where a column goes past 1, score / its largest",
            "By chance: attention spread evenly over all that a query sees. A share on certain keys is over the "
            f"queries that have one; TransformerLens averages over all. {caption_of(result.definition)}",
        ),
        limits=(-1, 1),
        shown=values,
        most=260,
        theme=theme,
    )


def attention_maps(patterns: ArrayLike, tokens: Sequence[str], *, caption: str = "", theme: str = "light") -> Figure:
    """Who looks at what: patterns (T, T), (H, T, T) or (L, H, T, T), each query a row and each key a column, all on one
    scale.

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
    side = max(side, labelled) if H * labelled <= WIDEST_MAPS else side
    cell, top = (side / T, side / T), float(np.nanmax(patterns, initial=0, where=np.isfinite(patterns)))
    with new_figure(max(H * side + 1.3, 3.6), L * (side + 0.2) + 1.6, theme) as (figure, colors):
        axis = Axis("", [visible(token) for token in tokens])
        grid = figure.subplots(L, H, squeeze=False)
        for layer, head in np.ndindex(L, H):
            ax = cast("Axes", grid[layer, head])
            image = draw_map(ax, patterns[layer, head], colors, limits=(0, top or 1))
            ax.spines[:].set_visible(True)
            ax.set_title(head_name(layer, head), size=SMALL, pad=2)
            below, left = (axis if at_edge else Axis("", []) for at_edge in (layer == L - 1, head == 0))
            name_places(ax, left, below, cell, TOKEN_SIZE)
        bar = figure.colorbar(
            image, ax=grid, label="attention (share of 1)", shrink=min(1, 1.6 / (L * side)), aspect=14
        )
        bar.outline.set_visible(False)
        say(figure, f"Attention of {L * H} head{'s' * (L * H > 1)}: each row is a query, its columns the keys", caption)
    return figure
