"""How often a ranking of pure noise passes for one."""

from __future__ import annotations

import numpy as np

from tinygpt_jax.statistics import FALSE_PASS, chance_of_spread

COUNTS = (2, 4, 12, 48)
EXAMPLES = 64


def passes(times: int) -> dict[str, dict[str, float]]:
    """Number of components -> how often, in percent, with noise that is alike in all and uneven, examples independent
    and in the order of a text whose neighbours are alike."""
    rng = np.random.default_rng(0)
    return {str(N): {kind: _rate(rng, N, kind, times) for kind in ("alike", "uneven", "in order")} for N in COUNTS}


def _rate(rng: np.random.Generator, N: int, kind: str, times: int) -> float:
    passed = 0
    for _ in range(times):
        noise = rng.normal(size=(N, EXAMPLES))
        if kind == "uneven":
            noise *= np.exp(rng.normal(size=(N, 1)))
        if kind == "in order":  # chapters of eight windows
            noise += 2 * rng.normal(size=(N, EXAMPLES // 8)).repeat(8, 1)
        passed += chance_of_spread(noise, ordered=kind == "in order") <= FALSE_PASS
    return 100 * passed / times
