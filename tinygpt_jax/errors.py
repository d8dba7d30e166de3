"""The one kind of error that its user can mend, and help with spelling for its messages."""

import difflib
import reprlib
from collections.abc import Iterable


class UserError(Exception):
    """What was asked cannot be done: one line that names the thing, its value and the remedy.

    The command line prints the message alone and exits with 1; anything else that is raised is a fault of ours. It
    is no ValueError, since libraries between the check and the command line take those for theirs.
    """


def nearest(name: object, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known name closest to `name`, or the list of them where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name)[:80], known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


MOST_BITS = 10_000
"""Of a whole number that is written out: Python refuses to past 4,300 digits."""


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MOST_BITS:
            return f"a whole number of about {int(x.bit_length() * 0.30103):,} digits"
        return super().repr_int(x, level)


_brief = _Brief()
_brief.maxstring = _brief.maxother = 80


def shown(value: object) -> str:
    """`repr` of a value of whatever size and depth, on one line of moderate length."""
    return " ".join(_brief.repr(value).split())
