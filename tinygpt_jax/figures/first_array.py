"""The figure of any result that has none of its own: its first array."""

import numpy as np

from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.maps import heat_map, named
from tinygpt_jax.figures.style import Figure
from tinygpt_jax.figures.words import Words, caption, effects_headline, largest, with_unit
from tinygpt_jax.lab.order import plain_changes
from tinygpt_jax.lab.result import Result


def figure(result: Result, theme: str = "light") -> Figure:
    """Bars of one axis; a map of two, and of more, with all but the last as rows."""
    d, name = result.definition, next(iter(result.AXES), None)
    values = np.asarray(np.nan if name is None else getattr(result, name), np.float64)
    if name is None or not values.ndim:
        raise UserError(f"a result of kind {type(result).__name__} has no array to draw: see its table instead")
    axes, shape, what, signed = result.axes(name), values.shape, name.replace("_", " "), result.has_sign(name)
    errors = next((getattr(result, e) for e in (f"{name}_se", "se") if getattr(result, e, None) is not None), None)
    if errors is not None and np.shape(errors) != shape:
        errors = None
    words = Words(_headline(result, name, values, errors), with_unit(what, d.unit), caption(d))
    last = result.places(axes[-1:], shape[-1:], brief=True)
    if values.ndim == 1:
        return bar_chart(last, values, errors, words, signed=signed, theme=theme)
    rows = named(", ".join(axes[:-1]), result.places(axes[:-1], shape[:-1], brief=True))
    values = values.reshape(len(rows.names), -1)
    errors = None if errors is None else np.reshape(errors, values.shape)
    return heat_map(values, errors, rows, named(axes[-1], last), words, signed=signed, theme=theme)


def _headline(result: Result, name: str, values: np.ndarray, errors: np.ndarray | None) -> str:
    d, what, names = result.definition, name.replace("_", " "), result.places(result.axes(name), values.shape)
    changes = result.changes()
    if changes is not None and name == "effect":
        return effects_headline(d, changes._replace(names=names))
    changes = plain_changes(names, values, errors, d.unit, what) if changes is None else changes._replace(names=names)
    return f"{what[:1].upper()}{what[1:]}: {largest(changes)}"
