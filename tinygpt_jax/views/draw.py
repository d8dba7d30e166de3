"""One way from any saved result to its figure."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tinygpt_jax.heads
from tinygpt_jax.errors import UserError
from tinygpt_jax.heads.results import Result, read_result
from tinygpt_jax.views.bars import bar_chart
from tinygpt_jax.views.heads import attention_maps, effect_map, interaction_matrix, score_table
from tinygpt_jax.views.lines import gates_plot, lens_lines, pruning_curve
from tinygpt_jax.views.maps import Axis, heat_map
from tinygpt_jax.views.style import save_figure
from tinygpt_jax.views.tracing import logit_attribution
from tinygpt_jax.views.words import Words, caption, largest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Result, *, theme: str = "light") -> Figure:
    """The figure of a result, by its kind; of a kind without one of its own, a map or bars of its first array.

    Raises:
        UserError: matplotlib is missing, there is no such theme, or the result's first array has more than two axes.
    """
    return FIGURES.get(type(result).__name__, _first_array)(result, theme=theme)


def draw_file(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, theme: str = "light") -> Any:
    """Draws the result saved in a JSON file to OUT.png and OUT.svg; default: beside it, under its name.

    Returns:
        both paths

    Raises:
        UserError: the file holds no result, or as for `draw` and `save_figure`.
    """
    for module in pkgutil.iter_modules(tinygpt_jax.heads.__path__, "tinygpt_jax.heads."):
        import_module(module.name)  # a kind of result is known once its module is
    return save_figure(draw(read_result(path), theme=theme), Path(path).with_suffix("") if out is None else out)


def _attention(result: Any, *, theme: str) -> Figure:
    return attention_maps(result.patterns, result.tokens, caption=caption(result.definition), theme=theme)


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


def _first_array(result: Any, *, theme: str) -> Figure:
    d, name = result.definition, next(iter(result.AXES), None)
    if name is None:
        raise UserError(f"a result of kind {type(result).__name__} has no array to draw: see its table instead")
    values, axes = np.asarray(getattr(result, name), np.float64), result.axes(name)
    errors = next((getattr(result, e) for e in (f"{name}_se", "se") if getattr(result, e, None) is not None), None)
    if errors is not None and np.shape(errors) != values.shape:
        errors = None
    names = [[str(label) for label in result.labels(axis, size)] for axis, size in zip(axes, values.shape, strict=True)]
    if values.ndim not in (1, 2):
        raise UserError(f"{type(result).__name__}.{name} has axes {', '.join(axes)}: a figure needs one or two of them")
    places = names[0]
    if values.ndim == 2:
        places = [f"{axes[0]} {row}, {axes[1]} {column}" for row in names[0] for column in names[1]]
    what = name.replace("_", " ")
    words = Words(largest(places, values, errors, d.unit, what), f"{what} ({d.unit})", caption(d))
    if values.ndim == 1:
        return bar_chart(places, values, errors, words, theme=theme)
    rows, columns = (Axis(*side) for side in zip(axes, names, strict=True))
    return heat_map(values, errors, rows, columns, words, theme=theme)


FIGURES: dict[str, Callable[..., Figure]] = {
    "Ablation": effect_map,
    "AttentionMaps": _attention,
    "HeadScores": score_table,
    "LearnedGates": gates_plot,
    "LogitAttribution": logit_attribution,
    "LogitLens": _lens,
    "Pairs": interaction_matrix,
    "PruningCurve": pruning_curve,
}
"""Kind of a result -> its figure."""
