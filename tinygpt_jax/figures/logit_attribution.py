"""Who writes the logits: one bar a component."""

import numpy as np

from tinygpt_jax.digits import number
from tinygpt_jax.figures.bars import MOST, bar_chart
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.words import Words, caption, with_unit
from tinygpt_jax.lab.read.lens import LogitAttribution


def figure(result: LogitAttribution, theme: str = "light") -> Figure:
    """The small contributions of many components are one bar, so that the sum stays."""
    d, names = result.definition, list(result.components)
    per_example = np.asarray(result.per_example, np.float64)
    values, errors = np.asarray(result.contribution, np.float64), np.asarray(result.se, np.float64)
    if len(names) > MOST:
        order = np.argsort(-np.abs(np.nan_to_num(values)), kind="stable")
        kept, rest = np.sort(order[: MOST - 1]), order[MOST - 1 :]
        others = per_example[rest].sum(0)
        names = [*(names[i] for i in kept), f"the other {len(rest)}"]
        values = np.append(values[kept], others.mean())
        errors = np.append(errors[kept], others.std(ddof=1) / np.sqrt(len(others)) if len(others) > 1 else np.nan)
    total, sum_ = float(np.mean(result.total)), float(np.sum(values))
    shown = f"What each component writes directly to the {d.metric}; 0.1 is head 1 of layer 0."
    words = Words(
        f"Contributions to the {d.metric} sum to {number(sum_, 3)} {d.unit}; the model's own is {number(total, 3)}",
        with_unit(f"contribution to the {d.metric}", d.unit),
        caption(d, shown),
    )
    return bar_chart(names, values, errors, words, signed=True, theme=theme)
