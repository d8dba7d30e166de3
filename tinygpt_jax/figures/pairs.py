"""The interactions of components that are removed two by two."""

import numpy as np

from tinygpt_jax.digits import with_error
from tinygpt_jax.figures.maps import heat_map, named
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.text import aligned
from tinygpt_jax.figures.words import Words, caption, largest, with_unit
from tinygpt_jax.lab.order import WORSE, by_size
from tinygpt_jax.lab.remove.ablate import Pairs

MOST = 16
"""Pairs that are named on a terminal."""


def figure(result: Pairs, theme: str = "light") -> Figure:
    """Each with each; the diagonal, where there is no interaction, is a gap."""
    d, names = result.definition, result.names
    values = np.array(result.interaction, np.float64)
    np.fill_diagonal(values, np.nan)
    errors = np.asarray(result.interaction_se, np.float64)
    side = {1: "; above 0, the two stand in for each other", -1: "; below 0, the two stand in for each other"}
    shown = f"Effect of removing both less the effects of removing each alone{side.get(WORSE.get(d.metric, 0), '')}."
    words = Words(
        f"Interaction of removed pairs: {largest(result.changes())}",
        with_unit("joint effect − sum of both alone", d.unit),
        caption(d, shown),
    )
    return heat_map(values, errors, named("one", names), named("the other", names), words, signed=True, theme=theme)


def lines(result: Pairs) -> list[str]:
    first, second = np.triu_indices(len(result.names), 1)
    order = by_size(result.changes())
    body = [
        [
            f"{result.names[i]} with {result.names[j]}",
            with_error(result.joint[i, j], result.joint_se[i, j], signed=True),
            with_error(result.interaction[i, j], result.interaction_se[i, j], signed=True),
        ]
        for i, j in zip(first[order[:MOST]], second[order[:MOST]], strict=True)
    ]
    title = f"  interaction: the joint effect less both alone; the largest of {len(first):,} pairs"
    return [title, *aligned(["pair", "joint", "interaction"], body)]
