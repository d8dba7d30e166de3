"""How much of a sweep is run at once, and what stands past the end of the examples; nothing is compiled."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.lab.small import SMALL
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab import engine

CFG = GPTConfig(**SMALL)
MESH = SimpleNamespace(shape={"examples": 2, "masks": 4})


@pytest.mark.parametrize(
    ("masks", "examples", "tokens", "mesh", "rows_and_lanes"),
    [
        (100, 50, 32, None, (4, 1)),
        (100, 50, 33, None, (4, 1)),
        (100, 2, 64, None, (2, 4)),
        (3, 2, 640, None, (2, 3)),
        (3, 2, 1, None, (1, 1)),
        (100, 50, 32, MESH, (8, 4)),
        (9, 5, 640, MESH, (6, 12)),
        (100, 2, 64, MESH, (2, 32)),
        (100, 2, 64, SimpleNamespace(shape={"masks": 4}), (2, 16)),
    ],
)
def test_as_many_examples_and_then_masks_as_the_tokens_allow(masks, examples, tokens, mesh, rows_and_lanes):
    assert engine.extent(CFG, masks, examples, 8, tokens, mesh) == rows_and_lanes


def test_left_to_itself_it_keeps_to_the_device_and_a_quarter_of_the_memory(monkeypatch):
    monkeypatch.setattr(engine, "free_memory", lambda: 2**50)
    assert engine.extent(CFG, 10**6, 1, 8, None, None) == (1, 2**12 // 8)
    monkeypatch.setattr(engine, "free_memory", lambda: 4 * 24 * engine.bytes_per_token(CFG, 8))
    rows, lanes = engine.extent(CFG, 10**6, 1, 8, None, None)
    assert (rows, lanes, type(rows), type(lanes)) == (1, 3, int, int)
    monkeypatch.setattr(engine, "LOGITS_AT_ONCE", 16 * CFG.padded_vocab_size)
    assert engine.extent(CFG, 10**6, 1, 8, None, None) == (1, 2)


def test_one_token_is_the_least():
    assert engine.extent(CFG, 5, 5, 1, 1, None) == (1, 1)


def test_the_memory_of_a_token_by_hand():
    # 8 x 16 of the block, 2 x 16 of its MLP, 3 scores of 2 heads over 8 keys; 3 x 7 logits; 4 of 16 in each of 2 layers
    assert engine.bytes_per_token(CFG, 8) == 4 * (128 + 32 + 48 + 21 + 128)


def test_rows_past_the_end_are_the_last_one_again_and_do_not_count():
    tree = {"a": np.arange(5), "b": np.arange(10).reshape(5, 2)}
    taken = engine.padded_rows(tree, 3, 4)
    assert taken["a"].tolist() == [3, 4, 4, 4]
    assert taken["b"].tolist() == [[6, 7], [8, 9], [8, 9], [8, 9]]
    assert engine.padded_rows(tree["b"], 1, 2, axis=1).tolist() == [[1, 1], [3, 3], [5, 5], [7, 7], [9, 9]]
    counted = engine.counted_rows(3, 4, 5)
    assert (counted.tolist(), counted.dtype) == ([1, 1, 0, 0], np.float32)
