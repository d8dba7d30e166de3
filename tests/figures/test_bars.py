import pytest

from tinygpt_jax.figures.bars import bar_chart
from tinygpt_jax.figures.words import Words


@pytest.mark.parametrize(("signed", "written"), [(True, ["+0.500", "−0.250"]), (False, ["0.500", "−0.250"])])
def test_a_number_above_0_has_its_sign_where_it_is_asked_for(signed, written):
    figure = bar_chart(["up", "down"], [0.5, -0.25], None, Words("bars", "value", ""), signed=signed)
    assert [text.get_text() for text in figure.axes[0].texts] == written
