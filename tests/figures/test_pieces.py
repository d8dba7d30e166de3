"""Figures of a block's pieces: that they show the numbers they are given, and say what cannot be drawn."""

import dataclasses

import numpy as np
import pytest

from tests.figures.made import HOSTILE, numbers, pieces
from tests.figures.test_views import said
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.block import (
    activation_curves,
    head_split,
    mlp_widths,
    norm_rows,
    position_maps,
    residual_writes,
)
from tinygpt_jax.figures.draw import draw
from tinygpt_jax.figures.text import lines

X = np.linspace(-3, 3, 60)
RELU = np.maximum(X, 0)


def test_channels_of_the_first_table_are_drawn_as_they_are():
    first, second = numbers((6, 32)), numbers((6, 8), seed=1)
    figure = position_maps({"one": first, "two": second})
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
    curves = next(ax for ax in position_maps({"rotary": table}).axes if ax.get_legend())
    drawn = [line.get_ydata() for line in curves.lines[1:]]
    assert len(drawn) == 5
    assert min(map(np.ptp, drawn)) > 0.4
    assert np.ptp(table[:, 12]) < 0.01  # the twin: such a channel is there


def test_rows_have_the_mean_and_deviation_that_is_drawn():
    before = 2 + numbers((5, 7))
    after = (before - before.mean(-1, keepdims=True)) / before.std(-1, keepdims=True)
    figure = norm_rows({"before": before, "after": after}, tokens=HOSTILE[:5])
    means, deviations = figure.axes[2:4]
    for ax, of in ((means, np.mean), (deviations, np.std)):
        lines = {line.get_label(): line.get_xdata() for line in ax.lines}
        np.testing.assert_allclose(lines["before"], of(before, -1))
        np.testing.assert_allclose(lines["after"], of(after, -1), atol=1e-12)
    assert "1.00 after" in " ".join(said(figure)).replace("\n", " ")
    assert "1.00 before" not in " ".join(said(figure)).replace("\n", " ")


def test_heads_are_marked_where_they_begin_and_every_shape_is_said():
    steps = [("x", (4, 16, 12)), ("split", (4, 3, 16, 4)), ("scores", (4, 3, 16, 16))]
    figure = head_split(numbers((16, 12)), 3, steps)
    assert [line.get_xdata()[0] for line in figure.axes[0].lines] == [3.5, 7.5]
    for name, shape in steps:
        assert f"{name}\n{shape}" in said(figure)
    head_split(numbers((2, 4)), 1, []).draw_without_rendering()


def test_curves_slopes_and_the_share_below_zero_are_what_is_given():
    density = np.where(X < 0, 3.0, 1.0)
    figure = activation_curves(X, {"ReLU": RELU, "line": X}, density=density)
    curves, slopes = ({line.get_label(): line.get_ydata() for line in ax.lines} for ax in figure.axes[:2])
    np.testing.assert_array_equal(curves["ReLU"], RELU)
    np.testing.assert_allclose(slopes["line"], 1)
    headline = figure.get_suptitle().replace("\n", " ")
    assert "75 % of this model's inputs are below 0" in headline
    assert "at most 3.00 apart, at −3.00" in headline
    rounded, step = slopes["ReLU"], np.sign(RELU)
    assert ((rounded > 0) & (rounded < 1)).any()
    given = activation_curves(X, {"ReLU": RELU, "line": X}, slopes={"ReLU": step}).axes[1].lines
    np.testing.assert_array_equal(next(line.get_ydata() for line in given if line.get_label() == "ReLU"), step)
    assert "inputs are" not in activation_curves(X, {"ReLU": RELU}).get_suptitle()


def test_widths_are_to_scale():
    figure = mlp_widths([("in", 10, 0), ("hidden", 40, 440), ("out", 10, 410)])
    heights = [np.ptp(line.get_ydata()) for line in figure.axes[0].lines]
    np.testing.assert_allclose(heights, [10, 40, 10])
    text = said(figure)
    assert "10 → 40 → 10 numbers wide, 850 parameters" in text
    assert {"440\nparameters", "410\nparameters", "40 wide"} <= set(text)


def test_sizes_have_a_logarithmic_scale_where_they_are_far_apart():
    names, kinds = ["embedding", "attention 0", "after"], ["stream", "attention", "stream"]
    near, far = (residual_writes(names, kinds, rms, [0.01] * 3) for rms in ([1, 0.5, 2], [1, 0.001, 2]))
    assert (near.axes[0].get_yscale(), far.axes[0].get_yscale()) == ("linear", "log")
    assert near.axes[0].get_ylim()[0] == 0
    assert "from 1.00 ± 0.01 to 2.00 ± 0.01 (" in near.get_suptitle().replace("\n", " ").replace("\xa0", " ")
    fine = residual_writes(names, kinds, [1.2345, 0.5, 12.345], [0.0001] * 3)
    assert "from 1.23 to 12.3 (" in fine.get_suptitle().replace("\n", " ").replace("\xa0", " ")
    alone = residual_writes(names, kinds, [1, 0.5, 2], [np.nan] * 3)
    assert ["Whiskers" in " ".join(said(figure)) for figure in (near, alone)] == [True, False]
    stream = near.axes[0].lines[0]
    np.testing.assert_array_equal([stream.get_xdata(), stream.get_ydata()], [[0, 2], [1, 2]])


def test_what_is_missing_or_zero_throughout_still_draws():
    for value in (0.0, np.nan):
        table, row = np.full((3, 4), value), np.full(3, value)
        for figure in (
            position_maps({"one": table}),
            norm_rows({"one": table}),
            head_split(table, 2, [("x", (3, 4))]),
            activation_curves(np.arange(3), {"one": row, "two": row}, density=row),
            residual_writes("abc", ["stream", "MLP", "stream"], row, row),
        ):
            figure.draw_without_rendering()  # no warning


def test_a_saved_piece_says_first_what_is_shown_and_no_more_than_the_model_has():
    figures = {name: draw(result) for name, result in pieces(4).items()}
    text = {name: " ".join(said(figure)).replace("\n", " ") for name, figure in figures.items()}
    for name, parts in {
        "positions": ["Learned positions tell 4 positions apart; sinusoidal ones for comparison", "Each row is a pos"],
        "rotary positions": ["Rotary positions tell 4 positions apart; sin", "The rotary factors multiply queries and"],
        "norm": ["Each row is a token, each column a channel of the residual stream. Read"],
        "split": ["8 channels of the queries are 4 heads of 2", "Each row is a position"],
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
    for match, call in {
        "tables are empty": lambda: position_maps({}),
        "tables are a ndarray: give a dict": lambda: position_maps(np.zeros((3, 4))),
        r"one has shape \(3,\): must be \(positions, channels\)": lambda: position_maps({"one": np.zeros(3)}),
        "for 1 tokens": lambda: norm_rows({"one": np.zeros((2, 2))}, tokens="a"),
        r"\[\(2, 2\), \(3, 2\)\] for 2 tokens": lambda: norm_rows({"a": np.zeros((2, 2)), "b": np.zeros((3, 2))}),
        "n_head is 3 for 4 channels": lambda: head_split(np.zeros((2, 4)), 3, []),
        "numbers that rise": lambda: activation_curves([0, 0], {"a": [0, 0]}),
        r"curve a has shape \(3,\): must be \(2,\)": lambda: activation_curves([0, 1], {"a": [0, 1, 2]}),
        r"density has shape \(1,\)": lambda: activation_curves([0, 1], {"a": [0, 1]}, density=[0]),
        "each with a width above 0": lambda: mlp_widths([("in", 0, 0)]),
        "must be stream, attention, MLP": lambda: residual_writes(["a"], ["mlp"], [1]),
        r"rms has shape \(2,\)": lambda: residual_writes(["a"], ["MLP"], [1, 2]),
    }.items():
        with pytest.raises(UserError, match=match):
            call()
