"""The experiment on deep stacks: what it reads off a stack is right, and its verdicts follow the numbers."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.depth import run
from experiments.depth.stacks import INITS, first_gradient, stream, trained_from
from experiments.shared.common import FAILS, HOLDS, PARTLY
from experiments.shared.text import base, corpus
from experiments.shared.weights import unit_variance
from tests.toys import run_toy
from tinygpt_jax import GPTConfig, evaluate_tokens, init_params, pick, reference, train_many

ROOT = Path(__file__).resolve().parents[2]
TINY = GPTConfig(vocab_size=8, block_size=6, n_layer=2, n_head=1, n_embd=4, mlp_ratio=1, unroll_layers=1)


@pytest.fixture(scope="module")
def tiny():
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(TINY.vocab_size, size=(2, 2, 6), dtype=np.int32)
    return unit_variance(init_params(jax.random.key(0), TINY)), ids, targets


def test_the_stream_is_the_reference_s(tiny):
    params, ids, _ = tiny
    found, exact = stream(params, ids, TINY), reference.as_float64(params)
    logits, taps = reference.forward(exact, ids, TINY)
    before, after = taps["resid_pre"], taps["resid_post"]
    start = np.sqrt(np.square(before[0]).mean())
    for layer in range(TINY.n_layer):
        x = after[layer]
        assert found["rms"][layer] == pytest.approx(np.sqrt(np.square(x).mean()) / start, rel=1e-4)
        tokens = zip(x.reshape(-1, 4), before[layer].reshape(-1, 4), strict=True)
        change = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in tokens]
        assert found["change"][layer] == pytest.approx(np.mean(change), rel=1e-4)
    assert found["logits"][-1] == pytest.approx(np.sqrt(np.square(logits).mean()), rel=1e-4)
    assert found["logits"][0] != pytest.approx(found["logits"][1], rel=1e-3)
    assert 0 < found["apart"].min() < found["apart"].max() < 1


def test_the_gradient_is_that_of_the_first_layer(tiny):
    params, ids, targets = tiny
    by_layer = []
    for layer in range(TINY.n_layer):
        names = [name for name in params["blocks"] if name.startswith("W")]
        entries = [
            (f"blocks.{name}", (layer, *at)) for name in names for at in np.ndindex(params["blocks"][name].shape[1:])
        ]
        by_layer.append(np.linalg.norm(reference.numeric_gradient(params, ids, targets, TINY, entries)))
    found = first_gradient(params, ids, targets, TINY)
    assert found == pytest.approx(by_layer[0], rel=1e-3)
    assert found != pytest.approx(by_layer[1], rel=1e-2)


def streams(norm=2.0, none=1e6):
    tops = {"LayerNorm": norm, "RMSNorm": norm, "no norm": none, "no residuals": 1.0, "neither": 1e-9}
    return {init: {name: {"rms": [[1.0, top]] * 2} for name, top in tops.items()} for init in INITS}


def test_verdicts_on_range_follow_the_numbers():
    def verdicts(found):
        return [one["verdict"] for one in run.claims_of_range(found)]

    assert verdicts(streams()) == [HOLDS, HOLDS]
    assert verdicts(streams(norm=100.0)) == [FAILS, HOLDS]
    assert verdicts(streams(none=3.0)) == [HOLDS, FAILS]
    assert verdicts(streams(none=None)) == [HOLDS, HOLDS]  # null in JSON: not finite
    mixed = {**streams(), "package": streams(none=3.0)["package"]}
    assert verdicts(mixed) == [HOLDS, PARTLY]
    assert "not finite" in run.claims_of_range(streams(none=None))[1]["measured"]


def test_verdicts_on_the_gradient_follow_the_numbers():
    def verdicts(residual, without, neither):
        ends = {"LayerNorm": residual, "RMSNorm": 1.0, "no norm": 1.0, "no residuals": without, "neither": neither}
        found = {init: {name: [[2.0, 2.0], [2 * end, 2 * end]] for name, end in ends.items()} for init in INITS}
        return [one["verdict"] for one in run.claims_of_gradient(found)]

    assert verdicts(0.1, 1e-9, 0.0) == [HOLDS, HOLDS]
    assert verdicts(0.1, 0.1, 1e-9) == [HOLDS, PARTLY]
    assert verdicts(1e-6, 0.1, 0.1) == [FAILS, FAILS]


def test_verdicts_on_training_follow_the_losses():
    def verdicts(norm, none, without):
        def outcomes(loss):
            return {"2": [{"loss": 0.0}] * 2, "24": [{"loss": x} for x in loss]}

        stacks = {"LayerNorm": outcomes(norm), "no norm": outcomes(none), "no residuals": outcomes(without)}
        return [one["verdict"] for one in run.claims_of_training(dict.fromkeys(INITS, stacks), unigram=3.0)]

    good, bad, gone = [2.0, 2.2], [3.0, 2.99], [None, float("nan")]
    assert verdicts(good, bad, gone) == [HOLDS, HOLDS, HOLDS]
    assert verdicts(good, [2.0, 3.0], good) == [HOLDS, FAILS, FAILS]  # one seed alone is no difference
    assert verdicts(good, [2.5, 2.7], good) == [HOLDS, PARTLY, FAILS]  # it trains, but is worse by seed
    assert verdicts([2.0, 3.0], good, good)[0] == FAILS


def test_verdicts_on_the_identity_follow_the_numbers():
    def verdicts(before, after):
        changes = np.full((3, 2), 1.0) * np.array(before)
        found = {"factors": [1.0], "initial": [changes], "trained": np.full((3, 2), after) + [[0.0], [0.01], [0.02]]}
        return [one["verdict"] for one in run.claims_of_identity(found)]

    assert verdicts([0.05, 0.09], 1.0) == [HOLDS, HOLDS]
    assert verdicts([0.05, 0.3], 1.0) == [PARTLY, HOLDS]
    assert verdicts([0.05, 0.6], 0.1) == [FAILS, FAILS]
    assert verdicts([0.05, 0.4], 0.3) == [PARTLY, PARTLY]  # more as a mean, but not in every layer


@pytest.mark.slow
def test_training_from_the_package_s_weights_is_that_of_train_many():
    cfg = base(True, n_layer=2, n_embd=8, block_size=8)
    found, models = trained_from(cfg, "package", (0, 1), True)
    many = train_many(cfg, corpus(True).train.ids, (0, 1))
    for i, one in enumerate(found):
        assert one["loss"] == pytest.approx(
            evaluate_tokens(pick(many.params, i), cfg.model, corpus(True).val).loss, rel=1e-5
        )
        assert one["skipped"] == 0
    other, _ = trained_from(cfg, "unit variance", (0,), True)
    assert other[0]["loss"] != pytest.approx(found[0]["loss"], rel=1e-2)
    assert dataclasses.asdict(many.configs[1])["seed"] == 1


@pytest.mark.slow
def test_depth(tmp_path):
    results = run_toy("depth", tmp_path)
    assert len(results["claims"]) == 9
    assert np.shape(results["streams"]["package"]["no norm"]["rms"]) == (2, 8)
    assert "| unit variance | no residuals | 8 |" in (tmp_path / "table.md").read_text()
    for name in ("depth", "identity"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
