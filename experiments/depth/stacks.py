"""Deep stacks of narrow blocks: what is in their residual stream and their gradient, and what they come to by training.

Numbers are put together in float64 on the host: squares of a float32 stream that runs away would overflow long before
the stream itself does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.shared.text import base, corpus
from experiments.shared.weights import unit_variance
from tinygpt_jax import GPTConfig, TrainConfig, evaluate_tokens, init_params
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.model import norm, unembed
from tinygpt_jax.params import Params
from tinygpt_jax.text import eval_windows
from tinygpt_jax.training.feed import make_feed
from tinygpt_jax.training.loss import loss_sum
from tinygpt_jax.training.step import init_state, make_dispatch

INITS: dict[str, Callable[[Params], Params]] = {"package": lambda params: params, "unit variance": unit_variance}
"""How weights begin: as `init_params` has them, or scaled up to the classical size."""
WIDTH, T, B, STEPS = 32, 32, 8, 200


def stack_of(n_layer: int, quick: bool = False, **changes: Any) -> TrainConfig:
    """The training of a stack; one layer of it is compiled, and run `n_layer` times."""
    size = {"n_embd": 8, "n_head": 2, "block_size": 8} if quick else {"n_embd": WIDTH, "block_size": T}
    cfg = base(quick, n_layer=n_layer, unroll_layers=1, **size, **changes)
    return cfg if quick else dataclasses.replace(cfg, batch_size=B, steps=STEPS, warmup_steps=20)


def fresh(cfg: GPTConfig, init: str, seed: int) -> Params:
    return INITS[init](init_params(jax.random.key(seed), cfg))


def windows_of(cfg: GPTConfig, quick: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first validation windows, ids and targets (B, T)."""
    ids, targets = eval_windows(corpus(quick).val.ids[: B * cfg.block_size + 1], cfg.block_size)
    return ids.astype(np.int32), targets.astype(np.int32)


def rms(x: np.ndarray) -> np.ndarray:
    """Root mean square over all axes but the first."""
    return np.sqrt(np.square(x).reshape(len(x), -1).mean(1))


@functools.partial(jax.jit, static_argnums=2)
def _stream(params: Params, ids: jax.Array, cfg: GPTConfig) -> tuple[jax.Array, jax.Array, jax.Array]:
    taps = hidden_states(params, ids, cfg, taps=("resid_pre", "resid_post")).taps
    before, after = taps["resid_pre"], taps["resid_post"]
    return before, after, unembed(params, norm(after, params, "lnf", cfg), cfg)


def stream(params: Params, ids: np.ndarray, cfg: GPTConfig) -> dict[str, np.ndarray]:
    """By layer (L,): `rms` of the residual stream after it, over that of the embedding; `logits`, the rms of those that
    the model would give if it ended there; `apart`, the share of the stream that is not the same for all tokens of a
    window; and `change`, |block(x) - x| / |x|, a mean over tokens. Not finite where the stream is not."""
    with np.errstate(all="ignore"):
        before, after, logits = (np.asarray(part, np.float64) for part in _stream(params, ids, cfg))
        change = np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
        return {
            "rms": rms(after) / rms(before)[0],
            "logits": rms(logits),
            "apart": rms(after - after.mean(2, keepdims=True)) / rms(after),
            "change": change.mean((1, 2)),
        }


@functools.partial(jax.jit, static_argnums=3)
def _first_gradient(params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig) -> list[jax.Array]:
    blocks = jax.grad(loss_sum)(params, ids, targets, cfg)["blocks"]
    return [leaf[0] / targets.size for name, leaf in blocks.items() if name.startswith("W")]


def first_gradient(params: Params, ids: np.ndarray, targets: np.ndarray, cfg: GPTConfig) -> float:
    """Norm of the loss's gradient at the first layer's matrices, nats per token and unit of weight."""
    leaves = _first_gradient(params, ids, targets, cfg)
    with np.errstate(all="ignore"):
        return float(np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in leaves)))


def trained_from(
    cfg: TrainConfig, init: str, seeds: Sequence[int], quick: bool
) -> tuple[list[dict[str, float]], list[Params]]:
    """Models of all seeds, each from its own initial weights (`train_many` knows but the package's): what each came
    to, and its parameters. A training stops after `max_skipped` steps without a finite gradient."""
    data = corpus(quick)
    dispatch = jax.jit(make_dispatch(cfg), donate_argnums=0)  # a seed acts on dropout alone in there
    found, models = [], []
    for seed in seeds:
        own = dataclasses.replace(cfg, seed=seed)
        state = init_state(own)
        state = state._replace(params=INITS[init](state.params))
        feed = make_feed(own, data.train.ids)
        for step in range(0, cfg.steps, cfg.steps_per_dispatch):
            n = min(cfg.steps_per_dispatch, cfg.steps - step)
            state, _ = dispatch(state, *feed(step, n), np.int32(n))
        loss = evaluate_tokens(state.params, cfg.model, data.val).loss
        found.append({"seed": seed, "loss": loss, "skipped": int(state.skipped)})
        models.append(state.params)
    return found, models


def unigram_loss(quick: bool) -> float:
    """Nats per character of the validation text by how often the training text has each character, plus one."""
    data, V = corpus(quick), stack_of(1, quick).model.vocab_size
    counts = 1 + np.bincount(data.train.ids, minlength=V)
    return float(-np.log(counts / counts.sum())[data.val.ids].mean())
