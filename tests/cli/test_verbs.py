"""Every verb is a function of the package's face, and takes what its flags take; its help needs no JAX."""

import dataclasses
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import tinygpt_jax as tg
from tinygpt_jax import cli
from tinygpt_jax.config import SampleConfig

FACE = {verb: {"eval": "evaluate", "patch": "patch_run"}.get(verb, verb) for verb in cli.VERBS}
CALLBACKS = {"tell", "on_result", "on_file"}


def flags(verb):
    return import_module(f"tinygpt_jax.cli.{verb}").Flags


def parameters(function):
    return inspect.signature(function).parameters


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_verb_is_a_function_whose_options_an_editor_can_show(verb):
    function = getattr(tg, FACE[verb])
    assert inspect.isfunction(function)
    assert not [p for p in parameters(function).values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.parametrize("verb", ["eval", "heads", "ablate", "patch", "plot", "report"])
def test_flags_and_arguments_have_the_same_names_and_defaults(verb):
    fields = {f.name: f.default for f in dataclasses.fields(flags(verb)) if f.name not in ("json", "debug", *CALLBACKS)}
    taken = {p.name: p.default for p in parameters(getattr(tg, FACE[verb])).values() if p.name not in CALLBACKS}
    assert taken == fields


@pytest.mark.parametrize("function", [tg.sample, tg.generate, tg.stream], ids=lambda function: function.__name__)
def test_sampling_spells_out_every_setting(function):
    taken = {p.name: p.default for p in parameters(function).values() if p.name not in ("model", "prompt", "edits")}
    assert list(taken.items()) == [(f.name, f.default) for f in dataclasses.fields(SampleConfig)]  # in this order


def test_the_help_of_a_verb_loads_no_jax():
    code = (
        "import sys, contextlib, tinygpt_jax.cli as cli\n"
        "for verb in cli.VERBS:\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        cli.main([verb, '--help'])\n"
        "heavy = [m for m in ('jax', 'torch', 'orbax', 'matplotlib', 'tokenizers') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: tinygpt") == len(cli.VERBS)
