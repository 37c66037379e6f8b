"""Trace formats, and the table that a reader of a trace returns.

A reader is a function registered under the name of its format, here or in the entry-point group `hetsim.traces`:

    def read(path: ExistingFile, *, window: Seconds = 0.0) -> TaskTable: ...

Its parameters are the keys of `trace:` in a scenario other than `format`, validated by their annotations.  It raises
ScenarioError with file, line and column for errors in the file, and returns only what the file states; what the
scenario adds (estimates, patience, deadlines, modes on its cluster) is added when the stream is built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hetsim.model.curves import WorkCurve
from hetsim.model.ragged import Ragged

BUILTIN: dict[str, str] = {
    "acme": "hetsim.workload.readers.gpu_clusters:acme",
    "alibaba_dlrm": "hetsim.workload.readers.alibaba_dlrm:read",
    "alibaba_spot": "hetsim.workload.readers.alibaba_spot:read",
    "azure_llm": "hetsim.workload.readers.request_tables:azure_llm",
    "burstgpt": "hetsim.workload.readers.request_tables:burstgpt",
    "csv": "hetsim.workload.mapped.reader:csv",
    "gavel": "hetsim.workload.readers.gavel:read",
    "hcsp": "hetsim.workload.readers.hcsp:read",
    "helios": "hetsim.workload.readers.gpu_clusters:helios",
    "hetero_dag": "hetsim.workload.readers.hetero_dag:read",
    "lsf": "hetsim.workload.readers.accounting:lsf",
    "jsonl": "hetsim.workload.mapped.reader:jsonl",
    "kubernetes": "hetsim.workload.readers.kubernetes:read",
    "mooncake": "hetsim.workload.readers.request_tables:mooncake",
    "openb": "hetsim.workload.readers.openb:read",
    "pai": "hetsim.workload.readers.pai:read",
    "parquet": "hetsim.workload.mapped.reader:parquet",
    "pbs": "hetsim.workload.readers.accounting:pbs",
    "philly": "hetsim.workload.readers.philly:read",
    "pollux": "hetsim.workload.readers.pollux:read",
    "ray": "hetsim.workload.readers.accounting:ray",
    "requests": "hetsim.workload.readers.request_tables:plain",
    "sge": "hetsim.workload.readers.accounting:sge",
    "slurm": "hetsim.workload.readers.slurm:read",
    "swf": "hetsim.workload.readers.swf:read",
    "tasks": "hetsim.workload.readers.task_table:read",
    "wfformat": "hetsim.workload.readers.wfformat:read",
}

# Numeric columns of a task table besides arrival and times; blank cells are NaN and mean the default
NUMBERS = (
    "priority", "weight", "deadline", "patience", "nodes", "cpus", "gpus", "memory", "gpu_memory", "bytes_in",
    "bytes_out", "upload", "download", "flops", "bytes", "efficiency",
)  # fmt: skip

LISTS = ("predecessors", "reads", "writes")


@dataclass
class Curves:
    """Jobs whose speed depends on the layout of their GPUs and on progress.

    `kind` has the number of each row's kind of job.  `kinds[k]` lists the numbers of GPUs on which jobs of kind k can
    run, each with a progress curve: the remaining time by layout and finished fraction.
    """

    kinds: "Sequence[Sequence[tuple[int, TimedCurve]]]"
    kind: np.ndarray


class TimedCurve(WorkCurve, Protocol):
    """Remaining work of a job by its progress, and its seconds on GPUs of speed 1."""

    @property
    def seconds(self) -> float: ...


@dataclass
class TaskTable:
    """Tasks of a trace as columns of equal length, in seconds and bytes.

    `times` maps `cpu_time`, `gpu_time` or `gpu_time.TYPE` to seconds; inf means that a task cannot run on that device.
    `estimates` maps the same names to the values that policies see, if these differ.  `numbers` may contain `flops`,
    `bytes` and `efficiency`, the work of a row, from which its time on other types is computed (`costs.roofline`), and
    `deadline` (an instant) and `patience` (a time after arrival).  A trace of requests has no `times`: its entry needs
    a `service:`.  `predecessors` contains row numbers, `reads` and `writes` names of data items, `items` the sizes of
    data items, `hash_ids` names of the blocks of each prompt: equal names mean a common prefix.  `devices` contains the
    types that a row may run on, separated by `|` (empty: all).  With `curves` a row has a mode for each number of GPUs
    on which its job can run; `gpu_time` is then that of the fastest mode.  `extra` may contain `recorded_start` (an
    instant) and `recorded_node`.  `unknown` names the columns that the reader does not interpret; numeric ones are also
    in `extra`. `line(row)` returns the line of a row in the file, for messages.
    """

    source: str
    times: dict[str, np.ndarray]
    arrival: np.ndarray
    estimates: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    id: np.ndarray | None = None
    class_: np.ndarray | None = None
    user: np.ndarray | None = None
    predecessors: list[tuple[int, ...]] | None = None
    reads: list[tuple[str, ...]] | None = None
    writes: list[tuple[str, ...]] | None = None
    devices: np.ndarray | None = None
    items: dict[str, int] = field(default_factory=dict)
    hash_ids: Ragged | None = None
    curves: Curves | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    opened: tuple[Path, ...] = ()
    line: Callable[[int], int | None] = lambda row: None  # noqa: E731

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def requests(self) -> bool:
        """True if rows are requests, whose service times are computed by a `service:`."""
        return not self.times and "flops" not in self.numbers

    def name(self, row: int) -> Any:
        """Return the id of a row, or the row's number (from 1) if the table has no ids."""
        return row + 1 if self.id is None else self.id[row]
