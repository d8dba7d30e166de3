"""`tinygpt heads`, `ablate`, `plot` and `sample --without`, from a trained run to files and documents."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax import cli
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read.training import OverTraining

TEXT = "the cat sat on the mat and the dog sat on the log. " * 60
TOY = ["--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--block-size", "16", "--sample-every", "0", "--steps", "6"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examined")
    (folder / "text.txt").write_text(TEXT)
    flags = ["--warmup-steps", "1", "--checkpoint-every", "3", "--keep-checkpoints", "0", "--eval-every", "6"]
    assert cli.main(["train", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), *TOY, *flags]) == 0
    return folder / "run"


def document(capsys, *args):
    code = cli.main([*args, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_ablate_gives_the_contracts_keys_and_files(run, capsys):
    found = document(capsys, "ablate", str(run), "--windows", "8", "--of", "heads", "pairs", "shapley-by-layer")
    assert np.shape(found["effect"]) == np.shape(found["se"]) == (2, 2)
    assert len(found["baseline"]) == 8
    assert found["definition"]["value"] == "mean"
    assert found["definition"]["examples"] == 8
    assert list(found["results"]) == [f"{name}-mean-loss-windows8" for name in ("heads", "pairs", "shapley-by-layer")]
    for name in found["results"]:
        for ending in ("json", "csv", "png", "svg"):
            assert (run / "heads" / f"{name}.{ending}").stat().st_size > 100
    model = tg.load(run)
    want = tg.ablate_heads(model.params, tg.run_windows(run, model, 8), model.cfg)
    np.testing.assert_array_equal(read_result(run / "heads" / "heads-mean-loss-windows8.json").effect, want.effect)


def test_what_is_said_to_a_person(run, capsys):
    assert cli.main(["ablate", str(run), "--windows", "4", "--sets", "0.1+mlp1", "layer0", "--no-figures"]) == 0
    out = capsys.readouterr().out
    assert "loss, nats per token; ± one standard error over 4 windows in the order of the text (long-run)" in out
    assert " 0.1+mlp1 " in out
    assert out.count("±") >= 3
    assert "the largest effect first" in out or "no ranking: differences this large" in out
    assert "intact model: " in out


def test_heads_end_in_what_each_head_is(run, capsys, tmp_path):
    flags = [str(run), "--windows", "4", "--out", str(tmp_path), "--no-figures"]
    assert cli.main(["heads", *flags]) == 0
    ending = capsys.readouterr().out.split("what each head is\n")[1].splitlines()
    assert "a role: a score 50% of the way from chance to 1" in ending[0]
    assert ending[1:] == [f"  {head}: no clear role" for head in ("0.0", "0.1", "1.0", "1.1")]  # after six steps
    scores = [read_result(tmp_path / f"scores-{on}.json") for on in ("text", "repeats")]
    assert [one.previous_token_chance.shape for one in scores] == [(), ()]
    found = document(capsys, "heads", *flags)
    assert found["conclusions"] == dict.fromkeys(("0.0", "0.1", "1.0", "1.1"), "no clear role")
    assert found["kind"] == "HeadScores"  # the first one's keys on top
    assert set(found["results"]) == {"scores-repeats", "scores-text", "lens", "attribution", "attention"}
    assert found["results"]["attribution"]["definition"]["positions"] == f"{4 * 16} counted targets"


def test_verbs_are_functions_that_return_what_they_found_and_print_nothing(run, capsys, tmp_path):
    said, found = [], []
    results = tg.ablate(
        run, sets=["0.1"], windows=4, out=tmp_path, figures=False, tell=said.append, on_result=found.append
    )
    assert list(results) == [one.name for one in found] == ["sets-0.1-mean-loss-windows4"]
    assert found[0].files[0] == tmp_path / "sets-0.1-mean-loss-windows4.json"
    assert said[0].startswith(f"run {run}, its validation text")
    drawn = []
    assert (
        tg.plot(found[0].files[0], on_file=drawn.append)
        == drawn
        == [tmp_path / f"sets-0.1-mean-loss-windows4.{ending}" for ending in ("png", "svg")]
    )
    assert tg.report(run, out=tmp_path / "page.html", measure=False) == tmp_path / "page.html"
    assert "<html" in (tmp_path / "page.html").read_text()
    assert tg.evaluate(run, str(run.parent / "text.txt")).tokens == len(TEXT) - 1
    settings = {"max_tokens": 3, "seed": 1}
    assert tg.generate(run, "the ", **settings) == "".join(["the ", *tg.stream(tg.load(run), "the ", **settings)])
    assert capsys.readouterr() == ("", "")


def test_a_single_set_may_be_a_str(run, tmp_path):
    kept = {"windows": 4, "out": tmp_path, "figures": False}
    assert [*tg.ablate(run, sets="0.1+1.0", **kept)] == [*tg.ablate(run, sets=["0.1+1.0"], **kept)]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"of": ["head"]}, "of has 'head'; did you mean 'heads'"),
        ({"of": "head"}, "of has 'head'; did you mean"),
        ({"on": "word"}, "on is 'word': must be one of text"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(run, choices, message):
    with pytest.raises(tg.UserError, match=message):
        tg.ablate(run, windows=4, **choices)


@pytest.mark.slow
def test_heads_over_training(run, capsys, tmp_path):
    found = document(capsys, "heads", str(run), "--windows", "4", "--checkpoints", "--out", str(tmp_path))
    names = {"scores-repeats", "scores-text", "lens", "attribution", "attention"}
    names |= {f"over-repeats-{field}" for field in ("previous_token", "induction", "copying")}
    assert set(found["results"]) == names
    course = read_result(tmp_path / "over-repeats-induction.json")
    assert isinstance(course, OverTraining)
    assert course.steps.tolist() == [0, 3, 6]
    assert course.value.shape == course.se.shape == (3, 2, 2)
    assert np.abs(course.value[0] - course.value[-1]).max() > 0
    last = read_result(tmp_path / "scores-repeats.json")
    np.testing.assert_allclose(course.value[-1], last.induction, atol=1e-5)  # the last state is the best here
    assert (tmp_path / "over-repeats-induction.gif").read_bytes()[:4] == b"GIF8"


def test_a_figure_is_drawn_anew_from_its_result(run, capsys, tmp_path):
    assert cli.main(["ablate", str(run), "--windows", "4", "--out", str(tmp_path)]) == 0
    first = (tmp_path / "heads-mean-loss-windows4.svg").read_bytes()
    result = str(tmp_path / "heads-mean-loss-windows4.json")
    capsys.readouterr()
    assert cli.main(["plot", result, "--out", str(tmp_path / "again")]) == 0
    files = capsys.readouterr().out.split()
    assert [file.rsplit(".")[-1] for file in files] == ["png"]
    assert (tmp_path / "again" / "heads-mean-loss-windows4.svg").read_bytes() == first
    assert cli.main(["plot", result, "--out", str(tmp_path / "dark"), "--theme", "dark"]) == 0
    assert (tmp_path / "dark" / "heads-mean-loss-windows4.svg").read_bytes() != first


@pytest.mark.slow
def test_gates_pruning_and_a_smaller_model(run, capsys, tmp_path):
    flags = ["--windows", "8", "--out", str(tmp_path), "--strengths", "0", "10", "--no-figures"]
    found = document(capsys, "ablate", str(run), "--of", "gates", "pruning", *flags)["results"]
    assert np.shape(found["gates-mean-loss-windows8"]["kept"]) == (2, 1, 2, 2)
    curve = found["pruning-mean-loss-windows8"]
    assert len(curve["loss"]) == 5
    smaller = str(tmp_path / "smaller")
    flags = ["--windows", "4", "--no-figures", "--out", str(tmp_path)]
    assert cli.main(["ablate", str(run), "--sets", "0.1+1.0", "--save-pruned", smaller, *flags]) == 0
    whole, pruned = tg.load(run), tg.load(smaller)
    assert pruned.cfg.heads == ((0,), (1,))
    assert tg.count_params(pruned.cfg) < tg.count_params(whole.cfg)
    capsys.readouterr()
    effect = read_result(tmp_path / "sets-0.1+1.0-mean-loss-windows4.json")
    ids = tg.run_windows(run, whole, 4)
    logits = tg.gpt_forward(pruned.params, ids.ids, pruned.cfg)
    log_p = np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    loss = -np.take_along_axis(log_p, ids.targets[..., None], -1).mean((1, 2))
    np.testing.assert_allclose(loss, effect.baseline + effect.per_example[0], atol=1e-4)
    assert cli.main(["sample", smaller, "--max-tokens", "4"]) == 0


def test_sampling_with_parts_switched_off(run, capsys):
    arguments = ["sample", str(run), "--prompt", "the ", "--max-tokens", "30", "--seed", "1"]
    texts = []
    for more in ([], ["--without", "layer0", "layer1"]):
        assert cli.main([*arguments, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]
    assert cli.main([*arguments, "--without", "0.2"]) == 1
    assert "there is no head 2, a layer has 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ablate", "RUN", "--windows", "1"], "windows is 1: an error needs two"),
        (["ablate", "RUN", "--sets", "2.0"], "there is no layer 2"),
        (["ablate", "RUN", "--save-pruned", "x"], "save_pruned needs the heads to prune"),
        (["ablate", "RUN", "--save-pruned", "x", "--sets", "0.0", "0.1"], "save_pruned needs one set, 2 are given"),
        (["ablate", "RUN", "--save-pruned", "x", "--sets", "mlp0"], "only heads can be pruned"),
        (["ablate", "RUN", "--save-pruned", "x", "--sets", "0.0", "--fill", "resample"], "can hold zero or the mean"),
        (
            ["ablate", "RUN", "--of", "gates", "--positions", "3"],
            "positions is (3,), which makes no difference to gates",
        ),
        (
            ["ablate", "RUN", "--of", "pruning", "--metric", "kl"],
            "metric is 'kl', which makes no difference to pruning",
        ),
        (["ablate", "RUN", "--sets", "0.0", "--save-pruned", "RUN"], "exists: "),
        (["ablate", "RUN", "--seed", "-1"], "seed is -1: must be a whole number"),
        (["ablate", "RUN", "--bootstrap", "-1"], "bootstrap is -1: must be a whole number"),
        (["ablate", "RUN", "--metric", "log-prob"], "metric 'log-prob' needs examples with answers"),
        (["ablate", "RUN", "--positions", "16"], "position 16 is past the end"),
        (["heads", "RUN", "--prompt", "ÿ"], "ÿ"),
        (["heads", "no-such-run"], "no-such-run does not exist"),
        (["plot", "RUN/run.json"], "is no whole result"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(run, capsys, tmp_path, args, message):
    where = ["--out", str(tmp_path / "out")] if args[0] != "plot" else []
    assert cli.main([word.replace("RUN", str(run)) for word in args] + where) == 1
    err = capsys.readouterr().err
    assert message in err
    assert not (tmp_path / "out").exists()
