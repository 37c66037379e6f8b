"""Write the notebooks from their paired Python texts: `python docs/make_notebooks.py [1-first-steps ...]`.

Each text in notebooks/ (a Python file in which `# %%` begins a cell) is executed from its first cell to its last, and
stored as a notebook with its outputs.  Metadata of the machine and of the time of execution are omitted.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"


def write(text: Path) -> Path:
    """Execute one text and write its notebook."""
    notebook = jupytext.read(text)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of Jupyter about its sockets and event loops
        NotebookClient(
            notebook, timeout=900, kernel_name="python3", record_timing=False, resources={"metadata": {"path": folder}}
        ).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    target = text.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py")):
        print(write(FOLDER / f"{name}.py"))
