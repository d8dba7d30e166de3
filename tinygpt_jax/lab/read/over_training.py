"""Any measurement over the checkpoints of a run: when does a head become what it is?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.result import OVER, Result
from tinygpt_jax.params import Params, whole
from tinygpt_jax.runs import CHECKPOINTS, read_config
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.compilation import first_state

SIGNED = ("effect", "estimate", "joint", "interaction", "signed", "integrated", "value", "rise", "random_rise")
"""Arrays of interventions that are differences: the `DIFFERENCES` of their kinds."""


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
    config = read_config(run)
    if not (Path(run) / CHECKPOINTS).is_dir():
        raise UserError(f"{run} has no {CHECKPOINTS}: train it with --keep-checkpoints 0 to measure over training")
    with Checkpoints(Path(run)) as checkpoints:
        steps = sorted({0, *checkpoints.steps()})
        results = []
        for done, step in enumerate(steps):
            progress(done, len(steps))
            state = checkpoints.restore(config, step)[0] if step else first_state(config)  # the seed has that one
            results.append(measure(*whole(state.params, config.model)))
    return stack_results(results, steps, fields)


def stack_results(results: Sequence[Result], steps: Sequence[int], fields: Sequence[str]) -> dict[str, OverTraining]:
    """The named arrays of results measured at these steps, each with the array of its standard errors if it has one."""
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
