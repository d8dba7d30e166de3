"""The options of the verbs that open a run, each said once: arguments in Python, flags of the command.

Nothing heavy is imported, so that the help needs no JAX.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Fixed, FlagCreatePairsOff, Positional, Suppress, arg

from tinygpt_jax.lab.analyses import (
    STRENGTHS,
    USUAL,
    Ablated,
    FillName,
    MetricName,
    PatchDirection,
    Patched,
    PatchMetric,
    Task,
)

Switch = FlagCreatePairsOff[bool]
"""A flag that can only be turned on; others come in pairs, --x and --no-x, since a preset or file may set them."""
if TYPE_CHECKING:  # what Python may give; on the command line it is all text
    Name = str | Path
    Names = str | Path | Sequence[str | Path]
    Texts = str | Sequence[str]
else:
    Name, Names, Texts = str, tuple[str, ...], tuple[str, ...]
Run = Annotated[Positional[Name], arg(help="The run directory; left out, the newest under runs/.")]
Windows = Annotated[
    int | None,
    arg(help="Windows of block_size tokens, spread evenly over the text, to average over; left out, 64 or what fits."),
]
Tell = Annotated[Callable[[str], None], Fixed, Suppress]
"""Takes a message: which run and text, how far it is, what is missing."""


def silent(_: object) -> None:
    """Takes lines, results or files, and does nothing."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of what reads text with a run."""

    data: Names = ()
    """Text to read, all of it, named as for `train`; left out, the run's own validation text."""
    include: Names = ()
    """Of the files and directories of --data, read only those that match one of these patterns, as in '*.md' docs."""
    exclude: Names = ()
    """Of the files and directories of --data, skip those that match one of these patterns."""
    tell: Tell = silent
    """Called with messages on progress."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Options of what opens a run and saves results."""

    run: Run = field(default="", kw_only=False)
    seed: int = 0
    """Seed for everything random."""
    out: Name = ""
    """The folder for results, as JSON, CSV, PNG and SVG; left out, `heads` in the run."""
    figures: bool = True
    """Draw the results; off, save only the numbers. Drawing needs matplotlib: pip install matplotlib."""
    tell: Tell = silent
    """Called with messages on progress."""
    on_result: Annotated[Callable[[Any], None], Fixed, Suppress] = silent
    """Called with each `Finding` as soon as it is saved."""


@dataclass(frozen=True, kw_only=True)
class Measuring(Opening, Reading):
    """Options of what measures a run's heads on a text."""

    windows: Windows = None
    checkpoints: Switch = False
    """Also measure at every checkpoint of the run (of --keep-checkpoints 0), and animate how heads form."""


@dataclass(frozen=True, kw_only=True)
class HeadsOptions(Measuring):
    """Options of `heads`."""

    prompt: str = ""
    """The text whose attention patterns are drawn; left out, the first of the windows."""


@dataclass(frozen=True, kw_only=True)
class AblateOptions(Measuring):
    """Options of `ablate`."""

    of: Sequence[Ablated] = ()
    """What to measure; left out, heads, or only the --sets if there are any."""
    sets: Sequence[str] = ()
    """Sets to switch off: components joined by +, where 0.2 is head 2 of layer 0, or mlp1, heads1, layer1."""
    fill: FillName = "mean"
    """What replaces the output of a component that is switched off."""
    metric: MetricName = "loss"
    """Mean loss, KL divergence from the intact model, or log-probability of the answer (of --on repeats)."""
    on: Task = "text"
    """Windows of text, or random tokens of which a part is repeated."""
    positions: Sequence[int] = ()
    """The positions at which it is switched off, from 0; left out, all."""
    hold_patterns: Switch = False
    """Keep later attention patterns as in the intact model."""
    freeze_norms: Switch = False
    """Keep the norms' scales as in the intact model."""
    bootstrap: int = 0
    """Bootstrap samples for a 95 % interval of each effect; 0 for no interval."""
    strengths: Sequence[float] = STRENGTHS
    """For gates: penalties per open head, nats per token."""
    save_pruned: Name = ""
    """Write a run directory of this name: the model without the heads in --sets, which must be one set."""
    force: Switch = False
    """Replace the run at --save-pruned."""


@dataclass(frozen=True, kw_only=True)
class PatchOptions(Opening):
    """Options of `patch`."""

    of: Sequence[Patched] = ("heads",)
    """What is patched: the output of each head; the residual stream by layer and position; all sites of heads to first
    order (attribution patching), beside patching; or the paths from head to head."""
    direction: PatchDirection = "denoise"
    """`denoise`: clean activations into the corrupted run; `noise`: corrupted ones into the clean run."""
    metric: PatchMetric = "loss"
    """Of the answers: mean loss, log-probability, logit difference to --wrong; or KL divergence from the clean run."""
    clean: Texts = ()
    """Texts whose answer the model should know, of as many tokens each; a single one has no error."""
    corrupted: Texts = ()
    """For each clean text one of as many tokens without the answer."""
    answer: Texts = ()
    """For each clean text the token that should follow it."""
    wrong: Texts = ()
    """For each answer a token to set it against, as `logit-diff` needs."""
    positions: Sequence[int] = ()
    """The positions at which to patch, from 0; left out, all."""
    examples: int = USUAL
    """How many sequences of repeated tokens."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions(Reading):
    """Options of `plot`."""

    what: Positional[Names] = field(default=(), kw_only=False)
    """Run directories, or JSON files of saved results; left out, the newest run under runs/."""
    prompt: str = ""
    """The text whose last 24 tokens are drawn: norms, attention, next tokens; left out, the start of a window."""
    windows: Windows = None
    lab: Switch = False
    """Also measure all else that `ablate` can: pairs, Shapley values, gradients, gates, pruning."""
    out: Name = ""
    """The folder for figures, with `plots` and `heads` in it for a run; left out, the run, or beside each result."""
    theme: Literal["light", "dark"] = "light"
    """Colours for a light or for a dark page."""
    on_file: Annotated[Callable[[Path], None], Fixed, Suppress] = silent
    """Called with each file as soon as it is written."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `report`."""

    run: Run = field(default="", kw_only=False)
    out: Name = ""
    """The file to write; left out, report.html in the run."""
    measure: bool = True
    """First measure what is missing in the run; off, the page says what is missing."""
    tell: Tell = silent
    """Called with messages on progress."""
