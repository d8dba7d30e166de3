"""Windows of tokens: random ones to train on, drawn by (seed, step) alone, and all of them in order to evaluate on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.errors import UserError

IGNORE = -1  # the target where there is none


def window_starts(seed: int, step: int, n_tokens: int, block_size: int, batch_size: int) -> NDArray[np.int64]:
    """Where the windows of a training step begin: (B,) int64, uniform over [0, n_tokens - block_size - 1].

    A pure function of its arguments, so a resumed training needs the step and nothing else. Taking the remainder
    favours low starts by less than n_tokens / 2**64.

    Raises:
        UserError: seed or step is outside [0, 2**63), or there are not `block_size + 1` tokens.
    """
    raw = raw_words(seed, step, batch_size)
    _check_window(n_tokens, block_size)
    return (raw % np.uint64(n_tokens - block_size)).astype(np.int64)


def raw_words(seed: int, step: int, n: int) -> NDArray[np.uint64]:
    """The first n of the random 64-bit words that belong to (seed, step), (n,) uint64.

    The seed is the key of a Philox generator and the step a word of its counter: steps never share numbers. Only raw
    output is used, which NumPy promises to keep from version to version (it does not for `Generator.integers`).

    Raises:
        UserError: seed or step is outside [0, 2**63).
    """
    for name, value in (("seed", seed), ("step", step)):
        if not 0 <= value < 1 << 63:
            raise UserError(f"{name} {value} is outside [0, 2**63); choose one within")
    # 128 counter bits below the step: no batch runs into the next step's numbers.
    return np.random.Philox(key=int(seed), counter=int(step) << 128).random_raw(n)


def windows(
    ids: NDArray[np.integer[Any]], starts: NDArray[np.integer[Any]], block_size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Inputs (B, T) int32 from each start on, and targets (B, T) int32, the same one token later.

    Raises:
        UserError: a window does not lie within `ids` (N,), or one of its ids has no place in int32.
    """
    last = len(ids) - block_size - 1
    outside = np.flatnonzero((starts < 0) | (starts > last))
    if len(outside):
        raise UserError(f"window start {starts[outside[0]]} at index {outside[0]} is outside [0, {last}]")
    both = _int32(ids[starts.astype(np.int64)[:, None] + np.arange(block_size + 1)])
    return both[:, :-1], both[:, 1:]


def eval_windows(ids: NDArray[np.integer[Any]], block_size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Windows side by side: inputs (N, T) and targets (N, T), int32, each token but the first a target exactly once.

    The last window is filled up with input 0 and target `IGNORE`.

    Raises:
        UserError: there are fewer than two tokens, so nothing to predict, or one has no place in int32.
    """
    _check_window(len(ids), 1)
    n_windows = -(-(len(ids) - 1) // block_size)
    inputs = np.zeros((n_windows, block_size), np.int32)
    targets = np.full((n_windows, block_size), IGNORE, np.int32)
    narrow = _int32(ids)
    inputs.flat[: len(ids) - 1] = narrow[:-1]
    targets.flat[: len(ids) - 1] = narrow[1:]
    return inputs, targets


def _int32(ids: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """The ids as int32, in which NumPy would wrap a larger one in silence."""
    if not np.can_cast(ids.dtype, np.int32) and ids.size and (ids.max() >= 1 << 31 or ids.min() < -(1 << 31)):
        raise UserError(f"ids reach from {ids.min()} to {ids.max()}: no vocabulary is so large; use ids of a tokenizer")
    return ids.astype(np.int32)


def _check_window(n_tokens: int, block_size: int) -> None:
    if n_tokens < block_size + 1:
        raise UserError(
            f"{n_tokens} tokens are too few: a window of {block_size} needs {block_size + 1}; "
            "give more text or lower block_size"
        )
