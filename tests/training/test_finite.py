"""NaN and infinity, planted: each is noticed by name, none is written over what is good, none is shown as a number."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygpt_jax as tg
from tests.training.test_loop import Recorder, config, folder, log_of  # noqa: F401
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import check_finite, flatten, init_params, unflatten
from tinygpt_jax.runs import read_config
from tinygpt_jax.text import Examples, Tokens
from tinygpt_jax.training import evaluate, trainer
from tinygpt_jax.training.checkpoint import Checkpoints
from tinygpt_jax.training.loop import train
from tinygpt_jax.training.loss import loss_sum
from tinygpt_jax.training.optimizer import learning_rate_schedule
from tinygpt_jax.training.step import init_state, make_train_step

CFG = GPTConfig(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=16, mlp_ratio=2.0)
PARAMS = init_params(jax.random.key(0), CFG)
IDS = np.random.default_rng(0).integers(0, 11, (4, 6))
NAMES = [name for name, _ in flatten(PARAMS)]
BAD = (np.nan, np.inf, -np.inf)


def planted(name, value, params=PARAMS):
    """The parameters with one number of one leaf replaced."""
    leaves = {n: np.array(leaf) for n, leaf in flatten(params)}
    leaves[name].flat[-1] = value
    return unflatten(leaves, CFG)


@given(st.sampled_from(NAMES), st.sampled_from(BAD))
def test_one_bad_number_is_named_with_its_place(name, value):
    check_finite(PARAMS)
    place = tuple(n - 1 for n in np.shape(dict(flatten(PARAMS))[name]))
    with pytest.raises(UserError) as error:
        check_finite(planted(name, value), "weights")
    assert f"weights: {name} holds {value} at {place}" in str(error.value)


def overflowing(params):
    """Finite, and such that no logit is."""
    return {**params, "lnfg": params["lnfg"] * 1e38, "tok_emb": params["tok_emb"] * 1e4}


# The lab and evaluation

QUESTION = Examples(IDS, np.roll(IDS, -1, 1))
MEASURES = {
    "ablate_heads": lambda p: tg.ablate_heads(p, IDS, CFG),
    "shapley": lambda p: tg.shapley(p, IDS, CFG),
    "head_importance": lambda p: tg.head_importance(p, IDS, CFG),
    "learn_gates": lambda p: tg.learn_gates(p, IDS, CFG, [0.1]),
    "patch": lambda p: tg.patch(p, IDS, IDS, CFG),
    "attribution_patch": lambda p: tg.attribution_patch(p, IDS, IDS, CFG),
    "path_patch": lambda p: tg.path_patch(p, IDS, IDS, CFG),
    "head_scores": lambda p: tg.head_scores(p, QUESTION, CFG),
    "logit_lens": lambda p: tg.logit_lens(p, IDS, CFG),
    "logit_attribution": lambda p: tg.logit_attribution(p, IDS, CFG),
    "attention_maps": lambda p: tg.attention_maps(p, IDS[0], CFG),
    "norm_rows": lambda p: tg.norm_rows(p, IDS[0], CFG),
    "head_split": lambda p: tg.head_split(p, IDS[0], CFG),
    "residual_writes": lambda p: tg.residual_writes(p, IDS, CFG),
    "activation_curves": lambda p: tg.activation_curves(p, IDS, CFG),
    "next_tokens": lambda p: tg.next_tokens(p, IDS[0], CFG),
    "embedding_map": lambda p: tg.embedding_map(p, CFG),
    "position_tables": lambda p: tg.position_tables(p, CFG),
    "mlp_widths": lambda p: tg.mlp_widths(p, CFG),
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_model_that_is_not_finite_is_not_measured_by(name):
    for leaf, value in (("blocks.W2", np.nan), ("tok_emb", -np.inf), ("lnfg", np.inf)):
        with pytest.raises(UserError, match=rf"parameters: {leaf} holds {value} at"):
            MEASURES[name](planted(leaf, value))


@pytest.mark.parametrize("name", ["ablate_heads", "patch"])
def test_finite_weights_whose_outputs_are_not_are_not_measured(name):
    with pytest.raises(UserError, match=r"loss is (nan|inf) on example 0 of the intact model, so nothing can be"):
        MEASURES[name](overflowing(PARAMS))


@pytest.mark.parametrize("value", BAD)
def test_evaluation_of_damaged_weights_names_them(value, monkeypatch):
    model = tg.Model(planted("blocks.Wq", value), CFG, None)
    monkeypatch.setattr(evaluate, "load", lambda run: model)
    monkeypatch.setattr(evaluate, "text_to_score", lambda *_: Tokens(IDS[0], 6, 6))
    with pytest.raises(UserError, match=rf"the weights of runs/a: blocks.Wq holds {value} at \(1, 15, 15\)"):
        tg.evaluate("runs/a")


# Training


def planting(monkeypatch, step, plant):
    """Has the state changed by `plant` after the dispatch in which a step was taken."""
    real = trainer.Trainer.advance

    def advance(self, dispatch, feed):
        def planted_dispatch(state, *rest):
            before = int(state.step)  # which is donated
            after, metrics = dispatch(state, *rest)
            return (plant(after) if before < step <= int(after.step) else after), metrics

        real(self, planted_dispatch, feed)

    monkeypatch.setattr(trainer.Trainer, "advance", advance)


def in_moments(state):
    leaves, tree = jax.tree.flatten(state.opt_state)
    largest = max(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[largest] = leaves[largest].at[..., -1].set(jnp.inf)
    return state._replace(opt_state=jax.tree.unflatten(tree, leaves))


def in_a_weight(state):
    return state._replace(params={**state.params, "lnfg": state.params["lnfg"].at[0].set(jnp.nan)})


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (in_moments, r"at step 6 optimizer\..* holds inf at"),
        (in_a_weight, r"at step 6 params.lnfg holds nan at \(0,\)"),
    ],
    ids=["optimizer", "weights"],
)
def test_a_state_that_is_not_finite_is_named_and_not_written(folder, plant, message, monkeypatch):  # noqa: F811
    cfg = config(folder, f"planted-{plant.__name__}", checkpoint_every=2, eval_every=2, steps_per_dispatch=2)
    planting(monkeypatch, 6, plant)
    with pytest.raises(UserError, match=f"training diverged: {message}") as error:
        train(dataclasses.replace(cfg, steps=8), display=Recorder())
    assert "\n" not in str(error.value)
    check_finite(tg.load(cfg.out).params)
    with Checkpoints(folder / f"planted-{plant.__name__}") as checkpoints:
        assert checkpoints.steps()[-1] == 4
        check_finite(checkpoints.restore(read_config(cfg.out))[0]._asdict())


def test_a_state_from_which_steps_are_skipped_takes_no_good_ones_place(folder, monkeypatch):  # noqa: F811
    """Saved after every step, three kept, and four skipped before it stops: none of the three is of a skipped one."""

    def overflow(state):
        return state._replace(params=overflowing(state.params))

    cfg = config(folder, "skipping", checkpoint_every=1, eval_every=100, steps_per_dispatch=1, max_skipped=4, steps=20)
    planting(monkeypatch, 6, overflow)
    display = Recorder()
    with pytest.raises(UserError, match="not finite for 4 steps in a row, up to step 10"):
        train(cfg, display=display)
    assert "step 7: skipped 1, loss and gradient not finite" in display.text
    assert [line["step"] for line in log_of(folder / "skipping") if line["loss"] is None] == [7, 8, 9, 10]
    with Checkpoints(folder / "skipping") as checkpoints:
        assert checkpoints.steps() == [4, 5, 6]


def test_a_target_outside_the_vocabulary_is_no_loss_and_no_step():
    """Inside jit nothing can be raised; what it gives is NaN, and the step is skipped."""
    training = TrainConfig(model=CFG, steps=4, warmup_steps=0, batch_size=4, optimizer="sgd")
    ids = IDS[None].astype(np.int32)
    for value in (11, 2**31 - 1):
        targets = ids.copy()
        targets[0, 1, 2] = value
        state, metrics = jax.jit(make_train_step(training))(init_state(training), ids, targets)
        assert math.isnan(metrics.loss)
        assert int(state.skipped) == 1


ONES = {"vocab_size": 1, "block_size": 1, "n_layer": 1, "n_head": 1, "n_embd": 1}
EXTREMES = {
    "one of everything": ONES,
    "rows without variance": {"n_embd": 1, "n_head": 1, "norm_eps": 1e-12},
    "bfloat16 and large": {"compute_dtype": "bfloat16", "norm": "rmsnorm"},
    "nearly all dropped": {"dropout": 1 - 1e-7},
}


@pytest.mark.parametrize("name", EXTREMES)
def test_gradients_are_finite_at_the_edges(name):
    cfg = check(dataclasses.replace(CFG, **EXTREMES[name]))
    params = init_params(jax.random.key(0), cfg)
    if "large" in name:
        params = jax.tree.map(lambda a: a * 1e4, params)
    ids = jnp.asarray(IDS[:, : cfg.block_size] % cfg.vocab_size, jnp.int32)
    slope = jax.jit(jax.value_and_grad(loss_sum), static_argnums=3)
    for targets in (ids, jnp.full_like(ids, -1)):
        loss, grads = slope(params, ids, targets, cfg, jax.random.key(0))
        check_finite({"loss": loss, **grads})
    assert loss == 0  # no target counts
    assert optax.tree.norm(grads) == 0


def test_norms_without_an_epsilon_are_refused():
    for eps in (0.0, 1e-13, float("nan")):
        with pytest.raises(UserError, match="norm_eps is .*: must be a number, 1e-12 or more"):
            check(dataclasses.replace(CFG, norm_eps=eps))


def test_no_score_however_low_lets_a_query_see_later_tokens():
    """Scores of -1e32, below what a mask once counted as."""
    blocks = PARAMS["blocks"]
    params = {**PARAMS, "blocks": {**blocks, "Wq": blocks["Wq"] * 1e17, "Wk": -blocks["Wq"] * 1e17}}
    later = IDS.copy()
    later[:, -1] = (later[:, -1] + 1) % 11
    before, after = (np.asarray(tg.gpt_forward(params, ids, CFG)) for ids in (IDS, later))
    assert np.isfinite(before).all()
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_schedule_of_the_longest_run_is_exact_to_its_last_step(schedule):
    steps = 2**31 - 1
    cfg = check(TrainConfig(steps=steps, warmup_steps=1000, schedule=schedule, min_learning_rate=1e-3))
    rate = learning_rate_schedule(cfg)
    for step in (0, 999, 1000, 2**24 + 1, 2**30, steps - 2**24, steps):
        part = (step - 1000) / (steps - 1000)
        fall = (1 + math.cos(math.pi * part)) / 2 if schedule == "cosine" else 1 - part
        want = cfg.learning_rate * (step + 1) / 1001 if step < 1000 else 1e-3 + (cfg.learning_rate - 1e-3) * fall
        assert float(rate(jnp.int32(step))) == pytest.approx(want, rel=1e-5, abs=1e-8)
