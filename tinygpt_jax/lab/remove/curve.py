"""The pruning curve: the loss as heads go one after another, and how many can go before it rises."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import jax
import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import all_heads
from tinygpt_jax.lab.intervention import Choices, Lab, open_gates
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import Data
from tinygpt_jax.lab.result import Result
from tinygpt_jax.measure import check_memory
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.runtime import random_key
from tinygpt_jax.statistics import mean_and_se, resampled_means

MIN_RANDOM, RESAMPLES = 5, 1000


@dataclass(frozen=True, eq=False)
class PruningCurve(Result):
    """Losses after the first n heads of an order are removed, n = 0 .. L·H, beside random orders."""

    loss: np.ndarray
    """nats per token"""
    loss_se: np.ndarray
    """standard error over examples"""
    rise: np.ndarray
    """nats per token above the intact model"""
    rise_se: np.ndarray
    """standard error of `rise` over examples, each compared with itself"""
    random_loss: np.ndarray
    """nats per token, mean over the random orders"""
    random_loss_se: np.ndarray
    """standard error of `random_loss` over orders and examples: the root of both squared and added"""
    random_rise: np.ndarray
    random_rise_se: np.ndarray
    """the same of the rise, each example compared with itself"""
    random_losses: np.ndarray
    """nats per token, of each random order"""
    order: np.ndarray
    """(layer, head), the first to go first"""
    tolerance: float
    """how far the loss may rise, as a share of the intact model's"""
    free: int
    """heads of the order that are gone when the loss has not yet risen further"""
    free_se: float
    """standard error of `free` over examples, from `resampled_means`"""
    random_free: float
    """the same for the random orders, their mean"""
    random_free_se: float
    """standard error of `random_free` over orders and examples"""

    AXES: ClassVar = {
        **{
            f"{kind}{end}": ("removed",)
            for kind in ("loss", "rise", "random_loss", "random_rise")
            for end in ("", "_se")
        },
        "random_losses": ("order", "removed"),
        "order": ("rank", "place"),
    }
    DIFFERENCES = ("rise", "random_rise")


@of_model
def pruning_curve(
    params: Params,
    data: Data,
    cfg: GPTConfig,
    order: Sequence[tuple[int, int]] | np.ndarray,
    *,
    n_random: int = 8,
    tolerance: float = 0.01,
    **choices: Unpack[Choices],
) -> PruningCurve:
    """The loss after removing the first n heads of `order`, for every n, and the same for `n_random` random orders.

    Args:
        data: ids (B, T), or examples
        order: every (layer, head) once, the first to go first
        tolerance: by how much the loss may rise while heads count as free, as a share of the intact model's
        choices: fields of `Intervention` but the metric; the seed also fixes random orders and bootstrap samples

    Raises:
        UserError: `order` is not every head once, the random orders are fewer than 5, or something does not fit.
    """
    heads = _numbers(order, check(cfg))
    if n_random < MIN_RANDOM:
        raise UserError(f"n_random is {n_random}: must be {MIN_RANDOM} or more, so that their mean has an error")
    whole("n_random", n_random, MIN_RANDOM, MOST)
    check_memory(4 * n_random * len(heads) ** 2, f"removing heads in {n_random:,} random orders", "lower n_random")
    if not 0 <= tolerance < math.inf:
        raise UserError(f"tolerance is {tolerance}: must be a number, 0 or more, such as 0.01 for 1 %")
    if choices.get("metric", "loss") != "loss":
        raise UserError(f"metric is {choices['metric']!r}: a pruning curve is one of loss; leave it out")
    lab = make_lab(params, data, cfg, **choices)
    key = random_key(lab.intervention.seed)
    shuffled = [np.asarray(jax.random.permutation(jax.random.fold_in(key, i), len(heads))) for i in range(n_random)]
    losses = _losses(lab, (heads, *shuffled))
    found: dict[str, np.ndarray] = {}
    for name, per_example in (("loss", losses), ("rise", losses - losses[:, :1])):
        found[name], found[f"{name}_se"] = mean_and_se(per_example[0], lab.ordered)
        found[f"random_{name}"], found[f"random_{name}_se"] = _over_orders(per_example[1:], lab.ordered)
    free, drawn = free_heads_drawn(losses, tolerance, lab.intervention.seed, lab.ordered)
    chosen = f"the first n of an order, and of {n_random} random ones"
    return PruningCurve(
        lab.definition(granularity="head", component="z", direction="remove", set=chosen),
        **found,
        random_losses=losses[1:].mean(-1),
        order=np.stack(np.divmod(heads, cfg.n_head), -1),
        tolerance=tolerance,
        free=int(free[0]),
        free_se=float(drawn[0].std(ddof=1)),
        random_free=float(free[1:].mean()),
        random_free_se=math.hypot(float(mean_and_se(free[1:])[1]), float(drawn[1:].mean(0).std(ddof=1))),
    )


def least_first(harm: NDArray) -> NDArray[np.int64]:
    """An order for `pruning_curve`: places (L·H, 2) by harm (L, H), such as what the loss takes without the head, the
    least first.

    By harm and not by size, as effects are ranked elsewhere: a head without which the loss falls should go before one
    that does nothing, and long before one without which it rises as much.
    """
    return np.stack(np.divmod(np.argsort(harm.ravel(), kind="stable"), harm.shape[1]), -1)


def free_heads(losses: NDArray[np.float64], tolerance: float) -> NDArray[np.int64]:
    """How many heads can go before the loss (..., L·H + 1) is more than a share `tolerance` above that of none gone."""
    within = losses <= losses[..., :1] + tolerance * np.abs(losses[..., :1])
    return np.logical_and.accumulate(within, -1).sum(-1) - 1


def free_heads_drawn(
    losses: NDArray[np.float64], tolerance: float, seed: int, ordered: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`free_heads` of the mean of losses (orders, L·H + 1, B): (orders,), and of their `resampled_means`: (orders,
    RESAMPLES)."""
    drawn = resampled_means(losses, RESAMPLES, seed, ordered)
    return free_heads(losses.mean(-1), tolerance), free_heads(np.moveaxis(drawn, -1, 1), tolerance)


def _losses(lab: Lab, orders: Sequence[NDArray]) -> NDArray[np.float64]:
    """(orders, L·H + 1, B): the metric with none, the first, the first two, … heads of each order removed."""
    removed = np.arange(len(orders[0]) + 1)[:, None]
    keep = np.stack([np.argsort(order) >= removed for order in orders])  # each head's rank in the order
    gates = open_gates(lab.cfg, keep.shape[0] * keep.shape[1])
    values, _ = measure(lab, gates._replace(heads=keep.reshape(gates.heads.shape)))
    return values.astype(np.float64).reshape(*keep.shape[:2], -1)


def _over_orders(per_example: NDArray[np.float64], ordered: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over orders and examples of (orders, removed, B), and its standard error, which comes from both."""
    mean, over_examples = mean_and_se(per_example.mean(0), ordered)
    return mean, np.hypot(over_examples, mean_and_se(per_example.mean(-1).T)[1])


def _numbers(order: Sequence[tuple[int, int]] | np.ndarray, cfg: GPTConfig) -> NDArray[np.int64]:
    """The order as layer · H + head; raises UserError where it is not every head once."""
    given = [tuple(int(i) for i in place) for place in order]
    if sorted(given) != all_heads(cfg):
        H = cfg.n_head
        raise UserError(f"order is {given}: must name every (layer, head) of {cfg.n_layer} x {H} once")
    return np.array([layer * cfg.n_head + head for layer, head in given])
