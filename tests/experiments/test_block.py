"""The walk-through keeps what it promises, and a broken block is seen to break its promise."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from experiments.block import attention, blocks, inputs
from experiments.block.given import TRUTH, given, sides
from experiments.block.page import page, terminal
from experiments.block.promises import claims
from experiments.block.run import numbers, pieces
from experiments.block.step import excerpt
from experiments.shared.common import FAILS, HOLDS
from tinygpt_jax import reference

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"processor_seconds": 1, "cores": 2, "python": "3", "jax": "0"}
TRANSFORMED = {
    "gradient": {"apart": {"JAX": 0.0}, "off": 0.0},
    "vmap": {"apart": {"JAX": 0.0}, "earlier": 0.0, "later": 1.0},
}
"""What JAX's transformations would leave, for the tests that do not run them."""


@pytest.fixture(scope="module")
def start():
    return given()


@pytest.fixture(scope="module")
def every(start):
    """NumPy alone, at full size: nothing to compile."""
    return {name: side for name, side in sides(start).items() if name.startswith("NumPy")}


@pytest.fixture(scope="module")
def found(every, start):
    return numbers(pieces(every, start)) | TRANSFORMED


def broken(every, **faulty):
    """The sides with other pieces in place of some."""
    return {
        name: side._replace(pieces=types.SimpleNamespace(**{**vars(side.pieces), **faulty}))
        for name, side in every.items()
    }


def failed(found, start, **changed):
    """The promises that are broken, where some steps' numbers are others."""
    return [one["claim"] for one in claims({**found, **changed}, start.cfg) if one["verdict"] == FAILS]


def test_every_promise_is_kept_at_the_classic_size(found, start):
    (B, T), cfg = start.ids.shape, start.cfg
    assert (B, T, cfg.n_embd, cfg.n_head, cfg.head_width, cfg.mlp_width, cfg.n_layer) == (4, 16, 64, 4, 16, 256, 3)
    assert len(claims(found, cfg)) == 10
    assert failed(found, start) == []
    assert found["stack"]["in"] == found["stack"]["out"] == (4, 16, 64)
    assert found["positions"]["rms"]["input"] == pytest.approx(1.2, abs=0.05)
    assert found["mlp"] == {**found["mlp"], "widths": [64, 256, 64], "parameters": 33_088}
    assert not found["softmax"]["naive_is_finite"]
    assert found["gelu"]["tanh_form_differs_by"] == pytest.approx(4.7e-4, abs=1e-5)


def test_a_block_without_its_norm_breaks_the_promise(every, start, found):
    skipped = broken(every, layer_norm=lambda x, g, b: x)
    step = inputs.layer_norm_step(skipped, start)
    assert failed(found, start, layer_norm=step.numbers) == [
        "each row after LayerNorm has mean 0 and standard deviation 1"
    ]


@pytest.mark.parametrize(
    ("old", "new"), [("<= pos[", "<= 1 + pos["), ("weights / weights.sum(-1, keepdims=True)", "weights")]
)
def test_attention_that_looks_ahead_or_does_not_share_breaks_the_promise(every, start, found, old, new):
    source = inspect.getsource(reference)
    assert old in source
    other = types.ModuleType("other")
    exec(compile(source.replace(old, new), "other", "exec"), other.__dict__)
    step = attention.attention_step(broken(every, multi_head_attention=other.multi_head_attention), start)
    assert failed(found, start, attention=step.numbers) == [
        "a row of attention sums to 1 and has nothing of later tokens"
    ]


def test_loud_writes_and_sides_with_other_weights_break_their_promises(every, start, found):
    one = every[TRUTH]
    louder = {**one.params["blocks"], "W2": 100 * one.params["blocks"]["W2"]}
    loud = {**every, TRUTH: one._replace(params={**one.params, "blocks": louder})}
    first, second = failed(found, start, stack=blocks.stack_step(loud, start).numbers)
    assert first.startswith("untrained, every write is much smaller")
    assert second.startswith("NumPy and JAX give the same numbers")


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ("heads", {"heads": 1}),
        ("mlp", {"widths": [64, 64, 64]}),
        ("stack", {"finite": False}),
        ("stack", {"out": (4, 16, 32)}),
        ("positions", {"rms": {"input": 1.0}}),
        ("gradient", {"off": 0.01}),
        ("vmap", {"earlier": 0.01}),
        ("vmap", {"later": 0.0}),
    ],
)
def test_every_other_promise_can_be_broken(found, start, step, wrong):
    assert len(failed(found, start, **{step: {**found[step], **wrong}})) == 1


def test_the_page_has_every_step_its_code_and_its_numbers(every, start, found):
    steps = pieces(every, start)
    for step in steps:
        step.numbers["apart"]["JAX, float32"] = 0.0
    written = page(steps, start, claims(found, start.cfg), FACTS)
    for number, step in enumerate(steps, 1):
        assert f"\n## {number}. {step.title}\n" in written
        assert f"]({step.stem}.png)" in written
        assert all(line in written and line in terminal(number, step) for line in step.printed)
        assert all(source in written for _, source in step.code)
    anchors = re.findall(r"\(#(.*?)\)", written)
    headings = re.findall(r"^## (\d.*)$", written, re.M)
    assert anchors == [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    prose = re.sub(r"```.*?```", "", written, flags=re.S)
    assert max(len(line) for line in prose.splitlines() if line[:1] != "|") <= 120


def test_an_excerpt_that_is_no_longer_there_is_missed():
    source = "def f(x):\n    y = x\n    z = y\n    return z\n"
    assert excerpt(source, "y =", "z =") == "y = x\nz = y"
    with pytest.raises(ValueError, match="no lines from 'a ='"):
        excerpt(source, "a =", "z =")


@pytest.mark.slow
def test_the_command_leaves_the_page_the_results_and_the_figures(tmp_path):
    command = [sys.executable, "-m", "experiments.block.run", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written, results = (tmp_path / "README.md").read_text(), json.loads((tmp_path / "results.json").read_text())
    assert "1. Softmax" in done.stdout
    assert len(results["claims"]) == 10
    assert {one["verdict"] for one in results["claims"]} == {HOLDS}
    stems = re.findall(r"\((\w+)\.png\)", written)
    assert list(results["steps"]) == stems
    for stem in stems:
        assert (tmp_path / f"{stem}.png").stat().st_size > 5_000
    assert not list(tmp_path.glob("*.svg"))
    assert str(tmp_path) not in written + json.dumps(results)
