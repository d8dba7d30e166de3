"""What the README promises of the default commands, run as a user runs them."""

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinygpt_jax.text import load_text

pytestmark = pytest.mark.slow
SHAKESPEARE = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "tinyshakespeare.txt"


def tinygpt(*args, folder):
    done = subprocess.run([sys.executable, "-m", "tinygpt_jax", *args], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_default_training_learns_words(tmp_path):
    result = json.loads(tinygpt("train", "--json", folder=tmp_path))
    assert result["loss_per_char"] < 1.7
    settings = ("--prompt", "The ", "--max-tokens", "600", "--n", "8", "--json")
    samples = json.loads(tinygpt("sample", *settings, folder=tmp_path))
    known = set(re.findall(r"[a-z]{3,}", load_text(["pydoc"]).lower()))

    def share_known(words):
        return sum(word in known for word in words) / len(words)

    words = [word for sample in samples for word in re.findall(r"[a-z]{3,}", sample["text"].lower())]
    letters = random.Random(0)
    shuffled = ["".join(letters.sample(word, len(word))) for word in words]
    assert len(words) > 200
    assert share_known(words) > 0.45 > 2 * share_known(shuffled)


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="tinyshakespeare.txt is not beside this checkout, in shared/data")
class TestShakespeare:
    def test_the_nano_cpu_recipe_reaches_its_published_loss(self, tmp_path):
        result = json.loads(
            tinygpt("train", "--preset", "nano-cpu", "--data", str(SHAKESPEARE), "--json", folder=tmp_path)
        )
        assert result["tokens"] == 111_539
        assert result["loss_per_char"] <= 1.90

    def test_the_speedrun_reaches_the_published_loss_in_a_fifth_of_the_steps(self, tmp_path):
        result = json.loads(
            tinygpt("train", "--preset", "speedrun", "--data", str(SHAKESPEARE), "--json", folder=tmp_path)
        )
        assert result["steps"] <= 2000 / 5
        assert result["loss_per_char"] <= 1.88

    def test_the_classical_recipe_begins_at_the_log_of_its_vocabulary(self, tmp_path):
        short = ("--steps", "50", "--eval-every", "50", "--sample-every", "0")
        tinygpt("train", "--preset", "classic-bpe", "--data", str(SHAKESPEARE), *short, folder=tmp_path)
        (run,) = (tmp_path / "runs").iterdir()
        first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        assert first["loss"] == pytest.approx(math.log(3000), rel=0.02)
