"""One stream of tasks as columns, common to synthetic and recorded streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.clients import Clients
from hetsim.model.cluster import MILLI, Cluster, DeviceType
from hetsim.model.ragged import Ragged
from hetsim.model.randomness import RandomTree
from hetsim.model.tasks import KernelWork as Known
from hetsim.model.tasks import Mode, Stopping
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
    """The stages of the requests of a stream, by its tasks."""

    first: np.ndarray
    """Position of the first task of the request."""
    stage: np.ndarray
    names: list[str]
    id: np.ndarray
    """The id of the request."""
    alone: np.ndarray
    """Seconds that the request takes alone."""


@dataclass(slots=True)
class TaskStream:
    """Columns of one entry, in the order of its tasks; codes are of own lists.

    `time` and `estimate` have a column for each mode of the widest shape, inf beyond a row's own modes;
    `estimate` is None where exact.  `deadline` and `patience` count seconds from the arrival.
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
    refused: dict[int, str] = field(default_factory=dict)
    """Reasons to reject tasks as they come, by their position here."""
    id: np.ndarray | None = None
    predecessors: list[tuple[int, ...]] | None = None
    stages: Stages | None = None
    reads: list[tuple[str, ...]] | None = None
    writes: list[tuple[str, ...]] | None = None
    items: dict[str, int] = field(default_factory=dict)
    """Sizes of data items that the source of the tasks itself tells."""
    work: Known | None = None
    hash_ids: Ragged | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    service: ServiceSpec | None = None
    language: LanguageModel | None = None
    step_factor: float = 1.0
    """On all steps of the language model in this replication."""
    replica_modes: list[tuple[LanguageModel, Mode]] = field(default_factory=list)
    """The language model on each type of device where it may be, and the mode of a replica there."""
    resampled: str | None = None
    """How a trace was drawn again; empty where its arrivals are replayed as they are, None where none are."""
    overload: Callable[[Any, str], tuple[str, float] | None] | None = None
    """What to say of a load that the devices of its service cannot serve under a batching policy, given with its name,
    and the number of requests a second that they can; None where they can serve all."""
    clients: list[tuple[float, int]] = field(default_factory=list)
    think: Callable[[np.random.Generator, int], np.ndarray] | None = None
    calls: Clients | None = None
    """What its clients do where they time out or try again."""

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass
class Context:
    """The run for which a stream is built."""

    document: Document
    cluster: Cluster
    modes: ModeBook
    random: RandomTree
    horizon: float
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What a reader of the results must know beforehand."""
    overloads: list[tuple[str, float, float]] = field(default_factory=list)
    """`RunInput.overloads`."""

    def note_unused(self, name: str, keys: Iterable[str]) -> None:
        """Note each `gpu_time.TYPE` of a type that the cluster lacks."""
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
    """Peak rates of a type: its own figures, or those of a known device."""
    if isinstance(device.peak, Peak):
        return device.peak
    return roofline.DEVICES.get(device.name.lower()) if device.kind != "cpu" else None


def one_lane(mode: Mode) -> bool:
    """Return True for one core or one whole accelerator, which can be fused."""
    return mode.gpus == 1 and mode.whole_devices if mode.gpus else mode.millicores == MILLI


def stopping_of(demand: Demand) -> tuple[Stopping, bool]:
    given = demand.stopping
    if given is None:
        return NO_STOPPING, True
    return given.made(), given.preemptible


def users_of(demand: Demand, n: int, rng: np.random.Generator) -> tuple[np.ndarray | None, list[str]]:
    """The user of each task: one name, or drawn from the mix."""
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
    """n independent indexes with probabilities proportional to `weights`."""
    cumulative = np.cumsum(weights, dtype=float)
    codes = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.minimum(codes, len(weights) - 1).astype(np.int32)


def estimate_error(demand: Demand, n: int, rng: np.random.Generator) -> np.ndarray | None:
    """Factors from true times to estimates; None where exact."""
    given = demand.estimates
    if given is None or (given.error is None and given.factor == 1):
        return None
    drawn = np.ones(n) if given.error is None else given.error.sample(rng, n)
    return drawn * given.factor


def unfit(
    context: Context, path: Path_, count: int, first: str, refused: list[Mode], types: Iterable[str] = (),
    nodes_by: str = "nodes: N",
) -> Problem:  # fmt: skip
    """The problem of tasks that no device can ever run."""
    many = f"{count:,} tasks, the first of them {first}," if count > 1 else first
    why = why_unfit(context, refused, types, nodes_by)
    return context.problem(path, f"{many} can never run on this cluster: {why}")


def why_unfit(
    context: Context, refused: list[Mode], types: Iterable[str] = (), nodes_by: str = "nodes: N"
) -> str:  # fmt: skip
    """Why none of these modes, or no mode at all, can run."""
    if refused:
        return "; ".join(dict.fromkeys(context.modes.why_not(mode, nodes_by) for mode in refused))
    kinds = [kind.name for kind in context.cluster.types.values() if context.modes.of_kind(kind.name)]
    named = " or ".join(types)
    if named:
        return f"no node has {named}; the cluster offers {', '.join(kinds)}"
    return f"the cluster offers {', '.join(kinds)}, for which there is no time"


def closed_rows(entry: WorkloadEntry, until: float, fastest_mean: float) -> int:
    """Rows for a closed loop: its `count`, or a safe bound before `until`."""
    if entry.count is not None:
        return entry.count
    arrivals: Any = entry.arrivals
    cycle = arrivals.think.mean + fastest_mean
    if cycle <= 0:
        raise ValueError("a closed loop that neither thinks nor computes never ends; give count")
    expected = until / cycle
    # Each client renews at most about expected times; 10 standard deviations of a Poisson count are above that.
    return int(max(clients for _, clients in arrivals.changes) * (expected * 1.2 + 10 * math.sqrt(expected) + 50))
