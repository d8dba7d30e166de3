"""The one kind of error that its user can mend, and help with spelling for its messages."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """What was asked cannot be done: one line that names the thing, its value and the remedy.

    The command line prints the message alone and exits with 1; anything else that is raised is a fault of ours. It
    is no ValueError, since libraries between the check and the command line take those for theirs.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known name closest to `name`, or the list of them where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
