"""`tinygpt ablate`"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Common, arguments, parse
from tinygpt_jax.cli.results import print_results, shown
from tinygpt_jax.study.options import AblateOptions


@dataclass(frozen=True)
class Flags(AblateOptions, Common):
    """Switch parts of a model off and measure what it loses, with a standard error for every effect.

    Examples:
      tinygpt ablate                                      every head of the newest run, each alone
      tinygpt ablate runs/book --of pairs shapley-by-layer --fill zero
      tinygpt ablate runs/book --sets 0.2+1.3 mlp1 --metric kl
      tinygpt ablate runs/book --of gates pruning importance
      tinygpt ablate runs/book --sets 0.2+1.3 --save-pruned runs/smaller
    """


def run(args: Sequence[str]) -> int:
    """Ablates, and prints each result as it is found."""
    flags = parse("ablate", Flags, args)
    from tinygpt_jax.study.ablate import ablate

    return print_results(ablate(**arguments(flags, on_result=shown(flags.json))), flags.json)
