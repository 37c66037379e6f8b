"""Arrival rates, service times and populations, estimated during the run.

Nothing is read from the scenario.  Each estimate is the ratio of two sums over past events, such as arrivals / seconds
between them.  At each arrival both sums are multiplied by 1 - 1/`memory`, so that the weight of an event falls to 1/e
after `memory` arrivals.
The mean service time is busy server-seconds / completions; the time of a batch is divided among its requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.cluster import Cluster
from hetsim.model.mode import Mode
from hetsim.model.task import Task
from hetsim.policy import Admission, PlanProblem, View

MIN_SEEN = 30  # minimum number of arrivals, and of completions, for an estimate

Memory = Annotated[int, Field(ge=MIN_SEEN)]  # arrivals after which the weight of an observation is 1/e


@dataclass(eq=False, slots=True)
class RecentArrivals:
    """Estimates arrivals per second; `value` is None before MIN_SEEN arrivals."""

    memory: int
    seen: int = 0
    count: float = 0.0
    span: float = 0.0
    last: float = 0.0

    def note(self, now: float) -> None:
        if self.seen:
            fade = 1.0 - 1.0 / self.memory
            self.count = self.count * fade + 1.0
            self.span = self.span * fade + (now - self.last)
        self.seen += 1
        self.last = now

    @property
    def value(self) -> float | None:
        return self.count / self.span if self.seen >= MIN_SEEN and self.span > 0 else None


@dataclass(eq=False, slots=True)
class ClassFlow:
    """Tasks of one class on a device type: arrivals, service times, number present."""

    memory: int
    arrivals: RecentArrivals = field(init=False)
    present: int = 0  # number of admitted tasks that have not ended
    busy: float = 0.0
    done: float = 0.0
    completed: int = 0

    def __post_init__(self) -> None:
        self.arrivals = RecentArrivals(self.memory)

    @property
    def rate(self) -> float | None:
        """Arrivals per second, admitted or refused; None before `MIN_SEEN` arrivals."""
        return self.arrivals.value

    @property
    def service_time(self) -> float | None:
        """Mean seconds that a task occupies a server; None before `MIN_SEEN` completions."""
        return self.busy / self.done if self.completed >= MIN_SEEN and self.busy > 0 else None


@dataclass(eq=False, slots=True)
class DeviceStation:
    """A device type as a queueing station; admitted tasks share its devices."""

    capacity: float  # number of devices (of a CPU: of cores)
    memory: int
    flows: dict[str, ClassFlow] = field(default_factory=dict)
    present: int = 0
    occupied: float = 0.0  # devices that all present tasks would keep busy
    last: float = 0.0

    def flow(self, name: str) -> ClassFlow:
        if (flow := self.flows.get(name)) is None:
            flow = self.flows[name] = ClassFlow(self.memory)
        return flow

    def settle(self, now: float) -> None:
        """Update the sum of busy server-seconds to the present."""
        passed = now - self.last
        if passed > 0:
            share = passed if self.occupied <= self.capacity else passed * self.capacity / self.occupied
            for flow in self.flows.values():
                flow.busy += flow.present * share
            self.last = now

    def arrives(self, name: str, now: float) -> ClassFlow:
        self.settle(now)
        flow, fade = self.flow(name), 1.0 - 1.0 / self.memory
        for other in self.flows.values():
            other.busy *= fade
            other.done *= fade
        flow.arrivals.note(now)
        return flow

    def joins(self, flow: ClassFlow, width: float) -> None:
        flow.present += 1
        self.present += 1
        self.occupied += width

    def leaves(self, flow: ClassFlow, width: float, completed: bool) -> None:
        flow.present -= 1
        self.present -= 1
        self.occupied = self.occupied - width if self.present else 0.0
        if completed:
            flow.done += 1.0
            flow.completed += 1


@dataclass(eq=False)
class Stations:
    """Queueing stations by device type; a task belongs to its fastest mode's type.

    `classed`: True if each class is estimated separately.
    """

    view: View
    memory: int
    classed: bool = False
    stations: dict[str, DeviceStation] = field(default_factory=dict)
    _there: dict[int, tuple[DeviceStation, ClassFlow, float]] = field(default_factory=dict)

    def best(self, task: Task) -> tuple[DeviceStation, Mode]:
        modes = task.modes
        mode = modes[0] if len(modes) == 1 else modes[task.modes_by_speed()[0]]
        name = mode.type.name
        if (station := self.stations.get(name)) is None:
            station = self.stations[name] = DeviceStation(capacity(self.view.cluster, mode), self.memory)
        return station, mode

    def arrives(self, task: Task, station: DeviceStation) -> ClassFlow:
        return station.arrives(task.class_ if self.classed else "", self.view.now)

    def joins(self, task: Task, station: DeviceStation, flow: ClassFlow, width: float) -> None:
        """Record an admitted task that will occupy `width` devices."""
        self._there[task.index] = station, flow, width
        station.joins(flow, width)

    def leaves(self, task: Task, completed: bool) -> None:
        """Record the end of an admitted task; tasks that were not admitted are ignored."""
        if (place := self._there.pop(task.index, None)) is not None:
            station, flow, width = place
            station.settle(self.view.now)
            station.leaves(flow, width, completed)


class AtStations(Admission):
    """Base of the policies that count the admitted tasks of each type of device.

    memory: arrivals over which rates are estimated.  classed: True if each class is estimated separately.
    """

    memory: int = MIN_SEEN
    classed: ClassVar[bool] = False

    def begin(self, view: View) -> None:
        self.stations = Stations(view, self.memory, self.classed)

    def finished(self, task: Task) -> None:
        self.stations.leaves(task, True)

    def gone(self, task: Task) -> None:
        self.stations.leaves(task, False)


def capacity(cluster: Cluster, mode: Mode) -> float:
    """Return the number of devices of a mode's type; for CPUs, the number of cores."""
    return cluster.count(mode.type.name)


def servers(cluster: Cluster, mode: Mode) -> int:
    """Return how many launches in a mode fit on the empty cluster, at least 1."""
    return max(1, int(capacity(cluster, mode) / mode.width + 1e-9)) if mode.width > 0 else 1


def known_classes(problem: PlanProblem, names: Iterable[str], key: str) -> None:
    """Raise ScenarioError if one of the names is not the class of a task."""
    classes = [name for name in problem.tasks.classes if name]
    _known(names, classes, "class", many="classes", key=f"policy.admission.{key}")


def known_devices(problem: PlanProblem, names: Iterable[str], key: str) -> None:
    """Raise ScenarioError unless each name is a device type or kind of the cluster."""
    cluster = problem.cluster
    types = [device_type for device_type in cluster.types.values() if cluster.count(device_type.name)]
    type_names = list(dict.fromkeys(name for one in types for name in (one.name, one.kind)))
    _known(names, type_names, "device type", many="device types", key=f"policy.admission.{key}")


def _known(names: Iterable[str], known: list[str], one: str, many: str, key: str) -> None:
    if wrong := [name for name in names if name not in known]:
        listed = f"the {many} here are {', '.join(known)}" if known else f"there are no {many} here"
        near = suggestion(wrong[0], known)
        raise ScenarioError(Problem(f'no {one} "{wrong[0]}"{near or ""}; {listed}', key=f"{key}.{wrong[0]}"))
