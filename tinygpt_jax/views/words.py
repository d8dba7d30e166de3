"""Text and numbers as figures show them: tokens made visible, numbers with the digits that their errors bear out."""

from __future__ import annotations

import dataclasses
import math
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from tinygpt_jax.errors import UserError
from tinygpt_jax.markup import isolated, marked
from tinygpt_jax.results import Definition
from tinygpt_jax.views.fonts import font_of

MOST = 14
"""Columns of a token or name that are shown: characters, of which wide ones count twice."""
LARGE, FAR = 1e9, 1e100
"""From here on a number is written with its power of ten, and is none that can be drawn."""


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


def with_gaps(values: ArrayLike) -> NDArray[np.float64]:
    """NaN, which is drawn as a gap, for whatever is not finite or too far from 0 for an axis."""
    values = np.asarray(values, np.float64)
    return np.where(np.abs(values) < FAR, values, np.nan)


def decimals(values: ArrayLike, errors: ArrayLike | None = None) -> int:
    """Digits after the point that serve a whole figure: two of the median error, but at most five of the largest value;
    three of it where there are no errors."""
    value, error = np.abs(with_gaps(values)), np.abs(with_gaps([] if errors is None else errors))
    value, error = value[value > 0], error[error > 0]
    most = 2 - math.floor(math.log10(value.max())) if value.size else 0
    if error.size:
        most = min(1 - math.floor(math.log10(np.median(error))), most + 2) if value.size else most
    return min(max(most, 0), 6)


def number(value: float, places: int, signed: bool = False) -> str:
    """`0.12`, `+0.12` where signed, `−0.12`, from a thousand million `1.2e+09`; 0 has no sign, and what is not finite
    is `-`."""
    if not np.isfinite(value):
        return "-"
    if abs(value) >= LARGE:
        return f"{value:{'+' if signed else ''}.3g}".replace("-", "−")
    return f"{round(value, places) or 0.0:{'+' if signed and round(value, places) else ''}.{places}f}".replace("-", "−")


def with_error(value: float, error: float, places: int, signed: bool = False) -> str:
    """`0.12 ± 0.03`."""
    return f"{number(value, places, signed)} ± {number(error, places)}"


def caption(definition: Definition) -> str:
    """What was done, to what, on what, in one line."""
    d = dataclasses.replace(definition, set=textwrap.shorten(definition.set, 90, placeholder=" …"))
    read = "; ".join((f"read {d.granularity} ({d.set}) at {d.component}; positions: {d.positions}", *d.flags))
    what = read if d.direction == "read" else d.line()
    how = [f"{d.examples} example{'s' * (d.examples > 1)}"] * bool(d.examples)
    how += [f"seed {d.seed}"] * (d.seed is not None)
    of = [f"{kind} {name}" for kind, name in (("model", d.model), ("data", d.data)) if name != "-"]
    return f"{what[:1].upper()}{what[1:]}. Metric: {', '.join([d.metric, *how])}{'; ' * bool(of)}{', '.join(of)}."


def largest(names: Sequence[str], values: ArrayLike, errors: ArrayLike | None, unit: str, what: str = "effect") -> str:
    """The headline of a figure of effects: which is largest, or that none stands out of the noise.

    Raises:
        UserError: there are not as many names and errors as values.
    """
    flat = np.asarray(values, np.float64).ravel()
    noise = np.full(flat.shape, np.nan) if errors is None else np.asarray(errors, np.float64).ravel()
    if not len(names) == len(flat) == len(noise):
        raise UserError(f"{len(flat)} values, {len(noise)} errors and {len(names)} names: give one of each")
    finite = np.isfinite(flat)
    if not finite.any():
        return f"No {what} is a finite number"
    top = int(np.argmax(np.where(finite, np.abs(flat), -1)))
    if np.isfinite(noise).any() and not (np.abs(flat[finite]) > 2 * noise[finite]).any():
        return f"No {what} is larger than two standard errors"
    places = decimals(flat[top], noise[top] if np.isfinite(noise[top]) else None)
    error = f" ± {number(noise[top], places)}" if np.isfinite(noise[top]) else ""
    return f"Largest {what}: {names[top]}, {number(flat[top], places, signed=True)}{error} {unit}"
