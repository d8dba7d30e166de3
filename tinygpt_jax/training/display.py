"""The display of a run: a progress bar on a terminal, plain lines elsewhere. All of it goes to standard error."""

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TextIO

from tinygpt_jax.digits import number, with_error
from tinygpt_jax.markup import harmless, isolated, say_to
from tinygpt_jax.params import count_params
from tinygpt_jax.runtime import Messages
from tinygpt_jax.training.evaluate import Evaluation
from tinygpt_jax.training.job import Job


class Status(NamedTuple):
    """How far a run is."""

    step: int
    steps: int
    loss: float
    """of the last step's batch, nats per token"""
    tokens_per_second: float
    """over the last dispatches; `TrainResult` says what counts as time"""
    seconds_left: float
    """for the tokens that are left, at that speed"""


def duration(seconds: float) -> str:
    """`45 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, s = divmod(whole, 60)
    return f"{minutes} min {s:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def validation_line(status: Status, result: Evaluation, best: bool) -> str:
    """One line for a validation."""
    loss = "" if math.isnan(status.loss) else f"  train {status.loss:.3f}"  # of a run that begins with a validation
    done = f"step {status.step:>6,}/{status.steps:,}"
    return f"{done}{loss}  val {losses(result)}{pace(status)}{'  best' if best else ''}"


def pace(status: Status) -> str:
    """Speed and time left; nothing before the first step."""
    speed = status.tokens_per_second
    return f"  {speed:,.0f} tokens/s  {duration(status.seconds_left)} left" if speed else ""


def losses(result: Evaluation) -> str:
    """The loss of a validation per token, character and byte; per character alone where a token is one."""
    per_char = "" if result.loss == result.loss_per_char else f" nats/token  {number(result.loss_per_char, 4)}"
    return f"{with_error(result.loss, result.loss_se)}{per_char} nats/char  {number(result.bits_per_byte, 3)} bits/byte"


class Display:
    """A line for each note and each validation, and the samples."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def note(self, text: str) -> None:
        say_to(self._stream, text)

    def working(self, what: str) -> AbstractContextManager[Any]:
        """Nothing: a line would stay when the work is over."""
        return nullcontext()

    def update(self, status: Status) -> None:
        """Nothing: the next validation prints a line."""

    def validated(self, status: Status, result: Evaluation, best: bool) -> None:
        self.note(validation_line(status, result, best))

    def sampled(self, step: int, text: str) -> None:
        self.note(f"--- sample at step {step:,} ---\n{text}\n---")

    def close(self) -> None:
        """Nothing is left open."""


class LiveDisplay(Display):
    """The same with a progress bar below, and samples in frames."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns: list[Any] = [
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[facts]}"),
        ]
        self._progress = Progress(*columns, console=Console(file=stream))
        self._task: Any = None
        self._validation = ""

    def note(self, text: str) -> None:
        self._progress.console.print(isolated(harmless(text)), markup=False, highlight=False)

    def working(self, what: str) -> AbstractContextManager[Any]:
        return self._progress.console.status(what)

    def update(self, status: Status) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=status.steps, facts="")
        facts = f"loss {status.loss:.3f}{self._validation}{pace(status)}"
        self._progress.update(self._task, completed=status.step, facts=facts)

    def validated(self, status: Status, result: Evaluation, best: bool) -> None:
        self._validation = f"  val {result.loss:.4f}"
        super().validated(status, result, best)
        self.update(status)

    def sampled(self, step: int, text: str) -> None:
        from rich.panel import Panel
        from rich.text import Text

        self._progress.console.print(Panel(Text(harmless(text)), title=f"sample at step {step:,}", title_align="left"))

    def close(self) -> None:
        self._progress.stop()


def make_display(stream: TextIO | None = None) -> Display:
    """The display that suits `stream` (default: standard error); where it cannot be written, work goes on without."""
    messages: Any = Messages(sys.stderr if stream is None else stream)
    return LiveDisplay(messages) if messages.isatty() else Display(messages)


def opening_lines(job: Job) -> list[str]:
    """The model, the text, and what the user should know before the first step."""
    cfg, model = job.cfg, job.cfg.model
    return [
        f"run {job.run}: {count_params(model):,} parameters, {model.n_layer} layers of {model.n_embd}, "
        f"{model.head_counts} heads, context {model.block_size}",
        f"text: {', '.join(cfg.data)}: {len(job.data.train.ids):,} tokens to train on, {len(job.data.val.ids):,} to "
        f"validate on; {job.tokenizer.describe()}",
        *job.notes,
    ]
