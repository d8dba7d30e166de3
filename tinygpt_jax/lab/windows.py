"""The examples that a trained model is measured on: windows of text, and random tokens that repeat."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from tinygpt_jax.arguments import MOST, checked, whole
from tinygpt_jax.config import GPTConfig, Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.analyses import USUAL
from tinygpt_jax.measure import check_memory
from tinygpt_jax.runs import Model
from tinygpt_jax.text import Examples, Tokens, repeated_sequences
from tinygpt_jax.training.evaluate import text_to_score


def text_windows(tokens: Tokens, cfg: GPTConfig, n: int | None = None) -> Examples:
    """n windows of block_size tokens that do not overlap, spread evenly over a text; without n `USUAL` of them, or as
    many as there is room for. Every token but the first of a window's is to be predicted, and the one after its end.

    Raises:
        UserError: the text has no room for n, or for two, without which there is no error of anything.
    """
    T = cfg.block_size
    room = (len(tokens.ids) - 1) // T
    wanted = min(USUAL, room) if n is None else n
    if wanted < 2:
        raise UserError(f"windows is {wanted}: an error needs two; ask for more, or give a text of {2 * T + 1} tokens")
    if wanted > room:
        raise UserError(f"windows is {wanted}: the text has room for {room} of {T} tokens; ask for at most {room}")
    starts = np.linspace(0, room - 1, wanted).round().astype(np.int64) * T
    both = np.asarray(tokens.ids)[starts[:, None] + np.arange(T + 1)].astype(np.int32)
    return Examples(both[:, :-1], both[:, 1:], place=starts.astype(np.int32))


@checked
def run_windows(
    run: str | Path,
    model: Model,
    n: int | None = None,
    data: Sources | Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Examples:
    """`text_windows` of a run's validation text, or of other text; `tell` is called with which. Raises UserError."""
    return text_windows(text_to_score(run, model.tokenizer, data, tell), model.cfg, n)


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """Every other example, and the rest: what is chosen on one half is to be judged on the other.

    Raises:
        UserError: there are fewer than two for each.
    """
    if len(examples.ids) < 4:
        raise UserError(f"windows is {len(examples.ids)}: two halves of two take 4 at least; ask for more")
    first, second = (jax.tree.map(lambda a, i=i: a[i::2], examples) for i in range(2))
    return first, second


LEAST = 4
"""Tokens of the shortest sequence in which two come twice."""


def repeat_length(cfg: GPTConfig) -> int:
    """Tokens of a sequence of `repeats`."""
    return min(cfg.block_size, cfg.vocab_size)


def repeats(cfg: GPTConfig, n: int, seed: int = 0, *, corrupted: bool = False) -> Examples:
    """n sequences of random tokens of which a part comes twice, as long as the context and the vocabulary allow;
    `corrupted`: with other tokens in place of the first occurrence.

    Raises:
        UserError: the context or the vocabulary is too small for that.
    """
    length = repeat_length(cfg)
    if length < LEAST:
        raise UserError(
            f"random tokens that repeat take {LEAST} distinct ones in a context: this model knows {cfg.vocab_size} and "
            f"sees {cfg.block_size}; measure it on text"
        )
    whole("examples", n, 1, MOST)
    check_memory(n * (8 * length + 4 * cfg.vocab_size), f"{n:,} sequences of repeated tokens", "ask for fewer examples")
    return repeated_sequences(seed, 0, n, length, cfg.vocab_size, corrupted=corrupted)
