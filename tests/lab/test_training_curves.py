"""The curves of a training are what its run directory says, whatever state that is in."""

import json

import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.training import training_curves
from tinygpt_jax.runs import write_record

CFG = TrainConfig(model=GPTConfig(vocab_size=9), seed=3)


def made(folder, *lines):
    write_record(folder, CFG, {"text_sha256": "ab" * 32})
    if lines:
        (folder / "metrics.jsonl").write_text(
            "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        )
    return folder


def step(n, **numbers):
    return {"step": n, "loss": 2.0 / n, "grad_norm": 1.0 * n, "learning_rate": 0.1, **numbers}


def test_a_step_and_its_validation_are_one_row(tmp_path):
    val = {"step": 2, "val_loss": 1.5, "val_loss_se": 0.1, "tokens_per_second": 7.0}
    found = training_curves(made(tmp_path, step(1), step(2), val, step(3)))
    assert found.steps == (1, 2, 3)
    np.testing.assert_array_equal(found.loss, [2, 1, 2 / 3])
    np.testing.assert_array_equal(found.val_loss, [np.nan, 1.5, np.nan])
    np.testing.assert_array_equal(found.val_loss_se, [np.nan, 0.1, np.nan])
    np.testing.assert_array_equal(found.grad_norm, [1, 2, 3])
    assert (found.vocab_size, found.definition.seed, found.definition.data) == (9, 3, "ab" * 8)
    rows = found.rows()
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[1] == {
        "step": 2,
        "loss": 1.0,
        "val_loss": 1.5,
        "val_loss_se": 0.1,
        "learning_rate": 0.1,
        "grad_norm": 2.0,
    }
    again = read_result(found.save(tmp_path / "plots" / "training")[0])
    assert again.steps == found.steps
    np.testing.assert_array_equal(again.val_loss, found.val_loss)


@pytest.mark.parametrize("bad", [None, "high", [1], {}, float("nan"), float("inf"), 10**400, True])
def test_what_is_no_number_is_a_gap(tmp_path, bad):
    found = training_curves(made(tmp_path, step(1), step(2, loss=bad, grad_norm=bad), step(3)))
    np.testing.assert_array_equal(np.isfinite(found.loss), [True, False, True])
    np.testing.assert_array_equal(np.isfinite(found.grad_norm), [True, False, True])


@pytest.mark.parametrize(
    "cut",
    [
        '{"step": 4, "lo',
        "\n",
        "null\n",
        '{"step": "4"}\n',
        '{"step": null}\n',
        "[]\n",
        "\x00\x00",
        "[" * 9000,
        '{"step": true}\n',
        '{"step": -1, "loss": 1}\n',
        f'{{"step": {10**400}, "loss": 1}}\n',
    ],
)
def test_a_line_that_was_cut_off_is_left_out(tmp_path, cut):
    assert training_curves(made(tmp_path, step(1), step(2), cut)).steps == (1, 2)


def test_a_run_without_metrics_says_so(tmp_path):
    with pytest.raises(UserError, match="no-run does not exist"):
        training_curves(tmp_path / "no-run")
    with pytest.raises(UserError, match=r"has no run\.json"):
        training_curves(tmp_path)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        training_curves(made(tmp_path))
    with pytest.raises(UserError, match="has no metrics yet"):
        training_curves(made(tmp_path, "{"))
