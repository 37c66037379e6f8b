"""Gavel's traces (`format: gavel`): steps of training, throughputs by GPU type.

Rows have no header; tabs separate ten columns: job type, command, working directory, argument of the steps, needs data
(0 or 1), steps, scale (GPUs), priority weight, SLO, arrival; or seven: job type, command, argument of the steps, needs
data, steps, arrival, scale.  `throughputs` is a JSON file of three nested objects.  The keys of the first are GPU
types, those of the second are jobs as "('job type', scale)".  In the third, "null" is the job's steps per second
alone, and the key of another job has the steps per second of both jobs while they share a GPU.  A job takes steps /
throughput on each type (`gpu_time.TYPE`); it cannot run on a type with a throughput of 0.  The priority weight is the
weight of a job; an SLO above 0 is stored unchanged in the column `slo`.  Skipped and counted: jobs whose type and scale
are not in the table.  A type `..._unconsolidated` applies to jobs spread over more nodes than necessary; it is read
only if `types` names it.

`table_of(path)` reads the table only.  Its `together` contains the speeds of pairs, as fractions of each job's speed
alone; if both are zero, the two jobs cannot share a GPU, and the entry is None.  `cluster: {trace: {format: gavel_gpus,
path: ..., gpus: {v100: 8}}}` makes nodes with GPUs that run two jobs at once.  Jobs on one GPU slow each other down as
the table states for their job types, which are the classes of the jobs.  The policies `sharing` and `gandiva` form such
pairs.
Reference: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, Heterogeneity-Aware Cluster Scheduling Policies for
Deep Learning Workloads (OSDI 2020).
"""

import ast
import json
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.errors import file_error, suggestion
from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.job_log import Count, JobLog, Named, TypeNames
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import CsvTable, Flag, numbered_lines

TEN = ("type", "command", "directory", "argument", "data", "steps", "scale", "weight", "slo", "arrival")
SEVEN = ("type", "command", "argument", "data", "steps", "arrival", "scale")
WANTED = ("type", "steps", "scale", "arrival")
ELSEWHERE = "_unconsolidated"

Job = tuple[str, int]  # job type and scale


@dataclass
class Throughputs:
    """Steps per second by GPU type, for jobs alone and for pairs that share a GPU."""

    alone: dict[str, dict[Job, float]] = field(default_factory=dict)
    together: dict[str, dict[tuple[Job, Job], tuple[float, float] | None]] = field(default_factory=dict)


@job_log
def read(log: JobLog, *, throughputs: ExistingFile) -> JobLog:
    """Training jobs of Gavel; run time = steps / measured throughput on each GPU type."""
    rates = table_of(Path(throughputs))
    wanted = log.cut.types or {}
    kinds = [kind for kind in rates.alone if not kind.endswith(ELSEWHERE) or kind in wanted]
    log.times = {f"time {kind}": f"gpu_time.{wanted.get(kind, kind)}" for kind in kinds}
    width = _width(log)
    table = CsvTable(log, WANTED, ("weight", "slo"), separator="\t", header=TEN if width == 10 else SEVEN)
    for line, (name, *cells) in table:
        _job(log, line, name, cells=cells, known=rates, kinds=kinds)
    if pairs := sum(len(rows) for rows in rates.together.values()):
        apart = sum(pair is None for rows in rates.together.values() for pair in rows.values())
        log.notes.append(f"{throughputs}: {pairs:,} pairs of jobs on one GPU; {apart:,} pairs cannot share it")
    return log


def _width(log: JobLog) -> int:
    for line, text in numbered_lines(log.path, 1_000_000):
        if text.strip():
            count = text.count("\t") + 1
            if count not in (7, 10):
                hint = "; they are separated by commas" if count == 1 and text.count(",") > 5 else ""
                log.fail(f"the row has {count} columns separated by tabs; there must be 10 or 7{hint}", line)
            return count
    return log.fail("has no rows" if log.path.stat().st_size else "is empty")


def _job(log: JobLog, line: int, name: str, cells: list[str], known: Throughputs, kinds: list[str]) -> None:
    amounts = log.numbers(line, WANTED[1:], cells[:3])
    worth = log.numbers(line, ("weight", "slo"), cells[3:], blank=math.nan, least=-1.0)
    if amounts is None or worth is None:
        return
    (steps, scale, came), (weight, slo) = amounts, worth
    if scale % 1 or scale < 1:
        log.wrong(line, "scale", f"{shown(cells[1])} is not a number of GPUs")
        return
    job = (name, int(scale))
    speeds = {kind: known.alone[kind].get(job, 0.0) for kind in kinds}
    if not any(speeds.values()):
        log.leave_out("the table has no throughput for this job type and scale", line)
        return
    times = {f"time {kind}": steps / speed if speed else math.inf for kind, speed in speeds.items()}
    # Jobs have no names: by line they stay what they are in any sample.
    log.add(line, None, came, 0.0, key=f"{line}", **times, **{"class": name}, gpus=scale,
            weight=weight if weight > 0 else None, slo=slo if slo > 0 else None)  # fmt: skip


def nodes(
    path: ExistingFile,
    *,
    gpus: dict[Named, Count],
    gpus_per_node: Count = 4,
    cpus_per_node: Count = 32,
    pairs: Flag = True,
    types: TypeNames | None = None,
) -> list[dict[str, Any]]:
    """Nodes with GPUs of the types in a throughput table; two jobs may share a GPU."""
    rates = table_of(Path(path))
    result: list[dict[str, Any]] = []
    for kind, count in gpus.items():
        if kind not in rates.alone:
            near = suggestion(kind, rates.alone) or f"; it has {', '.join(rates.alone)}"
            raise file_error(Path(path), f"has no GPU type {shown(kind)}{near}")
        name = (types or {}).get(kind, kind)
        device: dict[str, Any] = {"type": name, "count": min(count, gpus_per_node)}
        slower = slowdowns(rates, kind)
        if pairs and slower:
            device |= {"streams": 2, "sharing": {"kind": "timeslice", "pairs": slower}}
        full, rest = divmod(count, gpus_per_node)
        for number, size in ((full, gpus_per_node), (1 if rest else 0, rest)):
            if number:
                node = {"name": f"{name}-" if size == gpus_per_node else f"{name}-rest", "count": number}
                result.append({**node, "cpus": cpus_per_node, "gpus": {**device, "count": size}})
    return result


def slowdowns(known: Throughputs, kind: str) -> dict[str, dict[str, float | None]]:
    """Return slowdowns by job type and co-located type; None: they cannot share a GPU."""
    ratios: dict[str, dict[str, float | None]] = {}
    for ((one, scale), (other, beside)), shares in known.together[kind].items():
        if scale == beside == 1:
            both = (None, None) if shares is None or not all(shares) else (1 / shares[0], 1 / shares[1])
            for first, second, slower in ((one, other, both[0]), (other, one, both[1])):
                ratios.setdefault(first, {}).setdefault(second, slower)
    return ratios


def table_of(path: Path) -> Throughputs:
    """Read a table of throughputs; ScenarioError states what is wrong with it."""
    try:
        data = json.loads("\n".join(line for _, line in numbered_lines(path, keep=True)))
    except json.JSONDecodeError as error:
        raise file_error(path, f"is not JSON ({error.msg})", error.lineno) from None
    except RecursionError:
        raise file_error(path, "is not JSON that can be read (too deep)") from None
    if not isinstance(data, dict) or not data:
        raise file_error(path, "must be an object: GPU type -> ('job type', scale) -> steps per second")
    throughputs = Throughputs()
    for kind, rows in data.items():
        fail = partial(_wrong, path, kind)
        if not isinstance(rows, dict):
            raise fail("must be an object with keys ('job type', scale)")
        alone, together = throughputs.alone.setdefault(kind, {}), throughputs.together.setdefault(kind, {})
        for text, speeds in rows.items():
            job = _job_of(text)
            if job is None or not isinstance(speeds, dict):
                raise fail(f"{shown(text)} is not a key ('job type', scale) whose value is an object")
            alone[job] = _speed(speeds.get("null", 0.0), fail, text)
        for text, speeds in rows.items():
            job = _job_of(text)
            for other, pair in speeds.items():
                if other != "null" and job is not None:
                    _pair(alone, together, job, other=other, pair=pair, fail=fail)
    return throughputs


def _pair(alone: dict, together: dict, job: Job, other: str, pair: Any, fail: Any) -> None:
    second = _job_of(other)
    if second is None or not isinstance(pair, list) or len(pair) != 2:
        raise fail(f"{shown(other)} is not a key ('job type', scale) whose value is a list of two speeds")
    speeds = [_speed(value, fail, other) for value in pair]
    singles = alone.get(job, 0.0), alone.get(second, 0.0)
    possible = any(speeds) and all(singles)
    together[job, second] = (speeds[0] / singles[0], speeds[1] / singles[1]) if possible else None


def _wrong(path: Path, kind: str, message: str) -> Exception:
    return file_error(path, f"{kind}: {message}")


def _speed(value: Any, fail: Any, text: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise fail(f"{shown(text)}: {shown(value)} is not a number of steps per second")
    return float(value)


def _job_of(text: str) -> Job | None:
    """Parse a key such as `('ResNet-18 (batch size 16)', 1)`; None for other texts."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    good = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int
    return value if good else None
