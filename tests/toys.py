"""Experiments at toy size, as their command runs them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_toy(name, out, *flags):
    """`python -m experiments.NAME.run --quick` in a process of its own: its results, which tell of no place here."""
    command = [sys.executable, "-m", f"experiments.{name}.run", "--quick", "--out", str(out), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    assert str(out) not in json.dumps(results)
    assert str(ROOT) not in json.dumps(results)
    return results
