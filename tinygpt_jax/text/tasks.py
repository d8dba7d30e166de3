"""Synthetic tasks with known answers: what a head does is measured where the right answer is beyond doubt.

Each is a pure function of (seed, step) and of sizes, like a batch of text, and its first examples do not depend on how
many follow. For patching, a task makes a corrupted twin of each example from the same random numbers: same shapes,
same question, but the answer no longer follows from the ids.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.text.batches import IGNORE, raw_words
from tinygpt_jax.text.examples import Examples

Words = NDArray[np.uint64]
Ids = NDArray[np.int32]
Corruption = Literal["swapped", "others"]

NAMES = ("Anna", "Ben", "Carl", "Dora", "Emma", "Fred", "Grace", "Hugo", "Ivy", "Jack", "Kate", "Leo")
PLACES = ("shop", "park", "school", "station", "garden", "library")
THINGS = ("book", "letter", "ring", "drink", "key", "map")
TEMPLATES = (
    "When {first} and {second} went to the {place} , {subject} gave a {thing} to",
    "While {first} and {second} sat in the {place} , {subject} passed a {thing} to",
    "After {first} and {second} met at the {place} , {subject} handed a {thing} to",
)
_FRAME_WORDS = sorted({word for line in TEMPLATES for word in line.split() if not word.startswith("{")})
NAMES_VOCAB = (*NAMES, *PLACES, *THINGS, *_FRAME_WORDS)
"""The tokens of `names_task`: its id i is the word NAMES_VOCAB[i]."""


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


def names_task(seed: int, step: int, batch_size: int, *, corrupted: Corruption | None = None) -> Examples:
    """Indirect object identification (Wang et al. 2022): "When A and B went to the shop , B gave a ring to", so A.

    Tokens are those of NAMES_VOCAB. A and B come in either order. Only the answer is counted; B is wrong. The
    corrupted twins keep the question: `swapped` lets A do the giving, so that B would be right; `others` has three
    further names, none of them A or B, so that neither is.

    Raises:
        UserError: corrupted is neither of these.
    """
    id_of = {word: i for i, word in enumerate(NAMES_VOCAB)}
    lines, answers, wrong = _names(seed, step, batch_size, corrupted)
    ids = np.array([[id_of[word] for word in line.split()] for line in lines], np.int32)
    targets = np.full_like(ids, IGNORE)
    targets[:, -1] = [id_of[name] for name in answers]
    examples = _ask(ids, targets, np.full(batch_size, ids.shape[1] - 1, np.int32))
    return examples._replace(wrong=np.array([[id_of[name]] for name in wrong], np.int32))


def _names(seed: int, step: int, batch_size: int, corrupted: str | None) -> tuple[list[str], list[str], list[str]]:
    """Lines of words apart by one space, the names that are right and the names that are wrong."""
    _at_least(1, "batch_size", batch_size)
    if corrupted not in (None, "swapped", "others"):
        raise UserError(f"corrupted is {corrupted!r}: must be swapped, others or None")
    words = _words(seed, step, batch_size, 9)
    template, place, thing, first = (
        _below(column, n) for column, n in zip(words.T, (len(TEMPLATES), len(PLACES), len(THINGS), 2), strict=False)
    )
    lines, answers, wrong = [], [], []
    for b, people in enumerate(_distinct(words[:, 4:], len(NAMES))):
        A, B, *others = (NAMES[i] for i in people)
        pair, subject = ((A, B) if first[b] else (B, A)), B
        if corrupted == "swapped":
            subject = A
        if corrupted == "others":
            pair, subject = (others[0], others[1]), others[2]
        words_of = {"place": PLACES[place[b]], "thing": THINGS[thing[b]], "subject": subject}
        lines.append(TEMPLATES[template[b]].format(first=pair[0], second=pair[1], **words_of))
        answers.append(A)
        wrong.append(B)
    return lines, answers, wrong


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
