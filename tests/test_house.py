"""The house rules: who may import whom, what lies at the top, and that the package's face is what it says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tinygpt_jax as tg

PACKAGE = Path(tg.__file__).parent
FLOORS = {
    "errors": 0, "files": 0, "config": 0, "runtime": 0, "measure": 0, "digits": 0, "statistics": 0,
    "checks": 1,
    "presets": 2, "reference": 2, "params": 2, "text": 2, "hooks": 2, "kernels": 2, "markup": 2,
    "model": 3, "runs": 3,
    "forward_pass": 4,
    "sampling": 5,
    "training": 6,
    "diagnosis": 7, "lab": 7,
    "benchmark": 8, "figures": 8,
    "reporting": 9,
    "study": 10,
    "cli": 11,
}  # fmt: skip
"""Room -> floor. A room imports from floors below it; `errors` is under everything."""


def rooms_imported(file):
    """Rooms that a file names in its imports, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tinygpt_jax."):
            yield node.module.split(".")[1]
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("tinygpt_jax."))


def violations(room, imported):
    return [other for other in imported if other not in (room, "errors") and FLOORS[other] >= FLOORS[room]]


def files():
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__"):
            yield pytest.param(room, file, id=str(file.relative_to(PACKAGE)))


@pytest.mark.parametrize(("room", "file"), list(files()))
def test_a_room_imports_from_below(room, file):
    assert violations(room, rooms_imported(file)) == []


def test_an_import_from_above_is_seen(tmp_path):
    upward = tmp_path / "model.py"
    upward.write_text("def f():\n    from tinygpt_jax.training.loop import train\n")
    assert violations("model", rooms_imported(upward)) == ["training"]


def test_nothing_in_the_package_imports_tests_or_experiments():
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.split(".")[0] in ("tests", "experiments", "flax", "torch")], file


def test_the_face_of_the_package():
    for name in tg.__all__:
        assert getattr(tg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'gpt_backward'"):
        _ = tg.gpt_backward


def test_importing_the_package_and_asking_for_help_load_no_jax():
    code = (
        "import sys, tinygpt_jax, tinygpt_jax.cli as cli; assert cli.main(['--help']) == 0;"
        "heavy = [m for m in ('jax', 'torch', 'orbax', 'matplotlib', 'tokenizers') if m in sys.modules];"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
