"""Where text comes from: files, directories, standard input and two corpora known by name."""

import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.runtime import cache_dir
from tinygpt_jax.text.checks import check_unicode

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
TIMEOUT_SECONDS = 30


def load_text(sources: Sequence[str | os.PathLike[str]]) -> str:
    """The text of all sources, in the order given, with nothing put between them.

    A source is one of
      - `pydoc`: the Python language reference that comes with this Python (it differs from version to version);
      - `shakespeare`: tinyshakespeare, fetched the first time it is asked for and kept in `cache_dir()`;
      - `-`: standard input;
      - a directory: every file below it in the order of relative paths, without hidden files and directories;
      - a file.
    A file that bears one of the names above is reached as `./pydoc`.

    Text is strict UTF-8. A byte-order mark at the start of a file is dropped; line ends stay as they are.

    Raises:
        UserError: a source is missing, empty, unreadable, binary or wrongly encoded; shakespeare cannot be fetched.
    """
    names = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not names:
        raise UserError("no text was named; give a file, a directory, - or one of: " + ", ".join(sorted(BUILT_IN)))
    return "".join(_load(os.fspath(name)) for name in names)


def read_text(source: str | os.PathLike[str]) -> str:
    """The text of one file, or of standard input for `-`, decoded as `load_text` does; it may be empty.

    Raises:
        UserError: the file is missing, unreadable, binary or wrongly encoded.
    """
    name = os.fspath(source)
    if name == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed: pipe text into it, or name a file")
        return _decode(sys.stdin.buffer.read(), "standard input")
    if not os.path.exists(name):
        raise UserError(f"no file or directory {name!r}; {_suggestion(name)}")
    return _decode(_read(Path(name)), name)


def text_fingerprint(text: str) -> str:
    """SHA-256 of the text's UTF-8 bytes, in hexadecimal; UserError where it has none, for a lone surrogate."""
    check_unicode(text)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _load(source: str) -> str:
    """The text of one source, never blank."""
    # os.path, unlike Path, says no to a name that no file can have, and does not take "" for the directory at hand.
    if source in BUILT_IN:
        text = BUILT_IN[source]()
    elif os.path.isdir(source):
        text = "".join(read_text(file) for file in _files_below(Path(source)))
    else:
        text = read_text(source)
    if not text.strip():
        raise UserError(f"{source!r} holds no text, only white space at most; name another source")
    return text


def _decode(data: bytes, name: str) -> str:
    """Strict UTF-8, less a leading byte-order mark; the offset in a complaint counts from the start of the file."""
    if (offset := data.find(0)) >= 0:
        raise UserError(f"{name} looks binary: NUL at byte {offset}; leave it out, or convert it to UTF-8 text")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it, for example with iconv -f latin1 -t utf-8"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check its permissions or leave it out") from error


def _files_below(top: Path) -> list[Path]:
    """Every regular file that is not hidden, sorted by its path relative to `top`."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot list {error.filename} ({error.strerror}); check its permissions") from error

    found: list[Path] = []
    for folder, folders, files in os.walk(top, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder, name) for name in files if not name.startswith(".")]
    return sorted(filter(Path.is_file, found), key=lambda file: file.relative_to(top).as_posix())


def _suggestion(source: str) -> str:
    """What to do about a name that leads nowhere: the nearest one that does, or the kinds there are."""
    path = Path(source)
    try:
        siblings = [str(path.with_name(name)) for name in os.listdir(path.parent)]
    except (OSError, ValueError):
        siblings = []
    near = difflib.get_close_matches(source, [*BUILT_IN, *siblings], n=1)
    return f"did you mean {near[0]!r}?" if near else "give a path, - or one of: " + ", ".join(sorted(BUILT_IN))


def _pydoc() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _shakespeare() -> str:
    """tinyshakespeare from the cache, or fetched into it; what does not have the right checksum is never kept."""
    path = cache_dir() / "tinyshakespeare.txt"
    if path.is_file() and _is_shakespeare(data := _read(path)):
        return data.decode("utf-8")
    data = _fetch(SHAKESPEARE_URL)
    if not _is_shakespeare(data):
        raise UserError(
            f"what {SHAKESPEARE_URL} gave is not tinyshakespeare (wrong SHA-256); "
            "get the text another way and pass its file name instead of shakespeare"
        )
    write_atomically(path, data)
    return data.decode("utf-8")


def _is_shakespeare(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == SHAKESPEARE_SHA256


def _fetch(url: str) -> bytes:
    """At most one byte more than tinyshakespeare has: enough to tell that something else came."""
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            data: bytes = response.read(SHAKESPEARE_BYTES + 1)
            return data
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"cannot fetch shakespeare from {url} ({error}); go online, pass a text file instead, or use pydoc"
        ) from error


BUILT_IN: dict[str, Callable[[], str]] = {"pydoc": _pydoc, "shakespeare": _shakespeare}
