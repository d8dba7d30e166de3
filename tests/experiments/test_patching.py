"""Agreement is counted right, verdicts follow the numbers, and the planted path is the expected one."""

import numpy as np
import pytest

from experiments.patching.run import agreement, claims, harms, strongest
from experiments.shared.common import FAILS, HOLDS, PARTLY
from tests.lab.planted import planted
from tests.toys import run_toy
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.text import repeated_sequences

RISING = np.arange(8.0)


def model(expected=True, **harm):
    """What was found of one model, in which all methods agree but those named."""
    methods = ["ablation, mean", "paths, noise"]
    methods += [f"{kind}, {way}" for kind in ("patching", "attribution") for way in ("noise", "denoise")]
    changed = {name.replace("_", ", "): values for name, values in harm.items()}
    return {"harm": dict.fromkeys(methods, RISING) | changed, "strongest": {"as_expected": expected}}


def test_agreement_is_that_of_ranks_and_of_the_top():
    found = agreement(
        [model(patching_noise=RISING[::-1]), model(patching_noise=2 * RISING)], "patching, noise", "ablation, mean"
    )
    assert found["correlation"] == pytest.approx([-1, 1])
    assert (found["shared"], found["first"]) == ([0, 1], [0, 1])


def test_verdicts_follow_the_numbers():
    def verdicts(*seeds):
        return [one["verdict"] for one in claims(seeds)]

    assert verdicts(model(), model()) == [HOLDS] * 4
    other = model(False, patching_denoise=RISING[::-1], attribution_noise=RISING[::-1])
    assert verdicts(other, other) == [PARTLY, FAILS, HOLDS, FAILS]
    assert verdicts(model(), model(False, paths_noise=RISING[::-1])) == [HOLDS, HOLDS, FAILS, PARTLY]


def test_on_the_planted_circuit_every_method_names_its_heads():
    params, cfg, facts = planted(2, block_size=8, vocab_size=8)
    clean, corrupted = (repeated_sequences(0, 0, 16, 8, 8, corrupted=bad) for bad in (False, True))
    harm, paths = harms(params, cfg, clean, corrupted)
    needed = {layer * cfg.n_head + head for layer, head in (facts.previous, facts.induction)}
    for name, values in harm.items():
        if "attribution" not in name and "denoise" not in name:  # to first order a sharp softmax has no slope
            assert set(np.argsort(-values)[:2].tolist()) == needed, name
    found = strongest(paths, head_scores(params, clean, cfg))
    assert found["as_expected"]
    assert found["path"] == f"0.{facts.previous[1]} to 1.{facts.induction[1]} k"


@pytest.mark.slow
def test_patching(tmp_path):
    results = run_toy("patching", tmp_path)
    assert len(results["claims"]) == 4
    assert len(results["seeds"]) == 2
    assert all(len(harm) == len(results["heads"]) == 4 for one in results["seeds"] for harm in one["harm"].values())
    assert (tmp_path / "patching.png").stat().st_size > 10_000
