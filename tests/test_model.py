"""What the model promises beyond its numbers: causality, edits and taps, the cache, dropout, dtypes, bad input."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt_jax import reference
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import PER_HEAD, SITES, Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import FAR, Forward, KVCache, dropout, forward, hidden_states, init_cache
from tinygpt_jax.model import gpt_forward
from tinygpt_jax.params import ParamSpec, param_shapes, param_specs, whole
from tinygpt_jax.training.loss import token_losses

CFG = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, mlp_ratio=2.0, attn_bias=True)
DROPPING = dataclasses.replace(CFG, dropout=0.25)
L, B, H, T, C, K, V = 2, 2, 2, 8, 16, 8, 11
SHAPES = dict.fromkeys(SITES, (L, B, T, C)) | dict.fromkeys("qkvz", (L, B, H, T, K)) | {"pattern": (L, B, H, T, T)}
SHAPES |= dict.fromkeys(("ln1_scale", "ln2_scale"), (L, B, T, 1))
IDS = np.random.default_rng(1).integers(0, V, (B, T))
TARGETS = np.roll(IDS, -1, axis=1)
POSITIONS = ("learned", "sinusoidal", "rope", "none")


def noisy_params(cfg: GPTConfig = CFG, seed: int = 0):
    """Parameters in which biases and scales are far from 0 and 1, where a fault would hide."""
    rng = np.random.default_rng(seed)

    def draw(spec: ParamSpec, shape):
        values = (spec.init == "ones") + 0.2 * rng.standard_normal(shape.shape)
        return jnp.asarray(values, jnp.float32)

    return jax.tree.map(draw, param_specs(cfg), param_shapes(cfg), is_leaf=lambda node: isinstance(node, ParamSpec))


PARAMS = noisy_params()
TRUTH = reference.as_float64(PARAMS)


quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


@quick_jit
def edited(edits) -> Forward:
    """The forward with every site tapped; one program for each set of edited sites."""
    return forward(PARAMS, IDS, CFG, edits=edits, taps=SITES)


step = quick_jit(forward, static_argnums=2)


@quick_jit
def dropped(key: jax.Array) -> Forward:
    return forward(PARAMS, IDS, DROPPING, key=key, taps=SITES)


@quick_jit
@jax.grad
def sensitivity(add: jax.Array, t: jax.Array) -> jax.Array:
    """Of window 0's squared logits at t, towards what enters each layer, (L, B, T, C)."""
    return jnp.square(forward(PARAMS, IDS, CFG, edits={"resid_pre": Edit(None, add)}).logits[0, t]).sum()


@jax.jit
def logits_of(params, ids: jax.Array) -> jax.Array:
    return forward(params, ids, CFG).logits


def keep_all(site: str) -> jax.Array:
    return jnp.ones(SHAPES[site])


# One function, however it is called


def test_jit_eager_and_both_layer_loops_agree():
    rolled = dataclasses.replace(CFG, unroll_layers=1)
    assert "while" not in jax.jit(lambda: forward(PARAMS, IDS, CFG)).lower().as_text()
    assert "while" in jax.jit(lambda: forward(PARAMS, IDS, rolled)).lower().as_text()
    with jax.disable_jit():
        op_by_op = gpt_forward(PARAMS, IDS, CFG)
    for other in (logits_of(PARAMS, IDS), gpt_forward(PARAMS, IDS, rolled)):
        np.testing.assert_allclose(other, op_by_op, atol=1e-6, rtol=1e-6)


def test_one_window_is_a_batch_of_one():
    batch, single = logits_of(PARAMS, IDS), gpt_forward(PARAMS, IDS[1].tolist(), CFG)
    assert (batch.shape, single.shape) == ((B, T, V), (T, V))
    np.testing.assert_allclose(single, batch[1], atol=1e-6)


# Causality


@settings(max_examples=40)
@given(st.lists(st.integers(0, V - 1), min_size=T, max_size=T), st.integers(0, T - 1))
def test_later_ids_leave_earlier_logits_bit_identical(later, t):
    changed = IDS.copy()
    changed[0, t + 1 :] = later[t + 1 :]
    before, after = logits_of(PARAMS, IDS), logits_of(PARAMS, changed)
    assert np.array_equal(before[0, : t + 1], after[0, : t + 1])
    assert np.array_equal(before[1], after[1])  # nor do windows see each other


@pytest.mark.parametrize("t", [0, 4, T - 1])
def test_gradient_towards_later_positions_is_exactly_zero(t):
    grad = np.asarray(sensitivity(jnp.zeros(SHAPES["resid_pre"]), jnp.int32(t)))
    assert not grad[:, 0, t + 1 :].any()
    assert not grad[:, 1].any()
    assert grad[:, 0, : t + 1].any(-1).all()


def test_a_later_id_that_can_be_seen_is_caught():
    everywhere_0 = jnp.zeros((B, T), jnp.int32)  # no position is after another: no mask
    changed = IDS.copy()
    changed[0, -1] += 1
    with jax.disable_jit():
        before, after = (forward(PARAMS, ids, CFG, pos=everywhere_0).logits for ids in (IDS, changed % V))
    assert not np.array_equal(before[0, : T - 1], after[0, : T - 1])


# Edits and taps


def lowered(cfg: GPTConfig = CFG, **options) -> str:
    return jax.jit(lambda params, ids: forward(params, ids, cfg, **options)[:1]).lower(PARAMS, IDS).as_text()


def test_what_is_absent_traces_nothing():
    plain = lowered()
    for options in ({"edits": None}, {"edits": {}}, {"taps": ()}, {"edits": {"z": Edit()}}, {"key": jax.random.key(0)}):
        assert lowered(**options) == plain, options
    assert lowered(edits={"z": Edit(keep_all("z"))}) != plain
    assert lowered(DROPPING) == plain != lowered(DROPPING, key=jax.random.key(0))


def test_taps_have_the_references_values():
    logits, want = reference.forward(TRUTH, IDS, CFG)
    result = edited({})
    np.testing.assert_allclose(result.logits, logits, atol=1e-5)
    assert {*result.taps} == {*want} == {*SITES}
    for site, values in result.taps.items():
        assert values.shape == SHAPES[site], site
        np.testing.assert_allclose(values, want[site], atol=1e-5, err_msg=site)


EVERY_SITE = {site: Edit(keep_all(site), 0 * keep_all(site)) for site in SITES}


def test_edits_that_keep_all_and_add_nothing_change_nothing():
    with jax.disable_jit():  # op by op, as XLA may round a fused multiply and add once instead of twice
        plain, same = (forward(PARAMS, IDS, CFG, edits=edits, taps=SITES) for edits in ({}, EVERY_SITE))
    jax.tree.map(np.testing.assert_array_equal, plain, same)


@pytest.mark.parametrize("site", SITES)
def test_an_edit_is_the_references(site):
    rng = np.random.default_rng(3)
    edit = Edit(*(jnp.asarray(rng.standard_normal(SHAPES[site]), jnp.float32) for _ in range(2)))
    result = edited({**EVERY_SITE, site: edit})
    logits, taps = reference.forward(TRUTH, IDS, CFG, {site: tuple(np.float64(half) for half in edit)})
    np.testing.assert_allclose(result.logits, logits, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(result.taps[site], taps[site], atol=1e-4, rtol=1e-4)
    assert np.abs(result.logits - edited(EVERY_SITE).logits).max() > 1e-2


def test_zeroing_a_head_is_zeroing_its_rows_of_Wo_not_columns_after_it():
    layer, head = 1, 0
    rows = slice(head * K, (head + 1) * K)
    keep = keep_all("z").at[layer, :, head].set(0)
    by_edit = edited({**EVERY_SITE, "z": Edit(keep, 0 * keep)}).logits
    Wo = PARAMS["blocks"]["Wo"].at[layer, rows].set(0)
    by_weights = logits_of({**PARAMS, "blocks": {**PARAMS["blocks"], "Wo": Wo}}, IDS)
    np.testing.assert_allclose(by_edit, by_weights, atol=1e-6)
    after = keep_all("attn_out").at[layer, ..., rows].set(0)
    wrong = edited({**EVERY_SITE, "attn_out": Edit(after, 0 * after)}).logits
    assert np.abs(by_edit - wrong).max() > 1e-2


def test_masks_vmap_and_compile_once():
    traces = []

    def one(mask: jax.Array) -> jax.Array:
        traces.append(mask)
        return forward(PARAMS, IDS, CFG, edits={"z": Edit(mask[:, None, :, None, None])}).logits

    sweep = quick_jit(jax.vmap(one))
    masks = 1 - jnp.eye(L * H).reshape(-1, L, H)
    out, again = sweep(masks), sweep(jnp.ones_like(masks))
    assert len(traces) == 1
    np.testing.assert_allclose(again, jnp.broadcast_to(logits_of(PARAMS, IDS), again.shape), atol=1e-6)
    for mask, logits in zip(masks, out, strict=True):
        want = reference.gpt_forward(TRUTH, IDS, CFG, edits={"z": (np.float64(mask)[:, None, :, None, None], None)})
        np.testing.assert_allclose(logits, want, atol=1e-5)


def test_gradient_through_a_gate_equals_finite_differences():
    def loss(gate: jax.Array) -> jax.Array:
        edits = {"z": Edit(gate[:, None, :, None, None])}
        return token_losses(forward(PARAMS, IDS, CFG, edits=edits).logits, TARGETS).mean()

    def true_loss(gate: np.ndarray) -> float:
        return reference.loss(TRUTH, IDS, TARGETS, CFG, edits={"z": (gate[:, None, :, None, None], None)})

    grad = quick_jit(jax.grad(loss))(jnp.ones((L, H)))
    steps = 1e-5 * np.eye(L * H).reshape(-1, L, H)
    numeric = [(true_loss(1 + step) - true_loss(1 - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(grad.ravel(), numeric, atol=1e-6)
    assert np.abs(numeric).min() > 1e-4


# The cache


def decode(cfg: GPTConfig, params, cache: KVCache, left: bool) -> list[list[jax.Array]]:
    """Logits of each row's real tokens: a padded prefill of prompts of 5 and 3, then one token at a time."""
    lengths = np.array([5, 3])
    column = np.arange(5)
    pos = column - (5 - lengths)[:, None] if left else np.broadcast_to(column, (2, 5))
    real = (pos >= 0) & (pos < lengths[:, None])
    ids = np.where(real, np.take_along_axis(IDS, np.clip(pos, 0, 4), axis=1), 0)
    result = step(params, ids, cfg, pos=np.int32(np.where(real, pos, FAR)), cache=cache)
    rows = [[*result.logits[row, real[row]]] for row in (0, 1)]
    for pos in (lengths, lengths + 1, lengths + 2):
        token = IDS[[0, 1], pos][:, None]
        result = step(params, token, cfg, pos=np.int32(pos[:, None]), cache=result.cache)
        for row in (0, 1):
            rows[row].append(result.logits[row, 0])
    return rows


@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
@pytest.mark.parametrize(
    "options",
    [*({"positions": name} for name in POSITIONS), {"positions": "rope", "smeared_keys": True}, {"smeared_keys": True}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_cached_decoding_equals_the_full_forward(options, left):
    cfg = dataclasses.replace(CFG, **options)
    params = noisy_params(cfg)
    want = reference.gpt_forward(reference.as_float64(params), IDS, cfg)
    for row, logits in enumerate(decode(cfg, params, init_cache(cfg, B, T), left)):
        np.testing.assert_allclose(np.stack(logits), want[row, : len(logits)], atol=1e-5)


def test_a_cache_whose_empty_slots_can_be_seen_is_caught():
    cache = init_cache(CFG, B, T)
    cache = cache._replace(pos=jnp.zeros_like(cache.pos))
    logits = np.stack(decode(CFG, PARAMS, cache, left=False)[0])
    assert np.abs(logits - reference.gpt_forward(TRUTH, IDS, CFG)[0]).max() > 1e-2


# Dropout


def test_dropout_follows_its_key():
    one, same, other = (dropped(jax.random.key(seed)).logits for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-2
    assert np.abs(one - logits_of(PARAMS, IDS)).max() > 1e-2


def test_without_a_key_nothing_is_dropped():
    np.testing.assert_array_equal(forward(PARAMS, IDS, DROPPING).logits, forward(PARAMS, IDS, CFG).logits)


def test_every_layer_and_place_drops_elsewhere():
    taps = dropped(jax.random.key(0)).taps
    masks = [np.asarray(taps[site][layer] != 0) for site in ("attn_out", "mlp_out") for layer in range(L)]
    masks.append(np.asarray(taps["resid_pre"][0] != 0))  # the embedding's
    for i, mask in enumerate(masks):
        assert 0.6 < mask.mean() < 0.9
        assert all(0.45 < (mask == other).mean() < 0.8 for other in masks[:i])  # 0.625 where independent


def test_dropout_keeps_the_mean():
    x = dropout(jnp.full((100, 100), 3.0), jax.random.key(0), 0, 0.25)
    assert {*np.unique(x).tolist()} == {0.0, 4.0}
    assert float(x.mean()) == pytest.approx(3.0, abs=0.06)  # 3.5 standard errors


# bfloat16


def test_bfloat16_computes_near_float32_and_keeps_its_ends_in_float32():
    half = dataclasses.replace(CFG, compute_dtype="bfloat16")

    def mean(params):
        result = forward(params, IDS, half, taps=SITES)
        return jnp.square(result.logits).mean(), result

    grads, result = quick_jit(jax.grad(mean, has_aux=True))(PARAMS)
    assert result.logits.dtype == jnp.float32
    for site, tap in result.taps.items():
        assert tap.dtype == ("float32" if site.endswith("_scale") else "bfloat16"), site
    assert {leaf.dtype for leaf in jax.tree.leaves((grads, PARAMS))} == {jnp.dtype("float32")}
    error = np.abs(result.logits - logits_of(PARAMS, IDS))
    assert 1e-4 < error.max() < 0.1


# Bad input


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1], [2, V]], r"id 11 at index \(1, 1\) is outside \[0, 11\)"),
        ([3, -1], r"id -1 at index 1 is outside"),
        (np.array([2**32 + 1]), r"id 4294967297 at index 0"),  # as int32 it would wrap to 1
        (np.zeros((1, 9), int), "9 tokens, but block_size is 8: pass at most that many at once"),
        ([], r"ids have shape \(0,\).* not empty"),
        (np.zeros((2, 0), int), r"ids have shape \(2, 0\)"),
        ([0.0, 1.0], "dtype float64: must be integers"),
        ([True, False], "dtype bool: must be integers"),
        (3, r"ids have shape \(\)"),
        ([[0, 1], [2]], "ids have rows of different lengths"),
        (np.zeros((1, 1, 4), int), r"ids have shape \(1, 1, 4\)"),
    ],
)
def test_ids_that_jax_would_clamp_or_wrap_are_named(ids, message):
    with pytest.raises(UserError, match=message):
        gpt_forward(PARAMS, ids, CFG)


def test_rows_that_only_pad_the_vocabulary_are_no_ids():
    cfg = dataclasses.replace(CFG, vocab_multiple=8)
    with pytest.raises(UserError, match="id 11 at index"):
        gpt_forward(noisy_params(cfg), [V], cfg)


@pytest.mark.parametrize("positions", POSITIONS[1:])
def test_only_a_learned_table_bounds_the_length(positions):
    cfg = dataclasses.replace(CFG, positions=positions)
    params, ids = noisy_params(cfg), np.arange(12) % V
    logits = quick_jit(gpt_forward, static_argnums=2)(params, ids, cfg)
    np.testing.assert_allclose(logits, reference.gpt_forward(reference.as_float64(params), ids, cfg), atol=1e-5)


def test_unknown_sites_are_named_with_the_nearest():
    with pytest.raises(UserError, match="site 'resid_por' is unknown; did you mean 'resid_p"):
        forward(PARAMS, IDS, CFG, taps=("resid_por",))
    with pytest.raises(UserError, match="site 'patern' is unknown; did you mean 'pattern'"):
        gpt_forward(PARAMS, IDS, CFG, edits={"patern": Edit()})


@pytest.mark.parametrize(
    ("site", "shape"),
    [
        ("z", (1, 1, 2, 1, 1)),  # one layer of two
        ("z", ()),
        ("z", (2, 1, 3, 1, 1)),  # three heads of two
        ("resid_mid", (2, 3, 1, 1)),  # three rows of two
        ("resid_mid", (2, 1, 1, 1, 1)),
        ("pattern", (2, 1, 1, 7, 1)),
        ("z", (2, K)),  # NumPy would take it for the places of a head
        ("resid_mid", (2, C)),
        ("mlp_out", (2,)),
    ],
)
def test_an_edit_that_does_not_fit_its_site_is_named(site, shape):
    with pytest.raises(
        UserError, match=rf"edits\['{site}'\].keep has shape .*: must be 2 layers of what broadcasts to"
    ):
        gpt_forward(PARAMS, IDS, CFG, edits={site: Edit(keep=jnp.ones(shape))})


WRONG_EDITS = {
    "function": lambda x: x,
    "pair": (jnp.ones((2, 1, 1, 1, 1)), None),
    "array": jnp.ones((2, 1, 1, 1, 1)),
    "dict": {"keep": jnp.ones((2, 1, 1, 1, 1))},
    "nothing": None,
    "number in it": Edit(keep=2.0),
    "list in it": Edit(add=[[[[[1.0]]]]] * 2),
    "function in it": Edit(keep=abs),
    "words in it": Edit(add=np.full((2, 1, 1, 1, 1), "a")),
    "objects in it": Edit(add=np.full((2, 1, 1, 1, 1), None)),
    "complex in it": Edit(add=np.full((2, 1, 1, 1, 1), 1j)),
}


@pytest.mark.parametrize("site", ["z", "pattern", "resid_mid", "ln1_scale"])
@pytest.mark.parametrize("wrong", WRONG_EDITS)
def test_what_is_no_edit_is_named_with_what_to_give(site, wrong):
    for run in (gpt_forward, hidden_states):
        with pytest.raises(UserError, match=rf"edits\['{site}'\].* must be .*(Edit\(|array)") as error:
            run(PARAMS, IDS, CFG, edits={site: WRONG_EDITS[wrong]})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("edits", [Edit(), [("z", Edit())], lambda x: x, "z", {3: Edit()}, {None: Edit()}])
def test_edits_that_name_no_site_are_refused(edits):
    for run in (gpt_forward, hidden_states):
        with pytest.raises(UserError, match="edits are .*must be a dict|site .* is unknown"):
            run(PARAMS, IDS, CFG, edits=edits)


def test_a_model_without_an_mlp_has_no_such_site():
    cfg = dataclasses.replace(CFG, mlp_ratio=0)
    with pytest.raises(UserError, match="'mlp_out' is not there: mlp_ratio is 0"):
        forward(noisy_params(cfg), IDS, cfg, taps="mlp_out")
    bare = dataclasses.replace(CFG, norm="none")
    with pytest.raises(UserError, match="site 'ln1_scale' is not there: norm is 'none'"):
        forward(noisy_params(bare), IDS, bare, taps="ln1_scale")


# Layers of their own width


PRUNED = dataclasses.replace(CFG, heads=((), (0,)))


def test_a_layer_without_heads_writes_its_bias_alone():
    params = noisy_params(PRUNED)
    result = quick_jit(forward, static_argnums=2, static_argnames="taps")(params, IDS, PRUNED, taps=("attn_out",))
    bias = jnp.broadcast_to(params["blocks"][0]["bo"], (B, T, C))
    np.testing.assert_array_equal(result.taps["attn_out"][0], bias)
    assert np.abs(result.taps["attn_out"][1] - bias).max() > 1e-2


def test_a_layer_without_heads_computes_no_attention():
    cfg = dataclasses.replace(PRUNED, heads=((), ()))
    programs = [
        quick_jit(lambda p, cfg=cfg: forward(p, IDS, cfg).logits).lower(noisy_params(cfg)).compile().as_text()
        for cfg in (CFG, cfg)
    ]
    assert ["exponential" in program for program in programs] == [True, False]
    assert programs[1].count(" dot(") < programs[0].count(" dot(")


def test_the_readable_loop_runs_a_pruned_model_as_the_whole_one():
    params, edits = noisy_params(PRUNED), {"z": Edit(add=np.ones((L, 1, H, 1, 1)))}
    np.testing.assert_allclose(gpt_forward(params, IDS, PRUNED), forward(params, IDS, PRUNED).logits, atol=1e-5)
    edited = gpt_forward(params, IDS, PRUNED, edits=edits)
    want = reference.gpt_forward(reference.as_float64(whole(params, PRUNED)[0]), IDS, CFG, edits=edits)
    np.testing.assert_allclose(edited, want, atol=1e-5)


def test_computing_pruned_blocks_anew_changes_nothing():
    params = noisy_params(PRUNED)

    def gradient(cfg):
        return quick_jit(jax.grad(lambda params: token_losses(forward(params, IDS, cfg).logits, TARGETS).mean()))(
            params
        )

    again = dataclasses.replace(PRUNED, remat=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient(PRUNED), gradient(again))
    assert "remat" in str(jax.make_jaxpr(lambda p: forward(p, IDS, again).logits)(params))


def test_sites_whose_shape_differs_between_layers_are_refused():
    params = noisy_params(PRUNED)
    for name in PER_HEAD:
        with pytest.raises(UserError, match=rf"site '{name}' differs from layer to layer: heads pruned to 0, 1; "):
            forward(params, IDS, PRUNED, taps=(name,))
    with pytest.raises(UserError, match="site 'z' differs from layer to layer"):
        forward(params, IDS, PRUNED, edits={"z": Edit(jnp.ones((L, 1, H, 1, 1)))})
    assert forward(params, IDS, PRUNED, taps="ln1_scale").taps["ln1_scale"].shape == SHAPES["ln1_scale"]
    add = jnp.zeros((L, 1, 1, C)).at[1, ..., 0].set(1)
    moved = gpt_forward(params, IDS, PRUNED, edits={"resid_mid": Edit(None, add)})
    assert np.abs(moved - gpt_forward(params, IDS, PRUNED)).max() > 1e-2


def test_widths_that_heads_cannot_share_are_named():
    message = "n_head is 3, n_embd is 16: n_head must divide n_embd; try n_head=2 or n_embd=18"
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CFG, n_head=3))
    with pytest.raises(UserError, match="n_embd / n_head is 1: rope turns pairs"):
        check(dataclasses.replace(CFG, n_head=16, positions="rope"))
