"""`tinygpt heads`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Measuring, arguments, parse, tell
from tinygpt_jax.cli.results import print_results, shown


@dataclass(frozen=True)
class Flags(Measuring):
    """Say what each head does: whom it attends to, what it copies, and what it writes to the prediction.

    Examples:
      tinygpt heads                                      the newest run, on its validation text
      tinygpt heads runs/book --prompt "the cat and the cat"
      tinygpt heads runs/book --checkpoints --json       how the heads formed, if it kept its checkpoints

    Attention is read twice: on the text, and on random tokens of which a part comes twice, where induction shows. At
    the end stands what each head is, where its scores are clearly above chance.
    """

    prompt: str = ""
    """The text whose attention is drawn; left out, the first of the windows."""


def run(args: Sequence[str]) -> int:
    """Reads the heads, and prints each result as it is found."""
    flags = parse("heads", Flags, args)
    from tinygpt_jax.study.heads import heads

    return print_results(heads(**arguments(flags), tell=tell, on_result=shown(flags.json)), flags.json)
