"""Pruning: a model whose heads are really gone, the run directory that keeps it, and how many heads can go."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.arguments import checked
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import user_path
from tinygpt_jax.params import count_params, whole, without_heads
from tinygpt_jax.runs import (
    TOKENIZER,
    WEIGHTS,
    Model,
    facts_of,
    load,
    read_config,
    read_record,
    weights_step,
    write_record,
    write_weights,
)
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.claims import claim
from tinygpt_jax.training.compilation import first_state
from tinygpt_jax.training.progress import Progress


@checked
def prune(model: Model, keep: np.ndarray, fill: np.ndarray | jax.Array | None = None) -> Model:
    """The model without the heads where `keep` (L, H) is False: its layers have leaves of their own, of fewer columns.

    `fill` (L, H, K) is what takes a removed head's place at site `z`, such as `mean_fill(...).heads[:, 0, :, 0]`; left
    out, nothing does. A constant there is one after `Wo`, and so becomes part of `bo`: a model without attention biases
    gets them, the others zero. The pruned model computes what the whole one does with the edit
    `z * keep + (1 - keep) * fill`, up to rounding. A model that is pruned already can be pruned further.

    Raises:
        UserError: `keep` or `fill` does not fit the model.
    """
    model = model._replace(cfg=check(model.cfg))
    before = kept_heads(model.cfg)
    keep = check_keep(keep, model.cfg) & before
    params, cfg = whole(model.params, model.cfg)
    if fill is not None:
        params = {**params, "blocks": _with_constant(params["blocks"], before & ~keep, fill, cfg)}
        cfg = dataclasses.replace(cfg, attn_bias=True)
    cfg = dataclasses.replace(cfg, heads=numbers(keep))
    return Model(without_heads(params, cfg), cfg, model.tokenizer)


def check_keep(keep: ArrayLike, cfg: GPTConfig) -> NDArray[np.bool_]:
    """`keep` as a bool array (L, H); raises UserError where it is none."""
    array = _array("keep", keep)
    if array.shape != (cfg.n_layer, cfg.n_head) or array.dtype != bool:
        raise UserError(
            f"keep has shape {array.shape} and dtype {array.dtype}: must be bool, "
            f"(layers, heads) = {(cfg.n_layer, cfg.n_head)}"
        )
    return array


def _array(name: str, value: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise UserError(f"{name} has rows of different lengths: must be an array") from error


def kept_heads(cfg: GPTConfig) -> NDArray[np.bool_]:
    """(L, H): which heads a model has."""
    heads = cfg.heads or (range(cfg.n_head),) * cfg.n_layer
    return np.array([[head in layer for head in range(cfg.n_head)] for layer in heads])


def numbers(keep: NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    """`kept_heads` as `GPTConfig.heads` has them."""
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in keep)


def _with_constant(
    blocks: Mapping[str, jax.Array], removed: NDArray[np.bool_], fill: ArrayLike, cfg: GPTConfig
) -> dict[str, jax.Array]:
    """The stacked blocks with what the removed heads are filled with, (L, H, K), added to `bo` by way of `Wo`."""
    L, C = cfg.n_layer, cfg.n_embd
    constant = jnp.asarray(_array("fill", fill), jnp.float32)
    if constant.shape != (L, cfg.n_head, cfg.head_width):
        wanted = (L, cfg.n_head, cfg.head_width)
        raise UserError(f"fill has shape {constant.shape}: must be (layers, heads, head width) = {wanted}")
    if not np.isfinite(constant).all():
        raise UserError("fill holds a value that is not finite: measure the mean of a model that works")
    z = jnp.where(removed[..., None], constant, 0).reshape(L, C)
    written = jnp.einsum("lc,lcd->ld", z, blocks["Wo"], precision="highest")
    biases = {name: jnp.zeros((L, C)) for name in ("bq", "bk", "bv", "bo")} | dict(blocks)
    return {**biases, "bo": biases["bo"] + written}


@checked
def save_pruned(
    model: Model,
    run: str | os.PathLike[str],
    source: str | os.PathLike[str],
    keep: ArrayLike,
    facts: dict[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Writes a pruned model as a run directory, which opens, samples, is evaluated and goes on training as any other.

    Its run.json has the settings and facts of `source`, the run it was pruned from, with the model's own architecture,
    and under `pruned` where it came from, the source's weights' SHA-256, the heads kept in each layer, and `facts`. A
    training state at the step of the weights, the optimizer's moments new, is what `train --resume` goes on from.
    The weights are written last: what is cut short is no whole run, and says so.

    Raises:
        UserError: `source` is no run, `keep` (L, H) is not what the model was pruned to, or `run` is taken and `force`
            is off, or is `source` itself.
    """
    run, source = user_path(run), user_path(source)
    config = dataclasses.replace(read_config(source), model=model.cfg)
    intact, keep = load(source), check_keep(keep, model.cfg)
    heads = numbers(keep & kept_heads(intact.cfg))
    if heads != model.cfg.heads:
        raise UserError(f"keep leaves heads {heads}, the model has {model.cfg.heads}: pass both as pruned")
    expected = prune(intact, keep).params["blocks"]
    if any(
        not np.array_equal(a.get("Wq", 0), b.get("Wq", 0))
        for a, b in zip(expected, model.params["blocks"], strict=True)
    ):
        raise UserError(f"the model is not {source} without the heads that keep leaves out: pass both as pruned")
    if run.resolve() == source.resolve():
        raise UserError(f"run {run} is what was pruned: choose another directory")
    weights = source / WEIGHTS
    step = weights_step(weights)
    pruned = {
        "from": str(source),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "kept": [list(layer) for layer in heads],
        **(facts or {}),
    }
    known = {**facts_of(read_record(source)), "parameters": count_params(model.cfg), "pruned": pruned}
    state = first_state(config)._replace(params=model.params, step=jnp.int32(step))
    with claim(run, force), Checkpoints(run) as checkpoints:
        write_record(run, config, known)
        model.tokenizer.save(run / TOKENIZER)
        checkpoints.save(state, Progress().to_json())
        write_weights(run / WEIGHTS, model.params, step)
    return run
