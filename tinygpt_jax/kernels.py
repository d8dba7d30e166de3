"""Attention by the library's own kernels, for when nobody looks inside. `model.multi_head_attention` is the meaning."""

from __future__ import annotations

import jax

from tinygpt_jax.config import GPTConfig

CUDNN_WIDTHS = range(8, 129, 8)
"""Head widths K that cuDNN's attention takes."""


def attention_kernel(cfg: GPTConfig, T: int) -> str | None:
    """Which implementation of `jax.nn.dot_product_attention` should be used on T tokens: `cudnn`, `xla`, or None.

    cuDNN's wants bfloat16, certain head widths and an even T (its gradient refuses an odd one), and has neither
    forward-mode nor second derivatives.
    """
    wanted = cfg.attention != "einsum" and cfg.compute_dtype == "bfloat16"
    if wanted and cfg.head_width in CUDNN_WIDTHS and T % 2 == 0 and has_cudnn_attention():
        return "cudnn"
    return "xla" if cfg.attention == "fused" else None


def has_cudnn_attention() -> bool:
    """Whether the default device is an NVIDIA GPU that cuDNN's attention runs on: Ampere or newer."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = default if isinstance(default, jax.Device) else jax.devices(default)[0]
    return "cuda" in device.client.platform_version and float(getattr(device, "compute_capability", 0)) >= 8.0


def fused_attention(q: jax.Array, k: jax.Array, v: jax.Array, kernel: str) -> jax.Array:
    """Causal softmax(q kᵀ / sqrt(K)) v over positions 0 .. T-1, (B, H, T, K) each, without showing the pattern."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    with jax.numpy_dtype_promotion("standard"):  # which JAX's own code relies on in bfloat16
        z = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kernel)  # type: ignore[call-overload]
    return z.transpose(0, 2, 1, 3)
