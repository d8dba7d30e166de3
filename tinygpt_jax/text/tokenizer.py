"""Text to ids and back: characters, byte-level BPE, or whatever a tokenizer.json says.

Every tokenizer here is a `tokenizer.json` that the `tokenizers` library opens with the same ids and the same text.
The library is loaded when it is needed, and a character tokenizer does not need it.
"""

import codecs
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.ids import check_ids
from tinygpt_jax.text.document import byte_of_char, bytes_of_token, canonical, char_document, is_byte_level_bpe, is_char

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["char", "bpe", "other"]

END_OF_TEXT = ("<|endoftext|>", "</s>", "<eos>")
CHUNK_CHARS = 1 << 16
CHUNKS_AT_ONCE = 64
# GPT-2's pre-tokenizer never joins white space to what stands before it: text cut there gives the same ids.
_SAFE_CUT = re.compile(r"\S(?=[ \n])")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, whole in one JSON document: equal documents are equal tokenizers.

    Made by `char_tokenizer`, `bpe_tokenizer` or `load_tokenizer`. Special tokens in text become their ids and their
    ids become that text; none are added.
    """

    _json: str

    @cached_property
    def kind(self) -> Kind:
        """`char`, `bpe` (lossless byte-level BPE as in GPT-2) or `other`, by the document alone."""
        data = json.loads(self._json)
        if is_char(data):
            return "char"
        return "bpe" if is_byte_level_bpe(data) else "other"

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids: every id is below it."""
        return max(self._vocab.values()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        return hashlib.sha256(self._json.encode("utf-8")).hexdigest()

    @cached_property
    def eos_id(self) -> int | None:
        """The id that ends a text, where the tokenizer has one."""
        return next((self._vocab[token] for token in END_OF_TEXT if token in self._vocab), None)

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.describe()}>"

    def describe(self) -> str:
        """One line for a person."""
        names = {"char": "characters", "bpe": "byte-level BPE", "other": "from tokenizer.json"}
        return f"{names[self.kind]}, {self.vocab_size} tokens, fingerprint {self.fingerprint[:8]}"

    def to_json(self) -> str:
        """The document, keys sorted and without white space; the `tokenizers` library opens it."""
        return self._json

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document; whoever reads meanwhile finds all of it or what was there before."""
        write_atomically(path, self._json.encode("utf-8"))

    def encode(self, text: str, *, chunk_chars: int = CHUNK_CHARS) -> NDArray[np.int32]:
        """Ids of the text, (N,) int32. `chunk_chars` sets the pace of byte-level BPE and never changes an id.

        Raises:
            UserError: the text is not valid Unicode, or has characters that the tokenizer lacks and cannot replace.
        """
        check_unicode(text)
        if self.kind == "char":
            return self._encode_chars(text)
        chunks = _chunks(text, chunk_chars) if self.kind == "bpe" else iter([text])
        ids = [np.zeros(0, np.int32)]
        # A share at a time: the library takes some 100 bytes a token while it holds a share's result.
        while share := list(itertools.islice(chunks, CHUNKS_AT_ONCE)):
            try:
                encodings = self._library.encode_batch_fast(share, add_special_tokens=False)
            except Exception as error:  # the library raises nothing narrower
                raise UserError(f"this tokenizer cannot encode the text ({error}); use --tokenizer bpe") from error
            ids += [np.asarray(encoding.ids, np.int32) for encoding in encodings]
        return np.concatenate(ids)

    def decode(self, ids: ArrayLike) -> str:
        """Text of the ids, (N,) integers. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            UserError: an id is outside [0, vocab_size).
        """
        checked = np.atleast_1d(check_ids(ids, self.vocab_size)).tolist()
        if self._pieces is None:
            return self._library.decode(checked, skip_special_tokens=False)
        return b"".join(map(self._pieces.__getitem__, checked)).decode("utf-8", "replace")

    @cached_property
    def _library(self) -> "tokenizers.Tokenizer":
        import tokenizers

        return tokenizers.Tokenizer.from_str(self._json)

    @cached_property
    def _vocab(self) -> dict[str, int]:
        if self.kind == "char":
            vocab: dict[str, int] = json.loads(self._json)["model"]["vocab"]
            return vocab
        return self._library.get_vocab(with_added_tokens=True)

    @cached_property
    def _id_of_code_point(self) -> NDArray[np.int32]:
        """Id by code point up to one past the largest known; -1 where there is none, and always at the end."""
        table = np.full(max(map(ord, self._vocab)) + 2, -1, np.int32)
        for char, i in self._vocab.items():
            table[ord(char)] = i
        return table

    @cached_property
    def _pieces(self) -> list[bytes] | None:
        """The bytes each id stands for, where decoding is no more than joining them; else None."""
        if self.kind == "char":
            to_bytes: Callable[[str], bytes] = str.encode
        elif (json.loads(self._json).get("decoder") or {}).get("type") == "ByteLevel":
            to_bytes = bytes_of_token
        else:
            return None
        pieces = [b""] * self.vocab_size
        for token, i in self._vocab.items():
            pieces[i] = to_bytes(token)
        return pieces

    def _encode_chars(self, text: str) -> NDArray[np.int32]:
        table = self._id_of_code_point
        codes = np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))
        ids = table[np.minimum(codes, len(table) - 1)]
        if len(ids) and ids.min() < 0:
            unknown = [repr(chr(code)) for code in np.unique(codes[ids < 0])]
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise UserError(
                f"this character tokenizer does not know {' '.join(unknown[:10])}{more}; "
                "leave them out, or train with --tokenizer bpe, which knows every character"
            )
        return ids


def char_tokenizer(text: str) -> Tokenizer:
    """One token for each distinct character (code point) of the text, ids in code point order.

    Raises:
        UserError: the text is empty or not valid Unicode.
    """
    check_unicode(text)
    if not text:
        raise UserError("the text is empty, so a character tokenizer would know nothing; give some text")
    return Tokenizer(canonical(char_document({char: i for i, char in enumerate(sorted(set(text)))})))


def bpe_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Byte-level BPE as in GPT-2, trained on the text; the same text and size always give the same tokenizer.

    All 256 bytes are tokens, so it encodes any text. Only pairs seen twice or more are merged: a small text may give
    fewer tokens than asked for, which `.vocab_size` tells.

    Raises:
        UserError: `vocab_size` is below 256, or the text is not valid Unicode.
    """
    if vocab_size < 256:
        raise UserError(f"vocab_size {vocab_size} is too small: byte-level BPE needs 256 at least, one for each byte")
    check_unicode(text)
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, initial_alphabet=sorted(byte_of_char()), show_progress=False
    )
    library.train_from_iterator(_chunks(text, CHUNK_CHARS), trainer)
    return Tokenizer(canonical(json.loads(library.to_str())))


def check_unicode(text: str) -> None:
    """Raise UserError where a string holds what no UTF-8 file can: half of a surrogate pair.

    Such strings come from the command line, where Python smuggles undecodable bytes in as lone surrogates.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text has the lone surrogate {text[error.start]!r} at character {error.start}, which is no character; "
            "remove it, or give text that is encoded as UTF-8"
        ) from error


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, from here or elsewhere. Truncation and padding set in it are left out.

    Raises:
        UserError: the file is missing, unreadable, not JSON or not a tokenizer.
    """
    remedy = "give the path of a tokenizer.json"
    try:
        data = json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"no tokenizer at {path}; {remedy}") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); {remedy}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} is JSON but not a tokenizer (no object); {remedy}")
    tokenizer = Tokenizer(canonical({**data, "truncation": None, "padding": None}))
    try:
        size = tokenizer._library.get_vocab_size()
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path} is JSON but not a tokenizer ({error}); {remedy}") from error
    if size == 0:
        raise UserError(f"{path} is a tokenizer without a single token; {remedy}")
    return tokenizer


class StreamDecoder:
    """Decodes ids as they come; all it gives, joined, is `decode` of all ids.

    Work per push does not grow with what came before. A tokenizer whose text is more than its pieces joined (some of
    kind `other`) gives everything at the flush, since a later token may change earlier text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[int] = []

    def push(self, ids: ArrayLike) -> str:
        """The whole characters that these ids complete; UserError on an id outside [0, vocab_size)."""
        checked = np.atleast_1d(check_ids(ids, self._tokenizer.vocab_size)).tolist()
        if self._tokenizer._pieces is None:
            self._held += checked
            return ""
        return self._bytes.decode(b"".join(map(self._tokenizer._pieces.__getitem__, checked)))

    def flush(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD. The decoder is then as new."""
        held, self._held = self._held, []
        return self._tokenizer.decode(held) if held else self._bytes.decode(b"", final=True)


def _chunks(text: str, size: int) -> Iterator[str]:
    """The text in pieces of `size` characters or somewhat more, each but the first beginning with white space."""
    start = 0
    while start < len(text):
        cut = _SAFE_CUT.search(text, start + max(size, 1))
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end
