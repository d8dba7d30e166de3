"""How well the model of a run predicts a text."""

from __future__ import annotations

from pathlib import Path

from tinygpt_jax.runs import newest_run
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.study.findings import Names, Tell, silent, sources
from tinygpt_jax.training.evaluate import Evaluation
from tinygpt_jax.training.job import evaluate_run


def evaluate(
    run: str | Path = "", data: Names = (), *, include: Names = (), exclude: Names = (), tell: Tell = silent
) -> Evaluation:
    """Scores a run's best weights: nats per token, bits per byte, perplexity, with standard errors.

        tg.evaluate("runs/book", "other.txt").bits_per_byte

    `tg.evaluate_tokens` scores any parameters on any tokens.

    Args:
        run: a run directory; default: the newest under runs/
        data: text to score, all of it, with `include` and `exclude` as for training; default: the run's own
            validation text
        tell: called with a line that says which run and which text

    Raises:
        UserError: the run or the text cannot be read, the run's own text has changed, or the loss is not finite.
    """
    use_compilation_cache()
    return evaluate_run(run or newest_run(), sources(data, include, exclude), tell)
