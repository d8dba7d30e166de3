"""The next-token loss."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.model import forward
from tinygpt_jax.params import Params


def token_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of each target in nats, (B, T) float32; 0 where the target is negative (ignored)."""
    chex.assert_equal_shape_prefix([logits, targets], targets.ndim)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1, mode="clip")[..., 0]
    return jnp.where(targets >= 0, log_z - chosen, 0.0)


def loss_sum(
    params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig, key: jax.Array | None = None
) -> jax.Array:
    """Summed loss in nats over every target of a batch (B, T) that is not negative; `key` turns dropout on."""
    return token_losses(forward(params, ids, cfg, key=key).logits, targets).sum()


def window_losses(params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig) -> jax.Array:
    """Summed loss in nats of each window by itself, (B, T) -> (B,)."""
    return token_losses(forward(params, ids, cfg).logits, targets).sum(-1)
