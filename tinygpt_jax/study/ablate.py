"""What a model loses when parts of it are switched off: effects, pairs, Shapley values, gates, pruning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.lab.analyses import ABLATED, STRENGTHS, Ablated, FillName, MetricName, Task, file_ending
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.remove.ablate import ablate_heads, ablate_pairs, ablate_sets
from tinygpt_jax.lab.remove.curve import least_first, pruning_curve
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.importance import head_importance
from tinygpt_jax.lab.remove.prune import prune
from tinygpt_jax.lab.remove.prune import save_pruned as save_pruned_run
from tinygpt_jax.lab.remove.shapley import shapley, shapley_by_layer
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import halves
from tinygpt_jax.params import Params
from tinygpt_jax.runs import check_out, load
from tinygpt_jax.study.findings import (
    Finding,
    Names,
    OnResult,
    Subject,
    Tell,
    Work,
    collect,
    count_passes,
    flagged,
    measure_checkpoints,
    measure_each,
    open_run,
    several,
    silent,
    sources,
)
from tinygpt_jax.text import Examples

IGNORED: Mapping[str, tuple[str, ...]] = {
    "gates": ("metric", "positions", "hold_patterns", "freeze_norms"),
    "pruning": ("metric",),
    "save_pruned": ("positions", "hold_patterns", "freeze_norms"),
}
"""Choices that make no difference to an analysis."""


def ablate(
    run: str | Path = "",
    *,
    of: Sequence[Ablated] = (),
    sets: Sequence[str] = (),
    fill: FillName = "mean",
    metric: MetricName = "loss",
    on: Task = "text",
    positions: Sequence[int] = (),
    hold_patterns: bool = False,
    freeze_norms: bool = False,
    bootstrap: int = 0,
    strengths: Sequence[float] = STRENGTHS,
    save_pruned: str | Path = "",
    force: bool = False,
    data: Names = (),
    include: Names = (),
    exclude: Names = (),
    windows: int | None = None,
    checkpoints: bool = False,
    seed: int = 0,
    out: str | Path = "",
    figures: bool = True,
    tell: Tell = silent,
    on_result: OnResult = silent,
) -> dict[str, Result]:
    """Switches parts of a run's model off and measures what it loses, with a standard error for every effect.

        tg.ablate("runs/book", of=["heads", "pairs"])["heads-mean-loss"].effect      # (L, H)

    `tg.ablate_sets` and `tg.ablate_heads` do this for any parameters and tokens, and save nothing.

    Args:
        run: a run directory; default: the newest under runs/
        of: what to measure; default: `heads`, or only the sets if there are any
        sets: sets to switch off, components joined by +: "0.2+1.3", where 0.2 is head 2 of layer 0, "mlp1", "heads1",
            "layer1"
        fill: what replaces the output of a component that is switched off
        metric: mean loss, KL divergence from the intact model, or log-probability of the answer (of `on="repeats"`)
        on: windows of text, or random tokens of which a part is repeated
        positions: the positions at which it is switched off, from 0; default: all
        hold_patterns: keep later attention patterns as in the intact model
        freeze_norms: keep the norms' scales as in the intact model
        bootstrap: samples for a 95 % interval of each effect; 0 for no interval
        strengths: for gates, penalties per open head, nats per token
        save_pruned: a run directory for the model without the heads of the one set in `sets`
        force: replace the run at `save_pruned`
        data, include, exclude, windows, checkpoints, out, figures, tell, on_result: as in `tg.heads`
        seed: for everything random

    Returns:
        The results by name, in the order they were found.

    Raises:
        UserError: the run or the text cannot be read, `out` is no folder, the model has no such component, or a choice
            makes no difference to what is measured.
    """
    of, sets, text = several(of), several(sets), sources(data, include, exclude)
    how: dict[str, Any] = {
        "fill": fill,
        "metric": metric,
        "positions": tuple(positions) or None,
        "hold_patterns": hold_patterns,
        "freeze_norms": freeze_norms,
        "seed": seed,
        "progress": count_passes(tell),
    }
    _check_choices([*of, *["save_pruned"] * bool(save_pruned)], how)
    if on not in get_args(Task):
        raise UserError(f"on is {on!r}: must be one of {', '.join(get_args(Task))}")
    if save_pruned and not of and not sets:
        raise UserError("save_pruned needs the heads to prune: name them as one set, as in --sets 0.2+1.3")
    subject = open_run(run, text, windows, out, figures, tell)
    if on == "repeats":
        subject = subject._replace(examples=subject.repeats(seed))
    kept = _heads_kept(subject.model.cfg, sets, fill, str(save_pruned), force) if save_pruned else None
    ending = file_ending(
        fill, metric, on, hold_patterns, freeze_norms, positions=positions, sources=text, windows=windows, seed=seed
    )
    asked = of or (() if sets else ABLATED[:1])
    work = effects(subject, asked, ending, how, sets=sets, bootstrap=bootstrap, strengths=strengths)
    findings: Iterable[Finding] = measure_each(work, subject)
    if checkpoints:
        over = measure_checkpoints(
            subject, lambda p, cfg: ablate_heads(p, subject.examples, cfg, **how), ["effect"], f"over-{ending}"
        )
        findings = chain(findings, over)
    results = collect(findings, on_result)
    if kept is not None:
        _save_pruned(subject, kept, fill, str(save_pruned), force)
    return results


def effects(
    subject: Subject,
    of: Sequence[Ablated],
    ending: str,
    how: dict[str, Any],
    *,
    sets: Sequence[str] = (),
    bootstrap: int = 0,
    strengths: Sequence[float] = STRENGTHS,
) -> Work:
    """The measurements of the verb `ablate`, under the names of their files; `how` are choices of an intervention."""
    (params, cfg, _), examples = subject.model, subject.examples
    if "pairs" in of and cfg.n_layer * cfg.n_head < 2:
        raise UserError("of has 'pairs', but the model has one head: leave it out")
    work: dict[str, Callable[[], Result]] = {
        "pairs": lambda: ablate_pairs(params, examples, cfg, **how),
        "shapley": lambda: shapley(params, examples, cfg, **how),
        "shapley-by-layer": lambda: shapley_by_layer(params, examples, cfg, **how),
        "importance": lambda: head_importance(params, examples, cfg, **how),
        "gates": lambda: _gates(params, examples, cfg, how, strengths),
        "pruning": lambda: _pruning(params, examples, cfg, how),
    }
    for family in ("heads", "mlps", "layers", "keep-one"):
        work[family] = partial(ablate_sets, params, examples, cfg, family, bootstrap=bootstrap, **how)
    if unknown := [name for name in of if name not in work]:
        raise UserError(f"of has {unknown[0]!r}{nearest(unknown[0], work)}")
    named = {f"{name}-{ending}": work[name] for name in of}
    if sets:
        name = "-".join(["sets", *sets])[:80]
        named[f"{name}-{ending}"] = partial(ablate_sets, params, examples, cfg, split(sets), bootstrap=bootstrap, **how)
    return named


def _check_choices(asked: Sequence[str], how: dict[str, Any]) -> None:
    """Raises UserError for a choice that would make no difference."""
    for name in asked:
        for choice in IGNORED.get(name, ()):
            if how[choice] not in (None, False, "loss"):
                raise UserError(f"{choice} is {how[choice]!r}, which makes no difference to {name}: leave it out")


def split(sets: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets as they are typed, "0.2+mlp1", as tuples of components."""
    return [tuple(one.split("+")) for one in sets]


def _gates(
    params: Params, examples: Examples, cfg: GPTConfig, how: dict[str, Any], strengths: Sequence[float]
) -> Result:
    learned, scored = halves(examples)
    return learn_gates(
        params, learned, cfg, strengths, fill=how.get("fill", "mean"), seeds=(how.get("seed", 0),), scored=scored
    )


def _pruning(params: Params, examples: Examples, cfg: GPTConfig, how: dict[str, Any]) -> Result:
    """The loss as heads are removed in the order of their effects, measured on the other half of the examples."""
    chosen, drawn = halves(examples)
    how = {**how, "metric": "loss"}
    order = least_first(ablate_heads(params, chosen, cfg, **how).effect)
    curve = pruning_curve(params, drawn, cfg, order, **how)
    return flagged(curve, f"what hurts the loss least first, on {len(chosen.ids)} other windows")


def _heads_kept(cfg: GPTConfig, sets: Sequence[str], fill: str, run: str, force: bool) -> np.ndarray:
    """Which heads stay, (L, H) bool; raises UserError where the model cannot be pruned or saved so."""
    check_out(Path(run), force)
    if len(sets) != 1:
        raise UserError(f"save_pruned needs one set, {len(sets)} are given: join heads by +, as in --sets 0.2+1.3")
    if fill not in ("zero", "mean"):
        raise UserError(f"fill is {fill!r}: a pruned model can hold zero or the mean in a head's place")
    gates = make_sets(split(sets), cfg).gates
    if (gates.mlps != 1).any():
        raise UserError(f"sets is {sets[0]!r}: only heads can be pruned, leave the MLPs out")
    return gates.heads[0] == 1


def _save_pruned(subject: Subject, kept: np.ndarray, fill: str, run: str, force: bool) -> None:
    params, cfg, _ = subject.model
    means = np.asarray(mean_fill(params, subject.examples.ids, cfg).heads)[:, 0, :, 0] if fill == "mean" else None
    smaller = prune(load(subject.run), kept, means)
    where = save_pruned_run(smaller, run, subject.run, kept, {"fill": fill}, force)
    subject.tell(f"pruned model in {where}: {smaller.cfg.head_counts} heads left in the layers; tinygpt eval {where}")
