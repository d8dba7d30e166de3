import dataclasses
import functools
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.figures.fonts import system_fonts
from tests.figures.made import Novel, numbers, patterns, results
from tinygpt_jax.digits import decimals, number
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.maps import NUMBERED
from tinygpt_jax.figures.registry import LOOKS, draw, draw_file
from tinygpt_jax.figures.style import DPI, THEMES, encoded, ink_on, save_figure
from tinygpt_jax.figures.tokens import draw_attention
from tinygpt_jax.figures.training import animation
from tinygpt_jax.figures.words import largest, safe, short, short_token
from tinygpt_jax.lab.kinds import KINDS as SAVED
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.order import plain_changes

KINDS = list(results(1))
UNITS = ("nats", "parameters", "% of the variance")
UNITLESS = {"attention": "attention weight", "next tokens": "probability", "positions": "value", "norm": "value",
            "rotary positions": "value", "split": "value", "activation": "output",
            "residual": "root mean square"}  # fmt: skip
"""Kind -> what its axis is called, of those whose numbers have no unit."""
CASES = ((1, False), (4, True), (12, False))


def said(figure):
    """All the text of a figure, and of its axes and colour bars."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


# Every figure, at every size


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_draws_at_every_size_and_with_gaps(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(SAVED, "Novel", Novel)  # one that was added, and has no line in LOOKS
    for n, gaps in CASES:
        result = results(n, gaps)[kind]
        if gaps:
            result.save(tmp_path / "saved")
            result = read_result(tmp_path / "saved.json")
        figure = draw(result, theme="dark" if gaps else "light")
        text = " ".join(said(figure))
        assert UNITLESS[kind] in said(figure) if kind in UNITLESS else any(unit in text for unit in UNITS)
        assert "no unit" not in text
        assert result.definition.model in text  # and what was measured
        if gaps:
            figure.draw_without_rendering()  # no warning


def test_a_text_that_the_font_lacks_would_be_seen():
    figure = draw(results(1)["heads"])
    figure.text(0.5, 0.5, "\U0001f99c")
    with pytest.warns(UserWarning, match="missing from font"):
        figure.draw_without_rendering()


def test_every_kind_that_can_be_saved_has_a_figure_and_is_tested():
    kinds = {type(result) for result in results(1).values()}
    assert set(LOOKS) == set(SAVED.values()) == kinds - {Novel}


def test_paths_that_do_not_exist_have_no_row_or_column():
    result = results(2)["paths"]
    text = set(said(draw(result)))
    assert {"0.1", "1.1 v"} <= text
    assert not {"1.0", "0.0 q"} & text
    with pytest.raises(UserError, match="there is no path"):
        draw(dataclasses.replace(result, effect=np.full_like(result.effect, np.nan)))


def test_an_estimate_is_beside_what_it_estimates_or_alone():
    result = results(4)["attribution patching"]
    text = said(draw(result))
    assert "z 0.80\xa0±\xa00.10" in " ".join(text).replace("\n", " ")
    layer, head = np.unravel_index(abs(result.effect[0]).argmax(), (4, 4))
    assert f"z {layer}.{head}" in text  # the largest has its name
    assert any(text.startswith("Estimate: ") for text in said(draw(results(4)["attribution alone"])))


# What figures say


def test_cells_hold_effects_and_errors_and_large_maps_mark_instead():
    result = results(4)["heads"]
    text = said(draw(result))
    assert f"{number(result.effect[1, 2], 3, signed=True)}\n± 0.030" in text
    large = draw(results(12)["heads"])
    assert NUMBERED < 12 * 12
    assert not [one for one in said(large) if "\n±" in one]
    marks = large.axes[0].collections[0].get_offsets()
    assert len(marks) == (abs(results(12)["heads"].effect) > 2 * 0.03).sum()


def test_what_is_not_finite_is_a_gap():
    result = results(4, gaps=True)["heads"]
    image = draw(result).axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(image), ~np.isfinite(result.effect))
    assert len([text for text in said(draw(result)) if "\n±" in text]) == np.isfinite(result.effect).sum()


EXTREME = (1e300, -1e300, 1.7e308, 1e-300, 5e-324, 0.0)


def curves(steps, loss, **others):
    """Curves of so many steps, all numbers 1 but those given."""
    one = np.ones(steps)
    numbers = {"loss": loss, "val_loss": one, "val_loss_se": one, "learning_rate": one, "grad_norm": one, **others}
    arrays = {name: np.asarray(array, np.float64) for name, array in numbers.items()}
    return dataclasses.replace(results(1)["training"], steps=tuple(range(steps)), **arrays)


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("alone", [True, False])
def test_a_number_too_large_or_small_to_draw_stops_no_curve(value, alone):
    row = np.full(4, value) if alone else np.array([1.0, 2.0, value, 3.0])
    figure = draw(curves(4, row, val_loss=row, val_loss_se=row, learning_rate=row, grad_norm=row))
    encoded(figure, "svg", 50)
    assert max(map(len, " ".join(said(figure)).split())) < 40


def test_an_error_below_zero_is_none():
    figure = draw(curves(3, np.ones(3), val_loss_se=[0.1, -1, 0.1]))
    assert "1.0000 ± 0.1000" in figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_whose_words_do_not_fit_its_numbers_is_refused_in_one_line_or_drawn(kind, tmp_path):
    result = results(2)[kind]
    words = [f.name for f in dataclasses.fields(result) if type(getattr(result, f.name)) in (tuple, str, int)]
    path, document, said = tmp_path / "one.json", result.to_json(), []
    for name in words:
        given = document[name]
        wrong = {int: [-1, 0, 10**9], str: ["", "x"]}.get(type(given)) or [given[:-1], given * 30]
        for value in wrong:
            path.write_text(json.dumps({**document, name: value}))
            try:
                draw_file(path, tmp_path / "one")
            except UserError as error:
                said.append(str(error))
    assert not any("\n" in line for line in said)


@pytest.mark.parametrize("kind", ["heads", "layers", "norm", "residual", "embedding", "scores", "lens"])
def test_a_number_too_large_to_draw_is_a_gap_in_every_kind(kind):
    result = results(4)[kind]
    first = np.array(getattr(result, next(iter(result.AXES))))
    first.flat[0] = 1.7e308
    changed = dataclasses.replace(result, **{next(iter(result.AXES)): first})
    figure = draw(changed)
    encoded(figure, "svg", 50)
    assert not any("000000000" in text for text in said(figure))  # in words, if at all, by its power of ten
    changed.to_html()


def test_effects_are_drawn_about_zero_and_shares_from_zero():
    low, high = draw(results(4)["heads"]).axes[0].images[0].get_clim()
    assert low == -high
    assert draw_attention(patterns((2,), 3), "abc").axes[0].images[0].get_clim()[0] == 0


def test_all_zero_and_all_missing_still_draw():
    for size, value in ((2, 0.0), (2, np.nan), (1, np.nan)):
        for kind in ("heads", "sets", "importance"):
            result = results(size)[kind]
            arrays = {
                f: np.full_like(getattr(result, f), value) for f in ("effect", "effect_se", "se") if hasattr(result, f)
            }
            figure = draw(dataclasses.replace(result, **arrays))
            figure.draw_without_rendering()  # no warning
            assert result.definition.model in " ".join(said(figure))


def test_the_headline_is_the_largest_or_says_that_there_is_none():
    some = plain_changes(["a", "b", "c"], [0.1, -0.5, np.nan], [0.01, 0.02, 0.01], "nats")
    assert largest(some) == "largest at b, −0.500 ± 0.020 nats"
    assert largest(some._replace(metric="loss")) == "b lowers the loss most, −0.500 ± 0.020 nats"
    least = largest(some._replace(metric="loss", least=True))
    assert least == "a raises the loss least, +0.100 ± 0.010 nats"
    assert largest(some._replace(errors=np.array([0.06, 0.3, 0.01]))) == "no order beyond the noise"
    assert largest(some._replace(errors=None)) == "largest at b, −0.500 nats"
    assert largest(some._replace(values=np.full(3, np.nan))) == "no effect is a finite number"
    with pytest.raises(UserError, match="3 values, 3 errors and 2 names"):
        largest(some._replace(names=["a", "b"]))


def test_small_contributions_of_many_become_one_bar_and_the_sum_stays():
    result = results(12)["attribution"]
    per_example = numbers((len(result.components), 8))
    whole = dataclasses.replace(
        result, per_example=per_example, contribution=per_example.mean(1), total=per_example.sum(0)
    )
    figure = draw(whole)
    assert any(text.startswith("the other ") for text in said(figure))
    drawn = sum(bar.get_width() for bar in figure.axes[0].patches)
    assert drawn == pytest.approx(per_example.sum(0).mean())


def test_a_figure_of_many_bars_says_how_many_it_leaves_out():
    assert any("The 50 largest of 144" in text for text in said(draw(results(12)["sets"])))


# Words and numbers


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", "␣the"), ("\t", "⇥"), ("\n\n", "↵↵"), ("", "∅"), ("\x00", "U+0000"), ("$x$", "\\$x\\$"), ("<", "<"),
        ("\U0001f99c", "U+1F99C"), ("\u0301a", "U+0301a"), ("e\u0301", "e\u0301"), ("\ud800", "U+D800"),
        ("\u202e", "U+202E"), ("\xa0", "U+00A0"), ("a" * 14, "a" * 14), ("a" * 15, "a" * 13 + "…"),
    ],
)  # fmt: skip
def test_tokens_are_visible(token, shown, monkeypatch):
    with system_fonts(monkeypatch):
        assert short_token(token) == shown


def test_text_is_never_a_formula():
    from matplotlib.cbook import is_math_text

    assert is_math_text("$x$")
    assert not is_math_text(safe("$x$"))
    assert not is_math_text(short("$" * 40))
    assert short("ab$", 3).endswith("…")


@pytest.mark.parametrize(
    ("value", "places", "text"), [(0.25, 1, "+0.2"), (-0.26, 1, "−0.3"), (-0.001, 2, "0.00"), (np.nan, 2, "-")]
)
def test_numbers(value, places, text):
    assert number(value, places, signed=True) == text


def test_digits_follow_the_errors():
    assert decimals([5.0], [0.012]) == 3
    assert decimals([5.0], [1e-9]) == 4
    assert decimals([0.5]) == 3
    assert decimals([123.0]) == 0
    assert decimals([np.nan], [np.nan]) == 0
    assert decimals([1e-9]) == 6


# Files


def test_files_open_and_are_the_same_when_drawn_again(tmp_path):
    from PIL import Image

    results(2)["attention"].save(tmp_path / "maps.v1")
    png, svg = draw_file(tmp_path / "maps.v1.json")
    assert (png.name, svg.name) == ("maps.v1.png", "maps.v1.svg")
    with Image.open(png) as image:
        image.load()
        assert image.info["dpi"][0] == pytest.approx(DPI, abs=1)
    assert ET.parse(svg).getroot().tag.endswith("svg")
    again = draw_file(tmp_path / "maps.v1.json", tmp_path / "new" / "again")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]
    dark = draw_file(tmp_path / "maps.v1.json", tmp_path / "dark", theme="dark")
    assert dark[0].read_bytes() != png.read_bytes()
    assert not list(tmp_path.rglob("*.partial"))


def test_a_users_settings_change_nothing_and_are_not_changed(tmp_path):
    import matplotlib

    plain = save_figure(draw(results(1)["heads"]), tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "text.color": "red", "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        own = save_figure(draw(results(1)["heads"]), tmp_path / "own")
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in own] == [path.read_bytes() for path in plain]


def test_an_animation_has_a_frame_for_each_step(tmp_path):
    from PIL import Image

    course = results(2)["over training"]
    paths = [animation(course, tmp_path / name) for name in ("a.gif", "b.gif")]
    with Image.open(paths[0]) as frames:
        assert frames.n_frames == len(course.steps) == 5
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("theme", THEMES)
def test_ink_can_be_read_on_every_colour_of_a_map(theme):
    from tinygpt_jax.figures.style import colormap

    def luminance(color):
        channel = np.asarray(color)[:3]
        return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4) @ (
            0.2126,
            0.7152,
            0.0722,
        )

    for kind in ("diverging", "sequential"):
        for color in colormap(kind, THEMES[theme])(np.linspace(0, 1, 33)):
            light = sorted([luminance(color), 1.0 if ink_on(color) == "#FFFFFF" else 0.0])
            assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5  # WCAG 2.2, level AA


# What cannot be drawn


def test_bad_input_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="theme 'drak' is unknown; did you mean 'dark'"):
        draw(results(1)["heads"], theme="drak")
    with pytest.raises(UserError, match=r"\(2, 3, 3\) for 2 tokens|\(1, 2, 3, 3\) for 2 tokens"):
        draw_attention(patterns((2,), 3), "ab")
    made = results(2)
    for kind, change, said in (
        ("patching", {"positions": (1, 2, 3)}, "cannot be drawn, its parts do not fit each other"),
        ("paths", {"names": ("0.0", "0.1")}, "cannot be drawn"),
        ("shapley", {"names": ("0.0", "0.1", "1.0")}, "cannot be drawn.*3 names for 4 values"),
        ("over training", {"steps": np.arange(4)}, "cannot be drawn"),
        ("lens", {"se": np.zeros(2)}, "cannot be drawn"),
        ("training", {"steps": (1, 2)}, "cannot be drawn"),
    ):
        with pytest.raises(UserError, match=said):
            draw(dataclasses.replace(made[kind], **change))
    for value in (np.zeros((0, 2, 2)), np.zeros((5, 2))):
        with pytest.raises(UserError, match="values have shape"):
            animation(dataclasses.replace(made["over training"], value=value), tmp_path / "none.gif")
    with pytest.raises(UserError, match="missing.json cannot be read"):
        draw_file(tmp_path / "missing.json")


@pytest.mark.parametrize("kind", ["heads", "pairs", "attention"])
def test_without_matplotlib_one_line_says_what_to_install(kind, monkeypatch):
    from tinygpt_jax.figures import fonts

    for cached in (fonts.font_of, fonts._families, fonts._characters):
        monkeypatch.setattr(fonts, cached.__name__, functools.cache(cached.__wrapped__))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        draw(results(1)[kind])


def test_nothing_loads_matplotlib_before_a_figure_or_pyplot_at_all(tmp_path):
    code = (
        "import sys; from tests.figures.made import results; from tinygpt_jax.figures.registry import draw;"
        "assert 'matplotlib' not in sys.modules; made = results(2);"
        "[draw(made[kind]) for kind in ('heads', 'sets', 'lens', 'importance')]; assert 'matplotlib' in sys.modules;"
        "from tinygpt_jax.figures.training import animation;"
        "animation(made['over training'], sys.argv[1]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "heads.gif")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_scores_were_measured_on_stands_in_the_title():
    result = results(2)["scores"]
    on = dataclasses.replace(result, definition=dataclasses.replace(result.definition, flags=("on some text",)))
    assert any("on some text" in text for text in said(draw(on)))
    assert not any("on some text" in text for text in said(draw(result)))


def test_attention_of_one_head_or_many():
    one = patterns((), 3)
    for given in (one, one[None], one[None, None]):
        assert len(draw_attention(given, "abc").axes) == 2  # a map and the bar of its colours
    with pytest.raises(UserError, match="must be"):
        draw_attention(one[0], "abc")
