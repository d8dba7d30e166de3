"""Which heads of the default model matter, and how many can go before its loss rises by 1 %?

python -m experiments.heads.run [--run RUN] [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared.common import main
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.remove.ablate import Ablation, ablate_heads
from tinygpt_jax.lab.remove.curve import MIN_RANDOM, least_first, pruning_curve
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.importance import ESTIMATES, head_importance
from tinygpt_jax.lab.remove.shapley import shapley
from tinygpt_jax.lab.windows import halves, repeats, run_windows
from tinygpt_jax.params import Params
from tinygpt_jax.runs import load
from tinygpt_jax.statistics import rank_correlation_and_se, reliability
from tinygpt_jax.text import Examples

HERE = Path(__file__).parent
FILLS = ("zero", "mean", "resample")
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)
QUICK = ["--steps", "20", "--n-layer", "2", "--n-embd", "32", "--eval-every", "20"]
RANDOM_ORDERS = 20
TOLERANCE = 0.01
WINDOWS = 128
"""Of the validation text; half to choose, half to judge."""


def train(out: Path, quick: bool) -> Path:
    """The default run, in a process of its own."""
    command = [sys.executable, "-m", "tinygpt_jax", "train", "--sample-every", "0", "--out", str(out)]
    subprocess.run([*command, *(QUICK if quick else [])], check=True)
    return out


def measure(quick: bool, run: Path | None) -> dict[str, Any]:
    """All of it, on a run at hand or on one trained for it."""
    with tempfile.TemporaryDirectory() as work:
        return measure_run(run or train(Path(work) / "run", quick), 16 if quick else WINDOWS, quick)


def measure_run(run: Path, windows: int, quick: bool) -> dict[str, Any]:
    """All of a run's heads."""
    model = load(run)
    params, cfg = model.params, model.cfg
    examples = run_windows(run, model, windows)
    chosen, judged = halves(examples)
    effects = {fill: ablate_heads(params, examples, cfg, fill=fill) for fill in FILLS}
    importance = head_importance(params, chosen, cfg, steps=4 if quick else 16)
    game = shapley(params, chosen, cfg, permutations=4 if quick else 64)
    orders = {
        "effect alone": least_first(ablate_heads(params, chosen, cfg).effect),
        "Shapley value": least_first(-game.value.reshape(cfg.n_layer, cfg.n_head)),  # a head that helps lowers the loss
        "gradient": least_first(importance.absolute),
    }
    gates = learn_gates(params, chosen, cfg, STRENGTHS, steps=10 if quick else 300, scored=judged)
    scores = {"text": head_scores(params, examples, cfg), "repeats": head_scores(params, repeats(cfg, windows), cfg)}
    return {
        "loss": float(effects["mean"].baseline.mean()),
        "windows": len(examples.ids),
        "shape": [cfg.n_layer, cfg.n_head],
        **of_effects(effects),
        "importance": {
            name: dict(zip(ESTIMATES, getattr(importance, name), strict=True))
            for name in ("correlation", "correlation_se")
        },
        "shapley": parts(game, "value", "se", "names"),
        **of_curves(params, judged, cfg, orders),
        "gates": {
            "strength": STRENGTHS,
            "kept": gates.kept[:, 0].sum((-1, -2)),
            "rise": gates.rise[:, 0],
            "rise_se": gates.rise_se[:, 0],
        },
        "scores": {on: parts(one, "previous_token", "induction", "copying") for on, one in scores.items()},
    }


def of_effects(effects: dict[str, Ablation]) -> dict[str, Any]:
    """The effects under each fill, and how far other fills rank the heads as the mean does."""
    flat = {fill: one.per_example.reshape(one.effect.size, -1) for fill, one in effects.items()}
    others = [fill for fill in effects if fill != "mean"]
    return {
        "effects": {
            fill: {**parts(one, "effect", "se"), "reliability": reliability(flat[fill], True)}
            for fill, one in effects.items()
        },
        "rank_correlation_with_mean": {
            fill: rank_correlation_and_se(flat[fill], flat["mean"], ordered=True) for fill in others
        },
    }


def of_curves(params: Params, judged: Examples, cfg: GPTConfig, orders: dict[str, np.ndarray]) -> dict[str, Any]:
    """The loss as heads go in each order, and in random ones."""
    found = {
        name: pruning_curve(
            params, judged, cfg, order, tolerance=TOLERANCE, n_random=MIN_RANDOM if i else RANDOM_ORDERS
        )
        for i, (name, order) in enumerate(orders.items())
    }
    names = ("rise", "rise_se", "free", "free_se")
    curves = {
        name: {"order": [head_name(*place) for place in orders[name].tolist()], **parts(one, "loss", *names)}
        for name, one in found.items()
    }
    random = parts(found["effect alone"], *(f"random_{name}" for name in names))
    return {
        "curves": curves,
        "random": {"orders": RANDOM_ORDERS, **{name.removeprefix("random_"): x for name, x in random.items()}},
    }


def parts(found: Any, *names: str) -> dict[str, Any]:
    """These fields of a result."""
    return {name: getattr(found, name) for name in names}


def figure(results: dict[str, Any], file: Path) -> None:
    """Effects of heads with their errors, and the loss as heads go."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = drawn.subplots(1, 2)
    names = [head_name(i, j) for i in range(results["shape"][0]) for j in range(results["shape"][1])]
    colors = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    for shift, (fill, one) in enumerate(results["effects"].items()):
        effect, se = (np.ravel(one[name]) for name in ("effect", "se"))
        at = np.arange(len(names)) + 0.22 * (shift - 1)
        left.errorbar(effect, at, xerr=2 * se, fmt="osD"[shift], color=colors[shift], markersize=4, label=fill)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.set_xscale("symlog", linthresh=0.01)
    left.axvline(0, color="0.6", linewidth=0.8)
    left.set_xlabel("rise of the loss without the head (nats per token)\nbars: ± 2 standard errors; linear below 0.01")
    left.set_ylabel("head (layer.head)")
    left.set_title("The first layer's heads matter most", fontsize=10)
    left.legend(title="in its place", fontsize=8)
    for i, (name, one) in enumerate(results["curves"].items()):
        right.errorbar(
            range(len(one["rise"])), one["rise"], one["rise_se"], fmt="-" + "osD"[i], markersize=3.5, color=colors[i],
            label=f"least {name} first: {one['free']} ± {one['free_se']:.1f} free",
        )  # fmt: skip
    mean, se = (np.array(results["random"][name]) for name in ("rise", "rise_se"))
    free = f"{results['random']['free']:.1f} ± {results['random']['free_se']:.1f} free"
    right.plot(mean, color="0.4", linestyle="--", label=f"random orders: {free}")
    right.fill_between(range(len(mean)), mean - se, mean + se, color="0.4", alpha=0.2, linewidth=0)
    intact = next(iter(results["curves"].values()))["loss"][0]
    right.axhline(intact * TOLERANCE, color="0.6", linewidth=0.8)
    right.set_xlabel("heads removed (mean in their place)")
    right.set_ylabel("rise of the loss (nats per token), ± 1 standard error")
    right.set_ylim(-0.05 * intact, min(0.6 * intact, mean.max() * 1.02))
    right.set_title("Order matters: heads gone before the loss is 1 % up", fontsize=10)
    right.legend(fontsize=8, loc="upper left")
    drawn.savefig(file, dpi=150)


def report(results: dict[str, Any], out: Path) -> None:
    figure(results, out / "heads.png")


if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report, {"run": "a trained run; without it, the default one is trained first"})
