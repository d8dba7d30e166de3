"""The simulation of errors draws the texts that it says, and counts what they cover."""

import numpy as np
import pytest

from experiments.coverage.noise import passes
from experiments.coverage.numbers import NUMBERS, Found
from experiments.coverage.report import table
from experiments.coverage.run import coverage
from experiments.coverage.texts import draw_texts
from tests.toys import run_toy


def test_a_text_is_made_of_stretches_whose_mean_is_that_of_the_pool():
    texts = draw_texts(5000, 400, 300, seed=0)
    assert texts.shape == (400, 300)
    follows = np.diff(texts, axis=1) % 5000 == 1
    assert 1 / (1 - follows.mean()) == pytest.approx(5000 / 79 / 0.8, rel=0.1)  # 79 topics, four fifths of the corpus
    assert np.bincount(texts.ravel() // 1000).std() < 0.1 * texts.size / 5
    np.testing.assert_array_equal(texts, draw_texts(5000, 400, 300, seed=0))
    assert (texts != draw_texts(5000, 400, 300, seed=1)).any()


def test_coverage_is_counted():
    """Two places of four texts: one error always reaches the truth, one in half of the texts; a gap is left out."""
    made = [Found([1.0, np.nan if i == 3 else 0.0], [1.0, 0.1], [0.1, 0.1], [0.0, 1.0 - (i < 2)]) for i in range(4)]
    found = coverage(made)
    assert found["covered"] == pytest.approx(100 * np.mean([1, 1, 0.5, 1]))
    assert found["as_independent"] == pytest.approx(100 * np.mean([0.5, 0.5, 0, 0]))
    assert found["places"] == 2


def test_noise_passes_at_the_rate_that_is_allowed():
    found = passes(300)["4"]
    assert 1.5 < found["alike"] < 9
    assert found["in order"] < 9


@pytest.mark.slow
def test_coverage(tmp_path):
    results = run_toy("coverage", tmp_path)
    assert list(results["numbers"]) == list(NUMBERS)
    assert all(0 <= one["covered"] <= 100 for one in results["numbers"].values())
    assert table(results).count("\n") > len(NUMBERS) + 8
    assert (tmp_path / "coverage.png").stat().st_size > 10_000
