"""The command as a process that can be struck at a chosen moment.

The process that starts the others has everything imported and no device opened; each command is a fork of it, so that a
hundred starts cost minutes. A command says through a pipe which part of its work it begins, and at which step.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tinygpt_jax import cli
from tinygpt_jax.figures import style
from tinygpt_jax.runtime import SIGNALS
from tinygpt_jax.training import loop
from tinygpt_jax.training.compilation import Compilation
from tinygpt_jax.training.trainer import Trainer

MOMENTS = ("compiling", "steps", "validation", "sampling", "saving", "figures")
RECORD = struct.Struct("=bq")
PATIENCE = 300.0
"""Seconds after which a command that has not ended counts as one that hangs."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """its exit status; below 0, less the signal that killed it"""
    said: str
    """standard error and output"""
    moment: str
    """the last part of its work that it began"""
    step: int
    """at which step"""

    @property
    def clean(self) -> bool:
        """Whether it said what it had to without a traceback."""
        return "Traceback" not in self.said


class Command:
    """One command on its way."""

    def __init__(self, args: Sequence[str], log: Path) -> None:
        self.log, self.moment, self.step = log, "starting", 0
        self._pipe, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._pipe)
            _be(args, log, write)
        os.close(write)

    def until(self, moment: str, times: int = 1) -> bool:
        """Waits until it begins a part of its work for the nth time; False where it ends before."""
        stop = time.monotonic() + PATIENCE
        while times and select.select([self._pipe], [], [], max(0.0, stop - time.monotonic()))[0]:
            record = os.read(self._pipe, RECORD.size)
            if not record:
                return False
            number, self.step = RECORD.unpack(record)
            self.moment = MOMENTS[number]
            times -= self.moment == moment
        return not times

    def strike(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        os.kill(self.pid, number)  # a process that has ended is there until it is waited for

    def end(self) -> Ended:
        """Waits for its end; kills it where that does not come."""
        if self.until("", times=1):
            raise AssertionError("no part of the work has an empty name")
        stop = time.monotonic() + PATIENCE
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > stop:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        os.close(self._pipe)
        said = self.log.read_text("utf-8", errors="replace")
        return Ended(os.waitstatus_to_exitcode(found[1]), said, self.moment, self.step)


def run(args: Sequence[str], log: Path) -> Ended:
    """A command that is left alone."""
    return Command(args, log).end()


def _be(args: Sequence[str], log: Path, pipe: int) -> None:
    """Turns this process into the command."""
    try:
        file = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        for number in SIGNALS:  # one that nohup or a background job ignores would never strike
            signal.signal(number, signal.SIG_DFL)
        _report_moments(pipe)
        sys.argv = ["tinygpt", *args]
        cli.entry()
    except SystemExit as left:
        os._exit(int(left.code or 0))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _report_moments(pipe: int) -> None:
    """Has the parts of a training and the drawing of a figure say when they begin."""

    def told(place: Any, name: str, moment: str) -> None:
        real = getattr(place, name)

        def begin(*args: Any, **settings: Any) -> Any:
            os.write(pipe, RECORD.pack(MOMENTS.index(moment), getattr(args[0], "step", 0) if args else 0))
            return real(*args, **settings)

        setattr(place, name, begin)

    told(Compilation, "wait", "compiling")
    told(Trainer, "advance", "steps")
    told(Trainer, "_validate", "validation")
    told(Trainer, "_sample", "sampling")
    told(Trainer, "save", "saving")
    told(style, "encoded", "figures")
    assert loop.Trainer is Trainer
