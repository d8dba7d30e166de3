"""Results made by hand: what a figure is drawn from, without a model."""

import dataclasses

import numpy as np

from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.patch.attribution import Attribution
from tinygpt_jax.lab.patch.patching import Patching
from tinygpt_jax.lab.patch.paths import Paths
from tinygpt_jax.lab.read.block import HeadSplit, NormRows, PositionTables, ResidualWrites
from tinygpt_jax.lab.read.lens import AttentionMaps, LogitAttribution, LogitLens
from tinygpt_jax.lab.read.mlp import ActivationCurves, MlpWidths
from tinygpt_jax.lab.read.scores import CHANCED, READ, HeadScores
from tinygpt_jax.lab.read.tokens import EmbeddingMap, NextTokens
from tinygpt_jax.lab.read.training import OverTraining, TrainingCurves
from tinygpt_jax.lab.remove.ablate import Ablation, Pairs
from tinygpt_jax.lab.remove.curve import PruningCurve
from tinygpt_jax.lab.remove.gates import LearnedGates
from tinygpt_jax.lab.remove.importance import ESTIMATES, Importance
from tinygpt_jax.lab.remove.shapley import Shapley
from tinygpt_jax.lab.result import Definition, Result

HOSTILE = ("\t", "\n", " the", "<&>", "$x$", "\\$", "\U0001f99c", "", "\x00", "\u0301", "\u202e")
WHAT = Definition(
    granularity="head",
    component="z",
    value="mean",
    positions="all",
    direction="remove",
    set="each alone",
    metric="loss",
    unit="nats per token",
    examples=64,
    seed=0,
    model="0123456789abcdef",
    data="fedcba9876543210",
)


def numbers(shape, gaps=False, seed=0):
    """Effects of both signs; with gaps, some that are not finite."""
    values = np.random.default_rng(seed).normal(0, 0.1, shape)
    if gaps:
        values.flat[:: max(values.size // 3, 1)] = np.nan
        values.flat[-1] = np.inf
    return values


def errors(shape):
    return np.full(shape, 0.03)


def examples(values):
    """(..., 2) values of two examples with these means and the standard errors of `errors`: the one finds all effects
    smaller, so that their order is beyond doubt."""
    apart = 0.03 * np.where(values < 0, -1, 1)
    return np.stack([values - apart, values + apart], -1)


def patterns(shape, tokens):
    raw = np.random.default_rng(1).random((*shape, tokens, tokens)) * np.tri(tokens)
    return raw / raw.sum(-1, keepdims=True)


def paths(n, gaps=False):
    """Effects (2, n², n²) of paths between n layers of n heads, each to a later layer; or, of one layer, one path."""
    layer = np.arange(n * n) // n
    return np.where((layer[:, None] < layer) | (n == 1), numbers((2, n * n, n * n), gaps and n > 1), np.nan)


def pieces(n, gaps=False):
    """One result of every piece of a block n tokens and n channels wide, or n layers deep."""
    alone = dataclasses.replace(WHAT, direction="read", value="-", seed=None, examples=0)
    read, tokens = dataclasses.replace(alone, examples=64), tuple(HOSTILE[i % len(HOSTILE)] for i in range(n))
    stages = ("before", "normalised", "after gain and shift")
    x, sites = np.linspace(-3, 3, 2 * n), 1 + 3 * n
    step = np.heaviside(x, 0.5)
    kinds = ("stream", *("attention", "MLP", "stream") * n)
    return {
        "positions": PositionTables(alone, numbers((n, 2 * n), gaps), numbers((n, 2 * n), gaps), None, "learned"),
        "rotary positions": PositionTables(alone, numbers((n, 2 * n)), None, numbers((n, 2 * n), gaps), "rope"),
        "norm": NormRows(
            read, *[numbers((3, n), gaps)] * 3, numbers((3, n, 3 * n), gaps), stages, tokens, 0
        ),
        "split": HeadSplit(
            read, numbers((n, n, 2), gaps), tuple((HOSTILE[i % len(HOSTILE)], (n,) * min(i, 4)) for i in range(n)), 0
        ),
        "activation": ActivationCurves(
            read, x, x * step, abs(numbers(2 * n, gaps)), abs(numbers(2 * n, gaps)), errors(2 * n),
            np.zeros((n, 2 * n)), np.full((n, n), 0.5), np.zeros(n), "relu",
        ),
        "mlp": MlpWidths(alone, np.arange(1, n + 1) * 10, np.arange(n) * 1000, tokens),
        "residual": ResidualWrites(
            read, abs(numbers(sites, gaps)), errors(sites), np.zeros((sites, 2)), tuple(map(str, range(sites))), kinds
        ),
    }  # fmt: skip


def results(n, gaps=False):
    """One result of every kind, of a model of n layers of n heads."""
    grid, one, names = (n, n), np.zeros(2), tuple(head_name(*head) for head in np.ndindex(n, n))
    some, many = min(n * n, 16), n * n
    layer = dataclasses.replace(WHAT, granularity="layer")
    read = dataclasses.replace(WHAT, direction="read", value="-", seed=None)
    square = numbers((some, some), gaps)
    scores = {name: abs(numbers(grid, gaps)) for name in READ} | {f"{name}_se": errors(grid) for name in READ}
    scores |= {f"{name}_chance": np.array(0.1) for name in CHANCED}
    parts = ("token", *(f"L{i} H{j}" for i in range(n) for j in range(n)), "shift")
    kept = np.arange(3 * 2 * many).reshape(3, 2, n, n) % 3 > 0
    measured = {f"{name}{end}": numbers(grid, gaps) if not end else errors(grid) for name in (*ESTIMATES, "effect")
                for end in ("", "_se")}  # fmt: skip
    orders = np.cumsum(abs(numbers((5, many + 1), gaps)), 1)
    over, sites = ("layer", "head"), numbers((1, *grid), gaps)
    each, some_places = numbers(n, gaps), numbers((n, 2), gaps)
    patched = dataclasses.replace(WHAT, direction="denoise", value="the clean run's")
    return {
        "heads": Ablation(WHAT, over, names, numbers(grid, gaps), errors(grid), examples(numbers(grid, gaps)), one),
        "layers": Ablation(
            layer, ("layer",), tuple(f"layer{i}" for i in range(n)), each, errors(n), examples(each), one
        ),
        "sets": Ablation(layer, ("set",), names, numbers(many, gaps), errors(many), examples(numbers(many, gaps)), one),
        "pairs": Pairs(WHAT, names[:some], square, abs(square), square + square.T, errors(square.shape), one),
        "scores": HeadScores(read, **scores, ov_eigenvalue=numbers(grid, gaps)),
        "lens": LogitLens(read, numbers(n + 1, gaps), errors(n + 1), np.zeros((n + 1, 2))),
        "attribution": LogitAttribution(
            read, numbers(len(parts), gaps), errors(len(parts)), examples(numbers(len(parts), gaps)), one, parts, n
        ),
        "attention": AttentionMaps(read, patterns((min(n, 2), n), len(HOSTILE)), HOSTILE),
        "curve": PruningCurve(
            WHAT, orders[0], errors(many + 1), orders[0] - orders[0, 0], errors(many + 1), orders.mean(0),
            errors(many + 1), orders.mean(0) - orders[0, 0], errors(many + 1), orders,
            np.stack(np.divmod(np.arange(many), n), -1), 0.01, 1, 0.5, 0.2, 0.1,
        ),
        "gates": LearnedGates(
            WHAT, np.array([0, 0.01, 0.1]), np.array([0, 1]), *[np.zeros(kept.shape)] * 3, kept,
            *[np.zeros((3, 2))] * 2, numbers((3, 2), gaps), errors((3, 2)),
        ),
        "importance": Importance(
            WHAT, names, **measured, hessian=np.zeros((many, many)), correlation=np.array([0.4, np.nan, 0.9]),
            correlation_se=np.array([0.1, np.nan, 0.02]), residual=np.array(0.0), baseline=one,
        ),
        "shapley": Shapley(
            WHAT, over, names, numbers(grid, gaps), errors(grid), errors(grid), examples(numbers(grid, gaps)), one,
            np.zeros((n, 2)), np.zeros(n),
        ),
        "over training": OverTraining(
            WHAT, "effect", over, np.arange(5) * 100, numbers((5, *grid), gaps), errors((5, *grid))
        ),
        "patching": Patching(
            patched, ("layer", "position"), (3, 5), *[some_places, errors((n, 2))] * 2, examples(some_places),
            one, one,
        ),
        "attribution patching": Attribution(
            patched, over, ("z",), (), sites, errors(sites.shape), one, one, sites, errors(sites.shape),
            np.array([0.8]), np.array([0.1]),
        ),
        "attribution alone": Attribution(
            patched, over, ("q", "v"), (), numbers((2, *grid), gaps), errors((2, *grid)), one, one
        ),
        "paths": Paths(patched, ("q", "v"), names, *[paths(n, gaps), errors((2, many, many))] * 2, one, one),
        "training": TrainingCurves(
            read, numbers(many, gaps), numbers(many, True), errors(many), errors(many), errors(many),
            tuple(range(1, many + 1)), 9,
        ),
        "next tokens": NextTokens(
            read, np.abs(numbers((many, n), gaps)) / 9, np.abs(numbers(many, gaps)) / 9, errors(many),
            tuple(HOSTILE[i % len(HOSTILE)] for i in range(many)), ((HOSTILE * 2)[:n],) * many,
        ),
        "embedding": EmbeddingMap(
            read, numbers(many, gaps), numbers(many, gaps), errors(many), np.array([0.3, 0.1]),
            tuple(HOSTILE[i % len(HOSTILE)] for i in range(many)),
        ),
        **pieces(n, gaps),
        "no figure of its own": Novel(WHAT, numbers((2, n, n), gaps), errors((2, n, n))),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Novel(Result):
    """A kind that has no line in the registry."""

    gain: np.ndarray
    gain_se: np.ndarray

    AXES = {"gain": ("side", "layer", "head"), "gain_se": ("side", "layer", "head")}
