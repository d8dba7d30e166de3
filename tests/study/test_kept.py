"""What is measured is not lost: results keep their names apart, a failure stops no other, places are checked first. Of
a run made by hand and results made by hand, so that nothing has to be compiled."""

import dataclasses
import errno
import json
import os
import threading

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tests.figures.made import results
from tinygpt_jax import cli, files
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.analyses import file_ending
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.result import data_fingerprint
from tinygpt_jax.params import init_params
from tinygpt_jax.runs import write_record, write_weights
from tinygpt_jax.study import ablate as ablating
from tinygpt_jax.study import findings
from tinygpt_jax.study import plot as plotting
from tinygpt_jax.study import report as reporting
from tinygpt_jax.study.findings import save
from tinygpt_jax.text import char_tokenizer
from tinygpt_jax.training import feed

MADE = results(2)["layers"]


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path)


def made_run(folder, text="the cat sat on the mat " * 40, **sizes):
    path = folder / "run"
    path.mkdir()
    (folder / "text.txt").write_text(text)
    tokenizer = char_tokenizer(text)
    model = GPTConfig(**{"block_size": 4, "n_layer": 2, "n_head": 2, "n_embd": 8, **sizes})
    model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    cfg = TrainConfig(model=model, data=(str(folder / "text.txt"),), steps=5, warmup_steps=1)
    write_record(path, cfg, {"text_sha256": feed.make_dataset(cfg, text, tokenizer).fingerprint})
    write_weights(path / "model.safetensors", init_params(jax.random.key(0), model), 5)
    tokenizer.save(path / "tokenizer.json")
    return path


@pytest.fixture
def measured(monkeypatch):
    """Ablations that come at once: the result made by hand, with the examples' own fingerprint."""

    def at_once(params, examples, cfg, sets="heads", **how):
        definition = dataclasses.replace(MADE.definition, data=data_fingerprint(examples.asked), set=str(sets))
        return dataclasses.replace(MADE, definition=definition)

    monkeypatch.setattr(ablating, "ablate_sets", at_once)
    monkeypatch.setattr(ablating, "ablate_pairs", at_once)


def all_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Names


def test_results_of_two_texts_of_one_name_are_both_kept(run, tmp_path, measured):
    names = []
    for i, folder in enumerate(("a", "b", "c")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.txt").write_text("the mat sat on the cat " * (20 + i))
        names += tg.ablate(run, data=tmp_path / folder / "other.txt", windows=8, figures=False)
    assert names[0] == "heads-mean-loss-other-windows8"  # as ever
    assert len({*names}) == 3
    again = [*tg.ablate(run, data=tmp_path / "b" / "other.txt", windows=8, figures=False)]
    assert again == names[1:2]  # replaced by itself
    found = [read_result(run / "heads" / f"{name}.json").definition.data for name in names]
    assert len({*found}) == 3


def test_a_plot_of_another_text_does_not_take_results_of_a_text_of_that_name(run, tmp_path, monkeypatch):
    asked = []
    there = {one.name: MADE for one in plotting.ANALYSES if one.verb == "heads"}
    monkeypatch.setattr(plotting, "_saved_results", lambda *_: {"heads-mean-loss-text": MADE, **there})
    monkeypatch.setattr(plotting, "save", lambda name, *_: plotting.Finding(name, MADE, []))
    monkeypatch.setattr(plotting, "effects", lambda source, of, *_: asked.extend(of) or {})
    monkeypatch.setattr(plotting, "pieces", lambda source: {})
    tg.plot(run, data=tmp_path / "text.txt")
    assert asked == ["heads"]


def test_long_lists_of_sets_and_positions_have_names_of_their_own(run, measured):
    sets = ["0.0+0.1", "0.0+1.0", "0.0+1.1", "0.1+1.0", "0.1+1.1", "1.0+1.1", "layer0", "layer1", "mlp0", "mlp1"]
    kept = {"windows": 4, "figures": False}
    names = [*tg.ablate(run, sets=sets, **kept), *tg.ablate(run, sets=[*sets[:-2], *sets[:-3:-1]], **kept)]
    assert len({*names}) == 2
    assert all(name.startswith("sets-0.0+0.1-") and len(name) < 120 for name in names)
    endings = {file_ending(positions=[*range(20), last]) for last in range(20, 60)}
    assert len(endings) == 40
    assert file_ending(positions=[1, 2]) == "mean-loss-at1_2"


# Failures


def test_an_analysis_that_cannot_be_made_stops_no_other(tmp_path, measured, capsys):
    run = made_run(tmp_path, n_head=1, n_layer=1)

    def refused(*args, **how):
        raise UserError("1 component: a pair needs two; name more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablating, "ablate_pairs", refused)
        assert cli.main(["ablate", str(run), "--of", "pairs", "heads", "layers", "--windows", "4", "--no-figures"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "tinygpt ablate: pairs-mean-loss-windows4: 1 component: a pair needs two; name more"
    assert sorted(path.stem for path in (run / "heads").glob("*.json")) == [
        "heads-mean-loss-windows4", "layers-mean-loss-windows4",
    ]  # fmt: skip


def test_a_result_is_there_with_all_its_files_or_not_at_all(tmp_path, monkeypatch):
    """The disk fills at any of the four files: what was there before still is, and nothing is left over."""
    save("one", MADE, tmp_path, figures=True)
    before = all_files(tmp_path)
    assert len(before) == 4
    other = dataclasses.replace(MADE, effect=MADE.effect + 1)
    real, left = os.fsync, [0]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    for room in range(4):
        left[0] = room
        with pytest.raises(UserError, match="No space left on device"):
            save("one", other, tmp_path, figures=True)
        assert all_files(tmp_path) == before
    left[0] = 4
    save("one", other, tmp_path, figures=True)
    changed = all_files(tmp_path)
    assert changed.keys() == before.keys()
    assert changed != before


def test_interrupted_while_it_is_written_a_result_stays_as_it_was(tmp_path, monkeypatch):
    MADE.save(tmp_path / "one")
    before = all_files(tmp_path)

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(MADE, effect=MADE.effect + 1).save(tmp_path / "one")
    assert all_files(tmp_path) == before


# Places


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(findings, "run_windows", lambda *a: pytest.fail("the text is read first"))
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_text("")
    bad = {"circle": "symbolic links", "circle/x": "symbolic links", "file": "that is a file", "file/x": ""}
    for name, said in bad.items():
        for verb in ("ablate", "heads", "patch"):
            assert cli.main([verb, str(run), "--out", str(tmp_path / name)]) == 1
            assert said in capsys.readouterr().err
    before = all_files(tmp_path)
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    for verb in ("ablate", "heads", "patch"):
        assert cli.main([verb, str(run), "--out", str(tmp_path / "read-only")]) == 1
        assert "Permission denied" in capsys.readouterr().err
    assert all_files(tmp_path) == before
    assert not (tmp_path / "read-only").exists()


def test_a_report_says_before_it_measures_that_it_cannot_be_written(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reporting, "_complete", lambda *_: pytest.fail("it is measured first"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    places = {"pipe": "a pipe that nobody reads", "circle": "symbolic links", "run": "it is a directory"}
    for name, said in places.items():
        assert cli.main(["report", str(run), "--out", str(tmp_path / name)]) == 1
        assert said in capsys.readouterr().err
    assert cli.main(["report", str(run), "--out", "/dev/full"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    assert cli.main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_the_reader_of_a_pipe_gets_the_whole_page_and_no_end_before_it(run, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    while True:  # until the reader has opened it
        try:
            with files.reserved(tmp_path / "pipe"):
                files.write_atomically(tmp_path / "pipe", b"the page")
            break
        except UserError:
            continue
    reader.join(60)
    assert got == ["the page"]


def test_plot_draws_nothing_where_one_of_several_is_not_there(run, tmp_path, capsys):
    saved = MADE.save(tmp_path / "one")[0]
    (tmp_path / "none.json").write_text("{}")
    before = all_files(tmp_path)
    for bad, said in ((tmp_path / "nope", "does not exist"), (tmp_path / "none.json", "none.json")):
        assert cli.main(["plot", str(saved), str(bad)]) == 1
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 1
        assert all_files(tmp_path) == before


# What says nothing


def test_an_evaluation_of_one_window_says_in_words_that_it_has_no_error(tmp_path, capsys):
    run = made_run(tmp_path)
    (tmp_path / "short.txt").write_text("the ")
    assert cli.main(["eval", str(run), "--data", str(tmp_path / "short.txt")]) == 0
    out = capsys.readouterr().out
    assert "nan" not in out
    assert "±" not in out
    assert "not known of a single window" in out
    assert cli.main(["eval", str(run), "--data", str(tmp_path / "short.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss_se"] is None
    assert found["loss_se_missing"] == "not known of a single window"


def test_heads_of_a_model_that_knows_two_symbols(tmp_path, capsys):
    run = made_run(tmp_path, text="ab" * 400)
    assert cli.main(["heads", str(run), "--windows", "4", "--no-figures", "--json"]) == 0
    captured = capsys.readouterr()
    assert {*json.loads(captured.out)["results"]} == {"scores-text", "lens", "attribution", "attention"}
    assert "no scores on random tokens that repeat: these take 4 tokens or more" in captured.err
    assert cli.main(["patch", str(run), "--no-figures"]) == 1
    assert "this model knows 2 and sees 4" in capsys.readouterr().err


def test_equal_pairs_of_texts_are_no_two_examples(run, capsys):
    texts = ["--clean", "the", "the", "--corrupted", "cat", "cat", "--answer", "s", "s"]
    assert cli.main(["patch", str(run), *texts]) == 1
    assert "texts hold the pair ('the', 'cat', 's') twice" in capsys.readouterr().err


def test_a_head_that_is_pruned_already_cannot_be_pruned_again(run, tmp_path, capsys):
    model = tg.load(run)
    keep = np.array([[True, False], [True, True]])
    tg.save_pruned(tg.prune(model, keep), tmp_path / "smaller", run, keep)
    flags = ["--sets", "0.1+1.0", "--save-pruned", str(tmp_path / "same"), "--windows", "4"]
    assert cli.main(["ablate", str(tmp_path / "smaller"), *flags]) == 1
    assert "sets is '0.1+1.0': 0.1 is pruned already; name heads that are left" in capsys.readouterr().err
    assert not (tmp_path / "same").exists()
