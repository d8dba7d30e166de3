"""What was found about shapes, as tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, save_png, spread
from experiments.shared.paired import less
from tinygpt_jax.figures.style import SMALL, WIDTH, Theme, new_figure, say, zero_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 3
"""The shapes that lead the list; the others are the ladder of widths and vocabularies."""


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(figure(results), out / "shape")


def differences(results: dict[str, Any]) -> dict[str, np.ndarray]:
    """Variant -> its loss less the base's, seed by seed, nats per character."""
    losses = results["losses"]
    return {name: np.array(less(values, losses["base"])) for name, values in losses.items() if name != "base"}


def table(results: dict[str, Any]) -> str:
    """Markdown: claims, losses, and parameters counted."""
    apart = differences(results)
    lines = [
        claims_table(results["claims"]),
        "| model | validation loss, nats/char | less the base, paired by seed |",
        "|---|---|---|",
    ]
    for name, values in results["losses"].items():
        less = spread(apart[name].tolist(), 4) if name in apart else ""
        lines.append(f"| {name} | {spread(values, 4)} | {less} |")
    lines += ["", "| shape | parameters | MLPs, of all | MLPs, of the blocks | embeddings, of all | tying saves |"]
    lines.append("|---|---|---|---|---|---|")
    for one in results["shapes"]:
        parts, total = one["parts"], sum(one["parts"].values())
        blocks = total - parts["embeddings"]
        lines.append(
            f"| {one['name']} | {total:,} | {parts['MLPs'] / total:.1%} | {parts['MLPs'] / blocks:.1%} "
            f"| {parts['embeddings'] / total:.1%} | {one['saved_by_tying']:,} |"
        )
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """Shares of the parameters, shape by shape; below, what each change does to the loss."""
    with new_figure(WIDTH, 5.6, theme) as (drawn, colors):
        above, below = drawn.subplots(2, 1, height_ratios=(1.15, 1))
        draw_shares(above, results["shapes"], colors)
        draw_differences(below, differences(results), colors)
        say(
            drawn,
            headline(results),
            f"Above: parameters counted. Below: {len(results['losses']['base'])} seeds (points), each against the same "
            "seed's base (4 heads, tied, GELU), and their mean ± 1 standard error.",
        )
    return drawn


def headline(results: dict[str, Any]) -> str:
    most = [one for one in results["shapes"] if 2 * one["parts"]["MLPs"] > sum(one["parts"].values())]
    return f"MLPs hold most of the parameters in {len(most)} of {len(results['shapes'])} shapes: up to about V = 4 L C"


def draw_shares(ax: Axes, shapes: list[dict[str, Any]], colors: Theme) -> None:
    """The MLPs' share against vocabulary over 4 L C, where it should cross one half."""
    widths = sorted({one["width"] for one in shapes[NAMED:]})
    for i, width in enumerate(widths):
        row = [one for one in shapes[NAMED:] if one["width"] == width]
        ax.plot(*_places(row), marker="osD^v"[i], markersize=3, color=colors.lines[i], label=f"width {width:,}")
    for one, offset in zip(shapes[:NAMED], ((6, 5), (-8, -12), (6, 4)), strict=True):
        (x,), (y,) = _places([one])
        ax.plot(x, y, "*", color=colors.ink, markersize=8, zorder=3)
        side = "left" if offset[0] > 0 else "right"
        ax.annotate(one["name"], (x, y), offset, textcoords="offset points", size=SMALL, ha=side)
    ax.axhline(50, color=colors.muted, linewidth=0.8, linestyle="--")
    ax.axvline(1, color=colors.muted, linewidth=0.8, linestyle="--")
    ax.set_xscale("log")
    ax.set_xlabel("vocabulary V over 4 L C")
    ax.set_ylabel("MLPs' share of all parameters (%)")
    ax.legend(title="4 layers", title_fontsize=SMALL, loc="lower left")


def _places(shapes: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return (
        [one["vocab_size"] / (4 * one["layers"] * one["width"]) for one in shapes],
        [100 * one["parts"]["MLPs"] / sum(one["parts"].values()) for one in shapes],
    )


def draw_differences(ax: Axes, apart: dict[str, np.ndarray], colors: Theme) -> None:
    zero_line(ax, colors, "x")
    for i, values in enumerate(apart.values()):
        mean, se = mean_and_se(values.tolist())
        ax.plot(values, np.full(len(values), i), "o", color=colors.muted, markersize=3, alpha=0.7)
        ax.errorbar(mean, i, xerr=se, fmt="D", color=colors.lines[0], markersize=4, capsize=2.5, elinewidth=1)
    ax.set_yticks(range(len(apart)), list(apart))
    ax.invert_yaxis()
    ax.set_xlabel("loss less the base's (nats per character); right is worse")
