"""One order for text, figures, pages and `order()`: by size whichever way the metric goes, and the way in words."""

import dataclasses

import jax
import numpy as np
import pytest
from matplotlib.text import Text

from tests.figures.made import results
from tests.lab.planted import planted
from tests.lab.small import SMALL, random_params
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw, lines
from tinygpt_jax.lab.order import Changes, clearly, does, in_order
from tinygpt_jax.lab.patch.patching import patch
from tinygpt_jax.lab.patch.paths import path_patch
from tinygpt_jax.lab.read.lens import logit_attribution
from tinygpt_jax.lab.remove.ablate import ablate_heads, ablate_pairs, ablate_sets
from tinygpt_jax.lab.remove.curve import least_first
from tinygpt_jax.lab.remove.importance import head_importance
from tinygpt_jax.lab.remove.shapley import shapley
from tinygpt_jax.statistics import rank_correlation
from tinygpt_jax.text import repeated_sequences

PARAMS, CFG, FACTS = planted(2, block_size=8, vocab_size=8)
CLEAN, CORRUPTED = (repeated_sequences(0, 0, 16, 8, 8, corrupted=flag) for flag in (False, True))
CLEAN = CLEAN._replace(wrong=(CLEAN.answers + 1) % 8)
PLANTED = {f"{layer}.{head}" for layer, head in (FACTS.previous, FACTS.induction)}
BEST = f"{FACTS.induction[0]}.{FACTS.induction[1]}"


def score(logits, examples):
    """A metric of one's own, of which more is better."""
    at = np.arange(len(examples.ids))
    return jax.nn.log_softmax(logits)[at, examples.position, examples.answers[:, 0]]


METRICS = {
    "loss": ("loss", "raises the loss"),
    "kl": ("kl", "raises the divergence"),
    "log-prob": ("log-prob", "lowers the log-probability"),
    "logit-diff": ("logit-diff", "lowers the logit difference"),
    "own": (score, "lowers score"),
}


def headline(result):
    """What a figure says first; its lines are broken to fit."""
    return " ".join(draw(result).get_suptitle().replace("-\n", "-").split())


def last_line(result):
    return lines("name", result)[-1].strip()


@pytest.mark.parametrize("metric", METRICS)
def test_what_matters_most_comes_first_in_every_metric(metric):
    asked, said = METRICS[metric]
    found = ablate_heads(PARAMS, CLEAN, CFG, metric=asked, fill="zero")
    first = found.order()[0]
    assert set(found.order()[:2]) == PLANTED
    assert first in headline(found)
    assert f"head {first} {said}" in headline(found)
    assert last_line(found).startswith(f"the largest effect first; each {said}")
    assert last_line(found).split(": ")[1].startswith(first)
    assert last_line(found) in found.to_html().replace("&#x27;", "'")


@pytest.mark.parametrize("metric", ["loss", "log-prob"])
def test_of_what_is_kept_alone_what_suffices_comes_first(metric):
    """In each layer its planted head does the work, and the other, kept alone, leaves none."""
    found = ablate_sets(PARAMS, CLEAN, CFG, "keep-one", metric=metric, fill="zero")
    assert set(found.order()[:2]) == PLANTED
    assert f"Effect of keeping one head alone in its layer: head {found.order()[0]} " in headline(found)
    assert " least, " in headline(found)
    assert last_line(found).startswith("what suffices first, by the smallest change")
    assert last_line(found).split(": ")[1].startswith(found.order()[0])


@pytest.mark.parametrize("metric", ["loss", "log-prob"])
def test_every_measurement_finds_the_planted_heads_first(metric):
    common = (PARAMS, CLEAN, CFG)
    patched = patch(PARAMS, CLEAN, CORRUPTED, CFG, "z", ("layer", "head"), metric=metric)
    assert set(patched.order()[:2]) == PLANTED
    assert set(shapley(*common, metric=metric, fill="zero").order()[:2]) == PLANTED
    pair = ablate_pairs(*common, metric=metric, fill="zero")
    assert set(pair.order()[0].split(" with ")) == PLANTED
    importance = head_importance(*common, metric=metric, fill="zero")
    assert set(importance.order()[:2]) == PLANTED
    path = path_patch(PARAMS, CLEAN, CORRUPTED, CFG, metric=metric)
    assert path.order()[0] == f"{FACTS.previous[0]}.{FACTS.previous[1]} to {BEST} k"
    assert logit_attribution(*common).order()[0] == BEST


@pytest.mark.parametrize("metric", ["loss", "logit-diff"])
def test_importance_without_a_sign_is_held_against_sizes(metric):
    """Where more of a metric is better most effects are below 0, and slopes are largest where effects are lowest."""
    cfg = GPTConfig(**{**SMALL, "n_layer": 3, "vocab_size": 8})
    found = head_importance(random_params(cfg), CLEAN, cfg, metric=metric, steps=1)
    sizes = rank_correlation(found.absolute.ravel(), np.abs(found.effect).ravel())
    assert found.correlation[0] == pytest.approx(sizes)
    assert found.correlation[1] == pytest.approx(rank_correlation(found.signed.ravel(), found.effect.ravel()))
    assert metric == "loss" or sizes != rank_correlation(found.absolute.ravel(), found.effect.ravel())


@pytest.mark.parametrize("metric", ["loss", "log-prob", "score"])
def test_standing_in_for_each_other_is_said_of_the_side_that_is_for_the_worse(metric):
    pairs = results(4)["pairs"]
    pairs = dataclasses.replace(pairs, definition=dataclasses.replace(pairs.definition, metric=metric))
    said = " ".join(text.get_text() for text in draw(pairs).findobj(Text)).replace("\n", " ")
    side = {"loss": "above 0, the two stand in", "log-prob": "below 0, the two stand in"}.get(metric)
    assert side in said if side else "the two stand in" not in said


# What holds for every kind


RANKING = [name for name, result in results(4).items() if result.changes() is not None]


def test_these_kinds_rank():
    assert RANKING == [
        "heads", "layers", "sets", "pairs", "attribution", "importance", "shapley", "patching", "attribution patching",
        "attribution alone", "paths",
    ]  # fmt: skip


RNG = np.random.default_rng(0)
ELSEWHERE = ("importance", "attribution", "attribution patching")
"""Kinds whose figures' headlines say another thing."""


def with_values(result, values):
    """The same result whose changes are these, N of them; where it keeps examples, 32 that agree."""
    first, *_ = (name for name in ("interaction", "effect", "estimate", *result.DIFFERENCES) if has(result, name))
    if first == "interaction":
        whole = np.zeros_like(result.interaction)
        whole[np.triu_indices(len(whole), 1)] = values
        return dataclasses.replace(result, interaction=whole + whole.T)
    whole = np.full(getattr(result, first).shape, np.nan)
    whole[result.present()] = values
    rows = {"per_example": whole[..., None] + RNG.normal(0, 1e-6, (*whole.shape, 32))}
    none = {"sampling_se": np.zeros(whole.shape)} if has(result, "sampling_se") else {}
    return dataclasses.replace(result, **{first: whole}, **none, **(rows if has(result, "per_example") else {}))


def has(result, name):
    return getattr(result, name, None) is not None


@pytest.mark.parametrize("kind", RANKING)
def test_the_sign_changes_the_words_and_not_the_order(kind):
    result = results(4)[kind]
    values = RNG.permutation(np.linspace(1, 9, len(result.changes().values))) * RNG.choice(
        [-1, 1], len(result.changes().values)
    )
    metric = result.definition.metric
    one, other = (with_values(result, sign * values) for sign in (1, -1))
    np.testing.assert_allclose(one.changes().values, values)
    places = [one.changes().names.index(name) for name in one.order()]
    assert places == np.argsort(-np.abs(values)).tolist()
    assert one.order() == other.order()
    for turned in (one, other):
        first = turned.order()[0]
        way = does(turned.changes().values[places[0]], metric)
        if kind not in ELSEWHERE:
            assert f" {way} most, " in headline(turned)
            assert all(word in headline(turned) for word in first.replace(" to ", " ").split())
        listed = last_line(turned).split(": ")[1].split(", ")
        assert listed[0].split(" (")[0] == first
        marked = f" ({way.split()[0]})" in listed[0]
        assert marked != (f"each {way}" in last_line(turned))


@pytest.mark.parametrize("kind", RANKING)
def test_what_may_be_chance_has_no_order_in_text_nor_figure(kind):
    """All the same, and within their errors."""
    result = results(4)[kind]
    vague = with_values(result, np.full(len(result.changes().values), 1e-4))
    if has(vague, "per_example"):
        rows = np.broadcast_to(RNG.normal(0, 1e-3, 32), vague.per_example.shape)
        vague = dataclasses.replace(vague, per_example=rows)
    with pytest.raises(UserError, match="no ranking: "):
        vague.order()
    assert last_line(vague).startswith("no ranking: ")
    if kind not in ELSEWHERE:
        assert headline(vague).endswith(": no order beyond the noise")


def test_what_is_not_finite_is_no_largest():
    for kind in RANKING:
        result = results(4, gaps=True)[kind]
        if result.changes().per_example is None:
            values = result.changes().values[[result.changes().names.index(name) for name in result.order()]]
            assert np.isfinite(values).all()
        else:
            with pytest.raises(UserError, match="not a finite number"):
                result.order()


def test_an_order_of_noise_is_refused_where_only_errors_are_known():
    assert clearly(1, 0) == pytest.approx(1.96, abs=0.01)
    assert clearly(1, 5) == pytest.approx(2.776, abs=0.001)  # Student's t of 4
    assert clearly(100, 64) > clearly(16, 64) > clearly(16, 0) > 2.9
    rng, passed = np.random.default_rng(0), 0
    for _ in range(400):
        draws = rng.normal(5, 1, (16, 8))  # of one true size, each clearly above 0: their order is noise
        errors = draws.std(-1, ddof=1) / 8**0.5
        try:
            in_order(Changes([str(i) for i in range(16)], draws.mean(-1), errors, examples=8))
        except UserError:
            continue
        passed += 1
    assert 0.005 < passed / 400 < 0.09


def test_a_single_effect_may_be_chance_too():
    one, rows = np.array([0.1]), np.array([[0.05, 0.15, 0.1, 0.1]])
    clear = Changes(["a"], one, np.array([0.02]), rows, examples=4)
    assert in_order(clear).tolist() == [0]
    with pytest.raises(UserError, match="no effect of 1 is 3.2 standard errors from 0"):
        in_order(clear._replace(errors=np.array([0.05])))


def test_heads_go_by_harm_the_least_first():
    """Not by size: a head without which the loss falls goes before one that does nothing."""
    assert least_first(np.array([[0.0, -0.5], [0.3, 0.1]])).tolist() == [[0, 1], [0, 0], [1, 1], [1, 0]]
