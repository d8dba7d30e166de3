"""`tinygpt heads`"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Common, arguments, parse
from tinygpt_jax.cli.results import print_results, shown
from tinygpt_jax.study.options import HeadsOptions


@dataclass(frozen=True)
class Flags(HeadsOptions, Common):
    """Say what each head does: where it attends, what it copies, and what it contributes to the prediction.

    Examples:
      tinygpt heads                                      the newest run, on its validation text
      tinygpt heads runs/book --prompt "the cat and the cat"
      tinygpt heads runs/book --checkpoints --json       how the heads formed, if the run kept its checkpoints

    Scores are measured on the text, and on random tokens of which a part is repeated, where induction shows. The last
    lines say what each head is, where its scores are clearly above chance.
    """


def run(args: Sequence[str]) -> int:
    """Measures the heads, and prints each result as it is found."""
    flags = parse("heads", Flags, args)
    from tinygpt_jax.study.heads import heads

    return print_results(heads(**arguments(flags, on_result=shown(flags.json))), flags.json)
