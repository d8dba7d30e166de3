"""How training went, and any measurement over the checkpoints of a run: when does a head become what it is?"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import user_path
from tinygpt_jax.lab.result import OVER, Definition, Result
from tinygpt_jax.params import Params, whole
from tinygpt_jax.runs import CHECKPOINTS, read_config, read_record
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import first_state
from tinygpt_jax.training.metrics import read_metrics

FIELDS = ("loss", "val_loss", "val_loss_se", "learning_rate", "grad_norm")
SIGNED = ("effect", "estimate", "joint", "interaction", "signed", "integrated", "value", "rise", "random_rise")
"""Arrays of interventions that are differences: the `DIFFERENCES` of their kinds."""


@dataclass(frozen=True, eq=False)
class TrainingCurves(Result):
    """Loss, validation, learning rate and gradient norm after each of N steps; NaN where a step has none."""

    loss: np.ndarray
    """(N,) of the step's batch, nats per token"""
    val_loss: np.ndarray
    """(N,) on the whole validation text, nats per token"""
    val_loss_se: np.ndarray
    """(N,) its standard error over validation windows in the order of the text"""
    learning_rate: np.ndarray
    """(N,)"""
    grad_norm: np.ndarray
    """(N,) global, before clipping"""
    steps: tuple[int, ...]
    """N, rising"""
    vocab_size: int
    """V: a model that knows nothing has a loss of ln V"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(FIELDS, ("step",))
    PLACES = {"step": "steps"}


@checked
def training_curves(run: str | os.PathLike[str]) -> TrainingCurves:
    """What `metrics.jsonl` of a run says, step by step; of two lines that name a number for one step the last counts.

    Raises:
        UserError: it is no run, or its metrics are missing or empty.
    """
    record, cfg = read_record(run), read_config(run)
    at: dict[int, dict[str, float]] = {}
    for line in read_metrics(run):
        at.setdefault(line["step"], {}).update({name: line[name] for name in FIELDS if name in line})
    steps = sorted(step for step, numbers in at.items() if numbers)
    if not steps:
        raise UserError(f"{run} has no metrics yet: train it for a step or more")
    columns = {name: np.array([at[step].get(name, np.nan) for step in steps], np.float64) for name in FIELDS}
    definition = Definition(
        granularity="training",
        component="batch, validation text",
        value="-",
        positions="all",
        direction="read",
        set="every step",
        metric="loss",
        unit="nats per token",
        examples=0,
        seed=cfg.seed,
        model="-",
        data=str(record.get("text_sha256", "-"))[:16],
    )
    return TrainingCurves(definition, **columns, steps=tuple(steps), vocab_size=cfg.model.vocab_size)


@dataclass(frozen=True, eq=False)
class OverTraining(Result):
    """One array of a result at S steps of a run; the definition is that of the last step."""

    field: str
    """which array: `effect`, `induction`, …"""
    over: tuple[str, ...]
    """its axes"""
    steps: np.ndarray
    """(S,) optimizer steps taken; 0 is the model before training"""
    value: np.ndarray
    """(S, ...)"""
    se: np.ndarray | None = None
    """(S, ...) its standard error, where the result has one"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "value": ("step", OVER),
        "se": ("step", OVER),
        "steps": ("step",),
    }

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return self.steps.tolist() if axis == "step" else range(size)

    def has_sign(self, field: str) -> bool:
        """As in the results that it is of; what is read has none."""
        return field == "value" and self.field in SIGNED and self.definition.direction != "read"


Measure = Callable[[Params, GPTConfig], Result]


@checked
def over_training(
    run: str | Path,
    measure: Measure,
    fields: Sequence[str] = ("effect",),
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, OverTraining]:
    """`measure(params, cfg)` of the model before training and of every checkpoint that the run kept.

        kept = over_training("runs/book", lambda params, cfg: ablate_heads(params, ids, cfg))["effect"]

    A run keeps the newest three unless it was trained with `--keep-checkpoints 0`, every `--checkpoint-every` steps.

    Raises:
        UserError: the run has no checkpoints, or the result has no such array.
    """
    config, run = read_config(run), user_path(run)
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(f"{run} has no {CHECKPOINTS}: train it with --keep-checkpoints 0 to measure over training")
    with Checkpoints(run) as checkpoints:
        steps = sorted({0, *checkpoints.steps()})
        results = []
        for done, step in enumerate(steps):
            progress(done, len(steps))
            state = checkpoints.restore(config, step)[0] if step else first_state(config)  # the seed has that one
            results.append(measure(*whole(state.params, config.model)))
    known = [f.name for f in dataclasses.fields(results[0]) if f.name in results[0].AXES]
    if missing := sorted(set(fields) - set(known)):
        raise UserError(f"{type(results[0]).__name__} has no array {missing[0]!r}; it has {', '.join(known)}")

    def stacked(name: str) -> np.ndarray:
        return np.stack([getattr(one, name) for one in results])

    last, out = results[-1], {}
    for field in fields:
        error = next(
            (name for name in (f"{field}_se", "se") if name in known and last.axes(name) == last.axes(field)), ""
        )
        se = stacked(error) if error else None
        out[field] = OverTraining(last.definition, field, last.axes(field), np.asarray(steps), stacked(field), se)
    return out
