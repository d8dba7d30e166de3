"""Where windows come from makes no difference."""

import dataclasses

import numpy as np
import pytest

from tinygpt_jax.config import MAX_DISPATCH, GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.text import window_starts
from tinygpt_jax.training.feed import make_feed

CFG = TrainConfig(model=GPTConfig(block_size=6), batch_size=3, accumulate=2)
IDS = np.random.default_rng(0).integers(0, 60_000, 500).astype(np.uint16)


def windows(feed, step, n):
    tokens, starts = feed(step, n)
    return np.asarray(tokens)[starts[:n, ..., None] + np.arange(7)]


@pytest.mark.parametrize("n", [1, 3, 4])
def test_device_and_host_feed_the_same_windows(n):
    resident, streamed = make_feed(CFG, IDS), make_feed(CFG, IDS, device_bytes=10)
    np.testing.assert_array_equal(windows(resident, 7, n), windows(streamed, 7, n))
    expected = window_starts(CFG.seed, 7, 500, 6, 6).reshape(2, 3)
    np.testing.assert_array_equal(windows(resident, 7, n)[0], IDS[expected[..., None] + np.arange(7)])


def test_shapes_do_not_depend_on_the_number_of_steps():
    for limit in (10, 10**6):
        feed = make_feed(CFG, IDS, device_bytes=limit)
        assert len({tuple(np.shape(x) for x in feed(0, n)) for n in (0, 1, 4)}) == 1


def test_micro_batches_share_out_the_same_windows():
    one = dataclasses.replace(CFG, batch_size=6, accumulate=1)
    np.testing.assert_array_equal(
        windows(make_feed(CFG, IDS), 3, 2).reshape(2, -1, 7), windows(make_feed(one, IDS), 3, 2).reshape(2, -1, 7)
    )


@pytest.mark.parametrize("T", [1, 63, 2**20])
def test_more_tokens_than_int32_can_number_are_refused_at_the_edge(T):
    """On the host the start of a dispatch's last window wrapped, and other text was trained on."""
    most = 2**31 // MAX_DISPATCH // (T + 1)
    cfg = dataclasses.replace(CFG, model=GPTConfig(block_size=T), accumulate=1, batch_size=most)
    make_feed(cfg, IDS, device_bytes=10)
    assert most * (T + 1) * MAX_DISPATCH <= 2**31
    with pytest.raises(UserError, match=rf"batch_size {most + 1} .* lower one of them"):
        make_feed(dataclasses.replace(cfg, batch_size=most + 1), IDS, device_bytes=10)
    make_feed(dataclasses.replace(cfg, batch_size=most + 1), IDS)
