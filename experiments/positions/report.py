"""What was found about positions, as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, save_png, spread
from tinygpt_jax.figures.style import SMALL, WIDTH, new_figure, say, zero_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tinygpt_jax.figures.style import Theme

WORDS = {"attention": "attention alone", "blocks": "a stack of blocks", "unmasked": "no mask", "masked": "causal mask"}


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(figure(results), out / "positions")


def table(results: dict[str, Any]) -> str:
    """Markdown: the claims, how much each case changes with the order, and what each kind of positions comes to."""
    lines = [
        claims_table(results["claims"]),
        "| relative change with the order, float64 | positions | mean | least | most |",
    ]
    lines += ["|---|---|---|---|---|"]
    for part, masks in results["order"].items():
        for mask, kinds in masks.items():
            for kind, errors in kinds.items():
                e = np.array(errors["float64"])
                numbers = " | ".join(f"{x:.2g}" for x in (e.mean(), e.min(), e.max()))
                lines.append(f"| {WORDS[part]}, {WORDS[mask]} | {kind} | {numbers} |")
    lines += [
        "",
        "| layers, causal mask, no positions | last token's relative change when earlier tokens change places |",
    ]
    lines += ["|---|---|"]
    lines += [f"| {depth} | {min(e):.2g} to {max(e):.2g} |" for depth, e in results["history"].items()]
    lines += ["", "| positions | validation loss, nats/character | against learned | parameters |", "|---|---|---|---|"]
    for kind, found in results["training"].items():
        gap = np.subtract(found["loss"], results["training"]["learned"]["loss"])
        cell = "-" if kind == "learned" else spread(gap, 4)
        lines.append(f"| {kind} | {spread(found['loss'], 4)} | {cell} | {found['parameters']:,} |")
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """Left, what a change of order does to the outputs; right, the loss of each kind of positions beside learned."""
    losses = {kind: np.mean(one["loss"]) for kind, one in results["training"].items()}
    draws = len(results["order"]["blocks"]["unmasked"]["none"]["float32"])
    with new_figure(WIDTH, 3.6, theme) as (figure, colors):
        left, right = figure.subplots(1, 2)
        draw_order(left, results, colors)
        draw_losses(right, results["training"], colors)
        say(
            figure,
            "Attention is blind to order until positions or the causal mask tell it; the lowest loss here: "
            f"{min(losses, key=losses.__getitem__)}",
            f"Left: largest |f(P x) - P f(x)| over the rms of f(x), {draws} draws of weights and "
            "tokens (points) in float32; dotted: what counts as rounding. Right: validation loss less that of learned "
            "positions, by seed (points), mean ± 1 standard error.",
        )
    return figure


def draw_order(ax: Axes, results: dict[str, Any], theme: Theme) -> None:
    cases = [(part, mask) for part in results["order"] for mask in results["order"][part]]
    kinds = list(results["training"])
    for c, (part, mask) in enumerate(cases):
        values = [results["order"][part][mask][kind]["float32"] for kind in kinds]
        places = np.arange(len(kinds)) + 0.18 * (c - (len(cases) - 1) / 2)
        ax.plot(
            np.repeat(places, len(values[0])), np.ravel(values), "osD^"[c], color=theme.lines[c], markersize=2.6,
            alpha=0.55, markeredgewidth=0, label=f"{WORDS[part]}, {WORDS[mask]}",
        )  # fmt: skip
    ax.axhline(results["rounding"] * np.finfo(np.float32).eps, color=theme.muted, linestyle=":", linewidth=0.9)
    ax.set_yscale("log")
    ax.set_xticks(range(len(kinds)), kinds)
    ax.set_xlabel("positions")
    ax.set_ylabel("relative change with the order")
    ax.legend(loc="center right", handletextpad=0.2)


def draw_losses(ax: Axes, training: dict[str, Any], theme: Theme) -> None:
    gaps = {kind: np.subtract(one["loss"], training["learned"]["loss"]) for kind, one in training.items()}
    zero_line(ax, theme, "y")
    for i, (kind, gap) in enumerate(gaps.items()):
        color = theme.lines[i]
        ax.plot(np.full(len(gap), i), gap, "o", color=color, markersize=3, alpha=0.5, markeredgewidth=0)
        mean, se = mean_and_se(gap.tolist())
        ax.errorbar(i + 0.18, mean, se, fmt="D", color=color, markersize=4, capsize=3)
        if kind != "learned":
            ax.annotate(
                f"{mean:+.3f}\n± {se:.3f}", (i, gap.max()), (0, 6), textcoords="offset points", ha="center", size=SMALL
            )
    ax.set_xticks(range(len(gaps)), [f"{kind}\n{training[kind]['parameters']:,}" for kind in gaps])
    ax.set_xlabel("positions, and the parameters that they cost")
    ax.set_xlim(-0.6, len(gaps) - 0.4)
    ax.margins(y=0.2)
    ax.set_ylabel("loss less that of learned (nats/character)")
