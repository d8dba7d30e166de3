"""Errors, rank correlations and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.heads.statistics import (
    bootstrap_interval,
    mean_and_se,
    rank_correlation,
    rank_correlation_and_se,
    ranking,
    ranks,
    reliability,
)

RNG = np.random.default_rng(0)


def test_the_standard_error_is_that_of_the_mean():
    draws = RNG.normal(3, 2, (4000, 25))
    mean, se = mean_and_se(draws)
    assert abs(mean.std() / 0.4 - 1) < 0.05
    assert abs(np.sqrt(np.square(se).mean()) / 0.4 - 1) < 0.05
    with pytest.raises(UserError, match="1 example: a standard error needs two"):
        mean_and_se(draws[:, :1])


def test_the_bootstrap_interval_covers():
    draws = RNG.normal(3, 2, (400, 40))
    low, high = bootstrap_interval(draws, 500, 0)
    assert 0.90 < np.mean((low < 3) & (high > 3)) < 0.97


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8))
def test_ranks_share_ties(values):
    want = [np.mean([i for i, v in enumerate(sorted(values)) if v == value]) for value in values]
    np.testing.assert_allclose(ranks(np.array(values)), want)


def test_rank_correlation():
    x = RNG.normal(size=20)
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    # By hand: d = (0, 1, -1), 1 - 6 * 2 / (3 * 8)
    assert rank_correlation(np.array([1, 2, 3]), np.array([1, 3, 2])) == pytest.approx(0.5)
    assert np.isnan(rank_correlation(x, 0 * x))
    truth = np.arange(8.0)[:, None]
    found, se = rank_correlation_and_se(*(truth + RNG.normal(0, 8, (2, 8, 50))))
    assert 0.6 < found < 1
    assert 0 < se < 0.3


def test_a_ranking_is_refused_where_noise_is_larger_than_the_differences():
    noise = RNG.normal(size=(10, 30))
    clear = noise + 3 * np.arange(10)[:, None]
    assert ranking(clear).tolist() == list(range(9, -1, -1))
    assert reliability(clear) > 0.99
    with pytest.raises(UserError, match="no ranking: an effect is not a finite number"):
        ranking(np.full((10, 30), np.nan))
    for vague in (noise, 0 * noise):
        with pytest.raises(UserError, match=r"no ranking: only \d+% of the variance .* more than these 30 examples"):
            ranking(vague)
    # What moves all rows alike is no noise.
    shared = clear + 1000 * RNG.normal(size=30)
    assert ranking(shared).tolist() == ranking(clear).tolist()
    assert ranking(clear[:1]).tolist() == [0]


def test_reliability_is_the_share_of_real_variance():
    found = [reliability(RNG.normal(0, 1, (200, 1)) + RNG.normal(0, 5, (200, 25))) for _ in range(20)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)
