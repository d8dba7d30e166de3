"""Where a model's parameters are, counted from their shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from experiments.shared.text import base
from tinygpt_jax import GPTConfig
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.params import flatten, param_shapes

PARTS = ("MLPs", "attention", "embeddings", "norms")
MLP = ("W1", "b1", "W2", "b2")
WIDTHS, VOCABULARIES = (64, 128, 256, 512, 1024), (100, 1_000, 10_000, 50_000)
GPT2 = GPTConfig(vocab_size=50_257, block_size=1024, n_layer=12, n_head=12, n_embd=768, attn_bias=True)
LADDER = GPTConfig(block_size=64, n_layer=4)
"""Widths and vocabularies are counted at this depth."""


def part(name: str) -> str:
    """Which of PARTS a leaf belongs to; the output head counts as an embedding."""
    leaf = name.split(".")[-1]
    if leaf in MLP:
        return "MLPs"
    if leaf.startswith("ln"):
        return "norms"
    return "attention" if name.startswith("blocks.") else "embeddings"


def counts(cfg: GPTConfig) -> dict[str, int]:
    """Parameters of each part."""
    found = dict.fromkeys(PARTS, 0)
    for name, leaf in flatten(param_shapes(cfg)):
        found[part(name)] += math.prod(leaf.shape)
    return found


def saved_by_tying(cfg: GPTConfig) -> int:
    """Parameters that a head of its own would add."""
    apart, tied = (sum(counts(dataclasses.replace(cfg, tied=way)).values()) for way in (False, True))
    return apart - tied


def shapes() -> Iterator[tuple[str, GPTConfig]]:
    """The models that are counted, by name; the first two with the built-in corpus's characters."""
    here = base().model
    yield "default model", dataclasses.replace(TrainConfig().model, vocab_size=here.vocab_size)
    yield "base of the trainings", here
    yield "GPT-2 124M", GPT2
    for width in WIDTHS:
        for vocab_size in VOCABULARIES:
            cfg = dataclasses.replace(LADDER, n_embd=width, vocab_size=vocab_size)
            yield f"4 layers of {width:,}, vocabulary of {vocab_size:,}", cfg


def counted() -> list[dict[str, object]]:
    """Every shape with its parts, and what tying saves there."""
    return [
        {
            "name": name,
            "layers": cfg.n_layer,
            "width": cfg.n_embd,
            "vocab_size": cfg.vocab_size,
            "parts": counts(cfg),
            "saved_by_tying": saved_by_tying(cfg),
        }
        for name, cfg in shapes()
    ]
