"""What is given to the measurements of a block's pieces, checked."""

from __future__ import annotations

import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.metrics import as_examples
from tinygpt_jax.text import Examples


def one_text(ids: np.ndarray, cfg: GPTConfig, layer: int) -> Examples:
    """One example of ids (T,).

    Raises:
        UserError: the ids do not fit the model, or there is no such layer.
    """
    if np.ndim(ids) != 1:
        raise UserError(f"ids have shape {np.shape(ids)}: give those of one text, (T,)")
    if not 0 <= layer < cfg.n_layer:
        raise UserError(f"layer is {layer}: the model has 0 to {cfg.n_layer - 1}")
    return as_examples(np.asarray(ids)[None], cfg)
