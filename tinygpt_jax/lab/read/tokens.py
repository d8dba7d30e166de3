"""What a model makes of tokens: what it expects next, and where it puts them in its embedding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.metrics import one_text
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import gpt_forward
from tinygpt_jax.params import Params, check_finite, of_model

Words = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class NextTokens(Result):
    """What a model expects after each of the T tokens of a text: its N likeliest candidates."""

    probability: np.ndarray
    """(T, N) share of 1, the likeliest first"""
    given: np.ndarray
    """(T,) the probability of the token that did follow; NaN after the last"""
    entropy: np.ndarray
    """(T,) of the whole distribution, nats"""
    tokens: Words
    """T, as text"""
    candidates: tuple[Words, ...]
    """T times N, as text"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "probability": ("position", "rank"),
        "given": ("position",),
        "entropy": ("position",),
    }

    def __post_init__(self) -> None:
        """Raises ValueError where there is not one name for each token and candidate."""
        T, N = np.shape(self.probability)
        if len(self.tokens) != T or [len(row) for row in self.candidates] != [N] * T:
            raise ValueError(f"tokens and candidates are not named for probabilities of shape {(T, N)}")

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        return [
            row | {"after": self.tokens[row["position"]], "candidate": self.candidates[row["position"]][row["rank"]]}
            for row in super().rows(most)
        ]


@dataclass(frozen=True, eq=False)
class EmbeddingMap(Result):
    """The V token embeddings along their two directions of largest variance (Pearson 1901, principal components)."""

    x: np.ndarray
    """(V,)"""
    y: np.ndarray
    """(V,)"""
    size: np.ndarray
    """(V,) length of the embedding"""
    share: np.ndarray
    """(2,) of the variance between tokens that each direction has"""
    tokens: Words
    """V, as text"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "x": ("token",),
        "y": ("token",),
        "size": ("token",),
        "share": ("direction",),
    }
    PLACES = {"token": "tokens"}


@of_model
def next_tokens(
    params: Params, ids: np.ndarray, cfg: GPTConfig, vocabulary: Sequence[str] | None = None, candidates: int = 10
) -> NextTokens:
    """The likeliest next tokens after every token of one text.

    Args:
        ids: (T,)
        vocabulary: tokens as text; those beyond its end, or all where it is left out, are named by their ids: `#7`
        candidates: how many are kept, at the most V

    Raises:
        UserError: ids do not fit the model, or candidates is below 1.
    """
    examples = one_text(ids, cfg, 0, params)
    ids = examples.ids[0]
    names = _names(vocabulary, cfg)
    if candidates < 1:
        raise UserError(f"candidates is {candidates}: must be 1 or more")
    probability, given, entropy, top = map(np.asarray, _expected(params, ids, cfg, min(candidates, cfg.vocab_size)))
    definition = reading(
        params, cfg, examples, granularity="token", component="logits", metric="probability", unit="share of 1"
    )
    return NextTokens(
        definition,
        probability,
        np.append(given, np.nan),
        entropy,
        tuple(names[i] for i in ids),
        tuple(tuple(names[i] for i in row) for row in top),
    )


@of_model
def embedding_map(params: Params, cfg: GPTConfig, vocabulary: Sequence[str] | None = None) -> EmbeddingMap:
    """The token embedding in two dimensions; a direction has the sign that makes its largest entry positive.

    Raises:
        UserError: there are fewer than three tokens or two channels.
    """
    names = _names(vocabulary, check(cfg))
    check_finite(params)
    table = np.asarray(params["tok_emb"], np.float64)[: cfg.vocab_size]
    if table.shape[0] < 3 or table.shape[1] < 2:
        raise UserError(f"the embedding has shape {table.shape}: a map takes 3 tokens and 2 channels, or more")
    centred = table - table.mean(0)
    variance, directions = np.linalg.eigh(centred.T @ centred / len(table))
    top = directions[:, [-1, -2]]
    top = top * np.sign(top[np.abs(top).argmax(0), [0, 1]])
    x, y = (centred @ top).T
    definition = reading(
        params, cfg, None, granularity="token", component="tok_emb", metric="place in the embedding", unit="1"
    )
    share = variance[[-1, -2]] / max(variance.sum(), np.finfo(np.float64).tiny)
    return EmbeddingMap(definition, x, y, np.linalg.norm(table, axis=1), share, tuple(names[: cfg.vocab_size]))


def _names(vocabulary: Sequence[str] | None, cfg: GPTConfig) -> Sequence[str]:
    """One name a token; where the tokenizer knows fewer than the model, the rest by number."""
    names = [] if vocabulary is None else list(vocabulary)
    return [*names, *(f"#{i}" for i in range(len(names), cfg.vocab_size))]


def _next(params: Params, ids: jax.Array, cfg: GPTConfig, n: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Probabilities (T, N) of the likeliest, of what followed (T - 1,), entropies (T,) and the likeliest ids (T, N)."""
    log_p = jax.nn.log_softmax(gpt_forward(params, ids, cfg))
    top, which = jax.lax.top_k(log_p, n)
    given = jnp.take_along_axis(log_p[:-1], ids[1:, None], axis=1)[:, 0]
    p = jnp.exp(log_p)
    return jnp.exp(top), jnp.exp(given), -jnp.where(p > 0, p * log_p, 0.0).sum(-1), which


_expected = jax.jit(_next, static_argnames=("cfg", "n"))
