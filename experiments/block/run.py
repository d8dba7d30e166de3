"""The transformer block piece by piece, from softmax to three stacked blocks, in NumPy and in JAX.

python -m experiments.block.run [--quick] [--out DIR]

Prints each step, and writes README.md (the walk-through as a page), results.json (its numbers and what was promised)
and a figure for each step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax

from experiments.block import attention, blocks, inputs, transforms
from experiments.block.given import Given, Sides, given, sides
from experiments.block.page import page, terminal
from experiments.block.promises import claims
from experiments.block.step import Step
from experiments.shared.common import claims_table, save_png, written
from experiments.shared.machine import machine

HERE = Path(__file__).parent
REPEATS, QUICK_REPEATS = 30, 3


def pieces(every: Sides, start: Given) -> list[Step]:
    """From softmax to stacked blocks."""
    return [
        inputs.softmax_step(every, start),
        attention.product_step(every, start),
        inputs.positions_step(every, start),
        inputs.layer_norm_step(every, start),
        attention.heads_step(every, start),
        attention.attention_step(every, start),
        attention.merging_step(every, start),
        blocks.gelu_step(every, start),
        blocks.mlp_step(every, start),
        blocks.block_step(every, start),
        blocks.stack_step(every, start),
    ]


def transformations(every: Sides, start: Given, repeats: int) -> list[Step]:
    """What JAX makes of them; `repeats` calls are timed."""
    return [
        transforms.gradient_step(every, start),
        transforms.compiled_step(every, start, repeats),
        transforms.vectorised_step(every, start),
    ]


def numbers(steps: list[Step]) -> dict[str, dict[str, Any]]:
    """The numbers of all steps, by the stem of their figure."""
    return {step.stem: step.numbers for step in steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE, help="where the page, results.json and the figures go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = given(options.quick)
    every = sides(start)
    steps = [*pieces(every, start), *transformations(every, start, QUICK_REPEATS if options.quick else REPEATS)]
    for number, step in enumerate(steps, 1):
        print(terminal(number, step))
        save_png(step.draw("light"), options.out / step.stem)
    held = claims(numbers(steps), start.cfg)
    print(claims_table(held))
    facts = {
        **machine(),
        "jax": jax.__version__,
        "quick": options.quick,
        "processor_seconds": round(time.process_time()),
    }
    (options.out / "results.json").write_text(
        written({**facts, "claims": held, "steps": numbers(steps)}), encoding="utf-8"
    )
    (options.out / "README.md").write_text(page(steps, start, held, facts), encoding="utf-8")


if __name__ == "__main__":
    main()
