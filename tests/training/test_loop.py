"""Whole trainings at toy size: what they leave behind, how they stop, and that resuming is exact."""

import dataclasses
import io
import json
import math
import os
import shutil
import signal
import threading

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax import runtime
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.runs import PARTS, read_config, write_record, write_weights
from tinygpt_jax.runtime import SIGNALS, stop_on_signals
from tinygpt_jax.training import compilation, evaluate, job, loop, trainer
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.claims import claim, locked
from tinygpt_jax.training.display import Display
from tinygpt_jax.training.loop import train

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
MODEL = GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16, dropout=0.2)


class Recorder(Display):
    """Keeps the lines, and interrupts as a user would at a step."""

    def __init__(self, interrupt_at=None):
        super().__init__(io.StringIO())
        self.interrupt_at = interrupt_at

    def update(self, status):
        if status.step == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)

    @property
    def text(self):
        return self._stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("loop")
    (path / "text.txt").write_text(TEXT)
    return path


def config(folder, out, **changes):
    settings = {"steps": 10, "warmup_steps": 2, "batch_size": 2, "eval_every": 5, "checkpoint_every": 4}
    settings |= {"sample_every": 0, "steps_per_dispatch": 3, "optimizer": "adamw", **changes}
    return TrainConfig(**{"model": MODEL, "data": (str(folder / "text.txt"),), "out": str(folder / out), **settings})


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A training of 10 steps that was never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYGPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return train(config(folder, "whole"), display=Recorder())


def log_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


def final_state(run, cfg):
    with Checkpoints(run) as checkpoints:
        return checkpoints.restore(cfg)[0]


def assert_same_run(run, whole):
    cfg = read_config(whole.run)
    ours, theirs = final_state(run, cfg), final_state(whole.run, cfg)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (run / "model.safetensors").read_bytes() == (whole.run / "model.safetensors").read_bytes()
    assert log_of(run) == log_of(whole.run)


def test_what_a_run_leaves(whole, folder):
    left = {path.name for path in whole.run.iterdir()}
    assert left == {"run.json", "tokenizer.json", "model.safetensors", "checkpoints", "metrics.jsonl"}
    record = json.loads((whole.run / "run.json").read_text())
    assert record["config"]["seed"] == 1337
    assert record["config"]["model"]["vocab_size"] == len(set(TEXT))
    assert record["versions"]["jax"]
    assert not whole.interrupted
    assert whole.steps == 10
    with Checkpoints(whole.run) as checkpoints:
        assert checkpoints.steps() == [4, 8, 10]
    steps = [line for line in log_of(whole.run) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 11))
    assert steps[0]["loss"] == pytest.approx(math.log(len(set(TEXT))), rel=0.02)
    validations = {line["step"]: line["val_loss"] for line in log_of(whole.run) if "val_loss" in line}
    assert set(validations) == {5, 10}
    assert whole.best.loss == min(validations.values())
    assert whole.best.loss == whole.best.loss_per_char
    model = tg.load(whole.run)
    assert tg.evaluate_tokens(model.params, model.cfg, prepare_val(model)).loss == pytest.approx(
        whole.best.loss, abs=1e-6
    )


def prepare_val(model):
    return tg.prepare(TEXT, model.tokenizer).val


def test_ten_steps_equal_four_three_three_bit_for_bit(whole, folder):
    first = train(config(folder, "split", steps_per_dispatch=1), display=Recorder(interrupt_at=4))
    assert first.interrupted
    assert first.steps == 4
    for stop, steps in ((7, 7), (None, 10)):
        cfg = dataclasses.replace(read_config(first.run), steps_per_dispatch=1 if stop else 5)
        again = train(cfg, resume=first.run, display=Recorder(interrupt_at=stop))
        assert (again.steps, again.interrupted) == (steps, stop is not None)
    assert_same_run(first.run, whole)


def test_a_run_that_was_killed_resumes_from_its_last_state(whole, folder):
    """Later states lost, a line half written, better weights from a lost step: all as if it never happened."""
    run = folder / "killed"
    shutil.copytree(whole.run, run)
    shutil.rmtree(run / "checkpoints" / "8")
    shutil.rmtree(run / "checkpoints" / "10")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')
    (run / "samples.txt").write_text("--- step 4 ---\nkept\n--- step 8 ---\nlost\n")
    result = train(read_config(run), resume=run, display=Recorder())
    assert result.steps == 10
    assert_same_run(run, whole)
    assert (run / "samples.txt").read_text() == "--- step 4 ---\nkept\n"


def test_a_damaged_state_costs_the_steps_since_the_one_before(whole, folder):
    run = shutil.copytree(whole.run, folder / "flipped")
    file = max((run / "checkpoints" / "10").rglob("*"), key=lambda path: path.is_file() * path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    display = Recorder()
    train(read_config(run), resume=run, display=display)
    assert f"10 is damaged ({file.relative_to(run / 'checkpoints' / '10')} has another checksum" in display.text
    assert "it is passed over, and step 8 taken" in display.text
    assert_same_run(run, whole)


def unbegun(whole, folder, name, *left):
    """What a kill leaves of a run before its first state is saved."""
    run = folder / name
    run.mkdir()
    for part in ("run.json", *left):
        shutil.copy(whole.run / part, run / part)
    return run


def test_a_run_that_was_killed_before_its_first_state_begins_anew(whole, folder):
    run = unbegun(whole, folder, "unbegun")
    (run / ".0123456789abcdef.partial").write_text("half a tokenizer")
    (run / "checkpoints" / ".0123456789abcdef.partial").mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    assert train(read_config(run), resume=run, display=Recorder()).steps == 10
    assert_same_run(run, whole)
    assert (run / "tokenizer.json").read_bytes() == (whole.run / "tokenizer.json").read_bytes()
    assert not list(run.rglob("*.partial"))


@pytest.mark.parametrize("part", ["model.safetensors", "metrics.jsonl"])
def test_a_run_whose_states_are_gone_does_not_begin_anew(whole, folder, part):
    run = unbegun(whole, folder, f"stateless-{part}", "tokenizer.json", part)
    before = (run / part).read_bytes()
    with pytest.raises(UserError, match="has no training state in checkpoints: there is nothing to go on from"):
        train(read_config(run), resume=run, display=Recorder())
    assert (run / part).read_bytes() == before


@pytest.fixture
def copied(whole, tmp_path):
    return shutil.copytree(whole.run, tmp_path / "copied")


def resume_refused(run, match):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=match) as error:
        train(read_config(run), resume=run, display=Recorder())
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("harm", ["empty", "cut", "header", "dtype"])
def test_resuming_with_damaged_weights_is_one_line(copied, harm):
    file = copied / "model.safetensors"
    data = file.read_bytes()
    if harm == "dtype":
        half = jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), tg.load(copied).params)
        write_weights(file, half, step=3)
    else:
        file.write_bytes({"empty": b"", "cut": data[:-10], "header": b"\xff" * 8 + data[8:]}[harm])
    said = {"dtype": "safetensors: .* has dtype F16"}.get(harm, "safetensors cannot be read")
    resume_refused(copied, said)


@pytest.mark.parametrize("facts", ["{}", "[]", '{"best": null, "seconds": "abc"}', "7" * 5000, "{"])
def test_resuming_with_facts_that_make_no_sense_is_one_line(copied, facts):
    """Those of a version without checksums; with them it is damage."""
    for step in ("4", "8", "10"):
        (copied / "checkpoints" / step / "SHA256SUMS").unlink()
        (copied / "checkpoints" / step / "facts" / "metadata").write_text(facts)
    resume_refused(copied, "facts in .* make no sense .*: move that folder away|is damaged .*: restore the files")


@pytest.mark.parametrize("warmup", ["abc", -1, 1.5, [], "endless", True])
def test_resuming_with_a_record_that_makes_no_sense_is_one_line(copied, warmup):
    record = json.loads((copied / "run.json").read_text())
    number = "1" + "0" * 5000 if warmup == "endless" else json.dumps(warmup)
    text = json.dumps({**record, "warmup_steps": "WARMUP"}).replace('"WARMUP"', number)
    (copied / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"warmup_steps|is not JSON"):
        train(read_config(copied), resume=copied, display=Recorder())


def test_a_run_that_is_being_trained_is_not_even_read_for_resuming(whole, monkeypatch):
    """Else it would go on from a state that is no longer the newest once the other is done."""
    monkeypatch.setattr(loop, "resume_job", None)
    with locked(whole.run), pytest.raises(UserError, match="is being trained by another process"):
        train(read_config(whole.run), resume=whole.run, display=Recorder())


def test_a_second_seed_is_another_run(whole, folder):
    other = train(config(folder, "other", seed=7), display=Recorder())
    assert log_of(other.run) != log_of(whole.run)


def test_interrupted_before_the_first_validation_leaves_a_whole_run(folder):
    result = train(config(folder, "early", steps_per_dispatch=1), display=Recorder(interrupt_at=1))
    assert result.interrupted
    assert result.best is None
    assert result.to_json()["loss"] is None
    assert tg.load(result.run).cfg.vocab_size == len(set(TEXT))
    again = train(read_config(result.run), resume=result.run, display=Recorder())
    assert again.steps == 10
    assert again.seconds > result.seconds > 0
    assert again.seconds * again.tokens_per_second == pytest.approx(10 * 2 * 8)


def test_signal_handlers_are_put_back(whole):
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped() == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_echoes_of_a_signal_change_nothing(number, monkeypatch):
    """A window that is closed sends HUP twice, a service manager TERM and HUP."""
    with stop_on_signals() as stopped:
        assert not stopped()
        for echo in (number, number, *SIGNALS):
            os.kill(os.getpid(), echo)
        assert stopped() == number
        monkeypatch.setattr(runtime, "HURRY_SECONDS", -1.0)
        for later in SIGNALS:
            if later != signal.SIGINT:
                os.kill(os.getpid(), later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stopped() == number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_nobody_while_there_is_nothing_to_save(number):
    with stop_on_signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_resume_lists_every_difference_it_refuses(whole):
    cfg = read_config(whole.run)
    model = dataclasses.replace(cfg.model, n_layer=2, n_embd=32)
    other = dataclasses.replace(cfg, model=model, tokenizer="bpe", optimizer="lion")
    with pytest.raises(UserError) as error:
        train(other, resume=whole.run, display=Recorder())
    for part in ("model.n_layer 1 -> 2", "model.n_embd 16 -> 32", "tokenizer 'char' -> 'bpe'", "optimizer"):
        assert part in str(error.value)
    assert read_config(whole.run) == cfg


def test_resume_refuses_other_text_and_too_few_steps(whole, folder):
    cfg = read_config(whole.run)
    (folder / "other.txt").write_text(TEXT[::-1])
    with pytest.raises(UserError, match="text is not the one"):
        train(dataclasses.replace(cfg, data=(str(folder / "other.txt"),)), resume=whole.run, display=Recorder())
    with pytest.raises(UserError, match="steps is 9, but .* already taken 10"):
        train(dataclasses.replace(cfg, steps=9), resume=whole.run, display=Recorder())


def test_resuming_a_finished_run_says_so_at_once(whole, monkeypatch):
    monkeypatch.setattr(loop, "Compilation", None)
    display = Recorder()
    result = train(read_config(whole.run), resume=whole.run, display=display)
    assert "already at step 10 of 10: ask for more with --steps" in display.text
    assert result.best == whole.best
    assert not result.interrupted


def test_resume_says_what_it_lacks_when_the_text_is_gone(whole):
    cfg = dataclasses.replace(read_config(whole.run), data=("gone.txt",))
    with pytest.raises(UserError, match=r"cannot resume .* without its text .*gone.txt.* with --data"):
        train(cfg, resume=whole.run, display=Recorder())


def test_a_kill_while_compiling_leaves_a_run_that_resumes(folder, whole, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compilation, "_compile", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config(folder, "compiling"), display=Recorder())
    run = folder / "compiling"
    assert tg.load(run).cfg.n_layer == 1
    train(read_config(run), resume=run, display=Recorder())
    assert_same_run(run, whole)


def test_an_interrupt_while_compiling_is_answered_at_once(folder, whole, monkeypatch):
    compiled, asked = threading.Event(), []

    def slow(*args):
        assert compiled.wait(60)

    def stopped():
        asked.append(True)
        return len(asked) > 1

    with monkeypatch.context() as patch:
        patch.setattr(compilation, "_compile", slow)
        result = train(config(folder, "waiting"), display=Recorder(), stopped=stopped)
    assert not compiled.is_set()
    compiled.set()
    assert result.interrupted
    assert (result.steps, result.compile_seconds) == (0, 0)
    train(read_config(result.run), resume=result.run, display=Recorder())
    assert_same_run(result.run, whole)


def test_what_the_compiler_complains_of_is_raised_and_leaves_a_whole_run(folder, monkeypatch):
    def fails(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(compilation, "_compile", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(config(folder, "too-large"), display=Recorder())
    assert tg.load(folder / "too-large").cfg.n_layer == 1


def test_more_steps_are_allowed_and_said(whole, folder):
    run = folder / "longer"
    shutil.copytree(whole.run, run)
    display = Recorder()
    result = train(dataclasses.replace(read_config(run), steps=12), resume=run, display=display)
    assert "changed: steps 10 -> 12" in display.text
    assert result.steps == 12
    assert read_config(run).steps == 12


def test_a_run_goes_on_with_the_warmup_it_had(folder, monkeypatch):
    """One that was not asked for, whatever the steps and the usual warm-up have come to be."""
    cfg = config(folder, "warm", steps=6, warmup_steps=None)
    run = train(cfg, display=Recorder(interrupt_at=4)).run
    assert read_config(run).warmup_steps is None
    assert job.resume_job(run, read_config(run)).cfg == dataclasses.replace(read_config(run), warmup_steps=3)
    monkeypatch.setattr("tinygpt_jax.config.WARMUP_STEPS", 1)
    assert job.resume_job(run, read_config(run)).cfg.warmup_steps == 3
    with job.claimed(job.resume_job(run, dataclasses.replace(read_config(run), steps=50))) as longer:
        assert longer.cfg.warmup_steps == 3
    assert read_config(run).warmup_steps == 3, "which now is no longer the usual one"
    assert job.resume_job(run, dataclasses.replace(read_config(run), warmup_steps=2)).cfg.warmup_steps == 2


def test_a_run_is_not_overwritten_without_force(whole, folder):
    before = {path: path.read_bytes() for path in whole.run.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="exists: continue it with train --resume"):
        train(config(folder, "whole"), display=Recorder())
    assert before == {path: path.read_bytes() for path in whole.run.iterdir() if path.is_file()}


def test_force_replaces_a_run_and_nothing_that_is_not_one(folder):
    stranger = folder / "thesis"
    stranger.mkdir()
    (stranger / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="something that is not a run"):
        train(config(folder, "thesis"), force=True, display=Recorder())
    assert (stranger / "chapter.txt").read_text() == "years of work"
    short = {"steps": 2, "eval_every": 2, "checkpoint_every": 2}
    first = train(config(folder, "forced", **short), display=Recorder())
    (first.run / "notes.md").write_text("mine")
    again = train(config(folder, "forced", **short, seed=5), force=True, display=Recorder())
    assert read_config(again.run).seed == 5
    assert len(log_of(again.run)) == 3
    assert (again.run / "notes.md").read_text() == "mine"


def test_a_run_and_its_parts_may_be_links_to_other_places(folder):
    """As people do whose other disk is larger; a forced run takes the links of its parts alone."""
    (folder / "linked").symlink_to("elsewhere")
    short = {"steps": 2, "eval_every": 2, "checkpoint_every": 2}
    run = train(config(folder, "linked", **short), display=Recorder()).run
    assert run.is_symlink()
    (folder / "disk").mkdir()
    for name in ("checkpoints", "metrics.jsonl"):
        shutil.move(run / name, folder / "disk" / name)
        (run / name).symlink_to(folder / "disk" / name)
    resumed = train(dataclasses.replace(read_config(run), steps=3), resume=run, display=Recorder())
    assert resumed.steps == 3
    train(config(folder, "linked", **short), force=True, display=Recorder())
    assert run.is_symlink()
    assert not any(path.is_symlink() for path in run.iterdir())
    assert len(log_of(folder / "elsewhere")) == 3
    assert (folder / "disk" / "checkpoints" / "3").is_dir()
    assert len(log_of(folder / "disk")) == 5


def test_force_deletes_nothing_behind_a_link(tmp_path):
    run, mine = tmp_path / "run", tmp_path / "mine"
    write_record(run, config(tmp_path, "run"), {})
    for part in PARTS:
        (mine / part).mkdir(parents=True)
        (mine / part / "chapter").touch()
        if part != "run.json":
            (run / part).symlink_to(mine / part)
    (mine / "page").touch()
    (run / "report.html").unlink()
    (run / "report.html").symlink_to("../mine/page")
    with claim(run, force=True):
        pass
    assert all((mine / part / "chapter").exists() for part in PARTS)
    assert (mine / "page").exists()
    assert not any(path.is_symlink() for path in run.iterdir())


def test_force_without_a_name_replaces_the_run_that_would_have_been_made(folder, monkeypatch):
    monkeypatch.chdir(folder)
    cfg = dataclasses.replace(config(folder, "", steps=2, eval_every=2), out="")
    runs = [train(cfg, force=force, display=Recorder()).run for force in (False, False, True)]
    assert [str(run) for run in runs] == ["runs/text", "runs/text-2", "runs/text"]


def test_bad_text_leaves_no_run_behind(folder):
    (folder / "tiny.txt").write_text("too short")
    with pytest.raises(UserError, match=r"has 8 tokens, but a window of block_size 8 needs 9"):
        train(config(folder, "never", data=(str(folder / "tiny.txt"),)), display=Recorder())
    assert not (folder / "never").exists()


@pytest.mark.parametrize("steps_per_dispatch", [1, 4])
def test_training_stops_when_nothing_is_finite_and_keeps_the_last_good_weights(folder, steps_per_dispatch):
    cfg = config(
        folder, f"diverging{steps_per_dispatch}", learning_rate=1e14, min_learning_rate=0.0, grad_clip=0.0,
        optimizer="sgd", beta1=0.0, warmup_steps=0, max_skipped=3, steps_per_dispatch=steps_per_dispatch,
        eval_every=100, checkpoint_every=100, steps=100, schedule="constant",
    )  # fmt: skip
    display = Recorder()
    said = "not finite for 3 steps in a row.*keeps the weights it started from;.*learning_rate below 1e\\+14"
    with pytest.raises(UserError, match=said):
        train(cfg, display=display)
    assert "skipped" in display.text
    run = folder / f"diverging{steps_per_dispatch}"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tg.load(run).params))
    assert any(line["loss"] is None for line in log_of(run) if "grad_norm" in line) or any(
        line["grad_norm"] is None for line in log_of(run) if "grad_norm" in line
    )


def test_a_vocabulary_larger_than_the_text_supports_is_said(folder):
    display = Recorder()
    model = dataclasses.replace(MODEL, vocab_size=5000)
    cfg = config(folder, "merges", model=model, tokenizer="bpe", steps=2, eval_every=2, sample_every=2)
    result = train(cfg, display=display)
    assert "vocab_size is 5000, but this text has pairs to merge for" in display.text
    assert result.best.loss > result.best.loss_per_char > 0
    assert (result.run / "samples.txt").read_text().startswith("--- step 2 ---\n")
    assert "sample at step 2" in display.text


def test_a_model_with_fewer_heads_in_a_layer_trains(folder):
    model = dataclasses.replace(MODEL, heads=((0,),))
    cfg = config(folder, "fewer", model=model, steps=4, eval_every=2, checkpoint_every=2)
    result = train(cfg, display=Recorder())
    assert [p["Wq"].shape for p in tg.load(result.run).params["blocks"]] == [(16, 8)]
    with Checkpoints(result.run) as checkpoints:
        state, _ = checkpoints.restore(read_config(result.run))
    assert state.params["blocks"][0]["Wo"].shape == (8, 16)


def test_one_program_serves_a_whole_run(folder, monkeypatch):
    """Odd dispatch lengths, validation, a last partial dispatch: the step is traced once."""
    traces = []
    real = compilation.make_dispatch

    def counting(cfg):
        dispatch = real(cfg)

        def traced(*args):
            traces.append(1)
            return dispatch(*args)

        return traced

    monkeypatch.setattr(compilation, "make_dispatch", counting)
    train(config(folder, "traced", eval_every=3), display=Recorder())
    assert traces == [1]


def test_a_training_whose_validation_is_never_finite_fails(folder):
    cfg = config(
        folder, "never-finite", steps=1, warmup_steps=0, optimizer="sgd", learning_rate=1e14, grad_clip=0.0,
        min_learning_rate=0.0, beta1=0.0,
    )  # fmt: skip
    with pytest.raises(UserError, match="no validation loss was finite, so .* keeps the weights it started from"):
        train(cfg, display=Recorder())
    assert all(np.abs(leaf).max() < 10 for leaf in jax.tree.leaves(tg.load(cfg.out).params))


def test_a_run_is_trained_by_one_process_at_a_time(whole):
    with locked(whole.run), pytest.raises(UserError, match="is being trained by another process"):
        train(read_config(whole.run), resume=whole.run, display=Recorder())


def test_the_best_of_a_resumed_run_is_that_of_its_weights_file(whole, folder):
    """The weights on disk are of an abandoned later step: the books follow the file."""
    run = folder / "abandoned"
    shutil.copytree(whole.run, run)
    params = jax.tree.map(lambda leaf: leaf * 0.0, tg.load(run).params)  # a loss of exactly ln V
    write_weights(run / "model.safetensors", params, step=99)
    result = train(read_config(run), resume=run, display=Recorder())
    assert result.best_step == 99
    assert result.best.loss == pytest.approx(math.log(len(set(TEXT))), abs=1e-5)


def test_tensorboard_files_are_written_when_asked_for(folder):
    result = train(config(folder, "board", steps=2, eval_every=2, tensorboard=True), display=Recorder())
    assert list((result.run / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("at", [5, 10])
def test_a_validation_that_is_interrupted_is_done_when_the_run_is_resumed(at, whole, folder, monkeypatch):
    """Also the last one, after which no step is left; the run is then the one that was never interrupted."""
    asked, real = [], trainer.Trainer._scored

    def interrupted(self):
        if self.step == at:
            asked.append(signal.SIGINT)
            patch.setattr(evaluate, "TOKENS_PER_CALL", {"cpu": 64})  # so that it has parts
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_scored", interrupted)
        result = train(config(folder, f"cut{at}"), display=Recorder(), stopped=lambda: len(asked))
    assert (result.interrupted, result.steps) == (True, at)
    assert at not in {line["step"] for line in log_of(result.run) if "val_loss" in line}
    again = train(read_config(result.run), resume=result.run, display=Recorder())
    assert not again.interrupted
    assert again.best == whole.best
    assert_same_run(result.run, whole)
    at_once = train(read_config(result.run), resume=result.run, display=(display := Recorder()))
    assert "already at step 10" in display.text
    assert not at_once.interrupted


def test_a_pause_makes_neither_dispatches_nor_rates_small_for_good(folder, monkeypatch):
    """A stopped process is one whose clock jumps: once, by an hour."""
    clock, taken, shown = [0.0, 0], [], []

    def now():
        clock[1] += 1
        clock[0] += 3600 if clock[1] == 60 else 0.01
        return clock[0]

    class Watching(Recorder):
        def update(self, status):
            taken.append(status.step)
            shown.append(status.tokens_per_second)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.time, "perf_counter", now)
        patch.setattr(trainer, "MEASURED", 10)
        settings = {"steps": 300, "eval_every": 300, "checkpoint_every": 300, "steps_per_dispatch": 4}
        train(config(folder, "paused", **settings), display=Watching())
    sizes = np.diff([0, *taken])
    assert max(shown) > 1000 * min(shown), "the pause was felt"
    assert (sizes[-20:-1] == 4).all()
    assert shown[-1] == pytest.approx(np.median(shown[:10]), rel=0.5)
