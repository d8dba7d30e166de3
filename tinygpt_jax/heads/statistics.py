"""Errors of effects, and what may be said of them: all from values per example, which pair every comparison."""

from __future__ import annotations

import math

import numpy as np

from tinygpt_jax.errors import UserError


def mean_and_se(per_example: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the last axis (examples, taken as independent) and its standard error, in float64.

    Raises:
        UserError: there are fewer than two examples.
    """
    n = per_example.shape[-1]
    if n < 2:
        raise UserError(f"{n} example{'s' * (n != 1)}: a standard error needs two or more; give more text or windows")
    values = np.asarray(per_example, np.float64)
    return values.mean(-1), values.std(-1, ddof=1) / math.sqrt(n)


def bootstrap_interval(
    per_example: np.ndarray, draws: int, seed: int, share: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over the last axis (Efron and Tibshirani 1993, chapter 13).

    Every row is resampled by the same examples, so that differences of rows are paired.
    """
    values = np.asarray(per_example, np.float64)
    weights = resampling_weights(values.shape[-1], draws, seed)
    means = values @ weights.T
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2], axis=-1)
    return low, high


def resampling_weights(n: int, draws: int, seed: int) -> np.ndarray:
    """(draws, n): the share that each of n examples has in each bootstrap sample."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    return counts / n


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 along the last axis, ties sharing their mean."""

    def row_ranks(row: np.ndarray) -> np.ndarray:
        ordered = np.sort(row)
        return (np.searchsorted(ordered, row, "left") + np.searchsorted(ordered, row, "right") - 1) / 2

    return np.apply_along_axis(row_ranks, -1, np.asarray(values, np.float64))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's: the correlation of the ranks along the last axis; NaN where one side is constant."""
    x, y = (r - r.mean(-1, keepdims=True) for r in (ranks(a), ranks(b)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (x * y).sum(-1) / np.sqrt(np.square(x).sum(-1) * np.square(y).sum(-1))


def rank_correlation_and_se(a: np.ndarray, b: np.ndarray, draws: int = 200, seed: int = 0) -> tuple[float, float]:
    """Spearman's correlation of two (N, B) tables' row means, and its bootstrap standard error over the B examples; NaN
    where the rows of one side do not differ."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    weights = resampling_weights(a.shape[-1], draws, seed)
    drawn = rank_correlation(weights @ a.T, weights @ b.T)
    drawn = drawn[np.isfinite(drawn)]
    se = drawn.std(ddof=1) if len(drawn) > 1 else np.nan
    return float(rank_correlation(a.mean(-1), b.mean(-1))), float(se)


def reliability(per_example: np.ndarray) -> float:
    """The share of the variance between rows (N, B) that is not noise: 1 where the examples agree, 0 or less where the
    rows differ by no more than chance. Differences are paired, so what moves all rows alike is no noise."""
    values = np.asarray(per_example, np.float64)
    values = values - values.mean(0)  # leaves the differences, and their noise
    effect, se = mean_and_se(values)
    spread = effect.var(ddof=1)
    return float(1 - np.square(se).mean() * len(effect) / (len(effect) - 1) / spread) if spread > 0 else 0.0


def ranking(per_example: np.ndarray) -> np.ndarray:
    """The rows of (N, B), the largest mean first.

    Raises:
        UserError: the noise is as large as the differences: less than half of the variance between rows is real.
    """
    if len(per_example) < 2:
        return np.arange(len(per_example))
    if not np.isfinite(per_example).all():
        raise UserError("no ranking: an effect is not a finite number; the model's weights or outputs are damaged")
    found = reliability(per_example)
    if not found >= 0.5:
        real, n = max(found, 0.0), per_example.shape[-1]
        raise UserError(
            f"no ranking: only {real:.0%} of the variance between the effects is more than noise, half is asked for; "
            f"measure on more than these {n} examples"
        )
    return np.argsort(-np.asarray(per_example, np.float64).mean(-1), kind="stable")
