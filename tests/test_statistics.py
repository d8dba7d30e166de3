"""Errors that cover, for examples of every kind; rank correlations; and refusals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.statistics import (
    FALSE_PASS,
    NORMAL_95,
    _memories,
    bootstrap_interval,
    chance_of_spread,
    chance_of_values,
    components,
    errors_away,
    freedom,
    mean_and_se,
    rank_correlation,
    rank_correlation_and_se,
    ranking,
    ratio_and_se,
    reliability,
    resampled_means,
    standard_error,
)

RNG = np.random.default_rng(0)


def chapters(texts, n, length, rng, noise=1.0):
    """Windows of texts (texts, n) whose chapters, `length` windows long in the mean, each have a level of their own."""
    starts = rng.random((texts, n)) < 1 / length
    starts[:, 0] = True
    level = np.take_along_axis(rng.normal(size=(texts, n)), np.cumsum(starts, 1) - 1, 1)
    return level + noise * rng.normal(size=(texts, n))


def autoregressive(texts, n, share, rng):
    values = np.zeros((texts, n + 200))
    for i in range(1, n + 200):
        values[:, i] = share * values[:, i - 1] + rng.normal(size=texts)
    return values[:, 200:]


def long_memory(texts, n, d, rng):
    """Fractional noise: (1 - L)^-d of normal numbers (Granger and Joyeux 1980; Hosking 1981)."""
    weights = np.cumprod(np.append(1, (np.arange(1, 2000) - 1 + d) / np.arange(1, 2000)))
    drawn = rng.normal(size=(texts, n + 2000))
    spectrum = np.fft.rfft(drawn, 4 * (n + 2000)) * np.fft.rfft(weights, 4 * (n + 2000))
    return np.fft.irfft(spectrum)[:, 2000 : n + 2000]


def covered(values, ordered):
    """How often the mean ± 1.96 standard errors holds the true mean, 0."""
    mean, se = mean_and_se(values, ordered)
    return np.mean(np.abs(mean) <= NORMAL_95 * se)


TEXTS = {
    "independent, 16": lambda rng: rng.normal(size=(3000, 16)),
    "independent, 64": lambda rng: rng.normal(size=(3000, 64)),
    "independent and skewed, 400": lambda rng: rng.exponential(size=(3000, 400)) - 1,
    "chapters of 16 windows, 512": lambda rng: chapters(3000, 512, 16, rng),
    "chapters of 40 windows, 726": lambda rng: chapters(3000, 726, 40, rng),
    "autoregressive 0.5, 64": lambda rng: autoregressive(3000, 64, 0.5, rng),
    "autoregressive 0.9, 512": lambda rng: autoregressive(3000, 512, 0.9, rng),
}
ENDLESS = {d: long_memory(3000, 256, d, np.random.default_rng(1)) for d in (0.1, 0.2)}
"""Texts that never forget, which no length of theirs is long enough for."""


@pytest.mark.parametrize("text", TEXTS)
def test_the_error_of_windows_in_order_covers(text):
    assert 0.93 <= covered(TEXTS[text](np.random.default_rng(1)), ordered=True) <= 0.975


@pytest.mark.parametrize(("memory", "least"), [(0.1, 0.88), (0.2, 0.82)])
def test_of_a_text_that_never_forgets_it_covers_most(memory, least):
    assert least <= covered(ENDLESS[memory], ordered=True) <= 0.95
    assert covered(ENDLESS[memory], ordered=False) < 0.8


@pytest.mark.parametrize("text", [text for text in TEXTS if "independent" not in text])
def test_taken_as_independent_windows_of_a_text_do_not_cover(text):
    assert covered(TEXTS[text](np.random.default_rng(1)), ordered=False) < 0.85


def test_the_error_of_independent_examples_is_the_usual_one():
    draws = RNG.normal(3, 2, (4000, 25))
    mean, se = mean_and_se(draws)
    np.testing.assert_allclose(se, draws.std(-1, ddof=1) / 5)
    assert abs(mean.std() / 0.4 - 1) < 0.05
    with pytest.raises(UserError, match="1 example: a standard error needs two"):
        mean_and_se(draws[:, :1])


@pytest.mark.parametrize("ordered", [False, True])
def test_errors_of_few_examples_and_of_damaged_ones(ordered):
    assert standard_error(np.ones((2, 0)), ordered).shape == (2,)
    assert np.isnan(standard_error([[3.0]], ordered))
    # Of two windows in order: as large as Student's t of one degree of freedom is against the normal.
    assert standard_error([1.0, 3.0], ordered) == pytest.approx(12.706 / 1.96 if ordered else 1, rel=1e-4)
    assert (standard_error(np.ones((3, 40)), ordered) < 1e-12).all()
    damaged = standard_error([[1, 2, np.nan, 4], [1, 2, np.inf, 4], [1, 2, 3, 4]], ordered)
    assert np.isfinite(damaged).tolist() == [False, False, True]


@pytest.mark.parametrize("ordered", [False, True])
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=60), st.floats(-1e3, 1e3), st.floats(-10, 10))
def test_errors_go_with_scale_and_not_with_shift(ordered, values, shift, scale):
    se = standard_error(values, ordered)
    np.testing.assert_allclose(standard_error(np.array(values) + shift, ordered), se, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(standard_error(np.array(values) * scale, ordered), se * abs(scale), rtol=1e-4, atol=1e-7)


def test_products_of_components_are_covariances_of_means():
    values = RNG.normal(size=(5, 30)) + RNG.normal(size=30)
    parts = components(values, ordered=False)
    np.testing.assert_allclose(parts @ parts.T / 30, np.cov(values) / 30, rtol=1e-9)


def test_a_ratio_covers_where_windows_differ_in_what_they_count():
    rng = np.random.default_rng(2)
    level, counts = chapters(2000, 400, 20, rng), rng.integers(1, 9, (2000, 400))
    estimates = [ratio_and_se((x + 3) * c, c, True) for x, c in zip(level, counts, strict=True)]
    mean, se = np.transpose(estimates)
    assert 0.93 <= np.mean(np.abs(mean - 3) <= NORMAL_95 * se) <= 0.97
    one = ratio_and_se([[6.0, 0]], [[2.0, 0]])
    assert (one[0][0], np.isnan(one[0][1]), np.isnan(one[1]).all()) == (3, True, True)
    two = ratio_and_se([[6.0, 1.0], [7.0, 2.0]], [[-2.0, 1.0], [-1.0, -1.0]])
    assert two[1][0] > 0  # of counts below 0 too
    assert np.isnan([two[0][1], two[1][1]]).all()  # of counts that come to nothing


def test_a_share_has_the_error_of_a_ratio_of_means():
    rng = np.random.default_rng(3)
    part, whole = 1 + chapters(2000, 400, 20, rng), 4 + 0.5 * chapters(2000, 400, 20, rng)
    share, se = np.transpose([ratio_and_se(a[:, None], b[:, None], True) for a, b in zip(part, whole, strict=True)])[0]
    assert 0.93 <= np.mean(np.abs(share - 0.25) <= NORMAL_95 * se) <= 0.97


def test_the_bootstrap_interval_covers():
    draws = RNG.normal(3, 2, (400, 40))
    low, high = bootstrap_interval(draws, 500, 0)
    assert 0.90 < np.mean((low < 3) & (high > 3)) < 0.97
    low, high = bootstrap_interval(chapters(1500, 512, 16, np.random.default_rng(4)), 400, 0, ordered=True)
    assert 0.92 < np.mean((low < 0) & (high > 0)) < 0.98


@pytest.mark.parametrize("ordered", [False, True])
def test_resampled_means_spread_like_the_error_and_share_their_draws(ordered):
    values = chapters(4, 300, 10, np.random.default_rng(5))
    drawn = resampled_means(values, 4000, 0, ordered)
    np.testing.assert_allclose(drawn.std(-1), standard_error(values, ordered), rtol=0.05)
    np.testing.assert_allclose(drawn.mean(-1), values.mean(-1), atol=0.02)
    twins = resampled_means(np.stack([values[0], values[0] + 1]), 50, 0, ordered)
    np.testing.assert_allclose(twins[1] - twins[0], 1)


def test_rank_correlation():
    x = RNG.normal(size=20)
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    # By hand: d = (0, 1, -1), 1 - 6 * 2 / (3 * 8); with a tie, ranks 1.5 and 1.5
    assert rank_correlation([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    assert rank_correlation([1, 2, 3], [1, 1, 2]) == pytest.approx(1.5 / np.sqrt(2 * 1.5))
    assert np.isnan(rank_correlation(x, 0 * x))
    truth = np.arange(8.0)[:, None]
    for ordered in (False, True):
        found, se = rank_correlation_and_se(*(truth + RNG.normal(0, 8, (2, 8, 50))), ordered=ordered)
        assert 0.6 < found < 1
        assert 0 < se < 0.35


def test_a_ranking_is_refused_where_chance_would_do():
    noise = RNG.normal(size=(10, 30))
    clear = noise + 3 * np.arange(10)[:, None]
    assert ranking(clear).tolist() == list(range(9, -1, -1))
    assert reliability(clear) > 0.99
    with pytest.raises(UserError, match="no ranking: an effect is not a finite number"):
        ranking(np.full((10, 30), np.nan))
    for vague in (noise, 0 * noise):
        with pytest.raises(
            UserError, match=r"arise by chance in \d+% of cases, 5% are allowed; .* more than 30 examples"
        ):
            ranking(vague)
    with pytest.raises(UserError, match="no ranking: one example does not tell differences from noise"):
        ranking(clear[:, :1])
    # What moves all rows alike is no noise.
    shared = clear + 1000 * RNG.normal(size=30)
    assert ranking(shared).tolist() == ranking(clear).tolist()
    assert ranking(clear[:1]).tolist() == [0]


UNEVEN = {
    "alike": lambda N, rng: np.ones((N, 1)),
    "of uneven noise": lambda N, rng: np.exp(rng.normal(size=(N, 1))),
}


@pytest.mark.parametrize("rows", UNEVEN)
@pytest.mark.parametrize("N", [2, 4, 12, 48])
def test_noise_passes_as_a_ranking_no_more_often_than_is_said(N, rows):
    """Rows of one true mean, of examples that are independent, many or few, and of windows of chapters."""
    rng = np.random.default_rng(N)
    scale = UNEVEN[rows](N, rng)

    def passes(make, ordered, times=600):
        return np.mean([chance_of_spread(scale * make(), ordered) <= FALSE_PASS for _ in range(times)])

    slack = 3 * np.sqrt(FALSE_PASS / 600)
    assert 0.01 * (N <= 12) <= passes(lambda: rng.normal(size=(N, 64)), False) <= FALSE_PASS + slack
    assert passes(lambda: rng.normal(size=(N, 8)), False) <= FALSE_PASS + slack
    assert passes(lambda: chapters(N, 256, 10, rng), True) <= FALSE_PASS + slack
    if N > 2 and rows == "alike":  # the same noise, taken as independent, passes all the time
        assert passes(lambda: chapters(N, 256, 10, rng), False, 100) > 0.5


def test_differences_without_any_noise_pass_and_no_differences_do_not():
    for ordered in (False, True):
        for scale in (1, 1e-100):
            assert chance_of_spread(scale * np.array([[-1.0, 5.0], [0.0, 6.0]]), ordered) < 1e-6
        assert chance_of_spread(np.ones((3, 4)), ordered) == 1


def test_true_differences_pass_at_every_count():
    rng = np.random.default_rng(6)
    for N in (2, 4, 12, 48):
        clear = np.linspace(0, 2, N)[:, None] + rng.normal(size=(N, 64))
        assert chance_of_spread(clear) < 1e-3
        assert chance_of_spread(clear, ordered=True) < 0.02


def test_reliability_is_the_share_of_real_variance():
    found = [reliability(RNG.normal(0, 1, (200, 1)) + RNG.normal(0, 5, (200, 25))) for _ in range(20)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)


ANY = st.one_of(
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, 3.0, 1e-320, 1e16, 1e160, 1e308, -1e308, np.nan, np.inf, -np.inf]),
)


@pytest.mark.parametrize("ordered", [False, True])
@given(st.integers(1, 4), st.lists(ANY, min_size=0, max_size=6), st.lists(ANY, min_size=4, max_size=4))
def test_no_value_is_too_few_too_large_or_too_damaged(ordered, rows, values, factors):
    """Edges of every kind, warnings being errors: an error is 0 or more or not there, a chance is from 0 to 1, and a
    ranking is one of numbers that differ or a refusal in a line."""
    table = np.array([[value * factor for value in values] for factor in factors[:rows]], np.float64)
    whole, B = bool(np.isfinite(table).all()), len(values)
    se = standard_error(table, ordered)
    assert se.shape == (rows,)
    assert (np.isnan(se) | (se >= 0)).all()
    if B > 1 and np.abs(table).max() < 1e150:  # False with a NaN
        assert np.isfinite(se).all()
    low, high = bootstrap_interval(table, 50, 0, ordered)
    assert (np.isnan(low) | np.isnan(high) | (low <= high)).all()
    share, share_se = ratio_and_se(table.T, np.ones((B, rows)), ordered)
    assert share.shape == share_se.shape == (rows,)
    assert not (share_se < 0).any()
    assert not np.abs(rank_correlation(table, table)).max(initial=0) > 1 + 1e-9
    assert len(rank_correlation_and_se(table, table, 20, 0, ordered)) == 2
    assert reliability(table, ordered) <= 1
    chance = chance_of_spread(table, ordered)
    assert 0 <= chance <= 1
    assert chance == 1 or (whole and min(table.shape) > 1)
    assert 0 <= chance_of_values(table.max(-1, initial=0), se, B, ordered) <= 1
    if rows > 1 and chance > FALSE_PASS:
        with pytest.raises(UserError, match="^no ranking: ((?!nan).)*$"):
            ranking(table, ordered)
    else:
        assert sorted(ranking(table, ordered)) == list(range(rows))


def test_rows_that_never_differ_have_no_order_whatever_their_number():
    for values in (np.zeros((5, 9)), np.full((5, 2), 3.0), np.tile(RNG.normal(size=9), (4, 1))):
        for ordered in (False, True):
            with pytest.raises(UserError, match="no ranking: differences this large arise by chance in 100% of cases"):
                ranking(values, ordered)


def test_scale_changes_no_chance():
    values = RNG.normal(size=(4, 30)) + np.arange(4)[:, None] / 4
    for scale in (1e-150, 1e150, 1e300):
        assert chance_of_spread(values * scale) == pytest.approx(chance_of_spread(values))
        assert reliability(values * scale) == pytest.approx(reliability(values))


# What mutants showed to be held by no test


def test_degrees_of_freedom_are_those_of_the_examples_or_of_the_cosines():
    assert [freedom(n, ordered=False) for n in (1, 2, 13, 100)] == [1, 1, 12, 99]
    assert [freedom(n, ordered=True) for n in (1, 2, 13, 100)] == [1, 1, 12, 12]


@pytest.mark.parametrize("ordered", [False, True])
def test_the_error_of_a_rank_correlation_is_how_far_it_strays(ordered):
    """Or more: examples drawn again have their own noise on top of that of the first draw."""
    rng, truth = np.random.default_rng(8), np.arange(12.0)[:, None]
    made = (truth + rng.normal(0, 6, (2, 12, 40)) for _ in range(40))
    found, se = np.transpose([rank_correlation_and_se(*both, ordered=ordered) for both in made])
    assert found.std() < np.median(se) < 4 * found.std()


def test_few_examples_make_the_chance_of_given_errors_larger():
    values, errors = [0.0, 0.5, 1.0], [0.25, 0.25, 0.25]
    few, many, unknown = (chance_of_values(values, errors, n) for n in (3, 10**6 + 1, 0))
    assert few > 2 * many
    assert unknown == pytest.approx(many)
    independent, ordered = (chance_of_values(values, errors, 40, flag) for flag in (False, True))
    assert chance_of_values(values, errors, 40) == independent < ordered


def test_a_single_example_is_no_evidence_of_differences():
    assert reliability(np.arange(4.0)[:, None]) == 0
    assert np.isnan(resampled_means([[1.0], [2.0]], 3, 0, ordered=False)).all()
    two = resampled_means([[1.0, 2.0], [2.0, 3.0]], 3, 0, ordered=False)
    assert two.shape == (2, 3)
    assert np.isfinite(two).all()


def test_how_many_errors_away_is_students_t():
    """Of 4 degrees of freedom for 5 independent examples; errors of windows in order have theirs widened already."""
    assert errors_away(0.975, 5) == errors_away(0.975, 5, ordered=False) == pytest.approx(2.776, abs=1e-3)
    assert errors_away(0.975, 5, ordered=True) == pytest.approx(NORMAL_95)


def test_two_examples_have_an_error_and_one_has_none():
    mean, se = mean_and_se([1.0, 3.0])
    assert (mean, se) == (2, pytest.approx(1))
    with pytest.raises(UserError, match="^1 example: a standard error needs two or more"):
        mean_and_se([1.0])


def test_what_a_memory_adds_to_the_variance_of_a_mean_is_that_of_fractional_noise():
    """n var(mean) over the spectrum at one half turn, summed from the exact autocovariances of (1 - L)^-d noise."""
    n = 10**5
    k = np.arange(1, n)
    for d, growth in zip(*_memories(), strict=True):
        falls = np.cumprod((k - 1 + d) / (k - d))
        variance = math.gamma(1 - 2 * d) / math.gamma(1 - d) ** 2 * (1 + 2 * np.sum((1 - k / n) * falls))
        assert growth == pytest.approx(variance * (2 * math.sin(math.pi / 2 / n)) ** (2 * d), rel=1e-3)
