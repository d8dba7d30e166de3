"""Ablation: what a model loses when parts of it are switched off, with a standard error for every effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.components import Component, SetsLike, all_heads, check_apart, make_sets
from tinygpt_jax.lab.intervention import Choices, Gates
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import Data
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.result import OVER, Result
from tinygpt_jax.measure import check_memory
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import bootstrap_interval, mean_and_se


@dataclass(frozen=True, eq=False)
class Ablation(Result):
    """Effects of switching off N sets, each an array over the axes `over`: (layer, head), (layer,) or (set,)."""

    over: tuple[str, ...]
    names: tuple[str, ...]
    """what is switched off in each of the N sets, in order"""
    effect: np.ndarray
    """mean over examples of the metric with the set switched off, less the intact model's"""
    se: np.ndarray
    """standard error of `effect` over examples, paired with the intact run"""
    per_example: np.ndarray
    """(..., B) the effect on each example"""
    baseline: np.ndarray
    """(B,) the intact model's metric"""
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    """ends of the 95 % bootstrap interval of `effect`, where it was asked for"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("effect", "se", "low", "high"), (OVER,)),
        "per_example": (OVER, "example"),
        "baseline": ("example",),
    }
    DIFFERENCES = ("effect",)
    PLACES = {"set": "names"}

    def changes(self) -> Changes:
        return changes_of(self.definition, self.names, self.effect, self.se, self.per_example)

    order, closing = order_of, closing_of


@dataclass(frozen=True, eq=False)
class Pairs(Result):
    """Joint effects of P components two by two, all arrays (P, P) and symmetric; on the diagonal, each alone."""

    names: tuple[str, ...]
    joint: np.ndarray
    """effect of switching off both"""
    joint_se: np.ndarray
    interaction: np.ndarray
    """the joint effect less the sum of both alone, 0 on the diagonal: where it is for the worse (above 0 for a loss,
    below 0 for a log-probability) they stand in for each other"""
    interaction_se: np.ndarray
    baseline: np.ndarray
    """(B,) the intact model's metric"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("joint", "joint_se", "interaction", "interaction_se"), ("first", "second")),
        "baseline": ("example",),
    }
    DIFFERENCES = ("joint", "interaction")
    PLACES = {"first": "names", "second": "names"}

    def changes(self) -> Changes:
        first, second = np.triu_indices(len(self.names), 1)
        both = [f"{self.names[i]} with {self.names[j]}" for i, j in zip(first, second, strict=True)]
        values, errors = (array[first, second] for array in (self.interaction, self.interaction_se))
        return changes_of(self.definition, both, values, errors, what="interaction")

    order, closing = order_of, closing_of


@of_model
def ablate_sets(
    params: Params,
    data: Data,
    cfg: GPTConfig,
    sets: SetsLike = "heads",
    *,
    bootstrap: int = 0,
    **choices: Unpack[Choices],
) -> Ablation:
    """Switches off set after set and measures what changes, all in one compiled program.

        tg.ablate_sets(params, ids, cfg, ["0.2", ("1.0", "1.3"), "mlp1"], fill="zero").effect

    Args:
        data: ids (B, T), or `Examples` with targets and answers
        sets: `heads`, `mlps`, `layers`, `keep-one`, or a list of sets of components (`components.make_sets`)
        bootstrap: samples for a 95 % interval of each effect; 0 for none
        choices: fields of `Intervention`: fill, metric, positions, hold_patterns, freeze_norms, seed, …

    Raises:
        UserError: something does not fit the model, or there are fewer than two examples.
    """
    whole("bootstrap", bootstrap, 0, MOST, " of samples, 0 for none,")
    lab, chosen = make_lab(params, data, cfg, **choices), make_sets(sets, cfg)
    N, B = len(chosen.names), len(lab.examples.ids)
    check_memory(8 * bootstrap * (N + B), f"a bootstrap of {bootstrap:,} samples", "ask for fewer")
    values, baseline = measure(lab, chosen.gates)
    per_example = values - baseline
    effect, se = mean_and_se(per_example, lab.ordered)
    arrays = {"effect": effect, "se": se, "per_example": per_example}
    if bootstrap:
        ends = bootstrap_interval(per_example, bootstrap, lab.intervention.seed, lab.ordered)
        arrays |= zip(("low", "high"), ends, strict=True)
    described: dict[str, Any] = {n: getattr(chosen, n) for n in ("granularity", "component", "direction", "set")}
    flags = (f"interval of {bootstrap} bootstrap samples",) if bootstrap else ()
    sizes = {"layer": cfg.n_layer, "head": cfg.n_head, "set": len(chosen.names)}
    shape = [sizes[axis] for axis in chosen.over]
    return Ablation(
        lab.definition(flags=flags, **described),
        chosen.over,
        chosen.names,
        baseline=baseline,
        **{name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()},
    )


@of_model
def ablate_heads(
    params: Params, data: Data, cfg: GPTConfig, *, bootstrap: int = 0, **choices: Unpack[Choices]
) -> Ablation:
    """`ablate_sets` of every head alone: effect (L, H), se (L, H), per_example (L, H, B), baseline (B,)."""
    return ablate_sets(params, data, cfg, "heads", bootstrap=bootstrap, **choices)


@of_model
def ablate_pairs(
    params: Params,
    data: Data,
    cfg: GPTConfig,
    components: Sequence[Component] | None = None,
    **choices: Unpack[Choices],
) -> Pairs:
    """Switches off components two by two; default: all pairs of heads. Everything else is as in `ablate_sets`."""
    chosen = list(components) if components is not None else list(all_heads(check(cfg)))
    if len(chosen) < 2:
        raise UserError(f"{len(chosen)} component: a pair needs two; name more")
    lab, alone = make_lab(params, data, cfg, **choices), make_sets(chosen, cfg)
    check_apart(alone)
    first, second = np.triu_indices(len(chosen))  # the diagonal too: each alone
    values, baseline = measure(lab, Gates(*(np.minimum(a[first], a[second]) for a in alone.gates)))
    effects = values.astype(np.float64) - baseline
    single = effects[first == second]

    def symmetric(array: np.ndarray) -> np.ndarray:
        square = np.empty((len(chosen), len(chosen)))
        square[first, second] = square[second, first] = array
        return square

    excess = np.where((first == second)[:, None], 0, effects - single[first] - single[second])
    found = (*mean_and_se(effects, lab.ordered), *mean_and_se(excess, lab.ordered))
    joint, joint_se, interaction, interaction_se = map(symmetric, found)
    definition = lab.definition(granularity="pair", component=alone.component, direction="remove", set="all pairs")
    return Pairs(definition, alone.names, joint, joint_se, interaction, interaction_se, baseline)
