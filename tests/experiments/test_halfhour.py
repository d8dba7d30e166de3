"""Verdicts about the half hour follow the numbers, and it runs at toy size."""

from pathlib import Path

import pytest

from experiments.halfhour.run import CLOSE, PUBLISHED, claims
from experiments.shared.common import FAILS, HOLDS, PARTLY
from tests.toys import run_toy

ROOT = Path(__file__).resolve().parents[2]


def test_verdicts_follow_the_numbers():
    def verdicts(loss, minutes, shakespeare=True, se=0.01):
        long = {"loss_per_char": loss, "loss_se": se}
        return [one["verdict"] for one in claims(long, [{"loss_per_char": one} for one in minutes], shakespeare)]

    assert verdicts(PUBLISHED - 0.02, (1.8, 1.9)) == [HOLDS, HOLDS]
    assert verdicts(PUBLISHED - 0.02, (1.8, 1.9), se=0.02) == [HOLDS, PARTLY]  # below it, but not beyond doubt
    assert verdicts(PUBLISHED, (1.8, 1.9)) == [HOLDS, PARTLY]
    assert verdicts(PUBLISHED + 0.9 * CLOSE, (1.8, 1.9)) == [HOLDS, PARTLY]
    assert verdicts(1.85, (1.8, 1.9)) == [FAILS, FAILS]
    assert verdicts(1.5, (1.8, 1.9), shakespeare=False) == [HOLDS]


@pytest.mark.slow
def test_halfhour(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("Now is the winter of our discontent made glorious summer by this sun.\nROMEO:\n" * 60)
    results = run_toy("halfhour", out, "--shakespeare", str(text))
    assert [step for step, *_ in results["long"]["curve"]] == [10, 20]
    assert len(results["minutes"]) == 2
    assert len(results["sample"]) > 100
    assert min(results["step_seconds"].values()) > 0
    assert "| half an hour, one seed | 20 |" in (out / "table.md").read_text()
    assert (out / "halfhour.png").stat().st_size > 10_000
