"""Path patching: what one head tells another directly (Wang et al. 2022; Goldowsky-Dill et al. 2023).

The sender's output is changed on its way to one receiver only: through the residual stream into the receiver's queries,
keys or values, past every head between, which are as in the run patched into. What follows the receiver is computed
anew. Of the MLPs between there are two readings, and their results differ: `recomputed`, they hear the sender and pass
it on, as Wang et al. have it (a direct path is any through residual connections and MLPs); or `frozen`, they are as in
the run patched into, so that the path is the residual stream alone (one edge of Goldowsky-Dill et al.).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig, nearest
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import Forward, site_hook
from tinygpt_jax.lab.components import all_heads, head_name
from tinygpt_jax.lab.intervention import Data
from tinygpt_jax.lab.metrics import Metric, MetricLike
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.patch.partners import in_chunks, is_one, make_runs
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import Site, default_positions, linear, norm, transformer_block, unembed, untouched
from tinygpt_jax.params import Params
from tinygpt_jax.statistics import mean_and_se, share_and_se
from tinygpt_jax.text import Examples

INPUTS = ("q", "k", "v")
MLPS = ("recomputed", "frozen")


@dataclass(frozen=True, eq=False)
class Paths(Result):
    """The effect of each direct path from a head to a head, (input, sender, receiver); NaN where none leads, which is
    to a head of the same or an earlier layer."""

    inputs: tuple[str, ...]
    """which of the receiver's inputs the path ends in: q, k, v"""
    names: tuple[str, ...]
    """the P = L H heads, layer by layer: the places along sender and receiver"""
    effect: np.ndarray
    """mean over examples of the metric with the path patched, less that of the run it is put into"""
    se: np.ndarray
    """standard error of `effect` over examples; paired"""
    normalised: np.ndarray
    """`effect` as a share of the whole way: 0 the run patched into, 1 the run the activations are from"""
    normalised_se: np.ndarray
    """standard error of that ratio of means over examples, to first order"""
    baseline: np.ndarray
    """(B,) the metric of the run patched into"""
    donor: np.ndarray
    """(B,) the metric of the run the activations are from"""

    AXES: ClassVar = {
        **dict.fromkeys(("effect", "se", "normalised", "normalised_se"), ("input", "sender", "receiver")),
        **dict.fromkeys(("baseline", "donor"), ("example",)),
    }
    DIFFERENCES = ("effect",)

    def labels(self, axis: str, size: int) -> Sequence[Any]:
        return {"input": self.inputs, "sender": self.names, "receiver": self.names}.get(axis, range(size))

    def present(self) -> np.ndarray:
        """The paths that there are."""
        return np.isfinite(self.effect)

    def changes(self) -> Changes:
        there = np.nonzero(self.present())
        names = [f"{self.names[j]} to {self.names[k]} {self.inputs[i]}" for i, j, k in zip(*there, strict=True)]
        return changes_of(self.definition, names, self.effect[there], self.se[there])

    order, closing = order_of, closing_of


class Path(NamedTuple):
    """Paths to heads of one layer, arrays of N."""

    input: Any
    """its number among the inputs of the program"""
    sender_layer: Any
    sender_head: Any
    receiver_head: Any


def path_patch(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    inputs: Sequence[str] = INPUTS,
    direction: str = "denoise",
    metric: MetricLike = "loss",
    *,
    mlps: str = MLPS[0],
    positions: Sequence[int] | None = None,
    tokens_at_once: int | None = None,
) -> Paths:
    """Patches every direct path from a head to a head of a later layer.

        paths = tg.path_patch(params, clean, corrupted, cfg, inputs="k", direction="noise")

    Args:
        inputs: which of the receiver's q, k and v
        mlps: `recomputed`, MLPs between sender and receiver pass on what they hear, as in the paper that the method is
            from; `frozen`, they stay as they were and the residual stream alone carries it
        positions: the tokens at which the sender's output is changed, by index; default: all
        clean, corrupted, direction, metric, tokens_at_once: as in `patch`

    Raises:
        UserError: as in `patch`; or the model has one layer, or no residual stream; or no such `mlps`.
    """
    inputs = tuple(inputs)
    if mlps not in MLPS:
        raise UserError(f"mlps {mlps!r} is unknown{nearest(str(mlps), MLPS)}")
    if not inputs or not set(inputs) <= set(INPUTS) or len(set(inputs)) < len(inputs):
        raise UserError(f"inputs are {inputs!r}: must be some of {', '.join(INPUTS)}, each once")
    if cfg.n_layer < 2 or not cfg.residual:
        raise UserError("no direct path leads from head to head: the model needs two layers and a residual stream")
    runs = make_runs(params, clean, corrupted, cfg, direction, metric, positions, tokens_at_once)
    heads = all_heads(cfg)
    there = [
        (i, sender, receiver)
        for i, sender, receiver in itertools.product(range(len(inputs)), range(len(heads)), range(len(heads)))
        if heads[sender][0] < heads[receiver][0]
    ]
    which, sender, receiver = np.array(there, np.int32).T
    layer, head = np.divmod(np.arange(len(heads), dtype=np.int32), np.int32(cfg.n_head))

    def program(base: Forward, other: Forward, few: Path, at_layer: int, *asked: Any) -> jax.Array:
        return _by_path(params, base, other, few, np.int32(at_layer), *asked, cfg, runs.lab.metric, inputs, mlps)

    lanes = Path(which, layer[sender], head[sender], head[receiver])
    found = in_chunks(runs, lanes, layer[receiver], ("z", "attn_out"), program)
    per_example = found.patched - found.base

    def laid(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(inputs), len(heads), len(heads)), np.nan)
        whole[which, sender, receiver] = values
        return whole

    ordered, span = runs.lab.ordered, found.other - found.base
    both = (*mean_and_se(per_example, ordered), *share_and_se(per_example, span, ordered))
    effect, se, share, share_se = map(laid, both)
    definition = runs.definition(
        granularity="path", component=", ".join(inputs), set="each path alone", flags=(f"MLPs between {mlps}",)
    )
    names = tuple(head_name(*one) for one in heads)
    return Paths(definition, inputs, names, effect, se, share, share_se, found.base, found.other)


@functools.partial(jax.jit, static_argnums=(8, 9, 10, 11))
def _by_path(
    params: Params,
    base: Forward,
    other: Forward,
    paths: Path,
    receiver: jax.Array,
    acts: jax.Array,
    examples: Examples,
    clean: jax.Array,
    cfg: GPTConfig,
    metric: Metric,
    inputs: tuple[str, ...],
    mlps: str,
) -> jax.Array:
    """(lanes, B): the metric of the base run with each path, all to heads of layer `receiver`, patched."""
    L, H, K, C = cfg.n_layer, cfg.n_head, cfg.head_width, cfg.n_embd
    pos = default_positions(*examples.ids.shape)
    blocks, Wo = params["blocks"], params["blocks"]["Wo"].reshape(L, H, K, C)
    change = jnp.where(acts[:, None], other.taps["z"] - base.taps["z"], 0)
    before = base.taps["resid_pre"][receiver]

    def run(x: jax.Array, layer: jax.Array, at: Site) -> jax.Array:
        return transformer_block(x, jax.tree.map(lambda a: a[layer], blocks), H, cfg, pos, at=at)

    def arriving(path: Path) -> jax.Array:
        """The residual stream at the receiver's layer with what the sender has told, every other head as it was."""
        told = linear(change[path.sender_layer, :, path.sender_head], Wo[path.sender_layer, path.sender_head])
        if mlps == "frozen":
            return before + told

        def held(layer: jax.Array, x: jax.Array) -> jax.Array:
            written = base.taps["attn_out"][layer] + jnp.where(layer == path.sender_layer, told, 0)
            return run(x, layer, lambda name, x: written if name == "attn_out" else x)

        return jax.lax.fori_loop(0, receiver, held, base.taps["resid_pre"][0])

    def value(path: Path) -> jax.Array:
        tap, heard = site_hook({}, inputs)
        run(arriving(path), receiver, tap)  # of which only the inputs are wanted, and the compiler drops the rest

        def at(name: str, x: jax.Array) -> jax.Array:
            if name not in inputs:
                return x
            here = (path.input == inputs.index(name)) & is_one(path.receiver_head, H)
            return jnp.where(here[:, None, None], heard[name], x)

        x = run(before, receiver, at)
        tail = jax.lax.fori_loop(receiver + 1, L, lambda layer, x: run(x, layer, untouched), x)
        return metric.values(unembed(params, norm(tail, params, "lnf", cfg), cfg), examples, clean)

    return jax.vmap(value)(paths)
