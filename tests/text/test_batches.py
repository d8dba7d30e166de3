import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import IGNORE, eval_windows, window_starts, windows


def test_starts_are_a_function_of_seed_and_step_alone():
    first = window_starts(1, 5, 1000, 8, 16)
    window_starts(1, 6, 1000, 8, 16)
    assert first.dtype == np.int64
    assert first.shape == (16,)
    assert np.array_equal(window_starts(1, 5, 1000, 8, 16), first)
    assert np.array_equal(window_starts(1, 5, 1000, 8, 4), first[:4])


def test_starts_are_the_same_everywhere_and_for_ever():
    assert window_starts(1337, 0, 1_003_854, 64, 4).tolist() == [247095, 544727, 703278, 766883]
    assert window_starts(2**63 - 1, 2**63 - 1, 1_003_854, 64, 4).tolist() == [819346, 203402, 217956, 899001]


def test_steps_and_seeds_share_nothing():
    n = 1 << 40  # so wide that one equal start in 40,000 would be a wonder
    draws = [window_starts(seed, step, n, 8, 100) for seed in range(20) for step in range(20)]
    assert len(np.unique(np.concatenate(draws))) == 20 * 20 * 100


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(1, 50), st.integers(1, 50))
def test_windows_lie_within(seed, step, block_size, more):
    starts = window_starts(seed, step, block_size + more, block_size, 8)
    assert starts.min() >= 0
    assert starts.max() + block_size + 1 <= block_size + more


def test_starts_are_uniform_and_reach_both_ends():
    counts = np.bincount(np.concatenate([window_starts(0, step, 20, 10, 100) for step in range(100)]), minlength=10)
    assert len(counts) == 10
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 27.9  # one in a thousand, at 9 degrees of freedom


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((-1, 0, 100, 8, 1), "seed -1 is outside"),
        ((2**63, 0, 100, 8, 1), "seed 9223372036854775808 is outside"),
        ((0, -1, 100, 8, 1), "step -1 is outside"),
        ((0, 0, 8, 8, 1), "8 tokens are too few: a window of 8 needs 9; give more"),
    ],
)
def test_bad_draws(args, message):
    with pytest.raises(UserError, match=message):
        window_starts(*args)


def test_targets_are_inputs_one_later():
    inputs, targets = windows(np.arange(20, dtype=np.uint16), np.array([0, 15]), 4)
    assert inputs.tolist() == [[0, 1, 2, 3], [15, 16, 17, 18]]
    assert targets.tolist() == [[1, 2, 3, 4], [16, 17, 18, 19]]
    assert inputs.dtype == targets.dtype == np.int32


@pytest.mark.parametrize("start", [-1, 16])
def test_windows_outside_are_refused(start):
    with pytest.raises(UserError, match=rf"start {start} at index 1 is outside \[0, 15\]"):
        windows(np.arange(20), np.array([0, start]), 4)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("bad", [2**31, 2**32 - 1, 2**32 + 1, 2**63 - 1, -(2**31) - 1])
def test_ids_that_int32_would_wrap_are_refused(bad, dtype):
    if not np.iinfo(dtype).min <= bad <= np.iinfo(dtype).max:
        return
    ids = np.array([1, 2, bad, 3, 4], dtype)
    for make in (lambda: windows(ids, np.array([0]), 3), lambda: eval_windows(ids, 3)):
        with pytest.raises(UserError, match=f"ids reach from .*{bad}"):
            make()
    assert windows(ids, np.array([0]), 1)[1].tolist() == [[2]], "what is not in a window is not asked for"
    assert eval_windows(np.array([0, 2**31 - 1], dtype), 1)[1].tolist() == [[2**31 - 1]]


class Long:
    """As many ids as no memory holds: each is the remainder of its position."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        assert index.dtype == np.int64
        return (index % 1000).astype(np.uint16)


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 + 7, 2**32 + 7, 2**40])
def test_positions_past_32_bits_are_kept(length):
    starts = window_starts(1, 2, length, 8, 4000)
    assert starts.dtype == np.int64
    assert length - length // 100 < starts.max() <= length - 9
    for dtype in (np.int64, np.uint64):
        inputs, targets = windows(Long(length), starts.astype(dtype), 8)
        assert np.array_equal(inputs, (starts[:, None] + np.arange(8)) % 1000)
        assert np.array_equal(targets, (starts[:, None] + np.arange(1, 9)) % 1000)
    last = np.array([length - 9])
    assert windows(Long(length), last, 8)[1][0, -1] == (length - 1) % 1000
    with pytest.raises(UserError, match=f"window start {length - 8} at index 0"):
        windows(Long(length), last + 1, 8)


@given(st.integers(2, 200), st.integers(1, 50))
def test_every_token_but_the_first_is_a_target_once(n, block_size):
    ids = np.arange(n, dtype=np.uint16)
    inputs, targets = eval_windows(ids, block_size)
    assert inputs.shape == targets.shape == (-(-(n - 1) // block_size), block_size)
    assert inputs.dtype == targets.dtype == np.int32
    real = targets != IGNORE
    assert targets[real].tolist() == list(range(1, n))
    assert inputs[real].tolist() == list(range(n - 1))
    assert not inputs[~real].any()
    assert (~real).sum() < block_size


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_evaluate(n):
    with pytest.raises(UserError, match=f"{n} tokens are too few"):
        eval_windows(np.arange(n), 4)
