"""What was found about optimizers and first losses, as tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, save_png, spread
from tinygpt_jax.figures.style import WIDTH, Theme, new_figure, say, zero_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"adam": "Adam", "sgd": "SGD, momentum 0.9", "muon": "Muon"}
MARKERS = "osD^"


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(figure(results), out / "optimizers")


def table(results: dict[str, Any]) -> str:
    """Markdown: claims, the optimizers at their best rates, their grids, and first losses."""
    lines = [claims_table(results["claims"]), "| optimizer | rate chosen | validation loss, nats/char | rates tried |"]
    lines.append("|---|---|---|---|")
    for name, one in results["optimizers"].items():
        tried = zip(one["rates"], one["grid"], strict=True)
        grid = ", ".join(f"{rate:g}: {came_to(row)}" for rate, row in tried)
        edge = ", the grid's edge" if one["at_the_edge"] else ""
        lines.append(f"| {NAMES[name]} | {one['rate']:g}{edge} | {spread(numbers(one['loss']), 4)} | {grid} |")
    scales = list(results["first"][0]["losses"])
    lines += ["", "| V | ids | ln V | " + " | ".join(f"loss less ln V, weights x {s}" for s in scales) + " |"]
    lines.append("|---|---|---|" + "---|" * len(scales))
    for one in results["first"]:
        cells = [spread([loss - one["ln_V"] for loss in one["losses"][s]], 4) for s in scales]
        lines.append(f"| {one['vocab_size']:,} | {one['of']} | {one['ln_V']:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def came_to(row: list[float | None]) -> str:
    return "came apart" if None in row else spread(row, 3)


def numbers(values: list[float | None]) -> list[float]:
    """NaN for the null of a training that came apart."""
    return np.array(values, np.float64).tolist()


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """Training losses over steps; below, the grids of rates, and the first loss against the size of the weights."""
    with new_figure(WIDTH, 5.4, theme) as (drawn, colors):
        grid = drawn.add_gridspec(2, 2)
        draw_curves(drawn.add_subplot(grid[0, :]), results["optimizers"], colors)
        draw_rates(drawn.add_subplot(grid[1, 0]), results["optimizers"], colors)
        draw_first(drawn.add_subplot(grid[1, 1]), results["first"], colors)
        found = results["optimizers"]
        ends = [
            f"{NAMES[name].split(',')[0]} {mean_and_se(numbers(one['loss']))[0]:.2f}" for name, one in found.items()
        ]
        say(
            drawn,
            f"After {results['steps']} steps, {', '.join(ends)} nats per character",
            f"Above: mean ± 1 standard error over {len(found['adam']['loss'])} seeds. Below: on the left the two other "
            "seeds that chose the rates, on the right untrained models, whose weights have 0.02 times the factor.",
        )
    return drawn


def draw_curves(ax: Axes, optimizers: dict[str, Any], colors: Theme) -> None:
    for i, (name, one) in enumerate(optimizers.items()):
        curve = np.array(one["curve"], np.float64)
        mean, se = np.transpose([mean_and_se(column) for column in curve.T])
        label = f"{NAMES[name]}, rate {one['rate']:g}"
        ax.plot(one["steps"], mean, color=colors.lines[i], label=label)
        ax.fill_between(one["steps"], mean - se, mean + se, color=colors.lines[i], alpha=0.22, linewidth=0)
    ax.set_xlabel("training step")
    ax.set_ylabel("training loss (nats per character)")
    ax.legend()


def draw_rates(ax: Axes, optimizers: dict[str, Any], colors: Theme) -> None:
    for i, (name, one) in enumerate(optimizers.items()):
        mean, se = np.transpose([mean_and_se(numbers(row)) for row in one["grid"]])
        ax.errorbar(one["rates"], mean, se, marker=MARKERS[i], markersize=3.5, color=colors.lines[i], label=NAMES[name])
    ax.set_xscale("log")
    ax.set_xlabel("peak learning rate")
    ax.set_ylabel("validation loss (nats per character)")


def draw_first(ax: Axes, first: list[dict[str, Any]], colors: Theme) -> None:
    for i, one in enumerate(first):
        off = [mean_and_se([loss - one["ln_V"] for loss in row]) for row in one["losses"].values()]
        mean, se = np.transpose(off)
        scales = [float(scale) for scale in one["losses"]]
        label = f"V = {one['vocab_size']:,}, {one['of']}"
        ax.errorbar(scales, mean, se, marker=MARKERS[i], markersize=3.5, color=colors.lines[i], label=label)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=0.1)
    zero_line(ax, colors, "y")
    ax.set_xticks(scales, [f"{scale:g}" for scale in scales])
    ax.set_yticks((-0.1, 0, 0.1, 1), ("−0.1", "0", "0.1", "1"))
    ax.minorticks_off()
    ax.set_ylim(bottom=-1)
    ax.set_xlabel("initial weights, times")
    ax.set_ylabel("first loss less ln V (nats)")
    ax.legend(loc="lower right")
