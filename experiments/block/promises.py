"""What the walk-through promises, and what was measured of it."""

from __future__ import annotations

from typing import Any

from experiments.shared.common import FAILS, HOLDS, claim
from tinygpt_jax.config import GPTConfig

ROUNDING = 1e-5
"""The most that float32 may be from NumPy in float64; values are of the order of 1."""
NORM = 1e-4
"""The most that a normalised row's mean or deviation may be from 0 or 1: eps is in it, 1e-5 of the variance."""
INPUT = (1.1, 1.35)
"""Root mean square of an embedding of variance 1 and sinusoids: sqrt(1.5) but for the characters that occur."""
SMALL = 0.2
"""The largest write that is small, as a share of the input."""
SLOPE = 1e-3
"""The most that a slope may be from the numeric one, as a share of it."""


def claims(numbers: dict[str, dict[str, Any]], cfg: GPTConfig) -> list[dict[str, str]]:
    """A row for each promise, from the numbers of all steps by the stem of their figure."""
    rows = [*_of_the_pieces(numbers, cfg), *_of_the_whole(numbers)]
    return [claim(what, measured, HOLDS if holds else FAILS) for what, measured, holds in rows]


def _of_the_pieces(numbers: dict[str, dict[str, Any]], cfg: GPTConfig) -> list[tuple[str, str, bool]]:
    worst, attention, heads = numbers["layer_norm"]["worst"], numbers["attention"], numbers["heads"]
    widths, (C, H, F) = numbers["mlp"]["widths"], (cfg.n_embd, cfg.n_head, cfg.mlp_width)
    return [
        (
            "each row after LayerNorm has mean 0 and standard deviation 1",
            f"at most {worst['mean']:.1e} and {worst['deviation']:.1e} off",
            max(worst.values()) < NORM,
        ),
        (
            f"the width of {C} splits into {H} heads of {C // H}",
            f"{heads['width']} into {heads['heads']} of {heads['head_width']}",
            (heads["width"], heads["heads"], heads["head_width"]) == (C, H, C // H),
        ),
        (
            "a row of attention sums to 1 and has nothing of later tokens",
            f"sums at most {attention['sum_differs_by']:.1e} off; later tokens {attention['largest_later_share']:g}",
            attention["sum_differs_by"] < NORM and attention["largest_later_share"] == 0,
        ),
        (f"the MLP goes {C}, {F}, {C}", " → ".join(map(str, widths)), list(widths) == [C, F, C]),
    ]


def _of_the_whole(numbers: dict[str, dict[str, Any]]) -> list[tuple[str, str, bool]]:
    stack, size = numbers["stack"], numbers["positions"]["rms"]["input"]
    write = max(stack["writes"].values()) / size
    distance = max(max(one["apart"].values()) for one in numbers.values())
    off, change = numbers["gradient"]["off"], numbers["vmap"]
    return [
        (
            f"{len(stack['writes']) // 2} blocks keep the shape, and stay finite",
            f"{tuple(stack['in'])} in, {tuple(stack['out'])} out, {'finite' if stack['finite'] else 'not finite'}",
            tuple(stack["in"]) == tuple(stack["out"]) and stack["finite"],
        ),
        (
            f"the input's root mean square is about 1.2 (embedding of variance 1, sinusoids; {INPUT[0]} to {INPUT[1]})",
            f"{size:.3f}",
            INPUT[0] < size < INPUT[1],
        ),
        (
            f"untrained, every write is much smaller than the input (below {100 * SMALL:g} % of it)",
            f"the largest is {100 * write:.1f} %",
            write < SMALL,
        ),
        (
            f"NumPy and JAX give the same numbers (float32 within {ROUNDING:g} of float64 at each step)",
            f"at most {distance:.1e} apart",
            distance < ROUNDING,
        ),
        (
            f"jax.grad is the numeric gradient (within {SLOPE:g} of it, steepest weight of each array)",
            f"at most {off:.1e} of it off",
            off < SLOPE,
        ),
        (
            f"a change reaches later tokens and no earlier one (within {ROUNDING:g})",
            f"{change['later']:.1e} and at most {change['earlier']:.1e}",
            change["earlier"] < ROUNDING < change["later"],
        ),
    ]
