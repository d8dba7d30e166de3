"""What the verbs of the command share: exit codes, flags, how tyro parses them, and how output is printed."""

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
from tyro.conf import OmitArgPrefixes, arg

from tinygpt_jax.presets import PRESETS
from tinygpt_jax.study.options import Switch

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
AnyFlags = TypeVar("AnyFlags")
Preset = Annotated[str, arg(help=f"Settings by name: {', '.join(PRESETS)}.")]


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: Switch = False
    """Print one JSON document on standard output; messages go to standard error."""
    debug: Switch = False
    """Show the traceback of an error."""


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


def arguments(flags: Common, **callbacks: Any) -> dict[str, Any]:
    """The flags as keyword arguments of the verb's function, messages to standard error, and other callbacks."""
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in ("json", "debug")}
    return {**given, "tell": tell, **callbacks}


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
