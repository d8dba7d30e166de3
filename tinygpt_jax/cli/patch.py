"""`tinygpt patch`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Common, Run, arguments, parse, tell
from tinygpt_jax.cli.results import print_results, shown
from tinygpt_jax.lab.analyses import USUAL, PatchDirection, Patched, PatchMetric


@dataclass(frozen=True)
class Flags(Common):
    """Put activations of a clean run into a corrupted one, and say which of them restore the answer.

    Examples:
      tinygpt patch                                       heads, on random tokens that repeat
      tinygpt patch runs/book --of heads paths attribution --direction noise
      tinygpt patch runs/book --of positions --clean "one two one " --corrupted "six two one " --answer t --wrong s

    Without texts, the clean run reads random tokens of which a part comes twice, and the corrupted run the same but for
    the first occurrence, so that what follows the second is no longer known.
    """

    run: Run = ""
    of: tuple[Patched, ...] = ("heads",)
    """What is patched: the output of each head; the residual stream by layer and position; all sites of heads to first
    order (attribution patching), beside patching; or the paths from head to head."""
    direction: PatchDirection = "denoise"
    """`denoise`: clean activations into the corrupted run; `noise`: corrupted ones into the clean run."""
    metric: PatchMetric = "loss"
    """Of the answers: mean loss, log-probability, logit difference to --wrong; or KL divergence from the clean run."""
    clean: tuple[str, ...] = ()
    """Texts whose answer the model should know, of as many tokens each."""
    corrupted: tuple[str, ...] = ()
    """For each clean text one of as many tokens without the answer."""
    answer: tuple[str, ...] = ()
    """For each clean text the token that should follow it."""
    wrong: tuple[str, ...] = ()
    """For each answer a token to set it against, as `logit-diff` needs."""
    positions: tuple[int, ...] = ()
    """The positions at which to patch, from 0; left out, all."""
    examples: int = USUAL
    """How many sequences of repeated tokens."""
    seed: int = 0
    """Seed for everything random."""
    out: str = ""
    """The folder for results, as JSON, CSV, PNG and SVG; left out, `heads` in the run."""
    figures: bool = True
    """Draw the results; off, save only the numbers. Drawing needs matplotlib: pip install matplotlib."""


def run(args: Sequence[str]) -> int:
    """Patches, and prints each result as it is found."""
    flags = parse("patch", Flags, args)
    from tinygpt_jax.study.patch import patch_run

    return print_results(patch_run(**arguments(flags), tell=tell, on_result=shown(flags.json)), flags.json)
