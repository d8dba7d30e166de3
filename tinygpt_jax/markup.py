"""Text as HTML: nothing in it can be taken for a tag, and every character can be seen."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
EMPTY = "∅"
KEPT = "\n\t"


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


def escape(text: str) -> str:
    """Text as HTML, for an element or an attribute in quotes; line ends and tabs stay, other controls are U+XXXX."""
    return html.escape("".join(c if c in KEPT else named(c) for c in text))


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table of text, whose first column names its rows; without a head where that is empty."""
    names = "".join(f'<th scope="col">{escape(visible(cell))}</th>' for cell in head)
    rows = (
        f'<tr><th scope="row">{escape(visible(first))}</th>'
        + "".join(f"<td>{escape(visible(cell))}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in body
    )
    return f"<table>{f'<thead><tr>{names}</tr></thead>' if head else ''}<tbody>{''.join(rows)}</tbody></table>"


def fragment(title: str, before: Iterable[str], inner: str, after: Iterable[str] = ()) -> str:
    """A piece of HTML that stands by itself: a title, lines of text, what is HTML already, and lines of text."""
    head = "<br>".join((f"<strong>{escape(title)}</strong>", *map(escape, before)))
    return f"<div><p>{head}</p>{inner}{''.join(f'<p>{escape(line)}</p>' for line in after)}</div>"


def facts_fragment(title: str, facts: Mapping[str, str]) -> str:
    """A piece of HTML that says facts by their names."""
    return fragment(title, (), table((), facts.items()))
