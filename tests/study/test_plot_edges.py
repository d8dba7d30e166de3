"""What `tinygpt plot` refuses, and what it does where a folder, a library or a saved result fails it: of a run made by
hand, so that nothing has to be compiled."""

import dataclasses
import json
import shutil
import sys

import jax
import numpy as np
import pytest

from tests.figures.made import results
from tinygpt_jax import cli
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.lab.result import model_fingerprint
from tinygpt_jax.params import init_params
from tinygpt_jax.runs import load, write_record, write_weights
from tinygpt_jax.study import plot as plotting
from tinygpt_jax.study.findings import open_text
from tinygpt_jax.study.heads import readings
from tinygpt_jax.study.options import HeadsOptions
from tinygpt_jax.text import char_tokenizer


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (tmp_path / "text.txt").write_text("the cat " * 60)
    tokenizer = char_tokenizer("the cat ")
    model = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=4, n_layer=2, n_head=2, n_embd=8)
    write_record(path, TrainConfig(model=model, data=(str(tmp_path / "text.txt"),), steps=5, warmup_steps=1), {})
    write_weights(path / "model.safetensors", init_params(jax.random.key(0), model), 5)
    tokenizer.save(path / "tokenizer.json")
    (path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    return path


def plot(capsys, *args):
    capsys.readouterr()
    code = cli.main(["plot", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "the \u03a9"], "does not know"),
        (["--data", "no-such-text"], "no-such-text"),
        (["--windows", "1"], "windows is 1: an error needs two"),
        (["--out", "FILE"], "that is a file; name a folder"),
    ],
)
def test_what_cannot_be_had_as_it_was_asked_is_refused_before_anything_is_drawn(run, capsys, flags, message):
    before = sorted(run.rglob("*"))
    code, out, err = plot(capsys, run, *[str(run / "run.json") if flag == "FILE" else flag for flag in flags])
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert sorted(run.rglob("*")) == before


def test_without_matplotlib_figures_that_are_there_stay(run, capsys, monkeypatch):
    (run / "plots").mkdir()
    (run / "plots" / "training.png").write_bytes(b"earlier")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = plot(capsys, run)
    assert (code, out) == (1, "")
    assert err == "tinygpt plot: figures need matplotlib, which is missing: pip install matplotlib\n"
    assert (run / "plots" / "training.png").read_bytes() == b"earlier"
    assert cli.main(["report", str(run)]) == 0
    assert "not measured: figures need matplotlib" in capsys.readouterr().err
    assert (run / "report.html").is_file()


def test_a_run_that_cannot_be_written_still_has_a_report_elsewhere(run, tmp_path, capsys):
    (run / "plots").write_text("in the way of a folder")
    assert cli.main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert f"not measured: cannot write {run / 'plots'}" in capsys.readouterr().err
    assert (tmp_path / "page.html").is_file()
    code, _, err = plot(capsys, run)
    assert code == 1
    assert f"cannot write {run / 'plots'}" in err


def test_figures_of_one_name_from_different_folders_are_all_kept(tmp_path, capsys):
    made, out = results(2), tmp_path / "out"
    files = [made["layers"].save(tmp_path / folder / "one")[0] for folder in ("a", "b")]
    files.append(made["layers"].save(tmp_path / "b" / "two")[0])
    code, printed, err = plot(capsys, *files, "--out", out)
    assert code == 0, err
    assert printed.split() == [str(out / f"{name}.png") for name in ("a-one", "b-one", "two")]
    code, printed, err = plot(capsys, *files, files[0], "--out", out)
    assert (code, printed) == (1, "")
    assert "a-one" in err
    assert len(err.splitlines()) == 1


def test_a_run_drawn_elsewhere_has_its_folders_there(run, tmp_path, capsys, monkeypatch):
    made = results(2)["layers"]
    monkeypatch.setattr(plotting, "pieces", lambda source: {"attention": lambda: made})
    monkeypatch.setattr(plotting.Source, "examples", None)
    monkeypatch.setattr(plotting, "readings", lambda subject: {"attention": lambda: made})
    monkeypatch.setattr(plotting, "effects", lambda *args: {"heads": lambda: made})
    other = shutil.copytree(run, tmp_path / "other")
    names = ["plots/attention", "heads/attention", "heads/heads"]
    code, printed, err = plot(capsys, run, "--out", tmp_path / "out")
    assert code == 0, err
    assert printed.split() == [str(tmp_path / "out" / f"{name}.png") for name in names]
    printed = plot(capsys, run, other, "--out", tmp_path / "out")[1]
    both = [f"{folder}/{name}" for folder in ("run", "other") for name in names]
    assert printed.split() == [str(tmp_path / "out" / f"{name}.png") for name in both]


def test_a_saved_result_that_cannot_be_drawn_stops_no_other(run, capsys, monkeypatch):
    made, model = results(2), load(run)
    own = model_fingerprint(model.params, model.cfg)
    definition = dataclasses.replace(made["paths"].definition, model=own)
    nowhere = np.full_like(made["paths"].effect, np.nan)
    dataclasses.replace(made["paths"], definition=definition, effect=nowhere).save(run / "heads" / "a")
    dataclasses.replace(made["norm"], definition=definition, tokens=("x",)).save(run / "heads" / "b")
    dataclasses.replace(made["layers"], definition=definition).save(run / "heads" / "c")
    made["over training"].save(run / "heads" / "d")  # whose last weights need not be the best
    made["layers"].save(run / "heads" / "e")
    monkeypatch.setattr(plotting, "pieces", lambda source: {})
    monkeypatch.setattr(plotting.Source, "examples", None)
    monkeypatch.setattr(plotting, "readings", lambda subject: {"f": lambda: made["layers"]})
    monkeypatch.setattr(plotting, "effects", lambda *args: {"g": lambda: made["layers"]})
    code, out, err = plot(capsys, run)
    assert code == 0, err
    assert out.split() == [str(run / "heads" / f"{name}.png") for name in "cdfg"]
    assert "no a: there is no path" in err
    assert "no b: " in err
    assert "no e: it was measured on other weights" in err


def test_attention_of_a_window_is_drawn_of_as_many_tokens_as_its_files_can_hold(run, monkeypatch):
    def lengths(most):
        said = []
        monkeypatch.setattr("tinygpt_jax.study.heads.MOST_ATTENTION", most)
        subject = open_text(HeadsOptions(run, data=str(run.parent / "text.txt"), figures=False, tell=said.append))
        return len(readings(subject, "the cat the")["attention"]().tokens), " ".join(said)

    size, said = lengths(2**20)
    assert size == 4
    assert "attention is drawn" not in said
    size, said = lengths(4 * 3**2 + 1)
    assert size == 3
    assert "attention is drawn for 3 tokens" in said
