"""Many models at once: seeds, learning rates and weight decays vmapped over one train step."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.ids import as_array, check_ids, check_targets
from tinygpt_jax.memory import check_training
from tinygpt_jax.params import Params
from tinygpt_jax.runtime import keep_freed_pages, use_compilation_cache
from tinygpt_jax.text import window_starts, windows
from tinygpt_jax.training.optimizer import Hyper
from tinygpt_jax.training.step import StepMetrics, TrainState, init_state, make_train_step, repeat

Batch = Callable[[int, int], tuple[np.ndarray, np.ndarray]]
"""batch(seed, step) -> ids and targets (A·B, T), integers: a pure function. Targets below 0 are ignored."""


class Models(NamedTuple):
    """N models trained together; `pick(models.params, i)` is the i-th, and `configs[i]` how to train it alone."""

    params: Params
    """leaves (N, ...)"""
    metrics: StepMetrics
    """of every step, (N, steps) each; a model whose loss or gradient is not finite skips that step"""
    configs: tuple[TrainConfig, ...]
    """N, seeds outermost, then learning rates, then weight decays"""
    snapshots: dict[int, Params]
    """step -> the parameters after that many steps, on the host, leaves (N, ...)"""


def train_many(
    cfg: TrainConfig,
    data: Batch | np.ndarray,
    seeds: Sequence[int],
    learning_rates: Sequence[float] = (),
    weight_decays: Sequence[float] = (),
    *,
    data_seed: int | None = None,
    snapshots: Sequence[int] = (),
) -> Models:
    """Trains a model for every combination of seed, learning rate and weight decay, each as `cfg` with these three.

    Each is the model of a run by itself, up to the rounding of batched products; only the dropout masks differ.

    Args:
        cfg: the other settings; `steps` in all, `steps_per_dispatch` of them in one call of the compiled program
        data: batch(seed, step), or token ids (M,) of which windows are drawn as `train` draws them
        seeds: fix the initial weights, the dropout masks and, unless `data_seed` is given, each seed's batches
        learning_rates: peak rates; default: that of cfg
        weight_decays: default: that of cfg
        data_seed: draws the same batches for all models
        snapshots: numbers of steps after which the parameters are kept, 0 for the initial ones

    Raises:
        UserError: there is no seed, a setting makes no sense or takes more memory than there is, a snapshot lies
            outside the run, or a batch has another shape than (accumulate · batch_size, block_size) or ids outside the
            vocabulary.
    """
    keep_freed_pages()
    use_compilation_cache()
    if not len(seeds) or not all(isinstance(seed, int | np.integer) for seed in seeds):
        raise UserError(f"seeds are {list(seeds)}: must be whole numbers, and at least one")
    rates, decays = tuple(learning_rates) or (cfg.learning_rate,), tuple(weight_decays) or (cfg.weight_decay,)
    variants = [*itertools.product(rates, decays)]
    configs = [
        check(dataclasses.replace(cfg, seed=int(seed), learning_rate=float(rate), weight_decay=float(decay)))
        for seed in seeds
        for rate, decay in variants
    ]
    check_training(cfg := configs[0], len(configs))
    if outside := [step for step in snapshots if not 0 <= step <= cfg.steps]:
        raise UserError(f"snapshots holds {outside[0]}: must be steps from 0 to {cfg.steps}, those of the run")
    batch = data if callable(data) else window_batch(cfg, np.asarray(data))
    drawn = [int(seed) for seed in seeds] if data_seed is None else [data_seed]
    hypers = Hyper(np.asarray(seeds, np.uint32), *np.asarray(variants, np.float32).T)
    first, dispatch = _programs(cfg, shared=data_seed is not None)
    state, done, kept, metrics = first(hypers), 0, {}, []
    for end in sorted({*snapshots, cfg.steps}):
        while done < end:
            n = min(cfg.steps_per_dispatch, end - done)
            state, now = dispatch(hypers, state, *_draw(cfg, batch, drawn, done, n), np.int32(n))
            metrics.append((now, n))
            done += n
        if end in snapshots:
            kept[end] = jax.tree.map(_flat, jax.device_get(state.params))
    steps = [jax.tree.map(lambda x, n=n: np.asarray(x)[:n], now) for now, n in metrics]
    every = jax.tree.map(lambda *parts: _flat(np.moveaxis(np.concatenate(parts), 0, -1)), *steps)
    return Models(jax.tree.map(_flat, state.params), every, tuple(configs), kept)


def window_batch(cfg: TrainConfig, ids: np.ndarray) -> Batch:
    """batch(seed, step) of windows of ids (M,): those that `train` draws."""
    T = cfg.model.block_size

    def batch(seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        return windows(ids, window_starts(seed, step, len(ids), T, cfg.accumulate * cfg.batch_size), T)

    return batch


def _programs(cfg: TrainConfig, shared: bool) -> tuple[Callable[..., TrainState], Callable[..., Any]]:
    """first(hypers) -> state, and dispatch(hypers, state, ids, targets, n) -> state and metrics, both compiled.

    Of `hypers` the seeds are (S,), rates and decays (R,), those of the variants, so that each batch exists once for
    them all: states (S, R, ...), ids and targets (K, S, A, B, T), or (K, 1, A, B, T) where `shared`, metrics (K, S, R).
    """

    by_seed, by_variant, b = Hyper(0, None, None), Hyper(None, 0, 0), None if shared else 0
    first = jax.vmap(jax.vmap(lambda hyper: init_state(cfg, hyper), (by_variant,)), (by_seed,))
    variants = jax.vmap(make_train_step(cfg), (0, None, None, by_variant))
    steps = jax.vmap(variants, (0, b, b, by_seed))

    def dispatch(hypers, state, ids, targets, n):
        def one(i, state):
            batch = (ids[i, 0], targets[i, 0]) if shared else (ids[i], targets[i])
            return steps(state, *batch, hypers)

        return repeat(one, state, n, len(ids))

    return jax.jit(first), jax.jit(dispatch, donate_argnums=1)


def _draw(cfg: TrainConfig, batch: Batch, seeds: Sequence[int], step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The batches of n steps, checked: ids and targets (K, S, A, B, T) int32, zero from step n on."""
    A, B, T = cfg.accumulate, cfg.batch_size, cfg.model.block_size
    ids, targets = (np.zeros((cfg.steps_per_dispatch, len(seeds), A * B, T), np.int32) for _ in range(2))
    for i, s in np.ndindex(n, len(seeds)):
        x, y = (as_array(a, what) for a, what in zip(batch(seeds[s], step + i), ("ids", "targets"), strict=True))
        if x.shape != ids.shape[2:] or y.shape != ids.shape[2:]:
            raise UserError(
                f"batch({seeds[s]}, {step + i}) gives ids {x.shape} and targets {y.shape}: must be "
                f"{ids.shape[2:]}, accumulate · batch_size windows of block_size tokens; change one or the other"
            )
        ids[i, s] = check_ids(x, cfg.model.vocab_size)
        targets[i, s] = check_targets(y, cfg.model.vocab_size)
    shape = (-1, len(seeds), A, B, T)
    return ids.reshape(shape), targets.reshape(shape)


def _flat(x: Any) -> Any:
    """(S, R, ...) -> (S·R, ...)"""
    return x.reshape(-1, *x.shape[2:])
