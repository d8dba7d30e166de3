"""What a measurement is made on: sequences, what should come next, and a question with a known answer."""

from typing import Any, NamedTuple


class Examples(NamedTuple):
    """B sequences of T tokens with what is asked of them; arrays of int32, of NumPy or, inside jit, of JAX."""

    ids: Any
    """(B, T)"""
    targets: Any
    """(B, T) the token that follows each; -1 where it is not counted."""
    answers: Any = None
    """(B, A) tokens that are right at `position`; None where nothing is asked."""
    wrong: Any = None
    """(B, W) tokens that are wrong there, to set the answers against."""
    position: Any = None
    """(B,) the index whose logits give the answer."""
    place: Any = None
    """(B,) where in one text each begins, in tokens, rising: neighbours are alike, and standard errors allow for that.
    None: the examples are independent of each other."""

    @property
    def asked(self) -> tuple[Any, ...]:
        """The fields but `place`."""
        return self[:-1]

    @property
    def ordered(self) -> bool:
        """Whether they are windows in the order of one text: `ordered` of `statistics.standard_error`."""
        return self.place is not None
