"""Adam, SGD with momentum and Muon, each at its best rate of a grid; and is the first loss ln V?

python -m experiments.optimizers.run [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.optimizers.first import SCALES, first_losses
from experiments.optimizers.report import report
from experiments.shared.common import claim, main, mean_and_se, spread, verdict
from experiments.shared.paired import higher, less
from experiments.shared.text import SEEDS, base, corpus, trained
from tinygpt_jax import evaluate_tokens, pick, train_many
from tinygpt_jax.config import TrainConfig

HERE = Path(__file__).parent
RATES = {"adam": (1e-3, 3e-3, 1e-2, 3e-2), "sgd": (0.03, 0.1, 0.3, 1.0), "muon": (5e-3, 1e-2, 2e-2, 4e-2)}
"""Peak learning rates that are tried; SGD has momentum 0.9."""
CHOOSING = (100, 101)
"""Seeds on which a rate is chosen; it is judged on the others, SEEDS."""
STEPS = 300
SMOOTH = 10
"""Steps whose training losses are averaged to a point of a curve."""

# Fixed before the run; `experiments.shared.paired` has what counts as a difference.
NEAR = 0.05
"""The first loss is ln V where it is within so many nats of it."""


def training(optimizer: str, quick: bool) -> TrainConfig:
    """The base training with another optimizer, and shorter."""
    cfg = base(quick)
    return dataclasses.replace(cfg, optimizer=optimizer, steps=cfg.steps if quick else STEPS)


def tried(cfg: TrainConfig, rates: Sequence[float], quick: bool) -> list[list[float]]:
    """Validation losses of each rate with each seed of CHOOSING, nats per character."""
    models = train_many(cfg, corpus(quick).train.ids, CHOOSING, learning_rates=rates)
    losses = [
        evaluate_tokens(pick(models.params, i), cfg.model, corpus(quick).val).loss for i in range(len(models.configs))
    ]
    return np.reshape(losses, (len(CHOOSING), len(rates))).T.tolist()


def best(rates: Sequence[float], losses: Sequence[Sequence[float]]) -> float:
    """The rate of the least mean loss; one at which a training came apart is none."""
    means = [mean if math.isfinite(mean) else math.inf for mean in (float(np.mean(row)) for row in losses)]
    return rates[int(np.argmin(means))]


def run(optimizer: str, quick: bool) -> dict[str, Any]:
    """An optimizer: its grid, the rate chosen, and what five other seeds come to at it."""
    began = time.perf_counter()
    cfg, rates = training(optimizer, quick), RATES[optimizer]
    grid = tried(cfg, rates, quick)
    rate = best(rates, grid)
    found = trained(dataclasses.replace(cfg, learning_rate=rate), quick)
    curve = np.asarray(found.models.metrics.loss, np.float64)
    every = 1 if quick else SMOOTH
    result = {
        "rates": rates,
        "grid": grid,
        "rate": rate,
        "at_the_edge": rate in (rates[0], rates[-1]),
        "loss": found.loss.tolist(),
        "steps": list(range(every, curve.shape[1] + 1, every)),
        "curve": curve.reshape(len(curve), -1, every).mean(-1),
    }
    seconds = time.perf_counter() - began
    print(f"{optimizer} at {rate:g}: {spread(result['loss'], 4)} nats/character, {seconds:.0f} s", file=sys.stderr)
    return result


def apart(one: dict[str, Any], scale: float) -> list[float]:
    """The first losses at a scale less ln V, seed by seed, nats."""
    return [loss - one["ln_V"] for loss in one["losses"][f"{scale:g}"]]


def claims(optimizers: dict[str, dict[str, Any]], first: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What was claimed, what was measured, and whether it holds."""
    adam, sgd, muon = (optimizers[name]["loss"] for name in ("adam", "sgd", "muon"))
    off = {scale: [mean_and_se(apart(one, scale))[0] for one in first] for scale in SCALES}
    worst = {scale: max(values, key=abs) for scale, values in off.items()}
    started = [f"{spread(apart(one, 1.0), 4)} at V = {one['vocab_size']:,} ({one['of']})" for one in first]
    return [
        claim(
            "Adam trains a GPT better than SGD with momentum, each at its best rate",
            f"SGD less Adam {spread(less(sgd, adam), 4)} nats/character after {STEPS} steps",
            verdict([higher(less(sgd, adam))]),
        ),
        claim(
            "Muon, step for step, trains a GPT better than Adam, each at its best rate",
            f"Adam less Muon {spread(less(adam, muon), 4)} nats/character after {STEPS} steps",
            verdict([higher(less(adam, muon))]),
        ),
        claim(
            "The first loss is ln V",
            f"nats above it: {', '.join(started)}",
            verdict([abs(value) <= NEAR for value in off[1.0]]),
        ),
        claim(
            "The first loss is ln V whatever the size of the initial weights",
            f"nats off at the most: {', '.join(f'{off:+.3f} with weights x {s:g}' for s, off in worst.items())}",
            verdict([abs(value) <= NEAR for value in worst.values()]),
        ),
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Untrained models, then every optimizer."""
    first = first_losses(SEEDS[:2] if quick else SEEDS, quick)
    optimizers = {name: run(name, quick) for name in RATES}
    return {"claims": claims(optimizers, first), "steps": STEPS, "first": first, "optimizers": optimizers}


if __name__ == "__main__":
    main(__doc__, HERE, measure, report)
