"""Strict everywhere: warnings are errors (pyproject.toml), and no dtype is promoted in silence."""

import os
import signal
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

# Under nohup, or in the background of a script, some signals are ignored; tests send them.
for name in ("SIGHUP", "SIGINT"):
    if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)

# Compilation makes first examples slow, and machines are noisy: no deadline. Derandomised: the same cases every time.
settings.register_profile("tinygpt", deadline=None, derandomize=True)
settings.load_profile("tinygpt")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test session's own: nothing of the user's is read or written."""
    path = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("TINYGPT_CACHE", str(path))
    return path
