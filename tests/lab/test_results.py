"""A saved result is read back whole or refused in one line, whatever stands in its file."""

import copy
import dataclasses
import json
import re

import numpy as np
import pytest
from matplotlib.text import Text

from tests.figures.made import results
from tinygpt_jax.digits import with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw, lines
from tinygpt_jax.lab.kinds import KINDS, read_result
from tinygpt_jax.lab.read.training import SIGNED

MADE = results(2)
MADE.pop("no figure of its own")  # which only a test knows
WRONG = (True, 1.5, "\ud800", [], [[1], [1, 2]], {"a": 1}, ["a"], [10**400])


def fields(document):
    """Every field, with the table that it stands in."""
    yield from ((document, name) for name in document if name not in ("kind", "definition"))
    yield from ((document["definition"], name) for name in document["definition"])


def read(document, path):
    path.write_text(json.dumps(document))
    return read_result(path)


def same(a, b):
    if isinstance(a, np.ndarray):
        return type(b) is np.ndarray and np.array_equal(np.where(np.isfinite(a), a, np.nan), b, equal_nan=True)
    return type(a) is type(b) and (a == b or a != a)


@pytest.mark.parametrize("kind", MADE)
def test_every_field_comes_back_with_its_type(kind, tmp_path):
    again = read_result(MADE[kind].save(tmp_path / "one")[0])
    for field in dataclasses.fields(again):
        assert same(getattr(MADE[kind], field.name), getattr(again, field.name)), field.name


@pytest.mark.parametrize("kind", MADE)
def test_a_field_that_is_missing_or_of_another_type_is_refused_or_does_no_harm(kind, tmp_path):
    whole, path = MADE[kind].to_json(), tmp_path / "one.json"
    refused = []
    for at in range(len(list(fields(whole)))):
        for wrong in WRONG:
            document = copy.deepcopy(whole)
            table, name = list(fields(document))[at]
            table[name] = wrong
            try:
                result = read(document, path)
            except UserError as error:
                refused.append(str(error))
                continue
            result.to_html()
            json.dumps([result.to_json(), result.rows()], ensure_ascii=False).encode()
            for field in dataclasses.fields(result):
                assert type(getattr(result, field.name)) in (type(getattr(MADE[kind], field.name)), np.ndarray)
    assert len(refused) > at * len(WRONG) // 2
    assert all(len(line) < 1000 and "\n" not in line for line in refused)


def test_a_number_that_is_not_finite_comes_back_as_one(tmp_path):
    curve = dataclasses.replace(MADE["curve"], free_se=float("nan"), tolerance=0)
    again = read_result(curve.save(tmp_path / "one")[0])
    assert np.isnan(again.free_se)
    assert (again.tolerance, type(again.tolerance)) == (0.0, float)


@pytest.mark.parametrize("kind", MADE)
def test_an_error_below_zero_is_refused(kind, tmp_path):
    document = MADE[kind].to_json()
    for name in [name for name in document if name.split("_")[-1] == "se" and isinstance(document[name], list)]:
        with pytest.raises(UserError, match="no whole result.*below 0"):
            read({**document, name: (-1 - np.abs(getattr(MADE[kind], name))).tolist()}, tmp_path / "one.json")


@pytest.mark.parametrize("name", ["definition", "kind", "nonsense"])
def test_a_part_of_the_file_that_is_missing_or_unknown_is_refused(name, tmp_path):
    document = MADE["heads"].to_json()
    for wrong in (None, 5, [], {}, {"a": 1}):
        with pytest.raises(UserError, match="no whole result"):
            read({**document, name: wrong}, tmp_path / "one.json")
    older = {name: part for name, part in document["definition"].items() if name != "ordered"}
    with pytest.raises(UserError, match="saved by an earlier version, whose errors were too small: measure"):
        read({**document, "definition": older}, tmp_path / "one.json")
    (tmp_path / "one.json").write_bytes(b"\xff\x00")
    with pytest.raises(UserError, match="no whole result"):
        read_result(tmp_path / "one.json")


DIFFERENCES = {
    "heads": {"effect"}, "layers": {"effect"}, "sets": {"effect"}, "pairs": {"joint", "interaction"},
    "attribution": {"contribution"}, "importance": {"signed", "integrated", "effect"}, "shapley": {"value"},
    "over training": {"value"}, "patching": {"effect"}, "attribution patching": {"estimate", "effect"},
    "attribution alone": {"estimate"}, "paths": {"effect"}, "curve": {"rise", "random_rise"},
}  # fmt: skip
"""Kind -> its columns that are differences or effects. Losses, scores, shares and probabilities are none."""


def up(result):
    """The same result with every number above 0."""
    arrays = {name: np.abs(array) + 0.01 for name in result.AXES if (array := getattr(result, name)) is not None}
    kept = {name: array for name, array in arrays.items() if getattr(result, name).dtype.kind == "f" and name != "x"}
    return dataclasses.replace(result, **kept)


@pytest.mark.parametrize("kind", MADE)
def test_a_plus_sign_says_that_a_number_is_a_difference(kind):
    result = up(MADE[kind])
    head, body = result.cells()
    for name, column in list(zip(head, zip(*body, strict=True), strict=True))[1:]:
        numbers = [cell for cell in column if cell[-1:].isdigit() and "." in cell]
        plus = [cell.startswith("+") for cell in numbers]
        assert plus == [name.replace(" ", "_") in DIFFERENCES.get(kind, ())] * len(numbers), name
    text = "\n".join(lines("name", result)) + "".join(t.get_text() for t in draw(result).findobj(Text))
    beside = kind == "gates"  # whose rise is no column of its table
    assert bool(re.search(r"(?<!U)\+0", text)) == (kind in DIFFERENCES or beside)


def test_every_kind_can_be_read_back_and_every_difference_is_followed_with_its_sign():
    assert {type(result) for result in MADE.values()} == set(KINDS.values())
    effects = {name for kind in KINDS.values() for name in kind.DIFFERENCES}
    assert set(SIGNED) == effects - {"contribution"}  # which is read


def test_what_is_read_over_training_has_no_plus_sign():
    course = up(MADE["over training"])
    read = dataclasses.replace(course.definition, direction="read")
    for one in (dataclasses.replace(course, definition=read), dataclasses.replace(course, field="loss")):
        assert not any("+" in cell for row in one.cells()[1] for cell in row)


def test_a_number_with_its_error():
    assert with_error(0.25) == "0.2500"
    assert with_error(0.25, 0.03, signed=True) == "+0.2500 ± 0.0300"
    assert with_error(-0.25, float("nan")) == "−0.2500"
    assert with_error(float("nan"), 0.1) == "-"
    assert with_error(3, 0.5, 1) == "3 ± 0.5"
    assert with_error("name") == "name"
