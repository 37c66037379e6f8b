"""Job logs with columns of their own: `format: csv`, `parquet` and `jsonl`.

    trace:
      format: csv
      path: jobs.csv
      columns: {arrival: submit_time, duration: runtime_s, gpus: num_gpus, user: user, class: queue}
      units: {duration: s}
      time: "%Y-%m-%d %H:%M:%S"
      zone: Europe/Berlin
      missing: {gpus: {default: 0}, duration: drop}

`columns` maps attributes of jobs to columns, or to a difference, sum or product of columns, a constant, replaced values
of a column, or a part of a cell.  Attributes: arrival; start and end; duration (the time on the GPUs of a job, or on
its cores if it has none), or gpu_time, cpu_time and gpu_time.TYPE; gpus, cpus, memory, gpu_memory, devices (GPU types);
time_limit (visible to policies) or estimate; user, class, partition, vc, queue, group, account, qos, status,
recorded_node; slice; priority, weight, deadline, patience, bytes_in, bytes_out, upload, download.

`units` states the units of durations (s unless stated), sizes (bytes) and counts (milli, percent).  Durations may be
written `1-02:03:04`, sizes `16G` (1,024³, as in Slurm), `16GiB`, `16GB` (10⁹).  `time` states the format of dates:
`iso` (the default), a format such as `"%d/%m/%Y %H:%M"`, `epoch s` (or ms, us, ns), or a unit such as `s`, if times are
numbers from the log's own time 0.  `zone` is the time zone of dates without one (default: UTC).

`missing` states, by column, what a blank cell means: `drop` the job, `default` (as if the column did not exist),
`{default: VALUE}`, or `error`, the default for numbers and times; blank texts are empty.  `missing_values` lists the
words that mean blank.  A duration that is a difference is that of two instants, in the format of the arrival; an
instant that is a sum or a difference combines an instant and durations.

Different rows with the same id are an error unless a rule is given.  `attempts: restarts` makes them one job from the
first start to the last end, `separate` one job each.  `fold: {by: id, columns: {gpus: max, attempts: count}}` gives the
rule by column: min, max, sum, first, last, join, peak (the maximum at one instant) or count; the start is the earliest,
the end the latest.  `gang: {by: COLUMN}` makes one job of the parts with one label, with their total resources.

`hetsim trace map FILE` proposes all of these keys.  `separator` is detected from the first line; `decimal: ","` reads
numbers such as 1234,5; `header` names the columns of a CSV file without a line of names.  In JSON lines `job.gpus` is
the key `gpus` of the object `job`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.units import shown
from hetsim.workload.mapped import mapping
from hetsim.workload.mapped.cells import Instants, zone_of
from hetsim.workload.mapped.jobs import MappedJobs
from hetsim.workload.mapped.log_map import LogMap
from hetsim.workload.mapped.rows import FileRows, JsonLines, is_blank, rows_of
from hetsim.workload.rows.job_log import Date, JobLog, Named
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.rows_of_a_job import Fold, restarts
from hetsim.workload.traces import TaskTable

Header = Annotated[list[Named], Field(min_length=1)]


@job_log
def csv(
    log: JobLog, *, columns: mapping.Columns, units: mapping.Units | None = None, time: mapping.Forms | None = None,
    zone: mapping.Zone | None = None, missing: mapping.MissingOf | None = None,
    missing_values: mapping.BlankWords = mapping.BLANKS, separator: mapping.Separator | None = None,
    decimal: Literal[".", ","] = ".", header: Header | None = None, fold: mapping.FoldOf | None = None,
    gang: mapping.GangOf | None = None, attempts: mapping.Attempts | None = None,
) -> JobLog:  # fmt: skip
    """Jobs of a CSV file, which `columns` maps to hetsim's columns (hetsim trace map)."""
    made = _map_of(
        columns, units, time, zone=zone, missing=missing, missing_values=missing_values, decimal=decimal, fold=fold,
        gang=gang, attempts=attempts
    )
    return _read(log, made, rows_of(log.path, "csv", separator, header))


def _typed(form: str, what: str) -> Callable[..., TaskTable]:
    def read(
        log: JobLog, *, columns: mapping.Columns, units: mapping.Units | None = None, time: mapping.Forms | None = None,
        zone: mapping.Zone | None = None, missing: mapping.MissingOf | None = None,
        missing_values: mapping.BlankWords = mapping.BLANKS, fold: mapping.FoldOf | None = None,
        gang: mapping.GangOf | None = None, attempts: mapping.Attempts | None = None,
    ) -> JobLog:  # fmt: skip
        made = _map_of(
            columns, units, time, zone=zone, missing=missing, missing_values=missing_values, decimal=".", fold=fold,
            gang=gang, attempts=attempts
        )
        return _read(log, made, rows_of(log.path, form))

    read.__name__ = read.__qualname__ = form
    read.__doc__ = f"Jobs of {what} (`columns`; see hetsim trace map)."
    return job_log(read)


parquet = _typed("parquet", "a Parquet file with its own columns")
jsonl = _typed("jsonl", "JSON lines with their own keys")


def _map_of(
    columns: dict[str, mapping.CellSource], units: Any = None, time: Any = None, zone: Any = None, missing: Any = None,
    missing_values: tuple[str, ...] = mapping.BLANKS, decimal: str = ".", fold: Fold | None = None,
    gang: Fold | None = None, attempts: str | None = None,
) -> LogMap:  # fmt: skip
    where = None if zone is None else zone_of(zone)
    forms = {} if time is None else mapping.forms_of(time)
    units, missing = mapping.units_of(units or {}), mapping.missing_of(missing or {})
    blanks = mapping.blanks_of(missing_values)
    if fold is not None and attempts is not None:
        text = "fold and attempts exclude each other; give one of them"
        raise ScenarioError(Problem(text))
    return LogMap(
        mapping.columns_of(columns), units, forms, zone=where, missing=missing, blanks=blanks, comma=decimal == ",",
        fold=restarts() if attempts == "restarts" else fold, gang=gang, attempts=attempts,
    )  # fmt: skip


def _checker(form: str) -> Callable[..., list[tuple[str, str]]]:
    def check(path: Path, separator: str | None = None, header: list[str] | None = None, **keys: Any) -> Any:
        made = _map_of(**{key: value for key, value in keys.items() if key in _MAP_KEYS})
        rows = rows_of(path, form, separator, header)
        late = isinstance(rows, JsonLines)
        labels = [one.by for one in (made.fold, made.gang) if one is not None]
        missing = [one for one in rows.missing(made.wanted) if not (late and one in labels)]
        return made.problems(rows.names, str(path), missing)

    return check


_MAP_KEYS = (
    "columns", "units", "time", "zone", "missing", "missing_values", "decimal", "fold", "gang", "attempts",
)  # fmt: skip

for _form, _reader in (("csv", csv), ("parquet", parquet), ("jsonl", jsonl)):
    _reader.check = _checker(_form)  # type: ignore[attr-defined]


Record = dict[str, Any]  # what a record reader extracts of a job, by target
RECORDED = (
    "id", "arrival", "start", "end", "time_limit", "gpus", "cpus", "memory", "user", "class", "queue", "account",
    "status", "recorded_node",
)  # fmt: skip


def read_records(
    log: JobLog, records: Iterable[tuple[int, Record]], time: str, zone: Any = None, attempts: str | None = None
) -> JobLog:
    """Add records to a job log; time: date format, attempts: rule for requeued runs."""
    columns = {name: mapping.CellSource("column", (name,)) for name in RECORDED}
    made = _map_of(columns, {}, time, zone=zone, missing={}, attempts=attempts)
    rule = mapping.Missing("default")
    made = replace(made, missing={name: rule for name in RECORDED if mapping.kind_of(name) != "text"})
    log.dated = True
    _localize(log, made)
    reader = MappedJobs(log, made, keyed=True)
    for line, record in records:
        if is_blank(record.get("arrival"), made.blanks):
            log.wrong(line, "", "the job has no time of submission")
        else:
            reader.take(line, {name: record.get(name) for name in RECORDED})
    reader.finish()
    return log


def _read(log: JobLog, made: LogMap, rows: FileRows) -> JobLog:
    wanted = made.wanted
    late = isinstance(rows, JsonLines)  # a key may come in any line
    if problems := made.problems(rows.names, log.path.name, [] if late else rows.missing(wanted)):
        raise ScenarioError([Problem(message, key, str(log.path)) for key, message in problems])
    log.dated = made.dated
    log.word = rows.word
    _localize(log, made)
    reader = MappedJobs(log, made, rows.keyed)
    for line, cells in rows.cells(wanted):
        reader.take(line, dict(zip(wanted, cells, strict=True)))
    for column in rows.missing(wanted) if late else ():
        targets = [f"columns.{name}" for name, source in made.columns.items() if column in source.columns]
        log.row_problems.add(f"{(targets or ['fold, gang'])[0]}: no line has the key {shown(column)}")
    reader.finish()
    return log


def _localize(log: JobLog, made: LogMap) -> None:
    if made.zone is not None:
        read = Instants(None, made.zone)
        since, until = (Date(read(str(bound.naive()))) if isinstance(bound, Date) and not bound.zoned else bound
                        for bound in (log.cut.since, log.cut.until))  # fmt: skip
        log.cut = replace(log.cut, since=since or 0.0, until=until)
        log.notes.append(f"{log.path}: its dates are in {made.zone}; all dates shown here are in UTC")
