"""A tokenizer.json from a stranger: used as it is meant, or refused in one line, at once."""

import copy
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.text.test_tokenizer_files import CHAR, file_of, gpt2_like, word_piece
from tinygpt_jax.errors import UserError
from tinygpt_jax.text import load_tokenizer, screening
from tinygpt_jax.text.screening import MOST_IDS, is_catastrophic

BASE = json.loads(CHAR.to_json())


def split(pattern: dict) -> dict:
    return {"pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}}


def vocab(ids: dict) -> dict:
    return {"model": BASE["model"] | {"vocab": ids}}


GROWTH = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
HOSTILE = {
    "a choice repeated": (split({"Regex": "(a|aa)+$"}), "may never end"),
    "a repeat repeated": (split({"Regex": "(?:x*)*$"}), "may never end"),
    "in a normalizer": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "((a{2,9})b){3,}"}, "content": ""}},
        "may never end",
    ),
    "deep in a sequence": (
        {"decoder": {"type": "Sequence", "decoders": [GROWTH | {"pattern": {"Regex": "(a+)+b"}}]}},
        "may never end",
    ),
    "text that grows": ({"normalizer": {"type": "Sequence", "normalizers": [GROWTH] * 9}}, "in place of one"),
    "a table that claims 4 GB": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        "precompiled_charsmap is damaged",
    ),
    "a table that is none": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "is damaged"),
    "a panic of the library": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "damaged"),
    "an id of 4 billion": (vocab({"a": 0, "b": 2**32 - 1}), f"id {2**32 - 1}"),
    "the first id too large": (vocab({"a": 0, "b": MOST_IDS}), f"id {MOST_IDS}"),
    "an id of 33 bits": (vocab({"a": 0, "b": 2**32}), "JSON but not a tokenizer"),
    "an id below 0": (vocab({"a": 0, "b": -1}), "JSON but not a tokenizer"),
    "two tokens of one id": (vocab({"a": 0, "b": 1, "c\n": 1}), r"'b' and 'c\n' share id 1"),
    "a type with a line end": ({"pre_tokenizer": {"type": "A\n" * 5000}}, "JSON but not a tokenizer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, name):
    change, why = HOSTILE[name]
    with pytest.raises(UserError) as caught:
        load_tokenizer(file_of(tmp_path / "t.json", BASE | change))
    assert why in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_large_file_and_an_endless_one_are_refused_before_they_are_parsed(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    monkeypatch.setattr(json, "loads", None)
    for large in (path, "/dev/zero"):
        with pytest.raises(UserError, match="is larger than 64 MiB"):
            load_tokenizer(large)


@pytest.mark.parametrize("name", ["no\0path", "\ud800"])
def test_a_name_that_no_file_can_have(name):
    with pytest.raises(UserError, match="no file can have this name"):
        load_tokenizer(name)


# Of GPT-2, GPT-4, GPT-4o, BLOOM and DeepSeek, and our own.
IN_USE = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    " ?[^(\\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"[\s\S]",
    r"(ab)+c|\(a|b\)+|[(a|b)]+|(a|b)?",
]


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_are_not_taken_for_hostile(pattern):
    tokenizers.Regex(pattern)
    assert not is_catastrophic(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*", "(a|b)*", "(a?)+", "((a+)b)+", "(?:a|b){2,}", "x(?<n>a+)*", r"(\)|a)+"])
def test_patterns_that_may_take_exponential_time_are_hostile(pattern):
    assert is_catastrophic(pattern)


def test_a_panic_of_the_library_is_an_error_like_any_other(tmp_path):
    """Rust's panic is no Exception in Python, and went through every handler there is."""
    strip = {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}}
    tok = load_tokenizer(file_of(tmp_path / "t.json", BASE | strip))
    with pytest.raises(UserError, match="cannot decode these ids .*index out of bounds"):
        tok.decode([7])
    backwards = r"(?=(a*a*a*a*a*a*a*b))"
    tok = load_tokenizer(file_of(tmp_path / "t.json", word_piece() | split({"Regex": backwards})))
    with pytest.raises(UserError, match="cannot encode the text .*retry-limit"):
        tok.encode("a" * 300 + "cb")


def test_a_tokenizer_that_takes_time_out_of_all_proportion_is_given_up(tmp_path, monkeypatch):
    """The square of the text's length, which the library puts up with: a day for a megabyte."""
    squared = split({"Regex": r"[\s\S]*[xy]$"})
    tok = load_tokenizer(file_of(tmp_path / "t.json", word_piece() | squared))
    assert len(tok.encode("x" * 9 + "b"))
    monkeypatch.setattr(screening, "PATIENCE", 0.0)
    monkeypatch.setattr(screening, "PACE", 1e6)
    with pytest.raises(UserError, match="cannot encode the text .it took over 0 s for 6,001 .*may never end"):
        tok.encode("x" * 6000 + "b")


DOCUMENTS = [BASE, gpt2_like(), word_piece()]
JUNK = st.sampled_from(
    [None, True, -1, 0, 2**31, 2**40, 1e300, "", "\0", "ByteLevel", "a" * 300, [], {}, [None], {"": 0}]
)


def places(value, path=()):
    """The way to every value in a document, but for few of a vocabulary's."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inside)[:8]:
        yield (*path, key)
        yield from places(part, (*path, key))


@settings(max_examples=150)
@given(st.sampled_from(DOCUMENTS), st.data())
def test_a_damaged_document_is_refused_or_works(tmp_path_factory, document, data):
    """With any of its values gone or another, it is one line, or a tokenizer that keeps what tokenizers promise."""
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(sorted(places(document), key=repr)))
        inner = document
        for key in way:
            inner = inner[key]
        if data.draw(st.booleans()):
            del inner[last]
        else:
            inner[last] = copy.deepcopy(data.draw(JUNK))
    text, path = "do n't\n\n b.\0é", file_of(tmp_path_factory.mktemp("strange") / "t.json", document)
    try:
        tok = load_tokenizer(path)
        ids = tok.encode(text, chunk_chars=1)
        decoded = tok.decode(ids)
    except UserError as error:
        event("refused" if str(error).isprintable() else pytest.fail(str(error)))
        return
    assert tok.known.shape == (tok.vocab_size,)
    assert tok.known[ids].all()
    assert len(tok.fingerprint) == 64
    assert tok.describe()
    assert tok.eos_id is None or tok.known[tok.eos_id]
    if tok.kind != "other":
        assert decoded == text


def test_known_ids_are_those_that_stand_for_a_token(tmp_path):
    assert CHAR.known.all()
    assert len(CHAR.known) == CHAR.vocab_size
    tok = load_tokenizer(file_of(tmp_path / "t.json", BASE | vocab({"a": 0, "b": 5})))
    assert np.flatnonzero(tok.known).tolist() == [0, 5]
    document = gpt2_like()
    document["model"]["vocab"]["zzz"] = 300_000
    tok = load_tokenizer(file_of(tmp_path / "t.json", document))
    assert (tok.kind, tok.vocab_size, int(tok.known.sum())) == ("bpe", 300_001, 261)
