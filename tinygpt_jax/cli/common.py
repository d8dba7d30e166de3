"""What the verbs of the command share: flags, how tyro parses them, and where what they say goes."""

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
"""What can only be turned on. Other booleans are a pair of flags, --x and --no-x, whatever the settings beneath say."""
Preset = Annotated[str, arg(help=f"Settings by name: {', '.join(PRESETS)}.")]


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: Switch = False
    """Print one JSON document on standard output; what is meant for a person goes to standard error."""
    debug: Switch = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Reading(Common):
    """Flags of the verbs that read text with a run."""

    data: tuple[str, ...] = ()
    """Text to read, the whole of it, as for `train`; left out, the run's own validation text."""
    include: tuple[str, ...] = ()
    """Of the directories and files of --data, read only those that one of these fits, as in '*.md' docs."""
    exclude: tuple[str, ...] = ()
    """Of the directories and files of --data, leave out what one of these fits."""


@dataclass(frozen=True)
class Measuring(Reading):
    """Flags of the verbs that measure a run's heads."""

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""
    windows: int | None = None
    """Windows of block_size tokens, spread evenly over the text: the examples that errors are taken over. Left out, 64,
    or as many as the text has room for."""
    checkpoints: Switch = False
    """Measure at every checkpoint of the run too (of --keep-checkpoints 0), and draw heads forming."""
    seed: int = 0
    """Of whatever is drawn by chance."""
    out: str = ""
    """Where results go, as JSON, CSV, PNG and SVG; left out, the folder `heads` in the run."""
    figures: bool = True
    """Draw the results; off, save their numbers alone. Drawing needs matplotlib: pip install 'tinygpt_jax[plot]'."""


def parse(verb: str, flags: type[AnyFlags], args: Sequence[str], default: Any = tyro.MISSING_NONPROP) -> AnyFlags:
    """The flags of a verb; prints help or what is wrong with them and leaves where it has to."""
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
    """The flags as arguments of the verb's function, which bear the same names."""
    return {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in ("json", "debug")}


def tell(line: str) -> None:
    """To a person, at once."""
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
