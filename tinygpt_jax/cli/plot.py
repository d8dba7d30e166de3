"""`tinygpt plot`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import Common, arguments, parse, print_json, tell
from tinygpt_jax.markup import say_to
from tinygpt_jax.study.options import PlotOptions


@dataclass(frozen=True)
class Flags(PlotOptions, Common):
    """Draw every piece of a run, as PNG and SVG with the numbers as CSV and JSON; or redraw saved results.

    Examples:
      tinygpt plot                              the newest run: loss curves, block, tokens, heads
      tinygpt plot runs/book --prompt "It was" --theme dark
      tinygpt plot runs/book --lab              with all that `ablate` can measure, about five minutes
      tinygpt plot runs/book/*/*.json --out figures

    Figures of a run's loss curves, block and tokens go to its folder `plots`, those of its heads to `heads`. Results
    that `heads` and `ablate` have saved are drawn as they are; their default results are measured if missing.
    """


def run(args: Sequence[str]) -> int:
    """Draws, and prints the name of each PNG as it is written."""
    flags = parse("plot", Flags, args)
    from tinygpt_jax.study.plot import plot

    def show(file: Path) -> None:
        if file.suffix == ".png" and not flags.json:
            say_to(sys.stdout, str(file))

    files = plot(**arguments(flags, on_file=show))
    tell("each PNG has an SVG beside it; figures of a run also have their numbers, as CSV and JSON")
    if flags.json:
        print_json({"files": files})
    return DONE
