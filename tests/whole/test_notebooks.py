"""Test that the notebooks run without a GPU, in a directory of their own, and show reports."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import cute_gemm

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first_analysis", "ladder"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_stored(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_a_report(path, tmp_path, cache_directory, monkeypatch):
    monkeypatch.setenv("CUTE_GEMM_CACHE_DIR", str(cache_directory))
    monkeypatch.setenv("PYTHONPATH", str(Path(cute_gemm.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    # Raises CellExecutionError, with the traceback, for the first cell that raises.
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    # Output is printed as text, and is not split by rich.
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert path.stem != "ladder" or "What it changes" in printed
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    assert any("Global memory" in page and "<svg" in page for page in pages)
