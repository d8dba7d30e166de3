"""Texts to try errors on: a small model, the windows of a corpus that it was not trained on, and new texts of these."""

from __future__ import annotations

import dataclasses
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np

from experiments.shared.text import QUICK
from tinygpt_jax import TrainConfig, char_tokenizer, load_text, pick, prepare, train_many
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.intervention import Fill, Gates
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.read.scores import HeadScores, head_scores
from tinygpt_jax.lab.remove.importance import gate_slopes
from tinygpt_jax.lab.remove.shapley import coalition_gates, make_game
from tinygpt_jax.lab.windows import repeats, text_windows
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

TEXTS, WINDOWS = 600, 726
"""Texts, each as many windows long as the default run's validation text."""
MODEL = GPTConfig(vocab_size=128, block_size=64, n_layer=2, n_head=2, n_embd=64)
TRAINING = TrainConfig(model=MODEL, steps=1000)
"""Otherwise the default recipe."""
TRAINED_ON = 0.2
"""Of the corpus, its beginning; the pool is the rest."""
POINTS = 8
"""Of the line that integrated gradients follow."""


class Pool(NamedTuple):
    """A model, and what the head lab measures on each window of a corpus, with the pool's own means as fill. It does
    not depend on which text a window stands in, so it is measured once."""

    params: Params
    cfg: GPTConfig
    examples: Examples
    """N windows, all of the pool in its order"""
    fill: Fill
    values: np.ndarray
    """(2^P, N) the loss with each coalition of the P heads on and the others off, nats per token"""
    slopes: np.ndarray
    """(POINTS + 1, P, N) of the loss by each head's gate, all gates alike; the last at one"""
    scores: HeadScores
    """of the whole pool"""
    on_repeats: HeadScores
    """of many random tokens that repeat"""


def make_pool(quick: bool) -> Pool:
    text = load_text(("pydoc",))[: 20_000 if quick else None]
    data = prepare(text, char_tokenizer(text), val_fraction=1 - TRAINED_ON)
    training = dataclasses.replace(TRAINING, **(QUICK if quick else {}))
    params = pick(train_many(training, data.train.ids, (0,)).params, 0)
    cfg = training.model
    examples = text_windows(data.val, cfg, (len(data.val.ids) - 1) // cfg.block_size)
    fill = mean_fill(params, examples.ids, cfg)
    lab, P = make_lab(params, examples, cfg, fill=fill), cfg.n_layer * cfg.n_head
    off = Gates(*(1 - a for a in make_sets("heads", cfg).gates))
    values, _ = measure(lab, coalition_gates(make_game(P, None, 0).coalitions, off))
    line = np.append((np.arange(POINTS, dtype=np.float32) + 0.5) / POINTS, np.float32(1))
    scores = [head_scores(params, some, cfg) for some in (examples, repeats(cfg, 200 if quick else 5000))]
    return Pool(params, cfg, examples, fill, values.astype(np.float64), gate_slopes(lab, line), *scores)


def draw_texts(pool: int, texts: int, windows: int, seed: int) -> np.ndarray:
    """(texts, windows): which windows of the pool each text is made of.

    A text is a sequence of stretches of the corpus, each from a random place on, of random lengths (geometric, in the
    mean that of a topic of the corpus): the stationary bootstrap (Politis and Romano 1994). Within a stretch windows
    are as alike as they are in the corpus, and the true mean of such texts is that of the pool.
    """
    rng = np.random.default_rng(seed)
    mean_length = pool / len(topics) / (1 - TRAINED_ON)
    starts = rng.random((texts, windows)) < 1 / mean_length
    starts[:, 0] = True
    first = np.maximum.accumulate(np.where(starts, np.arange(windows), 0), 1)
    places = rng.integers(0, pool, (texts, windows))
    return (np.take_along_axis(places, first, 1) + np.arange(windows) - first) % pool
