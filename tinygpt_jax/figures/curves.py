"""How a training went: losses, learning rate, gradient norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import number, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import WIDTH, Theme, new_figure, say
from tinygpt_jax.figures.words import caption as caption_of
from tinygpt_jax.figures.words import safe
from tinygpt_jax.reporting.parts import log_axis, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHED = 0.02
"""Share of the steps that the bold line is a mean over."""
MARKED = 60
"""The most validations that have a marker each."""


def loss_curves(
    steps: ArrayLike,
    loss: ArrayLike,
    *,
    val_loss: ArrayLike | None = None,
    val_loss_se: ArrayLike | None = None,
    learning_rate: ArrayLike | None = None,
    grad_norm: ArrayLike | None = None,
    uniform: float | None = None,
    unit: str = "nats per token",
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """Training and validation loss over N steps and, below, learning rate and gradient norm where they are given. Each
    array is (N,); what is not finite is a gap, and a step without a validation has NaN there.

    Args:
        uniform: the loss of a model that knows nothing, ln V; drawn as a line

    Raises:
        UserError: there are no steps, or an array is not one number for each.
    """
    steps = np.asarray(steps, np.float64)
    if steps.ndim != 1 or not len(steps):
        raise UserError(f"steps have shape {steps.shape}: must be a row of one step or more")
    given = {
        "training loss": loss,
        "validation loss": val_loss,
        "its errors": val_loss_se,
        "learning rate": learning_rate,
        "gradient norm": grad_norm,
    }
    rows = {name: row_of(name, values, steps) for name, values in given.items() if values is not None}
    if "its errors" in rows:
        rows["its errors"][rows["its errors"] < 0] = np.nan
    below = [name for name in ("learning rate", "gradient norm") if name in rows]
    heights = [3.0, *(1.1 for _ in below)]
    with new_figure(WIDTH, sum(heights) + 0.9, theme) as (figure, colors):
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _losses(axes[0], steps, rows, uniform, colors)
        axes[0].set_ylabel(safe(f"loss ({unit})"))
        for ax, name, color in zip(axes[1:], below, colors.lines[2:], strict=False):
            ax.plot(steps, rows[name], color=color, linewidth=0.9, marker="." if len(steps) == 1 else None)
            ax.set_ylabel({"gradient norm": "gradient norm,\nbefore clipping"}.get(name, name))
            if name == "gradient norm" and _spans(rows[name]):
                log_axis(ax)
        axes[-1].set_xlabel("training step")
        say(figure, _headline(steps, rows, unit), _note(steps, rows, caption))
    return figure


def training_figure(result: Any, *, theme: str = "light") -> Figure:
    """The figure of `TrainingCurves`."""
    return loss_curves(
        result.steps,
        result.loss,
        val_loss=result.val_loss,
        val_loss_se=result.val_loss_se,
        learning_rate=result.learning_rate,
        grad_norm=result.grad_norm,
        uniform=math.log(result.vocab_size),
        unit=result.definition.unit,
        caption=caption_of(result.definition),
        theme=theme,
    )


def _losses(ax: Axes, steps: NDArray, rows: dict[str, NDArray], uniform: float | None, colors: Theme) -> None:
    train = rows["training loss"]
    smooth = _running_mean(train, _window(len(steps)))
    ax.plot(steps, train, color=colors.lines[0], linewidth=0.5, alpha=0.35)
    mark = "." if len(steps) == 1 else None
    handles: list[Any] = ax.plot(steps, smooth, color=colors.lines[0], label="training", marker=mark)
    if "validation loss" in rows:
        there = np.flatnonzero(np.isfinite(rows["validation loss"]))
        drawn = ax.errorbar(
            steps[there], rows["validation loss"][there],
            yerr=rows["its errors"][there] if "its errors" in rows else None,
            color=colors.lines[1], fmt="-o" if len(there) <= MARKED else "-", markersize=3.5, elinewidth=0.9,
            label="validation",
        )  # fmt: skip
        handles.append(drawn)
    if uniform is not None:
        line = ax.axhline(uniform, color=colors.muted, linestyle="--", linewidth=0.8, label="ln V, knowing nothing")
        handles.append(line)
    ax.legend(handles=handles)


def _headline(steps: NDArray, rows: dict[str, NDArray], unit: str) -> str:
    val = rows.get("validation loss", np.array([np.nan]))
    if np.isfinite(val).any():
        best = int(np.nanargmin(val))
        error = rows["its errors"][best] if "its errors" in rows else np.nan
        value = with_error(val[best], error, 4) if np.isfinite(error) else number(val[best], 4)
        return f"Best validation loss: {value} {unit}, at step {steps[best]:,.0f} of {steps[-1]:,.0f}"
    finite = np.flatnonzero(np.isfinite(rows["training loss"]))
    if not len(finite):
        return "No loss is a finite number"
    step, value = steps[finite[-1]], number(rows["training loss"][finite[-1]], 3)
    return f"Training loss {value} {unit} at step {step:,.0f}; not validated yet"


def _note(steps: NDArray, rows: dict[str, NDArray], caption: str) -> str:
    window = _window(len(steps))
    notes = [f"Bold: mean over the last {window} steps."] * (window > 1)
    notes += ["Bars: ± 1 standard error over validation windows in their order."] * ("its errors" in rows)
    # A step with a validation alone is none that failed.
    skipped = int(np.isnan(np.fmax(rows["training loss"], rows.get("validation loss", np.nan))).sum())
    notes += [f"Gaps: {skipped} steps without a finite loss."] * (skipped > 0)
    return " ".join([*notes, caption]).strip()


def _spans(values: NDArray) -> bool:
    """Whether a logarithmic axis serves: all above 0, over a factor of 3 or more."""
    low, high = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=0)
    return bool(low > 0 and high >= 3 * low)


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
