"""Predictive: forecasts of the load decide how many devices are awake or reserved.

This policy runs around another scheduler, which decides when and where tasks start.  Every `interval` the arriving work
is measured, as the number of devices that it would keep busy, and its forecast (`hetsim_policies.prediction`) is used
in two ways:

scale    as many devices are awake as suffice, at the target utilization, for the waiting work and for the load that is
         expected within one waking time.  That load is the recently measured load plus the rise that is forecast (or
         somewhat more).  So devices for a rise are awake in time, and on an unusual day the number of awake devices
         follows the measured load (`hetsim_policies.prediction.series`).
         With the predictor `last_value` or `ewma` this is an autoscaler that only reacts; with the signal `utilization`
         it is the autoscaler of Kubernetes, which measures how busy the devices are.
reserve  tasks of other classes may occupy only devices that the classes and services named here will not need by the
         forecast for the next `ahead` seconds.  `ahead` should be about the run time of these other tasks, since
         running tasks are not stopped at the peak.  Meanwhile they may run on cores or in a smaller mode, if they have
         one that fits.

Forecast errors are recorded with the run: MAPE and pinball loss of the mean load over the forecast time, in devices.
Reference: Gmach, Rolia, Cherkasova, Kemper, Workload Analysis and Demand Prediction of Enterprise Data Center
Applications (2007); Roy, Dubey, Gokhale, Efficient Autoscaling in the Cloud Using Predictive Models for Workload
Forecasting (2011); the target and the window as in Kubernetes' Horizontal Pod Autoscaling.
Weakness: on an unusual day it is not better than a reactive autoscaler, and prepares once for each expected rise that
does not come; reservations use the forecast alone, of which only the level adapts to an unusual day.  A gang that needs
more devices on one node than are awake there may have to wait until nothing runs.
Cost: that of the inner scheduler, and per interval that of the predictor and O(waiting tasks + devices).  While no task
waits or runs and no forecast can change the number of devices there are no events: these intervals are measured at the
next arrival, and intervals without expected load are skipped together.  (Services are measured in every interval.)
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.errors import refusal, suggestion
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import (
    Annotate,
    Counter,
    Decision,
    ListScheduler,
    Pause,
    PlacementRule,
    PlanProblem,
    Predictor,
    RequestQueue,
    Scheduler,
    Set,
    Start,
    View,
    Wait,
)
from hetsim_policies.common import grouped
from hetsim_policies.hybrid.common.part_view import PartView
from hetsim_policies.prediction import ENOUGH, Score, Series, error_notes
from hetsim_policies.prediction.predictors import HoltWinters


class Predictive(Scheduler):
    """Scales and reserves devices by forecast, around another scheduler.

    base: the inner scheduler; default: fcfs that skips tasks that do not fit.  With `reserve` it must be a list
        scheduler (fcfs, sjf, edf, priority, qssf, ...), best with the discipline "skip".
    predictor: how the load is forecast; default: holt_winters with a season of a day.
    scale: put devices to sleep and wake them.
    min_replicas: the minimum number of awake devices of a type.
    signal: measured quantity: arriving work, or the number of busy devices.
    target: fraction of the awake devices that the load may keep busy.
    interval: seconds between measurements.
    memory: seconds over which the present load is averaged, or longer until it contains eight arrivals; the predictors
        last_value and ewma use their own memory instead.
    stabilization: the number of awake devices is the maximum of those computed in the last `stabilization` seconds.
    reserve: names of classes or services for which devices are kept free.
    ahead: seconds of the forecast of their load for which these devices must suffice.
    """

    sets_devices = True

    def __init__(
        self,
        base: Scheduler | None = None,
        predictor: Callable[[], Predictor] | None = None,
        scale: bool = True,
        signal: Literal["arrivals", "utilization"] = "arrivals",
        target: Annotated[float, Field(gt=0, le=1)] = 0.7,
        interval: Annotated[Seconds, Field(gt=0)] = 60.0,
        memory: Annotated[Seconds, Field(gt=0)] = 300.0,
        stabilization: Annotated[Seconds, Field(ge=0)] = 300.0,
        min_replicas: Annotated[int, Field(ge=0)] = 1,
        reserve: list[str] | None = None,
        ahead: Annotated[Seconds, Field(ge=0)] = 1800.0,
    ):
        self.base = ListScheduler(discipline="skip") if base is None else base
        self.predictor = HoltWinters if predictor is None else predictor
        self.knows_rates = self.predictor().knows_rates
        # Device-seconds and number of arrivals, by type and class; only if true rates are known
        self._work: dict[tuple[DeviceType, str], tuple[float, int]] = {}
        self.scale = scale
        self.signal = signal
        self.target = target
        self.interval = interval
        self.memory = memory
        self.stabilization = stabilization
        self.min_replicas = min_replicas
        self.protected = dict.fromkeys(reserve or ())
        self.ahead = ahead
        self.notes: dict[str, Any] = {}
        self.score = Score()
        self.pools: dict[DeviceType, DevicePool] = {}
        self.loads: dict[DeviceType, Series] = {}  # loads of all tasks, for scaling
        self.peaks: dict[DeviceType, Series] = {}  # loads of the protected tasks, for reserving
        self.kept: dict[DeviceType, int] = {}  # devices for the protected, as forecast last
        self._counters: Sequence[Counter] = ()
        self._requests: list[ServiceDemand] = []
        self._came: dict[int, None] = {}  # tasks that wait or run, by row: each is counted once as work that arrived
        # Running tasks that are not protected: device type, and number of its devices
        self._others: dict[int, tuple[DeviceType, float]] = {}
        self._held: dict[int, None] = {}  # tasks that were held back for the protected, by row
        self._declined: dict[int, Task] = {}  # tasks held back in this round
        self._next = 0.0
        self._since = 0.0
        self._busy: dict[DeviceType, float] = {}
        if scale and self.base.sets_devices:
            text = f"{type(self.base).__name__} puts devices to sleep itself: set scale to false, or use another"
            raise refusal(text, "policy.scheduler.base")
        if self.protected:
            if not isinstance(self.base, ListScheduler):
                text = f"reserve needs a placement rule, which {type(self.base).__name__} lacks"
                raise refusal(f"{text}; name a list scheduler such as fcfs", "policy.scheduler.base")
            self.base.placement = partial(self._place, self.base.placement)

    def check(self, problem: PlanProblem) -> None:
        if self.knows_rates and self.rates is None:
            raise refusal("a predictor of the true rates needs predictive to be the scheduler, not nested in another")
        self.base.check(problem)
        names = [name for name in problem.tasks.classes if name]
        for name in self.protected:
            if name not in names:
                near = suggestion(name, names) or f"; the classes here are {', '.join(names) or 'without names'}"
                raise refusal(f'no class "{name}" to reserve for{near}', "policy.scheduler.reserve")

    def prepare(self, problem: PlanProblem) -> None:
        self.base.prepare(problem)

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self._counters = counters
        self.base.serve(counters, alone)

    def begin(self, view: View) -> None:
        self._view = view
        self.base.begin(view)
        self._requests = [ServiceDemand(counter, view) for counter in self._counters]
        for kind, devices in grouped((one.type, one) for one in view.cluster.devices if one.local >= 0).items():
            self.pools[kind] = DevicePool(kind, devices, min(self.min_replicas, len(devices)), self.stabilization)
            if self.scale:
                self.loads[kind] = self._series(kind.power.wake, kind)
            if self.protected:
                self.peaks[kind] = self._series(self.ahead, kind, self.protected)
                self.kept[kind] = 0
        self._since = view.now
        self._next = view.now + self.interval

    def _series(self, lead: float, kind: DeviceType, names: Collection[str] | None = None) -> Series:
        predictor = self.predictor()
        if self.knows_rates:
            predictor.truth = partial(self._true_load, kind, names)
        return Series(predictor, self.interval, lead + self.interval, score=self.score, memory=self.memory)

    def _true_load(self, kind: DeviceType, names: Collection[str] | None, time: float) -> float:
        rates = self.rates or {}
        return sum(
            rates[name](time) * seconds / count
            for (of_kind, name), (seconds, count) in self._work.items()
            if of_kind is kind and name in rates and (names is None or name in names)
        )

    def ready(self, task: Task) -> None:
        self._forget(task, stopped=True)
        self._catch_up(self._view.now)  # what is noted from here on came after the intervals before
        if task.index not in self._came:
            self._came[task.index] = None
            asked = asked_of(task)
            if asked is not None and not any(task.shape is one.queue.service.shape for one in self._requests):
                self._arrived(*asked, 1, task.class_)
        self.base.ready(task)

    def finished(self, task: Task) -> None:
        self._forget(task)
        self.base.finished(task)

    def gone(self, task: Task) -> None:
        self._forget(task)
        self.base.gone(task)

    def device(self, device: Device, up: bool) -> None:
        if (pool := self.pools.get(device.type)) is not None:
            pool.changed(device, up)
        self.base.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self.base.announced(device, start, end)

    def schedule(self, view: View) -> Iterator[Decision]:
        self._catch_up(view.now)
        if self.signal == "utilization":  # since the last round the same devices were busy
            passed, self._since = min(view.now, self._next) - self._since, view.now
            for kind, busy in self._busy.items():
                self.loads[kind].note(busy * passed, ENOUGH)  # how many are busy is seen, not guessed from arrivals
        wait = yield from self._inner(view)
        if self._next <= view.now:
            self._measure(self._next)
            if self.scale:
                self._want(view)
            self._next += self.interval
            if self.protected:  # less may be kept than a moment ago
                wait = yield from self._inner(view)
        for task in self._declined.values():  # for `hetsim explain`
            if task.state == WAITING:
                yield Annotate(task, "reservation")
        self._declined.clear()
        if self.scale:
            for pool in self.pools.values():
                yield from pool.steer(view)
        if self.signal == "utilization":  # which devices are busy from now on
            for kind in self.loads:
                self._busy[kind] = sum(min(1.0, view.load(device)) for device in self.pools[kind].devices)
        # Finishes count for what is busy and what may sleep, so they are not slept through.
        until = wait.until if self._nothing_to_come() else min(wait.until, self._next)
        yield Pause("release" if wait.on == "release" else "change", until)

    def _inner(self, view: View) -> Generator[Decision, None, Wait]:
        """Yield the inner scheduler's decisions until it waits; return its Wait decision."""
        for decision in self.base.schedule(view):
            if isinstance(decision, Wait):
                return decision
            if self.protected and isinstance(decision, Start):
                self._hold(decision)
            yield decision
        return Wait()

    def _arrived(self, kind: DeviceType, seconds: float, count: int, name: str) -> None:
        if self.knows_rates and count:
            before = self._work.get((kind, name), (0.0, 0))
            self._work[kind, name] = before[0] + seconds, before[1] + count
        if self.scale and self.signal == "arrivals" and kind in self.loads:
            self.loads[kind].note(seconds, count)
        if name in self.protected and kind in self.peaks:
            self.peaks[kind].note(seconds, count)

    def _nothing_to_come(self) -> bool:
        """Return True if forecasts cannot change the number of awake devices.

        Then the number cannot change before the next arrival, and no timer is needed until then.
        """
        if self._came or self._requests:
            return False
        if any(kept or self._devices(self.peaks[kind].peak_ceiling()) > 0 for kind, kept in self.kept.items()):
            return False
        pools = [(self.pools[kind], series) for kind, series in self.loads.items()]
        return all(
            pool.wanted == pool.min_awake and self._devices(one.ceiling()) <= pool.min_awake for pool, one in pools
        )

    def _catch_up(self, now: float) -> None:
        every = [*self.loads.values(), *self.peaks.values()]
        while self._next < now:
            if self.signal == "utilization":
                for series in self.loads.values():
                    series.note(0.0, ENOUGH)  # as when each interval has a round
            if all(series.settled for series in every):
                count = math.ceil((now - self._next) / self.interval)
                end = self._next + (count - 1) * self.interval
                for series in every:
                    series.skip(count, end)
                self._tell()
            else:
                self._measure(end := self._next)
            self._since, self._next = end, end + self.interval

    def _devices(self, load: float) -> float:
        return math.ceil(load / self.target - 1e-9) if load < math.inf else math.inf

    def _measure(self, end: float) -> None:
        for one in self._requests:
            count = one.new()
            if one.kind is not None:
                self._arrived(one.kind, count * one.each, count, one.queue.service.name)
        for series in (*self.loads.values(), *self.peaks.values()):
            series.measure(end)
        for kind, series in self.peaks.items():
            self.kept[kind] = math.ceil(series.peak / self.target - 1e-9)
        self._tell()

    def _tell(self) -> None:
        every = [*self.loads.values(), *self.peaks.values()]
        fallbacks = sum(series.fallbacks for series in every) / max(1, sum(series.forecasts for series in every))
        self.notes = {**self.base.notes, **error_notes("forecast", self.score.error, fallback=fallbacks)}

    def _want(self, view: View) -> None:
        waiting = waiting_work(view, self._requests)
        stuck = bool(view.num_waiting(own=True)) and not any(
            view.load(device) for pool in self.pools.values() for device in pool.devices
        )
        for kind, pool in self.pools.items():
            series = self.loads[kind]
            pool.want(view.now, (series.demand + waiting.get(kind, 0.0) / series.lead) / self.target)
            if stuck and kind in waiting:
                pool.wanted = len(pool.devices)  # waiting tasks fit on none awake, and nothing will come free

    def _place(self, rule: PlacementRule | None, task: Task, view: View) -> Placement | None:
        placement = view.fit(task) if rule is None else rule(task, view)
        if placement is None or task.class_ in self.protected or self._leaves_room(placement.mode):
            return placement
        # Not there, then: perhaps on fewer devices, on another type or on cores.
        placement = ViewWithRoom(view, self._leaves_room).fit(task, rule)
        if placement is None and task.index not in self._held:
            self._held[task.index] = None
            self._declined[task.index] = task
        return placement

    def _leaves_room(self, mode: Mode) -> bool:
        if mode.on_cpu:
            return True
        occupied = sum(share for other, share in self._others.values() if other is mode.type)
        return mode.gpu_share <= self.pools[mode.type].awake - self.kept[mode.type] - occupied + 1e-9

    def _hold(self, start: Start) -> None:
        tasks = [start.tasks] if isinstance(start.tasks, Task) else start.tasks
        mode = start.placement.mode
        if isinstance(tasks, Sequence) and not mode.on_cpu:
            for task in tasks:
                if task.class_ not in self.protected:
                    self._others[task.index] = mode.type, mode.gpu_share / len(tasks)

    def _forget(self, task: Task, stopped: bool = False) -> None:
        """Remove a task that stopped or ended; a stopped one is not counted twice as work."""
        self._others.pop(task.index, None)
        self._held.pop(task.index, None)
        if not stopped:
            self._came.pop(task.index, None)


class ViewWithRoom(PartView):
    """View in which a mode that would use room reserved for expected tasks never fits."""

    def __init__(self, view: View, leaves_room: Callable[[Mode], bool]):
        super().__init__(view, None, view.cluster.types.values())
        self._leaves_room = leaves_room

    def has(self, mode: Mode) -> bool:
        return self._leaves_room(mode)


# Awake devices as in Kubernetes' Horizontal Pod Autoscaling: load / target utilization, rounded up.  Devices are woken
# immediately, but put to sleep only if no number within the stabilization window was larger.  Only idle devices sleep,
# the last ones first.


AWAKE, WAKING, ASLEEP, DOWN = "awake", "waking", "asleep", "down"
LARGEST = 64  # maximum batch size assumed if the mode has no limit


class DevicePool:
    """The devices of one type.

    min_awake: minimum number of awake devices; stabilization: seconds over which the maximum of the wanted numbers is
        used.
    """

    def __init__(self, kind: DeviceType, devices: Sequence[Device], min_awake: int, stabilization: float):
        self.kind = kind
        self.devices = list(devices)
        self.min_awake = min_awake
        self.stabilization = stabilization
        self.state = {device.index: AWAKE for device in devices}
        self.wanted = len(devices)
        # (time, wanted number), monotone so that the first is the maximum within the window
        self._wants: deque[tuple[float, int]] = deque()

    def want(self, now: float, number: float) -> None:
        """Record that `number` devices are needed now.

        `wanted` becomes the maximum of these numbers over the last `stabilization` seconds.
        """
        wanted = max(self.min_awake, math.ceil(number - 1e-9))
        while self._wants and self._wants[-1][1] <= wanted:
            self._wants.pop()
        self._wants.append((now, wanted))
        while self._wants[0][0] < now - self.stabilization:
            self._wants.popleft()
        self.wanted = min(len(self.devices), self._wants[0][1])

    @property
    def awake(self) -> int:
        return sum(state == AWAKE for state in self.state.values())

    def changed(self, device: Device, up: bool) -> None:
        """Hook `device`: record that a device is up (awake or repaired) or down (failed)."""
        state = self.state.get(device.index)
        if state in (AWAKE, DOWN):
            self.state[device.index] = AWAKE if up else DOWN
        elif state == WAKING and up:
            self.state[device.index] = AWAKE

    def steer(self, view: View) -> Iterator[Decision]:
        state = self.state
        if (surplus := sum(one in (AWAKE, WAKING) for one in state.values()) - self.wanted) < 0:
            for device in self.devices:
                if surplus < 0 and state[device.index] == ASLEEP:
                    state[device.index] = WAKING if self.kind.power.wake > 0 else AWAKE
                    surplus += 1
                    yield Set(device, "wake")
            return
        for unwanted in (WAKING, AWAKE):
            for device in reversed(self.devices):
                if surplus > 0 and state[device.index] == unwanted and view.load(device) == 0:
                    state[device.index] = ASLEEP
                    surplus -= 1
                    yield Set(device, "off")


# Demand for accelerator time.  A task counts its GPUs × its estimate in the fastest accelerator mode; a request its
# share of the largest batch that takes at most half of the time limit, on the type where this is least.


def asked_of(task: Task) -> tuple[DeviceType, float] | None:
    """Return a task's best accelerator type and device-seconds; None if CPU-only."""
    mode = next((mode for mode in task.fastest_modes() if not mode.on_cpu), None)
    return None if mode is None else (mode.type, mode.gpu_share * task.estimate_in(mode))


class ServiceDemand:
    """Requests of one service: device type to serve them, device-seconds per request."""

    def __init__(self, counter: Counter, view: View):
        self.queue = queue = counter.queue
        self.counted = 0
        self.kind: DeviceType | None = None
        self.each = 0.0
        choices = [
            (each, mode) for mode in queue.service.shape.modes
            if not mode.on_cpu and (each := _cost(queue, mode, view)) < math.inf
        ]  # fmt: skip
        if choices:
            self.each, mode = min(choices, key=lambda choice: choice[0])
            self.kind = mode.type

    def new(self) -> int:
        """Number of requests that have arrived since the last call."""
        before, self.counted = self.counted, self.queue.arrived
        return self.counted - before


def _cost(queue: RequestQueue, mode: Mode, view: View) -> float:
    """Minimum device-seconds per request of batches that take at most half of the SLO."""
    devices = [device for device in view.cluster.devices if device.type is mode.type and device.local >= 0]
    if len(devices) < mode.gpus:
        return math.inf
    placement = Placement(mode, tuple(devices[: mode.gpus]))
    best = math.inf
    for size in range(1, min(mode.batch_limit, LARGEST) + 1):
        stages = queue.stages(size, placement)
        if size > 1 and stages.total > queue.service.slo / 2:
            break
        # With several launches in flight transfers overlap with computing.
        busy = stages.total if mode.type.streams == 1 else max(stages)
        best = min(best, mode.gpu_share * busy / size)
    return best


def waiting_work(view: View, requests: Sequence[ServiceDemand]) -> dict[DeviceType, float]:
    """Device-seconds of waiting requests and tasks by device type; O(waiting tasks)."""
    work: dict[DeviceType, float] = {}
    for one in requests:
        if one.kind is not None:
            work[one.kind] = work.get(one.kind, 0.0) + one.each * len(one.queue)
    for task in view.waiting(own=True):
        asked = asked_of(task) if view.queue_of(task) is None else None
        if asked is not None:
            work[asked[0]] = work.get(asked[0], 0.0) + asked[1] * (1 - task.done)
    return work
