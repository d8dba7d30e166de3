"""How wide an MLP is from stage to stage, to scale."""

import itertools
from collections.abc import Sequence

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import SMALL, WIDTH, Figure, new_figure, say
from tinygpt_jax.figures.text import aligned
from tinygpt_jax.figures.words import caption, short
from tinygpt_jax.lab.read.mlp import MlpWidths


def figure(result: MlpWidths, theme: str = "light") -> Figure:
    said = caption(result.definition, "Each bar is as tall as one layer's MLP is wide at that stage.")
    return draw_mlp_widths(_stages(result), caption=said, theme=theme)


def lines(result: MlpWidths) -> list[str]:
    body = [[name, f"{width:,}", f"{parameters:,}"] for name, width, parameters in _stages(result)]
    return aligned(["stage", "width", "parameters"], body)


def _stages(result: MlpWidths) -> list[tuple[str, int, int]]:
    return list(zip(result.stages, result.width.tolist(), result.parameters.tolist(), strict=True))


def draw_mlp_widths(stages: Sequence[tuple[str, int, int]], *, caption: str = "", theme: str = "light") -> Figure:
    """Stages as (name, width, parameters of the step into it), in order.

    Raises:
        UserError: there is no stage, or a width is not above 0.
    """
    if not stages or any(width < 1 for _, width, _ in stages):
        raise UserError(f"stages are {list(stages)!r}: name one or more, each with a width above 0")
    widths = [width for _, width, _ in stages]
    top = max(widths)
    with new_figure(max(WIDTH, 1.05 * len(stages)), 3.4, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (name, width, parameters) in enumerate(stages):
            ax.plot([i, i], [-width / 2, width / 2], color=colors.lines[0], linewidth=5, solid_capstyle="butt")
            ax.text(i, -0.53 * top, f"{width:,} wide", ha="center", va="top", size=SMALL)
            ax.text(i, 0.53 * top, short(name, 22), ha="center", va="bottom", size=SMALL)
            if i:
                before = widths[i - 1]
                sides = [-before / 2, -width / 2], [before / 2, width / 2]
                ax.fill_between([i - 1, i], *sides, color=colors.lines[0], alpha=0.18, linewidth=0)
                count = f"{parameters:,}\nparameters" if parameters else "no\nparameters"
                ax.text(i - 0.5, 0, count, ha="center", va="center", size=SMALL)
        ax.set_xlim(-0.4, max(len(stages) - 0.6, 0.4))
        ax.set_ylim(-0.64 * top, 0.64 * top)
        ax.set_axis_off()
        total = sum(parameters for *_, parameters in stages)
        wide = " → ".join(f"{width:,}" for width, _ in itertools.groupby(widths))
        say(figure, f"The MLP is {wide} numbers wide, with {total:,} parameters", caption)
    return figure
