"""Where text comes from: files, directories, standard input and two corpora known by name."""

import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from tinygpt_jax.checks import check
from tinygpt_jax.config import Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.runtime import cache_dir
from tinygpt_jax.text.folders import Below, files_below, is_wanted
from tinygpt_jax.text.tokenizer import check_unicode

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
TIMEOUT_SECONDS = 30
HEAD_BYTES = 1 << 16
NAMED = 3
"""How many of the skipped files a message names."""


class NoText(UserError):
    """A file that is binary or wrongly encoded."""


def load_text(
    sources: Sources | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> str:
    """The text of all sources, in the order given; a text that does not end its line gets a line end before the next.

    A source is one of
      - `pydoc`: the Python language reference that comes with this Python (it differs from version to version);
      - `shakespeare`: tinyshakespeare, fetched the first time it is asked for and kept in `cache_dir()`;
      - `-`: standard input;
      - a directory: every file below it in the order of relative paths. Hidden files and folders, version control and
        runs are left out. Files that are no text (NUL bytes, not UTF-8) are skipped, and `tell` gets a line with their
        number;
      - a file.
    A file that bears one of the names above is reached as `./pydoc`.

    Of directories and files only those are read that a pattern of `sources.include` fits, where there is one, and none
    of `sources.exclude`. A pattern (`*.md`, `drafts`, `docs/api/*`) fits the name of a file or of a folder on the way;
    with a slash, its path.

    Text is strict UTF-8. A byte-order mark at the start of a file is dropped; line ends stay as they are.

    Raises:
        UserError: a source is missing, empty or unreadable; a file that is named is binary or wrongly encoded; nothing
            is left by the patterns, or there is nothing that they are for; shakespeare cannot be fetched.
    """
    wanted = check(Sources.of(sources))
    if not wanted.data:
        raise UserError("no text was named; give a file, a directory, - or one of: " + ", ".join(sorted(BUILT_IN)))
    patterns = f"include {wanted.include} and exclude {wanted.exclude}"
    if (wanted.include or wanted.exclude) and all(source == "-" or source in BUILT_IN for source in wanted.data):
        raise UserError(f"{patterns} are for files and folders, data is {wanted.data}: name some, or leave them out")
    skipped: list[Path] = []
    emptied: list[str] = []
    text = _joined([text for source in wanted.data for text in _load(source, wanted, skipped, emptied)])
    if not text:
        why = f" ({'; '.join(emptied[:NAMED])})" if emptied else ""
        raise UserError(f"nothing is left of data {wanted.data} by {patterns}{why}: change the patterns")
    if skipped:
        what = "a file that is" if len(skipped) == 1 else f"{len(skipped):,} files that are"
        tell(f"skipped {what} no text: {_first(skipped)}")
    return text


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


def _load(source: str, wanted: Sources, skipped: list[Path], emptied: list[str]) -> list[str]:
    """The texts of one source, never all blank; none where the patterns leave it out. Adds to `skipped`, and to
    `emptied` why a directory has none."""
    # os.path, unlike Path, says no to a name that no file can have, and does not take "" for the directory at hand.
    if source not in BUILT_IN and os.path.isdir(source):
        return _load_directory(source, wanted, skipped, emptied)
    if source in BUILT_IN:
        text = BUILT_IN[source]()
    elif source != "-" and not os.path.exists(source):
        raise UserError(f"no file or directory {source!r}; {_suggestion(source)}")
    elif source == "-" or is_wanted(PurePath(PurePath(source).name), wanted, os.path.dirname(source)):
        text = read_text(source)
    else:
        return []
    if not text.strip():
        raise UserError(f"{source!r} holds no text, only white space at most; name another source")
    return [text]


def _load_directory(source: str, wanted: Sources, skipped: list[Path], emptied: list[str]) -> list[str]:
    below = files_below(source, wanted)
    texts, binary = [], []
    for file in below.files:
        try:
            texts.append(read_text(file))
        except NoText:
            binary.append(file)
    if not any(text.strip() for text in texts):
        said = f"{source!r} holds no text{_why_none(binary, below)}"
        if not below.left_out:
            raise UserError(f"{said}; name another source")
        emptied.append(said)
        texts = []
    skipped += binary
    return texts


def _why_none(binary: Sequence[Path], below: Below) -> str:
    why = [f"{_are(len(binary))} no text ({_first(binary)})"] if binary else []
    why += [f"{_are(below.left_out)} left out by --include and --exclude"] if below.left_out else []
    why += [f"{_are(below.hidden)} hidden, of version control or of a run"] if below.hidden else []
    return ": of its files and folders " + " and ".join(why) if why else ", only white space at most"


def _joined(texts: Sequence[str]) -> str:
    """One after the other, so that the last word of a text does not run into the first of the next."""
    pieces: list[str] = []
    for text in filter(None, texts):
        if pieces and pieces[-1][-1] not in "\r\n":
            pieces.append("\n")
        pieces.append(text)
    return "".join(pieces)


def _are(n: int) -> str:
    return "1 is" if n == 1 else f"{n:,} are"


def _first(files: Sequence[Path]) -> str:
    """The first names of many."""
    names = [str(file) if str(file).isprintable() else repr(str(file)) for file in files[:NAMED]]
    return ", ".join(names + ["…"] * (len(files) > NAMED))


def _decode(data: bytes, name: str) -> str:
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


def _read(path: Path) -> bytes:
    """The bytes of a file; of one that shows at its beginning that it is no text, the beginning."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            return head if 0 in head else head + file.read()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check its permissions or leave it out") from error


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
    directory = cache_dir()
    if not directory:
        raise UserError("shakespeare is kept in a cache, but there is no home directory; set TINYGPT_CACHE to a folder")
    path = directory / "tinyshakespeare.txt"
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
