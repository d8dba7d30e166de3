"""The parent's side of a race: contestants in processes of their own, and turns in a fair order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from experiments.speed.protocol import Answer

ROOT = Path(__file__).resolve().parents[2]
SETTLE_SECONDS = 0.3
"""Between turns: the thread pools of whoever had the last one spin for a while before they sleep."""
LIMIT_SECONDS = 900
"""A contestant that is silent for longer is ended."""
Round = dict[str, Answer]
"""Contestant -> what its turn gave."""


@dataclass(frozen=True)
class Contestant:
    """Who races: a worker module, under some Python, in a role."""

    name: str
    python: str
    module: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    """Every turn is a process of its own."""
    cache: Literal["empty", "filled"] = "empty"
    """What its cache directory holds when a process starts: nothing, or what its earlier turns left."""


class ContestError(Exception):
    """A contestant could not start or ended without an answer; the message is its last word."""


class Player:
    """A contestant's process, or one after the other where each turn is to have its own."""

    def __init__(self, contestant: Contestant, work: Path) -> None:
        self.contestant, self.work = contestant, work
        self.starts = 0
        self.process: subprocess.Popen[str] | None = None
        work.mkdir(parents=True, exist_ok=True)

    def warm_up(self) -> None:
        """Starts the process, which warms itself up. Where every turn is a process, one that does not count fills the
        cache, if it is to be filled."""
        if not self.contestant.fresh:
            self._start()
        elif self.contestant.cache == "filled":
            self.turn()

    def turn(self) -> Answer:
        """One turn's answer; `done_at` becomes `seconds` since the process was started."""
        began = time.monotonic()
        if self.contestant.fresh:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is told by the answer that does not come
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        answer = self._answer()
        if "done_at" in answer:
            answer["seconds"] = answer.pop("done_at") - began
        if self.contestant.fresh:
            self.close()
        return answer

    def close(self) -> None:
        """Ends the process: it leaves when it is asked nothing more."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def _start(self) -> None:
        self.starts += 1
        cache = self.work / ("cache" if self.contestant.cache == "filled" else f"cache-{self.starts}")
        settings = json.dumps({**self.contestant.settings, "work": str(self.work / f"start-{self.starts}")})
        command = [self.contestant.python, "-m", f"experiments.speed.{self.contestant.module}", settings]
        with (self.work / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "TINYGPT_CACHE": str(cache)}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        self._answer()  # that it is ready

    def _answer(self) -> Answer:
        assert self.process is not None
        assert self.process.stdout is not None
        timer = threading.Timer(LIMIT_SECONDS, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise ContestError(last_word((self.work / "stderr").read_text(errors="replace")))
        answer: Answer = json.loads(line)
        return answer


def last_word(stderr: str) -> str:
    """The last line of what a process said, without the paths in it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return without_paths(lines[-1])[:300] if lines else "ended without a word"


def without_paths(text: str) -> str:
    """Absolute paths cut to their last part: they say nothing about the result, and much about the machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.+@-]+/)+", "", text)


def race(contestants: list[Contestant], rounds: int, work: Path) -> tuple[list[Round], dict[str, str]]:
    """Everyone's turns, round by round, and who failed, with the reason.

    All are warmed up first, one by one. Every other round goes in reverse, so that nobody always follows the same one
    and a machine that gets steadily slower favours nobody.
    """
    players = {c.name: Player(c, work / str(i)) for i, c in enumerate(contestants)}
    failed: dict[str, str] = {}
    taken: list[Round] = []
    try:
        for name, player in players.items():
            with _failures_noted(name, failed):
                say(f"  warming up {name}")
                player.warm_up()
        for number in range(rounds):
            order = [name for name in players if name not in failed]
            results: Round = {}
            for name in order if number % 2 == 0 else reversed(order):
                time.sleep(SETTLE_SECONDS)
                with _failures_noted(name, failed):
                    results[name] = players[name].turn()
            taken.append(results)
            say(f"  round {number + 1} of {rounds}")
    finally:
        for player in players.values():
            player.close()
    return [{name: one for name, one in results.items() if name not in failed} for results in taken], failed


@contextlib.contextmanager
def _failures_noted(name: str, failed: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except ContestError as error:
        failed[name] = str(error)
        say(f"  {name} failed: {error}")


def say(text: str) -> None:
    """Progress, to standard error."""
    print(text, file=sys.stderr, flush=True)
