"""The lab as one pytree, and choices that an editor shows."""

import dataclasses
import inspect
from typing import Unpack

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tests.lab.small import SMALL, random_params
from tinygpt_jax.lab.intervention import Choices, Intervention
from tinygpt_jax.lab.measure import make_lab

CFG = tg.GPTConfig(**SMALL)
IDS = np.random.default_rng(0).integers(0, 7, (4, 10)).astype(np.int32)


def lab(**choices):
    return make_lab(random_params(CFG), IDS, CFG, **choices)


def test_choices_are_the_fields_of_an_intervention():
    assert list(Choices.__annotations__) == [f.name for f in dataclasses.fields(Intervention)]
    for field in dataclasses.fields(Intervention):
        assert Choices.__annotations__[field.name].__forward_arg__ == field.type


@pytest.mark.parametrize(
    "name",
    ["ablate_sets", "ablate_heads", "ablate_pairs", "shapley", "shapley_by_layer", "head_importance", "pruning_curve"],
)
def test_functions_of_the_lab_spell_out_their_choices(name):
    (rest,) = [p for p in inspect.signature(getattr(tg, name)).parameters.values() if p.kind == p.VAR_KEYWORD]
    assert rest.annotation == Unpack[Choices]


def test_what_is_data_does_not_compile_anew_and_what_is_static_does():
    @jax.jit
    def total(lab):
        traces.append(lab.metric.name)
        return lab.acts.sum() + lab.fill.heads.sum()

    traces = []
    total(lab(fill="zero"))
    total(lab(fill="mean", positions=(1, 2), seed=3, progress=print, tokens_at_once=64))
    assert traces == ["loss"]
    total(lab(fill="zero", metric="kl"))
    total(lab(fill="zero", hold_patterns=True))
    assert len(traces) == 3


def test_a_lab_survives_a_tree_map_but_for_what_is_the_hosts():
    one = lab(fill="resample", metric="kl", freeze_norms=True, seed=5)
    again = jax.tree.map(lambda a: a, one)
    for name in ("cfg", "metric", "held"):
        assert getattr(again, name) == getattr(one, name)
    np.testing.assert_array_equal(again.donors.ids, one.donors.ids)
    assert (one.intervention.seed, again.intervention.seed) == (5, 0)
