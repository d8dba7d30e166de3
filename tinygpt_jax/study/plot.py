"""Every figure of a run: each piece of the model, measured and drawn, and the results of the head lab."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tinygpt_jax.arguments import takes
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.figures import require_matplotlib
from tinygpt_jax.figures.registry import draw
from tinygpt_jax.figures.style import THEMES, save_figure
from tinygpt_jax.files import check_folder, user_path
from tinygpt_jax.lab.analyses import ABLATED, ANALYSES, file_ending
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.block import head_split, norm_rows, position_tables, residual_writes
from tinygpt_jax.lab.read.lens import attention_maps
from tinygpt_jax.lab.read.mlp import activation_curves, mlp_widths
from tinygpt_jax.lab.read.tokens import embedding_map, next_tokens
from tinygpt_jax.lab.read.training import training_curves
from tinygpt_jax.lab.result import Result, model_fingerprint
from tinygpt_jax.reporting.saved import of_weights, read_results
from tinygpt_jax.runs import newest_run, read_record, run_line
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.study.ablate import effects
from tinygpt_jax.study.findings import Finding, Subject, count_passes, measure_each, save, sources
from tinygpt_jax.study.heads import readings
from tinygpt_jax.study.options import PlotOptions

SHOWN = 24
"""The most tokens in a figure that has their names on an axis."""


@takes(PlotOptions)
def plot(asked: PlotOptions) -> list[Path]:
    """Draws every piece of a run, as PNG and SVG with the numbers as JSON and CSV; or redraws saved results.

    Figures of a run's loss curves, block and tokens go to its folder `plots`, those of its heads to `heads`. Results
    that `tg.heads` and `tg.ablate` have saved are drawn as they are; their default results are measured if missing.

    The arguments are the fields of `study.options.PlotOptions`; `tinygpt plot --help` says what each does.

    Raises:
        UserError: a name is neither a run nor a saved result, nothing of it can be drawn, or the prompt, text, number
            of windows or folder cannot be used. If a part of a run is missing, the rest is drawn.
    """
    what: Any = asked.what or (newest_run(),)
    names = [str(user_path(name)) for name in what]
    if asked.theme not in THEMES:
        raise UserError(f"theme is {asked.theme!r}{nearest(asked.theme, THEMES)}")
    # All that is wrong with one of them is said before the first is drawn.
    places = _places(names, str(user_path(asked.out)) if asked.out else "")
    drawings = [_drawing(name, place, asked) for name, place in zip(names, places, strict=True)]
    files: list[Path] = []
    for drawn in drawings:
        for file in drawn():
            asked.on_file(file)
            files.append(file)
    return files


def _drawing(name: str, place: str, asked: PlotOptions) -> Callable[[], Iterable[Path]]:
    """What draws a run or a saved result, once it is known that it is one."""
    if Path(name).is_dir():
        out, text = Path(place or name, "heads"), sources(asked)
        source = Source(
            Path(name), out, asked.tell, text, asked.windows, theme=asked.theme, prompt=asked.prompt, lab=asked.lab
        )
        return lambda: _drawn_files(source)
    if not Path(name).exists():
        raise UserError(f"{name} does not exist: name a run directory, or a JSON file that heads, ablate or plot saved")
    check_folder(Path(place or name).parent)
    result = read_result(name)
    return lambda: save_figure(draw(result, theme=asked.theme), place or Path(name).with_suffix(""))


def _drawn_files(source: "Source") -> Iterator[Path]:
    source.tell(run_line(source.run))
    for finding in draw_run(source):
        yield from finding.files


def _places(what: Sequence[str], out: str) -> list[str]:
    """For each run a folder for its figures, for each saved result a path without ending; "" for the usual place.

    Results of the same name get that of their folder in front; raises UserError where that is the same too.
    """
    if not out or (len(what) == 1 and Path(what[0]).is_dir()):
        return [out] * len(what)
    paths = [Path(name).resolve() for name in what]
    stems = [path.name if path.is_dir() else path.stem for path in paths]
    names = [
        f"{path.parent.name}-{stem}" if stems.count(stem) > 1 else stem for path, stem in zip(paths, stems, strict=True)
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"two figures would both be {Path(out) / twice[0]}: draw them one by one, each with its own --out"
        )
    return [str(Path(out) / name) for name in names]


@dataclass
class Source(Subject):
    """A run to be drawn. A part of it that is missing stops only what needs it.

    Raises:
        UserError: it is no run, matplotlib is missing, or the prompt, text, windows or folder cannot be used.
    """

    prompt: str = ""
    lab: bool = False

    def __post_init__(self) -> None:
        use_compilation_cache()
        read_record(self.run)
        require_matplotlib()
        self.tell = functools.cache(self.tell)  # each message once
        check_folder(self.out.parent)
        if self.windows is not None and self.windows < 2:
            raise UserError(f"windows is {self.windows}: an error needs two; ask for more")
        for part, given in (("examples", self.text), ("ids", self.prompt)):
            if given:
                getattr(self, part)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Every token as text."""
        tokenizer = self.model.tokenizer
        return [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The last tokens of the prompt, or the first ones of a window: the window where they are the most varied."""
        if self.prompt:
            return np.asarray(self.model.tokenizer.encode(self.prompt))[-self.model.cfg.block_size :][-SHOWN:]
        starts = self.examples.ids[:, :SHOWN]
        return starts[int(np.argmax([len(np.unique(start)) for start in starts]))]

    @property
    def tokens(self) -> list[str]:
        return [self.vocabulary[i] for i in self.ids]


def draw_run(source: Source) -> Iterator[Finding]:
    """Draws all figures of a run one by one: loss curves, each piece of the block, tokens, and the head lab's results.

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
        yield save(name, result, source.out.with_name("plots"), True, source.theme)


def pieces(source: Source) -> dict[str, Callable[[], Result]]:
    """The measurements of the pieces, by name; each reads what it needs when it is called."""

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
    """Draws the saved results of this model, and measures those that are missing."""
    try:
        there = _saved_results(source, source.run / "heads")
        for name, result in there.items():
            try:
                yield save(name, result, source.out, True, source.theme)
            except UserError as error:  # what its file holds cannot be drawn; others can
                source.tell(f"no {name}: {error}")
        lacks_readings = not there.keys() >= {one.name for one in ANALYSES if one.verb == "heads"}
        ending = file_ending(sources=source.text, windows=source.windows)
        wanted = ABLATED if source.lab else ABLATED[:1]
        of = [name for name in wanted if source.text or f"{name}-{ending}" not in there]  # or of a text of that name
    except UserError as error:
        source.tell(f"no head lab: {error}")
        return
    how = {"progress": count_passes(source.tell)}
    for work in [lambda: readings(source)] * lacks_readings + [lambda: effects(source, of, ending, how)] * bool(of):
        try:
            yield from measure_each(work(), source)
        except UserError as error:  # of one that cannot be measured, or of what all begin with
            source.tell(f"no head lab: {error}")


def _saved_results(source: Source, folder: Path) -> dict[str, Result]:
    """The results in a folder that are of the run's present weights."""
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
