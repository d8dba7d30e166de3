"""Training states on disk, through orbax: whole or absent, never half, with a checksum of every file."""

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import jax

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import free_bytes, make_folder, move, partial_folder, remove, sync, write_atomically
from tinygpt_jax.runs import CHECKPOINTS
from tinygpt_jax.training.step import TrainState, init_state

SUMS = "SHA256SUMS"
"""In each saved state: what `sha256sum` prints for the others of its files, and `sha256sum -c` reads."""
STEP = re.compile(r"0|[1-9]\d{0,9}")
PLAIN = re.compile(r"[\w/. -]+", re.ASCII)
"""Paths that the libraries below read as they are meant."""


class Damaged(UserError):
    """A saved state is not what was written."""


class Checkpoints:
    """The training states of one run by step; a context manager."""

    def __init__(self, run: Path, keep: int = 0) -> None:
        """`keep` is how many of the newest states stay; 0 keeps all."""
        import orbax.checkpoint as ocp

        self._args = ocp.args
        self._run, self._path, self._keep = run, run / CHECKPOINTS, keep
        self._store = ocp.Checkpointer(ocp.CompositeCheckpointHandler())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def steps(self) -> list[int]:
        """The steps that have a folder, in order; what else lies there is no state."""
        if not self._path.is_dir():
            return []
        return sorted(int(one.name) for one in self._path.iterdir() if STEP.fullmatch(one.name) and one.is_dir())

    def save(self, state: TrainState, facts: dict[str, Any]) -> None:
        """Saves the state under its step, with JSON facts, and then deletes the oldest; does nothing where that step is
        already saved. States of later steps, which `restore` passed over, are renamed to `STEP.damaged`.

        Raises:
            UserError: it cannot be written, for want of room for example; those saved before stay.
        """
        step = int(state.step)
        try:
            make_folder(self._path)
            for later in [other for other in self.steps() if other > step]:
                remove(self._path / f"{later}.damaged")
                move(self._path / str(later), self._path / f"{later}.damaged")
            if step in self.steps():
                return
            outdated = [*self.steps(), step][: -self._keep] if self._keep else []
            items = self._args.Composite(state=self._args.StandardSave(state), facts=self._args.JsonSave(facts))
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
            if free_bytes(self._path) < size:  # else orbax complains in many lines
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._write(step, items, durable=bool(outdated))  # on disk before the older ones go
            for old in outdated:
                with partial_folder(self._path) as aside:  # so that a folder that is half deleted passes for no state
                    move(self._path / str(old), aside / str(old))
        except Exception as error:  # orbax raises many kinds
            raise UserError(
                f"cannot save the training state of step {step} in {self._path} ({_reason(error)}): those before it "
                f"are kept; mend that, or make room, and go on with --resume {self._run}"
            ) from error

    def restore(
        self, cfg: TrainConfig, step: int | None = None, tell: Callable[[str], None] | None = None
    ) -> tuple[TrainState, dict[str, Any]]:
        """The newest state that is whole, or that of `step`, and its facts; `tell` gets a line on each that is passed
        over for being damaged, and where there are no checksums to tell.

        Raises:
            UserError: there is none, none is whole, or one that may be whole cannot be read; nothing is changed.
        """
        saved = self.steps()
        if not saved or (step is not None and step not in saved):
            which = "training state" if step is None else f"training state of step {step} (has {saved})"
            raise UserError(f"{self._path} has no {which}: start the run again with --force")
        said: list[str] = []
        for one in reversed(saved) if step is None else [step]:
            try:
                state, facts, checked = self._restored(cfg, one)
            except Damaged as error:
                said.append(str(error))
                continue
            lines = [f"{line}; it is passed over, and step {one} taken" for line in said]
            lines += [] if checked else [f"{self._path / str(one)} has no checksums: damage to it would go unnoticed"]
            for line in lines if tell else []:
                tell(line)  # type: ignore[misc]
            return state, facts
        raise UserError(f"{'; '.join(said)}: restore the files, or start the run again with --force")

    def _write(self, step: int, items: Any, durable: bool) -> None:
        with partial_folder(self._path) as aside:
            with _plain(aside) as there, _quiet():
                self._store.save(there / str(step), args=items)
            folder = aside / str(step)
            names = _files(folder)
            write_atomically(folder / SUMS, "".join(f"{_sum(folder / name)}  {name}\n" for name in names).encode())
            for path in [*(folder / name for name in names), folder] if durable else ():
                sync(path)
            move(folder, self._path / str(step))
        if durable:
            sync(self._path)

    def _restored(self, cfg: TrainConfig, step: int) -> tuple[TrainState, dict[str, Any], bool]:
        """The state of a step, its facts, and whether there were checksums."""
        folder = self._path / str(step)
        checked = _check_files(folder)
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), jax.eval_shape(lambda: init_state(cfg))
        )
        items = self._args.Composite(state=self._args.StandardRestore(shapes), facts=self._args.JsonRestore())
        try:
            with _plain(self._path) as there, _quiet():
                restored = self._store.restore(there / str(step), args=items)
        except Exception as error:  # orbax raises many kinds for a damaged file
            if checked:
                raise UserError(
                    f"{folder} is as it was written, but cannot be restored ({_reason(error)}): was it written by "
                    "other versions? run.json names them"
                ) from error
            raise Damaged(f"{folder} is damaged ({_reason(error)})") from error
        if int(restored.state.step) != step:
            raise Damaged(f"{folder} is damaged (it is the state of step {int(restored.state.step)})")
        return restored.state, restored.facts, checked


def _check_files(folder: Path) -> bool:
    """Whether there are checksums. Raises Damaged where a file is not as they say, UserError where it is unreadable."""
    try:
        names = _files(folder)
        if SUMS not in names:
            for name in names:
                (folder / name).open("rb").close()
            return False
        names.remove(SUMS)
        said = (folder / SUMS).read_bytes().decode("ascii", "replace").split("\n")
        if [line[66:] for line in said] != [*names, ""]:
            missing = sorted({line[66:] for line in said[:-1]} - set(names))
            what = f"{missing[0]} is missing" if missing else f"{SUMS} lists other files than there are"
            raise Damaged(f"{folder} is damaged ({what})")
        for name, line in zip(names, said, strict=False):
            if f"{_sum(folder / name)}  {name}" != line:
                raise Damaged(f"{folder} is damaged ({name} has another checksum than {SUMS} says)")
    except FileNotFoundError as error:
        raise Damaged(f"{folder} is damaged ({error.filename} is missing)") from error
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}), and may be intact: mend that, for example its "
            "permissions, and try again; nothing was changed"
        ) from error
    return True


def _files(folder: Path) -> list[str]:
    """The files below a folder, by their paths there, in order, but for hidden ones, which systems leave about; Damaged
    where there are none, or other things."""

    def refuse(error: OSError) -> None:
        raise error

    found = [Path(where, name) for where, _, names in os.walk(folder, onerror=refuse) for name in names]
    found = [path for path in found if not path.name.startswith(".")]
    for path in found:
        if path.is_symlink() or not path.is_file():
            raise Damaged(f"{folder} is damaged ({path.relative_to(folder)} is no plain file)")
    if not found:
        raise Damaged(f"{folder} is damaged (it is empty)")
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _sum(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """The folder under a name without characters that are special to orbax and tensorstore, which take a path for an
    address or a pattern; by way of a link where its own name has any."""
    path = folder.absolute()
    if PLAIN.fullmatch(str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tinygpt-") as place:
        link = Path(place, secrets.token_hex(4))
        link.symlink_to(path, target_is_directory=True)
        yield link


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps orbax from printing tracebacks: of errors that it raises, and of its threads that report to an event loop
    which such an error has closed."""
    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    before, logger.disabled = logger.disabled, True
    sys.unraisablehook = lambda found: None if "loop is closed" in str(found.exc_value) else hook(found)
    try:
        yield
    finally:
        logger.disabled, sys.unraisablehook = before, hook


def _reason(error: BaseException | None) -> str:
    """What the system said, where an error goes back to that; else the error's first line."""
    first = error
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        if found := re.search(r"os_error_code='(\d+)'", str(error)):  # tensorstore's
            return os.strerror(int(found[1]))
        error = error.__cause__ or error.__context__
    lines = str(first).splitlines()
    return lines[0] if lines else type(first).__name__
