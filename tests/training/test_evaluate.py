"""The validation loss: every token once, padding for nothing, errors that mean what they say."""

import math

import jax
import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.params import init_params
from tinygpt_jax.reference import loss as reference_loss
from tinygpt_jax.text import Tokens
from tinygpt_jax.training import evaluate as module
from tinygpt_jax.training.evaluate import evaluate_tokens, say_seldom

CFG = GPTConfig(vocab_size=11, block_size=6, n_layer=1, n_head=2, n_embd=16)
PARAMS = jax.tree.map(lambda x: 5 * x, init_params(jax.random.key(0), CFG))
REFERENCE = jax.tree.map(lambda x: np.asarray(x, np.float64), PARAMS)


def tokens(n, seed=0):
    return Tokens(np.random.default_rng(seed).integers(0, 11, n).astype(np.uint16), n_chars=2 * n, n_bytes=3 * n)


def by_hand(ids):
    """Mean loss with the reference, window by window."""
    sums = [
        (len(part) - 1) * reference_loss(REFERENCE, part[None, :-1].astype(int), part[None, 1:].astype(int), CFG)
        for part in (ids[i : i + 7] for i in range(0, len(ids) - 1, 6))
    ]
    return sum(sums) / (len(ids) - 1)


@pytest.mark.parametrize("n", [2, 7, 8, 61, 64])
@pytest.mark.parametrize("per_call", [6, 24, 10**6])
def test_every_token_is_scored_once_however_the_windows_are_batched(n, per_call, monkeypatch):
    monkeypatch.setattr(module, "TOKENS_PER_CALL", {"cpu": per_call})
    text = tokens(n)
    result = evaluate_tokens(PARAMS, CFG, text)
    assert result.tokens == n - 1
    assert result.loss == pytest.approx(by_hand(text.ids), abs=1e-5)


def test_units_follow_from_the_text():
    result = evaluate_tokens(PARAMS, CFG, tokens(61))
    assert result.loss_per_char == pytest.approx(result.loss / 2)
    assert result.bits_per_byte == pytest.approx(result.loss / 3 / math.log(2))
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    assert result.perplexity_se == pytest.approx(result.perplexity * result.loss_se)


def test_the_standard_error_is_that_of_repeated_sampling():
    """Over many texts, 95 % intervals hold the mean of them all."""
    results = [evaluate_tokens(PARAMS, CFG, tokens(121, seed)) for seed in range(200)]
    loss, se = np.array([(r.loss, r.loss_se) for r in results]).T
    assert 0.91 < np.mean(np.abs(loss - loss.mean()) < 1.96 * se) < 0.99


def test_the_standard_error_knows_that_neighbours_are_alike():
    """A text of long stretches, easy and hard ones by turns, says less of such texts than its many windows in another
    order would."""
    rng, T = np.random.default_rng(0), CFG.block_size
    windows = [rng.choice(CFG.vocab_size, T) if i // 40 % 2 else np.full(T, 3) for i in range(240)]
    stretches, mixed = (np.concatenate(some) for some in (windows, [windows[i] for i in rng.permutation(240)]))
    found = [
        evaluate_tokens(PARAMS, CFG, Tokens(ids.astype(np.uint16), len(ids), len(ids))) for ids in (stretches, mixed)
    ]
    assert found[0].loss_se > 3 * found[1].loss_se


def test_one_window_has_no_error():
    assert math.isnan(evaluate_tokens(PARAMS, CFG, tokens(5)).loss_se)


def test_a_long_evaluation_says_how_far_it_is_and_can_be_ended_anywhere(monkeypatch):
    monkeypatch.setattr(module, "TOKENS_PER_CALL", {"cpu": 24})
    monkeypatch.setattr(module, "TOLD_SECONDS", 0.0)
    text, lines, counts = tokens(200), [], []

    def interrupted(count):
        counts.append(count)
        if len(counts) == 3:
            raise KeyboardInterrupt

    evaluate_tokens(PARAMS, CFG, text, say_seldom(text, lines.append))
    assert lines == [f"scored {24 * i} of 199 tokens" for i in range(1, 9)]
    with pytest.raises(KeyboardInterrupt):
        evaluate_tokens(PARAMS, CFG, text, interrupted)
    assert counts == [24, 48, 72]
