"""The results that a report shows, and the verb that makes each."""

from __future__ import annotations

from typing import NamedTuple


class Analysis(NamedTuple):
    """A result that a run should have."""

    folder: str
    name: str
    """its file in the folder, without ending"""
    verb: str
    shows: str
    numbers: bool = False
    """the report gives its numbers beside its figure"""


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
    Analysis("heads", "heads-mean-loss", "ablate", "Effect of removing each head on the loss", numbers=True),
    Analysis("heads", "scores-text", "heads", "What heads do on the text", numbers=True),
    Analysis("heads", "scores-repeats", "heads", "What heads do on random tokens that repeat", numbers=True),
    Analysis("heads", "attention", "heads", "Attention in a window or in the prompt of `tinygpt heads`"),
    Analysis("heads", "lens", "heads", "The logit lens"),
    Analysis("heads", "attribution", "heads", "Who writes the logits"),
)
"""In the order of the report."""
