"""Shapley values as bars."""

import numpy as np

from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.text import table_lines
from tinygpt_jax.figures.words import Words, caption, largest, the_metric, with_unit
from tinygpt_jax.lab.order import does
from tinygpt_jax.lab.remove.shapley import Shapley


def figure(result: Shapley, theme: str = "light") -> Figure:
    d = result.definition
    shown = f"Each one's share of what all together do to {the_metric(d)}, over all orders in which they may join."
    drawn = " Errors: over examples and orders together." * bool(np.any(result.sampling_se))
    words = Words(
        f"Shapley value of each {d.part()}: {largest(result.changes())}",
        with_unit(f"share of {the_metric(d)}", d.unit),
        caption(d, shown + drawn),
    )
    return bar_chart(result.names, np.ravel(result.value), np.ravel(result.se), words, signed=True, theme=theme)


def lines(result: Shapley) -> list[str]:
    lowers = does(-1, result.definition.metric)
    orders = ["  errors: over examples and orders together"] * bool(np.any(result.sampling_se))
    return [
        *table_lines(result),
        f"  a value below 0: the head {lowers}; the values add up to intact less all removed",
        *orders,
    ]
