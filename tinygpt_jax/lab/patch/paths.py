"""Path patching: what one head passes to another directly (Wang et al. 2022; Goldowsky-Dill et al. 2023).

The sender's output is changed on its way to one receiver only: through the residual stream into the receiver's queries,
keys or values, past every head between, which are as in the run patched into. What follows the receiver is computed
anew. The MLPs between sender and receiver can be treated in two ways, and results differ: `recomputed`, they read the
change and pass it on, as in Wang et al. (a direct path is any through residual connections and MLPs); or `frozen`, they
are as in the run patched into, so that the path is the residual stream alone (one edge of Goldowsky-Dill et al.).
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.forward_pass import site_hook
from tinygpt_jax.lab.components import all_heads, head_name
from tinygpt_jax.lab.metrics import Data, MetricLike
from tinygpt_jax.lab.order import Changes, changes_of, closing_of, order_of
from tinygpt_jax.lab.patch.contrast import Contrast, Measured, Pair, in_chunks, is_one, make_contrast
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import Site, default_positions, linear, norm, transformer_block, unembed, untouched
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import mean_and_se, ratio_and_se

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


@of_model
def path_patch(
    params: Params,
    clean: Data,
    corrupted: Data,
    cfg: GPTConfig,
    inputs: Sequence[str] = INPUTS,
    direction: str = "denoise",
    *,
    metric: MetricLike = "loss",
    mlps: str = MLPS[0],
    positions: Sequence[int] | None = None,
    tokens_at_once: int | None = None,
) -> Paths:
    """Patches every direct path from a head to a head of a later layer.

        paths = tg.path_patch(params, clean, corrupted, cfg, inputs="k", direction="noise")

    Args:
        inputs: which of the receiver's q, k and v
        mlps: `recomputed`, MLPs between sender and receiver pass the change on, as in the paper that the method is
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
    if check(cfg).n_layer < 2 or not cfg.residual:
        raise UserError("no direct path leads from head to head: the model needs two layers and a residual stream")
    runs = make_contrast(
        params, clean, corrupted, cfg, direction, metric, positions=positions, tokens_at_once=tokens_at_once
    )
    which, sender, receiver = places = _all_paths(cfg, len(inputs))
    layer, head = np.divmod(np.arange(cfg.n_layer * cfg.n_head, dtype=np.int32), np.int32(cfg.n_head))

    def program(pair: Pair, few: Path, at_layer: int) -> jax.Array:
        return _by_path(pair, few, np.int32(at_layer), inputs, mlps)

    paths = Path(which, layer[sender], head[sender], head[receiver])
    found = in_chunks(runs, paths, layer[receiver], ("z", "attn_out"), program)
    return _result(runs, found, places, inputs, mlps)


def _all_paths(cfg: GPTConfig, inputs: int) -> np.ndarray:
    """(3, N) int32: the input, the sender and the receiver of each path, heads by number."""
    heads = range(cfg.n_layer * cfg.n_head)
    every = itertools.product(range(inputs), heads, heads)
    forwards = [one for one in every if one[1] // cfg.n_head < one[2] // cfg.n_head]
    return np.array(forwards, np.int32).T


def _result(runs: Contrast, found: Measured, places: np.ndarray, inputs: tuple[str, ...], mlps: str) -> Paths:
    """The result of what was measured path by path."""
    names = tuple(head_name(*one) for one in all_heads(runs.lab.cfg))
    per_example, span, ordered = found.patched - found.base, found.other - found.base, runs.lab.ordered

    def square(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(inputs), len(names), len(names)), np.nan)
        whole[tuple(places)] = values
        return whole

    effects = mean_and_se(per_example, ordered)
    shares = ratio_and_se(per_example.T, span[:, None], ordered)
    definition = runs.definition(
        granularity="path", component=", ".join(inputs), set="each path alone", flags=(f"MLPs between {mlps}",)
    )
    effect, se, share, share_se = map(square, (*effects, *shares))
    return Paths(definition, inputs, names, effect, se, share, share_se, found.base, found.other)


@functools.partial(jax.jit, static_argnames=("inputs", "mlps"))
def _by_path(pair: Pair, paths: Path, receiver: jax.Array, inputs: tuple[str, ...], mlps: str) -> jax.Array:
    """(paths, B): the metric of the base run with each path, all to heads of layer `receiver`, patched."""
    params, cfg, (base, other) = pair.lab.params, pair.lab.cfg, (pair.base.taps, pair.other.taps)
    pos = default_positions(*pair.ids.shape)
    Wo = params["blocks"]["Wo"].reshape(cfg.n_layer, cfg.n_head, cfg.head_width, cfg.n_embd)
    change = jnp.where(pair.lab.acts[:, None] > 0, other["z"] - base["z"], 0)
    before = base["resid_pre"][receiver]

    def run(x: jax.Array, layer: jax.Array, at: Site) -> jax.Array:
        p = jax.tree.map(lambda a: a[layer], params["blocks"])
        return transformer_block(x, p, cfg.n_head, cfg=cfg, pos=pos, at=at)

    def arriving(path: Path) -> jax.Array:
        """The residual stream at the receiver's layer with the sender's change in it, every other head as it was."""
        write = linear(change[path.sender_layer, :, path.sender_head], Wo[path.sender_layer, path.sender_head])
        if mlps == "frozen":
            return before + write

        def held(layer: jax.Array, x: jax.Array) -> jax.Array:
            written = base["attn_out"][layer] + jnp.where(layer == path.sender_layer, write, 0)
            return run(x, layer, lambda name, x: written if name == "attn_out" else x)

        return jax.lax.fori_loop(0, receiver, held, base["resid_pre"][0])

    def value(path: Path) -> jax.Array:
        tap, received = site_hook({}, inputs)
        run(arriving(path), receiver, tap)  # of which only the inputs are wanted, and the compiler drops the rest

        def at(name: str, x: jax.Array) -> jax.Array:
            if name not in inputs:
                return x
            here = (path.input == inputs.index(name)) & is_one(path.receiver_head, cfg.n_head)
            return jnp.where(here[:, None, None], received[name], x)

        x = run(before, receiver, at)
        tail = jax.lax.fori_loop(receiver + 1, cfg.n_layer, lambda layer, x: run(x, layer, untouched), x)
        return pair.metric(unembed(params, norm(tail, params, "lnf", cfg), cfg))

    return jax.vmap(value)(paths)
