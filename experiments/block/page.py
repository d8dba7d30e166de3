"""The walk-through as a page of Markdown and as lines of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from experiments.block.given import SHARPER, Given
from experiments.block.step import Step
from experiments.shared.common import claims_table

COMMAND = "python -m experiments.block.run"


def page(steps: Sequence[Step], start: Given, claims: Sequence[dict[str, str]], facts: dict[str, Any]) -> str:
    """README.md: what this is, a section a step, the promises, and how far NumPy and JAX are apart."""
    parts = [_opening(steps, start, facts)]
    parts += [_section(number, step) for number, step in enumerate(steps, 1)]
    promised = (
        "The limits were fixed in [promises.py](promises.py) before the run. They are about this model: it is not "
        "trained, and its embedding has variance 1 by choice. A write does not grow with the input, because of the "
        "norm before it: beside a much smaller input it would not be small."
    )
    distances = (
        "Largest difference from NumPy in float64 at each step, from the same weights. Values are of the order of 1, "
        "and float32 keeps seven digits."
    )
    parts += [f"## What was promised\n\n{_filled(promised)}\n\n{claims_table(claims)}"]
    parts += [f"## NumPy and JAX\n\n{_filled(distances)}\n\n{_differences(steps)}"]
    return "\n".join(parts)


def terminal(number: int, step: Step) -> str:
    """One step: its title, why, and its numbers."""
    title = f"{number}. {step.title}"
    why = textwrap.fill(step.text.replace("`", ""), 100)
    return "\n".join([title, "-" * len(title), why, "", *(f"    {line}" for line in step.printed), ""])


def _opening(steps: Sequence[Step], start: Given, facts: dict[str, Any]) -> str:
    (B, T), cfg = start.ids.shape, start.cfg
    contents = "\n".join(f"{i}. [{step.title}](#{_anchor(i, step)})" for i, step in enumerate(steps, 1))
    about = f"""
From softmax to {cfg.n_layer} blocks on top of each other, in NumPy and in JAX at once: why each piece is there, its
code, its numbers and a picture. The NumPy functions are those of [reference.py](../../tinygpt_jax/reference.py), the
JAX functions those of [model.py](../../tinygpt_jax/model.py). They have the same names and arguments, so that one line
of this walk-through runs both.

**Command** ({facts["processor_seconds"]} s of processor time, most of it drawing and compilation; `--quick` runs it at
toy size, `--out` leaves its files elsewhere). It prints the numbers to the terminal and writes this page,
[results.json](results.json) and the figures, each also as SVG:

    {COMMAND}

**Machine.** Two cores of an AMD EPYC (Zen 3, AVX2), of which the run used {facts["cores"]}; Python {facts["python"]},
jax {facts["jax"]}.

**The model.** {cfg.n_layer} pre-norm blocks of width {cfg.n_embd}, with {cfg.n_head} heads, {cfg.mlp_width} in the
MLP and sinusoidal positions. Its input is {B} windows of {T} characters of one sentence. The weights are those that
the package starts a model with, from seed 0, but for two changes that leave more to see: the token embedding has
variance 1, and `Wq` and `Wk` are {SHARPER:g} times as large, so that scores differ by one or two. Nothing is trained.
Where nothing else is said, numbers are of NumPy in float64, and a root mean square is over all entries of an array.

**The code shown** is that of the package, with its extras. In a block `x` is the stream, and `h` is `x` after the norm.
`at` reads or edits a value at a named site (here it only reads), and `scaled` does so with a norm's scale. `bias` holds
biases of attention and `smear`, by which a key takes in part of the key before; `rope` turns on rotary positions;
another `attend` than the one shown brings keys and values from a cache, or leaves these lines to a library.
All but `at` are off here.
"""
    return "\n\n".join(["# The transformer block, piece by piece", *map(_filled, about.split("\n\n")), contents]) + "\n"


def _filled(text: str) -> str:
    """A paragraph in lines of at most 120 characters; what is indented stays as it is."""
    return text if text.startswith("    ") else textwrap.fill(text.strip(), 120, break_on_hyphens=False)


def _section(number: int, step: Step) -> str:
    code = "\n".join(f"{where}\n\n```python\n{source}\n```\n" for where, source in step.code)
    printed = "\n".join(step.printed)
    return f"""## {number}. {step.title}

{_filled(step.text)}

{code}
Printed:

```text
{printed}
```

![{step.alt}]({step.stem}.png)
"""


def _differences(steps: Sequence[Step]) -> str:
    rows = []
    for number, step in enumerate(steps, 1):
        far = step.numbers["apart"]
        numpy32 = far.get("NumPy, float32")
        jax32 = next(distance for name, distance in far.items() if name.startswith("JAX"))
        rows.append(f"| {number}. {step.title} | {'' if numpy32 is None else f'{numpy32:.1e}'} | {jax32:.1e} |")
    return "\n".join(["| step | NumPy, float32 | JAX, float32 |", "|---|---|---|", *rows]) + "\n"


def _anchor(number: int, step: Step) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(c for c in f"{number}. {step.title}".lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
