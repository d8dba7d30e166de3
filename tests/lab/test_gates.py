"""Gates on a model whose circuit is known: what matters stays open, what does not is closed, by the price of a head."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.intervention import zero_fill
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.measure import make_lab
from tinygpt_jax.lab.remove import gates
from tinygpt_jax.lab.remove.gates import drawn_gates, learn_gates, open_probability, settled_gates
from tinygpt_jax.text.tasks import repeated_sequences
from tinygpt_jax.training.loss import token_losses

PARAMS, CFG, FACTS = planted(2, block_size=8, vocab_size=8)
EXAMPLES = repeated_sequences(0, 0, 24, CFG.block_size, CFG.vocab_size)
NOTHING = zero_fill(CFG).heads
LAB = make_lab(PARAMS, EXAMPLES, CFG, fill="zero")
NEEDED = np.zeros((CFG.n_layer, CFG.n_head), bool)
NEEDED[tuple(zip(FACTS.previous, FACTS.induction, strict=True))] = True
STRENGTHS = (0.0, 0.1, 100.0)
SETTINGS = {"steps": 80, "batch_size": 4, "learning_rate": 0.2}
ZERO = {**SETTINGS, "fill": "zero"}


@pytest.fixture(scope="module")
def learned():
    return learn_gates(PARAMS, EXAMPLES, CFG, STRENGTHS, seeds=(0, 7), **ZERO)


# The distribution


def test_gates_follow_the_papers_probabilities():
    uniform = (jnp.arange(20_000, dtype=jnp.float32) + 0.5) / 20_000  # every quantile once
    for log_alpha in (-3.0, -0.5, 0.0, 1.0, 4.0):
        drawn = np.asarray(drawn_gates(jnp.float32(log_alpha), uniform))
        assert 0 <= drawn.min() <= drawn.max() <= 1
        assert (drawn > 0).mean() == pytest.approx(float(open_probability(jnp.float32(log_alpha))), abs=1e-3)
        # Symmetric: as likely at 1 as one with the opposite log alpha at 0.
        assert (drawn == 1).mean() == pytest.approx(1 - float(open_probability(jnp.float32(-log_alpha))), abs=1e-3)
    assert settled_gates(np.float32([-10, 0, 10])).tolist() == [0, 0.5, 1]


# What is learned


def test_strength_0_closes_nothing_that_matters(learned):
    assert learned.kept[0, :, NEEDED].all()
    np.testing.assert_allclose(learned.rise[0], 0, atol=0.01)


def test_a_middle_strength_closes_what_is_useless_and_nothing_else(learned):
    np.testing.assert_array_equal(learned.kept[1], np.broadcast_to(NEEDED, learned.kept[1].shape))
    assert learned.open_probability[1, :, NEEDED].min() > 0.9
    assert learned.open_probability[1, :, ~NEEDED].max() < 0.1
    assert (learned.gate[1, :, ~NEEDED] == 0).all()
    np.testing.assert_allclose(learned.rise[1], 0, atol=0.01)
    assert (learned.loss[1] < 0.1).all()


def test_too_high_a_price_closes_everything_and_costs(learned):
    assert not learned.kept[2].any()
    np.testing.assert_allclose(learned.loss[2], np.log(CFG.vocab_size), rtol=1e-5)  # nothing reaches the output
    np.testing.assert_allclose(learned.rise[2], learned.loss[2], atol=0.01)


def test_useless_heads_are_closed_by_their_price_alone(learned):
    assert learned.open_probability[0, :, ~NEEDED].min() > 0.2  # without one they stay near where they began, 0.83


def test_the_seed_draws_the_gates(learned):
    assert not np.array_equal(learned.log_alpha[1, 0], learned.log_alpha[1, 1])


def test_each_strength_and_seed_learns_what_it_learns_alone(learned):
    one = jnp.array([STRENGTHS[1]]), jnp.array([7], jnp.uint32), jnp.float32(SETTINGS["learning_rate"])
    alone = gates._learn(LAB, *one, SETTINGS["steps"], SETTINGS["batch_size"])
    np.testing.assert_allclose(alone[0], learned.log_alpha[1, 1], atol=1e-3)
    assert np.abs(alone[0] - learned.log_alpha[1, 0]).max() > 1e-2


def test_one_program_learns_them_all(monkeypatch):
    traces = []
    monkeypatch.setattr(gates, "open_probability", lambda a: traces.append(a) or open_probability(a))
    shapes = jax.eval_shape(
        lambda s, seeds: gates._learn(LAB, s, seeds, jnp.float32(0.1), 3, 2),
        jnp.zeros(5), jnp.zeros(5, jnp.uint32),
    )  # fmt: skip
    assert (shapes.shape, len(traces)) == ((5, CFG.n_layer, CFG.n_head), 1)


def test_a_closed_gate_leaves_the_fill(learned):
    fill = np.random.default_rng(0).standard_normal(NOTHING.shape).astype(np.float32)
    filled = learn_gates(PARAMS, EXAMPLES, CFG, STRENGTHS, seeds=(0, 7), fill=fill, **SETTINGS)
    assert not filled.kept[2].any()
    logits = forward(PARAMS, EXAMPLES.ids, CFG, edits={"z": Edit(jnp.zeros_like(NOTHING), jnp.asarray(fill))}).logits
    counts = (EXAMPLES.targets >= 0).sum(-1)
    want = np.asarray(token_losses(logits, EXAMPLES.targets).sum(-1)) / counts
    np.testing.assert_allclose(filled.loss[2], want.mean(), rtol=1e-5)
    np.testing.assert_allclose(filled.loss_se[2], want.std(ddof=1) / np.sqrt(len(want)), rtol=1e-4)
    assert np.abs(filled.log_alpha[1] - learned.log_alpha[1]).max() > 1e-2


def test_results_are_read_back(learned, tmp_path):
    path, table = learned.save(tmp_path / "gates")
    again = read_result(path)
    assert again.definition == learned.definition
    for field in dataclasses.fields(learned)[1:]:
        np.testing.assert_allclose(getattr(again, field.name), getattr(learned, field.name), rtol=1e-6)
    rows = [line for line in table.read_text().splitlines() if not line.startswith("#")]
    assert rows[0] == "strength,seed,layer,head,log_alpha,open_probability,gate,kept"
    assert len(rows) == 1 + learned.log_alpha.size
    assert rows[-1].startswith("100.0,7,1,1,")


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strengths": ()}, r"strengths are \[\]: must be numbers, 0 or more, and at least one"),
        ({"strengths": (-1.0,)}, r"strengths are \[-1.0\]"),
        ({"strengths": (float("nan"),)}, r"strengths are \[nan\]"),
        ({"seeds": ()}, r"seeds are \[\]"),
        ({"seeds": (2**32,)}, "seeds are"),
        ({"steps": 0}, "steps is 0: must be a whole number from 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0: must be a number above 0"),
        ({"fill": "resample"}, "fill 'resample' is not one for all examples: use zero, mean"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        learn_gates(PARAMS, EXAMPLES, CFG, **{"strengths": (0.1,), **settings})
