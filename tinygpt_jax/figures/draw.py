"""One way from any saved result to its figure."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygpt_jax.digits import decimals, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.block import (
    activation_curves,
    head_split,
    mlp_widths,
    norm_rows,
    position_maps,
    residual_writes,
)
from tinygpt_jax.figures.curves import training_figure
from tinygpt_jax.figures.heads import attention_maps, effect_map, interaction_matrix, score_table
from tinygpt_jax.figures.lines import gates_plot, lens_lines, over_training, pruning_curve
from tinygpt_jax.figures.maps import heat_map, named
from tinygpt_jax.figures.style import save_figure
from tinygpt_jax.figures.tokens import embedding_figure, next_tokens_figure
from tinygpt_jax.figures.tracing import Estimate, importance_scatter, logit_attribution, path_matrix, shapley_bars
from tinygpt_jax.figures.words import Words, caption, largest
from tinygpt_jax.lab.kinds import BRIEF, read_result
from tinygpt_jax.lab.order import plain_changes
from tinygpt_jax.lab.result import Result
from tinygpt_jax.statistics import mean_and_se

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Result, *, theme: str = "light") -> Figure:
    """The figure of a result, by its kind; of a kind without one of its own, a map or bars of its first array.

    Raises:
        UserError: matplotlib is missing, there is no such theme, the result has nothing to draw, or its parts do not
            fit each other.
    """
    kind = type(result).__name__
    try:
        return FIGURES.get(kind, _first_array)(result, theme=theme)
    except (
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
    ) as error:  # a file can hold whatever fits the fields' types
        said = textwrap.shorten(repr(error), BRIEF, placeholder=" …")
        raise UserError(f"this {kind} cannot be drawn, its parts do not fit each other: {said}") from error


def draw_file(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, theme: str = "light"
) -> tuple[Path, Path]:
    """Draws the result saved in a JSON file to OUT.png and OUT.svg, whose paths it returns; default: beside the file.

    Raises:
        UserError: the file holds no result, or as for `draw` and `save_figure`.
    """
    return save_figure(draw(read_result(path), theme=theme), Path(path).with_suffix("") if out is None else out)


def _attention(result: Any, *, theme: str) -> Figure:
    return attention_maps(result.patterns, result.tokens, caption=caption(result.definition), theme=theme)


def _attribution(result: Any, *, theme: str) -> Figure:
    """Beside the patches themselves where they were measured; otherwise the estimates alone."""
    if result.effect is None:
        return _first_array(result, theme=theme)
    one_site = len(result.correlation) == 1
    known = (float(result.correlation[0]), float(result.correlation_se[0])) if one_site else None
    estimate = Estimate("first order", np.ravel(result.estimate), np.ravel(result.estimate_se), known)
    names = result.places(result.axes("effect"), np.shape(result.effect), brief=True)
    effect, error = np.ravel(result.effect), np.ravel(result.effect_se)
    return importance_scatter([estimate], effect, error, names=names, **_said(result, theme))


def _importance(result: Any, *, theme: str) -> Figure:
    kinds = zip(result.labels("estimate", 3), result.correlation, result.correlation_se, strict=True)
    estimates = [
        Estimate(name, np.ravel(getattr(result, name)), np.ravel(getattr(result, f"{name}_se")), (float(r), float(se)))
        for name, r, se in kinds
    ]
    effect, error = np.ravel(result.effect), np.ravel(result.effect_se)
    return importance_scatter(estimates, effect, error, names=result.names, **_said(result, theme))


def _lens(result: Any, *, theme: str) -> Figure:
    d = result.definition
    return lens_lines(
        {d.metric: result.value},
        {d.metric: result.se},
        label=f"{d.metric} ({d.unit})",
        stages=list(result.labels("stage", len(result.value))),
        caption=caption(d),
        theme=theme,
    )


def _over_training(result: Any, *, theme: str) -> Figure:
    return over_training(
        result.steps,
        np.reshape(result.value, (len(result.steps), -1)),
        result.se,
        label=f"{result.field.replace('_', ' ')} ({result.definition.unit})",
        names=result.places(result.over, np.shape(result.value)[1:]),
        caption=caption(result.definition),
        theme=theme,
    )


def _paths(result: Any, *, theme: str) -> Figure:
    """Only senders that lead somewhere, and inputs of receivers that something leads to."""
    arrays = [np.moveaxis(np.asarray(a, np.float64), 0, -1) for a in (result.effect, result.se)]
    effect, error = (array.reshape(len(result.names), -1) for array in arrays)
    receivers = [f"{name} {end}" for name in result.names for end in result.inputs]
    sends, receives = (np.flatnonzero(np.isfinite(effect).any(axis)) for axis in (1, 0))
    if not sends.size:
        raise UserError("there is no path: it leads from a layer to a later one, and no effect here is a finite number")
    there = np.ix_(sends, receives)
    return path_matrix(
        effect[there],
        error[there],
        senders=[result.names[i] for i in sends],
        receivers=[receivers[i] for i in receives],
        headline=largest(result.changes()),
        **_said(result, theme),
    )


def _shapley(result: Any, *, theme: str) -> Figure:
    said = _said(result, theme)
    if np.any(result.sampling_se):
        said["caption"] = f"Errors: over examples and orders, taken together. {said['caption']}"
    return shapley_bars(
        result.names, np.ravel(result.value), np.ravel(result.se), headline=largest(result.changes()), **said
    )


def _positions(result: Any, *, theme: str) -> Figure:
    """The model's own table first, whose channels are drawn as curves."""
    own, T = result.positions, len(result.sinusoidal)
    beside = "" if own == "sinusoidal" else ", for comparison"
    tables = {
        "learned": result.learned,
        "rotary (cosines, then sines)": result.rotary,
        f"sinusoidal{beside}": result.sinusoidal,
    }
    there = {name: table for name, table in tables.items() if table is not None}
    name = {"rope": "Rotary", "learned": "Learned", "sinusoidal": "Sinusoidal"}.get(own)
    said = f"{name} positions tell {T} positions apart" if name else "This model has no positions of its own"
    shown = "Each row is a position, each column a channel; below, a few channels of the first table."
    if own == "rope":
        shown += " The rotary factors multiply queries and keys; nothing is added to the residual stream."
    return position_maps(
        there,
        headline=f"{said}{'; sinusoidal ones for comparison' * bool(beside)}",
        caption=f"{shown} {caption(result.definition)}",
        theme=theme,
    )


def _norm_rows(result: Any, *, theme: str) -> Figure:
    stages = dict(zip(result.stages, result.values, strict=True))
    said = f"Each row is a token, each column a channel of the residual stream. {caption(result.definition)}"
    return norm_rows(stages, tokens=result.tokens, caption=said, theme=theme)


def _head_split(result: Any, *, theme: str) -> Figure:
    T, H, _ = np.shape(result.queries)
    queries = np.reshape(result.queries, (T, -1))
    shown = "Each row is a position, each column a channel of its query; boxes: the shape at each step of attention."
    said = f"{shown} {caption(result.definition)}"
    return head_split(queries, H, result.steps, what="queries", caption=said, theme=theme)


def _activation(result: Any, *, theme: str) -> Figure:
    """The model's own first."""
    curves = {"GELU": result.gelu, "ReLU": result.relu}
    own = sorted(curves, key=lambda name: name.lower() != result.activation)
    shaded = f"Shaded: density of the inputs of this model's {own[0]}, all layers, height not to scale."
    said = f"{shaded} {caption(result.definition)}"
    below = np.mean(result.below, 0)
    if len(below) > 1:
        share, error = (100 * float(one) for one in mean_and_se(below, result.definition.ordered))
        said = f"Below 0: {with_error(share, error, decimals(share, error))} %. {said}"
    return activation_curves(
        result.x,
        {name: curves[name] for name in own},
        slopes={"ReLU": np.asarray(result.x) > 0},
        density=result.density,
        caption=f"Left, what each function makes of its input; right, its slope. {said}",
        theme=theme,
    )


def _mlp(result: Any, *, theme: str) -> Figure:
    stages = list(zip(result.stages, result.width.tolist(), result.parameters.tolist(), strict=True))
    said = f"Each bar is as tall as one layer's MLP is wide at that stage. {caption(result.definition)}"
    return mlp_widths(stages, caption=said, theme=theme)


def _residual(result: Any, *, theme: str) -> Figure:
    shown = "Each point is the size of the residual stream, or of what attention or an MLP writes into it."
    said = f"{shown} {caption(result.definition)}"
    return residual_writes(result.names, result.kinds, result.rms, result.se, caption=said, theme=theme)


def _first_array(result: Any, *, theme: str) -> Figure:
    """Bars of one axis; a map of two, and of more, with all but the last as rows."""
    d, name = result.definition, next(iter(result.AXES), None)
    values = np.asarray(np.nan if name is None else getattr(result, name), np.float64)
    if name is None or not values.ndim:
        raise UserError(f"a result of kind {type(result).__name__} has no array to draw: see its table instead")
    axes, shape = result.axes(name), values.shape
    errors = next((getattr(result, e) for e in (f"{name}_se", "se") if getattr(result, e, None) is not None), None)
    if errors is not None and np.shape(errors) != shape:
        errors = None
    what = name.replace("_", " ")
    names = result.places(axes, shape)
    changes = result.changes()
    plain = plain_changes(names, values, errors, d.unit, what)
    headline = largest(plain if changes is None else changes._replace(names=names))
    words = Words(headline, f"{what} ({d.unit})", caption(d))
    last = result.places(axes[-1:], shape[-1:], brief=True)
    if values.ndim == 1:
        return bar_chart(last, values, errors, words, signed=result.has_sign(name), theme=theme)
    rows = named(", ".join(axes[:-1]), result.places(axes[:-1], shape[:-1], brief=True))
    values = values.reshape(len(rows.names), -1)
    errors = None if errors is None else np.reshape(errors, values.shape)
    return heat_map(values, errors, rows, named(axes[-1], last), words, signed=result.has_sign(name), theme=theme)


def _said(result: Any, theme: str) -> dict[str, Any]:
    return {"unit": result.definition.unit, "caption": caption(result.definition), "theme": theme}


FIGURES: dict[str, Callable[..., Figure]] = {
    "Ablation": effect_map,
    "ActivationCurves": _activation,
    "AttentionMaps": _attention,
    "Attribution": _attribution,
    "EmbeddingMap": embedding_figure,
    "HeadScores": score_table,
    "HeadSplit": _head_split,
    "Importance": _importance,
    "LearnedGates": gates_plot,
    "LogitAttribution": logit_attribution,
    "LogitLens": _lens,
    "MlpWidths": _mlp,
    "NormRows": _norm_rows,
    "NextTokens": next_tokens_figure,
    "OverTraining": _over_training,
    "Pairs": interaction_matrix,
    "Paths": _paths,
    "PositionTables": _positions,
    "PruningCurve": pruning_curve,
    "ResidualWrites": _residual,
    "Shapley": _shapley,
    "TrainingCurves": training_figure,
}
"""Kind of a result -> its figure."""
