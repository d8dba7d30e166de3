"""A saved result is read back whole or refused in one line, whatever stands in its file."""

import copy
import dataclasses
import json

import numpy as np
import pytest

from tests.views.made import results
from tinygpt_jax.errors import UserError
from tinygpt_jax.results import read_result

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
    (tmp_path / "one.json").write_bytes(b"\xff\x00")
    with pytest.raises(UserError, match="no whole result"):
        read_result(tmp_path / "one.json")
