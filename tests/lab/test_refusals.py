"""What would give a plausible number that means nothing, or ask for more than any machine has, is refused by name."""

import math

import numpy as np
import pytest

import tinygpt_jax as tg
from tests.lab.small import SMALL, random_params
from tinygpt_jax.arguments import MOST
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.windows import repeats

CFG = tg.GPTConfig(**SMALL)
PARAMS = random_params(CFG)
IDS = np.random.default_rng(0).integers(0, CFG.vocab_size, (4, CFG.block_size), np.int32)
OVERLAPS = [
    (["layer0", "0.0", "0.1"], "layer0 and 0.0 overlap"),
    (["0.0", "mlp1", "layer1"], "mlp1 and layer1 overlap"),
    (["heads0", (0, 1)], "heads0 and 0.1 overlap"),
    ([["0.0", "1.0"], ["1.0", "1.1"]], "0.0+1.0 and 1.0+1.1 overlap"),
    (["0.0", "0.0"], "0.0 and 0.0 overlap"),
    (["0.0", (0, 0)], "0.0 and 0.0 overlap"),
    (["layer0", "0.0", "0.0"], "layer0 and 0.0 overlap"),
    ([["heads0", "mlp0"], "layer0"], r"heads0\+mlp0 and layer0 overlap"),
]


@pytest.mark.parametrize(("groups", "message"), OVERLAPS)
def test_groups_that_overlap_are_refused_by_name(groups, message):
    with pytest.raises(UserError, match=message.replace("0+1", r"0\+1").replace("1+1", r"1\+1")):
        tg.shapley(PARAMS, IDS, CFG, groups)
    if all(isinstance(one, str | tuple) for one in groups):
        with pytest.raises(UserError, match=message):
            tg.ablate_pairs(PARAMS, IDS, CFG, groups)


@pytest.mark.parametrize("one", [["0.0", "0.0"], ["layer0", "0.1"], ["mlp1", "layer1"], ["0.1", "heads0"]])
def test_a_part_is_in_a_set_once(one):
    for use in (lambda: tg.ablate_sets(PARAMS, IDS, CFG, [one]), lambda: tg.switched_off(one, CFG)):
        with pytest.raises(UserError, match="is in it already; name it once"):
            use()


def test_sets_may_share_parts_where_each_is_switched_off_by_itself():
    """Or be the same, as sets that are drawn may be."""
    assert make_sets(["0.0", ("0.0", "0.1"), "layer0"], CFG).names == ("0.0", "0.0+0.1", "layer0")
    twice = tg.ablate_sets(PARAMS, IDS, CFG, ["0.1", "0.0", "0.1"]).effect
    assert twice[0] == twice[2] != twice[1]


COUNTS = {
    "bootstrap": lambda n: tg.ablate_heads(PARAMS, IDS, CFG, bootstrap=n),
    "permutations": lambda n: tg.shapley(PARAMS, IDS, CFG, permutations=n),
    "n_random": lambda n: tg.pruning_curve(PARAMS, IDS, CFG, [(0, 0), (0, 1), (1, 0), (1, 1)], n_random=n),
    "head_importance steps": lambda n: tg.head_importance(PARAMS, IDS, CFG, steps=n),
    "batch_size": lambda n: tg.learn_gates(PARAMS, IDS, CFG, [0.1], batch_size=n),
    "examples": lambda n: repeats(CFG, n),
}


@pytest.mark.parametrize("count", COUNTS)
def test_an_absurd_count_is_refused_before_the_work(count, monkeypatch):
    """Beyond all counts by its bounds, and beyond the memory there is by what it would take."""
    name = count.split()[-1]
    for absurd in (99_999_999_998, 10**30, -4):
        with pytest.raises(UserError, match=rf"{name} is {absurd}: must be ") as refused:
            COUNTS[count](absurd)
        assert "\n" not in str(refused.value)
    monkeypatch.setattr("tinygpt_jax.measure.total_memory", lambda: 2.0**30)
    with pytest.raises(UserError, match=r"takes [\d,.]+ GiB of memory or more, and there are 1.0 GiB: "):
        COUNTS[count](MOST - 1)


def test_what_is_asked_of_a_vocabulary_too_small_for_repeats():
    for sizes in ({"vocab_size": 3}, {"block_size": 2}):
        cfg = tg.GPTConfig(**{**SMALL, **sizes})
        with pytest.raises(UserError, match="take 4 distinct ones in a context: this model knows . and sees .*"):
            repeats(cfg, 4)
    assert math.prod(repeats(tg.GPTConfig(**{**SMALL, "vocab_size": 4}), 4).ids.shape) == 16
