"""What was found about patching, as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, spread
from tinygpt_jax.figures.style import DPI, WIDTH, Theme, colormap, encoded, new_figure, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    (out / "patching.png").write_bytes(encoded(figure(results), "png", DPI))


def table(results: dict[str, Any]) -> str:
    """Markdown: claims, how each method agrees with ablation, and each model's strongest path."""
    lines = [claims_table(results["claims"]), "| method | rank correlation with ablation | of its top 4 | same first |"]
    lines.append("|---|---|---|---|")
    for name, one in results["agreement_with_ablation"].items():
        first = f"{int(sum(one['first']))} of {len(one['first'])}"
        lines.append(f"| {name} | {spread(one['correlation'], 2)} | {spread(one['shared'], 2)} | {first} |")
    lines += ["", "| loss, clean | corrupted | strongest path | previous token, of the sender | induction, receiver |"]
    lines.append("|---|---|---|---|---|")
    for seed in results["seeds"]:
        loss, path = seed["loss"], seed["strongest"]
        scores = f"{path['previous_token']:.2f} | {path['induction']:.2f}"
        lines.append(f"| {loss['clean']:.2f} | {loss['corrupted']:.2f} | {path['path']} | {scores} |")
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """On the left the first model's heads by every method; on the right each method's agreement with ablation."""
    with new_figure(WIDTH, 3.6, theme) as (drawn, colors):
        left, right = drawn.subplots(1, 2, width_ratios=(1.5, 1), sharey=True)
        draw_heads(left, results, colors)
        draw_agreement(right, results, colors)
        noise, denoise = (
            mean_and_se(results["agreement_with_ablation"][f"patching, {way}"]["correlation"])[0]
            for way in ("noise", "denoise")
        )
        say(
            drawn,
            f"Rank correlation of patching with ablation: {noise:.2f} by noising, {denoise:.2f} by denoising",
            "Left: harm of each head of the first model, as a share of the largest by that method; white: none or "
            f"less. Right: correlation with ablation by the mean; dots: {len(results['seeds'])} seeds; bars: mean ± 1 "
            "standard error.",
        )
    return drawn


def draw_heads(ax: Axes, results: dict[str, Any], colors: Theme) -> None:
    harm = np.array(list(results["seeds"][0]["harm"].values()), np.float64)
    shares = harm / harm.max(1, keepdims=True)
    image = ax.imshow(shares, cmap=colormap("sequential", colors), vmin=0, vmax=1, aspect="auto")
    ax.set_yticks(range(len(shares)), list(results["seeds"][0]["harm"]))
    ax.set_xticks(range(len(results["heads"])), results["heads"], rotation=90)
    ax.set_xlabel("head")
    ax.figure.colorbar(image, ax=ax, label="share of the largest harm")


def draw_agreement(ax: Axes, results: dict[str, Any], colors: Theme) -> None:
    methods = list(results["seeds"][0]["harm"])
    for row, name in enumerate(methods):
        found = results["agreement_with_ablation"].get(name)
        if found is None:  # ablation itself
            continue
        values = np.array(found["correlation"], np.float64)
        mean, se = mean_and_se(values)
        ax.scatter(values, np.full(len(values), row), s=9, color=colors.lines[0], alpha=0.6)
        ax.errorbar(mean, row, xerr=se, marker="|", color=colors.lines[1], capsize=3)
    ax.set_xlim(right=1.02)
    ax.axvline(1, color=colors.muted, linewidth=0.6)
    ax.set_xlabel("rank correlation with ablation")
