"""Rates are chosen right, first losses are what they should be, and verdicts follow the numbers."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.optimizers.first import SCALES, scaled
from experiments.optimizers.run import CHOOSING, RATES, best, claims
from experiments.shared.common import FAILS, HOLDS, PARTLY
from experiments.shared.text import SEEDS
from tests.toys import run_toy
from tinygpt_jax import GPTConfig, init_params

ROOT = Path(__file__).resolve().parents[2]


def test_rates_are_chosen_on_other_seeds_than_they_are_judged_on():
    assert not set(CHOOSING) & set(SEEDS)
    assert best((1.0, 2.0, 3.0), [[3.0, 2.0], [1.0, 2.0], [math.nan, 0.1]]) == 2.0


def test_scaling_takes_matrices_and_leaves_norms():
    cfg = GPTConfig(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4)
    params = init_params(jax.random.key(0), cfg)
    found = scaled(params, cfg, 3.0)
    for name in ("tok_emb", "pos_emb"):
        np.testing.assert_array_equal(found[name], 3 * params[name])
    np.testing.assert_array_equal(found["blocks"]["Wq"], 3 * params["blocks"]["Wq"])
    np.testing.assert_array_equal(found["blocks"]["ln1g"], params["blocks"]["ln1g"])


def first(*off):
    losses = {f"{scale:g}": [2.0 + o - 0.001, 2.0 + o + 0.001] for scale, o in zip(SCALES, off, strict=True)}
    return {"of": "text", "vocab_size": 8, "ln_V": 2.0, "losses": losses}


def optimizers(adam, sgd, muon):
    return {"adam": {"loss": adam}, "sgd": {"loss": sgd}, "muon": {"loss": muon}}


def test_verdicts_follow_the_numbers():
    def verdicts(found, *firsts):
        return [one["verdict"] for one in claims(found, list(firsts))]

    good = optimizers([1.5, 1.6, 1.7], [2.5, 2.6, 2.71], [1.4, 1.5, 1.61])
    assert verdicts(good, first(0, 0.01, -0.02, 0.03)) == [HOLDS] * 4
    bad = optimizers([1.5, 1.6, 1.7], [1.5, 1.7, 1.6], [1.6, 1.7, 1.81])
    assert verdicts(bad, first(0, 0, 0, 1), first(-1, 0, 0, 1)) == [FAILS, FAILS, PARTLY, PARTLY]
    apart = optimizers([1.5, 1.6, 1.7], [math.nan] * 3, [1.4, 1.5, 1.61])
    assert verdicts(apart, first(1, 1, 1, 1)) == [FAILS, HOLDS, FAILS, FAILS]


@pytest.mark.slow
def test_optimizers(tmp_path):
    results = run_toy("optimizers", tmp_path)
    for name, one in results["optimizers"].items():
        assert np.shape(one["grid"]) == (len(RATES[name]), len(CHOOSING))
        assert one["rate"] in RATES[name]
        assert np.shape(one["curve"]) == (2, len(one["steps"]))
    for one in results["first"]:
        assert abs(np.mean(one["losses"]["1"]) - math.log(one["vocab_size"])) < 0.5
        assert np.mean(one["losses"]["10"]) > np.mean(one["losses"]["1"])
    assert len(results["claims"]) == 4
    assert (tmp_path / "optimizers.png").stat().st_size > 10_000
