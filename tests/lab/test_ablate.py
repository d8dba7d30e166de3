"""Ablation against separate forward passes, and the identities that hold exactly."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tests.test_model import noisy_params
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab import engine
from tinygpt_jax.lab.components import all_heads, make_sets
from tinygpt_jax.lab.fills import derangement, fitted_values, mean_fill
from tinygpt_jax.lab.intervention import Fill, Gates, open_gates, zero_fill
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import as_examples, resolve_metric
from tinygpt_jax.lab.remove.ablate import Ablation, ablate_heads, ablate_pairs, ablate_sets
from tinygpt_jax.statistics import standard_error
from tinygpt_jax.text import repeated_sequences
from tinygpt_jax.training.loss import token_losses

CFG = GPTConfig(vocab_size=11, block_size=8, n_layer=3, n_head=2, n_embd=16, mlp_ratio=2.0, attn_bias=True)
L, H, T, K, C = 3, 2, 8, 8, 16
PARAMS = noisy_params(CFG)
IDS = np.random.default_rng(0).integers(0, 11, (5, T)).astype(np.int32)
EXAMPLES = as_examples(IDS, CFG)
ALONE = make_sets("heads", CFG).gates
ASKED = EXAMPLES._replace(
    answers=np.array([[1], [2], [3], [4], [5]]), wrong=np.array([[6, 7]] * 5), position=np.array([7, 3, 0, 5, 7])
)


@functools.partial(jax.jit, static_argnums=2)
def _logits(params, edits, cfg, ids):
    return forward(params, ids, cfg, edits=edits).logits


def one_by_one(gates: Gates, fill=None, cfg=CFG, params=PARAMS, ids=IDS, acts=None) -> np.ndarray:
    """What the sweep must give: for each mask a plain forward pass of its own, with edits at z and mlp_out."""
    fill = fill or zero_fill(cfg)
    acts = np.ones(ids.shape[1]) if acts is None else acts
    logits = []
    for heads, mlps in zip(*map(np.asarray, gates), strict=True):
        off_z = ((1 - heads)[:, None, :, None, None] * acts[:, None]).astype(np.float32)
        off_m = ((1 - mlps)[:, None, None, None] * acts[:, None]).astype(np.float32)
        edits = {"z": Edit(jnp.asarray(1 - off_z), jnp.asarray(off_z * np.asarray(fill.heads)))}
        if cfg.mlp_width:
            edits["mlp_out"] = Edit(jnp.asarray(1 - off_m), jnp.asarray(off_m * np.asarray(fill.mlps)))
        logits.append(np.asarray(_logits(params, edits, cfg, ids)))
    return np.stack(logits)


def losses(logits: np.ndarray, ids: np.ndarray = IDS) -> np.ndarray:
    """(N, B) nats per token"""
    return np.stack([np.asarray(token_losses(one[:, :-1], ids[:, 1:])).mean(-1) for one in logits])


def random_gates(seed: int, n: int = 6, graded: bool = False) -> Gates:
    rng = np.random.default_rng(seed)
    draw = rng.random if graded else lambda shape: rng.integers(0, 2, shape)
    return Gates(np.float32(draw((n, L, H))), np.float32(draw((n, L))))


# The sweep is a loop of separate forward passes


@pytest.mark.parametrize("graded", [False, True])
def test_any_masks_and_gates_are_separate_forward_passes(graded):
    lab, gates = make_lab(PARAMS, IDS, CFG, fill="zero"), random_gates(1, graded=graded)
    values, baseline = measure(lab, gates)
    np.testing.assert_allclose(values, losses(one_by_one(gates)), atol=1e-5)
    np.testing.assert_allclose(baseline, losses(one_by_one(open_gates(CFG, 1)))[0], atol=1e-5)


@pytest.mark.parametrize(
    "variant",
    [
        {"positions": "rope", "norm": "rmsnorm", "attn_bias": False, "tied": False},
        {"positions": "sinusoidal", "norm": "none", "residual": False, "activation": "relu"},
        {"positions": "none", "mlp_ratio": 0.0, "unroll_layers": 1},
        {"n_layer": 1, "vocab_multiple": 8},
    ],
    ids=lambda v: next(iter(v.values())),
)
def test_the_sweep_for_every_kind_of_model(variant):
    cfg = dataclasses.replace(CFG, **variant)
    params = noisy_params(cfg)
    sets = make_sets("heads", cfg)
    values, _ = measure(make_lab(params, IDS, cfg, fill="zero"), sets.gates)
    np.testing.assert_allclose(values, losses(one_by_one(sets.gates, cfg=cfg, params=params)), atol=1e-5)


def test_it_starts_at_the_first_layer_touched_and_a_later_start_is_caught(monkeypatch):
    gates = make_sets("heads", CFG).gates
    assert engine.first_layers(gates).tolist() == [0, 0, 1, 1, 2, 2]
    assert engine.first_layers(make_sets(["mlp1", ("2.0", "1.1")], CFG).gates).tolist() == [1, 1]
    assert engine.first_layers(open_gates(CFG, 1)).tolist() == [L - 1]
    want = losses(one_by_one(gates))
    monkeypatch.setattr(engine, "first_layers", lambda gates: np.full(len(gates.heads), L - 1))
    values, _ = measure(make_lab(PARAMS, IDS, CFG, fill="zero"), gates)
    np.testing.assert_allclose(values[-2:], want[-2:], atol=1e-5)
    assert np.abs(values[:-2] - want[:-2]).max() > 1e-3


@pytest.mark.parametrize("tokens_at_once", [16, 80, 1000])  # some examples, one mask; all and two; everything
def test_results_do_not_depend_on_how_much_is_run_at_once(tokens_at_once):
    for seed in range(5):
        gates = random_gates(seed)
        values, _ = measure(make_lab(PARAMS, IDS, CFG, fill="zero", tokens_at_once=tokens_at_once), gates)
        np.testing.assert_allclose(values, losses(one_by_one(gates)), atol=1e-5)


def test_more_masks_than_one_call_holds(monkeypatch):
    monkeypatch.setattr(engine, "CAPACITY", 4)
    told = []
    lab = make_lab(PARAMS, IDS, CFG, fill="zero", tokens_at_once=80, progress=lambda *now: told.append(now))
    gates = random_gates(3, 9)
    np.testing.assert_allclose(measure(lab, gates)[0], losses(one_by_one(gates)), atol=1e-5)
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)


def test_masks_are_data_and_compile_once():
    lab = make_lab(PARAMS, IDS, CFG, metric="kl")
    measure(lab, random_gates(0))
    before = engine._run._cache_size()
    for seed in range(1, 4):
        measure(lab, random_gates(seed, graded=True))
    assert engine._run._cache_size() == before


# Identities


def test_gates_of_one_change_nothing_bit_for_bit():
    for how in ({}, {"hold_patterns": True, "freeze_norms": True}):
        values, baseline = measure(make_lab(PARAMS, IDS, CFG, **how), open_gates(CFG, 3))
        np.testing.assert_array_equal(values, np.stack([baseline] * 3))


def test_a_layer_without_heads_adds_only_its_bias():
    keep = jnp.ones((L, 1, H, 1, 1)).at[1].set(0)
    taps = forward(PARAMS, IDS, CFG, edits={"z": Edit(keep)}, taps=("resid_pre", "resid_mid", "attn_out")).taps
    np.testing.assert_array_equal(taps["attn_out"][1], np.broadcast_to(PARAMS["blocks"]["bo"][1], (5, T, C)))
    np.testing.assert_array_equal(taps["resid_mid"][1], taps["resid_pre"][1] + PARAMS["blocks"]["bo"][1])


def test_a_zero_gate_deletes_the_heads_rows_of_Wo():
    found = ablate_heads(PARAMS, IDS, CFG, fill="zero")
    for layer, head in all_heads(CFG):
        rows = slice(head * K, (head + 1) * K)
        blocks = {**PARAMS["blocks"], "Wo": PARAMS["blocks"]["Wo"].at[layer, rows].set(0)}
        without = losses(np.asarray(_logits({**PARAMS, "blocks": blocks}, None, CFG, IDS))[None])[0]
        np.testing.assert_allclose(found.baseline + found.per_example[layer, head], without, atol=1e-5)


@pytest.mark.slow
def test_a_mean_over_one_repeated_example_changes_nothing_where_the_position_counts():
    ids = np.repeat(IDS[:1], 3, axis=0)
    for fill in ("position-mean", "resample"):
        assert np.abs(ablate_heads(PARAMS, ids, CFG, fill=fill).per_example).max() < 1e-5
    # Over one position of one repeated example, the plain mean is the activation itself.
    same = np.full((3, 2), 4)
    cfg = dataclasses.replace(CFG, positions="none")
    assert np.abs(ablate_heads(noisy_params(cfg), same, cfg, fill="mean").per_example).max() < 1e-5


def test_effects_errors_and_baseline():
    found = ablate_heads(PARAMS, IDS, CFG, fill="zero", bootstrap=2000)
    truth = losses(one_by_one(make_sets("heads", CFG).gates)) - losses(one_by_one(open_gates(CFG, 1)))
    assert found.effect.shape == found.se.shape == (L, H)
    assert found.per_example.shape == (L, H, 5)
    assert found.baseline.shape == (5,)
    np.testing.assert_allclose(found.per_example.reshape(6, 5), truth, atol=1e-5)
    np.testing.assert_allclose(found.effect.ravel(), truth.mean(-1), atol=1e-5)
    np.testing.assert_allclose(found.se.ravel(), standard_error(truth, ordered=True), atol=1e-5)
    assert (found.low < found.effect).all()
    assert (found.effect < found.high).all()
    np.testing.assert_allclose((found.high - found.low) / found.se / 3.92, 1, atol=0.1)
    apart = ablate_heads(PARAMS, as_examples(IDS, CFG)._replace(place=None), CFG, fill="zero", bootstrap=2000)
    np.testing.assert_allclose(apart.se.ravel(), truth.std(-1, ddof=1) / np.sqrt(5), atol=1e-5)
    # Of 5 examples the percentile interval is 3.92 standard errors wide but for sqrt(4/5).
    np.testing.assert_allclose((apart.high - apart.low) / apart.se / 3.92, np.sqrt(0.8), atol=0.12)
    assert (found.definition.ordered, apart.definition.ordered) == (True, False)
    assert found.definition.data == apart.definition.data
    assert "5 windows in the order of the text (long-run)" in found.definition.measured()
    assert "5 examples, taken as independent" in apart.definition.measured()


def test_pairs():
    found = ablate_pairs(PARAMS, IDS, CFG, fill="zero")
    names = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    singles = ablate_sets(PARAMS, IDS, CFG, names, fill="zero")
    assert found.joint.shape == (6, 6)
    for square in (found.joint, found.joint_se, found.interaction, found.interaction_se):
        np.testing.assert_array_equal(square, square.T)
    np.testing.assert_allclose(np.diag(found.joint), singles.effect, atol=1e-6)
    assert (np.diag(found.interaction) == 0).all()
    both = ablate_sets(PARAMS, IDS, CFG, [(names[1], names[4])], fill="zero")
    np.testing.assert_allclose(found.joint[1, 4], both.effect[0], atol=1e-6)
    excess = both.per_example[0] - singles.per_example[1] - singles.per_example[4]
    np.testing.assert_allclose(found.interaction[1, 4], excess.mean(), atol=1e-6)
    np.testing.assert_allclose(found.interaction_se[1, 4], standard_error(excess, ordered=True), atol=1e-6)


# Fills


def test_fills_are_what_they_say():
    taps = forward(PARAMS, IDS, CFG, taps=("z", "mlp_out")).taps
    gates = make_sets(["heads0", "layer1", "mlp2", ("0.1", "2.1")], CFG).gates
    z, m = np.asarray(taps["z"]), np.asarray(taps["mlp_out"])
    means = Fill(z.mean((1, 3), keepdims=True), m.mean((1, 2), keepdims=True))
    by_position = Fill(*((5 * a.mean(1, keepdims=True) - a) / 4 for a in (z, m)))  # of the other four
    donors = derangement(5, 7)
    assert sorted(donors) == list(range(5))
    assert (donors != np.arange(5)).all()
    others = Fill(z[:, donors], m[:, donors])
    arrays = Fill(z[:, :1] + 1, m[:, :1] - 1)
    named = {"mean": means, "position-mean": by_position, "resample": others}
    for fill, want in [*named.items(), (arrays, arrays)]:
        values, _ = measure(make_lab(PARAMS, IDS, CFG, fill=fill, seed=7, tokens_at_once=16), gates)
        np.testing.assert_allclose(values, losses(one_by_one(gates, want)), atol=1e-5)
    np.testing.assert_allclose(mean_fill(PARAMS, IDS, CFG).heads, means.heads, atol=1e-6)


def test_an_array_for_the_heads_alone_may_leave_axes_out():
    array = np.arange(K, dtype=np.float32)
    values, _ = measure(make_lab(PARAMS, IDS, CFG, fill=array), make_sets("heads", CFG).gates)
    full = zero_fill(CFG)._replace(heads=np.broadcast_to(array, (L, 1, H, 1, K)))
    np.testing.assert_allclose(values, losses(one_by_one(make_sets("heads", CFG).gates, full)), atol=1e-5)


@pytest.mark.slow
def test_the_optimal_constant_is_no_worse_than_zero_or_the_mean():
    """On the examples that it was fitted on."""
    found = {fill: measure(make_lab(PARAMS, IDS, CFG, fill=fill), ALONE)[0].mean(-1) for fill in ("zero", "mean")}
    optimal = fitted(EXAMPLES, EXAMPLES).mean(-1)
    for other in ("zero", "mean"):
        assert (optimal <= found[other] + 1e-6).all()
    assert (optimal < found["mean"] - 1e-3).any()


@pytest.mark.slow
def test_optimal_constants_are_judged_on_examples_that_they_were_not_fitted_on():
    values = measure(make_lab(PARAMS, IDS, CFG, fill="optimal"), ALONE)[0]
    folds = ([0, 1], [2], [3], [4])  # quarters, in the order of the text
    for fold in folds:
        others = [i for i in range(5) if i not in fold]
        judged, rest = (jax.tree.map(lambda a, rows=rows: a[rows], EXAMPLES) for rows in (np.array(fold), others))
        np.testing.assert_allclose(values[:, fold], fitted(rest, judged), atol=1e-5)
    assert np.abs(values - fitted(EXAMPLES, EXAMPLES)).max() > 1e-3


def fitted(examples, judged):
    """The loss of the examples judged, with constants of `examples` in the place of each head in turn."""
    return fitted_values(make_lab(PARAMS, examples, CFG, fill="mean"), judged, ALONE, at_once=(4, 6))


def test_only_at_chosen_positions():
    gates, acts = random_gates(5), np.isin(np.arange(T), (2, 3)).astype(float)
    values, _ = measure(make_lab(PARAMS, IDS, CFG, fill="zero", positions=(2, 3)), gates)
    np.testing.assert_allclose(values, losses(one_by_one(gates, acts=acts)), atol=1e-5)
    assert np.abs(values - losses(one_by_one(gates))).max() > 1e-3


@pytest.mark.slow
def test_what_is_held_is_the_intact_models():
    intact = forward(PARAMS, IDS, CFG, taps=("pattern", "ln1_scale", "ln2_scale"))
    keep = jnp.ones((L, 1, H, 1, 1)).at[0, :, 1].set(0)
    held = {name: Edit(0 * intact.taps[name], intact.taps[name]) for name in intact.taps}
    sites = {"hold_patterns": ("pattern",), "freeze_norms": ("ln1_scale", "ln2_scale")}
    for flag in sites:
        edits = {"z": Edit(keep), **{name: held[name] for name in sites[flag]}}
        if flag == "freeze_norms":  # the final norm has no site of its own: its scale is undone and put back
            got = forward(PARAMS, IDS, CFG, edits=edits, taps="resid_post").taps["resid_post"][-1]
            x = np.asarray(forward(PARAMS, IDS, CFG, taps="resid_post").taps["resid_post"][-1])
            scale = 1 / np.sqrt(x.var(-1, keepdims=True) + CFG.norm_eps)
            normed = (got - got.mean(-1, keepdims=True)) * scale * PARAMS["lnfg"] + PARAMS["lnfb"]
            logits = normed @ PARAMS["tok_emb"].T
        else:
            logits = forward(PARAMS, IDS, CFG, edits=edits).logits
        found = ablate_sets(PARAMS, IDS, CFG, ["0.1"], fill="zero", **{flag: True})
        np.testing.assert_allclose(
            found.baseline + found.per_example[0], losses(np.asarray(logits)[None])[0], atol=1e-5
        )
        assert found.definition.flags == ({"hold_patterns": "patterns held"}.get(flag, "norms frozen"),)
        assert abs(found.effect - ablate_sets(PARAMS, IDS, CFG, ["0.1"], fill="zero").effect) > 1e-4


# Metrics


def test_metrics_are_what_they_say():
    gates = random_gates(9, 3)
    logits = one_by_one(gates).astype(np.float64)
    clean = one_by_one(open_gates(CFG, 1))[0].astype(np.float64)
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (clean, logits))
    rows = np.arange(5)
    at = logits[:, rows, ASKED.position]
    right, wrong = at[:, rows, ASKED.answers[:, 0]], at[:, rows][:, rows[:, None], ASKED.wrong].mean(-1)
    wants = {
        "kl": (np.exp(log_p) * (log_p - log_q)).sum(-1)[..., :-1].mean(-1),
        "log-prob": log_q[:, rows, ASKED.position][:, rows, ASKED.answers[:, 0]],
        "logit-diff": right - wrong,
    }
    for name, want in wants.items():
        values, _ = measure(make_lab(PARAMS, ASKED, CFG, fill="zero", metric=name), gates)
        np.testing.assert_allclose(values, want, atol=1e-4, err_msg=name)

    def entropy(logits, examples):
        return -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean(-1)

    values, _ = measure(make_lab(PARAMS, IDS, CFG, fill="zero", metric=entropy), gates)
    np.testing.assert_allclose(values, -(np.exp(log_q) * log_q).sum(-1).mean(-1), atol=1e-4)
    assert ablate_sets(PARAMS, IDS, CFG, ["0.0"], metric=entropy).definition.metric == "entropy"


# The planted circuit


def test_ablation_finds_the_planted_heads_and_after_Wo_it_would_not():
    params, cfg, facts = planted()
    examples = repeated_sequences(0, 0, 16, cfg.block_size, cfg.vocab_size)
    found = ablate_heads(params, examples, cfg, fill="mean")
    important = {facts.previous, facts.induction}
    for place in all_heads(cfg):
        assert (found.effect[place] > 1) == (place in important), place
    assert {*found.order()[:2]} == {f"{layer}.{head}" for layer, head in important}
    # After Wo the columns of the residual stream do not belong to heads: the same zeros miss the circuit.
    width = cfg.head_width
    missed = []
    for layer, head in all_heads(cfg):
        keep = jnp.ones((2, 1, 1, cfg.n_embd)).at[layer, :, :, head * width : (head + 1) * width].set(0)
        logits = _logits(params, {"attn_out": Edit(keep)}, cfg, examples.ids)
        metric = resolve_metric("loss", examples, cfg)
        effect = np.asarray(metric.values(logits, examples, logits)).mean() - found.baseline.mean()
        missed.append((effect > 1) != ((layer, head) in important))
    assert any(missed)


# On a mesh, saved, interrupted


@pytest.mark.slow
def test_on_a_mesh_masks_or_examples_are_spread():
    code = """
import json, sys, jax, numpy as np
from tests.lab.test_ablate import CFG, IDS, PARAMS, random_gates
from tinygpt_jax.lab.measure import make_lab, measure
ids = np.random.default_rng(1).integers(0, 11, (6, 8))
plain = measure(make_lab(PARAMS, ids, CFG, fill="resample"), random_gates(2))
out = []
for names, shape in ((("masks",), (4,)), (("examples", "masks"), (2, 2))):
    spread = measure(make_lab(PARAMS, ids, CFG, fill="resample", mesh=jax.make_mesh(shape, names)), random_gates(2))
    out += [float(np.abs(a - b).max()) for a, b in zip(spread, plain)]
print(json.dumps(out))
"""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout)) < 1e-5


def test_results_are_saved_and_read_back(tmp_path):
    found = ablate_sets(
        PARAMS, ASKED, CFG, ["0.1", ("1.0", "mlp2")], metric="logit-diff", fill="mean", positions=[1, 7]
    )
    json_file, csv_file = found.save(tmp_path / "deep" / "some.effects")
    again = read_result(json_file)
    assert isinstance(again, Ablation)
    for field in dataclasses.fields(Ablation):
        a, b = getattr(found, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(a, b) if isinstance(a, np.ndarray) else None
        assert isinstance(a, np.ndarray) or a == b, field.name
    text = csv_file.read_text()
    for name, value in dataclasses.asdict(found.definition).items():
        assert f"# {name}: {'; '.join(value) if isinstance(value, tuple) else value}\n" in text
    assert "set,effect,se\n" in text
    assert len([line for line in text.splitlines() if line and line[0] != "#"]) == 3
    nan = dataclasses.replace(found, effect=np.array([np.nan, np.inf]))
    back = read_result(nan.save(tmp_path / "nan")[0])
    assert np.isnan(back.effect).all()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad.json is no whole result"):
        read_result(tmp_path / "bad.json")


def test_an_exception_inside_a_sweep_leaves_nothing_behind():
    want = ablate_heads(PARAMS, IDS, CFG).effect

    def stop(done, total):
        raise KeyboardInterrupt

    def broken(logits, examples):
        raise RuntimeError("in the metric")

    with pytest.raises(KeyboardInterrupt):
        ablate_heads(PARAMS, IDS, CFG, progress=stop)
    with pytest.raises(RuntimeError, match="in the metric"):
        ablate_heads(PARAMS, IDS, CFG, metric=broken)
    np.testing.assert_array_equal(ablate_heads(PARAMS, IDS, CFG).effect, want)
    np.testing.assert_allclose(
        np.asarray(forward(PARAMS, IDS, CFG).logits), one_by_one(open_gates(CFG, 1))[0], atol=1e-5
    )


# Bad input


def test_a_fill_that_says_nothing_of_what_is_switched_off():
    with pytest.raises(UserError, match="fill is an array for heads, but MLPs are switched off too"):
        ablate_sets(PARAMS, IDS, CFG, "mlps", fill=np.ones(K))
    unasked = ASKED._replace(targets=0 * IDS - 1)
    with pytest.raises(UserError, match="metric 'loss': an example has no target that counts"):
        ablate_sets(PARAMS, unasked, CFG, fill="optimal", metric="logit-diff")


def test_a_definition_tells_results_apart():
    half = dataclasses.replace(CFG, compute_dtype="bfloat16")
    assert make_lab(PARAMS, IDS, half).definition(granularity="", component="", direction="", set="").flags == (
        "bfloat16",
    )
    assert ablate_sets(PARAMS, IDS, CFG, ["0.0"], bootstrap=10).definition.flags == (
        "interval of 10 bootstrap samples",
    )


def test_a_result_is_read_in_a_process_that_knows_no_kind_of_it(tmp_path):
    files = ablate_heads(PARAMS, IDS, CFG).save(tmp_path / "one")
    code = f"import tinygpt_jax as tg; print(type(tg.read_result({str(files[0])!r})).__name__)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "Ablation\n", done.stderr


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["3.0"], "component '3.0': there is no layer 3, the model has 0 to 2"),
        ([(0, 2)], "component '0.2': there is no head 2, a layer has 0 to 1"),
        (["head 1"], "component 'head 1' is unknown: write 0.2 for head 2 of layer 0"),
        ([(0, -1)], "component '0.-1' is unknown"),
        ([], "sets hold no component"),
        ([()], "sets hold no component"),
        ("head", "sets is 'head': must be one of heads, mlps"),
        ([None], "each must be a component such as '0.2'"),
    ],
)
def test_sets_that_are_not_there(sets, message):
    with pytest.raises(UserError, match=message):
        ablate_sets(PARAMS, IDS, CFG, sets)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"fill": "men"}, "fill 'men' is unknown; did you mean 'mean'"),
        ({"fill": np.zeros((2, 5))}, r"fill of the heads has shape \(2, 5\): must broadcast to \(3, 5, 2, 8, 8\)"),
        ({"fill": np.full(8, np.nan)}, "fill of the heads holds a value that is not finite"),
        ({"metric": "los"}, "metric 'los' is unknown; did you mean 'loss'"),
        ({"metric": "logit-diff"}, "metric 'logit-diff' needs examples with answers"),
        ({"metric": lambda logits, examples: logits.mean()}, r"gives \(\) for 5 examples: must be one value each"),
        ({"metric": 3}, "metric is 3: must be a function"),
        ({"positions": [8]}, "position 8 is past the end: the examples have 8 tokens"),
        ({"positions": [-1]}, "positions is .*whole numbers from 0"),
        ({"filling": "zero"}, "'filling' is no choice of an intervention; known: fill"),
    ],
)
def test_choices_that_cannot_be_made(how, message):
    with pytest.raises(UserError, match=message):
        ablate_heads(PARAMS, IDS, CFG, **how)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (IDS[:1], "1 example: a standard error needs two or more"),
        ([[1, 2], [3]], "ids have rows of different lengths"),
        (IDS + 9, r"id \d+ at index .* is outside \[0, 11\)"),
        (EXAMPLES._replace(targets=IDS[:, :4]), r"targets have shape \(5, 4\), ids \(5, 8\)"),
        (EXAMPLES._replace(targets=0 * IDS - 1), "an example has no target that counts"),
        (ASKED._replace(position=np.full(5, 8)), "position is .* from 0 to 7"),
        (ASKED._replace(answers=np.zeros((4, 1), int)), r"answers have shape \(4, 1\): must be \(5, how many\)"),
        (ASKED._replace(position=np.full(5, 1.0)), r"position is .*: must be 5 whole numbers from 0 to 7"),
        (EXAMPLES._replace(targets=IDS * 1.0), "targets have dtype float64: must be integers"),
        (EXAMPLES._replace(targets=IDS + 9), r"targets: id \d+ at index .* is outside \[0, 11\)"),
        *(
            (ASKED._replace(**{name: rows}), f"{name}{said}")
            for name in ("answers", "wrong")
            for rows, said in (
                (np.zeros(5, int), r" have shape \(5,\): must be \(5, how many\)"),
                (np.zeros((5, 0), int), r" have shape \(5, 0\): must be \(5, how many\)"),
                (np.zeros((5, 1)), " have dtype float64: must be integers"),
                (np.full((5, 1), 11), r": id 11 at index \(0, 0\) is outside \[0, 11\)"),
                (np.full((5, 1), -1), r": id -1 at index \(0, 0\) is outside \[0, 11\)"),
            )
        ),
    ],
)
def test_data_that_does_not_fit(data, message):
    with pytest.raises(UserError, match=message) as error:
        ablate_heads(PARAMS, data, CFG)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["answers", "wrong"])
def test_answers_are_no_context_and_may_be_more_than_one_holds(name):
    """Every token of the vocabulary, as a task may ask for, though the context holds fewer."""
    asked = ASKED._replace(**{name: np.tile(np.arange(11), (5, 1))})
    assert CFG.block_size < 11
    logits = _logits(PARAMS, {}, CFG, IDS)[np.arange(5), asked.position]
    rows = [np.take_along_axis(np.asarray(logits), tokens, 1).mean(1) for tokens in (asked.answers, asked.wrong)]
    np.testing.assert_allclose(
        ablate_heads(PARAMS, asked, CFG, metric="logit-diff").baseline, rows[0] - rows[1], atol=1e-5
    )


def test_masks_of_the_wrong_shape():
    lab = make_lab(PARAMS, IDS, CFG)
    for gates in (Gates(np.ones((1, L, H + 1)), np.ones((1, L))), Gates(np.ones((1, L, H)), np.ones((1, L + 1)))):
        with pytest.raises(UserError, match=r"gates\.(heads|mlps) have shape .*: must be \(masks, 3"):
            measure(lab, gates)


def test_attention_only_models_have_no_mlps():
    cfg = dataclasses.replace(CFG, mlp_ratio=0.0)
    params = noisy_params(cfg)
    for sets, message in (("mlps", "the model has none"), (["mlp1"], "the model has no MLPs")):
        with pytest.raises(UserError, match=message):
            ablate_sets(params, IDS, cfg, sets)
    assert ablate_sets(params, IDS, cfg, "layers").definition.component == "z"
