"""What was found about faults, as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results["trials"]), encoding="utf-8")


def table(trials: list[dict[str, Any]]) -> str:
    """Markdown: of each kind of fault how many were tried, survived and lost."""
    tried = Counter(one["kind"] for one in trials)
    survived = Counter(one["kind"] for one in trials if one["survived"])
    rows = [f"| {kind} | {n} | {survived[kind]} | {n - survived[kind]} |" for kind, n in tried.items()]
    total, held = tried.total(), survived.total()
    rows.append(f"| all | {total} | {held} | {total - held} |")
    return "\n".join(["| kind | tried | survived | lost |", "|---|---|---|---|", *rows]) + "\n"
