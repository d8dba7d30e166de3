"""The effects of switching parts off: a map of layers and heads, or bars of layers or sets."""

import numpy as np

from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.maps import heat_map, numbered
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.words import Words, caption, effects_headline, the_metric, with_unit
from tinygpt_jax.lab.remove.ablate import Ablation


def figure(result: Ablation, theme: str = "light") -> Figure:
    d, effect, changes = result.definition, np.asarray(result.effect, np.float64), result.changes()
    names = [f"head {name}" for name in result.names] if "head" in result.over else result.names
    done = "it alone is kept in its layer" if d.direction == "keep" else "it is removed"
    shown = f"For each {d.part()}, the change of {the_metric(d)} when {done}; ± 1 standard error."
    words = Words(
        effects_headline(d, changes._replace(names=names)), with_unit(f"change of {the_metric(d)}", d.unit),
        caption(d, shown),
    )  # fmt: skip
    if effect.ndim == 1:
        return bar_chart(result.names, effect, result.se, words, signed=True, theme=theme)
    rows, columns = (numbered(axis, size) for axis, size in zip(result.over, effect.shape, strict=True))
    return heat_map(effect, result.se, rows, columns, words, signed=True, theme=theme)
