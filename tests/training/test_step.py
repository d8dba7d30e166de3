"""The train step: accumulation, dispatch, skipping, dropout, lowering, compilations, memory."""

import dataclasses
import re

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.training import loss as loss_module
from tinygpt_jax.training import step as step_module
from tinygpt_jax.training.loss import loss_sum
from tinygpt_jax.training.step import init_state, make_dispatch

MODEL = GPTConfig(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=16)
CONFIG = TrainConfig(
    model=MODEL,
    steps=20,
    warmup_steps=2,
    batch_size=4,
    optimizer="adamw",
    schedule="cosine",
    learning_rate=1e-2,
    seed=3,
)
DROPOUT = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, dropout=0.3))
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, 200), jnp.int32)


def make_train_step(cfg):
    """Compiled whole: op by op, each small operation would be compiled by itself."""
    return jax.jit(step_module.make_train_step(cfg))


def batch(A, B, seed=0):
    """ids and targets (A, B, T), with ragged ignored targets so that micro-batches count unequally many."""
    rng = np.random.default_rng(seed)
    ids, targets = rng.integers(0, 11, (2, A * B, 6))
    for row, target in enumerate(targets):
        target[6 - row :] = -1
    return ids.reshape(A, B, 6).astype(np.int32), targets.reshape(A, B, 6).astype(np.int32)


def starts(steps, cfg, first=0):
    rng = np.random.default_rng(1)
    return rng.integers(0, 190, (40, cfg.accumulate, cfg.batch_size)).astype(np.int32)[first : first + steps]


def run(cfg, lengths):
    """The state after dispatches of these lengths, and all losses."""
    dispatch = jax.jit(make_dispatch(cfg))
    state, losses, done = init_state(cfg), [], 0
    for n in lengths:
        given = np.zeros((5, cfg.accumulate, cfg.batch_size), np.int32)
        given[:n] = starts(n, cfg, done)
        state, metrics = dispatch(state, TOKENS, given, np.int32(n))
        losses += np.asarray(metrics.loss)[:n].tolist()
        done += n
    return state, losses


def close(a, b, tolerance=2e-6):
    chex.assert_trees_all_close(a, b, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lion", "muon"])
def test_every_optimizer_lowers_the_loss(optimizer):
    cfg = dataclasses.replace(CONFIG, optimizer=optimizer, learning_rate=3e-2 if optimizer != "lion" else 3e-3)
    step, state = make_train_step(cfg), init_state(cfg)
    ids, targets = batch(1, 4)
    losses = []
    for _ in range(15):
        state, metrics = step(state, ids, targets)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0] - 0.1
    assert int(state.step) == 15
    assert int(state.skipped) == 0


def test_accumulation_equals_one_batch_whatever_the_token_counts():
    one = make_train_step(CONFIG)
    ids, targets = batch(4, 1)
    counts = (targets >= 0).sum(axis=(1, 2))
    assert len(set(counts.tolist())) > 1, "the counts must differ for this test to mean anything"
    whole, metrics = one(init_state(CONFIG), ids.reshape(1, 4, 6), targets.reshape(1, 4, 6))
    parts, parted = one(init_state(CONFIG), ids, targets)
    close(metrics, parted)
    close(whole.params, parts.params)
    flat = [array.reshape(4, 6) for array in (ids, targets)]
    slope = jax.grad(lambda p: loss_sum(p, *flat, CONFIG.model, jax.random.key(0)) / counts.sum().astype(np.float32))
    assert float(metrics.grad_norm) == pytest.approx(float(optax.tree.norm(slope(init_state(CONFIG).params))), rel=1e-4)
    # A mean of the micro-batches' means is another number, so the check above can fail.
    means = [float(one(init_state(CONFIG), i[None], t[None])[1].loss) for i, t in zip(ids, targets, strict=True)]
    assert abs(np.mean(means) - float(metrics.loss)) > 1e-4


@pytest.mark.parametrize("cfg", [CONFIG, DROPOUT], ids=["plain", "dropout"])
def test_any_split_into_dispatches_is_the_same_bit_for_bit(cfg):
    whole, losses = run(cfg, [5, 5])
    for lengths in ([1] * 10, [4, 3, 3], [2, 5, 3]):
        state, split_losses = run(cfg, lengths)
        chex.assert_trees_all_equal(state, whole)
        assert split_losses == losses


def test_dispatch_equals_separate_steps():
    state, losses = run(CONFIG, [5])
    step, alone = make_train_step(CONFIG), init_state(CONFIG)
    for i, at in enumerate(starts(5, CONFIG)):
        window = np.asarray(TOKENS)[at[..., None] + np.arange(7)]
        alone, metrics = step(alone, window[..., :-1], window[..., 1:])
        assert float(metrics.loss) == pytest.approx(losses[i], rel=1e-5)
    close(state.params, alone.params)


def test_dropout_masks_change_with_the_step_and_the_micro_batch():
    step = make_train_step(DROPOUT)
    ids, targets = batch(1, 4)
    state = init_state(DROPOUT)
    first = step(state, ids, targets)[1].loss
    again = step(state, ids, targets)[1].loss
    later = step(state._replace(step=state.step + 1), ids, targets)[1].loss
    assert float(first) == float(again)
    assert float(first) != float(later)
    two = np.concatenate([ids, ids]), np.concatenate([targets, targets])
    assert float(step(state, *two)[1].loss) != float(first)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_counters(where, monkeypatch):
    if where == "gradient":  # a finite loss with an infinite gradient
        real = step_module.loss_sum

        def bad(params, *rest):
            return real(params, *rest) + jnp.sqrt(jnp.abs(0 * params["lnfb"])).sum()

        monkeypatch.setattr(step_module, "loss_sum", bad)
    state = init_state(CONFIG)
    if where == "loss":
        broken = state.params["tok_emb"].at[0, 0].set(jnp.inf)
        state = state._replace(params={**state.params, "tok_emb": broken})
    after, metrics = make_train_step(CONFIG)(state, *batch(1, 4))
    assert not np.isfinite(metrics.loss if where == "loss" else metrics.grad_norm)
    chex.assert_trees_all_equal(after.params, state.params)
    chex.assert_trees_all_equal(after.opt_state, state.opt_state)
    assert [int(after.step), int(after.skipped), int(after.skipped_in_row)] == [1, 1, 1]


def test_a_good_step_ends_the_row_and_a_dispatch_stops_when_it_is_full():
    good, _ = make_train_step(CONFIG)(init_state(CONFIG)._replace(skipped_in_row=jnp.int32(3)), *batch(1, 4))
    assert int(good.skipped_in_row) == 0
    cfg = dataclasses.replace(CONFIG, max_skipped=2)
    state = init_state(cfg)
    state = state._replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
    given = starts(5, cfg)
    state, metrics = jax.jit(make_dispatch(cfg))(state, TOKENS, given, np.int32(5))
    assert int(state.step) == 2
    assert (np.asarray(metrics.learning_rate[2:]) == 0).all()
    assert (np.asarray(metrics.learning_rate[:2]) > 0).all()


def test_one_compilation_serves_every_length():
    dispatch = jax.jit(chex.assert_max_traces(make_dispatch(CONFIG), n=1))
    state = init_state(CONFIG)
    for n in (1, 5, 3, 5, 1):
        state, _ = dispatch(state, TOKENS, starts(5, CONFIG), np.int32(n))
    assert int(state.step) == 15


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_the_whole_step_lowers_for(platform, compute_dtype):
    cfg = dataclasses.replace(
        DROPOUT, accumulate=2, model=dataclasses.replace(DROPOUT.model, compute_dtype=compute_dtype)
    )
    exported = jax.export.export(jax.jit(make_dispatch(cfg)), platforms=[platform])(
        jax.eval_shape(lambda: init_state(cfg)),
        jax.ShapeDtypeStruct((200,), jnp.uint16),
        jax.ShapeDtypeStruct((5, 2, 4), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    assert exported.platforms == (platform,)
    assert "stablehlo.while" in exported.mlir_module()


def test_first_loss_is_the_log_of_the_vocabulary():
    _, metrics = make_train_step(CONFIG)(init_state(CONFIG), *batch(1, 4))
    assert float(metrics.loss) == pytest.approx(np.log(11), rel=0.02)


@pytest.mark.parametrize("n", [1, 5, 12, 23, 24, 100])
def test_the_loss_in_chunks_is_the_loss(n):
    cfg = dataclasses.replace(CONFIG.model, vocab_multiple=8)
    params = init_state(dataclasses.replace(CONFIG, model=cfg)).params
    ids, targets = (part[0] for part in batch(1, 3))
    targets = jnp.where(jnp.arange(targets.shape[1]) == 2, -1, targets)
    whole = jax.value_and_grad(loss_sum)(params, ids, targets, cfg)
    chunked = jax.value_and_grad(loss_sum)(params, ids, targets, dataclasses.replace(cfg, loss_chunk=n))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), chunked, whole)


def live_logits(cfg: GPTConfig, tokens: int) -> int:
    """The most rows that any array with a vocabulary axis has in the gradient program."""
    shapes = jax.eval_shape(lambda: init_state(dataclasses.replace(CONFIG, model=cfg))).params
    ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    program = jax.jit(jax.grad(loss_sum), static_argnums=3).lower(shapes, ids, ids, cfg).as_text()
    return max(int(rows) for rows in re.findall(rf"tensor<(\d+)x{cfg.vocab_size}xf32>", program))


def test_chunked_logits_never_exist_at_once():
    cfg = dataclasses.replace(CONFIG.model, vocab_size=97, positions="none")
    assert live_logits(cfg, 300) == 300
    assert live_logits(dataclasses.replace(cfg, loss_chunk=20), 300) == 20


def test_a_large_vocabulary_is_cut_into_chunks_by_itself(monkeypatch):
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", 97 * 20)
    assert live_logits(dataclasses.replace(CONFIG.model, vocab_size=97, positions="none"), 301) == 20


@pytest.mark.slow
def test_recomputing_activations_changes_no_number_and_saves_memory():
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 11, (1, 4, 32)), jnp.int32)
    results, temporaries = [], []
    for remat in (False, True):
        deep = dataclasses.replace(DROPOUT.model, n_layer=6, block_size=32, remat=remat)
        cfg = dataclasses.replace(DROPOUT, model=deep)
        program = make_train_step(cfg).lower(init_state(cfg), ids, ids).compile()
        results.append(program(init_state(cfg), ids, ids)[1])
        temporaries.append(program.memory_analysis().temp_size_in_bytes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *results)
    assert temporaries[1] < 0.6 * temporaries[0]
