"""`tinygpt patch`, on a run whose circuit was written by hand: it names the heads that are planted, on any task."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tinygpt_jax as tg
from tests.lab.planted import planted
from tinygpt_jax import cli
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.runs import WEIGHTS, write_weights

PARAMS, CFG, FACTS = planted(2, block_size=8, vocab_size=8)
SHAPE = ["--n-layer", "2", "--n-head", "2", "--n-embd", str(CFG.n_embd), "--block-size", "8", "--mlp-ratio", "0"]
KIND = ["--norm", "none", "--no-tied", "--positions", "learned", "--steps", "2", "--warmup-steps", "1"]
PLANTED = {f"{layer}.{head}" for layer, head in (FACTS.previous, FACTS.induction)}
TEXTS = ["--clean", "abcdabc", "--corrupted", "hgfeabc", "--answer", "d"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patched")
    (folder / "text.txt").write_text("abcdefgh" * 60)
    where = ["--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--sample-every", "0"]
    assert cli.main(["train", *where, *SHAPE, *KIND]) == 0
    write_weights(folder / "run" / WEIGHTS, PARAMS, 2)
    return folder / "run"


def document(capsys, *args):
    capsys.readouterr()
    code = cli.main(["patch", *map(str, args), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def named(effect):
    """Heads whose effect is a tenth of the largest, or more."""
    size = np.abs(np.array(effect, float))
    return {f"{layer}.{head}" for layer, head in np.argwhere(size > 0.1 * size.max())}


def test_repeats_name_the_planted_heads_and_their_path(run, capsys):
    flags = [run, "--of", "heads", "attribution", "paths", "--direction", "noise", "--examples", "16"]
    found = document(capsys, *flags)
    results = found["results"]
    names = [f"patch-{kind}-noise-loss-examples16" for kind in ("heads", "attribution", "paths")]
    assert list(results) == names
    assert named(found["effect"]) == PLANTED  # the first one's keys on top
    assert found["definition"]["direction"] == "noise"
    assert found["definition"]["examples"] == 16
    for name in names:
        assert {file.suffix for file in (run / "heads").glob(f"{name}.*")} == {".json", ".csv", ".png", ".svg"}
    again = tg.patch_run(run, direction="noise", examples=16, figures=False)
    saved = read_result(run / "heads" / f"{names[0]}.json")
    np.testing.assert_array_equal(again[names[0]].effect, saved.effect)
    paths = read_result(run / "heads" / f"{names[2]}.json")
    place = np.unravel_index(np.nan_to_num(np.abs(paths.effect)).argmax(), paths.effect.shape)
    ends = [f"{layer}.{head}" for layer, head in (FACTS.previous, FACTS.induction)]
    assert [paths.inputs[place[0]], paths.names[place[1]], paths.names[place[2]]] == ["k", *ends]


def test_a_pair_of_ones_own_has_no_error_and_says_so(run, capsys, tmp_path):
    out = ["--out", tmp_path, "--of", "heads", "positions", "attribution", "paths"]
    found = document(capsys, run, *TEXTS, *out)["results"]
    heads = next(one for name, one in found.items() if name.startswith("patch-heads-denoise-loss-texts"))
    assert named(heads["effect"]) == PLANTED
    assert np.shape(heads["per_example"]) == (2, 2, 1)
    assert heads["se"] == [[None, None], [None, None]]
    assert len(list(tmp_path.glob("*.png"))) == 4
    capsys.readouterr()
    assert cli.main(["patch", str(run), *TEXTS, "--out", str(tmp_path), "--no-figures"]) == 0
    assert "one example, so without an error" in capsys.readouterr().out


def test_pairs_have_errors_and_a_wrong_token(run, capsys, tmp_path):
    pairs = ["--clean", "abcdabc", "bcdebcd", "--corrupted", "hgfeabc", "ahgfbcd", "--answer", "d", "e"]
    flags = [*pairs, "--wrong", "a", "a", "--metric", "logit-diff", "--direction", "noise", "--out", tmp_path]
    (found,) = document(capsys, run, *flags, "--no-figures")["results"].values()
    assert named(found["effect"]) == PLANTED
    assert np.isfinite(np.array(found["se"], float)).all()
    assert min(found["baseline"]) > 10 > max(found["donor"])  # the clean run knows the answers


def test_the_run_patched_into_is_called_by_its_name(run, capsys, tmp_path):
    for direction, name in (("denoise", "corrupted run: "), ("noise", "clean run: ")):
        flags = ["--direction", direction, "--examples", "8", "--out", str(tmp_path), "--no-figures"]
        assert cli.main(["patch", str(run), *flags]) == 0
        assert f"  {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clean", "abc", "--answer", "d"], "texts are 1 clean, 0 corrupted, 1 answer: give each clean text"),
        (["--answer", "d"], "texts are 0 clean"),
        (
            ["--clean", "abc", "--corrupted", "ab", "--answer", "d"],
            "corrupted text 'ab' has 2 tokens, clean text 'abc'",
        ),
        (["--clean", "abc", "--corrupted", "hab", "--answer", "de"], "answer 'de' is 2 tokens: name the one token"),
        (["--clean", "xbc", "--corrupted", "hab", "--answer", "d"], "x"),
        ([*TEXTS, "--metric", "logit-diff"], "metric 'logit-diff' needs examples with wrong"),
        ([*TEXTS, "--positions", "7"], "position 7 is past the end"),
        (["--examples", "1"], "examples is 1: an error needs two; ask for more"),
        (["--examples", "0"], "examples is 0: an error needs two; ask for more"),
    ],
)
def test_what_does_not_fit_gets_one_line_and_leaves_nothing(run, capsys, tmp_path, flags, message):
    assert cli.main(["patch", str(run), *flags, "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_what_is_patched_may_be_one_name_and_must_be_known(run, tmp_path):
    only = {"examples": 4, "out": tmp_path, "figures": False}
    assert [*tg.patch_run(run, of="heads", **only)] == [*tg.patch_run(run, of=[], **only)]
    with pytest.raises(tg.UserError, match="of has 'head'; did you mean 'heads'"):
        tg.patch_run(run, of=["head"], **only)
