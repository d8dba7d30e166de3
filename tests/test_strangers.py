"""Files from strangers: each is read whole or refused in one line, with little work and memory; nothing of theirs runs,
and nothing outside the run is read or written."""

import contextlib
import dataclasses
import io
import json
import os
import pickle
import signal
import struct
import threading
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.figures.made import results
from tests.pages import Page
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, SampleConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw_file
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.params import flatten, init_params
from tinygpt_jax.presets import override, read_settings
from tinygpt_jax.reading import MOST_SETTINGS, MOST_TABLES, MOST_TOML, parse_json, parse_toml
from tinygpt_jax.reporting.report import report_page
from tinygpt_jax.runs import (
    MOST_HEADER,
    MOVABLE,
    PARTS,
    load,
    read_config,
    read_record,
    read_weights,
    weights_step,
    write_record,
    write_weights,
)
from tinygpt_jax.study.report import report
from tinygpt_jax.text import char_tokenizer
from tinygpt_jax.training.metrics import read_metrics

CFG = GPTConfig(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4)
PARAMS = init_params(jax.random.key(0), CFG)
ARRAYS = {name: np.asarray(leaf) for name, leaf in flatten(PARAMS)}
MIB = 2**20


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / "one"
    write_record(path, TrainConfig(model=CFG), {"text_sha256": "x"})
    write_weights(path / "model.safetensors", PARAMS)
    char_tokenizer("abcde").save(path / "tokenizer.json")
    return path


@contextlib.contextmanager
def bounded(mebibytes=24, seconds=60):
    """Fails where Python's own memory grows by more, or where the work does not end: nothing here takes a second."""

    def stop(*_):
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes * MIB
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(use, *arguments, within=24):
    """The one line with which it is refused."""
    with bounded(within), pytest.raises(UserError) as error:
        use(*arguments)
    line = str(error.value)
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 1000
    return line


class Payload:
    """Unpickled, it leaves a mark."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def pickled(kind):
    if kind == "pickle":
        return pickle.dumps(Payload())
    file = io.BytesIO()
    save = np.savez if kind == "npz" else np.save
    save(file, np.array([Payload()], object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["pickle", "npy", "npz"])
@pytest.mark.parametrize("part", ["run.json", "tokenizer.json", "model.safetensors", "heads/one.json", "settings.toml"])
def test_a_pickle_in_place_of_any_file_is_refused_and_not_run(run, kind, part, monkeypatch):
    monkeypatch.chdir(run.parent)
    (run / "heads").mkdir()
    (run / part).write_bytes(pickled(kind))
    use = {"heads/one.json": read_result, "settings.toml": read_settings}.get(part)
    assert part in refused(use or load, run / part if use else run)
    assert not Path("unpickled").exists()


# Weights


def safetensors(changes=None, *, metadata=None, data=None, header=None, size=None):
    """A file of the weights by hand, entries of its header changed; a change of None leaves one out."""
    entries, raw = {}, b""
    for name, array in ARRAYS.items():
        entries[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(raw), len(raw) + array.nbytes],
        }
        raw += array.tobytes()
    for name, change in (changes or {}).items():
        entries[name] = None if change is None else {**entries.get(name, {}), **change}
    entries = {name: entry for name, entry in entries.items() if entry is not None}
    if metadata is not None:
        entries["__metadata__"] = metadata
    text = json.dumps(entries).encode() if header is None else header
    return struct.pack("<Q", len(text) if size is None else size) + text + (raw if data is None else data)


END = sum(array.nbytes for array in ARRAYS.values())
WEIGHTS = {
    "empty": b"",
    "seven bytes": b"\x01" * 7,
    "no header": safetensors(header=b"", size=0, data=b""),
    "a header of 100 MB": safetensors(size=10**8),
    "a header of 2^64 - 1": safetensors(size=2**64 - 1),
    "a header of 2^63": safetensors(size=2**63),
    "a header longer than the file": safetensors(size=10**5),
    "no JSON": safetensors(header=b"{" * 100),
    "nested": safetensors(header=b'{"a":' * 10**5),
    "a list": safetensors(header=b"[]"),
    "two of one name": safetensors(header=b'{"lnfb":{},"lnfb":{}}'),
    "truncated": safetensors()[:-10],
    "longer than it says": safetensors() + b"more",
    "no data": safetensors(data=b""),
    "overlapping": safetensors({"lnfb": {"data_offsets": [0, 16]}, "lnfg": {"data_offsets": [0, 16]}}),
    "negative offsets": safetensors({"lnfb": {"data_offsets": [-16, 0]}}),
    "backward offsets": safetensors({"lnfb": {"data_offsets": [16, 0]}}),
    "offsets past the end": safetensors({"lnfb": {"data_offsets": [10**9, 10**9 + 16]}}),
    "offsets past 2^64": safetensors({"lnfb": {"data_offsets": [2**64, 2**64 + 16]}}),
    "a shape whose product overflows": safetensors({"lnfb": {"shape": [2**33, 2**33]}}),
    "a negative shape": safetensors({"lnfb": {"shape": [-4]}}),
    "another shape": safetensors({"lnfb": {"shape": [2, 2]}}),
    "no shape": safetensors({"lnfb": {"shape": None}}),
    "float64": safetensors({"lnfb": {"dtype": "F64", "shape": [2]}}),
    "bfloat16": safetensors({"lnfb": {"dtype": "BF16", "shape": [8]}}),
    "bfloat16 of the same shape": safetensors({"tok_emb": {"dtype": "BF16"}}),
    "int32": safetensors({"lnfb": {"dtype": "I32"}}),
    "an unknown dtype": safetensors({"lnfb": {"dtype": "X9"}}),
    "one missing": safetensors({"tok_emb": None}),
    "one more": safetensors({"more": {"dtype": "F32", "shape": [1], "data_offsets": [END, END + 4]}}, data=b"\0" * 4),
    "metadata that is a list": safetensors(metadata=[1]),
    "a name like a path": safetensors(
        {"../../x": {"dtype": "F32", "shape": [1], "data_offsets": [END, END + 4]}},
        data=b"".join(a.tobytes() for a in ARRAYS.values()) + b"\0" * 4,
    ),
}


def test_the_file_made_by_hand_is_whole(run):
    (run / "model.safetensors").write_bytes(safetensors(metadata={"step": "7"}))
    jax.tree.map(np.testing.assert_array_equal, load(run).params, PARAMS)
    assert weights_step(run / "model.safetensors") == 7


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weights_file_that_is_not_what_it_says_is_refused(run, name):
    (run / "model.safetensors").write_bytes(WEIGHTS[name])
    assert "model.safetensors" in refused(load, run)


def test_a_weights_file_of_as_many_names_as_are_read_is_refused_too(run):
    entry = '"%07d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(entry % i for i in range(MOST_HEADER // 63)) + "}").encode()
    assert len(header) > 0.9 * MOST_HEADER
    (run / "model.safetensors").write_bytes(safetensors(header=header, data=b""))
    assert "lacks 'blocks.W1'" in refused(load, run, within=96)


def test_a_weights_file_of_a_hundred_gigabytes_is_not_read(run):
    with (run / "model.safetensors").open("r+b") as file:
        file.truncate(100 * 2**30)  # of which nothing lies on the disk
    assert "cannot be read" in refused(load, run)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_said_to_be(run, value):
    wrong = ARRAYS["lnfb"].copy()
    wrong[1] = value
    write_weights(run / "model.safetensors", {**PARAMS, "lnfb": wrong})
    assert "lnfb has 1 of 4 numbers that are not finite: train it again" in refused(load, run)


@pytest.mark.parametrize("step", ["abc", "", "-1", "1.5", "9" * 5000, "٣", "1\n", "<b>"])
def test_a_step_that_is_none_is_refused(run, step):
    (run / "model.safetensors").write_bytes(safetensors(metadata={"step": step}))
    assert "must be a whole number" in refused(weights_step, run / "model.safetensors")
    load(run)  # which does not ask


# Documents


DOCUMENTS = {
    "empty": b"",
    "a mark alone": b"\xef\xbb\xbf",
    "UTF-16": '{"format": 4}'.encode("utf-16"),
    "no UTF-8": b'{"a": "\xff"}',
    "NUL": b"\0" * 1000,
    "cut off": b'{"format": 4, "config": {',
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "nested lists": b"[" * 10**5,
    "nested objects": b'{"a":' * 10**5,
    "nested and closed": b'{"format": 4, "config": {}, "a": ' + b"[" * 300 + b"]" * 300 + b"}",
    "many objects": b"[" + b"[]," * (MOST_SETTINGS // 4) + b"[]]",
    "a key twice": b'{"format": 4, "format": 3, "config": {}}',
    "a key twice inside": b'{"format": 4, "config": {"steps": 1, "steps": 2}}',
    "5,000 digits": b'{"format": 4, "config": {"steps": ' + b"9" * 5000 + b"}}",
    "4,000 digits": b'{"format": 4, "config": {"steps": ' + b"9" * 4000 + b"}}",
    "another format": b'{"format": 99, "config": {}}',
    "a format of 4,000 digits": b'{"format": ' + b"9" * 4000 + b', "config": {}}',
    "a format that is no number": b'{"format": [4], "config": {}}',
    "a format that is true": b'{"format": true, "config": {}}',
    "no settings": b'{"format": 4, "config": []}',
    "markup": b'{"format": 4, "config": {"<script>\\u001b[31m\\n": 1}}',
    "a name of a megabyte": b'{"format": 4, "config": {"' + b"a" * MIB + b'": 1}}',
    "a value of a megabyte": b'{"format": 4, "config": {"steps": "' + b"a" * MIB + b'"}}',
    "NaN": b'{"format": 4, "config": {"learning_rate": NaN}}',
    "Infinity": b'{"format": 4, "config": {"learning_rate": Infinity}}',
    "1e999": b'{"format": 4, "config": {"learning_rate": 1e999}}',
    "a name with NUL": b'{"format": 4, "config": {"data": ["a\\u0000b"]}}',
    "half a surrogate pair": b'{"format": 4, "config": {"tokenizer": "\\ud800"}}',
    "heads without end": b'{"format": 4, "config": {"model": {"n_embd": 1024, "n_head": 1024, "n_layer": 1, '
    b'"heads": [' + b"1024," * 10**5 + b"1]}}}",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_record_that_makes_no_sense_is_refused(run, name):
    (run / "run.json").write_bytes(DOCUMENTS[name])
    assert "run.json" in refused(load, run, within=100)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_saved_result_that_is_none_is_refused(tmp_path, name):
    (tmp_path / "one.json").write_bytes(DOCUMENTS[name])
    assert "one.json" in refused(read_result, tmp_path / "one.json", within=200)


def read_toml(file):
    return check(override(TrainConfig(), read_settings(file), str(file)))


@pytest.mark.parametrize("ending", ["json", "toml"])
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if "format" not in name])
def test_a_file_of_settings_that_are_none_is_refused(tmp_path, name, ending):
    if ending == "toml" and name in ("empty", "a mark alone"):
        return  # which are settings, of nothing
    file = tmp_path / f"one.{ending}"
    file.write_bytes(DOCUMENTS[name])
    refused(read_toml, file, within=100)


@pytest.mark.parametrize("size", [MOST_SETTINGS + 1, 10**8])
def test_a_file_that_is_too_large_is_refused_unread(run, size):
    for file, use, where in (
        (run / "run.json", load, run),
        (run / "settings.json", read_settings, run / "settings.json"),
        (run / "settings.toml", read_settings, run / "settings.toml"),
        (run / "heads.json", read_result, run / "heads.json"),
    ):
        file.touch()
        os.truncate(file, size)
        assert "MiB" in refused(use, where, within=80) or use is read_result


def test_settings_may_come_through_a_pipe_and_end_there(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["steps = 7"])
    writer.start()
    assert read_settings(pipe) == {"steps": 7}
    writer.join(60)
    assert "it is larger than" in refused(read_settings, "/dev/zero")


TOML = {
    "a table of many names": "[" + ".".join("a" * 8000) + "]\n" + "".join(f"k{i}=1\n" for i in range(2000)),
    "nested lists": "a = " + "[" * 10**5,
    "nested tables": "a = " + "{a=" * 10**4,
    "a key of many names": ".".join("a" * 10**5) + " = 1",
    "an inner key of many names": f"a = {{b = 1, {'.'.join('a' * 10**5)} = 1}}",
    "many quoted names": "[[ " + " . ".join(['"a\\"b. "', "'c.'"] * 4000) + "]]\n" + "k=1\n" * 2000,
    "5,000 digits": f"steps = {'9' * 5000}",
    "a million digits in base sixteen": f"steps = 0x{'f' * 10**6}",
    "a key twice": "steps = 1\nsteps = 2",
    "nan": "learning_rate = nan",
    "inf": "learning_rate = inf",
    "YAML": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "a date": "steps = 1979-05-27",
}


@pytest.mark.parametrize("name", TOML)
def test_toml_that_makes_no_sense_is_refused(tmp_path, name):
    (tmp_path / "one.toml").write_text(TOML[name])
    refused(read_toml, tmp_path / "one.toml", within=100)


def test_documents_at_the_bounds_are_read():
    assert parse_json(b"[" * 50 + b"]" * 50)
    assert len(parse_json(b"[" + b"[]," * (10**5) + b"[]]")) == 10**5 + 1
    assert MOST_TABLES > 10**5
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert parse_toml(b"\xef\xbb\xbfa = 1\r\n[model]\r\nb = 2\r\n") == {"a": 1, "model": {"b": 2}}
    text = f"data = ['{'.'.join('a' * 30)}']\nb = 1.5\n[{'.'.join('a' * 9)}]\n" + "#\n" * (MOST_TOML // 3)
    assert parse_toml(text.encode())["b"] == 1.5


# Settings: any value in any field, from a file and from Python


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([2**31, 2**32, 2**63, 10**400, -1, 0, 1])
    | st.floats(allow_nan=True) | st.text(max_size=8) | st.sampled_from(["", "\0", "\ud800", "<b>", "../../x", "gelu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.sampled_from(
    [
        object(), np.float32("nan"), np.int64(3), np.bool_(True), np.zeros(3), np.zeros((2, 2)), np.array("a"),
        b"bytes", Path("a"), Path("a\0"), {1, 2}, range(3), 1j, 0x10 ** 5000, int, len, [[]], ((0,),),
        np.str_("gelu"), iter([]),
    ]
)  # fmt: skip
FIELDS = [(kind, f.name) for kind in (GPTConfig, TrainConfig, SampleConfig) for f in dataclasses.fields(kind)]


def one_line(check_it):
    """What it gives, or None where it is refused, in one line."""
    try:
        return check_it()
    except UserError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 2000
    return None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize(("kind", "name"), FIELDS)
@given(value=VALUES | OBJECTS)
def test_any_value_in_any_field_checks_or_gets_one_line(kind, name, value):
    made = one_line(lambda: check(dataclasses.replace(kind(), **{name: value})))
    if made is not None:
        hash(made)
        assert check(made) == made
        json.dumps(dataclasses.asdict(made))  # plain data: no number of NumPy is left


@settings(max_examples=300)
@given(value=VALUES, field=st.sampled_from([(kind, name) for kind, name in FIELDS if kind is not SampleConfig]))
def test_any_value_in_any_field_of_a_file_checks_or_gets_one_line(value, field):
    kind, name = field
    document = {"model": {name: value}} if kind is GPTConfig else {name: value}
    text = json.dumps(document).encode()
    made = one_line(lambda: check(override(TrainConfig(), json.loads(text), "file")))
    if made is not None:
        hash(made)


RECORDS = VALUES | st.fixed_dictionaries(
    {"format": st.integers(0, 5) | VALUES},
    optional={"config": VALUES | st.fixed_dictionaries({"model": VALUES, "steps": VALUES}), "pruned": VALUES},
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=RECORDS)
def test_any_document_as_a_record_is_read_or_gets_one_line(run, document):
    (run / "run.json").write_text(json.dumps(document))
    for use in (read_config, load):
        one_line(lambda use=use: use(run))


def test_numbers_of_numpy_are_taken_as_pythons():
    cfg = check(TrainConfig(model=GPTConfig(n_layer=np.int32(2), tied=np.bool_(False)), learning_rate=np.float32(0.5)))
    assert (type(cfg.model.n_layer), cfg.model.tied, type(cfg.learning_rate)) == (int, False, float)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TrainConfig(out=None), "out is None: must be text"),
        (TrainConfig(tokenizer=5), "tokenizer is 5: must be text"),
        (GPTConfig(tied="yes"), "tied is 'yes': must be True or False"),
        (GPTConfig(residual=None), "residual is None: must be True or False"),
        (SampleConfig(cache=None), "cache is None: must be True or False"),
        (SampleConfig(stop=5), "stop is 5: must be text, or a list of texts"),
        (TrainConfig(tensorboard=1), "tensorboard is 1: must be True or False"),
        (TrainConfig(data=("a\0",)), r"data is 'a\x00': no file can have this name"),
        (GPTConfig(n_layer=1025), "n_layer is 1025: must be below 1025"),
        (GPTConfig(block_size=10**8), "block_size is 100000000: must be below 1048577"),
    ],
)
def test_a_wrong_type_is_named(settings, said):
    assert said in refused(check, settings)


@pytest.mark.parametrize("n_head", [3, 512, 1023])
@pytest.mark.parametrize("n_embd", [2**31 - 1, 2**31 - 2, 2**30 - 35])
def test_the_remedy_for_heads_that_do_not_divide_is_cheap_and_right(n_head, n_embd):
    if n_embd % n_head:
        line = refused(check, GPTConfig(n_layer=1, n_head=n_head, n_embd=n_embd), within=4)
        assert n_embd % int(line.partition("try n_head=")[2].partition(" ")[0]) == 0


def test_everything_in_a_record_is_bounded_before_anything_is_made(run):
    record = json.loads((run / "run.json").read_text())
    for changes in (
        {"block_size": 10**9, "positions": "rope"}, {"n_embd": 2**31 - 1},
        {"n_layer": 2**31 - 1}, {"n_head": 2**31 - 1}, {"n_layer": 2**10, "n_embd": 2**20}, {"vocab_size": 2**31 - 1},
        {"block_size": 2**20, "n_embd": 2**16, "positions": "sinusoidal"}, {"mlp_ratio": 1000.0, "n_embd": 2**30},
        {"vocab_size": 5, "vocab_multiple": 2**31 - 1},
    ):  # fmt: skip
        model = {**record["config"]["model"], **changes}
        (run / "run.json").write_text(json.dumps({**record, "config": {**record["config"], "model": model}}))
        refused(load, run)


# Out of the run


OUTSIDE = ("model.safetensors", "tokenizer.json", "run.json", "report.html", "heads", "plots", "heads/one.json")


@pytest.mark.parametrize("part", [*OUTSIDE, *MOVABLE, "checkpoints/9"])
@pytest.mark.parametrize("to", ["mine", "../../mine", "absolute"])
def test_a_link_out_of_the_run_is_refused_and_what_it_leads_to_left_alone(run, tmp_path, part, to):
    mine = tmp_path / "mine" if to != "mine" else run.parent / "mine"
    inside = run / part
    if inside.exists():
        inside.rename(mine)
    elif "." in part:
        mine.write_text("{}")
    else:
        mine.mkdir()
    before = mine.read_bytes() if mine.is_file() else sorted(mine.iterdir())
    inside.parent.mkdir(exist_ok=True)
    inside.symlink_to(mine if to == "absolute" else os.path.relpath(mine, inside.parent))
    for use in (load, read_config, report_page, lambda run: report(run=run, measure=False)):
        assert "is a link that leads out of the run" in refused(use, run)
    assert before == (mine.read_bytes() if mine.is_file() else sorted(mine.iterdir()))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_figure_beside_a_result_is_not_drawn_through_a_link(run, tmp_path, ending):
    results(2)["heads"].save(run / "heads" / "one")
    (tmp_path / "mine").write_text("mine")
    (run / "heads" / f"one.{ending}").symlink_to(tmp_path / "mine")
    assert "is a link that leads out" in refused(draw_file, run / "heads" / "one.json")
    assert (tmp_path / "mine").read_text() == "mine"


def test_links_inside_a_run_and_of_bulky_parts_are_followed(run, tmp_path):
    (run / "weights").mkdir()
    (run / "model.safetensors").rename(run / "weights" / "best")
    (run / "model.safetensors").symlink_to("weights/best")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    for name in ("checkpoints", "metrics.jsonl"):
        (run / name).symlink_to(tmp_path / name)
    (run / "notes").symlink_to("/etc")  # no part of a run
    (tmp_path / "latest").symlink_to(run)
    load(tmp_path / "latest")
    assert read_metrics(run) == [{"step": 1}]


@pytest.mark.parametrize("part", ["run.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "samples.txt"])
def test_a_pipe_in_place_of_a_part_keeps_nobody_waiting(run, part):
    (run / part).unlink(missing_ok=True)
    os.mkfifo(run / part)
    (run / "heads").mkdir()
    os.mkfifo(run / "heads" / "one.json")
    with bounded():
        if part.endswith(".json"):
            refused(load, run) if part == "run.json" else None
        if part != "run.json":
            assert "no plain file" in Page(report_page(run)).text
        refused(read_metrics, run)


def test_a_record_names_no_place_to_write_to(run):
    record = json.loads((run / "run.json").read_text())
    record["config"]["out"] = "/etc/cron.d"
    (run / "run.json").write_text(json.dumps(record))
    assert read_config(run).out == ""
    assert "out" not in read_settings(run / "run.json")


# Markup


def marked(value, markup):
    """The same document with markup as every text and in every key that is free."""
    if isinstance(value, dict):
        return {name: marked(one, markup) for name, one in value.items()}
    if isinstance(value, list):
        return [marked(one, markup) for one in value]
    return markup if isinstance(value, str) else value


@pytest.mark.parametrize(
    "markup", ["</style><script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "\ud800\x1b[2J"]
)
def test_nothing_of_theirs_runs_in_the_report(run, markup, monkeypatch):
    from tests.reporting.test_report import loads
    from tinygpt_jax.reporting import report as page

    monkeypatch.setattr(page, "_picture", lambda result: page.Picture(b"l", b"d", markup))
    record = json.loads((run / "run.json").read_text())
    names = ("text_sha256", "tokenizer_sha256", "device", "train_tokens", "val_tokens", markup)
    facts = {**dict.fromkeys(names, markup), "versions": {markup: markup}}
    free = {"data": [markup], "include": [markup], "exclude": [markup], "tokenizer": markup}
    free = {} if "\ud800" in markup else free  # no name of a file, and refused as such
    (run / "run.json").write_text(json.dumps({**record, **facts, "config": {**record["config"], **free}}))
    (run / "samples.txt").write_text(f"--- step 1 ---\n{markup}\n", errors="replace")
    line = {"step": 1, "val_loss": 1.0, "loss": markup, "tokens_per_second": markup, markup: markup}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(markup) + "\n")
    for kind in ("heads", "lens", "scores"):
        document = results(2)[kind].to_json()
        (run / "heads").mkdir(exist_ok=True)
        kept = {"kind": document["kind"]}
        (run / "heads" / f"{kind}.json").write_text(json.dumps({**marked(document, markup), **kept}))
    html = report_page(run)
    html.encode()
    assert loads(html) == []
    assert "\x1b" not in html
    assert "script" not in {name for name, _ in Page(html).tags}


def test_every_part_of_a_run_is_looked_at_for_links(run):
    assert {*OUTSIDE, *MOVABLE} >= {*PARTS}
    read_record(run)
    jax.tree.map(np.testing.assert_array_equal, read_weights(run / "model.safetensors", CFG), PARAMS)
