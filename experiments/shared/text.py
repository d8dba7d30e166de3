"""Small models of text, trained for a claim: the same text, batches and budget for every variant, seed by seed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinygpt_jax import GPTConfig, TrainConfig, char_tokenizer, evaluate_tokens, load_text, pick, prepare, train_many
from tinygpt_jax.text import Dataset
from tinygpt_jax.training.many import Models

SEEDS = (0, 1, 2, 3, 4)
MODEL = GPTConfig(vocab_size=128, block_size=64, n_layer=4, n_head=4, n_embd=64)
TRAINING = TrainConfig(
    model=MODEL, optimizer="adam", learning_rate=3e-3, schedule="cosine", warmup_steps=50, weight_decay=0.0, steps=500
)
"""The base that claims vary: 4 layers of 64 with learned positions, 12 windows of 64 characters a step."""
QUICK = {"steps": 6, "warmup_steps": 2, "batch_size": 2}
QUICK_MODEL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16}


class Trained(NamedTuple):
    """One variant: what each seed came to."""

    loss: np.ndarray
    """(N,) on the whole validation text, nats per character; NaN where training came apart"""
    models: Models


@functools.cache
def corpus(quick: bool = False) -> Dataset:
    """The built-in corpus as characters; at toy size its beginning."""
    text = load_text(("pydoc",))
    text = text[:20_000] if quick else text
    return prepare(text, char_tokenizer(text), val_fraction=0.1)


def base(quick: bool = False, **model: object) -> TrainConfig:
    """The base training on the corpus, with other fields of the model."""
    size = QUICK_MODEL if quick else {}
    vocab_size = int(max(part.ids.max() for part in (corpus(quick).train, corpus(quick).val))) + 1
    made = dataclasses.replace(MODEL, **{"vocab_size": vocab_size, **size, **model})  # type: ignore[arg-type]
    return dataclasses.replace(TRAINING, model=made, **(QUICK if quick else {}))


def trained(cfg: TrainConfig, quick: bool = False, seeds: Sequence[int] = SEEDS) -> Trained:
    """Models of all seeds, trained in one vmapped step. A seed's batches are the same for every variant of equal
    block and batch size, so that variants are compared seed by seed."""
    models = train_many(cfg, corpus(quick).train.ids, seeds[:2] if quick else seeds)
    val = corpus(quick).val
    losses = [evaluate_tokens(pick(models.params, i), cfg.model, val).loss for i in range(len(models.configs))]
    return Trained(np.array(losses), models)
