"""What a measurement is made on: sequences, what should come next, and a question with a known answer."""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any  # NumPy's, or JAX's inside a compiled function


class Examples(NamedTuple):
    """B sequences of T tokens with what is asked of them; arrays of int32."""

    ids: Array
    """(B, T)"""
    targets: Array
    """(B, T) the token that follows each; -1 where it is not counted."""
    answers: Array = None
    """(B, A) tokens that are right at `position`; None where nothing is asked."""
    wrong: Array = None
    """(B, W) tokens that are wrong there, to set the answers against."""
    position: Array = None
    """(B,) the index whose logits give the answer."""
