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
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.remove.ablate import ablate_heads
from tinygpt_jax.lab.remove.curve import MIN_RANDOM, least_first, pruning_curve
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.importance import ESTIMATES, head_importance
from tinygpt_jax.lab.remove.shapley import shapley
from tinygpt_jax.lab.windows import halves, repeats, run_windows
from tinygpt_jax.runs import load
from tinygpt_jax.statistics import rank_correlation_and_se, reliability

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
    flat = {fill: one.per_example.reshape(cfg.n_layer * cfg.n_head, -1) for fill, one in effects.items()}
    importance = head_importance(params, chosen, cfg, steps=4 if quick else 16)
    game = shapley(params, chosen, cfg, permutations=4 if quick else 64)
    orders = {
        "effect alone": least_first(ablate_heads(params, chosen, cfg).effect),
        "Shapley value": least_first(-game.value.reshape(cfg.n_layer, cfg.n_head)),  # a head that helps lowers the loss
        "gradient": least_first(importance.absolute),
    }
    curves = {
        name: pruning_curve(
            params, judged, cfg, order, tolerance=TOLERANCE, n_random=MIN_RANDOM if i else RANDOM_ORDERS
        )
        for i, (name, order) in enumerate(orders.items())
    }
    gates = learn_gates(params, chosen, cfg, STRENGTHS, steps=10 if quick else 300, scored=judged)
    scores = {"text": head_scores(params, examples, cfg), "repeats": head_scores(params, repeats(cfg, windows), cfg)}
    return {
        "loss": float(effects["mean"].baseline.mean()),
        "windows": len(examples.ids),
        "shape": [cfg.n_layer, cfg.n_head],
        "effects": {
            fill: {"effect": one.effect.tolist(), "se": one.se.tolist(), "reliability": reliability(flat[fill], True)}
            for fill, one in effects.items()
        },
        "rank_correlation_with_mean": {
            fill: rank_correlation_and_se(flat[fill], flat["mean"], ordered=True) for fill in FILLS if fill != "mean"
        },
        "importance": {
            "correlation": dict(zip(ESTIMATES, importance.correlation.tolist(), strict=True)),
            "correlation_se": dict(zip(ESTIMATES, importance.correlation_se.tolist(), strict=True)),
        },
        "shapley": {
            "value": game.value.tolist(),
            "se": game.se.tolist(),
            "names": list(game.names),
        },
        "curves": {
            name: {
                "order": [head_name(*place) for place in orders[name].tolist()],
                "loss": one.loss.tolist(),
                "rise": one.rise.tolist(),
                "rise_se": one.rise_se.tolist(),
                "free": one.free,
                "free_se": one.free_se,
            }
            for name, one in curves.items()
        },
        "random": {
            "orders": RANDOM_ORDERS,
            "rise": curves["effect alone"].random_rise.tolist(),
            "rise_se": curves["effect alone"].random_rise_se.tolist(),
            "free": curves["effect alone"].random_free,
            "free_se": curves["effect alone"].random_free_se,
        },
        "gates": {
            "strength": list(STRENGTHS),
            "kept": gates.kept[:, 0].sum((-1, -2)).tolist(),
            "rise": gates.rise[:, 0].tolist(),
            "rise_se": gates.rise_se[:, 0].tolist(),
        },
        "scores": {
            on: {name: getattr(one, name).tolist() for name in ("previous_token", "induction", "copying")}
            for on, one in scores.items()
        },
    }


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
