"""Yardsticks of a machine: how long a piece of work takes, how fast it multiplies, how much memory a program takes."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygpt_jax.errors import UserError

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


def total_memory() -> float:
    """Bytes that the default device may ever give this process: an accelerator's; else the machine's with its swap, or
    what a control group or a limit (`ulimit -v`) leaves of it. Infinite where nothing says."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return float(stats["bytes_limit"]) if "bytes_limit" in stats else host_memory()


def host_memory() -> float:
    """Bytes that this process may ever have outside an accelerator, as `total_memory`; needs no JAX."""
    swap = sum(1024 * int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("SwapTotal:"))
    try:
        machine = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one that does not say
        machine = math.inf
    return min(min(machine, _control_group()) + swap, _address_space())


def check_memory(needed: float, what: str, remedy: str, there: float | None = None) -> None:
    """Raises UserError where `what` takes more bytes than there ever are (default: `total_memory()`).

    `needed` should be what it takes at least, so that nothing is refused that would fit.
    """
    there = total_memory() if there is None else there
    if needed > there:
        raise UserError(f"{what} takes {_size(needed)} of memory or more, and there are {_size(there)}: {remedy}")


def _size(bytes: float) -> str:
    """`1.5 GiB`; of less than a tenth of that, MiB."""
    return f"{bytes / 2**30:,.1f} GiB" if bytes >= 2**30 / 10 else f"{bytes / 2**20:,.1f} MiB"


def _control_group() -> float:
    """The least of the limits on this process's control group and on those around it (Linux, both versions)."""
    limits = [math.inf]
    for line in _lines("/proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup", controllers)
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            inner = root / group.lstrip("/")
            files = [folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
            limits += [float(line) for file in files for line in _lines(file) if line.strip().isdigit()]
    return min(limits)


def _address_space() -> float:
    """What `ulimit -v` allows."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)


def _lines(file: str | os.PathLike[str]) -> list[str]:
    """Lines of a file of the system; none where it is not there."""
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


def program_memory(program: Any) -> int | None:
    """Bytes that a compiled program holds while it runs: arguments, results that do not replace them, temporaries."""
    found = program.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(found.argument_size_in_bytes + results + found.temp_size_in_bytes)
