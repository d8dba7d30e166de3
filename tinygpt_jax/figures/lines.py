"""Curves: pruning, the lens from layer to layer, heads over the course of a training."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import draw_map, name_places, names_of_heads, numbered, square_cells
from tinygpt_jax.figures.style import SCREEN_DPI, SMALL, WIDTH, new_figure, say
from tinygpt_jax.figures.words import caption as caption_of
from tinygpt_jax.figures.words import safe, short
from tinygpt_jax.files import write_atomically
from tinygpt_jax.lab.components import head_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED_ORDER = 24
"""The most heads of a pruning order that are named along the axis."""
OUTSIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "title_fontsize": SMALL}
"""Where a legend goes that would cover lines."""
MARKERS = "osD^vP"
HIGHLIGHTED = len(MARKERS)
"""Lines that have a colour and a name; others are grey."""


def pruning_curve(result: Any, *, theme: str = "light") -> Figure:
    """A `PruningCurve`: how far the loss rises as heads go in order, beside random orders and the tolerance."""
    d, n = result.definition, len(result.rise) - 1
    removed = np.arange(n + 1)
    limit = result.tolerance * abs(result.loss[0])
    random_rises = result.random_losses - result.random_losses[:, :1]
    share = f"{100 * result.tolerance:g} %"
    with new_figure(WIDTH, 3.9, theme) as (figure, colors):
        ax = figure.add_subplot()
        ax.plot(removed, np.transpose(random_rises), color=colors.muted, linewidth=0.5, alpha=0.5)
        _line(ax, removed, result.random_rise, result.random_rise_se, colors.lines[1], "random orders, mean", "s")
        _line(ax, removed, result.rise, result.rise_se, colors.lines[0], "this order", "o")
        ax.axhline(limit, color=colors.ink, linestyle="--", linewidth=0.8, label=f"{share} above the intact model")
        ax.axvline(result.free, color=colors.lines[0], linestyle=":", linewidth=0.9)
        if n <= NAMED_ORDER:
            ax.set_xticks(removed, ["0", *(f"{i}\n{head_name(*map(int, h))}" for i, h in enumerate(result.order, 1))])
            ax.set_xlabel("heads removed, and the last of them")
        else:
            ax.set_xlabel("heads removed")
        ax.set_ylabel(safe(f"rise of the {d.metric} ({d.unit})"))
        ax.legend()
        free = with_error(result.free, result.free_se, 1)
        random = with_error(result.random_free, result.random_free_se, 1)
        headline = f"{free} of {n} heads can go for {share} of the loss (random order: {random})"
        say(figure, headline, f"Bands: ± 1 standard error. Grey: each random order. {caption_of(d)}")
    return figure


def gates_plot(result: Any, *, theme: str = "light") -> Figure:
    """`LearnedGates`: what the model loses, against how many heads each strength of the penalty leaves open."""
    d = result.definition
    kept = np.asarray(result.kept).sum((-2, -1))
    heads = int(np.prod(np.shape(result.kept)[-2:]))
    with new_figure(WIDTH, 3.4, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, strength in enumerate(np.asarray(result.strengths).tolist()):
            ax.errorbar(
                kept[i], with_gaps(result.rise[i]), yerr=with_gaps(result.rise_se[i]), fmt=MARKERS[i % len(MARKERS)],
                markersize=4, elinewidth=0.9, color=colors.lines[i % len(colors.lines)], label=f"{strength:g}",
            )  # fmt: skip
        ax.axhline(0, color=colors.muted, linewidth=0.8, zorder=0)
        ax.set_xlim(heads + 0.5, kept.min() - 0.5)
        ax.set_xlabel(f"heads kept, of {heads}")
        ax.set_ylabel(f"rise of the loss ({safe(d.unit)})")
        ax.legend(
            title=f"price of a head\n({safe(d.unit)})", title_fontsize=SMALL, loc="upper left", bbox_to_anchor=(1, 1)
        )
        seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) != 1)}"
        headline = f"Loss against heads kept, {len(result.strengths)} prices of a head, {seeds}"
        say(figure, headline, f"Whiskers: ± 1 standard error. {caption_of(d)}")
    return figure


def lens_lines(
    values: Mapping[str, ArrayLike],
    errors: Mapping[str, ArrayLike] | None = None,
    *,
    label: str,
    stages: Sequence[str] | None = None,
    headline: str = "What the model would say if it ended at each stage",
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Named lines (S,) over the stages of the residual stream, the embedding first; bands of one standard error.

    Raises:
        UserError: there is no line, or the lines and stages do not have the same length.
    """
    lines = {name: np.asarray(line, np.float64) for name, line in values.items()}
    size = len(next(iter(lines.values()), ()))
    stages = ["embedding", *(f"layer {i}" for i in range(size - 1))] if stages is None else stages
    if not size or any(line.shape != (len(stages),) for line in lines.values()):
        raise UserError(f"lines have shapes {[np.shape(v) for v in lines.values()]}: must be ({len(stages)},) each")
    with new_figure(WIDTH, 3.3, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (name, line) in enumerate(lines.items()):
            band = None if errors is None else errors.get(name)
            _line(ax, np.arange(size), line, band, colors.lines[i % len(colors.lines)], short(name, 28), "osD^v"[i % 5])
        every = max(1, -(-size // 14))
        ax.set_xticks(range(0, size, every), [safe(s) for s in stages[::every]], rotation=30 if size > 7 else 0)
        ax.set_ylabel(safe(label))
        if len(lines) > 1:
            ax.legend()
        note = "Band: ± 1 standard error. " if errors else ""
        say(figure, headline, note + caption)
    return figure


def over_training(
    steps: ArrayLike,
    values: ArrayLike,
    errors: ArrayLike | None = None,
    *,
    label: str,
    names: Sequence[str] | None = None,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Scores or effects at N steps of a training, of every head (N, L, H) or of M components that have names (N, M).
    Those that end largest have a colour.

    Args:
        label: of the values, with the unit

    Raises:
        UserError: the shapes do not fit.
    """
    steps, values = np.asarray(steps), with_gaps(values)
    if names is None and values.ndim == 3:
        names = [f"head {name}" for name in names_of_heads(*values.shape[1:])]
    lines = values.reshape(len(values), -1) if values.size else values
    if names is None or steps.shape != values.shape[:1] or lines.shape != (len(steps), len(names)):
        raise UserError(f"values have shape {values.shape} for {steps.shape} steps: must be (steps, layers, heads)")
    bands = None if errors is None else np.asarray(errors, np.float64).reshape(lines.shape)
    order = np.argsort(-np.nan_to_num(np.abs(lines[-1])), kind="stable")
    with new_figure(WIDTH, 3.7, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i in order[HIGHLIGHTED:]:
            ax.plot(steps, lines[:, i], color=colors.muted, linewidth=0.6, alpha=0.6)
        for rank, i in reversed(list(enumerate(order[:HIGHLIGHTED]))):
            band = None if bands is None else bands[:, i]
            _line(ax, steps, lines[:, i], band, colors.lines[rank], short(names[i], 28), MARKERS[rank])
        ax.set_xlabel("training step")
        ax.set_ylabel(safe(label))
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1), title_fontsize=SMALL)
        grey = f" Grey: the other {len(names) - HIGHLIGHTED}." if len(names) > HIGHLIGHTED else ""
        note = " Bands: ± 1 standard error." if errors is not None else ""
        first, last = steps[0], steps[-1]
        headline = f"Largest of {len(names)} at step {last:,}: {names[order[0]]} (from step {first:,})"
        say(figure, headline, f"{caption}{note}{grey}".strip())
    return figure


def heads_forming(
    frames: Sequence[tuple[int, ArrayLike]],
    path: str | os.PathLike[str],
    *,
    label: str,
    rate: int = 4,
    theme: str = "light",
) -> Path:
    """Writes an animation, a GIF: the map (L, H) of a score or an effect at one step after another, on one scale.

    Args:
        rate: frames per second

    Raises:
        UserError: there is no frame, the maps differ in shape, or the file cannot be written.
    """
    maps = [np.asarray(values, np.float64) for _, values in frames]
    if not maps or maps[0].ndim != 2 or any(m.shape != maps[0].shape for m in maps):
        raise UserError(f"frames have shapes {[m.shape for m in maps]}: must be one or more, all (layers, heads)")
    every = np.stack(maps)
    finite = every[np.isfinite(every)]
    top = float(np.abs(finite).max(initial=0)) or 1.0
    kind = "diverging" if (finite < 0).any() else "sequential"
    L, H = maps[0].shape
    cell = square_cells(maps[0].shape)
    with new_figure(max(H * cell + 1.6, 3.4), max(L * cell, 1.0) + 1.1, theme) as (figure, colors):
        ax = figure.add_subplot()
        image = draw_map(ax, maps[0], colors, kind, (-top if kind == "diverging" else 0, top))
        figure.colorbar(image, ax=ax, label=safe(label), fraction=0.06).outline.set_visible(False)
        name_places(ax, numbered("layer", L), numbered("head", H), (cell, cell))
        title = ax.set_title(" ", loc="left", size=SMALL + 2)

        def show(step: int, values: NDArray) -> None:
            image.set_data(np.ma.masked_invalid(values))
            title.set_text(f"step {step:,}")

        content = _gif(figure, [partial(show, step, m) for (step, _), m in zip(frames, maps, strict=True)], rate)
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


def _line(ax: Axes, x: NDArray, y: ArrayLike, error: ArrayLike | None, color: str, name: str, marker: str) -> None:
    y = with_gaps(y)
    ax.plot(x, y, color=color, label=name, marker=marker if len(x) <= 40 else None, markersize=3)
    if error is not None:
        error = with_gaps(error)
        ax.fill_between(x, y - error, y + error, color=color, alpha=0.22, linewidth=0)
