"""Where settings come from: presets by name, files, and one layer over another."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinygpt_jax.errors import UserError, nearest, shown
from tinygpt_jax.reading import MOST_SETTINGS, parse_json, parse_toml, read_few

NANO = {
    "data": ("shakespeare",),
    "optimizer": "adamw",
    "schedule": "cosine",
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "warmup_steps": 100,
    "beta2": 0.99,
}
"""What the two nanoGPT recipes share."""
PRESETS: dict[str, dict[str, Any]] = {
    # The published nanoGPT recipe for a CPU: "a loss of only 1.88" on tiny Shakespeare.
    "nano-cpu": {
        "model": {"block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0, "positions": "learned"},
        **NANO,
        "batch_size": 12,
        "steps": 2000,
        "eval_every": 500,
        "sample_every": 0,
    },
    # The shortest way to its loss that experiments/speedrun has found.
    "speedrun": {
        "data": ("shakespeare",),
        "steps": 340,
        "learning_rate": 1.5e-2,
        "warmup_steps": 10,
        "eval_every": 340,
        "checkpoint_every": 340,
        "sample_every": 0,
    },
    # nanoGPT's larger recipe, meant for a GPU: "best validation loss is 1.4697".
    "nano-gpu": {
        "model": {"block_size": 256, "n_layer": 6, "n_head": 6, "n_embd": 384, "dropout": 0.2, "positions": "learned"},
        **NANO,
        "batch_size": 64,
        "steps": 5000,
    },
    # The classical tutorial: sub-word tokens, 4 layers of 128, plain Adam at a constant rate.
    "classic-bpe": {
        "model": {
            "vocab_size": 3000,
            "block_size": 64,
            "n_layer": 4,
            "n_head": 4,
            "n_embd": 128,
            "positions": "learned",
        },
        "data": ("shakespeare",),
        "tokenizer": "bpe",
        "batch_size": 16,
        "steps": 2000,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "schedule": "constant",
        "min_learning_rate": 1e-3,
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "grad_clip": 0.0,
    },
    # A few seconds of work: for trying things out.
    "toy": {
        "model": {"block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32},
        "steps": 100,
        "warmup_steps": 10,
        "eval_every": 50,
        "checkpoint_every": 50,
        "sample_every": 0,
    },
}


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset, as a nested dict; raises UserError for an unknown name."""
    if name not in PRESETS:
        raise UserError(f"preset {name!r} is unknown{nearest(name, PRESETS)}")
    return PRESETS[name]


def override(config: Any, settings: Mapping[str, Any], where: str) -> Any:
    """A copy of a config dataclass with `settings` (nested mappings, lists for tuples) over it, values unchecked: only
    the outcome of all layers has to make sense, which `check` sees to.

    Raises UserError for a name the config lacks, with the nearest it has, and for a value of the wrong type.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"{where}: settings are {shown(settings)}: must be a table")
    known = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    optional = {f.name for f in dataclasses.fields(config) if str(f.type).endswith("| None")}
    for name, value in settings.items():
        if name not in known:
            tables = [table for table, inner in known.items() if name in getattr(inner, "__dataclass_fields__", ())]
            hint = f"; it belongs into the table [{tables[0]}]" if tables else nearest(name, known)
            raise UserError(f"{where}: setting {shown(name)} is unknown{hint}")
        if name not in optional or None not in (value, known[name]):
            value = _coerce(name, value, known[name], where)
        known[name] = value
    return dataclasses.replace(config, **known)


def _coerce(name: str, value: Any, old: Any, where: str) -> Any:
    """`value` as read from TOML or JSON, in the type of the setting it replaces."""
    if dataclasses.is_dataclass(old):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {name} is {shown(value)}: must be a table of settings")
        return override(old, value, f"{where}, {name}")
    if isinstance(old, tuple):
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else value
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1000 else value  # what is larger is left for `check` to refuse
    if type(value) is not type(old) and not (isinstance(old, float) and isinstance(value, int)):
        raise UserError(f"{where}: {name} is {shown(value)}: must be of type {type(old).__name__}, like {old!r}")
    return value


def read_settings(file: str | Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file; of a run.json, those the run was trained with.

    Raises UserError where the file is missing or is neither.
    """
    path = Path(file)
    try:
        raw = read_few(path, MOST_SETTINGS)
        as_json = path.suffix == ".json" or raw.lstrip().startswith(b"{")  # no TOML begins so
        data = parse_json(raw) if as_json else parse_toml(raw)
    except OSError as error:
        raise UserError(f"config {str(file)!r} cannot be read ({error.strerror}): name a TOML or JSON file") from error
    except ValueError as error:
        kind = "JSON" if as_json else "TOML"
        raise UserError(f"config {str(file)!r} is not {kind} ({error}): mend it, or name another") from error
    if not isinstance(data, dict):
        raise UserError(f"config {str(file)!r} holds {type(data).__name__}: must be a table of settings")
    return settings_in(data) if isinstance(data.get("config"), dict) else data


def settings_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a run.json; an older pruned run counts heads there, and names them beside."""
    config, pruned = record["config"], record.get("pruned")
    config = {name: value for name, value in config.items() if name != "out"}  # a run is where it lies
    if isinstance(pruned, dict) and isinstance(config.get("model"), dict):
        return {**config, "model": {**config["model"], "heads": pruned.get("kept", config["model"].get("heads"))}}
    return config
