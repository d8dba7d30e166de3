"""What is lost when a training is killed, signalled, starved of disk, damaged or doubled?

python -m experiments.survival.run [--kills N] [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SEED = 13
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
"""Every program is kept, so that starting again is cheap."""


def measure(quick: bool, kills: Path | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT, TINYGPT_CACHE=str(Path(folder) / "cache"))
        trials = []
        for one in _trials(Path(folder), int(str(kills)) if kills else 10 if quick else 100, quick):
            trials.append({**one._asdict(), "what": one.what.replace(folder, ".")})
            print(f"{len(trials)} {one.kind}: {'survived' if one.survived else 'LOST'}, {one.what}", file=sys.stderr)
    return {"seed": SEED, "trials": trials}


def _trials(folder: Path, kills: int, quick: bool) -> Iterator[Any]:
    from experiments.survival import trials

    place = trials.Place(folder, SEED)
    drawn = max(kills // 10, 1)
    yield from trials.strikes(place, trials.kills(kills - drawn, place.random))
    yield from trials.killed_drawing(place, drawn)
    yield from trials.strikes(place, trials.signals(1 if quick else 4, place.random))
    yield from trials.at_once(place, 2 if quick else 6)
    yield from trials.damaged(place, 2 if quick else 20)
    try:
        yield from trials.full_disk(place, 1 if quick else 6)
        yield from trials.read_only(place, 1 if quick else 2)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"without a disk to fill: {error}", file=sys.stderr)


if __name__ == "__main__":
    from experiments.shared.common import main
    from experiments.survival.report import report

    main(__doc__, HERE, measure, report, files={"kills": "how many SIGKILLs; 100, or 10 at toy size"})
