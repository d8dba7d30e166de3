"""The pruning curve: each point is a plain forward pass with heads switched off, and the summary says when it rises."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.remove.curve import free_heads, free_heads_drawn, pruning_curve
from tinygpt_jax.text.tasks import repeated_sequences
from tinygpt_jax.training.loss import token_losses

PARAMS, CFG, FACTS = planted(2, block_size=8, vocab_size=8)
EXAMPLES = repeated_sequences(0, 0, 12, CFG.block_size, CFG.vocab_size)
ORDER = [*FACTS.inert, FACTS.induction, FACTS.previous]  # the useless ones first


@pytest.fixture(scope="module")
def curve():
    return pruning_curve(PARAMS, EXAMPLES, CFG, ORDER, n_random=6, fill="zero")


@jax.jit
def token_losses_under(keep: jax.Array) -> jax.Array:
    return token_losses(forward(PARAMS, EXAMPLES.ids, CFG, edits={"z": Edit(keep)}).logits, EXAMPLES.targets)


def losses_without(heads) -> np.ndarray:
    """Nats per token of each example, by a forward pass of its own."""
    keep = np.ones((CFG.n_layer, 1, CFG.n_head, 1, 1), np.float32)
    for layer, head in heads:
        keep[layer, :, head] = 0
    return np.asarray(token_losses_under(keep)).sum(-1) / (EXAMPLES.targets >= 0).sum(-1)


def test_every_point_is_a_forward_pass_without_these_heads(curve):
    want = [losses_without(ORDER[:n]) for n in range(len(ORDER) + 1)]
    np.testing.assert_allclose(curve.loss, [one.mean() for one in want], atol=1e-5)
    np.testing.assert_allclose(curve.loss_se, [one.std(ddof=1) / np.sqrt(12) for one in want], atol=1e-5)
    np.testing.assert_array_equal(curve.order, ORDER)
    rises = np.array(want) - want[0]  # paired with the intact model, example by example
    np.testing.assert_allclose(curve.rise, rises.mean(-1), atol=1e-5)
    np.testing.assert_allclose(curve.rise_se, rises.std(-1, ddof=1) / np.sqrt(12), atol=1e-5)
    assert (curve.rise[0], curve.rise_se[0]) == (0, 0)
    assert np.abs(curve.loss[1:3] - [losses_without(ORDER[::-1][:n]).mean() for n in (1, 2)]).max() > 0.1


def test_useless_heads_are_free_and_no_others(curve):
    assert (curve.free, curve.free_se) == (2, 0)
    backwards = pruning_curve(PARAMS, EXAMPLES, CFG, ORDER[::-1], n_random=6, fill="zero")
    assert backwards.free == 0
    np.testing.assert_array_equal(backwards.random_losses, curve.random_losses)  # the seed's, not the order's


def test_random_orders_go_from_all_to_none(curve):
    assert curve.random_losses.shape == (6, 5)
    np.testing.assert_allclose(curve.random_losses[:, [0, -1]] - curve.loss[[0, -1]], 0, atol=1e-6)
    assert len({tuple(row) for row in curve.random_losses.round(3)}) > 1
    np.testing.assert_allclose(curve.random_loss, curve.random_losses.mean(0))
    over_orders = curve.random_losses.std(0, ddof=1) / np.sqrt(6)
    assert (curve.random_loss_se >= over_orders).all()  # examples have their part in it, all of it where none is gone
    np.testing.assert_allclose(curve.random_loss_se[0], curve.loss_se[0], rtol=1e-6)
    assert curve.random_free < curve.free
    assert curve.random_free_se > 0
    other = pruning_curve(PARAMS, EXAMPLES, CFG, ORDER, n_random=6, fill="zero", seed=1)
    assert not np.array_equal(other.random_losses, curve.random_losses)


def test_a_head_is_free_until_the_loss_has_risen():
    losses = np.array([[2.0, 2.01, 2.02, 2.03, 1.0], [2.0, 1.0, 1.0, 1.0, 1.0], [2.0, 3.0, 2.0, 2.0, 2.0]])
    assert free_heads(losses, 0.01).tolist() == [2, 4, 0]  # a later fall does not count
    assert free_heads(losses, 0.5).tolist() == [4, 4, 4]


def test_the_number_of_free_heads_has_an_error():
    """Examples that mind a head and examples that do not disagree on whether it is free."""
    torn = 2.0 + np.outer([0, 1, 1], np.repeat([0.0, 0.044], 20))  # a rise of 1.1 %, give or take 0.18
    for ordered in (False, True):
        free, drawn = free_heads_drawn(torn[None], 0.01, 0, ordered)
        assert free.tolist() == [0]
        assert drawn.std(ddof=1) > 0.5  # 0 or 2; independent examples give 2 with probability about 0.29
        alike = np.repeat(torn[None, :, -1:], 40, -1)
        for losses, tolerance, want in ((torn[None], 0.1, 2), (alike, 0.01, 0)):
            free, drawn = free_heads_drawn(losses, tolerance, 0, ordered)
            assert (free == want).all()
            assert (drawn == want).all()


def test_results_are_read_back(curve, tmp_path):
    path, table = curve.save(tmp_path / "curve")
    again = read_result(path)
    assert again.definition == curve.definition
    for field in dataclasses.fields(curve)[1:]:
        np.testing.assert_allclose(getattr(again, field.name), getattr(curve, field.name))
    rows = [line for line in table.read_text().splitlines() if not line.startswith("#")]
    assert rows[0] == "removed,loss,loss_se,rise,rise_se,random_loss,random_loss_se,random_rise,random_rise_se"
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("order", "settings", "message"),
    [
        (ORDER[:3], {}, r"order is .*: must name every \(layer, head\) of 2 x 2 once"),
        ([*ORDER[:3], ORDER[0]], {}, "order is .*: must name every"),
        ([*ORDER[:3], (2, 0)], {}, "order is .*: must name every"),
        (ORDER, {"n_random": 4}, "n_random is 4: must be 5 or more"),
        (ORDER, {"tolerance": float("inf")}, "tolerance is inf: must be a number, 0 or more, such as 0.01 for 1 %"),
        (ORDER, {"metric": "kl"}, "metric is 'kl': a pruning curve is one of loss"),
    ],
)
def test_orders_that_make_no_sense_are_named(order, settings, message):
    with pytest.raises(UserError, match=message):
        pruning_curve(PARAMS, EXAMPLES, CFG, order, **settings)
