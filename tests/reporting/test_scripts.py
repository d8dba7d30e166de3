"""Any script in figures, in HTML and on a terminal: drawn where a font has it, its code point where none has, and no
number turned around by what is written from right to left."""

import dataclasses
import io
import itertools
import re
import sys
import unicodedata

import numpy as np
import pytest

from tests.figures import made
from tests.figures.fonts import make_font, system_fonts
from tests.figures.made import results
from tests.figures.test_views import KINDS
from tests.pages import Page
from tinygpt_jax.cli.results import shown
from tinygpt_jax.figures import fonts, words
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.words import safe, short, short_token
from tinygpt_jax.markup import isolated, say_to, table
from tinygpt_jax.reporting.page import Picture, Section, document, note, paragraph, tokens, verbatim
from tinygpt_jax.reporting.page import figure as page_figure
from tinygpt_jax.study.findings import Finding

HAN, HANGUL, HEBREW, ARABIC, HINDI = "中文", "한", "שלום", "سلام", "हि"
SCRIPTS = (HEBREW, HAN, f"{ARABIC} {HEBREW}", HANGUL, "שָׁ", f"{HEBREW}12", "١٢", "(א)", HINDI, "-א", f"a {ARABIC}")
FSI, PDI = "\u2068", "\u2069"

orders = pytest.mark.skipif(not fonts._shapes(), reason="this matplotlib does not order text from right to left")


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A system that has one font more, with Chinese and Korean letters."""
    with system_fonts(monkeypatch, make_font(tmp_path / "wide.ttf", "Wide Sans", HAN + HANGUL)):
        yield


@pytest.fixture
def bare(monkeypatch):
    """A system without a font of its own."""
    with system_fonts(monkeypatch):
        yield


def lines_of(figure):
    from matplotlib.text import Text

    figure.draw_without_rendering()  # no warning
    return [(one, line) for one in figure.findobj(Text) for line in one.get_text().split("\n") if line]


def turned(one, line):
    """Where a line's numbers, signs, letters and stretches from right to left do not stand from left to right in the
    order in which they were written."""
    from matplotlib.font_manager import fontManager, get_font
    from matplotlib.ft2font import LoadFlags

    paths = fontManager._find_fonts_by_props(one.get_fontproperties())
    drawn = [item.char for item in get_font(paths)._layout(line.replace("\\$", "$"), LoadFlags.NO_HINTING)]
    written, shown = map(stretches, (line, "".join(drawn)))
    return "" if written == shown else f"{line!r} is drawn as {''.join(drawn)!r}"


def stretches(line):
    signs = ("R" if unicodedata.bidirectional(c) in ("R", "AL", "AN") else c for c in line)
    return re.sub("R+", "R", re.sub(r"[^\da-zA-Z±−+%]", "", "".join(signs)))


def every_figure(monkeypatch):
    monkeypatch.setattr(made, "HOSTILE", SCRIPTS)
    for kind in KINDS:
        yield draw(results(4)[kind])
    effects = dict(zip(SCRIPTS, made.numbers(len(SCRIPTS)), strict=True))
    yield from (draw(one) for one in named_sets(effects))


def named_sets(effects):
    """Effects of sets of these names, each of which is once the largest, and so in the headline."""
    for first in effects:
        values = np.array([9.0 if name == first else value for name, value in effects.items()])
        n = len(values)
        yield made.Ablation(
            made.WHAT, ("set",), tuple(effects), values, np.full(n, 0.01), values[:, None] + [[0, 0.01]], np.zeros(2)
        )


# Fonts


def test_a_character_is_drawn_where_the_system_has_a_font_for_it(wide):
    assert [short_token(one) for one in (HAN, HANGUL, HINDI)] == [HAN, HANGUL, "U+0939U+093F"]
    figure = draw(next(named_sets({HAN: 1.0, HANGUL: 2.0})))
    families = {line: one.get_fontfamily() for one, line in lines_of(figure)}
    assert families[HAN] == families[HANGUL] == [fonts.OWN, "Wide Sans"]
    assert HAN in figure.get_suptitle()


def test_a_font_without_bold_letters_is_drawn_without_a_complaint(wide, caplog):
    figure = draw(next(named_sets({HAN: 1.0, HANGUL: 2.0})))
    figure.savefig(io.BytesIO())
    assert not caplog.records


def test_without_a_font_the_code_point_is_shown(bare):
    assert [short_token(one) for one in (HAN, HANGUL)] == ["U+4E2DU+6587", "U+D55C"]
    figure = draw(next(named_sets({HAN: 1.0, HANGUL: 2.0})))
    assert "U+4E2DU+6587" in figure.get_suptitle()
    assert {tuple(one.get_fontfamily()) for one, _ in lines_of(figure)} == {(fonts.OWN,)}


def test_a_letter_that_one_weight_lacks_is_not_drawn_in_another(bare):
    from matplotlib.font_manager import FontProperties, findfont, get_font

    files = [findfont(FontProperties(family=[fonts.OWN], weight=weight)) for weight in ("normal", "bold")]
    thin, bold = (get_font(file).get_charmap() for file in files)
    alone = [chr(c) for c in thin if c not in bold]
    assert alone
    assert [safe(one) for one in alone] == [f"U+{ord(one):04X}" for one in alone]


def test_a_font_that_draws_what_every_other_lacks_is_none(tmp_path, monkeypatch):
    last = make_font(tmp_path / "last.ttf", "Last Resort High-Efficiency", HAN)
    with system_fonts(monkeypatch, last):
        assert short_token(HAN) == "U+4E2DU+6587"


def test_each_character_has_its_font_whatever_else_is_drawn(tmp_path, monkeypatch):
    both = make_font(tmp_path / "both.ttf", "A Sans", HAN), make_font(tmp_path / "other.ttf", "B Sans", HAN + HANGUL)
    with system_fonts(monkeypatch, *both):
        assert [fonts.font_of(one) for one in (*HANGUL, *HAN, "a")] == ["B Sans", "A Sans", "A Sans", fonts.OWN]
        assert fonts.families(HANGUL + HAN + "a") == [fonts.OWN, "A Sans", "B Sans"]
        assert fonts.families("plain") == [fonts.OWN]


def test_a_figure_that_needs_no_other_font_looks_for_none(wide, monkeypatch):
    read, characters = [], fonts._characters
    with monkeypatch.context() as patch:
        patch.setattr(fonts, "_characters", lambda family: read.append(family) or characters(family))
        lines_of(draw(results(2)["heads"]))
        assert set(read) <= {fonts.OWN}
        fonts.font_of.cache_clear()
        assert short_token(HAN) == HAN
        assert "Wide Sans" in read


def test_wide_letters_have_room(wide):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    assert short(HAN * 10) == HAN * 3 + "…"
    places = {"x": np.arange(20) % 10, "y": np.arange(20) // 10, "size": np.ones(20)}
    figure = draw(dataclasses.replace(results(1)["embedding"], **places, tokens=(HAN * 3,) * 20))
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [one.get_window_extent(renderer) for one, line in lines_of(figure) if line == HAN * 3]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@orders
def test_what_an_older_matplotlib_would_put_in_the_wrong_order_is_its_code_point(tmp_path, monkeypatch):
    with system_fonts(monkeypatch, make_font(tmp_path / "more.ttf", "More Sans", HAN + HINDI)):
        assert short_token(HINDI) == HINDI
        monkeypatch.setattr(fonts, "_shapes", lambda: False)
        fonts.font_of.cache_clear()
        assert [short_token(one) for one in (HAN, HINDI, "א1", "é")] == [HAN, "U+0939U+093F", "U+05D01", "é"]


# Directions


@orders
def test_no_number_in_a_figure_is_turned_around(wide, monkeypatch):
    seen = 0
    for figure in every_figure(monkeypatch):
        for one, line in lines_of(figure):
            assert not turned(one, line)
            seen += FSI in line
    assert seen > 100


@orders
def test_a_number_that_is_turned_around_would_be_seen():
    from matplotlib.text import Text

    assert turned(Text(), f"{HEBREW}, −0.5 ± 0.1")
    assert turned(Text(), f"{HEBREW}  0.12")
    assert not turned(Text(), isolated(f"{HEBREW}  0.12"))


@pytest.mark.parametrize(
    ("given", "apart"),
    [
        ("plain 12", "plain 12"), (HEBREW, "[שלום]"), (f"{HEBREW} −0.5", "[שלום] −0.5"), ("א ב, 1 ג", "[א ב], 1 [ג]"),
        ("12א34", "12[א]34"), ("שָׁ.", "[שָׁ]."), ("א\nב", "[א]\n[ב]"), ("aאb", "a[א]b"), ("(א)", "([א])"), ("", ""),
    ],
)  # fmt: skip
def test_what_is_written_from_right_to_left_stands_apart(given, apart):
    assert isolated(given) == apart.replace("[", FSI).replace("]", PDI)


def test_every_line_of_a_long_headline_is_apart(bare):
    figure = draw(next(named_sets({" ".join([HEBREW] * 40): 1.0, "b": 0.1})))
    lines = figure.get_suptitle().split("\n")
    assert len(lines) > 1
    assert all(line.count(FSI) == line.count(PDI) for line in lines)


def test_html_sets_right_to_left_text_apart():
    html = table(["name", HEBREW], [[f"{one} 3", f"−0.5 {one}"] for one in SCRIPTS])
    assert not Page(html).astray
    assert f"<bdi>{HEBREW}</bdi> 3" in html
    assert Page(f"<p>{HEBREW} 3</p>").astray == [f"{HEBREW} 3"]  # or it would be seen
    for kind, result in results(2).items():
        assert not Page(result.to_html()).astray, kind


def test_a_table_of_results_shows_itself_apart(monkeypatch):
    monkeypatch.setattr(made, "HOSTILE", SCRIPTS)
    for kind in ("norm", "split", "mlp", "next tokens", "embedding"):
        assert not Page(results(4)[kind].to_html()).astray, kind
    for result in named_sets(dict.fromkeys(SCRIPTS, 1.0)):
        assert not Page(result.to_html()).astray


def test_a_report_sets_right_to_left_text_apart(tmp_path):
    html = document(
        f"Run {HEBREW} 5",
        paragraph(f"{HEBREW} 5"),
        [Section("one", f"{HEBREW} 5", note(f"{HEBREW} 5", f"tinygpt {HEBREW} 5") + tokens(SCRIPTS) + verbatim(HEBREW))]
        + [Section("two", "Figure", page_figure(Picture(b"", b"", f"{HEBREW} −0.5"), f"{HEBREW} 5"))],
    )
    page = Page(html)
    assert not page.astray
    assert f"<title>Run {isolated(HEBREW)} 5</title>" in html
    assert page.named("img")[0]["alt"] == f"{isolated(HEBREW)} −0.5"
    assert page.named("pre") == [{"dir": "auto"}]  # which gives every line the direction of its own first letter
    assert f"<code>tinygpt <bdi>{HEBREW}</bdi> 5</code>" in html  # marked, so that what is copied is what was meant


def test_a_terminal_gets_isolated_parts_and_a_pipe_the_text_as_it_is():
    line = f"{HEBREW}  −0.5 ± 0.1"
    assert said_on(Stream(terminal=True), line) == isolated(line) + "\n"
    assert said_on(Stream(terminal=False), line) == line + "\n"


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


def test_the_table_of_a_result_is_told_so(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Stream(terminal=True))
    shown(as_json=False)(Finding("sets", next(named_sets({HEBREW: 1.0, "b": 2.0})), []))
    assert f"{isolated(HEBREW)}  +9.0000 ± 0.0100\n" in sys.stdout.getvalue()


def said_on(stream, line):
    say_to(stream, line)
    return stream.getvalue()


def test_columns_on_a_terminal_are_aligned_by_what_is_seen():
    rows = words.aligned(["head", "effect"], [[HAN, "1"], ["abcd", "2"], ["שָׁ", "3"]])
    width = {sum(1 + (unicodedata.east_asian_width(c) in "WF") - (unicodedata.category(c) == "Mn") for c in row)
             for row in rows}  # fmt: skip
    assert len(width) == 1
