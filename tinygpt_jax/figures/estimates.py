"""Estimates by gradient beside the effects measured: of switching heads off, and of patches."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import with_error, with_gaps
from tinygpt_jax.figures import effects
from tinygpt_jax.figures.lines import name_points
from tinygpt_jax.figures.style import WIDTH, Axes, Figure, Theme, lay_out, new_figure, say, zero_line
from tinygpt_jax.figures.text import table_lines
from tinygpt_jax.figures.words import caption, safe, short, with_unit
from tinygpt_jax.lab.patch.attribution import Attribution
from tinygpt_jax.lab.remove.importance import ESTIMATES, Importance
from tinygpt_jax.lab.result import Definition

ABREAST = 3
"""The most panels in a row."""


def importance_figure(result: Importance, theme: str = "light") -> Figure:
    estimates = {name: (getattr(result, name), getattr(result, f"{name}_se")) for name in ESTIMATES}
    headline = f"Gradient estimates of the effect of removing a head: rank correlation {_correlations(result)}"
    return _scatter(estimates, (result.effect, result.effect_se), result.names, headline, result.definition, theme)


def importance_lines(result: Importance) -> list[str]:
    return [
        *table_lines(result),
        "  absolute: mean |slope| along the gate; signed: the effect to first order; integrated: a share of the effect",
        "  of switching all heads off together; effect: switched off alone",
        f"  rank correlation with the effect, of absolute with its size: {_correlations(result)}",
    ]


def attribution_figure(result: Attribution, theme: str = "light") -> Figure:
    """Beside the patches themselves where they were measured; otherwise the estimates alone."""
    if result.effect is None:
        return effects.first_array(result, theme)
    names = result.places(result.axes("effect"), np.shape(result.effect), brief=True)
    headline = f"Patching to first order beside patching: rank correlation {_correlations(result)}"
    estimates = {"first order": (result.estimate, result.estimate_se)}
    return _scatter(estimates, (result.effect, result.effect_se), names, headline, result.definition, theme)


def _correlations(result: Importance | Attribution) -> str:
    names = ESTIMATES if isinstance(result, Importance) else result.sites
    correlation, se = (np.ravel(np.asarray(one)) for one in (result.correlation, result.correlation_se))
    found = zip(names, correlation, se, strict=True)
    return ", ".join(f"{name} {with_error(r, se, 2)}" for name, r, se in found)


def _scatter(
    estimates: Mapping[str, tuple[ArrayLike, ArrayLike]],
    effect: tuple[ArrayLike, ArrayLike | None],
    names: Sequence[str],
    headline: str,
    d: Definition,
    theme: str,
) -> Figure:
    """Estimates of each component's effect against the effect, one panel an estimate."""
    columns = min(len(estimates), ABREAST)
    with new_figure(4.2 if columns == 1 else WIDTH, 1.4 + (2.9, 2.6, 2.0)[columns - 1], theme) as (figure, colors):
        grid = figure.subplots(1, columns, squeeze=False)[0]
        panels = [[with_gaps(np.ravel(np.asarray(a))) for a in (*effect, *both)] for both in estimates.values()]
        for ax, name, panel in zip(grid, estimates, panels, strict=True):
            _panel(ax, panel, colors)
            ax.set_ylabel(safe(with_unit(name, d.unit)))
            ax.set_xlabel(safe(with_unit("effect", d.unit)))
        shown = "Each point: estimate and measured effect, ± 1 standard error each; on the dashed line they are equal."
        say(figure, headline, caption(d, shown))
        lay_out(figure)  # names go where there is room
        for ax, (x, _, y, _) in zip(grid, panels, strict=True):
            name_points(ax, x, y, list(map(short, names)), np.abs(x), up=5)  # above the whiskers
    return figure


def _panel(ax: Axes, arrays: Sequence[NDArray], theme: Theme) -> None:
    x, x_error, y, y_error = arrays
    zero_line(ax, theme, "x")
    zero_line(ax, theme, "y")
    ax.errorbar(
        x, y, xerr=x_error, yerr=y_error, fmt="o", markersize=3, elinewidth=0.7, color=theme.lines[0],
        ecolor=theme.muted,
    )  # fmt: skip
    ax.axline((0, 0), slope=1, linestyle="--", color=theme.muted, linewidth=0.8, zorder=0)
    ax.locator_params(axis="x", nbins=3)
