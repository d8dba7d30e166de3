"""What a model expects next, and the map of its embedding, against NumPy."""

import dataclasses

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax import reference
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.read.tokens import embedding_map, next_tokens

CFG = tg.GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, vocab_multiple=8)
PARAMS = jax.tree.map(lambda x: 10 * x, tg.init_params(jax.random.key(0), CFG))
IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6])
NAMES = [*"abcdefghi", "\t", "<&>"]


def test_expectations_are_the_softmax_of_the_logits():
    found = next_tokens(PARAMS, IDS, CFG, NAMES, candidates=4)
    logits, _ = reference.forward(reference.as_float64(PARAMS), IDS[None], CFG)
    p = reference.softmax(logits[0])
    order = np.argsort(-p, axis=1)[:, :4]
    np.testing.assert_allclose(found.probability, np.take_along_axis(p, order, 1), atol=1e-5)
    assert found.candidates == tuple(tuple(NAMES[i] for i in row) for row in order)
    np.testing.assert_allclose(found.given[:-1], p[np.arange(7), IDS[1:]], atol=1e-5)
    assert np.isnan(found.given[-1])
    np.testing.assert_allclose(found.entropy, -(p * np.log(p)).sum(1), atol=1e-4)
    assert found.tokens == tuple(NAMES[i] for i in IDS)
    row = found.rows()[5]
    assert (row["position"], row["rank"], row["after"], row["candidate"]) == (1, 1, "b", found.candidates[1][1])


def test_every_candidate_and_tokens_without_names():
    found = next_tokens(PARAMS, IDS[:1], CFG, ["x"], candidates=99)
    assert found.probability.shape == (1, 11)  # no padding row is expected
    np.testing.assert_allclose(found.probability.sum(), 1, atol=1e-5)
    assert "#3" in found.candidates[0]
    with pytest.raises(UserError, match="candidates is 0"):
        next_tokens(PARAMS, IDS, CFG, candidates=0)
    with pytest.raises(UserError, match="11"):
        next_tokens(PARAMS, IDS + 9, CFG)


def test_the_map_keeps_what_lies_in_a_plane():
    # Tokens in a plane of the embedding, far along one direction and less along another: distances stay.
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.normal(size=(16, 2)))[0].T
    places = rng.normal(size=(16, 2)) * (5, 1)
    params = PARAMS | {"tok_emb": (places @ plane + 7).astype(np.float32)}
    found = embedding_map(params, CFG, NAMES)
    there, want = np.column_stack([found.x, found.y]), places[:11]
    distance = lambda a: np.linalg.norm(a[:, None] - a[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(distance(there), distance(want), atol=1e-4)
    np.testing.assert_allclose(found.share.sum(), 1, atol=1e-5)
    assert found.x.var() > found.y.var()
    assert found.tokens == tuple(NAMES)
    np.testing.assert_allclose(found.size, np.linalg.norm(params["tok_emb"][:11], axis=1), rtol=1e-6)
    flipped = embedding_map(params | {"tok_emb": params["tok_emb"] * 1}, CFG)
    np.testing.assert_array_equal(flipped.x, found.x)


def test_a_token_that_begins_a_comment_is_a_row_of_the_table(tmp_path):
    _, file = embedding_map(PARAMS, CFG, ["#", *NAMES[1:]]).save(tmp_path / "map")
    rows = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 1 + CFG.vocab_size
    assert rows[1].startswith('"#",')


def test_a_direction_has_one_sign():
    found = embedding_map(PARAMS, CFG)
    table = np.asarray(PARAMS["tok_emb"], np.float64)[:11]
    table -= table.mean(0)
    for values in (found.x, found.y):
        direction = values @ table  # along the direction, with its sign
        assert direction[np.abs(direction).argmax()] > 0


def test_a_map_needs_a_plane():
    small = dataclasses.replace(CFG, vocab_size=2, vocab_multiple=1)
    with pytest.raises(UserError, match=r"the embedding has shape \(2, 16\)"):
        embedding_map(tg.init_params(jax.random.key(0), small), small)
