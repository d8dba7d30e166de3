"""Is this machine ready? Versions, devices, dtypes, a tiny train step, and what is missing and how to get it."""

import functools
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from tinygpt_jax.measure import devices, matmul_gflops, threads, timed
from tinygpt_jax.runtime import keep_freed_pages, missing_backend, use_compilation_cache

REQUIRED = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "optax",
    "chex",
    "orbax-checkpoint",
    "tokenizers",
    "safetensors",
    "tyro",
    "rich",
)
OPTIONAL = {
    "matplotlib": ("figures (plot, and those of heads, ablate and report)", "pip install matplotlib"),
    "filelock": ("keeping compiled programs from run to run", "pip install filelock"),
    "tensorboardX": ("event files for TensorBoard (train --tensorboard)", "pip install tensorboardX"),
    "torch": ("comparison with PyTorch in the tests", "pip install torch"),
}
DTYPES = ("float32", "bfloat16")


class Findings(NamedTuple):
    """What was found."""

    versions: dict[str, str | None]
    """package -> version, None where it is missing"""
    devices: list[str]
    threads: int
    """processors this process may use"""
    matmul_gflops: dict[str, float]
    """dtype -> speed of a square product, GFLOP/s, as `matmul_gflops` measures it; 0 where it fails"""
    train_step_ms: float | None
    """one step of a tiny model once compiled, milliseconds; None where it fails"""
    allocator: str
    compilation_cache: str | None
    """where compiled programs are kept; None where they are not"""
    problems: list[str]
    """what keeps training from working, one line each with its remedy"""
    hints: list[str]
    """what could be better, likewise"""

    @property
    def healthy(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "healthy": self.healthy}

    def lines(self) -> list[str]:
        """For a person."""
        step = "failed" if self.train_step_ms is None else f"{self.train_step_ms:.2f} ms"
        kept = self.compilation_cache or "not kept: turned off, no home directory, or in a place that cannot be written"
        speeds = ", ".join(f"{name} {speed:,.0f} GFLOP/s" for name, speed in self.matmul_gflops.items())
        return [
            *(f"{name:17} {found or 'missing'}" for name, found in self.versions.items()),
            f"{'devices':17} {', '.join(self.devices) or 'none'}",
            f"{'threads':17} {self.threads}",
            f"{'matrix products':17} {speeds}",
            f"{'tiny train step':17} {step}",
            f"{'allocator':17} {self.allocator}",
            f"{'compiled programs':17} {kept}",
            *(f"problem: {line}" for line in self.problems),
            *(f"hint: {line}" for line in self.hints),
            "ready" if self.healthy else "not ready",
        ]


def doctor() -> Findings:
    """Checks this machine; a check that fails becomes one of `problems`, never an exception."""
    versions = {"python": platform.python_version(), **{name: _version(name) for name in (*REQUIRED, *OPTIONAL)}}
    problems = [f"{n} is missing: pip install {n}" for n in REQUIRED if versions[n] is None]
    hints = [f"{n} is missing, wanted for {use}: {how}" for n, (use, how) in OPTIONAL.items() if versions[n] is None]
    pages = keep_freed_pages()
    found, speeds, step, cache = _attempt("jax", devices, problems) or [], {}, None, None
    if found:
        cache = _attempt("the compilation cache", use_compilation_cache, problems)
        products = {name: functools.partial(matmul_gflops, name) for name in DTYPES}
        speeds = {name: _attempt(f"{name} products", products[name], problems) or 0.0 for name in DTYPES}
        step = _attempt("a train step", _tiny_step, problems)
        if 0 < speeds["bfloat16"] < speeds["float32"]:
            hints.append("bfloat16 is slower than float32 here: keep --compute-dtype float32")
    return Findings(
        versions=versions,
        devices=found,
        threads=threads(),
        matmul_gflops=speeds,
        train_step_ms=step,
        allocator="glibc, freed pages kept" if pages else "the system's own, untouched",
        compilation_cache=str(cache) if cache else None,
        problems=problems,
        hints=hints,
    )


def _attempt(what: str, examination: Any, problems: list[str]) -> Any:
    try:
        return examination()
    except Exception as error:  # whatever it is, it is the finding
        if missing := missing_backend():
            problems.append(missing)
            return None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        problems.append(f"{what} failed ({type(error).__name__}: {reason}): reinstall jax and jaxlib of one version")
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tiny_step() -> float:
    import jax
    import jax.numpy as jnp

    from tinygpt_jax.config import GPTConfig, TrainConfig
    from tinygpt_jax.training.step import init_state, make_train_step

    cfg = TrainConfig(model=GPTConfig(vocab_size=16, block_size=8, n_layer=1, n_head=2, n_embd=16))
    step, state = jax.jit(make_train_step(cfg)), init_state(cfg)
    ids = jnp.zeros((1, 2, 8), jnp.int32)
    _, metrics = step(state, ids, ids)
    if not jnp.isfinite(metrics.loss):
        raise ArithmeticError(f"the loss is {float(metrics.loss)}")
    return 1000 * min(timed(lambda: step(state, ids, ids)))
