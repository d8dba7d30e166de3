"""One page on a run, from what its directory holds: no model is run, and of what is missing it says how to make it."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.digits import LARGE, number, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.style import THEMES, encoded
from tinygpt_jax.figures.words import intact
from tinygpt_jax.lab.analyses import ANALYSES, Analysis
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.roles import NONE, conclusions, rule
from tinygpt_jax.markup import marked, table
from tinygpt_jax.params import count_params
from tinygpt_jax.reporting.page import Picture, Section, boxed, document, figure, note, paragraph, tokens, verbatim
from tinygpt_jax.reporting.recipe import again, retyped, settings, typed
from tinygpt_jax.reporting.saved import (
    Measured,
    Saved,
    Validation,
    brief,
    good,
    name_of,
    read_results,
    read_run,
    repeated,
    stale,
    weights_now,
)
from tinygpt_jax.runs import read_config
from tinygpt_jax.training.evaluate import ERROR

DPI = 110
BY_FILE = {f"{one.folder}/{one.name}": one for one in ANALYSES}
"""A result's file below the run, without ending -> what it is."""
CURVES = "plots/training"
EFFECTS = [file for file, one in BY_FILE.items() if one.numbers]
MOST_SAMPLES, MOST_VALIDATIONS, MOST_TOKENS = 8, 12, 96
MOST_FIGURES = 40
SAMPLE_CHARACTERS = 2000


@checked
def report_page(run: str | os.PathLike[str]) -> str:
    """A page of HTML on a run, which loads nothing from elsewhere.

    Raises:
        UserError: there is no run.json, without which it is no run, or it is damaged.
    """
    saved = read_run(Path(run))
    found = {name_of(m): m for m in _results(saved.run)}
    twice = repeated(saved, list(found.values()))
    sections = [
        Section("training", "Training", _training(saved, found.get(CURVES))),
        Section("samples", "Samples over training", _samples(saved)),
        Section("tokenizer", "Tokenizer", _tokenizer(saved)),
        Section("heads", "What each head does", _heads(saved, found)),
        Section("pieces", "Inside the model", _inside(saved, "plots", found, [CURVES])),
        Section("readings", "Read off the heads", _inside(saved, "heads", found, [*EFFECTS, *twice])),
        Section("settings", "Settings", settings(saved.cfg)),
        Section("again", "How to make it again", again(saved)),
    ]
    return document(f"Run {saved.run.resolve().name}", _lead(saved), sections)


def lacking(run: Path) -> list[str]:
    """Names of results that a report shows and the run has not, or has damaged or of other weights.

    Raises:
        UserError: as `report_page`.
    """
    whole = good(_results(run), weights_now(run, read_config(run).model))
    return [file for file in BY_FILE if file not in whole]


def _results(run: Path) -> list[Measured]:
    """Those that should be there first."""
    return [m for folder in ("plots", "heads") for m in read_results(run / folder, list(BY_FILE))]


def _lead(saved: Saved) -> str:
    """What this run is, and how good it became."""
    cfg, model, record, best = saved.cfg, saved.cfg.model, saved.record, saved.log.best()
    taken = "" if saved.log.steps == cfg.steps else f"{saved.log.steps:,} of "
    said = [
        f"A GPT of {count_params(model):,} parameters ({model.n_layer} layers of {model.n_embd}, "
        f"{model.head_counts} heads, context {model.block_size}), "
        f"trained for {taken}{cfg.steps:,} steps on {', '.join(cfg.data)} "
        f"({_count(record.get('train_tokens'))} tokens)."
    ]
    if best:
        said.append(
            f"On {_count(record.get('val_tokens'))} tokens kept for validation it came to a loss of "
            f"{with_error(best.loss, best.loss_se)} nats per token, "
            f"{_decimal(best.bits_per_byte, 3)} bits per byte, at step {best.step:,}. "
            f"Training ran at {_decimal(best.tokens_per_second, 0)} tokens/s, validation and saving included."
        )
    else:
        said.append("How good it became is not known: no validation loss is saved.")
    said.append(f"± is {ERROR}." if best else "± is one standard error.")
    return paragraph(" ".join(said))


def _training(saved: Saved, curves: Measured | None) -> str:
    log = saved.log
    parts = [_shown(saved, BY_FILE[CURVES], curves)]
    parts += [note(f"{problem}; train again to write it anew", retyped(saved)) for problem in log.problems]
    last, left = log.validations[-MOST_VALIDATIONS:], len(log.validations) - MOST_VALIDATIONS
    if last:
        head = ["step", "loss (nats per token)", "nats per character", "bits per byte", "tokens/s"]
        parts.append(boxed("wide", table(head, map(_validation, last))))
    if left > 0:
        parts.append(paragraph(f"The last {len(last)} validations; {left:,} earlier ones are in metrics.jsonl."))
    return "".join(parts)


def _validation(one: Validation) -> list[str]:
    loss = with_error(one.loss, one.loss_se)
    loss += ", error not known" * (math.isfinite(one.loss) and not math.isfinite(one.loss_se))
    numbers = (_decimal(one.loss_per_char), _decimal(one.bits_per_byte, 3), _decimal(one.tokens_per_second, 0))
    return [f"{one.step:,}", loss, *numbers]


def _samples(saved: Saved) -> str:
    found = saved.samples
    if isinstance(found, str):
        return note(f"{found}; training leaves samples as it goes, this writes one", typed("sample", saved.run))
    evenly = np.unique(np.linspace(0, len(found) - 1, MOST_SAMPLES).round().astype(int))  # the first and last too
    chosen = [found[i] for i in evenly]
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
        return "".join([*parts, note("There is no sample to cut into tokens", typed("sample", run))])
    step, text = saved.samples[-1]
    try:
        ids = tokenizer.encode(text[:SAMPLE_CHARACTERS])
    except UserError as error:
        return "".join([*parts, note(f"The sample of step {step:,} cannot be cut into tokens: {brief(error)}")])
    names = [marked(tokenizer.decode([i])) for i in ids[:MOST_TOKENS].tolist()]
    whole = len(text[:SAMPLE_CHARACTERS]) / max(len(ids), 1)
    parts.append(paragraph(f"The sample of step {step:,} begins so, {whole:.2f} characters to a token:"))
    return "".join([*parts, tokens(names)])


def _heads(saved: Saved, found: Mapping[str, Measured]) -> str:
    parts = []
    for file in EFFECTS:
        parts += [f"<h3>{BY_FILE[file].shows}</h3>", _shown(saved, BY_FILE[file], found.get(file))]
    return "".join(
        [*parts, _concluded({found[file].file.stem: found[file].result for file in EFFECTS if file in found})]
    )


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
    return f"<h3>What each head is</h3>{paragraph(f'{said[:1].upper()}{said[1:]}.')}{boxed('wide', body)}"


def _inside(saved: Saved, folder: str, found: Mapping[str, Measured], elsewhere: Sequence[str]) -> str:
    """The figures of a folder's results, but of those that stand elsewhere on the page, and what is missing."""
    verb = {"plots": "plot", "heads": "heads"}[folder]
    here = [file for file in found if file.startswith(folder) and file not in elsewhere]
    parts = []
    for file in here[:MOST_FIGURES]:
        stem = found[file].file.stem
        parts.append(_shown(saved, BY_FILE.get(file, Analysis(folder, stem, verb, stem)), found[file]))
    if left := [found[file].file.stem for file in here[MOST_FIGURES:]]:
        parts.append(paragraph(f"Not drawn here, since there are many: {', '.join(left)}"))
    wanted = [file for file in BY_FILE if file.startswith(folder) and file not in elsewhere]
    if missing := [BY_FILE[file].name for file in wanted if file not in found]:
        said = f"Not in {folder}/, where this model has it: {', '.join(missing)}"
        parts.append(note(said, typed(verb, saved.run)))
    return "".join(parts)


def _shown(saved: Saved, one: Analysis, measured: Measured | None) -> str:
    """A result's figure, its numbers where asked for, and whether it is of other weights; or that it is missing."""
    where, remedy = f"{one.folder}/{one.name}.json", typed(one.verb, saved.run)
    if measured is None:
        return note(f"{where} is missing", remedy)
    result = measured.result
    if isinstance(result, str):
        return note(f"{where} cannot be read: {result}", remedy)
    parts, fold = [], False
    if said := stale(result, saved.weights):
        parts.append(note(said, remedy))
    try:
        picture = _picture(result)
        fold = picture.written
        parts.append(figure(picture, where if one.numbers else f"{one.shows} ({where})"))
    except UserError as error:
        parts.append(note(f"{where} cannot be drawn: {brief(error)}"))
    if one.numbers:  # whose table ends in what they come to
        parts += [*map(paragraph, intact(result)), boxed("wide", result.to_html(fold))]
    else:
        parts += map(paragraph, result.closing())
    return "".join(parts)


def _picture(result: Result) -> Picture:
    figures = {theme: draw(result, theme=theme) for theme in THEMES}
    light, dark = (encoded(figures[theme], "png", DPI) for theme in ("light", "dark"))
    drawn = figures["light"]
    return Picture(light, dark, str(drawn.get_label()), written=bool(drawn.axes and drawn.axes[0].texts))


def _decimal(value: float, places: int = 4) -> str:
    return number(value, places) if not abs(value) < LARGE else f"{value:,.{places}f}"


def _count(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "an unknown number of"
