"""Models at the edges of what the settings allow: each trains, writes and is measured, or is refused in one line."""

import dataclasses

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax.config import MAX_DISPATCH, GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.runs import read_config
from tinygpt_jax.training.step import init_state, make_dispatch

SHAPE = jax.ShapeDtypeStruct
PLAIN = GPTConfig(block_size=4, n_layer=1, n_head=1, n_embd=4)
EXTREMES = {
    "width 1": {"n_embd": 1},
    "width 1, rope": {"n_embd": 1, "positions": "rope"},
    "block 1": {"block_size": 1},
    "heads of width 1": {"n_head": 4},
    "no MLP": {"mlp_ratio": 0.0},
    "no norm, no residual": {"norm": "none", "residual": False},
    "padded far": {"vocab_multiple": 1000},
    "the least of all": {"n_embd": 1, "block_size": 1, "mlp_ratio": 0.0},
}


def one_line(work):
    try:
        return work()
    except UserError as error:
        line = str(error)
    assert "\n" not in line
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_model_works_or_is_refused_on_a_text_of_one_symbol(name, tmp_path):
    text = "a" * 200
    (tmp_path / "a.txt").write_text(text)
    cfg = TrainConfig(
        model=dataclasses.replace(PLAIN, **EXTREMES[name]), data=(str(tmp_path / "a.txt"),), out=str(tmp_path / "run"),
        steps=2, batch_size=2, optimizer="adamw", eval_every=1, sample_every=1, checkpoint_every=1,
    )  # fmt: skip
    result = one_line(lambda: tg.train(cfg))
    if name == "width 1, rope":
        assert result is None
        return
    assert result is not None
    assert result.steps == 2
    assert set(tg.generate(result.run, "a", max_tokens=9)) <= set(text)
    if name == "the least of all":
        assert tg.train(dataclasses.replace(read_config(result.run), steps=3), resume=result.run).steps == 3
    one_line(lambda: tg.heads(result.run, figures=False))
    one_line(lambda: tg.ablate(result.run, figures=False))


def test_what_is_compiled_does_not_grow_with_the_layers():
    """Models deeper than `unroll_layers` have one block in their program, however deep they are."""

    def lines(n_layer):
        cfg = TrainConfig(model=dataclasses.replace(PLAIN, n_layer=n_layer, vocab_size=4), batch_size=2)
        starts, number = SHAPE((MAX_DISPATCH, 1, 2), np.int32), SHAPE((), np.int32)
        state = jax.eval_shape(lambda: init_state(cfg))
        lowered = jax.jit(make_dispatch(cfg)).lower(state, SHAPE((100,), np.int32), starts, number)
        return len(lowered.as_text().splitlines())

    assert lines(48) == lines(13) < lines(12)
