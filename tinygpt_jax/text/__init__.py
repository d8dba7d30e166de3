"""Text in, batches out: corpora, tokenizers, token files and windows. NumPy only."""

from tinygpt_jax.ids import check_ids
from tinygpt_jax.runtime import cache_dir
from tinygpt_jax.text.batches import IGNORE, eval_windows, window_starts, windows
from tinygpt_jax.text.bpe import bpe_tokenizer
from tinygpt_jax.text.corpora import load_text, text_fingerprint
from tinygpt_jax.text.examples import Examples
from tinygpt_jax.text.plain import read_text
from tinygpt_jax.text.tasks import repeated_sequences
from tinygpt_jax.text.tokenizer import StreamDecoder, Tokenizer, char_tokenizer, load_tokenizer
from tinygpt_jax.text.tokens import Dataset, Tokens, check_length, open_tokens, prepare, write_tokens
