"""The activation of the MLP, where a model's own inputs lie, and its widths."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import SMALL, WIDTH, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.words import aligned, caption, short
from tinygpt_jax.lab.read.mlp import ActivationCurves, MlpWidths
from tinygpt_jax.statistics import mean_and_se


def activation_figure(result: ActivationCurves, theme: str = "light") -> Figure:
    """The model's own function first."""
    curves = {"GELU": result.gelu, "ReLU": result.relu}
    own = sorted(curves, key=lambda name: name.lower() != result.activation)
    shown = "Left, what each function makes of its input; right, its slope. Shaded: where the inputs of this model's "
    shown += f"{own[0]} lie, all layers, height not to scale."
    below = np.mean(result.below, 0)
    if len(below) > 1:
        share, error = (100 * float(one) for one in mean_and_se(below, result.definition.ordered))
        shown += f" Below 0: {with_error(share, error, decimals(share, error))} %."
    return draw_activation(
        result.x,
        {name: curves[name] for name in own},
        slopes={"ReLU": np.asarray(result.x) > 0},
        density=result.density,
        caption=caption(result.definition, shown),
        theme=theme,
    )


def activation_lines(result: ActivationCurves) -> list[str]:
    if result.below.shape[-1] < 2:
        below = [with_error(share) for share in result.below.mean(-1)]
    else:
        below = [with_error(*both) for both in zip(*mean_and_se(result.below, result.definition.ordered), strict=True)]
    body = [[str(i), *both] for i, both in enumerate(zip(below, map(with_error, result.outside), strict=True))]
    title = f"  inputs of {result.activation} by layer, as shares of 1; their density: see the CSV"
    return [title, *aligned(["layer", "below 0", "beyond the bins"], body)]


def draw_activation(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    slopes: Mapping[str, ArrayLike],
    density: ArrayLike,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Two named functions (N,) over their input x (N,), and their slopes; shaded, where a model's own inputs lie.

    Args:
        slopes: (N,) of those functions that have a kink; others from neighbours, which would round a kink off
        density: (N,) of the inputs, per unit of x

    Raises:
        UserError: x has fewer than two points or does not rise.
    """
    x = np.asarray(x, np.float64)
    if len(x) < 2 or not (np.diff(x) > 0).all():
        raise UserError(f"x has {len(x)} numbers: must be two or more that rise")
    drawn, exact = ({name: with_gaps(row) for name, row in rows.items()} for rows in (curves, slopes))
    inputs = with_gaps(density)
    with new_figure(WIDTH, 3.5, theme) as (figure, colors):
        axes = figure.subplots(1, 2)
        for ax, label in zip(axes, ("output", "slope"), strict=True):
            zero_line(ax, colors, "x")
            zero_line(ax, colors, "y")
            for i, (name, line) in enumerate(drawn.items()):
                y = line if label == "output" else exact[name] if name in exact else np.gradient(line, x)
                ax.plot(x, y, color=colors.lines[i % len(colors.lines)], label=short(name, 22), dashes=(4, 1.5 * i))
            ax.set_xlabel("input")
            ax.set_ylabel(label)
            ax.set_xlim(x[0], x[-1])
            back = ax.twinx()  # without numbers: only where there are many inputs matters
            back.fill_between(x, inputs, color=colors.muted, alpha=0.3, linewidth=0)
            back.set_ylim(0, 1.15 * max(np.nanmax(inputs, initial=0), 1e-9))
            back.set_yticks([])
            back.spines[:].set_visible(False)
        axes[0].legend(loc="upper left")
        say(figure, _activation_headline(x, drawn, inputs), caption)
    return figure


def _activation_headline(x: NDArray, curves: Mapping[str, NDArray], inputs: NDArray) -> str:
    first, second = curves
    gap = np.abs(curves[first] - curves[second])
    at = int(np.argmax(np.nan_to_num(gap, nan=-1.0)))
    said = f"{first} and {second} differ by at most {number(gap[at], 2)}, at {number(x[at], 2)}"
    if not np.nansum(inputs) > 0:
        return said
    below = np.nansum(inputs[x < 0]) / np.nansum(inputs)
    return f"{said}; {100 * below:.0f} % of this model's inputs are below 0"


def mlp_widths_figure(result: MlpWidths, theme: str = "light") -> Figure:
    said = caption(result.definition, "Each bar is as tall as one layer's MLP is wide at that stage.")
    return draw_mlp_widths(_stages(result), caption=said, theme=theme)


def mlp_widths_lines(result: MlpWidths) -> list[str]:
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
