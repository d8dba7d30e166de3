"""From a model, examples and choices to a `Lab`, and from a lab and gates to numbers, the only way there is."""

import dataclasses
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.ids import as_array
from tinygpt_jax.lab.engine import check_gates, sweep
from tinygpt_jax.lab.fills import make_fill, optimal_values
from tinygpt_jax.lab.intervention import Choices, Fill, Gates, Held, Intervention, Lab, open_gates
from tinygpt_jax.lab.metrics import Data, measurable, resolve_metric
from tinygpt_jax.params import Params


def make_lab(params: Params, data: Data, cfg: GPTConfig, **choices: Unpack[Choices]) -> Lab:
    """Checks everything and makes the fill; `choices` are the fields of `Intervention`.

    Raises:
        UserError: something does not fit, or there are fewer than two examples.
    """
    known = {f.name for f in dataclasses.fields(Intervention)}
    if unknown := sorted(set(choices) - known):
        raise UserError(f"{unknown[0]!r} is no choice of an intervention; known: {', '.join(sorted(known))}")
    how = Intervention(**choices)
    examples = measurable(params, data, cfg)
    B, T = examples.ids.shape
    if B < 2:
        raise UserError(f"{B} example: a standard error needs two or more; give more text or windows")
    acts = _acting(how.positions, T)
    if how.fill_name == "optimal":
        resolve_metric("loss", examples, cfg)  # which its constants are fitted on
    whole("seed", how.seed, 0, 2**32 - 1)
    if how.tokens_at_once is not None:
        whole("tokens_at_once", how.tokens_at_once, 1, MOST)
    fill, donors = make_fill(how.fill, params, examples, cfg, how.seed)
    metric, held = resolve_metric(how.metric, examples, cfg), Held(how.hold_patterns, how.freeze_norms)
    return Lab(params, examples, fill, donors, acts, cfg, metric, held, how)


def _acting(positions: Sequence[int] | None, T: int) -> np.ndarray:
    """(T,) 1 at these positions, or everywhere; raises UserError where they are none of T."""
    if positions is None:
        return np.ones(T, np.float32)
    wanted = as_array(positions, "positions")
    if wanted.ndim != 1 or not len(wanted) or wanted.dtype.kind not in "iu" or not (wanted >= 0).all():
        raise UserError(f"positions is {positions!r}: must be whole numbers from 0 to {T - 1}")
    if wanted.max() >= T:
        raise UserError(f"position {wanted.max()} is past the end: the examples have {T} tokens, 0 to {T - 1}")
    return np.isin(np.arange(T), wanted).astype(np.float32)


def measure(lab: Lab, gates: Gates) -> tuple[np.ndarray, np.ndarray]:
    """The metric under every mask of gates (N, ...), (N, B), and of the intact model, (B,), both float32.

    Raises:
        UserError: the gates do not fit the model, or the fill says nothing of MLPs that are switched off.
    """
    check_gates(gates, lab.cfg)
    if not isinstance(lab.intervention.fill, str | Fill) and (np.asarray(gates.mlps) != 1).any():
        raise UserError("fill is an array for heads, but MLPs are switched off too: pass Fill(heads, mlps)")
    whole = open_gates(lab.cfg, 1)
    gates = Gates(*(np.concatenate([np.asarray(a, np.float32), b]) for a, b in zip(gates, whole, strict=True)))
    values = (optimal_values if lab.intervention.fill_name == "optimal" else sweep)(lab, gates)
    check_measured(values[-1], lab.metric.name)
    return values[:-1], values[-1]


def check_measured(intact: np.ndarray, metric: str) -> None:
    """Raises UserError where the metric (B,) of the intact model is not finite on every example."""
    bad = np.flatnonzero(~np.isfinite(intact))
    if len(bad):
        raise UserError(
            f"{metric} is {intact[bad[0]]} on example {bad[0]} of the intact model, so nothing can be compared: "
            "its outputs are not finite, or the metric is not defined there"
        )
