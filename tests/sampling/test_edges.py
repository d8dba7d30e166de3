"""What sampling does at its edges: stop strings, ids that stand for nothing, memory, wrong arguments, odd logits."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.sampling.test_sampling import ALL_FILTERS, MODEL, byte_tokenizer, make_model
from tinygpt_jax.checks import check
from tinygpt_jax.config import SampleConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.sampling import generate, sample, stream
from tinygpt_jax.sampling.filters import filter_logits, make_filters, penalise
from tinygpt_jax.sampling.reader import Reader
from tinygpt_jax.sampling.stops import StopSearch
from tinygpt_jax.text import Tokenizer, char_tokenizer

# What can come, and what it costs


LETTERS = char_tokenizer("ab\n")


@pytest.mark.parametrize(
    ("stop", "why"),
    [("X", "has no 'X'"), (("b", "abX\0"), r"has no '\\x00X'"), ("a" * 28, "max_tokens 27"), ("\udcff", "surrogate")],
)
def test_a_stop_string_that_can_never_come_is_refused(stop, why):
    for function in (generate, sample, stream):
        with pytest.raises(UserError, match=why) as error:
            function(MODEL, "abc", stop=stop, max_tokens=27)
        assert str(error.value).isprintable()
    assert sample(MODEL, "abc", max_tokens=27, stop=("a" * 27, "j"))


def test_a_stop_string_of_bytes_may_come_where_they_do():
    model = make_model(byte_tokenizer(), vocab_size=257, n_layer=1)
    for stop in ("\0", "中", "\ufffd"):
        sample(model, "a", max_tokens=3, stop=stop)
    with pytest.raises(UserError, match="4 characters: it can never come, since max_tokens 3 give 3 at most"):
        sample(model, "a", max_tokens=3, stop="abcd")


class Counted(str):
    """A stop string that counts how often one of its characters is looked at."""

    looks = 0

    def __getitem__(self, key):
        Counted.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("ab" * 20_000, "zz"),
        ("a" * 40_000, "a" * 999 + "b"),
        (("a" * 999 + "\n") * 40, "a" * 1000),
        ("ab" * 20_000, "ba" * 19_990 + "b\n"),
    ],
    ids=["never begins", "begins always", "begins again and again", "as long as the text"],
)
def test_looking_for_a_stop_string_takes_time_in_proportion_to_the_text(text, stop):
    Counted.looks = 0
    search = StopSearch([Counted(stop)])
    for char in text:
        assert search.push(char) is None
    assert Counted.looks <= 4 * (len(text) + len(stop))
    reader = Reader(LETTERS, SampleConfig(stop=(stop,), max_tokens=len(text)))
    pieces = [reader.push(LETTERS.encode(text[i : i + 1]), np.zeros(1, np.float32)) for i in range(2000)]
    assert text.startswith("".join(pieces))
    assert sum(map(len, reader._shown)) + sum(map(len, reader._held)) == 2000
    assert len(reader._held) <= len(stop)


def holes_tokenizer(size: int) -> Tokenizer:
    """Of letters whose ids are the even ones below `size`; the others stand for nothing."""
    document = json.loads(char_tokenizer("abc").to_json())
    document["model"]["vocab"] = {chr(97 + i): 2 * i for i in range(size // 2)}
    return Tokenizer(json.dumps(document, sort_keys=True))


@pytest.mark.parametrize("options", [{"temperature": 1e6}, {"temperature": 0.0}, {**ALL_FILTERS, "temperature": 50.0}])
def test_an_id_that_stands_for_nothing_is_never_written(options):
    """Neither a hole in the vocabulary nor the padding behind it, by chance or for being likeliest."""
    model = make_model(holes_tokenizer(12))
    params = model.params | {"head": model.params["head"].at[1::2].multiply(30.0)}
    samples = sample(model._replace(params=params), ["a", ""], max_tokens=100, n=3, **options)
    assert {token for one in samples for token in one.tokens} <= set(range(0, 12, 2))
    assert all(len(one.text) == 100 for one in samples)
    assert all(logprob <= 0 for one in samples for logprob in one.logprobs)


def test_an_empty_prompt_starts_from_an_id_that_stands_for_something():
    document = json.loads(holes_tokenizer(12).to_json())
    document["model"]["vocab"] = {"a": 3, "b": 5}
    model = make_model(Tokenizer(json.dumps(document)))
    assert sample(model, "", max_tokens=5)[0].tokens == sample(model, "a", max_tokens=5)[0].tokens


TOO_MANY = [{"n": 2**31 - 1}, {"n": 2**31 - 1, "cache": False}, {"n": 999, "max_tokens": 2**31 - 1}]


@pytest.mark.parametrize("options", TOO_MANY)
def test_more_texts_than_memory_holds_are_refused_before_the_work(options, monkeypatch):
    monkeypatch.setattr(jax.numpy, "asarray", None)
    for function in (generate, sample):
        with pytest.raises(UserError, match=r"writing [\d,]+ texts of [\d,]+ tokens at once takes .*ask for fewer"):
            function(MODEL, "abc", **options)


WRONG = {
    "prompt": [None, 5, b"a", b"", [None], ["a", 5], {"a": 1}, object()],
    "stop": [None, 5, b"a", b"", [None], [b"a"], {"a"}],
    "seed": ["x", None, -1, 2**64, 1.5, True],
    "temperature": [None, "1", float("nan"), float("-inf"), True],
    "repetition_penalty": [None, 0, 1e7, float("nan")],
    "top_k": ["1", 1.5, -1, 2**31],
    "top_p": ["1", float("nan"), -0.1],
    "min_p": ["1", float("nan"), 2],
    "n": [None, "1", 1.5, 2**31],
    "max_tokens": [None, "1", 1.5, 2**31],
    "cache": [None, "no", 1],
    "edits": [5, "z", []],
    "model": [None, 5, b"x"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_an_argument_of_the_wrong_kind_gets_one_line(name, value):
    for function in (generate, sample, stream):
        with pytest.raises(UserError, match=f"{name} (is|are)") as error:
            function(**{"model": MODEL, "prompt": "a", name: value})
        assert str(error.value).isprintable()


@pytest.mark.parametrize("prompt", [["a"], [], ("a", "b")])
def test_a_stream_is_of_one_text(prompt):
    with pytest.raises(UserError, match="prompt is .*: a stream is of one text"):
        stream(MODEL, prompt)


# Filters at their edges: any logits, any settings


EDGES = [0.0, -0.0, 1.0, 1.0, -1e-45, 1e-30, 88.0, -104.0, 3e38, -3e38, -np.inf, -np.inf]
edge_rows = st.lists(st.sampled_from(EDGES) | st.floats(-50, 50, width=32), min_size=6, max_size=6)
options_of_any_size = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1e-300, 1e-38, 1e-3, 1.0, 1e6]) | st.floats(0, 1e6)},
    optional={
        "top_k": st.sampled_from([1, 2, 9, 2**31 - 1]),
        "top_p": st.sampled_from([5e-324, 1e-30, 0.5, 1 - 1e-16, 1.0]) | st.floats(1e-9, 1),
        "min_p": st.sampled_from([0.0, 5e-324, 1e-30, 0.5, 1 - 1e-9]) | st.floats(0, 0.99),
        "repetition_penalty": st.sampled_from([1e-300, 1e-6, 0.5, 1.0, 2.0, 1e6]),
    },
)


@settings(max_examples=70)
@given(edge_rows, options_of_any_size, st.sampled_from(["float32", "bfloat16"]), st.data())
def test_filters_leave_something_and_never_what_must_not_come(row, options, dtype, data):
    """For every row of logits that has a finite one: the likeliest stays, what is -inf stays out, nothing is NaN, and
    equal logits share one fate."""
    logits = jnp.asarray(np.asarray(row, jnp.dtype(dtype)), jnp.float32)[None]  # as `unembed` gives them
    assume(bool(jnp.isfinite(logits).any()))
    config = check(SampleConfig(**options))
    penalty = config.repetition_penalty
    seen = jnp.asarray([data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)))])
    z = np.asarray(filter_logits(logits, make_filters(config), seen if penalty != 1 else None))[0]
    before = np.asarray(jnp.where(seen & (penalty != 1), penalise(logits, jnp.float32(penalty)), logits))[0]
    assert not np.isnan(z).any()
    assert z.max() == 0
    assert (z[np.isneginf(before)] == -np.inf).all()
    if np.isfinite(before).any():
        assert z[before.argmax()] == 0
    for value in set(before.tolist()):
        assert len(set(z[before == value].tolist())) == 1
    if config.temperature == 0:
        assert z.argmax() == before.argmax()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("where", ["tok_emb", "head"])
def test_logits_that_are_not_finite_are_never_drawn_from_in_silence(bad, where):
    params = MODEL.params | {where: MODEL.params[where].at[3].set(bad)}
    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match="not finite"):
            sample(MODEL._replace(params=params), "abc", max_tokens=20, temperature=temperature)


def test_a_vocabulary_of_one_writes_it():
    model = make_model(char_tokenizer("a"), vocab_size=1)
    for options in ({}, {"temperature": 0}, {"top_k": 9, "top_p": 0.1, "min_p": 0.5, "repetition_penalty": 9.0}):
        assert sample(model, "aa", max_tokens=5, **options)[0][1:4] == ("aaaaa", [0] * 5, [0.0] * 5)
