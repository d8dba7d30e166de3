"""A system with other fonts than this one: made here, known to matplotlib for as long as a test runs."""

from contextlib import contextmanager

from tinygpt_jax.figures import fonts

SQUARE = 1000
"""Units of an em, and of the width of every letter."""


def make_font(path, family, characters):
    """A font file whose letters are all the same square, for the given characters alone."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in ((100, 700), (900, 700), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square, names = pen.glyph(), [".notdef", *(f"u{ord(c):05X}" for c in characters)]
    builder = FontBuilder(SQUARE, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (SQUARE, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    builder.save(path)
    return path


@contextmanager
def system_fonts(monkeypatch, *paths):
    """matplotlib's list is its own DejaVu and these files, whatever else this system has."""
    from matplotlib.font_manager import fontManager

    def forget():
        fontManager._findfont_cached.cache_clear()
        for cached in (fonts.font_of, fonts._families, fonts._characters):
            cached.cache_clear()

    own = [entry for entry in fontManager.ttflist if entry.name == fonts.OWN]
    with monkeypatch.context() as patch:
        patch.setattr(fontManager, "ttflist", own)
        for path in paths:
            fontManager.addfont(path)
        forget()
        yield
    forget()
