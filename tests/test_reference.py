"""The NumPy oracle, the JAX model held to it, and the same model broken on purpose and caught."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygpt_jax import model, reference
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.params import ParamSpec, flatten, param_shapes, param_specs
from tinygpt_jax.training.loss import token_losses

BASE = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, mlp_ratio=2.0, unroll_layers=1)
OPTIONS = {
    "positions": ("learned", "sinusoidal", "rope", "none"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "residual": (True, False),
    "activation": ("gelu", "relu"),
    "mlp_ratio": (2.0, 0.0),
    "attn_bias": (False, True),
    "smeared_keys": (False, True),
    "tied": (True, False),
    "vocab_multiple": (1, 8),
}
IDS = np.random.default_rng(1).integers(0, 11, (2, 8))
TARGETS = np.roll(IDS, -1, axis=1)
TARGETS[0, -1] = TARGETS[1, 2] = -1  # ignored
QUICK_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def covering(strength: int) -> list[dict]:
    """Few combinations of options in which every `strength` values of different options meet, found greedily."""

    def meetings(combination: dict) -> set:
        return set(itertools.combinations(combination.items(), strength))

    everything = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
    missing, chosen = set().union(*map(meetings, everything)), []
    while missing:
        chosen.append(max(everything, key=lambda combination: len(meetings(combination) & missing)))
        missing -= meetings(chosen[-1])
    return chosen


SINGLES = [{name: value} for name, values in OPTIONS.items() for value in values[1:]]
SINGLES += [{"n_layer": 1}, {"n_head": 1}, {"n_head": 4}, {"norm_eps": 0.1}]
"""Every way of changing one option of BASE."""


def label(options: dict) -> str:
    return "-".join(f"{name}={value}" for name, value in options.items() if getattr(BASE, name) != value) or "base"


def noisy_params(cfg: GPTConfig, seed: int = 0):
    """Parameters in which biases and scales are far from 0 and 1, where a fault would hide."""
    rng = np.random.default_rng(seed)

    def draw(spec: ParamSpec, shape):
        values = (spec.init == "ones") + 0.2 * rng.standard_normal(shape.shape)
        return jnp.asarray(values, jnp.float32)

    return jax.tree.map(draw, param_specs(cfg), param_shapes(cfg), is_leaf=lambda node: isinstance(node, ParamSpec))


def scanned(params, ids, cfg: GPTConfig):
    """Logits by the scan over layers that trains and samples."""
    return forward(params, ids, cfg).logits


def mean_loss(logits_of, params, cfg: GPTConfig):
    losses = token_losses(logits_of(params, IDS, cfg), TARGETS)
    return losses.sum() / (TARGETS >= 0).sum(dtype=np.float32)


def check_values(logits_of, cfg: GPTConfig) -> None:
    """Logits and loss within 1e-5 of the float64 oracle."""
    params = noisy_params(cfg)
    truth = reference.as_float64(params)
    with jax.disable_jit():  # op by op: nothing to compile anew for each variant
        logits, loss = logits_of(params, IDS, cfg), mean_loss(logits_of, params, cfg)
    assert logits.dtype == loss.dtype == jnp.float32
    np.testing.assert_allclose(logits, reference.gpt_forward(truth, IDS, cfg), atol=1e-5, rtol=0)
    np.testing.assert_allclose(loss, reference.loss(truth, IDS, TARGETS, cfg), atol=1e-5, rtol=0)


gradient = jax.jit(jax.grad(mean_loss, argnums=1), static_argnums=(0, 2), compiler_options=QUICK_COMPILE)


def check_gradient(logits_of, cfg: GPTConfig) -> None:
    """The gradient in every leaf against finite differences in float64: its largest entry and three at random."""
    params = noisy_params(cfg)
    grads = gradient(logits_of, params, cfg)
    entries, analytic, rng = [], [], np.random.default_rng(2)
    for name, grad in flatten(jax.tree.map(np.asarray, grads)):
        for flat in (np.abs(grad).argmax(), *rng.integers(0, grad.size, 3)):
            entries.append((name, tuple(int(i) for i in np.unravel_index(flat, grad.shape))))
            analytic.append(grad[entries[-1][1]])
    numeric = reference.numeric_gradient(params, IDS, TARGETS, cfg, entries)
    np.testing.assert_allclose(analytic, numeric, atol=2e-6, rtol=1e-4, err_msg=str(entries))


@pytest.mark.parametrize("options", [*SINGLES, *covering(2)], ids=label)
def test_logits_and_loss_equal_the_float64_oracle(options):
    for logits_of in (model.gpt_forward, scanned):
        check_values(logits_of, dataclasses.replace(BASE, **options))


@pytest.mark.parametrize("options", covering(1), ids=label)
def test_gradient_of_every_leaf_equals_finite_differences(options):
    check_gradient(scanned, dataclasses.replace(BASE, **options))


@pytest.mark.parametrize("options", covering(1), ids=label)
def test_the_scan_over_layers_is_the_readable_loop(options):
    cfg = dataclasses.replace(BASE, **options)
    params = noisy_params(cfg)
    np.testing.assert_allclose(scanned(params, IDS, cfg), model.gpt_forward(params, IDS, cfg), atol=1e-5)
    by_scan, by_loop = (gradient(logits_of, params, cfg) for logits_of in (scanned, model.gpt_forward))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4), by_scan, by_loop)
    scale = {"resid_mid": Edit(jnp.full((2, 1, 1, 1), 0.5), jnp.ones((2, 1, 1, 1)))}
    edited = [f(params, IDS, cfg, edits=scale) for f in (lambda *a, **k: forward(*a, **k).logits, model.gpt_forward)]
    np.testing.assert_allclose(*edited, atol=1e-5)
    assert np.abs(edited[0] - scanned(params, IDS, cfg)).max() > 1e-2


MUTANTS = {
    "mask lets one future token in": (":] <= pos[", ":] <= 1 + pos["),
    "mask hides the token itself": (":] <= pos[", ":] < pos["),
    "scores not divided by sqrt(K)": ("q / math.sqrt(q.shape[-1])", "q"),
    "scores divided by sqrt(C)": ("q / math.sqrt(q.shape[-1])", "q / math.sqrt(q.shape[1] * q.shape[-1])"),
    "gelu by erf": ("return 0.5 * x * (1.0 +", "return jax.nn.gelu(x, approximate=False) #"),
    "eps outside the square root": ("scaled(jax.lax.rsqrt(var + eps))", "scaled(1 / (jnp.sqrt(var) + eps))"),
    "variance over C - 1": ("jnp.square(x32 - mean).mean(-1, keepdims=True)", "x32.var(-1, ddof=1, keepdims=True)"),
    "no final norm": ('norm(x, params, "lnf", cfg)', "x"),
    "norm after the attention": ('h = norm(x, p, "ln1", cfg, at)', "h = x"),
    "MLP reads the first norm": ('h = norm(x, p, "ln2", cfg, at)', 'h = norm(x, p, "ln1", cfg, at)'),
    "Wo transposed": ("merge_heads(z), Wo,", "merge_heads(z), Wo.T,"),
    "Wq and Wk swapped": ("linear(x, Wq, bias", "linear(x, Wk, bias"),
    "heads interleaved": ("x.reshape(B, T, -1, K).transpose(0, 2, 1, 3)", "x.reshape(B, -1, T, K)"),
    "attention bias forgotten": ('Wv, bias.get("bv")', "Wv, None"),
    "smeared with the key after": ("* jnp.roll(k, 1, axis=2)", "* jnp.roll(k, -1, axis=2)"),
    "smeared the other way": ("jax.nn.sigmoid(x)", "jax.nn.sigmoid(-x)"),
    "smeared first key": ("jnp.where(follows[:, None], ", "jnp.where(follows[:, None] | True, "),
    "smeared before the rotation": (
        "q, k = rotate(q, pos), rotate(k, pos)",
        'q, k, bias = rotate(q, pos), rotate(smear_keys(k, bias["smear"], pos), pos), {}',
    ),
    "no residual around attention": ('at("resid_mid", x + a if', 'at("resid_mid", a if'),
    "no residual around the MLP": ("x = x + m if", "x = m if"),
    "positions off by one": ('params["pos_emb"], pos', 'params["pos_emb"], pos + 1'),
    "sine and cosine swapped": ("[jnp.sin(angle), jnp.cos(angle)]", "[jnp.cos(angle), jnp.sin(angle)]"),
    "rope turns queries one too far": ("q, k = rotate(q, pos), ", "q, k = rotate(q, pos + 1), "),
    "rope turns the wrong way": ("a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),
    "rope rates over C": ("-math.log(10000.0) / half", "-math.log(10000.0) / 16"),
    "rms over the centred row": ("rsqrt(jnp.square(x32)", "rsqrt(jnp.square(x32 - x32.mean(-1, keepdims=True))"),
    "relu leaks": ("jnp.maximum(h, 0)", "jnp.maximum(h, 0.1 * h)"),
    "head tied though it should not be": ('params["tok_emb" if cfg.tied else "head"]', 'params["tok_emb"]'),
    "vocabulary not trimmed": ("logits[:, : cfg.vocab_size]", "logits[:, -cfg.vocab_size :]"),
    "gradient stopped in one branch": ('a = at("attn_out", a)', 'a = at("attn_out", jax.lax.stop_gradient(a))'),
}
"""What is wrong -> (text in the model, what it is replaced by)."""

NEEDS = {
    "attention bias": {"attn_bias": True},
    "smeared before": {"positions": "rope", "smeared_keys": True},
    "smeared": {"smeared_keys": True},
    "sine": {"positions": "sinusoidal"},
    "rope": {"positions": "rope"},
    "rms": {"norm": "rmsnorm"},
    "relu": {"activation": "relu"},
    "head tied": {"tied": False},
    "vocabulary": {"vocab_multiple": 8},
    "eps": {"norm_eps": 1e-2},
}
"""The option under which a mutant's line runs."""


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_broken_model_is_caught(fault):
    old, new = MUTANTS[fault]
    source = inspect.getsource(model)
    assert old in source, "the model has changed: write this mutant anew"
    broken = types.ModuleType("broken")
    exec(compile(source.replace(old, new), "broken", "exec"), broken.__dict__)
    options = next((needed for start, needed in NEEDS.items() if fault.startswith(start)), {})
    check = check_gradient if "gradient" in fault else check_values
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(broken.gpt_forward, dataclasses.replace(BASE, **options))


MAY_DIFFER = {
    "layer_norm": "statistics in float32 whatever the compute dtype; rsqrt is one operation",
    "rms_norm": "statistics in float32 whatever the compute dtype; rsqrt is one operation",
    "sigmoid": "JAX's own, whose gradient does not overflow",
    "softmax": "JAX's own, in float32 whatever the compute dtype",
    "linear": "axes flattened for XLA, float32 weights taken to the compute dtype",
    "embed": "ends in the compute dtype",
    "unembed": "axes flattened for XLA, logits in float32 whatever the compute dtype",
    "gpt_forward": "NumPy raises for what JAX would clamp in silence, so the model checks it first",
}
"""Functions of the model whose lines are not the reference's, and why."""
OF_THE_REFERENCE_ALONE = ["as_float64", "loss", "numeric_gradient"]


def functions(source: str) -> dict[str, list[str]]:
    """Name -> lines of each function, in order; docstrings and comments apart, of one array library."""
    source = re.sub(r"\bnp\.", "jnp.", source)
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    for node in found.values():
        node.body = node.body[ast.get_docstring(node) is not None :]
    return {name: ast.unparse(node).splitlines() for name, node in found.items()}


def differences(ours: str, theirs: str) -> dict[str, str]:
    """Name -> differing lines of each function that two sources do not share; "order" where they stand otherwise."""
    ours, theirs = functions(ours), functions(theirs)
    order = [[name for name in each if name not in OF_THE_REFERENCE_ALONE] for each in (ours, theirs)]
    found = {} if order[0] == order[1] else {"order": "\n".join(difflib.unified_diff(*order, lineterm=""))}
    for name in set(ours) & set(theirs):
        if ours[name] != theirs[name]:
            found[name] = "\n".join(
                difflib.unified_diff(ours[name], theirs[name], "reference", "model", lineterm="", n=0)
            )
    return found


def test_the_model_reads_like_the_reference_line_for_line():
    found = differences(inspect.getsource(reference), inspect.getsource(model))
    print(*found.values(), sep="\n")
    assert found.keys() == MAY_DIFFER.keys()
    wanted = {"layer_norm", "gelu", "multi_head_attention", "feed_forward", "transformer_block", "gpt_forward"}
    assert wanted < functions(inspect.getsource(model)).keys()


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("<= pos[:, None, :", "< pos[:, None, :", "attend"),
        ("rope: bool = False", "rope: bool = True", "multi_head_attention"),
        ("\ndef gelu(", "\ndef tanh_gelu(", "order"),
    ],
)
def test_a_line_that_only_one_of_them_has_is_caught(old, new, where):
    source = inspect.getsource(model)
    assert old in source
    found = differences(inspect.getsource(reference), source.replace(old, new))
    assert found.keys() - MAY_DIFFER.keys() == {where}
    assert new.split()[-1].split("(")[0] in found[where]


def test_pieces_by_hand():
    x = np.array([[1.0, 2.0, 3.0, 6.0]])
    one = np.ones(4)
    np.testing.assert_allclose(reference.layer_norm(x, one, 0 * one, 0.0) ** 2 * 3.5, (x - 3) ** 2)
    np.testing.assert_allclose(reference.rms_norm(x, 2 * one, 0.0), 2 * x / math.sqrt(12.5))
    np.testing.assert_allclose(reference.gelu(np.array([-1.0, 0.0, 1.0])), [-0.158808, 0.0, 0.841192], atol=1e-6)
    np.testing.assert_allclose(reference.softmax(np.log([[1.0, 3.0]]) + 1e4), [[0.25, 0.75]])
    at_2 = [np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)]
    np.testing.assert_allclose(reference.positional_encoding(3, 4)[2], at_2)
    assert reference.positional_encoding(3, 5).shape == (3, 5)
    heads = reference.split_heads(np.arange(12.0).reshape(1, 2, 6), 2)
    assert heads[0, :, 1].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert reference.merge_heads(heads).ravel().tolist() == list(range(12))


def test_rotation_keeps_lengths_and_sees_only_distances():
    q, k = np.random.default_rng(0).standard_normal((2, 1, 1, 5, 6))
    pos = np.arange(5)[None]
    near, far = ([reference.rotate(x, pos + shift) for x in (q, k)] for shift in (0, 100))
    np.testing.assert_allclose(np.square(near[0]).sum(-1), np.square(q).sum(-1))
    np.testing.assert_allclose(near[0] @ near[1].swapaxes(-1, -2), far[0] @ far[1].swapaxes(-1, -2))
    assert not np.allclose(near[0], far[0])


def test_loss_is_log_v_when_the_model_knows_nothing_and_skips_ignored_targets():
    params = reference.as_float64(noisy_params(BASE))
    params["tok_emb"][:] = 0
    assert reference.loss(params, IDS, TARGETS, BASE) == pytest.approx(math.log(11))
    params = reference.as_float64(noisy_params(BASE))
    per_window = [reference.loss(params, IDS[i], TARGETS[i], BASE) for i in (0, 1)]
    assert reference.loss(params, IDS, TARGETS, BASE) == pytest.approx(sum(per_window) / 2)
    only = np.full_like(TARGETS, -1)
    only[1, 4] = TARGETS[1, 4]
    log_p = np.log(reference.softmax(reference.gpt_forward(params, IDS, BASE)[1, 4]))
    assert reference.loss(params, IDS, only, BASE) == pytest.approx(-log_p[TARGETS[1, 4]])


def test_numeric_gradient_of_a_known_slope_leaves_the_parameters_alone():
    cfg = dataclasses.replace(BASE, tied=False)
    params = noisy_params(cfg)
    truth, before = reference.as_float64(params), jax.tree.map(np.array, params)
    logits, taps = reference.forward(truth, IDS, cfg)
    state = reference.norm(taps["resid_post"][-1], truth, "lnf", cfg)
    counted = TARGETS >= 0
    error = (reference.softmax(logits) - np.eye(11)[TARGETS])[counted]  # softmax minus one-hot
    closed = error.T @ state[counted] / counted.sum()
    numeric = reference.numeric_gradient(params, IDS, TARGETS, cfg, [("head", (3, 5)), ("head", (0, 0))])
    np.testing.assert_allclose(numeric, [closed[3, 5], closed[0, 0]], atol=1e-9)
    jax.tree.map(np.testing.assert_array_equal, before, params)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_reference_stays_in_the_dtype_of_its_parameters(dtype):
    for positions in OPTIONS["positions"]:
        cfg = dataclasses.replace(BASE, positions=positions, attn_bias=True)
        params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), noisy_params(cfg))
        logits, taps = reference.forward(params, IDS, cfg)
        assert {logits.dtype} | {tap.dtype for tap in taps.values()} == {np.dtype(dtype)}
