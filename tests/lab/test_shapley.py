import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.intervention import Lab, make_lab
from tinygpt_jax.lab.remove.ablate import ablate_pairs, ablate_sets
from tinygpt_jax.lab.remove.shapley import make_game, shapley, shapley_by_layer, solve
from tinygpt_jax.lab.result import read_result
from tinygpt_jax.params import init_params
from tinygpt_jax.text import repeated_sequences

CFG = GPTConfig(
    vocab_size=13, block_size=8, n_layer=2, n_head=3, n_embd=24, norm="rmsnorm", mlp_ratio=2, unroll_layers=1
)


@pytest.fixture(scope="module")
def params():
    """Head 0.0 writes nothing; heads 1.1 and 1.2 are the same."""
    params = jax.tree.map(lambda x: jnp.where(x == 1, x, 20 * x), init_params(jax.random.key(0), CFG))
    K, blocks = CFG.head_width, params["blocks"]
    second, third = slice(K, 2 * K), slice(2 * K, 3 * K)
    blocks["Wo"] = blocks["Wo"].at[0, :K].set(0).at[1, third].set(blocks["Wo"][1, second])
    for name in ("Wq", "Wk", "Wv"):
        blocks[name] = blocks[name].at[1, :, third].set(blocks[name][1, :, second])
    return params


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, 13, (6, 8))


@pytest.fixture(scope="module")
def exact(params, ids):
    return shapley(params, ids, CFG)


def over_all_orders(worth, n):
    """The definition: the mean over all orders of what each player adds."""
    orders = list(itertools.permutations(range(n)))
    value = np.zeros((n, *np.shape(worth[frozenset()])))
    for order in orders:
        for i, player in enumerate(order):
            value[player] += worth[frozenset(order[: i + 1])] - worth[frozenset(order[:i])]
    return value / len(orders)


def test_values_are_the_mean_over_all_orders():
    game = make_game(4, None, 0)
    values = np.random.default_rng(0).normal(size=(16, 3))
    worth = {frozenset(np.flatnonzero(who)): value for who, value in zip(game.coalitions, values, strict=True)}
    value, sampling_se = solve(game, values)
    np.testing.assert_allclose(value, over_all_orders(worth, 4), atol=1e-12)
    assert (sampling_se == 0).all()
    worth[frozenset({2})] = worth[frozenset({2})] + 0.1  # the twin: one worth that is wrong
    assert np.abs(value - over_all_orders(worth, 4)).max() > 0.01
    symmetric = game.coalitions.sum(-1, keepdims=True) ** 2.0
    np.testing.assert_allclose(solve(game, symmetric)[0], 4)  # 16 shared out evenly


def test_orders_come_with_their_reverse_and_errors_that_hold():
    """The sampled value of a game of 8 players, drawn 40 times: its errors are as large as the misses."""
    rng = np.random.default_rng(1)
    full = make_game(8, None, 0)
    worth = rng.normal(size=(256, 2)) + full.coalitions @ rng.normal(size=(8, 2))
    truth = solve(full, worth)[0].mean(-1)
    misses = []
    for seed in range(40):
        game = make_game(8, 32, seed)
        np.testing.assert_array_equal(game.orders[::2], game.orders[1::2, ::-1])
        value, se = solve(game, worth[game.coalitions @ 2 ** np.arange(8)])
        misses.append((value.mean(-1) - truth) / se)
    assert np.sqrt(np.square(misses).mean()) == pytest.approx(1, abs=0.15)
    assert np.std(np.mean(misses, 0)) < 0.35


def test_heads_share_the_whole_effect(params, ids, exact):
    assert exact.value.shape == (6,)
    lab = make_lab(params, ids, CFG)
    np.testing.assert_allclose(exact.value.sum(), (exact.whole - exact.empty).mean(), atol=1e-6)
    assert abs(exact.residual) < 1e-6 < 0.05 < np.abs(exact.value).max()
    assert abs(exact.value[0]) < 1e-6  # writes nothing
    assert exact.value[4] == pytest.approx(exact.value[5], abs=1e-6)  # twins
    assert abs(exact.value[3] - exact.value[4]) > 1e-3  # and others are not
    assert (exact.sampling_se == 0).all()
    np.testing.assert_allclose(exact.per_example.mean(-1), exact.value)
    assert exact.definition.examples == len(lab.examples.ids)


def test_sampled_values_agree_with_the_exact_ones(params, ids, exact):
    sampled = shapley(params, ids, CFG, permutations=64)
    off = np.abs(sampled.value - exact.value)
    assert (off <= 4 * sampled.sampling_se + 1e-6).all()
    assert off.max() > 1e-6  # it did draw
    assert abs(sampled.residual) < 1e-6
    assert sampled.definition.set == "64 orders of 6 players"


def test_each_mask_is_run_once(params, ids, monkeypatch):
    counts, measure = [], Lab.measure
    monkeypatch.setattr(Lab, "measure", lambda lab, gates: counts.append(len(gates.heads)) or measure(lab, gates))
    shapley(params, ids, CFG, permutations=64)
    shapley_by_layer(params, ids, CFG)
    assert counts[0] <= 64 < 64 * 7
    assert counts[1] == 2 * 8 - 1  # the intact model belongs to both layers


def test_by_layer_each_layer_is_a_game_of_its_own(params, ids):
    found = shapley_by_layer(params, ids, CFG)
    assert found.value.shape == found.se.shape == found.sampling_se.shape == (2, 3)
    assert np.abs(found.residual).max() < 1e-6
    for layer in range(2):
        alone = shapley(params, ids, CFG, [(layer, h) for h in range(3)])
        np.testing.assert_allclose(found.value[layer], alone.value, atol=2e-6)
        np.testing.assert_allclose(found.empty[layer], alone.empty, atol=2e-6)


def test_players_may_be_anything_with_a_name(params, ids, tmp_path):
    found = shapley(params, ids, CFG, ["mlp0", ("0.1", "0.2"), "layer1"])
    assert found.names == ("mlp0", "0.1+0.2", "layer1")
    path, table = found.save(tmp_path / "shapley")
    again = read_result(path)
    np.testing.assert_array_equal(again.value, found.value)
    assert [row["player"] for row in again.rows()] == list(found.names)
    assert "residual" not in table.read_text()


def test_on_the_planted_circuit_both_heads_share_it_all():
    params, cfg, facts = planted(2, block_size=8, vocab_size=8)
    found = shapley(params, repeated_sequences(0, 0, 32, 8, 8), cfg, fill="zero")
    value = found.value.reshape(2, 2)
    both = (found.whole - found.empty).mean()
    assert value[facts.previous] + value[facts.induction] == pytest.approx(both, rel=0.02)
    assert max(abs(value[head]) for head in facts.inert) < 0.02 * abs(both)
    assert value[facts.previous] < 0  # induction without it is sure of the wrong token


def test_what_cannot_be_asked(params, ids):
    for permutations in (3, 2, 0, 4.0):
        with pytest.raises(UserError, match="permutations is"):
            shapley(params, ids, CFG, permutations=permutations)
    with pytest.raises(UserError, match="there is no head 3"):
        shapley(params, ids, CFG, ["0.3"])


def test_values_pairs_and_families_find_the_planted_heads():
    params, cfg, facts = planted(2)
    examples = repeated_sequences(0, 0, 16, cfg.block_size, cfg.vocab_size)
    circuit = {head_name(*facts.previous), head_name(*facts.induction)}
    found = shapley(params, examples, cfg, fill="mean")
    for name, value in zip(found.names, found.value, strict=True):
        assert value < -1 if name in circuit else abs(value) < 0.05, name
    # Each needs the other: without one, the other does nothing.
    pairs = ablate_pairs(params, examples, cfg, fill="mean")
    for (i, first), (j, second) in itertools.combinations(enumerate(pairs.names), 2):
        assert (abs(pairs.interaction[i, j]) > 1) == ({first, second} == circuit)
    kept = ablate_sets(params, examples, cfg, "keep-one", fill="mean").effect
    assert {(i, j) for i, j in np.argwhere(kept < 0.05)} == {facts.previous, facts.induction}
