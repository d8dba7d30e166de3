"""What is made of the results: a table in Markdown and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.speed.summary import QUANTITIES

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito's, told apart by the colour-blind


def table(results: dict[str, Any]) -> str:
    """Everything in results.json for reading: per race its measures with their bars, and every contestant."""
    machine = results["machine"]
    lines = [f"Machine: {machine['cpu']}, {machine['cores']} cores; {'; '.join(machine['runtimes'])}.", ""]
    if results["quick"]:
        lines = ["**Toy sizes: these numbers only show that everything runs.**", "", *lines]
    for name, race in results["races"].items():
        lines += [f"## {name}", "", f"{race['title']}. Rounds: {race['rounds']}. {race['note']}".strip(), ""]
        if race["measures"]:
            lines += ["| measure | median | middle half | bar | met | aim | met |", "|---|---|---|---|---|---|---|"]
            lines += [_measure_row(m) for m in race["measures"]] + [""]
        lines += _contestants(race["contestants"]) + [""]
    return "\n".join(lines).rstrip() + "\n"


def _measure_row(m: dict[str, Any]) -> str:
    if "not_measured" in m:
        return f"| {m['name']} | not measured: {m['not_measured']} | | {m['bar']} | no | | |"
    met = {True: "yes", False: "**no**", None: ""}
    aim = "" if m["aim"] is None else f"{m['aim']:g}"
    middle = f"{m['q1']:.3g} to {m['q3']:.3g}"
    found = f"{m['median']:.3g} {m['unit']} | {middle}"
    return f"| {m['name']} | {found} | {m['bar']} | {met[m['met']]} | {aim} | {met[m['aim_met']]} |"


def _contestants(contestants: dict[str, dict[str, Any]]) -> list[str]:
    used = [q for q in QUANTITIES if any(q in facts for facts in contestants.values())]
    head = [f"{QUANTITIES[q][0]}, median (middle half)" for q in used]
    rows = []
    for name, facts in contestants.items():
        cells = [f"failed: {facts['failed']}"] if "failed" in facts else [_cell(facts.get(q)) for q in used]
        programs = f" ({', '.join(facts['names'])})" if facts.get("names") else ""
        rows.append(f"| {name} | {' | '.join(cells)}{programs} |")
    return [f"| who | {' | '.join(head)} |", f"|---|{'---|' * len(used)}", *rows]


def _cell(spread: dict[str, float] | None) -> str:
    if spread is None:
        return ""
    return f"{_short(spread['median'])} ({_short(spread['q1'])} to {_short(spread['q3'])})"


def _short(x: float) -> str:
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def margin(x: float, m: dict[str, Any]) -> float:
    """How many times over the bar is met: 1 is just met, 2 is twice as good, below 1 is not met."""
    low, high = m["at_least"], m["at_most"]
    sides = ([x / low] if low else []) + ([high / x] if high else [])
    return min(sides)


def figure(results: dict[str, Any], file: Path) -> None:
    """Every measure that has a bar, as a multiple of it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [
        (f"{name}: {m['name']}", m)
        for name, race in results["races"].items()
        for m in race["measures"]
        if m.get("median") and (m["at_least"] or m["at_most"])
    ]
    fig, axes = plt.subplots(figsize=(11, 1.6 + 0.34 * max(3, len(rows))), layout="constrained")
    for y, (_, m) in enumerate(rows):
        _draw(axes, y, m)
    met = sum(m["met"] for _, m in rows)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    ticks = [0.25, 0.5, 1, 2, 4, 8, 16]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    ends = [margin(m[q], m) for _, m in rows for q in ("q1", "q3")]
    axes.set_xlim(min([0.4, *(0.8 * x for x in ends)]), max([4, *(1.25 * x for x in ends)]))
    axes.set_xlabel("multiple of the bar (1: just met; log scale), median and middle half of the rounds")
    toy = " (toy sizes)" if results["quick"] else ""
    axes.set_title(f"{met} of {len(rows)} bars are met{toy}: right of the line is better", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    _legend(fig, axes)
    fig.savefig(file, dpi=150)
    plt.close(fig)


def _draw(axes: Any, y: int, m: dict[str, Any]) -> None:
    ends = sorted(margin(m[q], m) for q in ("q1", "median", "q3"))
    colour, marker = (BLUE, "o") if m["met"] else (VERMILION, "X")
    axes.plot([ends[0], ends[-1]], [y, y], color=colour, linewidth=2)
    axes.plot(margin(m["median"], m), y, color=colour, marker=marker, markersize=7)
    if m["aim"]:
        axes.plot(margin(m["aim"], m), y, color=GREY, marker="D", markersize=5, fillstyle="none")
    words = f"{m['median']:.3g} {m['unit']}, bar {m['bar']}"
    axes.annotate(words, (1.01, y), xycoords=("axes fraction", "data"), fontsize=8, va="center", annotation_clip=False)


def _legend(fig: Any, axes: Any) -> None:
    entries = (("o", BLUE, "full", "bar met"), ("X", VERMILION, "full", "not met"), ("D", GREY, "none", "aim"))
    for marker, colour, fill, label in entries:
        axes.plot([], [], marker=marker, color=colour, fillstyle=fill, linestyle="", label=label)
    fig.legend(loc="outside lower left", fontsize=8, ncols=3)
