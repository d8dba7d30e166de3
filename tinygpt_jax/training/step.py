"""The train step: one pure function of state and batch, and many steps in one compiled call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.params import Params, init_params
from tinygpt_jax.runtime import random_key
from tinygpt_jax.training.loss import loss_sum
from tinygpt_jax.training.optimizer import Hyper, learning_rate_schedule, make_optimizer

INIT, DROPOUT = 0, 1  # purposes of a run's seed, folded into its key


class TrainState(NamedTuple):
    """All that a step reads and writes, and all that a checkpoint needs."""

    params: Params
    opt_state: Any
    step: jax.Array
    """() int32, steps taken, skipped ones included; with the seed it fixes the next batch and dropout masks."""
    skipped: jax.Array
    """() int32, steps whose update was not applied: the loss or the gradient was not finite."""
    skipped_in_row: jax.Array
    """() int32, of those, the ones since the last good step."""


class StepMetrics(NamedTuple):
    """One number per step; the losses and norms are those of the step's batch, before its update."""

    loss: jax.Array
    """nats per token"""
    grad_norm: jax.Array
    """global L2 norm before clipping"""
    learning_rate: jax.Array


def init_state(cfg: TrainConfig, hyper: Hyper | None = None) -> TrainState:
    """The state before the first step; `hyper` left out is that of `cfg`."""
    seed = (hyper or Hyper.of(cfg)).seed
    params = init_params(jax.random.fold_in(random_key(seed), INIT), cfg.model)
    counters = (jnp.zeros((), jnp.int32) for _ in range(3))  # three buffers, as each is donated by itself
    return TrainState(params, make_optimizer(cfg).init(params), *counters)


def make_train_step(cfg: TrainConfig) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """step(state, ids, targets, hyper) -> (state, metrics), with ids and targets (A, B, T): A micro-batches of one
    update. `hyper` left out is that of `cfg`, numbers that are compiled in.

    Targets below 0 are ignored. The gradient is that of the mean over all counted targets of all micro-batches, so that
    any way of cutting the same windows into micro-batches gives the same update.
    """
    own = Hyper.of(cfg)

    def train_step(state: TrainState, ids: jax.Array, targets: jax.Array, hyper: Hyper = own):
        chex.assert_rank([ids, targets], 3)
        chex.assert_equal_shape([ids, targets])
        optimizer, schedule = make_optimizer(cfg, hyper), learning_rate_schedule(cfg, hyper)
        # Masks need speed, not the strength of the default generator, whose code also takes twice as long to compile.
        dropout_key = jax.random.fold_in(jax.random.key(hyper.seed, impl="rbg"), DROPOUT)
        count = jnp.maximum((targets >= 0).sum(), 1).astype(jnp.float32)
        loss, grads = gradient(state.params, ids, targets, cfg.model, jax.random.fold_in(dropout_key, state.step))
        loss, grads = loss / count, jax.tree.map(lambda g: g / count, grads)
        grad_norm = optax.tree.norm(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        good = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (optax.apply_updates(state.params, updates), opt_state),
            (state.params, state.opt_state),
        )
        bad = 1 - good.astype(jnp.int32)
        in_row = (state.skipped_in_row + 1) * bad
        # The optimizer's own count stands still where a step is skipped.
        rate = jnp.asarray(schedule(state.step - state.skipped), jnp.float32)
        metrics = StepMetrics(loss, grad_norm, rate)
        return TrainState(params, opt_state, state.step + 1, state.skipped + bad, in_row), metrics

    return train_step


def gradient(
    params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig, key: jax.Array
) -> tuple[jax.Array, Params]:
    """Summed loss in nats and its gradient over micro-batches (A, B, T), one after the other."""
    loss_and_grad = jax.value_and_grad(loss_sum)

    def micro(index, ids, targets):
        return loss_and_grad(params, ids, targets, cfg, jax.random.fold_in(key, index))

    if len(ids) == 1:
        return micro(0, ids[0], targets[0])
    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)

    def add(total, batch):
        return jax.tree.map(jnp.add, total, micro(*batch)), None

    return jax.lax.scan(add, zeros, (jnp.arange(len(ids), dtype=jnp.int32), ids, targets))[0]


def make_dispatch(cfg: TrainConfig) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """dispatch(state, tokens, starts, n) -> (state, metrics): n steps, n at most K, in one program.

    tokens (N,) integers; starts (K, A, B) int32, where each step's windows begin; metrics have shape (K,), 0 for
    steps not taken: it stops early once `max_skipped` steps in a row were skipped. n is data, so every split of a run
    into dispatches executes the same compiled loop body: results agree bit for bit.
    """
    train_step = make_train_step(cfg)
    offsets = jnp.arange(cfg.model.block_size + 1, dtype=jnp.int32)

    def dispatch(state: TrainState, tokens: jax.Array, starts: jax.Array, n: jax.Array):
        def step(i, state):
            window = tokens[starts[i][..., None] + offsets].astype(jnp.int32)
            return train_step(state, window[..., :-1], window[..., 1:])

        def go_on(state):
            return state.skipped_in_row < cfg.max_skipped

        return repeat(step, state, n, len(starts), go_on)

    return dispatch


def repeat(
    step: Callable[[jax.Array, TrainState], tuple[TrainState, StepMetrics]],
    state: TrainState,
    n: jax.Array,
    size: int,
    go_on: Callable[[TrainState], jax.Array | bool] = lambda state: True,
) -> tuple[TrainState, StepMetrics]:
    """step(0, state), step(1, ...) and so on, n times, at most `size`, while `go_on(state)`: the last state and every
    step's metrics (size, ...), 0 for those not taken. The state may be of many models, its counters (...)."""

    def body(carry):
        i, state, metrics = carry
        state, now = step(i, state)
        return i + 1, state, jax.tree.map(lambda all, one: all.at[i].set(one), metrics, now)

    empty = jnp.zeros((size, *state.step.shape))  # no NaN, for which JAX can be told to stop
    start = (jnp.zeros((), jnp.int32), state, StepMetrics(empty, empty, empty))
    _, state, metrics = jax.lax.while_loop(lambda carry: (carry[0] < n) & go_on(carry[1]), body, start)
    return state, metrics
