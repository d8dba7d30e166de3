"""Yardsticks of a machine: how long a piece of work takes, how fast it multiplies, how much memory a program takes."""

import math
import os
import time
from collections.abc import Callable
from typing import Any

MATMUL_SIZE = {"cpu": 1024}
MATMUL_SIZE_ELSEWHERE = 8192  # an accelerator is not busy with less


def threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """JAX's devices, as `cpu:0 (cpu)`."""
    import jax

    return [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()]


def timed(work: Callable[[], Any], tries: int = 5, seconds: float = math.inf) -> list[float]:
    """How long `work` takes each time, in seconds, until what its arrays hold is there.

    It runs `tries` times, or until that took `seconds` in all where they are given.
    """
    import jax

    taken: list[float] = []
    while not taken or (len(taken) < tries and sum(taken) < seconds):
        began = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - began)
    return taken


def matmul_size() -> int:
    """n of the n x n matrices that `matmul_gflops` multiplies on the default device."""
    import jax

    return MATMUL_SIZE.get(jax.default_backend(), MATMUL_SIZE_ELSEWHERE)


def matmul_gflops(dtype: str, tries: int = 5) -> float:
    """Speed of a square matrix product, GFLOP/s, the best of a few tries: what this machine can do at most."""
    import jax
    import jax.numpy as jnp

    n = matmul_size()
    a = jnp.ones((n, n), dtype)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(a, a))
    return 2 * n**3 / min(timed(lambda: product(a, a), tries)) / 1e9


def free_memory() -> float:
    """Bytes that the default device has left, infinite where neither it nor the system tells."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one that does not say
        return math.inf


def program_memory(program: Any) -> int | None:
    """Bytes that a compiled program holds while it runs: arguments, results that do not replace them, temporaries."""
    found = program.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(found.argument_size_in_bytes + results + found.temp_size_in_bytes)
