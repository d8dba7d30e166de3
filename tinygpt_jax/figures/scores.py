"""The scores of heads, one row a head."""

import numpy as np

from tinygpt_jax.figures.maps import Axis, heat_map, named, names_of_heads
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.words import Words, caption
from tinygpt_jax.lab.read.scores import HeadScores

MOST = 260
"""The most cells that have their numbers."""


def figure(result: HeadScores, theme: str = "light") -> Figure:
    """Every array (L, H) of the result, and its errors where it has them; in the last row, what a score is by chance.

    Colours say how large a score is beside 1 or, where a column goes past 1, beside the largest of that column.
    """
    d = result.definition
    scores = [name for name, axes in result.AXES.items() if axes == ("layer", "head") and not name.endswith("_se")]
    L, H = np.shape(getattr(result, scores[0]))
    missing = np.full((L, H), np.nan)
    columns = [(getattr(result, name), getattr(result, f"{name}_chance", np.nan)) for name in scores]
    values = np.stack([np.append(one, chance) for one, chance in columns], -1).astype(np.float64)
    errors = np.stack([np.append(getattr(result, f"{name}_se", missing), np.nan) for name in scores], -1)
    size = np.where(np.isfinite(values), np.abs(values), 0).max(0)
    on = "".join(f", {flag}" for flag in d.flags)
    shown = (
        f"In {d.unit}. By chance: attention spread evenly over all that a query sees. A share on certain keys is over "
        "the queries that have one; TransformerLens averages over all."
    )
    return heat_map(
        values / np.maximum(size, 1),
        errors,
        named("head", [*names_of_heads(L, H), "by chance"]),
        Axis("", [name.replace("_", " ") for name in scores]),
        Words(
            f"What kind of head each is{on}: scores of {L * H} head{'s' * (L * H > 1)}",
            "score; in a column past 1, its share of the largest",
            caption(d, shown),
        ),
        limits=(-1, 1),
        shown=values,
        most=MOST,
        theme=theme,
    )
