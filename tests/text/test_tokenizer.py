import itertools
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import (
    StreamDecoder,
    Tokenizer,
    bpe_tokenizer,
    char_tokenizer,
    check_ids,
    cuts,
    tokenizer,
)
from tinygpt_jax.text.document import byte_of_char

ODD = "a b\n\r\n\t\r 'q\" \u00a0\u2028\x85\x0c\x1c e\u0301 é 👩\u200d👧 🇩🇪 中文\\ \ufffd\0"
SAMPLE = "It's the time, the place; we'll sing.\n\n  The 1st — naïve — café: 中文 中文!\r\n" * 4 + ODD
BPE = bpe_tokenizer(SAMPLE, 300)
CHAR = char_tokenizer(ODD)
texts = st.text() | st.text(st.sampled_from("ab1'sé中 \n\r\t\x1c\u00a0\u3000.—👧"))
unicode = st.lists(texts | st.sampled_from(["the", "it's", " \n", "\n\n"]), max_size=8).map("".join)


@cache
def library(tok: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tok.to_json())


# Characters


def test_char_ids_are_the_rank_of_the_character():
    tok = char_tokenizer("hello\n")
    assert tok.encode("hello\n").tolist() == [2, 1, 3, 3, 4, 0]
    assert tok.encode("hello\n").dtype == tok.encode("").dtype == np.int32
    assert (tok.kind, tok.vocab_size, tok.eos_id) == ("char", 5, None)


@given(st.text(st.sampled_from(ODD)))
def test_char_ids_and_text_are_the_librarys(text):
    ids = CHAR.encode(text)
    assert ids.tolist() == library(CHAR).encode(text).ids
    assert CHAR.decode(ids) == library(CHAR).decode(ids.tolist()) == text


@given(st.text(min_size=1))
@settings(max_examples=50)
def test_char_tokenizer_of_any_text(text):
    tok = char_tokenizer(text)
    assert tok.encode(text).tolist() == library(tok).encode(text).ids
    assert tok.decode(tok.encode(text)) == text


def test_char_file_split_at_dots_would_be_caught():
    document = json.loads(CHAR.to_json())
    document["pre_tokenizer"]["pattern"]["Regex"] = "."
    broken = tokenizers.Tokenizer.from_str(json.dumps(document))
    with pytest.raises(Exception, match="UNK"):
        broken.encode("a\n\nb")


def test_unknown_characters_are_listed():
    tok = char_tokenizer("abc\n")
    with pytest.raises(UserError, match=r"does not know '\\t' 'd' '😀'; leave") as caught:
        tok.encode("ad\tb😀d")
    assert "--tokenizer bpe" in str(caught.value)
    assert " more" not in str(caught.value)
    with pytest.raises(UserError, match="'m' and 3 more; leave"):
        tok.encode("abcdefghijklmnop")
    with pytest.raises(UserError, match="does not know '`'"):  # between known ones
        tok.encode("`")


def test_char_tokenizer_of_nothing_and_of_no_text():
    with pytest.raises(UserError, match="empty"):
        char_tokenizer("")
    with pytest.raises(UserError, match=r"lone surrogate '\\udcff' at character 1"):
        char_tokenizer("a\udcff")


def test_shakespeare_has_65_characters_and_is_encoded_fast(shakespeare):
    text = shakespeare.decode()
    tok = char_tokenizer(text)
    tok.encode("warm")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        ids = tok.encode(text)
        seconds.append(time.perf_counter() - start)
    assert (tok.vocab_size, len(ids)) == (65, 1_115_394)
    assert min(seconds) < 0.1
    assert tok.decode(ids) == text
    assert ids[:2000].tolist() == library(tok).encode(text[:2000]).ids


# Byte-level BPE


@given(unicode, st.integers(1, 9))
@settings(max_examples=300)
def test_bpe_ids_are_the_librarys_whatever_the_chunks(text, chunk_chars):
    ids = BPE.encode(text, chunk_chars=chunk_chars)
    assert ids.tolist() == library(BPE).encode(text).ids
    assert BPE.decode(ids) == text


def test_cutting_after_white_space_would_be_caught(monkeypatch):
    monkeypatch.setattr(
        tokenizer, "chunks", lambda text, size: iter(text.partition(" ")[:2] + (text.partition(" ")[2],))
    )
    assert BPE.encode("It's the").tolist() != library(BPE).encode("It's the").ids


def test_bpe_chunks_of_a_real_text(shakespeare):
    text = shakespeare.decode()[:200_000]
    tok = bpe_tokenizer(text, 512)
    assert tok.vocab_size == 512
    ids = tok.encode(text, chunk_chars=1000)
    assert len(ids) < 0.6 * len(text)
    assert np.array_equal(ids, library(tok).encode(text).ids)
    assert np.array_equal(ids, tok.encode(text))
    assert tok.decode(ids) == text


ENDLESS = {
    "a word": "ab" * 100_000,
    "one letter": "a" * 200_000,
    "spaces": " " * 200_000,
    "line ends": "\n" * 200_000,
    "signs": "_-" * 100_000,
    "tabs and spaces": "\t " * 100_000,
    "a word among others": "to be " * 5_000 + "é" * 150_000 + " or not to be" * 5_000,
    "characters of four bytes": "👧" * 100_000,
    "one line": "to be or not " * 20_000,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_work_for_an_endless_word_grows_with_its_length_alone(name):
    """The library takes the square of a word's length to learn from it, and a hundred bytes a token to encode it."""
    text = ENDLESS[name]
    for size in (1, 1000, tokenizer.CHUNK_CHARS):
        pieces = list(cuts.chunks(text, size))
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= 2 * cuts.STRETCH_CHARS + size
    words = list(cuts.short_words(pieces))
    assert "".join(words) == text
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    longest = max(end - start for piece in words[:300] for _, (start, end) in split(piece))
    assert longest <= 2 * cuts.WORD_CHARS


@pytest.mark.parametrize("name", ["a word", "tabs and spaces", "a word among others"])
def test_an_endless_word_has_the_same_ids_at_every_pace_and_comes_back_whole(name):
    text = ENDLESS[name]
    tok = bpe_tokenizer(text, 270)
    assert tok.vocab_size > 256
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert len(ids) < 0.8 * len(text.encode())
    for size in (1, 999, 1 << 20):
        assert np.array_equal(tok.encode(text, chunk_chars=size), ids)


@given(st.text(st.sampled_from("ab \n\t"), max_size=60), st.integers(1, 20))
@settings(max_examples=300)
def test_forced_cuts_are_a_function_of_the_text_alone(text, size):
    """Where there is no safe cut for long (here 8 characters), the cut is in the same place at every pace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "STRETCH_CHARS", 8)
        every = set(itertools.accumulate(map(len, cuts.chunks(text, 1))))
        some = set(itertools.accumulate(map(len, cuts.chunks(text, size))))
    safe = {i for i in range(1, len(text)) if not text[i - 1].isspace() and text[i] in " \n"}
    assert some <= every
    assert every - safe <= some | {len(text)}, "a cut that is forced is made at every pace"


def test_bpe_knows_every_byte_and_has_no_special_tokens():
    tok = bpe_tokenizer("", 256)
    assert (tok.kind, tok.vocab_size, tok.eos_id) == ("bpe", 256, None)
    assert sorted(tok._pieces or []) == [bytes([byte]) for byte in range(256)]
    assert set(byte_of_char()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert tok.encode(ODD).dtype == np.int32
    assert tok.decode(tok.encode(ODD)) == ODD
    assert tok.encode("").tolist() == []


def test_bpe_size_is_at_least_256_and_at_most_what_the_text_gives():
    with pytest.raises(UserError, match="vocab_size 255 is too small.*256"):
        bpe_tokenizer("some text", 255)
    for size in (2**20 + 1, 2_000_000_000):
        with pytest.raises(UserError, match=f"vocab_size {size} is too large: at most 1048576"):
            bpe_tokenizer("some text", size)
    assert bpe_tokenizer("abab cd", 10_000).vocab_size == 257
    assert bpe_tokenizer(SAMPLE, 280).vocab_size == 280


def test_bpe_training_is_the_same_in_another_process():
    code = "from tinygpt_jax.text import bpe_tokenizer as b; print(b('one two three two one ' * 9, 300).fingerprint)"
    root = str(Path(tokenizer.__file__).parents[2])
    done = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": root, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for threads in "12"
    ]
    assert done == [bpe_tokenizer("one two three two one " * 9, 300).fingerprint] * 2


@pytest.mark.parametrize("tok", [CHAR, BPE])
def test_half_of_a_surrogate_pair_is_no_text(tok):
    with pytest.raises(UserError, match=r"lone surrogate '\\udce9' at character 2"):
        tok.encode("a \udce9")


# Decoding


@given(st.lists(st.integers(0, 299), max_size=40))
@settings(max_examples=300)
def test_any_ids_decode_as_the_library_does(ids):
    assert BPE.decode(ids) == library(BPE).decode(ids, skip_special_tokens=False)


@given(st.data())
@settings(max_examples=300)
def test_stream_gives_what_decode_gives(data):
    tok = data.draw(st.sampled_from([BPE, CHAR]))
    any_ids = st.lists(st.integers(0, tok.vocab_size - 1), max_size=5)
    ids = data.draw(st.lists(any_ids | st.text(st.sampled_from(ODD)).map(lambda t: tok.encode(t).tolist())))
    decoder = StreamDecoder(tok)
    for _ in range(2):  # as new after a flush
        pieces = [decoder.push(share) for share in ids]
        whole = tok.decode(sum(ids, []))
        assert "".join(pieces) + decoder.flush() == whole


def test_stream_holds_an_unfinished_character_back():
    raw = bpe_tokenizer("", 256)
    decoder = StreamDecoder(raw)
    assert [decoder.push(i) for i in raw.encode("a👧b")] == ["a", "", "", "", "👧", "b"]
    assert decoder.push(raw.encode("👧")[:3]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_streaming_takes_time_in_proportion():
    def seconds(n: int) -> float:
        decoder, start = StreamDecoder(BPE), time.perf_counter()
        for i in range(n):
            decoder.push([i % 256])
        return time.perf_counter() - start

    seconds(100)
    assert seconds(8000) < 40 * max(seconds(800), 1e-3)  # quadratic would be 100


@pytest.mark.parametrize("tok", [CHAR, BPE])
@pytest.mark.parametrize("bad", [-1, "size", 2**31])
def test_ids_outside_the_vocabulary_are_named(tok, bad):
    bad = tok.vocab_size if bad == "size" else bad
    for decode in (tok.decode, StreamDecoder(tok).push):
        with pytest.raises(UserError, match=rf"id {bad} at index 2 is outside \[0, {tok.vocab_size}\)"):
            decode([0, 1, bad, 1])
    assert tok.decode([]) == ""


def test_check_ids_names_what_and_where():
    ids = np.array([[0, 1], [2, 9]], np.uint16)
    assert check_ids(ids, 10) is ids
    with pytest.raises(UserError, match=r"^targets: id 9 at index \(1, 1\) is outside \[0, 9\);"):
        check_ids(ids, 9, "targets")
    with pytest.raises(UserError, match="ids have dtype float64: must be integers"):
        check_ids([0.0], 9)
