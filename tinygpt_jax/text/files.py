"""Write a file so that a reader finds either the whole of it or what was there before."""

import os
import secrets
from pathlib import Path

from tinygpt_jax.errors import UserError


def write_atomically(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Write the parts, one after the other, to a new file beside `path` and then give it that name.

    Folders on the way are made. Two writers at once each have a file of their own; the last one's is kept, whole.

    Raises:
        UserError: the folder or the file cannot be written.
    """
    path = Path(path)
    # Opened by hand and not by `tempfile`, whose files nobody but their owner may read.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path} ({reason}); choose another place, or make room for it") from error
