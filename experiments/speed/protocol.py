"""What a worker and its parent say to each other: a line in, one turn, a JSON line out. Standard library only."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
"""What a turn gave, under any of: `seconds`, `steps`, `tokens`, `bytes`, `count`, `names`, `done_at`."""
Turn = Callable[[], Answer]
Roles = Mapping[str, Callable[[dict[str, Any]], Turn]]


def serve(roles: Roles) -> None:
    """Makes the role named in the settings (JSON, the only argument), then takes a turn for each line read.

    Everything that making a role does, compiling and warming up included, is before the first turn and so untimed.
    """
    settings = json.loads(sys.argv[1])
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # whatever libraries print, answers stay one line each
        turn = roles[settings["role"]](settings)
        print(json.dumps({"ready": True}), file=stdout, flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn()), file=stdout, flush=True)


def memory(field: str) -> int:
    """Bytes of this process's memory, as Linux counts it: VmRSS is resident now, VmHWM the most there ever was.

    Not `ru_maxrss`: a process started from a large one inherits the large one's.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{field}:\s*(\d+) kB", status)[0])
