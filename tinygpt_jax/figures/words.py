"""Results in words: tokens made visible, headlines, captions and labels of axes, and tables for a terminal."""

import dataclasses
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from tinygpt_jax.digits import decimals, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.fonts import font_of
from tinygpt_jax.lab.order import WORDS, Changes, does, in_order
from tinygpt_jax.lab.result import UNITLESS, Definition, Result
from tinygpt_jax.markup import isolated, marked
from tinygpt_jax.statistics import mean_and_se

MOST = 14
"""Columns of a token or name that are shown: characters, of which wide ones count twice."""
MOST_LABEL = 64
"""Columns of a label, which takes a line."""
MOST_ROWS = 400
"""Rows of a table that a terminal shows."""
EFFECTS = {
    "remove": "Effect of removing each {}",
    "keep": "Effect of keeping one {} alone in its layer",
    "denoise": "Effect of patching clean activations into each {}",
    "noise": "Effect of patching corrupted activations into each {}",
}
"""Direction of an intervention -> what its effects are called."""


class Words(NamedTuple):
    """What a figure says."""

    headline: str
    """what is to be seen"""
    label: str
    """of the values, with their unit"""
    caption: str
    """what is shown and, on a line of its own, how it was measured"""


def short_token(token: str) -> str:
    """A token as one short line that says every character: `the␣`, `↵`, `⇥`, `U+0000`, `∅` where it is empty."""
    return short(marked(token))


def short(text: str, most: int = MOST) -> str:
    """Safe text of `most` columns at the most."""
    return safe(clipped(text, most))


def clipped(text: str, most: int = MOST) -> str:
    """As much of a text as takes `most` columns when it is safe, the last of them `…` where there was more."""
    ends = np.cumsum([cell_len(sign) for sign in signs(text)])
    if not text or ends[-1] <= most:
        return text
    return "".join(character for character, end in zip(text, ends, strict=True) if end < most) + "…"


def safe(text: str) -> str:
    """Text that matplotlib draws as it stands: what no font has or what is no sign (controls, marks that come first) as
    U+XXXX, `$` no formula, what is written from right to left apart from what stands beside it, and of a long text the
    first `MOST_LABEL` columns: a page of text for a label is drawn for minutes."""
    return isolated("".join(signs(clipped(text, MOST_LABEL))))


def signs(text: str) -> list[str]:
    """Each character of a text as it can be drawn."""

    def one(i: int, character: str) -> str:
        category = unicodedata.category(character)
        drawn = font_of(character) and (category[0] != "Z" or character == " ")
        if not drawn or (i == 0 and category[0] == "M"):
            return f"U+{ord(character):04X}"
        return "\\$" if character == "$" else character

    return [one(i, character) for i, character in enumerate(text)]


def with_unit(label: str, unit: str) -> str:
    """The label of an axis; a share or a number without a unit is just named."""
    return label if unit in UNITLESS else f"{label} ({unit})"


def caption(definition: Definition, shown: str = "") -> str:
    """What is shown and, on a line of its own, how it was made: what was done, on what, to which model."""
    d = dataclasses.replace(definition, set=textwrap.shorten(definition.set, 90, placeholder=" …"))
    what = d.line()
    kind = "windows in the order of the text (long-run errors)" if d.ordered else "examples"
    over = f" over {d.examples} {kind if d.examples > 1 else 'example'}" * bool(d.examples)
    seed = f", seed {d.seed}" * (d.seed is not None)
    of = [f"{kind} {name}" for kind, name in (("model", d.model), ("data", d.data)) if name != "-"]
    how = f"{what[:1].upper()}{what[1:]}. Metric: {d.metric}{over}{seed}{'; ' * bool(of)}{', '.join(of)}."
    return f"{shown}\n{how}".strip()


def words_of(d: Definition, headline: str, label: str, shown: str = "") -> Words:
    """`Words` of values in the unit of their definition."""
    return Words(headline, with_unit(label, d.unit), caption(d, shown))


def the_metric(definition: Definition) -> str:
    """`the loss`; a metric of the user's own goes by its name."""
    return WORDS.get(definition.metric, definition.metric)


def effects_headline(definition: Definition, changes: Changes) -> str:
    """`Effect of removing each head: 0.1 raises the loss most, +0.30 ± 0.02 nats per token`."""
    said = EFFECTS.get(definition.direction, "Effect at each {}").format(definition.part())
    return f"{said}: {largest(changes)}"


def largest(changes: Changes) -> str:
    """The end of a headline of effects: what comes first in their order and what it does, or that there is no order.

    Raises:
        UserError: there are not as many names and errors as values.
    """
    names, values = changes.names, changes.values
    errors = np.full(np.shape(values), np.nan) if changes.errors is None else changes.errors
    if not len(names) == len(values) == len(errors):
        raise UserError(f"{len(values)} values, {len(errors)} errors and {len(names)} names: give one of each")
    if not np.isfinite(values).any():
        return f"no {changes.what} is a finite number"
    try:
        top = int(in_order(changes)[0])
    except UserError as refused:
        reason = str(refused).split(";")[0]
        return "no order beyond the noise" if reason.startswith("no ranking") else reason
    said = with_error(values[top], errors[top], decimals(values[top], errors[top]), signed=True)
    if not changes.metric:
        return f"largest at {names[top]}, {said} {changes.unit}"
    most = " least" * changes.least or " most" * bool(values[top])
    return f"{names[top]} {does(values[top], changes.metric)}{most}, {said} {changes.unit}"


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
