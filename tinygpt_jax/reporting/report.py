"""One page on a run, from what its directory holds: no model is run, and of what is missing it says how to make it."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.digits import with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.style import THEMES, encoded
from tinygpt_jax.figures.text import intact
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.roles import NONE, conclusions, rule
from tinygpt_jax.markup import marked, table
from tinygpt_jax.params import count_params
from tinygpt_jax.reporting.page import (
    Picture,
    Section,
    beside,
    document,
    facts,
    figure,
    note,
    paragraph,
    tokens,
    verbatim,
    wide,
)
from tinygpt_jax.reporting.saved import (
    Measured,
    Saved,
    Validation,
    Weights,
    brief,
    good,
    read_results,
    read_run,
    repeated,
    stale,
    weights_now,
)
from tinygpt_jax.runs import RECORD, read_config
from tinygpt_jax.training.evaluate import ERROR

DPI = 110
CURVES = "training"
PLOTS = {
    "next-tokens": "The next token",
    "embedding": "The token embedding",
    "attention": "Attention",
    "positions": "Positions",
    "norm": "The norm before attention",
    "head-split": "Queries split into heads",
    "activation": "The activation",
    "mlp-widths": "Widths of the MLP",
    "residual-writes": "What is written into the residual stream",
}
"""Results that `tinygpt plot` leaves in plots/ beside the curves, and what each is called."""
EFFECTS = {
    "heads-mean-loss": ("What the loss takes when a head is switched off", "ablate"),
    "scores-text": ("What heads do on the text", "heads"),
    "scores-repeats": ("What heads do on random tokens of which a part comes twice", "heads"),
}
"""Results in heads/ that come with their tables: what each is called, and the verb that makes it."""
READINGS = {
    "attention": "Attention in a window or in the prompt of `tinygpt heads`",
    "lens": "The logit lens",
    "attribution": "Who writes the logits",
}
"""Results in heads/ that come as figures."""
MOST_SAMPLES, MOST_VALIDATIONS, MOST_TOKENS = 8, 12, 96
MOST_FIGURES = 40
SAMPLE_CHARACTERS = 2000


def report_page(run: str | os.PathLike[str]) -> str:
    """A page of HTML on a run, which loads nothing from elsewhere.

    Raises:
        UserError: there is no run.json, without which it is no run, or it is damaged.
    """
    saved = read_run(Path(run))
    plots = read_results(saved.run / "plots", [CURVES, *PLOTS])
    heads = read_results(saved.run / "heads", [*EFFECTS, *READINGS])
    curves, pieces = _split(plots, [CURVES])
    effects, readings = _split(heads, EFFECTS)
    twice = repeated(saved, readings, pieces)
    titles = {name: title for name, title in READINGS.items() if name not in twice}
    sections = [
        Section("training", "Training", _training(saved, curves)),
        Section("samples", "Samples over the training", _samples(saved)),
        Section("tokenizer", "Tokenizer", _tokenizer(saved)),
        Section("heads", "What each head does", _heads(saved, effects)),
        Section("pieces", "Inside the model", _inside(saved, "plots", PLOTS, pieces)),
        Section("readings", "Read off the heads", _inside(saved, "heads", titles, _split(readings, twice)[1])),
        Section("settings", "Settings", _settings(saved.cfg)),
        Section("again", "How to make it again", _again(saved)),
    ]
    return document(f"Run {saved.run.resolve().name}", _lead(saved), sections)


def lacking(run: Path) -> list[str]:
    """Names of results that a report shows and the run has not, or has damaged or of other weights.

    Raises:
        UserError: as `report_page`.
    """
    weights = weights_now(run, read_config(run).model)
    lacks = []
    for folder, names in (("plots", [CURVES, *PLOTS]), ("heads", [*EFFECTS, *READINGS])):
        found = read_results(run / folder, names)
        lacks += [f"{folder}/{name}" for name in names if name not in good(found, weights)]
    return lacks


def _lead(saved: Saved) -> str:
    """What this run is, and how good it became."""
    cfg, model, record, best = saved.cfg, saved.cfg.model, saved.record, saved.log.best()
    taken = "" if saved.log.steps == cfg.steps else f"{saved.log.steps:,} of "
    said = [
        f"A GPT of {count_params(model):,} parameters ({model.n_layer} layers of {model.n_embd}, "
        f"{', '.join(map(str, model.heads)) or model.n_head} heads, context {model.block_size}), "
        f"trained for {taken}{cfg.steps:,} steps on {', '.join(cfg.data)} "
        f"({_count(record.get('train_tokens'))} tokens)."
    ]
    if best:
        said.append(
            f"On {_count(record.get('val_tokens'))} tokens kept for validation it came to a loss of "
            f"{with_error(best.loss, best.loss_se)} nats per token, "
            f"{_decimal(best.bits_per_byte, 3)} bits per byte, at step {best.step:,}. "
            f"Up to there it did {_decimal(best.tokens_per_second, 0)} tokens/s, validation and saving included."
        )
    else:
        said.append("How good it became is not known: no validation loss is saved.")
    said.append(f"± is {ERROR}." if best else "± is one standard error.")
    return paragraph(" ".join(said))


def _training(saved: Saved, curves: Sequence[Measured]) -> str:
    log = saved.log
    missing = note(f"The curves, plots/{CURVES}.json, are missing", _typed("plot", saved.run))
    parts = [_measured(saved, measured, "Training", "plot") for measured in curves] or [missing]
    parts += [note(f"{problem}; a training writes it anew", _retyped(saved)) for problem in log.problems]
    last, left = log.validations[-MOST_VALIDATIONS:], len(log.validations) - MOST_VALIDATIONS
    if last:
        head = ["step", "loss (nats per token)", "nats per character", "bits per byte", "tokens/s"]
        parts.append(wide(table(head, map(_validation, last))))
    if left > 0:
        parts.append(paragraph(f"The last {len(last)} validations; {left:,} earlier ones are in metrics.jsonl."))
    return "".join(parts)


def _validation(one: Validation) -> list[str]:
    loss = f"{_decimal(one.loss)} ± {_decimal(one.loss_se)}"
    numbers = (_decimal(one.loss_per_char), _decimal(one.bits_per_byte, 3), _decimal(one.tokens_per_second, 0))
    return [f"{one.step:,}", loss, *numbers]


def _samples(saved: Saved) -> str:
    found = saved.samples
    if isinstance(found, str):
        return note(f"{found}; a training leaves samples as it goes, this writes one", _typed("sample", saved.run))
    chosen = [found[i] for i in _spread(len(found), MOST_SAMPLES)]
    parts = []
    for step, text in chosen:
        cut = text[:SAMPLE_CHARACTERS] + ("…" if len(text) > SAMPLE_CHARACTERS else "")
        parts.append(f"<h3>Step {step:,}</h3>{verbatim(cut)}")
    if len(chosen) < len(found):
        parts.append(paragraph(f"{len(chosen)} of {len(found):,} samples; the others are in samples.txt."))
    return "".join(parts)


def _tokenizer(saved: Saved) -> str:
    tokenizer, run = saved.tokenizer, saved.run
    if isinstance(tokenizer, str):
        return note(f"The tokenizer cannot be shown: {tokenizer}")
    said = f"{tokenizer.describe()}."
    parts = [paragraph(f"{said[:1].upper()}{said[1:]}")]
    if tokenizer.fingerprint != saved.record.get("tokenizer_sha256"):
        parts.append(note("It is not the one the run began with; restore that one"))
    if isinstance(saved.samples, str):
        return "".join([*parts, note("There is no sample to cut into tokens", _typed("sample", run))])
    step, text = saved.samples[-1]
    try:
        ids = tokenizer.encode(text[:SAMPLE_CHARACTERS])
    except UserError as error:
        return "".join([*parts, note(f"The sample of step {step:,} cannot be cut into tokens: {brief(error)}")])
    names = [marked(tokenizer.decode([i])) for i in ids[:MOST_TOKENS].tolist()]
    whole = len(text[:SAMPLE_CHARACTERS]) / max(len(ids), 1)
    parts.append(paragraph(f"The sample of step {step:,} begins so, {whole:.2f} characters to a token:"))
    return "".join([*parts, tokens(names)])


def _heads(saved: Saved, found: Sequence[Measured]) -> str:
    known = {measured.file.stem: measured for measured in found}
    pruned = bool(saved.cfg.model.heads)
    parts = [note("Heads of a pruned model are not examined: see the run it was pruned from")] * pruned
    for name, (title, verb) in EFFECTS.items():
        parts.append(f"<h3>{title}</h3>")
        if name in known:
            parts.append(_measured(saved, known[name], title, verb, numbers=True))
        else:
            parts.append(note(f"heads/{name}.json is missing", _typed(verb, saved.run)))
    return "".join([*parts, _concluded({name: measured.result for name, measured in known.items()})])


def _concluded(results: Mapping[str, Result | str]) -> str:
    """What each head is, where the scores say it."""
    try:
        concluded = conclusions(results)
    except UserError as error:  # of what is in the files, which the page says
        return note(f"What each head is cannot be said: {error}")
    if not concluded:
        return ""
    said = rule()
    body = table(["head", "what it is"], concluded.items(), [head for head, role in concluded.items() if role != NONE])
    return f"<h3>What each head is</h3>{paragraph(f'{said[:1].upper()}{said[1:]}.')}{wide(body)}"


def _inside(saved: Saved, folder: str, titles: Mapping[str, str], found: Sequence[Measured]) -> str:
    """The figures of a folder's results, of which those in `titles` should be there; the verb has the folder's name."""
    verb = {"plots": "plot"}.get(folder, folder)
    shown, left = found[:MOST_FIGURES], [m.file.stem for m in found[MOST_FIGURES:]]
    parts = [_measured(saved, m, titles.get(m.file.stem, m.file.stem), verb) for m in shown]
    if left:
        parts.append(paragraph(f"Not drawn here, since there are many: {', '.join(left)}"))
    if missing := [name for name in titles if name not in {m.file.stem for m in found}]:
        said = f"Not in {folder}/, where this model has it: {', '.join(missing)}"
        parts.append(note(said, _typed(verb, saved.run)))
    return "".join(parts)


def _measured(saved: Saved, measured: Measured, title: str, verb: str, numbers: bool = False) -> str:
    """A result's figure, its numbers where asked for, and whether it is of other weights."""
    file, result = measured
    where = f"{file.parent.name}/{file.name}"
    if isinstance(result, str):
        return note(f"{where} cannot be read: {result}", _typed(verb, saved.run))
    parts, fold = [], False
    if said := stale(result, saved.weights):
        parts.append(note(said, _typed(verb, saved.run)))
    try:
        picture = _picture(result)
        fold = picture.written
        parts.append(figure(picture, where if numbers else f"{title} ({where})"))
    except UserError as error:
        parts.append(note(f"{where} cannot be drawn: {brief(error)}"))
    if numbers:  # whose table ends in what they come to
        parts += [*map(paragraph, intact(result)), wide(result.to_html(fold))]
    else:
        parts += map(paragraph, result.closing())
    return "".join(parts)


def _picture(result: Result) -> Picture:
    figures = {theme: draw(result, theme=theme) for theme in THEMES}
    light, dark = (encoded(figures[theme], "png", DPI) for theme in ("light", "dark"))
    drawn = figures["light"]
    return Picture(light, dark, str(drawn.get_label()), written=bool(drawn.axes and drawn.axes[0].texts))


def _settings(cfg: TrainConfig) -> str:
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
        parts.append(f"<h3>{title}</h3>{facts(table((), rows, changed))}")
        differ += len(changed)
    said = (
        f"{differ} differ from the defaults: in bold, the default beside them." if differ else "All are the defaults."
    )
    return paragraph(said) + beside(*parts)


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _again(saved: Saved) -> str:
    cfg, record, weights, run = saved.cfg, saved.record, saved.weights, saved.run
    lines = [_retyped(saved), *(_typed(verb, run) for verb in ("eval", "ablate", "heads", "plot", "report"))]
    parts = [paragraph("The first line trains the same model anew, if this run was never resumed with other settings.")]
    parts.append(verbatim("\n".join(lines)))
    if saved.log.steps < cfg.steps:
        parts.append(note("It has not come to its last step; it goes on with", _typed("train", "--resume", run)))
    if "-" in cfg.data:
        parts.append(note("It was trained on standard input, which is gone: give the text again"))
    if isinstance(weights, Weights) and (best := saved.log.best()) and best.step != weights.step:
        parts.append(note(f"The weights are of step {weights.step:,}, the best validation saved of step {best.step:,}"))
    if isinstance(weights, str):
        parts.append(note(f"The weights cannot be read: {weights}", _typed("train", "--resume", run)))
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
    return "".join([*parts, facts(table((), known.items()))])


def _typed(verb: str, *words: str | os.PathLike[str]) -> str:
    return shlex.join(["tinygpt", verb, *map(str, words)])


def _retyped(saved: Saved) -> str:
    """The command that trains the same model again."""
    data = ["--data", "TEXT"] if "-" in saved.cfg.data else []
    return _typed("train", "--config", saved.run / RECORD, *data, "--out", "NEW")


def _decimal(value: float, places: int = 4) -> str:
    return f"{value:,.{places}f}" if math.isfinite(value) else "-"


def _count(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "an unknown number of"


def _split(found: Sequence[Measured], names: Collection[str]) -> tuple[list[Measured], list[Measured]]:
    """Those of these names, and the others."""
    return [m for m in found if m.file.stem in names], [m for m in found if m.file.stem not in names]


def _spread(count: int, most: int) -> Iterable[int]:
    """So many of `count` places at the most, the first and the last among them, evenly."""
    return range(count) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]
