"""Pruning: a model whose heads are really gone, the run directory that keeps it, and how many heads can go."""

from __future__ import annotations

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

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import HEAD_AXES, count_params, param_specs
from tinygpt_jax.runs import (
    TOKENIZER,
    WEIGHTS,
    Model,
    claim,
    load,
    read_config,
    read_record,
    weights_step,
    write_record,
    write_weights,
)


def prune(model: Model, keep: ArrayLike, fill: ArrayLike | None = None) -> Model:
    """The model without the heads where `keep` (L, H) is False: its layers have leaves of their own, of fewer columns.

    `fill` (L, H, K) is what takes a removed head's place at site `z`, such as `mean_fill(...).heads[:, 0, :, 0]`; left
    out, nothing does. A constant there is one after `Wo`, and so becomes part of `bo`: a model without attention biases
    gets them, the others zero. The pruned model computes what the whole one does with the edit
    `z * keep + (1 - keep) * fill`, up to rounding.

    Raises:
        UserError: `keep` or `fill` does not fit the model, or the model is pruned already.
    """
    params, cfg, tokenizer = model
    keep = check_keep(keep, cfg)
    blocks = params["blocks"]
    if fill is not None:
        blocks = _with_constant(blocks, ~keep, fill, cfg)
        cfg = dataclasses.replace(cfg, attn_bias=True)
    specs = param_specs(cfg)["blocks"]
    left = {"head": keep, "heads": np.repeat(keep, cfg.head_width, axis=1)}
    cfg = dataclasses.replace(cfg, heads=_heads_left(keep))

    def cut(name: str, layer: int) -> jax.Array:
        leaf = blocks[name][layer]
        for axis, kind in enumerate(specs[name].axes[1:]):
            leaf = leaf.take(np.flatnonzero(left[kind][layer]), axis) if kind in HEAD_AXES else leaf
        return leaf

    layers = tuple({name: cut(name, i) for name in own} for i, own in enumerate(param_specs(cfg)["blocks"]))
    return Model({**params, "blocks": layers}, cfg, tokenizer)


def check_keep(keep: ArrayLike, cfg: GPTConfig) -> NDArray[np.bool_]:
    """`keep` as a bool array (L, H); raises UserError where it is none, or where `cfg` is of a pruned model."""
    if cfg.heads:
        raise UserError(f"the model is pruned already, to {cfg.heads} heads: prune the one it was made from")
    array = np.asarray(keep)
    if array.shape != (cfg.n_layer, cfg.n_head) or array.dtype != bool:
        raise UserError(
            f"keep has shape {array.shape} and dtype {array.dtype}: must be bool, "
            f"(layers, heads) = {(cfg.n_layer, cfg.n_head)}"
        )
    return array


def _heads_left(keep: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(keep.sum(1).tolist())


def _with_constant(
    blocks: Mapping[str, jax.Array], removed: NDArray[np.bool_], fill: ArrayLike, cfg: GPTConfig
) -> dict[str, jax.Array]:
    """The stacked blocks with what the removed heads are filled with, (L, H, K), added to `bo` by way of `Wo`."""
    L, C = cfg.n_layer, cfg.n_embd
    constant = jnp.asarray(fill, jnp.float32)
    if constant.shape != (L, cfg.n_head, cfg.head_width):
        wanted = (L, cfg.n_head, cfg.head_width)
        raise UserError(f"fill has shape {constant.shape}: must be (layers, heads, head width) = {wanted}")
    if not np.isfinite(constant).all():
        raise UserError("fill holds a value that is not finite: measure the mean of a model that works")
    z = jnp.where(removed[..., None], constant, 0).reshape(L, C)
    written = jnp.einsum("lc,lcd->ld", z, blocks["Wo"], precision="highest")
    biases = {name: jnp.zeros((L, C)) for name in ("bq", "bk", "bv", "bo")} | dict(blocks)
    return {**biases, "bo": biases["bo"] + written}


def save_pruned(
    model: Model,
    run: str | os.PathLike[str],
    source: str | os.PathLike[str],
    keep: ArrayLike,
    facts: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Writes a pruned model as a run directory that `load`, `tinygpt sample` and `tinygpt eval` open.

    Its run.json has the settings and facts of `source`, the run it was pruned from, with the model's own architecture,
    and under `pruned` where it came from, the source's weights' SHA-256, the heads kept in each layer, and `facts`.
    The weights are written last: what is cut short is no whole run, and says so.

    Raises:
        UserError: `source` is no run, `keep` (L, H) is not what the model was pruned to, or `run` is taken and `force`
            is off, or is `source` itself.
    """
    run, source = Path(run), Path(source)
    config, record = read_config(source), read_record(source)
    keep = check_keep(keep, config.model)
    if _heads_left(keep) != model.cfg.heads:
        raise UserError(f"keep leaves {_heads_left(keep)} heads, the model has {model.cfg.heads}: pass both as pruned")
    whole = prune(load(source), keep).params["blocks"]
    if any(not np.array_equal(a["Wq"], b["Wq"]) for a, b in zip(whole, model.params["blocks"], strict=True)):
        raise UserError(f"the model is not {source} without the heads that keep leaves out: pass both as pruned")
    if run.resolve() == source.resolve():
        raise UserError(f"run {run} is what was pruned: choose another directory")
    weights = source / WEIGHTS
    pruned = {
        "from": str(source),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "kept": [np.flatnonzero(row).tolist() for row in keep],
        **(facts or {}),
    }
    known = {name: value for name, value in record.items() if name not in ("format", "config")}
    claim(run, force)
    model.tokenizer.save(run / TOKENIZER)
    write_record(
        run,
        dataclasses.replace(config, model=model.cfg),
        {**known, "parameters": count_params(model.cfg), "pruned": pruned},
    )
    write_weights(run / WEIGHTS, model.params, weights_step(weights))
    return run
