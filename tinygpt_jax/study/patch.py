"""Patching a run: a clean and a corrupted run side by side, and what the activations of one do in the other."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tinygpt_jax.arguments import takes
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.lab.analyses import USUAL, at_positions
from tinygpt_jax.lab.patch.attribution import attribution_patch
from tinygpt_jax.lab.patch.patching import patch
from tinygpt_jax.lab.patch.paths import path_patch
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import repeats
from tinygpt_jax.runs import Model
from tinygpt_jax.study.findings import collect, open_run
from tinygpt_jax.study.options import PatchOptions
from tinygpt_jax.text import IGNORE, Examples


class Pairs(NamedTuple):
    """Texts of the user's own, one entry a pair."""

    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    answer: tuple[str, ...]
    """what should follow the clean text"""
    wrong: tuple[str, ...]
    """what it is set against; empty for nothing"""


@takes(PatchOptions)
def patch_run(asked: PatchOptions) -> dict[str, Result]:
    """Patches activations of a clean run into a corrupted one, or the other way round, on a task of known answers.

        tg.patch_run("runs/book", of=["heads", "paths"])["patch-heads-denoise-loss"].normalised      # (L, H)

    Without texts the clean run reads random tokens of which a part comes twice, and the corrupted run the same tokens
    but for the first occurrence, so that the answer is no longer known. `tg.patch`, `tg.attribution_patch` and
    `tg.path_patch` do so to any parameters on any tokens, and save nothing. The arguments are the fields of
    `study.options.PatchOptions`; `tinygpt patch --help` says what each does.

    Returns:
        The results by name, in the order they were found.

    Raises:
        UserError: the run or the folder cannot be had, texts do not fit each other, or there is nothing to patch.
    """
    texts = Pairs(*map(tuple, (asked.clean, asked.corrupted, asked.answer, asked.wrong)))
    of = asked.of or ("heads",)
    subject = open_run(asked)
    model = subject.model
    clean, corrupted = of_texts(texts, model) if any(texts) else of_repeats(model, asked.examples, asked.seed)
    runs = (model.params, clean, corrupted, model.cfg)
    how: dict[str, Any] = {
        "direction": asked.direction,
        "metric": asked.metric,
        "positions": tuple(asked.positions) or None,
    }
    measures: dict[str, Callable[[], Result]] = {
        "heads": lambda: patch(*runs, "z", ("layer", "head"), **how),
        "positions": lambda: patch(*runs, "resid_pre", ("layer", "position"), **how),
        "attribution": lambda: attribution_patch(*runs, by=("layer", "head"), **how),
        "paths": lambda: path_patch(*runs, **how),
    }
    if unknown := [name for name in of if name not in measures]:
        raise UserError(f"of has {unknown[0]!r}{nearest(str(unknown[0]), measures)}")
    ending = file_ending(texts, asked)
    work = {f"patch-{name}-{ending}": measures[name] for name in of}
    if len(texts.clean) == 1:
        work = {name: partial(_of_one_pair, measure) for name, measure in work.items()}
    return collect(asked, subject, work)


def of_repeats(model: Model, n: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Random tokens of which a part comes twice, and ids of the same without the first occurrence."""
    if n < 2:
        raise UserError(f"examples is {n}: an error needs two; ask for more")
    return repeats(model.cfg, n, seed), repeats(model.cfg, n, seed, corrupted=True).ids


def of_texts(texts: Pairs, model: Model) -> tuple[Examples, np.ndarray]:
    """The examples of clean texts, whose only target is the answer, and the ids of the corrupted ones. A single pair is
    there twice, since a lab takes two examples or more; `_of_one_pair` undoes it.

    Raises:
        UserError: a text is missing, an answer is not one token, or a pair does not have as many tokens as another.
    """
    counts = {name: len(given) for name, given in texts._asdict().items() if given or name != "wrong"}
    if len(set(counts.values())) > 1 or not texts.clean:
        raise UserError(
            f"texts are {', '.join(f'{n} {name}' for name, n in counts.items())}: "
            "give each clean text a corrupted one and an answer"
        )
    pairs = [*zip(texts.clean, texts.corrupted, texts.answer, strict=True)]
    if twice := [pair for pair in pairs if pairs.count(pair) > 1]:
        raise UserError(f"texts hold the pair {twice[0]!r} twice, which is no second example: give it once")
    encode = model.tokenizer.encode
    ids = {name: [encode(text) for text in getattr(texts, name)] for name in ("clean", "corrupted")}
    length = len(ids["clean"][0])
    for name, rows in ids.items():
        for text, row in zip(getattr(texts, name), rows, strict=True):
            if len(row) != length or not length:
                raise UserError(
                    f"{name} text {text!r} has {len(row)} tokens, clean text {texts.clean[0]!r} has {length}: "
                    "reword one, so that all have as many"
                )
    answers, wrong = (_one_token(name, getattr(texts, name), model) for name in ("answer", "wrong"))
    B = max(len(answers), 2)
    clean, corrupted = (np.resize(np.asarray(rows, np.int32), (B, length)) for rows in ids.values())
    answers = np.resize(answers, (B, 1))
    targets = np.full((B, length), IGNORE, np.int32)
    targets[:, -1:] = answers
    against = np.resize(wrong, (B, 1)) if texts.wrong else None
    return Examples(clean, targets, answers, against, np.full(B, length - 1, np.int32)), corrupted


def _one_token(name: str, texts: Sequence[str], model: Model) -> np.ndarray:
    """(B,) the id of each text; raises UserError where one is not a single token."""
    rows = [model.tokenizer.encode(text) for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) != 1:
            raise UserError(f"{name} {text!r} is {len(row)} tokens: name the one token that follows the text")
    return np.array([row[0] for row in rows], np.int32)


def _of_one_pair(measure: Callable[[], Result]) -> Result:
    """The result of a pair that was there twice as that of one example, which has no error."""
    result = measure()
    changed: dict[str, object] = {"definition": dataclasses.replace(result.definition, examples=1)}
    for name in result.AXES:
        array, axes = getattr(result, name), result.axes(name)
        if array is not None and name.split("_")[-1] == "se":
            changed[name] = np.full(np.shape(array), np.nan)
        elif "example" in axes:
            changed[name] = np.take(array, [0], axes.index("example"))
    return dataclasses.replace(result, **changed)  # type: ignore[arg-type]


def file_ending(texts: Pairs, asked: PatchOptions) -> str:
    """What follows the kind in a result's name, so that results of other choices stay."""
    words = [asked.direction, asked.metric, *[at_positions(asked.positions)] * bool(asked.positions)]
    if any(texts):
        return "-".join([*words, f"texts{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]}"])
    words += [f"examples{asked.examples}"] * (asked.examples != USUAL) + [f"seed{asked.seed}"] * bool(asked.seed)
    return "-".join(words)
