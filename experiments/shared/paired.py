"""Differences between two variants, paired by seed: both had the same batches."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.shared.common import mean_and_se

ERRORS = 2.78
"""A difference of so many standard errors is one: Student's t for five seeds, 95 % of both sides."""


def less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Values less others, seed by seed."""
    return [a - b for a, b in zip(values, others, strict=True)]


def higher(differences: Sequence[float]) -> bool:
    """Whether they are above 0 by ERRORS standard errors; where a training came apart, NaN, that cannot be said."""
    mean, se = mean_and_se(differences)
    return mean > ERRORS * se
