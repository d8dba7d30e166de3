"""Text generation against plain oracles: the NumPy model for every token, NumPy filters, a reader of whole texts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.test_model import WRONG_EDITS
from tinygpt_jax import reference
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, SampleConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import init_params
from tinygpt_jax.runs import Model
from tinygpt_jax.sampling import generate, sample, stream
from tinygpt_jax.sampling.decode import advance, prefill, window_start
from tinygpt_jax.sampling.filters import filter_logits, make_filters
from tinygpt_jax.sampling.reader import Reader
from tinygpt_jax.text import Tokenizer, bpe_tokenizer, char_tokenizer

TOKENIZER = char_tokenizer("abcdefghij\n")
CFG = GPTConfig(vocab_size=13, block_size=8, n_layer=2, n_head=2, n_embd=16, mlp_ratio=0.0, tied=False)
PROMPTS = ("abc", "j", "", "abcdefghij" * 2)  # shorter than the context, one token, none, longer than the context
ALL_FILTERS = {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}


def make_model(tokenizer: Tokenizer = TOKENIZER, scale: float = 6.0, **changes) -> Model:
    """A model with weights large enough that its logits depend on every token it sees."""
    cfg = dataclasses.replace(CFG, **changes)
    params = jax.tree.map(lambda w: scale * w, init_params(jax.random.key(3), cfg))
    return Model(params, cfg, tokenizer)


MODEL = make_model()


# The oracles


def plain_filter(logits, seen, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0):
    """One row of logits, as the definition of each filter reads; returns probabilities and the cut nearest to a tie."""
    z = np.array(logits, np.float64)
    for i in seen:
        z[i] = z[i] / repetition_penalty if z[i] > 0 else z[i] * repetition_penalty
    z = z / temperature if temperature else np.where(z == z.max(), 0.0, -np.inf)
    nearest = np.inf
    if top_k is not None:
        z = np.where(z >= sorted(z)[::-1][min(top_k, len(z)) - 1], z, -np.inf)
    if top_p is not None:
        p = reference.softmax(z)
        total, least = 0.0, 0.0
        for value in sorted(p)[::-1]:
            if total >= top_p:
                break
            nearest = min(nearest, abs(total + value - top_p))
            total, least = total + value, value
        z = np.where(p >= least, z, -np.inf)
    if min_p is not None:
        p = reference.softmax(z)
        nearest = min(nearest, np.abs(p / p.max() - min_p).min())
        z = np.where(p >= min_p * p.max(), z, -np.inf)
    return reference.softmax(z), nearest


@functools.cache
def noise(seed: int, j: int, t: int, V: int):
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), j), t)
    return np.asarray(jax.random.gumbel(key, (V,), jnp.float32))


def plain_sample(model, prompt, max_tokens, seed=0, j=0, edits=None, kept=None, **filters):
    """One continuation, the whole window through the NumPy model for each token: (ids, log-probabilities)."""
    params, cfg, tokenizer = model
    T, known = cfg.block_size, tokenizer.vocab_size
    kept = kept or max(1, T // 2)
    params = reference.as_float64(params)
    shown = tokenizer.encode(prompt).tolist()
    ids = shown or [tokenizer.eos_id if tokenizer.eos_id is not None else int(tokenizer.encode("\n")[0])]
    window: list[int] = []
    for i in ids:
        window = [*window, i] if len(window) < T else [*window, i][-kept:]
    new, logprobs = [], []
    for t in range(max_tokens):
        logits = reference.gpt_forward(params, np.array(window), cfg, edits=edits)[-1][:known]
        with np.errstate(divide="ignore"):
            scores = np.log(plain_filter(logits, {*shown, *new}, **filters)[0])
        draw = noise(seed, j, t, cfg.vocab_size)[:known] if filters.get("temperature", 1.0) else 0
        i = int(np.argmax(scores + draw))
        new.append(i)
        logprobs.append(float(np.log(reference.softmax(logits))[i]))
        window = [*window, i] if len(window) < T else [*window, i][-kept:]
    return new, logprobs


def assert_same(samples, wanted):
    assert [s.tokens for s in samples] == [ids for ids, _ in wanted]
    for s, (_, logprobs) in zip(samples, wanted, strict=True):
        np.testing.assert_allclose(s.logprobs, logprobs, atol=2e-4)


# Tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "mlp_ratio": 2.0},
        {"positions": "rope", "n_layer": 1},
        {"positions": "sinusoidal", "n_layer": 1},
        {"positions": "none", "unroll_layers": 1},
        {"positions": "rope", "smeared_keys": True},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_decoding_equals_the_plain_oracle_with_and_without_the_cache(changes):
    model = make_model(**changes)
    for seed, temperature in ((1, 1.0), (2, 0.0)):
        wanted = [plain_sample(model, p, 27, seed, temperature=temperature) for p in PROMPTS]
        assert_same(sample(model, PROMPTS, max_tokens=27, seed=seed, temperature=temperature), wanted)
        assert_same(sample(model, PROMPTS, max_tokens=27, seed=seed, temperature=temperature, cache=False), wanted)
    again = [plain_sample(model, p[::-1], 27, temperature=1.0) for p in PROMPTS]
    assert_same(sample(model, [p[::-1] for p in PROMPTS], max_tokens=27, temperature=1.0), again)


def test_the_oracle_notices_another_window():
    assert plain_sample(MODEL, "abc", 27, kept=5)[0] != plain_sample(MODEL, "abc", 27)[0]


@pytest.mark.parametrize("T", [1, 2, 3])
def test_the_smallest_contexts(T):
    model = make_model(block_size=T, n_layer=1)
    wanted = [plain_sample(model, p, 10, temperature=1.0) for p in PROMPTS]
    assert_same(sample(model, PROMPTS, max_tokens=10, temperature=1.0), wanted)
    if T == 1:
        assert_same(sample(model, PROMPTS, max_tokens=10, temperature=1.0, cache=False), wanted)


@pytest.mark.parametrize("T", [1, 2, 3, 8, 9])
def test_window_start_is_that_of_a_window_that_grows_and_moves(T):
    start, kept = 0, max(1, T // 2)
    for n in range(1, 5 * T):
        start = n - kept if n - start > T else start
        assert window_start(n, T) == start


def test_all_filters_equal_the_plain_oracle():
    wanted = [plain_sample(MODEL, p, 27, 5, **ALL_FILTERS) for p in PROMPTS]
    assert_same(sample(MODEL, PROMPTS, max_tokens=27, seed=5, **ALL_FILTERS), wanted)
    assert wanted != [plain_sample(MODEL, p, 27, 5, temperature=1.3) for p in PROMPTS]


def test_a_row_depends_on_nothing_else_in_its_batch():
    """Twelve rows, refilled two at a time, against each prompt and each sample alone."""
    many = sample(MODEL, PROMPTS, max_tokens=20, temperature=1.0, n=3)
    for i, (prompt, j) in enumerate(itertools.product(PROMPTS, range(3))):
        assert many[i].prompt == prompt
        assert many[i].tokens == plain_sample(MODEL, prompt, 20, j=j)[0]
    assert len({tuple(s.tokens) for s in many}) == 12
    for i, prompt in enumerate(PROMPTS[:2]):
        assert sample(MODEL, prompt, max_tokens=20, temperature=1.0)[0].tokens == many[3 * i].tokens


def test_every_bit_of_the_seed_counts():
    texts = {generate(MODEL, "a", max_tokens=20, seed=seed) for seed in (0, 1, 2**32, 2**32 + 1, 2**63 - 1)}
    assert len(texts) == 5


def test_greedy_takes_the_lowest_of_equal_ids():
    model = MODEL._replace(params=jax.tree.map(jnp.zeros_like, MODEL.params))
    (one,) = sample(model, "abc", max_tokens=20, temperature=0)
    assert one.tokens == [0] * 20
    np.testing.assert_allclose(one.logprobs, -np.log(TOKENIZER.vocab_size), rtol=1e-6)


def test_draws_follow_the_softmax_and_never_leave_the_vocabulary():
    n, temperature = 3000, 1.5
    drawn = [s.tokens[0] for s in sample(MODEL, "abc", max_tokens=1, temperature=temperature, n=n)]
    logits = reference.gpt_forward(reference.as_float64(MODEL.params), TOKENIZER.encode("abc"), CFG)[-1]
    wanted = n * reference.softmax(logits[: TOKENIZER.vocab_size] / temperature)
    assert max(drawn) < TOKENIZER.vocab_size < CFG.vocab_size
    chi2 = ((np.bincount(drawn, minlength=len(wanted)) - wanted) ** 2 / wanted).sum()
    assert chi2 < 29.6  # 10 degrees of freedom: 1 in 1000
    wild = sample(MODEL, "abc", max_tokens=200, temperature=1e6)[0].tokens
    assert set(wild) == set(range(TOKENIZER.vocab_size))


def test_bfloat16_keeps_to_its_own_forward():
    model = make_model(compute_dtype="bfloat16")
    samples = sample(model, PROMPTS, max_tokens=20, temperature=1.0)
    exact = sample(make_model(), PROMPTS, max_tokens=20, temperature=1.0)
    np.testing.assert_allclose([s.logprobs[0] for s in samples], [s.logprobs[0] for s in exact], atol=0.15)
    assert [len(s.tokens) for s in samples] == [20] * 4


def test_weights_that_are_not_finite_are_reported():
    params = MODEL.params | {"lnfg": MODEL.params["lnfg"].at[3].set(jnp.nan)}
    with pytest.raises(UserError, match="not finite"):
        sample(MODEL._replace(params=params), "abc")


# Edits


def head_mask(values) -> dict[str, Edit]:
    return {"z": Edit(keep=jnp.asarray(values, jnp.float32).reshape(2, 1, 2, 1, 1))}


def test_sampling_under_edits():
    """Every site's edit changes the text, and together they do what the oracle does with them."""
    edits = head_mask([[0, 1], [1, 0]]) | {
        "attn_out": Edit(jnp.full((2, 1, 1, 1), 1.5), jnp.linspace(0, 1, 16).reshape(1, 1, 1, 16).repeat(2, axis=0)),
        "pattern": Edit(keep=jnp.asarray([0.3, 0.7]).reshape(2, 1, 1, 1, 1)),
    }
    arrays = jax.tree.map(np.asarray, edits)
    wanted = [plain_sample(MODEL, p, 20, temperature=1.0, edits=arrays) for p in PROMPTS]
    assert_same(sample(MODEL, PROMPTS, max_tokens=20, temperature=1.0, edits=edits), wanted)
    for site in edits:
        fewer = {name: edit for name, edit in arrays.items() if name != site}
        assert wanted != [plain_sample(MODEL, p, 20, temperature=1.0, edits=fewer) for p in PROMPTS]


@pytest.mark.parametrize(
    ("site", "edit", "match"),
    [
        ("zz", Edit(), "site 'zz'"),
        ("z", Edit(jnp.ones((2, 4, 2, 1, 1))), r"edits\['z'\].*batch"),
        ("z", Edit(add=jnp.ones((2, 1, 2, 8, 1))), r"edits\['z'\].*time"),
        ("pattern", Edit(jnp.ones((2, 1, 2, 1, 8))), r"edits\['pattern'\].*time"),
        ("pattern", Edit(add=jnp.ones((2, 1, 2, 1, 1))), "keep"),
        ("attn_out", Edit(jnp.ones((2, 8, 16))), r"edits\['attn_out'\]"),
        ("attn_out", Edit(jnp.ones((1, 1, 1, 1))), "2 along layers"),
        ("attn_out", Edit(jnp.ones(())), "2 along layers"),
    ],
)
def test_edits_that_depend_on_row_or_position_are_refused(site, edit, match):
    with pytest.raises(UserError, match=match):
        sample(MODEL, "a", edits={site: edit})


@pytest.mark.parametrize("wrong", WRONG_EDITS)
def test_what_is_no_edit_is_refused(wrong):
    with pytest.raises(UserError, match=r"edits\['z'\].* must be .*(Edit\(|array)"):
        sample(MODEL, "a", edits={"z": WRONG_EDITS[wrong]})
    with pytest.raises(UserError, match="edits are .*must be a dict"):
        sample(MODEL, "a", edits=Edit())


# What compiles


def test_prompts_and_settings_of_all_kinds_share_a_few_programs():
    model = make_model(block_size=16, n_layer=1)
    prefills, decodes = prefill._cache_size(), advance._cache_size()
    for length in range(1, 21):
        sample(model, "a" * length, max_tokens=length, temperature=length / 10)
    assert prefill._cache_size() - prefills <= 1 + 4
    assert advance._cache_size() - decodes == 1
    list(stream(model, "a", max_tokens=40))
    sample(model, "a", max_tokens=100, temperature=0, stop="b", seed=2**40)
    assert advance._cache_size() - decodes == 1
    filters = {"top_k": 3, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 3.0}
    sample(model, "a", max_tokens=3, **filters)
    sample(model, "a", max_tokens=3, **{name: value / 2 for name, value in filters.items()} | {"top_k": 999})
    assert advance._cache_size() - decodes == 2
    for scale in (0.0, 0.5):
        sample(model, "a", max_tokens=3, edits={"attn_out": Edit(jnp.full((1, 1, 1, 1), scale))})
    assert advance._cache_size() - decodes == 3


# Filters


def kept(logits, **options) -> list[list[int]]:
    seen = options.pop("seen", None)
    filtered = filter_logits(jnp.asarray(logits, jnp.float32), make_filters(SampleConfig(**options)), seen)
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in np.asarray(filtered)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [0, 1, 2]),  # 0 and 1 tie
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [2]),
        ({"top_p": 0.51}, [0, 1, 2]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"top_p": 1e-9}, [2]),
        ({"min_p": 0.4}, [0, 1, 2]),
        ({"min_p": 0.51}, [2]),
        ({"top_k": 3, "top_p": 0.55}, [0, 1, 2]),  # of what top-k leaves, 2 has 0.53
        ({"top_k": 3, "top_p": 0.53}, [2]),
    ],
)
def test_filters_on_four_tokens(options, wanted):
    logits = np.log([[0.21875, 0.21875, 0.5, 0.0625]])
    assert kept(logits, temperature=1.0, **options) == [wanted]


def test_the_order_of_filters():
    p = np.log([[0.5, 0.3, 0.2]])
    assert kept(p, temperature=1.0, top_p=0.6) == [[0, 1]]
    assert kept(p, temperature=0.2, top_p=0.6) == [[0]]  # the temperature acts first
    assert kept(p, temperature=1.0, top_p=0.6, top_k=1) == [[0]]
    seen = jnp.asarray([[True, False, False]])
    assert kept(p, temperature=1.0, repetition_penalty=100.0, top_k=1, seen=seen) == [[1]]


def test_temperatures_next_to_zero_stay_finite():
    for temperature in (0.0, 1e-45, 1e-38, 1e-30):
        filters = make_filters(SampleConfig(temperature=temperature))
        probabilities = jax.nn.softmax(filter_logits(jnp.asarray([[1.0, 5.0, 4.99, -3e38, -jnp.inf]]), filters))
        np.testing.assert_array_equal(probabilities, [[0, 1, 0, 0, 0]])


# Eighths: what is not equal is not equal in float32 either, once the largest has been taken away.
rows = st.lists(st.integers(-64, 64).map(lambda n: n / 8) | st.sampled_from([0.0, 1.0, 2.0]), min_size=6, max_size=6)


@settings(max_examples=150)
@given(
    logits=rows,
    seen=st.sets(st.integers(0, 5)),
    temperature=st.floats(0.05, 3),
    top_k=st.integers(1, 9),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 0.99),
    repetition_penalty=st.floats(0.3, 3),
)
def test_filters_equal_their_definitions(logits, seen, **options):
    mask = np.isin(np.arange(6), list(seen))[None]
    # A filter that is off is another program: switch each on by a value that changes nothing.
    filters = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), make_filters(SampleConfig(**ALL_FILTERS)))
    filters = filters._replace(**{k: jnp.asarray(v, jnp.float32) for k, v in options.items() if k != "top_k"})
    filters = filters._replace(top_k=jnp.asarray(options["top_k"], jnp.int32))
    wanted, nearest = plain_filter(logits, seen, **options)
    assume(nearest > 1e-4)  # float32 may cut on either side
    got = np.asarray(jitted_filter(jnp.asarray([logits], jnp.float32), filters, jnp.asarray(mask)))
    assert got.max() == 0
    np.testing.assert_allclose(reference.softmax(got.astype(np.float64))[0], wanted, atol=2e-4)


jitted_filter = jax.jit(filter_logits)


# Text


def plain_reader(text: str, stops: tuple[str, ...], max_tokens: int):
    """(text, number of tokens, finish) of a character model that writes `text`, by the definition."""
    for n in range(1, max_tokens + 1):
        found = [text[:n].find(stop) for stop in stops if stop in text[:n]]
        if found:
            return text[: min(found)], n, "stop"
    return text[:max_tokens], max_tokens, "length"


@settings(max_examples=300)
@given(
    text=st.text("ab", min_size=12, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3).map(tuple),
    max_tokens=st.integers(1, 12),
    cuts=st.sets(st.integers(1, 11)),
)
def test_the_reader_stops_where_its_definition_does_however_text_arrives(text, stops, max_tokens, cuts):
    reader = Reader(TOKENIZER, SampleConfig(stop=stops, max_tokens=max_tokens))
    wanted, count, finish = plain_reader(text, stops, max_tokens)
    ids = TOKENIZER.encode(text)
    pieces = []
    for chunk in np.split(ids, sorted(cuts)):
        pieces.append(reader.push(chunk, np.zeros(len(chunk), np.float32)))
        assert wanted.startswith("".join(pieces))  # nothing that is taken back later
    assert (reader.text, len(reader.tokens), reader.finish) == (wanted, count, finish)
    assert "".join(pieces) == wanted
    assert len(reader.logprobs) == count


def byte_tokenizer(*, eos: bool = False) -> Tokenizer:
    document = json.loads(bpe_tokenizer("é", 256).to_json())
    if eos:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        document["added_tokens"] = [{"id": 256, "content": "<|endoftext|>", "special": True, **flags}]
    return Tokenizer(json.dumps(document, sort_keys=True))


def test_the_reader_gives_whole_characters_and_ends_at_the_end_of_text():
    tokenizer = byte_tokenizer(eos=True)
    ids = tokenizer.encode("aé中<|endoftext|>b")
    reader = Reader(tokenizer, SampleConfig())
    pieces = [reader.push(ids[i : i + 1], np.zeros(1, np.float32)) for i in range(len(ids))]
    assert pieces == ["a", "", "é", "", "", "中", "", ""]
    assert (reader.text, reader.tokens, reader.finish) == ("aé中", ids[:-1].tolist(), "eos")
    reader = Reader(tokenizer, SampleConfig(max_tokens=2))
    assert reader.push(ids, np.zeros(len(ids), np.float32)) == "a\ufffd"
    reader = Reader(tokenizer, SampleConfig(stop=("\ufffd",), max_tokens=2))
    reader.push(ids, np.zeros(len(ids), np.float32))
    assert (reader.text, reader.finish) == ("a", "stop")


def test_a_text_ends_at_the_end_of_text_token_and_an_empty_prompt_starts_from_it():
    model = make_model(byte_tokenizer(eos=True), vocab_size=257, n_layer=1)
    head = model.params["head"].at[256].set(4 * model.params["head"][256])
    model = model._replace(params=model.params | {"head": head})
    finishes = set()
    for seed in range(4):
        (s,) = sample(model, "", max_tokens=150, temperature=1.0, seed=seed)
        finishes.add(s.finish)
        ended = s.finish == "eos"
        assert s.tokens == plain_sample(model, "", 150, seed)[0][: len(s.tokens)]
        assert [i for i, token in enumerate(s.tokens) if token == 256] == ([len(s.tokens) - 1] if ended else [])
        assert s.text == model.tokenizer.decode(s.tokens[:-1] if ended else s.tokens)
    assert "eos" in finishes


@pytest.mark.parametrize("stop", [(), ("\ufffd",), ("a", "\ufffd\ufffd", "zz")])
def test_a_stream_joined_is_the_sample(stop):
    model = make_model(byte_tokenizer(), vocab_size=257, n_layer=1)
    for prompt, seed in itertools.product(("", "é中"), range(3)):
        options = {"max_tokens": 90, "temperature": 1.0, "seed": seed, "stop": stop}
        (one,) = sample(model, prompt, **options)
        pieces = list(stream(model, prompt, **options))
        assert "".join(pieces) == one.text
        assert all(pieces)
        assert one.finish == "length" or not any(s in one.text for s in stop)


def test_a_stream_writes_as_it_goes():
    pieces = stream(MODEL, "abc", max_tokens=40, temperature=1.0)
    first = next(pieces)
    assert 0 < len(first) < 40
    assert first + "".join(pieces) == sample(MODEL, "abc", max_tokens=40, temperature=1.0)[0].text


def test_sampling_stops_before_a_stop_string():
    (whole,) = sample(MODEL, "abc", max_tokens=100, temperature=1.0)
    stop = whole.text[40:43]
    (one,) = sample(MODEL, "abc", max_tokens=100, temperature=1.0, stop=stop)
    end = whole.text.index(stop)
    assert (one.text, one.finish) == (whole.text[:end], "stop")
    assert one.tokens == whole.tokens[: end + 3]


def test_generate_gives_a_text_or_a_list_of_texts():
    options = {"max_tokens": 5, "temperature": 1.0}
    one = generate(MODEL, "abc", **options)
    assert one == "abc" + sample(MODEL, "abc", **options)[0].text
    assert len(one) == 8
    assert generate(MODEL, ["abc"], **options) == [one]
    four = generate(MODEL, "abc", n=4, **options)
    assert four[0] == one
    assert len(four) == 4
    assert generate(MODEL, [], **options) == []
    assert len(generate(MODEL, max_tokens=5)) == 5


def test_an_empty_prompt_starts_from_a_newline_or_from_id_0():
    model = make_model(char_tokenizer("abcdefghijk"))
    assert sample(MODEL, "")[0].tokens == sample(MODEL, "\n")[0].tokens
    assert sample(model, "")[0].tokens == sample(model, "a")[0].tokens


# What is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("n", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", ("a", "")),
        ("stop", ""),
    ],
)
def test_settings_out_of_range_are_named(name, value):
    with pytest.raises(UserError, match=f"^{name} is .*: must be") as error:
        check(SampleConfig(**{name: value}))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=name):
        generate(MODEL, "a", **{name: value})


def test_settings_at_the_edge_of_their_range():
    edge = check(SampleConfig(temperature=0, top_k=1, top_p=1, min_p=0, seed=2**63 - 1, max_tokens=1, stop="ab"))
    assert edge.stop == ("ab",)
    assert check(SampleConfig(stop=["a", "b"])).stop == ("a", "b")
    assert hash(edge)


def test_calls_that_cannot_be_answered_fail_at_once():
    for function in (generate, sample, stream):
        with pytest.raises(UserError, match="does not know 'X'"):
            function(MODEL, "abcX")
        with pytest.raises(TypeError, match="temprature"):
            function(MODEL, "abc", temprature=1.0)
    with pytest.raises(UserError, match="n is 2"):
        stream(MODEL, "abc", n=2)
    with pytest.raises(UserError, match="the prompt: id 10"):
        sample(make_model(vocab_size=5), "j")
