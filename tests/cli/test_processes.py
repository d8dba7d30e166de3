"""The command as a process: output that cannot be written, signals at any moment, odd environments."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tinygpt_jax.cli import main
from tinygpt_jax.markup import harmless, say_to
from tinygpt_jax.runtime import SIGNALS, Messages

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
TRAIN = ["train", "--data", "text.txt", "--preset", "toy", "--n-layer", "1", "--n-embd", "16", "--block-size", "8"]


def process(args, folder, redirected="", before="", **environment):
    """The command started by a shell, so that its streams can be closed."""
    environment = {"PYTHONUNBUFFERED": "", **environment}
    line = f'{before} exec "$0" -m tinygpt_jax "$@" {redirected}'
    return subprocess.Popen(
        ["bash", "-c", line, sys.executable, *args], cwd=folder, env={**os.environ, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(started):
    out, err = started.communicate(timeout=300)
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    return started.returncode, out, err


# Output that cannot be written


@pytest.mark.parametrize("redirected", [">&-", "> /dev/full", "gone", "<&- >&- 2>&-"])
@pytest.mark.parametrize("args", [["--version"], ["train", "--help"]], ids=str)
def test_what_cannot_be_printed_fails_in_one_line(args, redirected, tmp_path):
    if redirected == "gone":  # the reader of a pipe
        started = process(args, tmp_path)
        started.stdout.close()
        err = started.stderr.read()
        assert started.wait(timeout=300) == 1
        assert err == ""
        started.stderr.close()
        started.stdin.close()
        return
    code, _, err = outcome(process(args, tmp_path, redirected))
    assert code == 1
    assert err.count("\n") == ("2>&-" not in redirected)
    assert "2>&-" in redirected or "cannot write standard output" in err


def test_a_stream_for_messages_never_stops_the_work():
    class Full(io.StringIO):
        encoding = "ascii"

        def write(self, text):
            raise OSError(28, "No space left on device")

    closed, ascii_only = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    closed.close()
    for stream in (None, closed, Full(), ascii_only):
        messages = Messages(stream)
        for _ in range(2):
            print("1.0 ± 0.1", file=messages, flush=True)
        assert not messages.isatty()
    assert ascii_only.buffer.getvalue() == b"1.0 \\xb1 0.1\n" * 2


@pytest.mark.slow
@pytest.mark.parametrize("redirected", [">&- 2>&-", "2> /dev/full", "<&- >&- 2>&-", "2>&1 | head -1"])
def test_a_run_goes_on_without_its_messages(redirected, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    started = process([*TRAIN, "--out", "run"], tmp_path, redirected)
    if "|" in redirected:
        started.communicate(timeout=300)
    else:
        assert outcome(started)[0] == 0
    assert (tmp_path / "run" / "checkpoints" / "100").is_dir()


# Signals


def test_a_signal_ends_a_process_that_waits_for_its_text(tmp_path):
    """Each at another moment of starting and of reading a pipe that stays empty: nothing is there to save. What nohup
    ignores stays ignored."""
    waiting = ["train", "--data", "-", "--out", "run"]
    started = [process(waiting, tmp_path) for _ in SIGNALS]
    deaf = process(waiting, tmp_path, before='trap "" HUP;')
    try:
        for number, one, delay in zip(SIGNALS, started, (6, 1, 1, 1, 1), strict=True):
            time.sleep(delay)
            one.send_signal(number)
            assert one.wait(timeout=60) == 128 + number
            assert one.stderr.read().endswith("interrupted\n")
        deaf.send_signal(signal.SIGHUP)
        deaf.send_signal(signal.SIGTERM)
        assert deaf.wait(timeout=60) == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
    finally:
        for one in (*started, deaf):
            one.kill()
            one.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_in_training_saves_and_its_echo_changes_nothing(number, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    long = ["--steps", "1000000", "--checkpoint-every", "1000000", "--keep-checkpoints", "0"]
    started = process([*TRAIN, *long, "--out", "run"], tmp_path)
    log, began = tmp_path / "run" / "metrics.jsonl", time.monotonic()
    while not (log.is_file() and log.stat().st_size) and time.monotonic() - began < 200:
        time.sleep(0.1)
    for _ in range(2):
        started.send_signal(number)
        time.sleep(0.01)
    code, _, err = outcome(started)
    assert code == 128 + number
    saved = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit())
    assert f"interrupted at step {saved[-1]:,}, all saved" in err
    assert saved[-1] > 0
    assert saved[0] == 0


# Odd environments


@pytest.mark.parametrize(
    ("environment", "args", "wanted"),
    [
        ({"PYTHONOPTIMIZE": "2"}, ["eval", "--help"], "  tinygpt eval runs/book --data other.txt"),
        ({"COLUMNS": "5"}, ["train", "--help"], "tinygpt train --data"),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, ["train", "--help"], "tinygpt train"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_help_is_the_same_in_odd_environments(environment, args, wanted, tmp_path):
    code, out, _ = outcome(process(args, tmp_path, **environment))
    assert code == 0
    assert wanted in out
    assert "Flags(" not in out


@pytest.mark.parametrize("platform", ["cuda", pytest.param("nonsense", marks=pytest.mark.slow)])
def test_a_device_that_is_not_there_is_said(platform, tmp_path):
    started = [process([*args], tmp_path, JAX_PLATFORMS=platform) for args in (["doctor"], ["bench", "--quick"])]
    for code, out, err in map(outcome, started):
        assert code == 1
        assert f"JAX_PLATFORMS is {platform!r}" in out + err
        assert "reinstall" not in out + err


# What reaches a terminal

STEERING = {"\x1b": "U+001B", "\x07": "U+0007", "\r": "U+000D", "\x9b": "U+009B", "\x7f": "U+007F", "\u202e": "U+202E"}
STEERING |= {"\u2066": "U+2066", "\x00": "U+0000", "\ud800": "U+D800"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("character", STEERING, ids=ascii)
def test_what_would_steer_a_terminal_is_named_there_and_exact_elsewhere(character):
    text = f"a\tb\n{character}[2J c é 漢 👍"
    terminal, file = Terminal(), io.StringIO()
    say_to(terminal, text)
    say_to(file, text)
    assert terminal.getvalue() == text.replace(character, STEERING[character]) + "\n"
    assert file.getvalue() == text + "\n"


def test_harmless_text_is_left_alone():
    text = "".join(chr(i) for i in range(32, 127)) + "\n\tšçñ עברית فارسی\u200c 👩‍🔬"
    assert harmless(text) == text


def test_no_verb_prints_raw_text_on_a_terminal(monkeypatch, tmp_path, capsys):
    """A run's name, an error and JSON that hold escapes."""
    from tinygpt_jax.cli.common import print_json, tell

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    tell("run \x1b[31m")
    assert main(["eval", "\x1b[31mnone"]) == 1
    print_json({"text": "\x9b31m\x1b\u202e"})
    assert "\x1b" not in out.getvalue() + err.getvalue()
    assert "\x9b" not in out.getvalue()
    assert json.loads(out.getvalue()) == {"text": "\x9b31m\x1b\u202e"}


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"JAX_DEBUG_NANS": "1"}, {"JAX_DISABLE_JIT": "1"}], ids=str)
def test_a_healthy_run_trains_whatever_is_being_debugged(environment, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    code, _, err = outcome(process([*TRAIN, "--steps", "4", "--warmup-steps", "1"], tmp_path, **environment))
    assert code == 0, err


@pytest.mark.parametrize("name", ["my.cfg", "my.toml", "my"])
def test_printed_settings_can_be_given_back_under_any_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--steps", "77", "--print-config"]) == 0
    (tmp_path / name).write_text(printed := capsys.readouterr().out)
    assert main(["train", "--config", name, "--print-config"]) == 0
    assert capsys.readouterr().out == printed
