"""From settings to a job that is ready to run: a new one, or one taken up where it stopped."""

from __future__ import annotations

import dataclasses
import itertools
import math
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tinygpt_jax.config import Sources, TrainConfig, architecture
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import make_folder, remove
from tinygpt_jax.params import count_params
from tinygpt_jax.runs import (
    CHECKPOINTS,
    METRICS,
    RECORD,
    SAMPLES,
    TOKENIZER,
    WEIGHTS,
    facts_of,
    load,
    locked,
    read_config,
    read_record,
    read_weights,
    taken,
    weights_step,
    write_record,
)
from tinygpt_jax.text import (
    Dataset,
    Tokenizer,
    Tokens,
    bpe_tokenizer,
    cache_dir,
    char_tokenizer,
    check_length,
    load_text,
    load_tokenizer,
    prepare,
    text_fingerprint,
)
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import first_state
from tinygpt_jax.training.evaluate import Evaluation, evaluate
from tinygpt_jax.training.metrics import check_tensorboard
from tinygpt_jax.training.progress import Progress
from tinygpt_jax.training.step import TrainState

RUN_PARTS = (RECORD, TOKENIZER, WEIGHTS, METRICS, SAMPLES, CHECKPOINTS, "tensorboard", "plots", "heads", "report.html")
FIXED_ON_RESUME = ("tokenizer", "val_fraction", "optimizer")


def tokens_per_step(cfg: TrainConfig) -> int:
    """A · B · T"""
    return cfg.accumulate * cfg.batch_size * cfg.model.block_size


class Job(NamedTuple):
    run: Path
    cfg: TrainConfig
    tokenizer: Tokenizer
    data: Dataset
    state: TrainState
    progress: Progress
    notes: tuple[str, ...]
    """What the user should be told before it starts."""


Tell = Callable[[str], None]
Ready = Callable[[TrainConfig, Dataset], None]
"""Told of the settings and the data as soon as both are known: from then on the train step can be compiled."""


def new_job(cfg: TrainConfig, force: bool = False, ready: Ready = lambda cfg, data: None) -> Job:
    """Reads the text, makes the tokenizer and the token files, and claims the run directory, in this order.

    Raises:
        UserError: the text or the tokenizer cannot be used, or the directory is taken and `force` is off. Nothing is
            written into the run directory before everything has been checked.
    """
    if cfg.tensorboard:
        check_tensorboard()
    name = Path("runs", _default_name(cfg.data[0]))
    run = check_out(Path(cfg.out or name), force) if cfg.out or force else None
    notes: list[str] = []
    text = load_text(cfg.sources, tell=notes.append)
    tokenizer = _make_tokenizer(cfg, text, notes.append)
    model = dataclasses.replace(cfg.model, vocab_size=tokenizer.vocab_size)
    asked = dataclasses.replace(cfg, model=model)
    cfg = dataclasses.replace(asked, warmup_steps=cfg.warmup)
    data = _prepare(cfg, text, tokenizer)
    ready(cfg, data)
    state = first_state(cfg)
    run = claim(run, force) if run else _claim_next(name)
    tokenizer.save(run / TOKENIZER)
    write_record(run, asked, _facts(cfg, tokenizer, data))
    return Job(run, cfg, tokenizer, data, state, Progress(), tuple(notes))


def resume_job(run: Path, cfg: TrainConfig, ready: Ready = lambda cfg, data: None) -> Job:
    """Takes up a run with the settings `cfg`, which may differ from its own where that does no harm.

    Raises:
        UserError: architecture, tokenizer, text or optimizer differ (all differences are listed), the last step is
            already past, or there is no training state to go on from.
    """
    before, record = read_config(run), read_record(run)
    tokenizer = load_tokenizer(run / TOKENIZER)
    usual = cfg.warmup_steps is None and record.get("warmup_steps", before.warmup) == cfg.warmup
    before = dataclasses.replace(before, warmup_steps=record.get("warmup_steps", before.warmup))
    warmup = before.warmup_steps if cfg.warmup_steps is None else cfg.warmup_steps
    cfg = dataclasses.replace(cfg, out="", warmup_steps=warmup)
    changes, refused = _differences(before, cfg)
    notes: list[str] = []
    try:
        text = load_text(cfg.sources, tell=notes.append)
    except UserError as error:
        raise UserError(f"cannot resume {run} without its text ({error}): say where it is now with --data") from error
    if tokenizer.fingerprint != record.get("tokenizer_sha256"):
        refused.append(f"{TOKENIZER} is not the one the run began with")
    if text_fingerprint(text) != record.get("text_sha256"):
        refused.append("the text is not the one the run began with")
    if refused:
        raise UserError(f"cannot resume {run}: {'; '.join(refused)}; undo these, or start a new run with --out")
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(f"{run} has no {CHECKPOINTS}: there is nothing to go on from; train it again with --force")
    with Checkpoints(run) as checkpoints:
        state, facts = checkpoints.restore(cfg)
    step = int(state.step)
    if cfg.steps < step:
        raise UserError(f"steps is {cfg.steps}, but {run} has already taken {step}: ask for more, or train a new run")
    if int(state.skipped_in_row) >= cfg.max_skipped:  # it stopped for this; another chance is what is asked for
        state = state._replace(skipped_in_row=state.skipped_in_row * 0)
    notes += [f"resuming {run} at step {step:,} of {cfg.steps:,}", *(f"changed: {change}" for change in changes)]
    data = _prepare(cfg, text, tokenizer)
    progress = Progress.from_json(facts, step, tokens_per_step(before))
    progress = _with_weights(progress, run, cfg, data)
    if step < cfg.steps and not progress.ended_early(cfg):
        ready(cfg, data)
    if changes:
        with locked(run):  # not while another process trains it
            asked = dataclasses.replace(cfg, warmup_steps=None) if usual else cfg
            write_record(run, asked, {**facts_of(record), **_facts(cfg, tokenizer, data)})
    return Job(run, cfg, tokenizer, data, state, progress, tuple(notes))


def _with_weights(progress: Progress, run: Path, cfg: TrainConfig, data: Dataset) -> Progress:
    """The progress, with a best that is that of the weights file: it may be of a later step than the state, or gone."""
    file = run / WEIGHTS
    if not file.is_file():
        return progress._replace(best=None, best_step=0)
    step = weights_step(file)
    if step == progress.best_step:
        return progress
    best = evaluate(read_weights(file, cfg.model), cfg.model, data.val)
    return progress._replace(best=best, best_step=step, stale=0 if step > progress.best_step else progress.stale)


def _differences(before: TrainConfig, now: TrainConfig) -> tuple[list[str], list[str]]:
    """What differs, as `name: old -> new` lines: harmless, and refused."""
    old = {**dataclasses.asdict(before), **{f"model.{k}": v for k, v in dataclasses.asdict(before.model).items()}}
    new = {**dataclasses.asdict(now), **{f"model.{k}": v for k, v in dataclasses.asdict(now.model).items()}}
    fixed = {*FIXED_ON_RESUME, *(f"model.{name}" for name in architecture(before.model))}
    names = [n for n in old if n not in ("model", "out") and old[n] != new[n]]
    lines = {name: f"{name} {old[name]!r} -> {new[name]!r}" for name in names}
    return [lines[n] for n in names if n not in fixed], [lines[n] for n in names if n in fixed]


def _make_tokenizer(cfg: TrainConfig, text: str, tell: Tell) -> Tokenizer:
    if cfg.tokenizer == "char":
        return char_tokenizer(text)
    if cfg.tokenizer != "bpe":
        return load_tokenizer(cfg.tokenizer)
    asked = cfg.model.vocab_size
    tokenizer = bpe_tokenizer(text, asked)
    if tokenizer.vocab_size != asked:
        tell(f"vocab_size is {asked}, but this text has pairs to merge for {tokenizer.vocab_size} only")
    return tokenizer


def _prepare(cfg: TrainConfig, text: str, tokenizer: Tokenizer) -> Dataset:
    data = prepare(text, tokenizer, val_fraction=cfg.val_fraction, cache=cache_dir())
    check_length(data.train, cfg.model.block_size, "the training text")
    check_length(data.val, 1, "the validation text")
    return data


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
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    }


def _default_name(source: str) -> str:
    return "stdin" if source == "-" else Path(source).resolve().stem or "run"


def check_out(out: Path, force: bool) -> Path:
    """Raises UserError where `out` is taken; with `force`, only where it holds something else than a run."""
    if out.is_dir() and any(out.iterdir()):
        if not (out / RECORD).exists():
            raise UserError(f"out is {str(out)!r}: that directory holds something that is not a run; choose another")
        if not force:
            raise UserError(f"run {out} exists: continue it with train --resume {out}, or replace it with --force")
    elif out.exists() and not out.is_dir():
        raise UserError(f"out is {str(out)!r}: that is a file; choose another")
    return out


def claim(run: Path, force: bool = False) -> Path:
    """Makes the run directory; raises UserError where it is taken and `force` is off, or cannot be made."""
    check_out(run, force)
    try:
        make_folder(run)
    except OSError as error:
        raise UserError(f"cannot make {run} ({error.strerror}): name another place with --out") from error
    with locked(run):
        _clear(run)
    return run


def _clear(run: Path) -> None:
    for part in RUN_PARTS:  # by name: whatever else lies there is the user's
        remove(run / part)


def _claim_next(first: Path) -> Path:
    """Makes the first of runs/NAME, runs/NAME-2, … that is free; two trainings at once get two."""
    for number in itertools.count(1):
        run = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            run.mkdir(parents=True)
            return run
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make {run} ({error.strerror}): name another place with --out") from error
    raise AssertionError("unreachable")


def evaluate_run(run: str | Path, data: Sources | Sequence[str] = (), tell: Tell | None = None) -> Evaluation:
    """Scores a run's best weights on its own validation text, or on the whole of other text, and tells which it took.

    Raises:
        UserError: as `load` and `load_text`; and where the run's own text is no longer what it was.
    """
    model = load(run)
    result = evaluate(model.params, model.cfg, text_to_score(run, model.tokenizer, data, tell))
    if not math.isfinite(result.loss):
        raise UserError(f"the loss is {result.loss}: the weights of {run} are damaged, or its training diverged")
    return result


def text_to_score(
    run: str | Path, tokenizer: Tokenizer, data: Sources | Sequence[str] = (), tell: Tell | None = None
) -> Tokens:
    """The whole of `data`, or a run's own validation text, as `tell` is told; raises UserError as `evaluate_run`."""
    wanted = Sources.of(data)
    if wanted:
        text = load_text(wanted)
        tokens = Tokens(tokenizer.encode(text), len(text), len(text.encode()))
        said = f"the text {', '.join(wanted.data)}"
    else:
        tokens = _own_text(run, tokenizer, wanted)
        said = f"its validation text of {', '.join(read_config(run).data)}"
    if tell:
        tell(taken(run, f"{said}: {len(tokens.ids):,} tokens"))
    return tokens


def _own_text(run: str | Path, tokenizer: Tokenizer, patterns: Sources) -> Tokens:
    if patterns.include or patterns.exclude:
        raise UserError("include and exclude say which files of --data are read: name it, or leave them out")
    cfg, record = read_config(run), read_record(run)
    if "-" in cfg.data:
        raise UserError(f"{run} was trained on standard input, which is gone: name the text with --data")
    dataset = _prepare(cfg, load_text(cfg.sources), tokenizer)
    if dataset.fingerprint != record.get("text_sha256"):
        raise UserError(f"the text {cfg.data} is not what {run} was trained on: name what to score with --data")
    return dataset.val
