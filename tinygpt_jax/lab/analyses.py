"""What can be measured of a run: each analysis, the verb that makes it, and the file it is saved in.

Plain data for the verbs and the report. Nothing heavy is imported, so that the help needs no JAX.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from tinygpt_jax.config import Sources

USUAL = 64
"""Windows of text to measure on, unless another number is asked for or the text is too short."""
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Penalties per open head for learned gates, nats per token."""

Ablated = Literal[
    "heads", "mlps", "layers", "keep-one", "pairs", "shapley", "shapley-by-layer", "importance", "gates", "pruning"
]
FillName = Literal["zero", "mean", "position-mean", "resample", "optimal"]
MetricName = Literal["loss", "kl", "log-prob"]
Task = Literal["text", "repeats"]
Patched = Literal["heads", "positions", "attribution", "paths"]
PatchDirection = Literal["denoise", "noise"]
PatchMetric = Literal["loss", "log-prob", "logit-diff", "kl"]
ABLATED: tuple[Ablated, ...] = get_args(Ablated)
"""What `ablate` can measure; the first is its default."""

OWN_TEXT = Sources()


class Analysis(NamedTuple):
    """A result that `heads`, `ablate` or `plot` saves in a run by default."""

    folder: str
    """of the run: plots or heads"""
    name: str
    """its file in the folder, without ending"""
    verb: str
    shows: str
    numbers: bool = False
    """the report gives its numbers beside its figure"""


def file_ending(
    fill: str = "mean",
    metric: str = "loss",
    on: str = "text",
    hold_patterns: bool = False,
    freeze_norms: bool = False,
    *,
    positions: Sequence[int] = (),
    sources: Sources = OWN_TEXT,
    windows: int | None = None,
    seed: int = 0,
) -> str:
    """The end of an ablation's file name, made of its choices, so that other choices do not overwrite it."""
    words = [fill, metric, *["repeats"] * (on == "repeats"), *["held"] * hold_patterns, *["frozen"] * freeze_norms]
    words += [at_positions(positions)] * bool(positions)
    words += [Path(source).stem for source in sources.data]
    if sources.include or sources.exclude:  # of which any number of any length may be given
        patterns = json.dumps([sources.include, sources.exclude]).encode()
        words.append(f"patterns{hashlib.sha256(patterns).hexdigest()[:8]}")
    words += [f"windows{windows}"] * (windows not in (None, USUAL))
    return "-".join(words + [f"seed{seed}"] * bool(seed))


def at_positions(positions: Sequence[int]) -> str:
    """The word for positions in the name of a file."""
    return shortened(f"at{'_'.join(map(str, positions))}", 40)


def shortened(word: str, most: int) -> str:
    """A word of a file's name; where it is too long its beginning, and a fingerprint of all of it."""
    return word if len(word) <= most else f"{word[: most - 9]}-{hashlib.sha256(word.encode()).hexdigest()[:8]}"


ANALYSES = (
    Analysis("plots", "training", "plot", "Training"),
    Analysis("plots", "next-tokens", "plot", "The next token"),
    Analysis("plots", "embedding", "plot", "The token embedding"),
    Analysis("plots", "attention", "plot", "Attention"),
    Analysis("plots", "positions", "plot", "Positions"),
    Analysis("plots", "norm", "plot", "The norm before attention"),
    Analysis("plots", "head-split", "plot", "Queries split into heads"),
    Analysis("plots", "activation", "plot", "The activation"),
    Analysis("plots", "mlp-widths", "plot", "Widths of the MLP"),
    Analysis("plots", "residual-writes", "plot", "What is written into the residual stream"),
    Analysis("heads", f"heads-{file_ending()}", "ablate", "Effect of removing each head on the loss", numbers=True),
    Analysis("heads", "scores-text", "heads", "What heads do on the text", numbers=True),
    Analysis("heads", "scores-repeats", "heads", "What heads do on random tokens that repeat", numbers=True),
    Analysis("heads", "attention", "heads", "Attention in a window or in the prompt of `tinygpt heads`"),
    Analysis("heads", "lens", "heads", "The logit lens"),
    Analysis("heads", "attribution", "heads", "Who writes the logits"),
)
"""In the order of the report."""
