"""What the verbs of the command share: exit codes, flags, how tyro parses them, and how output is printed."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from tinygpt_jax.presets import PRESETS

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
AnyFlags = TypeVar("AnyFlags")
Switch = FlagCreatePairsOff[bool]
"""A flag that can only be turned on; others come in pairs, --x and --no-x, since a preset or file may set them."""
Run = Annotated[Positional[str], arg(help="The run directory; left out, the newest under runs/.")]
Preset = Annotated[str, arg(help=f"Settings by name: {', '.join(PRESETS)}.")]
Windows = Annotated[
    int | None,
    arg(help="Windows of block_size tokens, spread evenly over the text, to average over; left out, 64 or what fits."),
]


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: Switch = False
    """Print one JSON document on standard output; messages go to standard error."""
    debug: Switch = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Reading(Common):
    """Flags of the verbs that read text with a run."""

    data: tuple[str, ...] = ()
    """Text to read, all of it, named as for `train`; left out, the run's own validation text."""
    include: tuple[str, ...] = ()
    """Of the files and directories of --data, read only those that match one of these patterns, as in '*.md' docs."""
    exclude: tuple[str, ...] = ()
    """Of the files and directories of --data, skip those that match one of these patterns."""


@dataclass(frozen=True)
class Measuring(Reading):
    """Flags of the verbs that measure a run's heads."""

    run: Run = ""
    windows: Windows = None
    checkpoints: Switch = False
    """Also measure at every checkpoint of the run (of --keep-checkpoints 0), and animate how heads form."""
    seed: int = 0
    """Seed for everything random."""
    out: str = ""
    """The folder for results, as JSON, CSV, PNG and SVG; left out, `heads` in the run."""
    figures: bool = True
    """Draw the results; off, save only the numbers. Drawing needs matplotlib: pip install matplotlib."""


def parse(verb: str, flags: type[AnyFlags], args: Sequence[str], default: Any = tyro.MISSING_NONPROP) -> AnyFlags:
    """The flags of a verb. Prints the help, or what is wrong with the flags, and exits where that is due."""
    parsed: Any = tyro.cli(
        flags,
        prog=f"tinygpt {verb}",
        description=inspect.getdoc(flags),
        args=args,
        default=default,
        config=(OmitArgPrefixes,),
    )
    return parsed


def arguments(flags: Common) -> dict[str, Any]:
    """The flags as keyword arguments of the verb's function, which has parameters of the same names."""
    return {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in ("json", "debug")}


def tell(line: str) -> None:
    """Prints a message on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """One document on standard output; paths as text, and what is not finite as null, which JSON lacks."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return str(value) if isinstance(value, Path) else value

    print(json.dumps(plain(document), allow_nan=False, ensure_ascii=False))
