"""Every notebook runs from its first cell to its last, and is the same as the text that it is paired with.

What reads and runs notebooks takes long to import: the tests do it that need it.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
TEXTS = sorted(FOLDER.glob("*.py"))
FEW = 2
"""Replications with which cells run here: what comes out is written in the notebook, made with all of them."""


@pytest.mark.by_turns(3)
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


def test_there_are_nine_pairs():
    assert [path.name[0] for path in TEXTS] == list("123456789")
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


ERLANG_B = "1.0 if servers == 0 else (lambda one: load * one / (servers + load * one))(erlang_b(load, servers - 1))"
RANK = "sum(times[task]) / 3 + max((size + rank(after) for after, size in edges[task].items()), default=0)"
ANSWERS: dict[str, list[Any]] = {
    "8-lesson-queues-and-backfilling": [
        {"gpus": 8, "load": 0.75},  # 150/s × 0.05 s = 7.5
        {"wait": 4, "response": 5},  # 0.8 / (1 - 0.8) s, and a service of 1 s
        42 / 12,
        {"load": 0.9, "factor": 19 / 9},  # ρ / (1 - ρ) = 9; 0.95 / 0.05 = 19
        100,
        ERLANG_B,
        {"wait": 0.7455, "factor": 5.365},  # B(3.2, 4) = 0.2281, so C = 0.5964, / (4 - 3.2)
        {"equal": 2, "mixed": 10},  # 4 × (1 + 0) / 2, 4 × (1 + 4) / 2
        {"B": 6, "C": 10, "D": 12, "E": 12},  # after A, after B, after C
        {"B": 6, "C": 12, "D": 3, "E": 4},  # D takes the extra GPU for nine seconds, E ends when B starts
        {"B": 6, "C": 10, "D": 12, "E": 4},  # D would delay C
        7,  # from 3 to 10 s
    ],
    "9-lesson-transfers-heft-and-batching": [
        4.56,  # 12 GB/s × 0.38 s
        {"one": 18.0, "best": 7.71},  # 50 × 0.36 s, 50 × 0.15 + 0.1 + 0.11 s
        3,  # 360 / 150 = 2.4
        210,  # 100 + 110 ms
        {"12 GB": 2, "24 GB": 3},  # 12 / 6, then the other 12 GB at 12 GB/s
        RANK,
        {"p1": 32, "p2": 34, "p3": 28},  # 9 + 12 + 11, 9 + 12 + 13, 9 + 19
        {"bound": 41, "ratio": 80 / 41},
        {"eight": 8 / 0.024, "limit": 2000 / 3, "batch": 21},  # 0.28 b ≥ 5.76
        {"wait": 200, "response": 243.5},  # 20 gaps of 20 ms, half of them on average; then 12 + 31.5 ms
        {"batch": 25, "rate": 25 / 0.0495},  # 1.5 b ≤ 38
    ],
}
"""What the exercises of the lessons ask for, by hand; texts are what a function has to return."""


def code_of(name: str) -> list[str]:
    import jupytext

    cells = jupytext.read(FOLDER / f"{name}.py").cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_checks_of_exercises_know_right_answers_from_wrong_ones(name: str, capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)  # a lesson writes a table
    cells = code_of(name)
    asked: list[int] = []
    namespace: dict[str, Any] = {}
    for cell, after in zip(cells, [*cells[1:], ""], strict=True):
        if exercise := re.search(r"\banswer_(\d+) = .*", cell):
            asked.append(int(exercise[1]))
            right = ANSWERS[name][asked[-1] - 1]
            shifted = f"1.05 * ({right})" if not isinstance(right, dict) else {key: 1.05 * right[key] for key in right}
            for given, answer in (("not yet", shifted), ("right", right)):
                capsys.readouterr()
                exec(cell.replace(exercise[0], f"answer_{exercise[1]} = {answer}"), namespace)
                exec(after, namespace)
                assert capsys.readouterr().out.startswith(given), (exercise[0], answer)
        elif len(asked) < len(ANSWERS[name]) and "replications=" not in cell:
            exec(cell, namespace)
    assert asked == list(range(1, len(ANSWERS[name]) + 1))


@pytest.mark.parametrize("name", ANSWERS)
def test_lessons_are_shown_without_answers(name: str):
    import nbformat

    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    said = ["".join(output.text for output in cell.outputs if "text" in output) for cell in code]
    assert said.count("not answered yet\n") == len(ANSWERS[name])
    assert len(re.findall(r"\banswer_\d+ = .*None", "\n".join(code_of(name)))) == len(ANSWERS[name])
