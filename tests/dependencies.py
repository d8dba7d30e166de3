"""The oldest and the newest releases that our requirements allow, tried; and what is known against those installed.

    python -m tests.dependencies oldest [PYTEST OPTIONS]   # every requirement of pyproject.toml at its lower bound
    python -m tests.dependencies newest [PYTEST OPTIONS]   # the newest that resolve with this Python
    python -m tests.dependencies audit FOLDER              # packages in a site-packages folder against known advisories

The first two make an environment in a temporary folder and run a part of the suite there, or what the options say. The
last fails on any advisory about a package that is there, direct or not, unless `ACCEPTED` knows it; where the advisory
service cannot be reached it says so in one line and passes, since that says nothing about our packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("tensorboard", "plot", "test")
TRIED = (
    "test_reference.py", "test_params.py", "test_statistics.py", "text", "training/test_loop.py",
    "training/test_optimizer.py", "sampling", "lab/test_results.py", "figures/test_bars.py", "cli/test_cli.py",
)  # fmt: skip
"""A part of the suite that touches every requirement."""
ACCEPTED: dict[str, str] = {}
"""Advisories that do not concern us -> why."""


def lower_bounds() -> Iterator[tuple[str, str]]:
    """(name, oldest release that is allowed) of every requirement, but of the peers'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]:
        if not line.startswith(project["name"]):
            name, bound = re.fullmatch(r"([\w.-]+)>=([\d.]+)", line).groups()
            yield name, bound


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of a new environment with the package, editable, and these."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin/pip"), "install", "-q", "--no-compile"]
    subprocess.run([*pip, "-e", f"{ROOT}[test]", *requirements], check=True)
    return folder / "bin/python"


def attempt(which: str, options: Sequence[str]) -> int:
    """Installs, says what was installed, and runs the tests."""
    bounds = dict(lower_bounds())
    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"{name}=={bound}" for name, bound in bounds.items()] if which == "oldest" else []
        python = environment(Path(folder), wanted)
        listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
        found = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
        print(f"Python {sys.version.split()[0]}:", *(f"{name} {found[name.lower()]}" for name in bounds), flush=True)
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if which == "oldest":  # which warns of what later releases of its own requirements left behind
            command += ["-o", "filterwarnings=default"]
        return subprocess.run([*command, *(options or [f"tests/{name}" for name in TRIED])], cwd=ROOT).returncode


def audit(folder: Path) -> int:
    """Asks pip-audit, which is fetched for this alone."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-m", "venv", made], check=True)
        subprocess.run([f"{made}/bin/pip", "install", "-q", "--no-compile", "pip-audit"], capture_output=True)
        command = [f"{made}/bin/python", "-m", "pip_audit", "--path", folder, "--format=json", "--progress-spinner=off"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    code, lines = verdict(done.stdout, done.stderr)
    print("\n".join(lines))
    return code


def verdict(said: str, complained: str) -> tuple[int, list[str]]:
    """Exit code and lines for a person, from what pip-audit printed."""
    try:
        packages = json.loads(said)["dependencies"]
    except ValueError:  # it never came to an answer
        last = (complained.strip().splitlines() or ["it said nothing"])[-1]
        return 0, [f"packages are not audited: no advisory service could be asked ({last[:200]})"]
    known = [one for one in packages if "vulns" in one]
    found = [
        f"{one['name']} {one['version']}: {vuln['id']}, mended in {', '.join(vuln['fix_versions']) or 'no release yet'}"
        for one in known
        for vuln in one["vulns"]
        if not {vuln["id"], *vuln.get("aliases", ())} & ACCEPTED.keys()
    ]
    if not known:
        return 0, [f"packages are not audited: the advisory service knows none of the {len(packages)}"]
    return bool(found), [*found, f"{len(known)} of {len(packages)} packages audited, {len(found)} advisories"]


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["audit"] and len(argv) == 2:
        return audit(Path(argv[1]))
    if argv[:1] in (["oldest"], ["newest"]):
        return attempt(argv[0], argv[1:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
