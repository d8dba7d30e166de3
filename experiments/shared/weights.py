"""Initial weights other than the package's own, made from it by scaling."""

from __future__ import annotations

import math
from typing import Any

import jax

from tinygpt_jax.params import Params


def scaled(params: Params, factor: Any) -> Params:
    """The matrices of the blocks times a number; `params` may hold one model or many."""
    blocks = {name: factor * leaf if name.startswith("W") else leaf for name, leaf in params["blocks"].items()}
    return {**params, "blocks": blocks}


def unit_variance(params: Params) -> Params:
    """One model of the classical initialisation: each matrix W of the blocks from N(0, 1 / fan-in), so that a product
    keeps the variance of what it is given (LeCun et al. 1998, section 4.6), embeddings from N(0, 1)."""

    def unit(W: jax.Array) -> jax.Array:
        return W / W.std()

    blocks = {
        name: unit(leaf) / math.sqrt(leaf.shape[-2]) if name.startswith("W") else leaf
        for name, leaf in params["blocks"].items()
    }
    embeddings = {name: unit(params[name]) for name in ("tok_emb", "pos_emb", "head") if name in params}
    return {**params, **embeddings, "blocks": blocks}
