"""What an experiment's numbers depend on; nothing that tells whose machine it is."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from tinygpt_jax.measure import threads


def cpu_name() -> str:
    """The processor's name, where Linux tells it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    return names[0] if names else platform.processor()


def machine() -> dict[str, Any]:
    """Python's version, processors that this process may use, and the processor's name."""
    return {"python": platform.python_version(), "cores": threads(), "cpu": cpu_name()}
