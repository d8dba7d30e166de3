"""From a text to what a dispatch is fed: the tokens, and where each of its windows begins."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import MAX_DISPATCH, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.runtime import cache_dir
from tinygpt_jax.text import Dataset, Tokenizer, check_length, prepare, window_starts

DEVICE_BYTES = 2**28
"""Token arrays up to this size live on the device; of larger ones only each dispatch's windows go there."""

Feed = Callable[[int, int], tuple[jax.Array, np.ndarray]]
"""feed(step, n) -> (tokens, starts), the arguments of a dispatch of n steps from `step` on."""


def make_dataset(cfg: TrainConfig, text: str, tokenizer: Tokenizer) -> Dataset:
    """The text's tokens to train and to validate on; raises UserError where they are too few for a window."""
    data = prepare(text, tokenizer, val_fraction=cfg.val_fraction, cache=cache_dir())
    check_length(data.train, cfg.model.block_size, "the training text")
    check_length(data.val, 1, "the validation text")
    return data


def make_feed(cfg: TrainConfig, ids: np.ndarray, device_bytes: int = DEVICE_BYTES) -> Feed:
    """Feeds windows of ids (N,) drawn by (seed, step): starts (K, A, B) int32 into tokens that are on the device.

    Raises:
        UserError: the windows of a dispatch are more than int32 can number.
    """
    K, A, B, T = MAX_DISPATCH, cfg.accumulate, cfg.batch_size, cfg.model.block_size

    def starts_of(step: int, n: int) -> np.ndarray:
        starts = np.zeros((K, A, B), np.int64)
        for i in range(n):
            starts[i] = window_starts(cfg.seed, step + i, len(ids), T, A * B).reshape(A, B)
        return starts

    def from_device(step: int, n: int) -> tuple[jax.Array, np.ndarray]:
        return resident, starts_of(step, n).astype(np.int32)

    def from_host(step: int, n: int) -> tuple[jax.Array, np.ndarray]:
        picked = np.zeros((K, A, B, T + 1), ids.dtype)
        picked[:n] = ids[starts_of(step, n)[:n, ..., None] + np.arange(T + 1)]
        return jnp.asarray(picked.reshape(-1)), np.arange(K * A * B, dtype=np.int32).reshape(K, A, B) * (T + 1)

    if ids.nbytes > device_bytes:
        if K * A * B * (T + 1) > 2**31:  # where the last windows begin, int32 would wrap
            raise UserError(
                f"accumulate {A}, batch_size {B} and block_size {T} make {A * B * T:,} tokens a step: of a text this "
                f"large at most {2**31 // K // (T + 1) * T:,} go to the device at once; lower one of them"
            )
        return from_host
    resident = jnp.asarray(ids)
    return from_device
