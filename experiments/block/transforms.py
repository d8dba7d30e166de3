"""What functional JAX gives over NumPy: the gradient, compilation and vectorisation of the same functions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.block.blocks import stacked
from experiments.block.figures import influence_map, tangent, time_bars
from experiments.block.given import TRUTH, Given, Sides, rms
from experiments.block.step import Step, agreement, excerpt, own_source
from experiments.shared.common import mean_and_se
from tinygpt_jax import model, reference
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.params import Params, flatten
from tinygpt_jax.training.loss import token_losses

JAX = "JAX, float32"
MOVES = np.linspace(-0.5, 0.5, 17)
"""Added to one weight to draw the loss over it."""


def mean_loss(params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig) -> jax.Array:
    """Nats per token: the embedding, every block, the last norm and the output head."""
    return token_losses(forward(params, ids, cfg).logits, targets).mean()


@partial(jax.jit, static_argnames="cfg")
def gradient(params: Params, ids: jax.Array, targets: jax.Array, cfg: GPTConfig) -> tuple[jax.Array, Params]:
    """The loss, and its slope in every single parameter."""
    return jax.value_and_grad(mean_loss)(params, ids, targets, cfg)


def steepest(slopes: Params) -> dict[str, tuple[int, ...]]:
    """Name -> index of the largest entry of each leaf."""
    return {
        name: tuple(int(i) for i in np.unravel_index(int(np.abs(leaf).argmax()), leaf.shape))
        for name, leaf in flatten(slopes)
    }


def moved_loss(start: Given, index: tuple[int, ...], move: float) -> float:
    """The loss in NumPy once `move` is added to one entry of W1."""
    params = reference.as_float64(start.params)
    params["blocks"]["W1"][index] += move
    return reference.loss(params, start.ids, start.targets, start.cfg)


def gradient_step(every: Sides, start: Given) -> Step:
    loss, slopes = gradient(start.params, start.ids, start.targets, start.cfg)
    leaves, chosen = dict(flatten(slopes)), steepest(slopes)
    by_jax = np.array([leaves[name][index] for name, index in chosen.items()], np.float64)
    numeric = reference.numeric_gradient(start.params, start.ids, start.targets, start.cfg, chosen.items())
    off = np.abs(by_jax - numeric) / np.abs(numeric)
    worst = list(chosen)[off.argmax()]
    at, place = list(chosen).index("blocks.W1"), ", ".join(map(str, chosen["blocks.W1"]))
    losses = np.array([moved_loss(start, chosen["blocks.W1"], move) for move in MOVES])
    truth = moved_loss(start, chosen["blocks.W1"], 0.0)
    numpy32 = reference.loss(every["NumPy, float32"].params, start.ids, start.targets, start.cfg)
    line, far = agreement({TRUTH: np.array(truth), "NumPy, float32": np.array(numpy32), JAX: np.asarray(loss)})
    return Step(
        "One gradient through it all",
        "NumPy has no gradient: one writes the backward pass by hand, or moves a weight a little either way and "
        "looks at the loss, two forward passes for each weight. `jax.grad` takes the function as it is and gives the "
        "slope in every weight at once, for the cost of a few forward passes.",
        own_source(mean_loss, gradient),
        (
            f"loss                   JAX {loss:.6f}, NumPy {truth:.6f} nats per token; ln {start.cfg.vocab_size} = "
            f"{np.log(start.cfg.vocab_size):.4f}",
            f"weights                {sum(leaf.size for leaf in leaves.values()):,} in {len(leaves)} arrays",
            f"blocks.W1[{place}]".ljust(23) + f"jax.grad {by_jax[at]:.8f}, numeric {numeric[at]:.8f} nats",
            f"steepest of each array off by at most {off.max():.1e} of the numeric slope ({worst})",
            line,
        ),
        "gradient",
        "the loss as one weight is moved, and its tangent",
        partial(tangent, MOVES, losses - truth, by_jax[at], f"W1[{place}]"),
        {
            "apart": far,
            "loss": truth,
            "checked": {name: {"jax": a, "numeric": b} for name, a, b in zip(chosen, by_jax, numeric, strict=True)},
            "off": off.max(),
        },
    )


def milliseconds(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Of processor time, which other work on the machine changes little: mean over calls and its standard error, after
    one call that is not counted."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(run())
        taken.append(1000 * (time.process_time() - began))
    return mean_and_se(taken)


def compiled_step(every: Sides, start: Given, repeats: int) -> Step:
    fast = jax.jit(stacked, static_argnames=("pieces", "cfg"))
    numpy32 = every["NumPy, float32"]
    ways: dict[str, Callable[[], Any]] = {
        "NumPy": lambda: stacked(numpy32.pieces, numpy32.params, numpy32.x, start.cfg),
        "JAX, op by op": lambda: stacked(model, start.params, every[JAX].x, start.cfg),
        "JAX, jit": lambda: fast(model, start.params, every[JAX].x, start.cfg),
    }
    times = {name: milliseconds(run, repeats) for name, run in ways.items()}
    truth = stacked(every[TRUTH].pieces, every[TRUTH].params, every[TRUTH].x, start.cfg)
    line, far = agreement({TRUTH: truth, "JAX, jit": np.asarray(ways["JAX, jit"]())})
    return Step(
        "One jit: the same function, compiled",
        "Run as it stands, each operation is dispatched by itself, in NumPy and in JAX. `jax.jit` traces the function "
        "once for a shape and compiles all of it into one program, which is possible because the function is pure: its "
        "output depends on its arguments and on nothing else.",
        (("experiments/block/transforms.py", excerpt(inspect.getsource(compiled_step), "fast =", "fast =")),),
        (
            *(f"{name:<22} {mean:.2f} ± {se:.2f} ms a call" for name, (mean, se) in times.items()),
            f"calls                  {repeats} of each; processor time, after a first call that compiles",
            line,
        ),
        "jit",
        "bars: the time of a call in NumPy, in JAX and compiled",
        partial(time_bars, times, repeats),
        {"apart": far, "milliseconds": {name: {"mean": mean, "se": se} for name, (mean, se) in times.items()}},
    )


@partial(jax.jit, static_argnames="cfg")
def each_token_changed(params: Params, x: jax.Array, bump: jax.Array, cfg: GPTConfig) -> jax.Array:
    """What x (T, C) becomes when one token is changed by bump (C), for each token in turn: (T, T, C)."""

    def changed(t: jax.Array) -> jax.Array:
        return stacked(model, params, x.at[t].add(bump)[None], cfg)[0]

    return jax.vmap(changed)(jnp.arange(len(x), dtype=jnp.int32))


def vectorised_step(every: Sides, start: Given) -> Step:
    T, C = start.cfg.block_size, start.cfg.n_embd
    bump = np.random.default_rng(0).standard_normal(C).astype(np.float32)
    found = np.asarray(each_token_changed(start.params, every[JAX].x[0], bump, start.cfg))
    truth = every[TRUTH]
    moved = truth.x[0] + np.eye(T)[:, :, None] * bump.astype(np.float64)
    loop = np.concatenate([stacked(truth.pieces, truth.params, one[None], start.cfg) for one in moved])
    intact = stacked(truth.pieces, truth.params, truth.x[:1], start.cfg)[0]
    change = np.sqrt(np.square(found - intact).mean(-1))
    later, earlier = np.triu(np.ones((T, T), bool), 1), np.tri(T, k=-1, dtype=bool)
    size = rms(bump)
    line, far = agreement({TRUTH: loop, "JAX, vmap": found})
    return Step(
        "One vmap: every token changed in turn",
        "`jax.vmap` turns a function of one thing into a function of many, without a loop and without another axis to "
        "think of in the function. Here: change one token, run all blocks, and see whose output moves. The change is "
        f"the same random numbers for each token, root mean square {size:.2f} beside {rms(truth.x):.2f} of the input. "
        "The mask must show: later tokens may notice, earlier ones must not.",
        own_source(each_token_changed),
        (
            f"output                 {found.shape}: changed token, token, width",
            f"added to a token       root mean square {size:.4f}",
            f"later tokens           change by {change[later].mean():.4f} in the mean (root mean square over width)",
            f"earlier tokens         change by at most {change[earlier].max():.1e}, in float32 against float64",
            f"against a NumPy loop: {line}",
        ),
        "vmap",
        "map: whose output changes when one token is changed",
        partial(influence_map, change, start.tokens, size),
        {"apart": far, "added": size, "later": change[later].mean(), "earlier": change[earlier].max()},
    )
