"""A synthetic task with a known answer: what a head does is measured where the right answer is beyond doubt.

It is a pure function of (seed, step) and of sizes, like a batch of text, and its first examples do not depend on how
many follow. For patching it makes a corrupted twin of each example from the same random numbers: same shapes, same
question, but the answer no longer follows from the ids.
"""

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.text.batches import IGNORE, raw_words
from tinygpt_jax.text.examples import Examples

Words = NDArray[np.uint64]
Ids = NDArray[np.int32]


def repeated_sequences(
    seed: int, step: int, batch_size: int, block_size: int, vocab_size: int, *, corrupted: bool = False
) -> Examples:
    """Random tokens in which a block comes twice in a row: what induction heads predict (Olsson et al. 2022).

    The block's start and length (2 or more) are random. All tokens of a sequence but the copies are distinct, so each
    token of the second copy has come exactly once before and what followed it then is the answer. Targets are counted
    from the second token of the second copy on; the question is the last of them. `corrupted` puts other tokens in
    place of the first copy and keeps targets and answers.

    Raises:
        UserError: block_size is below 4, or vocab_size below block_size.
    """
    _at_least(1, "batch_size", batch_size)
    _at_least(4, "block_size", block_size)
    _at_least(block_size, "vocab_size", vocab_size, f"block_size {block_size} asks for as many distinct tokens")
    words = _words(seed, step, batch_size, block_size + 2)
    length = 2 + _below(words[:, 0], block_size // 2 - 1)
    start = _below(words[:, 1], block_size - 2 * length + 1)
    tokens = _distinct(words[:, 2:], vocab_size)
    t = np.arange(block_size, dtype=np.int32)
    second = start + length
    in_first = (start[:, None] <= t) & (t < second[:, None])
    in_second = (second[:, None] <= t) & (t < (second + length)[:, None])
    ids = np.where(in_first, np.take_along_axis(tokens, np.minimum(t + length[:, None], block_size - 1), 1), tokens)
    known = in_second & np.roll(in_second, -1, 1)  # roll wraps, but the first position is in no second copy
    targets = np.where(known, np.roll(ids, -1, 1), IGNORE).astype(np.int32)
    return _ask(tokens if corrupted else ids, targets, second + length - 2)


# The pieces


def _ask(ids: Ids, targets: Ids, position: Ids) -> Examples:
    """Examples whose question is the target at `position` (B,)."""
    answers = np.take_along_axis(targets, position[:, None], 1)
    return Examples(ids.astype(np.int32), targets, answers=answers, position=position.astype(np.int32))


def _words(seed: int, step: int, rows: int, columns: int) -> Words:
    """Random words, a row for each example: the first rows are the same however many follow."""
    return raw_words(seed, step, rows * columns).reshape(rows, columns)


def _below(words: Words, n: int | NDArray[np.int32]) -> Ids:
    """A whole number in [0, n) from each word."""
    return (words % np.asarray(n).astype(np.uint64)).astype(np.int32)


def _distinct(words: Words, n: int) -> Ids:
    """As many distinct numbers in [0, n) as a row has words: the start of a Fisher-Yates shuffle."""
    B, W = words.shape
    rows, pool = np.arange(B), np.tile(np.arange(n, dtype=np.int32), (B, 1))
    for i in range(W):
        j = i + _below(words[:, i], n - i)
        pool[:, i], pool[rows, j] = pool[rows, j], pool[:, i].copy()
    return pool[:, :W]


def _at_least(minimum: int, name: str, value: int, why: str = "there is nothing to ask otherwise") -> None:
    if value < minimum:
        raise UserError(f"{name} is {value}: must be {minimum} or more ({why})")
