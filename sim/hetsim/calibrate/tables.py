"""Stage times measured elsewhere: tables by batch size, or perf_analyzer files.

Triton's perf_analyzer (`-f FILE`) writes one row per load: Concurrency or Request Rate, Inferences/Second, and the mean
microseconds of a request in each part: Client Send, Network+Server Send/Recv, Server Queue, Server Compute Input,
Server Compute Infer, Server Compute Output, Client Recv; then percentiles of its latency.  The rows do not state the
batch size (`-b`), so that each file has one batch size, unless a column was added.  For each size the row with the
lowest load is used, at which no request waits for another: input, infer and output are upload, compute and download.
Reference: docs/measurements_metrics.md of triton-inference-server/perf_analyzer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetsim.errors import file_error
from hetsim.workload.mapped import picked_columns
from hetsim.workload.mapped.cells import bounded, plain
from hetsim.workload.mapped.picked_columns import PickedColumns
from hetsim.workload.mapped.propose import form_of
from hetsim.workload.mapped.rows import FileRows, rows_of, tidied

PERF = "Inferences/Second"  # column that identifies a file of perf_analyzer
LOADS = ("Concurrency", "Request Rate")
BATCH = ("batch_size", "batch", "batchsize", "size", "bs")
# Default names of the time column, without a unit; the first one present is used
TIMES = ("time", "latency", "duration", "compute", "mean", "avg", "average", "mean_latency", "latency_mean",
         "avg_latency", "latency_avg", "median", "p50", "median_latency", "latency_median", "p50_latency",
         "latency_p50")  # fmt: skip
STAGES = {
    "upload": "Server Compute Input", "compute": "Server Compute Infer", "download": "Server Compute Output",
}  # fmt: skip
OLD_COMPUTE = "Server Compute"  # the column of versions before 2.0, for all three stages
QUEUE = "Server Queue"
# client-side columns, for servers without stage times (TensorFlow Serving); the first present is used
CLIENT = ("Avg latency", "p50 latency")
BUSY = 0.05  # share of the compute time above which queueing shows that requests wait for each other


@dataclass
class Elsewhere:
    """Seconds of each stage by batch size from another program, and remarks on them."""

    what: str
    stages: dict[str, dict[int, float]]
    remarks: list[str] = field(default_factory=list)


def table(
    path: Path, batch: str | None, time: str | None, unit: str | None, where: Mapping[str, Any], samples: bool
) -> Elsewhere:
    """Read compute times by batch size; ScenarioError names file, line and column.

    batch, time: column names; None: usual names.  unit: of the times, if the column's name does not state one.  where:
    use only rows with these values.  samples: rows of equal size are samples; use their mean.
    """
    names = rows_of(path, form_of(path)).names
    batch, time = batch or _usual(path, names, BATCH, "--batch"), time or _usual(path, names, TIMES, "--time")
    sizes, seconds, _ = picked_columns.read(path, batch, time, unit=unit, where=where, quantiles={}, samples=samples)
    return Elsewhere(f"{path}: {time} by {batch}", {"compute": dict(zip(sizes, seconds, strict=True))})


def _usual(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> str:
    columns = PickedColumns.bare(names)
    column = next((columns[name] for name in wanted if name in columns), None)
    if column is None:
        listed = ", ".join(names[:20])
        raise file_error(path, f"no column {wanted[0]} (or {', '.join(wanted[1:])}); name one by {option}: {listed}", 1)
    return column


def perf_analyzer(files: Sequence[tuple[int | None, Path]]) -> Elsewhere:
    """Read perf_analyzer files, each with its batch size (None: the size is a column)."""
    measured: dict[int, _Measured] = {}
    remarks = []
    for size, path in files:
        rows = rows_of(path, form_of(path))
        load = next((name for name in LOADS if name in rows.names), None)
        if _by_client(rows.names):
            what = "the latency seen by the client, network included, was used as the compute time"
            remarks.append(f"{path} has no times of the server: {what}")
        for line, row in _rows(path, rows):
            of_size = _size(path, line, row, size)
            at = _number(path, line, row, load) if load is not None else 1.0
            if (before := measured.get(of_size)) is None or at < before.load:
                measured[of_size] = _Measured(at, _stages(path, line, row), path, load == LOADS[0] and at > 1)
            elif at == before.load and before.path != path:
                raise file_error(path, f"batches of {of_size} are also in {before.path}; give each size once", line)
    if not measured:
        raise file_error(files[0][1], "the table has no rows")
    stages, left_out = _by_stage(measured)
    source = ", ".join(str(path) for _, path in files)
    return Elsewhere(source, stages, [*remarks, *_under_load(measured), *left_out])


@dataclass(frozen=True)
class _Measured:
    load: float
    stages: dict[str, float]
    path: Path
    overlapping: bool  # more than one request was in flight


def _under_load(found: Mapping[int, _Measured]) -> Iterator[str]:
    if flying := [size for size in sorted(found) if found[size].overlapping]:
        text = f"batches of {', '.join(map(str, flying))} were measured with more than one request in flight"
        yield f"{text}: their stages may contain each other's (measure with --concurrency-range 1)"
    waited = [size for size in sorted(found) if found[size].stages["queue"] > BUSY * found[size].stages["compute"]]
    if waited:
        yield f"requests of batches of {', '.join(map(str, waited))} waited at the server; the wait is not counted"


def _by_stage(found: Mapping[int, _Measured]) -> tuple[dict[str, dict[int, float]], list[str]]:
    stages, left_out = {}, []
    for name in STAGES:
        seconds = {size: found[size].stages[name] for size in sorted(found)}
        if name == "compute" or all(value > 0 for value in seconds.values()):
            stages[name] = seconds
        elif any(value > 0 for value in seconds.values()):
            left_out.append(f"{name} took 0 s at some sizes; this stage is left out")
    return stages, left_out


def _rows(path: Path, rows: FileRows) -> list[tuple[int, dict[str, Any]]]:
    names = rows.names
    has_stages = OLD_COMPUTE in names or not _by_client(names)
    needed = [] if OLD_COMPUTE in names else list(STAGES.values()) if has_stages else CLIENT[1:]
    for name in (PERF, *needed):
        if name not in names:
            raise file_error(path, f'the file has no column "{name}", which perf_analyzer writes', 1)
    return [
        (line, dict(zip(names, map(tidied, cells), strict=True)))
        for line, cells in rows.cells(names)
        if str(cells[0]).strip() != names[0]  # files that were put together have their headers inside
    ]


def _by_client(names: Sequence[str]) -> bool:
    return not any(name.startswith("Server ") for name in names) and any(name in names for name in CLIENT)


def _size(path: Path, line: int, row: dict[str, Any], given: int | None) -> int:
    name = next((name for bare, name in PickedColumns.bare([*row]).items() if bare in BATCH), None)
    if name is None:
        if given is None:
            text = "perf_analyzer does not write the batch size (its -b): name it, as in --from 8=FILE, for each file"
            raise file_error(path, f"{text}; or add a column Batch")
        return given
    batch_size = _number(path, line, row, name)
    if batch_size % 1 or not 1 <= batch_size <= picked_columns.MAX_SIZE:
        raise file_error(path, f"column {name} must be a whole number from 1; got {batch_size:g}", line)
    if given is not None and given != batch_size:
        raise file_error(path, f"column {name} says {batch_size:g}, but --from says {given}; leave {given}= out", line)
    return int(batch_size)


def _number(path: Path, line: int, row: dict[str, Any], name: str) -> float:
    try:
        return bounded(plain(row[name]))
    except ValueError as error:
        raise file_error(path, f'column {name}: "{row[name]}" {error}', line) from None


def _stages(path: Path, line: int, row: dict[str, Any]) -> dict[str, float]:
    if STAGES["compute"] in row:
        column = STAGES["compute"]
        seconds = {name: _number(path, line, row, column) / 1e6 for name, column in STAGES.items()}
    else:
        column = OLD_COMPUTE if OLD_COMPUTE in row else next(name for name in CLIENT if name in row)
        seconds = {"upload": 0.0, "compute": _number(path, line, row, column) / 1e6, "download": 0.0}
    if not seconds["compute"]:
        again = "measure again" if column in CLIENT else "run perf_analyzer again with server-side statistics"
        raise file_error(path, f'column "{column}" must be above 0 µs; {again}', line)
    return {**seconds, "queue": _number(path, line, row, QUEUE) / 1e6 if QUEUE in row else 0.0}
