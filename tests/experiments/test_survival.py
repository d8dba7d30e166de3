"""The faults that are tried on whole runs: a handful of kills, and the table of what is lost."""

import pytest

from experiments.survival.report import table
from experiments.survival.trials import Strike, newest, resumed_at
from tests.toys import run_toy


def test_the_table_counts_what_was_lost():
    trials = [{"kind": "a", "survived": True}, {"kind": "b", "survived": True}, {"kind": "a", "survived": False}]
    assert table(trials).splitlines()[2:] == ["| a | 2 | 1 | 1 |", "| b | 1 | 1 | 0 |", "| all | 3 | 2 | 1 |"]


def test_what_a_run_says_and_has_is_read(tmp_path):
    for name in ("0", "60", "120.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest(tmp_path) == 60
    assert newest(tmp_path / "none") == -1
    assert resumed_at("run x\nresuming ./run1 at step 1,260 of 2,000\n") == 1260
    assert resumed_at("compiled") == -1
    assert Strike("steps", (9,)).kind == "SIGKILL, steps"
    assert Strike("steps", (15, 15)).kind == "SIGTERM, twice"


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_not_been(tmp_path):
    trials = run_toy("survival", tmp_path, "--kills", "6")["trials"]
    strikes = [one for one in trials if one["kind"].startswith("SIG")]
    assert len(strikes) == 11
    assert [one for one in strikes if not one["survived"]] == []
    assert "| all | " in (tmp_path / "table.md").read_text()
