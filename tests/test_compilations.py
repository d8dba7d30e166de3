"""How often programs are compiled: once for each shape, however many calls, prompts, masks and settings there are."""

import functools

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax.lab import engine
from tinygpt_jax.sampling import decode
from tinygpt_jax.text import Tokens, char_tokenizer
from tinygpt_jax.training import evaluate

LETTERS = "abcdefghijk"
CFG = tg.GPTConfig(vocab_size=11, block_size=16, n_layer=2, n_head=2, n_embd=16, mlp_ratio=1.0)
PARAMS = tg.init_params(jax.random.key(0), CFG)
MODEL = tg.Model(PARAMS, CFG, char_tokenizer(LETTERS))
IDS = np.random.default_rng(0).integers(0, 11, (6, 16))


def compiled(program, calls):
    """How many more versions of a jitted function there are after some calls."""
    before = program._cache_size()
    for call in calls:
        call()
    return program._cache_size() - before


def generations(n):
    """n calls with prompts, lengths, seeds and temperatures of every kind."""
    rng = np.random.default_rng(1)
    for i in range(n):
        prompt = "".join(rng.choice(list(LETTERS), rng.integers(0, 40)))
        options = {"max_tokens": int(rng.integers(1, 4)), "temperature": float(rng.choice([0, 0.3, 1.7])), "seed": i}
        yield functools.partial(tg.generate, MODEL, prompt, **options)


@pytest.mark.parametrize("n", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_texts_of_any_length_and_temperature_are_written_by_one_program(n):
    before = decode.prefill._cache_size()
    assert compiled(decode.advance, generations(n)) <= 1
    assert decode.prefill._cache_size() - before <= CFG.block_size.bit_length()  # prompts are padded to powers of two


def test_texts_of_any_length_are_scored_by_one_program():
    def score(n):
        return lambda: tg.evaluate_tokens(PARAMS, CFG, Tokens(np.resize(IDS, n), n, n))

    score(5000)()  # longer than one call
    assert compiled(evaluate._window_losses, map(score, (3000, 4097, 5000, 9999))) == 0


def test_any_sets_and_positions_are_ablated_by_one_program():
    sets = (["1.1"], [("0.0", "0.1"), "layer1"])
    calls = [functools.partial(tg.ablate_sets, PARAMS, IDS, CFG, one) for one in sets]
    calls += [functools.partial(tg.ablate_heads, PARAMS, IDS, CFG, positions=p) for p in ([3, 5],)]
    calls[0]()
    found = compiled(engine._run, calls)
    assert found <= 2, "masks of which fewer are run at once than others may have a program of their own"


def test_another_shape_is_counted():
    assert compiled(engine._run, [functools.partial(tg.ablate_heads, PARAMS, IDS[:, :7], CFG)]) == 1
