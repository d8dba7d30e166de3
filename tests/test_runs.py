"""Reading a run back: whole runs load, all others say in one line what is wrong with them."""

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import check_params, init_params
from tinygpt_jax.runs import (
    RECORD,
    load,
    load_whole,
    newest_run,
    read_config,
    run_line,
    weights_step,
    write_record,
    write_weights,
)
from tinygpt_jax.text import char_tokenizer

CFG = GPTConfig(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4)
PARAMS = init_params(jax.random.key(0), CFG)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / "one"
    path.mkdir(parents=True)
    write_record(path, TrainConfig(model=CFG), {"text_sha256": "x"})
    write_weights(path / "model.safetensors", PARAMS)
    char_tokenizer("abcde").save(path / "tokenizer.json")
    return path


def test_a_model_comes_back_bit_for_bit(run):
    model = load(run)
    assert model.cfg == CFG
    assert model.tokenizer.vocab_size == 5
    assert jax.tree.structure(model.params) == jax.tree.structure(PARAMS)
    jax.tree.map(np.testing.assert_array_equal, model.params, PARAMS)
    assert read_config(run) == TrainConfig(model=CFG)


@pytest.mark.parametrize("heads", [((0,),), ((),)])
def test_a_pruned_model_comes_back_bit_for_bit(run, heads):
    cfg = dataclasses.replace(CFG, heads=heads)
    params = init_params(jax.random.key(0), cfg)
    write_record(run, TrainConfig(model=cfg), {})
    with pytest.raises(UserError, match="lacks 'blocks.0.W1'"):
        load(run)
    write_weights(run / "model.safetensors", params)
    model = load(run)
    assert model.cfg == cfg
    assert jax.tree.structure(model.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    opened = load_whole(run)
    assert opened.cfg == CFG
    check_params(opened.params, CFG)


def test_a_pruned_run_of_older_code_is_read(run):
    """It counted the heads in its settings, said under `pruned` which they were, and kept arrays that are empty."""
    cfg = dataclasses.replace(CFG, n_head=2, heads=((1,),))
    kept = [[int(head) for head in layer] for layer in cfg.heads]
    write_record(run, TrainConfig(model=cfg), {"pruned": {"kept": kept}})
    record = json.loads((run / "run.json").read_text())
    record["config"]["model"]["heads"] = [1]
    (run / "run.json").write_text(json.dumps(record))
    params = init_params(jax.random.key(0), cfg)
    write_weights(run / "model.safetensors", params | {"empty": np.zeros((16, 0), np.float32)})
    model = load(run)
    assert model.cfg == cfg
    jax.tree.map(np.testing.assert_array_equal, model.params, params)


def test_equal_weights_are_equal_files(run):
    files = [run / f"{i}.safetensors" for i in range(8)]
    for file in files:
        write_weights(file, PARAMS, step=7)
    assert len({file.read_bytes() for file in files}) == 1
    assert weights_step(files[0]) == 7


def test_the_weights_are_plain_safetensors(run):
    from safetensors.numpy import load_file

    arrays = load_file(run / "model.safetensors")
    np.testing.assert_array_equal(arrays["blocks.Wq"], PARAMS["blocks"]["Wq"])


@pytest.mark.parametrize("part", ["run.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_part_is_named(run, part):
    (run / part).unlink()
    with pytest.raises(UserError, match=f"has no {part}: it is not a whole run"):
        load(run)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("run.json", "{", "is not JSON"),
        ("run.json", "[]", "has format None, this version reads 4"),
        ("run.json", json.dumps({"format": 99, "config": {}}), "has format 99, this version reads 4"),
        ("run.json", json.dumps({"format": 1, "config": {"stpes": 1}}), "setting 'stpes' is unknown"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("model.safetensors", "garbage", "cannot be read"),
    ],
)
def test_a_damaged_part_is_named(run, part, content, message):
    (run / part).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load(run)
    assert "\n" not in str(error.value)
    assert part in str(error.value)


def test_a_cut_off_weights_file_is_refused(run):
    file = run / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match="cannot be read"):
        load(run)


def test_weights_of_another_architecture_are_refused(run):
    write_record(run, TrainConfig(model=GPTConfig(vocab_size=5, block_size=4, n_layer=2, n_head=1, n_embd=4)), {})
    with pytest.raises(UserError, match=r"model.safetensors: .* has shape"):
        load(run)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(run):
    char_tokenizer("abcdefg").save(run / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer has 7 tokens, its model 5"):
        load(run)


def test_a_missing_run_suggests_its_neighbour(run, monkeypatch):
    with pytest.raises(UserError, match=r"run .*onee does not exist; did you mean '.*one'\?"):
        load(run.parent / "onee")
    monkeypatch.chdir(run.parent.parent)
    with pytest.raises(UserError, match="run one does not exist; did you mean 'runs/one'"):
        load("one")


def test_the_newest_run_is_the_one_written_last(run, monkeypatch):
    shutil.copytree(run, run.parent / "two")
    write_weights(run.parent / "two" / "model.safetensors", PARAMS)
    assert newest_run(run.parent).name == "two"
    write_weights(run / "model.safetensors", PARAMS)
    assert newest_run(run.parent).name == "one"


def began(run, when, **facts):
    write_record(run, TrainConfig(model=CFG), {"began": when, **facts})
    return run


def test_the_newest_run_is_the_one_trained_last_and_no_copy_of_it(run):
    """A copy, or what was pruned from a run, says of itself what that says."""
    runs = run.parent
    began(run, 100.0)
    began(shutil.copytree(run, runs / "zero"), 99.0)
    for number, name in enumerate(("a-copy", "z-copy"), 1):
        os.utime(shutil.copytree(run, runs / name) / "model.safetensors", (2e9 + number, 2e9 + number))
    began(shutil.copytree(run, runs / "pruned"), 100.0, pruned={})
    assert newest_run(runs) == run
    began(runs / "z-copy", 101.0)  # as when it is trained on
    assert newest_run(runs).name == "z-copy"
    began(runs / "pruned", 102.0, pruned={})
    assert newest_run(runs).name == "pruned"


@pytest.mark.parametrize("part", ["run.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 100_000, b'{"format": 4, "config": {}, "began": 1e99'])
def test_a_run_that_is_not_whole_is_never_the_newest(run, part, content):
    half = shutil.copytree(began(run, 100.0), run.parent / "half")
    began(half, 200.0)
    (half / part).unlink()
    if content is not None and part == "run.json":
        (half / part).write_bytes(content)
    assert newest_run(run.parent) == run


@pytest.mark.parametrize("when", ["abc", None, [], {}, 10**400, True])
def test_a_time_that_makes_no_sense_stops_nothing(run, when):
    began(shutil.copytree(run, run.parent / "odd"), when)
    assert newest_run(run.parent).is_dir()


@pytest.mark.parametrize("step", ["abc", "9" * 5000, "-1", "1e3", "", "٣", "1" * 20])
def test_a_step_that_makes_no_sense_is_refused(run, step):
    file = run / "model.safetensors"
    write_weights(file, PARAMS, step)
    with pytest.raises(UserError, match="says that it is of step '.*': must be a whole number") as error:
        weights_step(file)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_the_step_of_a_damaged_file_is_one_line(run, content):
    (run / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        weights_step(run / "model.safetensors")


def test_a_tokenizer_with_its_ids_permuted_is_refused(run):
    right = char_tokenizer("abcde")
    write_record(run, TrainConfig(model=CFG), {"tokenizer_sha256": right.fingerprint})
    load(run)
    document = json.loads(right.to_json())
    vocab = document["model"]["vocab"]
    document["model"]["vocab"] = dict(zip(vocab, reversed(vocab.values()), strict=True))
    (run / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="is not the tokenizer the run was trained with: restore that one"):
        load(run)


def test_weights_that_were_never_trained_are_said(run):
    began(run, 1.0)
    assert "its weights are those it started from" in run_line(run, "no prompt")
    write_weights(run / "model.safetensors", PARAMS, step=5)
    assert run_line(run, "no prompt") == f"run {run}, no prompt"


def test_a_run_of_the_first_format_is_read(run):
    record = json.loads((run / RECORD).read_text())
    for name in ("remat", "attention", "loss_chunk", "heads"):  # settings it did not know
        del record["config"]["model"][name]
    (run / RECORD).write_text(json.dumps({**record, "format": 1}))
    assert read_config(run) == TrainConfig(model=CFG)
