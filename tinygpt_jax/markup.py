"""Safe text for HTML and for a terminal: escaped, every character visible, and right-to-left parts isolated."""

import html
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TextIO

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
EMPTY = "∅"
KEPT = "\n\t"
CONTROLS = r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
"""What a terminal may take for an order: C0 but line ends and tabs, C1, embeddings, overrides and isolates of a
direction, halves of surrogate pairs."""
ISOLATE, END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
KIND = {"R": "R", "AL": "R", "AN": "R", "NSM": "M", "L": "L", "EN": "L", "B": "L"}
"""Unicode's bidirectional class -> R right to left, M a mark on the letter before it, L where right to left ends; all
others are neutral."""


def marked(token: str) -> str:
    """A token whose white space has signs; `∅` where it is empty."""
    return "".join(SIGNS.get(character, character) for character in token) or EMPTY


def visible(text: str) -> str:
    """Text on one line that hides nothing: line ends and spaces at its ends have signs, controls are U+XXXX."""
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    after = len(text) - before - len(inner)
    line = "".join(SIGNS[c] if c in KEPT else named(c) for c in inner)
    return SIGNS[" "] * before + line + SIGNS[" "] * after


def named(character: str) -> str:
    """A character, or U+XXXX for one that is no sign: controls, marks of direction, halves of a surrogate pair."""
    return f"U+{ord(character):04X}" if unicodedata.category(character)[0] == "C" else character


def isolated(text: str) -> str:
    """Text whose right-to-left parts are isolated by Unicode's own signs, so that they reorder nothing beside them."""
    return "".join(f"{ISOLATE}{part}{END}" if i % 2 else part for i, part in enumerate(_directions(text)))


def harmless(text: str) -> str:
    """Text that cannot steer a terminal: its controls but line ends and tabs, and what overrides the order of writing,
    are U+XXXX."""
    return re.sub(CONTROLS, lambda found: named(found[0]), text)


def say_to(stream: TextIO, text: str, end: str = "\n") -> None:
    """Prints a line and flushes: on a terminal `harmless`, right-to-left parts isolated; in a file or pipe as it is."""
    print(isolated(harmless(text)) if stream.isatty() else text, file=stream, end=end, flush=True)


def _directions(text: str) -> list[str]:
    """A text cut where its direction changes: every other part runs from right to left, from its first such letter to
    the last before a digit, a left-to-right letter or a line end. Left to itself the bidirectional algorithm (UAX #9)
    would reorder digits beside such a part, and set lines that begin with one from right to left."""
    if text.isascii():
        return [text]
    kinds = "".join(KIND.get(unicodedata.bidirectional(character), "-") for character in text)
    ends = [0, *(end for found in re.finditer("R(?:[M-]*R)*M*", kinds) for end in found.span()), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def inline(text: str) -> str:
    """Text as HTML inside an element, its right-to-left parts isolated."""
    return "".join(f"<bdi>{escape(part)}</bdi>" if i % 2 else escape(part) for i, part in enumerate(_directions(text)))


def escape(text: str) -> str:
    """Text as HTML, for an element or an attribute in quotes; line ends and tabs stay, other controls are U+XXXX."""
    return html.escape("".join(c if c in KEPT else named(c) for c in text))


def table(head: Sequence[str], body: Iterable[Sequence[str]], marked_rows: Collection[str] = ()) -> str:
    """A table of text, whose first column names its rows; without a head where that is empty. `marked_rows` are names
    of rows that get the class `marked`."""
    names = "".join(f'<th scope="col">{inline(visible(cell))}</th>' for cell in head)
    rows = (
        ('<tr class="marked">' if first in marked_rows else "<tr>")
        + f'<th scope="row">{inline(visible(first))}</th>'
        + "".join(f"<td>{inline(visible(cell)).replace('± ', '±&nbsp;')}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in body
    )
    return f"<table>{f'<thead><tr>{names}</tr></thead>' if head else ''}<tbody>{''.join(rows)}</tbody></table>"


def folded(summary: str, html: str) -> str:
    """HTML that is hidden until its summary is clicked."""
    return f"<details><summary>{inline(summary)}</summary>{html}</details>"


def fragment(title: str, before: Iterable[str], inner: str, after: Iterable[str] = ()) -> str:
    """A piece of HTML that stands by itself: a title, lines of text, what is HTML already, and lines of text."""
    head = "<br>".join((f"<strong>{inline(title)}</strong>", *map(inline, before)))
    return f"<div><p>{head}</p>{inner}{''.join(f'<p>{inline(line)}</p>' for line in after)}</div>"


def facts_fragment(title: str, facts: Mapping[str, str]) -> str:
    """A piece of HTML that says facts by their names."""
    return fragment(title, (), table((), facts.items()))
