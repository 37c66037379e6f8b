"""The tasks of one `workload:` entry as columns, whether drawn or from a trace."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.clients import Calls, Clients
from hetsim.model.cluster import Cluster
from hetsim.model.demand import Stopping
from hetsim.model.device_type import MILLI, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.ragged import Ragged
from hetsim.model.randomness import RandomTree
from hetsim.model.tasks import KernelWork, Tasks
from hetsim.model.tasks import KernelWork as Known
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.demand import GPU_TIME, Demand
from hetsim.scenario.schema.language_model import LanguageModel
from hetsim.scenario.schema.service import ServiceSpec
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.costs import roofline
from hetsim.workload.costs.roofline import Peak

NO_STOPPING = Stopping()


@dataclass
class Stages:
    """Stages of the requests of a stream; each array has one value per task."""

    first: np.ndarray  # position of the first task of the request
    stage: np.ndarray
    names: list[str]
    id: np.ndarray  # id of the request
    alone: np.ndarray  # seconds that the request takes alone


@dataclass(slots=True)
class TaskStream:
    """Columns of one workload entry, in task order; codes are indexes of name lists.

    `time` and `estimate` have a column per mode of the task with the most modes, and inf beyond a task's own modes;
    `estimate` is None if exact.  `deadline` and `patience` count seconds from the arrival.
    """

    name: str
    path: Path_
    arrival: np.ndarray
    shape: np.ndarray
    time: np.ndarray
    estimate: np.ndarray | None = None
    class_code: np.ndarray | None = None
    classes: list[str] = field(default_factory=lambda: [""])
    user_code: np.ndarray | None = None
    users: list[str] = field(default_factory=lambda: [""])
    priority: np.ndarray | None = None
    weight: np.ndarray | None = None
    deadline: np.ndarray | None = None
    patience: np.ndarray | None = None
    bytes_in: np.ndarray | None = None
    bytes_out: np.ndarray | None = None
    partition_code: np.ndarray | None = None
    partitions: list[str] = field(default_factory=lambda: [""])
    refused: dict[int, str] = field(default_factory=dict)  # position -> reason to reject the task at arrival
    id: np.ndarray | None = None
    predecessors: list[tuple[int, ...]] | None = None
    stages: Stages | None = None
    reads: list[tuple[str, ...]] | None = None
    writes: list[tuple[str, ...]] | None = None
    items: dict[str, int] = field(default_factory=dict)  # sizes of data items that the task source defines
    work: Known | None = None
    hash_ids: Ragged | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    service: ServiceSpec | None = None
    language: LanguageModel | None = None
    step_factors: list[float] = field(default_factory=list)  # on all steps in this replication, by type of replica
    kv_blocks: list[int] = field(default_factory=list)  # of a replica in this replication, by type of replica
    # language model and replica mode on each device type that it may use; of batches the replicas in each of its modes
    replica_modes: list[tuple[Any, Mode]] = field(default_factory=list)
    resampled: str | None = None  # how a trace was resampled; "": arrivals are replayed, None: no trace arrivals
    # (batching policy, name) -> (warning, requests/s that the devices can serve), or None
    overload: Callable[[Any, str], tuple[str, float] | None] | None = None
    clients: list[tuple[float, int]] = field(default_factory=list)
    think: Callable[[np.random.Generator, int], np.ndarray] | None = None
    calls: Clients | None = None  # behavior of its clients at timeouts and failures
    depth: int = 1  # tasks per call: stages, each of which calls the next

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass
class Context:
    """The run whose tasks are built: scenario, cluster, modes and random numbers."""

    document: Document
    cluster: Cluster
    modes: ModeBook
    random: RandomTree
    horizon: float
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # facts that a reader of the results must know
    overloads: list[tuple[str, float, float]] = field(default_factory=list)  # as `RunInput.overloads`

    def note_unused(self, name: str, keys: Iterable[str]) -> None:
        """Record each key `gpu_time.TYPE` whose type the cluster lacks, for a note."""
        for key in keys:
            kind = key.removeprefix(GPU_TIME)
            if key != kind:
                self.note_missing(name, key, kind)

    def note_missing(self, name: str, key: str, kind: str) -> None:
        if not self.modes.of_kind(kind):
            near = suggestion(kind, self.cluster.types)
            self.notes.append(f"{name}: {key} is not used: the cluster has no {kind}{near}")

    def fail(self, path: Path_, message: str) -> ScenarioError:
        return ScenarioError(self.problem(path, message))

    def problem(self, path: Path_, message: str) -> Problem:
        return self.document.problem(path, message)


def peak_of(device: DeviceType) -> Peak | None:
    """Return the peak rates of a type: those given, or those known for its name."""
    if isinstance(device.peak, Peak):
        return device.peak
    return roofline.DEVICES.get(device.name.lower()) if device.kind != "cpu" else None


def one_lane(mode: Mode) -> bool:
    """Return True if the mode uses exactly one core or one whole accelerator."""
    return mode.gpus == 1 and mode.whole_devices if mode.gpus else mode.millicores == MILLI


def stopping_of(demand: Demand) -> tuple[Stopping, bool]:
    given = demand.stopping
    return (NO_STOPPING, True) if given is None else (given.made(), given.preemptible)


def users_of(demand: Demand, n: int, rng: np.random.Generator) -> tuple[np.ndarray | None, list[str]]:
    """Return the users of tasks as codes (None: only one user), and the user names."""
    if demand.users is None:
        return None, [demand.user or ""]
    mix: Any = demand.users
    if isinstance(mix, list):
        names, weights = [user.name for user in mix], np.array([user.weight for user in mix])
    else:
        names = [f"u{k}" for k in range(mix.count)]
        weights = np.arange(1, mix.count + 1, dtype=float) ** -mix.zipf
    return draw_codes(weights, n, rng), names


def draw_codes(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n independent indexes with probabilities proportional to `weights`."""
    cumulative = np.cumsum(weights, dtype=float)
    codes = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.minimum(codes, len(weights) - 1).astype(np.int32)


def estimate_error(demand: Demand, n: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw each task's ratio of estimate to true time; None if estimates are exact."""
    given = demand.estimates
    if given is None or (given.error is None and given.factor == 1):
        return None
    drawn = np.ones(n) if given.error is None else given.error.sample(rng, n)
    return drawn * given.factor


def unfit(
    context: Context, path: Path_, count: int, first: str, refused: list[Mode], types: Iterable[str] = (),
    nodes_by: str = "nodes: N",
) -> Problem:  # fmt: skip
    """Return a problem: `count` tasks (the first: `first`) can never run, and why."""
    many = f"{count:,} tasks, the first of them {first}," if count > 1 else first
    why = why_unfit(context, refused, types, nodes_by)
    return context.problem(path, f"{many} can never run on this cluster: {why}")


def why_unfit(context: Context, refused: list[Mode], types: Iterable[str] = (), nodes_by: str = "nodes: N") -> str:
    """Return why no `refused` mode fits; without any, that no node has one of `types`."""
    if refused:
        return "; ".join(dict.fromkeys(context.modes.why_not(mode, nodes_by) for mode in refused))
    kinds = [kind.name for kind in context.cluster.types.values() if context.modes.of_kind(kind.name)]
    if named := " or ".join(types):
        return f"no node has {named}; the cluster has {', '.join(kinds)}"
    return f"the tasks have no time on any type of the cluster ({', '.join(kinds)})"


def closed_rows(entry: WorkloadEntry, until: float, fastest_mean: float) -> int:
    """Return a closed loop's number of rows: `count`, or an upper bound for `until` s."""
    if entry.count is not None:
        return entry.count
    arrivals: Any = entry.arrivals
    cycle = arrivals.think.mean + fastest_mean
    if cycle <= 0:
        raise ValueError("a closed loop without think time or computing time never ends; give count")
    expected = until / cycle
    # Each client renews at most about expected times; 10 standard deviations of a Poisson count are above that.
    return int(max(clients for _, clients in arrivals.changes) * (expected * 1.2 + 10 * math.sqrt(expected) + 50))


# Calls: rows of a stream for the attempts that clients may make.


def with_attempts(stream: TaskStream, context: Context) -> TaskStream:
    """Add a row to the stream for each possible retry and hedge of its calls."""
    if stream.calls is None or stream.calls.attempts == stream.depth == 1:
        return stream
    clients, parts, depth, count = stream.calls, stream.calls.attempts, stream.depth, len(stream)
    # Attempt after attempt of all calls, and so stage after stage: each attempt of a stage makes a call of the next.
    again = np.concatenate([np.tile(np.arange(k, count, depth), parts ** (k + 1)) for k in range(depth)])
    changes: dict[str, Any] = {}
    for one in fields(stream):
        column = getattr(stream, one.name)
        if isinstance(column, np.ndarray | Ragged | KernelWork):
            changes[one.name] = column[again] if isinstance(column, np.ndarray) else column.take(again)
    changes["arrival"][count // depth :] = math.inf
    extra = {key: own[again] for key, own in stream.extra.items()}  # of its own call, whatever its size
    if stream.id is not None:
        number = np.concatenate([np.repeat(np.arange(parts ** (k + 1)), count // depth) for k in range(depth)]).tolist()
        named = zip(changes["id"], number, strict=True)
        changes["id"] = np.array([f"{name}/{1 + more}" if more else name for name, more in named], dtype=object)
    refused = {row: why for one, why in stream.refused.items() for row in np.flatnonzero(again == one).tolist()}
    tries = sum(parts ** (k + 1) for k in range(depth)) // clients.copies
    sized = again.reshape(tries, clients.copies, count // depth)  # a view
    if depth == 1 and clients.retry is not None and clients.retry.size == "new":
        sized[1:, 0] = _other_sizes(stream, len(sized) - 1, context.random.stream("retry sizes", stream.name))
    sized[:, 1:] = sized[:, :1]
    if depth == 1 and clients.hedge is not None and clients.hedge.size == "new":
        drawn = _other_sizes(stream, len(sized) * clients.hedge.times, context.random.stream("hedges", stream.name))
        sized[:, 1:] = drawn.reshape(len(sized), -1, count)
    changes["time"] = stream.time[again]
    changes["estimate"] = None if stream.estimate is None else stream.estimate[again]
    if stream.language is not None:
        extra |= {key: own[again] for key, own in stream.extra.items() if key in OF_SIZE}
    if clients.hedge is not None and clients.hedge.apart:
        if stream.language is not None or stream.service is not None or depth > 1:
            text = "apart needs plain tasks, without a service, a language model or a pipeline"
            raise context.fail((*stream.path, "clients", "hedge", "apart"), text)
        _bind_apart(stream, sized.shape, changes, context)
    return replace(stream, **changes, refused=refused, extra=extra)


def _bind_apart(stream: TaskStream, attempts: tuple[int, ...], changes: dict[str, Any], context: Context) -> None:
    """Bind each try of a task to a random mode, its hedged copies to different modes."""
    tries, copies, _ = attempts
    random, shapes = context.random.stream("apart", stream.name), changes["shape"]
    times = {key: np.full_like(changes[key], np.inf) for key in ("time", "estimate") if changes[key] is not None}
    bound = np.empty_like(shapes)
    for number in np.unique(shapes).tolist():
        shape, rows = context.modes.shapes[number], np.flatnonzero(shapes == number)
        if len(shape.modes) < copies:
            text = f"apart needs {copies} types of device for {copies} copies; these tasks run on {len(shape.modes)}"
            raise context.fail((*stream.path, "clients", "hedge", "apart"), text)
        drawn = random.random((tries, len(shape.modes), len(rows) // (tries * copies))).argsort(axis=1)
        mode = drawn[:, :copies].reshape(-1)
        alone = [context.modes.shape([one], shape.stopping, shape.preemptible) for one in shape.modes]
        bound[rows] = np.array(alone)[mode]
        for key, column in times.items():
            column[rows, 0] = changes[key][rows, mode]
    changes.update(times, shape=bound, work=None)  # work is by mode, and tells only what can be fused


OF_SIZE = ("prompt_tokens", "output_tokens")  # Columns that are the size of a request to a language model.


def _other_sizes(stream: TaskStream, times: int, random: np.random.Generator) -> np.ndarray:
    """For each call, draw `times` calls of the same class, whose sizes are reused."""
    kind = stream.shape if stream.class_code is None else stream.class_code
    kinds = np.tile(kind, (times, 1))
    drawn = np.empty(kinds.shape, np.int64)
    for one in np.unique(kind):
        same = np.flatnonzero(kind == one)
        drawn[kinds == one] = random.choice(same, times * len(same))
    return drawn


def calls_of(streams: list[TaskStream], rank: np.ndarray, counts: list[int], context: Context) -> Calls | None:
    """Return how clients call, time out and retry, for all tasks; None if none does.

    counts: number of calls by stream; each call has several attempts, which are tasks.
    """
    if all(stream.calls is None for stream in streams):
        return None
    total, first = len(rank), np.full(len(rank), -1)
    chained: dict[str, Any] = {}
    if any(stream.depth > 1 for stream in streams):
        chained = {"root": first.copy(), "parent": first.copy(), "child": first.copy()}
    calls = Calls(
        [], whose=np.full(total, -1, np.int16), attempt_of=first, following=first.copy(),
        number=np.zeros(total, np.int16), bucket=np.zeros(total, np.int32), drawn=np.ones(total),
        **({"root": first} | chained),
        timeout=np.full(total, math.inf) if any(one.calls and one.calls.is_drawn for one in streams) else None,
    )  # fmt: skip
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        rows, start = rank[start : start + len(stream)], start + len(stream)
        if stream.calls is None or not count:
            continue
        calls.whose[rows] = len(calls.clients)
        calls.clients.append(stream.calls)
        users, parts, before = stream.calls.count, stream.calls.attempts, rows
        buckets: Any = 0 if users is None else context.random.stream("clients", stream.name).integers(users, size=count)
        retry, random = stream.calls.retry, context.random.stream("retries", stream.name)
        timeouts = context.random.stream("timeouts", stream.name)
        for stage in range(stream.depth):
            size = parts ** (stage + 1) * count
            attempts, rows = rows[:size].reshape(-1, parts, count), rows[size:]
            calls.bucket[attempts] = buckets + stage * (users or 1)
            calls.attempt_of[attempts] = attempts[:, :1]
            calls.following[attempts[:, :-1]] = attempts[:, 1:]
            calls.number[attempts] = np.arange(parts)[:, None]
            if retry is not None and retry.wait.jitter != "none":
                draw = random.random if retry.wait.jitter == "full" else random.standard_exponential
                calls.drawn[attempts[:, 1:]] = draw(attempts[:, 1:].shape)
            calls.root[attempts] = calls.root[before][:, None] if stage else attempts[:, :1]
            if stage and calls.child is not None and calls.parent is not None:
                calls.child[before], calls.parent[attempts[:, 0]] = attempts[:, 0], before
            if calls.timeout is not None:
                timeout: Any = stream.calls.timeout
                drawn = timeout.sample(timeouts, attempts.size) if stream.calls.is_drawn else timeout
                calls.timeout[attempts] = np.broadcast_to(drawn, attempts.size).reshape(attempts.shape)
            before = attempts.reshape(-1, count)
    return calls


REACTIONS = {
    "timeout": "no attempt times out (give a timeout, below give_up_after where that is given)",
    "rejected": "nothing rejects an attempt (name a policy.admission, or a policy that drops what is late)",
    "failed": "no attempt fails (what a fault stops waits again; tasks are killed at their time limits with "
    "site: {at_limit: kill})",
}  # Cause of retries -> why it cannot occur, for messages.


def check_retries(
    calls: Calls, tasks: Tasks, streams: list[TaskStream], policies: Sequence[Any], batching: Sequence[Any],
    killing: bool, context: Context,
) -> None:  # fmt: skip
    """Raise ScenarioError if no cause of a client's retries can occur in the scenario.

    policies: policies of the whole run; batching: batching policies of the streams with a service.  A policy that may
    reject tasks has `rejects` True.  killing: True if tasks are killed at their time limits.
    """
    problems: list[Problem] = []
    served = iter(batching)
    sent = [stream for stream in streams if len(stream)]
    rejecting = [stream.service is not None and next(served).rejects for stream in sent]
    with_calls = [pair for pair in zip(sent, rejecting, strict=True) if pair[0].calls is not None]
    for number, ((stream, drops), clients) in enumerate(zip(with_calls, calls.clients, strict=True)):
        if clients.retry is None:
            continue
        rows = np.flatnonzero(calls.whose == number)
        limits = tasks.time_limit
        possible = {
            "timeout": clients.is_drawn or clients.timeout < clients.give_up_after,
            "rejected": drops or any(one.rejects for one in policies) or bool(np.isin(rows, list(tasks.refused)).any()),
            "failed": stream.depth > 1 or (killing and limits is not None and bool(np.isfinite(limits[rows]).any())),
        }
        if not any(possible[cause] for cause in clients.retry.on):
            whys = "; ".join(why for cause, why in REACTIONS.items() if cause in clients.retry.on)
            path = (*stream.path, "clients", "retry", "on")
            problems.append(context.problem(path, f"retries have no cause: {whys}"))
    if problems:
        raise ScenarioError(problems)
