"""What the verbs of the command share: exit codes, flags, how tyro parses them, and how output is printed."""

import ast
import dataclasses
import inspect
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import OmitArgPrefixes, arg

from tinygpt_jax.markup import CONTROLS, say_to
from tinygpt_jax.presets import PRESETS
from tinygpt_jax.study.options import Switch

NARROWEST = 40
"""Columns that tyro's help takes at least: told of fewer, it never ends."""
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
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    parsed: Any = tyro.cli(
        flags,
        prog=f"tinygpt {verb}",
        description=_described(flags),
        args=args,
        default=default,
        config=(OmitArgPrefixes,),
    )
    return parsed


def _described(flags: type) -> str | None:
    """A class's docstring, from its file: `python -OO` keeps none, and a dataclass then makes up its own."""
    (node,) = ast.parse(inspect.getsource(flags)).body
    assert isinstance(node, ast.ClassDef)
    return ast.get_docstring(node)


def arguments(flags: Common, **callbacks: Any) -> dict[str, Any]:
    """The flags as keyword arguments of the verb's function, messages to standard error, and other callbacks."""
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name not in ("json", "debug")}
    return {**given, "tell": tell, **callbacks}


def tell(line: str) -> None:
    """Prints a message on standard error, at once."""
    say_to(sys.stderr, line)


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

    text = json.dumps(plain(document), allow_nan=False, ensure_ascii=False)
    if sys.stdout.isatty():  # the same document, its control characters as JSON escapes them
        text = re.sub(CONTROLS, lambda found: f"\\u{ord(found[0]):04x}", text)
    print(text)
