"""Overfitting is said, and ends a training where that is asked for; a run that ended so can be taken up again."""

import dataclasses
import io
import json
import random
import shutil

import pytest

from tinygpt_jax import cli
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.runs import read_config, weights_step
from tinygpt_jax.training import job, trainer
from tinygpt_jax.training.display import Display
from tinygpt_jax.training.evaluate import Evaluation
from tinygpt_jax.training.loop import train
from tinygpt_jax.training.progress import Progress
from tinygpt_jax.training.result import closing_lines

NAN = float("nan")
RISING = [3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 1.9, 2.0, 2.1, 2.2, 2.3, 2.4]
"""Losses of the validations of a run, one a step: the best at the second, four rises, and a better one after all."""


def scored(loss):
    return Evaluation(loss, 0.01, loss, loss, 100)


def books(losses):
    """(rises, stale, best step) after each validation."""
    progress, seen = Progress(), []
    for step, loss in enumerate(losses, 1):
        progress = progress.validated(scored(loss), step)
        seen.append((progress.rises, progress.stale, progress.best_step))
        assert Progress.from_json(json.loads(json.dumps(progress.to_json())), step, 1) == progress
    return seen


def test_rises_and_missing_bests_are_counted_in_a_row():
    assert books([3, 2, 2.5, 2.4, 2.5, 2.6, 1]) == [
        (0, 0, 1), (0, 0, 2), (1, 1, 2), (0, 2, 2), (1, 3, 2), (2, 4, 2), (0, 0, 7)
    ]  # fmt: skip
    assert books([2, 2, 2]) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)], "what stays the same has not risen, nor is it better"
    assert books([NAN, 2, 3, NAN, 4]) == [(0, 1, 0), (0, 0, 2), (1, 1, 2), (0, 2, 2), (0, 3, 2)]


class Watch(Display):
    def __init__(self):
        super().__init__(io.StringIO())

    def lines(self, part):
        return [line for line in self._stream.getvalue().splitlines() if part in line]


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """train(...) with losses of the validations given by step: its result and its display."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    model = GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16)
    plain = TrainConfig(
        model=model, data=(str(tmp_path / "text.txt"),), out=str(tmp_path / "run"), steps=len(RISING), batch_size=2,
        eval_every=1, checkpoint_every=100, sample_every=0, optimizer="sgd", steps_per_dispatch=1,
    )  # fmt: skip

    def run(resume=None, stop_at=None, **changes):
        display, losses = Watch(), iter(RISING[run.done :])

        def evaluate(*args):
            run.done += 1
            return scored(next(losses))

        monkeypatch.setattr(trainer, "evaluate_tokens", evaluate)
        cfg = dataclasses.replace(read_config(resume) if resume else plain, **changes)
        result = train(cfg, resume=resume, display=display, stopped=lambda: stop_at is not None and run.done >= stop_at)
        return result, display

    run.done = 0
    return run


def test_overfitting_is_said_once_for_every_rise(scripted):
    result, display = scripted()
    said = display.lines("validation has risen 3 times in a row")
    assert len(said) == 2
    assert "2.0000 nats per token at step 2" in said[0]
    assert "1.9000 nats per token at step 7" in said[1]
    assert "--stop-early" in said[0]
    assert (result.steps, result.stopped_early, result.interrupted) == (len(RISING), 0, False)


def test_a_training_ends_early_where_that_is_asked_for(scripted):
    result, _ = scripted(stop_early=3)
    assert (result.steps, result.stopped_early, result.interrupted) == (5, 3, False)
    assert (result.best_step, result.best.loss) == (2, 2.0)
    assert weights_step(result.run / "model.safetensors") == 2
    assert result.to_json()["stopped_early"] == 3
    assert read_config(result.run).stop_early == 3
    said = "\n".join(closing_lines(result))
    assert "ended early: 3 validations in a row brought no new best" in said
    assert f"tinygpt train --resume {result.run} --stop-early 0" in said
    assert result.facts()["steps"] == "5, ended early"


def test_a_run_that_ended_early_stays_ended_until_it_is_given_more(scripted):
    first, _ = scripted(stop_early=3)
    for changes in ({}, {"steps": 20}):
        result, display = scripted(resume=first.run, **changes)
        (said,) = display.lines("ended early at step 5")
        assert "3 validations in a row brought no new best" in said
        assert "--stop-early" in said
        assert (result.steps, result.stopped_early, result.interrupted) == (5, 3, False)
    result, _ = scripted(resume=first.run, steps=20, stop_early=5)
    assert (result.steps, result.best_step, result.stopped_early) == (12, 7, 5)
    assert result.interrupted is False


def test_with_stopping_off_it_goes_on_to_its_last_step(scripted):
    first, _ = scripted(stop_early=3)
    result, _ = scripted(resume=first.run, stop_early=0)
    assert (result.steps, result.best_step, result.stopped_early) == (len(RISING), 7, 0)


@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_an_interrupted_run_ends_early_where_it_would_have(scripted, stop_at):
    first, _ = scripted(stop_early=3, stop_at=stop_at)
    assert (first.steps, first.interrupted, first.stopped_early) == (stop_at, True, 0)
    result, _ = scripted(resume=first.run)
    assert (result.steps, result.stopped_early, result.best_step) == (5, 3, 2)


def test_validations_on_the_way_back_to_the_best_are_not_held_against_it():
    progress = Progress(best=scored(1.0), best_step=3)
    for step, stale in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 2)):
        progress = progress.validated(scored(1.0 if step == 3 else 2.0), step)
        assert progress.stale == stale
    assert Progress(best_step=3).validated(scored(NAN), 1).stale == 1, "where no best is kept, none is on the way"


def test_a_run_that_lost_its_later_states_is_not_ended_by_steps_it_takes_again(scripted, monkeypatch):
    """Best at step 7, killed before its state was saved: the steps before it bring no new best, of course."""
    first, _ = scripted(checkpoint_every=1, keep_checkpoints=0, steps=8)
    assert first.best_step == 7
    for step in (3, 4, 5, 6, 7, 8):
        shutil.rmtree(first.run / "checkpoints" / str(step))
    monkeypatch.setattr(job, "evaluate_tokens", lambda *args: scored(1.9))
    scripted.done = 2
    result, display = scripted(resume=first.run, stop_early=3, steps=12)
    assert display.lines("resuming")[0].endswith("at step 2 of 12")
    assert (result.steps, result.best_step, result.stopped_early) == (10, 7, 3)


def test_a_run_at_its_last_step_has_not_ended_early(scripted):
    result, _ = scripted(stop_early=3, steps=5)
    assert (result.steps, result.stopped_early) == (5, 0)


@pytest.mark.parametrize("value", [-1, 1.5])
def test_stopping_after_no_number_of_validations_is_refused(value):
    with pytest.raises(UserError, match=f"stop_early is {value}"):
        check(TrainConfig(stop_early=value))


def test_a_model_that_learns_chance_by_heart_is_stopped(tmp_path, capsys):
    """Nothing scripted: letters by chance, of which nothing can be learned but the letters themselves."""
    (tmp_path / "chance.txt").write_text("".join(random.Random(0).choices("abcdefghijklmnop", k=2000)))
    flags = ["--steps", "1000", "--eval-every", "20", "--stop-early", "8", "--sample-every", "0", "--batch-size", "8"]
    flags += ["--n-layer", "1", "--n-head", "2", "--n-embd", "32", "--block-size", "16", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "--data", str(tmp_path / "chance.txt"), *flags]) == 0
    err = capsys.readouterr().err
    assert "validation has risen 3 times in a row" in err
    assert "ended early: 8 validations in a row brought no new best" in err
    assert "trained 1,000 steps" not in err
