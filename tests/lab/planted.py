"""A model whose circuit is known because it was written by hand: induction in two layers of attention.

The residual stream has four parts that no two heads write to: the token, the position, the previous token and the
output. Head `previous` of layer 0 finds position t - 1 and copies its token into the third part; head `induction` of
layer 1 looks for its own token there (K-composition) and copies the token it finds to the output (Elhage et al. 2021).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig

SHARP = 20.0
"""By how much the right key's score, and the right token's logit, stand above the others."""
NOISE = 1e-3
"""Standard deviation of the other heads' weights."""


class Facts(NamedTuple):
    """Where the planted heads are, as (layer, head)."""

    previous: tuple[int, int]
    induction: tuple[int, int]
    inert: tuple[tuple[int, int], ...]


def planted(n_head=4, *, block_size=16, vocab_size=16):
    """(params, cfg, facts). The model knows what repeats: its loss is near 0 where each token came once before."""
    T, V, H = block_size, vocab_size, n_head
    K = max(V, T, -(-(3 * V + T) // H))
    C = H * K
    cfg = GPTConfig(vocab_size=V, block_size=T, n_layer=2, n_head=H, n_embd=C, mlp_ratio=0, norm="none", tied=False)
    widths = (V, T, V, V)
    token, position, previous, output = (slice(e - n, e) for n, e in zip(widths, np.cumsum(widths), strict=True))

    last, first = slice(C - K, C), slice(0, K)  # the columns of the last head in layer 0 and the first in layer 1
    Wq, Wk, Wv, Wo = np.random.default_rng(0).normal(0, NOISE, (4, 2, C, C))
    for layer, columns in ((0, last), (1, first)):
        Wq[layer, :, columns] = Wk[layer, :, columns] = Wv[layer, :, columns] = Wo[layer, columns] = 0

    sharp = SHARP * np.sqrt(K)
    Wq[0, position, last] = sharp * np.eye(T, K, k=-1)  # position t asks for t - 1
    Wk[0, position, last] = np.eye(T, K)
    Wv[0, token, last] = np.eye(V, K)
    Wo[0, last, previous] = np.eye(K, V)

    Wq[1, token, first] = sharp * np.eye(V, K)
    Wk[1, previous, first] = np.eye(V, K)
    Wk[1, position.start, first] = -1  # position 0 has none before it, and took its own token for the previous one
    Wv[1, token, first] = np.eye(V, K)
    Wo[1, first, output] = np.eye(K, V)

    tok_emb, pos_emb, head = np.zeros((V, C)), np.zeros((T, C)), np.zeros((V, C))
    tok_emb[:, token], pos_emb[:, position], head[:, output] = np.eye(V), np.eye(T), SHARP * np.eye(V)
    blocks = {"Wq": Wq, "Wk": Wk, "Wv": Wv, "Wo": Wo}
    params = {"tok_emb": tok_emb, "pos_emb": pos_emb, "head": head, "blocks": blocks}
    inert = [(0, h) for h in range(H - 1)] + [(1, h) for h in range(1, H)]
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params), cfg, Facts((0, H - 1), (1, 0), tuple(inert))
