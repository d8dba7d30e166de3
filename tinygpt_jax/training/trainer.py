"""The trainer: takes the compiled steps and, every so many of them, validates, samples and saves."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tinygpt_jax.errors import UserError
from tinygpt_jax.params import count_params, not_finite
from tinygpt_jax.runs import WEIGHTS, Model, write_weights
from tinygpt_jax.sampling import sample
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import Compilation, Dispatch
from tinygpt_jax.training.display import Display, Status
from tinygpt_jax.training.evaluate import evaluate_tokens, prepare_evaluation, say_seldom
from tinygpt_jax.training.feed import Feed
from tinygpt_jax.training.job import Job
from tinygpt_jax.training.metrics import MetricsLog
from tinygpt_jax.training.result import TrainResult
from tinygpt_jax.training.samples import write_sample
from tinygpt_jax.training.step import StepMetrics

RECENT, MEASURED = 5, 30
"""Dispatches whose median says how many steps another should have, and whose tokens and time are the speed shown: few
enough that a pause, or a busy machine, is soon forgotten."""
DISPATCH_SECONDS = 1.0
"""A dispatch is kept about this short, so that an interrupt is answered and the display moves."""
SAMPLE_TOKENS = 200
RISES = 3
"""Validations in a row, each above the one before, after which the display speaks of overfitting."""


class _Cut(Exception):
    """A validation is to end."""


class Trainer:
    """Takes the steps of one job, new or resumed, and keeps its state and its progress."""

    def __init__(
        self, job: Job, display: Display, checkpoints: Checkpoints, log: MetricsLog, stopped: Callable[[], int]
    ) -> None:
        assert job.state is not None, "claim the job first"
        self.job, self.cfg = job, job.cfg
        self.display, self.checkpoints, self.log, self.stopped = display, checkpoints, log, stopped
        self.state, self.progress = job.state, job.progress
        self.step = job.step
        self.skipped = int(job.state.skipped)
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.marks = deque([(job.progress.seconds, job.progress.trained_tokens)], maxlen=MEASURED + 1)
        self.cut = False
        self.accounted = time.perf_counter()
        self.compile_seconds, self.compilation_cached = 0.0, False
        self.loss = math.nan

    def run(self, compilation: Compilation) -> None:
        """Waits for the compiled steps, takes them until the last or until asked to stop, and saves."""
        with self.display.working("compiling the train step"):
            if not self.stopped():  # meanwhile, so that nothing compiles after the start
                prepare_evaluation(self.state.params, self.cfg.model, self.job.data.val)
            program = None if self.stopped() else compilation.wait(self.stopped)
            if program is None:
                return
        self.accounted = time.perf_counter()
        self.compile_seconds, self.compilation_cached = program.seconds, program.loaded
        self.display.note(program.describe())
        while not (self.done or self.cut or self.stopped()):
            self.advance(program.dispatch, compilation.feed)
        self.save()
        if self.done and not self.cut and self.progress.best is None:
            raise UserError(
                f"no validation loss was finite, so {self.job.run} keeps the weights it started from: "
                f"train anew with a learning_rate below {self.cfg.learning_rate:g}"
            )

    def catch_up(self) -> None:
        """Does what was due after the last step of a run that is resumed, where its validation was interrupted."""
        if self.step and self._is_due(self.cfg.eval_every, self._validate) and self.log.validated < self.step:
            self._act(self.hooks()[:-1])

    def hooks(self) -> list[tuple[int, Callable[[], None]]]:
        """What is done, in this order, after every so many steps. Made anew each time: a trainer that refers to itself
        would keep its arrays after the run."""
        cfg = self.cfg
        samples = [(cfg.sample_every, self._sample)] if cfg.sample_every else []
        return [(cfg.eval_every, self._validate), *samples, (cfg.checkpoint_every, self.save)]

    @property
    def done(self) -> bool:
        """Whether there is no step left to take."""
        return self.progress.done(self.cfg, self.step)

    def why_done(self) -> str:
        """What to say to someone who resumes a run that is done."""
        if self.step == self.cfg.steps:
            return f"already at step {self.step:,} of {self.cfg.steps:,}: ask for more with --steps"
        return (
            f"ended early at step {self.step:,} of {self.cfg.steps:,}: {self.progress.stale} validations in a row "
            "brought no new best; go on with a larger --stop-early, or with 0"
        )

    def advance(self, dispatch: Dispatch, feed: Feed) -> None:
        """Steps to where a hook is due, or as far as one dispatch should go, and does what is due there."""
        began, before = time.perf_counter(), self.step
        due = min(self.cfg.steps, *(every * (before // every + 1) for every, _ in self.hooks()))
        n = min(due - before, self._affordable_steps())
        self.state, metrics = dispatch(self.state, *feed(before, n), np.int32(n))
        self.step = int(self.state.step)  # waits for the device
        self.recent.append((time.perf_counter() - began) / (self.step - before))
        trained = (self.step - before) * self.cfg.tokens_per_step
        self.progress = self.progress._replace(trained_tokens=self.progress.trained_tokens + trained)
        self._record(metrics, before)
        self._check_finite()
        self._act(self.hooks())
        self._account()
        self.marks.append((self.progress.seconds, self.progress.trained_tokens))

    def _act(self, hooks: Sequence[tuple[int, Callable[[], None]]]) -> None:
        for every, act in hooks:
            if self._is_due(every, act) and not self.cut:  # what a validation that was cut leaves out, `catch_up` does
                act()

    def _is_due(self, every: int, act: Callable[[], None]) -> bool:
        return self.step % every == 0 or (act == self._validate and self.step == self.cfg.steps)

    def save(self) -> None:
        """The training state, and the weights, where none were kept yet. A state whose last step was skipped is not
        saved: it may be one from which every step is, and would take the place of a good one."""
        self._account()
        self.log.flush()
        if not int(self.state.skipped_in_row):
            self._check_writable()
            self.checkpoints.save(self.state, self.progress.to_json())
        if not (self.job.run / WEIGHTS).exists():
            write_weights(self.job.run / WEIGHTS, self.state.params, self.step)

    def result(self) -> TrainResult:
        """How it ended."""
        return TrainResult(
            run=self.job.run,
            best=self.progress.best,
            best_step=self.progress.best_step,
            steps=self.step,
            parameters=count_params(self.cfg.model),
            seconds=self.progress.seconds,
            compile_seconds=self.compile_seconds,
            compilation_cached=self.compilation_cached,
            trained_tokens=self.progress.trained_tokens,
            skipped=self.skipped,
            interrupted=self.cut or not self.done,
            stopped_early=self.progress.stale if self.done and self.step < self.cfg.steps else 0,
        )

    def _account(self) -> None:
        """Adds the time since the last call to the progress."""
        now = time.perf_counter()
        self.progress = self.progress._replace(seconds=self.progress.seconds + now - self.accounted)
        self.accounted = now

    def _affordable_steps(self) -> int:
        if not self.recent:
            return 1
        affordable = int(DISPATCH_SECONDS / max(statistics.median(self.recent), 1e-9))
        return max(1, min(self.cfg.steps_per_dispatch, affordable))

    def _status(self) -> Status:
        self._account()
        seconds, tokens = self.progress.seconds, self.progress.trained_tokens
        if tokens > self.marks[0][1]:  # else nothing was trained yet, and what is known is of earlier parts of the run
            seconds, tokens = seconds - self.marks[0][0], tokens - self.marks[0][1]
        speed = tokens / max(seconds, 1e-9)
        left = (self.cfg.steps - self.step) * self.cfg.tokens_per_step
        time_left = left / speed if speed else math.inf
        return Status(self.step, self.cfg.steps, self.loss, tokens_per_second=speed, seconds_left=time_left)

    def _record(self, metrics: StepMetrics, before: int) -> None:
        rows = {name: np.asarray(values, np.float64) for name, values in metrics._asdict().items()}
        taken = self.step - before
        for i in range(taken):
            self.log.write(before + i + 1, {name: float(values[i]) for name, values in rows.items()})
        self.loss = float(rows["loss"][taken - 1])
        skipped, self.skipped = self.skipped, int(self.state.skipped)
        if self.skipped > skipped:
            bad = [name for name in ("loss", "grad_norm") if not np.isfinite(rows[name][:taken]).all()]
            what = " and ".join(bad).replace("grad_norm", "gradient")
            self.display.note(f"step {self.step:,}: skipped {self.skipped - skipped}, {what} not finite")
        self.display.update(self._status())

    def _check_finite(self) -> None:
        in_row = int(self.state.skipped_in_row)
        if in_row >= self.cfg.max_skipped:
            self.save()
            best = self.progress.best
            kept = f"the best weights, of step {self.progress.best_step:,}" if best else "the weights it started from"
            raise UserError(
                f"loss or gradient was not finite for {in_row} steps in a row, up to step {self.step:,}: "
                f"stopped; {self.job.run} keeps {kept}; train anew with a learning_rate below "
                f"{self.cfg.learning_rate:g}, or go on with --resume {self.job.run}"
            )

    def _check_writable(self) -> None:
        """Raises UserError where the state is not finite: neither a loss nor a gradient has to show it yet."""
        if found := not_finite({"params": self.state.params, "optimizer": self.state.opt_state}):
            raise UserError(
                f"training diverged: at step {self.step:,} {found}; stopped, and nothing of it was written; "
                f"train anew with a learning_rate below {self.cfg.learning_rate:g}"
            )

    def _validate(self) -> None:
        try:
            result = evaluate_tokens(self.state.params, self.cfg.model, self.job.data.val, self._scored())
        except _Cut:
            self.cut = True
            return
        self.progress = self.progress.validated(result, self.step)
        best = self.progress.best is result
        if best:
            self._check_writable()
            write_weights(self.job.run / WEIGHTS, self.state.params, self.step)
        names = ("loss", "loss_se", "loss_per_char", "bits_per_byte")
        values = {f"val_{name}": getattr(result, name) for name in names}
        status = self._status()  # once, so that file and line agree
        self.log.write(self.step, {**values, "tokens_per_second": status.tokens_per_second})
        self.log.flush()
        self.display.validated(status, result, best)
        self._say_overfitting()

    def _scored(self) -> Callable[[int], None]:
        """Called inside a validation: says how far it is, and ends it where the run is to stop."""
        say = say_seldom(self.job.data.val, self.display.note)

        def scored(count: int) -> None:
            if self.stopped():
                raise _Cut
            say(count)

        return scored

    def _say_overfitting(self) -> None:
        best, step = self.progress.best, self.progress.best_step
        if best and self.progress.rises == RISES:
            remedy = "" if self.cfg.stop_early else "; --stop-early N ends such a run"
            self.display.note(
                f"validation has risen {RISES} times in a row, which is overfitting: the best was {best.loss:.4f} nats "
                f"per token at step {step:,}, kept in {self.job.run}{remedy}"
            )

    def _sample(self) -> None:
        model = Model(self.state.params, self.cfg.model, self.job.tokenizer)
        text = sample(model, "", max_tokens=SAMPLE_TOKENS, temperature=0.8, seed=self.cfg.seed)[0].text
        write_sample(self.job.run, self.step, text)
        self.display.sampled(self.step, text)
