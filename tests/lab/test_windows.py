"""Windows of a text: where they lie, how many there are, and what is said where there is no room for as many."""

import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.analyses import USUAL
from tinygpt_jax.lab.metrics import as_examples
from tinygpt_jax.lab.windows import halves, text_windows
from tinygpt_jax.text import Tokens

CFG = GPTConfig(vocab_size=50, block_size=4, n_layer=1, n_head=1, n_embd=4)


def text(n):
    ids = np.arange(n, dtype=np.uint16) % 50
    return Tokens(ids, n, n)


def test_windows_are_spread_over_the_text_in_its_order():
    found = text_windows(text(401), CFG, 5)
    assert found.place.tolist() == [0, 100, 200, 296, 396]
    np.testing.assert_array_equal(found.ids, (found.place[:, None] + np.arange(4)) % 50)
    np.testing.assert_array_equal(found.targets, (found.place[:, None] + np.arange(1, 5)) % 50)
    assert all((np.diff(half.place) > 0).all() for half in halves(text_windows(text(401), CFG, 9)))


@pytest.mark.parametrize(("tokens", "room"), [(217, 54), (401, 100)])
def test_as_many_as_asked_for_or_a_line_that_says_how_many_there_are(tokens, room):
    assert len(text_windows(text(tokens), CFG).ids) == min(room, USUAL)
    assert len(text_windows(text(tokens), CFG, room).ids) == room
    for n in (room + 1, 10**6):
        with pytest.raises(UserError, match=rf"windows is {n}: the text has room for {room} of 4 tokens; ask for at"):
            text_windows(text(tokens), CFG, n)
    for n in (1, 0, -3):
        with pytest.raises(UserError, match=rf"windows is {n}: an error needs two"):
            text_windows(text(tokens), CFG, n)
    with pytest.raises(UserError, match="windows is 1: an error needs two; ask for more, or give a text of 9 tokens"):
        text_windows(text(8), CFG)


def test_a_list_of_places_will_do():
    found = text_windows(text(401), CFG, 5)
    assert as_examples(found._replace(place=found.place.tolist()), CFG).place.tolist() == found.place.tolist()


def test_examples_out_of_the_order_of_their_text_are_refused():
    found = text_windows(text(401), CFG, 5)
    wrong = (found.place[::-1], found.place[:4], np.zeros(5, np.int32), found.place[:, None], np.full(5, np.nan))
    for place in (*wrong, found.place.astype(float), [0, 1, 2, 3, np.nan], ["a", "b", "c", "d", "e"]):
        with pytest.raises(UserError, match="must be 5 whole numbers that rise"):
            as_examples(found._replace(place=place), CFG)
