"""How training went, from what its run directory says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.result import Definition, Result
from tinygpt_jax.runs import read_config, read_record
from tinygpt_jax.training.metrics import read_metrics

FIELDS = ("loss", "val_loss", "val_loss_se", "learning_rate", "grad_norm")


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
