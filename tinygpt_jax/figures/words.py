"""Text and numbers as figures show them: tokens made visible, numbers with the digits that their errors bear out."""

from __future__ import annotations

import dataclasses
import textwrap
import unicodedata
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from tinygpt_jax.digits import decimals, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.fonts import font_of
from tinygpt_jax.lab.order import Changes, does, in_order
from tinygpt_jax.lab.result import Definition
from tinygpt_jax.markup import isolated, marked

MOST = 14
"""Columns of a token or name that are shown: characters, of which wide ones count twice."""


class Words(NamedTuple):
    """What a figure says."""

    headline: str
    """what is to be seen"""
    label: str
    """of the values, with their unit"""
    caption: str
    """how they were measured"""


def visible(token: str) -> str:
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
    U+XXXX, `$` no formula, and what is written from right to left apart from what stands beside it."""
    return isolated("".join(signs(text)))


def signs(text: str) -> list[str]:
    """Each character of a text as it can be drawn."""

    def one(i: int, character: str) -> str:
        category = unicodedata.category(character)
        drawn = font_of(character) and (category[0] != "Z" or character == " ")
        if not drawn or (i == 0 and category[0] == "M"):
            return f"U+{ord(character):04X}"
        return "\\$" if character == "$" else character

    return [one(i, character) for i, character in enumerate(text)]


def caption(definition: Definition) -> str:
    """What was done, to what, on what, in one line."""
    d = dataclasses.replace(definition, set=textwrap.shorten(definition.set, 90, placeholder=" …"))
    read = "; ".join((f"read {d.granularity} ({d.set}) at {d.component}; positions: {d.positions}", *d.flags))
    what = read if d.direction == "read" else d.line()
    kind = "windows in the order of the text (long-run errors)" if d.ordered else "examples"
    how = [f"{d.examples} {kind if d.examples > 1 else 'example'}"] * bool(d.examples)
    how += [f"seed {d.seed}"] * (d.seed is not None)
    of = [f"{kind} {name}" for kind, name in (("model", d.model), ("data", d.data)) if name != "-"]
    return f"{what[:1].upper()}{what[1:]}. Metric: {', '.join([d.metric, *how])}{'; ' * bool(of)}{', '.join(of)}."


def largest(changes: Changes) -> str:
    """The headline of a figure of effects: what comes first in their order and what it does, or why there is no order.

    Raises:
        UserError: there are not as many names and errors as values.
    """
    names, values = changes.names, changes.values
    errors = np.full(np.shape(values), np.nan) if changes.errors is None else changes.errors
    if not len(names) == len(values) == len(errors):
        raise UserError(f"{len(values)} values, {len(errors)} errors and {len(names)} names: give one of each")
    if not np.isfinite(values).any():
        return f"No {changes.what} is a finite number"
    try:
        top = int(in_order(changes)[0])
    except UserError as refused:
        reason = str(refused).split(";")[0]
        return reason[:1].upper() + reason[1:]
    said = with_error(values[top], errors[top], decimals(values[top], errors[top]), signed=True)
    which = "What suffices best" if changes.least else f"Largest {changes.what}"
    what = f" {does(values[top], changes.metric)}{' least' * changes.least}" if changes.metric else ""
    return f"{which}: {names[top]}{what}, {said} {changes.unit}"
