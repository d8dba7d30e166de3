"""Text to ids and back: characters, byte-level BPE, or whatever a tokenizer.json says.

Every tokenizer here is a `tokenizer.json` that the `tokenizers` library opens with the same ids and the same text.
The library is loaded when it is needed, and a character tokenizer does not need it.
"""

import codecs
import hashlib
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tinygpt_jax.errors import UserError
from tinygpt_jax.files import write_atomically
from tinygpt_jax.ids import check_ids
from tinygpt_jax.reading import read_few
from tinygpt_jax.text.cuts import chunks
from tinygpt_jax.text.document import bytes_of_token, canonical, char_document, is_byte_level_bpe, is_char
from tinygpt_jax.text.screening import MOST_BYTES, check_ids_of, check_parts, in_time, library_errors

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["char", "bpe", "other"]

END_OF_TEXT = ("<|endoftext|>", "</s>", "<eos>")
CHUNK_CHARS = 1 << 16
CHUNKS_AT_ONCE = 64
PART_CHARS = 1 << 20
"""Characters that are checked, hashed or looked up at once: what that takes does not grow with the text."""


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
    def known(self) -> NDArray[np.bool_]:
        """Which ids stand for a token, (vocab_size,): a vocabulary may have holes."""
        known = np.zeros(self.vocab_size, bool)
        known[list(self._vocab.values())] = True
        return known

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

    def encode(
        self, text: str, *, chunk_chars: int = CHUNK_CHARS, dtype: DTypeLike = np.int32
    ) -> NDArray[np.integer[Any]]:
        """Ids of the text, (N,) int32, or of a `dtype` that has room for them. `chunk_chars` sets the pace of
        byte-level BPE and never changes an id.

        The ids are the library's; byte-level BPE alone may differ, in a stretch of 65,536 characters or more without a
        space or a line end after anything else: it is cut, so that time and memory stay in proportion.

        Raises:
            UserError: the text is not valid Unicode, or has characters that the tokenizer lacks and cannot replace.
        """
        check_unicode(text)
        if self.kind == "char":
            return self._encode_chars(text, dtype)
        pieces = chunks(text, chunk_chars) if self.kind == "bpe" else iter([text])
        ids = [np.zeros(0, dtype)]
        # A share at a time: the library takes some 100 bytes a token while it holds a share's result.
        while share := list(itertools.islice(pieces, CHUNKS_AT_ONCE)):
            with library_errors("this tokenizer cannot encode the text", "use --tokenizer bpe"):
                work = partial(self._library.encode_batch_fast, share, add_special_tokens=False)
                # The pattern of byte-level BPE is known, that of other kinds may be anyone's.
                encodings = work() if self.kind == "bpe" else in_time(work, len(text))
            ids += [np.asarray(encoding.ids, dtype) for encoding in encodings]
        return np.concatenate(ids)

    def decode(self, ids: ArrayLike) -> str:
        """Text of the ids, (N,) integers. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            UserError: an id is outside [0, vocab_size).
        """
        checked = np.atleast_1d(check_ids(ids, self.vocab_size)).tolist()
        if self._pieces is None:
            with library_errors("this tokenizer cannot decode these ids", "its tokenizer.json is damaged"):
                return in_time(partial(self._library.decode, checked, skip_special_tokens=False), len(checked))
        return b"".join(map(self._pieces.__getitem__, checked)).decode("utf-8", "replace")

    @cached_property
    def longest(self) -> int:
        """The most characters that one token can stand for, or bytes where it stands for those; 2**31 for not known."""
        return 1 if self.kind == "char" else max(map(len, self._pieces)) if self._pieces else 2**31

    def lacking(self, text: str) -> str:
        """The characters of a text that no tokens decode to, as far as is known: nothing for kind `other`.

        Raises:
            UserError: the text is not valid Unicode.
        """
        check_unicode(text)
        return "".join(sorted(set(text) - self._vocab.keys())) if self.kind == "char" else ""

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

    def _encode_chars(self, text: str, dtype: DTypeLike) -> NDArray[np.integer[Any]]:
        table = self._id_of_code_point
        ids = np.empty(len(text), dtype)
        unknown: set[int] = set()
        for start in range(0, len(text), PART_CHARS):
            codes = np.frombuffer(text[start : start + PART_CHARS].encode("utf-32-le"), np.dtype("<u4"))
            part = table[np.minimum(codes, len(table) - 1)]
            unknown.update(codes[part < 0].tolist())
            ids[start : start + PART_CHARS] = part
        if unknown:
            names = [repr(chr(code)) for code in sorted(unknown)]
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            raise UserError(
                f"this character tokenizer does not know {' '.join(names[:10])}{more}; "
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


def check_unicode(text: str) -> None:
    """Raise UserError where a string holds what no UTF-8 file can: half of a surrogate pair.

    Such strings come from the command line, where Python smuggles undecodable bytes in as lone surrogates.
    """
    if text.isascii():
        return
    for start in range(0, len(text), PART_CHARS):
        try:
            text[start : start + PART_CHARS].encode("utf-8")
        except UnicodeEncodeError as error:
            at = start + error.start
            raise UserError(
                f"the text has the lone surrogate {text[at]!r} at character {at}, which is no character; "
                "remove it, or give text that is encoded as UTF-8"
            ) from error


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, from here or elsewhere. Truncation and padding set in it are left out.

    Raises:
        UserError: the file is missing, unreadable, not JSON or not a tokenizer, or it is one that cannot be used:
            larger than 64 MiB, with ids of 2**22 and above or of several tokens, with patterns that may never end.
    """
    remedy = "give the path of a tokenizer.json"
    try:
        text = read_few(path, MOST_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"no tokenizer at {path}; {remedy}") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {remedy}") from error
    except ValueError as error:  # NUL, or half of a surrogate pair
        raise UserError(f"no tokenizer at {os.fspath(path)!r}: no file can have this name; {remedy}") from error
    try:
        data = json.loads(text)
        document = canonical({**data, "truncation": None, "padding": None}) if isinstance(data, dict) else None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); {remedy}") from error
    if document is None:
        raise UserError(f"{path} is JSON but not a tokenizer (no object); {remedy}")
    tokenizer = Tokenizer(document)
    try:
        check_parts(data)
        with library_errors("its parts make no tokenizer", "it is damaged"):
            tokenizer._library.get_vocab_size()
        check_ids_of(tokenizer._vocab)
    except UserError as error:
        raise UserError(f"{path} is JSON but not a tokenizer ({error}); {remedy}") from error
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
