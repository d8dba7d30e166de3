"""A figure that shows itself in a notebook. Imports matplotlib: only `new_figure` asks for this module."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from tinygpt_jax.figures.fonts import quietly
from tinygpt_jax.figures.style import SCREEN_DPI, encoded


class ShownFigure(Figure):
    """A figure that a notebook shows as a PNG, whatever its backend and settings."""

    def draw(self, renderer: Any) -> None:
        with quietly():
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        return encoded(self, "png", SCREEN_DPI)
