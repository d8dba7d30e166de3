"""How often do the printed errors hold the truth? Nominal 95 % intervals of every kind of number, on many texts.

python -m experiments.coverage.run [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.coverage.noise import passes
from experiments.coverage.numbers import NUMBERS, Found, Made, repeats_in_text
from experiments.coverage.report import report
from experiments.coverage.texts import TEXTS, WINDOWS, Pool, draw_texts, make_pool
from experiments.shared.common import main
from tinygpt_jax.statistics import NORMAL_95

HERE = Path(__file__).parent
STRETCHES = (64, 128, 256, 512)
"""Neighbouring windows that are too few to know how much chapters differ: what their errors are worth."""


def coverage(made: Made) -> dict[str, Any]:
    """Of one kind of number on all texts: how often mean ± 1.96 errors holds the truth, in percent over all places
    where there are several (heads, say); its error over texts; the same for examples taken as independent; and the
    error's mean over the true spread."""
    found = [np.stack([np.asarray(getattr(one, name), np.float64) for one in made]) for name in Found._fields]
    estimate, se, naive_se, truth = (array.reshape(len(made), -1) for array in found)
    there = np.isfinite(estimate) & np.isfinite(se)
    miss = np.where(there, np.abs(estimate - truth), 0)

    def share(error: np.ndarray) -> tuple[float, float]:
        by_text = (there & (miss <= NORMAL_95 * error)).sum(1) / there.sum(1)
        return 100 * float(by_text.mean()), 100 * float(by_text.std(ddof=1) / np.sqrt(len(by_text)))

    held, error = share(se)
    spread = np.sqrt(np.square(miss).mean(0))
    spread[spread == 0] = np.nan  # of what is the same in all texts
    return {
        "covered": held,
        "covered_se": error,
        "as_independent": share(naive_se)[0],
        "error_over_spread": float(_median(np.where(there, se, 0).mean(0) / spread)),
        "places": int(estimate.shape[1]),
    }


def _median(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else np.nan


def limits(pool: Pool, texts: np.ndarray) -> dict[str, Any]:
    """Where errors say too little: what a few places of a text decide, and windows side by side, fewer than it has."""
    of_repeats = [repeats_in_text(pool, text, 0) for text in texts]
    found = {"duplicate token, induction, on text": coverage(of_repeats)}
    for n in [n for n in STRETCHES if n < texts.shape[1]]:
        for name in ("validation loss", "head effects, all windows"):
            number, _ = NUMBERS[name]
            found[f"{name.split(',')[0]}, {n} neighbours"] = coverage([number(pool, text[:n], 0) for text in texts])
    return found


def measure(quick: bool) -> dict[str, Any]:
    pool = make_pool(quick)
    texts = draw_texts(len(pool.examples.ids), *((12, 48) if quick else (TEXTS, WINDOWS)), seed=0)
    found = {}
    for name, (number, windows) in NUMBERS.items():
        found[name] = {"windows": windows, **coverage([number(pool, text, i) for i, text in enumerate(texts)])}
        print(f"{name}: {found[name]['covered']:.1f} %", file=sys.stderr, flush=True)
    return {
        "texts": len(texts),
        "windows": texts.shape[1],
        "pool": len(pool.examples.ids),
        "numbers": found,
        "limits": limits(pool, texts),
        "rankings": passes(60 if quick else 2000),
    }


if __name__ == "__main__":
    main(__doc__, HERE, measure, report)
