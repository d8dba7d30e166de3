"""The next-token loss."""

import chex
import jax
import jax.numpy as jnp
import optax

from tinygpt_jax.config import LOGITS_AT_ONCE, GPTConfig
from tinygpt_jax.forward_pass import forward, hidden_states
from tinygpt_jax.model import unembed
from tinygpt_jax.params import Params


def token_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of each target in nats, (B, T) float32; 0 where the target is negative (ignored)."""
    chex.assert_equal_shape_prefix([logits, targets], targets.ndim)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, losses, 0.0)


def loss_sum(
    params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig, key: jax.Array | None = None
) -> jax.Array:
    """Summed loss in nats over every target of a batch (B, T) that is not negative; `key` turns dropout on.

    Where there are more tokens than `loss_chunk`, the output head runs over that many at a time and once more in the
    backward pass, so that logits and their gradient never exist as a whole.
    """
    x = hidden_states(params, ids, cfg, key=key, fused=True).x
    n = cfg.loss_chunk or max(1, LOGITS_AT_ONCE // cfg.padded_vocab_size)

    def summed(x: jax.Array, targets: jax.Array) -> jax.Array:
        return token_losses(unembed(params, x, cfg), targets).sum()

    if n >= targets.size:
        return summed(x, targets)
    chunk_loss = jax.checkpoint(summed)
    short = -targets.size % n
    x = jnp.pad(x.reshape(-1, x.shape[-1]), ((0, short), (0, 0))).reshape(-1, n, x.shape[-1])
    targets = jnp.pad(targets.reshape(-1), (0, short), constant_values=-1).reshape(-1, n)
    total, _ = jax.lax.scan(lambda total, part: (total + chunk_loss(*part), None), jnp.zeros(()), (x, targets))
    return total


def window_losses(params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig) -> jax.Array:
    """Summed loss in nats of each window by itself, (B, T) -> (B,)."""
    return token_losses(forward(params, ids, cfg, fused=True).logits, targets).sum(-1)
