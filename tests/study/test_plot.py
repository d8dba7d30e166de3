"""`tinygpt plot` of a run: every figure, from whatever the run directory still holds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tinygpt_jax import cli
from tinygpt_jax.lab.analyses import ABLATED, ANALYSES
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.lens import AttentionMaps
from tinygpt_jax.runs import read_weights, write_weights

TEXT = "the cat\tsat <on> the mat & the dog \U0001f99c sat\non the log. $x$ " * 60
TOY = ["--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--block-size", "16", "--sample-every", "0", "--steps", "6"]
PIECES = {
    "training", "positions", "norm", "head-split", "attention", "activation", "mlp-widths", "residual-writes",
    "next-tokens", "embedding",
}  # fmt: skip
LAB = {"scores-repeats", "scores-text", "lens", "attribution", "attention", "heads-mean-loss-windows4"}
ENDINGS = ("json", "csv", "png", "svg")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained toy, of a text whose tokens are hard to show."""
    folder = tmp_path_factory.mktemp("illustrated")
    (folder / "text.txt").write_text(TEXT)
    flags = ["--warmup-steps", "1", "--eval-every", "3", "--positions", "learned"]
    assert cli.main(["train", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), *TOY, *flags]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def drawn(run):
    """The same run, all of it drawn."""
    assert cli.main(["plot", str(run), "--windows", "4"]) == 0
    return run


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("plots", "heads", "checkpoints"))


def plot(capsys, *args):
    capsys.readouterr()
    code = cli.main(["plot", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_of_analyses_names_what_the_verbs_save():
    for folder, names in (("plots", PIECES), ("heads", {name.removesuffix("-windows4") for name in LAB})):
        assert {one.name for one in ANALYSES if one.folder == folder} == names


def test_one_command_makes_every_figure_and_its_data(drawn):
    for folder, names in (("plots", PIECES), ("heads", LAB)):
        assert {file.name for file in (drawn / folder).iterdir()} == {f"{n}.{e}" for n in names for e in ENDINGS}
        for name in names:
            csv = (drawn / folder / f"{name}.csv").read_text()
            rows = [line for line in csv.splitlines() if not line.startswith("#")]
            assert len(rows) > 1, name
            assert (drawn / folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_figures_are_drawn_anew_from_what_is_saved_without_the_model(drawn, capsys, tmp_path):
    saved = [drawn / "plots" / f"{name}.json" for name in sorted(PIECES)] + [drawn / "heads" / "lens.json"]
    shutil.copytree(drawn / "plots", tmp_path / "plots")
    code, out, err = plot(capsys, *saved, "--out", tmp_path / "again")
    assert code == 0, err
    for file in saved:
        assert (tmp_path / "again" / f"{file.stem}.svg").read_bytes() == file.with_suffix(".svg").read_bytes(), file
    assert out.split() == [str(tmp_path / "again" / f"{file.stem}.png") for file in saved]


def test_the_attention_of_a_text_has_every_token_beside_it(drawn):
    maps = read_result(drawn / "plots" / "attention.json")
    assert isinstance(maps, AttentionMaps)
    svg = (drawn / "plots" / "attention.svg").read_text()
    assert len(maps.tokens) == maps.patterns.shape[-1] == 16
    assert svg.startswith("<?xml")


def test_what_a_run_lacks_is_told_and_the_rest_is_drawn(copy, capsys):
    (copy / "model.safetensors").unlink()
    code, out, err = plot(capsys, copy, "--windows", "4")
    assert code == 0
    assert {file.name for file in (copy / "plots").iterdir()} == {f"training.{e}" for e in ENDINGS}
    for name in sorted(PIECES - {"training"}):
        assert f"no {name}: {copy} has no model.safetensors: it is not a whole run" in err
    assert "no head lab: " in err
    assert out == f"{copy / 'plots' / 'training.png'}\n"
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "loss": null}\n{"step": 8, "lo')
    assert plot(capsys, copy)[0] == 0
    assert np.isnan(read_result(copy / "plots" / "training.json").loss[-1])
    (copy / "metrics.jsonl").unlink()
    code, out, err = plot(capsys, copy)
    assert (code, out) == (1, "")
    assert f"no training: {copy / 'metrics.jsonl'} cannot be read" in err
    assert (
        err.strip().splitlines()[-1]
        == f"tinygpt plot: nothing of {copy} can be drawn: train it first, with tinygpt train"
    )


def test_an_empty_or_missing_run_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    for args, message in (
        ([tmp_path / "empty"], "has no run.json: it is not a whole run"),
        ([tmp_path / "gone"], f"{tmp_path / 'gone'} does not exist: name a run directory, or a JSON file"),
    ):
        code, out, err = plot(capsys, *args)
        assert (code, out) == (1, "")
        assert message in err
        assert len(err.splitlines()) == 1
    monkeypatch.chdir(tmp_path)
    code, out, err = plot(capsys)
    assert (code, out) == (1, "")
    assert "no run under runs/" in err
    assert not (tmp_path / "empty" / "plots").exists()


@pytest.mark.slow
def test_results_of_other_weights_are_not_drawn_as_these(drawn, capsys, tmp_path):
    copy = shutil.copytree(drawn, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    for file in (copy / "heads").iterdir():
        if not file.name.startswith("heads-mean-loss"):
            file.unlink()
    (copy / "heads" / "half.json").write_text('{"kind": "Ablation"')
    config = json.loads((copy / "run.json").read_text())["config"]["model"]
    from tinygpt_jax.config import GPTConfig

    params = read_weights(copy / "model.safetensors", cfg := GPTConfig(**config))
    write_weights(copy / "model.safetensors", params | {"lnfg": params["lnfg"] * 2})
    before = read_result(copy / "heads" / "heads-mean-loss-windows4.json")
    code, _, err = plot(capsys, copy, "--windows", "4")
    assert code == 0
    assert cfg.n_layer == 2
    assert "no heads-mean-loss-windows4: it was measured on other weights" in err
    assert "no half: " in err
    after = read_result(copy / "heads" / "heads-mean-loss-windows4.json")
    assert after.definition.model != before.definition.model


@pytest.mark.slow
def test_everything_the_head_lab_can_measure(copy, capsys):
    code, _, err = plot(capsys, copy, "--windows", "8", "--lab", "--theme", "dark")
    assert code == 0, err
    names = {file.stem for file in (copy / "heads").glob("*.png")}
    assert names >= {f"{family}-mean-loss-windows8" for family in ABLATED}
