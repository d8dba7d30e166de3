import json
from pathlib import Path

import pytest
import tokenizers

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import StreamDecoder, Tokenizer, bpe_tokenizer, char_tokenizer, load_tokenizer
from tinygpt_jax.text.document import byte_of_char

ODD = "a b\n\r\n\t 'q\" é 👩 中文\\"
CHAR = char_tokenizer(ODD)
BPE = bpe_tokenizer("It's the time, the place; we'll sing.\n\n" * 4 + ODD, 280)


def library(tok: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tok.to_json())


def file_of(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def gpt2_like() -> dict:
    """A file laid out as GPT-2's own: the model's type is not named, merges are strings, one added token at the end."""
    vocab = {char: i for i, char in enumerate(byte_of_char())} | {"Ġt": 256, "he": 257, "Ġthe": 258}
    side = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    end = {"id": 259, "special": True, "content": "<|endoftext|>", "single_word": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | {"lstrip": False, "rstrip": False, "normalized": True}],
        "normalizer": None,
        "pre_tokenizer": side | {"add_prefix_space": False},
        "post_processor": side,
        "decoder": side,
        "model": {
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": vocab,
            "merges": ["Ġ t", "h e", "Ġt he"],
        },
    }


def word_piece() -> dict:
    vocab = ["[UNK]", "do", "n", "'", "t", "."]
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(vocab)}, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece()
    return json.loads(library.to_str())


@pytest.mark.parametrize("tok", [CHAR, BPE])
def test_a_saved_tokenizer_is_the_same_when_loaded_and_opens_in_the_library(tmp_path, tok):
    path = tmp_path / "run" / "tokenizer.json"
    tok.save(path)
    again = load_tokenizer(path)
    assert again == tok
    assert again.fingerprint == tok.fingerprint
    assert hash(again) == hash(tok)
    assert again.kind == tok.kind != "other"
    assert tokenizers.Tokenizer.from_file(str(path)).encode(ODD).ids == again.encode(ODD).tolist()
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.json"]
    assert f"{tok.vocab_size} tokens" in tok.describe()
    assert tok.describe() in repr(tok)
    with pytest.raises(AttributeError):
        tok._json = ""


@pytest.mark.parametrize("tok", [CHAR, BPE])
def test_a_file_that_the_library_wrote_is_recognised(tmp_path, tok):
    path = tmp_path / "tokenizer.json"
    library(tok).save(str(path), pretty=True)
    assert load_tokenizer(path) == tok


def test_order_of_keys_in_a_file_means_nothing(tmp_path):
    document = json.loads(CHAR.to_json())
    document["model"]["vocab"] = dict(reversed(document["model"]["vocab"].items()))
    assert load_tokenizer(file_of(tmp_path / "t.json", dict(reversed(document.items())))) == CHAR


def test_character_file_with_other_ids_works_and_with_gaps_is_left_to_the_library(tmp_path):
    document = json.loads(char_tokenizer("abc").to_json())
    document["model"]["vocab"] = {"a": 2, "b": 0, "c": 1}
    tok = load_tokenizer(file_of(tmp_path / "t.json", document))
    assert (tok.kind, tok.encode("abc").tolist(), tok.decode([0, 1, 2])) == ("char", [2, 0, 1], "bca")
    document["model"]["vocab"] = {"a": 0, "b": 5}
    tok = load_tokenizer(file_of(tmp_path / "t.json", document))
    assert (tok.kind, tok.vocab_size, tok.encode("ab").tolist(), tok.decode([5, 3, 0])) == ("other", 6, [0, 5], "ba")
    with pytest.raises(UserError, match="cannot encode the text .*UNK"):
        tok.encode("c")


def test_fingerprints_differ_where_tokenizers_do():
    toks = [char_tokenizer("ab"), char_tokenizer("abc"), BPE, bpe_tokenizer("", 256)]
    assert len({tok.fingerprint for tok in toks}) == len(set(toks)) == 4


def test_gpt2s_layout(tmp_path):
    tok = load_tokenizer(file_of(tmp_path / "t.json", gpt2_like()))
    assert (tok.kind, tok.vocab_size, tok.eos_id) == ("bpe", 260, 259)
    text = "the the<|endoftext|>\n\n the é"
    ids = tok.encode(text, chunk_chars=1)
    assert ids.tolist() == library(tok).encode(text, add_special_tokens=False).ids
    assert ids.tolist().count(258) == 2
    assert ids.tolist().count(259) == 1
    assert tok.decode(ids) == text
    assert tok.decode([258, 259]) == " the<|endoftext|>" == library(tok).decode([258, 259], skip_special_tokens=False)


def test_padding_truncation_and_added_ends_are_left_out(tmp_path):
    made = tokenizers.Tokenizer.from_str(json.dumps(gpt2_like()))
    made.enable_truncation(3)
    made.enable_padding(length=50)
    made.post_processor = tokenizers.processors.TemplateProcessing("$A <|endoftext|>", None, [("<|endoftext|>", 259)])
    made.save(str(tmp_path / "t.json"))
    tok = load_tokenizer(tmp_path / "t.json")
    assert tok.decode(tok.encode("the cat sat on the mat")) == "the cat sat on the mat"


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "Lowercase"}},
        {"decoder": None},
        {"added_tokens": [gpt2_like()["added_tokens"][0] | {"rstrip": True}]},
        {"added_tokens": [gpt2_like()["added_tokens"][0] | {"content": "a b"}]},
        {"model": gpt2_like()["model"] | {"dropout": 0.5}},
        {"model": gpt2_like()["model"] | {"vocab": {"a": 0}, "merges": []}},
    ],
)
def test_what_breaks_a_promise_of_byte_level_bpe_is_another_kind(tmp_path, change):
    assert load_tokenizer(file_of(tmp_path / "t.json", gpt2_like() | change)).kind == "other"


def test_other_kinds_are_encoded_whole_and_decoded_by_the_library(tmp_path):
    tok = load_tokenizer(file_of(tmp_path / "t.json", word_piece()))
    assert (tok.kind, tok.vocab_size) == ("other", 6)
    assert tok.encode("do n't.", chunk_chars=1).tolist() == [1, 2, 3, 4, 5]
    assert tok.decode([1, 5]) == library(tok).decode([1, 5]) == "do."
    end = gpt2_like()["added_tokens"][0] | {"id": 6, "content": "</s>"}
    tok = load_tokenizer(file_of(tmp_path / "t.json", word_piece() | {"added_tokens": [end]}))
    assert (tok.vocab_size, tok.eos_id, tok.encode("do</s>").tolist()) == (7, 6, [1, 6])
    assert tok.decode([1, 6]) == "do </s>"
    prefixed = gpt2_like() | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}
    tok = load_tokenizer(file_of(tmp_path / "t.json", prefixed))
    assert tok.encode("the\nthe", chunk_chars=1).tolist() == library(tok).encode("the\nthe").ids


@pytest.mark.parametrize("change", [{"model": {}}, {"model": []}, {"pre_tokenizer": {"type": "No"}}, {"model": None}])
def test_json_that_is_no_tokenizer(tmp_path, change):
    path = file_of(tmp_path / "t.json", json.loads(CHAR.to_json()) | change)
    with pytest.raises(UserError, match=r"t.json is JSON but not a tokenizer \(.*give the path of a tokenizer.json"):
        load_tokenizer(path)


@pytest.mark.parametrize("text", ["[1]", '"text"', "null", "{}", '{"model": {"vocab": {"\\ud800": 0}}}'])
def test_other_json_is_no_tokenizer(tmp_path, text):
    with pytest.raises(UserError, match="JSON but not a tokenizer"):
        load_tokenizer(file_of(tmp_path / "t.json", text))


def test_a_file_that_cannot_be_read_as_json(tmp_path):
    with pytest.raises(UserError, match="t.json is not JSON"):
        load_tokenizer(file_of(tmp_path / "t.json", "not { json"))
    (tmp_path / "t.json").write_bytes(b'{"\xff": 1}')
    with pytest.raises(UserError, match="t.json is not JSON"):
        load_tokenizer(tmp_path / "t.json")
    with pytest.raises(UserError, match="no tokenizer at .*gone.json"):
        load_tokenizer(tmp_path / "gone.json")
    with pytest.raises(UserError, match="cannot read"):
        load_tokenizer(tmp_path)
    empty = json.loads(CHAR.to_json())
    empty["model"]["vocab"] = {}
    with pytest.raises(UserError, match="without a single token"):
        load_tokenizer(file_of(tmp_path / "t.json", empty))


def test_saving_where_nothing_can_be_written(tmp_path):
    file_of(tmp_path / "file", "in the way")
    with pytest.raises(UserError, match="cannot write .*tokenizer.json"):
        CHAR.save(tmp_path / "file" / "tokenizer.json")


def test_stream_of_other_kinds_waits_for_the_end(tmp_path):
    tok = load_tokenizer(file_of(tmp_path / "t.json", word_piece()))
    decoder = StreamDecoder(tok)
    pushed = [decoder.push([i]) for i in (1, 2, 3, 4, 5)]
    # "do n' t" would have been shown by then; the last token makes it "don't"
    assert "".join(pushed) + decoder.flush() == tok.decode([1, 2, 3, 4, 5])
    assert decoder.flush() == ""
    with pytest.raises(UserError, match="id 6 at index 0"):
        decoder.push([6])
