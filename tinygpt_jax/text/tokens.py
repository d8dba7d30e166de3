"""Tokens on disk: one small format, and a data set of two such files that is made once and mapped afterwards."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.ids import check_ids
from tinygpt_jax.text.corpora import text_fingerprint
from tinygpt_jax.text.tokenizer import PART_CHARS, Tokenizer

# Magic, version, bytes per id, ids, characters, bytes of UTF-8, SHA-256 of the tokenizer; then CRC-32 of these and of
# the ids: 80 bytes, little-endian, so that ids, which follow at once, lie aligned.
_HEADER, _CRC = struct.Struct("<8sIIQQQ32s"), struct.Struct("<Q")
_START = _HEADER.size + _CRC.size
_MAGIC = b"TINYGPT\0"
_VERSION = 2
_AT_ONCE = 1 << 24
_DTYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Tokens(NamedTuple):
    """Ids and how much text they stand for, which turns a loss per token into one per character or byte."""

    ids: NDArray[np.integer[Any]]  # (N,), in memory or mapped from a file
    n_chars: int
    n_bytes: int

    @property
    def chars_per_token(self) -> float:
        """Nats per token divided by this are nats per character."""
        return self.n_chars / len(self.ids)

    @property
    def bytes_per_token(self) -> float:
        """Nats per token divided by this and by ln 2 are bits per byte."""
        return self.n_bytes / len(self.ids)


class Dataset(NamedTuple):
    """A text cut in two by position."""

    train: Tokens
    val: Tokens
    fingerprint: str  # of the whole text


def prepare(text: str, tokenizer: Tokenizer, *, val_fraction: float = 0.1, cache: Path | None = None) -> Dataset:
    """Encode the first `int((1 - val_fraction) * len(text))` characters for training and the rest for validation.

    With `cache`, ids are kept below `cache / "tokens"` and mapped; a sound file that is there already is used as it is
    and any other is replaced, so that runs which start together may share one. Without, and where a file cannot
    be written, ids stay in memory.

    Raises:
        UserError: `val_fraction` is outside [0, 1), or the tokenizer cannot encode the text.
    """
    if not 0 <= val_fraction < 1:
        raise UserError(f"val_fraction {val_fraction} is outside [0, 1); give the share of the text to validate on")
    cut = int((1 - val_fraction) * len(text))
    fingerprint = text_fingerprint(text)
    # The cut stands for the fraction: it alone decides what is in a split.
    stem = f"{fingerprint[:32]}-{tokenizer.fingerprint[:32]}-{cut}"

    def tokens(split: str, part: str) -> Tokens:
        return _cached(cache / "tokens" / f"{stem}-{split}.bin", part, tokenizer) if cache else _encode(part, tokenizer)

    return Dataset(tokens("train", text[:cut]), tokens("val", text[cut:]), fingerprint)


def write_tokens(path: str | os.PathLike[str], tokens: Tokens, *, vocab_size: int, fingerprint: str) -> None:
    """Write ids (N,) as uint16 where the vocabulary allows, else uint32; no reader ever sees a part of the file.

    Raises:
        UserError: an id is outside [0, vocab_size), or the file cannot be written.
    """
    ids, n_chars, n_bytes = tokens
    check_ids(ids, vocab_size, f"ids for {path}")
    packed = np.ascontiguousarray(ids, _dtype(vocab_size))
    width = packed.dtype.itemsize
    header = _HEADER.pack(_MAGIC, _VERSION, width, len(ids), n_chars, n_bytes, bytes.fromhex(fingerprint))
    write_atomically(path, header, _CRC.pack(zlib.crc32(packed.data, zlib.crc32(header))), packed.data)


def open_tokens(path: str | os.PathLike[str], fingerprint: str) -> Tokens:
    """Map a token file that was written with the tokenizer of this fingerprint.

    Raises:
        UserError: the file is missing, not a token file, of another version, cut short, changed or of another
            tokenizer.
    """

    def refuse(reason: str) -> UserError:
        return UserError(f"token file {path} {reason}; delete it, it is made again when next needed")

    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            head, written = file.read(_HEADER.size), file.read(_CRC.size)
            crc = _crc_of_rest(file, head)
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})") from error
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise refuse("is not a token file")
    _, version, width, count, n_chars, n_bytes, written_with = _HEADER.unpack(head)
    if version != _VERSION:
        raise refuse(f"has version {version}, not {_VERSION}")
    if width not in _DTYPES:
        raise refuse(f"has ids of {width} bytes, not 2 or 4")
    if size != (expected := _START + count * width):
        raise refuse(f"has {size} bytes, not {expected}")
    if written_with.hex() != fingerprint:
        raise refuse(f"was made by another tokenizer ({written_with.hex()[:8]}, not {fingerprint[:8]})")
    if written != _CRC.pack(crc):
        raise refuse("has changed since it was written (its checksum differs)")
    if count == 0:  # nothing cannot be mapped
        return Tokens(np.zeros(0, _DTYPES[width]), n_chars, n_bytes)
    return Tokens(np.memmap(path, _DTYPES[width], "r", _START, (count,)), n_chars, n_bytes)


def check_length(tokens: Tokens, block_size: int, what: str) -> None:
    """Raise UserError unless there is at least one window: `block_size` inputs and the target of the last."""
    if len(tokens.ids) < 2:
        raise UserError(f"{what} has {len(tokens.ids)} tokens, but it takes 2 to predict one; give more text")
    if len(tokens.ids) < block_size + 1:
        raise UserError(
            f"{what} has {len(tokens.ids)} tokens, but a window of block_size {block_size} needs {block_size + 1}; "
            "give more text or lower block_size"
        )


def _dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The narrowest dtype of a token file that holds every id."""
    return _DTYPES[2 if vocab_size <= 1 << 16 else 4]


def _crc_of_rest(file: BinaryIO, head: bytes) -> int:
    crc = zlib.crc32(head)
    while part := file.read(_AT_ONCE):
        crc = zlib.crc32(part, crc)
    return crc


def _encode(text: str, tokenizer: Tokenizer) -> Tokens:
    parts = range(0, len(text), PART_CHARS)
    n_bytes = sum(len(text[start : start + PART_CHARS].encode()) for start in parts)
    return Tokens(tokenizer.encode(text, dtype=_dtype(tokenizer.vocab_size)), len(text), n_bytes)


def _cached(path: Path, text: str, tokenizer: Tokenizer) -> Tokens:
    """The tokens in the file, once it holds them: a file that cannot be used is made anew, as a missing one is."""
    try:
        found = open_tokens(path, tokenizer.fingerprint)
        check_ids(found.ids, tokenizer.vocab_size)
    except UserError:
        found = None
    if found and found.n_chars == len(text):
        return found
    made = _encode(text, tokenizer)
    try:
        write_tokens(path, made, vocab_size=tokenizer.vocab_size, fingerprint=tokenizer.fingerprint)
        return open_tokens(path, tokenizer.fingerprint)
    except UserError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        return made  # a cache that cannot be written saves no time, but it stops no one either
