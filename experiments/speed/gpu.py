"""All that needs a GPU, in under eight minutes, as one JSON file: `experiments/speed/gpu.sh` runs it.

python -m experiments.speed.gpu [--out FILE] [--data TEXT] [--only NAME,...] [--minutes 7.5] [--toy]

Every section is a process of its own with a time budget: one that fails, or is ended, costs the others nothing, and
what it had told until then is kept. `--toy` runs all of it at toy size on a CPU in about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.speed.contest import ROOT, last_word, say

BUDGETS = {"peak": 30, "train": 150, "torch": 75, "decode": 60, "ablate": 45, "recipe": 100}
"""Section -> seconds at most, in the order in which they run; together less than eight minutes."""


def last_document(stdout: str) -> dict[str, Any]:
    """The last line that is whole: a section tells what it has every time it has more."""
    for line in reversed(stdout.splitlines()):
        try:
            document: dict[str, Any] = json.loads(line)
            return document
        except ValueError:
            continue
    return {}


def section(name: str, seconds: float, options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """What a section found, and why it ended where it did not finish."""
    given = {"name": name, "toy": options.toy, "data": options.data, "seconds": seconds, "known": known}
    command = [sys.executable, "-m", "experiments.speed.gpu_sections", json.dumps(given)]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            code: int | None = subprocess.run(command, cwd=ROOT, stdout=out, stderr=err, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    found = last_document(texts[0])
    if code is None:
        found["failed"] = f"ended after {seconds:.0f} s, its time budget"
    elif code:
        found["failed"] = last_word(texts[1])
    return {**found, "section_seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = Path(os.environ["OUT"]) if "OUT" in os.environ else Path(__file__).parent
    parser.add_argument("--out", type=Path, default=out / "gpu.json", help="the JSON file; default $OUT/gpu.json")
    parser.add_argument("--data", default="shakespeare", help="the recipe's text: a file, or a name `tinygpt` knows")
    parser.add_argument("--only", default=",".join(BUDGETS), help=f"of {', '.join(BUDGETS)}")
    parser.add_argument("--minutes", type=float, default=7.5, help="for all sections together")
    parser.add_argument("--toy", action="store_true", help="toy size, to see that it runs")
    options = parser.parse_args()
    if os.path.exists(options.data):
        options.data = str(Path(options.data).resolve())
    results: dict[str, Any] = {"toy": options.toy, "sections": {}}
    end = time.monotonic() + 60 * options.minutes
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in ("machine", *(name for name in BUDGETS if name in options.only.split(","))):
        seconds = min(BUDGETS.get(name, 30), end - time.monotonic())
        say(f"{name}: {seconds:.0f} s at most")
        if seconds < 5:
            found: dict[str, Any] = {"failed": "no time was left"}
        else:
            found = section(name, seconds, options, results["sections"])
        results["sections"][name] = found
        say(f"{name}: {found.get('failed', 'done')} after {found.get('section_seconds', 0):.0f} s")
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
