"""What was found about errors, as tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import save_png
from tinygpt_jax.figures.style import WIDTH, new_figure, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAND = (93, 97)
"""Percent: where the coverage of a nominal 95 % interval should lie."""


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(figure(results), out / "coverage")


def table(results: dict[str, Any]) -> str:
    """Markdown: coverage of each number, of short stretches, and passes of noise."""
    lines = [
        "| number | windows of a text | covered by 95 % intervals | taken as independent | error / true spread |",
        "|---|---|---|---|---|",
    ]
    for name, one in results["numbers"].items():
        lines.append(f"| {name.split(', all')[0]} | {one['windows']} | {_cells(one)} |")
    lines += [
        "",
        "| where errors say too little | covered by 95 % intervals | taken as independent | error / true spread |",
    ]
    lines.append("|---|---|---|---|")
    lines += [f"| {name} | {_cells(one)} |" for name, one in results["limits"].items()]
    lines += ["", "| components | noise alike | uneven noise | windows in order |", "|---|---|---|---|"]
    for count, one in results["rankings"].items():
        lines.append(f"| {count} | " + " | ".join(f"{rate:.1f} %" for rate in one.values()) + " |")
    return "\n".join(lines) + "\n"


def _cells(one: dict[str, Any]) -> str:
    held = f"{one['covered']:.1f} ± {one['covered_se']:.1f} %"
    ratio = one["error_over_spread"]
    return f"{held} | {one['as_independent']:.0f} % | {'-' if ratio is None else format(ratio, '.2f')}"


def figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """Coverage of every number, beside what it is where windows are taken as independent."""
    rows = {**results["numbers"], **results["limits"]}
    names = [f"{name.split(', all')[0]} ({one['windows']})" if "windows" in one else name for name, one in rows.items()]
    held = np.array([one["covered"] for one in rows.values()])
    with new_figure(WIDTH, 0.27 * len(rows) + 1.6, theme) as (drawn, colors):
        ax = drawn.add_subplot()
        ax.axvspan(*BAND, color=colors.lines[0], alpha=0.15, linewidth=0)
        y = np.arange(len(rows))
        old = [one["as_independent"] for one in rows.values()]
        ax.plot(old, y, "D", color=colors.muted, markersize=4, label="windows taken as independent")
        errors = [1.96 * one["covered_se"] for one in rows.values()]
        ax.errorbar(held, y, xerr=errors, fmt="o", color=colors.lines[0], markersize=5, capsize=2.5, label="as printed")
        ax.axhline(len(results["numbers"]) - 0.5, color=colors.muted, linewidth=0.8)
        ax.set_yticks(y, names)
        ax.invert_yaxis()
        ax.set_xlabel("how often a nominal 95 % interval holds the truth (%)")
        ax.legend(loc="upper center")
        inside = sum(BAND[0] <= one["covered"] <= BAND[1] for one in results["numbers"].values())
        say(
            drawn,
            f"Errors that know the order of a text cover: {inside} of {len(results['numbers'])} numbers within "
            f"{BAND[0]} to {BAND[1]} %",
            f"{results['texts']:,} texts of {results['windows']} windows, made of stretches of a corpus. Bars: 95 % "
            f"over texts. Shaded: {BAND[0]} to {BAND[1]} %. Below the line: what few places of a text "
            "decide, and windows side by side, too few to show how much chapters differ.",
        )
    return drawn
