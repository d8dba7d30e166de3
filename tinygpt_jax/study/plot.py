"""Every figure of a run: each piece of the model measured, saved and drawn, with what the head lab has measured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from tinygpt_jax.config import Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures import require_matplotlib
from tinygpt_jax.figures.draw import draw_file
from tinygpt_jax.lab.analyses import ABLATED, ANALYSES, file_ending
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
from tinygpt_jax.reporting.saved import of_weights, read_results
from tinygpt_jax.runs import Model, load, newest_run, read_record, taken
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.study.ablate import Choices, effects
from tinygpt_jax.study.findings import (
    Finding,
    Names,
    Subject,
    Tell,
    check_whole,
    measure_each,
    read_windows,
    save,
    silent,
    sources,
)
from tinygpt_jax.study.heads import readings
from tinygpt_jax.text import Examples

SHOWN = 24
"""Tokens of a text that has the name of each beside its map."""


def plot(
    what: str | Path | Sequence[str | Path] = (),
    *,
    prompt: str = "",
    data: Names = (),
    include: Names = (),
    exclude: Names = (),
    windows: int | None = None,
    lab: bool = False,
    out: str | Path = "",
    theme: Literal["light", "dark"] = "light",
    tell: Tell = silent,
    on_file: Callable[[Path], None] = lambda file: None,
) -> list[Path]:
    """Draws runs, every piece of them, or saved results anew: PNG, SVG and, of a run, the numbers as JSON and CSV.

    Figures of a run's training, block and tokens go to its folder `plots`, those of its heads to `heads`. What
    `tg.heads` and `tg.ablate` have saved is drawn as it is; what they leave by default and is missing is measured.

    Args:
        what: run directories, or JSON files of saved results; default: the newest run under runs/
        prompt: the text whose last 24 tokens are drawn; default: the start of a window
        data, include, exclude, windows: as in `tg.heads`
        lab: also measure all that `tg.ablate` can and has not
        out: a folder for all, with `plots` and `heads` in it for a run; default: the run, or beside each result
        theme: for paper or for a dark page
        tell: takes lines on progress, and on what a run lacks
        on_file: called with each file as soon as it is written

    Raises:
        UserError: a name is neither a run nor a result, nothing of it can be drawn, or not with this prompt, text,
            number of windows or folder. Of what a run lacks `tell` takes a line, and the rest is drawn.
    """
    names = [str(what)] if isinstance(what, str | Path) else [str(name) for name in what] or [str(newest_run())]
    files: list[Path] = []
    made: Iterable[Path]
    for name, place in zip(names, _places(names, str(out)), strict=True):
        if Path(name).is_dir():
            source = Source(Path(name), tell, prompt, sources(data, include, exclude), windows, lab, place, theme)
            tell(taken(name))
            made = chain.from_iterable(finding.files for finding in draw_run(source))
        elif Path(name).exists():
            made = draw_file(name, place or None, theme=theme)
        else:
            raise UserError(
                f"{name} does not exist: name a run directory, or a JSON file that heads, ablate or plot saved"
            )
        for file in made:
            on_file(file)
            files.append(file)
    return files


def _places(what: Sequence[str], out: str) -> list[str]:
    """Where the figures of each run and of each saved result go: a folder, a stem; nothing where they stay beside it.

    Results of one name are told apart by their folders; raises UserError where these have one name too.
    """
    if not out or (len(what) == 1 and Path(what[0]).is_dir()):
        return [out] * len(what)
    paths = [Path(name).resolve() for name in what]
    stems = [path.name if path.is_dir() else path.stem for path in paths]
    names = [
        f"{path.parent.name}-{stem}" if stems.count(stem) > 1 else stem for path, stem in zip(paths, stems, strict=True)
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two of what is to be drawn would be {Path(out) / twice[0]}: give each of them its own --out")
    return [str(Path(out) / name) for name in names]


@dataclass
class Source:
    """A run to be drawn, read as far as its parts are asked for: what is missing stops only what needs it.

    Raises:
        UserError: it is no run, matplotlib is missing, or what was asked for cannot be had.
    """

    run: Path
    tell: Tell
    prompt: str = ""
    text: Sources = field(default_factory=Sources)
    windows: int | None = None
    lab: bool = False
    out: str | Path = ""
    theme: str = "light"

    def __post_init__(self) -> None:
        use_compilation_cache()
        read_record(self.run)
        require_matplotlib()
        self.tell = functools.cache(self.tell)  # what several parts say alike is said once
        if self.out and Path(self.out).exists() and not Path(self.out).is_dir():
            raise UserError(f"out is {str(self.out)!r}: that is a file; name a folder")
        if self.windows is not None and self.windows < 2:
            raise UserError(f"windows is {self.windows}: an error needs two; ask for more")
        for part, given in (("examples", self.text), ("ids", self.prompt)):
            if given:
                getattr(self, part)

    def folder(self, name: str) -> Path:
        """Where figures go."""
        return Path(self.out or self.run) / name

    @functools.cached_property
    def model(self) -> Model:
        return load(self.run)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Every token as text."""
        tokenizer = self.model.tokenizer
        return [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]

    @functools.cached_property
    def examples(self) -> Examples:
        return read_windows(self.run, self.model, self.windows, self.text, self.tell)

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The prompt's last tokens, or the first of the window in which these differ most."""
        if self.prompt:
            return np.asarray(self.model.tokenizer.encode(self.prompt))[-self.model.cfg.block_size :][-SHOWN:]
        starts = self.examples.ids[:, :SHOWN]
        return starts[int(np.argmax([len(np.unique(start)) for start in starts]))]

    @property
    def tokens(self) -> list[str]:
        return [self.vocabulary[i] for i in self.ids]


def draw_run(source: Source) -> Iterator[Finding]:
    """Every figure of a run, each saved as it is made: of the training, of each piece of the block, of its tokens, and
    of the head lab, whose results are measured where none of this model are saved.

    Raises:
        UserError: nothing of it can be drawn.
    """
    made = 0
    for finding in chain(_drawn_pieces(source), _drawn_lab(source)):
        made += 1
        yield finding
    if not made:
        raise UserError(f"nothing of {source.run} can be drawn: train it first, with tinygpt train")


def _drawn_pieces(source: Source) -> Iterator[Finding]:
    for name, measure in pieces(source).items():
        try:
            result = measure()
        except UserError as error:
            source.tell(f"no {name}: {error}")
            continue
        yield save(name, result, source.folder("plots"), True, source.theme)


def pieces(source: Source) -> dict[str, Callable[[], Result]]:
    """The measurements of the pieces, none of which is read before it is called."""

    def model(measure: Callable[..., Result], *arguments: str) -> Callable[[], Result]:
        """measure(params, *arguments, cfg)"""
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


def _drawn_lab(source: Source) -> Iterator[Finding]:
    """Draws what is saved of this model, and measures what should be there and is not."""
    out = source.folder("heads")
    try:
        there = _saved_results(source, source.run / "heads")
        for name, result in there.items():
            try:
                yield save(name, result, out, True, source.theme)
            except UserError as error:  # of what is in its file; the others can be drawn
                source.tell(f"no {name}: {error}")
        lacks_readings = not there.keys() >= {one.name for one in ANALYSES if one.verb == "heads"}
        ending = file_ending(sources=source.text, windows=source.windows)
        of = [name for name in (ABLATED if source.lab else ABLATED[:1]) if f"{name}-{ending}" not in there]
        if not lacks_readings and not of:
            return
        check_whole(source.run, source.model)
        subject = Subject(
            source.run, source.model, source.examples, source.windows, out, True, source.theme, source.tell
        )
        if lacks_readings:
            yield from measure_each(readings(subject), subject)
        yield from measure_each(effects(subject, of, ending, Choices()), subject)
    except UserError as error:
        source.tell(f"no head lab: {error}")


def _saved_results(source: Source, folder: Path) -> dict[str, Result]:
    """The results in a folder that were measured on the weights that the run has now."""
    there: dict[str, Result] = {}
    fingerprint = model_fingerprint(source.model.params, source.model.cfg)
    for file, result in read_results(folder, ()):
        if isinstance(result, str):
            source.tell(f"no {file.stem}: {result}")
        elif of_weights(result, fingerprint):
            there[file.stem] = result
        else:
            source.tell(f"no {file.stem}: it was measured on other weights than {source.run} has now; measure it again")
    return there
