"""Files that may come from anyone: how much is read, of what kind, and that nothing leads out of a folder.

What is wrong is raised as OSError or ValueError with one short line; the caller says what the file was to be.
"""

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Collection
from typing import Any

from tinygpt_jax.errors import UserError

MOST_LOG = 2**28
"""Bytes of what training writes down as it goes: of two million steps."""
MOST_SETTINGS = 2**22
"""Bytes of a file of settings or of a run.json."""
DEEPEST = 50
"""Levels of a document."""
MOST_TABLES = 2**20
"""Objects and lists in a document: an empty one takes thirty times as much memory as its two characters."""
MOST_TOML = 2**16
"""Bytes of a file of settings in TOML, which someone wrote by hand; its parser takes a hundred times as many."""
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
LONG_NAME = re.compile(rf"(?:^|[{{,])[ \t\[]*(?:{_PART}[ \t]*\.[ \t]*){{20}}", re.MULTILINE)
"""A name of a table or a setting in TOML that has twenty parts: the parser looks up all of them again and again."""


def read_part(path: str | os.PathLike[str], most: int) -> bytes:
    """`read_few` of a plain file; OSError also for a pipe or a device, which could keep a reader waiting for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no plain file")
    return read_few(path, most)


def read_few(path: str | os.PathLike[str], most: int) -> bytes:
    """What a file holds; OSError where that is more than `most` bytes, of which no more is read."""
    with open(path, "rb") as file:
        size, parts = os.fstat(file.fileno()).st_size, []
        while size <= most and (part := file.read(2**20)):  # as it comes: a pipe does not say how much there is
            parts.append(part)
            size = max(size, sum(map(len, parts)))
    if size > most:
        raise OSError(errno.EFBIG, f"it is larger than {most / 2**20:g} MiB")
    return b"".join(parts)


def parse_json(data: bytes) -> Any:
    """A document of JSON in UTF-8, with or without a mark in front.

    Raises:
        ValueError: it is not JSON, a key stands twice in one object, or it is nested too deep or too often.
    """
    text = data.decode("utf-8-sig")
    if text.count("[") + text.count("{") > MOST_TABLES:
        raise ValueError(f"more than {MOST_TABLES:,} objects and lists")
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from error
    _check_depth(document)
    return document


def parse_toml(data: bytes) -> dict[str, Any]:
    """A document of TOML in UTF-8, with or without a mark in front; raises ValueError as `parse_json`."""
    if len(data) > MOST_TOML:
        raise ValueError(f"it is larger than {MOST_TOML / 2**10:g} KiB")
    text = data.decode("utf-8-sig")
    if LONG_NAME.search(text):
        raise ValueError("a name has twenty parts or more")
    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from error
    _check_depth(document)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST):
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for nodes in inner for child in nodes if isinstance(child, dict | list)]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEEPEST} levels")


def check_links(folder: str | os.PathLike[str], parts: Collection[str], movable: Collection[str] = ()) -> None:
    """Raises UserError where a part of a folder is a link, or holds one, that leads out of it.

    Of the parts, those that are `movable` may lie elsewhere, under their own name, as people do whose other disk is
    larger: so nothing else of theirs can be meant by it.
    """
    root = os.path.realpath(folder)
    for part in parts:
        path = os.path.join(folder, part)
        there = os.path.realpath(path)
        moved = part in movable and os.path.basename(there) == part
        _check_inside(path, there, root if not moved else there)
        for where, folders, files in os.walk(there):
            for name in (*folders, *files):
                link = os.path.join(where, name)
                if os.path.islink(link):
                    _check_inside(link, os.path.realpath(link), there if moved else root)


def _check_inside(path: str, there: str, root: str) -> None:
    if os.path.commonpath((there, root)) != root:
        raise UserError(
            f"{path} is a link that leads out of the run, to {there}: put a copy of that in its place, if you trust it"
        )
