"""The pruning curve: the loss as heads go one after another, and how many can go before it rises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.heads.components import all_heads
from tinygpt_jax.heads.fills import Filling, FillLike, make_filling
from tinygpt_jax.heads.metrics import as_examples, resolve_metric
from tinygpt_jax.heads.results import Definition, Result, data_fingerprint, model_fingerprint
from tinygpt_jax.heads.statistics import mean_and_se, resampling_weights
from tinygpt_jax.heads.sweep import Gates, open_gates, sweep
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

MIN_RANDOM, RESAMPLES = 5, 1000


@dataclass(frozen=True, eq=False)
class PruningCurve(Result):
    """Losses after the first n heads of an order are removed, n = 0 .. L·H, beside random orders."""

    loss: np.ndarray
    """nats per token"""
    loss_se: np.ndarray
    """standard error over examples"""
    random_loss: np.ndarray
    """nats per token, mean over the random orders"""
    random_loss_se: np.ndarray
    """standard error of `random_loss` over the orders"""
    random_losses: np.ndarray
    """nats per token, of each random order"""
    order: np.ndarray
    """(layer, head), the first to go first"""
    tolerance: float
    """how far the loss may rise, as a share of the intact model's"""
    free: int
    """heads of the order that are gone when the loss has not yet risen further"""
    free_se: float
    """standard error of `free`, from bootstrap samples of the examples"""
    random_free: float
    """the same for the random orders, their mean"""
    random_free_se: float
    """standard error of `random_free` over the orders"""

    AXES = {
        **dict.fromkeys(("loss", "loss_se", "random_loss", "random_loss_se"), ("removed",)),
        "random_losses": ("order", "removed"),
        "order": ("rank", "place"),
    }


def pruning_curve(
    params: Params,
    data: Examples | jax.Array | np.ndarray,
    cfg: GPTConfig,
    order: Sequence[tuple[int, int]] | np.ndarray,
    fill: FillLike = "zero",
    *,
    n_random: int = 8,
    seed: int = 0,
    tolerance: float = 0.01,
) -> PruningCurve:
    """The loss after removing the first n heads of `order`, for every n, and the same for `n_random` random orders.

    Args:
        data: examples, or ids (B, T)
        order: every (layer, head) once, the first to go first
        fill: what takes a removed head's place at `z`, as for `ablate_heads`
        seed: fixes the random orders, the bootstrap samples and what a fill draws
        tolerance: by how much the loss may rise while heads count as free, as a share of the intact model's

    Raises:
        UserError: `order` is not every head once, the random orders are fewer than 5, or the data or fill do not fit.
    """
    examples = as_examples(data, cfg)
    heads = _numbers(order, cfg)
    if n_random < MIN_RANDOM:
        raise UserError(f"n_random is {n_random}: must be {MIN_RANDOM} or more, so that their mean has an error")
    key = jax.random.key(seed)
    shuffled = [np.asarray(jax.random.permutation(jax.random.fold_in(key, i), len(heads))) for i in range(n_random)]
    keep = np.stack([_keep_after(numbers) for numbers in (heads, *shuffled)])  # (orders, removed, L·H)
    filling = make_filling(fill, params, examples, cfg, seed)
    flat = losses_keeping(params, examples, cfg, keep.reshape(-1, cfg.n_layer, cfg.n_head), filling)
    losses = flat.reshape(*keep.shape[:2], -1)
    loss, loss_se = mean_and_se(losses[0])
    random_losses = losses[1:].mean(-1)
    random_loss, random_loss_se = mean_and_se(random_losses.T)
    drawn = free_heads(resampling_weights(losses.shape[-1], RESAMPLES, seed) @ losses[0].T, tolerance)
    random_free, random_free_se = mean_and_se(free_heads(random_losses, tolerance))
    return PruningCurve(
        Definition(
            granularity="head",
            component="z",
            value=filling.name,
            positions="all",
            direction="remove",
            set=f"the first n of an order, and of {n_random} random ones",
            metric="loss",
            unit="nats per token",
            examples=len(examples.ids),
            seed=seed,
            model=model_fingerprint(params, cfg),
            data=data_fingerprint(examples),
        ),
        loss=loss,
        loss_se=loss_se,
        random_loss=random_loss,
        random_loss_se=random_loss_se,
        random_losses=random_losses,
        order=np.stack(np.divmod(heads, cfg.n_head), -1),
        tolerance=tolerance,
        free=int(free_heads(loss, tolerance)),
        free_se=float(drawn.std(ddof=1)),
        random_free=float(random_free),
        random_free_se=float(random_free_se),
    )


def losses_keeping(
    params: Params, examples: Examples, cfg: GPTConfig, keep: NDArray, filling: Filling
) -> NDArray[np.float64]:
    """Nats per token of every example under each mask of the heads that stay, (N, L, H) -> (N, B)."""
    gates = Gates(np.asarray(keep, np.float32), open_gates(cfg, len(keep)).mlps)
    metric = resolve_metric("loss", examples, cfg)
    return sweep(params, examples, cfg, gates, filling.fill, metric, donors=filling.donors).astype(np.float64)


def free_heads(losses: NDArray[np.float64], tolerance: float) -> NDArray[np.int64]:
    """How many heads can go before the loss (..., L·H + 1) is more than a share `tolerance` above that of none gone."""
    within = losses <= losses[..., :1] + tolerance * np.abs(losses[..., :1])
    return np.logical_and.accumulate(within, -1).sum(-1) - 1


def _keep_after(numbers: NDArray) -> NDArray[np.bool_]:
    """(n + 1, n): which of n heads stay after none, the first, the first two, … are removed."""
    rank = np.argsort(numbers)
    return rank >= np.arange(len(numbers) + 1)[:, None]


def _numbers(order: Sequence[tuple[int, int]] | np.ndarray, cfg: GPTConfig) -> NDArray[np.int64]:
    """The order as layer · H + head; raises UserError where it is not every head once."""
    given = [tuple(int(i) for i in place) for place in order]
    if sorted(given) != all_heads(cfg):
        H = cfg.n_head
        raise UserError(f"order is {given}: must name every (layer, head) of {cfg.n_layer} x {H} once")
    return np.array([layer * cfg.n_head + head for layer, head in given])
