"""The suite's own tools: what mutants there are and which may survive, what an audit's answer means."""

import ast
import json

import pytest

from tests.dependencies import lower_bounds, verdict
from tests.mutants import COVERED, EXPLAINED, mutants, sample
from tests.trees import ROOT

CODE = '''"""Doc of 1."""


def f(x: int = 3, *, deep: bool = True) -> int:
    """Twice 2."""
    if not x < 1 and deep:
        raise ValueError(f"{x} of 4")
    g(x)
    return x[:-1] + h(x, 2)
'''
CHANGED = {
    "def f(x: int = 4, *, deep: bool = True) -> int:", "def f(x: int = 3, *, deep: bool = False) -> int:",
    "if (not (not x < 1 and deep)):", "if (not x < 1 or deep):", "if (x < 1) and deep:", "if not (x <= 1) and deep:",
    "if not x < 2 and deep:", "pass", "x", "return", "return (x[:-1] - h(x, 2))", "return x[:1] + h(x, 2)",
    "return x[:-2] + h(x, 2)", "return x[:-1] + (h(2, x))", "return x[:-1] + x", "return x[:-1] + h(x, 3)",
}  # fmt: skip


def test_every_computation_is_changed_and_words_are_not():
    found = list(mutants("a.py", CODE))
    assert {one.change(CODE)[1] for one in found} == CHANGED
    assert all(one.change(CODE)[0] != one.change(CODE)[1] and ast.parse(one.of(CODE)) for one in found)
    assert {one.line for one in found} == {4, 6, 8, 9}


def test_a_sample_is_the_same_for_a_seed_and_begins_as_a_smaller_one():
    assert sample(range(100), 10, 1) == sample(range(100), 10, 1) != sample(range(100), 10, 2)
    assert len(sample(range(5), 10, 1)) == 5


def test_every_explained_mutant_and_every_covering_test_is_there():
    there = {name: (ROOT / "tinygpt_jax" / name).read_text() for name in COVERED}
    changes = {(name, *one.change(text)) for name, text in there.items() for one in mutants(name, text)}
    assert {one[:3] for one in EXPLAINED} - changes == set()
    assert all((ROOT / "tests" / test).is_file() for tests in COVERED.values() for test in tests)


def test_every_requirement_has_a_lower_bound():
    bounds = dict(lower_bounds())
    assert {"jax", "numpy", "matplotlib", "tensorboardX", "pytest"} <= bounds.keys()


VULNERABLE = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}]}
SOUND = {"name": "b", "version": "1", "vulns": []}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "last"),
    [
        ([SOUND, UNKNOWN], 0, "1 of 2 packages audited, 0 advisories"),
        ([SOUND, VULNERABLE], 1, "2 of 2 packages audited, 1 advisories"),
        ([UNKNOWN], 0, "packages are not audited: the advisory service knows none of the 1"),
    ],
)
def test_an_audit_fails_on_an_advisory_alone(packages, code, last):
    found, lines = verdict(json.dumps({"dependencies": packages}), "")
    assert (found, lines[-1]) == (code, last)
    assert ("a 1: PYSEC-1, mended in 2" in lines) == bool(code)


def test_an_audit_without_a_network_says_so_in_a_line():
    code, lines = verdict("", "Traceback\nConnectionError: no route\n")
    assert (code, lines) == (
        0,
        ["packages are not audited: no advisory service could be asked (ConnectionError: no route)"],
    )
