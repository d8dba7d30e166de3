"""What half an hour came to, as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, save_png, spread
from tinygpt_jax.figures.style import SMALL, WIDTH, new_figure, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTH = 50
"""Steps whose training losses are averaged to a point."""


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(figure(results), out / "halfhour")


def table(results: dict[str, Any]) -> str:
    """Markdown: claims, and what each budget came to."""
    long, minutes = results["long"], results["minutes"]
    walls = [one["wall_seconds"] for one in minutes]
    quiet = {name: f"{1000 * seconds:.0f} ms" for name, seconds in results["step_seconds"].items()}
    lines = [
        claims_table(results["claims"]),
        "| budget | steps | parameters | validation loss, nats/char | bits/byte | a step, fastest call | wall here |",
        "|---|---|---|---|---|---|---|",
        f"| half an hour, one seed | {long['steps']:,} | {long['parameters']:,} "
        f"| {long['loss_per_char']:.4f} ± {long['loss_se']:.4f} (over windows in order) | {long['bits_per_byte']:.3f} "
        f"| {quiet['half an hour']} | {long['wall_seconds'] / 60:.0f} min |",
        f"| a minute, {len(minutes)} seeds | {minutes[0]['steps']:,} | {minutes[0]['parameters']:,} "
        f"| {spread([one['loss_per_char'] for one in minutes], 4)} (over seeds) "
        f"| {spread([one['bits_per_byte'] for one in minutes], 3)} "
        f"| {quiet['a minute']} | {min(walls):.0f} to {max(walls):.0f} s |",
    ]
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """The half hour's losses over time, beside what a minute comes to."""
    long, losses = results["long"], [one["loss_per_char"] for one in results["minutes"]]
    each = results["step_seconds"]["half an hour"] / 60
    minute = results["step_seconds"]["a minute"] / 60 * results["minutes"][0]["steps"]
    val = np.array([[step, loss] for step, _, loss in long["curve"]])
    trained = np.array(long["train_curve"] or val)
    with new_figure(WIDTH, 3.6, theme) as (drawn, colors):
        ax = drawn.add_subplot()
        ax.plot(trained[:, 0] * each, trained[:, 1], color=colors.muted, linewidth=0.8, label="training")
        ax.plot(val[:, 0] * each, val[:, 1], "o-", color=colors.lines[0], markersize=3.5, label="validation")
        ax.plot([minute] * len(losses), losses, "D", color=colors.lines[1], markersize=4, label="a minute's, each seed")
        if results["published"]:
            ax.axhline(results["published"], color=colors.muted, linewidth=0.9, linestyle="--")
            words = f"nanoGPT's recipe for a GPU, as published: {results['published']}"
            ax.annotate(words, (0.01, results["published"]), (0, -3), xycoords=("axes fraction", "data"),
                        textcoords="offset points", ha="left", va="top", size=SMALL)  # fmt: skip
        top = max(losses) + 0.25
        ax.set_ylim(min([*losses, *val[:, 1], *trained[:, 1], results["published"] or top]) - 0.08, top)
        ax.set_xlabel("minutes of steps, at the speed of the fastest timed calls")
        ax.set_ylabel("loss (nats per character)")
        ax.legend()
        mean, _ = mean_and_se(losses)
        say(
            drawn,
            f"Half an hour on two cores: {long['loss_per_char']:.2f} nats per character; a minute: {mean:.2f}",
            f"{results['text']}; {long['parameters']:,} parameters, {long['steps']:,} steps, one seed; a minute: "
            f"{results['minutes'][0]['parameters']:,} parameters, {results['minutes'][0]['steps']:,} steps.",
        )
    return drawn
