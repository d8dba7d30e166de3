"""What each head of a run does: where it attends, what it copies, and what it contributes to the prediction."""

import math

import numpy as np

from tinygpt_jax.arguments import takes
from tinygpt_jax.lab.read.lens import attention_maps, logit_attribution, logit_lens
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.result import Result
from tinygpt_jax.lab.windows import LEAST, repeat_length
from tinygpt_jax.study.findings import Subject, Work, collect, flagged, measure_checkpoints, open_text
from tinygpt_jax.study.options import HeadsOptions

FOLLOWED = ("previous_token", "induction", "copying")
"""Scores measured at every checkpoint."""
REPEATS = "on random tokens that repeat"
MOST_ATTENTION = 2**20
"""The most numbers in the attention patterns of a text, all heads together: a long window would take gigabytes."""


@takes(HeadsOptions)
def heads(asked: HeadsOptions) -> dict[str, Result]:
    """Scores on text and on repeated tokens, logit lens, logit attribution and attention patterns, all of them saved.

        tg.heads("runs/book")["scores-text"].induction      # (L, H)

    The arguments are the fields of `study.options.HeadsOptions`; `tinygpt heads --help` says what each does.

    Returns:
        The results by name, in the order they were found.

    Raises:
        UserError: the run or the text cannot be read, `out` is no folder, or the prompt has unknown characters.
    """
    subject = open_text(asked)
    work, seed = readings(subject, asked.prompt, asked.seed), asked.seed
    over = measure_checkpoints(
        subject, lambda p, cfg: head_scores(p, subject.repeats(seed), cfg), FOLLOWED, "over-repeats"
    )
    return collect(asked, subject, work, over if asked.checkpoints else ())


def readings(subject: Subject, prompt: str = "", seed: int = 0) -> Work:
    """The measurements of the verb `heads`, under the names of `lab.analyses`."""
    (params, cfg, tokenizer), examples = subject.model, subject.examples
    ids = _drawn(subject, prompt)
    tokens = [tokenizer.decode([int(i)]) for i in ids]
    on_repeats = {"scores-repeats": lambda: flagged(head_scores(params, subject.repeats(seed), cfg), REPEATS)}
    if repeat_length(cfg) < LEAST:
        subject.tell(f"no scores {REPEATS}: these take {LEAST} tokens or more, known and in sight")
        on_repeats = {}
    return {
        **on_repeats,
        "scores-text": lambda: flagged(head_scores(params, examples, cfg), "on text"),
        "lens": lambda: logit_lens(params, examples, cfg),
        "attribution": lambda: logit_attribution(params, examples, cfg),
        "attention": lambda: attention_maps(params, ids, cfg, tokens),
    }


def _drawn(subject: Subject, prompt: str) -> np.ndarray:
    """(T,) ids of the prompt, or of the first window, short enough for their attention patterns to be saved."""
    _, cfg, tokenizer = subject.model
    ids = np.asarray(tokenizer.encode(prompt) if prompt else subject.examples.ids[0])
    if len(ids) > cfg.block_size:
        subject.tell(
            f"the prompt has {len(ids)} tokens: the last {cfg.block_size} are drawn, all that the model sees at once"
        )
    most = max(math.isqrt(MOST_ATTENTION // (cfg.n_layer * cfg.n_head)), 1)
    if most < min(len(ids), cfg.block_size):
        subject.tell(f"attention is drawn for {most} tokens only: its files hold at most {MOST_ATTENTION:,} numbers")
    return ids[-cfg.block_size :][-most:]
