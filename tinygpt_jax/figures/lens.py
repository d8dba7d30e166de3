"""The logit lens: a metric as if the model ended early."""

import numpy as np

from tinygpt_jax.figures.lines import MARKERS, draw_line
from tinygpt_jax.figures.style import WIDTH, Figure, new_figure, say
from tinygpt_jax.figures.words import caption, safe, the_metric, with_unit
from tinygpt_jax.lab.read.lens import LogitLens

NAMED = 14
"""The most stages that are named."""


def figure(result: LogitLens, theme: str = "light") -> Figure:
    d, size = result.definition, len(result.value)
    stages = [safe(str(stage)) for stage in result.labels("stage", size)]
    with new_figure(WIDTH, 3.3, theme) as (figure, colors):
        ax = figure.add_subplot()
        draw_line(ax, np.arange(size), result.value, result.se, colors.lines[0], safe(d.metric), MARKERS[0])
        every = max(1, -(-size // NAMED))
        ax.set_xticks(range(0, size, every), stages[::every], rotation=30 if size > 7 else 0)
        ax.set_ylabel(safe(with_unit(d.metric, d.unit)))
        metric = the_metric(d)
        shown = f"Logit lens: {metric} of the residual stream after each layer, read by the final norm and unembedding."
        said = f"{metric[:1].upper()}{metric[1:]} if the model ended at each stage"
        say(figure, said, caption(d, f"{shown} Band: ± 1 standard error."))
    return figure
