"""Tokens of a text: who attends to whom, what comes next, and where the embedding puts them."""

import unicodedata
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.digits import number, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, name_points
from tinygpt_jax.figures.maps import Axis, color_bar, draw_map, name_places
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, ink_on, lay_out, new_figure, say
from tinygpt_jax.figures.words import caption, clipped, short_token
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.read.lens import AttentionMaps
from tinygpt_jax.lab.read.tokens import EmbeddingMap, NextTokens
from tinygpt_jax.markup import marked

TOKEN_SIZE = 5.0  # points, of tokens beside the maps
WIDEST = 9.0
"""Inches that a row of maps may take, so that every token has its name."""
SHOWN = "Each row is a query, each column a key: the darker, the more of the query's attention the key has."
ROWS, COLUMNS = 24, 6
"""The most positions and candidates that one figure shows: the last positions, the likeliest candidates."""
KINDS = {"letter": "o", "digit": "s", "white space": "D", "punctuation": "^", "other": "v"}
"""What a token is made of, and its marker."""


def attention_figure(result: AttentionMaps, theme: str = "light") -> Figure:
    return draw_attention(result.patterns, result.tokens, caption=caption(result.definition, SHOWN), theme=theme)


def attention_lines(result: AttentionMaps) -> list[str]:
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


def next_tokens_figure(result: NextTokens, theme: str = "light") -> Figure:
    """A row a token, its likeliest next tokens and how likely they are."""
    tokens, candidates, T = result.tokens, result.candidates, len(result.tokens)
    shown = with_gaps(result.probability)[-ROWS:, :COLUMNS]
    given = with_gaps(result.given)[-ROWS:]
    rows, columns = shown.shape
    start = T - rows
    with new_figure(WIDTH, 1.8 + 0.24 * rows, theme) as (figure, colors):
        ax = figure.add_subplot()
        image = draw_map(ax, shown, colors, limits=(0, 1))
        backs = np.asarray(image.to_rgba(np.ma.masked_invalid(shown)))
        for i, j in np.ndindex(rows, columns):
            text = f"{short_token(candidates[start + i][j])}  {_share(float(shown[i, j]))}"
            right = start + i + 1 < T and candidates[start + i][j] == tokens[start + i + 1]
            ax.text(
                j, i, text, ha="center", va="center", size=SMALL, color=ink_on(backs[i, j]),
                weight="bold" if right else "normal", in_layout=False,
            )  # fmt: skip
        ax.set_yticks(range(rows), [short_token(tokens[start + i]) for i in range(rows)], size=SMALL)
        ax.set_xticks(range(columns), [f"{j + 1}." for j in range(columns)])
        ax.tick_params(length=0)
        ax.set_xlabel("likeliest next tokens, with their probability; bold: the one that followed")
        ax.set_ylabel("after the token")
        if np.isfinite(given).any():
            column = ax.get_yaxis_transform()
            for i, value in enumerate(given):
                ax.text(1.01, i, _share(value), transform=column, va="center", ha="left", size=SMALL)
            ax.text(1.01, -0.75, "what followed", transform=column, va="bottom", ha="left", size=SMALL)
        color_bar(figure, image, ax, "probability", fraction=0.05, pad=0.02, shrink=0.6)
        said = f"Each row: what the model expects after that token{f', of the last {rows} of {T}' * (rows < T)}."
        say(figure, _next_headline(result), caption(result.definition, said))
    return figure


def _next_headline(result: NextTokens) -> str:
    text = clipped("".join(map(marked, result.tokens[-12:])), 40)
    share = _share(float(with_gaps(result.probability)[-1, 0]))
    return (
        f"After “{text}” the likeliest next token is “{clipped(marked(result.candidates[-1][0]))}”, probability {share}"
    )


def _share(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else number(value, 2)


def embedding_figure(result: EmbeddingMap, theme: str = "light") -> Figure:
    """A marker a token, and the names of as many as there is room for."""
    x, y, tokens = with_gaps(result.x), with_gaps(result.y), result.tokens
    kinds = np.array([_kind(token) for token in tokens])
    with new_figure(WIDTH, 5.2, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(KINDS.items()):
            chosen = kinds == kind
            if chosen.any():
                ax.scatter(x[chosen], y[chosen], s=9, marker=marker, color=colors.lines[i], alpha=0.75, label=kind)
        first, second = (f"({100 * part:.0f} % of the variance)" for part in np.asarray(result.share))
        ax.set_xlabel(f"first direction of largest variance {first}")
        ax.set_ylabel(f"second direction {second}")
        ax.margins(0.06)
        ax.legend(title="made of", borderpad=0, **BESIDE)
        held = f"the two largest directions hold {100 * np.sum(result.share):.0f} % of the variance"
        shown = "Each point is a token's embedding. Named: the farthest out, as many as there is room for."
        say(figure, f"Embedding of {len(tokens):,} tokens: {held}", caption(result.definition, shown))
        lay_out(figure)  # names go where there is room
        far = np.hypot(x - np.nanmean(x), y - np.nanmean(y)) if np.isfinite(x + y).any() else x
        name_points(ax, x, y, list(map(short_token, tokens)), far)
    return figure


def _kind(token: str) -> str:
    """Of its first character that is not white space."""
    text = token.strip()
    if not text:
        return "white space" if token else "other"
    kinds = {"L": "letter", "N": "digit", "P": "punctuation", "S": "punctuation"}
    return kinds.get(unicodedata.category(text[0])[0], "other")
