"""Parts of results in words, for a terminal: tables of aligned columns, and the intact model's metric."""

from collections.abc import Sequence

from rich.cells import cell_len

from tinygpt_jax.digits import with_error
from tinygpt_jax.lab.result import Result
from tinygpt_jax.statistics import mean_and_se

MOST_ROWS = 400


def intact(result: Result) -> list[str]:
    """A line with the metric of the intact model, or of the run patched into, where there are two examples or more."""
    baseline = getattr(result, "baseline", None)
    if baseline is None or len(baseline) < 2:
        return []
    mean, se = map(float, mean_and_se(baseline, result.definition.ordered))
    what = {"denoise": "corrupted run", "noise": "clean run"}.get(result.definition.direction, "intact model")
    return [f"{what}: {with_error(mean, se)} {result.definition.unit}"]


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """A table with right-aligned columns."""
    widths = [max(map(cell_len, column)) for column in zip(head, *body, strict=True)]
    return [
        "  " + "  ".join(" " * (w - cell_len(c)) + c for c, w in zip(cells, widths, strict=True))
        for cells in (head, *body)
    ]


def table_lines(result: Result) -> list[str]:
    """The result's table, each value with its error."""
    if not 0 < (count := int(result.present().sum())) <= MOST_ROWS:
        return [f"  {count:,} rows: see the CSV"]
    return aligned(*result.cells())
