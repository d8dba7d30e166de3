import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.names import NAMES_VOCAB, names_task
from tinygpt_jax.errors import UserError
from tinygpt_jax.text import IGNORE, repeated_sequences

draws = {"seed": st.integers(0, 2**63 - 1), "step": st.integers(0, 2**63 - 1)}
# task -> (a call of it with plain sizes, its vocabulary)
TASKS = {
    "repeated": (lambda seed, step, B: repeated_sequences(seed, step, B, 16, 20), 20),
    "names": (names_task, len(NAMES_VOCAB)),
}
each_task = pytest.mark.parametrize(("draw", "vocab_size"), TASKS.values(), ids=TASKS)


# Independent rules: what each task's answer must be, worked out from one row of ids in the plainest way


def rule_repeated(row, t):
    """What followed the earlier occurrence of the token at t, while what follows it now is no new token."""
    repeats = t + 1 < len(row) and row[t] in row[:t] and row[t + 1] in row[:t]
    return row[row.index(row[t]) + 1] if repeats else None


def rule_names(row, t):
    """The name that stands in the line once; it is asked for at the end."""
    names = [i for i in row if i < NAMES_VOCAB.index("shop")]
    return next(i for i in names if names.count(i) == 1) if t == len(row) - 1 else None


RULES = {
    "repeated": rule_repeated,
    "names": rule_names,
}


def disagreements(examples, rule):
    """(row, t) where the target is not what the rule says."""
    B, T = examples.ids.shape
    wanted = [[rule(row, t) for t in range(T)] for row in examples.ids.tolist()]
    return [
        (b, t)
        for b in range(B)
        for t in range(T)
        if examples.targets[b, t] != (IGNORE if wanted[b][t] is None else wanted[b][t])
    ]


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=25)
@given(**draws)
def test_targets_follow_from_the_ids(name, seed, step):
    examples = TASKS[name][0](seed, step, 8)
    assert disagreements(examples, RULES[name]) == []


@pytest.mark.parametrize("name", TASKS)
def test_a_changed_token_is_seen_by_the_rule(name):
    examples = TASKS[name][0](0, 0, 8)
    broken = examples._replace(targets=np.where(examples.targets >= 0, (examples.targets + 1) % 3, IGNORE))
    assert disagreements(broken, RULES[name])


@each_task
@settings(max_examples=25)
@given(**draws)
def test_shapes_ranges_and_the_question(draw, vocab_size, seed, step):
    ids, targets, answers, wrong, position = draw(seed, step, 8).asked
    for array in (ids, targets, answers, position, *([] if wrong is None else [wrong])):
        assert array.dtype == np.int32
        assert len(array) == 8
    assert ids.shape == targets.shape
    assert 0 <= ids.min() <= ids.max() < vocab_size
    assert ((targets >= IGNORE) & (targets < vocab_size)).all()
    rows = np.arange(8)
    assert np.array_equal(answers[:, 0], targets[rows, position])
    assert answers.min() >= 0
    if wrong is not None:
        assert 0 <= wrong.min() <= wrong.max() < vocab_size
        assert not (wrong[:, :, None] == answers[:, None, :]).any()


@each_task
def test_a_batch_is_a_function_of_seed_and_step_alone(draw, vocab_size):
    first, again, more = draw(3, 5, 8), draw(3, 5, 8), draw(3, 5, 12)
    for a, b, c in zip(first, again, more, strict=True):
        assert (a is None and b is None and c is None) or (np.array_equal(a, b) and np.array_equal(a, c[:8]))
    for other in (draw(3, 6, 8), draw(4, 5, 8)):
        assert not np.array_equal(first.ids, other.ids)


def test_tasks_are_the_same_everywhere_and_for_ever():
    assert repeated_sequences(0, 0, 1, 10, 12).ids.tolist() == [[4, 0, 1, 10, 2, 4, 0, 1, 10, 2]]


@given(**draws, size=st.integers(4, 24), more=st.integers(0, 9))
def test_all_but_the_copies_are_distinct(seed, step, size, more):
    examples = repeated_sequences(seed, step, 4, size, size + more)
    for row, targets, position in zip(examples.ids, examples.targets, examples.position, strict=True):
        length = int((targets >= 0).sum()) + 1
        second = int(position) - length + 2
        assert length >= 2
        assert np.array_equal(row[second : second + length], row[second - length : second])
        assert len(np.unique(row)) == size - length


def test_start_and_length_of_the_block_vary():
    examples = repeated_sequences(0, 0, 256, 12, 12)
    lengths = (examples.targets >= 0).sum(1) + 1
    starts = examples.position + 2 - 2 * lengths
    assert set(lengths) == {2, 3, 4, 5, 6}
    assert set(starts[lengths == 2]) == set(range(9))


@given(**draws)
def test_an_unrepeated_first_half_says_nothing(seed, step):
    clean = repeated_sequences(seed, step, 4, 12, 14)
    partner = repeated_sequences(seed, step, 4, 12, 14, corrupted=True)
    for a, b in zip(clean[1:], partner[1:], strict=True):
        assert (a is None and b is None) or np.array_equal(a, b)
    for row, other, position, targets in zip(clean.ids, partner.ids, clean.position, clean.targets, strict=True):
        length = int((targets >= 0).sum()) + 1
        second = position - length + 2
        assert len(np.unique(other)) == 12
        assert np.array_equal(np.flatnonzero(row != other), np.arange(second - length, second))


@settings(max_examples=25)
@given(**draws)
def test_corrupted_names_no_longer_give_the_answer(seed, step):
    clean, swapped, others = (names_task(seed, step, 8, corrupted=c) for c in (None, "swapped", "others"))
    for partner in (swapped, others):
        assert all(np.array_equal(a, b) for a, b in zip(clean[1:], partner[1:], strict=True))
    assert [rule_names(row, len(row) - 1) for row in swapped.ids.tolist()] == clean.wrong[:, 0].tolist()
    assert ((clean.ids != swapped.ids).sum(1) == 1).all()
    assert ((clean.ids != others.ids).sum(1) == 3).all()
    assert not (others.ids == clean.answers).any()
    assert not (others.ids == clean.wrong).any()


def test_the_answer_does_not_follow_from_its_place():
    examples = names_task(0, 0, 200)
    first = (examples.ids[:, 1] == examples.answers[:, 0]).mean()
    assert 0.4 < first < 0.6


def test_every_word_of_the_names_has_one_id():
    assert len(set(NAMES_VOCAB)) == len(NAMES_VOCAB)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: repeated_sequences(-1, 0, 1, 8, 8), r"seed -1 is outside \[0, 2\*\*63\)"),
        (lambda: names_task(0, 2**63, 1), "step 9223372036854775808 is outside"),
        (lambda: repeated_sequences(0, 0, 0, 8, 8), "batch_size is 0: must be 1 or more"),
        (lambda: repeated_sequences(0, 0, 1, 3, 8), "block_size is 3: must be 4 or more"),
        (
            lambda: repeated_sequences(0, 0, 1, 8, 7),
            r"vocab_size is 7: must be 8 or more \(block_size 8 asks for as many distinct tokens\)",
        ),
        (lambda: names_task(0, 0, 0), "batch_size is 0"),
        (lambda: names_task(0, 0, 1, corrupted="odd"), "corrupted is 'odd': must be swapped, others or None"),
    ],
)
def test_bad_sizes_give_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
