"""The command: exit codes, one line per fault, JSON alone on standard output, one precedence of settings."""

import ast
import contextlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax import cli
from tinygpt_jax.cli import main

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
SMALL = ["--n-layer", "1", "--n-embd", "16", "--n-head", "2", "--block-size", "8", "--batch-size", "2"]
SHORT = ["--steps", "4", "--warmup-steps", "1", "--eval-every", "2", "--sample-every", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "book.txt").write_text(TEXT)
    (path / "other.txt").write_text(TEXT[:200])
    return path


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """One trained run, made through the command, and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYGPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.chdir(folder)
        assert main(["train", "--data", "book.txt", *SMALL, *SHORT]) == 0
    return folder / "runs" / "book"


def fails(args, capsys, code=1):
    """The one line on standard error of a command that must fail."""
    capsys.readouterr()
    assert main(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("args", [[], ["fly"], ["trian"]], ids=str)
def test_wrong_usage_exits_2(args, capsys):
    assert main(args) == 2
    err = capsys.readouterr().err
    assert "usage" in err if not args else "no verb" in err
    if args == ["trian"]:
        assert "did you mean 'train'?" in err


@pytest.mark.parametrize("verb", [*cli.VERBS])
def test_help_shows_a_worked_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"  tinygpt {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--stpes", "4"], ["--steps", "x"], ["extra"]])
def test_help_is_given_beside_a_wrong_flag(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *wrong, "--help"])
    assert stopped.value.code == 0
    assert "  tinygpt train" in capsys.readouterr().out


def flags_of(verb, capsys, monkeypatch, *args):
    """What the help of a verb says of each flag: its names, and the words, on one line."""
    monkeypatch.setenv("COLUMNS", "100")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([verb, *args, "--help"])
    said, name = {}, ""
    for line in capsys.readouterr().out.splitlines():
        line = line.strip("│ ")
        if match := re.match(r"(--?[\w-]+(?:, --?[\w-]+)*)(?: [A-Z{\[].*?)?(?:  +|$)", line):
            name, line = match[1], line[match.end() :]
            said[name] = ""
        if name:
            said[name] = f"{said[name]} {line}".strip()
    return said


@pytest.mark.parametrize("verb", [*cli.VERBS])
def test_the_help_of_a_switch_says_what_the_flag_does(verb, folder, capsys, monkeypatch):
    """A flag --no-x is never alone with words that tell of x, whatever the settings beneath say."""
    (folder / "on.toml").write_text("tensorboard = true\n[model]\nremat = true\ntied = false\n")
    for args in ((), ("--config", "on.toml")) if verb == "train" else ((),):
        said = flags_of(verb, capsys, monkeypatch, *args)
        negative = {name: text for name, text in said.items() if "--no-" in name}
        for name, text in negative.items():
            assert re.fullmatch(r"--([\w-]+), --no-\1", name), f"{name}: {text}"
            assert re.search(r"[;.] [Oo]ff, .{5}", text), f"{name}: {text}"
        expected = {
            "train": {"tensorboard", "residual", "attn-bias", "smeared-keys", "tied", "remat"},
            "bench": {"residual", "attn-bias", "smeared-keys", "tied", "remat"},
            "sample": {"cache"}, "heads": {"figures"}, "ablate": {"figures"}, "patch": {"figures"},
            "report": {"measure"},
        }  # fmt: skip
        assert set(negative) == {f"--{name}, --no-{name}" for name in expected.get(verb, ())}
        assert "--json" in said


def test_both_sides_of_a_switch_can_be_asked_for(folder, capsys):
    (folder / "on.toml").write_text("[model]\nremat = true\n")
    for flag, want in (("--no-remat", False), ("--remat", True)):
        for config in ([], ["--config", "on.toml"]):
            assert main(["train", *config, flag, "--print-config"]) == 0
            assert json.loads(capsys.readouterr().out)["model"]["remat"] is want


def test_a_training_of_five_steps_needs_no_other_flag(folder, capsys):
    assert main(["train", "--data", "book.txt", *SMALL, "--steps", "5", "--out", "runs/five", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    record = json.loads((folder / "runs" / "five" / "run.json").read_text())
    assert (record["config"]["warmup_steps"], record["warmup_steps"]) == (None, 2)
    assert main(["train", "--resume", "runs/five", "--steps", "50", "--json"]) == 0  # at the warm-up it had
    assert json.loads((folder / "runs" / "five" / "run.json").read_text())["config"]["warmup_steps"] == 2


def test_a_record_asks_for_a_warmup_only_where_one_was_asked_for(folder, capsys):
    again = ["--config", "runs/usual/run.json", "--print-config"]
    assert main(["train", "--data", "book.txt", *SMALL, "--steps", "6", "--out", "runs/usual"]) == 0
    assert main(["train", "--resume", "runs/usual", "--keep-checkpoints", "5"]) == 0
    for steps in ([], ["--steps", "1"], ["--steps", "50"]):
        capsys.readouterr()
        assert main(["train", *again, *steps]) == 0
        assert json.loads(capsys.readouterr().out)["warmup_steps"] is None
    assert main(["train", "--data", "book.txt", *SMALL, *SHORT, "--out", "runs/usual", "--force"]) == 0
    capsys.readouterr()
    assert main(["train", *again]) == 0
    assert json.loads(capsys.readouterr().out)["warmup_steps"] == 1


@pytest.mark.parametrize(
    ("flags", "file", "warmup"),
    [
        (["--steps", "5"], "", None),
        (["--steps=5"], "", None),
        (["--steps", "10"], "", 10),
        (["--steps", "5", "--warmup-steps", "4"], "", 4),
        (["--config", "few.toml"], "steps = 5", None),
        (["--config", "few.toml", "--steps", "9"], "warmup_steps = 8", 8),
    ],
)
def test_a_warmup_that_only_a_preset_asks_for_fits_the_steps(folder, capsys, flags, file, warmup):
    (folder / "few.toml").write_text(file)
    assert main(["train", "--preset", "toy", *flags, "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["warmup_steps"] == warmup
    (folder / "few.toml").write_text("warmup_steps = 10")
    line = fails(["train", "--preset", "toy", "--config", "few.toml", "--steps", "5"], capsys)
    assert "steps is 5, warmup_steps is 10" in line


@pytest.mark.parametrize("verb", [*cli.VERBS])
def test_an_unknown_flag_exits_2_with_the_nearest(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--jsno"])
    assert stopped.value.code == 2
    assert "--json" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tinygpt {tg.__version__}\n"


def test_settings_precedence(folder, capsys):
    (folder / "mine.toml").write_text("steps = 70\nbatch_size = 5\n[model]\nn_embd = 64\n")
    args = ["train", "--preset", "toy", "--config", "mine.toml", "--batch-size", "6", "--print-config"]
    assert main(args) == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["batch_size"] == 6  # the flag over the file
    assert settings["steps"] == 70  # the file over the preset
    assert settings["model"]["n_embd"] == 64
    assert settings["model"]["n_layer"] == 2  # the preset over the defaults
    assert settings["learning_rate"] == 1e-2  # the defaults
    assert not (folder / "runs" / "pydoc").exists()


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["train", "--data", "none.txt"], ["none.txt"]),
        (["train", "--steps", "-5"], ["steps is -5"]),
        (["train", "--steps", "5", "--warmup-steps", "20"], ["steps is 5, warmup_steps is 20"]),
        (["train", "--preset", "toy", "--steps", "5", "--warmup-steps", "10"], ["steps is 5, warmup_steps is 10"]),
        (["train", "--block-size", "0"], ["block_size is 0"]),
        (["train", "--n-head", "5"], ["n_head is 5, n_embd is 128"]),
        (["train", "--preset", "nano"], ["preset 'nano' is unknown; did you mean 'nano-"]),
        (["train", "--config", "none.toml"], ["none.toml"]),
        (["train", "--resume", "runs/none"], ["run runs/none does not exist"]),
        (["train", "--data", "book.txt", "--tokenizer", "none.json"], ["none.json"]),
        (["train", "--data", "book.txt", "--tokenizer", "bpe", "--vocab-size", "100"], ["vocab_size 100", "256"]),
        (["train", "--data", "book.txt", "--block-size", "9999"], ["3096 tokens", "block_size 9999", "10000"]),
        (["sample", "runs/none"], ["run runs/none does not exist"]),
        (["sample", "--top-p", "0"], ["top_p is 0"]),
        (["sample", "--temperature", "-1"], ["temperature is -1"]),
        (["sample", "--max-tokens", "0"], ["max_tokens is 0"]),
        (["sample", "runs/book", "--prompt", "a", "--prompt-file", "other.txt"], ["choose one"]),
        (["sample", "runs/book", "--prompt", "Ünïcode"], ["'Ü'", "'ï'"]),
        (["sample", "runs/book", "--prompt-file", "none.txt"], ["none.txt"]),
        (["eval", "runs/book", "--data", "none.txt"], ["none.txt"]),
        (["eval", "."], ["run.json"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(args, parts, run, folder, capsys):
    before = sorted(folder.rglob("*"))
    err = fails(args, capsys)
    assert all(part in err for part in parts), err
    assert err.startswith(f"tinygpt {args[0]}: ")
    assert sorted(folder.rglob("*")) == before


def test_debug_shows_where(run):
    with pytest.raises(tg.UserError):
        main(["sample", "runs/none", "--debug"])


def test_a_training_tells_what_to_type_next(run, folder, capsys):
    assert main(["train", "--data", "book.txt", *SMALL, *SHORT]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "next:\n  tinygpt sample runs/book-2\n" in err
    assert (folder / "runs" / "book-2" / "model.safetensors").is_file()


def test_train_json_is_the_only_thing_on_standard_output(run, capsys):
    assert main(["train", "--config", "runs/book/run.json", "--out", "runs/again", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {"loss", "loss_per_char", "bits_per_byte", "perplexity", "tokens", "run", "steps", "seconds"}
    assert keys | {"tokens_per_second", "parameters"} <= set(document)
    assert document["run"] == "runs/again"
    first, again = ((folder / "model.safetensors").read_bytes() for folder in (run, run.parent / "again"))
    assert first == again, "run.json reruns the job"


def test_eval(run, folder, capsys):
    assert main(["eval", "runs/book", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert document["loss"] == pytest.approx(min(line["val_loss"] for line in logged if "val_loss" in line))
    assert document["perplexity_se"] > 0
    assert main(["eval", "runs/book", "--data", "other.txt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 199
    assert main(["eval", "runs/book"]) == 0
    assert "± " in capsys.readouterr().out


def test_a_directory_with_patterns_is_read_alike_by_every_verb(run, folder, capsys):
    """What is no text is told of and skipped; run.json has the patterns: resume and eval read the same text."""
    notes = folder / "notes"
    for name, text in (("a.md", TEXT[:900]), ("b.txt", "not asked for"), ("drafts/c.md", "nor this"), ("d.md", TEXT)):
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).write_text(text)
    (notes / "e.md").write_bytes(b"\x89PNG\0")
    patterns = ["--include", "*.md", "--exclude", "drafts"]
    assert main(["train", "--data", "notes", *patterns, *SMALL, *SHORT, "--out", "runs/notes"]) == 0
    assert "skipped a file that is no text: notes/e.md" in capsys.readouterr().err
    settings = json.loads((folder / "runs" / "notes" / "run.json").read_text())["config"]
    assert (settings["include"], settings["exclude"]) == (["*.md"], ["drafts"])
    (notes / "b.txt").write_text("changed")
    (notes / "f.png").write_bytes(b"\0")
    assert main(["eval", "runs/notes"]) == 0
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("run runs/notes, its validation text of notes: ")
    assert main(["train", "--resume", "runs/notes", "--steps", "5"]) == 0
    assert main(["eval", "runs/notes", "--data", "notes", *patterns, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)["tokens"]
    assert whole == len(TEXT[:900] + "\n" + TEXT) - 1
    assert "include and exclude say which files of --data" in fails(["eval", "runs/notes", *patterns], capsys)
    assert main(["train", "--data", "notes", "--print-config", "--include", "*.md"]) == 0
    assert json.loads(capsys.readouterr().out)["include"] == ["*.md"]


def test_a_run_of_one_file_from_before_there_were_patterns_goes_on(run, folder, capsys):
    old = folder / "runs" / "old"
    shutil.copytree(run, old)
    record = json.loads((old / "run.json").read_text())
    record["config"] = {k: v for k, v in record["config"].items() if k not in ("include", "exclude", "stop_early")}
    (old / "run.json").write_text(json.dumps({**record, "format": 3}))
    assert main(["train", "--resume", "runs/old", "--steps", "6"]) == 0
    assert main(["eval", "runs/old"]) == 0
    assert "run runs/old, its validation text of book.txt: 344 tokens" in capsys.readouterr().err


TOOK = {
    "eval": "its validation text of book.txt: 344 tokens", "heads": "its validation text of book.txt: 344 tokens",
    "ablate": "its validation text of book.txt: 344 tokens", "plot": "its validation text of book.txt: 344 tokens",
    "sample": "a prompt of 4 tokens", "report": "",
}  # fmt: skip


@pytest.mark.parametrize("verb", TOOK)
def test_a_verb_names_the_run_and_the_text_that_it_took(verb, run, folder, capsys, tmp_path):
    quick = {
        "sample": ["--prompt", "the ", "--max-tokens", "2"], "heads": ["--windows", "4", "--no-figures"],
        "ablate": ["--windows", "4", "--no-figures"], "plot": ["--windows", "4", "--out", str(tmp_path)],
        "report": ["--no-measure", "--out", str(tmp_path / "page.html")],
    }  # fmt: skip
    record = json.loads((run / "run.json").read_text())  # so that it is the newest, which is taken where none is named
    (run / "run.json").write_text(json.dumps({**record, "began": time.time()}))
    os.utime(run / "model.safetensors")
    capsys.readouterr()
    assert main([verb, *quick.get(verb, [])]) == 0
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("run ")]
    want = f"run runs/book, {TOOK[verb]}" if TOOK[verb] else "run runs/book"
    assert lines == (["run runs/book", want] if verb == "plot" else [want])
    assert "run runs/book" not in out
    if verb in ("eval", "ablate"):
        assert main([verb, *quick.get(verb, []), "--data", "book.txt"]) == 0
        assert "run runs/book, the text book.txt: 3,440 tokens\n" in capsys.readouterr().err


def test_eval_of_changed_text_is_refused(run, folder, capsys):
    text = (folder / "book.txt").read_text()
    try:
        (folder / "book.txt").write_text(text.replace("fox", "cat"))
        assert "not what runs/book was trained on" in fails(["eval", "runs/book"], capsys)
    finally:
        (folder / "book.txt").write_text(text)


def test_sample(run, capsys):
    settings = ["--prompt", "the ", "--max-tokens", "12", "--seed", "3"]
    assert main(["sample", "runs/book", *settings]) == 0
    shown = capsys.readouterr().out
    assert main(["sample", "runs/book", *settings, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert set(document) == {"text", "tokens", "logprobs"}
    assert len(document["tokens"]) == len(document["logprobs"]) == 12
    assert shown == "the " + document["text"] + "\n"
    assert tg.generate(tg.load(run), "the ", max_tokens=12, seed=3) == "the " + document["text"]
    assert all(value <= 0 for value in document["logprobs"])
    assert np.isfinite(document["logprobs"]).all()


def test_sample_without_a_name_takes_the_newest_run(run, capsys, monkeypatch, folder):
    assert main(["sample", "--max-tokens", "3", "--n", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    monkeypatch.chdir(folder / "runs")
    assert "no run under runs/" in fails(["sample"], capsys)


def test_prompt_from_standard_input(run, capsys, monkeypatch):
    class Pipe:
        import io

        buffer = io.BytesIO(b"the quick")

    monkeypatch.setattr(sys, "stdin", Pipe())
    assert main(["sample", "runs/book", "--prompt-file", "-", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out.startswith("the quick")


def test_an_empty_prompt_works(run, folder, capsys):
    (folder / "empty.txt").touch()
    for prompt in ([], ["--prompt", ""], ["--prompt-file", "empty.txt"]):
        assert main(["sample", "runs/book", *prompt, "--max-tokens", "5", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)[0]["tokens"]) == 5


def test_interrupt_exits_130(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("tinygpt_jax.cli.doctor.run", interrupted)
    assert fails(["doctor"], capsys, code=130) == "interrupted\n"


def test_a_training_that_is_interrupted_exits_130_with_its_run_saved(folder, monkeypatch, capsys):
    @contextlib.contextmanager
    def at_once():
        yield lambda: 2

    monkeypatch.setattr("tinygpt_jax.runtime.stop_on_signals", at_once)
    args = ["train", "--preset", "toy", "--data", "book.txt", "--out", "runs/interrupted", "--json"]
    assert main(args) == 130
    assert json.loads(capsys.readouterr().out)["steps"] == 0
    assert (folder / "runs" / "interrupted" / "model.safetensors").is_file()


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    assert "ready" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"]
    assert document["train_step_ms"] > 0
    assert document["matmul_gflops"]["float32"] > 0


def test_doctor_knows_every_package_that_is_imported():
    """What pip brings along with another (Pillow and cycler with matplotlib, say) needs no line of its own."""
    from tinygpt_jax.diagnosis import OPTIONAL, REQUIRED

    imported = set()
    for file in Path(tg.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {name.split(".")[0] for name in names}
    theirs = imported - set(sys.stdlib_module_names) - {"tinygpt_jax", "pydoc_data"}
    known = {"orbax" if name == "orbax-checkpoint" else name for name in (*REQUIRED, *OPTIONAL)}
    assert theirs - known <= {"PIL", "cycler"}
    assert "matplotlib" in theirs & known


def test_doctor_says_how_to_get_matplotlib(monkeypatch, capsys):
    from tinygpt_jax import diagnosis as doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "matplotlib" else real(name))
    monkeypatch.setattr(doctor, "_tiny_step", lambda: 1.0)
    assert main(["doctor"]) == 0
    hint = "hint: matplotlib is missing, wanted for figures (plot, and those of heads, ablate and report): "
    assert f"{hint}pip install matplotlib" in capsys.readouterr().out


def test_doctor_says_what_is_missing(monkeypatch, capsys):
    from tinygpt_jax import diagnosis as doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("optax", "torch") else real(name))
    monkeypatch.setattr(doctor, "_tiny_step", lambda: 1 / 0)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem: optax is missing: pip install optax" in out
    assert "problem: a train step failed (ZeroDivisionError" in out
    assert "hint: torch is missing" in out
    assert "not ready" in out
