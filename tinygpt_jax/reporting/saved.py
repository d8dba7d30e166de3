"""What a run directory holds, read for a report: whatever is missing, cut off or damaged is said, not raised."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.kinds import BRIEF, read_result
from tinygpt_jax.lab.result import Result, model_fingerprint
from tinygpt_jax.params import whole
from tinygpt_jax.reading import MOST_LOG, read_part
from tinygpt_jax.runs import METRICS, SAMPLES, TOKENIZER, WEIGHTS, read_config, read_record, read_weights, weights_step
from tinygpt_jax.text import Tokenizer, load_tokenizer
from tinygpt_jax.training.metrics import number, whole_lines
from tinygpt_jax.training.samples import read_samples


class Weights(NamedTuple):
    """The weights that are in the run now."""

    fingerprint: str
    step: int


class Validation(NamedTuple):
    """One line of metrics.jsonl that has a validation; NaN for a number that is missing or not finite."""

    step: int
    loss: float
    loss_se: float
    loss_per_char: float
    bits_per_byte: float
    tokens_per_second: float


class Log(NamedTuple):
    """What metrics.jsonl says."""

    steps: int
    """the last that was taken"""
    validations: list[Validation]
    problems: list[str]

    def best(self) -> Validation | None:
        """The validation of the lowest loss, which is that of the weights kept."""
        finite = [one for one in self.validations if math.isfinite(one.loss)]
        return min(finite, key=lambda one: one.loss, default=None)


class Saved(NamedTuple):
    """A run as it was read; text in the place of a part says what is wrong with it."""

    run: Path
    cfg: TrainConfig
    record: dict[str, Any]
    log: Log
    samples: list[tuple[int, str]] | str
    """(step, text), in order"""
    tokenizer: Tokenizer | str
    weights: Weights | str


class Measured(NamedTuple):
    """A file of a result; text in the place of the result says what is wrong with it."""

    file: Path
    result: Result | str


def read_run(run: Path) -> Saved:
    """Reads all that is known of a run but its results; no model is run.

    Raises:
        UserError: there is no run.json, without which it is no run, or it is damaged.
    """
    cfg = read_config(run)
    return Saved(
        run, cfg, read_record(run), _log(run / METRICS), _samples(run / SAMPLES), _tokenizer(run / TOKENIZER),
        weights_now(run, cfg.model),
    )  # fmt: skip


def read_results(folder: Path, first: Sequence[str]) -> list[Measured]:
    """The results in a folder: those of these names (`name_of`) first, in their order, and then the others."""
    rank = {name: i for i, name in enumerate(first)}
    found = [Measured(file, _result(file)) for file in folder.glob("*.json")]
    return sorted(found, key=lambda m: (rank.get(name_of(m), len(rank)), m.file.name))


def name_of(measured: Measured) -> str:
    """`plots/norm`: the folder and the stem of a result's file."""
    return f"{measured.file.parent.name}/{measured.file.stem}"


def stale(result: Result, weights: Weights | str) -> str:
    """What to say of a result of other weights than those now in the run, else nothing."""
    if isinstance(weights, str) or of_weights(result, weights.fingerprint):
        return ""
    return f"Measured on other weights, {result.definition.model}, than those now in the run, {weights.fingerprint}"


def good(found: Sequence[Measured], weights: Weights | str) -> set[str]:
    """Names of those that are whole and of these weights."""
    return {name_of(m) for m in found if not isinstance(m.result, str) and not stale(m.result, weights)}


def repeated(saved: Saved, found: Sequence[Measured]) -> set[str]:
    """Names of results in `heads` that are in `plots` too: attention in a whole window, but not that in a prompt, which
    is of another text."""
    there, least = good(found, saved.weights), saved.cfg.model.block_size
    whole = [m for m in found if m.file.parent.name == "heads" and len(getattr(m.result, "tokens", ())) >= least]
    return {name_of(m) for m in whole if f"plots/{m.file.stem}" in there}


def of_weights(result: Result, fingerprint: str) -> bool:
    """Whether a result is of these weights, or of no one model: one over training is of many."""
    return type(result).__name__ == "OverTraining" or result.definition.model in ("-", fingerprint)


def brief(error: object) -> str:
    """A complaint in one line of moderate length."""
    return textwrap.shorten(str(error), BRIEF, placeholder=" …")


def _result(file: Path) -> Result | str:
    try:
        result: Result = read_result(file)
        return result
    except UserError as error:
        return brief(error)


def _text(file: Path) -> tuple[str, str]:
    """What stands in a file, and what is wrong with it."""
    try:
        text = read_part(file, MOST_LOG).decode("utf-8", "replace")
    except FileNotFoundError:
        return "", f"{file.name} is missing"
    except OSError as error:
        return "", f"{file.name} cannot be read ({error.strerror})"
    return text, "" if text.strip() else f"{file.name} is empty"


def _log(file: Path) -> Log:
    text, problem = _text(file)
    rows = whole_lines(text)
    unread = len(text.splitlines()) - len(rows)
    names = {name: f"val_{name}" for name in ("loss", "loss_se", "loss_per_char", "bits_per_byte")}
    names["tokens_per_second"] = "tokens_per_second"
    validations = [
        Validation(row["step"], **{name: number(row.get(key)) for name, key in names.items()})
        for row in rows
        if "val_loss" in row
    ]
    lost = sum(math.isnan(number(row[name])) for row in rows for name in ("loss", "grad_norm") if name in row)
    problems = [problem] * bool(problem)
    problems += [f"{unread} lines of {file.name} are cut off or damaged and left out"] * bool(unread)
    problems += [f"{lost} training losses and gradient norms in {file.name} are not finite"] * bool(lost)
    if not validations and not problem:
        problems.append(f"{file.name} has no validation")
    return Log(max((row["step"] for row in rows), default=0), validations, problems)


def _samples(file: Path) -> list[tuple[int, str]] | str:
    text, problem = _text(file)
    return read_samples(text) or problem or f"{file.name} has no sample"


def _tokenizer(file: Path) -> Tokenizer | str:
    if file.exists() and not file.is_file():
        return f"{file.name} is no plain file"
    try:
        return load_tokenizer(file)
    except UserError as error:
        return brief(error)


def weights_now(run: Path, cfg: GPTConfig) -> Weights | str:
    """The weights in a run, or what is wrong with them."""
    file = run / WEIGHTS
    if not file.is_file():
        return f"{file.name} is missing"
    try:
        return Weights(model_fingerprint(*whole(read_weights(file, cfg), cfg)), weights_step(file))
    except UserError as error:
        return brief(error)
