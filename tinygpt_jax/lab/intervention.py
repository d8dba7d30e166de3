"""What all measurements of interventions share: the choices, the data made ready, and the one way to measure gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.engine import Gates, Held, check_gates, open_gates, sweep
from tinygpt_jax.lab.fills import Filling, FillLike, make_filling
from tinygpt_jax.lab.metrics import Metric, MetricLike, as_examples, resolve_metric
from tinygpt_jax.lab.optimal import optimal_values
from tinygpt_jax.lab.result import Definition, data_fingerprint, model_fingerprint
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

Data = Examples | jax.Array | np.ndarray
"""Examples, or ids (B, T) of which each but the first is to be predicted."""


@dataclass(frozen=True)
class How:
    """The choices of an ablation; every function of the lab takes them by name."""

    fill: FillLike = "mean"
    """What takes the place of what is switched off: zero, mean, position-mean, resample, optimal, or an array."""
    metric: MetricLike = "loss"
    """`loss`, `log-prob`, `logit-diff`, `kl`, or a function of (logits (B, T, V), examples) -> (B,)."""
    positions: Sequence[int] | None = None
    """The tokens at which it acts, by index; None: all."""
    hold_patterns: bool = False
    """Later attention patterns stay those of the intact model."""
    freeze_norms: bool = False
    """The norms' scales stay those of the intact model."""
    seed: int = 0
    """Of whatever is drawn by chance: donors, permutations, bootstrap samples."""
    tokens_at_once: int | None = None
    """Masks x examples x T in one go; None: as many as suit the device. Results differ by rounding alone."""
    mesh: jax.sharding.Mesh | None = None
    """Devices to spread over: axis `examples` splits the examples, axis `masks` the masks."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Told of calls of the compiled program done, and of their total."""


class Lab(NamedTuple):
    """A model, examples and an intervention, checked and made ready; `measure` is the only way to a number."""

    params: Params
    cfg: GPTConfig
    examples: Examples
    metric: Metric
    filling: Filling
    acts: np.ndarray
    """(T,) 1 where gates act"""
    how: How

    @property
    def held(self) -> Held:
        """What stays as in the intact model."""
        return Held(self.how.hold_patterns, self.how.freeze_norms)

    @property
    def ordered(self) -> bool:
        """The examples are windows in the order of a text, which `statistics` wants to know."""
        return self.examples.ordered

    def measure(self, gates: Gates) -> tuple[np.ndarray, np.ndarray]:
        """The metric under every mask of gates (N, ...), (N, B), and of the intact model, (B,)."""
        check_gates(gates, self.cfg)
        if not self.filling.has_mlps and (np.asarray(gates.mlps) != 1).any():
            raise UserError("fill is an array for heads, but MLPs are switched off too: pass Fill(heads, mlps)")
        whole = open_gates(self.cfg, 1)
        gates = Gates(*(np.concatenate([np.asarray(a, np.float32), b]) for a, b in zip(gates, whole, strict=True)))
        options: dict[str, Any] = {
            "acts": self.acts,
            "held": self.held,
            "tokens_at_once": self.how.tokens_at_once,
            "progress": self.how.progress,
        }
        common = (self.params, self.examples, self.cfg, gates)
        if self.filling.name == "optimal":
            values = optimal_values(*common, self.metric, **options)
        else:
            fill, donors = self.filling.fill, self.filling.donors
            values = sweep(*common, fill, self.metric, donors=donors, mesh=self.how.mesh, **options)
        return values[:-1], values[-1]

    def definition(self, **choices: Any) -> Definition:
        """The definition of a result, given its granularity, component, direction and set; and what else differs."""
        positions, flags = self.how.positions, []
        flags += ["patterns held"] * self.how.hold_patterns + ["norms frozen"] * self.how.freeze_norms
        flags += ["constants fitted on the loss of other examples"] * (self.filling.name == "optimal")
        flags += ["means of the other examples"] * (
            self.filling.name == "position-mean" and self.filling.donors is not None
        )
        flags += [self.cfg.compute_dtype] * (self.cfg.compute_dtype != "float32")
        flags += choices.pop("flags", ())
        return Definition(
            **{
                "value": self.filling.name,
                "positions": "all" if positions is None else ", ".join(map(str, positions)),
                "metric": self.metric.name,
                "unit": self.metric.unit,
                "examples": len(self.examples.ids),
                "seed": self.how.seed,
                "model": model_fingerprint(self.params, self.cfg),
                "data": data_fingerprint(self.examples.asked),
                "ordered": self.ordered,
                "flags": tuple(flags),
                **choices,
            }
        )


def make_lab(params: Params, data: Data, cfg: GPTConfig, how: How | None = None, **choices: Any) -> Lab:
    """Checks everything and makes the fill; `choices` are fields of `How` laid over `how`.

    Raises:
        UserError: something does not fit, or there are fewer than two examples.
    """
    names = {f.name for f in dataclasses.fields(How)}
    if unknown := sorted(set(choices) - names):
        raise UserError(f"{unknown[0]!r} is no choice of an ablation; known: {', '.join(sorted(names))}")
    how = dataclasses.replace(how or How(), **choices)
    examples = as_examples(data, cfg)
    B, T = examples.ids.shape
    if B < 2:
        raise UserError(f"{B} example: a standard error needs two or more; give more text or windows")
    acts = np.ones(T, np.float32)
    if how.positions is not None:
        wanted = np.asarray(how.positions)
        if wanted.ndim != 1 or not len(wanted) or wanted.dtype.kind not in "iu" or not (wanted >= 0).all():
            raise UserError(f"positions is {how.positions!r}: must be whole numbers from 0 to {T - 1}")
        if wanted.max() >= T:
            raise UserError(f"position {wanted.max()} is past the end: the examples have {T} tokens, 0 to {T - 1}")
        acts = np.zeros(T, np.float32)
        acts[wanted] = 1
    if isinstance(how.fill, str) and how.fill == "optimal":
        resolve_metric("loss", examples, cfg)  # which its constants are fitted on
    if not isinstance(how.seed, int | np.integer) or not 0 <= how.seed < 2**32:
        raise UserError(f"seed is {how.seed!r}: must be a whole number from 0 to 2**32 - 1")
    filling = make_filling(how.fill, params, examples, cfg, how.seed)
    return Lab(params, cfg, examples, resolve_metric(how.metric, examples, cfg), filling, acts, how)
