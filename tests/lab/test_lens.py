import dataclasses
import itertools

import jax
import numpy as np
import pytest

from tests.lab.planted import planted
from tests.lab.small import SMALL, random_params
from tests.text.names import names_task
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward, hidden_states
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.lens import attention_maps, logit_attribution, logit_lens
from tinygpt_jax.lab.read.readout import heads_out, norm_scale, readout
from tinygpt_jax.params import init_params
from tinygpt_jax.text import IGNORE, Examples, repeated_sequences
from tinygpt_jax.training.loss import token_losses

VARIANTS = {
    "layernorm": GPTConfig(**SMALL, attn_bias=True),
    "rmsnorm": GPTConfig(**SMALL, norm="rmsnorm", positions="rope", tied=False, vocab_multiple=8),
    "none": GPTConfig(**{**SMALL, "mlp_ratio": 0}, norm="none", positions="sinusoidal", attn_bias=True),
}


def some_examples(B=6, T=10, V=7, wrong=True):
    """Random tokens, with two right answers and a wrong one at a random position."""
    rng = np.random.default_rng(0)
    ids, tokens = (
        rng.integers(0, V, (B, T), np.int32),
        rng.permuted(np.tile(np.arange(V, dtype=np.int32), (B, 1)), axis=1),
    )
    position = rng.integers(0, T, B, np.int32)
    return Examples(ids, np.roll(ids, -1, 1), tokens[:, :2], tokens[:, 2:3] if wrong else None, position)


@pytest.fixture(scope="module", params=VARIANTS)
def opened(request):
    """(params, cfg, examples, the model's own forward pass, what is to be tested)"""
    cfg = VARIANTS[request.param]
    params, examples = random_params(cfg), some_examples()
    own = forward(params, examples.ids, cfg, taps=("z", "attn_out", "resid_post"))
    return params, cfg, examples, jax.tree.map(np.asarray, own), logit_attribution(params, examples, cfg)


# Direct logit attribution


def test_contributions_sum_to_the_logit_difference(opened):
    _, _, examples, own, parts = opened
    rows = zip(own.logits[range(6), examples.position], examples.answers, examples.wrong, strict=True)
    wanted = [row[right].mean() - row[wrong].mean() for row, right, wrong in rows]
    np.testing.assert_allclose(parts.total, wanted, atol=1e-4)
    np.testing.assert_allclose(parts.per_example.sum(0), wanted, atol=1e-4)
    np.testing.assert_allclose(parts.contribution.sum(), np.mean(wanted), atol=1e-4)


def test_every_contribution_is_needed(opened):
    parts = opened[-1]
    for i, name in enumerate(parts.components):
        without = np.delete(parts.per_example, i, axis=0).sum(0)
        assert not np.allclose(without, parts.total, atol=1e-4), name


def test_without_wrong_tokens_it_is_the_logit_above_the_vocabularys_mean(opened):
    params, cfg, examples, own, _ = opened
    parts = logit_attribution(params, examples._replace(wrong=None), cfg)
    logits = own.logits[range(6), examples.position]
    wanted = np.take_along_axis(logits - logits.mean(-1, keepdims=True), examples.answers, 1).mean(1)
    np.testing.assert_allclose(parts.per_example.sum(0), wanted, atol=1e-4)
    np.testing.assert_allclose(parts.total, wanted, atol=1e-4)
    against_all = examples._replace(wrong=np.tile(np.arange(cfg.vocab_size, dtype=np.int32), (6, 1)))
    np.testing.assert_allclose(parts.per_example, logit_attribution(params, against_all, cfg).per_example, atol=1e-4)
    assert parts.definition.metric == "centred logit"


EVERY_TARGET = {"answers": None, "wrong": None, "position": None}


def test_every_counted_position_is_the_mean_of_each(opened):
    params, cfg, examples, own, _ = opened
    targets = np.where(np.random.default_rng(2).random(examples.targets.shape) < 0.6, examples.targets, IGNORE)
    targets[:, 0] = examples.targets[:, 0]  # so that every example has one
    asked = examples._replace(targets=targets, **EVERY_TARGET)
    parts = logit_attribution(params, asked, cfg)
    total = np.zeros(parts.per_example.shape)
    for t in range(10):
        at = examples._replace(answers=np.maximum(targets[:, t : t + 1], 0), position=np.full(6, t), wrong=None)
        total += logit_attribution(params, at, cfg).per_example * (targets[:, t] >= 0)
    np.testing.assert_allclose(parts.per_example, total / (targets >= 0).sum(1), atol=1e-4)
    logits = own.logits - own.logits.mean(-1, keepdims=True)
    wanted = np.take_along_axis(logits, np.maximum(targets, 0)[..., None], -1)[..., 0]
    wanted = [row[there].mean() for row, there in zip(wanted, targets >= 0, strict=True)]
    np.testing.assert_allclose(parts.per_example.sum(0), wanted, atol=1e-4)
    assert parts.definition.positions == f"{(targets >= 0).sum()} counted targets"
    of_ids = logit_attribution(params, examples.ids, cfg)
    following = np.concatenate([examples.ids[:, 1:], np.full((6, 1), IGNORE)], 1)
    as_asked = logit_attribution(params, asked._replace(targets=following), cfg)
    np.testing.assert_array_equal(of_ids.per_example, as_asked.per_example)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
@pytest.mark.parametrize("asked", [{}, {"wrong": None}, EVERY_TARGET], ids=["wrong", "no wrong", "every target"])
def test_the_gauge_does_not_matter(norm, asked):
    """A vector added to every unembedding row leaves all log-probabilities as they are, and so all contributions."""
    cfg = GPTConfig(**SMALL, norm=norm, tied=False, attn_bias=True, vocab_multiple=8)
    params, examples = random_params(cfg), some_examples()._replace(**asked)
    moved = {**params, "head": params["head"] + np.random.default_rng(0).normal(0, 1, 16).astype(np.float32)}
    logs, there = (jax.nn.log_softmax(forward(p, examples.ids, cfg).logits) for p in (params, moved))
    np.testing.assert_allclose(logs, there, atol=1e-4)
    parts, again = (logit_attribution(p, examples, cfg) for p in (params, moved))
    np.testing.assert_allclose(parts.per_example, again.per_example, atol=1e-4)
    np.testing.assert_allclose(parts.total, again.total, atol=1e-4)
    assert np.abs(parts.per_example).max() > 0.03


def test_what_a_head_contributes_is_what_its_removal_removes(opened):
    """With the final norm's scale held, on a stream from which the head's write is subtracted."""
    params, cfg, examples, own, parts = opened
    x = own.taps["resid_post"][-1][range(6), examples.position]
    directions, shift = map(np.asarray, readout(params, cfg))
    scale = np.asarray(norm_scale(params, x, cfg))[:, None]
    for layer, head in itertools.product(range(2), range(2)):
        write = (
            own.taps["z"][layer, :, head][range(6), examples.position] @ np.asarray(heads_out(params, cfg))[layer, head]
        )
        change = (scale * (x @ directions.T) + shift) - (scale * ((x - write) @ directions.T) + shift)
        wanted = [c[r].mean() - c[w].mean() for c, r, w in zip(change, examples.answers, examples.wrong, strict=True)]
        i = parts.components.index(f"{layer}.{head}")
        np.testing.assert_allclose(parts.per_example[i], wanted, atol=1e-4)
        assert parts.heads[layer, head] == parts.contribution[i]
        assert parts.heads_se[layer, head] == parts.se[i]


def test_heads_of_a_layer_sum_to_what_attention_writes(opened):
    params, cfg, _, own, _ = opened
    writes = np.einsum("lbhtk,lhkc->lbtc", own.taps["z"], np.asarray(heads_out(params, cfg)))
    bias = np.asarray(params["blocks"].get("bo", np.zeros((2, 16))))[:, None, None]
    np.testing.assert_allclose(writes + bias, own.taps["attn_out"], atol=1e-5)


def test_the_readout_is_the_final_norm_and_the_head(opened):
    params, cfg, _, own, _ = opened
    x = own.taps["resid_post"][-1]
    directions, shift = map(np.asarray, readout(params, cfg))
    np.testing.assert_allclose(
        norm_scale(params, x, cfg)[..., None] * (x @ directions.T) + shift, own.logits, atol=1e-4
    )


def test_components_are_those_the_model_has():
    names = {
        name: logit_attribution(random_params(cfg), some_examples(), cfg).components for name, cfg in VARIANTS.items()
    }
    heads = [f"{layer}.{head}" for layer in range(2) for head in range(2)]
    end = ["bias0", "bias1", "mlp0", "mlp1", "shift"]
    assert names["layernorm"] == ("token", "positions", *heads, *end)
    assert names["rmsnorm"] == ("token", *heads, "mlp0", "mlp1")
    assert names["none"] == ("token", "positions", *heads, "bias0", "bias1")


def test_the_planted_induction_head_writes_the_answer():
    params, cfg, facts = planted(2)
    parts = logit_attribution(params, repeated_sequences(0, 0, 8, cfg.block_size, cfg.vocab_size), cfg)
    assert parts.heads[facts.induction] == pytest.approx(20 * 15 / 16, rel=1e-3)  # above the mean of 16 tokens
    others = [c for c, name in zip(parts.contribution, parts.components, strict=True) if name != "1.0"]
    assert np.abs(others).max() < 0.1


def test_attribution_is_kept(opened, tmp_path):
    parts = opened[-1]
    again = read_result(parts.save(tmp_path / "parts")[0])
    assert again.components == parts.components
    np.testing.assert_array_equal(again.heads, parts.heads)
    assert [row["component"] for row in again.rows()] == list(parts.components)


def test_standard_error_is_that_of_a_mean(opened):
    parts = opened[-1]
    np.testing.assert_allclose(parts.se, parts.per_example.std(1, ddof=1) / np.sqrt(6), rtol=1e-9)


# The logit lens


def answer_logit(logits, examples):
    return logits[np.arange(len(examples.ids)), examples.position, examples.answers[:, 0]]


def stage_logits(params, examples, cfg):
    """(L + 1, B, T, V), one logit at a time through the lens."""
    B, T = examples.ids.shape
    logits = np.empty((cfg.n_layer + 1, B, T, cfg.vocab_size))
    for t, v in np.ndindex(T, cfg.vocab_size):
        asked = examples._replace(position=np.full(B, t, np.int32), answers=np.full((B, 1), v, np.int32))
        logits[..., t, v] = logit_lens(params, asked, cfg, metric=answer_logit).per_example
    return logits


def test_the_last_stage_is_the_model(opened):
    params, cfg, examples, own, _ = opened
    logits = stage_logits(params, examples, cfg)
    assert logits.shape == (3, 6, 10, 7)
    np.testing.assert_allclose(logits[-1], own.logits, atol=1e-5)
    assert not np.allclose(logits[-2], own.logits, atol=1e-2)


def test_a_stage_is_a_model_that_ends_there():
    cfg = VARIANTS["layernorm"]
    params, examples = random_params(cfg), some_examples()
    short = GPTConfig(**{**SMALL, "n_layer": 1}, attn_bias=True)
    cut = {**params, "blocks": jax.tree.map(lambda x: x[:1], params["blocks"])}
    lens = logit_lens(params, examples, cfg)
    logits = forward(cut, examples.ids, short).logits
    np.testing.assert_allclose(
        lens.per_example[1], np.asarray(token_losses(logits, examples.targets)).mean(1), rtol=1e-5
    )
    np.testing.assert_allclose(stage_logits(params, examples, cfg)[1], logits, atol=1e-5)
    assert [row["stage"] for row in lens.rows()] == ["embedding", "layer 0", "layer 1"]


def test_planted_answers_appear_after_the_last_layer(tmp_path):
    params, cfg, _ = planted(2)
    examples = repeated_sequences(0, 0, 8, cfg.block_size, cfg.vocab_size)
    lens = logit_lens(params, examples, cfg, metric="log-prob")
    assert lens.value[:2] == pytest.approx(-np.log(cfg.vocab_size), abs=1e-2)
    assert lens.value[2] == pytest.approx(0, abs=1e-3)
    again = read_result(lens.save(tmp_path / "lens")[0])
    np.testing.assert_array_equal(again.per_example, lens.per_example)


def test_divergence_from_the_whole_model_ends_at_zero():
    cfg = VARIANTS["rmsnorm"]
    lens = logit_lens(random_params(cfg), some_examples(), cfg, metric="kl")
    assert lens.value[0] > 0.01
    assert lens.value[-1] == pytest.approx(0, abs=1e-5)


# Attention maps


def test_maps_are_the_patterns():
    cfg = VARIANTS["rmsnorm"]
    params, ids = random_params(cfg), some_examples().ids[0]
    maps = attention_maps(params, ids, cfg, tokens=list("abcdefghij"))
    own = hidden_states(params, ids[None], cfg, taps=("pattern",)).taps["pattern"][:, 0]
    np.testing.assert_array_equal(maps.patterns, own)
    np.testing.assert_allclose(maps.patterns.sum(-1), 1, atol=1e-5)
    assert maps.tokens == tuple("abcdefghij")
    assert attention_maps(params, ids, cfg).tokens == tuple(map(str, ids))


# What cannot be done


def test_what_cannot_be_taken_apart():
    cfg = VARIANTS["none"]
    params, examples = init_params(jax.random.key(0), cfg), some_examples()
    for lacks in ({"answers": None}, {"position": None}, {"answers": None, "position": None}):
        with pytest.raises(UserError, match="examples have .* without .*: give answers with their position"):
            logit_attribution(params, examples._replace(**lacks), cfg)
    silent = examples._replace(targets=np.where(np.arange(6)[:, None] == 2, IGNORE, examples.targets), **EVERY_TARGET)
    with pytest.raises(UserError, match="example 2 has no target that counts"):
        logit_attribution(params, silent, cfg)
    replacing = dataclasses.replace(cfg, residual=False)
    with pytest.raises(UserError, match="residual is False"):
        logit_attribution(params, examples, replacing)
    with pytest.raises(UserError, match="there are 3 tokens for 10 ids"):
        attention_maps(params, examples.ids[0], cfg, tokens=list("abc"))
    with pytest.raises(UserError, match=r"id \d+ at index \(0, 0\) is outside"):
        logit_attribution(params, names_task(0, 0, 2), cfg)
