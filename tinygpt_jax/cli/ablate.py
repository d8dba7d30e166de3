"""`tinygpt ablate`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.common import Measuring, Switch, arguments, parse, tell
from tinygpt_jax.cli.results import print_results, shown
from tinygpt_jax.lab.analyses import STRENGTHS, Ablated, FillName, MetricName, Task


@dataclass(frozen=True)
class Flags(Measuring):
    """Switch parts of a model off and measure what it loses, with a standard error for every effect.

    Examples:
      tinygpt ablate                                      every head of the newest run, each alone
      tinygpt ablate runs/book --of pairs shapley-by-layer --fill zero
      tinygpt ablate runs/book --sets 0.2+1.3 mlp1 --metric kl
      tinygpt ablate runs/book --of gates pruning importance
      tinygpt ablate runs/book --sets 0.2+1.3 --save-pruned runs/smaller
    """

    of: tuple[Ablated, ...] = ()
    """What to measure; left out, heads, or only the --sets if there are any."""
    sets: tuple[str, ...] = ()
    """Sets to switch off: components joined by +, where 0.2 is head 2 of layer 0, or mlp1, heads1, layer1."""
    fill: FillName = "mean"
    """What replaces the output of a component that is switched off."""
    metric: MetricName = "loss"
    """Mean loss, KL divergence from the intact model, or log-probability of the answer (of --on repeats)."""
    on: Task = "text"
    """Windows of text, or random tokens of which a part is repeated."""
    positions: tuple[int, ...] = ()
    """The positions at which it is switched off, from 0; left out, all."""
    hold_patterns: Switch = False
    """Keep later attention patterns as in the intact model."""
    freeze_norms: Switch = False
    """Keep the norms' scales as in the intact model."""
    bootstrap: int = 0
    """Bootstrap samples for a 95 % interval of each effect; 0 for no interval."""
    strengths: tuple[float, ...] = STRENGTHS
    """For gates: penalties per open head, nats per token."""
    save_pruned: str = ""
    """Write a run directory of this name: the model without the heads in --sets, which must be one set."""
    force: Switch = False
    """Replace the run at --save-pruned."""


def run(args: Sequence[str]) -> int:
    """Ablates, and prints each result as it is found."""
    flags = parse("ablate", Flags, args)
    from tinygpt_jax.study.ablate import ablate

    return print_results(ablate(**arguments(flags), tell=tell, on_result=shown(flags.json)), flags.json)
