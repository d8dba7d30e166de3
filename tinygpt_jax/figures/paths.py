"""The effects of direct paths from head to head."""

import numpy as np

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import heat_map, named
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.words import Words, caption, effects_headline, the_metric, with_unit
from tinygpt_jax.lab.patch.paths import Paths


def figure(result: Paths, theme: str = "light") -> Figure:
    """Only senders that lead somewhere, and inputs of receivers that something leads to."""
    d = result.definition
    arrays = [np.moveaxis(np.asarray(a, np.float64), 0, -1) for a in (result.effect, result.se)]
    effect, error = (array.reshape(len(result.names), -1) for array in arrays)
    receivers = [f"{name} {end}" for name in result.names for end in result.inputs]
    sends, receives = (np.flatnonzero(np.isfinite(effect).any(axis)) for axis in (1, 0))
    if not sends.size:
        raise UserError("there is no path: it leads from a layer to a later one, and no effect here is a finite number")
    there = np.ix_(sends, receives)
    shown = f"The change of {the_metric(d)} when only what a head writes into an input of a later head is replaced."
    words = Words(effects_headline(d, result.changes()), with_unit("effect of the path", d.unit), caption(d, shown))
    rows, columns = [result.names[i] for i in sends], [receivers[i] for i in receives]
    return heat_map(
        effect[there], error[there], named("from", rows), named("to", columns), words, signed=True, theme=theme
    )
