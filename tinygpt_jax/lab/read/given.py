"""What is given to the measurements of a block's pieces, checked."""

from __future__ import annotations

import dataclasses

import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.metrics import Data, as_examples
from tinygpt_jax.text import Examples


def one_text(ids: np.ndarray, cfg: GPTConfig, layer: int) -> Examples:
    """One example of ids (T,).

    Raises:
        UserError: the ids do not fit the model, or there is no such layer or it has no head left.
    """
    if np.ndim(ids) != 1:
        raise UserError(f"ids have shape {np.shape(ids)}: give those of one text, (T,)")
    if not 0 <= layer < cfg.n_layer:
        raise UserError(f"layer is {layer}: the model has 0 to {cfg.n_layer - 1}")
    if not cfg.heads_per_layer[layer]:
        raise UserError(f"layer {layer} has no heads left, and so no attention to show: name another layer")
    return whole(np.asarray(ids)[None], cfg)


def whole(data: Data, cfg: GPTConfig) -> Examples:
    """Examples of a model that may be pruned, for what does not depend on how many heads each layer has."""
    return as_examples(data, dataclasses.replace(cfg, heads=()))
