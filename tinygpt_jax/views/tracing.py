"""Where in a model an effect arises: patching, paths, attribution of logits; how good estimates are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.errors import UserError
from tinygpt_jax.views.bars import MOST, bar_chart
from tinygpt_jax.views.maps import Axis, heat_map, numbered
from tinygpt_jax.views.style import SMALL, new_figure, say, zero_line
from tinygpt_jax.views.words import Words, largest, safe, visible, with_error
from tinygpt_jax.views.words import caption as caption_of

if TYPE_CHECKING:
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
    columns = numbered("head", N) if tokens is None else Axis("token", tokens)
    places = [f"layer {i}, {'head' if tokens is None else 'token'} {j}" for i in range(L) for j in range(N)]
    return heat_map(
        effect,
        errors,
        numbered("layer", L),
        columns,
        Words(largest(places, effect, errors, unit), f"effect of the patch ({unit})", caption),
        theme=theme,
    )


def path_matrix(
    effect: ArrayLike,
    errors: ArrayLike | None = None,
    *,
    senders: Sequence[str],
    receivers: Sequence[str],
    unit: str,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Effects of the direct paths from each sender to each receiver, (senders, receivers); NaN where there is no path.

    Raises:
        UserError: errors or names do not fit the effects.
    """
    effect = _map("effect", effect)
    paths = [f"{sender} to {receiver}" for sender in senders for receiver in receivers]
    headline = largest(paths, effect, errors, unit) if len(paths) == effect.size else ""
    return heat_map(
        effect,
        errors,
        Axis("from", senders),
        Axis("to", receivers),
        Words(headline, f"effect of the path ({unit})", caption),
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
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Shapley values (N,) as bars and, as points beside them, the effects of removing each alone (N,).

    Raises:
        UserError: an array is not one number for each name.
    """
    beside = None if ablation is None else ("Shapley value", "removed alone", ablation, ablation_se)
    return bar_chart(
        names,
        shapley,
        shapley_se,
        Words(largest(names, shapley, shapley_se, unit, "Shapley value"), f"share of the metric ({unit})", caption),
        beside=beside,
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
    headline = f"Contributions sum to {sum_:+.3f} {d.unit}; the model's own {d.metric} is {total:+.3f}"
    return bar_chart(
        names,
        values,
        errors,
        Words(headline, f"contribution to the {d.metric} ({d.unit})", caption_of(d)),
        theme=theme,
    )


def importance_scatter(
    estimate: ArrayLike,
    ablation: ArrayLike,
    estimate_se: ArrayLike | None = None,
    ablation_se: ArrayLike | None = None,
    *,
    names: Sequence[str],
    unit: str,
    correlation: tuple[float, float] | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """An estimate of each component's importance (N,) against the effect of removing it (N,), in the same unit; on the
    dashed line they agree.

    Args:
        correlation: of ranks, and its standard error (`heads.statistics.rank_correlation_and_se`)

    Raises:
        UserError: an array is not one number for each name.
    """
    x, y = (np.asarray(a, np.float64) for a in (ablation, estimate))
    for name, a in (("estimate", y), ("ablation", x)):
        if a.shape != (len(names),):
            raise UserError(f"{name} has shape {a.shape} for {len(names)} names: give one number for each")
    headline = "Estimate against ablation"
    if correlation is not None:
        headline = f"Rank correlation of estimate and ablation: {with_error(*correlation, places=2)}"
    with new_figure(4.2, 4.3, theme) as (figure, colors):
        ax = figure.add_subplot()
        zero_line(ax, colors, "x")
        zero_line(ax, colors, "y")
        ax.errorbar(
            x, y, xerr=ablation_se, yerr=estimate_se, fmt="o", markersize=3.5, elinewidth=0.7, color=colors.lines[0],
            ecolor=colors.muted,
        )  # fmt: skip
        ends = [float(pick([a for a in (*x, *y, 0.0) if np.isfinite(a)])) for pick in (min, max)]
        ax.plot(ends, ends, "--", color=colors.muted, linewidth=0.8, zorder=0)
        for i in np.argsort(-np.nan_to_num(np.abs(x)))[:5]:
            if np.isfinite(x[i]) and np.isfinite(y[i]):
                ax.annotate(visible(names[i]), (x[i], y[i]), (4, 3), textcoords="offset points", size=SMALL)
        ax.set_xlabel(safe(f"removed alone ({unit}); whiskers: ± 1 standard error"))
        ax.set_ylabel(safe(f"estimate ({unit})"))
        say(figure, headline, caption)
    return figure


def _map(name: str, values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise UserError(f"{name} has shape {values.shape}: must have two axes")
    return values
