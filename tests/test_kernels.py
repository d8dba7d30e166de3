"""Attention by a library's kernel means what the readable lines mean, and is used only where nobody looks inside."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygpt_jax import forward_pass
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward, init_cache
from tinygpt_jax.model import gpt_forward
from tinygpt_jax.params import init_params, param_shapes
from tinygpt_jax.training.loss import loss_sum, window_losses

CFG = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, attention="fused")
PARAMS = jax.tree.map(
    lambda p: p + 0.1 * jnp.sin(jnp.arange(p.size)).reshape(p.shape), init_params(jax.random.key(0), CFG)
)
IDS = np.random.default_rng(0).integers(0, 11, (3, 8)).astype(np.int32)


@pytest.fixture
def calls(monkeypatch):
    """The kernels that `attend_fused` is called with."""
    seen, real = [], forward_pass.attend_fused

    def spy(*args, kernel):
        seen.append(kernel)
        return real(*args, kernel="xla")

    monkeypatch.setattr(forward_pass, "attend_fused", spy)
    return seen


@pytest.mark.parametrize(("positions", "smeared"), [("learned", False), ("rope", False), ("none", True)])
def test_the_kernel_is_the_readable_attention(positions, smeared, calls):
    fused = dataclasses.replace(CFG, positions=positions, attn_bias=True, smeared_keys=smeared)
    readable = dataclasses.replace(fused, attention="einsum")
    params = init_params(jax.random.key(1), fused)
    value_and_grad = jax.value_and_grad(loss_sum)
    (loss, grads), (want_loss, want) = (value_and_grad(params, IDS, IDS, cfg) for cfg in (fused, readable))
    assert calls == ["xla"]  # the scan traces one block
    np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), grads, want)


@pytest.mark.parametrize(
    "inside",
    [
        {"taps": ("pattern",)},
        {"taps": "pattern"},
        {"edits": {"pattern": Edit(jnp.ones((2, 1, 2, 1, 1)))}},
        {"edits": {"q": Edit(jnp.ones((2, 1, 2, 1, 1)))}},
        {"pos": jnp.tile(jnp.arange(8, dtype=jnp.int32), (3, 1))},
        {"cache": init_cache(CFG, 3, 8)},
    ],
    ids=["tap", "one tap by name", "edit of the pattern", "edit of q", "positions", "cache"],
)
def test_who_looks_inside_gets_the_readable_attention(inside, calls):
    out = forward(PARAMS, IDS, CFG, **inside, fused=True)
    assert calls == []
    want = forward(PARAMS, IDS, dataclasses.replace(CFG, attention="einsum"), **inside)
    assert np.array_equal(out.logits, want.logits)


def test_dropout_gets_the_readable_attention(calls):
    forward(PARAMS, IDS, dataclasses.replace(CFG, dropout=0.1), key=jax.random.key(0), fused=True)
    assert calls == []


def test_only_a_loss_gets_a_kernel_which_lacks_derivatives(calls):
    gpt_forward(PARAMS, IDS, CFG)
    assert calls == []
    window_losses(PARAMS, IDS, IDS, CFG)
    assert calls == ["xla"]


def test_bfloat16_under_strict_promotion():
    cfg = dataclasses.replace(CFG, compute_dtype="bfloat16")
    with jax.numpy_dtype_promotion("strict"):
        loss = loss_sum(PARAMS, IDS, IDS, cfg)
    want = loss_sum(PARAMS, IDS, IDS, dataclasses.replace(cfg, attention="einsum"))
    np.testing.assert_allclose(loss, want, rtol=2e-2)


def test_a_kernel_that_sees_the_future_is_caught(monkeypatch):
    real = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *a, is_causal, **k: real(*a, is_causal=False, **k))
    with pytest.raises(AssertionError):
        test_the_kernel_is_the_readable_attention("learned", False, ["xla"])


CUDNN = dataclasses.replace(CFG, n_embd=64, compute_dtype="bfloat16", attention="auto")


@pytest.mark.parametrize(
    ("cfg", "kernel"),
    [
        (CUDNN, "cudnn"),
        (dataclasses.replace(CUDNN, attention="fused"), "cudnn"),
        (dataclasses.replace(CUDNN, attention="einsum"), None),
        (dataclasses.replace(CUDNN, compute_dtype="float32"), None),
        (dataclasses.replace(CUDNN, compute_dtype="float32", attention="fused"), "xla"),
        (dataclasses.replace(CUDNN, n_embd=24), None),
        (dataclasses.replace(CUDNN, n_embd=512), None),
    ],
)
def test_what_a_gpu_gets(cfg, kernel, monkeypatch):
    monkeypatch.setattr(forward_pass, "has_cudnn_attention", lambda: True)
    assert forward_pass.attention_kernel(cfg, 8) == kernel
    assert forward_pass.attention_kernel(cfg, 7) == (
        None if kernel == "cudnn" and cfg.attention == "auto" else kernel and "xla"
    )


def test_a_cpu_gets_the_readable_attention_unless_asked():
    assert not forward_pass.has_cudnn_attention()
    assert forward_pass.attention_kernel(CUDNN, 8) is None
    with pytest.raises(UserError, match="attention is 'flash'"):
        check(dataclasses.replace(CFG, attention="flash"))


@pytest.mark.parametrize("T", [1, 2, 7, 8])
def test_training_on_a_gpu_lowers_to_cudnn(T, monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo  # what it asks of the device is not there to be asked here

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda wanted: True)
    monkeypatch.setattr(forward_pass, "has_cudnn_attention", lambda: True)
    ids = jax.ShapeDtypeStruct((2, T), jnp.int32)
    traced = jax.jit(jax.grad(loss_sum), static_argnums=3).trace(param_shapes(CUDNN), ids, ids, CUDNN)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert ("__cudnn$fmhaSoftmax(" in program) == (T % 2 == 0)  # cuDNN's gradient refuses an odd length
    assert ("__cudnn$fmhaSoftmaxBackward(" in program) == (T % 2 == 0)
