"""The log of a run: `metrics.jsonl`, and TensorBoard files where wanted."""

import json
import math
import os
from pathlib import Path
from typing import Any, Self

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import make_folder, open_to_append, write_atomically, writing
from tinygpt_jax.reading import MOST_LOG, read_part
from tinygpt_jax.runs import METRICS

MOST_STEPS = 2**53
"""A line that claims more is damaged."""


class MetricsLog:
    """Appends one JSON object a line to metrics.jsonl; a context manager."""

    def __init__(self, run: Path, start_step: int, tensorboard: bool) -> None:
        """Opens the log of a run that has taken `start_step` steps; lines of later steps are dropped."""
        self._path = path = run / METRICS
        self.validated = 0
        """the last step of which it has a validation"""
        if path.is_file():
            kept = [
                line for line in path.read_text("utf-8", errors="replace").splitlines() if _step_of(line) <= start_step
            ]
            self.validated = max((int(_step_of(line)) for line in kept if '"val_loss"' in line), default=0)
            write_atomically(path, "".join(line + "\n" for line in kept).encode())
        self._file = open_to_append(path)
        self._board = _summary_writer(run / "tensorboard", start_step) if tensorboard else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with writing(self._path):
            self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """One line for the state after `step` steps; a number that is not finite is written as null."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with writing(self._path):
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def flush(self) -> None:
        with writing(self._path):
            self._file.flush()


def read_metrics(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, NaN for what is no number, without a line that was cut off.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    path = Path(run) / METRICS
    try:
        return whole_lines(read_part(path, MOST_LOG).decode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): restore it, or train again") from error


def whole_lines(text: str) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl, NaN for what is no number."""
    whole = [one for one in map(_parsed, text.splitlines()) if one and 0 <= one["step"] < MOST_STEPS]
    return [{name: value if name == "step" else number(value) for name, value in one.items()} for one in whole]


def number(value: Any) -> float:
    """A value read from JSON as a float; NaN where it is no finite number."""
    plain = type(value) is float or (type(value) is int and abs(value) < 2**1000)
    return float(value) if plain and math.isfinite(value) else math.nan


def check_tensorboard() -> None:
    """Raises UserError where TensorBoard files cannot be written."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise UserError("tensorboard is on, but tensorboardX is not installed: pip install tensorboardX") from error


def _summary_writer(path: Path, start_step: int) -> Any:
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(make_folder(path)), purge_step=start_step + 1 if start_step else None)


def _step_of(line: str) -> float:
    """The step of a line; infinite for one that was cut off, so that it is dropped."""
    one = _parsed(line)
    return one["step"] if one else math.inf


def _parsed(line: str) -> dict[str, Any] | None:
    """A line that names a step; None for one that was cut off or is something else."""
    try:
        one = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return one if isinstance(one, dict) and type(one.get("step")) is int else None
