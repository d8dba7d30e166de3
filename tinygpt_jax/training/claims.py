"""Who may write into a run directory: it is claimed, locked and cleared, and the disk asked for room."""

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import PARTIAL, free_bytes, make_folder, remove_all, sweep
from tinygpt_jax.runs import CHECKPOINTS, PARTS, RECORD, TOKENIZER

LOCK = ".lock"


def check_out(out: Path, force: bool) -> Path:
    """Raises UserError where `out` is taken or cannot be a run; with `force`, only where it holds something else."""
    if (name := str(out)) != name.encode("utf-8", "replace").decode():
        raise UserError(f"out is {name!r}: that is not UTF-8, as the names of runs must be; name another with --out")
    with _making(out):
        held = {one.name for one in out.iterdir() if not PARTIAL.fullmatch(one.name)} if out.is_dir() else set()
        if not out.is_dir() and out.exists():
            raise UserError(f"out is {name!r}: that is a file; choose another")
    if RECORD in held and not force:
        raise UserError(f"run {out} exists: continue it with train --resume {out}, or replace it with --force")
    if RECORD not in held and held - {LOCK, TOKENIZER}:
        raise UserError(f"out is {name!r}: that directory holds something that is not a run; choose another")
    if TOKENIZER in held and not force:  # older versions wrote it first
        raise UserError(f"{out} is what is left of a run that was killed as it began: replace it with --force")
    return out


@contextlib.contextmanager
def claim(run: Path, force: bool = False, tell: Callable[[str], None] | None = None) -> Iterator[Path]:
    """Makes the run directory, keeps it `locked`, and deletes all parts of the run that was there, or none.

    Raises:
        UserError: it is taken and `force` is off, it is being trained, cannot be made, or has parts that cannot be
            deleted.
    """
    check_out(run, force)
    with _making(run):
        make_folder(run)
    with locked(run, tell):
        check_out(run, force)  # another process may have been first
        try:
            remove_all(run, PARTS)
        except OSError as error:
            raise UserError(
                f"cannot replace run {run} ({error.filename}: {error.strerror}): all of it is kept; name another place "
                "with --out"
            ) from error
        yield run


@contextlib.contextmanager
def claim_next(first: Path, tell: Callable[[str], None] | None = None) -> Iterator[Path]:
    """As `claim`, for the first of runs/NAME, runs/NAME-2, … that is free; two trainers at once get two."""
    check_out(first, force=True)
    with _making(first.parent):
        make_folder(first.parent)
    for number in itertools.count(1):
        run = first if number == 1 else first.with_name(f"{first.name}-{number}")
        with _making(run), contextlib.suppress(FileExistsError):
            run.mkdir()
            break
    with claim(run, tell=tell):
        yield run


@contextlib.contextmanager
def _making(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot make {run} ({error.strerror}): name another place with --out") from error


@contextlib.contextmanager
def locked(run: Path, tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keeps a run to this process, and clears away what one that was killed left half-written.

    Some network file systems lock only files open for writing: there it is `.lock`. Where there are no locks at all,
    `tell` gets a line that says so.

    Raises:
        UserError: another process trains it, or it, or its checkpoints, cannot be written into.
    """
    with contextlib.ExitStack() as stack:
        try:
            problem = _lock(run, stack)
            for folder in filter(Path.is_dir, (run, run / CHECKPOINTS)):
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
                sweep(folder)
        except BlockingIOError as error:
            raise UserError(f"run {run} is being trained by another process: wait for it, or choose another") from error
        except OSError as error:
            where = error.filename or run
            raise UserError(f"cannot write into {where} ({error.strerror}): check its permissions") from error
        if problem and tell:
            tell(f"{run} cannot be locked ({problem}): see to it that no other process trains it meanwhile")
        yield


def _lock(run: Path, stack: contextlib.ExitStack) -> str:
    """Locks a directory until the stack closes, and returns what keeps it from being locked, if anything does."""
    try:
        import fcntl
    except ImportError:  # Windows
        return "not on this system"
    problem = ""
    for name, flags in (("", os.O_RDONLY), (LOCK, os.O_RDWR | os.O_CREAT)):
        handle = os.open(run / name, flags, 0o666)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return ""
    return problem


def check_room(run: Path, least: int, most: int) -> str:
    """What to say where the file system of a run may not have room for the `most` bytes that it can come to need, if
    anything; raises UserError where not even the `least` fit."""
    free = free_bytes(run)
    least_said, most_said, free_said = (f"{size / 1e6:,.1f} MB" for size in (least, most, free))
    said = f"the run can come to need {most_said}, and {run} has {free_said} of room"
    if free < least:
        raise UserError(f"{said}, too little for one save ({least_said}): make room, or name another place")
    return f"{said}: make room, or lower keep_checkpoints" if free < most else ""
