"""From settings to a job: what a trainer needs of a new run, or of one that is resumed, read and checked."""

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tinygpt_jax import runs
from tinygpt_jax.checks import check
from tinygpt_jax.config import TrainConfig, architecture
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import user_path
from tinygpt_jax.params import count_params
from tinygpt_jax.runtime import numerics
from tinygpt_jax.text import (
    Dataset,
    Tokenizer,
    bpe_tokenizer,
    char_tokenizer,
    load_text,
    load_tokenizer,
    text_fingerprint,
)
from tinygpt_jax.training import claims
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import first_state
from tinygpt_jax.training.evaluate import evaluate_tokens
from tinygpt_jax.training.feed import make_dataset
from tinygpt_jax.training.metrics import check_tensorboard
from tinygpt_jax.training.progress import Progress
from tinygpt_jax.training.step import TrainState

FIXED_ON_RESUME = ("tokenizer", "val_fraction", "optimizer")
LOG_LINE = 150
"""Bytes of metrics.jsonl for a step, about."""


class Job(NamedTuple):
    """A run that is ready to begin or to go on. Until `claimed`, nothing has been written into its directory."""

    run: Path
    cfg: TrainConfig
    """the settings, their warm-up a number"""
    asked: TrainConfig
    """those that run.json keeps: a warm-up that was not asked for is None"""
    tokenizer: Tokenizer
    data: Dataset
    notes: tuple[str, ...]
    """what the user should know before it starts"""
    state: TrainState | None = None
    """where a resumed run stands"""
    progress: Progress = Progress()
    changed: bool = False
    """the settings of a resumed run are not those of its run.json"""

    @property
    def step(self) -> int:
        """Steps taken."""
        return 0 if self.state is None else int(self.state.step)

    @property
    def done(self) -> bool:
        """Whether there is no step left to take."""
        return self.progress.done(self.cfg, self.step)


def new_job(cfg: TrainConfig, force: bool = False) -> Job:
    """Reads the text, makes the tokenizer and the token files. Without `cfg.out` the run is named after the text.

    Raises:
        UserError: the text or the tokenizer cannot be used, or the directory is taken and `force` is off.
    """
    if cfg.tensorboard:
        check_tensorboard()
    run = user_path(cfg.out or Path("runs", _default_name(cfg.data[0])))
    claims.check_out(run, force or not cfg.out)
    notes: list[str] = []
    text = load_text(cfg.sources, tell=notes.append)
    tokenizer, note = _make_tokenizer(cfg, text)
    model = dataclasses.replace(cfg.model, vocab_size=tokenizer.vocab_size)
    asked = dataclasses.replace(cfg, model=model)
    cfg = dataclasses.replace(asked, warmup_steps=cfg.warmup)
    return Job(run, cfg, asked, tokenizer, make_dataset(cfg, text, tokenizer), (*notes, *note))


def resume_job(run: Path, cfg: TrainConfig) -> Job:
    """Restores a run with the settings `cfg`, which may differ from its own where that does no harm. One that was
    killed before its first training state was saved begins anew. The run should be `locked`.

    Raises:
        UserError: architecture, tokenizer, text or optimizer differ (all differences are listed), the last step is
            already past, or there is no training state to go on from.
    """
    before, record = runs.read_config(run), runs.read_record(run)
    begun = _has_begun(run, record)
    usual = cfg.warmup_steps is None and record.get("warmup_steps", before.warmup) == cfg.warmup
    before = check(dataclasses.replace(before, warmup_steps=record.get("warmup_steps", before.warmup)))
    warmup = before.warmup_steps if cfg.warmup_steps is None else cfg.warmup_steps
    cfg = dataclasses.replace(cfg, out="", warmup_steps=warmup)
    changes, refused = _differences(before, cfg)
    notes: list[str] = []
    try:
        text = load_text(cfg.sources, tell=notes.append)
    except UserError as error:
        raise UserError(f"cannot resume {run} without its text ({error}): say where it is now with --data") from error
    file = run / runs.TOKENIZER
    tokenizer = load_tokenizer(file) if begun or file.exists() else _make_tokenizer(cfg, text)[0]
    if tokenizer.fingerprint != record.get("tokenizer_sha256"):
        refused.append(f"{runs.TOKENIZER} is not the one the run began with")
    if text_fingerprint(text) != record.get("text_sha256"):
        refused.append("the text is not the one the run began with")
    if refused:
        raise UserError(f"cannot resume {run}: {'; '.join(refused)}; undo these, or start a new run with --out")
    state, facts = _restore(run, cfg, notes.append) if begun else (first_state(cfg), Progress().to_json())
    step = int(state.step)
    notes += [f"resuming {run} at step {step:,} of {cfg.steps:,}", *(f"changed: {change}" for change in changes)]
    notes += _changed_environment(record.get("environment", {}))
    data = make_dataset(cfg, text, tokenizer)
    try:
        progress = Progress.from_json(facts, step, before.tokens_per_step)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the facts in {run / runs.CHECKPOINTS / str(step)} make no sense ({error}): move that folder away to "
            "go on from an earlier one"
        ) from error
    progress = _with_weights(progress, run, cfg, data)
    asked = dataclasses.replace(cfg, warmup_steps=None) if usual else cfg
    return Job(run, cfg, asked, tokenizer, data, tuple(notes), state, progress, bool(changes))


@contextlib.contextmanager
def claimed(job: Job, force: bool = False, tell: Callable[[str], None] | None = None) -> Iterator[Job]:
    """The job with its directory and its state: a new run's directory is claimed, locked until the end, and its first
    state made; in a resumed one, which is locked already, run.json is rewritten. `tell` as in `locked`.

    Raises:
        UserError: the directory is taken and `force` is off, it cannot be made, another process trains the run, or
            there is too little room.
    """
    facts = {**_facts(job.cfg, job.tokenizer, job.data), runs.BEGAN: round(time.time(), 3)}
    with contextlib.ExitStack() as stack:
        run, state = job.run, job.state
        if state is None:
            state = first_state(job.cfg)
            claim = claims.claim(run, force, tell) if job.cfg.out or force else claims.claim_next(run, tell)
            run = stack.enter_context(claim)
        else:
            facts = facts if job.changed else {runs.BEGAN: facts[runs.BEGAN]}
            facts = {**runs.facts_of(runs.read_record(run)), **facts}
        room = claims.check_room(run, *_room(job.cfg, state))
        if not job.done:
            runs.write_record(run, job.asked, facts)
        if not (run / runs.TOKENIZER).exists():
            job.tokenizer.save(run / runs.TOKENIZER)
        yield job._replace(run=run, state=state, notes=(*job.notes, *[room] * bool(room)))


def _room(cfg: TrainConfig, state: TrainState) -> tuple[int, int]:
    """Bytes that a run writes with its first save, and at the most: the states kept and the next, weights and log."""
    one, weights = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (state, state.params))
    kept = min(cfg.keep_checkpoints or cfg.steps, cfg.steps // cfg.checkpoint_every + 2)
    return one + weights, one * (kept + 1) + weights * 2 + LOG_LINE * cfg.steps


def _has_begun(run: Path, record: dict[str, Any]) -> bool:
    """Whether a run has, or had, a training state; UserError where it had one."""
    with Checkpoints(run) as checkpoints:
        if checkpoints.steps():
            return True
    log = run / runs.METRICS
    if "pruned" in record or (run / runs.WEIGHTS).exists() or (log.exists() and os.path.getsize(log)):
        raise UserError(
            f"{run} has no training state in {runs.CHECKPOINTS}: there is nothing to go on from; train or prune it "
            "again with --force"
        )
    return False


def _restore(run: Path, cfg: TrainConfig, tell: Callable[[str], None]) -> tuple[TrainState, dict[str, Any]]:
    """The newest whole training state of a run and its facts, fit to go on with `cfg`."""
    with Checkpoints(run) as checkpoints:
        state, facts = checkpoints.restore(cfg, tell=tell)
    step = int(state.step)
    if cfg.steps < step:
        raise UserError(f"steps is {cfg.steps}, but {run} has already taken {step}: ask for more, or train a new run")
    if int(state.skipped_in_row) >= cfg.max_skipped:  # it stopped for this; another chance is what is asked for
        state = state._replace(skipped_in_row=state.skipped_in_row * 0)
    return state, facts


def _with_weights(progress: Progress, run: Path, cfg: TrainConfig, data: Dataset) -> Progress:
    """The progress, its best that of the weights file, which may be of a later step than the state, or missing."""
    file = run / runs.WEIGHTS
    if not file.is_file():
        return progress._replace(best=None, best_step=0)
    step = runs.weights_step(file)
    if step == progress.best_step:
        return progress
    best = evaluate_tokens(runs.read_weights(file, cfg.model), cfg.model, data.val)
    return progress._replace(best=best, best_step=step, stale=0 if step > progress.best_step else progress.stale)


def _changed_environment(before: dict[str, Any]) -> list[str]:
    """What is set otherwise around this process than it was around the run, as lines."""
    return [
        f"changed: {name} {before[name]!r} -> {now!r}, which can change the numbers"
        for name, now in numerics().items()
        if name in before and before[name] != now
    ]


def _differences(before: TrainConfig, now: TrainConfig) -> tuple[list[str], list[str]]:
    """What differs, as `name: old -> new` lines: harmless, and refused."""
    old = {**dataclasses.asdict(before), **{f"model.{k}": v for k, v in dataclasses.asdict(before.model).items()}}
    new = {**dataclasses.asdict(now), **{f"model.{k}": v for k, v in dataclasses.asdict(now.model).items()}}
    fixed = {*FIXED_ON_RESUME, *(f"model.{name}" for name in architecture(before.model))}
    names = [n for n in old if n not in ("model", "out") and old[n] != new[n]]
    lines = {name: f"{name} {old[name]!r} -> {new[name]!r}" for name in names}
    return [lines[n] for n in names if n not in fixed], [lines[n] for n in names if n in fixed]


def _make_tokenizer(cfg: TrainConfig, text: str) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what the user should know of it."""
    if cfg.tokenizer == "char":
        return char_tokenizer(text), []
    if cfg.tokenizer != "bpe":
        return load_tokenizer(cfg.tokenizer), []
    asked = cfg.model.vocab_size
    tokenizer = bpe_tokenizer(text, asked)
    note = f"vocab_size is {asked}, but this text has pairs to merge for {tokenizer.vocab_size} only"
    return tokenizer, [note] * (tokenizer.vocab_size != asked)


def _facts(cfg: TrainConfig, tokenizer: Tokenizer, data: Dataset) -> dict[str, Any]:
    packages = ("tinygpt_jax", "jax", "jaxlib", "optax", "numpy", "tokenizers")
    return {
        "parameters": count_params(cfg.model),
        "warmup_steps": cfg.warmup,  # that of the settings is the one asked for, if any
        "text_sha256": data.fingerprint,
        "tokenizer_sha256": tokenizer.fingerprint,
        "train_tokens": len(data.train.ids),
        "val_tokens": len(data.val.ids),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "environment": numerics(),
        "machine": f"{platform.system()} {platform.machine()}",
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    }


def _default_name(source: str) -> str:
    """What a run is called after its text: the name of a folder, that of a file without its ending; `stdin` for what
    has no name, as a pipe."""
    path = user_path(source)
    if source == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        return "stdin"
    return (path.resolve().name if path.is_dir() else path.resolve().stem) or "run"
