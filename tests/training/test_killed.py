"""A run that is killed at random moments, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the kills are of forked processes")
def test_a_run_that_is_killed_again_and_again_is_the_one_that_was_not(tmp_path):
    command = [sys.executable, "-m", "tests.kills", "12", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("killed 12 times; gone on ")
