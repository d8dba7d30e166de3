"""What an intervention is measured by: one number per example, from the logits and what is known of the example."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check_model
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.ids import as_array, check_ids, check_input, check_targets
from tinygpt_jax.params import Params, check_finite, check_params
from tinygpt_jax.text import IGNORE, Examples
from tinygpt_jax.training.loss import token_losses

Data = Examples | jax.Array | np.ndarray
"""Examples, or ids (B, T) of which each but the first is to be predicted."""


class Metric(NamedTuple):
    """A named measure; hashable, as what is static in a compiled program must be."""

    name: str
    unit: str
    values: Callable[[jax.Array, Examples, jax.Array], jax.Array]
    """(logits (B, T, V), examples, the intact model's logits) -> (B,)"""


def mean_loss(logits: jax.Array, examples: Examples, intact: jax.Array | None = None) -> jax.Array:
    """Cross-entropy in nats per counted target, (B,)."""
    counts = (examples.targets >= 0).sum(-1)
    return token_losses(logits, examples.targets).sum(-1) / jnp.maximum(counts, 1).astype(jnp.float32)


def answer_log_prob(logits: jax.Array, examples: Examples, intact: jax.Array) -> jax.Array:
    """Log of the probability of all answers together at `position`, nats, (B,)."""
    at = logits_at_position(logits, examples)
    right = jnp.take_along_axis(at, examples.answers, axis=-1)
    return jax.nn.logsumexp(right, axis=-1) - jax.nn.logsumexp(at, axis=-1)


def logit_difference(logits: jax.Array, examples: Examples, intact: jax.Array) -> jax.Array:
    """Mean logit of the answers less that of the wrong tokens at `position`, nats, (B,) (Wang et al. 2022)."""
    at = logits_at_position(logits, examples)
    right, wrong = (jnp.take_along_axis(at, ids, axis=-1).mean(-1) for ids in (examples.answers, examples.wrong))
    return right - wrong


def divergence(logits: jax.Array, examples: Examples, intact: jax.Array) -> jax.Array:
    """KL divergence from the intact model's next-token distribution to this one, nats per token, (B,)."""
    log_p, log_q = jax.nn.log_softmax(intact), jax.nn.log_softmax(logits)
    per_token = (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
    counted = examples.targets >= 0
    return jnp.where(counted, per_token, 0).sum(-1) / jnp.maximum(counted.sum(-1), 1).astype(jnp.float32)


def logits_at_position(logits: jax.Array, examples: Examples) -> jax.Array:
    """(B, T, V) -> (B, V), those that predict the answer."""
    return jnp.take_along_axis(logits, examples.position[:, None, None], axis=1)[:, 0]


METRICS = {
    "loss": Metric("loss", "nats per token", mean_loss),
    "log-prob": Metric("log-prob", "nats", answer_log_prob),
    "logit-diff": Metric("logit-diff", "nats", logit_difference),
    "kl": Metric("kl", "nats per token", divergence),
}
MetricLike = Annotated[
    str | Metric | Callable[[jax.Array, Examples], jax.Array],
    f"a function of (logits, examples), or {', '.join(METRICS)}",
]


def resolve_metric(metric: MetricLike, examples: Examples, cfg: GPTConfig) -> Metric:
    """The metric of a name, or of a function of (logits (B, T, V), examples) -> (B,), fit for these examples.

    Raises:
        UserError: no metric has that name; it asks for what the examples lack; or its result is not (B,).
    """
    if isinstance(metric, str):
        if metric not in METRICS:
            raise UserError(f"metric {metric!r} is unknown{nearest(metric, METRICS)}")
        metric = METRICS[metric]
    elif not isinstance(metric, Metric):
        metric = Metric(getattr(metric, "__name__", "metric"), "units of the metric", _OfLogits(metric))
    needs = {"log-prob": ("answers", "position"), "logit-diff": ("answers", "wrong", "position")}.get(metric.name, ())
    for name in needs:
        if getattr(examples, name) is None:
            raise UserError(f"metric {metric.name!r} needs examples with {name}, these have none: use loss or kl")
    if metric.name in ("loss", "kl") and not (np.asarray(examples.targets) >= 0).any(-1).all():
        raise UserError(f"metric {metric.name!r}: an example has no target that counts: drop it, or set its targets")
    B, T = examples.ids.shape
    logits = jax.ShapeDtypeStruct((B, T, cfg.vocab_size), jnp.float32)
    found = jax.eval_shape(metric.values, logits, jax.tree.map(jnp.asarray, examples), logits)
    if getattr(found, "shape", None) != (B,):
        shape = getattr(found, "shape", type(found).__name__)
        raise UserError(f"metric {metric.name!r} gives {shape} for {B} examples: must be one value each, shape ({B},)")
    return metric


@dataclass(frozen=True)
class _OfLogits:
    """A function of (logits, examples) called as a metric; equal for equal functions, so that it is compiled once."""

    f: Callable[[jax.Array, Examples], jax.Array]

    def __call__(self, logits: jax.Array, examples: Examples, intact: jax.Array) -> jax.Array:
        return self.f(logits, examples)


def measurable(params: Params, data: Data, cfg: GPTConfig) -> Examples:
    """`as_examples`; raises UserError for parameters that are not the model's, or not finite, as well."""
    examples = as_examples(data, cfg)
    check_params(params, cfg)
    check_finite(params)
    return examples


def as_examples(data: Data, cfg: GPTConfig) -> Examples:
    """Examples as they are, checked; or ids (B, T), of which each but the first is a target. Rows of ids are taken as
    windows in the order of one text, which errors hold for whether they are or not.

    Raises:
        UserError: a shape, an id or a position does not fit, or the model is a pruned one.
    """
    if check_model(cfg).heads:  # here, since every measurement begins with its examples
        raise UserError(f"the model was pruned to {cfg.head_counts} heads: measure tinygpt_jax.whole(params, cfg)")
    if not isinstance(data, Examples):
        check_input(data, cfg)
        ids = np.atleast_2d(np.asarray(data))
        targets = np.concatenate([ids[:, 1:].astype(np.int32), np.full((len(ids), 1), IGNORE, np.int32)], axis=1)
        place = np.arange(len(ids), dtype=np.int32) * ids.shape[1]
        data = Examples(ids, targets, place=place)
    check_input(data.ids, cfg)
    data = data._replace(ids=np.asarray(data.ids, np.int32), targets=check_targets(data.targets, cfg.vocab_size))
    B, T = data.ids.shape if data.ids.ndim == 2 else (0, 0)
    if data.targets.shape != (B, T):
        raise UserError(f"targets have shape {data.targets.shape}, ids {data.ids.shape}: must be the same, (B, T)")
    for name, rows in (("answers", data.answers), ("wrong", data.wrong)):
        if rows is not None:  # they are no context, so there may be more than a context holds
            tokens = check_ids(rows, cfg.vocab_size, name).astype(np.int32)
            if tokens.ndim != 2 or len(tokens) != B or not tokens.size:
                raise UserError(f"{name} have shape {tokens.shape}: must be ({B}, how many), one row per example")
            data = data._replace(**{name: tokens})
    if data.position is not None:
        position = as_array(data.position, "positions")
        whole = position.dtype.kind in "iu"
        if position.shape != (B,) or not whole or position.min() < 0 or position.max() >= T:
            raise UserError(f"position is {position.tolist()}: must be {B} whole numbers from 0 to {T - 1}")
        data = data._replace(position=position.astype(np.int32))
    if data.place is None:
        return data
    place = np.asarray(data.place)
    if place.shape != (B,) or place.dtype.kind not in "iu" or not (np.diff(place.astype(np.int64)) > 0).all():
        raise UserError(
            f"place is {data.place!r}: must be {B} whole numbers that rise, where in the text examples begin"
        )
    return data._replace(place=place)


def one_text(ids: np.ndarray, cfg: GPTConfig, layer: int, params: Params) -> Examples:
    """One example of ids (T,).

    Raises:
        UserError: the ids do not fit the model, or there is no such layer.
    """
    ids = as_array(ids, "ids")
    if ids.ndim != 1:
        raise UserError(f"ids have shape {ids.shape}: give those of one text, (T,)")
    if not isinstance(layer, int | np.integer) or not 0 <= layer < check_model(cfg).n_layer:
        raise UserError(f"layer is {layer!r}: must be a whole number, the model has 0 to {cfg.n_layer - 1}")
    return measurable(params, ids[None], cfg)
