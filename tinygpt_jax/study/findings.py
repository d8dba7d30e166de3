"""What the measurements of a run share: opening it, and saving, drawing and passing on each result as it is found."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import remove
from tinygpt_jax.lab.analyses import USUAL
from tinygpt_jax.lab.read.over_training import over_training
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import repeats, run_windows
from tinygpt_jax.params import Params
from tinygpt_jax.runs import Model, load_whole, newest_run
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.text import Examples

Tell = Callable[[str], None]
"""Takes a message: which run and text, how far it is, what is missing."""
Names = str | Sequence[str]
"""Of texts, or patterns for the names of their files."""
Work = Mapping[str, Callable[[], Result]]
"""Measurements to make, by the name of the file each result goes to."""


class Finding(NamedTuple):
    """One result, saved."""

    name: str
    result: Result
    files: list[Path]


OnResult = Callable[[Finding], None]
"""Called with each result as soon as it is saved."""


class Subject(NamedTuple):
    """A run to measure, and where its results go."""

    run: Path
    model: Model
    examples: Examples
    windows: int | None
    """how many were asked for"""
    out: Path
    figures: bool
    theme: str
    tell: Tell

    def repeats(self, seed: int) -> Examples:
        """Sequences of random tokens of which a part is repeated, as many as windows were asked for."""
        return repeats(self.model.cfg, self.windows or USUAL, seed)


def silent(_: object) -> None:
    """Takes lines, results or files, and does nothing."""


def sources(data: Names, include: Names, exclude: Names) -> Sources:
    """Text to read; empty for the run's own. A single name may be given as a str."""
    return check(Sources(data, include, exclude))  # type: ignore[arg-type]


def several(names: Names) -> tuple[Any, ...]:
    """Names as a tuple; a single one may be given as a str, "" for none."""
    return (names,) * bool(names) if isinstance(names, str) else tuple(names)


def open_run(
    run: str | Path, sources: Sources, windows: int | None, out: str | Path, figures: bool, tell: Tell
) -> Subject:
    """The run, or the newest; raises UserError where the run or the text cannot be read, or `out` is no folder."""
    run, model, out, can_draw = open_model(run, out, figures, tell)
    examples = read_windows(run, model, windows, sources, tell)
    return Subject(run, model, examples, windows, out, can_draw, "light", tell)


def open_model(run: str | Path, out: str | Path, figures: bool, tell: Tell) -> tuple[Path, Model, Path, bool]:
    """The run, or the newest, its model, the folder for results, and whether they can be drawn; raises UserError."""
    use_compilation_cache()
    run = Path(run or newest_run())
    out = Path(out or run / "heads")
    if out.exists() and not out.is_dir():
        raise UserError(f"out is {str(out)!r}: that is a file; name a folder")
    model = load_whole(run)
    can_draw = figures and find_spec("matplotlib") is not None
    if figures and not can_draw:
        tell("no figures, since matplotlib is missing: pip install matplotlib, then run tinygpt plot")
    return run, model, out, can_draw


def read_windows(run: Path, model: Model, windows: int | None, sources: Sources, tell: Tell) -> Examples:
    """Windows of the run's validation text or of `sources`; `tell` gets which text, and that there are few windows."""
    examples = run_windows(run, model, windows, sources, tell)
    if len(examples.ids) < USUAL and windows is None:
        tell(f"{len(examples.ids)} windows instead of {USUAL}: the text has no room for more")
    return examples


def measure_each(work: Work, subject: Subject) -> Iterator[Finding]:
    """Makes the measurements one by one, and saves each before the next begins."""
    for name, measure in work.items():
        began = time.perf_counter()
        result = measure()
        subject.tell(f"{name}: {time.perf_counter() - began:.1f} s, compilation included")
        yield save(name, result, subject.out, subject.figures, subject.theme)


def measure_checkpoints(
    subject: Subject, measure: Callable[[Params, GPTConfig], Result], fields: Sequence[str], stem: str
) -> Iterator[Finding]:
    """Arrays of a result at every checkpoint of the run, and an animation of each."""
    for field, curve in over_training(subject.run, measure, fields, progress=count_passes(subject.tell)).items():
        name = f"{stem}-{field}"
        found = save(name, curve, subject.out, subject.figures)
        if subject.figures:
            from tinygpt_jax.figures.over_training import animation

            found.files.append(animation(curve, subject.out / f"{name}.gif"))
        yield found


def save(name: str, result: Result, out: Path, figures: bool, theme: str = "light") -> Finding:
    """Saves a result under its name and, with `figures`, draws it; older figures of that name are removed."""
    files = list(result.save(out / name))
    for ending in (".png", ".svg"):
        figure = out / f"{name}{ending}"
        if not (figures and figure.is_symlink()):  # the file behind a link is overwritten
            remove(figure)
    if figures:
        from tinygpt_jax.figures.registry import draw
        from tinygpt_jax.figures.style import save_figure

        files += save_figure(draw(result, theme=theme), out / name)
    return Finding(name, result, files)


def collect(findings: Iterable[Finding], on_result: OnResult) -> dict[str, Result]:
    """All results by name; each is passed on as it is found."""
    results = {}
    for finding in findings:
        on_result(finding)
        results[finding.name] = finding.result
    return results


def flagged(result: Result, flag: str) -> Result:
    """The result with one more flag in its definition."""
    definition = dataclasses.replace(result.definition, flags=(*result.definition.flags, flag))
    return dataclasses.replace(result, definition=definition)


def count_passes(tell: Tell) -> Callable[[int, int], None]:
    """A progress callback that sends a message every few seconds."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5 and 0 < done < total:
            last = time.monotonic()
            tell(f"  {done:,} of {total:,} passes")

    return progress
