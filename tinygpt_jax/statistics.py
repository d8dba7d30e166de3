"""Standard errors of means, and which differences they allow: all from values per example, which pair comparisons.

Examples are independent, or windows in the order of one text (`ordered`). Neighbouring windows are alike, and so are
those of one chapter, and no length is known beyond which a text forgets; an error that takes windows as independent is
several times too small. Windows in order are therefore split into slow cosines (`components`), whose size says how far
the mean of a whole text strays, with the text's memory estimated from the same cosines (`experiments/coverage`).
"""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.errors import UserError

COSINES = 12
"""The slowest cosines of a text's windows, from which an error is read; all of them where there are fewer."""
MOST_MEMORY = 0.3
"""The largest memory parameter: 0 for none; with 0.3 the correlation of windows falls as (their distance)^-0.4."""
NORMAL_95 = 1.96
"""Standard errors to either side that hold the truth 95 times in 100."""
MANY = 10**6
"""Degrees of freedom of an error that is known well."""
FALSE_PASS = 0.05
"""How often pure noise may pass for a ranking, or for an effect, all values of a result together."""

Floats = NDArray[np.float64]
_unwarned = functools.partial(np.errstate, invalid="ignore", divide="ignore", over="ignore")
"""What is not finite goes on as that, and whoever prints it says so."""


@_unwarned()
def standard_error(values: ArrayLike, ordered: bool) -> Floats:
    """Of the mean over the last axis, (..., n) -> (...) in float64; NaN for n of 1 or a value that is not finite.

    Independent examples: the standard deviation over the root of n. Windows in order: the root of the long-run
    variance over n, by the estimator that is consistent under memory and autocorrelation (MAC; Robinson 2005, "Robust
    covariance matrix estimation: HAC estimates with long memory/antipersistence correction"; Abadir, Distaso and
    Giraitis 2009, "Two estimators of the long-run variance: beyond short memory"). It comes from few cosines, so it is
    widened by Student's t over the normal's 1.96: 1.96 of it to either side are a 95 % interval.
    """
    parts = components(values, ordered)
    if not parts.shape[-1]:
        return np.full(parts.shape[:-1], np.nan)
    return np.sqrt(np.square(parts).mean(-1)) * _widening(parts.shape[-1], ordered)


@_unwarned()
def components(values: ArrayLike, ordered: bool) -> Floats:
    """Values (..., n) -> (..., m) such that the mean of their squares over m is the squared standard error of the
    values' mean, and the mean of the products of two rows the covariance of their means.

    Independent examples: deviations from the mean. Windows in order: cosines, the slowest `COSINES` of them, each
    scaled to what the text's memory makes of it at frequency 0. The memory d of each row is the one that fits a
    spectrum in frequency^-2d best (local Whittle, Künsch 1987; Robinson 1995), from 0 to `MOST_MEMORY`.
    """
    values = np.asarray(values, np.float64)
    n = values.shape[-1]
    if n < 2:
        return values[..., :0]
    apart = values - values.mean(-1, keepdims=True)
    if not ordered:
        return apart / math.sqrt(n - 1)
    cosines = apart @ _basis(n)
    j, (memory, growth) = np.arange(1.0, cosines.shape[-1] + 1), _memories()
    level = np.square(cosines) @ j[:, None] ** (2 * memory) / len(j)
    best = (np.log(level) - 2 * memory * np.log(j).mean()).argmin(-1)
    return cosines * j ** memory[best][..., None] * np.sqrt(growth[best] / n)[..., None]


@functools.lru_cache(8)
def _basis(n: int) -> Floats:
    """(n, m) orthonormal cosines of 1, 2, … m half turns over n windows."""
    half_turns = np.arange(1, min(COSINES, n - 1) + 1)
    return math.sqrt(2 / n) * np.cos(math.pi / n * np.outer(np.arange(n) + 0.5, half_turns))


@functools.cache
def _memories() -> tuple[Floats, Floats]:
    """Memory parameters d that are tried, and for each by how much n times the variance of a mean is above that of the
    cosine of one half turn, which stands for a spectrum in frequency^-2d (Abadir, Distaso and Giraitis 2009, p(d))."""
    memory = np.linspace(0, MOST_MEMORY, 31)
    growth = [
        math.pi ** (2 * d) * math.gamma(1 - 2 * d) * math.sin(math.pi * d) / (math.pi * d * (1 + 2 * d)) if d else 1.0
        for d in memory
    ]
    return memory, np.array(growth)


def freedom(examples: int, ordered: bool) -> int:
    """Degrees of freedom of the standard error of a mean of so many examples, 1 at the least."""
    return max(1, min(examples - 1, COSINES) if ordered else examples - 1)


def errors_away(share: float, examples: int, ordered: bool = False) -> float:
    """How many standard errors of a mean of so many examples it takes that a share of what chance brings is below:
    Student's t."""
    free = freedom(examples, ordered)
    return _student(share, free) / _widening(free, ordered)


def _student(share: float, free: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(free, share))


def _widening(free: int, ordered: bool) -> float:
    return _student(0.975, free) / NORMAL_95 if ordered else 1.0


@_unwarned()
def mean_and_se(per_example: ArrayLike, ordered: bool = False) -> tuple[Floats, Floats]:
    """Mean over the last axis and its standard error, in float64.

    Raises:
        UserError: there are fewer than two examples.
    """
    values = np.asarray(per_example, np.float64)
    n = values.shape[-1]
    if n < 2:
        raise UserError(f"{n} example{'s' * (n != 1)}: a standard error needs two or more; give more text or windows")
    return values.mean(-1), standard_error(values, ordered)


@_unwarned()
def ratio_and_se(totals: ArrayLike, counts: ArrayLike, ordered: bool = False) -> tuple[Floats, Floats]:
    """Sum of totals over sum of counts, both (B, ...) by example, and its standard error to first order (the delta
    method; Cochran 1977, section 2.11), in float64. NaN where the counts sum to 0; so is the error of one example."""
    totals, counts = np.asarray(totals, np.float64), np.asarray(counts, np.float64)
    whole = counts.sum(0)
    whole = np.where(whole == 0, np.nan, whole)
    estimate = totals.sum(0) / whole
    apart = np.moveaxis(totals - counts * estimate, 0, -1)
    return estimate, standard_error(apart, ordered) * len(totals) / np.abs(whole)


@_unwarned()
def resampled_means(per_example: ArrayLike, draws: int, seed: int, ordered: bool) -> Floats:
    """Means over the last axis as other examples of the kind might have given them: (..., B) -> (..., draws).

    Independent examples are drawn again with replacement (Efron and Tibshirani 1993, chapter 13). Windows in order keep
    their covariance: each draw weighs their `components` by normal numbers. All rows share a draw, so that
    differences of rows are paired; `scipy.stats.bootstrap` takes examples as independent and keeps no draws to share.
    """
    values, rng = np.asarray(per_example, np.float64), np.random.default_rng(seed)
    n = values.shape[-1]
    if n < 2:
        return np.full((*values.shape[:-1], draws), np.nan)
    if not ordered:
        return values @ (rng.multinomial(n, np.full(n, 1 / n), size=draws) / n).T
    parts = components(values, ordered)
    m = parts.shape[-1]
    spread = _widening(m, ordered) / math.sqrt(m)
    return values.mean(-1)[..., None] + parts @ rng.normal(0, spread, (m, draws))


@_unwarned()
def bootstrap_interval(
    per_example: ArrayLike, draws: int, seed: int, ordered: bool = False, share: float = 0.95
) -> tuple[Floats, Floats]:
    """Percentile interval of the mean over the last axis, from `resampled_means`."""
    means = resampled_means(per_example, draws, seed, ordered)
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2], axis=-1)
    return low, high


@_unwarned()
def rank_correlation(a: ArrayLike, b: ArrayLike) -> Floats:
    """Spearman's: the correlation of the ranks along the last axis, ties sharing theirs; NaN where a side is
    constant, has a NaN or is of one place.

    Not scipy's `spearmanr`, which pairs all columns with all others where rows are to be paired one to one, and warns
    where the answer is NaN.
    """
    from scipy.stats import rankdata

    x, y = (rankdata(one, axis=-1) for one in (a, b))
    if x.shape[-1] < 2:
        return np.full(x.shape[:-1], np.nan)
    x, y = (ranks - ranks.mean(-1, keepdims=True) for ranks in (x, y))
    return (x * y).sum(-1) / np.sqrt(np.square(x).sum(-1) * np.square(y).sum(-1))


@_unwarned()
def rank_correlation_and_se(
    a: ArrayLike, b: ArrayLike, draws: int = 200, seed: int = 0, ordered: bool = False
) -> tuple[float, float]:
    """Spearman's correlation of two (N, B) tables' row means, and its standard error over the B examples, from
    `resampled_means`; NaN where the rows of one side do not differ, or there is no example."""
    both = np.stack([np.asarray(a, np.float64), np.asarray(b, np.float64)])
    if not both.size:
        return math.nan, math.nan
    drawn = rank_correlation(*np.moveaxis(resampled_means(both, draws, seed, ordered), -1, 1))
    drawn = drawn[np.isfinite(drawn)]
    se = drawn.std(ddof=1) if len(drawn) > 1 else np.nan
    return float(rank_correlation(*both.mean(-1))), float(se)


def reliability(per_example: ArrayLike, ordered: bool = False) -> float:
    """The share of the variance between the means of rows (N, B) that is not noise: 1 where the examples agree, 0 or
    less where rows differ by no more than chance, or where that cannot be told. Differences are paired, so what moves
    all rows alike is no noise."""
    values = np.asarray(per_example, np.float64)
    between, noise, _ = _spread(values, ordered) if _tell(values) else (0.0, 0.0, values)
    return 1 - noise / between if between > 0 else 0.0


def chance_of_spread(per_example: ArrayLike, ordered: bool = False) -> float:
    """The probability that rows (N, B) of one true mean differ as much as these do, or more; 1 where that cannot be
    told, of a single row or example or with a value that is not finite.

    The F test of a repeated-measures analysis of variance, for rows of any variances and correlations: its degrees of
    freedom are those of Greenhouse and Geisser 1959.
    """
    values = np.asarray(per_example, np.float64)
    if not _tell(values):
        return 1.0
    between, noise, parts = _spread(values, ordered)
    sizes = np.square(np.linalg.svd(parts / (np.abs(parts).max() or 1), compute_uv=False))
    return _chance(between, noise, sizes, freedom(values.shape[-1], ordered))


def chance_of_values(values: ArrayLike, errors: ArrayLike, examples: int, ordered: bool = False) -> float:
    """`chance_of_spread` of means (N,) of which only the standard errors are known, over so many examples; 0 where that
    is not known, which is taken as many. Errors that the means share make it too large, never too small."""
    values, errors = np.asarray(values, np.float64), np.asarray(errors, np.float64)
    if not _tell(np.stack([values, errors], -1)):
        return 1.0
    size = np.abs([values, errors]).max() or 1.0  # which no chance depends on, and squares may be too large with
    values, errors = values / size, errors / size
    free = freedom(examples, ordered) if examples else MANY
    return _chance(values.var(ddof=1), np.square(errors).mean(), np.square(errors), free)


def _chance(between: float, noise: float, sizes: Floats, free: int) -> float:
    """Of a variance between means as large as this, where noise alone makes it `noise`, spread over directions of these
    sizes, each known with so many degrees of freedom."""
    from scipy.stats import f

    if not between > 0 or not noise > 0:
        return float(not between > 0)
    sizes = sizes / sizes.max()
    rank = sizes.sum() ** 2 / np.square(sizes).sum()  # below N - 1 where few directions hold most of the noise
    return float(f.sf(between / noise, rank, rank * free))


def _tell(values: Floats) -> bool:
    """Whether values (N, B) can tell differences of rows from noise."""
    return min(values.shape) > 1 and bool(np.isfinite(values).all())


def _spread(values: Floats, ordered: bool) -> tuple[float, float, Floats]:
    """Variance between the means of rows (N, B), what noise alone would make it, and the components of the rows less
    their common mean; all in units of the largest value, whose square may be too large."""
    values = values / (np.abs(values).max() or 1.0)
    apart = values - values.mean(0)
    parts = components(apart, ordered)
    N = len(values)
    return float(apart.mean(-1).var(ddof=1)), float(np.square(parts).mean(-1).sum() / (N - 1)), parts


def ranking(per_example: ArrayLike, ordered: bool = False) -> NDArray[np.int64]:
    """The rows of (N, B), the largest mean first. A ranking of noise passes in at most `FALSE_PASS` of cases, whatever
    N is.

    Raises:
        UserError: differences as large as these arise by chance too often.
    """
    values = np.asarray(per_example, np.float64)
    if len(values) < 2:
        return np.arange(len(values))
    if not np.isfinite(values).all():
        raise UserError(
            "no ranking: an effect is not a finite number; the model's weights or outputs are damaged, or the metric is"
        )
    check_chance(chance_of_spread(values, ordered), values.shape[-1])
    return np.argsort(-values.mean(-1), kind="stable")


def check_chance(chance: float, examples: int) -> None:
    """Raises UserError where differences like those found come about too often without any."""
    if examples == 1:
        raise UserError("no ranking: one example does not tell differences from noise; measure on more")
    if not chance <= FALSE_PASS:
        raise UserError(
            f"no ranking: differences this large arise by chance in {chance:.0%} of cases, "
            f"{FALSE_PASS:.0%} are allowed; measure on more {f'than {examples} ' * bool(examples)}examples"
        )
