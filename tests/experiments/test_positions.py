"""The experiment on positions: its unmasked case is the model's own, and its verdicts follow the numbers."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.positions import run
from experiments.positions.run import BLIND, POSITIONS, ROUNDING, drawn, history_error, order_errors, outputs
from experiments.shared.common import FAILS, HOLDS, PARTLY
from experiments.shared.weights import scaled, unit_variance
from tests.toys import run_toy
from tinygpt_jax import init_params, reference

ROOT = Path(__file__).resolve().parents[2]
SMALL = dataclasses.replace(BLIND, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.mark.parametrize("positions", POSITIONS)
def test_behind_the_mask_the_stack_is_the_model(positions):
    cfg = dataclasses.replace(SMALL, positions=positions)
    params, ids, orders = drawn(0, cfg)
    params, ids = reference.as_float64(params), ids[orders]
    x = outputs(reference, params, ids, cfg, "blocks", masked=True)
    want, taps = reference.forward(params, ids, cfg)
    np.testing.assert_allclose(reference.unembed(params, reference.norm(x, params, "lnf", cfg), cfg), want, atol=1e-12)
    unmasked = outputs(reference, params, ids, cfg, "blocks", masked=False)
    assert np.abs(unmasked - taps["resid_post"][-1]).max() > 0.1
    np.testing.assert_array_equal(
        outputs(reference, params, ids, cfg, "blocks", masked=True, depth=1), taps["resid_post"][0]
    )


def test_only_what_knows_no_position_is_blind_to_order():
    for positions, masked in (("none", False), ("none", True), ("rope", False)):
        cfg = dataclasses.replace(SMALL, positions=positions)
        errors = order_errors(cfg, 0, "attention", masked)
        blind = (positions, masked) == ("none", False)
        for dtype, error in errors.items():
            assert (error <= ROUNDING * np.finfo(dtype).eps) == blind, (positions, masked, dtype)


def test_one_layer_has_no_history():
    cfg = dataclasses.replace(SMALL, positions="none")
    assert history_error(cfg, 0, depth=1) < 1e-13 < 1e-3 < history_error(cfg, 0, depth=2)
    assert history_error(dataclasses.replace(cfg, positions="learned"), 0, depth=1) > 1e-3


def test_weights_of_unit_variance_keep_the_variance_of_what_they_are_given():
    params = init_params(jax.random.key(0), dataclasses.replace(SMALL, n_embd=64))
    made = unit_variance(params)
    for name, leaf in made["blocks"].items():
        if name.startswith("W"):
            assert np.std(leaf) == pytest.approx(leaf.shape[1] ** -0.5, rel=1e-4), name
        else:
            assert leaf is params["blocks"][name]
    assert np.std(made["tok_emb"]) == pytest.approx(1, rel=1e-4)
    twice = scaled(params, 2.0)
    np.testing.assert_array_equal(twice["blocks"]["Wo"], 2 * params["blocks"]["Wo"])
    assert twice["blocks"]["ln1g"] is params["blocks"]["ln1g"]
    assert twice["tok_emb"] is params["tok_emb"]


def verdicts_of_order(worst32=1e-6, worst64=1e-15, told=0.5, masked=0.5, first=1e-15, later=0.5):
    def errors(none, others):
        return {kind: {"float32": [worst32 if kind == "none" and none < 0.01 else others] * 2,
                       "float64": [none if kind == "none" else others] * 2} for kind in POSITIONS}  # fmt: skip

    order = {part: {"unmasked": errors(worst64, told), "masked": errors(masked, told)} for part in run.PARTS}
    history = {1: [first] * 2, 2: [later] * 2, 4: [later] * 2}
    return [one["verdict"] for one in run.claims_of_order(order, history)]


def test_verdicts_on_order_follow_the_numbers():
    assert verdicts_of_order() == [HOLDS] * 4
    assert verdicts_of_order(worst32=1e-3) == [FAILS, HOLDS, HOLDS, HOLDS]
    assert verdicts_of_order(worst64=1e-6) == [FAILS, HOLDS, HOLDS, HOLDS]
    assert verdicts_of_order(told=1e-4) == [HOLDS, FAILS, HOLDS, HOLDS]
    assert verdicts_of_order(masked=1e-4) == [HOLDS, HOLDS, FAILS, HOLDS]
    assert verdicts_of_order(first=0.2)[3] == FAILS
    assert verdicts_of_order(later=1e-4)[3] == PARTLY


def verdicts_of_training(**offsets):
    """Losses of four seeds that differ from seed to seed much more than from kind to kind."""
    seeds = np.array([1.9, 2.0, 2.1, 2.05])
    jitter = 1e-4 * np.array([1, -1, 1, -1])
    training = {
        kind: {"loss": seeds + offsets.get(kind, 0.0) + i * jitter, "parameters": 64 * (kind == "learned")}
        for i, kind in enumerate(POSITIONS)
    }
    return [one["verdict"] for one in run.claims_of_training(training, bigram=2.5)]


def test_verdicts_on_training_are_paired_by_seed():
    assert verdicts_of_training(none=0.05, rope=-0.05) == [HOLDS] * 5
    assert verdicts_of_training(none=0.05, rope=0.01)[2] == FAILS
    assert verdicts_of_training(none=0.05, rope=-1e-5)[2] == PARTLY
    assert verdicts_of_training(none=0.05, rope=0.1)[1] == PARTLY
    assert verdicts_of_training(none=-0.1, rope=0.1)[1] == FAILS
    assert verdicts_of_training(none=0.45)[0] == PARTLY
    assert verdicts_of_training(none=0.65)[0] == FAILS
    assert verdicts_of_training(sinusoidal=0.03)[3] == FAILS


@pytest.mark.slow
def test_positions(tmp_path):
    results = run_toy("positions", tmp_path)
    assert list(results["training"]) == list(POSITIONS)
    assert [one["verdict"] for one in results["claims"][:4]] == [HOLDS] * 4
    text = (tmp_path / "table.md").read_text()
    assert "| claim | measured | verdict |" in text
    assert "| learned |" in text
    assert (tmp_path / "positions.png").stat().st_size > 10_000
