"""The notebook is kept without outputs, and runs from top to bottom in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "experiments" / "notebook" / "open_a_model.ipynb"
FIGURES = {"norm-rows", "residual-writes", "attention-maps", "draw-ablation"}
"""Cells that show a figure."""
TABLES = {"train", "ablate"}
"""Cells that show a result as HTML."""


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook):
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def shown(cell):
    """Kinds of what a cell shows."""
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def test_the_notebook_is_whole_and_kept_without_outputs(notebook):
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert cells.keys() >= FIGURES | TABLES
    for name, cell in cells.items():
        compile(cell.source, name, "exec")
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a kernel works: it imports this package, and reads and writes nothing of the user's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    path = tmp_path / "work"
    path.mkdir()
    return path


def run(notebook, folder):
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(notebook, folder):
    run(notebook, folder)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]
    assert {name for name, cell in cells.items() if "image/png" in shown(cell)} == FIGURES
    assert {name for name, cell in cells.items() if "text/html" in shown(cell)} == TABLES
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_cell_that_fails_is_seen(notebook, folder):
    imports = code_cells(notebook)["imports"]
    imports.source += "\ntg.gpt_backward"
    notebook.cells = [imports]
    with pytest.raises(CellExecutionError, match="gpt_backward"):
        run(notebook, folder)
