"""How training went: losses, learning rate and gradient norm, and any measurement from checkpoint to checkpoint."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.digits import number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, MARKERS, draw_line, log_axis
from tinygpt_jax.figures.maps import Kind, color_bar, draw_map, name_places, numbered, square_cells
from tinygpt_jax.figures.style import SCREEN_DPI, SMALL, WIDTH, Axes, Figure, Theme, new_figure, say
from tinygpt_jax.figures.words import caption, safe, short, with_unit
from tinygpt_jax.files import write_atomically
from tinygpt_jax.lab.read.training import FIELDS, OverTraining, TrainingCurves

SMOOTHED = 0.02
"""Share of the steps that the bold line is a mean over."""
MARKED = 60
"""The most validations that have a marker each."""
HIGHLIGHTED = len(MARKERS)
"""Lines that have a colour and a name; others are grey."""


def training_curves_figure(result: TrainingCurves, theme: str = "light") -> Figure:
    """Training and validation loss and, below, learning rate and gradient norm. What is not finite is a gap."""
    steps, d = np.asarray(result.steps, np.float64), result.definition
    rows = {name: with_gaps(getattr(result, name)) for name in FIELDS}
    rows["val_loss_se"][rows["val_loss_se"] < 0] = np.nan
    with new_figure(WIDTH, 6.1, theme) as (figure, colors):
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(3.0, 1.1, 1.1))
        _losses(axes[0], steps, rows, math.log(result.vocab_size), colors)
        axes[0].set_ylabel(safe(with_unit("loss", d.unit)))
        labels = {"learning_rate": "learning rate", "grad_norm": "gradient norm,\nbefore clipping"}
        for ax, (name, label), color in zip(axes[1:], labels.items(), colors.lines[2:], strict=False):
            ax.plot(steps, rows[name], color=color, linewidth=0.9, marker="." if len(steps) == 1 else None)
            ax.set_ylabel(label)
        low, high = np.nanmin(rows["grad_norm"], initial=np.inf), np.nanmax(rows["grad_norm"], initial=0)
        if low > 0 and high >= 3 * low:
            log_axis(axes[2])
        axes[2].set_xlabel("training step")
        say(figure, _training_headline(steps, rows, d.unit), caption(d, _note(steps, rows)))
    return figure


def _losses(ax: Axes, steps: NDArray, rows: dict[str, NDArray], uniform: float, colors: Theme) -> None:
    smooth = _running_mean(rows["loss"], _window(len(steps)))
    ax.plot(steps, rows["loss"], color=colors.lines[0], linewidth=0.5, alpha=0.35)
    mark = "." if len(steps) == 1 else None
    handles: list[Any] = ax.plot(steps, smooth, color=colors.lines[0], label="training", marker=mark)
    there = np.flatnonzero(np.isfinite(rows["val_loss"]))
    drawn = ax.errorbar(
        steps[there], rows["val_loss"][there], yerr=rows["val_loss_se"][there], color=colors.lines[1],
        fmt="-o" if len(there) <= MARKED else "-", markersize=3.5, elinewidth=0.9, label="validation",
    )  # fmt: skip
    line = ax.axhline(uniform, color=colors.muted, linestyle="--", linewidth=0.8, label="ln V, a uniform guess")
    ax.legend(handles=[*handles, drawn, line])


def _training_headline(steps: NDArray, rows: dict[str, NDArray], unit: str) -> str:
    val = rows["val_loss"]
    if np.isfinite(val).any():
        best = int(np.nanargmin(val))
        value = with_error(val[best], rows["val_loss_se"][best], 4)
        return f"Best validation loss: {value} {unit}, at step {steps[best]:,.0f} of {steps[-1]:,.0f}"
    finite = np.flatnonzero(np.isfinite(rows["loss"]))
    if not len(finite):
        return "No loss is a finite number"
    step, value = steps[finite[-1]], number(rows["loss"][finite[-1]], 3)
    return f"Training loss {value} {unit} at step {step:,.0f}; not validated yet"


def _note(steps: NDArray, rows: dict[str, NDArray]) -> str:
    window = _window(len(steps))
    notes = [f"Bold: mean over the last {window} steps."] * (window > 1)
    notes += ["Whiskers: ± 1 standard error over validation windows in their order."]
    # A step with a validation alone is none that failed.
    skipped = int(np.isnan(np.fmax(rows["loss"], rows["val_loss"])).sum())
    notes += [f"Gaps: {skipped} steps without a finite loss."] * (skipped > 0)
    return " ".join(notes)


def _window(steps: int) -> int:
    return max(1, round(SMOOTHED * steps))


def _running_mean(values: NDArray, window: int) -> NDArray:
    """Mean over the last `window` finite values at each step; NaN where the step itself has none."""
    finite = np.isfinite(values)
    sums, counts = (np.cumsum(np.append(0, part)) for part in (np.where(finite, values, 0), finite))
    first = np.maximum(np.arange(1, len(values) + 1) - window, 0)
    count = counts[1:] - counts[first]
    mean = (sums[1:] - sums[first]) / np.maximum(count, 1)
    return np.where(finite, mean, np.nan)


def over_training_figure(result: OverTraining, theme: str = "light") -> Figure:
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
