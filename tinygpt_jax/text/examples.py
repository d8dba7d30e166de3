"""What a measurement is made on: sequences, what should come next, and a question with a known answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Examples(NamedTuple):
    """B sequences of T tokens with what is asked of them; arrays of int32."""

    ids: NDArray[np.int32]
    """(B, T)"""
    targets: NDArray[np.int32]
    """(B, T) the token that follows each; -1 where it is not counted."""
    answers: NDArray[np.int32] | None = None
    """(B, A) tokens that are right at `position`; None where nothing is asked."""
    wrong: NDArray[np.int32] | None = None
    """(B, W) tokens that are wrong there, to set the answers against."""
    position: NDArray[np.int32] | None = None
    """(B,) the index whose logits give the answer."""
