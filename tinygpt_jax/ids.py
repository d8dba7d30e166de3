"""Token ids are checked on the host: JAX would clamp or wrap a bad one in silence."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError


def check_ids(ids: ArrayLike, vocab_size: int, what: str = "ids") -> NDArray[np.integer[Any]]:
    """The ids as an integer array, any shape, once each is known to be in [0, vocab_size).

    Raises:
        UserError: one is not; it, its index and the range are named.
        TypeError: they are not integers.
    """
    array = np.asarray(ids)
    if array.size == 0:
        return array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{what} must be integers, not {array.dtype}")
    if array.min() < 0 or array.max() >= vocab_size:
        index = tuple(np.argwhere((array < 0) | (array >= vocab_size))[0].tolist())
        where = index[0] if len(index) == 1 else index
        raise UserError(
            f"{what}: id {array[index]} at index {where} is outside [0, {vocab_size}); "
            "use ids of this vocabulary, made by its own tokenizer"
        )
    return array


def check_input(ids: Any, cfg: GPTConfig) -> None:
    """Raises UserError where `cfg` makes no sense, and for ids that its model cannot read: a bad shape, dtype, id or
    length. Of ids that are being traced by jit only shape and dtype are known."""
    from jax.core import Tracer

    check(cfg)
    try:
        ids = ids if isinstance(ids, Tracer) else np.asarray(ids)
    except ValueError as error:
        raise UserError("ids have rows of different lengths: pad them, or pass one at a time") from error
    shape, dtype = ids.shape, ids.dtype
    if len(shape) not in (1, 2) or 0 in shape or not np.issubdtype(dtype, np.integer):
        raise UserError(f"ids have shape {shape} and dtype {dtype}: must be integers (B, T) or (T,), and not empty")
    if cfg.positions == "learned" and shape[-1] > cfg.block_size:
        raise UserError(f"{shape[-1]} tokens, but block_size is {cfg.block_size}: pass at most that many at once")
    if isinstance(ids, np.ndarray):
        check_ids(ids, cfg.vocab_size)
