"""What each head is, where its scores carry a conclusion.

A head has a role if its score is at least half of the way from chance to 1 and clearly beyond noise: of models whose
heads attend evenly, at most one in twenty would show any role of any head. Previous and first token are judged on text,
which is what a model reads; duplicate token and induction on random tokens that repeat, since in text common words and
short distances can look like them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tinygpt_jax.digits import decimals, number, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.order import clearly
from tinygpt_jax.lab.read.scores import HeadScores
from tinygpt_jax.lab.result import Result
from tinygpt_jax.statistics import FALSE_PASS

ON_TEXT = ("previous_token", "first_token")
ON_REPEATS = ("duplicate_token", "induction")
FAR = 0.5
"""The least share of the way from chance to 1."""
NONE = "no clear role"


class Role(NamedTuple):
    """What a head is, and the score that says so."""

    name: str
    score: float
    se: float
    chance: float

    def __str__(self) -> str:
        places = max(2, decimals(self.se) - 2)
        score = with_error(self.score, self.se, places)
        return f"{self.name.replace('_', ' ')}, {score} against {number(self.chance, places)} by chance"


def head_roles(text: HeadScores, repeats: HeadScores) -> dict[str, list[Role]]:
    """The roles of every head, by name, from its scores on text and on `lab.windows.repeats`; most have none.

    Raises:
        UserError: the scores are of different models.
    """
    if text.definition.model != repeats.definition.model or text.entropy.shape != repeats.entropy.shape:
        models = f"{text.definition.model} and {repeats.definition.model}"
        raise UserError(f"the scores are of different models, {models}: measure both on the same one")
    L, H = text.entropy.shape
    roles: dict[str, list[Role]] = {head_name(*head): [] for head in np.ndindex(L, H)}
    tests = L * H * (len(ON_TEXT) + len(ON_REPEATS))
    for scores, names in ((text, ON_TEXT), (repeats, ON_REPEATS)):
        far = clearly(tests, scores.definition.examples, scores.definition.ordered)
        for name in names:
            score, se, chance = (getattr(scores, f"{name}{end}") for end in ("", "_se", "_chance"))
            above = (score - chance >= FAR * (1 - chance)) & (score - chance > far * se)  # NaN is above nothing
            for head in np.argwhere(above):
                role = Role(name, float(score[tuple(head)]), float(se[tuple(head)]), float(chance))
                roles[head_name(*head.tolist())].append(role)
    return roles


def rule() -> str:
    """What makes a role, in a line."""
    return (
        f"a role: a score {FAR:.0%} of the way from chance to 1 or more, and beyond noise ({FALSE_PASS:.0%} false "
        f"alarms, all heads and roles together); {' and '.join(ON_TEXT)} on text, {' and '.join(ON_REPEATS)} on repeats"
    ).replace("_", " ")


def conclusions(results: Mapping[str, Result | str]) -> dict[str, str]:
    """What each head is, in words by its name, from saved scores; empty where one of the two is missing.

    Raises:
        UserError: the scores are of different models.
    """
    text, repeats = (results.get(f"scores-{on}") for on in ("text", "repeats"))
    if not isinstance(text, HeadScores) or not isinstance(repeats, HeadScores):
        return {}
    return {head: "; ".join(map(str, found)) or NONE for head, found in head_roles(text, repeats).items()}
