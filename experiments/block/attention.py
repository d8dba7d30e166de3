"""Attention: one product, the mask, the heads, the pattern and what is written, a step each."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from experiments.block.figures import score_map, write_bars
from experiments.block.given import TRUTH, Given, Side, Sides, on_each, rms, watcher
from experiments.block.inputs import first_norm
from experiments.block.step import Step, agreement, both_excerpts, both_sources, drawn, row
from tinygpt_jax.figures.tables import draw_head_split
from tinygpt_jax.figures.tokens import draw_attention


def projected(side: Side, name: str) -> Any:
    """What the first block's attention reads, times one of its matrices, (B, T, C)."""
    return side.pieces.linear(first_norm(side), side.layer()[name])


def product_step(every: Sides, start: Given) -> Step:
    K, T = start.cfg.head_width, start.cfg.block_size

    def first_head(side: Side, name: str) -> Any:
        return side.pieces.split_heads(projected(side, name), K)[0, 0]

    values = on_each(every, lambda side: first_head(side, "Wq") @ first_head(side, "Wk").T / math.sqrt(K))
    q, k = (first_head(every[TRUTH], name) for name in ("Wq", "Wk"))
    scores, visible = values[TRUTH], np.tri(T, dtype=bool)
    shares = every[TRUTH].pieces.softmax(np.where(visible, scores, -math.inf))
    t, s = 5, 2
    line, far = agreement(values)
    return Step(
        "One query, one key, and the mask",
        "A token asks with its query, and every token offers a key; their product says how much the one wants of the "
        "other. A product of K numbers of variance 1 has variance K, hence the square root. A token may not look "
        "ahead: later keys get a score of minus infinity, so that softmax leaves them nothing. "
        "What is read here is the input of the first block after its LayerNorm: steps 3 and 4.",
        both_excerpts("attend", "scores =", "pattern ="),
        (
            f"query of token {t}       {row(q[t, :6])}  …   {K} numbers",
            f"key of token {s}         {row(k[s, :6])}  …",
            f"their product          {row(q[t] @ k[s])}, over sqrt({K}): {scores[t, s]:.4f}",
            f"scores of token {t}      {row(scores[t, : t + 3], 3)}   keys 0 to {t + 2}",
            f"masked, then softmax   {row(shares[t, : t + 3], 3)}",
            line,
        ),
        "scores",
        "map of the scores of one head, the keys after each query masked",
        partial(score_map, np.where(visible, scores, np.nan), start.tokens),
        {"apart": far, "score": scores[t, s], "deviation": scores[visible].std()},
    )


def heads_step(every: Sides, start: Given) -> Step:
    (B, T), (C, H, K) = start.ids.shape, (start.cfg.n_embd, start.cfg.n_head, start.cfg.head_width)
    whole = on_each(every, lambda side: projected(side, "Wv"))[TRUTH]
    values = on_each(every, lambda side: side.pieces.split_heads(projected(side, "Wv"), K))
    split = values[TRUTH]
    merged = every[TRUTH].pieces.merge_heads(split)
    shapes = [
        ("values: h Wv", whole.shape),
        ("width cut", (B, T, H, C // H)),
        ("heads first", split.shape),
        ("merged", merged.shape),
    ]
    line, far = agreement(values)
    return Step(
        "Splitting the width into heads",
        f"One product makes {C} numbers for each token, and a head is a stretch of {K} of them. Nothing is copied or "
        f"mixed: the width is cut into {H}, and the axis of heads goes before that of tokens: one product then serves "
        "all heads. Merging is the way back.",
        both_sources("split_heads", "merge_heads"),
        (
            *(f"{name:<22} {shape}" for name, shape in shapes),
            f"head 1, token 0        {row(split[0, 1, 0, :6])}  …",
            f"values, token 0        {row(whole[0, 0, K : K + 6])}  …   columns {K} to {2 * K - 1}",
            f"merged again           largest difference from the values: {np.abs(merged - whole).max():g}",
            line,
        ),
        "heads",
        f"how the columns of one array become {H} heads, with the shape at each step",
        drawn(draw_head_split, whole[0], H, shapes, caption="Values of the first block, first window."),
        {"apart": far, "width": C, "heads": split.shape[1], "head_width": split.shape[3]},
    )


def attended(side: Side, start: Given) -> tuple[Any, dict[str, Any]]:
    """What the first block's attention writes (B, T, C), and what was seen inside it: q k v pattern z."""
    p, (at, seen) = side.layer(), watcher()
    h = first_norm(side)
    out = side.pieces.multi_head_attention(h, p["Wq"], p["Wk"], p["Wv"], p["Wo"], start.cfg.n_head, at=at)
    return out, {name: values[0] for name, values in seen.items()}


def attention_step(every: Sides, start: Given) -> Step:
    values = on_each(every, lambda side: attended(side, start)[1]["pattern"])
    pattern, later = values[TRUTH], ~np.tri(start.cfg.block_size, dtype=bool)
    found = {"sum_differs_by": np.abs(pattern.sum(-1) - 1).max(), "largest_later_share": pattern[..., later].max()}
    line, far = agreement(values)
    caption = "First block, first window. Hatched: masked. The weights are not trained: what a head looks at is chance."
    shown = np.where(later, np.nan, pattern[0])
    return Step(
        "Attention: all heads at once",
        "All scores of all heads make a pattern of T by T shares for each head and window. A row is one token's view "
        "of the tokens before it and of itself; the head's output is the mean of their values with these shares.",
        both_sources("attend", "multi_head_attention"),
        (
            f"pattern                {pattern.shape}: batch, heads, queries, keys",
            f"rows                   their sums are within {found['sum_differs_by']:.1e} of 1",
            f"later keys             the largest share is {found['largest_later_share']:g}",
            *(
                f"head {head}, last token     looks most at token {shares.argmax()}: {shares.max():.3f}"
                for head, shares in enumerate(pattern[0, :, -1])
            ),
            line,
        ),
        "attention",
        "attention maps of the heads of the first block",
        drawn(draw_attention, shown, start.tokens, caption=caption),
        {"apart": far, **found},
    )


def merging_step(every: Sides, start: Given) -> Step:
    H, K, C = start.cfg.n_head, start.cfg.head_width, start.cfg.n_embd
    values = on_each(every, lambda side: attended(side, start)[0])
    write, z = values[TRUTH], attended(every[TRUTH], start)[1]["z"]
    each = np.einsum("bhtk,hkc->hbtc", z, every[TRUTH].layer()["Wo"].reshape(H, K, C))
    sizes = {**{f"head {head}": rms(one) for head, one in enumerate(each)}, "all together": rms(write)}
    rest = np.abs(each.sum(0) - write).max()
    line, far = agreement(values)
    return Step(
        "Merging the heads, and Wo",
        f"The heads' outputs are laid side by side, {H} times {K} make {C} again, and Wo mixes them. Being a product, "
        "the result is also a sum: each head writes by itself, through its own rows of Wo. That is why a head can be "
        "switched off, and its part measured, while the others stay as they are.",
        both_excerpts("multi_head_attention", "z =", "return linear(merge_heads(z), Wo"),
        (
            f"z                      {z.shape}: batch, heads, tokens, head width",
            f"merged, times Wo       {write.shape}",
            *(f"{name:<22} writes root mean square {size:.4f}" for name, size in sizes.items()),
            f"sum of the heads       differs from the whole by at most {rest:.1e}",
            line,
        ),
        "head_writes",
        "bars: the size of what each head writes",
        partial(write_bars, sizes),
        {"apart": far, "rms": sizes, "sum_differs_by": rest},
    )
