"""Ids, targets, positions and parameters that do not fit: every function that takes them gives one line, where JAX
would clamp, wrap, drop or truncate in silence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tinygpt_jax as tg
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import FAR, init_cache
from tinygpt_jax.ids import check_ids, check_targets
from tinygpt_jax.lab.metrics import as_examples
from tinygpt_jax.text import Examples, Tokens
from tinygpt_jax.training.many import train_many

V, T, B = 11, 8, 4
CFG = tg.GPTConfig(vocab_size=V, block_size=T, n_layer=2, n_head=2, n_embd=16, mlp_ratio=2.0)
PARAMS = tg.init_params(jax.random.key(0), CFG)
IDS = np.random.default_rng(0).integers(0, V, (B, T))
TRAINING = tg.TrainConfig(model=CFG, steps=1, batch_size=B, warmup_steps=0, optimizer="adamw", steps_per_dispatch=1)


def with_one(value):
    """Good ids but for one."""
    ids = IDS.astype(np.int64)
    ids[1, 2] = value
    return ids


OUTSIDE = {str(value): with_one(value) for value in (V, 2**31, 2**32, 2**32 + 1, 2**62)}
NEGATIVE = {str(value): with_one(value) for value in (-1, -(2**31), 3 - 2**32)}
NO_IDS = {
    "floats": IDS.astype(float),
    "bools": IDS > 3,
    "uint64": np.full((B, T), 2**63, np.uint64),
    "large Python integers": [[2**70] * T] * B,
    "ragged": [[1, 2], [3]],
    "no rows": np.zeros((0, T), int),
    "no tokens": np.zeros((B, 0), int),
    "three axes": IDS[None],
    "no axes": np.int64(3),
    "objects": np.full((B, T), None),
    "nothing": None,
    "words": "abc",
}
LONG = {"longer than the context": np.tile(IDS, 2)}


def examples(**fields):
    """Checked as every measurement of the lab checks its data."""
    asked = {"ids": IDS, "targets": IDS, "answers": IDS[:, :1], "wrong": IDS[:, 1:], "position": np.full(B, 3)}
    return as_examples(Examples(**{**asked, **fields}), CFG)


def trained(ids=IDS, targets=IDS):
    return train_many(TRAINING, lambda seed, step: (ids, targets), seeds=[0])


TAKES_IDS = {
    "gpt_forward": lambda ids: tg.gpt_forward(PARAMS, ids, CFG),
    "forward": lambda ids: tg.forward(PARAMS, ids, CFG),
    "hidden_states": lambda ids: tg.hidden_states(PARAMS, ids, CFG),
    "train_many": trained,
    "examples": lambda ids: examples(ids=ids),
    "ids as data": lambda ids: as_examples(ids, CFG),
    "ablate_heads": lambda ids: tg.ablate_heads(PARAMS, ids, CFG),
    "patch": lambda ids: tg.patch(PARAMS, IDS, ids, CFG),
    "head_scores": lambda ids: tg.head_scores(PARAMS, ids, CFG),
    "logit_lens": lambda ids: tg.logit_lens(PARAMS, ids, CFG),
    "logit_attribution": lambda ids: tg.logit_attribution(PARAMS, ids, CFG),
    "learn_gates": lambda ids: tg.learn_gates(PARAMS, ids, CFG, [0.1]),
}
TAKES_TARGETS = {"train_many": lambda t: trained(targets=t), "examples": lambda t: examples(targets=t)}
TAKES_TOKENS = {
    "evaluate_tokens": lambda ids: tg.evaluate_tokens(PARAMS, CFG, Tokens(ids, 10, 10)),
    "attention_maps": lambda ids: tg.attention_maps(PARAMS, ids, CFG),
    "norm_rows": lambda ids: tg.norm_rows(PARAMS, ids, CFG, 0),
    "head_split": lambda ids: tg.head_split(PARAMS, ids, CFG, 0),
}


def assert_refused(call, value):
    with pytest.raises(UserError) as error:
        call(value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TAKES_IDS)
def test_ids_that_are_none_of_the_models_are_refused_by(name):
    for ids in {**OUTSIDE, **NEGATIVE, **NO_IDS, **LONG}.values():
        assert_refused(TAKES_IDS[name], ids)


@pytest.mark.parametrize("name", TAKES_TARGETS)
def test_targets_that_are_none_of_the_models_are_refused_by(name):
    for targets in {**OUTSIDE, **NO_IDS, **LONG}.values():
        assert_refused(TAKES_TARGETS[name], targets)


@pytest.mark.parametrize("name", TAKES_TOKENS)
def test_one_text_of_ids_that_are_none_of_the_models_is_refused_by(name):
    for ids in (*(rows[1] for rows in {**OUTSIDE, **NEGATIVE}.values()), *NO_IDS.values(), IDS):
        assert_refused(TAKES_TOKENS[name], ids)


@pytest.mark.parametrize("field", ["answers", "wrong"])
def test_answers_that_are_none_of_the_models_are_refused(field):
    for ids in {**OUTSIDE, **NEGATIVE, **NO_IDS}.values():
        if ids is not None:  # which stands for no answers
            assert_refused(lambda ids: examples(**{field: ids}), ids)


def test_the_same_ids_in_any_kind_of_array_are_the_same_ids():
    want = tg.gpt_forward(PARAMS, IDS, CFG)
    for ids in (IDS.tolist(), jnp.asarray(IDS), *(IDS.astype(kind) for kind in ("uint8", "int16", "uint64"))):
        np.testing.assert_array_equal(tg.gpt_forward(PARAMS, ids, CFG), want)
        np.testing.assert_array_equal(tg.forward(PARAMS, ids, CFG).logits, tg.forward(PARAMS, IDS, CFG).logits)
        found = examples(ids=ids, targets=ids, answers=np.asarray(ids)[:, :1].tolist())
        assert {array.dtype for array in found.asked} == {np.dtype("int32")}
        np.testing.assert_array_equal(found.ids, IDS)


INTEGERS = arrays.integer_dtypes() | arrays.unsigned_integer_dtypes()


@given(arrays.arrays(INTEGERS, arrays.array_shapes(max_dims=2, max_side=4)), st.integers(1, 2**31 - 1))
def test_ids_are_what_they_were_or_refused(ids, vocab_size):
    good = all(0 <= int(one) < vocab_size for one in ids.flat)
    if good:
        assert check_ids(ids, vocab_size).tolist() == ids.tolist()
    else:
        assert_refused(lambda ids: check_ids(ids, vocab_size), ids)


@given(arrays.arrays(INTEGERS, arrays.array_shapes(max_dims=2, max_side=4)), st.integers(1, 2**31 - 1))
def test_targets_are_what_they_were_or_ignored_or_refused(targets, vocab_size):
    if all(int(one) < vocab_size for one in targets.flat):
        found = check_targets(targets, vocab_size)
        assert found.dtype == np.int32
        assert found.ravel().tolist() == [max(int(one), -1) for one in targets.flat]
    else:
        assert_refused(lambda targets: check_targets(targets, vocab_size), targets)


# Positions and the cache


def positions(value):
    pos = np.tile(np.arange(T), (B, 1))
    pos[1, 2] = value
    return pos


@pytest.mark.parametrize("value", [-1, T, 2**31, 2**32, FAR + 1])
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_positions_without_a_place_in_the_model_are_refused(kind, value):
    cfg = dataclasses.replace(CFG, positions=kind)
    params = tg.init_params(jax.random.key(0), cfg)
    assert np.isfinite(tg.forward(params, IDS, cfg, pos=positions(FAR)).logits).all()
    with pytest.raises(UserError, match=rf"position {value} is outside \[0, 8\)"):
        tg.forward(params, IDS, cfg, pos=positions(value))


@pytest.mark.parametrize("kind", ["learned", "rope", "none"])
def test_what_a_cache_has_no_slot_for_is_refused_and_not_dropped(kind):
    cfg = dataclasses.replace(CFG, positions=kind)
    params = tg.init_params(jax.random.key(0), cfg)
    assert tg.forward(params, IDS, cfg, cache=init_cache(cfg, B, T)).cache is not None
    with pytest.raises(UserError, match=r"position 5 is outside \[0, 5\)"):
        tg.forward(params, IDS, cfg, cache=init_cache(cfg, B, 5))
    with pytest.raises(UserError, match=r"position 9 is outside \[0, 8\)"):
        tg.forward(params, IDS[:, :1], cfg, pos=np.full((B, 1), 9), cache=init_cache(cfg, B, T))


@pytest.mark.parametrize("pos", [np.zeros((B, T)), np.zeros((1, T), int), np.zeros(T, int), [[0], [0, 1]], "abc", True])
def test_positions_of_another_shape_or_kind_are_refused(pos):
    assert_refused(lambda pos: tg.forward(PARAMS, IDS, CFG, pos=pos), pos)


@pytest.mark.parametrize("changes", [{"n_layer": 1}, {"n_head": 4}, {"n_embd": 8}, {"compute_dtype": "bfloat16"}, {}])
def test_a_cache_of_another_model_or_batch_is_refused(changes):
    cache = init_cache(dataclasses.replace(CFG, **changes), B if changes else B - 1, T)
    with pytest.raises(UserError, match="the cache does not fit 4 rows of this model"):
        tg.forward(PARAMS, IDS, CFG, cache=cache)


# Parameters and settings


def changed(**leaves):
    return {**PARAMS, **leaves}


BLOCKS = PARAMS["blocks"]
NO_PARAMS = {
    "nothing": (None, r"(are a NoneType|is None): must be a dict"),
    "a list": ([PARAMS], r"(are a list|is \[.*): must be a dict"),
    "a file": ("model.safetensors", "(are a str|is .model.safetensors.): must be a dict"),
    "an empty dict": ({}, "lacks 'blocks"),
    "a missing one": (changed(blocks={n: a for n, a in BLOCKS.items() if n != "Wq"}), "lacks 'blocks.Wq'"),
    "one too many": (changed(head=PARAMS["tok_emb"]), "holds the unknown 'head'"),
    "nothing in one": (changed(tok_emb=None), "lacks 'tok_emb'"),
    "a number in one": (changed(tok_emb=2.0), r"tok_emb has shape \(\), the config asks for \(11, 16\)"),
    "another shape": (changed(tok_emb=PARAMS["tok_emb"][:-1]), r"tok_emb has shape \(10, 16\)"),
    "one more layer": (changed(blocks=jax.tree.map(lambda a: jnp.concatenate([a, a]), BLOCKS)), "has shape"),
    "integers": (changed(tok_emb=np.ones((V, 16), np.int32)), "tok_emb has dtype int32, parameters are float32"),
    "bfloat16": (jax.tree.map(lambda a: a.astype(jnp.bfloat16), PARAMS), "has dtype bfloat16"),
}
TAKES_PARAMS = {
    "gpt_forward": lambda p, cfg: tg.gpt_forward(p, IDS, cfg),
    "forward": lambda p, cfg: tg.forward(p, IDS, cfg),
    "evaluate_tokens": lambda p, cfg: tg.evaluate_tokens(p, cfg, Tokens(IDS[0], 10, 10)),
    "ablate_heads": lambda p, cfg: tg.ablate_heads(p, IDS, cfg),
    "patch": lambda p, cfg: tg.patch(p, IDS, IDS, cfg),
    "head_scores": lambda p, cfg: tg.head_scores(p, IDS, cfg),
    "logit_lens": lambda p, cfg: tg.logit_lens(p, IDS, cfg),
    "logit_attribution": lambda p, cfg: tg.logit_attribution(p, IDS, cfg),
    "attention_maps": lambda p, cfg: tg.attention_maps(p, IDS[0], cfg),
}


@pytest.mark.parametrize("wrong", NO_PARAMS)
def test_what_are_no_parameters_of_the_model_is_named(wrong):
    params, message = NO_PARAMS[wrong]
    for name, call in TAKES_PARAMS.items():
        with pytest.raises(UserError, match=message) as error:
            call(params, CFG)
        assert "\n" not in str(error.value), name


@pytest.mark.parametrize("cfg", [None, {}, TRAINING, tg.SampleConfig(), "toy", tg.GPTConfig])
def test_what_are_no_settings_of_a_model_are_named(cfg):
    for name, call in TAKES_PARAMS.items():
        with pytest.raises(UserError, match="cfg is .*: must be a GPTConfig") as error:
            call(PARAMS, cfg)
        assert "\n" not in str(error.value), name
