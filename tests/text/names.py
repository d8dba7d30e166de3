"""Indirect object identification as examples: a task in words, for tests of the lab and of tasks."""

from typing import Literal

import numpy as np

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import IGNORE, Examples
from tinygpt_jax.text.tasks import _ask, _at_least, _below, _distinct, _words

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
