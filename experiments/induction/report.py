"""What was found about induction, as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, spread

FILLS = ("zero", "mean")
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


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
    lines += ["", "| in-context gain left, nats/token | fill | " + " | ".join(ablated(results)) + " |"]
    lines += ["|---|---|" + "---|" * len(ablated(results))]
    for group, title in (("induction", "without the induction heads"), ("others", "without as many others")):
        for fill in FILLS:
            cells = [spread(as_many(seeds, fill, group), 3) for seeds in ablated(results).values()]
            lines.append(f"| {title} | {fill} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + claims_table(results["claims"])


def ablated(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Architecture -> its seeds that have induction heads, where at least two do."""
    found = {name: [s for s in one["seeds"] if FILLS[0] in s] for name, one in results["architectures"].items()}
    return {name: seeds for name, seeds in found.items() if len(seeds) > 1}


def as_many(seeds: list[dict[str, Any]], fill: str, group: str) -> list[float]:
    """The gain of each seed without as many heads of a group as it has induction heads, where there are as many."""
    counts = [len(s["induction_heads"]) for s in seeds]
    return [s[fill][group][k - 1] for s, k in zip(seeds, counts, strict=True) if len(s[fill][group]) >= k]


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
        if i == 1:  # where the losses leave room
            top.legend(fontsize=9, loc="lower left")
    below = grid[2, :].subgridspec(1, max(1, len(ablated(results))))
    for i, (name, seeds) in enumerate(ablated(results).items()):
        axes = fig.add_subplot(below[i])
        draw_ablations(axes, name, seeds, results)
        if i == 0:
            axes.legend(fontsize=9, loc="lower left")
    fig.suptitle(
        "Two layers learn induction, one layer never, one layer with smeared keys soonest. Nearly all heads of the\n"
        "last layer become induction heads; without all of them the gain is gone, but layer 0 is needed as well",
        fontsize=13,
    )
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
    axes.set(ylim=(0, 1.15 * results["uniform"]), xlim=(0, steps[-1]))


def draw_heads(axes: Any, found: dict[str, Any], threshold: float) -> None:
    scores = np.array(found["curves"]["induction"])  # (steps, N, L, H)
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
    """Gain left against how many heads are ablated, of the induction heads and of the others."""
    intact = [s["gain"] for s in seeds]
    for group, colour, marker in (("induction", BLUE, "o"), ("others", ORANGE, "s")):
        for fill, style in zip(FILLS, ("-", "--"), strict=True):
            most = max(len(s[fill][group]) for s in seeds)
            drawn = [intact, *([s[fill][group][k] for s in seeds if len(s[fill][group]) > k] for k in range(most))]
            drawn = [values for values in drawn if len(values) > 1]  # an error takes two
            mean, se = np.transpose([mean_and_se(values) for values in drawn])
            label = f"{'induction' if group == 'induction' else 'other'} heads, {fill} fill"
            axes.errorbar(
                range(len(mean)), mean, se, color=colour, marker=marker, linestyle=style, capsize=3, label=label
            )
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(
        xlabel="heads ablated, drawn among their kind",
        ylim=(-0.5, 1.15 * results["uniform"]),
        ylabel="in-context gain left\n(nats per token)",
    )
    axes.set_title(f"{name}: mean ± one standard error over {len(seeds)} seeds", fontsize=10)
    axes.grid(alpha=0.3)
