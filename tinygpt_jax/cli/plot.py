"""`tinygpt plot`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from tinygpt_jax.cli.common import DONE, Reading, Switch, arguments, parse, print_json, tell


@dataclass(frozen=True)
class Flags(Reading):
    """Draw a run, every piece of it: PNG, SVG and the numbers as CSV and JSON. Or draw saved results anew.

    Examples:
      tinygpt plot                              the newest run: training, block, tokens, heads
      tinygpt plot runs/book --prompt "It was" --theme dark
      tinygpt plot runs/book --lab              with everything that `ablate` can measure, about five minutes
      tinygpt plot runs/book/*/*.json --out figures

    Figures of a run's training, block and tokens go to its folder `plots`, those of its heads to `heads`. What `heads`
    and `ablate` have saved is drawn as it is; what they would leave by default and is missing is measured.
    """

    what: Positional[tuple[str, ...]] = ()
    """Run directories, or JSON files that were saved; left out, the newest run under runs/."""
    prompt: str = ""
    """The text whose last 24 tokens are drawn, with norms, attention and next tokens; left out, one of the windows."""
    windows: int | None = None
    """Windows of block_size tokens, spread evenly over the text: the examples that errors are taken over. Left out, 64,
    or as many as the text has room for."""
    lab: Switch = False
    """Also measure what `ablate` can measure and has not: pairs, Shapley values, gradients, gates, pruning."""
    out: str = ""
    """A folder for all, with `plots` and `heads` in it for a run; left out, the run itself, or beside each result."""
    theme: Literal["light", "dark"] = "light"
    """For paper or for a dark page."""


def run(args: Sequence[str]) -> int:
    """Draws, and prints the name of each PNG as it is written."""
    flags = parse("plot", Flags, args)
    from tinygpt_jax.study.plot import plot

    def show(file: Path) -> None:
        if file.suffix == ".png" and not flags.json:
            print(file, flush=True)

    files = plot(**arguments(flags), tell=tell, on_file=show)
    tell("beside each PNG is the SVG; the numbers are beside what is drawn of a run, as CSV and JSON")
    if flags.json:
        print_json({"files": files})
    return DONE
