"""Every notebook runs from its first cell to its last."""

from __future__ import annotations

import warnings
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    with warnings.catch_warnings():  # Jupyter's own, about its sockets and event loops
        warnings.simplefilter("ignore")
        where = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()


def test_there_are_notebooks_and_they_show_their_results():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert all(cell.outputs for cell in cells if cell.cell_type == "code"), path
