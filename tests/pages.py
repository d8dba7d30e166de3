"""HTML read back strictly: every tag closed in its place, and what is in it."""

import unicodedata
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "link", "meta", "source"}


class Page(HTMLParser):
    """A parsed document: `tags` as (name, attributes), `tables` as rows of cells, the names and classes of what is
    `around` each of them, the page's `text`, and what of it is written from right to left and could turn around what
    stands beside it, `astray`."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.tables, self.text, self.astray = [], [], [], "", []
        self.classes, self.around = [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.classes.append(dict(attrs).get("class", ""))
        if tag == "table":
            self.tables.append([])
            self.around.append({*self.open[:-1], *self.classes})
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("br", "p", "td", "th", "h1", "h2", "h3", "figcaption", "summary"):
            self.text += "\n"

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> inside {self.open}"
        self.open.pop()
        self.classes.pop()

    def handle_data(self, data):
        data = data.replace("±\xa0", "± ")  # so that no line ends there
        self.text += data
        turns = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in data)
        if turns and not {"bdi", "pre", "title"} & set(self.open):
            self.astray.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def named(self, tag):
        """The attributes of every such tag."""
        return [attributes for name, attributes in self.tags if name == tag]
