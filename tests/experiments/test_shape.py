"""Shapes are counted right, and verdicts follow the numbers."""

from pathlib import Path

import pytest

from experiments.shape.count import GPT2, LADDER, counts, saved_by_tying
from experiments.shape.report import table
from experiments.shape.run import VARIANTS, claims
from experiments.shared.common import FAILS, HOLDS, PARTLY
from tests.toys import run_toy

ROOT = Path(__file__).resolve().parents[2]


def test_gpt2_is_counted_as_published():
    found = counts(GPT2)
    assert sum(found.values()) == 124_439_808
    C = 768
    assert found["MLPs"] == 12 * (8 * C * C + 5 * C)
    assert found["attention"] == 12 * (4 * C * C + 4 * C)
    assert found["embeddings"] == (50_257 + 1_024) * C
    assert found["norms"] == 25 * 2 * C
    assert saved_by_tying(GPT2) == 50_257 * C
    assert saved_by_tying(LADDER) == LADDER.vocab_size * LADDER.n_embd


def shape(mlps, embeddings, saved=128):
    parts = {"MLPs": mlps, "attention": 20, "embeddings": embeddings, "norms": 1}
    return {"name": "n", "layers": 1, "width": 16, "vocab_size": 8, "parts": parts, "saved_by_tying": saved}


def outcome(**changed):
    """Losses of five seeds, where each variant is so much above the base, give or take."""
    seeds = (0.0, 0.1, 0.2, 0.3, 0.4)  # they differ by far more than variants do, which are paired
    noise = (0.001, -0.001, 0.0, 0.001, -0.001)
    return {
        name: [1 + s + changed.get(name, 0.0) + (n if name != "base" else 0) for s, n in zip(seeds, noise, strict=True)]
        for name in VARIANTS
    }


def verdicts(shapes, losses):
    return [one["verdict"] for one in claims(shapes, losses)]


def test_verdicts_follow_the_numbers():
    large, small = shape(mlps=40, embeddings=5), shape(mlps=40, embeddings=500)
    good = outcome(**{"1 head": 0.05, "ReLU": 0.05})
    assert verdicts([large] * 3, good) == [HOLDS] * 6
    assert verdicts([large, small, large], good)[:2] == [PARTLY, HOLDS]
    assert verdicts([small] * 3, good)[0] == FAILS
    assert verdicts([shape(40, 5, saved=127)] * 3, good)[2] == FAILS
    bad = outcome(**{"1 head": 0.05, "8 heads": 0.06, "head of its own": -0.05, "ReLU": -0.05})
    assert verdicts([large] * 3, bad)[3:] == [FAILS, PARTLY, FAILS]
    assert verdicts([large] * 3, outcome())[3:] == [HOLDS, FAILS, FAILS]
    unsure = outcome()
    unsure["head of its own"] = [loss + d for loss, d in zip(unsure["base"], (0.1, -0.1, 0.0, 0.1, -0.1), strict=True)]
    assert verdicts([large] * 3, unsure)[3] == PARTLY
    text = table({"claims": claims([large] * 3, good), "losses": good, "shapes": [large]})
    assert "| 0.0500 ± 0.0004 |\n" in text
    assert "| n | 66 | 60.6% | 65.6% | 7.6% | 128 |" in text


@pytest.mark.slow
def test_shape(tmp_path):
    results = run_toy("shape", tmp_path)
    assert list(results["losses"]) == list(VARIANTS)
    assert [len(losses) for losses in results["losses"].values()] == [2] * len(VARIANTS)
    assert len(results["claims"]) == 6
    assert (tmp_path / "shape.png").stat().st_size > 10_000
