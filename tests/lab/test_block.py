"""The pieces of a block, against the reference in float64 and plain NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinygpt_jax as tg
from tests.lab.small import SMALL
from tinygpt_jax import reference
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab import engine as sweep
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.read import block, mlp
from tinygpt_jax.lab.read.block import head_split, norm_rows, position_tables, residual_writes
from tinygpt_jax.lab.read.mlp import activation_curves, mlp_widths
from tinygpt_jax.lab.remove.prune import prune
from tinygpt_jax.params import ParamSpec, param_shapes, param_specs
from tinygpt_jax.runs import Model
from tinygpt_jax.statistics import standard_error

VARIANTS = {
    "layernorm": GPTConfig(**SMALL, attn_bias=True),
    "rmsnorm": GPTConfig(**SMALL, norm="rmsnorm", positions="rope", activation="relu"),
    "bare": GPTConfig(**{**SMALL, "mlp_ratio": 0}, norm="none", positions="sinusoidal"),
    "no residual": GPTConfig(**SMALL, positions="none", residual=False),
}
CFG = VARIANTS["layernorm"]
IDS = np.random.default_rng(0).integers(0, 7, (5, 10), np.int32)


def random_params(cfg, seed=0):
    """Drawn by NumPy, which compiles nothing: norms and biases far from 1 and 0."""
    rng = np.random.default_rng(seed)

    def draw(spec, shape):
        return jnp.asarray((spec.init == "ones") + 0.2 * rng.standard_normal(shape.shape), jnp.float32)

    return jax.tree.map(draw, param_specs(cfg), param_shapes(cfg), is_leaf=lambda node: isinstance(node, ParamSpec))


class Opened:
    """A model at random, and what the reference finds in it."""

    def __init__(self, cfg):
        self.cfg, self.params = cfg, random_params(cfg)
        self.exact = reference.as_float64(self.params)
        self.taps = reference.forward(self.exact, IDS, cfg)[1]

    def layer(self, i):
        return {name: leaf[i] for name, leaf in self.exact["blocks"].items()}

    def mlp_inputs(self, normed=True):
        """(L, B, T, F) what the activation is given."""
        found = []
        for i, x in enumerate(self.taps["resid_mid"]):
            h = reference.norm(x, self.layer(i), "ln2", self.cfg) if normed else x
            found.append(reference.linear(h, self.layer(i)["W1"], self.layer(i)["b1"]))
        return np.stack(found)


@pytest.fixture(scope="module")
def models():
    return {name: Opened(cfg) for name, cfg in VARIANTS.items()}


@pytest.fixture(scope="module", params=VARIANTS)
def model(request, models):
    return models[request.param]


def sizes(x):
    """(L, B) mean square over tokens and channels"""
    return np.square(x).mean((-2, -1))


# Positions


def test_tables_are_the_models_own_and_the_sinusoids(model):
    tables, cfg = position_tables(model.params, model.cfg), model.cfg
    np.testing.assert_allclose(tables.sinusoidal, reference.positional_encoding(10, 16), atol=1e-5)
    assert tables.positions == cfg.positions
    assert (tables.learned is None) == (cfg.positions != "learned")
    assert (tables.rotary is None) == (cfg.positions != "rope")
    if tables.learned is not None:
        np.testing.assert_array_equal(tables.learned, model.params["pos_emb"])


def test_rotary_factors_turn_a_query_as_the_reference_does(models):
    model = models["rmsnorm"]
    cos, sin = np.split(position_tables(model.params, model.cfg).rotary, 2, axis=-1)
    x = np.random.default_rng(1).normal(size=(1, 1, 10, 8))
    a, b = np.split(x, 2, axis=-1)
    wanted = reference.rotate(x, np.arange(10)[None])
    np.testing.assert_allclose(np.concatenate([a * cos - b * sin, a * sin + b * cos], -1), wanted, atol=1e-5)
    assert not np.allclose(np.concatenate([a * sin - b * cos, a * cos + b * sin], -1), wanted, atol=1e-2)


# Norms


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "no residual"])
def test_rows_before_and_after_a_norm_are_the_references(models, name):
    model = models[name]
    rows = norm_rows(model.params, IDS[0], model.cfg, layer=1)
    before = model.taps["resid_pre"][1, 0]
    wanted = reference.norm(before, model.layer(1), "ln1", model.cfg)
    np.testing.assert_allclose(rows.values[0], before, atol=1e-5)
    np.testing.assert_allclose(rows.values[2], wanted, atol=1e-4)
    np.testing.assert_allclose(rows.mean[2], wanted.mean(-1), atol=1e-4)
    np.testing.assert_allclose(rows.deviation[2], wanted.std(-1), atol=1e-4)
    assert not np.allclose(rows.values[1], wanted, atol=1e-2)  # gain and shift do something


def test_layernorm_leaves_mean_0_and_deviation_1_and_rmsnorm_size_1(models):
    layer, rms = (norm_rows(models[n].params, IDS[0], models[n].cfg, layer=1) for n in ("layernorm", "rmsnorm"))
    assert abs(layer.mean[1]).max() < 1e-6
    np.testing.assert_allclose(layer.deviation[1], 1, atol=1e-3)
    np.testing.assert_allclose(rms.size[1], 1, atol=1e-3)
    assert abs(rms.mean[1]).max() > 0.01  # which RMSNorm does not take off
    assert (layer.stages[2], rms.stages[2]) == ("after gain and shift", "after gain")


def test_a_norm_that_leaves_the_mean_is_seen(models, monkeypatch):
    def uncentred(x, g, b, eps=1e-5, scaled=None):
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * g + b

    monkeypatch.setattr("tinygpt_jax.model.layer_norm", uncentred)
    anew = jax.jit(lambda params: block._norm_stages.__wrapped__(params, IDS[:1], CFG, 1))
    values = np.asarray(anew(models["layernorm"].params))
    assert abs(values[1].mean(-1)).max() > 1e-3


# Heads


def test_queries_are_the_references_and_shapes_those_that_occur(model):
    split = head_split(model.params, IDS[0], model.cfg, layer=1)
    np.testing.assert_allclose(split.queries.transpose(1, 0, 2), model.taps["q"][1, 0], atol=1e-4)
    assert not np.allclose(split.queries.transpose(1, 0, 2), model.taps["q"][0, 0], atol=1e-2)
    one = {name: value[1, :1] for name, value in model.taps.items()}
    whole = one["resid_pre"]
    projected = reference.linear(whole, model.layer(1)["Wq"])
    wanted = [whole, projected, one["q"], one["pattern"], one["z"], reference.merge_heads(one["z"]), one["attn_out"]]
    assert [shape for _, shape in split.steps] == [array.shape for array in wanted]


# The MLP


def test_activations_are_the_references_functions(models):
    curves = activation_curves(models["layernorm"].params, IDS, CFG)
    np.testing.assert_allclose(curves.gelu, reference.gelu(curves.x), atol=1e-6)
    np.testing.assert_allclose(curves.relu, np.maximum(curves.x, 0), atol=1e-6)
    assert abs(curves.gelu - curves.relu).max() > 0.1


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "no residual"])
def test_the_density_is_the_histogram_of_the_references_inputs(models, name):
    model = models[name]
    curves, inputs = activation_curves(model.params, IDS, model.cfg), model.mlp_inputs()
    width = curves.x[1] - curves.x[0]
    edges = np.append(curves.x - width / 2, curves.x[-1] + width / 2)

    def shares(inputs):
        return np.stack([np.histogram(layer, edges)[0] / layer.size for layer in inputs])

    np.testing.assert_allclose(curves.by_layer * width, shares(inputs), atol=2.1 / inputs[0].size)  # two near an edge
    np.testing.assert_allclose(curves.density, curves.by_layer.mean(0), atol=1e-9)
    np.testing.assert_allclose(curves.by_layer.sum(-1) * width + curves.outside, 1)
    np.testing.assert_allclose(curves.below, (inputs < 0).mean((-2, -1)), atol=1.1 / inputs[0, 0].size)
    by_example = np.stack([shares(inputs[:, [i]]).mean(0) for i in range(5)])
    np.testing.assert_allclose(curves.density_se * width, standard_error(by_example.T, ordered=True), atol=2e-3)
    assert abs(curves.by_layer * width - shares(model.mlp_inputs(normed=False))).max() > 0.01  # the norm is part of it


def test_inputs_beyond_the_bins_are_said(models):
    params = models["layernorm"].params
    far = {**params, "blocks": {**params["blocks"], "b1": params["blocks"]["b1"] + 2 * mlp.REACH}}
    assert activation_curves(params, IDS, CFG).outside.max() < 0.01
    assert activation_curves(far, IDS, CFG).outside.min() > 0.9


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "no residual"])
def test_widths_and_parameters_are_those_of_the_tree(models, name):
    model = models[name]
    widths = mlp_widths(model.params, model.cfg)
    leaves = param_shapes(model.cfg)["blocks"]
    total = sum(leaves[n].size // 2 for n in ("ln2g", "ln2b", "W1", "b1", "W2", "b2") if n in leaves)
    assert widths.parameters.sum() == total
    assert widths.width.tolist() == [16, 16, 16, 16, 16]
    wide = GPTConfig(**{**SMALL, "mlp_ratio": 2.5}, norm="none")
    found = mlp_widths(random_params(wide), wide)
    assert found.width.tolist() == [16, 40, 40, 16]  # and no norm
    assert found.parameters.tolist() == [0, 16 * 40 + 40, 0, 40 * 16 + 16]


# The residual stream


def wanted_squares(model):
    """(N, B) in the order of the forward pass"""
    taps = model.taps
    found = [sizes(taps["resid_pre"][0])]
    for layer in range(2):
        found += [sizes(taps[site][layer]) for site in ("attn_out", "mlp_out", "resid_post") if site in taps]
    return np.stack(found)


def test_sizes_of_writes_are_the_references(model):
    writes, squares = residual_writes(model.params, IDS, model.cfg), wanted_squares(model)
    np.testing.assert_allclose(writes.rms, np.sqrt(squares.mean(-1)), rtol=1e-4)
    np.testing.assert_allclose(writes.per_example, np.sqrt(squares), rtol=1e-4)
    error = standard_error(squares, ordered=True)
    np.testing.assert_allclose(writes.se, error / (2 * np.sqrt(squares.mean(-1))), rtol=1e-3)
    assert not np.allclose(writes.rms, np.roll(np.sqrt(squares.mean(-1)), 1), rtol=1e-2)  # their order matters
    assert len(writes.names) == len(writes.kinds) == len(writes.rms) == 1 + 2 * (3 if model.cfg.mlp_width else 2)
    assert (writes.names[0], writes.names[-1]) == ("embedding", "after block 1")


def test_a_write_twice_as_large_is_seen_where_it_is_written(models):
    params = models["layernorm"].params
    twice = {n: params["blocks"][n] * jnp.asarray([[1.0], [2.0]]).reshape(2, *[1] * (params["blocks"][n].ndim - 1))
             for n in ("W2", "b2")}  # fmt: skip
    once, more = (residual_writes(p, IDS, CFG) for p in (params, {**params, "blocks": {**params["blocks"], **twice}}))
    ratio = dict(zip(once.names, more.rms / once.rms, strict=True))
    assert ratio.pop("MLP 1") == pytest.approx(2, rel=1e-4)
    assert ratio.pop("after block 1") > 1.05
    assert all(one == pytest.approx(1, rel=1e-5) for one in ratio.values())


def test_without_residuals_the_last_write_is_the_stream(models):
    model = models["no residual"]
    writes = residual_writes(model.params, IDS, model.cfg)
    size = dict(zip(writes.names, writes.rms, strict=True))
    assert size["MLP 0"] == size["after block 0"]
    assert "no residual" in writes.definition.flags[0]
    assert residual_writes(models["layernorm"].params, IDS, CFG).definition.flags == ()


def test_a_write_of_zeros_has_the_size_and_error_0(models):
    params = models["layernorm"].params
    silent = {n: jnp.zeros_like(params["blocks"][n]) for n in ("Wo", "bo")}
    writes = residual_writes({**params, "blocks": {**params["blocks"], **silent}}, IDS, CFG)
    assert writes.rms[1] == writes.se[1] == 0


# In parts, pruned, saved


def test_parts_of_the_examples_add_up(models, monkeypatch):
    params = models["layernorm"].params
    whole = activation_curves(params, IDS, CFG), residual_writes(params, IDS, CFG)
    monkeypatch.setattr(sweep, "TOKENS_AT_ONCE", {"cpu": 40})  # two of the five at a time
    parts = activation_curves(params, IDS, CFG), residual_writes(params, IDS, CFG)
    assert sweep.rows_of_all_layers(CFG, 5, 10, None) == 2
    for one, other, field in zip(whole, parts, ("by_layer", "per_example"), strict=True):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-5, atol=1e-6)


def test_a_pruned_model_is_the_whole_one_up_to_what_was_pruned(models):
    model = models["rmsnorm"]
    small, cfg, _ = prune(Model(model.params, model.cfg, None), [[True, True], [False, True]])
    small, cfg = tg.whole(small, cfg)
    whole, pruned = residual_writes(model.params, IDS, model.cfg), residual_writes(small, IDS, cfg)
    np.testing.assert_allclose(whole.rms[:4], pruned.rms[:4], rtol=1e-5)
    assert whole.rms[4] != pytest.approx(pruned.rms[4], rel=1e-3)
    np.testing.assert_allclose(
        norm_rows(small, IDS[0], cfg, layer=1).values, norm_rows(model.params, IDS[0], model.cfg, layer=1).values,
        atol=1e-5,
    )  # fmt: skip
    np.testing.assert_allclose(
        activation_curves(small, IDS, cfg).below[0], activation_curves(model.params, IDS, model.cfg).below[0]
    )
    split = head_split(small, IDS[0], cfg, layer=1)
    np.testing.assert_allclose(split.queries[:, 1], model.taps["q"][1, 0, 1], atol=1e-4)
    assert not split.queries[:, 0].any()
    assert mlp_widths(small, cfg).parameters.sum() == mlp_widths(model.params, model.cfg).parameters.sum()


def test_results_are_read_back_as_they_were(models, tmp_path):
    model = models["layernorm"]
    for measured in (
        position_tables(model.params, CFG), norm_rows(model.params, IDS[0], CFG, list("abcdefghij"), layer=1),
        head_split(model.params, IDS[0], CFG, layer=1), activation_curves(model.params, IDS, CFG),
        mlp_widths(model.params, CFG), residual_writes(model.params, IDS, CFG),
    ):  # fmt: skip
        measured.save(tmp_path / "one")
        again = read_result(tmp_path / "one.json")
        assert again.to_json() == measured.to_json()
        assert len((tmp_path / "one.csv").read_text().splitlines()) > len(measured.rows())


# What cannot be measured


def test_what_a_model_does_not_have_is_said_in_one_line(models):
    bare, model = models["bare"], models["layernorm"]
    for measure in (lambda: mlp_widths(bare.params, bare.cfg), lambda: activation_curves(bare.params, IDS, bare.cfg)):
        with pytest.raises(UserError, match="mlp_ratio is 0: this model has no MLP"):
            measure()
    with pytest.raises(UserError, match="norm is 'none'"):
        norm_rows(bare.params, IDS[0], bare.cfg)
    with pytest.raises(UserError, match="layer is 2: .*the model has 0 to 1"):
        head_split(model.params, IDS[0], CFG, layer=2)
    with pytest.raises(UserError, match=r"ids have shape \(5, 10\): give those of one text"):
        norm_rows(model.params, IDS, CFG)
    with pytest.raises(UserError, match="2 tokens for 10 ids"):
        norm_rows(model.params, IDS[0], CFG, tokens=["a", "b"])
    with pytest.raises(UserError, match="block_size is 10"):
        residual_writes(model.params, np.zeros((2, 11), np.int32), CFG)
    with pytest.raises(UserError, match="outside"):
        head_split(model.params, IDS[0] + 7, CFG)


def test_half_precision_is_measured_too(models):
    cfg = dataclasses.replace(CFG, compute_dtype="bfloat16")
    params = models["layernorm"].params
    np.testing.assert_allclose(residual_writes(params, IDS, cfg).rms, residual_writes(params, IDS, CFG).rms, rtol=0.02)
    assert head_split(params, IDS[0], cfg).queries.dtype == np.float32
