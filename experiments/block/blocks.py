"""GELU, the MLP, the block, and blocks on top of each other, a step each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.block.given import TRUTH, Given, Side, Sides, on_each, rms, watcher
from experiments.block.step import Step, agreement, both_sources, drawn, own_source, row
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.figures.curves import draw_residual
from tinygpt_jax.figures.mlp import draw_activation, draw_mlp_widths
from tinygpt_jax.params import Params, pick

POINTS = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
CURVE = np.linspace(-4, 4, 400)
PARTS = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""What a block reads, writes, holds, writes and leaves."""


def exact_gelu(x: np.ndarray) -> np.ndarray:
    """x times the chance that a standard normal number is below it."""
    return x * np.array([0.5 * (1 + math.erf(one / math.sqrt(2))) for one in x])


def read_by_mlp(side: Side, start: Given) -> Any:
    """What the MLP of the first block reads, (B, T, C)."""
    p, (at, seen) = side.layer(), watcher()
    side.pieces.transformer_block(side.x, p, start.cfg.n_head, at=at)
    return side.pieces.layer_norm(seen["resid_mid"][0], p["ln2g"], p["ln2b"])


def gelu_step(every: Sides, start: Given) -> Step:
    values = on_each(every, lambda side: side.pieces.gelu(CURVE.astype(side.x.dtype)))
    gelu, relu = every[TRUTH].pieces.gelu, np.maximum(POINTS, 0)
    short = float(np.abs(values[TRUTH] - exact_gelu(CURVE)).max())
    p = every[TRUTH].layer()
    inputs = every[TRUTH].pieces.linear(read_by_mlp(every[TRUTH], start), p["W1"], p["b1"])
    edges = np.append(CURVE, 2 * CURVE[-1] - CURVE[-2]) - (CURVE[1] - CURVE[0]) / 2
    density = np.histogram(inputs, edges, density=True)[0]
    line, far = agreement(values)
    return Step(
        "GELU beside ReLU",
        "Without something between its two layers that is not linear, the MLP would be one matrix. ReLU cuts off all "
        "below 0. GELU weighs a number by the chance that a normal one is smaller: smooth, and a little below 0 there. "
        "The tanh form comes close to that and is the one GPT-2 uses.",
        both_sources("gelu"),
        (
            f"x                      {row(POINTS)}",
            f"GELU                   {row(gelu(POINTS))}",
            f"ReLU                   {row(relu)}",
            f"tanh form              differs from the exact one by at most {short:.1e} between -4 and 4",
            f"inputs in this block   deviation {inputs.std():.3f}; {100 * (inputs > 0).mean():.0f} % are above 0",
            line,
        ),
        "gelu",
        "GELU and ReLU over their input, and their slopes",
        drawn(
            draw_activation,
            CURVE,
            {"GELU": values[TRUTH], "ReLU": np.maximum(CURVE, 0)},
            slopes={"ReLU": CURVE > 0},
            density=density,
            caption="Shaded: where the inputs of the first block's MLP lie, all windows; height not to scale.",
        ),
        {"apart": far, "tanh_form_differs_by": short, "at_1": float(gelu(np.ones(1))[0])},
    )


def mlp_step(every: Sides, start: Given) -> Step:
    def written(side: Side) -> Any:
        p = side.layer()
        return side.pieces.feed_forward(read_by_mlp(side, start), p["W1"], p["b1"], p["W2"], p["b2"])

    values = on_each(every, written)
    p = every[TRUTH].layer()
    x, out = read_by_mlp(every[TRUTH], start), values[TRUTH]
    hidden = every[TRUTH].pieces.gelu(every[TRUTH].pieces.linear(x, p["W1"], p["b1"]))
    sizes = [p[name].size for name in ("W1", "b1", "W2", "b2")]
    stages = [("read", x.shape[-1], 0), ("hidden", hidden.shape[-1], sum(sizes[:2]))]
    stages += [("written", out.shape[-1], sum(sizes[2:]))]
    line, far = agreement(values)
    return Step(
        "The MLP: wider, then back",
        "After attention has brought numbers from other tokens, the MLP works on each token by itself: out to four "
        "times the width, through GELU, and back. No number crosses from one token to another here.",
        both_sources("feed_forward"),
        (
            f"shapes                 {x.shape} -> {hidden.shape} -> {out.shape}",
            f"weights                {' + '.join(f'{size:,}' for size in sizes)} = {sum(sizes):,}",
            f"root mean square       read {rms(x):.4f}, hidden {rms(hidden):.4f}, written {rms(out):.4f}",
            line,
        ),
        "mlp",
        "the width of the MLP at each stage, to scale",
        drawn(draw_mlp_widths, stages, caption="The MLP of one block; parameters are weights and biases."),
        {"apart": far, "widths": [width for _, width, _ in stages], "parameters": sum(sizes)},
    )


def block_step(every: Sides, start: Given) -> Step:
    def run(side: Side) -> tuple[Any, dict[str, list[Any]]]:
        at, seen = watcher()
        return side.pieces.transformer_block(side.x, side.layer(), start.cfg.n_head, at=at), seen

    values = on_each(every, lambda side: run(side)[0])
    seen = {name: parts[0] for name, parts in run(every[TRUTH])[1].items()}
    sizes = {name: rms(seen[name]) for name in PARTS}
    rest = np.abs(seen["resid_pre"] + seen["attn_out"] + seen["mlp_out"] - seen["resid_post"]).max()
    names, kinds = (
        ["input", "attention", "in between", "MLP", "output"],
        ["stream", "attention", "stream", "MLP", "stream"],
    )
    line, far = agreement(values)
    return Step(
        "The block: two corrections, added",
        "A block never replaces what it reads. Attention and MLP each read a normalised copy and add a correction, so "
        "that the stream, and the gradient on its way back, can pass through unchanged. Norms before the layers and "
        "not after them (pre-norm) leave that path clean.",
        both_sources("transformer_block"),
        (
            *(f"{name:<22} root mean square {sizes[site]:.4f}" for name, site in zip(names, PARTS, strict=True)),
            f"input + both writes    differs from the output by at most {rest:g}",
            line,
        ),
        "block",
        "the size of the stream and of the two writes of one block",
        drawn(draw_residual, names, kinds, list(sizes.values()), caption="First block, all windows."),
        {"apart": far, "rms": sizes, "sum_differs_by": rest},
    )


def stacked(
    pieces: Any, params: Params, x: Any, cfg: GPTConfig, at: Callable[[str, Any], Any] = lambda name, x: x
) -> Any:
    """x (B, T, C) through every block in turn; `pieces` is the NumPy reference or the JAX model."""
    for layer in range(cfg.n_layer):
        x = pieces.transformer_block(x, pick(params["blocks"], layer), cfg.n_head, at=at)
    return x


def sizes_on_the_way(side: Side, cfg: GPTConfig) -> tuple[dict[str, float], dict[str, float]]:
    """Root mean squares of the stream, at first and after each block, and of every write, in order."""
    at, seen = watcher()
    stacked(side.pieces, side.params, side.x, cfg, at)
    stream, writes = {"input": rms(side.x)}, {}
    for layer in range(cfg.n_layer):
        writes[f"attention {layer}"], writes[f"MLP {layer}"] = (rms(seen[s][layer]) for s in ("attn_out", "mlp_out"))
        stream[f"after block {layer}"] = rms(seen["resid_post"][layer])
    return stream, writes


def stack_step(every: Sides, start: Given) -> Step:
    values = on_each(every, lambda side: stacked(side.pieces, side.params, side.x, start.cfg))
    stream, writes = sizes_on_the_way(every[TRUTH], start.cfg)
    names = ["input"]
    for layer in range(start.cfg.n_layer):
        names += [f"attention {layer}", f"MLP {layer}", f"after block {layer}"]
    sizes = stream | writes
    kinds = ["stream" if name in stream else name.split()[0] for name in names]
    shapes = {"in": every[TRUTH].x.shape, "out": values[TRUTH].shape}
    finite = all(bool(np.isfinite(value).all()) for value in values.values())
    line, far = agreement(values)
    return Step(
        f"{start.cfg.n_layer} blocks, one after another",
        "What a block leaves has the shape of what it read, so blocks can be stacked to any depth. The output is the "
        "input plus every write on the way, and at the start of training the writes are small beside the input: the "
        "model begins close to doing nothing, and learns what to add.",
        own_source(stacked),
        (
            f"shape                  in {shapes['in']}, out {shapes['out']}; finite: {'yes' if finite else 'no'}",
            *(f"{name:<22} root mean square {sizes[name]:.4f}" for name in names),
            f"largest write          {100 * max(writes.values()) / stream['input']:.1f} % of the input",
            line,
        ),
        "stack",
        "the size of the stream and of every write of the blocks",
        drawn(draw_residual, names, kinds, [sizes[name] for name in names], caption="All windows."),
        {"apart": far, **shapes, "finite": finite, "stream": stream, "writes": writes},
    )
