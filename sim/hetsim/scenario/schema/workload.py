"""The `workload:` and `data:` parts of a scenario: streams of tasks, and items."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError

from hetsim import registry
from hetsim.errors import KeyProblem, Problem, ScenarioError, UnknownName
from hetsim.model.clients import Clients, Hedge, Retry, RetryWait
from hetsim.model.files import recorded_inputs
from hetsim.model.tasks import Item
from hetsim.model.units import Count, Degree, ExistingFile, Flag, Name, NotNegative, Positive, Seconds, forbid, shown
from hetsim.scenario.fields import Keys, Mirror, Model, OneOrMany, SomeNames, keys_of
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.file.problems import translate
from hetsim.scenario.schema.demand import Demand
from hetsim.scenario.schema.language_model import AnyService
from hetsim.scenario.schema.policy import parameter_model
from hetsim.workload.arrivals import Arrivals
from hetsim.workload.distributions import TimeDistribution
from hetsim.workload.traces import TaskTable


@dataclass(frozen=True)
class TraceSpec:
    """A trace reader with validated parameters."""

    format: str
    parameters: dict[str, Any]

    def read(self) -> TaskTable:
        """Read the tasks of the trace; ScenarioError with file, line and column."""
        reader: Callable[..., TaskTable] = registry.entry("traces", self.format)
        with recorded_inputs() as inputs:
            table = reader(**self.parameters)
        table.opened = (*inputs.opened, *inputs.seen)
        return table


def check_traces(document: Document, base: Path) -> tuple[dict[int, TraceSpec], list[Problem]]:
    """Check the traces of the document before validation; return them and problems."""
    specs: dict[int, TraceSpec] = {}
    problems: list[Problem] = []
    for number, path, trace in document.in_entries("trace"):
        if isinstance(trace, dict) and isinstance(trace.get("format"), str):
            spec, wrong = _checked_trace(document, path, trace, base)
            problems += wrong
            if spec:
                specs[number] = spec
    return specs, problems


def _checked_trace(
    document: Document, path: Path_, trace: dict[str, Any], base: Path
) -> tuple[TraceSpec | None, list[Problem]]:
    try:
        reader = registry.entry("traces", trace["format"])
    except UnknownName as error:
        return None, [document.problem((*path, "format"), str(error))]
    signature = dict(inspect.signature(reader, eval_str=True).parameters)
    model = parameter_model(f"trace {trace['format']}", signature)
    given = {key: value for key, value in trace.items() if key != "format"}
    try:
        checked = model.model_validate(given, context={"base": str(base)})
    except ValidationError as error:
        return None, translate(error, document, model, prefix=path, holder=WorkloadEntry)
    values = {key: getattr(checked, key) for key in checked.model_fields_set}
    if (check := getattr(reader, "check", None)) is not None:
        try:
            wrong: list[tuple[str, str]] = check(**values)
        except ScenarioError as error:
            return None, error.problems
        if wrong:
            return None, [document.problem((*path, *_path_in_trace(key, trace)), message) for key, message in wrong]
    return TraceSpec(trace["format"], values), []


def _path_in_trace(key: str, trace: dict[str, Any]) -> tuple[str, ...]:
    first, _, rest = key.partition(".")
    inside = trace.get(first)
    if first not in trace:
        return ()
    return (first, rest) if rest and isinstance(inside, dict) and rest in inside else (first,)


class PipelineSpec(Model):
    """A neural network with measured layers, cut into stages on several devices."""

    profile: ExistingFile
    """File of measured layers, as for `hetsim plan partition`, relative to the scenario."""
    devices: SomeNames | None = None
    """Types or kinds of device for stages. Default: all accelerators with times in the profile."""
    items: Degree = 1
    """Number of items per arrival: one for a request, or micro-batches of a training job."""
    training: Flag = False
    """True for training: items go forward and backward, and gradients take the path of the activations."""
    replication: Flag = True
    """Allow a stage on several devices, which process items in turn."""


# Another trace from one: rows drawn again by blocks of time, or user by user.
#
# Blocks: a moving-block bootstrap (Künsch, "The jackknife and the bootstrap for general stationary observations",
# 1989) on the trace closed to a circle (Politis and Romano, 1992), so that every row is as likely as any other.
# Inside a block order and gaps stay; between blocks dependence is cut.  Where a block is a whole number of days it
# begins at one of the trace's days (24 h from its first arrival on), so that the time of day stays what it was.
# By user: as many users as there are, drawn with replacement; each brings all its jobs at their times, and one drawn
# twice is two users.
# By row: all rows in random order, then rows drawn with replacement, until they ask for `gpu_demand` times the GPUs
# of the cluster; where the trace asks for more, rows drawn at random are left out.  Time runs with demand: a task
# arrives when the GPUs that were asked for, its own included, are that many hundredths of those of the cluster, in
# seconds.  So Weng et al., Beware of Fragmentation (USENIX ATC 2023), fill a cluster.
#
# The jobs come when the trace says, however long those before them take: an open loop.  What is drawn is like the
# trace and cannot know more than it: intervals are for the expectation over such draws.


DAY = 86_400.0
BETWEEN = 1e-6  # Seconds between a task without GPUs and the one before it, where time runs with demand.
FEW = 5  # Minimum number of blocks or users in a trace; with fewer, draws are too similar for intervals.


class Resample(Model):
    """Resample a trace in every replication: by blocks of time, users or rows."""

    block: "Annotated[Seconds, forbid(lambda time: time == 0, 'must be above 0')] | None" = None
    """Length of the blocks that are drawn from the trace, in the trace's own time."""
    by: Literal["user", "row"] | None = None
    """user: draw users, with all their jobs; row: draw single rows until `gpu_demand` is reached."""
    gpu_demand: Positive | None = None
    """Number of GPUs that the drawn rows request in sum, as a multiple of the cluster's GPUs; requires by: row."""

    def _check_keys(self) -> None:
        if (self.block is None) == (self.by is None):
            raise ValueError("give either block (a time such as 1 week) or by: user or row")
        if (self.gpu_demand is None) == (self.by == "row"):
            raise ValueError("by: row and gpu_demand (such as 1.3) must be given together")


def by_block(arrival: np.ndarray, block: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Resample blocks of time; return row positions, new times, number of blocks.

    ValueError if the trace is too short for such blocks.
    """
    begin = float(arrival[0])
    length = float(arrival[-1]) - begin
    days = block % DAY == 0
    if days:
        length = math.ceil(length / DAY + 1e-9) * DAY
    if length < 2 * block:
        raise ValueError(f"a block must be at most half of the trace, which spans {length / block:.2g} blocks")
    count = math.ceil(length / block - 1e-9)
    starts = random.integers(round(length / DAY), size=count) * DAY if days else random.random(count) * length
    since = arrival - begin
    positions, times = [], []
    for number, start in enumerate(starts.tolist()):
        size = min(block, length - number * block)
        for low, offset in ((start, 0.0), (0.0, length - start)):  # up to the end of the trace, then from its beginning
            high = min(low + size - offset, length)
            first = int(np.searchsorted(since, low))
            end = len(since) if high >= length else int(np.searchsorted(since, high))
            if end > first:
                positions.append(np.arange(first, end))
                times.append(since[first:end] - low + offset + number * block)
    if not positions:
        return np.zeros(0, dtype=np.int64), np.zeros(0), count
    return np.concatenate(positions), begin + np.concatenate(times), count


def by_user(user: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Resample users with all their rows; return rows, copy numbers, number of users."""
    import pandas as pd

    codes, names = pd.factorize(user, use_na_sentinel=False)
    if len(names) < 2:
        raise ValueError("the trace has only one user, so users cannot be resampled")
    drawn = np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))
    times = drawn[codes]
    positions = np.repeat(np.arange(len(codes)), times)
    copy = np.arange(len(positions)) - np.repeat(np.cumsum(times) - times, times)
    return positions, copy, len(names)


def by_row(
    gpus: np.ndarray, capacity: float, demand: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of a trace that together request up to demand × capacity GPUs.

    gpus: GPUs of each row; capacity: of the cluster.  Returns positions of the drawn rows, in random order, and arrival
    times: at second x, the rows so far request x % of the capacity.  ValueError if rows or cluster have no GPU.
    """
    if not capacity:
        raise ValueError("gpu_demand needs GPUs, but the cluster has none")
    if not (asked := float(gpus.sum())):
        raise ValueError("no row of the trace requests a GPU, so gpu_demand cannot be reached")
    target = demand * capacity
    order = random.permutation(len(gpus))
    more: list[int] = []
    if asked > target:
        leaving = random.permutation(len(order))
        remaining = asked - np.cumsum(gpus[order[leaving]])
        count = int(np.searchsorted(-remaining, -target)) + 1
        order = order[np.sort(leaving[count:])]
    else:
        while (asked := asked + float(gpus[row := int(random.integers(len(gpus)))])) <= target:
            more.append(row)
    positions = np.concatenate([order, np.array(more, dtype=np.int64)])
    cumulated = 100.0 * np.cumsum(gpus[positions]) / capacity
    return positions, cumulated + BETWEEN * np.arange(len(positions))


MAX_TASKS = 50_000_000  # Maximum number of tasks in one stream, whose columns alone take gigabytes.


def _named_process(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value.get("process", ""), str):
        raise ValueError(f"process must be the name of an arrival process; got {shown(value['process'])}")
    return value


@keys_of(Item)
class DataItem(Mirror):
    """A named data item that exists at the start: on every host, or at `home`."""

    home: Name | None = None
    """Node whose host memory has the item. Default: every node."""


AS_RETRY = Keys(Retry, wait=Annotated[RetryWait, Keys(RetryWait)])
AS_HEDGE = Annotated[Hedge, Keys(Hedge)]
AS_CLIENTS = Keys(Clients, timeout=TimeDistribution, retry=Annotated[Retry, AS_RETRY], hedge=AS_HEDGE)

TIMES = ("gpu_time", "cpu_time", "typed_gpu_time", "modes", "scaling", "work", "profile", "training")
OF_REQUESTS = "the times of requests are under service"
NOT_OF_REQUESTS = (
    "nodes", "gpus", "slice", "cpus", "memory", "gpu_memory", "span", "upload", "download", "stopping", "devices",
    "writes", "partition", "time_limit", "qos", "account", "communication", "drift",
)  # fmt: skip
OF_A_TRACE = {
    "skip": "skip leaves out rows of a trace",
    "time_scale": "the key scales the arrival times of a trace",
    "unfit": "the key is for rows of a trace",
    "load": "the key scales the arrival times of a trace",
    "resample": "resample draws rows of a trace at random",
}  # Keys that require a trace -> what they do with it, for messages.


# Keys that are allowed with a pipeline.
WITH_PIPELINE = (
    "name", "arrivals", "count", "until", "pipeline", "class_", "user", "users", "priority", "weight", "slo",
    "deadline", "bytes_in", "bytes_out", "cpus", "clients",
)  # fmt: skip


def refuse(demand: Demand, keys: tuple[str, ...], why: str) -> None:
    """Raise ValueError if the demand has any of these keys."""
    for name in keys:
        if getattr(demand, name):
            key = "gpu_time.TYPE" if name == "typed_gpu_time" else name
            raise ValueError(f"{why}; leave out {key}")


class TaskClass(Demand):
    """One of the classes of an entry, drawn with probability proportional to `weight`."""

    weight: NotNegative = 1.0
    """Probability per arrival, relative to the other classes."""
    after: SomeNames | None = None
    """With `together`: earlier classes in the list, whose tasks of the same arrival must end before this one starts."""


_NO_WEIGHT = forbid(lambda classes: not any(one.weight > 0 for one in classes),
                    "at least one class needs a weight above 0")  # fmt: skip


class Trace(Model):
    """A table of tasks, and the keys of its reader (`hetsim list traces`)."""

    model_config = {**Model.model_config, "extra": "allow"}

    format: str
    """Name of the file's reader; `hetsim list traces` lists all."""
    path: str
    """The file, relative to the scenario."""


class WorkloadEntry(Demand):
    """One stream of tasks, from `arrivals` or a `trace`."""

    USED: ClassVar = {"weight": 1.0, "skip": 0, "time_scale": 1.0}

    name: Name | None = None
    """Unique name of the stream, on which its random numbers depend; without it the class, or stream0, stream1, ..."""
    arrivals: Annotated[Arrivals, BeforeValidator(_named_process)] | None = None
    """The arrival process, which determines when tasks arrive, and its parameters."""
    count: Annotated[Count, Field(le=MAX_TASKS)] | None = None
    """Maximum number of tasks of this stream. Default: no limit."""
    until: Seconds | None = None
    """Time from which on no task arrives. Default: the horizon."""
    weight: Positive | None = None
    """Weight of each task, for policies and metrics that use weights."""
    classes: Annotated[list[TaskClass], OneOrMany, Field(min_length=1), _NO_WEIGHT] | None = None
    """Classes of tasks, one of which is drawn for each arrival."""
    together: Flag = False
    """Each arrival is one request with a task of every class; the request ends with its last task."""
    trace: Trace | None = None
    """A table of tasks or requests in a file, in place of arrivals and times."""
    skip: Annotated[int, Field(ge=0, le=MAX_TASKS, strict=True)] | None = None
    """Number of rows to skip at the start of a trace, in the order of arrival."""
    time_scale: Positive | None = None
    """Factor on the arrival times of a trace."""
    load: Positive | None = None
    """Target work as a share of the cluster's capacity; the arrival times of a trace are scaled to reach it."""
    unfit: Literal["error", "reject", "leave_out", "leave_out_parallel"] = "error"
    """Treatment of trace rows that can never run here; leave_out_parallel also drops rows that do not use one core or
    one whole GPU."""
    resample: Resample | None = None
    """Draw the rows of a trace again in every replication."""
    clients: Annotated[Clients, AS_CLIENTS] | None = None
    """Clients that time out, give up, retry or hedge. Default: clients wait forever."""
    service: AnyService | None = None
    """The service that serves the requests, with its costs; makes this a stream of requests."""
    pipeline: PipelineSpec | None = None
    """A measured network, cut into stages on the cluster's devices, that processes each arrival's items."""

    def _check_keys(self) -> None:
        if self.pipeline is not None:
            self._only_a_pipeline()
        if self.clients is not None:
            self._check_clients(self.clients)
        self._check_together()
        if self.trace is not None:
            self._check_trace_keys()
            return
        self._check_no_trace_keys()
        if self.service is not None:
            for one in self._levels:
                refuse(one, (*TIMES, *NOT_OF_REQUESTS), OF_REQUESTS)
        elif self.pipeline is None:
            self._check_times()

    @property
    def _levels(self) -> list[Demand]:
        return [self, *(self.classes or [])]

    @property
    def whole_demands(self) -> list[Demand]:
        """Return the demand of each class, with missing values filled from the entry.

        Without classes, this is the demand of the entry.
        """
        return [one.over(self) for one in self.classes] if self.classes else [self]

    def _check_clients(self, clients: Clients) -> None:
        if any(one.patience is not None for one in self._levels):
            raise KeyProblem("patience", "patience is a short form of clients; give either patience or clients")
        retry = clients.retry
        if getattr(self.arrivals, "closed", False) and retry is not None and retry.budget is not None:
            key = "retry" if clients.count is None else "count"
            text = "a closed loop defines its clients; leave budget and count out"
            raise KeyProblem("clients", text, key)

    def _check_together(self) -> None:
        names: list[str | None] = []
        for number, one in enumerate(self.classes or []):
            if unknown := [name for name in one.after or () if not self.together or names.count(name) != 1]:
                text = f'after must name one class above; {names.count(unknown[0]) or "no"} classes are "{unknown[0]}"'
                text = text if self.together else "after needs together: true"
                raise KeyProblem("classes", text, (number, "after"))
            keys = ("slo", "deadline", "user", "users", "tokens") if self.together else ()
            if self.together and one.weight != 1:
                raise KeyProblem("classes", "weight has no effect with together; leave it out", (number, "weight"))
            refuse(one, keys, "with together, the entry must give the value for all classes")
            names.append(one.class_)
        if self.together:
            refuse(self, ("clients", "service", "tokens", "trace"), "with together, classes must be plain tasks")
            if self.classes is None or getattr(self.arrivals, "closed", False):
                text = "a closed loop needs single tasks" if self.classes else "together needs classes"
                raise KeyProblem("together", text)

    def _check_trace_keys(self) -> None:
        if self.load is not None and (self.time_scale or self.arrivals or self.resample or self.service):
            others = "time_scale, arrivals, resample or a service"
            raise KeyProblem("load", f"load scales the arrivals of tasks; leave out {others}")
        if self.resample is not None and self.arrivals is not None:
            raise KeyProblem("resample", "resample and arrivals both draw new arrivals of the trace; leave one out")
        if self.service is None:
            refuse(self, ("classes", "communication", "drift", *TIMES), "the times of the tasks are in the trace")
            own = dict.fromkeys(("tokens", "ttft", "tpot"), "requests to a language model")
            for key, what in ({"devices": "work or a profile"} | own).items():
                if getattr(self, key) is not None:
                    raise KeyProblem(key, f"the key is for {what}, but these tasks are in a trace")
        else:
            refuse(self, ("classes", "tokens", "ttft", "tpot"), "the requests are in the trace")
            refuse(self, (*TIMES, *NOT_OF_REQUESTS), OF_REQUESTS)

    def _check_no_trace_keys(self) -> None:
        if any(one.span == "recorded" for one in self._levels):
            raise KeyProblem("span", "span: recorded needs a trace")
        for key, effect in OF_A_TRACE.items():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise KeyProblem(key, f"{effect}, but the entry has no trace")
        if self.arrivals is None:
            raise ValueError("an entry needs arrivals (and times), or a trace")
        if self.service is None and any(one.tokens is not None for one in self._levels):
            raise KeyProblem("tokens", "tokens are for requests to a language model (service: {kind: llm, ...})")
        for key in ("ttft", "tpot"):
            if not hasattr(self.service, "kind") and any(getattr(one, key) for one in self._levels):
                raise KeyProblem(key, "limits of classes are for requests to a language model (kind: llm)")

    def _check_times(self) -> None:
        forms = "gpu_time, cpu_time, modes, work or a profile"
        if self.classes is None and not self.has_times:
            raise ValueError(f"the tasks have no time on any device; give {forms}")
        for number, one in enumerate(self.classes or []):
            if not one.over(self).has_times:
                raise ValueError(f'class "{one.class_ or number}" has no time on any device; give {forms}')
        for demand in self.whole_demands:
            demand.check_whole()
        of_gpus = [key for key in ("gpus", "slice", "gpu_memory") if getattr(self, key) is not None]
        if self.classes is None and of_gpus and not any(getattr(self, name) for name in TIMES if name != "cpu_time"):
            text = "gpu_memory needs a time on GPUs; give gpu_time, too"
            raise KeyProblem(of_gpus[0], text)

    def _only_a_pipeline(self) -> None:
        for field in type(self).model_fields:
            if field in self.model_fields_set and field not in WITH_PIPELINE:
                key = type(self).model_fields[field].alias or field
                key = "gpu_time.TYPE" if field == "typed_gpu_time" else key
                raise KeyProblem("pipeline", f"pipeline defines times and devices of all stages; leave out {key}")
        if self.clients is not None and self.pipeline is not None and self.pipeline.training:
            raise KeyProblem("clients", "a training pipeline has no requests, so clients cannot be given")
        if getattr(self.arrivals, "closed", False):
            raise KeyProblem("arrivals", "a closed loop needs single tasks, not items of a pipeline")
