"""The pruning curve: how far the loss rises as heads go in order."""

import numpy as np

from tinygpt_jax.digits import with_error
from tinygpt_jax.figures.lines import draw_line
from tinygpt_jax.figures.style import WIDTH, Figure, new_figure, say
from tinygpt_jax.figures.text import table_lines
from tinygpt_jax.figures.words import caption, safe, with_unit
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.remove.curve import PruningCurve

NAMED = 24
"""The most heads of an order that are named along the axis."""


def figure(result: PruningCurve, theme: str = "light") -> Figure:
    """Beside random orders and the tolerance."""
    d, n = result.definition, len(result.rise) - 1
    removed = np.arange(n + 1)
    share = f"{100 * result.tolerance:g} %"
    with new_figure(WIDTH, 3.9, theme) as (figure, colors):
        ax = figure.add_subplot()
        random_rises = result.random_losses - result.random_losses[:, :1]
        ax.plot(removed, np.transpose(random_rises), color=colors.muted, linewidth=0.5, alpha=0.5)
        draw_line(ax, removed, result.random_rise, result.random_rise_se, colors.lines[1], "random orders, mean", "s")
        draw_line(ax, removed, result.rise, result.rise_se, colors.lines[0], "this order", "o")
        limit = result.tolerance * abs(result.loss[0])
        ax.axhline(limit, color=colors.ink, linestyle="--", linewidth=0.8, label=f"{share} above the intact model")
        ax.axvline(result.free, color=colors.lines[0], linestyle=":", linewidth=0.9)
        if n <= NAMED:
            ax.set_xticks(removed, ["0", *(f"{i}\n{head_name(*map(int, h))}" for i, h in enumerate(result.order, 1))])
            ax.set_xlabel("heads removed, and the last of them")
        else:
            ax.set_xlabel("heads removed")
        ax.set_ylabel(safe(with_unit(f"rise of the {d.metric}", d.unit)))
        ax.legend()
        free = with_error(result.free, result.free_se, 1)
        random = with_error(result.random_free, result.random_free_se, 1)
        shown = "The loss above the intact model's as heads are removed one by one. Bands: ± 1 standard error; grey: "
        said = f"{free} of {n} heads can go before the loss is {share} up (in random order {random})"
        say(figure, said, caption(d, f"{shown}each random order."))
    return figure


def lines(result: PruningCurve) -> list[str]:
    share, n = f"{100 * result.tolerance:g} %", len(result.order)
    return [
        *table_lines(result),
        "  the error of random orders is over orders and examples together",
        f"  before the loss is {share} up, {result.free} ± {result.free_se:.1f} of {n} heads can go in this order, "
        f"{result.random_free:.1f} ± {result.random_free_se:.1f} in a random one",
    ]
