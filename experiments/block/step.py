"""One step of the walk-through: why, the code, the numbers and the figure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.block.given import apart
from tinygpt_jax import model, reference

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Step:
    title: str
    text: str
    """why, in a sentence or two"""
    code: tuple[tuple[str, str], ...]
    """(where it is from, source) of each excerpt"""
    printed: tuple[str, ...]
    """the numbers, ready to be read"""
    stem: str
    """of the figure's files"""
    alt: str
    """what the figure shows"""
    draw: Callable[[str], Figure]
    """draw(theme)"""
    numbers: dict[str, Any]
    """the same numbers for results.json; under `apart`, how far each side is from NumPy in float64"""


def both_sources(*names: str) -> tuple[tuple[str, str], ...]:
    """The functions of these names as they stand in the NumPy reference, then in the JAX model."""
    homes = (("NumPy: tinygpt_jax/reference.py", reference), ("JAX: tinygpt_jax/model.py", model))
    return tuple(
        (where, "\n\n\n".join(inspect.getsource(getattr(home, name)).rstrip() for name in names))
        for where, home in homes
    )


def both_excerpts(name: str, first: str, last: str) -> tuple[tuple[str, str], ...]:
    """Of both functions of that name, the lines from the one that begins with `first` to that beginning with `last`."""
    return tuple((where, excerpt(source, first, last)) for where, source in both_sources(name))


def excerpt(source: str, first: str, last: str) -> str:
    """The lines of a function's body from one that begins with `first` to the next that begins with `last`.

    Raises:
        ValueError: there are no such lines, because the source has changed.
    """
    lines = source.split("\n")
    begin = next((i for i, line in enumerate(lines) if line.strip().startswith(first)), None)
    end = next((i for i, line in enumerate(lines) if line.strip().startswith(last) and i >= (begin or 0)), None)
    if begin is None or end is None:
        raise ValueError(f"no lines from {first!r} to {last!r} in\n{source}")
    return inspect.cleandoc("\n" + "\n".join(lines[begin : end + 1]))


def own_source(*functions: Callable[..., Any]) -> tuple[tuple[str, str], ...]:
    """Functions of the walk-through itself."""
    home = inspect.unwrap(functions[0]).__module__.rsplit(".", 1)[-1]
    return ((f"experiments/block/{home}.py", "\n\n\n".join(inspect.getsource(f).rstrip() for f in functions)),)


def row(values: Any, digits: int = 4) -> str:
    """Numbers of one line, with room for a minus; 0 has no sign of its own."""
    return "  ".join(f"{round(float(v), digits) + 0.0: .{digits}f}" for v in np.ravel(values))


def agreement(values: dict[str, np.ndarray]) -> tuple[str, dict[str, float]]:
    """How far the sides are apart, as a line and as numbers."""
    far = apart(values)
    told = "; ".join(f"{name} {distance:.1e}" for name, distance in far.items())
    return f"largest difference from NumPy in float64: {told}", far


def drawn(draw: Callable[..., Figure], *args: Any, **options: Any) -> Callable[[str], Figure]:
    """draw(theme) by a function of `tinygpt_jax.figures`."""
    return lambda theme: draw(*args, **options, theme=theme)
