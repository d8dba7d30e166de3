"""Where every file of the package is written: whole or not at all, through links, and into pipes and devices."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tinygpt_jax.errors import UserError

DESCRIPTOR = re.compile(r"(?:/proc/(?P<process>\d+)(?:/task/\d+)?|/dev)/fd/(?P<number>\d+)")
"""The name of an open file of a process, links resolved."""
MOST_LINKS = 40
"""As many as Linux follows."""
PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")
"""The name of what is not yet whole, or no longer. A process that was killed leaves such; `sweep` deletes them."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a person gave it, a leading `~` replaced by their home.

    Raises:
        UserError: it is an address such as s3://…, holds a NUL, or names the home of somebody who has none.
    """
    text = os.fspath(path)
    if ADDRESS.match(text):
        raise UserError(f"{text!r} is an address, not a path: name a file or folder of this machine")
    if "\0" in text:
        raise UserError(f"{text!r} holds a NUL, which no name of a file can: choose another")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(f"{text!r}: there is no such home directory; write the path in full") from error


def write_atomically(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Write the parts, one after the other, so that a reader finds either all of them or what was there before.

    They go to a new file, which then takes the name, the permissions and (by root) the owner of the old one; a link
    stays, and what it leads to is written. A pipe, a character device or a descriptor of this process, such as
    /dev/stdout, gets them as they come.
    Folders on the way are made. Two writers at once each have a file of their own; the last one's is kept, whole.

    Raises:
        UserError: the folder or the file cannot be written; it is a folder, a socket or a block device, or a pipe that
            nobody reads.
    """
    write_together({path: parts})


def write_together(files: Mapping[str | os.PathLike[str], Iterable[bytes | memoryview]]) -> None:
    """`write_atomically` of several files, each of its parts: all of them, or where one cannot be written none."""
    with contextlib.ExitStack() as stack:
        for path, parts in files.items():
            stack.enter_context(_written(path, parts))


@contextlib.contextmanager
def _written(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> Iterator[None]:
    """The file takes its place when the context is left without an error."""
    with writing(path):
        before = _status(path)
        descriptor = _in_place(path)
        if descriptor is None and before is not None and not stat.S_ISREG(before.st_mode):
            descriptor = _opened(path)
        if descriptor is not None:
            with open(descriptor, "wb") as there:
                there.writelines(parts)
            yield
            return
        target = Path(os.path.realpath(path))
        # Opened by hand and not by `tempfile`, whose files nobody but their owner may read. The name is short, since
        # that of the target may be as long as names can be.
        partial = target.with_name(partial_name())
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as file:
                file.writelines(parts)
                file.flush()
                if before is not None:
                    _hand_over(file.fileno(), before)
                os.fsync(file.fileno())
            yield
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def open_to_append(path: str | os.PathLike[str]) -> TextIO:
    """A text in UTF-8, open at its end, line ends as they are given; what may be there, and the errors raised, are as
    for `write_atomically`."""
    with writing(path):
        before, descriptor = _status(path), _in_place(path)
        if descriptor is None:
            if before is None:
                Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
            descriptor = _opened(path, os.O_CREAT | os.O_APPEND)
        return open(descriptor, "a", encoding="utf-8", newline="")


def check_folder(path: str | os.PathLike[str], name: str = "out") -> None:
    """Raises UserError where no file can be written into a folder, which need not be there yet; nothing is made."""
    with writing(path):
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # which a circle of links does not survive
        there = asked = Path(os.path.realpath(path))
        while not os.path.lexists(there):
            there = there.parent
        if not there.is_dir():
            raise UserError(
                f"{name} is {os.fspath(path)!r}: {there if there != asked else 'that'} is a file; name a folder"
            )
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextlib.contextmanager
def reserved(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises UserError at once where `write_atomically` could not write there, before the work on what is written;
    meanwhile a pipe's reader is kept waiting."""
    with writing(path):
        before, descriptor = _status(path), _in_place(path)
        if descriptor is None and before is not None and not stat.S_ISREG(before.st_mode):
            descriptor = _opened(path)
        if descriptor is None:
            check_folder(Path(os.path.realpath(path)).parent)
        elif stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.write(descriptor, b"")  # which a full device refuses
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Makes a folder, or the one that a link leads to, and those on the way; OSError where it cannot be made."""
    os.makedirs(os.path.realpath(path), exist_ok=True)
    return Path(path)


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, a link, or a folder with all in it; what links lead to stays, and so do pipes and devices."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)


def partial_name() -> str:
    """A new name for what is not yet whole."""
    return f".{secrets.token_hex(8)}.partial"


@contextlib.contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent` for what is not yet whole, or no longer; deleted at the end."""
    folder = parent / partial_name()
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what stays is left to `sweep`


def move(path: Path, to: Path) -> None:
    """Renames a file, or a folder where there is none of that name; OSError where it cannot."""
    os.replace(path, to)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    if os.name == "posix" or path.is_file():  # Windows opens no folder
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def free_bytes(path: Path) -> int:
    """How much more a user may write where `path` lies."""
    return shutil.disk_usage(path).free


def sweep(folder: Path) -> None:
    """Deletes what writers that were killed left in a folder; none must be at work there."""
    for one in folder.iterdir() if folder.is_dir() else ():
        if PARTIAL.fullmatch(one.name):
            remove(one)


def remove_all(folder: Path, names: Sequence[str]) -> None:
    """As `remove`, for all that have these names in a folder: all of them or, where one cannot be removed, none.

    Raises:
        OSError: of the one that cannot be removed.
    """
    kinds = (os.path.islink, os.path.isfile, os.path.isdir)  # pipes and devices stay
    there = [name for name in names if any(is_one(folder / name) for is_one in kinds)]
    for name in there:
        if os.path.isdir(folder / name) and not os.path.islink(folder / name):
            for where, *_ in os.walk(folder / name, onerror=_raise):
                if not os.access(where, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), where)
    moved: list[str] = []
    with partial_folder(folder) as aside:
        try:
            for name in there:  # which shows that it can be removed
                os.rename(folder / name, aside / name)
                moved.append(name)
        except OSError:
            for name in moved:
                os.rename(aside / name, folder / name)
            raise


def _raise(error: OSError) -> None:
    raise error


def own_descriptor(path: str | os.PathLike[str]) -> int | None:
    """The number of the open file of this process that a path or its links name, as /dev/stdout does; or None."""
    with writing(path):
        found = _descriptor(path)
    return int(found["number"]) if found and found["process"] in (None, str(os.getpid())) else None


def _descriptor(path: str | os.PathLike[str]) -> re.Match[str] | None:
    """The name of an open file of a process that the path or its links lead to; None where they lead to none."""
    name = os.path.join(os.getcwd(), path)
    for _ in range(MOST_LINKS):
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        if (found := DESCRIPTOR.fullmatch(name)) or not os.path.islink(name):
            return found
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return None


def _in_place(path: str | os.PathLike[str]) -> int | None:
    """A descriptor that continues the open file that the path leads to; None where it leads to none."""
    number = own_descriptor(path)
    if number is not None:
        return os.dup(number)
    return _opened(path, os.O_APPEND) if _descriptor(path) else None


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The status of what the path or its link leads to, None for nothing; UserError where none can write to it."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a socket or a block device"
        raise UserError(f"cannot write {path} (it is {kind}); choose another place")
    return found


def _opened(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor to write what is there in place; a pipe that nobody reads is refused instead of waited for."""
    flags |= os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UserError(f"cannot write {path} (a pipe that nobody reads); start its reader first") from error
        raise
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def _hand_over(descriptor: int, before: os.stat_result) -> None:
    """Gives a new file the owner, where we may choose one, and the permissions of the one that it replaces."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.fchown(descriptor, before.st_uid, before.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Has what goes wrong inside say that `path` cannot be written."""
    try:
        yield
    except ValueError as error:  # NUL, or half of a surrogate pair
        raise UserError(f"cannot write {os.fspath(path)!r} (no file can have this name); choose another") from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path} ({reason}); choose another place, or make room for it") from error
