"""Races this package against PyTorch and Hugging Face on this machine, in turns, and says which bars are met.

python -m experiments.speed.run [--peer-python PYTHON_WITH_TORCH] [--peer NANOGPT_CHECKOUT] [--jax-python PYTHON ...]
                                [--only NAME,...] [--rounds N] [--quick] [--out DIR] [--redraw]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.shared.machine import cpu_name
from experiments.speed.contest import race, say
from experiments.speed.races import RACES, Field, Ours, chosen
from experiments.speed.report import figure, table
from experiments.speed.summary import summarise
from tinygpt_jax.measure import threads

HERE = Path(__file__).parent
CHARACTERS = string.ascii_letters + "\n !$&',-.3:;?"
"""65, those of tiny Shakespeare."""
PROBE = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in ("jax", "jaxlib", "torch", "transformers", "transformer-lens"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions(python: str) -> dict[str, str]:
    """What a Python and its packages call themselves."""
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def make_ours(pythons: list[str]) -> tuple[Ours, ...]:
    """Each Python under the version of its JAX, and its own where two have the same."""
    found = [versions(python) for python in pythons]
    labels = [f"jax {one['jax']}" for one in found]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, Python {one['python']}" for label, one in zip(labels, found, strict=True)]
    numbers = [tuple(map(int, re.findall(r"\d+", one["jax"])[:3])) for one in found]
    return tuple(map(Ours, labels, pythons, numbers))


def machine(pythons: list[str]) -> dict[str, Any]:
    """What the numbers depend on; nothing that tells whose machine it is."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.is_file() else set()
    wide = [flag for flag in ("avx2", "avx512f", "amx_tile") if flag in flags]
    found = [", ".join(f"{name} {value}" for name, value in versions(python).items()) for python in pythons]
    return {
        "cpu": f"{cpu_name()} ({', '.join(wide)})",
        "cores": threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "runtimes": found,
    }


def earlier(file: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The races of an earlier call, which `--only` leaves as they are; ends where they are of another machine."""
    if not file.is_file():
        return {}
    before = json.loads(file.read_text())
    if any(before.get(name) != value for name, value in facts.items()):
        raise SystemExit(f"{file.name} is of another machine, size or versions: race all, or name another --out")
    return before["races"]


def save(results: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (out / "table.md").write_text(table(results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python with torch and transformers; without it we race alone")
    parser.add_argument("--peer", type=Path, help="a nanoGPT checkout: its GPT class is then the peer in training")
    parser.add_argument("--jax-python", action="append", help="a Python with JAX; may be given several times")
    parser.add_argument("--only", default=",".join(RACES), help=f"of {', '.join(RACES)}; others in --out are kept")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant (slow races take fewer)")
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE, help="where results.json, table.md and speed.png go")
    parser.add_argument("--redraw", action="store_true", help="table and figure from the results at hand, and stop")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(RACES):
        parser.error(f"no race {', '.join(sorted(unknown))}: known are {', '.join(RACES)}")
    if options.peer and not options.peer_python:
        parser.error("--peer needs --peer-python")
    options.rounds = min(options.rounds, 2) if options.quick else options.rounds
    return options


def run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The races asked for; the results are saved after each, so that an end in between loses one at most."""
    pythons = options.jax_python or [sys.executable]
    text = work / "text.txt"
    text.write_text("".join(random.Random(0).choices(CHARACTERS, k=20_000 if options.quick else 1_115_394)))
    checkout = str(options.peer.resolve()) if options.peer else None
    field = Field(make_ours(pythons), options.peer_python, checkout, text, options.quick)
    facts = {"machine": machine([*pythons, *filter(None, [options.peer_python])]), "quick": options.quick}
    done = earlier(options.out / "results.json", facts) if options.only != list(RACES) else {}
    for name, one in chosen(options.only, field):
        rounds = min(options.rounds, one.rounds)
        say(f"{name}: {len(one.contestants)} contestants, {rounds} rounds")
        taken, failed = race(one.contestants, rounds, work / name)
        done[name] = {"title": one.title, "note": one.note, **summarise(one.measures, taken, failed)}
        results = {**facts, "races": {name: done[name] for name in RACES if name in done}}
        save(results, options.out)
    return results


def main() -> None:
    options = arguments()
    if options.redraw:
        results = json.loads((options.out / "results.json").read_text())
        save(results, options.out)
    else:
        with tempfile.TemporaryDirectory() as work:
            results = run(options, Path(work))
    figure(results, options.out / "speed.png")
    print(table(results), end="")


if __name__ == "__main__":
    main()
