"""What experiments share: their command, numbers with errors over seeds, verdicts, and JSON that people can read."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.machine import machine
from tinygpt_jax import statistics
from tinygpt_jax.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOLDS, PARTLY, FAILS, OPEN = "holds", "holds partly", "does not hold here", "cannot be said"
"""Verdicts on a claim."""


def mean_and_se(values: Sequence[float]) -> tuple[float, float]:
    """Over seeds: the mean and its standard error; NaN where there are too few."""
    if len(values) < 2:
        return values[0] if len(values) else math.nan, math.nan
    mean, se = statistics.mean_and_se(values)
    return float(mean), float(se)


def spread(values: Sequence[float], digits: int) -> str:
    """`mean ± standard error`."""
    mean, se = mean_and_se(values)
    return f"{mean:.{digits}f} ± {se:.{digits}f}" if len(values) else "there are none"


def claim(what: str, measured: str, verdict: str) -> dict[str, str]:
    """One row of the table of claims: results.json keeps a list of them under `claims`."""
    if verdict not in (verdicts := (HOLDS, PARTLY, FAILS, OPEN)):
        raise ValueError(f"verdict is {verdict!r}: must be one of {', '.join(verdicts)}")
    return {"claim": what, "measured": measured, "verdict": verdict}


def verdict(parts: Sequence[Any]) -> str:
    """Of a claim that has parts: it holds where all of them do, and partly where some do."""
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def claims_table(claims: Sequence[Mapping[str, str]]) -> str:
    """Markdown. Claims that name their `experiment` link to it, from the folder of all experiments."""
    columns = ["claim", "measured", "verdict", *(["experiment"] if "experiment" in claims[0] else [])]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for one in claims:
        cells = [f"[{one[name]}]({one[name]}/README.md)" if name == "experiment" else one[name] for name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def save_png(figure: Figure, stem: Path) -> None:
    """STEM.png; the same figure gives the same bytes."""
    from tinygpt_jax.figures.style import DPI, encoded

    write_atomically(stem.with_suffix(".png"), encoded(figure, "png", DPI))


def written(results: Any) -> str:
    """JSON with five significant digits, a list of numbers on one line, and null for what is not finite."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): plain(part) for name, part in value.items()}
        if isinstance(value, (list, tuple, np.ndarray)):
            return [plain(part) for part in value]
        if isinstance(value, (float, np.floating)):
            return float(f"{value:.5g}") if math.isfinite(value) else None
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[[^][{}]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text) + "\n"


def main(
    doc: str,
    here: Path,
    measure: Callable[..., dict[str, Any]],
    report: Callable[[dict[str, Any], Path], None],
    files: Mapping[str, str] | None = None,
) -> None:
    """The command of an experiment: measures, writes results.json, and from that alone tables and figures.

    Args:
        doc: what `--help` says
        here: where its files go without --out
        measure: measure(quick) -> results, which are completed by the machine and the time taken
        report: report(results, out) writes table.md and figures
        files: option -> its help, of files that may be given; measure(quick, option=path or None) gets them
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=here, help="where results.json, table.md and the figure go")
    parser.add_argument("--redraw", action="store_true", help="make table and figure from the results at hand")
    for name, words in (files or {}).items():
        parser.add_argument(f"--{name}", type=Path, help=words)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    if not options.redraw:
        began = time.perf_counter()
        given = {name.replace("-", "_"): vars(options)[name.replace("-", "_")] for name in files or {}}
        found = measure(options.quick, **given)
        facts = {**machine(), "quick": options.quick, "seconds": round(time.perf_counter() - began)}
        file.write_text(written({**facts, **found}), encoding="utf-8")
    report(json.loads(file.read_text(encoding="utf-8")), options.out)
