import multiprocessing
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import (
    Tokenizer,
    Tokens,
    bpe_tokenizer,
    char_tokenizer,
    check_length,
    open_tokens,
    prepare,
    write_tokens,
)

TEXT = "To be, or not to be — that is the question:\r\n" * 20
FINGERPRINT = "ab" * 32


def write(path: Path, ids=(1, 2, 3), vocab_size=10) -> Path:
    ids = np.array(ids, np.int32)
    write_tokens(path, Tokens(ids, 7, 9), vocab_size=vocab_size, fingerprint=FINGERPRINT)
    return path


@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, "<u2"), (65_536, "<u2"), (65_537, "<u4")])
def test_what_is_written_is_read(tmp_path, vocab_size, dtype):
    path = write(tmp_path / "deep" / "t.bin", [0, 5, vocab_size - 1], vocab_size)
    tokens = open_tokens(path, FINGERPRINT)
    assert isinstance(tokens.ids, np.memmap)
    assert tokens.ids.dtype == np.dtype(dtype)
    assert tokens.ids.tolist() == [0, 5, vocab_size - 1]
    assert (tokens.n_chars, tokens.n_bytes) == (7, 9)
    assert (tokens.chars_per_token, tokens.bytes_per_token) == (7 / 3, 3.0)
    assert not tokens.ids.flags.writeable
    assert os.listdir(path.parent) == ["t.bin"]


def test_layout_of_the_file(tmp_path):
    head = struct.pack("<8sIIQQQ32s", b"TINYGPT\0", 2, 2, 3, 7, 9, bytes.fromhex(FINGERPRINT))
    ids = struct.pack("<3H", 1, 2, 3)
    head += struct.pack("<Q", zlib.crc32(head + ids))
    assert len(head) % 8 == 0
    assert write(tmp_path / "t.bin").read_bytes() == head + ids


def test_no_tokens_at_all(tmp_path):
    assert open_tokens(write(tmp_path / "t.bin", []), FINGERPRINT).ids.shape == (0,)


@pytest.mark.parametrize(
    ("offset", "damage", "reason"),
    [
        (0, b"X", "is not a token file"),
        (8, b"\1", "has version 1, not 2"),
        (12, b"\3", "has ids of 3 bytes, not 2 or 4"),
        (12, b"\4", "has 86 bytes, not 92"),
        (16, b"\4", "has 86 bytes, not 88"),
        (24, b"\6", "has changed since it was written (its checksum differs)"),
        (75, b"\1", "has changed since it was written (its checksum differs)"),
        (80, b"\2", "has changed since it was written (its checksum differs)"),
        (40, b"\0", "was made by another tokenizer (00ababab, not abababab)"),
    ],
)
def test_damage_is_named(tmp_path, offset, damage, reason):
    path = write(tmp_path / "t.bin")
    data = bytearray(path.read_bytes())
    data[offset : offset + len(damage)] = damage
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        open_tokens(path, FINGERPRINT)
    assert str(caught.value) == f"token file {path} {reason}; delete it, it is made again when next needed"


@pytest.mark.parametrize("length", [0, 10, 71, 72, 79, 80, 85, 87])
def test_wrong_lengths(tmp_path, length):
    path = write(tmp_path / "t.bin")
    path.write_bytes(path.read_bytes().ljust(length, b"\0")[:length])
    with pytest.raises(UserError, match=f"{length} bytes, not 86" if length >= 72 else "is not a token file"):
        open_tokens(path, FINGERPRINT)


def test_missing_file_and_bad_ids(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        open_tokens(tmp_path / "gone", FINGERPRINT)
    with pytest.raises(UserError, match="id 10 at index 1 is outside"):
        write(tmp_path / "t.bin", [1, 10])
    assert not os.listdir(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path / "t.bin")
    before = path.read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="cannot write .*t.bin .*No space left"):
        write(path, [4])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.bin"]


@pytest.mark.parametrize("tok", [char_tokenizer(TEXT), bpe_tokenizer(TEXT, 280)])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25])
def test_split_is_by_characters_and_each_part_stands_alone(tmp_path, tok, fraction):
    mapped, held = prepare(TEXT, tok, val_fraction=fraction, cache=tmp_path), prepare(TEXT, tok, val_fraction=fraction)
    cut = int((1 - fraction) * len(TEXT))
    for part, a, b in [(TEXT[:cut], mapped.train, held.train), (TEXT[cut:], mapped.val, held.val)]:
        assert np.array_equal(a.ids, b.ids)
        assert np.array_equal(a.ids, tok.encode(part))
        assert a[1:] == b[1:] == (len(part), len(part.encode()))
    assert mapped.fingerprint == held.fingerprint
    assert sorted(os.listdir(tmp_path)) == ["tokens"]


def test_shakespeare_split(shakespeare):
    text = shakespeare.decode()
    data = prepare(text, char_tokenizer(text))
    assert (len(data.train.ids), len(data.val.ids)) == (1_003_854, 111_540)
    assert data.train.chars_per_token == data.val.bytes_per_token == 1


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_bad_fraction(fraction):
    with pytest.raises(UserError, match="val_fraction .* is outside"):
        prepare(TEXT, char_tokenizer(TEXT), val_fraction=fraction)


def test_a_sound_file_is_used_and_a_damaged_one_made_again(tmp_path, monkeypatch):
    tok = bpe_tokenizer(TEXT, 280)
    calls = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, **kw: calls.append(text) or encode(self, text, **kw))
    want = prepare(TEXT, tok, cache=tmp_path).train.ids.tolist()
    prepare(TEXT, tok, cache=tmp_path)
    assert len(calls) == 2
    train = next((tmp_path / "tokens").glob("*train*"))
    sound = train.read_bytes()
    for damaged in (sound[:-2], b"junk", sound[:-2] + b"\xff\xff", sound[:-2] + b"\1\0"):
        calls.clear()
        train.write_bytes(damaged)
        assert prepare(TEXT, tok, cache=tmp_path).train.ids.tolist() == want
        assert len(calls) == 1
        assert train.read_bytes() == sound


@settings(max_examples=60)
@given(st.data())
def test_a_file_with_any_byte_changed_or_cut_anywhere_is_refused(tmp_path_factory, data):
    """Or it was read as other tokens than were written, without a word."""
    path = write(tmp_path_factory.mktemp("tokens") / "t.bin", range(9))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at]
    if data.draw(st.booleans()):
        changed += bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    path.write_bytes(changed)
    with pytest.raises(UserError, match="delete it, it is made again"):
        open_tokens(path, FINGERPRINT)


def test_a_sound_file_of_a_text_of_another_length_is_made_again(tmp_path):
    tok = char_tokenizer("ab")
    made = prepare("ab" * 20, tok, cache=tmp_path).train.ids.tolist()
    train, val = sorted((tmp_path / "tokens").iterdir())
    train.write_bytes(val.read_bytes())
    again = prepare("ab" * 20, tok, cache=tmp_path)
    assert again.train.ids.tolist() == made


def test_other_texts_tokenizers_and_fractions_have_files_of_their_own(tmp_path):
    toks = [char_tokenizer(TEXT), bpe_tokenizer(TEXT, 280)]
    for text in (TEXT, TEXT[:-1]):
        for tok in toks:
            for fraction in (0.1, 0.2):
                got = prepare(text, tok, val_fraction=fraction, cache=tmp_path)
                assert tok.decode(got.train.ids) + tok.decode(got.val.ids) == text
    assert len(os.listdir(tmp_path / "tokens")) == 2 * 2 * 2 * 2


def _prepare_in_process(cache: Path, barrier, results) -> None:
    tok = bpe_tokenizer(TEXT, 280)
    barrier.wait()
    results.put(prepare(TEXT, tok, cache=cache).train.ids.tolist())


def test_two_processes_and_eight_threads_prepare_the_same_text_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_prepare_in_process, args=(tmp_path / "p", barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    tok = bpe_tokenizer(TEXT, 280)
    want = tok.encode(TEXT[: int(0.9 * len(TEXT))]).tolist()
    assert [results.get(timeout=60) for _ in workers] == [want, want]
    for worker in workers:
        worker.join(60)

    got = []
    threads = [
        threading.Thread(target=lambda: got.append(prepare(TEXT, tok, cache=tmp_path / "t").train.ids.tolist()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 8
    for cache in ("p", "t"):
        names = os.listdir(tmp_path / cache / "tokens")
        assert len(names) == 2
        assert all(name.endswith(("-train.bin", "-val.bin")) for name in names)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "tokens").write_text("in the way")
    tok = char_tokenizer(TEXT)
    held, got = prepare(TEXT, tok), prepare(TEXT, tok, cache=tmp_path)
    assert np.array_equal(held.train.ids, got.train.ids)
    assert np.array_equal(held.val.ids, got.val.ids)
    assert not isinstance(got.train.ids, np.memmap)


def test_check_length():
    tokens = Tokens(np.arange(9), 9, 9)
    check_length(tokens, 8, "training text")
    with pytest.raises(UserError, match="training text has 9 tokens, but a window of block_size 9 needs 10; give more"):
        check_length(tokens, 9, "training text")
