"""Checks at the door: what a file would take in silence and get wrong later."""

from tinygpt_jax.errors import UserError


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
