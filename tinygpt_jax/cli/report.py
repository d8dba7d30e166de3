"""`tinygpt report`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import Common, arguments, parse, print_json, tell
from tinygpt_jax.errors import UserError
from tinygpt_jax.markup import say_to
from tinygpt_jax.study.options import ReportOptions


@dataclass(frozen=True)
class Flags(ReportOptions, Common):
    """Write one page of HTML on a run: its loss, curves, samples, tokens and heads, and how to repeat it.

    Examples:
      tinygpt report                                        the newest run, to report.html in it
      tinygpt report runs/book --out book.html
      tinygpt report runs/book --no-measure                 only from what is saved, half a minute

    The page is one file without scripts that loads nothing else.
    """


def run(args: Sequence[str]) -> int:
    """Writes the page, and prints its path."""
    flags = parse("report", Flags, args)
    from tinygpt_jax.files import own_descriptor
    from tinygpt_jax.study.report import report

    on_stdout = bool(flags.out) and own_descriptor(flags.out) == 1
    if on_stdout and flags.json:
        raise UserError(f"out is {flags.out!r} and --json is given: both go to standard output; leave one out")
    sys.stdout.flush()
    file = report(**arguments(flags))
    if on_stdout:
        tell("the page is on standard output")
    elif flags.json:
        print_json({"file": file})
    else:
        say_to(sys.stdout, str(file))
    return DONE
