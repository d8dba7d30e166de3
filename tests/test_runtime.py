"""The compilation cache: the same results with it, without it, and with a broken one."""

import json
import os
import subprocess
import sys

import pytest

from tinygpt_jax.runtime import COMPILED, _mend

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
MODEL = ["--n-layer", "1", "--n-embd", "16", "--block-size", "8"]
TRAIN = ["train", "--data", "text.txt", "--preset", "toy", *MODEL, "--steps", "20", "--eval-every", "20"]


def start(words, folder, **environment):
    """A process with the cache turned on, in which any warning is an error."""
    environment = {"TINYGPT_CACHE": str(folder / "cache"), "JAX_ENABLE_COMPILATION_CACHE": "true", **environment}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", *words], cwd=folder, env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def train(folder, *names):
    """What trainings that run at the same time say, and the weights that all of them end with."""
    (folder / "text.txt").write_text(TEXT)
    processes = [start(["-m", "tinygpt_jax", *TRAIN, "--out", name], folder) for name in names]
    said = [outcome(process)[1] for process in processes]
    (weights,) = {(folder / name / "model.safetensors").read_bytes() for name in names}
    return said, weights


def test_a_second_training_loads_its_programs_and_ends_alike_bit_for_bit(tmp_path):
    (cold,), weights = train(tmp_path, "first")
    (warm,), again = train(tmp_path, "second")
    assert "\ncompiled the train step in " in cold
    assert "\nloaded the compiled train step in " in warm
    assert "s (compilation cache)\n" in warm
    assert " s of compilation\n" in cold
    assert " s to load the compiled step\n" in warm
    assert again == weights


@pytest.mark.slow
def test_two_trainings_fill_a_cache_at_once_and_a_third_finds_it_damaged(tmp_path):
    cold, weights = train(tmp_path, "first", "beside")
    entries = list((tmp_path / "cache" / COMPILED).glob("*-cache"))
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    (damaged,), again = train(tmp_path, "third")
    assert entries
    assert any("\ncompiled the train step in " in said for said in cold)
    assert "\ncompiled the train step in " in damaged
    assert again == weights


COMPILE = """
import jax, warnings
from tinygpt_jax.runtime import cache_hits, use_compilation_cache
with cache_hits() as hits:
    path = use_compilation_cache()
    assert jax.jit(lambda x: x * x + 1)(3.0) == 10
print(path, jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size, len(hits))
"""


def test_a_cache_of_the_users_own_stays(tmp_path):
    own = str(tmp_path / "own")
    assert outcome(start(["-c", COMPILE], tmp_path, JAX_COMPILATION_CACHE_DIR=own))[0].split() == [own, own, "-1", "0"]
    assert not (tmp_path / "cache").exists()


def test_a_cache_can_be_turned_off(tmp_path):
    said = outcome(start(["-c", COMPILE], tmp_path, JAX_ENABLE_COMPILATION_CACHE="false"))[0]
    assert said.split()[:2] == ["None", "None"]
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert outcome(start(["-c", COMPILE], tmp_path))[0].split()[:2] == ["None", "None"]


def test_hits_are_counted_and_the_cache_is_bounded(tmp_path):
    eager = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    first, second = (outcome(start(["-c", COMPILE], tmp_path, **eager))[0].split() for _ in range(2))
    path = str(tmp_path / "cache" / COMPILED)
    assert first == [path, path, str(2**30), "0"]
    assert second[:3] == first[:3]
    assert int(second[3]) > 0


def test_what_a_killed_writer_left_is_taken_out(tmp_path):
    for name in ("whole-cache", "whole-atime", "cut-cache", "stranger"):
        (tmp_path / name).write_text(name)
    assert _mend(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"whole-cache", "whole-atime", "stranger", ".lockfile"}


@pytest.mark.parametrize("what", ["missing", "locked"])
def test_without_a_lock_there_is_no_cache(tmp_path, monkeypatch, what):
    import filelock

    def refuse(*args, **settings):
        raise filelock.Timeout("held")

    if what == "missing":
        monkeypatch.setitem(sys.modules, "filelock", None)
    else:
        monkeypatch.setattr(filelock, "FileLock", refuse)
    assert not _mend(tmp_path)


SEEDED = """
import json, sys, jax, numpy as np
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.runtime import numerics
from tinygpt_jax.training.step import init_state
state = init_state(TrainConfig(model=GPTConfig(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)))
print(json.dumps([float(sum(np.abs(x).sum() for x in jax.tree.leaves(state.params))), numerics()]))
"""


def test_a_seed_means_the_same_whatever_the_kind_of_key_and_what_changes_numbers_is_told(tmp_path):
    others = {"JAX_DEFAULT_PRNG_IMPL": "rbg", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    (plain, known), (other, changed) = (
        json.loads(outcome(start(["-c", SEEDED], tmp_path, **environment))[0]) for environment in ({}, others)
    )
    assert plain == other
    assert changed == {**known, "jax_default_matmul_precision": "highest"}
    assert {"jax_threefry_partitionable", "jax_enable_x64", "jax_numpy_dtype_promotion", "XLA_FLAGS"} < set(known)


@pytest.mark.parametrize("backend", ["module://gone.with_the_notebook", "nonsense"])
def test_a_backend_that_a_notebook_left_breaks_no_figure(backend, tmp_path):
    pytest.importorskip("matplotlib")
    code = (
        "import os; from tinygpt_jax.figures.style import encoded, new_figure\n"
        "with new_figure(3, 2, 'light') as (figure, _): figure.add_subplot().plot([1, 2])\n"
        "assert encoded(figure, 'png', 50); print(os.environ['MPLBACKEND'])"
    )
    assert outcome(start(["-c", code], tmp_path, MPLBACKEND=backend))[0].strip() == backend
