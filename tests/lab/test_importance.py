import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.intervention import Gates
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.remove.importance import STEPS, gate_slopes, head_importance
from tinygpt_jax.params import init_params
from tinygpt_jax.statistics import standard_error
from tinygpt_jax.text import repeated_sequences

CFG = GPTConfig(
    vocab_size=13, block_size=8, n_layer=2, n_head=2, n_embd=16, norm="rmsnorm", mlp_ratio=2, unroll_layers=1
)
P = CFG.n_layer * CFG.n_head


@pytest.fixture(scope="module")
def params():
    """Large enough weights that gates matter; head 1.0 writes nothing."""
    params = jax.tree.map(lambda x: jnp.where(x == 1, x, 20 * x), init_params(jax.random.key(0), CFG))
    K = CFG.head_width
    params["blocks"]["Wo"] = params["blocks"]["Wo"].at[1, :K].set(0)
    return params


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, 13, (5, 8))


@pytest.fixture(scope="module")
def found(params, ids):
    return head_importance(params, ids, CFG, fill="zero", tokens_at_once=64)


def lab_of(params, ids, **how):
    return make_lab(params, ids, CFG, **{"fill": "zero", "tokens_at_once": 64, **how})


def at_gates(lab, gates):
    """The metric, (n, B), with the heads' gates at each of n rows of P."""
    gates = np.reshape(gates, (-1, CFG.n_layer, CFG.n_head))
    return measure(lab, Gates(gates, np.ones((len(gates), CFG.n_layer))))[0].astype(np.float64)


def central_differences(lab, h, point=1):
    eye = np.eye(P) * h
    return (at_gates(lab, point + eye) - at_gates(lab, point - eye)) / (2 * h)


def slopes_at(lab, *points):
    """As many points as `head_importance` asks for: one program for all of them."""
    return gate_slopes(lab, np.resize(np.float32(points), STEPS + 1))[: len(points)]


RARE = {"fill": "resample", "positions": (2, 5), "freeze_norms": True, "metric": "kl"}


@pytest.mark.parametrize("how", [{}, RARE])
def test_slopes_are_those_of_the_sweep(params, ids, how):
    lab = lab_of(params, ids, **how)
    want, (half, whole) = central_differences(lab, 0.008, 0.5), slopes_at(lab, 0.5, 1)
    np.testing.assert_allclose(half, want, atol=1e-3)
    assert np.abs(want).max() > 0.05
    assert np.abs(whole - want).max() > 0.05  # the twin: slopes at other gates are told apart
    if how == RARE:
        assert np.abs(whole).max() < 1e-4  # the divergence is least at the intact model


def test_the_hessian_is_the_slopes_of_the_slopes(params, ids, found):
    lab, h = lab_of(params, ids), 0.05
    single = np.eye(P) * h
    corners = {
        (a, b): at_gates(lab, (1 + a * single[:, None] + b * single[None]).reshape(-1, P)).mean(-1).reshape(P, P)
        for a in (-1, 1)
        for b in (-1, 1)
    }
    want = (corners[1, 1] - corners[1, -1] - corners[-1, 1] + corners[-1, -1]) / (4 * h * h)
    np.testing.assert_allclose(found.hessian, want, atol=3e-3)
    np.testing.assert_array_equal(found.hessian, found.hessian.T)
    assert np.abs(want).max() > 0.02


def test_estimates_are_what_they_say(params, ids, found):
    lab = lab_of(params, ids)
    slopes = central_differences(lab, 0.02)
    for name, rows in (("absolute", np.abs(slopes)), ("signed", -slopes)):
        np.testing.assert_allclose(getattr(found, name).ravel(), rows.mean(-1), atol=5e-4)
        np.testing.assert_allclose(getattr(found, f"{name}_se").ravel(), standard_error(rows, ordered=True), atol=1e-3)
    np.testing.assert_allclose(
        found.effect.ravel(), (at_gates(lab, 1 - np.eye(P)) - found.baseline).mean(-1), atol=1e-6
    )


def test_a_head_that_writes_nothing_is_worth_nothing(found):
    for name in ("absolute", "signed", "integrated", "effect"):
        assert abs(getattr(found, name)[1, 0]) < 1e-7
    assert np.abs(found.hessian[2]).max() < 1e-6


def test_integrated_slopes_add_up_to_the_effect_of_all(params, ids, found):
    lab = lab_of(params, ids)
    all_off = at_gates(lab, np.zeros((1, P))).mean() - found.baseline.mean()
    assert found.integrated.sum() == pytest.approx(all_off, abs=0.01 * abs(all_off) + 1e-4)
    assert found.residual == pytest.approx(found.integrated.sum() - all_off, abs=1e-6)
    coarse = -slopes_at(lab, 0.5)[0].mean(-1).sum() - all_off
    assert abs(coarse) > 2 * abs(found.residual)


def test_on_the_planted_circuit_the_gate_knows_what_matters(tmp_path):
    params, cfg, facts = planted(2, block_size=8, vocab_size=8)
    examples = repeated_sequences(0, 0, 16, 8, 8)
    found = head_importance(params, examples, cfg, fill="zero")
    matters = {facts.previous, facts.induction}
    for name in ("integrated", "effect"):
        values = np.abs(getattr(found, name))
        assert {divmod(int(i), 2) for i in np.argsort(-values.ravel())[:2]} == matters, name
    assert list(found.labels("estimate", 3)) == ["absolute", "signed", "integrated"]
    assert found.correlation.shape == found.correlation_se.shape == (3,)
    path, _ = found.save(tmp_path / "importance")
    again = read_result(path)
    np.testing.assert_array_equal(again.hessian, found.hessian)
    assert float(again.residual) == float(found.residual)
    assert len(found.rows()) == 4


def test_the_sign_matters(params, ids, found):
    """`signed` foretells the effect of nearly shut gates: scaled, it is the change from one to 1 - h."""
    lab, h = lab_of(params, ids), 0.05
    change = (at_gates(lab, 1 - h * np.eye(P)) - found.baseline).mean(-1) / h
    np.testing.assert_allclose(found.signed.ravel() + h / 2 * np.diag(found.hessian), change, atol=1e-3)


def test_what_cannot_be_asked(params, ids):
    with pytest.raises(UserError, match="fill 'optimal' is fitted anew"):
        head_importance(params, ids, CFG, fill="optimal")
    with pytest.raises(UserError, match="steps is 0"):
        head_importance(params, ids, CFG, fill="zero", steps=0)
    with pytest.raises(UserError, match="two or more"):
        head_importance(params, ids[:1], CFG)
