"""Files of a directory of text: which of them are meant, and which are text at all."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import NamedTuple

from tinygpt_jax.config import Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.runtime import cache_dir

VERSION_CONTROL = {"CVS", "_darcs"}
"""Its folders whose names begin with no dot."""
RUN_PARTS = {"run.json", "tokenizer.json"}
RUN_FILES = {*RUN_PARTS, "model.safetensors", "metrics.jsonl", "samples.txt", "report.html"}


class Below(NamedTuple):
    """What is below a directory."""

    files: list[Path]
    """those that are read, sorted by their paths there"""
    left_out: int
    """files and folders that the patterns leave out"""
    hidden: int
    """files and folders that are hidden, of version control, of runs or of this package's cache"""
    linked: list[Path]
    """links to folders elsewhere, which are not followed"""


def files_below(source: str, wanted: Sources) -> Below:
    """Every regular file below a directory that is not hidden and is wanted. Folders of version control, of runs and
    of this package's cache are left out, links to folders not followed.

    Raises:
        UserError: a folder cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise UserError(
            f"cannot list {error.filename} ({error.strerror}); check its permissions, or leave it out with --exclude"
        ) from error

    found: list[PurePath] = []
    linked: list[Path] = []
    left_out = hidden = 0
    top, cache = os.path.realpath(source), os.path.realpath(cache_dir() or os.devnull)
    for folder, folders, files in os.walk(source, onerror=refuse):
        here = PurePath(folder).relative_to(source)
        if here.parts and (_is_run(files) or os.path.realpath(folder) == cache):  # they change as a run trains
            folders.clear()
            hidden += 1
            continue
        shown = [name for name in folders if not name.startswith(".") and name not in VERSION_CONTROL]
        there = [name for name in files if not name.startswith(".")]
        hidden += len(folders) - len(shown) + len(files) - len(there)
        folders[:] = [name for name in shown if not _named(here / name, wanted.exclude, source)]
        left_out += len(shown) - len(folders)
        linked += [Path(folder, name) for name in folders if _leads_out(os.path.join(folder, name), top)]
        found += [here / name for name in there if Path(folder, name).is_file()]
    kept = [path for path in found if is_wanted(path, wanted, source)]
    left_out += len(found) - len(kept)
    return Below([Path(source, path) for path in sorted(kept, key=PurePath.as_posix)], left_out, hidden, sorted(linked))


def _is_run(files: Sequence[str]) -> bool:
    """Whether these are a run's: a whole one, or one that stopped before its run.json was there."""
    return set(files) >= RUN_PARTS or {"tokenizer.json"} <= set(files) <= RUN_FILES


def _leads_out(folder: str, top: str) -> bool:
    """Whether a folder is a link to one that does not lie below `top`, where it is read anyway."""
    return os.path.islink(folder) and os.path.commonpath((top, os.path.realpath(folder))) != top


def is_wanted(path: PurePath, wanted: Sources, source: str = "") -> bool:
    """Whether the patterns ask for a file, by its path below `source`."""
    included = not wanted.include or _named(path, wanted.include, source)
    return included and not _named(path, wanted.exclude, source)


def _named(path: PurePath, patterns: Sequence[str], source: str) -> bool:
    """Whether a pattern fits: without a slash, the name of the file or of a folder on the way; with one, the path of
    either, from the directory on or as it was given. A `*` stands for slashes too."""
    return any(fnmatchcase(name, pattern) for given in patterns for name, pattern in _pairs(path, given, source))


def _pairs(path: PurePath, given: str, source: str) -> Iterator[tuple[str, str]]:
    pattern = given.removeprefix("./").removeprefix("**/").rstrip("/")
    if "/" not in pattern:
        return ((name, pattern) for name in path.parts)
    whole = PurePath(source, path)
    return ((one.as_posix(), pattern) for one in (path, *path.parents, whole, *whole.parents))
