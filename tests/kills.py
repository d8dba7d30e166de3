"""SIGKILL at random moments of a training, and after each the same command again: `python -m tests.kills 100 1 FOLDER`.

Every process is forked from one that has imported everything and started no backend, so that a hundred take minutes.
At the end the run must be the one that was never killed: weights, log and samples, byte for byte but for speeds.
"""

import dataclasses
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from pathlib import Path

import jax  # noqa: F401  # imported before the forks
import orbax.checkpoint  # noqa: F401
import safetensors.numpy  # noqa: F401

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.runs import read_config
from tinygpt_jax.training.display import Display
from tinygpt_jax.training.loop import train

INTERVAL = 20
MODEL = GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=16, dropout=0.1)
CFG = TrainConfig(
    model=MODEL, steps=300, batch_size=4, eval_every=60, sample_every=60, checkpoint_every=INTERVAL,
    steps_per_dispatch=5, keep_checkpoints=2, warmup_steps=10,
)  # fmt: skip


class Diary(Display):
    """Writes the step into a file of its own, for the parent to know how far it came."""

    def update(self, status):
        self._stream.write(f"at {status.step}\n")
        self._stream.flush()


def start(run, text):
    """The process id of a child that begins the run, or goes on with it; its diary is RUN.log."""
    if pid := os.fork():
        return pid
    try:
        with run.with_suffix(".log").open("a") as log:
            try:
                if (run / "run.json").exists():
                    train(read_config(run), resume=run, display=Diary(log))
                else:
                    train(dataclasses.replace(CFG, out=str(run), data=(str(text),)), display=Diary(log))
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=log)
    finally:
        os._exit(1)


def outcome(run):
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    log = [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in log]
    return (run / "model.safetensors").read_bytes(), log, (run / "samples.txt").read_bytes()


def finish(pid):
    assert os.waitpid(pid, 0)[1] == 0


def lost_steps(diary):
    """For each time it went on, how many steps it took again."""
    lost, at = [], 0
    for line in diary.splitlines():
        if found := re.match(r"at (\d+)$", line):
            at = int(found[1])
        elif found := re.match(r"resuming .* at step ([\d,]+) ", line):
            lost.append(at - int(found[1].replace(",", "")))
    return lost


def torment(kills, seed, place):
    """Kills the run that often, and returns how many steps were lost each time."""
    chance, text, whole, run = random.Random(seed), place / "text", place / "whole", place / "run"
    text.write_text("the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs.\n" * 200)
    for _ in range(2):  # the second has the compiled programs of the first, as all later ones
        began = time.monotonic()
        finish(start(whole if not whole.exists() else place / "again", text))
    longest = time.monotonic() - began
    while kills:
        pid = start(run, text)
        end = time.monotonic() + chance.choice([0.1, 0.5, 1.0]) * longest * chance.random()
        while time.monotonic() < end and not (done := os.waitpid(pid, os.WNOHANG)[0]):
            time.sleep(0.002)
        if done:  # it came to its end: another one begins
            assert outcome(run) == outcome(whole)
            run.rename(place / f"done{kills}")
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            kills -= 1
    finish(start(run, text))
    assert outcome(run) == outcome(whole)
    assert not list(run.rglob("*.partial"))
    return lost_steps(run.with_suffix(".log").read_text())


if __name__ == "__main__":
    lost = torment(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    assert max(lost, default=0) <= INTERVAL, lost
    print(f"killed {sys.argv[1]} times; gone on {len(lost)} times, at most {max(lost, default=0)} steps lost")
