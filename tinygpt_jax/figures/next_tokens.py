"""What a model expects after each token of a text."""

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.digits import number, with_gaps
from tinygpt_jax.figures.maps import color_bar, draw_map
from tinygpt_jax.figures.style import SMALL, WIDTH, Axes, Figure, ink_on, new_figure, say
from tinygpt_jax.figures.words import caption, clipped, short_token
from tinygpt_jax.lab.read.tokens import NextTokens
from tinygpt_jax.markup import marked

ROWS, COLUMNS = 24, 6
"""The most positions and candidates that one figure shows: the last positions, the likeliest candidates."""


def figure(result: NextTokens, theme: str = "light") -> Figure:
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
            _given(ax, given)
        color_bar(figure, image, ax, "probability", fraction=0.05, pad=0.02, shrink=0.6)
        said = f"Each row: what the model expects after that token{f', of the last {rows} of {T}' * (rows < T)}."
        say(figure, _headline(result), caption(result.definition, said))
    return figure


def _given(ax: Axes, given: NDArray) -> None:
    """The probability of what did follow, in a column on the right."""
    for i, value in enumerate(given):
        ax.text(1.01, i, _share(value), transform=ax.get_yaxis_transform(), va="center", ha="left", size=SMALL)
    ax.text(1.01, -0.75, "what followed", transform=ax.get_yaxis_transform(), va="bottom", ha="left", size=SMALL)


def _headline(result: NextTokens) -> str:
    text = clipped("".join(map(marked, result.tokens[-12:])), 40)
    share = _share(float(with_gaps(result.probability)[-1, 0]))
    return (
        f"After “{text}” the likeliest next token is “{clipped(marked(result.candidates[-1][0]))}”, probability {share}"
    )


def _share(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else number(value, 2)
