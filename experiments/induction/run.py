"""Do two attention layers, and not one, learn induction in a sudden step, and is it the induction heads that do it?

python -m experiments.induction.run [--quick]
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.induction.report import figure, table
from experiments.shared.common import FAILS, HOLDS, OPEN, claim, main, spread
from tinygpt_jax import GPTConfig, TrainConfig, forward, pick, train_many
from tinygpt_jax.lab.components import all_heads
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.remove.ablate import ablate_sets
from tinygpt_jax.text import IGNORE, Examples
from tinygpt_jax.text.tasks import repeated_sequences
from tinygpt_jax.training.loss import token_losses

HERE = Path(__file__).parent
V, T = 32, 16
BASE = GPTConfig(vocab_size=V, block_size=T, n_layer=2, n_head=8, n_embd=64, mlp_ratio=0, tied=False)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "two layers": {},
    "one layer": {"n_layer": 1},
    "one layer, smeared keys": {"n_layer": 1, "smeared_keys": True},
}
TRAINING = {
    "optimizer": "adam",
    "learning_rate": 2e-3,
    "schedule": "constant",
    "warmup_steps": 20,
    "batch_size": 64,
    "steps": 1200,
}
SEEDS = (0, 1, 2, 3, 4)
SNAPSHOT_EVERY = 50
TEST_SEED, TESTED = 2**32, 256  # of sequences that no training draws

# Fixed before the run.
HEAD_SCORE = 0.4
"""From this prefix-matching score on, a head is an induction head."""
LEARNED = 0.5 * math.log(V)
"""A model does induction from the snapshot on at which its in-context gain is above this, nats/token."""
REMOVED, KEPT = 0.25, 0.75
"""Of the gain, an ablation that removes induction leaves at most the first share, one that does not the second."""
DRAWS = 4
FILLS = ("zero", "mean")
SCORES = ("induction", "previous_token", "duplicate_token")
"""Of `head_scores`; `induction` is the prefix matching of Olsson et al. 2022."""


class Task(NamedTuple):
    """Sequences of distinct tokens in which one block comes twice in a row; each array (B, T)."""

    ids: np.ndarray
    targets: np.ndarray
    """the next token, everywhere"""
    first: np.ndarray
    """bool, the next token has not come before"""
    repeat: np.ndarray
    """bool, the next token is one of the second copy from its second on: induction knows it"""


def task(seed: int, step: int, batch_size: int) -> Task:
    """The sequences of a step; block start and length are random, so that positions tell nothing."""
    made = repeated_sequences(seed, step, batch_size, T + 1, V)
    ids, targets = made.ids[:, :-1], made.ids[:, 1:]
    before = np.tri(T, dtype=bool)
    first = ~((targets[:, :, None] == ids[:, None, :]) & before).any(-1)
    return Task(ids, targets, first, made.targets[:, :-1] != IGNORE)


def copying_bound(data: Task) -> float:
    """In-context gain, nats/token, of a model that gives every token that has come the same chance, and others none."""
    seen = 1 + data.first.cumsum(1) - data.first  # distinct tokens up to each
    return math.log(V) - float(np.log(seen)[data.repeat].mean())


@functools.partial(jax.jit, static_argnums=2)
def losses(params: Any, data: Task, cfg: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """Of N models: the mean loss on first occurrences and on repeats, nats/token, (N,) each."""

    def one(params: Any) -> tuple[jax.Array, jax.Array]:
        lost = token_losses(forward(params, data.ids, cfg).logits, data.targets)
        first, repeat = (jnp.where(where, lost, 0).sum() / where.sum() for where in (data.first, data.repeat))
        return first, repeat

    with jax.numpy_dtype_promotion("standard"):
        return jax.lax.map(one, params)


def scores(params: Any, data: Task, cfg: GPTConfig) -> dict[str, np.ndarray]:
    """Of one model: the shares of attention (L, H) that its heads give, from repeats, to what SCORES names."""
    found = head_scores(params, Examples(data.ids, np.where(data.repeat, data.targets, IGNORE)), cfg)
    return {name: getattr(found, name) for name in SCORES}


def gain_left(params: Any, cfg: GPTConfig, data: Task, sets: list[list[tuple[int, int]]], fill: str) -> np.ndarray:
    """In-context gain, nats/token, with each set of heads ablated at z, (N,)."""

    def loss(where: np.ndarray) -> np.ndarray:
        rows = where.any(1)
        counted = np.where(where, data.targets, IGNORE)[rows]
        found = ablate_sets(params, Examples(data.ids[rows], counted), cfg, sets, fill=fill)
        weights = where[rows].sum(1)
        return (found.per_example + found.baseline) @ weights / weights.sum()

    return loss(data.first) - loss(data.repeat)


def ablations(
    params: Any, cfg: GPTConfig, data: Task, score: np.ndarray, head_score: float, seed: int
) -> dict[str, Any]:
    """Of one trained model: its induction heads, and the gain left without 1, 2, … of them and of the others, a mean
    over random choices."""
    induction = [head for head in all_heads(cfg) if score[head] >= head_score]
    found: dict[str, Any] = {"induction_heads": induction}
    if not induction:
        return found
    rng = np.random.default_rng(seed)
    pools = {"induction": induction, "others": [head for head in all_heads(cfg) if head not in induction]}
    sets = {
        name: [[pool[i] for i in rng.permutation(len(pool))[:k]] for k in range(1, len(pool) + 1) for _ in range(DRAWS)]
        for name, pool in pools.items()
    }
    for fill in FILLS:
        left = gain_left(params, cfg, data, sets["induction"] + sets["others"], fill).reshape(-1, DRAWS).mean(1)
        found[fill] = dict(zip(sets, np.split(left, [len(induction)]), strict=True))
    return found


def run(changes: dict[str, Any], quick: bool, data: Task) -> dict[str, Any]:
    """One architecture: all seeds trained in one vmapped call, looked at over training, and ablated at its end."""
    model = dataclasses.replace(BASE, **changes, **({"n_head": 4, "n_embd": 16} if quick else {}))
    cfg = TrainConfig(model=model, **TRAINING | ({"steps": 40, "batch_size": 8} if quick else {}))
    steps = list(range(0, cfg.steps + 1, 20 if quick else SNAPSHOT_EVERY))

    def batch(seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        return task(seed, step, cfg.batch_size)[:2]

    began = time.perf_counter()
    models = train_many(cfg, batch, SEEDS[:2] if quick else SEEDS, snapshots=steps)
    seconds = time.perf_counter() - began
    first, repeat = np.stack([losses(models.snapshots[step], data, model) for step in steps], axis=1)  # (steps, N)
    looks = [
        [scores(pick(models.snapshots[step], i), data, model) for i in range(len(models.configs))] for step in steps
    ]
    seeds = []
    for i, one in enumerate(models.configs):
        last = looks[-1][i]
        learned = np.flatnonzero((first - repeat)[:, i] > LEARNED)
        # A toy has learned nothing: the better half of its heads is called induction heads, to have some to ablate.
        head_score = float(np.median(last["induction"])) if quick else HEAD_SCORE
        seeds.append({
            "seed": one.seed,
            "gain": first[-1, i] - repeat[-1, i],
            "phase_change": steps[learned[0]] if len(learned) else None,
            "best_head": last["induction"].max(),
            "scores": last,
            **ablations(pick(models.params, i), model, data, last["induction"], head_score, one.seed),
        })  # fmt: skip
    induction = np.array([[look["induction"] for look in at] for at in looks])
    curves = {"first": first, "repeat": repeat, "induction": induction}
    return {"seconds": seconds, "steps": steps, "curves": curves, "seeds": seeds}


def claims(found: dict[str, Any]) -> list[dict[str, str]]:
    """What was asked, and whether it holds: of ablations for both fills and as a mean over seeds, which cannot be said
    where no two seeds have as many other heads as induction heads."""
    two, one, smeared = (found[name]["seeds"] for name in ARCHITECTURES)

    def learned(what: str, seeds: list[dict[str, Any]], wanted: bool = True) -> dict[str, str]:
        steps = [seed["phase_change"] for seed in seeds if seed["phase_change"] is not None]
        holds = len(steps) == (len(seeds) if wanted else 0)
        when = f", at step {spread(steps, 0)}" if len(steps) > 1 else ""
        return claim(what, f"{len(steps)} of {len(seeds)} seeds{when}", HOLDS if holds else FAILS)

    def left(what: str, seeds: list[dict[str, Any]], group: str) -> dict[str, str]:
        shares = shares_left(seeds, group)
        if shares is None:
            return claim(what, "too few such heads", OPEN)
        said = ", ".join(f"{share:.0%} ({fill} in their place)" for share, fill in zip(shares, FILLS, strict=True))
        holds = max(shares) <= REMOVED if group == "induction" else min(shares) >= KEPT
        return claim(what, f"gain from context left: {said}", HOLDS if holds else FAILS)

    return [
        learned("every two-layer attention-only model learns induction", two),
        learned("no one-layer model learns induction", one, wanted=False),
        learned("every one-layer model with smeared keys learns induction", smeared),
        *(
            one
            for name, seeds in (("two layers", two), ("one layer, smeared keys", smeared))
            for one in (
                left(f"{name}: without its induction heads the gain from context is gone", seeds, "induction"),
                left(f"{name}: without as many other heads the gain from context stays", seeds, "others"),
            )
        ),
    ]


def shares_left(seeds: list[dict[str, Any]], group: str) -> list[float] | None:
    """Of the gain, the share left without as many heads of a group as there are induction heads: for each fill a mean
    over the seeds that have as many."""
    able = [seed for seed in seeds if len(seed.get("zero", {}).get(group, ())) >= len(seed["induction_heads"]) > 0]
    shares = [[seed[fill][group][len(seed["induction_heads"]) - 1] / seed["gain"] for seed in able] for fill in FILLS]
    return [float(np.mean(part)) for part in shares] if len(able) > 1 else None


def measure(quick: bool) -> dict[str, Any]:
    data = task(TEST_SEED, 0, 32 if quick else TESTED)
    found = {name: run(changes, quick, data) for name, changes in ARCHITECTURES.items()}
    return {
        "uniform": math.log(V),
        "copying_bound": copying_bound(data),
        "head_score": HEAD_SCORE,
        "learned": LEARNED,
        "architectures": found,
        "claims": claims(found),
    }


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results))
    figure(results, out / "induction.png")


if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report)
