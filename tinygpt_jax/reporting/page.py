"""The parts of a page of HTML that stands by itself: it loads nothing, runs nothing, and follows the reader's light or
dark, a phone's width and paper."""

import base64
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from tinygpt_jax.figures.style import THEMES
from tinygpt_jax.markup import escape, inline, isolated


class Section(NamedTuple):
    """A part of a page, which its contents lead to."""

    name: str
    """by which it is linked"""
    title: str
    html: str


class Picture(NamedTuple):
    """A figure in both themes."""

    light: bytes
    """a PNG"""
    dark: bytes
    said: str
    """its headline, for who cannot see it"""
    written: bool = False
    """whether its numbers stand in it"""


def document(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page; `lead` is HTML."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    contents = "".join(f'<li><a href="#{s.name}">{inline(s.title)}</a></li>' for s in sections)
    body = "".join(f'<section id="{s.name}"><h2>{inline(s.title)}</h2>{s.html}</section>\n' for s in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{isolated(escape(title))}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{inline(title)}</h1>\n{lead}\n<nav><ul>{contents}</ul></nav>\n{body}</main>\n</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    return f"<p>{inline(text)}</p>"


def note(text: str, command: str = "") -> str:
    """A line on what is missing or amiss, and what to type."""
    typed = f": <code>{inline(command)}</code>" if command else ""
    return f'<p class="note">{inline(text)}{typed}</p>'


def verbatim(text: str) -> str:
    """Text whose lines and spaces stay as they are, each line in the direction of its first letter; the line end in
    front is one that HTML drops."""
    return f'<pre dir="auto">\n{escape(text)}</pre>'


def tokens(names: Sequence[str]) -> str:
    """Tokens side by side, each in a box of its own."""
    return f'<p class="tokens">{" ".join(f"<bdi>{escape(name)}</bdi>" for name in names)}</p>'


def beside(*parts: str) -> str:
    """Parts next to each other where there is room for it."""
    return f'<div class="beside">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def boxed(kind: str, html: str) -> str:
    """A table: `wide`, which scrolls by itself where the screen is narrow, or `facts`, whose names stay whole."""
    return f'<div class="{kind}">{html}</div>'


def figure(picture: Picture, caption: str) -> str:
    """A picture in the reader's theme and, on paper, in the light one: all of it, and at its full size when touched."""
    width, height = (int.from_bytes(picture.light[at : at + 4]) for at in (16, 20))  # of a PNG, in pixels
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in (picture.light, picture.dark))
    return (
        '<figure><div class="wide" tabindex="0"><picture>'
        f'<source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" width="{width}" height="{height}" alt="{isolated(escape(picture.said))}">'
        f"</picture></div><figcaption>{inline(caption)}</figcaption></figure>"
    )


def _style() -> str:
    themes = (THEMES[name] for name in ("light", "dark"))
    light, dark = (f"--ink:{t.ink};--paper:{t.paper};--muted:{t.muted};--mark:{t.high}" for t in themes)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{STYLE}"


STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:50rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:1rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-bottom:1px solid var(--muted)}
h3{font-size:1rem;margin:1.5rem 0 .25rem}
a{color:inherit}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;list-style:none;padding:0}
figure{margin:1.5rem 0;break-inside:avoid}
figcaption{font-size:.85rem;color:var(--ink);opacity:.8}
img{display:block;max-width:100%;height:auto}
.wide,.facts{overflow-x:auto}
.wide,th{overflow-wrap:normal}
.wide:focus img{max-width:none}
.facts th{white-space:nowrap}
summary{cursor:pointer;font-size:.85rem}
table{border-collapse:collapse;font-size:.8rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.15rem .4rem;border-bottom:1px solid var(--muted);text-align:right;vertical-align:top}
th[scope=row]{text-align:left;font-weight:normal}
tbody:first-child td{text-align:left}
.beside{display:flex;flex-wrap:wrap;gap:0 3rem}
tr.marked>*{font-weight:bold}
pre,code,.tokens{font-family:ui-monospace,monospace;font-size:.85rem}
pre{white-space:pre-wrap;margin:.25rem 0;padding:.5rem .75rem;border-left:3px solid var(--muted)}
.tokens bdi{border:1px solid var(--muted);border-radius:3px;padding:0 .2rem;line-height:1.8}
.note{border-left:3px solid var(--mark);padding-left:.75rem}
@media screen and (max-width:40rem){figcaption::after{content:" · touch to enlarge"}}
@media print{body{font-size:11px}main{max-width:none;padding:0}nav,details:not([open]){display:none}
.wide,.facts{overflow:visible}
h2,h3{break-after:avoid}tr,pre{break-inside:avoid}}
"""
