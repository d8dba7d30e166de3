"""Reruns every experiment, one after the other in processes of their own, or makes the table of what they claim.

python -m experiments.all [--quick] [--only NAME,...] [--out DIR]
                          [--shakespeare FILE] [--peer DIR] [--peer-python PYTHON]
python -m experiments.all --claims
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.shared.common import claims_table

ROOT = Path(__file__).parent
TAKES = {
    "shakespeare": ("halfhour", "recipes", "speedrun"),
    "peer": ("recipes", "speed", "speedrun"),
    "peer-python": ("recipes", "speed", "speedrun"),
}
"""Option -> the experiments that take it: a text, and peers to be compared with. They do less without."""
NEEDS = {"speedrun": "shakespeare"}
"""Experiment -> the option that it cannot do without."""
BEGIN, END = "<!-- claims -->", "<!-- /claims -->"
"""Between these a README keeps the table of claims."""


def discover(root: Path) -> list[str]:
    """Every experiment: a folder that has a run.py."""
    return sorted(file.parent.name for file in root.glob("*/run.py"))


def lacking(name: str, given: Mapping[str, Any]) -> list[str]:
    """The options that an experiment takes and was not given."""
    return [option for option, takers in TAKES.items() if name in takers and not given.get(option)]


def arguments(name: str, given: Mapping[str, Any], quick: bool, out: Path | None) -> list[str]:
    """What an experiment's run.py is called with."""
    made = ["--quick"] if quick else []
    made += ["--out", str(out / name)] if out else []
    for option, takers in TAKES.items():
        if name in takers and given.get(option):
            made += [f"--{option}", str(given[option])]
    return made


def run_all(
    root: Path, names: Sequence[str], given: Mapping[str, Any], quick: bool = False, out: Path | None = None
) -> list[str]:
    """Runs the experiments one by one, goes on past one that fails, and gives the names of those that did.

    Args:
        root: the package that holds them
        given: option of TAKES -> its value
        out: a folder for their results, one folder each; default: their own
    """
    failed = []
    for i, name in enumerate(names, 1):
        title, missing = f"[{i}/{len(names)}] {name}", lacking(name, given)
        without = f", without {', '.join(f'--{option}' for option in missing)}" if missing else ""
        if NEEDS.get(name) in missing:
            print(f"{title}: left out, it needs --{NEEDS[name]}", flush=True)
            continue
        print(f"{title}: started{without}", flush=True)
        began = time.perf_counter()
        command = [sys.executable, "-m", f"{root.name}.{name}.run", *arguments(name, given, quick, out)]
        code = subprocess.run(command, cwd=root.parent).returncode
        failed += [name] if code else []
        outcome = f"failed with exit code {code}" if code else "done"
        print(f"{title}: {outcome} after {time.perf_counter() - began:.0f} s", flush=True)
    return failed


def claims(root: Path) -> list[dict[str, str]]:
    """The rows of all results.json that keep rows of claims, each with the name of its experiment."""
    found = []
    for name in discover(root):
        file = root / name / "results.json"
        rows = json.loads(file.read_text(encoding="utf-8")).get("claims") if file.is_file() else None
        found += [{**row, "experiment": name} for row in rows] if isinstance(rows, list) else []
    return found


def between_marks(text: str) -> str | None:
    """What a README has between BEGIN and END; None where it has no such marks."""
    _, begun, rest = text.partition(BEGIN)
    inside, ended, _ = rest.partition(END)
    return inside if begun and ended else None


def with_table(text: str, table: str) -> str:
    """A README with the table between its marks; as it is where it has none."""
    inside = between_marks(text)
    return text if inside is None else text.replace(f"{BEGIN}{inside}{END}", f"{BEGIN}\n{table}{END}", 1)


def write_claims(root: Path) -> None:
    """The table of claims in the README of the experiments' folder, between its marks."""
    rows, readme = claims(root), root / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), claims_table(rows)), encoding="utf-8")
    print(f"{len(rows)} claims of {len({row['experiment'] for row in rows})} experiments: {root.name}/README.md")


def main(args: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; gives the exit code: 1 where an experiment failed."""
    known = discover(root)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, to see that all of them run")
    parser.add_argument("--only", default=",".join(known), help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, help="where the results go, one folder each; default: the experiments' own")
    for option, takers in TAKES.items():
        parser.add_argument(f"--{option}", help=f"passed on to {', '.join(takers)}")
    parser.add_argument("--claims", action="store_true", help="make README.md's table from the results at hand")
    options = parser.parse_args(args)
    if options.claims:
        write_claims(root)
        return 0
    names = options.only.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no experiment {unknown[0]!r}: choose of {', '.join(known)}")
    given = {option: _whole(getattr(options, option.replace("-", "_"))) for option in TAKES}
    failed = run_all(root, names, given, options.quick, options.out and options.out.resolve())
    print(f"failed: {', '.join(failed)}" if failed else "none failed")
    return 1 if failed else 0


def _whole(path: str | None) -> str | None:
    """A path from here, since experiments start elsewhere; a bare name is left to the shell's search."""
    return str(Path(path).absolute()) if path and Path(path).exists() else path


if __name__ == "__main__":
    sys.exit(main())
