"""Every experiment runs from end to end at toy size and leaves what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.induction.report import table as induction_table
from experiments.induction.run import ARCHITECTURES, T, claims, copying_bound, task
from experiments.shared.common import FAILS, HOLDS, OPEN
from experiments.speed.report import margin, table
from experiments.speed.summary import growth, ratio, slope, summarise, value
from experiments.speedrun.run import RECORDS, TARGET, summary
from experiments.speedrun.run import table as speedrun_table
from tests.toys import run_toy

ROOT = Path(__file__).resolve().parents[1]


def run_on_text(name, folder):
    """An experiment that trains on a text, at toy size: its results, and where it left them."""
    text, out = folder / "text.txt", folder / "out"
    text.write_text("Now is the winter of our discontent made glorious summer by this sun.\n" * 60)
    results = run_toy(name, out, "--shakespeare", str(text))
    assert str(folder) not in json.dumps(results)
    return results, out


@pytest.mark.slow
def test_recipes(tmp_path):
    results, out = run_on_text("recipes", tmp_path)
    assert set(results["recipes"]) == {"default", "nano-cpu", "classic-bpe"}
    for recipe in results["recipes"].values():
        assert [step for step, *_ in recipe["curve"]] == [10, 20]
    assert (out / "curves.png").stat().st_size > 10_000


def turn(seconds, steps=1, tokens=1):
    return {"seconds": seconds, "steps": steps, "tokens": tokens}


def test_a_ratio_is_paired_within_its_round():
    # The machine slows down fourfold from round to round; within each, ours has twice the tokens per second.
    rounds = [{"ours": turn(s, tokens=20), "peer": turn(s, tokens=10)} for s in (1.0, 4.0, 16.0)]
    bars = {"at_least": 1.5, "aim": 3.0}
    made = summarise([ratio("faster", "ours", "peer", "tokens_per_second", **bars)], rounds, {})
    (found,) = made["measures"]
    assert (found["values"], found["median"], found["q1"], found["q3"]) == ([2.0, 2.0, 2.0], 2.0, 2.0, 2.0)
    assert (found["bar"], found["met"], found["aim_met"]) == ("≥ 1.5", True, False)
    assert margin(found["median"], found) == pytest.approx(2 / 1.5)
    ours = made["contestants"]["ours"]
    assert ours["tokens_per_second"] == {"median": 5.0, "q1": 3.125, "q3": 12.5}
    assert ours["ms_per_step"]["median"] == 4000.0
    # The ratio of the medians of unpaired turns would be another: the order of the peer's turns matters.
    shuffled = [{**r, "peer": rounds[i]["peer"]} for r, i in zip(rounds, (2, 0, 1), strict=True)]
    measured = summarise([ratio("faster", "ours", "peer", "tokens_per_second")], shuffled, {})["measures"][0]
    assert measured["values"] == [32.0, 0.5, 0.5]
    assert measured["met"] is None


def test_limits_slopes_and_failures_are_told():
    rounds = [{"L=2": turn(2.0), "L=4": turn(4.0), "L=8": turn(8.0), "start": {"seconds": s}} for s in (7.0, 9.0)]
    measures = [
        slope("slope", {2: "L=2", 4: "L=4", 8: "L=8"}, at_least=0.9, at_most=1.1),
        growth("growth", "L=2", "L=8", 2.0, at_least=0.8, at_most=1.2),
        value("start", "start", "seconds", at_most=8.0, aim=5.0),
        ratio("gone", "L=2", "peer", "tokens_per_second", at_least=1.0),
    ]
    made = summarise(measures, rounds, {"peer": "no such library"})
    found = {m["name"]: m for m in made["measures"]}
    assert found["slope"]["median"] == pytest.approx(1.0)
    assert found["slope"]["met"]
    assert found["growth"]["median"] == pytest.approx(2.0)
    assert not found["growth"]["met"]
    assert (found["start"]["median"], found["start"]["met"], found["start"]["aim_met"]) == (8.0, True, False)
    assert found["gone"]["not_measured"] == "peer: no such library"
    facts = {"machine": {"cpu": "c", "cores": 2, "runtimes": ["r"]}, "quick": False}
    text = table({**facts, "races": {"some": {"title": "t", "note": "", **made}}})
    assert "| growth | 2 x | 2 to 2 | 0.8 to 1.2 | **no** |" in text
    assert "| gone | not measured: peer: no such library | | ≥ 1 | no |" in text


def run_speed(out, only):
    results = run_toy("speed", out, "--only", only)
    assert set(results["races"]) == set(only.split(","))
    for race in results["races"].values():
        for contestant in race["contestants"].values():
            assert "failed" not in contestant, contestant
        for measure in race["measures"]:
            assert measure["q1"] <= measure["median"] <= measure["q3"]
            assert isinstance(measure["met"], bool)
    assert (out / "speed.png").stat().st_size > 5_000
    assert str(ROOT) not in json.dumps(results) + (out / "table.md").read_text()
    return results


@pytest.mark.slow
def test_speed(tmp_path):
    results = run_speed(tmp_path, "train-nano,decode-position")
    (ours,) = results["races"]["train-nano"]["contestants"].values()
    assert ours["tokens_per_second"]["median"] > 0
    assert len(results["races"]["decode-position"]["measures"][0]["values"]) == 2


@pytest.mark.slow
def test_speed_of_everything_of_ours(tmp_path):
    races = "train-six,train-six-bf16,decode,decode-batch,start,memory,growth,recompile"
    results = run_speed(tmp_path, races)
    assert len(results["races"]["growth"]["measures"]) == 3


@pytest.mark.slow
def test_what_needs_a_gpu_runs_as_a_toy(tmp_path):
    command = [ROOT / "experiments/speed/gpu.sh", "--toy", "--out", tmp_path / "gpu.json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    sections = json.loads((tmp_path / "gpu.json").read_text())["sections"]
    assert list(sections) == ["machine", "peak", "train", "torch", "decode", "ablate", "recipe"]
    for name, found in sections.items():
        assert "failed" not in found, (name, found)
    assert sections["train"]["model_tflops"] > 0
    assert sections["recipe"]["step"] == 20


def test_a_record_stands_only_where_every_seed_arrived():
    def run(loss, wall):
        return {"loss_per_char": loss, "wall_seconds": wall}

    stands = summary(RECORDS[0], [run(TARGET - 0.02, 30.0), run(TARGET, 20.0), run(TARGET - 0.01, 40.0)], 120.0)
    falls = summary(RECORDS[1], [run(TARGET - 0.02, 30.0), run(TARGET + 0.001, 20.0), run(TARGET - 0.01, 40.0)])
    assert (stands["reached"], falls["reached"]) == (True, False)
    assert (stands["wall_median"], stands["wall_range"]) == (30.0, [20.0, 40.0])
    peer = {"steps": 2000, "loss": 1.9, "wall_seconds": 120.0}
    first, second = speedrun_table({"peer": peer, "records": [stands, falls]}).splitlines()[-2:]
    assert first.endswith("| 0.25 |")
    assert "not reached" in second
    assert "not reached" not in first


@pytest.mark.slow
def test_speedrun(tmp_path):
    results, out = run_on_text("speedrun", tmp_path)
    assert [len(record["runs"]) for record in results["records"]] == [1, 1, 1, 1]
    assert (out / "records.png").stat().st_size > 5_000


def test_induction_knows_what_has_come_before():
    data = task(0, 0, 16)
    for ids, targets, first, repeat in zip(*data, strict=True):
        for t in range(T):
            seen = ids[: t + 1].tolist()
            assert first[t] == (targets[t] not in seen)
            if repeat[t]:  # the token after the only earlier occurrence
                assert targets[t] == ids[seen.index(ids[t]) + 1]
    assert data.repeat.any(1).all()
    assert not (data.first & data.repeat).any()
    assert 0 < copying_bound(data) < np.log(T)


def outcome(gain, without, others, change=400):
    """A seed with two induction heads; gains left without one and two of each kind."""
    if not change:
        return {"gain": gain, "phase_change": None, "best_head": 0.1, "induction_heads": []}
    left = {"induction": [gain, without], "others": others}
    heads = {"best_head": 0.9, "induction_heads": [[1, 0], [1, 1]]}
    return {"gain": gain, "phase_change": change, **heads, "zero": left, "mean": left}


def test_claims_about_induction_follow_the_numbers():
    def found(*outcomes):
        return {name: {"seeds": [one] * 2} for name, one in zip(ARCHITECTURES, outcomes, strict=True)}

    never, good = outcome(0.5, 0, [], change=None), outcome(3.0, 0.1, [2.9, 2.8])

    def verdicts(*outcomes):
        return [one["verdict"] for one in claims(found(*outcomes))]

    assert verdicts(good, never, good) == [HOLDS] * 7
    assert verdicts(outcome(3.0, 2.9, [2.9, 0.3]), good, never) == [
        HOLDS, FAILS, FAILS, FAILS, FAILS, OPEN, OPEN
    ]  # fmt: skip
    few = verdicts(good, never, outcome(3.0, 0.1, [2.9]))
    assert few == [HOLDS] * 6 + [OPEN]  # one other head is not as many as two
    holds = claims(found(good, never, good))
    assert [one["measured"] for one in holds[:2]] == ["2 of 2 seeds, at step 400 ± 0", "0 of 2 seeds"]
    assert holds[3]["measured"] == "gain from context left: 3% (zero in their place), 3% (mean in their place)"
    text = induction_table({"architectures": found(good, never, good), "claims": holds})
    assert "| one layer | 0.500 ± 0.000 | never (0 of 2 seeds) |" in text
    assert "| without the induction heads | zero | 0.100 ± 0.000 | 0.100 ± 0.000 |" in text
    assert "| without as many others | mean | 2.800 ± 0.000 | 2.800 ± 0.000 |" in text


@pytest.mark.slow
def test_induction(tmp_path):
    results = run_toy("induction", tmp_path)
    assert list(results["architectures"]) == list(ARCHITECTURES)
    for found in results["architectures"].values():
        assert found["steps"] == [0, 20, 40]
        assert np.shape(found["curves"]["repeat"]) == (3, 2)
        for seed in found["seeds"]:
            for fill in ("zero", "mean"):
                assert len(seed[fill]["induction"]) == len(seed["induction_heads"])
    assert "| claim | measured | verdict |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "induction.png").stat().st_size > 10_000


@pytest.mark.slow
def test_heads(tmp_path):
    out = tmp_path / "out"
    results = run_toy("heads", out)
    L, H = results["shape"]
    for curve in results["curves"].values():
        assert sorted(curve["order"]) == sorted(f"{i}.{j}" for i in range(L) for j in range(H))
        assert len(curve["loss"]) == L * H + 1
    assert (out / "heads.png").stat().st_size > 10_000
