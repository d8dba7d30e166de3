"""What a model loses when parts of it are switched off: effects, pairs, Shapley values, gates, pruning."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np

from tinygpt_jax.arguments import takes
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.files import check_folder, user_path
from tinygpt_jax.lab.analyses import ABLATED, Ablated, Task, file_ending, shortened
from tinygpt_jax.lab.components import head_name, make_sets
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.remove.ablate import ablate_heads, ablate_pairs, ablate_sets
from tinygpt_jax.lab.remove.curve import least_first, pruning_curve
from tinygpt_jax.lab.remove.gates import learn_gates
from tinygpt_jax.lab.remove.importance import head_importance
from tinygpt_jax.lab.remove.prune import kept_heads, prune
from tinygpt_jax.lab.remove.prune import save_pruned as save_pruned_run
from tinygpt_jax.lab.remove.shapley import shapley, shapley_by_layer
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import halves
from tinygpt_jax.params import Params
from tinygpt_jax.runs import load, read_config
from tinygpt_jax.study.findings import (
    Subject,
    Work,
    collect,
    count_passes,
    flagged,
    measure_checkpoints,
    open_text,
)
from tinygpt_jax.study.options import AblateOptions
from tinygpt_jax.text import Examples
from tinygpt_jax.training.claims import check_out

IGNORED: Mapping[str, tuple[str, ...]] = {
    "gates": ("metric", "positions", "hold_patterns", "freeze_norms"),
    "pruning": ("metric",),
    "save_pruned": ("positions", "hold_patterns", "freeze_norms"),
}
"""Choices that make no difference to an analysis."""


@takes(AblateOptions)
def ablate(asked: AblateOptions) -> dict[str, Result]:
    """Switches parts of a run's model off and measures what it loses, with a standard error for every effect.

        tg.ablate("runs/book", of=["heads", "pairs"])["heads-mean-loss"].effect      # (L, H)

    `tg.ablate_sets` and `tg.ablate_heads` do this for any parameters and tokens, and save nothing.

    The arguments are the fields of `study.options.AblateOptions`; `tinygpt ablate --help` says what each does.

    Returns:
        The results by name, in the order they were found.

    Raises:
        UserError: the run or the text cannot be read, `out` is no folder, the model has no such component, or a choice
            makes no difference to what is measured.
    """
    choices = {name: getattr(asked, name) for name in ("fill", "metric", "hold_patterns", "freeze_norms")}
    how: dict[str, Any] = {**choices, "positions": tuple(asked.positions) or None, "seed": asked.seed}
    how["progress"] = count_passes(asked.tell)
    _check_choices([*asked.of, *["save_pruned"] * bool(asked.save_pruned)], how)
    if asked.on not in get_args(Task):
        raise UserError(f"on is {asked.on!r}: must be one of {', '.join(get_args(Task))}")
    if asked.save_pruned and not asked.of and not asked.sets:
        raise UserError("save_pruned needs the heads to prune: name them as one set, as in --sets 0.2+1.3")
    subject = open_text(asked)
    if asked.on == "repeats":
        subject.examples = subject.repeats(asked.seed)
    kept = _heads_kept(subject.model.cfg, read_config(subject.run).model, asked) if asked.save_pruned else None
    where: dict[str, Any] = {"positions": asked.positions, "windows": asked.windows, "seed": asked.seed}
    ending = file_ending(on=asked.on, sources=subject.text, **choices, **where)
    of = asked.of or (() if asked.sets else ABLATED[:1])
    work = effects(subject, of, ending, how, asked)
    over = measure_checkpoints(
        subject, lambda p, cfg: ablate_heads(p, subject.examples, cfg, **how), ["effect"], f"over-{ending}"
    )
    results = collect(asked, subject, work, over if asked.checkpoints else ())
    if kept is not None:
        _save_pruned(subject, kept, asked)
    return results


def effects(
    subject: Subject,
    of: Sequence[Ablated],
    ending: str,
    how: dict[str, Any],
    asked: AblateOptions = AblateOptions(),  # noqa: B008  # frozen
) -> Work:
    """The measurements of the verb `ablate`, under the names of their files; `how` are choices of an intervention."""
    (params, cfg, _), examples = subject.model, subject.examples
    work: dict[str, Callable[[], Result]] = {
        "pairs": lambda: ablate_pairs(params, examples, cfg, **how),
        "shapley": lambda: shapley(params, examples, cfg, **how),
        "shapley-by-layer": lambda: shapley_by_layer(params, examples, cfg, **how),
        "importance": lambda: head_importance(params, examples, cfg, **how),
        "gates": lambda: _gates(params, examples, cfg, how, asked.strengths),
        "pruning": lambda: _pruning(params, examples, cfg, how),
    }
    for family in ("heads", "mlps", "layers", "keep-one"):
        work[family] = partial(ablate_sets, params, examples, cfg, family, bootstrap=asked.bootstrap, **how)
    if unknown := [name for name in of if name not in work]:
        raise UserError(f"of has {unknown[0]!r}{nearest(unknown[0], work)}")
    named = {f"{name}-{ending}": work[name] for name in of}
    if asked.sets:
        name, sets = shortened("-".join(["sets", *asked.sets]), 80), split(asked.sets)
        named[f"{name}-{ending}"] = partial(ablate_sets, params, examples, cfg, sets, bootstrap=asked.bootstrap, **how)
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


def _heads_kept(cfg: GPTConfig, own: GPTConfig, asked: AblateOptions) -> np.ndarray:
    """Which heads stay, (L, H) bool, of a run that has those of `own`; raises UserError where the model cannot be
    pruned or saved so."""
    check_out(user_path(asked.save_pruned), asked.force)
    check_folder(asked.save_pruned, "save_pruned")
    sets, fill = asked.sets, asked.fill
    if len(sets) != 1:
        raise UserError(f"save_pruned needs one set, {len(sets)} are given: join heads by +, as in --sets 0.2+1.3")
    if fill not in ("zero", "mean"):
        raise UserError(f"fill is {fill!r}: a pruned model can hold zero or the mean in a head's place")
    gates = make_sets(split(sets), cfg).gates
    if (gates.mlps != 1).any():
        raise UserError(f"sets is {sets[0]!r}: only heads can be pruned, leave the MLPs out")
    if (gone := (gates.heads[0] == 0) & ~kept_heads(own)).any():
        heads = ", ".join(head_name(*head) for head in np.argwhere(gone).tolist())
        raise UserError(f"sets is {sets[0]!r}: {heads} is pruned already; name heads that are left")
    return gates.heads[0] == 1


def _save_pruned(subject: Subject, kept: np.ndarray, asked: AblateOptions) -> None:
    params, cfg, _ = subject.model
    means = np.asarray(mean_fill(params, subject.examples.ids, cfg).heads)[:, 0, :, 0] if asked.fill == "mean" else None
    smaller = prune(load(subject.run), kept, means)
    where = save_pruned_run(smaller, asked.save_pruned, subject.run, kept, {"fill": asked.fill}, asked.force)
    subject.tell(f"pruned model in {where}: {smaller.cfg.head_counts} heads left in the layers; tinygpt eval {where}")
