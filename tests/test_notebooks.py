"""Every notebook runs from its first cell to its last, and is the same as the text that it is paired with.

What reads and runs notebooks takes long to import: the tests do it that need it.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
TEXTS = sorted(FOLDER.glob("*.py"))
FEW = 2
"""Replications with which cells run here: what comes out is written in the notebook, made with all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path):
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(path)
    for cell in notebook.cells:
        cell.source = re.sub(r"\breplications=([3-9]|\d\d)", f"replications={FEW}", cell.source)
        cell.source = re.sub(r'(hs\.load\("[\w-]+")\)', rf'\1, {{"replications": {FEW}}})', cell.source)
    with warnings.catch_warnings():  # Jupyter's own, about its sockets and event loops
        warnings.simplefilter("ignore")
        where = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    said = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in said if output.get("name") == "stderr"]


def test_there_are_seven_pairs():
    assert [path.name[0] for path in TEXTS] == list("1234567")
    assert [path.stem for path in sorted(FOLDER.glob("*.ipynb"))] == [path.stem for path in TEXTS]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_text_and_notebook_say_the_same(path: Path):
    import jupytext
    import nbformat

    text = [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == text


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_notebook_shows_its_results(path: Path):
    import nbformat

    cells = [cell for cell in nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells if cell.cell_type == "code"]
    shown = [output for cell in cells for output in cell.outputs]
    assert shown and not [output for output in shown if output.output_type == "error"]
    numbers = [cell.execution_count for cell in cells]
    assert numbers == list(range(1, len(cells) + 1)), "executed from the first cell to the last, once"
