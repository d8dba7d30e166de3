"""`tinygpt patch`"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Common, arguments, parse
from tinygpt_jax.cli.results import print_results, shown
from tinygpt_jax.study.options import PatchOptions


@dataclass(frozen=True)
class Flags(PatchOptions, Common):
    """Put activations of a clean run into a corrupted one, and say which of them restore the answer.

    Examples:
      tinygpt patch                                       heads, on random tokens that repeat
      tinygpt patch runs/book --of heads paths attribution --direction noise
      tinygpt patch runs/book --of positions --clean "one two one " --corrupted "six two one " --answer t --wrong s

    Without texts, the clean run reads random tokens of which a part comes twice, and the corrupted run the same but for
    the first occurrence, so that what follows the second is no longer known.
    """


def run(args: Sequence[str]) -> int:
    """Patches, and prints each result as it is found."""
    flags = parse("patch", Flags, args)
    from tinygpt_jax.study.patch import patch_run

    return print_results(patch_run(**arguments(flags, on_result=shown(flags.json))), flags.json)
