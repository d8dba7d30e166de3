"""What measurements of a block's pieces leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tinygpt_jax.lab.result import Result


@dataclass(frozen=True, eq=False)
class PositionTables(Result):
    """What tells positions apart: the model's own table, where it has one, and the sinusoids beside it."""

    sinusoidal: np.ndarray
    """(T, C) what is added to the embedding of a model with sinusoidal positions"""
    learned: np.ndarray | None
    """(T, C) `pos_emb`, which is added to the embedding"""
    rotary: np.ndarray | None
    """(T, K) the cosines and then the sines by which the K/2 pairs of a query or key are turned"""
    positions: str
    """which of them the model uses"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sinusoidal": ("position", "channel"),
        "learned": ("position", "channel"),
        "rotary": ("position", "factor"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        pairs = range(size // 2)
        return [*(f"cos {i}" for i in pairs), *(f"sin {i}" for i in pairs)] if axis == "factor" else range(size)


@dataclass(frozen=True, eq=False)
class NormRows(Result):
    """One text before, within and after a layer's first norm."""

    mean: np.ndarray
    """(S, T) of each row, over channels"""
    deviation: np.ndarray
    """(S, T) its standard deviation"""
    size: np.ndarray
    """(S, T) its root mean square"""
    values: np.ndarray
    """(S, T, C)"""
    stages: tuple[str, ...]
    """S = 3 names: `before`, `normalised`, and after the gain and, where there is one, the shift"""
    tokens: tuple[str, ...]
    """T tokens as text"""
    layer: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("mean", "deviation", "size"), ("stage", "position")),
        "values": ("stage", "position", "channel"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.stages if axis == "stage" else range(size)


@dataclass(frozen=True, eq=False)
class HeadSplit(Result):
    """The queries of one layer on one text, and the shapes on the way through its attention."""

    queries: np.ndarray
    """(T, H, K), before rotary positions where the model has them"""
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    """(what, its shape), in order"""
    layer: int

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {"queries": ("position", "head", "channel")}


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

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.stages


@dataclass(frozen=True, eq=False)
class ResidualWrites(Result):
    """How large the residual stream is after the embedding and each block, and what attention and MLPs write."""

    rms: np.ndarray
    """(N,) root mean square over tokens, channels and examples"""
    se: np.ndarray
    """(N,) its standard error over examples"""
    per_example: np.ndarray
    """(N, B) root mean square over tokens and channels"""
    names: tuple[str, ...]
    """N names: `embedding`, then of each layer `attention 0`, `MLP 0` where it has one, `after block 0`"""
    kinds: tuple[str, ...]
    """of each: `stream`, `attention` or `MLP`"""

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "rms": ("site",),
        "se": ("site",),
        "per_example": ("site", "example"),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        return self.names if axis == "site" else range(size)
