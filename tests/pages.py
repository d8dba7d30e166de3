"""HTML read back strictly: every tag closed in its place, and what is in it."""

from html.parser import HTMLParser

VOID = {"br", "hr", "img", "meta", "source"}


class Page(HTMLParser):
    """A parsed document: `tags` as (name, attributes), `tables` as rows of cells, and its `text`."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.tables, self.text = [], [], [], ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("br", "p", "td", "th", "h1", "h2", "h3", "figcaption", "summary"):
            self.text += "\n"

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def named(self, tag):
        """The attributes of every such tag."""
        return [attributes for name, attributes in self.tags if name == tag]
