"""From the residual stream to logits, taken apart: linear once the final norm's scale is fixed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.forward_pass import site_hook
from tinygpt_jax.lab.result import Definition, data_fingerprint, model_fingerprint
from tinygpt_jax.model import norm
from tinygpt_jax.params import Params
from tinygpt_jax.text import Examples

NO_UNIT = "no unit"


class Readout(NamedTuple):
    """logits = norm_scale · x @ directions.T + shift, for x (..., C) before the final norm."""

    directions: jax.Array
    """(V, C)"""
    shift: jax.Array
    """(V,) what the final norm's own shift adds"""


def readout(params: Params, cfg: GPTConfig) -> Readout:
    """The final norm's gain, centring and shift folded into the unembedding (Elhage et al. 2021), in float32.

    LayerNorm's centring is a projection, so it acts as well on the directions as on the stream.
    """
    U = params["tok_emb" if cfg.tied else "head"][: cfg.vocab_size].astype(jnp.float32)
    if cfg.norm == "none":
        return Readout(U, jnp.zeros(cfg.vocab_size, jnp.float32))
    directions = U * params["lnfg"]
    if cfg.norm == "rmsnorm":
        return Readout(directions, jnp.zeros(cfg.vocab_size, jnp.float32))
    return Readout(directions - directions.mean(-1, keepdims=True), U @ params["lnfb"])


def norm_scale(params: Params, x: jax.Array, cfg: GPTConfig) -> jax.Array:
    """What the final norm multiplies each row of x (..., C) by, besides its gain: (...) float32."""
    at, seen = site_hook({}, ("lnf_scale",))
    norm(x, params, "lnf", cfg, at)
    return seen["lnf_scale"][..., 0] if seen else jnp.ones(x.shape[:-1], jnp.float32)


def heads_out(params: Params, cfg: GPTConfig) -> jax.Array:
    """Wo by head, (L, H, K, C) float32: what each writes for its z."""
    Wo = params["blocks"]["Wo"].astype(jnp.float32)
    return Wo.reshape(cfg.n_layer, cfg.n_head, cfg.head_width, cfg.n_embd)


def reading(
    params: Params,
    cfg: GPTConfig,
    examples: Examples | None,
    *,
    granularity: str,
    component: str,
    metric: str,
    unit: str = NO_UNIT,
    positions: str = "all",
) -> Definition:
    """The definition of what is read from the intact model, each component alone; without examples, of its weights."""
    return Definition(
        granularity=granularity,
        component=component,
        value="-",
        positions=positions,
        direction="read",
        set="each alone",
        metric=metric,
        unit=unit,
        examples=0 if examples is None else len(examples.ids),
        seed=None,
        model=model_fingerprint(params, cfg),
        data="-" if examples is None else data_fingerprint(examples.asked),
        ordered=examples is not None and examples.ordered,
    )
