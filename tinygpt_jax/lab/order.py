"""The one order in which effects are listed, in text, figures, reports and `order()`, and their direction in words.

By size: the largest change of the metric first, whichever way it goes, since more of a metric may be better or worse.
Where one part is kept and the others are off, what suffices comes first, which is the smallest change.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.result import Definition
from tinygpt_jax.statistics import FALSE_PASS, chance_of_values, check_chance, errors_away, ranking

WORDS = {
    "loss": "the loss",
    "kl": "the divergence",
    "log-prob": "the log-probability",
    "logit-diff": "the logit difference",
    "centred logit": "the centred logit",
}
"""Metric -> what a sentence calls it; others go by their name."""
WORSE = {"loss": 1, "kl": 1, "log-prob": -1, "logit-diff": -1}
"""Metric -> the sign of a change for the worse; of others that is not known."""
MOST = 16
"""Names in a line."""


class Changes(NamedTuple):
    """N changes of a metric that have an order."""

    names: Sequence[str]
    values: np.ndarray
    """(N,) of floats"""
    errors: np.ndarray | None = None
    """(N,)"""
    per_example: np.ndarray | None = None
    """(N, B), whose means the values are, where they are known and hold all of the error"""
    metric: str = ""
    """what changes; empty where that is not known, and no direction is said"""
    unit: str = ""
    examples: int = 0
    """that the errors are over; 0 where that is not known"""
    ordered: bool = False
    """whether they are windows in the order of a text"""
    what: str = "effect"
    least: bool = False
    """whether the smallest comes first"""


def changes_of(
    d: Definition,
    names: Sequence[str],
    values: np.ndarray,
    errors: np.ndarray,
    per_example: np.ndarray | None = None,
    what: str = "effect",
) -> Changes:
    """`Changes` of a result's arrays, of any axes, in the metric of its definition; raises ValueError where there are
    not as many names."""
    if len(names) != np.size(values):
        raise ValueError(f"{len(names)} names for {np.size(values)} values")
    rows = None if per_example is None else np.reshape(per_example, (len(names), -1))
    flat, least = (np.ravel(values), np.ravel(errors)), d.direction == "keep"
    return Changes(names, *flat, rows, d.metric, d.unit, d.examples, d.ordered, what, least)


def plain_changes(
    names: Sequence[str], values: ArrayLike, errors: ArrayLike | None, unit: str, what: str = "effect"
) -> Changes:
    """`Changes` of arrays of any shape, of a metric that is not known."""
    rows = [None if array is None else np.asarray(array, np.float64).ravel() for array in (values, errors)]
    return Changes(names, np.asarray(rows[0]), rows[1], unit=unit, what=what)


def does(value: float, metric: str) -> str:
    """`raises the loss`, `lowers the log-probability`; a metric of one's own is called by its name."""
    what = WORDS.get(metric, metric)
    return f"{'raises' if value > 0 else 'lowers'} {what}" if value else f"leaves {what} as it is"


def by_size(changes: Changes) -> np.ndarray:
    """Places of the finite values in their order, noise or not."""
    size = np.abs(np.asarray(changes.values, np.float64))
    order = np.argsort(size if changes.least else -size, kind="stable")
    return order[np.isfinite(size[order])]


def in_order(changes: Changes) -> np.ndarray:
    """`by_size`, where there is more to it than noise.

    Raises:
        UserError: the differences of the values may be noise, as `ranking` has it, or a single value may.
    """
    if changes.per_example is not None and len(changes.names) > 1:
        towards = np.where(np.asarray(changes.values) < 0, -1, 1) * (-1 if changes.least else 1)
        return ranking(changes.per_example * towards[:, None], changes.ordered)  # the mean of a row is now its size
    places, errors = by_size(changes), changes.errors
    if errors is None or not np.isfinite(errors[places]).any():
        return places
    if len(places) > 1:
        sizes = np.abs(changes.values[places])
        chance = chance_of_values(sizes, errors[places], changes.examples, changes.ordered)
        check_chance(chance, changes.examples)
        return places
    far = clearly(len(places), changes.examples, changes.ordered)
    if not (np.abs(changes.values[places]) > far * errors[places]).any():
        raise UserError(
            f"no ranking: no {changes.what} of {len(places)} is {far:.1f} standard errors from 0, "
            f"as chance alone would have one {FALSE_PASS:.0%} of the time; measure on more examples"
        )
    return places


def clearly(values: int, examples: int, ordered: bool = False) -> float:
    """How many standard errors, over so many examples, one of so many values must be from 0 so that chance alone comes
    there `FALSE_PASS` of the time at most (Bonferroni's bound; Student's t, or the normal for 0 examples)."""
    share = 1 - FALSE_PASS / (2 * max(values, 1))
    return errors_away(share, examples, ordered) if examples > 1 else float(ndtri(share))


def order_of(result: Any) -> list[str]:
    """Names of what the result has the changes of, in their order: the largest first, or what suffices first.

    Raises:
        UserError: the noise is larger than the differences.
    """
    changes = result.changes()
    return [changes.names[i] for i in in_order(changes)]


def closing_of(result: Any) -> list[str]:
    """A line with the order and the directions, or why there is none; nothing for a single value."""
    changes = result.changes()
    if len(changes.names) < 2:
        return []
    try:
        places = in_order(changes)
    except UserError as error:
        return [str(error)]
    signs = np.sign(changes.values[places])
    most = 1 if (signs > 0).sum() >= (signs < 0).sum() else -1
    aside = {sign: f" ({does(sign, changes.metric).split()[0]})" for sign in (-1, 0, 1)} | {most: ""}
    named = [f"{changes.names[i]}{aside[int(sign)]}" for i, sign in zip(places[:MOST], signs[:MOST], strict=True)]
    first = "what suffices first, by the smallest change" if changes.least else f"the largest {changes.what} first"
    unless = "" if (signs == most).all() else " unless marked"
    more = " …" if len(places) > MOST else ""
    said = f"{first}; each {does(most, changes.metric)}{unless}; neighbours may differ by chance"
    return [f"{said}: {', '.join(named)}{more}"]
