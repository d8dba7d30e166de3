"""The numbers that errors are tried on, each as the package makes it from one text's windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.coverage.texts import Pool
from tinygpt_jax.lab.read.scores import READ, HeadScores, head_scores
from tinygpt_jax.lab.remove.curve import least_first
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.shapley import make_game, solve
from tinygpt_jax.lab.windows import repeats
from tinygpt_jax.statistics import mean_and_se, ratio_and_se
from tinygpt_jax.text import Examples

SPREAD = 64
"""Windows that the head lab takes, spread evenly over a text."""
ORDERS = 16
"""Of a sampled Shapley value."""
REMOVED = 3
"""Heads that are pruned."""
PRICES = (0.2, 0.4)
"""Of learned gates, nats per token for each open head."""
STEPS = 60
"""Of learning them."""
REPEATED = ("duplicate_token", "induction")
"""Scores that only tokens that come again have a part in."""


class Found(NamedTuple):
    """What one text says: arrays of one shape."""

    estimate: Any
    se: Any
    naive_se: Any
    """windows taken as independent"""
    truth: Any


Made = Sequence[Found]


def found(per_example: np.ndarray, truth: Any) -> Found:
    """The mean over windows in order."""
    mean, se = mean_and_se(per_example, ordered=True)
    return Found(mean, se, mean_and_se(per_example)[1], truth)


def spread(text: np.ndarray) -> np.ndarray:
    """The windows of a text that the lab would take."""
    return text[np.linspace(0, len(text) - 1, min(SPREAD, len(text))).round().astype(int)]


def halves(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is chosen on one is judged on the other."""
    return spread(text)[::2], spread(text)[1::2]


def windows(pool: Pool, rows: np.ndarray) -> Examples:
    """Windows of the pool as those of a text."""
    chosen = jax.tree.map(lambda a: np.asarray(a)[rows], pool.examples)
    return chosen._replace(place=np.arange(len(rows), dtype=np.int32))


def effects(pool: Pool) -> np.ndarray:
    """(P, N) of switching each head off alone."""
    P = pool.cfg.n_layer * pool.cfg.n_head
    return pool.values[(2**P - 1) - 2 ** np.arange(P)] - pool.values[-1]


def validation_loss(pool: Pool, text: np.ndarray, seed: int) -> Found:
    T, loss = pool.cfg.block_size, pool.values[-1]
    counts = np.full(len(text), T)
    mean, se = ratio_and_se(loss[text] * T, counts, ordered=True)
    return Found(mean, se, ratio_and_se(loss[text] * T, counts)[1], loss.mean())


def head_effects(pool: Pool, text: np.ndarray, seed: int) -> Found:
    return found(effects(pool)[:, text], effects(pool).mean(-1))


def spread_effects(pool: Pool, text: np.ndarray, seed: int) -> Found:
    return head_effects(pool, spread(text), seed)


def scores(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """Of what every window has its share in."""
    return _scores(pool, windows(pool, spread(text)), pool.scores, [one for one in READ if one not in REPEATED])


def scores_of_repeats(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """On random tokens that repeat, where heads are judged by them; these depend on no text."""
    return _scores(pool, repeats(pool.cfg, SPREAD, 1 + seed), pool.on_repeats, REPEATED)


def repeats_in_text(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """On text, whose few tables, drawn of the same signs, hold most of what repeats."""
    return _scores(pool, windows(pool, spread(text)), pool.scores, REPEATED)


def _scores(pool: Pool, examples: Examples, truth: HeadScores, names: Sequence[str]) -> Found:
    here = head_scores(pool.params, examples, pool.cfg)
    apart = head_scores(pool.params, examples._replace(place=None), pool.cfg) if examples.ordered else here

    def stacked(of: HeadScores, end: str = "") -> np.ndarray:
        return np.stack([getattr(of, name + end) for name in names])

    return Found(stacked(here), stacked(here, "_se"), stacked(apart, "_se"), stacked(truth))


def exact_shapley(pool: Pool, text: np.ndarray, seed: int) -> Found:
    game = make_game(pool.cfg.n_layer * pool.cfg.n_head, None, 0)
    return found(
        solve(game, pool.values[:, spread(text)])[0], solve(game, pool.values.mean(-1, keepdims=True))[0][:, 0]
    )


def sampled_shapley(pool: Pool, text: np.ndarray, seed: int) -> Found:
    P = pool.cfg.n_layer * pool.cfg.n_head
    game = make_game(P, ORDERS, seed)
    places = game.coalitions @ 2 ** np.arange(P)
    per_example, sampling_se = solve(game, pool.values[places][:, spread(text)])
    one = found(per_example, exact_shapley(pool, text, seed).truth)
    return one._replace(se=np.hypot(one.se, sampling_se), naive_se=np.hypot(one.naive_se, sampling_se))


def pruning_rise(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """The first heads of an order of effects on one half; the rise of the loss on the other, paired."""
    chosen, judged = halves(text)
    order = np.ravel_multi_index(
        least_first(effects(pool)[:, chosen].mean(-1).reshape(pool.cfg.n_layer, -1)).T,
        (pool.cfg.n_layer, pool.cfg.n_head),
    )
    rise = pool.values[-1 - (2 ** order[:REMOVED]).sum()] - pool.values[-1]
    return found(rise[judged], rise.mean())


def gates_rise(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """Gates learned on one half; the rise of the loss without the closed heads on the other, paired."""
    learned, judged = halves(text)
    fill = np.asarray(pool.fill.heads)
    settings = {"seeds": (seed,), "fill": fill, "steps": STEPS, "scored": windows(pool, judged)}
    gates = learn_gates(pool.params, windows(pool, learned), pool.cfg, PRICES, **settings)
    kept = gates.kept.reshape(len(PRICES), -1) @ 2 ** np.arange(gates.kept[0].size)
    rise = pool.values[kept] - pool.values[-1]
    naive_se = mean_and_se(rise[:, judged])[1]
    return Found(gates.rise.ravel(), gates.rise_se.ravel(), naive_se, rise.mean(-1))


def importance(pool: Pool, text: np.ndarray, seed: int) -> Found:
    """Absolute, signed and integrated slopes."""
    slopes = np.concatenate([np.abs(pool.slopes[-1]), -pool.slopes[-1], -pool.slopes[:-1].mean(0)])
    return found(slopes[:, spread(text)], slopes.mean(-1))


Number = Callable[[Pool, np.ndarray, int], Found]
NUMBERS: dict[str, tuple[Number, str]] = {
    "validation loss": (validation_loss, "all"),
    "head effects, all windows": (head_effects, "all"),
    "head effects": (spread_effects, "64 spread"),
    "head scores": (scores, "64 spread"),
    "duplicate token, induction": (scores_of_repeats, "64 of random tokens"),
    "Shapley, exact": (exact_shapley, "64 spread"),
    "Shapley, sampled": (sampled_shapley, "64 spread"),
    "pruning: rise of the loss": (pruning_rise, "32 spread, others chose"),
    "gates: rise of the loss": (gates_rise, "32 spread, others taught"),
    "importance by gradient": (importance, "64 spread"),
}
"""Name -> how one text's number and its errors come about, and from which of its windows."""
