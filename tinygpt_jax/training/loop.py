"""Training from settings to a run directory: prepare, compile, claim, run."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from tinygpt_jax.checks import check
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.memory import check_training
from tinygpt_jax.runs import locked
from tinygpt_jax.runtime import keep_freed_pages, stop_on_signals, use_compilation_cache
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import Compilation
from tinygpt_jax.training.display import Display, make_display, opening_lines
from tinygpt_jax.training.feed import make_feed
from tinygpt_jax.training.job import claimed, new_job, resume_job
from tinygpt_jax.training.metrics import MetricsLog
from tinygpt_jax.training.result import TrainResult
from tinygpt_jax.training.trainer import Trainer


def train(
    cfg: TrainConfig,
    *,
    resume: str | Path = "",
    force: bool = False,
    display: Display | None = None,
    stopped: Callable[[], bool] | None = None,
) -> TrainResult:
    """Trains a model and leaves a run directory; SIGINT or SIGTERM finishes the step in hand, saves and returns.

    Args:
        cfg: the settings; on resume those of the run, changed where wanted
        resume: a run directory to go on with
        force: replace a run at `cfg.out`
        display: where progress goes; default: standard error
        stopped: called between dispatches, whether to stop; default: whether a signal came

    Raises:
        UserError: `cfg` makes no sense, or takes more memory than there is; as `new_job` and `resume_job`; and where
            the loss or gradient was not finite for `max_skipped` steps in a row, after saving the last good state.
    """
    cfg = check(cfg)
    keep_freed_pages()
    use_compilation_cache()
    with contextlib.ExitStack() as stack:
        stopped = stopped or stack.enter_context(stop_on_signals())
        job = resume_job(Path(resume), cfg) if resume else new_job(cfg, force)
        check_training(job.cfg)
        compilation = None if job.done else Compilation(job.cfg, make_feed(job.cfg, job.data.train.ids))
        job = claimed(job, force)  # while the train step compiles in the background
        display = stack.enter_context(contextlib.closing(display or make_display()))
        stack.enter_context(locked(job.run))
        for line in opening_lines(job):
            display.note(line)
        checkpoints = stack.enter_context(Checkpoints(job.run, job.cfg.keep_checkpoints))
        log = stack.enter_context(MetricsLog(job.run, job.step, job.cfg.tensorboard))
        trainer = Trainer(job, display, checkpoints, log)
        trainer.save()  # so that there is a whole run, whatever happens from here on
        if compilation is None:
            display.note(trainer.why_done())
        else:
            trainer.run(compilation, stopped)
    return trainer.result()
