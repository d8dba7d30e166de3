"""What a person sees: live on a terminal, plain lines elsewhere, and the same facts in both."""

import io

import pytest

from tinygpt_jax.runtime import Messages
from tinygpt_jax.training.display import Display, LiveDisplay, Status, duration, make_display, validation_line
from tinygpt_jax.training.evaluate import Evaluation

STATUS = Status(step=250, steps=1000, loss=2.345, tokens_per_second=15_300.0, seconds_left=83.0)
RESULT = Evaluation(loss=2.5, loss_se=0.01, loss_per_char=1.25, bits_per_byte=1.8, tokens=1000)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_stream_decides():
    assert isinstance(make_display(io.StringIO()), Display)
    assert isinstance(make_display(Terminal()), LiveDisplay)


@pytest.mark.parametrize("kind", [Display, LiveDisplay])
def test_a_validation_shows_every_unit(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    stream = Terminal()
    display = kind(stream)
    display.note("a [note]")
    with display.working("compiling"):
        pass
    display.update(STATUS)
    display.validated(STATUS, RESULT, best=True)
    display.sampled(250, "To be [or] not")
    display.close()
    shown = stream.getvalue()
    for part in ("a [note]", "2.5000 ± 0.0100 nats/token", "1.2500 nats/char", "1.800 bits/byte", "83 s left", "best"):
        assert part in shown
    assert "To be [or] not" in shown
    assert "15,300 tokens/s" in shown


def test_a_loss_per_token_that_is_one_per_character_is_shown_once():
    line = validation_line(STATUS, RESULT._replace(loss_per_char=2.5), best=False)
    assert "val 2.5000 ± 0.0100 nats/char  1.800 bits/byte" in line
    assert "nats/token" not in line


def test_plain_lines_hold_no_control_characters():
    stream = io.StringIO()
    display = Display(stream)
    display.update(STATUS)
    display.validated(STATUS, RESULT, best=False)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


DURATIONS = {0.4: "0 s", 99: "99 s", 185: "3 min 05 s", 7800: "2 h 10 min", 360000: "100 h 00 min"}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations(seconds):
    assert duration(seconds) == DURATIONS[seconds]


@pytest.mark.parametrize("loss", [2.5, 700.0, 1e30, 1e300])
def test_no_number_of_a_validation_has_hundreds_of_digits(loss):
    result = Evaluation(loss=loss, loss_se=loss / 10, loss_per_char=loss / 2, bits_per_byte=loss, tokens=1000)
    for line in (validation_line(STATUS, result, best=False), *result.facts().values()):
        assert len(line) < 140


class Broken(io.StringIO):
    """A reader that goes away after some lines."""

    lines = 2

    def write(self, text):
        self.lines -= text.count("\n")
        if self.lines < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


def test_a_display_that_cannot_be_written_stops_nothing(monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", None)
    for stream in (None, ascii_only, broken := Broken()):
        display = make_display(stream)
        for _ in range(4):
            display.validated(STATUS, RESULT, best=True)
        display.sampled(250, "a ± b")
        display.close()
    ascii_only.flush()
    assert rb"2.5000 \xb1 0.0100" in ascii_only.buffer.getvalue()
    assert broken.getvalue().count("\n") == 2


def test_samples_cannot_steer_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for kind in (Display, LiveDisplay):
        stream = Terminal()
        display = kind(stream)
        display.sampled(250, "a\x1b[2Jb\x9b1mc\rd\u202ee")
        assert "aU+001B[2JbU+009B1mcU+000DdU+202Ee" in stream.getvalue()


def test_a_writer_that_is_no_file_is_written_to(tmp_path):
    """As a class of a user's own that copies what is said to a log."""

    class Writer:
        said = ""

        def write(self, text):
            self.said += text

    messages = Messages(Writer())
    assert isinstance(make_display(messages), Display)
    messages.write("±\n")
    messages.flush()
    assert messages._stream.said == "±\n"
