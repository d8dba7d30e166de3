"""Figures of a block's pieces: that they show the numbers they are given, and say what cannot be drawn."""

import dataclasses

import numpy as np
import pytest

from tests.figures.made import HOSTILE, numbers, pieces
from tests.figures.test_views import said
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.curves import draw_residual
from tinygpt_jax.figures.mlp import draw_activation, draw_mlp_widths
from tinygpt_jax.figures.registry import draw, lines
from tinygpt_jax.figures.tables import draw_head_split, draw_norm_rows, draw_positions

X = np.linspace(-3, 3, 60)
RELU = np.maximum(X, 0)


def headline(figure):
    return figure.get_suptitle().replace("\n", " ").replace("\xa0", " ")


def test_channels_of_the_first_table_are_drawn_as_they_are():
    first, second = numbers((6, 32)), numbers((6, 8), seed=1)
    figure = draw_positions({"one": first, "two": second}, "two tables")
    maps = [ax for ax in figure.axes if ax.images]
    np.testing.assert_array_equal([m.images[0].get_array().shape for m in maps], [(6, 32), (6, 8)])
    assert all(m.images[0].get_clim()[0] == -m.images[0].get_clim()[1] for m in maps)
    curves = next(ax for ax in figure.axes if ax.get_legend())
    names = [text.get_text() for text in curves.get_legend().get_texts()]
    drawn = [line.get_ydata() for line in curves.lines[1:]]  # the first is that of 0
    assert names == ["0", "8", "14", "20", "30"]
    np.testing.assert_array_equal(drawn, first[:, [0, 8, 14, 20, 30]].T)


def test_channels_that_hardly_move_are_not_drawn():
    turned = np.outer(np.arange(64), 10_000.0 ** -np.linspace(0, 1, 16, endpoint=False))
    table = np.concatenate([np.cos(turned), np.sin(turned)], -1)
    curves = next(ax for ax in draw_positions({"rotary": table}, "one").axes if ax.get_legend())
    drawn = [line.get_ydata() for line in curves.lines[1:]]
    assert len(drawn) == 5
    assert min(map(np.ptp, drawn)) > 0.4
    assert np.ptp(table[:, 12]) < 0.01  # the twin: such a channel is there


def test_rows_have_the_mean_and_deviation_that_is_drawn():
    before = 2 + numbers((5, 7))
    after = (before - before.mean(-1, keepdims=True)) / before.std(-1, keepdims=True)
    figure = draw_norm_rows({"before": before, "after": after}, HOSTILE[:5])
    means, deviations = figure.axes[2:4]
    for ax, of in ((means, np.mean), (deviations, np.std)):
        lines = {line.get_label(): line.get_xdata() for line in ax.lines}
        np.testing.assert_allclose(lines["before"], of(before, -1))
        np.testing.assert_allclose(lines["after"], of(after, -1), atol=1e-12)
    assert "1.00 after" in " ".join(said(figure)).replace("\n", " ")
    assert "1.00 before" not in " ".join(said(figure)).replace("\n", " ")


def test_heads_are_marked_where_they_begin_and_every_shape_is_said():
    steps = [("x", (4, 16, 12)), ("split", (4, 3, 16, 4)), ("scores", (4, 3, 16, 16))]
    figure = draw_head_split(numbers((16, 12)), 3, steps)
    assert [line.get_xdata()[0] for line in figure.axes[0].lines] == [3.5, 7.5]
    for name, shape in steps:
        assert f"{name}\n{shape}" in said(figure)
    draw_head_split(numbers((2, 4)), 1, []).draw_without_rendering()


def test_curves_slopes_and_the_share_below_zero_are_what_is_given():
    density = np.where(X < 0, 3.0, 1.0)
    figure = draw_activation(X, {"ReLU": RELU, "line": X}, slopes={}, density=density)
    curves, slopes = ({line.get_label(): line.get_ydata() for line in ax.lines} for ax in figure.axes[:2])
    np.testing.assert_array_equal(curves["ReLU"], RELU)
    np.testing.assert_allclose(slopes["line"], 1)
    headline = figure.get_suptitle().replace("\n", " ")
    assert "75 % of this model's inputs are below 0" in headline
    assert "differ by at most 3.00, at −3.00" in headline
    rounded, step = slopes["ReLU"], np.sign(RELU)
    assert ((rounded > 0) & (rounded < 1)).any()
    none = np.zeros_like(X)
    given = draw_activation(X, {"ReLU": RELU, "line": X}, slopes={"ReLU": step}, density=none).axes[1].lines
    np.testing.assert_array_equal(next(line.get_ydata() for line in given if line.get_label() == "ReLU"), step)
    assert "inputs are" not in draw_activation(X, {"ReLU": RELU, "line": X}, slopes={}, density=none).get_suptitle()


def test_widths_are_to_scale():
    figure = draw_mlp_widths([("in", 10, 0), ("hidden", 40, 440), ("out", 10, 410)])
    heights = [np.ptp(line.get_ydata()) for line in figure.axes[0].lines]
    np.testing.assert_allclose(heights, [10, 40, 10])
    text = said(figure)
    assert "The MLP is 10 → 40 → 10 numbers wide, with 850 parameters" in text
    assert {"440\nparameters", "410\nparameters", "40 wide"} <= set(text)


def test_sizes_have_a_logarithmic_scale_where_they_are_far_apart():
    names, kinds = ["embedding", "attention 0", "after"], ["stream", "attention", "stream"]
    near, far = (draw_residual(names, kinds, rms, [0.01] * 3) for rms in ([1, 0.5, 2], [1, 0.001, 2]))
    assert (near.axes[0].get_yscale(), far.axes[0].get_yscale()) == ("linear", "log")
    assert near.axes[0].get_ylim()[0] == 0
    assert "from a root mean square of 1.00 ± 0.01 to 2.00 ± 0.01" in headline(near)
    fine = draw_residual(names, kinds, [1.2345, 0.5, 12.345], [0.0001] * 3)
    assert "from a root mean square of 1.23 to 12.3" in headline(fine)
    saved = pieces(1)["residual"]
    alone = dataclasses.replace(saved, se=np.full_like(saved.se, np.nan))
    assert ["Whiskers" in " ".join(said(draw(one))) for one in (saved, alone)] == [True, False]
    stream = near.axes[0].lines[0]
    np.testing.assert_array_equal([stream.get_xdata(), stream.get_ydata()], [[0, 2], [1, 2]])


def test_what_is_missing_or_zero_throughout_still_draws():
    for value in (0.0, np.nan):
        table, row = np.full((3, 4), value), np.full(3, value)
        for figure in (
            draw_positions({"one": table}, "one"),
            draw_norm_rows({"one": table}, "abc"),
            draw_head_split(table, 2, [("x", (3, 4))]),
            draw_activation(np.arange(3), {"one": row, "two": row}, slopes={}, density=row),
            draw_residual("abc", ["stream", "MLP", "stream"], row, row),
        ):
            figure.draw_without_rendering()  # no warning


def test_a_saved_piece_says_first_what_is_shown_and_no_more_than_the_model_has():
    figures = {name: draw(result) for name, result in pieces(4).items()}
    text = {name: " ".join(said(figure)).replace("\n", " ") for name, figure in figures.items()}
    for name, parts in {
        "positions": ["Learned positions: each adds a row", "sinusoidal, for comparison", "Each row is a pos"],
        "rotary positions": [
            "Rotary positions: each turns",
            "The rotary factors multiply queries and",
        ],
        "norm": ["Each row is a token, each column a channel of the residual stream. Read from"],
        "split": ["The 8 channels of the queries are split into 4 heads of 2", "Each row is a position"],
        "activation": ["Left, what each function makes of its input", "height not to scale"],
        "mlp": ["Each bar is as tall as"],
        "residual": ["Each point is the size of the residual stream"],
    }.items():
        assert all(part in text[name] for part in parts), text[name]
    assert "multiply" not in text["positions"]
    none = dataclasses.replace(pieces(4)["positions"], learned=None, positions="none")
    assert draw(none).get_suptitle().replace("\n", " ").startswith("This model has no positions of its own; sinusoidal")


def test_in_words_there_is_an_error_only_where_there_are_examples():
    one, four = pieces(1), pieces(4)
    assert "of the weights alone" in lines("mlp", four["mlp"])[1]
    assert "± one standard error over 64 examples" in lines("residual", four["residual"])[1]
    assert lines("mlp", four["mlp"])[-1].split()[1:] == ["40", "3,000"]
    assert lines("activation", four["activation"])[-1].split() == ["3", "0.5000", "±", "0.0000", "0.0000"]
    assert lines("activation", one["activation"])[-1].split() == ["0", "0.5000", "0.0000"]


def test_what_does_not_fit_is_said_in_one_line():
    made, none = pieces(4), {"slopes": {}, "density": [0, 0]}
    for match, call in {
        "for 1 tokens": lambda: draw_norm_rows({"one": np.zeros((2, 2))}, "a"),
        "n_head is 3 for 4 channels": lambda: draw_head_split(np.zeros((2, 4)), 3, []),
        "numbers: must be two or more that rise": lambda: draw_activation([0, 0], {"a": [0, 0]}, **none),
        "each with a width above 0": lambda: draw_mlp_widths([("in", 0, 0)]),
        "must be stream, attention, MLP": lambda: draw_residual(["a"], ["mlp"], [1]),
        "one for each of 1 names": lambda: draw_residual(["a"], ["MLP"], [1, 2]),
    }.items():
        with pytest.raises(UserError, match=match):
            call()
    for kind, change in {
        "positions": {"learned": np.zeros(4)},
        "norm": {"values": np.zeros((3, 4))},
        "split": {"queries": np.zeros((2, 2))},
        "activation": {"gelu": np.zeros(3)},
        "residual": {"se": np.zeros(3)},
    }.items():
        with pytest.raises(UserError, match="cannot be drawn, its parts do not fit each other"):
            draw(dataclasses.replace(made[kind], **change))
    for change in ({"density": np.zeros(3)}, {"relu": np.zeros(3)}):
        with pytest.raises(UserError, match="cannot be drawn"):
            draw(dataclasses.replace(made["activation"], **change))
