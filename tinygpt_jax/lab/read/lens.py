"""The residual stream read layer by layer: the logit lens, direct logit attribution, attention maps."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.engine import padded_rows, rows_of_all_layers
from tinygpt_jax.lab.metrics import Data, Metric, MetricLike, measurable, one_text, resolve_metric
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.read.readout import heads_out, norm_scale, reading, readout
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import norm, unembed
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import standard_error
from tinygpt_jax.text import Examples

KINDS = ("token", "positions", "head", "bias", "mlp", "shift")
"""What writes to a logit: the embedding's two parts, heads, the attention's bias, MLPs, and the final norm's shift."""


@dataclass(frozen=True, eq=False)
class LogitLens(Result):
    """A metric as if the model ended early: after the embedding and after each layer, so L + 1 stages."""

    value: np.ndarray
    """(L + 1,) mean over examples, in the definition's unit"""
    se: np.ndarray
    """(L + 1,) its standard error over examples"""
    per_example: np.ndarray
    """(L + 1, B)"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("value", "se"), ("stage",)),
        "per_example": ("stage", "example"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return ("embedding", *(f"layer {i}" for i in range(size - 1))) if axis == "stage" else range(size)


@dataclass(frozen=True, eq=False)
class LogitAttribution(Result):
    """What each component writes to the logits of answers, less those of wrong tokens or the vocabulary's mean:
    contributions whose sum is the model's own difference."""

    contribution: np.ndarray
    """(N,) mean over examples, in logits, which are nats"""
    se: np.ndarray
    """(N,) its standard error over examples"""
    per_example: np.ndarray
    """(N, B)"""
    total: np.ndarray
    """(B,) the model's own difference: the sum of contributions"""
    components: tuple[str, ...]
    """N names, of the kinds that the model has: `token`, `positions`, `0.2` (a head), `bias0`, `mlp0`, `shift`"""
    n_head: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("contribution", "se"), ("component",)),
        "per_example": ("component", "example"),
        "total": ("example",),
    }
    DIFFERENCES = ("contribution",)

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.components if axis == "component" else range(size)

    def changes(self) -> Changes:
        return changes_of(
            self.definition, self.components, self.contribution, self.se, self.per_example, "contribution"
        )

    order, closing = order_of, closing_of

    @property
    def heads(self) -> np.ndarray:
        """(L, H) what the heads contribute."""
        return self._of_heads(self.contribution)

    @property
    def heads_se(self) -> np.ndarray:
        """(L, H) the standard errors of `heads`."""
        return self._of_heads(self.se)

    def _of_heads(self, values: np.ndarray) -> np.ndarray:
        return values[["." in name for name in self.components]].reshape(-1, self.n_head)


@dataclass(frozen=True, eq=False)
class AttentionMaps(Result):
    """The attention of every head in one sequence."""

    patterns: np.ndarray
    """(L, H, T, T) attention of each query (third axis) on each key; rows sum to 1"""
    tokens: tuple[str, ...]
    """T tokens as text"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {"patterns": ("layer", "head", "query", "key")}


# The logit lens


@of_model
def logit_lens(params: Params, data: Data, cfg: GPTConfig, *, metric: MetricLike = "loss") -> LogitLens:
    """The residual stream before and after every layer, read as if it were the last (nostalgebraist 2020), and a metric
    of the logits at every stage: `loss`, `log-prob` or `logit-diff` of the answers, `kl` from the whole model, or a
    function of (logits, examples).

    Raises:
        UserError: the data do not fit the model, or lack what the metric needs.
    """
    examples = measurable(params, data, cfg)
    chosen = resolve_metric(metric, examples, cfg)
    found = [np.asarray(_lens(params, part, cfg, chosen)) for part in parts_of(examples, cfg)]
    per_example = np.concatenate(found, -1)[:, : len(examples.ids)].astype(np.float64)
    definition = reading(
        params, cfg, examples, granularity="layer", component="resid_pre, resid_post", metric=chosen.name,
        unit=chosen.unit,
    )  # fmt: skip
    return LogitLens(definition, per_example.mean(-1), standard_error(per_example, definition.ordered), per_example)


def parts_of(examples: Examples, cfg: GPTConfig) -> Iterator[Examples]:
    """The examples, as many at once as suit the device; the last ones may be there more than once."""
    B, T = examples.ids.shape
    rows = rows_of_all_layers(cfg, B, T, None)
    return (padded_rows(examples, i, rows) for i in range(0, B, rows))


@functools.partial(jax.jit, static_argnames=("cfg", "metric"))
def _lens(params: Params, examples: Examples, cfg: GPTConfig, metric: Metric) -> jax.Array:
    stages = _stages(params, examples.ids, cfg)

    def logits(x: jax.Array) -> jax.Array:
        return unembed(params, norm(x, params, "lnf", cfg), cfg)

    intact = logits(stages[-1])
    return jax.lax.map(lambda x: metric.values(logits(x), examples, intact), stages)


def _stages(params: Params, ids: jax.Array, cfg: GPTConfig) -> jax.Array:
    """(L + 1, B, T, C)"""
    taps = hidden_states(params, ids, cfg, taps=("resid_pre", "resid_post")).taps
    return jnp.concatenate([taps["resid_pre"][:1], taps["resid_post"]])


# Direct logit attribution


@of_model
def logit_attribution(params: Params, data: Data, cfg: GPTConfig) -> LogitAttribution:
    """What each head, bias, MLP and embedding adds to the mean logit of the answers at `position`, less that of the
    wrong tokens, or of the whole vocabulary where the examples name none (Elhage et al. 2021; Wang et al. 2022).

        tg.logit_attribution(params, ids, cfg).heads  # to the logit of every token that follows

    Of ids, or examples with neither answers nor a position, it is the mean over all counted targets of an example.

    A logit alone depends on what no probability does, a vector added to all rows of the unembedding: hence the mean of
    the vocabulary is taken off, as in `copying`. Once the final norm's scale is what it was in the run, logits are
    linear in what was written into the residual stream, and LayerNorm's centring is part of that: the contributions sum
    to the model's own value. Only the direct path is counted, not what a head does by way of later ones.

    Raises:
        UserError: the examples do not fit the model, have only some of answers, wrong and position, or one of them has
            no target that counts; or the model has no residual stream.
    """
    examples = measurable(params, data, cfg)
    _check_asked(examples)
    if not cfg.residual:
        raise UserError("residual is False: sub-layers replace what stands before them, so a logit is no sum of theirs")
    found = [_attribute(params, part, cfg) for part in parts_of(examples, cfg)]
    parts, total = jax.tree.map(lambda *a: np.concatenate(a, -1)[..., : len(examples.ids)], *found)
    named = _named(parts)
    per_example = np.stack(list(named.values()))
    everywhere = f"{(np.asarray(examples.targets) >= 0).sum()} counted targets"
    definition = reading(
        params, cfg, examples, granularity="component", component="z, mlp_out, resid_pre", unit="nats",
        positions=everywhere if examples.answers is None else "the answer's",
        metric="centred logit" if examples.wrong is None else "logit-diff",
    )  # fmt: skip
    return LogitAttribution(
        definition,
        per_example.mean(-1),
        standard_error(per_example, definition.ordered),
        per_example,
        np.asarray(total, np.float64),
        tuple(named),
        cfg.n_head,
    )


def _check_asked(examples: Examples) -> None:
    """Raises UserError where it is not known which logits are to be taken apart."""
    given = {name: getattr(examples, name) is not None for name in ("answers", "wrong", "position")}
    if given["answers"] != given["position"] or given["wrong"] > given["answers"]:
        has, lacks = (" and ".join(name for name in given if given[name] == there) for there in (True, False))
        raise UserError(
            f"examples have {has} without {lacks}: give answers with their position, or neither for all counted targets"
        )
    if not given["answers"] and not (some := (np.asarray(examples.targets) >= 0).any(-1)).all():
        raise UserError(f"example {np.argmin(some)} has no target that counts: drop it, or set its targets")


def _asked(examples: Examples) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Positions (B, P) whose logits are taken apart, their answers (B, P, A), and each one's weight (B, P)."""
    B, T = examples.ids.shape
    if examples.answers is not None:
        return jnp.asarray(examples.position)[:, None], examples.answers[:, None], jnp.ones((B, 1), jnp.float32)
    counted = (examples.targets >= 0).astype(jnp.float32)
    positions = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
    return positions, jnp.maximum(examples.targets, 0)[..., None], counted / counted.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnames="cfg")
def _attribute(params: Params, examples: Examples, cfg: GPTConfig) -> tuple[dict[str, jax.Array], jax.Array]:
    """Contributions by kind, with the example as last axis, and the model's own value (B,)."""
    blocks, ids = params["blocks"], jnp.asarray(examples.ids)
    rows = jnp.arange(len(ids), dtype=jnp.int32)[:, None]
    positions, answers, weight = _asked(examples)
    sites = ("z", "resid_pre", "resid_post", *(("mlp_out",) if cfg.mlp_width else ()))
    x, taps, _ = hidden_states(params, ids, cfg, taps=sites)
    taps["z"] = taps["z"].transpose(0, 1, 3, 2, 4)
    taps = {name: value[:, rows, positions].astype(jnp.float32) for name, value in taps.items()}

    def of_answers(table: jax.Array) -> jax.Array:
        """Values of every token (V, ...) -> (B, P, ...): the answers' mean, less that of what they are set against."""
        against = table.mean(0) if examples.wrong is None else table[examples.wrong].mean(1)[:, None]
        return table[answers].mean(2) - against

    directions, shift = readout(params, cfg)
    scale = norm_scale(params, taps["resid_post"][-1], cfg) * weight
    along = of_answers(directions) * scale[..., None]
    token = params["tok_emb"][ids[rows, positions]].astype(cfg.compute_dtype).astype(jnp.float32)
    parts = {"token": jnp.einsum("bpc,bpc->b", token, along)}
    if cfg.positions in ("learned", "sinusoidal"):
        parts["positions"] = jnp.einsum("bpc,bpc->b", taps["resid_pre"][0] - token, along)
    parts["head"] = jnp.einsum("lbphk,lhkc,bpc->lhb", taps["z"], heads_out(params, cfg), along)
    if "bo" in blocks:
        parts["bias"] = jnp.einsum("lc,bpc->lb", blocks["bo"], along)
    if "mlp_out" in taps:
        parts["mlp"] = jnp.einsum("lbpc,bpc->lb", taps["mlp_out"], along)
    if cfg.norm == "layernorm":
        parts["shift"] = (of_answers(shift) * weight).sum(-1)
    own = unembed(params, x[rows, positions], cfg)
    right, wrong = jnp.take_along_axis(own, answers, axis=-1).mean(-1), own.mean(-1)
    if examples.wrong is not None:
        wrong = jnp.take_along_axis(own, examples.wrong[:, None], axis=-1).mean(-1)
    return parts, ((right - wrong) * weight).sum(-1)


def _named(parts: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    """Values (B,) by the name of what contributes them, in the order of KINDS, which jit does not keep."""
    named = {}
    for kind in (kind for kind in KINDS if kind in parts):
        values = np.asarray(parts[kind], np.float64)
        for index in np.ndindex(values.shape[:-1]):
            named[head_name(*index) if kind == "head" else kind + "".join(map(str, index))] = values[index]
    return named


# Attention maps


@of_model
def attention_maps(
    params: Params, ids: np.ndarray, cfg: GPTConfig, tokens: Sequence[str] | None = None
) -> AttentionMaps:
    """Every head's attention over one sequence of ids (T,), with its tokens as text (default: the ids).

    Raises:
        UserError: ids do not fit the model, or there are not as many tokens as ids.
    """
    examples = one_text(ids, cfg, 0, params)
    names = tuple(map(str, np.asarray(ids).tolist() if tokens is None else tokens))
    if len(names) != examples.ids.shape[1]:
        raise UserError(f"there are {len(names)} tokens for {examples.ids.shape[1]} ids: give one for each")
    patterns = np.asarray(_patterns(params, examples.ids, cfg)[:, 0], np.float32)
    definition = reading(
        params, cfg, examples, granularity="head", component="pattern", metric="attention", unit="share of 1"
    )
    return AttentionMaps(definition, patterns, names)


@functools.partial(jax.jit, static_argnames="cfg")
def _patterns(params: Params, ids: jax.Array, cfg: GPTConfig) -> jax.Array:
    return hidden_states(params, ids, cfg, taps=("pattern",)).taps["pattern"]
