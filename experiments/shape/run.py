"""Where are a small GPT's parameters, and what do tying the head, several heads and GELU change in its loss?

python -m experiments.shape.run [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from experiments.shape.count import counted
from experiments.shape.report import report
from experiments.shared.common import FAILS, HOLDS, PARTLY, claim, main, mean_and_se, spread, verdict
from experiments.shared.paired import ERRORS, higher, less
from experiments.shared.text import base, trained

HERE = Path(__file__).parent
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"n_head": 4},
    "head of its own": {"n_head": 4, "tied": False},
    "1 head": {"n_head": 1},
    "2 heads": {"n_head": 2},
    "8 heads": {"n_head": 8},
    "ReLU": {"n_head": 4, "activation": "relu"},
}
"""What each changes in the base of experiments.shared.text: 4 heads, a tied head, GELU."""

# Fixed before the run.
MOST = 0.5
"""Most of the parameters are in the MLPs where they hold more than this share."""
AS_WELL = 0.01
"""A model predicts as well as another where its loss is, with ERRORS, at most so much higher, nats/character."""


def shares(shape: dict[str, Any]) -> tuple[float, float]:
    """The MLPs' share of all parameters, and of all but the embeddings."""
    mlps, total = shape["parts"]["MLPs"], sum(shape["parts"].values())
    return mlps / total, mlps / (total - shape["parts"]["embeddings"])


def claims(shapes: list[dict[str, Any]], losses: dict[str, list[float]]) -> list[dict[str, str]]:
    """What was claimed, what was measured, and whether it holds."""
    of_all, of_blocks = zip(*map(shares, shapes), strict=True)
    exact = [one["saved_by_tying"] == one["vocab_size"] * one["width"] for one in shapes]
    tied = less(losses["base"], losses["head of its own"])
    mean, se = mean_and_se(tied)
    several = {name: less(losses["1 head"], losses[name]) for name in ("2 heads", "base", "8 heads")}
    relu = less(losses["ReLU"], losses["base"])
    unit = "nats/character"
    return [
        claim(
            "Most parameters of a GPT are in its MLPs",
            f"{sum(s > MOST for s in of_all)} of {len(of_all)} shapes; {of_all[0]:.1%} in the default model, "
            f"{of_all[2]:.1%} in GPT-2 124M; {min(of_all):.1%} to {max(of_all):.1%}",
            verdict([s > MOST for s in of_all]),
        ),
        claim(
            "Most parameters of a GPT's blocks are in their MLPs",
            f"{min(of_blocks):.1%} to {max(of_blocks):.1%} in {len(of_blocks)} shapes",
            verdict([s > MOST for s in of_blocks]),
        ),
        claim(
            "Tying the output head to the embedding saves V · C parameters",
            f"exactly so in {sum(exact)} of {len(exact)} shapes; {shapes[2]['saved_by_tying']:,} in GPT-2 124M",
            verdict(exact),
        ),
        claim(
            "A tied head predicts as well as one of its own",
            f"tied less own {spread(tied, 4)} {unit}",
            HOLDS if mean + ERRORS * se <= AS_WELL else FAILS if mean - ERRORS * se > AS_WELL else PARTLY,
        ),
        claim(
            "Several heads predict better than one of the same total width",
            "1 head less "
            + ", ".join(f"{'4 heads' if n == 'base' else n} {spread(d, 4)}" for n, d in several.items())
            + f" {unit}",
            verdict([higher(differences) for differences in several.values()]),
        ),
        claim("GELU predicts better than ReLU", f"ReLU less GELU {spread(relu, 4)} {unit}", verdict([higher(relu)])),
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Parameters counted, and every variant trained with every seed."""
    losses, seconds = {}, {}
    for name, changes in VARIANTS.items():
        began = time.perf_counter()
        losses[name] = trained(base(quick, **changes), quick).loss.tolist()
        seconds[name] = time.perf_counter() - began
        print(f"{name}: {spread(losses[name], 4)} nats/character, {seconds[name]:.0f} s", file=sys.stderr, flush=True)
    shapes = counted()
    return {"claims": claims(shapes, losses), "losses": losses, "train_seconds": seconds, "shapes": shapes}


if __name__ == "__main__":
    main(__doc__, HERE, measure, report)
