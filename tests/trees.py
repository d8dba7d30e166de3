"""Copies of the tree to break, and tests run in them: each run in a process forked from one that has the libraries
loaded and has computed nothing, so that a run of one test takes no longer than the test."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("tinygpt_jax", "tests", "experiments", "pyproject.toml", "README.md")
PASSED, FAILED = 0, 1  # of pytest's exit codes; others say that it ran no test
TOO_LONG = -1
# not what pytest wants to load itself: hypothesis
LOADED = [
    "chex", "jax", "jax.numpy", "numpy", "optax", "orbax.checkpoint", "pytest", "rich.progress",
    "safetensors.numpy", "scipy.special", "scipy.stats", "tokenizers", "tyro",
]  # fmt: skip

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(LOADED)


class Outcome(NamedTuple):
    code: int
    """pytest's, or TOO_LONG"""
    failed: str = ""
    """the test that failed first"""
    seconds: Mapping[str, float] = {}
    """of every test that ran"""
    said: str = ""


class Watch:
    """A pytest plugin: tests in an order given by rank, what failed, how long each took, what was printed."""

    def __init__(self, rank: Mapping[str, float]) -> None:
        self.rank, self.failed, self.said = rank, "", ""
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.rank:
            items.sort(key=lambda item: self.rank.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed, self.said = report.nodeid, str(report.longrepr)[-3000:]


def copy_tree(to: Path) -> None:
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, to / name)


def run_tests(
    tree: Path, tests: Sequence[str], rank: Mapping[str, float] | None = None, timeout: float = 900
) -> Outcome:
    """These tests (file or file::name below tests/) in a tree of their own, until one fails."""
    importlib.import_module("tests.conftest")  # its settings are read by libraries as they load
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(theirs, tree, list(tests), dict(rank or {})))
    process.start()
    theirs.close()
    try:
        return Outcome(*ours.recv()) if ours.poll(timeout) else Outcome(TOO_LONG, said=f"more than {timeout:.0f} s")
    except EOFError:  # it died: a mutant may end its process
        return Outcome(FAILED, "the process itself")
    finally:
        if process.is_alive() and process.pid:
            process.join(2)
            _end(process.pid)
        process.join()


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _run(answer: Connection, tree: Path, tests: Sequence[str], rank: Mapping[str, float]) -> None:
    """In the forked process: the tree's package and tests come before any others."""
    os.setsid()  # a group of its own, which can be ended as one
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "tinygpt_jax", "experiments")]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(one for one in sys.path if Path(one or ".").resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(tree)
    os.chdir(tree)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    import pytest

    watch = Watch(rank)
    options = ["-q", "-x", "-p", "no:cacheprovider", "--dist=no", "-m", "not peer"]
    code = pytest.main([*options, *(f"tests/{one}" for one in tests)], plugins=[watch])
    answer.send(
        (int(code), watch.failed, watch.seconds, watch.said)
    )  # plain values: our own classes are the tree's now
