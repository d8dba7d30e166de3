"""What kind of head each is, read from its attention and its weights, for all heads in one compiled call.

A query counts if its target does and if it is not the first of its sequence, which can see only itself. A score is a
total over the counted queries of all examples divided by their number; of a share on certain keys, over those that have
such a key, where TransformerLens averages over all. Its chance is the same of a head that attends evenly to all that it
sees, on the same queries. Patterns are those of the run, so they hold for every kind of positions; the weights that are
read are those of the OV circuit, which rotary positions leave alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.digits import number
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import hidden_states
from tinygpt_jax.lab.engine import rows_of_all_layers
from tinygpt_jax.lab.metrics import Data, measurable
from tinygpt_jax.lab.read.readout import heads_out, norm_scale, reading, readout
from tinygpt_jax.lab.result import Result
from tinygpt_jax.model import norm
from tinygpt_jax.params import Params, of_model
from tinygpt_jax.statistics import ratio_and_se

EXAMPLES_AT_ONCE = 16
"""The most examples whose patterns exist at once."""

Totals = dict[str, tuple[jax.Array, jax.Array]]
"""score -> (its total (B, L, H), what that is divided by, broadcastable to it)"""

READ = (
    "previous_token", "duplicate_token", "induction", "first_token", "entropy", "copying", "offset_share",
    "position_share",
)  # fmt: skip
"""Scores that are read from examples, and so have a standard error."""
CHANCED = ("previous_token", "duplicate_token", "induction", "first_token")
"""Shares of attention on certain keys, which even attention has too."""


@dataclass(frozen=True, eq=False)
class HeadScores(Result):
    """One score a field, (L, H), and the standard error over examples (L, H) under the same name with `_se`; the shares
    on certain keys have their chance under the same name with `_chance`, (): what even attention gets.

    NaN where nothing counted: no token came twice, say.
    """

    previous_token: np.ndarray
    """share of attention on the token before"""
    previous_token_se: np.ndarray
    duplicate_token: np.ndarray
    """share on earlier occurrences of the same token, over queries that have one"""
    duplicate_token_se: np.ndarray
    induction: np.ndarray
    """share on tokens that followed an earlier occurrence of the query's, over queries that have one before them:
    the prefix matching of Olsson et al. 2022"""
    induction_se: np.ndarray
    first_token: np.ndarray
    """share of attention on position 0"""
    first_token_se: np.ndarray
    entropy: np.ndarray
    """of a query's attention, in nats"""
    entropy_se: np.ndarray
    copying: np.ndarray
    """by how much the head's direct write raises the logit of the tokens it attends to, weighted by its attention,
    above the mean logit of the vocabulary; in logits, which are nats"""
    copying_se: np.ndarray
    offset_share: np.ndarray
    """share of the variance of attention weights that query minus key position explains; for all it explains, 1"""
    offset_share_se: np.ndarray
    position_share: np.ndarray
    """share that query and key position together explain, corrected for the number of examples; it may thus lie
    below 0, and takes two examples at least"""
    position_share_se: np.ndarray
    ov_eigenvalue: np.ndarray
    """sum of the real parts of the OV circuit's eigenvalues over the sum of their moduli: 1 copies, -1 does the
    opposite (Elhage et al. 2021). Of weights alone, so it has no error; NaN for a circuit of zeros"""
    previous_token_chance: np.ndarray
    """() the score of a head that attends evenly to all that it sees, on the same queries"""
    duplicate_token_chance: np.ndarray
    induction_chance: np.ndarray
    first_token_chance: np.ndarray

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **{name + end: ("layer", "head") for name in READ for end in ("", "_se")},
        "ov_eigenvalue": ("layer", "head"),
        **{f"{name}_chance": () for name in CHANCED},
    }

    def closing(self) -> list[str]:
        """The chance of each share, and which queries it is over."""
        chance = [f"{name.replace('_', ' ')} {number(float(getattr(self, f'{name}_chance')), 2)}" for name in CHANCED]
        return [
            f"by chance, from attention spread evenly over all that a query sees: {', '.join(chance)}",
            f"a share is over the queries that have such a key: {self.definition.positions}; "
            "TransformerLens averages over all",
        ]


@of_model
def head_scores(params: Params, data: Data, cfg: GPTConfig) -> HeadScores:
    """All scores of all heads on Examples, whose counted targets say which queries count, or on ids (B, T).

    `repeated_sequences` makes examples on which heads that look for repeats show.

    Raises:
        UserError: the data do not fit the model, or have fewer than two tokens each.
    """
    examples = measurable(params, data, cfg)
    ids = np.asarray(examples.ids)
    if ids.shape[1] < 2:
        raise UserError(f"ids have shape {ids.shape}: give two tokens or more each, so that a query has a choice")
    counted = (np.asarray(examples.targets) >= 0) & (np.arange(ids.shape[1]) > 0)
    totals, products = _read(params, ids, counted, cfg)
    scores = {}
    for name in READ:
        both = np.broadcast_arrays(*map(np.asarray, totals[name]))
        scores[name], scores[name + "_se"] = ratio_and_se(both[0], both[1], examples.ordered)
    for name in CHANCED:
        scores[f"{name}_chance"] = ratio_and_se(*totals[f"{name}_chance"])[0].reshape(())
    twice, after = (int(totals[name][1].sum()) for name in ("duplicate_token", "induction"))
    definition = reading(
        params,
        cfg,
        examples,
        granularity="head",
        component="pattern, v, Wv, Wo",
        positions=f"{counted.sum()} counted queries ({twice} with a duplicate token, {after} with an induction key)",
        metric="head scores",
        unit="shares of 1; entropy and copying in nats; ov eigenvalue from −1 to 1",
    )
    return HeadScores(definition, **scores, ov_eigenvalue=eigenvalue_score(np.asarray(products)))


def eigenvalue_score(products: np.ndarray) -> np.ndarray:
    """Sum of real parts over sum of moduli of the eigenvalues of each matrix (..., K, K)."""
    finite = np.isfinite(products).all((-1, -2), keepdims=True)
    eigenvalues = np.where(finite[..., 0], np.linalg.eigvals(np.where(finite, products, 0).astype(np.float64)), np.nan)
    with np.errstate(invalid="ignore"):
        return eigenvalues.real.sum(-1) / np.abs(eigenvalues).sum(-1)


def ov_products(params: Params, cfg: GPTConfig) -> jax.Array:
    """K x K matrices (L, H, K, K) with the non-zero eigenvalues of each head's OV circuit, W_E Wv Wo W_U (V x V).

    AB and BA have the same ones: Wo W_U W_E Wv is as good, and no V x V matrix is made. The embedding goes through the
    layer's first norm, without positions; the unembedding has the final norm's gain and centring folded in, and no mean
    over the vocabulary, since the softmax does not see it. A shift in the first norm then has no part in W_U W_E.
    """
    directions = readout(params, cfg).directions
    tokens = params["tok_emb"][: cfg.vocab_size].astype(jnp.float32)
    ones = jnp.ones((cfg.n_layer, cfg.n_embd), jnp.float32)
    normed = norm(tokens, {"ln1g": ones[0], "ln1b": jnp.zeros_like(ones[0])}, "ln1", cfg)
    through = (directions - directions.mean(0)).T @ normed
    gain = params["blocks"].get("ln1g", ones)
    Wv = params["blocks"]["Wv"].astype(jnp.float32).reshape(cfg.n_layer, cfg.n_embd, cfg.n_head, cfg.head_width)
    return jnp.einsum("lhkc,cd,ld,ldhj->lhkj", heads_out(params, cfg), through, gain, Wv)


def _all(params: Params, ids: jax.Array, counted: jax.Array, cfg: GPTConfig) -> tuple[Totals, jax.Array]:
    B, T = ids.shape
    most = min(EXAMPLES_AT_ONCE, rows_of_all_layers(cfg, B, T, None))
    n = max(d for d in range(1, most + 1) if B % d == 0)
    weight = counted.astype(jnp.float32)
    chunks = (ids.reshape(-1, n, T), weight.reshape(-1, n, T))
    even = jnp.tri(T, dtype=jnp.float32) / jnp.arange(1, T + 1, dtype=jnp.float32)[:, None]
    even = jnp.broadcast_to(even, (1, n, 1, T, T))

    def first_look(table: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Totals]:
        hidden = hidden_states(params, chunk[0], cfg, taps=("pattern", "v", "resid_post"))
        pattern = hidden.taps["pattern"].astype(jnp.float32)
        table = table + jnp.einsum("lbhts,bt->lhts", pattern, chunk[1])
        raised = _copying(params, chunk[0], cfg, pattern, hidden.taps["v"], hidden.taps["resid_post"][-1])
        shares = _attention(even, *chunk)  # as a layer of one head
        chance = {f"{name}_chance": shares[name] for name in CHANCED}
        return table, _attention(pattern, *chunk) | chance | {"copying": _over_queries(raised, chunk[1])}

    table, totals = jax.lax.scan(first_look, jnp.zeros((cfg.n_layer, cfg.n_head, T, T), jnp.float32), chunks)

    def second_look(chunk: tuple[jax.Array, jax.Array]) -> Totals:
        pattern = hidden_states(params, chunk[0], cfg, taps=("pattern",)).taps["pattern"].astype(jnp.float32)
        return _explained(pattern, chunk[1], table, weight.sum(0))

    totals = totals | jax.lax.map(second_look, chunks)
    return jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), totals), ov_products(params, cfg)


_read = jax.jit(_all, static_argnames="cfg")


def _over_queries(values: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Total of values (L, B, H, T) over queries of weight (B, T), and the sum of those."""
    return jnp.einsum("lbht,bt->blh", values, weight), weight.sum(1)[:, None, None]


def _attention(pattern: jax.Array, ids: jax.Array, weight: jax.Array) -> Totals:
    """Totals of what patterns (L, B, H, T, S) alone tell, on tokens ids (B, T)."""
    t = jnp.arange(ids.shape[1], dtype=jnp.int32)
    before = t[None, :] < t[:, None]
    same = (ids[:, :, None] == ids[:, None, :]) & before
    after_same = jnp.pad(same, ((0, 0), (0, 0), (1, 0)))[:, :, :-1] & before

    def on(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Attention on keys (B, T, S), over queries that have any."""
        share = jnp.einsum("lbhts,bts->lbht", pattern, keys.astype(jnp.float32))
        return _over_queries(share, weight * keys.any(-1).astype(jnp.float32))

    everywhere = (len(ids), *before.shape)
    return {
        "previous_token": on(jnp.broadcast_to(t[None, :] == t[:, None] - 1, everywhere)),
        "duplicate_token": on(same),
        "induction": on(after_same),
        "first_token": on(jnp.broadcast_to((t == 0)[None, :], everywhere)),
        "entropy": _over_queries(jax.scipy.special.entr(pattern).sum(-1), weight),
    }


def _copying(
    params: Params, ids: jax.Array, cfg: GPTConfig, pattern: jax.Array, v: jax.Array, x: jax.Array
) -> jax.Array:
    """By how much each query's write raises the logits of what it attends to, (L, B, H, T), through the final norm's
    scale for the last residual stream x (B, T, C)."""
    directions = readout(params, cfg).directions
    own = (directions - directions.mean(0))[ids]
    raised = jnp.einsum("lbhsk,lhkc,bsc->lbhs", v.astype(jnp.float32), heads_out(params, cfg), own)
    return jnp.einsum("lbhts,lbhs,bt->lbht", pattern, raised, norm_scale(params, x, cfg))


def _explained(pattern: jax.Array, weight: jax.Array, table: jax.Array, count: jax.Array) -> Totals:
    """Totals of the variance that positions explain, over the variance of all weights that a query could have given.

    `table` (L, H, T, S) is the sum of the patterns over examples, `count` (T,) how many examples each query counted in.
    """
    T = len(count)
    t = jnp.arange(T, dtype=jnp.int32)
    visible = (t[None, :] <= t[:, None]).astype(jnp.float32)
    offset = jnp.where(visible > 0, t[:, None] - t[None, :], T)  # T: the place of what is hidden
    seen = jnp.zeros(T + 1).at[offset].add(jnp.broadcast_to(count[:, None], (T, T)))
    by_offset = jnp.zeros((*table.shape[:2], T + 1)).at[..., offset].add(table)
    by_offset = (by_offset / jnp.maximum(seen, 1))[..., offset]
    by_position = table / jnp.maximum(count, 1)[:, None]
    mean = count.sum() / jnp.maximum(count @ visible.sum(1), 1)

    def squares(center: jax.Array, weight: jax.Array) -> jax.Array:
        apart = jnp.square(pattern - center[:, None]) * visible
        return jnp.einsum("lbhts,bt->blh", apart, weight)

    total = squares(jnp.full_like(table, mean), weight)
    several = weight * (count > 1).astype(jnp.float32)
    unbiased = several * (count / jnp.maximum(count - 1, 1))
    total_several = squares(jnp.full_like(table, mean), several)
    return {
        "offset_share": (total - squares(by_offset, weight), total),
        "position_share": (total_several - squares(by_position, unbiased), total_several),
    }
