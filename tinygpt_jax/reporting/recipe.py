"""The part of a report that says how a run was made: its settings, and the commands that make it again."""

import dataclasses
import os
import shlex
from typing import Any

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.markup import table
from tinygpt_jax.reporting.page import beside, boxed, note, paragraph, verbatim
from tinygpt_jax.reporting.saved import Saved, Weights
from tinygpt_jax.runs import RECORD


def settings(cfg: TrainConfig) -> str:
    """All settings; marked and with the default beside them, those that differ from it."""
    plain = TrainConfig()
    parts, differ = [], 0
    for title, own, default in (("Model", cfg.model, plain.model), ("Training", cfg, plain)):
        rows, changed = [], []
        for field in dataclasses.fields(own):
            if field.name in ("model", "out"):
                continue
            value, before = getattr(own, field.name), getattr(default, field.name)
            differs = value != before and (field.name != "vocab_size" or cfg.tokenizer == "bpe")
            changed += [field.name] * differs
            rows.append([field.name, _setting(value), f"default: {_setting(before)}" if differs else ""])
        parts.append(f"<h3>{title}</h3>{boxed('facts', table((), rows, changed))}")
        differ += len(changed)
    said = (
        f"{differ} differ from the defaults: in bold, the default beside them." if differ else "All are the defaults."
    )
    return paragraph(said) + beside(*parts)


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def again(saved: Saved) -> str:
    """Commands, and what else the run depends on."""
    cfg, record, weights, run = saved.cfg, saved.record, saved.weights, saved.run
    lines = [retyped(saved), *(typed(verb, run) for verb in ("eval", "ablate", "heads", "plot", "report"))]
    parts = [paragraph("The first line trains the same model again, unless this run was resumed with other settings.")]
    parts.append(verbatim("\n".join(lines)))
    if saved.log.steps < cfg.steps:
        parts.append(note("It has not come to its last step; it goes on with", typed("train", "--resume", run)))
    if "-" in cfg.data:
        parts.append(note("It was trained on standard input, which is gone: give the text again"))
    if isinstance(weights, Weights) and (best := saved.log.best()) and best.step != weights.step:
        parts.append(note(f"The weights are of step {weights.step:,}, the best validation saved of step {best.step:,}"))
    if isinstance(weights, str):
        parts.append(note(f"The weights cannot be read: {weights}", typed("train", "--resume", run)))
    kept = "-" if isinstance(weights, str) else f"{weights.fingerprint}, of step {weights.step:,}"
    versions = record.get("versions")
    known: dict[str, str] = {
        "seed": str(cfg.seed),
        "device": str(record.get("device", "-")),
        "text": f"{', '.join(cfg.data)}, SHA-256 {record.get('text_sha256', '-')}",
        "tokenizer": f"{cfg.tokenizer}, SHA-256 {record.get('tokenizer_sha256', '-')}",
        "weights": kept,
        **({str(name): str(found) for name, found in versions.items()} if isinstance(versions, dict) else {}),
    }
    return "".join([*parts, boxed("facts", table((), known.items()))])


def typed(verb: str, *words: str | os.PathLike[str]) -> str:
    """A command as it is typed."""
    return shlex.join(["tinygpt", verb, *map(str, words)])


def retyped(saved: Saved) -> str:
    """The command that trains the same model again."""
    data = ["--data", "TEXT"] if "-" in saved.cfg.data else []
    return typed("train", "--config", saved.run / RECORD, *data, "--out", "NEW")
