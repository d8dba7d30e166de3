"""How fast a training was: one definition of seconds and of tokens per second, wherever they are shown."""

import io
import json
import re
import time

import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.runs import read_config
from tinygpt_jax.training import trainer
from tinygpt_jax.training.display import Display
from tinygpt_jax.training.loop import train
from tinygpt_jax.training.progress import Progress
from tinygpt_jax.training.result import closing_lines

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
PER_STEP = 2 * 8
"""Tokens: batches of two windows of 8."""


class Watch(Display):
    """Keeps what it is told, and stops at a step."""

    def __init__(self, stop_at=None):
        super().__init__(io.StringIO())
        self.stop_at, self.statuses, self.validations = stop_at, [], []

    def update(self, status):
        self.statuses.append(status)

    def validated(self, status, result, best):
        self.validations.append(status)
        super().validated(status, result, best)

    def stopped(self):
        return bool(self.statuses) and self.statuses[-1].step == self.stop_at

    @property
    def text(self):
        return self._stream.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training whose validations take much longer than its steps, stopped once; what was shown of both parts."""
    folder = tmp_path_factory.mktemp("speed")
    (folder / "text.txt").write_text(TEXT)
    real = trainer.evaluate_tokens

    def slow(*args):
        time.sleep(0.2)
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYGPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr(trainer, "evaluate_tokens", slow)
        model = GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16)
        cfg = TrainConfig(
            model=model, data=(str(folder / "text.txt"),), out=str(folder / "run"), steps=12, warmup_steps=2,
            batch_size=2, eval_every=3, sample_every=0, steps_per_dispatch=1, optimizer="adamw",
        )  # fmt: skip
        first, second = Watch(stop_at=6), Watch()
        stopped = train(cfg, display=first, stopped=first.stopped)
        result = train(read_config(stopped.run), resume=stopped.run, display=second)
    assert stopped.interrupted
    return stopped, result, first, second


def test_the_two_numbers_of_a_line_multiply_to_the_tokens(trained):
    _, result, first, second = trained
    for status in (*first.statuses, *first.validations, *second.statuses, *second.validations):
        left = (status.steps - status.step) * PER_STEP
        assert status.seconds_left * status.tokens_per_second == pytest.approx(left)
    for one in trained[:2]:
        assert one.trained_tokens == one.steps * PER_STEP
        assert one.seconds * one.tokens_per_second == pytest.approx(one.trained_tokens)
        document = one.to_json()
        assert document["seconds"] * document["tokens_per_second"] == pytest.approx(document["trained_tokens"])
    said = closing_lines(result)[0]
    tokens, seconds, speed = (
        float(re.search(pattern, said)[1].replace(",", ""))
        for pattern in (r"\(([\d,]+) tokens\)", r"in ([\d.]+) s", r"([\d,]+) tokens/s")
    )
    assert tokens == result.trained_tokens
    assert seconds * speed == pytest.approx(tokens, rel=0.02)
    assert "validation and saving included" in said


def test_the_time_of_validation_counts(trained):
    stopped, result, first, _ = trained
    assert stopped.seconds > 2 * 0.2
    assert result.seconds > 4 * 0.2
    assert result.tokens_per_second < 12 * PER_STEP / (4 * 0.2)
    assert first.validations[-1].tokens_per_second < 6 * PER_STEP / (2 * 0.2)


def test_metrics_have_the_speed_that_the_line_showed(trained):
    _, result, first, second = trained
    logged = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in logged if "val_loss" in line]
    shown = re.findall(r"([\d,]+) tokens/s", first.text + second.text)
    assert [f"{speed:,.0f}" for speed in speeds] == shown
    assert len(shown) == 4


def test_books_of_earlier_runs_are_read():
    """They knew the seconds of steps alone, and no tokens."""
    old = {"best": None, "best_step": 0, "seconds": 9.0, "step_seconds": 5.0}
    assert Progress.from_json(old, step=10, per_step=16) == Progress(seconds=9.0, trained_tokens=160)
    new = Progress(seconds=3.0, trained_tokens=7)
    assert Progress.from_json(new.to_json(), step=10, per_step=16) == new
