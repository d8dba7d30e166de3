"""Training from settings to a run directory: prepare, compile, claim, run."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import jax

from tinygpt_jax.checks import check
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.files import user_path
from tinygpt_jax.memory import check_training
from tinygpt_jax.runs import read_record
from tinygpt_jax.runtime import keep_freed_pages, stop_on_signals, use_compilation_cache
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.claims import locked
from tinygpt_jax.training.compilation import Compilation
from tinygpt_jax.training.display import Display, make_display, opening_lines
from tinygpt_jax.training.feed import make_feed
from tinygpt_jax.training.job import claimed, new_job, resume_job
from tinygpt_jax.training.metrics import MetricsLog
from tinygpt_jax.training.result import TrainResult
from tinygpt_jax.training.samples import drop_samples
from tinygpt_jax.training.trainer import Trainer


def train(
    cfg: TrainConfig,
    *,
    resume: str | Path = "",
    force: bool = False,
    display: Display | None = None,
    stopped: Callable[[], int] | None = None,
) -> TrainResult:
    """Trains a model and leaves a run directory.

    SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 ends it after the steps in hand, or inside a validation, with all saved;
    Ctrl-C again, a second later, at once. Before the directory is claimed there is nothing to save: then the first one
    does.

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
        stack.enter_context(jax.disable_jit(False))  # the step is a program, whatever JAX_DISABLE_JIT says
        stopped = stopped or stack.enter_context(stop_on_signals())
        notes: list[str] = []
        if resume:
            run = user_path(resume)
            read_record(run)  # says what is wrong with it
            stack.enter_context(locked(run, notes.append))
            job = resume_job(run, cfg)
        else:
            job = new_job(cfg, force)
        check_training(job.cfg)
        compilation = None if job.done else Compilation(job.cfg, make_feed(job.cfg, job.data.train.ids))
        stopped()  # from here on there is something to save
        job = stack.enter_context(claimed(job, force, notes.append))  # while the train step compiles in the background
        display = stack.enter_context(contextlib.closing(display or make_display()))
        for line in [*notes, *opening_lines(job)]:
            display.note(line)
        checkpoints = stack.enter_context(Checkpoints(job.run, job.cfg.keep_checkpoints))
        log = stack.enter_context(MetricsLog(job.run, job.step, job.cfg.tensorboard))
        drop_samples(job.run, job.step)
        trainer = Trainer(job, display, checkpoints, log, stopped)
        trainer.save()  # so that there is a whole run, whatever happens from here on
        trainer.catch_up()
        if compilation is not None:
            trainer.run(compilation)
        elif not trainer.cut:
            display.note(trainer.why_done())
    return trainer.result()
