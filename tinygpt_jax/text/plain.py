"""One text from one place, whatever that is: how much is read, and that it is strict UTF-8."""

import difflib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from tinygpt_jax.errors import UserError
from tinygpt_jax.measure import check_memory, host_memory

PART_BYTES = 1 << 20
TIMES = 3
"""How much memory a text takes at least until it is tokens, over its size."""


class NoText(UserError):
    """A file that is binary or wrongly encoded."""


def read_text(source: str | os.PathLike[str], known: Iterable[str] = ()) -> str:
    """The text of one file or pipe, or of standard input for `-`, decoded as `load_text` does; it may be empty.

    Raises:
        UserError: the file is missing (`known` are names that may have been meant), unreadable, a device, larger than
            memory allows, binary or wrongly encoded.
    """
    name = os.fspath(source)
    if name == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed: pipe text into it, or name a file")
        if not hasattr(sys.stdin, "buffer"):  # a notebook's, or a text that a program put there
            return sys.stdin.read()
        return _decode(_read_all(sys.stdin.buffer, "standard input"), "standard input")
    if not os.path.exists(name):
        raise UserError(f"no file or directory {name!r}; {_suggestion(name, known)}")
    return _decode(read_bytes(Path(name)), name)


def passes(source: str) -> bool:
    """Whether what a source gives is gone once it was read: standard input, or a pipe."""
    return source == "-" or (os.path.exists(source) and stat.S_ISFIFO(os.stat(source).st_mode))


def read_bytes(path: Path) -> bytearray:
    """The bytes of a file or pipe; of one that shows itself to be no text, the beginning. Raises UserError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise UserError(f"{path} is a device, which may never end: give a file, or pipe its text in with -")
        with path.open("rb") as file:
            check_room(os.fstat(file.fileno()).st_size, str(path))
            return _read_all(file, str(path))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check its permissions or leave it out") from error


def check_room(size: int, what: str) -> None:
    """Raises UserError where text of that many bytes or characters, or the work on it, cannot fit into memory."""
    check_memory(TIMES * size, f"{what}, {size / 1e6:,.0f} MB so far,", "give less text", host_memory())


def is_blank(text: str) -> bool:
    """Whether a text is white space at most; unlike `strip` it copies nothing."""
    return not text or text.isspace()


def _read_all(file: BinaryIO, name: str) -> bytearray:
    data = bytearray()
    while part := file.read(PART_BYTES):
        data += part
        if 0 in part:
            break
        check_room(len(data), name)
    return data


def _decode(data: bytes | bytearray, name: str) -> str:
    """Strict UTF-8, less a leading byte-order mark; the offset in a complaint counts from the start of the file."""
    if (offset := data.find(0)) >= 0:
        raise NoText(f"{name} looks binary: NUL at byte {offset}; leave it out, or convert it to UTF-8 text")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise NoText(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it, for example with iconv -f latin1 -t utf-8"
        ) from error


def _suggestion(source: str, known: Iterable[str]) -> str:
    """What to do about a name that leads nowhere: the nearest one that does, or the kinds there are."""
    path, known = Path(source), sorted(known)
    try:
        siblings = [str(path.with_name(name)) for name in os.listdir(path.parent)]
    except (OSError, ValueError):
        siblings = []
    near = difflib.get_close_matches(source, [*known, *siblings], n=1)
    return f"did you mean {near[0]!r}?" if near else "give a path, -" + " or one of: " * bool(known) + ", ".join(known)
