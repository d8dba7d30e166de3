"""The optimizer and its learning-rate schedule, by name, from optax."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import decay_mask, map_specs, param_specs


class Hyper(NamedTuple):
    """The settings that `train_many` varies: numbers, compiled into the step, or arrays (), which are data to it."""

    seed: Any
    """fixes the initial weights and the dropout masks"""
    learning_rate: Any
    """the peak rate"""
    weight_decay: Any

    @classmethod
    def of(cls, cfg: TrainConfig) -> Self:
        """Those of one run."""
        return cls(cfg.seed, cfg.learning_rate, cfg.weight_decay)


def learning_rate_schedule(cfg: TrainConfig, hyper: Hyper | None = None) -> optax.Schedule:
    """Step -> learning rate: a line from 0 over the warm-up, then the fall to `min_learning_rate` at the last step.

    `hyper` left out is that of `cfg`.
    """
    fall_steps = max(1, cfg.steps - cfg.warmup)
    peak, low = (hyper or Hyper.of(cfg)).learning_rate, cfg.min_learning_rate
    if cfg.schedule == "cosine":
        fall = optax.cosine_decay_schedule(peak, fall_steps, alpha=low / peak if low else 0.0)
    elif cfg.schedule == "linear":
        fall = optax.linear_schedule(peak, low, fall_steps)
    else:
        fall = optax.constant_schedule(peak)
    # The first step is number 0; counting it as 1 keeps it from being wasted at a rate of zero.
    warmup = optax.linear_schedule(peak / (cfg.warmup + 1), peak, max(1, cfg.warmup))
    return _promoting(optax.join_schedules([warmup, fall], [cfg.warmup]) if cfg.warmup else fall)


def make_optimizer(cfg: TrainConfig, hyper: Hyper | None = None) -> optax.GradientTransformation:
    """Gradient clipping by global norm, then the named optimizer with decoupled decay where the spec says so.

    `hyper` left out is that of `cfg`.
    """
    hyper = hyper or Hyper.of(cfg)
    rate, mask = learning_rate_schedule(cfg, hyper), decay_mask(cfg.model)
    if cfg.optimizer == "adamw":
        rule = optax.adamw(rate, cfg.beta1, cfg.beta2, weight_decay=hyper.weight_decay, mask=mask)
    elif cfg.optimizer == "adam":
        rule = optax.adam(rate, cfg.beta1, cfg.beta2)
    elif cfg.optimizer == "sgd":
        rule = optax.sgd(rate, momentum=cfg.beta1 or None)
    elif cfg.optimizer == "lion":
        rule = optax.lion(rate, cfg.beta1, cfg.beta2, weight_decay=hyper.weight_decay, mask=mask)
    elif cfg.optimizer == "muon":
        rule = _muon(cfg, hyper, rate, mask)
    else:
        raise UserError(f"optimizer is {cfg.optimizer!r}, which has no rule: name another, or write its rule here")
    rule = optax.chain(optax.clip_by_global_norm(cfg.grad_clip), rule) if cfg.grad_clip else rule
    return optax.GradientTransformation(rule.init, _promoting(rule.update))


def _promoting(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` under JAX's usual dtype promotion: optax mixes integer counts and floats, which strict promotion forbids."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return f(*args, **kwargs)

    return call


def _muon(cfg: TrainConfig, hyper: Hyper, rate: optax.Schedule, mask: dict) -> optax.GradientTransformation:
    """Muon on the blocks' matrices, each layer by itself; Adam on embeddings, biases and norms (Jordan et al. 2024).

    Decay is for the matrices alone: optax's Muon has no mask for what it leaves to Adam.
    """

    def dimensions(spec):
        embedding = spec.axes[0] in ("vocab", "position")
        return None if embedding or not spec.decay else MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    return muon(
        rate,
        beta=cfg.beta1,
        adam_b1=cfg.beta1,
        adam_b2=cfg.beta2,
        weight_decay=hyper.weight_decay,
        weight_decay_mask=mask,
        muon_weight_dimension_numbers=map_specs(dimensions, param_specs(cfg.model)),
        consistent_rms=0.2,
    )
