"""The loss before any training, beside ln V."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.shared.text import base, corpus
from tinygpt_jax import GPTConfig, init_params
from tinygpt_jax.params import Params, decay_mask
from tinygpt_jax.text import eval_windows
from tinygpt_jax.training.loss import window_losses

MODELS = (
    ("text", None, True),
    ("text, head of its own", None, False),
    ("random ids", 1_000, True),
    ("random ids", 10_000, True),
)
"""What is predicted, the vocabulary (the text's own where none is named), and whether the head is tied."""
SCALES = (1.0, 2.0, 5.0, 10.0)
"""What the initial embeddings and matrices, of standard deviation 0.02, are multiplied by."""
WINDOWS = 64


def scaled(params: Params, cfg: GPTConfig, factor: float) -> Params:
    """Embeddings and matrices times a number; biases and norms as they are."""
    return jax.tree.map(lambda leaf, matrix: factor * leaf if matrix else leaf, params, decay_mask(cfg))


_losses = jax.jit(window_losses, static_argnums=3)


def batch(vocab_size: int | None, T: int, seed: int, quick: bool) -> tuple[np.ndarray, np.ndarray]:
    """ids and targets (WINDOWS, T), from all over the validation text, or random ones of a vocabulary."""
    if vocab_size is not None:
        made = np.random.default_rng(seed).integers(0, vocab_size, WINDOWS * T + 1, dtype=np.int32)
        return eval_windows(made, T)
    every = eval_windows(corpus(quick).val.ids, T)
    chosen = np.linspace(0, len(every[0]) - 2, WINDOWS).astype(int)  # the last window may be padded
    return every[0][chosen], every[1][chosen]


def first_losses(seeds: Sequence[int], quick: bool) -> list[dict[str, Any]]:
    """For each vocabulary: ln V, and the loss of an untrained model at each scale with each seed, nats per token."""
    found = []
    for name, vocab_size, tied in MODELS:
        cfg = base(quick, tied=tied, **({"vocab_size": vocab_size} if vocab_size else {})).model
        made = jax.jit(functools.partial(init_params, cfg=cfg))
        models = [(made(jax.random.key(seed)), batch(vocab_size, cfg.block_size, seed, quick)) for seed in seeds]
        losses = {
            f"{scale:g}": [
                float(np.mean(_losses(scaled(params, cfg, scale), *given, cfg))) / cfg.block_size
                for params, given in models
            ]
            for scale in SCALES
        }
        found.append({"of": name, "vocab_size": cfg.vocab_size, "ln_V": math.log(cfg.vocab_size), "losses": losses})
    return found
