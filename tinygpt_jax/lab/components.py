"""Which parts of a model are switched off together, and what they are called: `0.2` is head 2 of layer 0, `mlp1` the
MLP of layer 1, `heads1` all its heads, `layer1` both."""

import itertools
import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.intervention import Fill, Gates, open_gates, zero_fill

FAMILIES = ("heads", "mlps", "layers", "keep-one")
Component = Annotated[str | tuple[int, int], "a component such as '0.2' or (0, 2)"]
"""`0.2` or (0, 2) for a head; `mlp1`, `heads1`, `layer1`."""
SetsLike = Annotated[
    str | Sequence[Component | Sequence[Component]],
    f"one of {', '.join(FAMILIES)}, or a list: each must be a component such as '0.2' or (0, 2), or a list of them",
]


class Sets(NamedTuple):
    """N sets of components, and how to speak of them."""

    gates: Gates
    """(N, L, H) and (N, L)"""
    over: tuple[str, ...]
    """the axes that N unfolds to: (layer, head), (layer,) or (set,)"""
    names: tuple[str, ...]
    granularity: str
    component: str
    direction: str
    set: str


def head_name(layer: int, head: int) -> str:
    return f"{layer}.{head}"


def all_heads(cfg: GPTConfig) -> list[tuple[int, int]]:
    """Every (layer, head), layer by layer."""
    return list(itertools.product(range(cfg.n_layer), range(cfg.n_head)))


def make_sets(sets: SetsLike, cfg: GPTConfig) -> Sets:
    """The sets of a family: `heads`, `mlps` and `layers` each alone, `keep-one` (each head with the others of its layer
    switched off); or a list of sets, each a component or a list of them.

    Raises:
        UserError: there is no such family, layer, head or MLP; or one is in a set twice.
    """
    cfg = check(cfg)
    if isinstance(sets, str) and sets in FAMILIES:
        return _family(sets, cfg)
    if isinstance(sets, str):
        raise UserError(
            f"sets is {sets!r}: must be one of {', '.join(FAMILIES)}, or a list of components such as '0.2'"
        )
    listed: list[list[Any]] = [[one] if isinstance(one, str) or _is_head(one) else list(one) for one in sets]
    if not listed or not all(listed):
        raise UserError("sets hold no component: name at least one in each set, such as '0.2'")
    gates = open_gates(cfg, len(listed))
    for i, components in enumerate(listed):
        for component in components:
            heads, mlps = places(component, cfg)
            if any(gates.heads[i][head] == 0 for head in heads) or (gates.mlps[i, mlps] == 0).any():
                raise UserError(f"set {_set_name(components)}: {_set_name([component])} is in it already; name it once")
            for head in heads:
                gates.heads[i][head] = 0
            gates.mlps[i, mlps] = 0
    names = tuple(map(_set_name, listed))
    sites = "z" if (gates.mlps == 1).all() else "mlp_out" if (gates.heads == 1).all() else "z, mlp_out"
    return Sets(gates, ("set",), names, "set", sites, "remove", "; ".join(names))


@checked
def switched_off(components: Sequence[Component], cfg: GPTConfig, fill: Fill | None = None) -> dict[str, Edit]:
    """Edits that switch components off in any forward pass, such as that of `generate(..., edits=...)`; `fill` takes
    their place, zero unless given. Sampling wants one that is the same for all examples and positions.

        tg.generate(model, "It was", edits=tg.switched_off(["0.2", "mlp1"], model.cfg))
    """
    gates, fill = make_sets([components], cfg).gates, fill or zero_fill(cfg)
    keep = {
        "z": jnp.asarray(gates.heads[0])[:, None, :, None, None],
        "mlp_out": jnp.asarray(gates.mlps[0])[:, None, None, None],
    }
    adds = {"z": fill.heads, "mlp_out": fill.mlps}
    return {site: Edit(k, (1 - k) * adds[site]) for site, k in keep.items() if (k != 1).any()}


def places(component: Component, cfg: GPTConfig) -> tuple[list[tuple[int, int]], list[int]]:
    """The heads, as (layer, head), and the MLPs, by layer, that one component stands for."""
    if _is_head(component):
        component = head_name(*component)
    found = re.fullmatch(r"(\d+)\.(\d+)|(mlp|heads|layer)(\d+)", component) if isinstance(component, str) else None
    if not found:
        raise UserError(f"component {component!r} is unknown: write 0.2 for head 2 of layer 0, or mlp1, heads1, layer1")
    layer, head = int(found[1] or found[4]), int(found[2] or 0)
    if layer >= cfg.n_layer:
        raise UserError(f"component {component!r}: there is no layer {layer}, the model has 0 to {cfg.n_layer - 1}")
    if head >= cfg.n_head:
        raise UserError(f"component {component!r}: there is no head {head}, a layer has 0 to {cfg.n_head - 1}")
    kind = found[3] or "head"
    if kind == "mlp" and not cfg.mlp_width:
        raise UserError(f"component {component!r}: the model has no MLPs (mlp_ratio is 0)")
    heads = {"head": [(layer, head)], "mlp": []}.get(kind, [(layer, h) for h in range(cfg.n_head)])
    return heads, [layer] if kind == "mlp" or (kind == "layer" and cfg.mlp_width) else []


def _family(family: str, cfg: GPTConfig) -> Sets:
    L, H = cfg.n_layer, cfg.n_head
    if family in ("heads", "keep-one"):
        gates = open_gates(cfg, L * H)
        layer, head = np.divmod(np.arange(L * H), H)
        if family == "keep-one":
            gates.heads[np.arange(L * H), layer] = 0
        gates.heads[np.arange(L * H), layer, head] = float(family == "keep-one")
        names = tuple(head_name(*one) for one in all_heads(cfg))
        if family == "heads":
            return Sets(gates, ("layer", "head"), names, "head", "z", "remove", "each alone")
        return Sets(gates, ("layer", "head"), names, "head", "z", "keep", "one kept in its layer, other layers whole")
    if family == "mlps" and not cfg.mlp_width:
        raise UserError("sets is 'mlps', but the model has none (mlp_ratio is 0): ask for heads or layers")
    gates = open_gates(cfg, L)
    gates.mlps[np.arange(L), np.arange(L)] = 0 if cfg.mlp_width else 1
    if family == "layers":
        gates.heads[np.arange(L), np.arange(L)] = 0
    granularity, word = family.removesuffix("s"), {"mlps": "mlp", "layers": "layer"}[family]
    sites = {"mlps": "mlp_out", "layers": "z, mlp_out" if cfg.mlp_width else "z"}[family]
    return Sets(gates, ("layer",), tuple(f"{word}{i}" for i in range(L)), granularity, sites, "remove", "each alone")


def check_apart(sets: Sets) -> None:
    """Raises UserError where two sets have a part in common, which would then count for both."""
    for part in (sets.gates.heads.reshape(len(sets.names), -1), sets.gates.mlps):
        for place in np.flatnonzero((part == 0).sum(0) > 1):
            one, other, *_ = np.flatnonzero(part[:, place] == 0)
            raise UserError(f"{sets.names[one]} and {sets.names[other]} overlap: each part may be in one of them only")


def _set_name(components: Sequence[Any]) -> str:
    return "+".join(c if isinstance(c, str) else head_name(*c) for c in components)


def _is_head(component: Any) -> bool:
    return (
        isinstance(component, tuple) and len(component) == 2 and all(isinstance(i, int | np.integer) for i in component)
    )
