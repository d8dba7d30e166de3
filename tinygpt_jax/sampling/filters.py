"""What is done to logits before a token is drawn from them."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from tinygpt_jax.config import SampleConfig


class Filters(NamedTuple):
    """The numbers of the filters, as data: other values compile nothing anew. A filter that is None is not traced."""

    temperature: jax.Array
    """() float32, 0 or more."""
    repetition_penalty: jax.Array | None = None
    """() float32, above 0."""
    top_k: jax.Array | None = None
    """() int32, 1 or more."""
    top_p: jax.Array | None = None
    """() float32, above 0 and at most 1."""
    min_p: jax.Array | None = None
    """() float32, 0 or more and below 1."""


def make_filters(config: SampleConfig) -> Filters:
    """The filters that these settings ask for; those that would change nothing are None."""

    def number(value: float | None, off: float | None = None) -> jax.Array | None:
        return None if value in (None, off) else jnp.asarray(value, jnp.float32)

    return Filters(
        temperature=jnp.asarray(config.temperature, jnp.float32),
        repetition_penalty=number(config.repetition_penalty, off=1.0),
        top_k=None if config.top_k is None else jnp.asarray(min(config.top_k, 2**31 - 1), jnp.int32),
        top_p=number(config.top_p, off=1.0),
        min_p=number(config.min_p, off=0.0),
    )


def filter_logits(logits: jax.Array, filters: Filters, seen: jax.Array | None = None) -> jax.Array:
    """The logits to draw from, (B, V) -> (B, V) float32: the largest is 0, and -inf is what the filters leave out.

    logits  float32; -inf for a token that must not come, but not for all
    seen    (B, V) bool, the tokens that the repetition penalty is for

    Order, as in Hugging Face: repetition penalty, temperature, top-k, top-p, min-p. Each of the last three keeps what
    is not below a bound, so equal logits share one fate and the likeliest token always stays.
    """
    chex.assert_rank(logits, 2)
    if filters.repetition_penalty is not None:
        assert seen is not None
        chex.assert_equal_shape([logits, seen])
        logits = jnp.where(seen, penalise(logits, filters.repetition_penalty), logits)
    # The largest becomes 0 before the division, which then cannot overflow upwards; at temperature 0 it alone stays 0.
    z = logits - logits.max(-1, keepdims=True)
    z = z / jnp.maximum(filters.temperature, jnp.finfo(jnp.float32).tiny)
    bound = jnp.full((len(z), 1), -jnp.inf) if filters.min_p is None else jnp.log(filters.min_p)
    if filters.top_k is not None or filters.top_p is not None:
        bound = jnp.maximum(bound, rank_bound(z, filters.top_k, filters.top_p))
    return jnp.where(z >= bound, z, -jnp.inf)


def penalise(logits: jax.Array, penalty: jax.Array) -> jax.Array:
    """Logits made smaller by a penalty above 1: divided where positive, else multiplied (Keskar et al. 2019, CTRL).

    What is finite stays so, or the largest logit of a row could be infinite and all the others then nothing.
    """
    least, most = jnp.finfo(jnp.float32).min, jnp.finfo(jnp.float32).max
    penalised = jnp.clip(jnp.where(logits > 0, logits / penalty, logits * penalty), least, most)
    return jnp.where(logits == -jnp.inf, logits, penalised)


def rank_bound(z: jax.Array, top_k: jax.Array | None, top_p: jax.Array | None) -> jax.Array:
    """The least logit that top-k, and top-p among what that leaves, keep: (B, V) -> (B, 1).

    Top-p keeps the fewest tokens that together have probability `top_p` (Holtzman et al. 2020). What lies below is
    summed from the small end, where float32 still tells small from none.
    """
    V = z.shape[-1]
    ascending = jnp.sort(z, axis=-1)
    bound = ascending[:, :1]
    if top_k is not None:
        bound = ascending[:, V - jnp.minimum(top_k, V)][:, None]
        ascending = jnp.where(ascending >= bound, ascending, -jnp.inf)
    if top_p is not None:
        below = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
        left_out = jnp.sum(below <= 1 - top_p, axis=-1, keepdims=True, dtype=jnp.int32)
        bound = jnp.take_along_axis(ascending, jnp.minimum(left_out, V - 1), axis=-1)
    return bound
