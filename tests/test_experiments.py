"""Every experiment runs from end to end at toy size and leaves what it says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_recipes(tmp_path):
    (tmp_path / "text.txt").write_text("Now is the winter of our discontent made glorious summer by this sun.\n" * 60)
    command = [sys.executable, "-m", "experiments.recipes.run", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--shakespeare", str(tmp_path / "text.txt")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["recipes"]) == {"default", "nano-cpu", "classic-bpe"}
    for recipe in results["recipes"].values():
        assert [step for step, *_ in recipe["curve"]] == [10, 20]
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000
    assert str(tmp_path) not in json.dumps(results)
