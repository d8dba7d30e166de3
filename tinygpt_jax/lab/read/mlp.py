"""What the MLPs of a model do: the inputs of their nonlinearity, and their widths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states, split_layers
from tinygpt_jax.lab.metrics import Data, measurable
from tinygpt_jax.lab.read.lens import parts_of
from tinygpt_jax.lab.read.readout import reading
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import feed_forward, linear, norm
from tinygpt_jax.params import Params, check_finite, of_model
from tinygpt_jax.statistics import ratio_and_se

REACH, BINS = 6.0, 240
"""Inputs of an activation are counted from -REACH to REACH, in bins of which 0 is an edge."""
NAMES = {"gelu": "GELU", "relu": "ReLU"}


@dataclass(frozen=True, eq=False)
class ActivationCurves(Result):
    """The MLP's nonlinearity, and what a model gives it."""

    x: np.ndarray
    """(N,) centres of bins"""
    gelu: np.ndarray
    """(N,) in its tanh form"""
    relu: np.ndarray
    """(N,)"""
    density: np.ndarray
    """(N,) of the inputs of all layers, per unit of x: the share in each bin over its width"""
    density_se: np.ndarray
    """(N,) its standard error over examples"""
    by_layer: np.ndarray
    """(L, N) the density of each layer's"""
    below: np.ndarray
    """(L, B) share of each example's inputs that lie below 0"""
    outside: np.ndarray
    """(L,) share of the inputs that lie beyond the bins"""
    activation: str
    """the model's own"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("x", "gelu", "relu", "density", "density_se"), ("bin",)),
        "by_layer": ("layer", "bin"),
        "below": ("layer", "example"),
        "outside": ("layer",),
    }


@dataclass(frozen=True, eq=False)
class MlpWidths(Result):
    """How wide a layer's MLP is at each stage, and what the step into it takes."""

    width: np.ndarray
    """(S,) numbers for each token"""
    parameters: np.ndarray
    """(S,) of the step that leads here"""
    stages: tuple[str, ...]
    """S names"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {"width": ("stage",), "parameters": ("stage",)}
    PLACES = {"stage": "stages"}


@of_model
def activation_curves(params: Params, examples: Data, cfg: GPTConfig) -> ActivationCurves:
    """GELU (Hendrycks and Gimpel 2016) and ReLU, and where the inputs lie that a model's MLPs give theirs.

    Raises:
        UserError: the model has no MLP, or the examples do not fit it.
    """
    _need_mlp(cfg)
    data = measurable(params, examples, cfg)
    B, width = len(data.ids), 2 * REACH / BINS
    found = [_counted(params, part.ids, cfg) for part in parts_of(data, cfg)]
    counts, below = (np.concatenate([np.asarray(a) for a in some], 1)[:, :B] for some in zip(*found, strict=True))
    inputs = np.full((B, 1), data.ids.shape[1] * cfg.mlp_width, np.float64)  # of one example, in each layer
    density, se = ratio_and_se(counts.sum(0), inputs * cfg.n_layer, data.ordered)
    by_layer = counts.sum(1) / inputs.sum()
    x = (np.arange(BINS) + 0.5) * width - REACH
    gelu, relu = (np.asarray(_activation(x, name), np.float64) for name in ("gelu", "relu"))
    definition = reading(
        params, cfg, data, granularity="layer", component="input of the activation", metric="density of inputs"
    )
    return ActivationCurves(
        definition,
        x,
        gelu,
        relu,
        density / width,
        se / width,
        by_layer / width,
        below / inputs[0],
        1 - by_layer.sum(-1),
        cfg.activation,
    )


def _count_inputs(params: Params, ids: jax.Array, cfg: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """How many inputs of each layer and example lie in each bin, (L, B, N), and below 0, (L, B)."""
    taps = hidden_states(params, ids, cfg, taps=("resid_mid",)).taps["resid_mid"]
    edges = jnp.linspace(-REACH, REACH, BINS + 1, dtype=jnp.float32)
    layers = zip(split_layers(params, cfg)["blocks"], taps, strict=True)
    inputs = jnp.stack([linear(norm(x, p, "ln2", cfg), p["W1"], p["b1"]) for p, x in layers]).astype(jnp.float32)
    L, B = inputs.shape[:2]
    counts = jax.lax.map(lambda h: jnp.histogram(h, edges)[0], inputs.reshape(L * B, -1))
    return counts.reshape(L, B, BINS), (inputs < 0).sum((-2, -1))


_counted = jax.jit(_count_inputs, static_argnames="cfg")


def _activation(x: np.ndarray, name: str) -> jax.Array:
    """The model's own function of numbers (N,): an MLP of width 1 that does nothing else."""
    one, zero = jnp.ones((1, 1), jnp.float32), jnp.zeros(1, jnp.float32)
    return feed_forward(jnp.asarray(x, jnp.float32)[None, :, None], one, zero, one, zero, name)[0, :, 0]


@of_model
def mlp_widths(params: Params, cfg: GPTConfig) -> MlpWidths:
    """How wide a layer's MLP is from stage to stage, and how many parameters each step takes; all layers are alike.

    Raises:
        UserError: the model has no MLP.
    """
    _need_mlp(cfg)
    check_finite(params)
    p = split_layers(params, cfg)["blocks"][0]

    def size(*names: str) -> int:
        return sum(p[name].size for name in names if name in p)

    C, F = p["W1"].shape
    stages = [
        ("residual stream", C, 0),
        ("normalised", C, size("ln2g", "ln2b")),
        ("hidden", F, size("W1", "b1")),
        (f"after {NAMES[cfg.activation]}", F, 0),
        ("written back", C, size("W2", "b2")),
    ]
    names, widths, parameters = zip(*(s for s in stages if s[0] != "normalised" or cfg.norm != "none"), strict=True)
    definition = reading(
        params, cfg, None, granularity="mlp", component="W1, W2", metric="width", unit="numbers; parameters"
    )
    return MlpWidths(definition, np.array(widths), np.array(parameters), names)


def _need_mlp(cfg: GPTConfig) -> None:
    if not check(cfg).mlp_width:
        raise UserError("mlp_ratio is 0: this model has no MLP to show; open one with an mlp_ratio above 0")
