"""Effects of interventions, estimates of them and the scores of heads: bars, maps and scatter plots."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from tinygpt_jax.digits import number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.bars import MOST, bar_chart
from tinygpt_jax.figures.lines import name_points
from tinygpt_jax.figures.maps import Axis, heat_map, named, numbered
from tinygpt_jax.figures.style import WIDTH, Figure, lay_out, new_figure, say, zero_line
from tinygpt_jax.figures.words import (
    Words,
    aligned,
    caption,
    effects_headline,
    largest,
    safe,
    short,
    table_lines,
    the_metric,
    with_unit,
    words_of,
)
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.order import WORSE, by_size, does, plain_changes
from tinygpt_jax.lab.patch.attribution import Attribution
from tinygpt_jax.lab.patch.paths import Paths
from tinygpt_jax.lab.read.lens import LogitAttribution
from tinygpt_jax.lab.read.scores import HeadScores
from tinygpt_jax.lab.remove.ablate import Ablation, Pairs
from tinygpt_jax.lab.remove.importance import ESTIMATES, Importance
from tinygpt_jax.lab.remove.shapley import Shapley
from tinygpt_jax.lab.result import Definition, Result

LISTED = 16
"""Pairs that are named on a terminal."""
MOST_CELLS = 260
"""The most cells that have their numbers."""
ABREAST = 3
"""The most panels in a row."""


def ablation_figure(result: Ablation, theme: str = "light") -> Figure:
    d, effect, changes = result.definition, np.asarray(result.effect, np.float64), result.changes()
    names = [f"head {name}" for name in result.names] if "head" in result.over else result.names
    done = "it alone is kept in its layer" if d.direction == "keep" else "it is removed"
    shown = f"For each {d.part()}, the change of {the_metric(d)} when {done}; ± 1 standard error."
    headline = effects_headline(d, changes._replace(names=names))
    words = words_of(d, headline, f"change of {the_metric(d)}", shown)
    if effect.ndim == 1:
        return bar_chart(result.names, effect, result.se, words, signed=True, theme=theme)
    rows, columns = (numbered(axis, size) for axis, size in zip(result.over, effect.shape, strict=True))
    return heat_map(effect, result.se, rows, columns, words, signed=True, theme=theme)


def shapley_figure(result: Shapley, theme: str = "light") -> Figure:
    d = result.definition
    shown = f"Each one's share of what all together do to {the_metric(d)}, over all orders in which they may join."
    drawn = " Errors: over examples and orders together." * bool(np.any(result.sampling_se))
    headline = f"Shapley value of each {d.part()}: {largest(result.changes())}"
    words = words_of(d, headline, f"share of {the_metric(d)}", shown + drawn)
    return bar_chart(result.names, np.ravel(result.value), np.ravel(result.se), words, signed=True, theme=theme)


def shapley_lines(result: Shapley) -> list[str]:
    lowers = does(-1, result.definition.metric)
    orders = ["  errors: over examples and orders together"] * bool(np.any(result.sampling_se))
    return [
        *table_lines(result),
        f"  a value below 0: the head {lowers}; the values add up to intact less all removed",
        *orders,
    ]


def pairs_figure(result: Pairs, theme: str = "light") -> Figure:
    """Each with each; the diagonal, where there is no interaction, is a gap."""
    d, names = result.definition, result.names
    values = np.array(result.interaction, np.float64)
    np.fill_diagonal(values, np.nan)
    errors = np.asarray(result.interaction_se, np.float64)
    side = {1: "; above 0, the two stand in for each other", -1: "; below 0, the two stand in for each other"}
    shown = f"Effect of removing both less the effects of removing each alone{side.get(WORSE.get(d.metric, 0), '')}."
    headline = f"Interaction of removed pairs: {largest(result.changes())}"
    words = words_of(d, headline, "joint effect − sum of both alone", shown)
    return heat_map(values, errors, named("one", names), named("the other", names), words, signed=True, theme=theme)


def pairs_lines(result: Pairs) -> list[str]:
    first, second = np.triu_indices(len(result.names), 1)
    order = by_size(result.changes())
    body = [
        [
            f"{result.names[i]} with {result.names[j]}",
            with_error(result.joint[i, j], result.joint_se[i, j], signed=True),
            with_error(result.interaction[i, j], result.interaction_se[i, j], signed=True),
        ]
        for i, j in zip(first[order[:LISTED]], second[order[:LISTED]], strict=True)
    ]
    title = f"  interaction: the joint effect less both alone; the largest of {len(first):,} pairs"
    return [title, *aligned(["pair", "joint", "interaction"], body)]


def paths_figure(result: Paths, theme: str = "light") -> Figure:
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
    words = words_of(d, effects_headline(d, result.changes()), "effect of the path", shown)
    rows, columns = [result.names[i] for i in sends], [receivers[i] for i in receives]
    return heat_map(
        effect[there], error[there], named("from", rows), named("to", columns), words, signed=True, theme=theme
    )


def logit_attribution_figure(result: LogitAttribution, theme: str = "light") -> Figure:
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
    sums = f"sum to {number(sum_, 3)} {d.unit}; the model's own is {number(total, 3)}"
    words = words_of(d, f"Contributions to the {d.metric} {sums}", f"contribution to the {d.metric}", shown)
    return bar_chart(names, values, errors, words, signed=True, theme=theme)


def scores_figure(result: HeadScores, theme: str = "light") -> Figure:
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
        named("head", [*(head_name(*head) for head in np.ndindex(L, H)), "by chance"]),
        Axis("", [name.replace("_", " ") for name in scores]),
        Words(
            f"What kind of head each is{on}: scores of {L * H} head{'s' * (L * H > 1)}",
            "score; in a column past 1, its share of the largest",
            caption(d, shown),
        ),
        limits=(-1, 1),
        shown=values,
        most=MOST_CELLS,
        theme=theme,
    )


def first_array_figure(result: Result, theme: str = "light") -> Figure:
    """Bars of one axis; a map of two, and of more, with all but the last as rows."""
    d, name = result.definition, next(iter(result.AXES), None)
    values = np.asarray(np.nan if name is None else getattr(result, name), np.float64)
    if name is None or not values.ndim:
        raise UserError(f"a result of kind {type(result).__name__} has no array to draw: see its table instead")
    axes, shape, what, signed = result.axes(name), values.shape, name.replace("_", " "), result.has_sign(name)
    errors = next((getattr(result, e) for e in (f"{name}_se", "se") if getattr(result, e, None) is not None), None)
    if errors is not None and np.shape(errors) != shape:
        errors = None
    words = words_of(d, _array_headline(result, name, values, errors), what)
    last = result.places(axes[-1:], shape[-1:], brief=True)
    if values.ndim == 1:
        return bar_chart(last, values, errors, words, signed=signed, theme=theme)
    rows = named(", ".join(axes[:-1]), result.places(axes[:-1], shape[:-1], brief=True))
    values = values.reshape(len(rows.names), -1)
    errors = None if errors is None else np.reshape(errors, values.shape)
    return heat_map(values, errors, rows, named(axes[-1], last), words, signed=signed, theme=theme)


def _array_headline(result: Result, name: str, values: np.ndarray, errors: np.ndarray | None) -> str:
    d, what, names = result.definition, name.replace("_", " "), result.places(result.axes(name), values.shape)
    changes = result.changes()
    if changes is not None and name == "effect":
        return effects_headline(d, changes._replace(names=names))
    changes = plain_changes(names, values, errors, d.unit, what) if changes is None else changes._replace(names=names)
    return f"{what[:1].upper()}{what[1:]}: {largest(changes)}"


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
        return first_array_figure(result, theme)
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
            zero_line(ax, colors, "x")
            zero_line(ax, colors, "y")
            x, x_error, y, y_error = panel
            ax.errorbar(
                x, y, xerr=x_error, yerr=y_error, fmt="o", markersize=3, elinewidth=0.7, color=colors.lines[0],
                ecolor=colors.muted,
            )  # fmt: skip
            ax.axline((0, 0), slope=1, linestyle="--", color=colors.muted, linewidth=0.8, zorder=0)
            ax.locator_params(axis="x", nbins=3)
            ax.set_ylabel(safe(with_unit(name, d.unit)))
            ax.set_xlabel(safe(with_unit("effect", d.unit)))
        shown = "Each point: estimate and measured effect, ± 1 standard error each; on the dashed line they are equal."
        say(figure, headline, caption(d, shown))
        lay_out(figure)  # names go where there is room
        for ax, (x, _, y, _) in zip(grid, panels, strict=True):
            name_points(ax, x, y, list(map(short, names)), np.abs(x), up=5)  # above the whiskers
    return figure
