"""Scores or effects over training: curves, and an animation of maps."""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.digits import with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, MARKERS, draw_line
from tinygpt_jax.figures.maps import Kind, color_bar, draw_map, name_places, numbered, square_cells
from tinygpt_jax.figures.style import SCREEN_DPI, SMALL, WIDTH, Figure, new_figure, say
from tinygpt_jax.figures.words import caption, safe, short, with_unit
from tinygpt_jax.files import write_atomically
from tinygpt_jax.lab.read.over_training import OverTraining

HIGHLIGHTED = len(MARKERS)
"""Lines that have a colour and a name; others are grey."""


def figure(result: OverTraining, theme: str = "light") -> Figure:
    """A line a component; those that end largest have a colour."""
    d, steps, what = result.definition, np.asarray(result.steps), result.field.replace("_", " ")
    names = result.places(result.over, np.shape(result.value)[1:])
    lines = with_gaps(result.value).reshape(len(steps), len(names))
    bands = None if result.se is None else np.asarray(result.se, np.float64).reshape(lines.shape)
    order = np.argsort(-np.nan_to_num(np.abs(lines[-1])), kind="stable")
    with new_figure(WIDTH, 3.7, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i in order[HIGHLIGHTED:]:
            ax.plot(steps, lines[:, i], color=colors.muted, linewidth=0.6, alpha=0.6)
        for rank, i in reversed(list(enumerate(order[:HIGHLIGHTED]))):
            band = None if bands is None else bands[:, i]
            draw_line(ax, steps, lines[:, i], band, colors.lines[rank], short(names[i], 28), MARKERS[rank])
        ax.set_xlabel("training step")
        ax.set_ylabel(safe(with_unit(what, d.unit)))
        ax.legend(*(part[::-1] for part in ax.get_legend_handles_labels()), **BESIDE)
        shown = f"The {what} of each of {len(names)} at every kept step."
        shown += " Bands: ± 1 standard error." * (bands is not None)
        shown += f" Grey: the {len(names) - HIGHLIGHTED} smaller at the end." * (len(names) > HIGHLIGHTED)
        said = f"{what[:1].upper()}{what[1:]} over training, from step {steps[0]:,} to {steps[-1]:,}: "
        say(figure, f"{said}{names[order[0]]} ends largest", caption(d, shown))
    return figure


def animation(result: OverTraining, path: str | os.PathLike[str], *, rate: int = 4, theme: str = "light") -> Path:
    """Writes a GIF: the map (L, H) at one step after another, on one scale.

    Args:
        rate: frames per second

    Raises:
        UserError: the result has no map of layers and heads at each step, or the file cannot be written.
    """
    maps = np.asarray(result.value, np.float64)
    if maps.ndim != 3 or not maps.size:
        raise UserError(f"values have shape {maps.shape}: must be (steps, layers, heads), one or more of each")
    finite = maps[np.isfinite(maps)]
    top = float(np.abs(finite).max(initial=0)) or 1.0
    kind: Kind = "diverging" if (finite < 0).any() else "sequential"
    L, H = maps.shape[1:]
    cell = square_cells((L, H))
    with new_figure(max(H * cell + 1.6, 3.4), max(L * cell, 1.0) + 1.1, theme) as (figure, colors):
        ax = figure.add_subplot()
        image = draw_map(ax, maps[0], colors, kind, (-top if kind == "diverging" else 0, top))
        label = with_unit(result.field.replace("_", " "), result.definition.unit)
        color_bar(figure, image, ax, safe(label), fraction=0.06)
        name_places(ax, numbered("layer", L), numbered("head", H), (cell, cell))
        title = ax.set_title(" ", loc="left", size=SMALL + 2)

        def show(step: int, values: NDArray) -> None:
            image.set_data(np.ma.masked_invalid(values))
            title.set_text(f"step {step:,}")

        shows = [partial(show, int(step), values) for step, values in zip(result.steps, maps, strict=True)]
        content = _gif(figure, shows, rate)
    write_atomically(Path(path), content)
    return Path(path)


def _gif(figure: Figure, shows: Sequence[Callable[[], None]], rate: int) -> bytes:
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=rate)
    with tempfile.TemporaryDirectory() as folder:  # it writes to a name, and not at once
        path = Path(folder) / "frames.gif"
        with writer.saving(figure, str(path), dpi=SCREEN_DPI):
            for show in shows:
                show()
                writer.grab_frame()
        return path.read_bytes()
