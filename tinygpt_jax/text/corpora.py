"""Where text comes from: files, directories, standard input and two corpora known by name."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from tinygpt_jax.checks import check
from tinygpt_jax.config import Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.runtime import cache_dir
from tinygpt_jax.text.folders import Below, files_below, is_wanted
from tinygpt_jax.text.plain import NoText, check_room, is_blank, read_bytes, read_text
from tinygpt_jax.text.tokenizer import PART_CHARS, check_unicode

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
TIMEOUT_SECONDS = 30
NAMED = 3
"""How many of the skipped files a message names."""


@dataclass
class _Found:
    """What was met on the way to a text."""

    skipped: list[Path] = field(default_factory=list)
    """files that are no text"""
    linked: list[Path] = field(default_factory=list)
    """links to folders, which were not followed"""
    emptied: list[str] = field(default_factory=list)
    """why a directory has nothing left by the patterns"""
    names: dict[str, str] = field(default_factory=dict)
    """text -> where it was first"""
    again: list[str] = field(default_factory=list)
    """where else"""
    size: int = 0
    """characters read"""

    def take(self, text: str, name: str) -> str:
        """The text itself, noted, once it is known that there is room for it beside the others."""
        self.size += len(text)
        check_room(self.size, "text")
        if text in self.names and not is_blank(text):
            first = self.names[text]
            self.again.append(_name(name) + f" = {_name(first)}" * (first != name))
        self.names.setdefault(text, name)
        return text

    def lines(self) -> Iterator[str]:
        """What the user should know."""
        if self.skipped:
            what = "a file that is" if len(self.skipped) == 1 else f"{len(self.skipped):,} files that are"
            yield f"skipped {what} no text: {_first(self.skipped)}"
        if self.linked:
            what = "a link to a folder" if len(self.linked) == 1 else f"{len(self.linked):,} links to folders"
            yield f"did not follow {what}: {_first(self.linked)}; to have the text there read, name the folder as well"
        if self.again:
            what = "one text is" if len(self.again) == 1 else f"{len(self.again):,} texts are"
            more = ", …" * (len(self.again) > NAMED)
            yield (
                f"{what} given more than once ({', '.join(self.again[:NAMED])}{more}): "
                "what is validated on may have been trained on"
            )


def load_text(
    sources: Sources | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tell: Callable[[str], None] | None = lambda line: print(line, file=sys.stderr),
) -> str:
    """The text of all sources, in the order given; a text that does not end its line gets a line end before the next.

    A source is one of
      - `pydoc`: the Python language reference that comes with this Python (it differs from version to version);
      - `shakespeare`: tinyshakespeare, fetched the first time it is asked for and kept in `cache_dir()`;
      - `-`: standard input;
      - a directory: every file below it in the order of relative paths. Hidden files and folders, version control,
        runs and the cache are left out, links to folders not followed, and files that are no text (NUL bytes, not
        UTF-8) skipped;
      - a file, or a pipe.
    A file that bears one of the names above is reached as `./pydoc`. `tell`, if any, gets a line about what was
    skipped or not followed, and about text that is given more than once.

    Of directories and files only those are read that a pattern of `sources.include` fits, where there is one, and none
    of `sources.exclude`. A pattern (`*.md`, `drafts`, `docs/api/*`) fits the name of a file or of a folder on the way;
    with a slash, its path.

    Text is strict UTF-8. A byte-order mark at the start of a file is dropped; line ends stay as they are.

    Raises:
        UserError: a source is missing, empty, unreadable, a device, or larger than memory allows; a file that is named
            is binary or wrongly encoded; nothing is left by the patterns, or there is nothing that they are for;
            shakespeare cannot be fetched.
    """
    wanted = check(Sources.of(sources))
    if not wanted.data:
        raise UserError("no text was named; give a file, a directory, - or one of: " + ", ".join(sorted(BUILT_IN)))
    patterns = f"include {wanted.include} and exclude {wanted.exclude}"
    if (wanted.include or wanted.exclude) and all(source == "-" or source in BUILT_IN for source in wanted.data):
        raise UserError(f"{patterns} are for files and folders, data is {wanted.data}: name some, or leave them out")
    found = _Found()
    text = _joined([text for source in wanted.data for text in _load(source, wanted, found)])
    if not text:
        why = f" ({'; '.join(found.emptied[:NAMED])})" if found.emptied else ""
        raise UserError(f"nothing is left of data {wanted.data} by {patterns}{why}: change the patterns")
    for line in found.lines():
        if tell:
            tell(line)
    return text


def text_fingerprint(text: str) -> str:
    """SHA-256 of the text's UTF-8 bytes, in hexadecimal; UserError where it has none, for a lone surrogate."""
    check_unicode(text)
    digest = hashlib.sha256()
    for start in range(0, len(text), PART_CHARS):  # the whole again as bytes would be as large as the text
        digest.update(text[start : start + PART_CHARS].encode("utf-8"))
    return digest.hexdigest()


def _load(source: str, wanted: Sources, found: _Found) -> list[str]:
    """The texts of one source, never all blank; none where the patterns leave it out."""
    # os.path, unlike Path, says no to a name that no file can have, and does not take "" for the directory at hand.
    if source not in BUILT_IN and os.path.isdir(source):
        return _load_directory(source, wanted, found)
    path = PurePath(PurePath(source).name)
    if source in BUILT_IN:
        text = BUILT_IN[source]()
    elif source == "-" or not os.path.exists(source) or is_wanted(path, wanted, os.path.dirname(source)):
        text = read_text(source, BUILT_IN)
    else:
        return []
    if is_blank(text):
        raise UserError(f"{source!r} holds no text, only white space at most; name another source")
    return [found.take(text, source)]


def _load_directory(source: str, wanted: Sources, found: _Found) -> list[str]:
    below = files_below(source, wanted)
    texts, binary = [], []
    for file in below.files:
        try:
            texts.append(found.take(read_text(file), str(file)))
        except NoText:
            binary.append(file)
    if all(map(is_blank, texts)):
        said = f"{source!r} holds no text{_why_none(binary, below)}"
        if not below.left_out:
            raise UserError(f"{said}; name another source")
        found.emptied.append(said)
        texts = []
    found.skipped += binary
    found.linked += below.linked
    return texts


def _why_none(binary: Sequence[Path], below: Below) -> str:
    why = [f"{_are(len(binary))} no text ({_first(binary)})"] if binary else []
    why += [f"{_are(below.left_out)} left out by --include and --exclude"] if below.left_out else []
    why += [f"{_are(below.hidden)} hidden, of version control or of a run"] if below.hidden else []
    why += [f"{_are(len(below.linked))} linked, which is not followed ({_first(below.linked)})"] if below.linked else []
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
    return ", ".join([*map(_name, files[:NAMED])] + ["…"] * (len(files) > NAMED))


def _name(file: str | Path) -> str:
    return str(file) if str(file).isprintable() else repr(str(file))


def _pydoc() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _shakespeare() -> str:
    """tinyshakespeare from the cache, or fetched into it; what does not have the right checksum is never kept."""
    directory = cache_dir()
    if not directory:
        raise UserError("shakespeare is kept in a cache, but there is no home directory; set TINYGPT_CACHE to a folder")
    path = directory / "tinyshakespeare.txt"
    if path.is_file() and _is_shakespeare(kept := read_bytes(path)):
        return kept.decode("utf-8")
    data = _fetch(SHAKESPEARE_URL)
    if not _is_shakespeare(data):
        raise UserError(
            f"what {SHAKESPEARE_URL} gave is not tinyshakespeare (wrong SHA-256); "
            "get the text another way and pass its file name instead of shakespeare"
        )
    write_atomically(path, data)
    return data.decode("utf-8")


def _is_shakespeare(data: bytes | bytearray) -> bool:
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
