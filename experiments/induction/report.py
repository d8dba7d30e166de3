"""What was found about induction, as a table and a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

GROUPS = {
    "induction": "induction heads",
    "random": "as many others",
    "spared": "as many others,\nprevious-token heads spared",
}
FILLS = ("zero", "mean")
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


def mean_and_se(values: list[float]) -> tuple[float, float]:
    """Over seeds: the mean and its standard error; NaN where there are too few."""
    if len(values) < 2:
        return values[0] if values else math.nan, math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def spread(values: list[float], digits: int) -> str:
    mean, se = mean_and_se(values)
    return f"{mean:.{digits}f} ± {se:.{digits}f}" if values else "there are none"


def table(results: dict[str, Any]) -> str:
    """Markdown: what each architecture learned, what ablation left of it, and what that says of each claim."""
    lines = [
        "| architecture | in-context gain, nats/token | step of the phase change | best head's prefix matching | "
        "induction heads |",
        "|---|---|---|---|---|",
    ]
    for name, found in results["architectures"].items():
        seeds = found["seeds"]
        changed = [s["phase_change"] for s in seeds if s["phase_change"] is not None]
        when = f"{spread(changed, 0)}" if len(changed) > 1 else "".join(map(str, changed)) or "never"
        lines.append(
            f"| {name} | {spread([s['gain'] for s in seeds], 3)} | {when} ({len(changed)} of {len(seeds)} seeds) "
            f"| {spread([s['best_head'] for s in seeds], 2)} "
            f"| {', '.join(str(len(s['induction_heads'])) for s in seeds)} |"
        )
    lines += ["", "| gain left, nats/token, without … | fill | " + " | ".join(ablated(results)) + " |"]
    lines += ["|---|---|" + "---|" * len(ablated(results))]
    for group, title in GROUPS.items():
        for fill in FILLS:
            cells = [spread(left(seeds, fill, group), 3) for seeds in ablated(results).values()]
            lines.append(f"| {title} | {fill} | ".replace("\n", " ") + " | ".join(cells) + " |")
    lines += ["", "| claim | holds |", "|---|---|"]
    lines += [f"| {claim} | {'yes' if holds else '**no**'} |" for claim, holds in results["claims"].items()]
    return "\n".join(lines) + "\n"


def ablated(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Architecture -> its seeds that have induction heads, where at least two do."""
    found = {name: [s for s in one["seeds"] if FILLS[0] in s] for name, one in results["architectures"].items()}
    return {name: seeds for name, seeds in found.items() if len(seeds) > 1}


def left(seeds: list[dict[str, Any]], fill: str, group: str) -> list[float]:
    """The gain of each seed without a group of heads, where it has such a group."""
    return [s[fill][group] for s in seeds if s[fill][group] is not None]


def figure(results: dict[str, Any], file: Path) -> None:
    """Losses and prefix matching over training, an architecture a column; below, what ablation leaves of the gain."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig = plt.figure(figsize=(12, 10.5), layout="constrained")
    grid = fig.add_gridspec(3, 3)
    for i, (name, found) in enumerate(results["architectures"].items()):
        top, middle = (fig.add_subplot(grid[row, i]) for row in (0, 1))
        draw_losses(top, found, results)
        draw_heads(middle, found, results["head_score"])
        top.set_title(name, fontsize=12)
        for axes in (top, middle):
            axes.tick_params(labelleft=i == 0)
            axes.grid(alpha=0.3)
        if i == 0:
            top.set_ylabel("loss (nats per token)")
            middle.set_ylabel("prefix-matching score of each head\n(share of attention)")
        if i == 2:
            top.legend(fontsize=9, loc="center right")
    below = grid[2, :].subgridspec(1, max(1, len(ablated(results))))
    for i, (name, seeds) in enumerate(ablated(results).items()):
        draw_ablations(fig.add_subplot(below[i]), name, seeds, results)
    fig.suptitle(results.get("title", "Induction over training, and without its heads"), fontsize=13)
    fig.savefig(file, dpi=130)


def draw_losses(axes: Any, found: dict[str, Any], results: dict[str, Any]) -> None:
    steps, curves = found["steps"], found["curves"]
    for part, colour, label in (
        ("first", ORANGE, "tokens not seen before"),
        ("repeat", BLUE, "tokens of the second copy"),
    ):
        values = np.array(curves[part])
        axes.plot(steps, values, color=colour, alpha=0.35, linewidth=0.9)
        axes.plot(steps, values.mean(1), color=colour, linewidth=2.4, label=f"{label} (mean, each seed)")
    axes.axhline(results["uniform"], color=GREY, linewidth=1, linestyle=":", label=f"ln V = {results['uniform']:.2f}")
    bound = results["uniform"] - results["copying_bound"]
    axes.axhline(bound, color=GREY, linewidth=1, linestyle="--", label="any token seen before, at random")
    axes.set(ylim=(0, None), xlim=(0, steps[-1]))


def draw_heads(axes: Any, found: dict[str, Any], threshold: float) -> None:
    scores = np.array(found["curves"]["prefix_matching"])  # (steps, N, L, H)
    last = scores.shape[2] - 1
    for layer in range(scores.shape[2]):
        lines = scores[:, :, layer].reshape(len(scores), -1)
        colour, style = (BLUE, "-") if layer == last else (GREEN, "--")
        drawn = axes.plot(found["steps"], lines, color=colour, linestyle=style, alpha=0.45, linewidth=1)
        drawn[0].set_label(f"layer {layer}, every head of every seed")
    axes.axhline(threshold, color=GREY, linewidth=1, linestyle=":", label=f"an induction head from {threshold} on")
    axes.set(ylim=(0, 1), xlim=(0, found["steps"][-1]), xlabel="training steps")
    axes.legend(fontsize=9, loc="upper left")


def draw_ablations(axes: Any, name: str, seeds: list[dict[str, Any]], results: dict[str, Any]) -> None:
    """Gain with nothing ablated, and with each group; bars are means over seeds, points single seeds."""
    bars = [("nothing", GREY, None, [s["gain"] for s in seeds])]
    for group, title in GROUPS.items():
        for fill, colour in zip(FILLS, (BLUE, ORANGE), strict=True):
            bars.append((title, colour, fill, left(seeds, fill, group)))
    places, ticks = [0.0, *(1.2 + 1.1 * (i // 2) + 0.4 * (i % 2) for i in range(2 * len(GROUPS)))], []
    for place, (_, colour, fill, values) in zip(places, bars, strict=True):
        mean, se = mean_and_se(values)
        label = f"{fill} fill" if fill and place < 2 else None
        axes.bar(place, mean, 0.38, yerr=se, color=colour, alpha=0.75, capsize=3, label=label)
        axes.plot([place] * len(values), values, "o", color="black", markersize=3, zorder=3)
    ticks = [0.0, *(1.4 + 1.1 * i for i in range(len(GROUPS)))]
    axes.set_xticks(ticks, ["nothing", *GROUPS.values()], fontsize=9)
    axes.axhline(results["uniform"], color=GREY, linewidth=1, linestyle=":")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(ylabel="in-context gain left (nats per token)", xlabel="ablated")
    axes.set_title(f"{name}: mean ± one standard error, {len(seeds)} seeds", fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=9, loc="lower right")
