"""What experiments share: their command, numbers with errors over seeds, verdicts, and JSON that people can read."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.machine import machine

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold here"
"""Verdicts on a claim."""


def mean_and_se(values: Sequence[float]) -> tuple[float, float]:
    """Over seeds: the mean and its standard error; NaN where there are too few."""
    if len(values) < 2:
        return values[0] if len(values) else math.nan, math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def spread(values: Sequence[float], digits: int) -> str:
    """`mean ± standard error`."""
    mean, se = mean_and_se(values)
    return f"{mean:.{digits}f} ± {se:.{digits}f}" if len(values) else "there are none"


def claim(what: str, measured: str, verdict: str) -> dict[str, str]:
    """One row of the table of claims: results.json keeps a list of them under `claims`."""
    if verdict not in (HOLDS, PARTLY, FAILS):
        raise ValueError(f"verdict is {verdict!r}: must be one of {HOLDS}, {PARTLY}, {FAILS}")
    return {"claim": what, "measured": measured, "verdict": verdict}


def verdict(parts: Sequence[Any]) -> str:
    """Of a claim that has parts: it holds where all of them do, and partly where some do."""
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def claims_table(claims: Sequence[dict[str, str]]) -> str:
    """Markdown."""
    rows = [f"| {one['claim']} | {one['measured']} | {one['verdict']} |" for one in claims]
    return "\n".join(["| claim | measured | verdict |", "|---|---|---|", *rows]) + "\n"


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
    measure: Callable[[bool], dict[str, Any]],
    report: Callable[[dict[str, Any], Path], None],
) -> None:
    """The command of an experiment: measures, writes results.json, and from that alone tables and figures.

    Args:
        doc: what `--help` says
        here: where its files go without --out
        measure: measure(quick) -> results, which are completed by the machine and the time taken
        report: report(results, out) writes table.md and figures
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=here, help="where results.json, table.md and the figure go")
    parser.add_argument("--redraw", action="store_true", help="make table and figure from the results at hand")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    if not options.redraw:
        began = time.perf_counter()
        found = measure(options.quick)
        facts = {**machine(), "quick": options.quick, "seconds": round(time.perf_counter() - began)}
        file.write_text(written({**facts, **found}), encoding="utf-8")
    report(json.loads(file.read_text(encoding="utf-8")), options.out)
