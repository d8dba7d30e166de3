"""What `tinygpt plot` does with a run: each piece of it measured, saved and drawn, with the head lab's results."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tinygpt_jax.cli.options import Ablate, Analysis, Heads, Plot
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures import require_matplotlib
from tinygpt_jax.lab.read.block import (
    activation_curves,
    head_split,
    mlp_widths,
    norm_rows,
    position_tables,
    residual_writes,
)
from tinygpt_jax.lab.read.lens import attention_maps
from tinygpt_jax.lab.read.tokens import embedding_map, next_tokens
from tinygpt_jax.lab.read.training import training_curves
from tinygpt_jax.lab.result import Result, model_fingerprint
from tinygpt_jax.lab.windows import run_windows
from tinygpt_jax.reporting.report import lacking
from tinygpt_jax.reporting.saved import of_weights, read_results
from tinygpt_jax.runs import Model, load_whole, read_record
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.study.heads import Finding, Tell, examine_ablations, examine_heads, saved, stem
from tinygpt_jax.text import Examples

SHOWN = 24
"""Tokens of a text that has the name of each beside its map."""
READ = {"scores-repeats", "scores-text", "lens", "attribution", "attention"}
"""What the verb `heads` leaves."""
LAB: tuple[Analysis, ...] = get_args(Analysis)
"""What the verb `ablate` can leave; the first is what it does when nothing is asked for."""


class Source:
    """A run, read as far as its parts are asked for: what is missing stops only what needs it."""

    def __init__(self, options: Plot, run: Path, tell: Tell) -> None:
        self.run, self.options, self.tell = run, options, tell

    def folder(self, name: str) -> Path:
        """Where figures go."""
        return Path(self.options.out or self.run) / name

    @functools.cached_property
    def model(self) -> Model:
        return load_whole(self.run)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Every token as text."""
        tokenizer = self.model.tokenizer
        return [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]

    @functools.cached_property
    def examples(self) -> Examples:
        return run_windows(self.run, self.model, self.options.windows, self.options.sources, self.tell)

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The prompt's last tokens, or the first of the window in which these differ most."""
        if self.options.prompt:
            return np.asarray(self.model.tokenizer.encode(self.options.prompt))[-self.model.cfg.block_size :][-SHOWN:]
        starts = self.examples.ids[:, :SHOWN]
        return starts[int(np.argmax([len(np.unique(start)) for start in starts]))]

    @property
    def tokens(self) -> list[str]:
        return [self.vocabulary[i] for i in self.ids]


def illustrate(options: Plot, run: Path, tell: Tell) -> Iterator[Finding]:
    """Every figure of a run, each saved as it is made: of the training, of each piece of the block, of its tokens, and
    of the head lab, whose results are measured where none of this model are saved.

    Raises:
        UserError: it is no run, nothing of it can be drawn, or not with this prompt, text, number of windows or folder.
            What a run lacks is told, and the rest drawn.
    """
    use_compilation_cache()
    read_record(run)
    require_matplotlib()
    tell = functools.cache(tell)  # what several parts say alike is said once
    source = Source(options, run, tell)
    _check(source)
    made = 0
    for finding in _all(source, tell):
        made += 1
        yield finding
    if not made:
        raise UserError(f"nothing of {run} can be drawn: train it first, with tinygpt train")


def complete(run: Path, tell: Tell) -> None:
    """Measures and draws what a report shows and the run lacks; of what cannot be had the report itself speaks."""
    if not (names := lacking(run)):
        return
    tell(f"measuring what {run} lacks: {', '.join(names)}")
    try:
        for finding in illustrate(Plot(), run, tell):
            tell(f"  saved {', '.join(map(str, finding.files))}")
    except UserError as error:
        tell(f"not measured: {error}")


def _check(source: Source) -> None:
    """Raises UserError for what was asked and cannot be had, before anything is drawn."""
    options = source.options
    if options.out and Path(options.out).exists() and not Path(options.out).is_dir():
        raise UserError(f"out is {options.out!r}: that is a file; name a folder")
    if options.windows is not None and options.windows < 2:
        raise UserError(f"windows is {options.windows}: an error needs two; ask for more")
    for part, given in (("examples", options.data), ("ids", options.prompt)):
        if given:
            getattr(source, part)


def _all(source: Source, tell: Tell) -> Iterator[Finding]:
    for name, measure in _pieces(source).items():
        try:
            result = measure()
        except UserError as error:
            tell(f"no {name}: {error}")
            continue
        yield saved(name, result, source.folder("plots"), True, source.options.theme)
    try:
        yield from _head_lab(source, tell)
    except UserError as error:
        tell(f"no head lab: {error}")


def _pieces(source: Source) -> dict[str, Callable[[], Result]]:
    def model(measure: Callable[..., Result], *arguments: str) -> Callable[[], Result]:
        """measure(params, *arguments, cfg), read when it is called."""
        return lambda: measure(source.model.params, *(getattr(source, a) for a in arguments), source.model.cfg)

    return {
        "training": lambda: training_curves(source.run),
        "positions": model(position_tables),
        "norm": lambda: norm_rows(source.model.params, source.ids, source.model.cfg, source.tokens),
        "head-split": model(head_split, "ids"),
        "attention": lambda: attention_maps(source.model.params, source.ids, source.model.cfg, source.tokens),
        "activation": model(activation_curves, "examples"),
        "mlp-widths": model(mlp_widths),
        "residual-writes": model(residual_writes, "examples"),
        "next-tokens": lambda: next_tokens(source.model.params, source.ids, source.model.cfg, source.vocabulary),
        "embedding": lambda: embedding_map(source.model.params, source.model.cfg, source.vocabulary),
    }


def _head_lab(source: Source, tell: Tell) -> Iterator[Finding]:
    """Draws what is saved of this model, and measures what should be there and is not."""
    options, folder = source.options, source.run / "heads"
    there = _saved_results(source, folder, tell)
    out = source.folder("heads")
    for name, result in there.items():
        try:
            yield saved(name, result, out, True, options.theme)
        except UserError as error:  # of what is in its file; the others can be drawn
            tell(f"no {name}: {error}")
    shared = {name: getattr(options, name) for name in ("data", "include", "exclude", "windows")}
    common: dict[str, Any] = {"run": str(source.run), "out": str(out), **shared}
    missing = [*([] if there.keys() >= READ else [examine_heads(Heads(**common, figures=False), tell)])]
    ablations = Ablate(**common, figures=False)
    if of := tuple(name for name in (LAB if options.lab else LAB[:1]) if f"{name}-{stem(ablations)}" not in there):
        missing.append(examine_ablations(dataclasses.replace(ablations, of=of), tell))
    for found in itertools.chain(*missing):
        yield saved(found.name, found.result, out, True, options.theme)


def _saved_results(source: Source, folder: Path, tell: Tell) -> dict[str, Result]:
    """The results in a folder that were measured on the weights that the run has now."""
    there: dict[str, Result] = {}
    fingerprint = model_fingerprint(source.model.params, source.model.cfg)
    for file, result in read_results(folder, ()):
        if isinstance(result, str):
            tell(f"no {file.stem}: {result}")
        elif of_weights(result, fingerprint):
            there[file.stem] = result
        else:
            tell(f"no {file.stem}: it was measured on other weights than {source.run} has now; measure it again")
    return there
