"""Before attention: softmax, positions and LayerNorm, a step each."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from experiments.block.figures import softmax_bars
from experiments.block.given import TRUTH, Given, Side, Sides, on_each, rms
from experiments.block.step import Step, agreement, both_sources, drawn, row
from tinygpt_jax.figures.tables import draw_norm_rows, draw_positions

SCORES = np.array([0.0, 1.0, 2.0, 3.0])
FAR_UP = 1000.0
"""Added to scores to show the overflow: exp of more than 88.7 is infinite in float32."""
SHARPENED = 3.0


def softmax_step(every: Sides, start: Given) -> Step:
    def shares_of(scores: np.ndarray) -> dict[str, np.ndarray]:
        return on_each(every, lambda side: side.pieces.softmax(scores.astype(side.x.dtype)))

    shares, lifted, sharp = (shares_of(s) for s in (SCORES, SCORES + FAR_UP, SHARPENED * SCORES))
    with np.errstate(over="ignore", invalid="ignore"):
        raised = np.exp(np.float32(SCORES + FAR_UP))
        naive = raised / raised.sum()
    line, far = agreement(shares)
    return Step(
        "Softmax: scores become shares",
        "Attention has to turn any scores into shares that are positive and sum to 1. Only differences between scores "
        "count, so the largest may be taken off first. Without that, exp of a large score is infinite, and infinity "
        "over infinity is not a number. In JAX, `jax.nn.softmax` does the same.",
        both_sources("softmax"),
        (
            f"scores                 {row(SCORES)}",
            f"softmax                {row(shares[TRUTH])}   sum {shares[TRUTH].sum():.6f}",
            f"scores + {FAR_UP:<14g}{row(SCORES + FAR_UP, 1)}",
            f"exp / sum, float32     {row(naive)}",
            f"softmax, float32       {row(lifted['NumPy, float32'])}",
            line,
        ),
        "softmax",
        "bars: the share that each of four scores gets",
        partial(softmax_bars, SCORES, shares[TRUTH], sharp[TRUTH], SHARPENED),
        {"apart": far, "sum": shares[TRUTH].sum(), "naive_is_finite": bool(np.isfinite(naive).all())},
    )


def positions_step(every: Sides, start: Given) -> Step:
    (B, T), C = start.ids.shape, start.cfg.n_embd
    table = every[TRUTH].pieces.positional_encoding(T, C)
    x = on_each(every, lambda side: side.x)
    embedding = every[TRUTH].params["tok_emb"][start.ids]
    near, far_off = (float(table[t] @ table[t + 3]) for t in (0, T - 4))
    sizes = {"embedding": rms(embedding), "positions": rms(table), "input": rms(x[TRUTH])}
    line, far = agreement(x)
    return Step(
        "Positions: where a token stands",
        "Attention by itself does not know the order of its tokens. So each position adds a pattern of its own to the "
        "embedding: pairs of a sine and a cosine, from fast to slow. The product of two positions depends on their "
        "distance alone.",
        both_sources("positional_encoding"),
        (
            f"input                  ({B}, {T}, {C}): batch, tokens, width",
            f"position 0             {row(table[0, :6])}  …",
            f"position 1             {row(table[1, :6])}  …",
            f"product of two rows    positions 0 and 3: {near:.4f}; {T - 4} and {T - 1}: {far_off:.4f}",
            *(f"{name:<22} root mean square {size:.4f}" for name, size in sizes.items()),
            f"to be expected         sqrt(1 + 1/2) = {math.sqrt(1.5):.4f} for an embedding of variance 1",
            line,
        ),
        "positions",
        "maps of the position table and of the input, and the table's sinusoids as curves",
        drawn(
            draw_positions,
            {"sinusoids": table, "embedding + sinusoids": x[TRUTH][0]},
            "What tells positions apart: waves from fast to slow, added to the embedding",
            caption=f"First window: {T} tokens, width {C}.",
        ),
        {"apart": far, "rms": sizes, "shape": x[TRUTH].shape},
    )


def first_norm(side: Side) -> Any:
    """What the attention of the first block reads, (B, T, C)."""
    p = side.layer()
    return side.pieces.layer_norm(side.x, p["ln1g"], p["ln1b"])


def layer_norm_step(every: Sides, start: Given) -> Step:
    values = on_each(every, first_norm)
    before, after = every[TRUTH].x, values[TRUTH]
    mean, deviation = after.mean(-1), after.std(-1)
    worst = {"mean": np.abs(mean).max(), "deviation": np.abs(deviation - 1).max()}
    line, far = agreement(values)
    return Step(
        "LayerNorm: every token on the same footing",
        "A token's numbers are brought to mean 0 and standard deviation 1, each token by itself, so that what a layer "
        "reads has the same size however much has been written. `eps` is added to the variance, so that a row of equal "
        f"numbers is not divided by 0; it makes the deviation up to {worst['deviation']:.0e} smaller than 1. A learned "
        "scale and shift follow, at first 1 and 0.",
        both_sources("layer_norm"),
        (
            f"before, tokens 0 to 3  mean {row(before[0, :4].mean(-1))}   deviation {row(before[0, :4].std(-1))}",
            f"after, tokens 0 to 3   mean {row(mean[0, :4])}   deviation {row(deviation[0, :4])}",
            f"furthest, of {mean.size} mean {worst['mean']:.1e} from 0; deviation {worst['deviation']:.1e} from 1",
            line,
        ),
        "layer_norm",
        "the tokens of the first window before and after LayerNorm",
        drawn(
            draw_norm_rows,
            {"before": before[0], "after": after[0]},
            start.tokens,
            caption="First window, scale 1, shift 0.",
        ),
        {"apart": far, "worst": worst},
    )
