"""Models trained together are the models trained alone."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from tinygpt_jax import pick, train_many
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.training.many import window_batch
from tinygpt_jax.training.step import init_state, make_train_step

MODEL = GPTConfig(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=16, positions="rope")
CFG = TrainConfig(model=MODEL, steps=20, warmup_steps=2, batch_size=4, steps_per_dispatch=8, optimizer="adamw")
SEEDS, RATES = (3, 2**32 - 1), (3e-3, 1e-2, 1e30)
"""The last rate is one at which a model is lost at once."""
TOKENS = np.random.default_rng(0).integers(0, 11, 200)


def counting(seed, step):
    """Windows of consecutive ids, and targets of which some are ignored."""
    ids = (np.arange(6) + np.random.default_rng([seed, step]).integers(0, 11, (4, 1))) % 11
    return ids, np.where(ids == 5, -1, (ids + 1) % 11)


def solo(cfg, batch):
    """One run by itself, step by step: the parameters before each step and after the last, the losses."""
    step, state, losses = jax.jit(make_train_step(cfg)), init_state(cfg), []
    params = [state.params]
    for i in range(cfg.steps):
        ids, targets = (part.astype(np.int32).reshape(cfg.accumulate, -1, 6) for part in batch(cfg.seed, i))
        state, metrics = step(state, ids, targets)
        params.append(state.params)
        losses.append(metrics.loss)
    return params, np.asarray(losses)


def close(a, b):
    chex.assert_trees_all_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def models():
    return train_many(CFG, counting, SEEDS, RATES, snapshots=(0, 5, 16))


def test_each_model_is_its_solo_run(models):
    """Also beside one that is lost: see RATES."""
    assert [(c.seed, c.learning_rate) for c in models.configs] == [(s, r) for s in SEEDS for r in RATES]
    assert models.metrics.loss.shape == (6, 20)
    assert not np.isfinite(models.metrics.loss[[2, 5]]).all(axis=1).any()
    assert list(models.snapshots) == [0, 5, 16]
    for i in (0, 4):
        params, losses = solo(models.configs[i], counting)
        close(pick(models.params, i), params[-1])
        close(models.metrics.loss[i], losses)
        assert losses[-1] < losses[0] - 0.1
        for step, kept in models.snapshots.items():
            close(pick(kept, i), params[step])


def test_models_that_are_swapped_are_caught(models):
    for i in (1, 3):  # another rate; another seed
        with pytest.raises(AssertionError):
            close(pick(models.params, 0), pick(models.params, i))


@pytest.mark.parametrize(("optimizer", "schedule"), [("muon", "linear"), ("lion", "constant"), ("sgd", "cosine")])
@pytest.mark.slow
def test_rates_and_decays_are_data_to_every_optimizer(optimizer, schedule):
    cfg = dataclasses.replace(CFG, optimizer=optimizer, schedule=schedule, steps=6, min_learning_rate=1e-4)
    models = train_many(cfg, counting, [5], [3e-3, 1e-3], [0.0, 0.5])
    assert [(c.learning_rate, c.weight_decay) for c in models.configs] == [
        (3e-3, 0.0), (3e-3, 0.5), (1e-3, 0.0), (1e-3, 0.5)
    ]  # fmt: skip
    params, losses = solo(models.configs[3], counting)
    close(pick(models.params, 3), params[-1])
    close(models.metrics.loss[3], losses)


@pytest.mark.parametrize("data_seed", [None, 1], ids=["batches of each seed", "the same batches for all"])
@pytest.mark.slow
def test_token_windows_are_those_of_training(data_seed):
    cfg = dataclasses.replace(CFG, accumulate=2, batch_size=2, steps=6)
    models = train_many(cfg, TOKENS, [7, 8], data_seed=data_seed)
    drawn = window_batch(cfg, TOKENS)
    params, losses = solo(models.configs[1], lambda seed, step: drawn(data_seed or seed, step))
    close(pick(models.params, 1), params[-1])
    close(models.metrics.loss[1], losses)
    assert np.abs(models.metrics.loss[0] - losses).max() > 1e-3  # the other seed's is another run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, r"seeds are \[\]: must be whole numbers, and at least one"),
        ({"seeds": [-1]}, "seed is -1: must be a whole number, 0 or more"),
        ({"learning_rates": [float("nan")]}, "learning_rate is nan"),
        ({"weight_decays": [-0.1]}, "weight_decay is -0.1"),
        ({"snapshots": [21]}, "snapshots holds 21: must be steps from 0 to 20"),
        ({"data": lambda seed, step: (np.zeros((4, 5), int),) * 2}, r"batch\(3, 0\) gives ids \(4, 5\) and targets"),
        ({"data": lambda seed, step: (np.full((4, 6), 11),) * 2}, r"id 11 at index \(0, 0\) is outside \[0, 11\)"),
        ({"data": lambda seed, step: (np.zeros((4, 6), int), np.full((4, 6), 11))}, "targets: id 11"),
        ({"data": TOKENS[:5]}, "5 tokens are too few"),
    ],
)
def test_what_cannot_be_trained_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        train_many(CFG, **{"data": counting, "seeds": SEEDS, "learning_rates": RATES, **changes})
