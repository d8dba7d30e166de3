"""The parameter tree: what its one declaration gives rise to."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import (
    axis_sizes,
    check_params,
    count_params,
    decay_mask,
    flatten,
    init_params,
    param_shapes,
    param_specs,
    unflatten,
    whole,
    with_headless,
    without_heads,
)

CFG = GPTConfig(
    vocab_size=11, block_size=8, n_layer=4, n_head=2, n_embd=64, attn_bias=True, smeared_keys=True, tied=False
)
NO_DECAY = {"lnfg", "lnfb", "ln1g", "ln1b", "ln2g", "ln2b", "b1", "b2", "bq", "bk", "bv", "bo", "smear"}

configs = st.builds(
    GPTConfig,
    vocab_size=st.integers(1, 300),
    block_size=st.integers(1, 32),
    n_layer=st.integers(1, 4),
    n_head=st.just(2),
    n_embd=st.sampled_from([4, 12, 64]),
    mlp_ratio=st.sampled_from([0, 1, 2.5, 4]),
    positions=st.sampled_from(["learned", "sinusoidal", "rope", "none"]),
    norm=st.sampled_from(["layernorm", "rmsnorm", "none"]),
    attn_bias=st.booleans(),
    smeared_keys=st.booleans(),
    tied=st.booleans(),
    vocab_multiple=st.sampled_from([1, 7, 64]),
)


@pytest.fixture(scope="module")
def fresh():
    return init_params(jax.random.key(0), CFG)


def test_the_default_model_has_807808_parameters():
    assert count_params(GPTConfig(vocab_size=65)) == 807_808


@given(configs)
def test_count_is_the_closed_formula(cfg):
    C, F, L = cfg.n_embd, round(cfg.mlp_ratio * cfg.n_embd), cfg.n_layer
    rows = math.ceil(cfg.vocab_size / cfg.vocab_multiple) * cfg.vocab_multiple
    norm = {"layernorm": 2 * C, "rmsnorm": C, "none": 0}[cfg.norm]
    mlp = 2 * C * F + F + C + norm if F else 0
    block = norm + 4 * C * C + 4 * C * cfg.attn_bias + cfg.n_head * cfg.smeared_keys + mlp
    table = cfg.block_size * C if cfg.positions == "learned" else 0
    assert count_params(cfg) == (1 if cfg.tied else 2) * rows * C + table + L * block + norm


@given(configs)
def test_every_view_of_the_tree_is_the_same_tree(cfg):
    shapes, specs, mask = dict(flatten(param_shapes(cfg))), dict(flatten_specs(cfg)), dict(flatten(decay_mask(cfg)))
    assert shapes.keys() == specs.keys() == mask.keys()
    sizes = axis_sizes(cfg)
    for name, spec in specs.items():
        assert shapes[name].shape == tuple(sizes[axis] for axis in spec.axes)
        assert (spec.axes[0] == "layer") == name.startswith("blocks.")
        assert mask[name] == (name.split(".")[-1] not in NO_DECAY), name


def test_decay_by_the_number_of_axes_is_caught():
    by_axes = {name: len(leaf.shape) > 1 for name, leaf in flatten(param_shapes(CFG))}
    wrong = {name for name, decays in flatten(decay_mask(CFG)) if decays != by_axes[name]}
    assert wrong == {f"blocks.{name}" for name in NO_DECAY - {"lnfg", "lnfb"}}


@pytest.mark.parametrize("heads", [(2, 0, 1, 2), (0, 0, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("changes", [{}, {"norm": "none", "mlp_ratio": 0.0, "attn_bias": False}])
def test_a_pruned_layer_has_its_own_leaves(heads, changes):
    cfg = dataclasses.replace(CFG, heads=tuple(tuple(range(n)) for n in heads), **changes)
    params, mask = init_params(jax.random.key(0), cfg), decay_mask(cfg)
    C, K = cfg.n_embd, cfg.head_width
    for p, n in zip(params["blocks"], heads, strict=True):
        assert all((name in p) == (n > 0) for name in ("Wq", "Wo"))
        wide = with_headless(p, cfg)
        assert (wide["Wq"].shape, wide["Wv"].shape, wide["Wo"].shape) == ((C, n * K), (C, n * K), (n * K, C))
        assert "bq" not in wide or (wide["bq"].shape, p["bo"].shape) == ((n * K,), (C,))
    fewer = sum(2 - n for n in heads) * (4 * C * K + 3 * K * cfg.attn_bias + cfg.smeared_keys) + heads.count(
        0
    ) * 2 * C * ("lnfg" in params)
    assert count_params(cfg) == count_params(dataclasses.replace(cfg, heads=())) - fewer
    assert {name.split(".")[-1] for name, decays in flatten(mask) if not decays} <= NO_DECAY
    again = unflatten(dict(flatten(params)), cfg)
    assert jax.tree.structure(mask) == jax.tree.structure(params) == jax.tree.structure(again)
    check_params(dict(flatten(params)), cfg)


def test_zeros_stand_in_the_place_of_missing_heads_and_what_is_left_keeps_its_numbers():
    cfg = dataclasses.replace(CFG, heads=((1,), (), (0, 1), (0,)))
    fresh, K = init_params(jax.random.key(0), CFG), CFG.head_width
    params = without_heads(fresh, cfg)
    jax.tree.map(np.testing.assert_array_equal, params, init_params(jax.random.key(0), cfg))
    again, full = whole(params, cfg)
    assert full == CFG
    check_params(again, full)
    jax.tree.map(np.testing.assert_array_equal, without_heads(again, cfg), params)
    Wq, Wo = (np.asarray(again["blocks"][name]).copy() for name in ("Wq", "Wo"))
    for layer, head in ((0, 0), (1, 0), (1, 1), (3, 1)):
        columns = slice(head * K, (head + 1) * K)
        assert not Wq[layer, :, columns].any()
        assert not Wo[layer, columns].any()
        Wq[layer, :, columns] = fresh["blocks"]["Wq"][layer, :, columns]
        Wo[layer, columns] = fresh["blocks"]["Wo"][layer, columns]
    np.testing.assert_array_equal(Wq, fresh["blocks"]["Wq"])
    np.testing.assert_array_equal(Wo, fresh["blocks"]["Wo"])
    assert whole(fresh, CFG)[0] is fresh


def test_layers_of_a_pruned_model_keep_their_order():
    cfg = dataclasses.replace(CFG, n_layer=11, heads=((0,),) * 10 + ((0, 1),))  # as text, 10 comes before 2
    params = init_params(jax.random.key(0), cfg)
    assert "blocks.10.Wq" in dict(flatten(params))
    backwards = dict(reversed(flatten(params)))
    assert all(a is b for a, b in zip(jax.tree.leaves(unflatten(backwards, cfg)), jax.tree.leaves(params), strict=True))


def flatten_specs(cfg: GPTConfig):
    """Like `flatten`, to which a spec, being a tuple, would be one more branch."""
    for name, node in param_specs(cfg).items():
        yield from ([(f"blocks.{leaf}", spec) for leaf, spec in node.items()] if name == "blocks" else [(name, node)])


def test_fresh_weights_have_gpt2s_spread(fresh):
    for name, leaf in flatten(fresh):
        last, values = name.split(".")[-1], np.asarray(leaf)
        assert values.dtype == np.float32
        if last in NO_DECAY:
            assert (values == (1 if last.endswith("g") else 0)).all(), name
            continue
        std = 0.02 / math.sqrt(2 * CFG.n_layer) if last in ("Wo", "W2") else 0.02
        error = 5 / math.sqrt(2 * values.size)  # five standard errors of a standard deviation
        assert values.std() == pytest.approx(std, rel=error), name
        assert abs(values.mean()) < 5 * std / math.sqrt(values.size), name


def test_tokens_can_be_seen_beside_sinusoids():
    """Of sinusoids of size 0.7, what an embedding adds to a normed row is lost where it is 0.02."""
    for positions, size in (("learned", 0.02), ("rope", 0.02), ("none", 0.02), ("sinusoidal", 0.2)):
        cfg = dataclasses.replace(CFG, positions=positions)
        params = init_params(jax.random.key(0), cfg)
        assert np.std(params["tok_emb"]) == pytest.approx(size, rel=0.1), positions
        assert np.std(params["blocks"]["Wq"]) == pytest.approx(0.02, rel=0.1), positions


def test_no_two_matrices_or_layers_start_alike(fresh):
    matrices = [fresh["blocks"][name][layer] for name in ("Wq", "Wk", "Wv", "Wo") for layer in range(CFG.n_layer)]
    unit = np.stack([np.ravel(m) / np.linalg.norm(m) for m in matrices])
    assert np.abs(unit @ unit.T - np.eye(len(unit))).max() < 0.1
    assert not np.array_equal(fresh["tok_emb"], fresh["head"])


def test_the_key_fixes_the_values(fresh):
    again, other = (dict(flatten(init_params(jax.random.key(seed), CFG))) for seed in (0, 1))
    for name, leaf in flatten(fresh):
        np.testing.assert_array_equal(leaf, again[name])
        assert (name.split(".")[-1] in NO_DECAY) == np.array_equal(leaf, other[name]), name


def test_dropping_a_parameter_leaves_the_others_alone(fresh):
    smaller = dataclasses.replace(CFG, positions="rope", norm="rmsnorm", attn_bias=False, smeared_keys=False, tied=True)
    kept, everything = dict(flatten(init_params(jax.random.key(0), smaller))), dict(flatten(fresh))
    assert kept.keys() < everything.keys()
    for name, leaf in kept.items():
        np.testing.assert_array_equal(leaf, everything[name], err_msg=name)


def test_flat_names_give_the_tree_back(fresh):
    leaves = dict(flatten(fresh))
    assert {"tok_emb", "lnfg", "blocks.Wq", "blocks.b1"} < leaves.keys()
    assert jax.tree.structure(unflatten(leaves, CFG)) == jax.tree.structure(fresh)
    assert all(a is b for a, b in zip(jax.tree.leaves(unflatten(leaves, CFG)), jax.tree.leaves(fresh), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm": "none"}, "file: holds the unknown 'blocks.ln1b': these weights belong to another architecture"),
        ({"tied": True}, "file: holds the unknown 'head'"),
        ({"vocab_size": 12}, r"file: head has shape \(11, 64\), the config asks for \(12, 64\)"),
        ({"heads": ((0, 1), (0, 1), (0,), (0, 1))}, r"file: lacks 'blocks.0.W1'"),
        ({"n_layer": 3}, r"file: blocks.W1 has shape \(4, 64, 256\), the config asks for \(3, 64, 256\)"),
    ],
)
def test_weights_of_another_architecture_are_refused(fresh, change, message):
    with pytest.raises(UserError, match=message):
        check_params(fresh, dataclasses.replace(CFG, **change), "file")


def test_weights_that_lack_a_leaf_are_refused(fresh):
    check_params(fresh, CFG)
    with pytest.raises(UserError, match="parameters: lacks 'pos_emb'"):
        check_params({name: leaf for name, leaf in fresh.items() if name != "pos_emb"}, CFG)
