"""A `tokenizer.json` may come from a stranger: what would hang the library or end the process is refused beforehand."""

import base64
import binascii
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tinygpt_jax.errors import UserError, shown
from tinygpt_jax.text.document import Document

MOST_BYTES = 1 << 26
"""Of a file; the largest in use have half of it."""
MOST_IDS = 1 << 22
MOST_GROWTH = 1000
"""How many characters may be put in place of one."""
SAID_CHARS = 200
PATIENCE = 3.0
"""Seconds that the library may take for any text; a sound tokenizer takes a few milliseconds for a thousand tokens."""
PACE = 20_000
"""Characters or ids a second that it must do beyond that: a fiftieth of what is usual."""
Given = TypeVar("Given")
_SYNTAX = re.compile(r"\\.|\((?:\?[a-zA-Z-]*[:=!>]|\?<[=!])?|\{\d+(?:,\d*)?\}|\{,\d+\}|.", re.DOTALL)


def check_parts(document: Document) -> None:
    """Raises UserError for a pattern that may take for ever, text that grows without bound, or a damaged table."""
    growth = 1
    for part in _parts([document.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]):
        pattern = part.get("Regex")
        if isinstance(pattern, str) and is_catastrophic(pattern):
            raise UserError(f"its pattern {shown(pattern)} repeats what repeats or chooses: it may never end")
        if part.get("type") in ("Replace", "Prepend"):
            growth *= 1 + len(str(next((part[key] for key in ("content", "prepend") if key in part), "")))
        if part.get("type") == "Precompiled" and not _is_whole(part.get("precompiled_charsmap")):
            raise UserError("its precompiled_charsmap is damaged")
    if growth > MOST_GROWTH:
        raise UserError(f"it may put {growth:,} characters in place of one")


def check_ids_of(vocab: dict[str, int]) -> None:
    """Raises UserError for ids that are too large to have a place each, and for tokens that share one."""
    if not vocab:
        raise UserError("it is a tokenizer without a single token")
    token, largest = max(vocab.items(), key=lambda item: item[1])
    if largest >= MOST_IDS:
        raise UserError(f"its token {shown(token)} has id {largest}: ids are below {MOST_IDS:,}")
    if len(set(vocab.values())) < len(vocab):
        seen: dict[int, str] = {}
        first, second = next((seen[i], t) for t, i in sorted(vocab.items()) if seen.setdefault(i, t) != t)
        raise UserError(f"its tokens {shown(first)} and {shown(second)} share id {vocab[first]}")


def is_catastrophic(pattern: str) -> bool:
    """Whether a group that is repeated holds a repeat or a choice: such a pattern can take exponential time."""
    open_groups, closed, brackets = [False], False, 0
    for token in _SYNTAX.findall(pattern):
        if brackets or token == "[":  # a class of characters, perhaps with others inside
            brackets += {"[": 1, "]": -1}.get(token, 0)
            closed = False
        elif token == ")" and len(open_groups) > 1:
            closed = open_groups.pop()
            open_groups[-1] |= closed
        else:
            repeat = token in ("*", "+") or token[0] == "{" and len(token) > 1
            if repeat and closed:
                return True
            closed = False
            if token[0] == "(":
                open_groups.append(False)
            else:
                open_groups[-1] |= repeat or token in ("|", "?")
    return False


def clipped(said: object) -> str:
    """What a library says, as one line of bounded length."""
    text = str(said)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= SAID_CHARS else text[:SAID_CHARS] + "…"


@contextlib.contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """Makes a UserError of whatever the library raises: nothing narrower than Exception, and where it panics not even
    that."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what} ({clipped(error)}); {remedy}") from error


def in_time(work: Callable[[], Given], size: int) -> Given:
    """What `work` on a text of that size gives; UserError where it takes time out of all proportion.

    It runs in a thread of its own, which nothing can stop, but which the end of the process does not wait for.
    """
    done: list[Given] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # a panic of the library is no Exception; all is raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE + size / PACE)
    if failed:
        raise failed[0]
    if not done:
        taken = f"over {PATIENCE + size / PACE:.0f} s for {size:,} characters or ids"
        raise UserError(f"it took {taken}: its patterns may never end")
    return done[0]


def _parts(value: Any) -> Iterator[Document]:
    """Every object in a document, at any depth; the library itself refuses more than 128."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _is_whole(table: object) -> bool:
    """Whether a table of SentencePiece is as long as it says: the library makes room for whatever it says."""
    try:
        data = base64.b64decode(str(table), validate=True)
    except (binascii.Error, ValueError):
        return False
    return 0 < int.from_bytes(data[:4], "little") <= len(data) - 4
