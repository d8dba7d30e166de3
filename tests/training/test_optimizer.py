"""Schedules hit their named points; decay follows names; clipping bounds the update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.params import decay_mask, flatten, init_params
from tinygpt_jax.training import optimizer
from tinygpt_jax.training.optimizer import learning_rate_schedule, make_optimizer

MODEL = GPTConfig(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=16, attn_bias=True)
CONFIG = TrainConfig(
    model=MODEL,
    steps=100,
    warmup_steps=10,
    optimizer="adamw",
    learning_rate=1e-2,
    min_learning_rate=1e-3,
    weight_decay=0.5,
)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedule_rises_to_the_peak_and_falls_to_the_low(schedule):
    rate = learning_rate_schedule(dataclasses.replace(CONFIG, schedule=schedule))
    values = np.asarray([float(rate(i)) for i in range(101)])
    assert 0 < values[0] < values[5] < values[10]
    assert values[10] == pytest.approx(1e-2)
    assert values[100] == pytest.approx(1e-2 if schedule == "constant" else 1e-3)
    assert (np.diff(values[10:]) <= 1e-9).all()
    assert values[55] == pytest.approx({"cosine": 5.5e-3, "linear": 5.5e-3, "constant": 1e-2}[schedule])


def test_no_warm_up_begins_at_the_peak():
    rate = learning_rate_schedule(dataclasses.replace(CONFIG, warmup_steps=0))
    assert float(rate(0)) == pytest.approx(1e-2)


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
def test_decay_reaches_weights_and_never_biases_or_norms(optimizer):
    """With a zero gradient all that moves a weight is decay."""
    cfg = dataclasses.replace(CONFIG, optimizer=optimizer, warmup_steps=0)
    params = jax.tree.map(lambda x: x + 1.0, init_params(jax.random.key(0), MODEL))
    tx = make_optimizer(cfg)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    moved = {name for name, update in flatten(updates) if np.abs(update).max() > 1e-6}
    embeddings = set() if optimizer == "muon" else {"tok_emb", "pos_emb"}
    assert moved == {*embeddings, *(f"blocks.{name}" for name in ("Wq", "Wk", "Wv", "Wo", "W1", "W2"))}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_plain_optimizers_do_not_decay(optimizer):
    cfg = dataclasses.replace(CONFIG, optimizer=optimizer)
    params = init_params(jax.random.key(0), MODEL)
    tx = make_optimizer(cfg)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    assert max(float(np.abs(u).max()) for u in jax.tree.leaves(updates)) == 0


def test_clipping_bounds_the_gradient_by_its_global_norm():
    cfg = dataclasses.replace(CONFIG, optimizer="sgd", beta1=0.0, grad_clip=0.5, warmup_steps=0, learning_rate=1.0)
    cfg = dataclasses.replace(cfg, min_learning_rate=0.0)
    params = init_params(jax.random.key(0), MODEL)
    for size, expected in ((1e-4, None), (3.0, 0.5)):
        grads = jax.tree.map(lambda x: jnp.full_like(x, size), params)  # noqa: B023
        norm = float(jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads))))
        tx = make_optimizer(cfg)
        updates, _ = tx.update(grads, tx.init(params), params)
        moved = float(jnp.sqrt(sum(jnp.square(u).sum() for u in jax.tree.leaves(updates))))
        assert moved == pytest.approx(expected or norm, rel=1e-4)


def test_muon_orthogonalises_each_layer_by_itself():
    """The update of one layer does not depend on another layer's gradient."""
    cfg = dataclasses.replace(CONFIG, optimizer="muon", weight_decay=0.0, grad_clip=0.0)
    params = init_params(jax.random.key(0), MODEL)
    tx = make_optimizer(cfg)
    grads = jax.tree.map(lambda x: jnp.sin(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape), params)
    other = {**grads, "blocks": {**grads["blocks"], "W1": grads["blocks"]["W1"].at[1].multiply(3.0).at[1, 0].add(5.0)}}
    one, two = (tx.update(g, tx.init(params), params)[0]["blocks"]["W1"] for g in (grads, other))
    np.testing.assert_allclose(one[0], two[0], atol=1e-8)
    assert np.abs(np.asarray(one[1] - two[1])).max() > 1e-4


@pytest.mark.parametrize("heads", [(), (2, 1)])
def test_muon_takes_the_matrices_of_the_blocks_alone(heads, monkeypatch):
    given = {}
    monkeypatch.setattr(optimizer, "muon", lambda rate, **options: given.update(options) or optax.identity())
    model = dataclasses.replace(MODEL, heads=heads)
    make_optimizer(dataclasses.replace(CONFIG, model=model, optimizer="muon"))
    tree = given["muon_weight_dimension_numbers"]
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: hasattr(node, "output_axis"))[0]
    taken = {jax.tree_util.keystr(path, simple=True, separator="."): tuple(axes) for path, axes in found}
    matrices = [name for name, leaf in flatten(decay_mask(model)) if leaf and name.startswith("blocks.")]
    assert taken == dict.fromkeys(matrices, (-2, -1))
