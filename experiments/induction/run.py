"""Do two attention layers, and not one, learn induction in a sudden step, and is it the induction heads that do it?

python -m experiments.induction.run [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.induction.report import figure, table
from experiments.machine import machine
from tinygpt_jax import GPTConfig, TrainConfig, forward, pick, train_many
from tinygpt_jax.heads.ablate import ablate
from tinygpt_jax.heads.components import all_heads
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
"""From this prefix-matching score on, a head is an induction head; from this score on, a previous-token head."""
LEARNED = 0.5 * math.log(V)
"""A model does induction from the snapshot on at which its in-context gain is above this, nats/token."""
REMOVED, KEPT = 0.25, 0.75
"""Of the gain, an ablation that removes induction leaves at most the first share, one that does not the second."""
DRAWS = 8
FILLS = ("zero", "mean")


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
def observe(params: Any, data: Task, cfg: GPTConfig) -> dict[str, jax.Array]:
    """Of N models: mean loss (N,) on first occurrences and on repeats, nats/token; of each head (N, L, H) the attention
    on the token that followed the earlier occurrence (prefix matching) and on the token before, from repeats."""

    def mean(x: jax.Array, where: jax.Array) -> jax.Array:
        return jnp.where(where, x, 0).sum((-2, -1)) / where.sum().astype(jnp.float32)

    def on(pattern: jax.Array, keys: jax.Array) -> jax.Array:
        share = jnp.where(keys[:, None], pattern, 0).sum(-1)
        return mean(share.transpose(0, 2, 1, 3), data.repeat)

    def one(params: Any) -> dict[str, jax.Array]:
        out = forward(params, data.ids, cfg, taps="pattern")
        losses, pattern = token_losses(out.logits, data.targets), out.taps["pattern"]
        t = jnp.arange(T, dtype=jnp.int32)
        came = jnp.pad(data.ids[:, :, None] == data.ids[:, None, :-1], ((0, 0), (0, 0), (1, 0)))
        return {
            "first": mean(losses, data.first),
            "repeat": mean(losses, data.repeat),
            "prefix_matching": on(pattern, came & (t[:, None] >= t)),
            "previous_token": on(pattern, jnp.broadcast_to(t[:, None] == t + 1, came.shape)),
        }

    return jax.lax.map(one, params)


def gain_left(params: Any, cfg: GPTConfig, data: Task, sets: list[list[tuple[int, int]]], fill: str) -> np.ndarray:
    """In-context gain, nats/token, with each set of heads ablated at z, (N,)."""

    def loss(where: np.ndarray) -> np.ndarray:
        rows = where.any(1)
        counted = np.where(where, data.targets, IGNORE)[rows]
        found = ablate(params, Examples(data.ids[rows], counted), cfg, sets, fill=fill)
        weights = where[rows].sum(1)
        return (found.per_example + found.baseline) @ weights / weights.sum()

    return loss(data.first) - loss(data.repeat)


def ablations(
    params: Any, cfg: GPTConfig, data: Task, seen: dict[str, np.ndarray], head_score: float, seed: int
) -> dict[str, Any]:
    """Of one trained model: its induction heads, and the gain left without them and without as many others at random,
    drawn from all others, and from others that do not attend to the token before; None where there are none."""

    def named(score: str) -> list[tuple[int, int]]:
        return [head for head in all_heads(cfg) if seen[score][head] >= head_score]

    induction, previous = named("prefix_matching"), named("previous_token")
    others = [head for head in all_heads(cfg) if head not in induction]
    spared = [head for head in others if head not in previous]
    found: dict[str, Any] = {"induction_heads": induction, "previous_token_heads": previous}
    if not induction:
        return found
    rng = np.random.default_rng(seed)
    groups = {"induction": [induction]}
    for name, pool in (("random", others), ("spared", spared)):
        k = min(len(induction), len(pool))
        groups[name] = [[pool[i] for i in rng.choice(len(pool), k, replace=False)] for _ in range(DRAWS if k else 0)]
    for fill in FILLS:
        left = iter(gain_left(params, cfg, data, [one for sets in groups.values() for one in sets], fill))
        found[fill] = {
            name: float(np.mean([next(left) for _ in sets])) if sets else None for name, sets in groups.items()
        }
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
    curves = [jax.device_get(observe(models.snapshots[step], data, model)) for step in steps]
    curves = {name: np.stack([curve[name] for curve in curves]) for name in curves[0]}  # (steps, N, ...)
    gain = curves["first"] - curves["repeat"]
    seeds = []
    for i, one in enumerate(models.configs):
        seen = {name: curves[name][-1, i] for name in ("prefix_matching", "previous_token")}
        learned = np.flatnonzero(gain[:, i] > LEARNED)
        seeds.append({
            "seed": one.seed,
            "gain": gain[-1, i],
            "phase_change": steps[learned[0]] if len(learned) else None,
            "best_head": seen["prefix_matching"].max(),
            # A toy has learned nothing: call its better half induction heads, to have some to ablate.
            **ablations(
                pick(models.params, i),
                model,
                data,
                seen,
                float(np.median(seen["prefix_matching"])) if quick else HEAD_SCORE,
                one.seed,
            ),
        })  # fmt: skip
    return {"seconds": seconds, "steps": steps, "curves": curves, "seeds": seeds}


def claims(found: dict[str, Any]) -> dict[str, bool]:
    """What was asked, and whether it holds; of ablations, for both fills and as a mean over seeds."""
    two, one, smeared = (found[name]["seeds"] for name in ARCHITECTURES)

    def changed(seeds: list[dict[str, Any]]) -> list[bool]:
        return [seed["phase_change"] is not None for seed in seeds]

    def shares(seeds: list[dict[str, Any]], group: str) -> list[float]:
        """Of the gain, what is left: for each fill, the mean over seeds."""
        left = [[seed[fill][group] / seed["gain"] for seed in seeds if seed.get(fill, {}).get(group)] for fill in FILLS]
        return [float(np.mean(shares)) if shares else math.nan for shares in left]

    verdicts = {
        "every two-layer model learns induction": all(changed(two)),
        "no one-layer model does": not any(changed(one)),
        "every one-layer model with smeared keys does": all(changed(smeared)),
    }
    for name, seeds in (("two layers", two), ("one layer, smeared keys", smeared)):
        gone, stays, spared = (shares(seeds, group) for group in ("induction", "random", "spared"))
        verdicts |= {
            f"{name}: without its induction heads the gain is gone": all(share <= REMOVED for share in gone),
            f"{name}: without as many random others it stays": all(share >= KEPT for share in stays),
            f"{name}: without as many others but previous-token heads it stays": all(s >= KEPT for s in spared),
        }
    return verdicts


def measure(quick: bool) -> dict[str, Any]:
    data = task(TEST_SEED, 0, 32 if quick else TESTED)
    found = {name: run(changes, quick, data) for name, changes in ARCHITECTURES.items()}
    return {
        "machine": machine(),
        "quick": quick,
        "uniform": math.log(V),
        "copying_bound": copying_bound(data),
        "head_score": HEAD_SCORE,
        "learned": LEARNED,
        "architectures": found,
        "claims": claims(found),
    }


def written(results: dict[str, Any]) -> str:
    """JSON with four decimals, a list of numbers on one line."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        if isinstance(value, (list, tuple, np.ndarray)):
            return [plain(part) for part in value]
        return round(float(value), 4) if isinstance(value, (float, np.floating)) else value

    text = json.dumps(plain(results), indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE, help="where results.json, table.md and induction.png go")
    parser.add_argument("--redraw", action="store_true", help="make table and figure from the results at hand")
    options = parser.parse_args()
    if not options.redraw:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "results.json").write_text(written(measure(options.quick)))
    results = json.loads((options.out / "results.json").read_text())
    (options.out / "table.md").write_text(table(results))
    figure(results, options.out / "induction.png")


if __name__ == "__main__":
    main()
