"""Heads really gone: the pruned model is the whole one with the same heads switched off at `z`, wherever it is used."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax.cli import main
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward, init_cache
from tinygpt_jax.lab.remove.prune import prune, save_pruned
from tinygpt_jax.params import ParamSpec, check_params, count_params, flatten, param_shapes, param_specs
from tinygpt_jax.runs import Model
from tinygpt_jax.text import char_tokenizer
from tinygpt_jax.training.loss import loss_sum, token_losses

L, H, B, T, V = 2, 4, 2, 8, 12
CFG = GPTConfig(vocab_size=V, block_size=T, n_layer=L, n_head=H, n_embd=16, mlp_ratio=1.0, positions="rope")
KEEP = np.array([[False] * 4, [True, False, False, True]])
UNEVEN = np.array([[False, True, True, True], [False, True, False, False]])
IDS = np.random.default_rng(1).integers(0, V, (B, T))
TARGETS = np.roll(IDS, -1, axis=1)
TOKENIZER = char_tokenizer("abcdefghij \n")

quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


def make_model(seed: int = 0, **changes) -> Model:
    """Weights so large that every head matters, with biases and scales far from 0 and 1."""
    cfg = dataclasses.replace(CFG, **changes)
    rng = np.random.default_rng(seed)

    def draw(spec: ParamSpec, shape):
        return jnp.asarray((spec.init == "ones") + 0.4 * rng.standard_normal(shape.shape), jnp.float32)

    tree = jax.tree.map(draw, param_specs(cfg), param_shapes(cfg), is_leaf=lambda node: isinstance(node, ParamSpec))
    return Model(tree, cfg, TOKENIZER)


def off(keep, fill=None) -> dict[str, Edit]:
    """What `prune` does, as an edit."""
    mask = jnp.asarray(keep, jnp.float32)[:, None, :, None, None]
    return {"z": Edit(mask, None if fill is None else (1 - mask) * jnp.asarray(fill)[:, None, :, None])}


MODEL = make_model()
PRUNED = prune(MODEL, KEEP)
FILL = np.random.default_rng(2).standard_normal((L, H, 4)).astype(np.float32)


@functools.partial(quick_jit, static_argnums=1)
def logits_of(params, cfg, edits=None):
    return forward(params, IDS, cfg, edits=edits).logits


def difference(model: Model, pruned: Model, edits) -> float:
    whole, cut = logits_of(model.params, model.cfg, edits), logits_of(pruned.params, pruned.cfg)
    return float(np.abs(whole - cut).max())


# The same function


@pytest.mark.parametrize("fill", [None, FILL], ids=["zero", "mean"])
@pytest.mark.parametrize(
    ("keep", "changes"),
    [
        (KEEP, {}),
        (KEEP, {"attn_bias": True, "positions": "learned"}),
        (UNEVEN, {"norm": "rmsnorm", "residual": False, "smeared_keys": True}),
    ],
    ids=["no biases", "biases", "smeared keys"],
)
def test_pruned_logits_are_those_of_the_edit(keep, changes, fill):
    model = make_model(**changes)
    pruned = prune(model, keep, fill)
    check_params(pruned.params, pruned.cfg)
    assert pruned.cfg.heads == tuple(tuple(np.flatnonzero(row)) for row in keep)
    assert pruned.cfg.attn_bias == (fill is not None or model.cfg.attn_bias)
    assert difference(model, pruned, off(keep, fill)) < 1e-5
    assert difference(model, pruned, off(~keep, fill)) > 1e-2


def test_a_wrong_head_or_a_lost_fill_is_caught():
    wrong = KEEP.copy()
    wrong[1] = [True, True, False, False]
    assert difference(MODEL, prune(MODEL, wrong), off(KEEP)) > 1e-2
    assert difference(MODEL, prune(MODEL, KEEP), off(KEEP, FILL)) > 1e-2


def test_nothing_and_everything_can_go():
    for keep in (np.ones((L, H), bool), np.zeros((L, H), bool)):
        pruned = prune(MODEL, keep)
        assert pruned.cfg.heads_per_layer == tuple(keep.sum(1))
        assert difference(MODEL, pruned, off(keep)) < 1e-5


def test_what_is_gone_takes_no_place():
    C, K, gone = CFG.n_embd, CFG.head_width, (~KEEP).sum()
    norms = 2 * C  # of the layer without heads
    assert count_params(CFG) - count_params(PRUNED.cfg) == gone * 4 * C * K + norms
    assert sum(leaf.size for _, leaf in flatten(PRUNED.params)) == count_params(PRUNED.cfg)


def test_loss_and_the_gradient_of_what_remains_are_the_whole_models():
    def whole(params):
        logits = forward(params, IDS, CFG, edits=off(KEEP)).logits
        return token_losses(logits, TARGETS).sum()

    value, grad = quick_jit(jax.value_and_grad(whole))(MODEL.params)
    got, grad_left = quick_jit(jax.value_and_grad(lambda p: loss_sum(p, IDS, TARGETS, PRUNED.cfg)))(PRUNED.params)
    assert float(got) == pytest.approx(float(value), rel=1e-6)
    want = prune(
        Model(grad, CFG, TOKENIZER), KEEP
    ).params  # a gradient has the shape of the parameters, and is cut alike
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), grad_left, want)
    assert float(jnp.abs(grad_left["blocks"][1]["Wq"]).max()) > 1e-2


def test_cached_decoding_is_the_whole_models():
    step = quick_jit(lambda ids, pos, cache: forward(PRUNED.params, ids, PRUNED.cfg, pos=pos, cache=cache))
    cache, rows = init_cache(PRUNED.cfg, B, T), []
    assert [k.shape[1] for k in cache.k] == [0, 2]
    for t in range(T):
        result = step(IDS[:, t : t + 1], jnp.full((B, 1), t, jnp.int32), cache)
        cache = result.cache
        rows.append(result.logits[:, 0])
    np.testing.assert_allclose(np.stack(rows, 1), logits_of(MODEL.params, CFG, off(KEEP)), atol=1e-5)


@pytest.mark.parametrize("cache", [True, False])
def test_a_pruned_model_writes_what_the_edited_one_writes(cache):
    settings = {"max_tokens": 20, "seed": 3, "cache": cache}
    whole = tg.sample(MODEL, ["abc", "j"], edits=off(KEEP), **settings)
    pruned = tg.sample(PRUNED, ["abc", "j"], **settings)
    assert [s.tokens for s in pruned] == [s.tokens for s in whole]
    intact = tg.sample(MODEL, ["abc", "j"], edits=off(KEEP | True), **settings)
    assert [s.tokens for s in pruned] != [s.tokens for s in intact]


def test_a_pruned_model_can_be_pruned_further():
    keep = np.ones((L, H), bool)
    keep[1] = [True, True, True, False]  # of which head 1 and 2 are gone already
    further = prune(PRUNED, keep, FILL)
    assert further.cfg.heads == ((), (0,))
    last = np.zeros((L, H), bool)
    last[1, 3] = True
    removed = jnp.asarray(last, jnp.float32)[:, None, :, None, None]
    edits = {"z": Edit(jnp.asarray(KEEP & keep, jnp.float32)[:, None, :, None, None], removed * FILL[:, None, :, None])}
    assert difference(MODEL, further, edits) < 1e-5


def test_a_head_that_was_pruned_has_no_effect_at_all_and_others_have_theirs():
    params, cfg = tg.whole(PRUNED.params, PRUNED.cfg)
    np.testing.assert_allclose(logits_of(params, cfg), logits_of(MODEL.params, CFG, off(KEEP)), atol=1e-5)
    for fill in ("zero", "mean"):
        found = tg.ablate_heads(params, IDS, cfg, fill=fill)
        assert not found.per_example[~KEEP].any()
        assert (np.abs(found.effect[KEEP]) > 1e-4).all()
    with pytest.raises(UserError, match=r"pruned to 0, 2 heads: measure tinygpt_jax.whole\(params, cfg\)"):
        tg.ablate_heads(PRUNED.params, IDS, PRUNED.cfg)


# The run directory


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training, to prune."""
    folder = tmp_path_factory.mktemp("prune")
    (folder / "text.txt").write_text("a big cab had a bad jab\n" * 60)
    model = dataclasses.replace(CFG, n_layer=1, n_head=2)
    settings = {"steps": 2, "warmup_steps": 1, "batch_size": 2, "sample_every": 0, "optimizer": "sgd"}
    tg.train(tg.TrainConfig(model=model, data=(str(folder / "text.txt"),), out=str(folder / "whole"), **settings))
    return folder / "whole"


HALF = np.array([[True, False]])


def test_a_pruned_run_opens_samples_and_is_scored(run, capsys):
    out = run.with_name("half")
    whole = tg.load(run)
    pruned = prune(whole, HALF)
    save_pruned(pruned, out, run, HALF, {"fill": "zero"})
    model = tg.load(out)
    assert model.cfg == pruned.cfg
    jax.tree.map(np.testing.assert_array_equal, model.params, pruned.params)
    record = json.loads((out / "run.json").read_text())
    assert record["pruned"].pop("weights_sha256")
    assert record["pruned"] == {"from": str(run), "kept": [[0]], "fill": "zero"}
    assert record["parameters"] == count_params(model.cfg) < json.loads((run / "run.json").read_text())["parameters"]
    assert main(["eval", str(out), "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert main(["eval", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] != loss
    assert main(["sample", str(out), "--prompt", "a b", "--max-tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("a b")


@pytest.mark.parametrize("keep", [HALF, ~HALF & HALF], ids=["one head", "no head"])
def test_a_pruned_run_goes_on_training_and_stays_small(run, keep, capsys):
    whole, out = tg.load(run), run.with_name(f"on{keep.sum()}")
    save_pruned(prune(whole, keep), out, run, keep)
    assert (out / "model.safetensors").stat().st_size < (run / "model.safetensors").stat().st_size
    first = tg.load(out)
    assert main(["train", "--resume", str(out), "--steps", "12", "--eval-every", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 12
    trained = tg.load(out)
    assert trained.cfg == first.cfg
    assert jax.tree.structure(trained.params) == jax.tree.structure(first.params)
    assert np.abs(trained.params["tok_emb"] - first.params["tok_emb"]).max() > 1e-4
    assert main(["eval", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(result["loss"], rel=1e-6)
    assert json.loads((out / "run.json").read_text())["pruned"]["from"] == str(run)


def test_the_lab_opens_a_pruned_run_as_any_other(run, capsys, tmp_path):
    out = run.with_name("opened")
    save_pruned(prune(tg.load(run), HALF), out, run, HALF)
    flags = ["--windows", "4", "--no-figures", "--json", "--out", str(tmp_path)]
    assert main(["ablate", str(out), *flags]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"].values()
    assert np.shape(found["effect"]) == (1, 2)
    assert found["effect"][0][1] == 0 != found["effect"][0][0]
    assert main(["heads", str(out), *flags]) == 0
    assert main(["ablate", str(out), "--sets", "0.0", "--save-pruned", str(run.with_name("none")), *flags]) == 0
    assert tg.load(run.with_name("none")).cfg.heads == ((),)


def test_a_run_is_not_overwritten_unless_told(run):
    out, model = run.with_name("taken"), prune(tg.load(run), HALF)
    save_pruned(model, out, run, HALF)
    before = (out / "run.json").read_bytes()
    with pytest.raises(UserError, match="taken exists: .* replace it with"):
        save_pruned(model, out, run, HALF, {"note": 1})
    assert (out / "run.json").read_bytes() == before
    save_pruned(model, out, run, HALF, {"note": 1}, force=True)
    assert (out / "run.json").read_bytes() != before
    with pytest.raises(UserError, match="whole is what was pruned: choose another directory"):
        save_pruned(model, run, run, HALF, force=True)
    with pytest.raises(UserError, match=r"keep leaves heads \(\(0, 1\),\), the model has \(\(0,\),\)"):
        save_pruned(model, run.with_name("other"), run, HALF | True)
    other = model._replace(params=jax.tree.map(lambda leaf: leaf + 1, model.params))
    with pytest.raises(UserError, match="the model is not .*whole without the heads that keep leaves out"):
        save_pruned(other, run.with_name("other"), run, HALF)
    assert not run.with_name("other").exists()


# Bad input


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (np.ones((H, L), bool), r"keep has shape \(4, 2\) and dtype bool: must be bool, \(layers, heads\) = \(2, 4\)"),
        (np.ones((L, H)), r"keep has shape \(2, 4\) and dtype float64: must be bool"),
        (True, "keep is True: must be an array"),
        (np.array(True), r"keep has shape \(\)"),
    ],
)
def test_a_keep_that_does_not_fit_is_refused(keep, message):
    with pytest.raises(UserError, match=message):
        prune(MODEL, keep)


def test_a_fill_or_a_model_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"fill has shape \(2, 4\): must be .* = \(2, 4, 4\)"):
        prune(MODEL, KEEP, FILL[..., 0])
