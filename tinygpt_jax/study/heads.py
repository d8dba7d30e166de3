"""What `tinygpt heads` and `tinygpt ablate` do with a run: measure, save, draw and say it, one result at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinygpt_jax.cli.options import Ablate, Heads, Lab
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import remove
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.read.lens import attention_maps, logit_attribution, logit_lens
from tinygpt_jax.lab.read.overtime import over_training
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.remove.ablate import ablate, ablate_heads, ablate_pairs
from tinygpt_jax.lab.remove.curve import least_first, pruning_curve
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.importance import head_importance
from tinygpt_jax.lab.remove.prune import prune, save_pruned
from tinygpt_jax.lab.remove.shapley import shapley, shapley_by_layer
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import USUAL, halves, repeats, run_windows
from tinygpt_jax.params import Params
from tinygpt_jax.runs import Model, load, newest_run, read_record
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.text import Examples
from tinygpt_jax.training.job import check_out

Tell = Callable[[str], None]
FOLLOWED = ("previous_token", "induction", "copying")
"""Scores that are followed over a training."""
REPEATS = "on random tokens that repeat"
MOST_ATTENTION = 2**20
"""Numbers in the attention maps of a text, of all heads: those of a whole window may take gigabytes."""


class Finding(NamedTuple):
    """One result, saved."""

    name: str
    result: Result
    files: list[Path]


class Subject(NamedTuple):
    """The run that is examined."""

    run: Path
    model: Model
    examples: Examples
    out: Path
    figures: bool


def examine_heads(options: Heads, tell: Tell) -> Iterator[Finding]:
    """Scores on text and on repeats, logit lens, logit attribution and attention maps, each saved as it is found."""
    subject = _subject(options, tell)
    (params, cfg, tokenizer), examples = subject.model, subject.examples
    again = repeats(cfg, options.windows or USUAL, options.seed)
    ids = tokenizer.encode(options.prompt) if options.prompt else examples.ids[0]
    if len(ids) > cfg.block_size:
        tell(f"the prompt has {len(ids)} tokens: the last {cfg.block_size}, all that the model sees at once, are drawn")
    most = max(math.isqrt(MOST_ATTENTION // (cfg.n_layer * cfg.n_head)), 1)
    if most < min(len(ids), cfg.block_size):
        tell(f"attention is drawn of {most} tokens, so that its files do not grow beyond {MOST_ATTENTION:,} numbers")
    ids = np.asarray(ids)[-cfg.block_size :][-most:]
    tokens = [tokenizer.decode([int(i)]) for i in ids]
    work: dict[str, Callable[[], Result]] = {
        "scores-repeats": lambda: _flagged(head_scores(params, again, cfg), REPEATS),
        "scores-text": lambda: _flagged(head_scores(params, examples, cfg), "on text"),
        "lens": lambda: logit_lens(params, examples, cfg),
        "attribution": lambda: logit_attribution(params, examples, cfg),
        "attention": lambda: attention_maps(params, ids, cfg, tokens),
    }
    yield from _found(work, subject, tell)
    if options.checkpoints:
        yield from _followed(subject, tell, lambda p, c: head_scores(p, again, c), FOLLOWED, "over-repeats")


def examine_ablations(options: Ablate, tell: Tell) -> Iterator[Finding]:
    """What was asked for, each saved as it is found; the pruned model last."""
    if not options.of and not options.sets and options.save_pruned:
        raise UserError("save_pruned needs the heads to prune: name them as one set, as in --sets 0.2+1.3")
    _check_choices(options)
    subject = _subject(options, tell)
    params, cfg, _ = subject.model
    if "pairs" in options.of and cfg.n_layer * cfg.n_head < 2:
        raise UserError("of is 'pairs', but the model has one head: leave it out")
    examples = repeats(cfg, options.windows or USUAL, options.seed) if options.on == "repeats" else subject.examples
    how: dict[str, Any] = {
        "fill": options.fill,
        "metric": options.metric,
        "positions": options.positions or None,
        "hold_patterns": options.hold_patterns,
        "freeze_norms": options.freeze_norms,
        "seed": options.seed,
        "progress": _progress(tell),
    }
    sets = [tuple(one.split("+")) for one in options.sets]
    pruned = _heads_to_prune(options, cfg, sets) if options.save_pruned else None
    work: dict[str, Callable[[], Result]] = {
        "heads": lambda: ablate_heads(params, examples, cfg, bootstrap=options.bootstrap, **how),
        "pairs": lambda: ablate_pairs(params, examples, cfg, **how),
        "shapley": lambda: shapley(params, examples, cfg, **how),
        "shapley-by-layer": lambda: shapley_by_layer(params, examples, cfg, **how),
        "importance": lambda: head_importance(params, examples, cfg, **how),
        "gates": lambda: _gates(params, examples, cfg, options),
        "pruning": lambda: _pruning(params, examples, cfg, how),
        "sets": lambda: ablate(params, examples, cfg, sets, bootstrap=options.bootstrap, **how),
    }
    for family in ("mlps", "layers", "keep-one"):
        work[family] = partial(ablate, params, examples, cfg, family, bootstrap=options.bootstrap, **how)
    asked = [*(options.of or ([] if sets else ["heads"])), *["sets"] * bool(sets)]
    ending = stem(options)
    names = {"sets": "-".join(["sets", *options.sets])[:80]}
    yield from _found({f"{names.get(name, name)}-{ending}": work[name] for name in asked}, subject, tell)
    if options.checkpoints:
        yield from _followed(
            subject, tell, lambda p, c: ablate_heads(p, examples, c, **how), ("effect",), f"over-{ending}"
        )
    if pruned is not None:
        fill = np.asarray(mean_fill(params, examples.ids, cfg).heads)[:, 0, :, 0] if options.fill == "mean" else None
        smaller = prune(subject.model, pruned, fill)
        facts = {"fill": options.fill}
        where = save_pruned(smaller, options.save_pruned, subject.run, pruned, facts, options.force)
        tell(f"pruned model in {where}: {smaller.cfg.heads} heads left in the layers; tinygpt eval {where}")


def _check_choices(options: Ablate) -> None:
    """Raises UserError for a choice that what is asked for would not heed."""
    plain = Ablate()
    learned = {"gates": ("metric", "positions", "hold_patterns", "freeze_norms"), "pruning": ("metric",)}
    unheeded: dict[str, tuple[str, ...]] = {name: learned[name] for name in options.of if name in learned}
    if options.save_pruned:
        unheeded["save_pruned"] = ("positions", "hold_patterns", "freeze_norms")
    for name, choices in unheeded.items():
        for choice in choices:
            if getattr(options, choice) != getattr(plain, choice):
                raise UserError(f"{choice} is {getattr(options, choice)!r}, which {name} does not heed: leave it out")


def stem(options: Ablate) -> str:
    """Names a result by the choices that it was measured with, so that those of others stay."""
    words = [options.fill, options.metric, *["repeats"] * (options.on == "repeats")]
    words += ["held"] * options.hold_patterns + ["frozen"] * options.freeze_norms
    words += [f"at{'_'.join(map(str, options.positions))}"[:40]] * bool(options.positions)
    words += [Path(source).stem for source in options.data]
    if options.include or options.exclude:  # of which any number of any length may be given
        patterns = json.dumps([options.include, options.exclude]).encode()
        words.append(f"patterns{hashlib.sha256(patterns).hexdigest()[:8]}")
    words += [f"windows{options.windows}"] * (options.windows not in (None, USUAL))
    return "-".join(words + [f"seed{options.seed}"] * bool(options.seed))


def _subject(options: Lab, tell: Tell) -> Subject:
    use_compilation_cache()
    run = Path(options.run or newest_run())
    out = Path(options.out or run / "heads")
    if out.exists() and not out.is_dir():
        raise UserError(f"out is {str(out)!r}: that is a file; name a folder")
    model = load(run)
    if model.cfg.heads:
        source = read_record(run).get("pruned", {}).get("from", "the run it was pruned from")
        raise UserError(f"{run} was pruned, and pruned models are not opened: examine {source}")
    examples = run_windows(run, model, options.windows, options.sources, tell)
    if len(examples.ids) < USUAL and options.windows is None:
        tell(f"{len(examples.ids)} windows, all that the text has room for ({USUAL} are usual)")
    figures = options.figures and find_spec("matplotlib") is not None
    if options.figures and not figures:
        tell("no figures, since matplotlib is missing: pip install 'tinygpt_jax[plot]', then tinygpt plot")
    return Subject(run, model, examples, out, figures)


def _found(work: dict[str, Callable[[], Result]], subject: Subject, tell: Tell) -> Iterator[Finding]:
    for name, measure in work.items():
        began = time.perf_counter()
        result = measure()
        tell(f"{name}: {time.perf_counter() - began:.1f} s, compilation included")
        yield saved(name, result, subject.out, subject.figures)


def saved(name: str, result: Result, out: Path, figures: bool, theme: str = "light") -> Finding:
    """Saves a result under its name and, with `figures`, draws it; figures of an earlier one of that name go."""
    files = list(result.save(out / name))
    for ending in (".png", ".svg"):
        figure = out / f"{name}{ending}"
        if not (figures and figure.is_symlink()):  # what a link leads to is drawn anew
            remove(figure)
    if figures:
        from tinygpt_jax.figures.registry import draw
        from tinygpt_jax.figures.style import save_figure

        files += save_figure(draw(result, theme=theme), out / name)
    return Finding(name, result, files)


def _followed(
    subject: Subject,
    tell: Tell,
    measure: Callable[[Params, GPTConfig], Result],
    fields: tuple[str, ...],
    stem: str,
) -> Iterator[Finding]:
    """Arrays over the training, and an animation of each."""
    courses = over_training(subject.run, measure, fields, progress=_progress(tell))
    for field, course in courses.items():
        found = saved(f"{stem}-{field}", course, subject.out, subject.figures)
        if subject.figures:
            from tinygpt_jax.figures.over_training import animation

            found.files.append(animation(course, subject.out / f"{stem}-{field}.gif"))
        yield found


def _gates(params: Params, examples: Examples, cfg: GPTConfig, options: Ablate) -> Result:
    learned, scored = halves(examples)
    return learn_gates(params, learned, cfg, options.strengths, fill=options.fill, seeds=(options.seed,), scored=scored)


def _pruning(params: Params, examples: Examples, cfg: GPTConfig, how: dict[str, Any]) -> Result:
    """The curve of the order of effects: measured on one half of the examples, drawn on the other."""
    chosen, drawn = halves(examples)
    how = {**how, "metric": "loss"}
    order = least_first(ablate_heads(params, chosen, cfg, **how).effect)
    curve = pruning_curve(params, drawn, cfg, order, **how)
    return _flagged(curve, f"what hurts the loss least first, on {len(chosen.ids)} other windows")


def _flagged(result: Result, flag: str) -> Result:
    """The same result, whose definition says one thing more."""
    definition = dataclasses.replace(result.definition, flags=(*result.definition.flags, flag))
    return dataclasses.replace(result, definition=definition)


def _heads_to_prune(options: Ablate, cfg: GPTConfig, sets: list[tuple[str, ...]]) -> np.ndarray:
    """Which heads stay, (L, H) bool; also that there is a place for the model, before anything is measured."""
    check_out(Path(options.save_pruned), options.force)
    if len(sets) != 1:
        raise UserError(f"save_pruned needs one set, {len(sets)} are given: join heads by +, as in --sets 0.2+1.3")
    if options.fill not in ("zero", "mean"):
        raise UserError(f"fill is {options.fill!r}: a pruned model can hold zero or the mean in a head's place")
    gates = make_sets(sets, cfg).gates
    if (gates.mlps != 1).any():
        raise UserError(f"sets is {options.sets[0]!r}: only heads can be pruned, leave the MLPs out")
    return gates.heads[0] == 1


def _progress(tell: Tell) -> Callable[[int, int], None]:
    """Tells of a long measurement every few seconds."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5 and 0 < done < total:
            last = time.monotonic()
            tell(f"  {done:,} of {total:,} passes")

    return progress
