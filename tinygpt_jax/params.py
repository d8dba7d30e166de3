"""The parameter tree: one declaration per parameter, from which everything else about it is derived."""

import functools
import math
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.arguments import Given, P, bound
from tinygpt_jax.checks import check, check_model
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, shown

Params = dict[str, Any]
INIT_STD = 0.02  # GPT-2's
SEEN_STD = 10 * INIT_STD
HEAD_AXES = ("head", "heads")
"""Axes of which pruning leaves less: one place a head, and K places a head."""
BEFORE_HEADS = ("ln1g", "ln1b")
"""What a layer without heads has no use for either."""


class ParamSpec(NamedTuple):
    """What is fixed about one parameter before it has values."""

    axes: tuple[str, ...]
    """Logical axis names, outermost first; `layer` leads in every block leaf. They also name the sharding. In a pruned
    model each layer has leaves of its own, without that axis, and its heads' axis bears its number: `heads.0`."""
    init: str
    """`normal`, `residual` (normal, scaled down by the number of residual writes), `seen` (normal, too large to be lost
    beside sinusoidal positions), `ones` or `zeros`."""
    decay: bool
    """Whether weight decay applies."""


def axis_sizes(cfg: GPTConfig) -> dict[str, int]:
    """The size of each logical axis."""
    return {
        "vocab": cfg.padded_vocab_size,
        "position": cfg.block_size,
        "layer": cfg.n_layer,
        "embed": cfg.n_embd,
        "head": cfg.n_head,
        "heads": cfg.n_embd,  # H·K, head-major: sharding it splits whole heads
        "mlp": cfg.mlp_width,
        **{f"head.{layer}": len(kept) for layer, kept in enumerate(cfg.heads)},
        **{f"heads.{layer}": len(kept) * cfg.head_width for layer, kept in enumerate(cfg.heads)},
    }


def param_specs(cfg: GPTConfig) -> dict[str, Any]:
    """The specs of a model's parameters, in the tree that holds them; UserError where `cfg` makes no sense."""
    cfg = check(cfg)

    def vector(axis: str, init: str = "zeros") -> ParamSpec:
        return ParamSpec(("layer", axis), init, decay=False)

    def matrix(rows: str, columns: str, init: str = "normal") -> ParamSpec:
        return ParamSpec(("layer", rows, columns), init, decay=True)

    has_scale, has_shift = cfg.norm != "none", cfg.norm == "layernorm"
    has_mlp = cfg.mlp_width > 0
    blocks = {
        "ln1g": vector("embed", "ones") if has_scale else None,
        "ln1b": vector("embed") if has_shift else None,
        "Wq": matrix("embed", "heads"),
        "Wk": matrix("embed", "heads"),
        "Wv": matrix("embed", "heads"),
        "Wo": matrix("heads", "embed", "residual"),
        "bq": vector("heads") if cfg.attn_bias else None,
        "bk": vector("heads") if cfg.attn_bias else None,
        "bv": vector("heads") if cfg.attn_bias else None,
        "bo": vector("embed") if cfg.attn_bias else None,
        "smear": vector("head") if cfg.smeared_keys else None,
        "ln2g": vector("embed", "ones") if has_scale and has_mlp else None,
        "ln2b": vector("embed") if has_shift and has_mlp else None,
        "W1": matrix("embed", "mlp") if has_mlp else None,
        "b1": vector("mlp") if has_mlp else None,
        "W2": matrix("mlp", "embed", "residual") if has_mlp else None,
        "b2": vector("embed") if has_mlp else None,
    }
    tree = {
        "tok_emb": ParamSpec(("vocab", "embed"), "seen" if cfg.positions == "sinusoidal" else "normal", decay=True),
        "pos_emb": ParamSpec(("position", "embed"), "normal", decay=True) if cfg.positions == "learned" else None,
        "blocks": _by_layer({name: spec for name, spec in blocks.items() if spec is not None}, cfg),
        "lnfg": ParamSpec(("embed",), "ones", decay=False) if has_scale else None,
        "lnfb": ParamSpec(("embed",), "zeros", decay=False) if has_shift else None,
        "head": None if cfg.tied else ParamSpec(("vocab", "embed"), "normal", decay=True),
    }
    return {name: spec for name, spec in tree.items() if spec is not None}


def _by_layer(blocks: dict[str, ParamSpec], cfg: GPTConfig) -> dict[str, ParamSpec] | tuple[dict[str, ParamSpec], ...]:
    """The specs of stacked blocks as they are, or of a pruned model's: a tuple of L trees, each of its own width, in
    which a layer without heads has no array that would be empty."""

    def own(spec: ParamSpec, layer: int) -> ParamSpec:
        return spec._replace(axes=tuple(f"{a}.{layer}" if a in HEAD_AXES else a for a in spec.axes[1:]))

    if not cfg.heads:
        return blocks
    headless = {n: s for n, s in blocks.items() if n not in BEFORE_HEADS and not {*s.axes} & {*HEAD_AXES}}
    return tuple(
        {name: own(spec, layer) for name, spec in (blocks if kept else headless).items()}
        for layer, kept in enumerate(cfg.heads)
    )


def map_specs(f: Callable[[ParamSpec], Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of `f(spec)` in the shape of the parameters."""
    return jax.tree.map(f, dict(specs), is_leaf=lambda node: isinstance(node, ParamSpec))


def param_shapes(cfg: GPTConfig) -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct` leaves."""
    specs, sizes = param_specs(cfg), axis_sizes(cfg)
    return map_specs(lambda spec: jax.ShapeDtypeStruct(tuple(sizes[a] for a in spec.axes), jnp.float32), specs)


def decay_mask(cfg: GPTConfig) -> dict[str, Any]:
    """True where weight decay applies: decided by name, since a stacked bias has two axes like a matrix."""
    return map_specs(lambda spec: spec.decay, param_specs(cfg))


def init_params(key: jax.Array, cfg: GPTConfig) -> Params:
    """Fresh float32 parameters.

    Weights from N(0, 0.02), projections into the residual stream scaled by 1/sqrt(2 L) (GPT-2, section 2.3),
    biases zero, norm scales one. A token embedding that sinusoids of size 0.7 are added to is ten times as large: at
    0.02 it is lost beside them (experiments/positions). Each parameter's key is folded from its own name, so that
    adding or dropping one leaves the others' values alone; a pruned model starts as the whole one does.

    Raises UserError where `cfg` makes no sense.
    """
    cfg = check(cfg)
    scale = {"normal": INIT_STD, "residual": INIT_STD / math.sqrt(2 * cfg.n_layer), "seen": SEEN_STD}

    if cfg.heads:
        return without_heads(init_params(key, replace(cfg, heads=())), cfg)

    def init(path: Any, spec: ParamSpec, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if spec.init == "ones":
            return jnp.ones(shape.shape, shape.dtype)
        if spec.init == "zeros":
            return jnp.zeros(shape.shape, shape.dtype)
        name_key = jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode()) & 0x7FFFFFFF)
        flat = jax.random.normal(name_key, (math.prod(shape.shape),), shape.dtype)  # the same numbers, sooner compiled
        return scale[spec.init] * flat.reshape(shape.shape)

    return jax.tree_util.tree_map_with_path(
        init, param_specs(cfg), param_shapes(cfg), is_leaf=lambda node: isinstance(node, ParamSpec)
    )


# Pruned models


def without_heads(params: Params, cfg: GPTConfig) -> Params:
    """The parameters of a whole model without the heads that `cfg.heads` leaves out: a tuple of L trees as `blocks`."""
    specs, blocks = param_specs(replace(cfg, heads=()))["blocks"], params["blocks"]
    return {
        **params,
        "blocks": tuple(
            {name: blocks[name][layer][_kept(specs[name], cfg, layer)] for name in own}
            for layer, own in enumerate(param_specs(cfg)["blocks"])
        ),
    }


def whole(params: Params, cfg: GPTConfig) -> tuple[Params, GPTConfig]:
    """The same function of the ids as a model that was never pruned: stacked blocks, n_head heads in every layer.

    A head that was pruned is one of zeros, which writes nothing and whose effect is exactly 0; the others keep their
    numbers. What is not pruned comes back as it is. Raises UserError where `cfg` makes no sense.
    """
    cfg = check(cfg)
    if not cfg.heads:
        return params, cfg
    full = replace(cfg, heads=())
    specs, shapes = param_specs(full)["blocks"], param_shapes(full)["blocks"]

    def put(name: str, layer: int) -> jax.Array:
        empty, left = jnp.zeros(shapes[name].shape[1:], shapes[name].dtype), params["blocks"][layer]
        return empty.at[_kept(specs[name], cfg, layer)].set(left[name]) if name in left else empty

    blocks = {name: jnp.stack([put(name, layer) for layer in range(cfg.n_layer)]) for name in specs}
    return {**params, "blocks": blocks}, full


def with_headless(p: Params, cfg: GPTConfig) -> Params:
    """One layer's parameters; where pruning left it no head, with matrices for none, from which no code is made."""
    if "Wq" in p:
        return p
    sizes = axis_sizes(cfg) | dict.fromkeys(HEAD_AXES, 0)
    specs = param_specs(replace(cfg, heads=()))["blocks"]
    return {name: jnp.zeros(tuple(sizes[axis] for axis in spec.axes[1:])) for name, spec in specs.items()} | p


def _kept(spec: ParamSpec, cfg: GPTConfig, layer: int) -> tuple[Any, ...]:
    """Which part of one layer of a whole model's leaf is of heads that pruning left, as an index."""
    heads = np.array(cfg.heads[layer], np.int32)
    columns = (heads[:, None] * cfg.head_width + np.arange(cfg.head_width, dtype=np.int32)).ravel()
    places = {"head": heads, "heads": columns}
    return tuple(places.get(axis, slice(None)) for axis in spec.axes[1:])


def pick(stacked: Any, i: int) -> Any:
    """Part i of a tree of stacked leaves: one layer of the blocks, or one of many models."""
    return jax.tree.map(operator.itemgetter(i), stacked)


def count_params(cfg: GPTConfig) -> int:
    """How many numbers the model holds, padding rows and embeddings included."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(cfg)))


def flops_per_token(cfg: GPTConfig) -> int:
    """Floating-point operations for one trained token: 6 N + 12 L T C, with the heads' width for C in a pruned layer.

    N counts the weights that take part in matrix products: `Wq Wk Wv Wo W1 W2` of each layer, and the output head with
    its padding rows. Each is multiplied and added once per token forward and twice backward (Kaplan et al. 2020,
    section 2.1). Of T keys each query forms T scores and a mean of T values, 2 · 2 T C operations per layer forward and
    twice that backward; the causal half that is masked is computed as well, and so counted. Lookups, norms,
    activations, softmax, loss and optimizer are left out: a few per cent at common sizes.
    """
    width = sum(cfg.heads_per_layer) * cfg.head_width  # L C where nothing is pruned
    N = 4 * cfg.n_embd * width + 2 * cfg.n_layer * cfg.n_embd * cfg.mlp_width + cfg.padded_vocab_size * cfg.n_embd
    return 6 * N + 12 * cfg.block_size * width


def check_params(params: Params, cfg: GPTConfig, where: str = "parameters") -> None:
    """Raises UserError naming the first leaf that is missing, unknown or of another shape or dtype than `cfg` asks for.

    `params` may be a tree or the flat names and leaves that `flatten` gives.
    """
    if not isinstance(params, Mapping):
        raise UserError(f"{where} are a {type(params).__name__}: must be a dict of arrays, as init_params gives it")
    want = dict(flatten(param_shapes(cfg)))
    have = dict(flatten(params))
    for name in sorted(want.keys() ^ have.keys()):
        verb = "lacks" if name in want else "holds the unknown"
        raise UserError(f"{where}: {verb} {shown(name)}: these weights belong to another architecture")
    for name, leaf in want.items():
        shape, dtype = np.shape(have[name]), getattr(have[name], "dtype", type(have[name]).__name__)
        if shape != leaf.shape:
            raise UserError(f"{where}: {name} has shape {shape}, the config asks for {leaf.shape}")
        if dtype != leaf.dtype:
            raise UserError(f"{where}: {name} has dtype {dtype}, parameters are {leaf.dtype}: convert them")


def check_finite(params: Params, where: str = "parameters") -> None:
    """Raises UserError for what `not_finite` finds."""
    if found := not_finite(params):
        raise UserError(f"{where}: {found}: they are damaged, or their training diverged; take others")


def not_finite(tree: Any) -> str:
    """The first leaf of any tree of numbers that holds NaN or an infinity, and where, in words; empty for none."""
    for name, leaf in flatten(tree):
        array = np.asarray(leaf)
        if not np.isfinite(array).all():
            at = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
            return f"{name} holds {array[at]} at {at}"
    return ""


def of_model(function: Callable[P, Given]) -> Callable[P, Given]:
    """A decorator of what measures a model, `function(params, …, cfg, …)`: its arguments are those of `checked`, its
    settings make sense (`check_model`) and its parameters are those that these ask for (`check_params`). Raises
    UserError where one of it does not hold."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Given:
        given = bound(function, *args, **kwargs)
        cfg = given.arguments["cfg"] = check_model(given.arguments["cfg"])
        check_params(given.arguments["params"], cfg)
        return function(*given.args, **given.kwargs)

    return call


def flatten(params: Params) -> list[tuple[str, Any]]:
    """(`blocks.Wq`, leaf) pairs in tree order; `blocks.0.Wq` where each layer has leaves of its own."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]


def unflatten(leaves: Mapping[str, Any], cfg: GPTConfig) -> Params:
    """The tree of which `flatten` gave the leaves, whatever their order."""
    shapes = param_shapes(cfg)
    return jax.tree.unflatten(jax.tree.structure(shapes), [leaves[name] for name, _ in flatten(shapes)])
