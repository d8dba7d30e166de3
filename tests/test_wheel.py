"""The built package, alone in an environment without tests or extras and far from the checkout: what it holds, and that
it works. CI names in TINYGPT_TEST_WHEEL a folder where both were made beforehand; else they are made here."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
SMOKE = """
import contextlib, io, json, os
import tinygpt_jax
from tinygpt_jax.cli import main

found = {"where": tinygpt_jax.__file__}
for command in (
    "doctor --json", "sample --json --max-tokens 5", "eval --json --data text.txt",
    "heads --json --windows 2 --no-figures", "report", "plot",
):
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        code = main(command.split())
    found[command.split()[0]] = [code, said.getvalue(), told.getvalue()]
print(json.dumps(found))
"""


class Made(NamedTuple):
    wheel: Path
    bin: Path
    """of the environment that has it, and what it needs"""


def make(folder):
    """Builds the wheel from what git would take, and installs it into an environment of its own."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in git.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    for command in (
        (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "source"),
        (sys.executable, "-m", "venv", folder / "venv"),
    ):
        subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([folder / "venv/bin/pip", "install", "-q", "--no-compile", wheel], check=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = Path(os.environ.get("TINYGPT_TEST_WHEEL") or tmp_path_factory.mktemp("wheel"))
    if "TINYGPT_TEST_WHEEL" not in os.environ:
        make(folder)
    (wheel,) = folder.glob("*.whl")
    return Made(wheel, folder / "venv" / "bin")


def test_it_holds_the_package_its_licence_and_nothing_else(made):
    with zipfile.ZipFile(made.wheel) as wheel:
        names = set(wheel.namelist())
        about = next(name for name in names if name.endswith("METADATA"))
        metadata = wheel.read(about).decode()
    code = {name for name in names if name.endswith(".py")}
    assert code == {str(file.relative_to(ROOT)) for file in (ROOT / "tinygpt_jax").rglob("*.py")}
    described = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    assert names - code == {f"{Path(about).parent}/{name}" for name in described}
    assert (ROOT / "README.md").read_text().strip() in metadata.replace("\r\n", "\n")


def test_it_needs_what_it_says(made):
    """Nothing comes with the tests alone: what the package imports is what its own requirements brought."""
    done = subprocess.run([made.bin / "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    names = subprocess.run([made.bin / "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    installed = {one["name"].lower() for one in json.loads(names.stdout)}
    assert {"jax", "tokenizers", "safetensors"} <= installed
    assert not installed & {"matplotlib", "pytest", "hypothesis", "torch", "flax"}


def test_it_works_far_from_the_checkout(made, tmp_path):
    env = {name: value for name, value in os.environ.items() if not re.match("PYTHON|JAX|TINYGPT|VIRTUAL_ENV", name)}
    env |= {"TINYGPT_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    size = "--n-layer 1 --n-embd 16 --n-head 2 --block-size 16 --batch-size 4 --steps 4 --sample-every 0"
    trained = run(made.bin / "tinygpt", "train", "--json", *size.split())
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["steps"] == 4
    (tmp_path / "text.txt").write_text("The model is a function of its parameters.\n" * 20)
    smoke = run(made.bin / "python", "-c", SMOKE)
    assert smoke.returncode == 0, smoke.stderr
    found = json.loads(smoke.stdout)
    assert Path(found.pop("where")).is_relative_to(made.bin.parent)
    assert {name: code for name, (code, *_) in found.items()} == {**dict.fromkeys(found, 0), "plot": 1}, found
    assert json.loads(found["doctor"][1])["healthy"]
    assert json.loads(found["sample"][1])[0]["text"]
    assert json.loads(found["eval"][1])["tokens"] > 0
    assert found["plot"][2] == "tinygpt plot: figures need matplotlib, which is missing: pip install matplotlib\n"
    (report,) = (tmp_path / "runs").glob("*/report.html")
    assert "matplotlib" in found["report"][2] + report.read_text()
