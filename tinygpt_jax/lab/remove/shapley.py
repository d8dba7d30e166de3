"""Shapley values: each head's fair share of what all heads together do to the metric (Shapley 1953).

The worth of a coalition S is the metric with the players outside S switched off; a player's value is what it adds, in
the mean over all orders in which the players might join.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Unpack

import numpy as np

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import Component, Sets, all_heads, check_apart, make_sets
from tinygpt_jax.lab.intervention import Choices, Gates, Lab
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import Data
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.result import OVER, Result
from tinygpt_jax.measure import check_memory
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import mean_and_se

EXACT_UP_TO = 12
"""Players whose 2^n coalitions are all measured."""
ORDERS = 128
"""Orders drawn where there are more."""


@dataclass(frozen=True, eq=False)
class Shapley(Result):
    """Values of players, each an array over the axes `over`: (player,), or (layer, head) where each layer is a game.

    They have the sign of the metric: a head that lowers the loss has a value below 0. In each game they add up to
    the metric of the intact model less that with all players switched off.
    """

    over: tuple[str, ...]
    names: tuple[str, ...]
    """the players, in order"""
    value: np.ndarray
    se: np.ndarray
    """standard error of `value` over examples and, where orders were drawn, over these: the root of both squared and
    added"""
    sampling_se: np.ndarray
    """the part of `se` that comes from the orders drawn; 0 where all coalitions were measured"""
    per_example: np.ndarray
    """(..., B)"""
    whole: np.ndarray
    """(B,) the intact model's metric"""
    empty: np.ndarray
    """(B,), or (layer, B), the metric with all players of the game switched off"""
    residual: np.ndarray
    """(), or (layer,): sum of the values less (whole - empty), which is rounding alone"""

    AXES: ClassVar = {
        **dict.fromkeys(("value", "se", "sampling_se", "residual"), (OVER,)),
        **dict.fromkeys(("per_example", "empty"), (OVER, "example")),
        "whole": ("example",),
    }
    DIFFERENCES = ("value",)
    PLACES = {"player": "names"}

    def axes(self, field: str) -> tuple[str, ...]:
        axes = super().axes(field)  # but what is one a game, not one a player, lacks the players' axis
        return tuple(axis for axis in axes if axis != self.over[-1]) if field in ("empty", "residual") else axes

    def changes(self) -> Changes:
        drawn = self.sampling_se.any()  # an error that the values per example do not have
        per_example = None if drawn else self.per_example
        return changes_of(self.definition, self.names, self.value, self.se, per_example, "Shapley value")

    order, closing = order_of, closing_of


class Game(NamedTuple):
    """The coalitions of n players whose worth is asked for."""

    coalitions: np.ndarray
    """(M, n) true for those who are in; the first is nobody, the last everybody"""
    orders: np.ndarray | None
    """(m, n) the orders that they are the beginnings of, n + 1 for each; None where every coalition is there"""


@of_model
def shapley(
    params: Params,
    data: Data,
    cfg: GPTConfig,
    players: Sequence[Component | Sequence[Component]] | None = None,
    *,
    permutations: int | None = None,
    **choices: Unpack[Choices],
) -> Shapley:
    """Shapley values of heads, MLPs or layers, or of sets of them; what belongs to no player stays as it is.

        tg.shapley(params, ids, cfg, ["0.0", "0.1", "mlp0"], fill="mean").value

    Args:
        data: ids (B, T), or `Examples` with targets and answers
        players: components, or lists of them that join as one; default: every head
        permutations: orders to draw, in pairs of one and its reverse (Mitchell et al. 2022); default: up to 12 players
            every coalition is measured and nothing drawn, beyond that 128 orders
        choices: fields of `Intervention`: fill, metric, positions, hold_patterns, freeze_norms, seed, …

    Raises:
        UserError: something does not fit the model, `permutations` is not even, or there are fewer than two examples.
    """
    lab, sets = (
        make_lab(params, data, cfg, **choices),
        make_sets(list(all_heads(cfg) if players is None else players), cfg),
    )
    check_apart(sets)
    game = make_game(len(sets.names), permutations, lab.intervention.seed)
    off = Gates(*(1 - a for a in sets.gates))
    values, whole = measure_once(lab, coalition_gates(game.coalitions, off))
    per_example, sampling_se = solve(game, values)
    return _result(lab, game, sets, per_example, sampling_se, whole, values[0])


@of_model
def shapley_by_layer(
    params: Params, data: Data, cfg: GPTConfig, *, permutations: int | None = None, **choices: Unpack[Choices]
) -> Shapley:
    """`shapley` of each layer's heads among themselves, other layers intact: value (L, H)."""
    lab, sets, L, H = make_lab(params, data, cfg, **choices), make_sets("heads", cfg), cfg.n_layer, cfg.n_head
    game = make_game(H, permutations, lab.intervention.seed)
    off = [Gates(*(1 - a[layer * H : (layer + 1) * H] for a in sets.gates)) for layer in range(L)]
    gates = [coalition_gates(game.coalitions, one) for one in off]
    values, whole = measure_once(lab, Gates(*map(np.concatenate, zip(*gates, strict=True))))
    values = values.reshape(L, -1, values.shape[-1])
    per_example, sampling_se = map(np.stack, zip(*(solve(game, layer) for layer in values), strict=True))
    return _result(lab, game, sets, per_example, sampling_se, whole, values[:, 0])


def make_game(n: int, permutations: int | None, seed: int) -> Game:
    """Every coalition of n players, or those that as many random orders, each with its reverse, pass through."""
    if permutations is None and n <= EXACT_UP_TO:
        return Game((np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool), None)
    m = ORDERS if permutations is None else permutations
    if m < 4 or m % 2:
        raise UserError(f"permutations is {m}: must be even, 4 or more, as each is drawn with its reverse")
    whole("permutations", m, 4, MOST)
    check_memory(4 * m * (n + 1) * n, f"a sum over {m:,} orders of {n} players", "lower permutations")
    rng = np.random.default_rng(seed)
    forward = np.stack([rng.permutation(n) for _ in range(m // 2)])
    orders = np.stack([forward, forward[:, ::-1]], axis=1).reshape(m, n)
    turn = np.argsort(orders, axis=-1)  # when each player joins
    return Game((turn[:, None] < np.arange(n + 1)[:, None]).reshape(-1, n), orders)


def coalition_gates(coalitions: np.ndarray, off: Gates) -> Gates:
    """Gates (M, ...) with all switched off that is a player's, by `off` (n, ...), who is in none of M coalitions."""
    absent = (~coalitions).astype(np.float32)
    heads, mlps = (np.tensordot(absent, a, 1) == 0 for a in off)
    return Gates(heads.astype(np.float32), mlps.astype(np.float32))


def measure_once(lab: Lab, gates: Gates) -> tuple[np.ndarray, np.ndarray]:
    """`measure`, float64, in which no mask is run twice."""
    N = len(gates.heads)
    flat = np.concatenate([gates.heads.reshape(N, -1), gates.mlps.reshape(N, -1)], axis=1)
    _, first, where = np.unique(flat.astype(np.uint8), axis=0, return_index=True, return_inverse=True)
    values, intact = measure(lab, Gates(*(a[first] for a in gates)))
    return values.astype(np.float64)[where.reshape(-1)], intact.astype(np.float64)


def solve(game: Game, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values (n, B) from the worths (M, B) of a game's coalitions, and their sampling errors (n,)."""
    n = game.coalitions.shape[1]
    if game.orders is None:
        size = game.coalitions.sum(-1)
        joined = np.array([1 / (n * math.comb(n - 1, s)) for s in range(n)])  # the share of orders with s before it
        weights = np.where(
            game.coalitions, joined[np.maximum(size - 1, 0), None], -joined[np.minimum(size, n - 1), None]
        )
        return weights.T @ values, np.zeros(n)
    m = len(game.orders)
    pairs, total = np.zeros((m // 2, n)), np.zeros((n, values.shape[-1]))
    for i, (order, worth) in enumerate(zip(game.orders, values.reshape(m, n + 1, -1), strict=True)):
        added = np.diff(worth, axis=0)
        total[order] += added / m
        pairs[i // 2, order] += added.mean(-1) / 2
    return total, mean_and_se(pairs.T)[1]


def _result(
    lab: Lab,
    game: Game,
    sets: Sets,
    per_example: np.ndarray,
    sampling_se: np.ndarray,
    whole: np.ndarray,
    empty: np.ndarray,
) -> Shapley:
    """Of one game, values (player, B), or of a game in each layer, (layer, head, B)."""
    over = ("player",) if per_example.ndim == 2 else ("layer", "head")
    value, over_examples = mean_and_se(per_example, lab.ordered)
    way = "all coalitions" if game.orders is None else f"{len(game.orders)} orders"
    among = f"of {len(sets.names)} players" if over == ("player",) else "of each layer's heads"
    definition = lab.definition(
        granularity=over[-1], component=sets.component, direction="remove", set=f"{way} {among}"
    )
    residual = value.sum(-1) - (whole - empty).mean(-1)
    se = np.hypot(over_examples, sampling_se)
    return Shapley(definition, over, sets.names, value, se, sampling_se, per_example, whole, empty, residual)
