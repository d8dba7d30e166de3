"""Token ids are checked on the host: JAX would clamp or wrap a bad one in silence."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.checks import check_model
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError


def check_ids(ids: ArrayLike, vocab_size: int, what: str = "ids") -> NDArray[np.integer[Any]]:
    """The ids as an integer array, any shape, once each is known to be in [0, vocab_size).

    Raises:
        UserError: one is not; it, its index and the range are named. Or they are not integers.
    """
    array = _whole(ids, what)
    if array.size == 0:
        return array
    if array.min() < 0 or array.max() >= vocab_size:
        index = tuple(np.argwhere((array < 0) | (array >= vocab_size))[0].tolist())
        where = index[0] if len(index) == 1 else index
        raise UserError(
            f"{what}: id {array[index]} at index {where} is outside [0, {vocab_size}); "
            "use ids of this vocabulary, made by its own tokenizer"
        )
    return array


def check_targets(targets: ArrayLike, vocab_size: int) -> NDArray[np.int32]:
    """Targets of any shape as int32, every negative one, which is ignored, as -1; raises UserError as `check_ids` for
    the others."""
    array = _whole(targets, "targets")
    counted = array >= 0
    return np.where(counted, check_ids(array * counted, vocab_size, "targets").astype(np.int32), np.int32(-1))


def check_input(ids: Any, cfg: GPTConfig) -> None:
    """Raises UserError where `cfg` makes no sense, and for ids that its model cannot read: a bad shape, dtype, id or
    length. Of ids that are being traced by jit only shape and dtype are known."""
    check_model(cfg)
    ids = ids if is_traced(ids) else as_array(ids, "ids")
    shape, dtype = ids.shape, ids.dtype
    if len(shape) not in (1, 2) or 0 in shape or not np.issubdtype(dtype, np.integer):
        raise UserError(f"ids have shape {shape} and dtype {dtype}: must be integers (B, T) or (T,), and not empty")
    if cfg.positions == "learned" and shape[-1] > cfg.block_size:
        raise UserError(f"{shape[-1]} tokens, but block_size is {cfg.block_size}: pass at most that many at once")
    if isinstance(ids, np.ndarray):
        check_ids(ids, cfg.vocab_size)


def check_positions(pos: Any, shape: tuple[int, int], limit: int, hidden: int) -> None:
    """Raises UserError where positions are not integers (B, T) from 0 to below `limit`, or `hidden`; where they are
    being traced by jit, only for shape and dtype."""
    pos = pos if is_traced(pos) else as_array(pos, "positions")
    if pos.shape != shape or not np.issubdtype(pos.dtype, np.integer):
        raise UserError(f"positions have shape {pos.shape} and dtype {pos.dtype}: must be integers {shape}, as ids are")
    if isinstance(pos, np.ndarray) and (outside := pos[(pos != hidden) & ((pos < 0) | (pos >= limit))]).size:
        raise UserError(f"position {outside[0]} is outside [0, {limit}), the places there are; use FAR for padding")


def is_traced(array: Any) -> bool:
    """Whether jit is tracing it, so that its values are not known yet."""
    from jax.core import Tracer

    return isinstance(array, Tracer)


def as_array(ids: Any, what: str) -> NDArray[Any]:
    """Ids as an array of any kind; raises UserError where rows differ in length."""
    try:
        return np.asarray(ids)
    except ValueError as error:
        raise UserError(f"{what} have rows of different lengths: pad them, or pass one at a time") from error


def _whole(ids: Any, what: str) -> NDArray[np.integer[Any]]:
    array = as_array(ids, what)
    if array.size == 0:
        return array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{what} have dtype {array.dtype}: must be integers, the ids of tokens")
    return array
