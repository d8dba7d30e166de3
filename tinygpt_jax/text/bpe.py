"""Byte-level BPE, trained on a text."""

import json

from tinygpt_jax.errors import UserError
from tinygpt_jax.text.cuts import chunks, short_words
from tinygpt_jax.text.document import byte_of_char, canonical
from tinygpt_jax.text.tokenizer import CHUNK_CHARS, Tokenizer, check_unicode

MOST_TOKENS = 1 << 20
"""The largest vocabulary: the library makes room for it before it has seen any text."""


def bpe_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Byte-level BPE as in GPT-2, trained on the text; the same text and size always give the same tokenizer.

    All 256 bytes are tokens, so it encodes any text. Only pairs seen twice or more are merged: a small text may give
    fewer tokens than asked for, which `.vocab_size` tells. Of a word of 1,024 characters or more, merges are learned
    from pieces.

    Raises:
        UserError: `vocab_size` is below 256 or above 2**20, or the text is not valid Unicode.
    """
    if vocab_size < 256:
        raise UserError(f"vocab_size {vocab_size} is too small: byte-level BPE needs 256 at least, one for each byte")
    if vocab_size > MOST_TOKENS:
        raise UserError(f"vocab_size {vocab_size} is too large: at most {MOST_TOKENS} sub-words are trained")
    check_unicode(text)
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, initial_alphabet=sorted(byte_of_char()), show_progress=False
    )
    library.train_from_iterator(short_words(chunks(text, CHUNK_CHARS)), trainer)
    return Tokenizer(canonical(json.loads(library.to_str())))
