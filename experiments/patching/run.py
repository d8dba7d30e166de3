"""Do activation patching, attribution patching and path patching name the heads that ablation names?

python -m experiments.patching.run [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.patching.report import report
from experiments.shared.common import claim, main, spread, verdict
from tinygpt_jax import GPTConfig, TrainConfig, ablate_heads, attribution_patch, patch, path_patch, pick, train_many
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.patch.paths import Paths
from tinygpt_jax.lab.read.scores import HeadScores, head_scores
from tinygpt_jax.params import Params
from tinygpt_jax.statistics import rank_correlation
from tinygpt_jax.text import Examples, repeated_sequences

HERE = Path(__file__).parent
V, T = 32, 16
MODEL = GPTConfig(vocab_size=V, block_size=T, n_layer=2, n_head=8, n_embd=64, mlp_ratio=0, tied=False)
TRAINING = TrainConfig(
    model=MODEL, optimizer="adam", learning_rate=2e-3, schedule="constant", warmup_steps=20, batch_size=64, steps=800
)
QUICK = {"steps": 20, "batch_size": 8}
QUICK_MODEL = {"n_head": 2, "n_embd": 16}
SEEDS = (0, 1, 2, 3, 4)
TEST_SEED, TESTED = 2**32, 256  # of sequences that no training draws
DIRECTIONS = {"noise": 1, "denoise": -1}
"""Direction -> the sign of harm in its effects: noise raises the loss where a head matters, denoising lowers it."""

# Fixed before the run.
TOP = 4
"""Heads that a method names: those of the greatest harm."""
AGREE, SHARED = 0.7, 0.75
"""Two methods name the same heads where their mean rank correlation, and the mean share of the TOP, are at least so."""
HEAD_SCORE = 0.4
"""From this score on a head is a previous-token or an induction head."""


def batch(seed: int, step: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens of which a block comes twice, and the next token everywhere, (B, T) each."""
    ids = repeated_sequences(seed, step, batch_size, T + 1, V).ids
    return ids[:, :-1], ids[:, 1:]


def harms(params: Params, cfg: GPTConfig, clean: Examples, corrupted: Examples) -> tuple[dict[str, np.ndarray], Paths]:
    """Method -> what each head is worth to the loss on the second copy, nats per token, (P,) heads layer by layer; and
    the paths, of which a head's harm is the sum over those that begin or end in it."""
    found = {
        f"ablation, {fill}": ablate_heads(params, clean, cfg, fill=fill).effect for fill in ("mean", "zero", "resample")
    }
    for direction, sign in DIRECTIONS.items():
        runs = (params, clean, corrupted, cfg)
        found[f"patching, {direction}"] = sign * patch(*runs, "z", ("layer", "head"), direction).effect
        estimate = attribution_patch(*runs, "z", ("layer", "head"), direction, compare=False).estimate[0]
        found[f"attribution, {direction}"] = sign * estimate
    paths = path_patch(params, clean, corrupted, cfg, direction="noise")
    whole = np.nan_to_num(paths.effect).sum(0)
    found["paths, noise"] = whole.sum(0) + whole.sum(1)
    return {name: np.ravel(harm) for name, harm in found.items()}, paths


def top(harm: Sequence[float]) -> set[int]:
    return set(np.argsort(-np.asarray(harm), kind="stable")[:TOP].tolist())


def agreement(seeds: Sequence[dict[str, Any]], one: str, other: str) -> dict[str, list[float]]:
    """Of two methods, seed by seed: the rank correlation over all heads, the share of the TOP that both name, and
    whether they name the same head first."""
    both = [(np.array(seed["harm"][one]), np.array(seed["harm"][other])) for seed in seeds]
    return {
        "correlation": [float(rank_correlation(a, b)) for a, b in both],
        "shared": [len(top(a) & top(b)) / min(TOP, len(a)) for a, b in both],
        "first": [float(a.argmax() == b.argmax()) for a, b in both],
    }


def strongest(paths: Paths, scores: HeadScores) -> dict[str, Any]:
    """The path of the largest effect, and whether it leads from a previous-token head to an induction head's keys."""
    size = np.nan_to_num(np.abs(paths.effect))
    which, sender, receiver = (int(i) for i in np.unravel_index(size.argmax(), size.shape))
    previous, induction = scores.previous_token.ravel()[sender], scores.induction.ravel()[receiver]
    return {
        "path": f"{paths.names[sender]} to {paths.names[receiver]} {paths.inputs[which]}",
        "effect": float(paths.effect[which, sender, receiver]),
        "previous_token": float(previous),
        "induction": float(induction),
        "as_expected": bool(paths.inputs[which] == "k" and previous >= HEAD_SCORE and induction >= HEAD_SCORE),
    }


def look(params: Params, cfg: GPTConfig, clean: Examples, corrupted: Examples) -> dict[str, Any]:
    """All methods on one trained model."""
    harm, paths = harms(params, cfg, clean, corrupted)
    whole = patch(params, clean, corrupted, cfg, "resid_pre", "layer", "noise")
    ends = {"clean": float(whole.baseline.mean()), "corrupted": float(whole.donor.mean())}
    return {"loss": ends, "harm": harm, "strongest": strongest(paths, head_scores(params, clean, cfg))}


def claims(seeds: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What was claimed, what was measured, and whether it holds."""
    pairs = {
        "Activation patching names the heads that ablation names": [
            ("patching, noise", "ablation, mean"),
            ("patching, denoise", "ablation, mean"),
        ],
        "Attribution patching names the heads that activation patching names": [
            (f"attribution, {way}", f"patching, {way}") for way in DIRECTIONS
        ],
        "Path patching names the heads that ablation names": [("paths, noise", "ablation, mean")],
    }
    rows = []
    for what, both in pairs.items():
        found = {one: agreement(seeds, one, other) for one, other in both}
        measured = [
            f"{name}: rank correlation {spread(a['correlation'], 2)}, {spread(a['shared'], 2)} of the top {TOP}"
            for name, a in found.items()
        ]
        holds = [np.mean(a["correlation"]) >= AGREE and np.mean(a["shared"]) >= SHARED for a in found.values()]
        rows.append(claim(what, "; ".join(measured), verdict(holds)))
    expected = [seed["strongest"]["as_expected"] for seed in seeds]
    rows.append(
        claim(
            "The strongest path leads from a previous-token head to the keys of an induction head",
            f"in {sum(expected)} of {len(expected)} models",
            verdict(expected),
        )
    )
    return rows


def measure(quick: bool) -> dict[str, Any]:
    """Models of all seeds, trained in one vmapped step, and every method on each of them."""
    model = dataclasses.replace(MODEL, **(QUICK_MODEL if quick else {}))
    cfg = dataclasses.replace(TRAINING, model=model, **(QUICK if quick else {}))
    models = train_many(cfg, lambda seed, step: batch(seed, step, cfg.batch_size), SEEDS[:2] if quick else SEEDS)
    tested = 32 if quick else TESTED
    clean, corrupted = (repeated_sequences(TEST_SEED, 0, tested, T, V, corrupted=bad) for bad in (False, True))
    seeds = [look(pick(models.params, i), model, clean, corrupted) for i in range(len(models.configs))]
    names = [head_name(*divmod(i, model.n_head)) for i in range(model.n_layer * model.n_head)]
    methods = [name for name in seeds[0]["harm"] if name != "ablation, mean"]
    return {
        "claims": claims(seeds),
        "steps": cfg.steps,
        "heads": names,
        "agreement_with_ablation": {name: agreement(seeds, name, "ablation, mean") for name in methods},
        "seeds": seeds,
    }


if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report)
