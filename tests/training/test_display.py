"""What a person sees: live on a terminal, plain lines elsewhere, and the same facts in both."""

import io

import pytest

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
