"""Is attention blind to the order of its tokens, what breaks that, and what is each way to tell positions worth?

python -m experiments.positions.run [--quick]
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from experiments.positions.report import report
from experiments.shared.common import FAILS, HOLDS, PARTLY, claim, main, mean_and_se, spread, verdict
from experiments.shared.paired import ERRORS, higher
from experiments.shared.text import SEEDS, base, corpus, trained
from experiments.shared.weights import unit_variance
from tinygpt_jax import GPTConfig, init_params, model, pick, reference
from tinygpt_jax.params import Params, count_params

HERE = Path(__file__).parent
POSITIONS = ("none", "sinusoidal", "learned", "rope")
PARTS = ("attention", "blocks")
BLIND = GPTConfig(vocab_size=64, block_size=32, n_layer=4, n_head=4, n_embd=64)
"""Whose order-blindness is measured, with weights of unit variance: the package's own are so small that every pattern
is nearly even."""
DRAWS = 20
"""Seeds of weights and tokens."""
PERMUTATIONS = 4
DEPTHS = (1, 2, 4)
"""Layers after which it is asked whether the order of earlier tokens has reached the last one."""

# Fixed before the run.
ROUNDING = 100
"""Up to so many machine epsilons, relative to the output, a difference is rounding."""
BROKEN = 0.01
"""From this relative difference on, in every draw, order matters."""
AS_GOOD = 0.02
"""Validation losses within so many nats per character of each other are as good."""


def outputs(
    lib: ModuleType, params: Params, ids: Any, cfg: GPTConfig, part: str, masked: bool, depth: int | None = None
) -> Any:
    """What `part` makes of tokens ids (B, T) in slots 0 .. T-1, (B, T, C); lib is the model or its reference.

    Unmasked, every position that the mask compares is 0, so that every token sees every other. Rotary positions turn
    queries and keys where they are made, by their slots, masked or not.
    """
    slots = lib.default_positions(*ids.shape)
    seen = slots if masked else 0 * slots

    def at(site: str, x: Any) -> Any:
        return lib.rotate(x, slots) if cfg.positions == "rope" and site in ("q", "k") else x

    unturned = GPTConfig(n_head=cfg.n_head, n_embd=cfg.n_embd)
    x = lib.embed(params, ids, slots, cfg)
    if part == "attention":
        p = pick(params["blocks"], 0)
        weights = (p[name] for name in ("Wq", "Wk", "Wv", "Wo"))
        return lib.multi_head_attention(x, *weights, cfg.n_head, pos=seen, at=at)
    for layer in range(cfg.n_layer if depth is None else depth):
        x = lib.transformer_block(x, pick(params["blocks"], layer), cfg.n_head, unturned, seen, at=at)
    return x


compiled = jax.jit(functools.partial(outputs, model), static_argnames=("cfg", "part", "masked", "depth"))


def relative(difference: np.ndarray, of: np.ndarray) -> float:
    """The largest difference over the root mean square of what it is a difference of."""
    return float(np.abs(difference).max() / np.sqrt(np.square(of).mean()))


def drawn(seed: int, cfg: GPTConfig, fixed: int = 0) -> tuple[Params, np.ndarray, np.ndarray]:
    """Weights, tokens (T) and orders (1 + P, T) of one seed, the first of them 0 .. T-1; the last `fixed` places keep
    theirs."""
    rng = np.random.default_rng(seed)
    T = cfg.block_size
    orders = [[*rng.permutation(T - fixed), *range(T - fixed, T)] for _ in range(PERMUTATIONS)]
    params = unit_variance(init_params(jax.random.key(seed), cfg))
    return params, rng.integers(cfg.vocab_size, size=T, dtype=np.int32), np.array([range(T), *orders])


def order_errors(cfg: GPTConfig, seed: int, part: str, masked: bool) -> dict[str, float]:
    """Dtype -> relative |f(P x) - P f(x)|, the largest of several orders P: 0 for what is blind to order."""
    params, ids, orders = drawn(seed, cfg)

    def error(made: Any) -> float:
        made = np.asarray(made)
        return relative(made - made[0][orders], made[0])

    rows = ids[orders]
    return {
        "float32": error(compiled(params, rows, cfg, part, masked)),
        "float64": error(outputs(reference, reference.as_float64(params), rows, cfg, part, masked)),
    }


def history_error(cfg: GPTConfig, seed: int, depth: int) -> float:
    """Relative change of the last token's float64 output when the tokens before it change places, behind the mask."""
    params, ids, orders = drawn(seed, cfg, fixed=1)
    made = outputs(reference, reference.as_float64(params), ids[orders], cfg, "blocks", True, depth)
    return relative((made - made[0])[:, -1], made[0])


def blindness(quick: bool) -> dict[str, Any]:
    """Errors of every part, mask and kind of positions, (draws,) for each dtype, and of the history by depth."""
    seeds = range(2 if quick else DRAWS)
    found: dict[str, Any] = {}
    for part, masked, positions in itertools.product(PARTS, (False, True), POSITIONS):
        cfg = dataclasses.replace(BLIND, positions=positions)
        rows = [order_errors(cfg, seed, part, masked) for seed in seeds]
        mask = "masked" if masked else "unmasked"
        found.setdefault(part, {}).setdefault(mask, {})[positions] = {k: [row[k] for row in rows] for k in rows[0]}
    blind = dataclasses.replace(BLIND, positions="none")
    history = {depth: [history_error(blind, seed, depth) for seed in seeds] for depth in DEPTHS}
    return {"order": found, "history": history}


def bigram_loss(quick: bool) -> float:
    """Nats per character of the validation text by the counts of pairs in the training text, one added to each."""
    data = corpus(quick)
    V = base(quick).model.vocab_size
    pairs = np.ones((V, V))
    np.add.at(pairs, (data.train.ids[:-1], data.train.ids[1:]), 1)
    share = pairs / pairs.sum(1, keepdims=True)
    return float(-np.log(share[data.val.ids[:-1], data.val.ids[1:]]).mean())


def training(quick: bool) -> dict[str, Any]:
    """Positions -> validation loss of each seed, nats per character, and parameters that they cost."""
    none = count_params(base(quick, positions="none").model)
    found = {}
    for positions in POSITIONS:
        cfg = base(quick, positions=positions)
        found[positions] = {"loss": trained(cfg, quick).loss, "parameters": count_params(cfg.model) - none}
    return found


def claims(found: dict[str, Any]) -> list[dict[str, str]]:
    return [*claims_of_order(found["order"], found["history"]), *claims_of_training(found["training"], found["bigram"])]


def claims_of_order(order: dict[str, Any], history: dict[Any, Any]) -> list[dict[str, str]]:
    def errors(mask: str, kinds: Sequence[str], dtype: str) -> list[float]:
        return [e for part in PARTS for kind in kinds for e in order[part][mask][kind][dtype]]

    worst = {dtype: max(errors("unmasked", ["none"], dtype)) for dtype in ("float32", "float64")}
    blind = all(worst[dtype] <= ROUNDING * np.finfo(dtype).eps for dtype in worst)
    told = {kind: errors("unmasked", [kind], "float64") for kind in POSITIONS[1:]}
    tells = [min(e) >= BROKEN for e in told.values()]
    masked = errors("masked", ["none"], "float64")
    first, later = max(history[1]), min(min(history[depth]) for depth in DEPTHS[1:])
    eps = np.finfo("float64").eps
    return [
        claim(
            "without positions and mask, attention and a stack of blocks are blind to order",
            f"largest relative error {worst['float32']:.1e} in float32, {worst['float64']:.1e} in float64",
            HOLDS if blind else FAILS,
        ),
        claim(
            "with sinusoidal, learned or rotary positions they are not",
            "smallest relative difference " + ", ".join(f"{min(e):.2f} ({kind})" for kind, e in told.items()),
            verdict(tells),
        ),
        claim(
            "with the causal mask alone they are not either",
            f"smallest relative difference {min(masked):.2f}",
            HOLDS if min(masked) >= BROKEN else FAILS,
        ),
        claim(
            "with the mask alone one layer cannot tell the order of earlier tokens; two can",
            f"last token's relative change: at most {first:.1e} after one layer, at least {later:.2f} after more",
            (HOLDS if later >= BROKEN else PARTLY) if first <= ROUNDING * eps else FAILS,
        ),
    ]


def claims_of_training(training: dict[str, Any], bigram: float) -> list[dict[str, str]]:
    loss = {kind: np.array(one["loss"]) for kind, one in training.items()}
    gap = {kind: loss[kind] - loss["learned"] for kind in POSITIONS}
    lost = {kind: loss["none"] - loss[kind] for kind in POSITIONS[1:]}
    helps = [higher(d) for d in lost.values()]
    same, se = (abs(mean_and_se(gap["sinusoidal"])[0]), mean_and_se(gap["sinusoidal"])[1])
    near = same - ERRORS * se, same + ERRORS * se
    cost = ", ".join(f"{one['parameters']:,} ({kind})" for kind, one in training.items())
    free = [training[kind]["parameters"] == 0 for kind in ("sinusoidal", "rope")]
    return [
        claim(
            "a causal model learns without positions, by the mask alone",
            f"{spread(loss['none'], 3)} nats/character against {bigram:.3f} by pairs of characters",
            HOLDS if (loss["none"] < bigram).all() else PARTLY if loss["none"].mean() < bigram else FAILS,
        ),
        claim(
            "positions make a causal model better than the mask alone does",
            "nats/character gained: " + ", ".join(f"{spread(d, 3)} ({kind})" for kind, d in lost.items()),
            verdict(helps),
        ),
        claim(
            "rotary positions are better than learned ones",
            f"{spread(gap['rope'], 3)} nats/character against learned",
            FAILS if gap["rope"].mean() >= 0 else HOLDS if higher(-gap["rope"]) else PARTLY,
        ),
        claim(
            f"sinusoidal positions are as good as learned ones (within {AS_GOOD} nats/character)",
            f"{spread(gap['sinusoidal'], 3)} nats/character against learned",
            HOLDS if near[1] <= AS_GOOD else PARTLY if near[0] <= AS_GOOD else FAILS,
        ),
        claim("of the three only learned positions cost parameters", cost, HOLDS if all(free) else FAILS),
    ]


def measure(quick: bool) -> dict[str, Any]:
    found = {**blindness(quick), "training": training(quick), "bigram": bigram_loss(quick), "seeds": list(SEEDS)}
    return {"rounding": ROUNDING, "broken": BROKEN, **found, "claims": claims(found)}


if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report)
