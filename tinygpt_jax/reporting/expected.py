"""The results that a report shows, and the verb that makes each."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """A result that a run should have."""

    name: str
    """of its file below the run, without the ending"""
    title: str
    verb: str


CURVES = Expected("plots/training", "Training", "plot")
PIECES = (
    Expected("plots/next-tokens", "The next token", "plot"),
    Expected("plots/embedding", "The token embedding", "plot"),
    Expected("plots/attention", "Attention", "plot"),
    Expected("plots/positions", "Positions", "plot"),
    Expected("plots/norm", "The norm before attention", "plot"),
    Expected("plots/head-split", "Queries split into heads", "plot"),
    Expected("plots/activation", "The activation", "plot"),
    Expected("plots/mlp-widths", "Widths of the MLP", "plot"),
    Expected("plots/residual-writes", "What is written into the residual stream", "plot"),
)
EFFECTS = (
    Expected("heads/heads-mean-loss", "Effect of removing each head on the loss", "ablate"),
    Expected("heads/scores-text", "What heads do on the text", "heads"),
    Expected("heads/scores-repeats", "What heads do on random tokens that repeat", "heads"),
)
"""Those that come with their tables."""
READINGS = (
    Expected("heads/attention", "Attention in a window or in the prompt of `tinygpt heads`", "heads"),
    Expected("heads/lens", "The logit lens", "heads"),
    Expected("heads/attribution", "Who writes the logits", "heads"),
)
EXPECTED = (CURVES, *PIECES, *EFFECTS, *READINGS)
