"""Do norms, residuals and small initial weights do for a deep stack of blocks what is said of them?

python -m experiments.depth.run [--quick]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.depth.report import report
from experiments.depth.stacks import (
    INITS,
    first_gradient,
    fresh,
    stack_of,
    stream,
    trained_from,
    unigram_loss,
    windows_of,
)
from experiments.shared.common import FAILS, HOLDS, PARTLY, claim, main, mean_and_se, spread, verdict
from experiments.shared.paired import higher
from experiments.shared.text import SEEDS
from experiments.shared.weights import scaled
from tinygpt_jax.runtime import keep_freed_pages, use_compilation_cache

HERE = Path(__file__).parent
DEEPEST = 64
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
TRAINED = (2, 8, 24)
STACKS: dict[str, dict[str, Any]] = {
    "LayerNorm": {},
    "RMSNorm": {"norm": "rmsnorm"},
    "no norm": {"norm": "none"},
    "no residuals": {"residual": False},
    "neither": {"norm": "none", "residual": False},
}
LEARNERS = ("LayerNorm", "no norm", "no residuals")
"""Of the stacks, those that are trained."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""By which the blocks' initial matrices are multiplied, to see when a block is no longer nearly the identity."""
IDENTITY_DEPTH = 8
"""Of the stack on which that is measured, before training and after; one of TRAINED."""

# Fixed before the run.
IN_RANGE = 32.0
"""A stream is in range where no block's output is more than so many times the embedding, root mean squares."""
FADED = 1e-3
"""A gradient has faded where less than this share of that of a one-layer stack is left."""
BEATEN = 0.05
"""A model has trained where its validation loss is finite and so many nats per character below that of unigrams."""
NEARLY, HARDLY = 0.1, 0.5
"""A block that changes its input by at most the first share of it is nearly the identity, up to the second one partly;
every layer and seed counts."""


def streams(quick: bool, seeds: Sequence[int]) -> dict[str, Any]:
    """Initialisation -> stack -> what `stream` finds in the deepest one, (seeds, L) each."""
    found: dict[str, Any] = {init: {} for init in INITS}
    for name, changes in STACKS.items():
        cfg = stack_of(8 if quick else DEEPEST, quick, **changes).model
        ids, _ = windows_of(cfg, quick)
        for init in INITS:
            rows = [stream(fresh(cfg, init, seed), ids, cfg) for seed in seeds]
            found[init][name] = {key: [row[key] for row in rows] for key in ("rms", "logits", "apart")}
    return found


def gradients(quick: bool, seeds: Sequence[int]) -> dict[str, Any]:
    """Initialisation -> stack -> norm of the first layer's gradient, (depths, seeds)."""
    found: dict[str, Any] = {init: {name: [] for name in STACKS} for init in INITS}
    for name, changes in STACKS.items():
        for depth in DEPTHS[:4] if quick else DEPTHS:
            cfg = stack_of(depth, quick, **changes).model
            batch = windows_of(cfg, quick)
            for init in INITS:
                found[init][name].append([first_gradient(fresh(cfg, init, seed), *batch, cfg) for seed in seeds])
    return found


def identity(trained: Sequence[Any], quick: bool, seeds: Sequence[int]) -> dict[str, Any]:
    """A block's relative change (seeds, L) at each factor on the initial weights, and in trained models."""
    cfg = stack_of(IDENTITY_DEPTH, quick).model
    ids, _ = windows_of(cfg, quick)
    initial = [fresh(cfg, "package", seed) for seed in seeds]
    return {
        "factors": list(FACTORS),
        "initial": [[stream(scaled(params, f), ids, cfg)["change"] for params in initial] for f in FACTORS],
        "trained": [stream(params, ids, cfg)["change"] for params in trained],
    }


def trainings(quick: bool, seeds: Sequence[int]) -> tuple[dict[str, Any], list[Any]]:
    """Initialisation -> stack -> depth -> what each seed came to; and the models with LayerNorm for `identity`."""
    found: dict[str, Any] = {init: {name: {} for name in LEARNERS} for init in INITS}
    kept: list[Any] = []
    for depth in (2, IDENTITY_DEPTH) if quick else TRAINED:
        for name in LEARNERS:
            cfg = stack_of(depth, quick, **STACKS[name])
            for init in INITS:
                found[init][name][depth], models = trained_from(cfg, init, seeds, quick)
                if (init, name, depth) == ("package", "LayerNorm", IDENTITY_DEPTH):
                    kept = models
    return found, kept


def measure(quick: bool) -> dict[str, Any]:
    keep_freed_pages()
    use_compilation_cache()
    seeds = SEEDS[:2] if quick else SEEDS
    found: dict[str, Any] = {"depths": list(DEPTHS[:4] if quick else DEPTHS), "unigram": unigram_loss(quick)}
    found |= {"streams": streams(quick, seeds), "gradients": gradients(quick, seeds)}
    found["trainings"], kept = trainings(quick, seeds)
    found["identity"] = identity(kept, quick, seeds)
    return {"in_range": IN_RANGE, "faded": FADED, "nearly": NEARLY, **found, "claims": claims(found)}


def claims(found: dict[str, Any]) -> list[dict[str, str]]:
    return [
        *claims_of_range(found["streams"]),
        *claims_of_gradient(found["gradients"]),
        *claims_of_training(found["trainings"], found["unigram"]),
        *claims_of_identity(found["identity"]),
    ]


def highest(of: Any) -> float:
    """The largest value, infinite where one is not finite."""
    values = np.array(of, np.float64)
    return float(values.max()) if np.isfinite(values).all() else np.inf


def claims_of_range(streams: dict[str, Any]) -> list[dict[str, str]]:
    top = {(init, name): [highest(seed) for seed in streams[init][name]["rms"]] for init in INITS for name in STACKS}
    within = {key: max(values) <= IN_RANGE for key, values in top.items()}
    lost = {key: min(values) > IN_RANGE for key, values in top.items()}

    def told(*names: str) -> str:
        cases = [f"{spread_wide(top[init, name])} ({name}, {init})" for name in names for init in INITS]
        return "largest root mean square over the embedding's: " + ", ".join(cases)

    return [
        claim(
            "a norm keeps the residual stream in range through a deep stack",
            told("LayerNorm", "RMSNorm"),
            verdict([within[init, name] for name in ("LayerNorm", "RMSNorm") for init in INITS]),
        ),
        claim(
            "without a norm the stream leaves the range",
            told("no norm"),
            verdict([lost[init, "no norm"] for init in INITS]),
        ),
    ]


def spread_wide(values: Sequence[float]) -> str:
    """`mean ± standard error` of values of any size; in words where one is not finite, and as powers where large."""
    if not np.isfinite(values).all():
        return "not finite"
    mean, se = mean_and_se(values)
    return f"{mean:.3g} ± {se:.1g}"


def left(gradient: Sequence[Sequence[float]]) -> list[float]:
    """Of the gradient of the shallowest stack, the share left in the deepest, seed by seed."""
    share: list[float] = (np.array(gradient[-1], np.float64) / np.array(gradient[0], np.float64)).tolist()
    return share


def claims_of_gradient(gradients: dict[str, Any]) -> list[dict[str, str]]:
    shares = {(init, name): left(gradients[init][name]) for init in INITS for name in STACKS}

    def told(*names: str) -> str:
        cases = [f"{spread_wide(shares[init, name])} ({name}, {init})" for name in names for init in INITS]
        return "share of a one-layer stack's gradient left: " + ", ".join(cases)

    return [
        claim(
            "with residuals the gradient reaches the first layer of a deep stack",
            told("LayerNorm"),
            verdict([min(shares[init, "LayerNorm"]) >= FADED for init in INITS]),
        ),
        claim(
            "without residuals the gradient fades before the first layer",
            told("no residuals", "neither"),
            verdict([max(shares[init, name]) < FADED for name in ("no residuals", "neither") for init in INITS]),
        ),
    ]


def learned(outcomes: Sequence[dict[str, Any]], unigram: float) -> list[bool]:
    return [one["loss"] is not None and one["loss"] < unigram - BEATEN for one in outcomes]


def claims_of_training(trainings: dict[str, Any], unigram: float) -> list[dict[str, str]]:
    def deepest(init: str, name: str) -> list[dict[str, Any]]:
        by_depth = trainings[init][name]
        return by_depth[max(by_depth, key=int)]

    def told(name: str) -> str:
        cases = []
        for init in INITS:
            outcomes = deepest(init, name)
            share = f"{sum(learned(outcomes, unigram))} of {len(outcomes)}"
            cases.append(f"{spread_of(outcomes)} nats/character, {share} trained ({init})")
        return "; ".join(cases)

    def fails(name: str) -> list[bool]:
        return [not any(learned(deepest(init, name), unigram)) for init in INITS]

    def worse(name: str) -> list[bool]:
        """By initialisation: its loss is higher than with LayerNorm and residuals."""
        return [apart(deepest(init, name), deepest(init, "LayerNorm")) for init in INITS]

    def judge(name: str) -> str:
        return HOLDS if all(fails(name)) else PARTLY if any(fails(name) + worse(name)) else FAILS

    trains = [all(learned(deepest(init, "LayerNorm"), unigram)) for init in INITS]
    return [
        claim("24 layers train with LayerNorm and residuals", told("LayerNorm"), verdict(trains)),
        claim("24 layers do not train without a norm", told("no norm"), judge("no norm")),
        claim("24 layers do not train without residuals", told("no residuals"), judge("no residuals")),
    ]


def spread_of(outcomes: Sequence[dict[str, Any]]) -> str:
    losses = [one["loss"] for one in outcomes if one["loss"] is not None and np.isfinite(one["loss"])]
    return spread(losses, 3 if max(losses) < 100 else 0) if len(losses) > 1 else "not finite"


def apart(these: Sequence[dict[str, Any]], those: Sequence[dict[str, Any]]) -> bool:
    """Whether the losses of the first are higher, seed by seed; a loss that is not finite is."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(these, those, strict=True)]
    if any(a is None or not np.isfinite(a) for a, _ in pairs):
        return True
    return higher([a - b for a, b in pairs])


def claims_of_identity(identity: dict[str, Any]) -> list[dict[str, str]]:
    initial = np.array(identity["initial"][identity["factors"].index(1.0)], np.float64)  # (seeds, L)
    trained = np.array(identity["trained"], np.float64)
    top = initial.max()
    grown = trained - initial
    mean = grown.mean(1).tolist()  # over layers, seed by seed
    further = [higher(layer) for layer in grown.T.tolist()]
    return [
        claim(
            "at the package's initial weights a block is nearly the identity",
            f"size of block(x) - x over that of x {spread(initial.mean(1).tolist(), 3)}, at most {top:.3f} in any "
            "layer and seed",
            HOLDS if top <= NEARLY else PARTLY if top <= HARDLY else FAILS,
        ),
        claim(
            "training takes blocks away from the identity",
            f"{spread(trained.mean(1).tolist(), 2)} after training, {spread(mean, 2)} more than before as a mean "
            f"of layers; more in {sum(further)} of {len(further)} layers",
            HOLDS if all(further) else PARTLY if higher(mean) else FAILS,
        ),
    ]


if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report)
