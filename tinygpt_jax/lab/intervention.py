"""What is done to a model: the choices of an intervention, and the lab, in which they and the model are one pytree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.metrics import Data, Metric, MetricLike
from tinygpt_jax.lab.result import Definition, data_fingerprint, model_fingerprint
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

__all__ = ["Choices", "Data", "Donors", "Fill", "FillLike", "Gates", "Held", "Intervention", "Lab"]


class Gates(NamedTuple):
    """What is switched off: 1 leaves a component as it is, 0 puts the fill in its place, values between mix the two."""

    heads: Any
    """(..., L, H), at `z`"""
    mlps: Any
    """(..., L), at `mlp_out`"""


class Fill(NamedTuple):
    """What takes the place of a component: arrays that broadcast to its site's shape, B and T included."""

    heads: Any
    """(L, B or 1, H, T or 1, K)"""
    mlps: Any
    """(L, B or 1, T or 1, C)"""


class Donors(NamedTuple):
    """Examples whose activations are added to the fill."""

    ids: Any
    """(B, T); None for the examples themselves"""
    share: Any
    """(B,) what their activations are multiplied by"""


class Held(NamedTuple):
    """What stays as in the intact model while something else is switched off."""

    patterns: bool = False
    """attention patterns"""
    norms: bool = False
    """the scales of all norms, which makes what follows a head linear up to the MLPs"""


FillLike = Annotated[str | Fill | jax.Array | np.ndarray, "an array, Fill(heads, mlps), or the name of a fill"]
Progress = Callable[[int, int], None]


class Choices(TypedDict, total=False):
    """The fields of `Intervention` as keyword arguments."""

    fill: FillLike
    metric: MetricLike
    positions: Sequence[int] | None
    hold_patterns: bool
    freeze_norms: bool
    seed: int
    tokens_at_once: int | None
    mesh: jax.sharding.Mesh | None
    progress: Progress


@dataclass(frozen=True)
class Intervention:
    """The choices of an intervention; the functions of the lab take them by name."""

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
    """For everything random: donors, permutations, bootstrap samples."""
    tokens_at_once: int | None = None
    """Masks x examples x T in one go; None: as many as suit the device. Results differ by rounding alone."""
    mesh: jax.sharding.Mesh | None = None
    """Devices to spread over: axis `examples` splits the examples, axis `masks` the masks."""
    progress: Progress = lambda done, total: None
    """Called with how many calls of the compiled program are done, and their total."""

    @property
    def fill_name(self) -> str:
        """For a definition."""
        return self.fill if isinstance(self.fill, str) else "given array"


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "examples", "fill", "donors", "acts"),
    meta_fields=("cfg", "metric", "held"),
    drop_fields=("intervention",),
)
@dataclass(frozen=True, eq=False)
class Lab:
    """A model, examples and an intervention, checked and made ready: a pytree, which compiled programs take whole.

    `cfg`, `metric` and `held` are static: with another one a program is compiled anew. `intervention` is for the host
    alone and is not passed to programs.
    """

    params: Params
    examples: Examples
    fill: Fill
    donors: Donors | None
    acts: Any
    """(T,) float32, 1 at the positions where gates act, 0 elsewhere"""
    cfg: GPTConfig
    metric: Metric
    held: Held
    intervention: Intervention = Intervention()

    @property
    def ordered(self) -> bool:
        """Whether the examples are windows in the order of a text, as `statistics` has to know."""
        return self.examples.ordered

    def definition(self, **choices: Any) -> Definition:
        """The definition of a result, given its granularity, component, direction and set; and what else differs."""
        how, flags = self.intervention, []
        flags += ["patterns held"] * self.held.patterns + ["norms frozen"] * self.held.norms
        flags += ["constants fitted on the loss of other examples"] * (how.fill_name == "optimal")
        flags += ["means of the other examples"] * (how.fill_name == "position-mean" and self.donors is not None)
        flags += [self.cfg.compute_dtype] * (self.cfg.compute_dtype != "float32")
        flags += choices.pop("flags", ())
        common = {
            "value": how.fill_name,
            "positions": "all" if how.positions is None else ", ".join(map(str, how.positions)),
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "examples": len(self.examples.ids),
            "seed": how.seed,
            "model": model_fingerprint(self.params, self.cfg),
            "data": data_fingerprint(self.examples.asked),
            "ordered": self.ordered,
            "flags": tuple(flags),
        }
        return Definition(**{**common, **choices})


def open_gates(cfg: GPTConfig, *leading: int) -> Gates:
    """Gates that change nothing."""
    L, H = cfg.n_layer, cfg.n_head
    return Gates(np.ones((*leading, L, H), np.float32), np.ones((*leading, L), np.float32))


def zero_fill(cfg: GPTConfig) -> Fill:
    """Fill of zeros."""
    L, H, K, C = cfg.n_layer, cfg.n_head, cfg.head_width, cfg.n_embd
    return Fill(jnp.zeros((L, 1, H, 1, K)), jnp.zeros((L, 1, 1, C)))
