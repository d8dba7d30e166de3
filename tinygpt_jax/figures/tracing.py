"""Where in a model an effect arises: patching, paths, attribution of logits; how good estimates are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.digits import number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.bars import MOST, bar_chart
from tinygpt_jax.figures.maps import Axis, heat_map, named, numbered
from tinygpt_jax.figures.style import SMALL, WIDTH, Theme, new_figure, say, zero_line
from tinygpt_jax.figures.words import Words, largest, safe, short, visible
from tinygpt_jax.figures.words import caption as caption_of
from tinygpt_jax.lab.order import plain_changes
from tinygpt_jax.markup import marked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def patching_map(
    effect: ArrayLike,
    errors: ArrayLike | None = None,
    *,
    unit: str,
    tokens: Sequence[str] | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Effects of patching: (L, T) with the T tokens of the prompt, or (L, H) of heads where there are none.

    Raises:
        UserError: the effects are no such map, or errors or tokens do not fit them.
    """
    effect = _map("effect", effect)
    L, N = effect.shape
    columns = numbered("head", N) if tokens is None else Axis("token", [visible(token) for token in tokens])
    heads = [f"head {j}" for j in range(N)]
    names = heads if tokens is None else [f"token {j} ({marked(token)})" for j, token in enumerate(tokens)]
    places = [f"layer {i}, {name}" for i in range(L) for name in names]
    headline = largest(plain_changes(places, effect, errors, unit))
    return heat_map(
        effect,
        errors,
        numbered("layer", L),
        columns,
        Words(headline, f"effect of the patch ({unit})", caption),
        signed=True,
        theme=theme,
    )


def path_matrix(
    effect: ArrayLike,
    errors: ArrayLike | None = None,
    *,
    senders: Sequence[str],
    receivers: Sequence[str],
    unit: str,
    headline: str = "",
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Effects of the direct paths from each sender to each receiver, (senders, receivers); NaN where there is no path.

    Raises:
        UserError: errors or names do not fit the effects.
    """
    effect = _map("effect", effect)
    paths = [f"{sender} to {receiver}" for sender in senders for receiver in receivers]
    headline = headline or largest(plain_changes(paths, effect, errors, unit))
    return heat_map(
        effect,
        errors,
        named("from", senders),
        named("to", receivers),
        Words(headline, f"effect of the path ({unit})", caption),
        signed=True,
        theme=theme,
    )


def shapley_bars(
    names: Sequence[str],
    shapley: ArrayLike,
    shapley_se: ArrayLike | None = None,
    ablation: ArrayLike | None = None,
    ablation_se: ArrayLike | None = None,
    *,
    unit: str,
    headline: str = "",
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Shapley values (N,) as bars and, as points beside them, the effects of removing each alone (N,).

    Raises:
        UserError: an array is not one number for each name.
    """
    beside = None if ablation is None else ("Shapley value", "removed alone", ablation, ablation_se)
    headline = headline or largest(plain_changes(names, shapley, shapley_se, unit, "Shapley value"))
    return bar_chart(
        names,
        shapley,
        shapley_se,
        Words(headline, f"share of the metric ({unit})", caption),
        beside=beside,
        signed=True,
        theme=theme,
    )


def logit_attribution(result: Any, *, theme: str = "light") -> Figure:
    """The contributions of a `LogitAttribution`; the small ones of many as one bar, so that the sum stays."""
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
    headline = f"Contributions sum to {number(sum_, 3)} {d.unit}; the model's own {d.metric} is {number(total, 3)}"
    return bar_chart(
        names,
        values,
        errors,
        Words(headline, f"contribution to the {d.metric} ({d.unit})", caption_of(d)),
        signed=True,
        theme=theme,
    )


class Estimate(NamedTuple):
    """What a cheaper way says of each of N components."""

    name: str
    value: ArrayLike
    se: ArrayLike | None = None
    correlation: tuple[float, float] | None = None
    """of ranks, with the true effects, and its standard error (`statistics.rank_correlation_and_se`)"""


def importance_scatter(
    estimates: Sequence[Estimate],
    effect: ArrayLike,
    effect_se: ArrayLike | None = None,
    *,
    names: Sequence[str],
    unit: str,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Estimates of each component's effect against the effect measured (N,), one panel an estimate; on the dashed line
    they agree.

    Raises:
        UserError: an array is not one number for each name, or there is no estimate.
    """
    x = with_gaps(effect)
    for name, array in (("effect", x), *((one.name, np.asarray(one.value)) for one in estimates)):
        if array.shape != (len(names),) or not estimates:
            raise UserError(f"{name} has shape {array.shape} for {len(names)} names: give one number for each")
    said = [f"{e.name} {with_error(*e.correlation, places=2)}" for e in estimates if e.correlation is not None]
    headline = f"Rank correlation with the effect: {', '.join(said)}" if said else "Estimate against effect"
    columns = min(len(estimates), 3)
    rows = -(-len(estimates) // columns)
    with new_figure(4.2 if columns == 1 else WIDTH, 1.3 + rows * (2.9, 2.6, 2.0)[columns - 1], theme) as (
        figure,
        colors,
    ):
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for ax, one in zip(grid.flat, estimates, strict=False):
            _panel(ax, one, x, effect_se, names, colors)
            ax.set_ylabel(safe(f"{one.name} ({unit})"))
        for ax in grid[-1]:
            ax.set_xlabel(safe(f"effect ({unit})"))
        for ax in grid.flat[len(estimates) :]:
            ax.set_axis_off()
        say(figure, headline, f"Whiskers: ± 1 standard error. Dashed: estimate and effect are equal. {caption}")
    return figure


def _panel(
    ax: Axes, one: Estimate, x: np.ndarray, effect_se: ArrayLike | None, names: Sequence[str], theme: Theme
) -> None:
    y = with_gaps(one.value)
    zero_line(ax, theme, "x")
    zero_line(ax, theme, "y")
    ax.errorbar(
        x, y, xerr=effect_se, yerr=one.se, fmt="o", markersize=3, elinewidth=0.7, color=theme.lines[0],
        ecolor=theme.muted,
    )  # fmt: skip
    ax.axline((0, 0), slope=1, linestyle="--", color=theme.muted, linewidth=0.8, zorder=0)
    for i in _apart(x, y):
        ax.annotate(short(names[i]), (x[i], y[i]), (4, 3), textcoords="offset points", size=SMALL)


def _apart(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Points to be named, the largest first: those with room for a name beside them, at most five."""
    there = np.flatnonzero(np.isfinite(x + y))
    wide, high = (max(np.ptp(a[there]), 1e-12) if len(there) else 1.0 for a in (x, y))

    def has_room(i: int) -> bool:
        right, up = (x[there] - x[i]) / wide, (y[there] - y[i]) / high
        return ((right > -0.05) & (right < 0.25) & (up > -0.05) & (up < 0.12)).sum() == 1  # itself

    largest = there[np.argsort(-np.abs(x[there]), kind="stable")]
    return [int(i) for i in largest if has_room(i)][:5]


def _map(name: str, values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise UserError(f"{name} has shape {values.shape}: must have two axes")
    return values
