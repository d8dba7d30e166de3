"""Strict everywhere: warnings are errors (pyproject.toml), and no dtype is promoted in silence."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Nearly all of the suite's time is compilation: it compiles fast and runs slow, unless asked to test what users run.
QUICK_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if "TINYGPT_TEST_OPTIMIZED" not in os.environ:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILE}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # its own tests turn it on, in processes of their own

# Compilation makes first examples slow, and machines are noisy: no deadline. Derandomised: the same cases every time.
settings.register_profile("tinygpt", deadline=None, derandomize=True)
settings.load_profile("tinygpt")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test session's own: nothing of the user's is read or written."""
    path = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("TINYGPT_CACHE", str(path))
    return path
