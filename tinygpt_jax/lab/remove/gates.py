"""Learned gates: which heads a model can do without, by gradient descent on gates that can be exactly 0 or 1.

A gate is drawn from the hard concrete distribution (Louizos, Welling and Kingma 2018, "Learning sparse neural networks
through L0 regularization"), one for each head, as Voita et al. 2019 have it: a sigmoid, stretched and clipped, so that
the expected number of open gates has a gradient. The weights of the model are frozen.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from tinygpt_jax.arguments import MOST, whole
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.fills import mean_fill
from tinygpt_jax.lab.intervention import FillLike, Lab, open_gates
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import Data, as_examples, mean_loss
from tinygpt_jax.lab.result import Result, data_fingerprint
from tinygpt_jax.measure import check_memory
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.runtime import random_key
from tinygpt_jax.statistics import mean_and_se

TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1  # beta, gamma and zeta of the paper, with its values
START = 0.0
"""log alpha before the first step: open with probability 0.83. From 2 (0.97), where the slope is small, few move."""
ROWS, NOISE = 0, 1  # purposes of a step's key


def drawn_gates(log_alpha: jax.Array, uniform: jax.Array) -> jax.Array:
    """Gates in [0, 1] from numbers in (0, 1) (equations 10 and 11)."""
    s = jax.nn.sigmoid((jnp.log(uniform) - jnp.log1p(-uniform) + log_alpha) / TEMPERATURE)
    return jnp.clip(s * (HIGH - LOW) + LOW, 0, 1)


def open_probability(log_alpha: ArrayLike) -> jax.Array:
    """The probability that a gate is not 0 (equation 12)."""
    return jax.nn.sigmoid(jnp.asarray(log_alpha) - TEMPERATURE * math.log(-LOW / HIGH))


def settled_gates(log_alpha: ArrayLike) -> jax.Array:
    """The gates without their noise (equation 13)."""
    return jnp.clip(jax.nn.sigmoid(jnp.asarray(log_alpha)) * (HIGH - LOW) + LOW, 0, 1)


@dataclass(frozen=True, eq=False)
class LearnedGates(Result):
    """Gates for each strength of the penalty and each seed, and what the model loses with the heads they keep."""

    strengths: np.ndarray
    """nats per token for each open head"""
    seeds: np.ndarray
    log_alpha: np.ndarray
    open_probability: np.ndarray
    gate: np.ndarray
    """without noise, 0 to 1"""
    kept: np.ndarray
    """bool, the gate is above 1/2: what `prune` should be given"""
    loss: np.ndarray
    """nats per token with the kept heads as they are and the others replaced"""
    loss_se: np.ndarray
    """standard error over examples"""
    rise: np.ndarray
    """nats per token above the intact model"""
    rise_se: np.ndarray
    """standard error of `rise` over examples, each compared with itself"""

    AXES: ClassVar = {
        **dict.fromkeys(("log_alpha", "open_probability", "gate", "kept"), ("strength", "seed", "layer", "head")),
        **dict.fromkeys(("loss", "loss_se", "rise", "rise_se"), ("strength", "seed")),
        "strengths": ("strength",),
        "seeds": ("seed",),
    }

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        """Strengths and seeds by their values."""
        named = {"strength": self.strengths, "seed": self.seeds}
        return named[axis].tolist() if axis in named else range(size)


@of_model
def learn_gates(
    params: Params,
    data: Data,
    cfg: GPTConfig,
    strengths: Sequence[float],
    *,
    seeds: Sequence[int] = (0,),
    fill: FillLike = "mean",
    steps: int = 300,
    batch_size: int = 8,
    learning_rate: float = 0.1,
    scored: Data | None = None,
) -> LearnedGates:
    """Learns a gate for each head at every strength (N) and seed (R), all in one compiled program.

    Minimised by Adam: mean loss (nats per token) + strength x expected number of open heads, so that a strength is the
    price of a head. A head's output at `z` is `z * g + (1 - g) * fill`. Each step draws `batch_size` examples, and for
    each of them gates of its own; a seed fixes both draws, whatever the strength and the other seeds.

    Args:
        data: examples, or ids (B, T), to learn from
        strengths: nats per token for each open head, 0 or more
        fill: what takes a closed head's place: `zero`, `mean`, `position-mean`, or an array (L, 1, H, T or 1, K)
        scored: examples for the losses reported, others than those of `data` if these are to say what the gates are
            worth elsewhere; default: those of `data`

    Raises:
        UserError: an argument makes no sense, or does not fit the model or the examples.
    """
    _check(strengths, seeds, steps, batch_size, learning_rate)
    lab = _lab_of_one_fill(params, data, cfg, fill, seeds[0])
    _check_room(lab, len(strengths) * len(seeds), steps, batch_size)
    scoring = lab if scored is None else _scoring(lab, scored)
    L, H, shape = cfg.n_layer, cfg.n_head, (len(strengths), len(seeds))
    strength, seed = np.meshgrid(np.asarray(strengths, np.float32), np.asarray(seeds, np.uint32), indexing="ij")
    learned = _learn(lab, strength.ravel(), seed.ravel(), np.float32(learning_rate), steps, batch_size)
    log_alpha = np.asarray(learned).reshape(*shape, L, H)
    gate = np.asarray(settled_gates(log_alpha))
    losses, intact = measure(scoring, open_gates(cfg, len(learned))._replace(heads=(gate > 0.5).reshape(-1, L, H)))
    flags = (
        f"{steps} steps of Adam at {learning_rate:g} on batches of {batch_size}",
        f"learned on data {data_fingerprint(lab.examples.asked)}",
        *["judged on what they were learned on, which flatters them"] * (scored is None),
    )
    return LearnedGates(
        scoring.definition(granularity="head", component="z", direction="keep", set="learned gates", flags=flags),
        np.asarray(strengths),
        np.asarray(seeds),
        log_alpha,
        np.asarray(open_probability(log_alpha)),
        gate,
        gate > 0.5,
        *mean_and_se(losses.reshape(*shape, -1), scoring.ordered),
        *mean_and_se((losses - intact).reshape(*shape, -1), scoring.ordered),
    )


def _check_room(lab: Lab, gates: int, steps: int, batch_size: int) -> None:
    """Raises UserError where the logits of a step alone are more than there is memory."""
    needed = 4 * (steps + gates * batch_size * lab.examples.ids.shape[1] * lab.cfg.vocab_size)
    check_memory(needed, f"learning {gates} gates on batches of {batch_size:,} examples", "lower batch_size")


def _lab_of_one_fill(params: Params, data: Data, cfg: GPTConfig, fill: FillLike, seed: int) -> Lab:
    """A lab whose fill is the same for all examples, those too that are scored later; raises UserError for others."""
    lab = make_lab(params, data, cfg, fill=fill, seed=seed)
    name = lab.intervention.fill_name
    if name == "position-mean":  # of all examples learned from, where elsewhere it is of the others
        whole = mean_fill(params, lab.examples.ids, cfg, by_position=True)
        lab = dataclasses.replace(lab, fill=whole, donors=None)
    if lab.donors is not None or name == "optimal" or lab.fill.heads.shape[1] != 1:
        raise UserError(f"fill {name!r} is not one for all examples: use zero, mean, position-mean or an array")
    return lab


def _scoring(lab: Lab, scored: Data) -> Lab:
    """The same lab with other examples."""
    examples = as_examples(scored, lab.cfg)
    if examples.ids.shape[1] != lab.examples.ids.shape[1]:
        raise UserError("scored has examples of another length than data: cut both to the same number of tokens")
    plain = make_lab(lab.params, examples, lab.cfg, fill="zero")  # which checks them
    return dataclasses.replace(lab, examples=plain.examples, metric=plain.metric)


@functools.partial(jax.jit, static_argnames=("steps", "batch_size"))
def _learn(
    lab: Lab, strengths: jax.Array, seeds: jax.Array, learning_rate: jax.Array, steps: int, batch_size: int
) -> jax.Array:
    """log alpha (N, L, H) after `steps` steps, for strengths and seeds (N,) and a fill (L, 1, H, 1, K) of heads."""
    cfg, fill = lab.cfg, lab.fill.heads
    L, H, B = cfg.n_layer, cfg.n_head, len(lab.examples.ids)
    optimizer = optax.adam(learning_rate)

    def objective(log_alpha: jax.Array, strength: jax.Array, key: jax.Array) -> jax.Array:
        rows = jax.random.randint(jax.random.fold_in(key, ROWS), (batch_size,), 0, B)
        batch = jax.tree.map(lambda a: a[rows], lab.examples)
        tiny = float(jnp.finfo(jnp.float32).eps)
        uniform = jax.random.uniform(jax.random.fold_in(key, NOISE), (L, batch_size, H), minval=tiny, maxval=1 - tiny)
        gate = drawn_gates(log_alpha[:, None], uniform)[..., None, None]
        logits = forward(lab.params, batch.ids, cfg, edits={"z": Edit(gate, (1 - gate) * fill)}).logits
        return mean_loss(logits, batch, logits).mean() + strength * open_probability(log_alpha).sum()

    def one(strength: jax.Array, seed: jax.Array) -> jax.Array:
        key = random_key(seed)

        def step(carry, i):
            log_alpha, state = carry
            gradient = jax.grad(objective)(log_alpha, strength, jax.random.fold_in(key, i))
            with jax.numpy_dtype_promotion("standard"):  # as optax needs
                updates, state = optimizer.update(gradient, state)
            return (log_alpha + updates, state), None

        start = jnp.full((L, H), START)
        return jax.lax.scan(step, (start, optimizer.init(start)), jnp.arange(steps, dtype=jnp.int32))[0][0]

    return jax.vmap(one)(strengths, seeds)


def _check(strengths: Sequence[float], seeds: Sequence[int], steps: int, batch_size: int, learning_rate: float) -> None:
    if not len(strengths) or not all(0 <= s < math.inf for s in strengths):
        raise UserError(f"strengths are {list(strengths)}: must be numbers, 0 or more, and at least one")
    if not len(seeds) or not all(0 <= s < 2**32 for s in seeds):
        raise UserError(f"seeds are {list(seeds)}: must be whole numbers from 0 to 2^32 - 1, and at least one")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        whole(name, value, 1, MOST)
    if not 0 < learning_rate < math.inf:
        raise UserError(f"learning_rate is {learning_rate}: must be a number above 0")
