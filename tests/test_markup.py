"""Text as HTML, and results that show themselves in a notebook."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figures.made import HOSTILE, WHAT, results
from tests.pages import Page
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.style import SCREEN_DPI, THEMES
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.remove.ablate import Ablation
from tinygpt_jax.lab.result import MOST_ROWS
from tinygpt_jax.markup import escape, table, visible
from tinygpt_jax.training.evaluate import Evaluation
from tinygpt_jax.training.result import TrainResult


def shown(result):
    return Page(result._repr_html_())


def test_a_tag_left_open_or_crossed_would_be_seen():
    for broken in ("<p>", "<p><b></p></b>", "</p>", "<p id=a id=b></p>"):
        with pytest.raises(AssertionError):
            Page(broken)


@given(st.text())
def test_any_text_is_text_and_nothing_hides(text):
    html = f'<p title="{escape(text)}">{escape(text)}</p>{table(["", text], [[text, text]])}'
    html.encode()  # no halves of surrogate pairs
    page = Page(html)
    assert [tag for tag, _ in page.tags if tag not in ("table", "thead", "tbody", "tr", "th", "td", "bdi")] == ["p"]
    line = page.tables[0][1][1]
    assert len(line) >= len(text)
    assert not set(line) & set("\n\t\0\r\x7f\u202e")
    assert line == visible(text) == line.strip(" ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" a b ", "␣a b␣"), ("  ", "␣␣"), ("a\n\tb", "a↵⇥b"), ("\x00", "U+0000"), ("\ud800", "U+D800"),
        ("\u202eab", "U+202Eab"), ("\U0001f99c", "\U0001f99c"), ("<b>", "<b>"), ("", ""),
    ],
)  # fmt: skip
def test_white_space_and_controls_are_visible(text, line):
    assert visible(text) == line


def test_a_kind_is_said_in_words():
    made = results(1)
    titles = [made[kind].title() for kind in ("heads", "scores", "mlp", "over training")]
    assert titles == ["Ablation", "Head scores", "MLP widths", "Over training"]


@pytest.mark.parametrize(("n", "gaps"), [(1, False), (3, True), (12, False)])
@pytest.mark.parametrize("kind", list(results(1)))
def test_every_kind_shows_itself(kind, n, gaps):
    result = results(n, gaps)[kind]
    page = shown(result)
    assert result.title() in page.text
    assert result.definition.line() in page.text
    assert result.definition.unit in page.text
    (rows,) = page.tables
    assert 1 < len(rows) <= MOST_ROWS + 1
    assert len({len(row) for row in rows}) == 1
    left = int(result.present().sum()) - (len(rows) - 1)
    grid = rows[0][-1].startswith("head ")
    assert (f"and {left:,} more rows: tg.draw(result)" in page.text) == (left > 0 and not grid)


def test_heads_are_a_grid_with_errors():
    result = results(3)["heads"]
    (rows,) = shown(result).tables
    assert rows[0] == ["effect", "head 0", "head 1", "head 2"]
    assert [row[0] for row in rows[1:]] == ["layer 0", "layer 1", "layer 2"]
    assert rows[2][3] == f"{result.effect[1, 2]:+.4f} ± 0.0300"
    (scores,) = shown(results(3)["scores"]).tables  # several values a head: a row for each
    assert scores[6][0] == "1.2"


def test_what_is_not_finite_is_a_dash_also_when_read_back(tmp_path):
    result = results(3, gaps=True)["heads"]
    result.save(tmp_path / "r")
    for one in (result, read_result(tmp_path / "r.json")):
        cells = [cell for row in shown(one).tables[0][1:] for cell in row[1:]]
        assert [cell == "-" for cell in cells] == (~np.isfinite(result.effect)).ravel().tolist()


def test_hostile_names_are_escaped_and_visible():
    definition = dataclasses.replace(WHAT, metric="</p><script>alert(1)</script>", flags=("<img src=x onerror=y>",))
    n = len(HOSTILE)
    sets = Ablation(definition, ("set",), HOSTILE, np.ones(n), np.ones(n), np.ones((n, 2)), np.zeros(2))
    page = shown(sets)
    assert {tag for tag, _ in page.tags} == {"div", "p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert not any(attributes.keys() - {"scope"} for _, attributes in page.tags)
    assert "</p><script>alert(1)</script>" in page.text
    first = [row[0] for row in page.tables[0][1:]]
    assert first[:3] == ["⇥", "↵", "␣the"]
    assert "∅" in first


def test_a_training_and_an_evaluation_show_themselves():
    best = Evaluation(1.25, 0.02, 1.25, 1.8, 46512)
    rows = dict(shown(best).tables[0])
    assert rows["loss"] == "1.2500 ± 0.0200 nats per token"
    assert rows["perplexity"].startswith("3.490 ± 0.070")
    trained = TrainResult(Path("runs/<b>"), best, 600, 600, 804480, 60.0, 7.3, False, 460_800, 2, False)
    rows = dict(shown(trained).tables[0])
    assert rows["run"] == "runs/<b>"
    assert rows["loss"] == "1.2500 ± 0.0200 nats per token"
    assert (rows["speed"], rows["parameters"]) == ("7,680 tokens/s over that time", "804,480")
    early = dict(shown(trained._replace(best=None, steps=3, interrupted=True)).tables[0])
    assert early["steps"] == "3, interrupted"
    assert "loss" not in early


def test_a_figure_shows_itself_on_its_own_paper():
    from PIL import Image

    result = results(2)["heads"]
    for theme, colors in THEMES.items():
        figure = draw(result, theme=theme)
        png = figure._repr_png_()
        with Image.open(io.BytesIO(png)) as image:
            corner = "#{:02X}{:02X}{:02X}".format(*image.convert("RGB").getpixel((0, 0)))
            assert image.width == pytest.approx(figure.get_figwidth() * SCREEN_DPI, abs=1)
        assert corner == colors.paper
    assert png == draw(result, theme=theme)._repr_png_()


def test_ipython_shows_the_figure_and_the_table():
    formatters = pytest.importorskip("IPython.core.formatters")
    shown, _ = formatters.DisplayFormatter().format(draw(results(1)["heads"]))
    assert shown["image/png"]
    shown, _ = formatters.DisplayFormatter().format(results(1)["heads"])
    assert "<table>" in shown["text/html"]
