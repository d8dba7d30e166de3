"""Checks at the door: what an array or a file would take in silence and get wrong later."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


def check_unicode(text: str) -> None:
    """Raise UserError where a string holds what no UTF-8 file can: half of a surrogate pair.

    Such strings come from the command line, where Python smuggles undecodable bytes in as lone surrogates.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text has the lone surrogate {text[error.start]!r} at character {error.start}, which is no character; "
            "remove it, or give text that is encoded as UTF-8"
        ) from error
