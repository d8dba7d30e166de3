"""What a `tokenizer.json` says: the two layouts this package knows, written and recognised."""

import json
from functools import cache
from typing import Any

Document = dict[str, Any]  # parsed JSON


def canonical(document: Document) -> str:
    """One text per document: keys sorted, no white space."""
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def char_document(vocab: dict[str, int]) -> Document:
    """Every character for itself: split before and after each, look it up whole, join without spaces."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        # Not a dot, which stops at line ends.
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        # The format wants an unknown token; with one that is not in the vocabulary an unknown character is an error.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }


def is_char(document: Document) -> bool:
    """Whether this is a `char_document` whose ids are 0, 1, 2, ... in some order."""
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or document != char_document(vocab):
        return False
    return all(len(char) == 1 for char in vocab) and set(vocab.values()) == set(range(len(vocab)))


def is_byte_level_bpe(document: Document) -> bool:
    """Whether this is BPE over bytes as GPT-2 has it: any text survives it, and it may be cut before white space.

    What would break either promise is looked for: a missing byte, dropout, a normalizer, another way to split, and
    added tokens that hold white space or swallow it.
    """
    model, split, decoder = document["model"], document.get("pre_tokenizer") or {}, document.get("decoder") or {}
    return (
        "merges" in model  # older files do not name the model's type
        and not any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and byte_of_char().keys() <= model["vocab"].keys()
        and split.get("type") == decoder.get("type") == "ByteLevel"
        and not split["add_prefix_space"]
        and split.get("use_regex", True)
        and not document.get("normalizer")
        and not any(
            token["lstrip"] or token["rstrip"] or any(map(str.isspace, token["content"]))
            for token in document.get("added_tokens") or []
        )
    )


@cache
def byte_of_char() -> dict[str, int]:
    """GPT-2's spelling of bytes: visible Latin-1 characters for themselves, U+0100 and up for the rest."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


def bytes_of_token(token: str) -> bytes:
    """The bytes a token of a byte-level vocabulary spells; an added token in other characters is taken as it stands."""
    try:
        return bytes(byte_of_char()[char] for char in token)
    except KeyError:
        return token.encode("utf-8")
