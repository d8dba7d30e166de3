"""The engine of every ablation: many sets of heads and MLPs switched off, one compiled program.

A set is a pair of masks, which are data. Its forward pass starts at the first layer it touches, from the intact model's
residual stream: of that layer only the change in the heads' outputs, times `Wo`, and the MLP are computed anew.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.intervention import Fill, Gates, Held, Lab
from tinygpt_jax.lab.read.readout import norm_scale
from tinygpt_jax.measure import free_memory
from tinygpt_jax.model import default_positions, linear, merge_heads, norm, transformer_block, unembed
from tinygpt_jax.params import Params
from tinygpt_jax.training.loss import LOGITS_AT_ONCE

CAPACITY = 256
"""Masks in one call of the compiled program; fewer are padded with ones that are not run."""
TOKENS_AT_ONCE = {"cpu": 2**12}  # activations should fit a CPU's caches
TOKENS_AT_ONCE_ELSEWHERE = 2**17
SHARE_OF_MEMORY = 0.25
"""Of what is free."""


class Intact(NamedTuple):
    """What the intact model did, all layers: where the edited runs start, and what is held."""

    taps: dict[str, jax.Array]
    lnf_scale: jax.Array | None
    logits: jax.Array
    """(B, T, V)"""


def sweep(lab: Lab, gates: Gates) -> np.ndarray:
    """The metric of every example under every mask, (N, B) float32, for gates with one leading axis N that
    `check_gates` has passed."""
    how, N, (B, T) = lab.intervention, len(gates.heads), lab.examples.ids.shape
    rows, lanes = extent(lab.cfg, N, B, T, how.tokens_at_once, how.mesh)
    first = first_layers(gates)
    order = np.argsort(first, kind="stable")
    per_call = -(-CAPACITY // lanes) * lanes
    calls = [(i, order[j : j + per_call]) for i in range(0, B, rows) for j in range(0, N, per_call)]
    values = np.empty((N, B), np.float32)
    for done, (i, chosen) in enumerate(calls):
        how.progress(done, len(calls))
        padded = np.pad(chosen, (0, per_call - len(chosen)), mode="edge").reshape(-1, lanes)
        few = Gates(*(np.asarray(a, np.float32)[padded] for a in gates))
        starts = first[padded].min(-1).astype(np.int32)
        part, few = spread(lab_rows(lab, i, rows), few, how.mesh)
        found = _run(part, few, starts, np.int32(-(-len(chosen) // lanes)))
        values[chosen, i : i + rows] = np.asarray(found).reshape(per_call, rows)[: len(chosen), : B - i]
    how.progress(len(calls), len(calls))
    return values


@jax.jit
def _run(lab: Lab, gates: Gates, starts: jax.Array, n: jax.Array) -> jax.Array:
    """(n_chunks, lanes, B): the metric under gates (n_chunks, lanes, ...), of which the first n chunks are run, each
    from the layer in `starts` on."""
    intact = run_intact(lab.params, lab.examples.ids, lab.cfg, lab.held)
    lab = with_donors(lab, intact)

    def chunk(i, values):
        few = jax.tree.map(lambda a: a[i], gates)
        return values.at[i].set(jax.vmap(lambda gates: edited_metric(lab, intact, gates, starts[i]))(few))

    empty = jnp.zeros((*gates.mlps.shape[:2], len(lab.examples.ids)), jnp.float32)
    return jax.lax.fori_loop(0, n, chunk, empty)


def run_intact(params: Params, ids: jax.Array, cfg: GPTConfig, held: Held) -> Intact:
    """A plain forward pass that keeps what the edited ones start from."""
    sites = ["resid_pre", "resid_post", "attn_out", "z"]
    sites += ["mlp_out"] * bool(cfg.mlp_width) + ["pattern"] * held.patterns
    if held.norms and cfg.norm != "none":
        sites += ["ln1_scale", "ln2_scale"][: 2 if cfg.mlp_width else 1]
    hidden = hidden_states(params, ids, cfg, taps=sites)
    lnf_scale = norm_scale(params, hidden.taps["resid_post"][-1], cfg)[..., None] if held.norms else None
    return Intact(hidden.taps, lnf_scale, unembed(params, hidden.x, cfg))


def with_donors(lab: Lab, intact: Intact) -> Lab:
    """The lab whose fill has the donors' activations in it, where there are any."""
    if lab.donors is None:
        return lab
    taps = intact.taps
    if lab.donors.ids is not None:
        taps = run_intact(lab.params, lab.donors.ids, lab.cfg, Held()).taps
    heads, mlps = taps["z"].astype(jnp.float32), taps.get("mlp_out", jnp.zeros(1)).astype(jnp.float32)
    share = lab.donors.share[:, None, None]
    fill = Fill(lab.fill.heads + share[..., None] * heads, lab.fill.mlps + share * mlps)
    return dataclasses.replace(lab, fill=fill, donors=None)


def edited_metric(lab: Lab, intact: Intact, gates: Gates, start: jax.Array | int) -> jax.Array:
    """The metric (B,) of `run_edited`, which has the same arguments."""
    return lab.metric.values(run_edited(lab, intact, gates, start), lab.examples, intact.logits)


def run_edited(lab: Lab, intact: Intact, gates: Gates, start: jax.Array | int) -> jax.Array:
    """Logits (B, T, V) under gates (L, H) and (L,) that are open before layer `start`; where that is an int, with
    reverse-mode derivatives."""
    params, cfg = lab.params, lab.cfg
    B, T, _ = intact.taps["resid_pre"].shape[1:]
    pos = default_positions(B, T)

    def block(layer: Any, x: jax.Array, first: bool) -> jax.Array:
        p, taps, fill, gate = jax.tree.map(lambda a: a[layer], (params["blocks"], intact.taps, lab.fill, gates))

        def at(site: str, x: jax.Array) -> jax.Array:
            if site == "attn_out" and first:  # in terms of the intact z: all before it is left out by the compiler
                change = replaced(taps["z"], gate.heads[:, None, None], fill.heads, lab.acts) - taps["z"]
                return taps["attn_out"] + linear(merge_heads(change), p["Wo"])
            if site == "z" and not first:
                return replaced(x, gate.heads[:, None, None], fill.heads, lab.acts)
            if site == "mlp_out":
                return replaced(x, gate.mlps, fill.mlps, lab.acts)
            is_held = (lab.held.patterns and site == "pattern") or (lab.held.norms and site.endswith("_scale"))
            return taps[site] if is_held else x

        return transformer_block(x, p, cfg.n_head, cfg=cfg, pos=pos, at=at)

    x = block(start, intact.taps["resid_pre"][start], True)
    x = jax.lax.fori_loop(start + 1, cfg.n_layer, lambda layer, x: block(layer, x, False), x)

    def at_end(site: str, scale: jax.Array) -> jax.Array:
        return scale if intact.lnf_scale is None else intact.lnf_scale

    return unembed(params, norm(x, params, "lnf", cfg, at_end), cfg)


def replaced(x: jax.Array, gate: jax.Array, fill: jax.Array, acts: jax.Array) -> jax.Array:
    """`x * g + (1 - g) * fill` for x (..., T, width), with g the gate where it acts (T,) and 1 elsewhere."""
    off = ((1 - gate) * acts[:, None]).astype(x.dtype)
    return x * (1 - off) + off * fill.astype(x.dtype)


# How much at once, and where


def extent(
    cfg: GPTConfig, N: int, B: int, T: int, tokens_at_once: int | None, mesh: jax.sharding.Mesh | None
) -> tuple[int, int]:
    """Examples and masks that are run at once: as many as keep the device busy, if the memory at hand has room."""
    tokens = tokens_at_once or min(
        TOKENS_AT_ONCE.get(jax.default_backend(), TOKENS_AT_ONCE_ELSEWHERE),
        LOGITS_AT_ONCE // cfg.padded_vocab_size,
        SHARE_OF_MEMORY * free_memory() / bytes_per_token(cfg, T),
    )
    tokens = max(1, int(tokens))
    parts = dict(mesh.shape) if mesh is not None else {}
    row_parts, lane_parts = parts.get("examples", 1), parts.get("masks", 1)
    rows = min(max(1, tokens // T), -(-B // row_parts)) * row_parts
    lanes = min(max(1, tokens * row_parts // (rows * T)), -(-N // lane_parts)) * lane_parts
    return rows, lanes


def bytes_per_token(cfg: GPTConfig, T: int) -> int:
    """What a token of a sweep holds at most: activations of the widest places of a block, its logits and their
    softmax, and the intact run's residual stream, attention output and `z` in every layer, in float32."""
    block = 8 * cfg.n_embd + 2 * cfg.mlp_width + 3 * cfg.n_head * T
    return 4 * (block + 3 * cfg.padded_vocab_size + 4 * cfg.n_layer * cfg.n_embd)


def rows_of_all_layers(cfg: GPTConfig, B: int, T: int, tokens_at_once: int | None) -> int:
    """Examples at once where what every layer computes is kept, as for a backward pass."""
    rows, lanes = extent(cfg, cfg.n_layer, B, T, tokens_at_once, None)
    return max(1, rows * lanes // cfg.n_layer)


def spread(lab: Lab, gates: Gates, mesh: jax.sharding.Mesh | None) -> tuple[Lab, Gates]:
    """The same arrays, placed on the mesh: masks by lane, examples by row."""
    if mesh is None:
        return lab, gates
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(mesh.devices, mesh.axis_names)  # whose axes the compiler may lay out as it likes

    def lay(tree: Any, axis: int, name: str) -> Any:
        def one(array: Any) -> jax.Array:
            split = name in mesh.shape and array.shape[axis] > 1
            spec = PartitionSpec(*[None] * axis, name) if split else PartitionSpec()
            return jax.device_put(array, NamedSharding(mesh, spec))

        return jax.tree.map(one, tree)

    examples, donors = lay((lab.examples, lab.donors), 0, "examples")
    lab = dataclasses.replace(lab, examples=examples, donors=donors, fill=lay(lab.fill, 1, "examples"))
    return lab, lay(gates, 1, "masks")


def first_layers(gates: Gates) -> np.ndarray:
    """(N,) the first layer each mask touches; the last one where it touches none."""
    touched = (np.asarray(gates.heads) != 1).any(-1) | (np.asarray(gates.mlps) != 1)
    return np.where(touched.any(-1), touched.argmax(-1), touched.shape[-1] - 1)


def check_gates(gates: Gates, cfg: GPTConfig) -> None:
    """Raises UserError for gates of the wrong shape or with values that are not finite."""
    N = len(gates.heads) if np.ndim(gates.heads) else 0
    for name, array, shape in (
        ("heads", gates.heads, (N, cfg.n_layer, cfg.n_head)),
        ("mlps", gates.mlps, (N, cfg.n_layer)),
    ):
        if np.shape(array) != shape or not N:
            raise UserError(
                f"gates.{name} have shape {np.shape(array)}: must be (masks, {', '.join(map(str, shape[1:]))})"
            )
        if not np.isfinite(array).all():
            raise UserError(f"gates.{name} hold a value that is not finite: use 0 for off and 1 for on")


def lab_rows(lab: Lab, start: int, rows: int) -> Lab:
    """The lab with the examples that `padded_rows` takes, and their fills and donors."""
    examples, donors = padded_rows((lab.examples, lab.donors), start, rows)
    fill = Fill(*(a if a.shape[1] == 1 else padded_rows(a, start, rows, axis=1) for a in lab.fill))
    return dataclasses.replace(lab, examples=examples, donors=donors, fill=fill)


def counted_rows(start: int, rows: int, B: int) -> np.ndarray:
    """(rows,) float32: 1 for those of `padded_rows` that are among B examples, 0 for those past their end."""
    return (np.arange(start, start + rows) < B).astype(np.float32)


def padded_rows(tree: Any, start: int, rows: int, axis: int = 0) -> Any:
    """`rows` places of an axis from `start` on, in every array; past its end the last one again."""

    def take(array: Any) -> np.ndarray:
        array = np.asarray(array)
        return array.take(np.minimum(np.arange(start, start + rows), array.shape[axis] - 1), axis)

    return jax.tree.map(take, tree)
