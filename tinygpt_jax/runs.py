"""The run directory: what is in it, written by a trainer, and read back as a model."""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tinygpt_jax.arguments import checked
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError, nearest, shown
from tinygpt_jax.files import user_path, write_atomically
from tinygpt_jax.measure import check_memory
from tinygpt_jax.memory import decode_bytes, param_bytes
from tinygpt_jax.params import Params, check_params, flatten, unflatten, whole
from tinygpt_jax.presets import override, settings_in
from tinygpt_jax.reading import MOST_SETTINGS, check_links, parse_json, read_part
from tinygpt_jax.text import Tokenizer, load_tokenizer

RECORD, TOKENIZER, WEIGHTS = "run.json", "tokenizer.json", "model.safetensors"
METRICS, SAMPLES, CHECKPOINTS = "metrics.jsonl", "samples.txt", "checkpoints"
PARTS = (TOKENIZER, WEIGHTS, METRICS, SAMPLES, CHECKPOINTS, "tensorboard", "plots", "heads", "report.html", RECORD)
"""All that --force deletes; whatever else lies in the directory is the user's. run.json, without which a directory is
no run, comes last."""
MOVABLE = (METRICS, SAMPLES, CHECKPOINTS, "tensorboard")
"""Those that training writes, and that a larger disk may hold: in place of one there may be a link to its like."""
BEGAN = "began"
"""In run.json: when the run last began or was resumed, seconds since 1970; `newest_run` goes by it."""
RUN_FORMAT = 4
"""Written into run.json; raised whenever older code could no longer read a run. Earlier formats are still read."""
MOST_HEADER = 2**22
"""Bytes of the header of a weights file, which names its arrays: forty thousand of them."""


class Model(NamedTuple):
    """A trained model with its tokenizer."""

    params: Params
    cfg: GPTConfig
    tokenizer: Tokenizer


@checked
def load(run: str | os.PathLike[str]) -> Model:
    """The best weights of a run, its architecture and its tokenizer.

    Raises:
        UserError: the directory is missing, is no run, is half-written, or was made by other code.
    """
    path = user_path(run)
    cfg = read_config(path).model
    check_memory(decode_bytes(cfg, 1), f"{path}: a context of block_size {cfg.block_size}", "use a machine with more")
    tokenizer = load_tokenizer(_part(path, TOKENIZER))
    params = read_weights(_part(path, WEIGHTS), cfg)
    if read_record(path).get("tokenizer_sha256", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise UserError(
            f"{path / TOKENIZER} is not the tokenizer the run was trained with: restore that one; with another "
            "the model's ids mean other text"
        )
    if tokenizer.vocab_size > cfg.vocab_size:
        raise UserError(
            f"{path}: its tokenizer has {tokenizer.vocab_size} tokens, its model {cfg.vocab_size}: "
            "they do not belong together; restore the tokenizer.json the run was trained with"
        )
    return Model(params, cfg, tokenizer)


@checked
def load_whole(run: str | os.PathLike[str]) -> Model:
    """`load`, as what measures heads takes it: in a pruned model, zeros stand in the place of the missing ones."""
    model = load(run)
    params, cfg = whole(model.params, model.cfg)
    return model._replace(params=params, cfg=cfg)


def read_record(run: str | os.PathLike[str]) -> dict[str, Any]:
    """run.json as a dict; raises UserError where it is missing, unreadable or of another format."""
    path = user_path(run)
    if not path.is_dir():
        known = [str(file.parent) for root in (path.parent, Path("runs")) for file in root.glob(f"*/{RECORD}")]
        raise UserError(f"run {run} does not exist{nearest(str(run), known) if known else ', nor any other here'}")
    check_links(path, PARTS, MOVABLE)
    file = _part(path, RECORD)
    try:
        record = parse_json(read_part(file, MOST_SETTINGS))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): mend that, or name another run") from error
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): the run is damaged; train it again") from error
    found = record.get("format") if isinstance(record, dict) else None
    if type(found) is not int or not 1 <= found <= RUN_FORMAT or not isinstance(record.get("config"), dict):
        raise UserError(f"{file} has format {shown(found)}, this version reads {RUN_FORMAT}: it was made by other code")
    return record


def read_config(run: str | os.PathLike[str]) -> TrainConfig:
    """The settings a run was trained with; a warm-up that was not asked for is None."""
    record = read_record(run)
    file = user_path(run) / RECORD
    cfg = override(TrainConfig(), settings_in(record), str(file))
    try:
        return check(cfg)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def facts_of(record: dict[str, Any]) -> dict[str, Any]:
    """What a run.json holds besides the settings: the facts that `write_record` was given."""
    return {name: value for name, value in record.items() if name not in ("format", "config")}


def write_record(run: Path, config: TrainConfig, facts: dict[str, Any]) -> None:
    """Writes run.json: the settings, and facts such as versions, fingerprints and the warm-up where none was asked for.

    `out` is left out, since the directory knows where it is: the record can then be given to `train --config`.
    """
    settings = dataclasses.asdict(dataclasses.replace(config, out=""))
    record = {"format": RUN_FORMAT, "config": settings, **facts}
    write_atomically(run / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def write_weights(file: Path, params: Params, step: int = 0) -> None:
    """Writes the parameters as safetensors, names joined by dots (`blocks.Wq`), whole or not at all."""
    import numpy as np
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(leaf) for name, leaf in flatten(params)}
    # One entry only: safetensors writes several in an order of chance, and equal weights should be equal files.
    write_atomically(file, save(arrays, metadata={"step": str(step)}))


def read_weights(file: Path, cfg: GPTConfig) -> Params:
    """The parameters in a safetensors file.

    Raises:
        UserError: they are damaged, do not fit `cfg`, take more memory than there is, or are not finite.
    """
    import jax.numpy as jnp
    import numpy as np

    with _opened(file) as weights:
        there = {name: _described(weights.get_slice(name)) for name in weights.keys()}  # noqa: SIM118  # no mapping
        there = {name: leaf for name, leaf in there.items() if 0 not in leaf.shape}  # older ones name pruned heads
        check_params(there, cfg, str(file))
        check_memory(param_bytes(cfg), f"the weights in {file}", "use a machine with more")
        arrays = {name: weights.get_tensor(name) for name in there}
    for name, array in arrays.items():
        if bad := array.size - int(np.isfinite(array).sum()):
            raise UserError(f"{file}: {name} has {bad:,} of {array.size:,} numbers that are not finite: train it again")
    return unflatten({name: jnp.asarray(array) for name, array in arrays.items()}, cfg)


def weights_step(file: Path) -> int:
    """The step at which the weights in a file were taken; 0 where it does not say.

    Raises:
        UserError: the file is damaged, or its step is no whole number.
    """
    with _opened(file) as weights:
        step = (weights.metadata() or {}).get("step", "0")
    if not re.fullmatch("[0-9]{1,18}", step):
        raise UserError(f"{file} says that it is of step {shown(step)}: must be a whole number; train it again")
    return int(step)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A safetensors file, whose library reads no more of it than is asked for; UserError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    remedy = "restore it; or delete it and go on with --resume, which makes another from the newest training state"
    try:
        with file.open("rb") as header:
            size = int.from_bytes(header.read(8), "little")
        if size > MOST_HEADER:
            raise UserError(f"{file} cannot be read (a header of {size:,} bytes): {remedy}")
        with safe_open(file, "numpy") as weights:
            yield weights
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}): {remedy}") from error


def _described(part: Any) -> SimpleNamespace:
    """The shape and dtype of an array in a safetensors file."""
    dtype = part.get_dtype()
    return SimpleNamespace(shape=tuple(part.get_shape()), dtype={"F32": "float32"}.get(dtype, dtype))


def named(run: str | os.PathLike[str] = "") -> Path:
    """The run directory that was named, a leading `~` replaced; without a name, `newest_run()`."""
    return user_path(run) if os.fspath(run) else newest_run()


def newest_run(root: str | os.PathLike[str] = "runs") -> Path:
    """The whole run under `root` that was trained last: began or was resumed last, as its run.json says (runs of older
    versions do not: then it is when their weights were written). Of a run and its copies, or what was pruned from it,
    which say the same, it is the run itself.

    Raises:
        UserError: there is none.
    """
    found = [file.parent for file in user_path(root).glob(f"*/{RECORD}")]
    runs = [run for run in found if (run / TOKENIZER).is_file() and (run / WEIGHTS).is_file()]
    if not runs:
        raise UserError(f"no run under {root}/: name a run directory, or make one with `tinygpt train`")
    return max(runs, key=_age)


def _age(run: Path) -> tuple[float, bool, float]:
    """A run's place among the others, the oldest first; a damaged run.json comes before all."""
    written = (run / WEIGHTS).stat().st_mtime
    try:
        record = read_record(run)
    except UserError:
        return 0.0, False, 0.0
    began = record.get(BEGAN)
    if not isinstance(began, int | float):
        return written, "pruned" not in record, 0.0
    return began, "pruned" not in record, -written


def run_line(run: str | os.PathLike[str], what: str = "") -> str:
    """The line that says what a verb works on: the run, and the text or the prompt; and where its weights are those it
    started from."""
    file = user_path(run) / WEIGHTS
    untrained = file.is_file() and weights_step(file) == 0 and BEGAN in read_record(run)
    first = "; its weights are those it started from: no validation has been good yet, train on with --resume"
    return f"run {run}" + (f", {what}" if what else "") + first * untrained


def _part(run: Path, name: str) -> Path:
    file = run / name
    if not file.is_file():
        raise UserError(f"{run} has no {name}: it is not a whole run; name another, or train it again")
    return file
