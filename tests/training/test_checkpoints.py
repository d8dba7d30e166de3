"""Saved states: damage of any kind is noticed and named, the one before it is used, and nothing whole is ever lost."""

import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import move, partial_name, sweep
from tinygpt_jax.training import checkpoint
from tinygpt_jax.training.checkpoint import SUMS, Checkpoints, Damaged
from tinygpt_jax.training.progress import Progress
from tinygpt_jax.training.step import init_state

CFG = TrainConfig(model=GPTConfig(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=8))
FACTS = Progress().to_json()
ROOT = Path(__file__).resolve().parents[2]


def state(step):
    return init_state(CFG)._replace(step=jnp.int32(step), skipped=jnp.int32(step + 1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    with Checkpoints(path) as checkpoints:
        for step in (10, 20):
            checkpoints.save(state(step), {**FACTS, "best_step": step})
    return path


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def newest(run, step=None):
    """The step restored, what was said, and that all of it is as it was saved."""
    said = []
    with Checkpoints(run) as checkpoints:
        found, facts = checkpoints.restore(CFG, step, said.append)
    here = int(found.step)
    jax.tree.map(np.testing.assert_array_equal, found, state(here))
    assert facts["best_step"] == here
    assert not any("\n" in line for line in said)
    return here, said


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in files(folder)}


def test_a_state_comes_back_and_its_sums_are_those_of_the_standard_tool(run):
    assert newest(run) == (20, [])
    assert newest(run, 10) == (10, [])
    listed = [line.split("  ", 1)[1] for line in (run / "checkpoints" / "20" / SUMS).read_text().splitlines()]
    there = [path.relative_to(run / "checkpoints" / "20").as_posix() for path in files(run / "checkpoints" / "20")]
    assert sorted(there) == sorted([*listed, SUMS])


def test_one_bit_flipped_in_any_file_is_noticed(run):
    folder = run / "checkpoints" / "20"
    for file in files(folder):
        intact = file.read_bytes()
        for bit in {0, 4 * len(intact) + 3, 8 * len(intact) - 1}:
            damaged = bytearray(intact)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            with pytest.raises(Damaged, match="is damaged" if file.name == SUMS else re.escape(file.name)):
                checkpoint._check_files(folder)
        file.write_bytes(intact)
    assert checkpoint._check_files(folder)


def flip(folder):
    largest = max(files(folder), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def cut(folder):
    file = files(folder / "state")[0]
    file.write_bytes(file.read_bytes()[:-1])


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def half(folder):
    shutil.rmtree(folder / "state")


def without(folder):
    (folder / "facts" / "metadata").unlink()


def stranger(folder):
    (folder / "state" / "notes").write_text("mine")


def link(folder):
    file = folder / "facts" / "metadata"
    move(file, folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")


def pipe(folder):
    (folder / "facts" / "metadata").unlink()
    os.mkfifo(folder / "facts" / "metadata")


def no_sums_and_half(folder):
    (folder / SUMS).unlink()
    shutil.rmtree(folder / "state")


def no_sums_and_facts(folder):
    (folder / SUMS).unlink()
    (folder / "facts" / "metadata").write_text('{"best": ' + "1" * 5000)


def of_another_step(folder):
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("10"), folder)


HARM = (
    flip, cut, emptied, half, without, stranger, link, pipe, no_sums_and_half, no_sums_and_facts, of_another_step
)  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_state_is_named_passed_over_and_put_aside(run, harm):
    folder = run / "checkpoints" / "20"
    harm(folder)
    before = tree(run)
    step, said = newest(run)
    assert step == 10
    assert f"{folder} is damaged (" in said[0]
    assert said[0].endswith("it is passed over, and step 10 taken")
    assert tree(run) == before, "reading changes nothing"
    with Checkpoints(run, keep=1) as checkpoints:
        checkpoints.save(state(10), FACTS)  # as a resumed run does first
        assert checkpoints.steps() == [10]
        checkpoints.save(state(15), {**FACTS, "best_step": 15})
        assert checkpoints.steps() == [15], "what is damaged does not count among those kept"
    assert (run / "checkpoints" / "20.damaged").is_dir()
    assert newest(run) == (15, [])


def test_where_all_are_damaged_each_is_named_and_none_is_touched(run):
    for step in ("10", "20"):
        flip(run / "checkpoints" / step)
    before = tree(run)
    with pytest.raises(UserError, match=r"20 is damaged .*; .*10 is damaged .*: restore the files, or start the run"):
        newest(run)
    with pytest.raises(UserError, match="10 is damaged"):
        newest(run, 10)
    assert tree(run) == before


def test_a_state_without_sums_is_taken_and_that_is_said(run):
    (run / "checkpoints" / "20" / SUMS).unlink()
    step, said = newest(run)
    assert step == 20
    assert said == [f"{run / 'checkpoints' / '20'} has no checksums: damage to it would go unnoticed"]


@pytest.mark.parametrize("with_sums", [True, False])
def test_what_cannot_be_read_is_no_damage(run, monkeypatch, with_sums):
    """Permissions, another owner, a disk that is away: the cause is said, and an older state is not taken for it."""
    folder = run / "checkpoints" / "20"
    if not with_sums:
        (folder / SUMS).unlink()
    real = type(folder).open

    def refuse(path, *args, **kwargs):
        if path.name == "metadata":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(type(folder), "open", refuse)
    with pytest.raises(UserError, match=r"facts/metadata cannot be read \(Permission denied\), and may be intact"):
        newest(run)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that orbax left
def test_a_whole_state_that_does_not_fit_is_no_damage(run):
    other = TrainConfig(model=GPTConfig(vocab_size=7, block_size=4, n_layer=2, n_head=1, n_embd=8))
    with (
        Checkpoints(run) as checkpoints,
        pytest.raises(UserError, match="20 is as it was written, but cannot be restored"),
    ):
        checkpoints.restore(other)
    gc.collect()


def test_junk_among_the_states_is_none(run):
    place = run / "checkpoints"
    for name in ("007", "-1", "30.orbax-checkpoint-tmp", "x", partial_name(), "3" * 40, "20.damaged"):
        (place / name).mkdir()
    (place / "40").write_text("a file")
    with Checkpoints(run) as checkpoints:
        assert checkpoints.steps() == [10, 20]
    assert newest(run) == (20, [])


def save_refused(run, why):
    before = tree(run)
    with Checkpoints(run, keep=1) as checkpoints:
        with pytest.raises(UserError) as error:
            checkpoints.save(state(30), FACTS)
        assert str(error.value) == (
            f"cannot save the training state of step 30 in {run / 'checkpoints'} ({why}): those before it are kept; "
            f"mend that, or make room, and go on with --resume {run}"
        )
        assert tree(run) == before


def test_a_full_disk_is_one_line_and_costs_nothing(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "free_bytes", lambda path: 100)
        save_refused(run, "No space left on device")
    with Checkpoints(run, keep=1) as checkpoints:
        checkpoints.save(state(30), FACTS)
        assert checkpoints.steps() == [30]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("RESOURCE_EXHAUSTED: Error\nwriting: [os_error_code='28']\n"), "No space left on device"),
        (OSError(122, "Disk quota exceeded"), "Disk quota exceeded"),
        (RuntimeError("first\nsecond"), "first"),
        (TypeError(), "TypeError"),
    ],
)
def test_what_orbax_complains_of_in_many_lines_is_one(run, monkeypatch, error, said):
    logger = logging.getLogger("absl")

    def fail(*args, **kwargs):
        assert logger.disabled, "it would print a hundred lines of its own"
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint.Checkpointer.save", fail)
        save_refused(run, said)
    assert not logger.disabled


@pytest.mark.slow
def test_a_disk_that_fills_during_a_save_costs_nothing(run, tmp_path):
    """In a process of its own, since tensorstore goes on complaining when it is over."""
    code = f"""
import resource, sys
from pathlib import Path
from tests.training.test_checkpoints import *
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
save_refused(Path({str(run)!r}), "File too large")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=300)
    assert newest(run)[0] == 20


def test_the_older_states_go_only_when_the_new_one_is_there(run, monkeypatch):
    """Whatever step of a save fails, one whole state stays."""
    calls = []

    def fail(*args):
        calls.append(args)
        raise OSError(28, "No space left on device")

    for name in ("sync", "write_atomically", "move"):
        with monkeypatch.context() as patch, Checkpoints(run, keep=1) as checkpoints:
            patch.setattr(checkpoint, name, fail)
            with pytest.raises(UserError, match=r"\(No space left on device\)"):
                checkpoints.save(state(30), FACTS)
        assert newest(run)[0] == 20
    assert len(calls) == 3


NAMES = ["a%41", "%", "a#b", "a?b", "a b", "s3:", "ü", "a\\b", "a*b", "a[1]", "a\nb", "~x", "{a}", os.fsdecode(b"\xff")]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_may_lie_below_any_name(tmp_path, name, saved):
    with Checkpoints(tmp_path / name) as checkpoints:
        checkpoints.save(state(10), {**FACTS, "best_step": 10})
    assert newest(tmp_path / name) == (10, [])
    assert os.listdir(tmp_path) == [name], "nothing is written beside it"


def test_what_a_killed_writer_leaves_is_swept_and_nothing_else(run):
    place = run / "checkpoints"
    (place / partial_name()).mkdir()
    (place / partial_name()).write_text("half")
    (place / ".partial").write_text("mine")
    sweep(place)
    assert sorted(os.listdir(place)) == [".partial", "10", "20"]


@pytest.mark.parametrize(
    "facts",
    [
        {}, [], "abc", None, {"best": {}}, {"best": 3}, {"best": {"loss": 1}}, {**FACTS, "seconds": "abc"},
        {**FACTS, "best_step": None}, {**FACTS, "stale": [1]}, {**FACTS, "rises": True}, {**FACTS, "last_loss": "x"},
        {**FACTS, "trained_tokens": 10**5000}, {**FACTS, "seconds": 1e300},
        {"best": dict.fromkeys(("loss", "loss_se", "loss_per_char", "bits_per_byte", "tokens"), "1")},
    ],
)  # fmt: skip
def test_facts_that_make_no_sense_are_refused(facts):
    with pytest.raises((TypeError, ValueError)):
        Progress.from_json(facts, 10, 5)


def test_facts_that_make_sense_come_back():
    assert Progress.from_json(json.loads(json.dumps(FACTS)), 10, 5) == Progress()
    assert Progress.from_json({"best": None}, 10, 5) == Progress(trained_tokens=50)


@pytest.mark.parametrize("name", [".DS_Store", "._data", ".nfs0001", "state/.directory"])
def test_what_a_system_leaves_about_is_no_damage(run, name):
    (run / "checkpoints" / "20" / name).write_bytes(b"x")
    assert newest(run) == (20, [])
