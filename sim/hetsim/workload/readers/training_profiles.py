"""Folders of measured training steps, for `costs.measured_training`.

A folder of profiles has a folder for each application with

    placements.csv      placement, local_bsz, step_time, sync_time: seconds of a step with this many samples a GPU,
                        and those of them in which it waits for the network; `placement` has a digit for each node,
                        the number of its GPUs
    scalability.csv     num_nodes, num_replicas, local_bsz, step_time, sync_time: the same on more nodes, where only the
                        number of nodes and GPUs counts; may be missing
    validation-N.csv    progress, iteration, grad_sqr, grad_var: one row an epoch, of a training with N samples a step:
                        steps of the smallest N that this is worth, steps, and squared norm and variance of the gradient

as in the artifact of Qiao et al., Pollux (OSDI 2021).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hetsim.model.curves import Layout
from hetsim.model.units import shown
from hetsim.workload.costs.measured_training import Application
from hetsim.workload.rows.text_rows import NUMBER, RowProblems, numbered_lines

STEP_COLUMNS = ("local_bsz", "step_time", "sync_time")
EPOCH_COLUMNS = ("progress", "iteration", "grad_sqr", "grad_var")


def applications(folder: Path, local_limits: Mapping[str, int]) -> dict[str, Application]:
    """All applications in a folder of profiles; ScenarioError with file and line."""
    applications_read = {}
    for inside in sorted(one for one in folder.iterdir() if one.is_dir()):
        applications_read[inside.name] = _application(inside, local_limits.get(inside.name))
    return applications_read


def _application(folder: Path, local_limit: int | None) -> Application:
    placements = _table(folder / "placements.csv", ("placement", *STEP_COLUMNS))
    steps: dict[Layout, np.ndarray] = {}
    for placement in np.unique(placements[:, 0]):
        rows = placements[placements[:, 0] == placement][:, 1:]
        steps[tuple(int(digit) for digit in str(int(placement)))] = rows[np.argsort(rows[:, 0], kind="stable")]
    spread = []
    by_size: dict[tuple[int, int, float], list[np.ndarray]] = {}
    for layout, rows in steps.items():
        for row in rows:
            by_size.setdefault((len(layout), sum(layout), row[0]), []).append(row[1:])
    spread = [[*key, *np.mean(times, axis=0)] for key, times in sorted(by_size.items())]
    more = folder / "scalability.csv"
    if more.is_file():
        spread += _table(more, ("num_nodes", "num_replicas", *STEP_COLUMNS)).tolist()
    epochs = {}
    for path in folder.glob("validation-*.csv"):
        size = path.stem.removeprefix("validation-")
        row_problems = RowProblems(path)
        if not size.isdecimal() or int(size) < 1:
            row_problems.add(f"{shown(size)} in its name is not a batch size", None)
            row_problems.fail_if_any()
        epochs[int(size)] = _table(path, EPOCH_COLUMNS)
    if not epochs:
        row_problems = RowProblems(folder)
        row_problems.add("has no validation-N.csv: one file for each batch size N that was trained with", None)
        row_problems.fail_if_any()
    return Application(folder.name, steps, np.array(spread), epochs=epochs, local_limit=local_limit)


def _table(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    """Columns of numbers of a CSV file with a header."""
    row_problems = RowProblems(path)
    if not path.is_file():
        row_problems.add("is missing", None)
        row_problems.fail_if_any()
    lines = list(numbered_lines(path))
    header = next(csv.reader([lines[0][1]])) if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        row_problems.add(f"has no column {', '.join(missing)}; wanted are {', '.join(columns)}", 1)
        row_problems.fail_if_any()
    places = [header.index(name) for name in columns]
    rows = []
    for number, line in lines[1:]:
        cells = next(csv.reader([line]), [])
        if not cells:
            continue
        picked = [cells[place].strip() if place < len(cells) else "" for place in places]
        for name, cell in zip(columns, picked, strict=True):
            if not NUMBER.fullmatch(cell):
                row_problems.add(f"column {name}: {shown(cell)} is not a number", number)
        rows.append([float(cell) if NUMBER.fullmatch(cell) else 0.0 for cell in picked])
    if not rows:
        row_problems.add("has no rows", None)
    row_problems.fail_if_any()
    return np.array(rows)
