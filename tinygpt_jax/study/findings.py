"""What the measurements of a run share: opening it, and saving, drawing and passing on each result as it is found."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, Sources
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import check_folder, remove, user_path, write_together
from tinygpt_jax.lab.analyses import ANALYSES, USUAL
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.training import over_training
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import repeats, run_windows
from tinygpt_jax.params import Params
from tinygpt_jax.runs import Model, load_whole, named
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.study.options import Measuring, Opening, Reading, Tell
from tinygpt_jax.text import Examples

Work = Mapping[str, Callable[[], Result]]
"""Measurements to make, by the name of the file each result goes to."""


class Finding(NamedTuple):
    """One result, saved."""

    name: str
    result: Result
    files: list[Path]


@dataclass
class Subject:
    """A run to measure, and where its results go. Its model and its text are read when they are first used."""

    run: Path
    out: Path
    """the folder for results"""
    tell: Tell
    text: Sources = Sources()
    """empty for the run's own validation text"""
    windows: int | None = None
    """how many were asked for"""
    figures: bool = True
    theme: str = "light"

    @functools.cached_property
    def model(self) -> Model:
        return load_whole(self.run)

    @functools.cached_property
    def examples(self) -> Examples:
        """Windows of the text; says which text, and that there are few windows."""
        examples = run_windows(self.run, self.model, self.windows, self.text, self.tell)
        if len(examples.ids) < USUAL and self.windows is None:
            self.tell(f"{len(examples.ids)} windows instead of {USUAL}: the text has no room for more")
        return examples

    def repeats(self, seed: int) -> Examples:
        """Sequences of random tokens of which a part is repeated, as many as windows were asked for."""
        return repeats(self.model.cfg, self.windows or USUAL, seed)


def sources(asked: Reading) -> Sources:
    """Text to read; empty for the run's own."""
    return check(Sources(asked.data, asked.include, asked.exclude))  # type: ignore[arg-type]


def open_run(asked: Opening) -> Subject:
    """The run, or the newest, whose model is not read yet; raises UserError where `out` is no folder."""
    use_compilation_cache()
    run, tell = named(asked.run), asked.tell
    out = user_path(asked.out or run / "heads")
    check_folder(out)
    can_draw = asked.figures and find_spec("matplotlib") is not None
    if asked.figures and not can_draw:
        tell("no figures, since matplotlib is missing: pip install matplotlib, then run tinygpt plot")
    return Subject(run, out, tell, figures=can_draw)


def open_text(asked: Measuring) -> Subject:
    """`open_run` and the text to measure on; raises UserError also where the run or the text cannot be read."""
    subject = dataclasses.replace(open_run(asked), text=sources(asked), windows=asked.windows)
    subject.examples  # noqa: B018  # read at once, so that what is wrong with it is said first
    return subject


def measure_each(work: Work, subject: Subject) -> Iterator[Finding]:
    """Makes the measurements one by one, and saves each before the next begins. One that cannot be made stops no other.

    Raises:
        UserError: some could not be made, once all others are.
    """
    failed: dict[str, list[str]] = {}
    for name, measure in work.items():
        began = time.perf_counter()
        try:
            result = measure()
        except UserError as error:
            failed.setdefault(str(error), []).append(name)
            continue
        subject.tell(f"{name}: {time.perf_counter() - began:.1f} s, compilation included")
        name = name_among(name, result, subject.out)
        yield save(name, result, subject.out, subject.figures, subject.theme)
    if failed:
        raise UserError("; ".join(f"{', '.join(names)}: {said}" for said, names in failed.items()))


def name_among(name: str, result: Result, folder: Path) -> str:
    """The name of a result among those saved in a folder: its own, with a fingerprint behind it where a result of that
    name is there that was made on other data, such as another text of the same name.

    Names in the table of the report are of what was measured last.
    """
    if name in {one.name for one in ANALYSES} or not (file := folder / f"{name}.json").exists():
        return name
    try:
        other = read_result(file).definition
    except UserError:  # it is damaged
        return name
    return name if other.data == result.definition.data else f"{name}-{result.definition.data[:8]}"


def measure_checkpoints(
    subject: Subject, measure: Callable[[Params, GPTConfig], Result], fields: Sequence[str], stem: str
) -> Iterator[Finding]:
    """Arrays of a result at every checkpoint of the run, and an animation of each."""
    for field, curve in over_training(subject.run, measure, fields, progress=count_passes(subject.tell)).items():
        name = f"{stem}-{field}"
        found = save(name, curve, subject.out, subject.figures)
        if subject.figures:
            from tinygpt_jax.figures.training import animation

            found.files.append(animation(curve, subject.out / f"{name}.gif"))
        yield found


def save(name: str, result: Result, out: Path, figures: bool, theme: str = "light") -> Finding:
    """Saves a result under its name and, with `figures`, draws it, all files or none; older figures of that name are
    removed."""
    files = result.files(out / name)
    if figures:
        from tinygpt_jax.figures.registry import draw
        from tinygpt_jax.figures.style import figure_files

        files |= figure_files(draw(result, theme=theme), out / name)
    write_together({path: (content,) for path, content in files.items()})
    for ending in (".png", ".svg"):
        if (figure := out / f"{name}{ending}") not in files:
            remove(figure)
    return Finding(name, result, list(files))


def collect(asked: Opening, subject: Subject, work: Work, over: Iterable[Finding] = ()) -> dict[str, Result]:
    """The results of all measurements by name, and then those of `over`, each passed on as it is found."""
    results = {}
    for finding in chain(measure_each(work, subject), over):
        asked.on_result(finding)
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
