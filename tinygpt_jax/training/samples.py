"""The text written on the way: `samples.txt`, each sample below a line with its step."""

import re
from pathlib import Path

from tinygpt_jax.files import open_to_append, write_atomically, writing
from tinygpt_jax.runs import SAMPLES

HEADING = re.compile(r"^--- step (\d{1,18}) ---\n", re.MULTILINE)
LIKE_HEADING = re.compile(r"^(>*--- step \d{1,18} ---)$", re.MULTILINE)
QUOTED = re.compile(r"^>(>*--- step \d{1,18} ---)$", re.MULTILINE)


def write_sample(run: Path, step: int, text: str) -> None:
    """Adds a sample. A line of it that looks like a heading gets a `>` in front, as in mailboxes; `read_samples` takes
    it off. Raises UserError where it cannot be written."""
    path = run / SAMPLES
    with writing(path), open_to_append(path) as file:
        file.write(_written(step, text))


def read_samples(text: str) -> list[tuple[int, str]]:
    """The (step, sample) pairs in a samples.txt, in order."""
    _, *parts = HEADING.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(int(step), QUOTED.sub(r"\1", sample.removesuffix("\n"))) for step, sample in pairs]


def drop_samples(run: Path, after: int) -> None:
    """Takes out the samples of steps after that one, which a run that is resumed there writes again, and what a writer
    that was killed left of one."""
    path = run / SAMPLES
    if path.is_file():
        before = path.read_bytes()
        kept = [_written(step, text) for step, text in read_samples(before.decode("utf-8", "replace")) if step <= after]
        if (whole := "".join(kept).encode()) != before:
            write_atomically(path, whole)


def _written(step: int, text: str) -> str:
    quoted = LIKE_HEADING.sub(r">\1", text)
    return f"--- step {step} ---\n{quoted}\n"
