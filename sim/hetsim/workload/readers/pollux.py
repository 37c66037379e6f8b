"""Pollux's workloads (`format: pollux`): jobs with speeds from measured tables.

    name,time,application,num_replicas,batch_size

`time` is the submission in seconds, `application` a folder of `profiles`; `num_replicas` and `batch_size` are the
number of GPUs and of samples per step that the user requests.

    sizes       given: a job runs on the number of GPUs in its row.  any: a job may run on any number of GPUs up to
                `max_gpus` that its batch size allows; a job that requests 1 GPU always runs on one.
    batch       given: a step has the number of samples in the row.  adaptive: a step has the number of samples with
                which training advances fastest at that time, by the tables; a job that requests 1 GPU keeps its number.
    local_limits  by application, the maximum samples per GPU at once, if that is not the largest measured number

A folder of profiles has one folder per application, as in the artifact.

    placements.csv      placement, local_bsz, step_time, sync_time: samples per GPU, seconds of a step, and seconds of
                        these in which it waits for the network; `placement` has one digit per node, its number of GPUs
    scalability.csv     num_nodes, num_replicas, local_bsz, step_time, sync_time: the same on more nodes, where only the
                        numbers of nodes and GPUs matter; optional
    validation-N.csv    progress, iteration, grad_sqr, grad_var: one row per epoch of a training with N samples per
                        step: equivalent steps of the smallest N, steps, and squared norm and variance of the gradient

The duration of a job depends on the placement of its GPUs on nodes (`span: any` permits several nodes), and the work
done per second depends on its progress.  The times apply to the measured GPUs, which have `speed: 1`.
Reference: Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, Pollux: Co-adaptive Cluster Scheduling for
Goodput-Optimized Deep Learning (OSDI 2021), and its artifact.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import file_error, suggestion
from hetsim.model.curves import Layout
from hetsim.model.units import ExistingFolder, shown
from hetsim.workload.costs.measured_training import Application, TrainingCurve
from hetsim.workload.rows.job_log import Count, JobLog, Named
from hetsim.workload.rows.job_tables import job_log, table_of
from hetsim.workload.rows.text_rows import NUMBER, CsvTable, ReadFile
from hetsim.workload.traces import Curves, TaskTable

STEP_COLUMNS = ("local_bsz", "step_time", "sync_time")
EPOCH_COLUMNS = ("progress", "iteration", "grad_sqr", "grad_var")


def applications(folder: Path, local_limits: Mapping[str, int]) -> dict[str, Application]:
    """Return all applications of a profiles folder; ScenarioError with file and line."""
    inside = sorted(one for one in folder.iterdir() if one.is_dir())
    return {one.name: _application(one, local_limits.get(one.name)) for one in inside}


def _application(folder: Path, local_limit: int | None) -> Application:
    placements = _table(folder / "placements.csv", ("placement", *STEP_COLUMNS))
    steps: dict[Layout, np.ndarray] = {}
    for placement in np.unique(placements[:, 0]):
        rows = placements[placements[:, 0] == placement][:, 1:]
        steps[tuple(int(digit) for digit in str(int(placement)))] = rows[np.argsort(rows[:, 0], kind="stable")]
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
        if not size.isdecimal() or int(size) < 1:
            raise file_error(path, f"{shown(size)} in its name is not a batch size")
        epochs[int(size)] = _table(path, EPOCH_COLUMNS)
    if not epochs:
        raise file_error(folder, "has no validation-N.csv: one file for each batch size N that was trained with")
    return Application(folder.name, steps, np.array(spread), epochs=epochs, local_limit=local_limit)


def _table(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    if not path.is_file():
        raise file_error(path, "is missing")
    file = ReadFile(path)
    rows = []
    for number, cells in CsvTable(file, columns):
        for name, cell in zip(columns, cells, strict=True):
            if not NUMBER.fullmatch(cell):
                file.row_problems.add(f"column {name}: {shown(cell)} is not a number", number)
        rows.append([float(cell) if NUMBER.fullmatch(cell) else 0.0 for cell in cells])
    file.require(rows, "has no rows")
    return np.array(rows)


WANTED = ("name", "time", "application", "num_replicas", "batch_size")
MAX_GPUS = 64

Sizes = Literal["given", "any"]
MaxGpus = Annotated[int, Field(ge=1, le=4096, strict=True)]


@job_log
def read(
    log: JobLog, *, profiles: ExistingFolder, sizes: Sizes = "given", batch: Sizes | Literal["adaptive"] = "given",
    max_gpus: MaxGpus = MAX_GPUS, local_limits: dict[Named, Count] | None = None,
) -> TaskTable:  # fmt: skip
    """Jobs of Pollux's workloads: each trains an application measured in `profiles`."""
    limits = local_limits or {}
    profiled = applications(profiles, limits)
    for name in limits:
        if name not in profiled:
            log.fail(f"local_limits: {shown(name)} has no profile in {profiles}{suggestion(name, profiled)}")
    rows: dict[tuple[str, int, int], int] = {}
    for line, (name, time, application, gpus, size) in CsvTable(log, WANTED):
        numbers = log.numbers(line, ("time", "num_replicas", "batch_size"), (time, gpus, size))
        if numbers is None:
            continue
        came, wanted, samples = numbers
        if application not in profiled:
            near = suggestion(application, profiled) or f"; there are {', '.join(profiled)}"
            log.wrong(line, "application", f"{shown(application)} has no profile in {profiles}{near}")
            continue
        if wanted % 1 or wanted < 1:
            log.wrong(line, "num_replicas", f"{shown(gpus)} is not a number of GPUs")
            continue
        largest, smallest = profiled[application].batch_sizes[-1], profiled[application].batch_sizes[0]
        if samples % 1 or not smallest <= samples <= largest:
            log.wrong(line, "batch_size", f"{shown(size)} is not from {smallest} to {largest}, as measured")
            continue
        key = (application, int(wanted), int(samples))
        number = rows.setdefault(key, len(rows))
        log.add(line, name, came, 0.0, **{"class": application}, gpus=wanted, curve=float(number))
    table = table_of(log)
    kinds: list[tuple[tuple[int, TrainingCurve], ...]] = []
    made: dict[tuple[str, int, int | None], TrainingCurve] = {}
    for application, wanted, samples in rows:
        curves = _curves(profiled[application], wanted, samples, any_size=sizes == "any", adaptive=batch == "adaptive",
                         most=max_gpus, made=made)  # fmt: skip
        if not curves:
            log.fail(f"{application}: no measured range includes batches of {samples} samples on {wanted} GPUs")
        kinds.append(curves)
    code = np.asarray(table.extra.pop("curve"), dtype=float).astype(np.int32)
    best = np.array([min(curve.seconds for _, curve in kind) for kind in kinds] or [0.0])
    table.times = {"gpu_time": best[code] if len(code) else np.zeros(0)}
    table.curves = Curves(tuple(kinds), code)
    return table


def _curves(
    application: Application, gpus: int, samples: int, any_size: bool, adaptive: bool, most: int,
    made: dict[tuple[str, int, int | None], TrainingCurve],
) -> tuple[tuple[int, TrainingCurve], ...]:  # fmt: skip
    widths = [gpus]
    if any_size and gpus > 1:
        divisible = (application.batch_sizes[-1] if adaptive else samples) // application.local_range[0]
        widths = list(range(1, min(most, divisible) + 1))
    curves = []
    for width in widths:
        key = (application.name, width, None if adaptive and gpus > 1 else samples)
        if key not in made:
            made[key] = TrainingCurve(application, width, key[2])
        if math.isfinite(made[key].seconds):
            curves.append((width, made[key]))
    return tuple(curves)
