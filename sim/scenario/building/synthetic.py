"""Synthetic streams: arrivals, classes and sizes are drawn, each from random streams of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from sim.errors import ScenarioError
from sim.model.cluster import Cluster, DeviceType, Node, NodeSpec, Partition
from sim.model.exchange import Exchange, Phase, StepPipeline
from sim.model.tasks import KernelWork as Known
from sim.model.tasks import Mode
from sim.scenario.building.language_model import ServedLanguage
from sim.scenario.building.modes import ModeBook
from sim.scenario.building.pipeline import pipeline_stream
from sim.scenario.building.served import DrawnService
from sim.scenario.building.site import drawn_partition, limits_of
from sim.scenario.building.streams import (
    Context,
    TaskStream,
    closed_rows,
    draw_codes,
    estimate_error,
    one_lane,
    peak_of,
    relative_deadline,
    stopping_of,
    unfit,
    users_of,
)
from sim.scenario.fields import KeyProblem
from sim.scenario.file.document import Path_
from sim.scenario.schema.demand import GPU_TIME, Demand, Speedup, TaskMode, demanded_share, profile_use, span_speeds
from sim.scenario.schema.language_model import LanguageModel
from sim.scenario.schema.training import TrainingSpec
from sim.scenario.schema.workload import MAX_TASKS, WorkloadEntry
from sim.theory import training as formulas
from sim.workload.arrivals import BLOCK
from sim.workload.costs.profiles import ProfileUse
from sim.workload.costs.roofline import Peak, Work
from sim.workload.distributions import drawn_steps

T = TypeVar("T")
Seconds = Callable[[Peak, float], np.ndarray]
"""Times of the tasks from the peak of a device and the share of it."""

PROBE = 1000
"""Tasks drawn, from a stream of their own, to know the mean time of a closed loop's tasks beforehand."""
FOR_MEANS = 20_000
"""The same, to know the mean of a class of which policies know only that."""


def build_synthetic(entry: WorkloadEntry, name: str, path: Path_, context: Context) -> TaskStream:
    """The stream of an entry with `arrivals`."""
    arrival, clients = _arrivals(entry, name, path, context)
    if entry.pipeline is not None:
        return pipeline_stream(entry, name, path, arrival, context)
    n = len(arrival)
    classes = entry.whole_demands
    labels = [one.class_ or name for one in classes]
    where = [(*path, "classes", k) if entry.classes else path for k in range(len(classes))]
    codes = None
    if entry.classes:
        weights = np.array([one.weight for one in entry.classes])
        codes = draw_codes(weights, n, context.random.stream("classes", name))
    _note_unused_types(name, classes, context)
    served = _served(entry, name, path, context)
    problems = []
    drawn: list[tuple[np.ndarray | slice, _Drawn]] = []
    for k, demand in enumerate(classes):
        rows: np.ndarray | slice = slice(None) if codes is None else np.flatnonzero(codes == k)
        count = n if isinstance(rows, slice) else len(rows)
        label = (name, str(k), demand.class_ or "") if entry.classes else (name,)
        one = _draw(demand, count, label, context, served, where[k])
        if not one.modes:
            types = [key.removeprefix(GPU_TIME) for key in demand.typed_gpu_time]
            problems.append(unfit(context, where[k], count, f"a task of {labels[k]}", one.refused, types))
        drawn.append((rows, one))
    if problems:
        raise ScenarioError(problems)
    stream = _assemble(drawn, name, path, arrival)
    if served is not None:
        served.finish(stream, entry)
    stream.class_code, stream.classes = codes, labels
    stream.user_code, stream.users = _users(entry, classes, codes, n, context, name)
    if entry.weight is not None:
        stream.weight = np.full(n, entry.weight)
    if clients:
        arrivals: Any = entry.arrivals
        stream.clients, stream.think = clients, arrivals.think.sample
    return stream


def _note_unused_types(name: str, classes: list[Demand], context: Context) -> None:
    """Note the types of devices that the classes name and the cluster lacks."""
    context.note_unused(name, dict.fromkeys(key for one in classes for key in one.typed_gpu_time))
    for kind in dict.fromkeys(kind for one in classes for kind in one.devices or ()):
        context.note_missing(name, f"devices: {kind}", kind)


def _served(entry: WorkloadEntry, name: str, path: Path_, context: Context) -> DrawnService | ServedLanguage | None:
    """What serves the requests of an entry, if they are requests."""
    if entry.service is None:
        return None
    if isinstance(entry.service, LanguageModel):
        return ServedLanguage(entry.service, name, path, context)
    return DrawnService(entry.service, name, path, context)


def _arrivals(entry: WorkloadEntry, name: str, path: Path_, context: Context) -> tuple[np.ndarray, int]:
    """Arrival times, inf where a closed loop decides later, and the number of its clients (0: not closed)."""
    arrivals: Any = entry.arrivals
    until = min(context.horizon, math.inf if entry.until is None else entry.until)
    limited = entry.count is not None or math.isfinite(until)
    if not limited and (arrivals.endless or arrivals.closed):
        what = "a closed loop never ends" if arrivals.closed else f"{arrivals.process} arrivals never end"
        raise context.fail(path, f"{what}; give count or until here, or a horizon")
    rng = context.random.stream("arrivals", name)
    limit = until if math.isfinite(until) else None
    if not arrivals.closed:
        _check_amount(arrivals, until, entry.count, path, context)
    if not arrivals.closed:
        return arrivals.times(rng, limit, entry.count), 0
    probe = _probe(entry, name, context) if entry.count is None else 0.0
    try:
        rows = closed_rows(entry, until, probe)
    except ValueError as error:
        raise context.fail(path, str(error)) from None
    if rows > MAX_TASKS:
        raise context.fail(path, f"the loop may send {rows:.3g} tasks, more than the {MAX_TASKS:,} of a stream")
    first = arrivals.times(rng, None, min(rows, arrivals.clients))
    return np.concatenate([first, np.full(rows - len(first), np.inf)]), min(arrivals.clients, rows)


def _check_amount(arrivals: Any, until: float, count: int | None, path: Path_, context: Context) -> None:
    """Refuse what would take hours to draw, before it is drawn."""
    rate = arrivals.rate_mean
    # A block at least is drawn whatever the count.
    lasts = until if count is None or not rate else min(until, max(count, BLOCK) / rate)
    events = arrivals.events(lasts)
    if count is None and events > MAX_TASKS:
        raise context.fail(path, f"about {events:.3g} tasks arrive, more than the {MAX_TASKS:,} of a stream")
    if events > 2 * MAX_TASKS:
        raise context.fail(path, f"the arrivals change about {events:.3g} times until then, too often to follow")


def _probe(entry: WorkloadEntry, name: str, context: Context) -> float:
    """Mean time of a task in its fastest mode, from a sample."""
    total = weights = 0.0
    weighted: list[tuple[Demand, float]] = [(one.over(entry), one.weight) for one in entry.classes or []]
    for k, (demand, weight) in enumerate(weighted or [(entry, 1.0)]):
        served = _served(entry, name, (), context)
        drawn = _draw(demand, PROBE, ("probe", name, str(k)), context, served)
        if drawn.modes:
            total += weight * float(drawn.time.min(axis=1).mean())
            weights += weight
    return total / weights if weights else 0.0


@dataclass
class _Drawn:
    """The tasks of one class: modes that fit, their times, and what else was drawn."""

    modes: list[Mode]
    refused: list[Mode]
    time: np.ndarray
    known: np.ndarray
    """Times of which policies know, but for an error: their own, or the mean of the class."""
    demand: Demand
    shape: int
    error: np.ndarray | None
    bytes_in: np.ndarray | None
    bytes_out: np.ndarray | None
    patience: np.ndarray | None
    extra: dict[str, np.ndarray]
    partition: Partition | None
    work: Mapping[Mode, Work]


def _draw(
    demand: Demand, n: int, label: tuple[str, ...], context: Context,
    served: DrawnService | ServedLanguage | None = None,
    path: Path_ = (),
) -> _Drawn:  # fmt: skip
    stream = context.random.stream
    ways = _Ways(demand, n, label, context)
    ways.path = path
    if served is None:
        ways.partition = drawn_partition(demand, path, context)
        ways.expand()
    else:
        ways.found = served.ways(n, label, demand)
    fits = [(mode, times) for mode, times in ways.found if context.modes.fits(mode)]
    refused = [mode for mode, _ in ways.found if not context.modes.fits(mode)]
    modes = [mode for mode, _ in fits]
    stopping, preemptible = stopping_of(demand)
    time = stopping.with_checkpoints(np.column_stack([times for _, times in fits])) if fits else np.empty((n, 0))
    means = None
    if demand.estimates is not None and demand.estimates.known == "mean" and len(time):
        unknown = demand.model_copy(update={"estimates": None})
        means = _draw(unknown, FOR_MEANS, ("mean", *label), context, served, path).time.mean(axis=0)

    def drawn(key: str, distribution: Any) -> np.ndarray | None:
        return None if distribution is None else distribution.sample(stream(key, *label), n)

    bytes_in, bytes_out = drawn("bytes_in", demand.bytes_in), drawn("bytes_out", demand.bytes_out)
    return _Drawn(
        modes,
        refused,
        time,
        time if means is None else np.broadcast_to(means, time.shape),
        demand,
        context.modes.shape(modes, stopping, preemptible) if modes else -1,
        estimate_error(demand, n, stream("estimates", *label)),
        ways.bytes_in if bytes_in is None else np.rint(bytes_in),
        None if bytes_out is None else np.rint(bytes_out),
        drawn("patience", demand.patience),
        _labels(demand, n) if served is None else served.extra,
        ways.partition,
        ways.work,
    )


def _labels(demand: Demand, n: int) -> dict[str, np.ndarray]:
    """Texts that the tasks of a class carry."""
    texts = {"qos": demand.qos, "account": demand.account}
    return {key: np.full(n, text, dtype=object) for key, text in texts.items() if text is not None}


def _assemble(
    drawn: list[tuple[np.ndarray | slice, _Drawn]], name: str, path: Path_, arrival: np.ndarray
) -> TaskStream:
    """One stream from its classes."""
    n = len(arrival)
    if len(drawn) == 1 and isinstance(drawn[0][0], slice):
        time = drawn[0][1].time
    else:
        time = np.full((n, max(len(one.modes) for _, one in drawn)), np.inf)
        for rows, one in drawn:
            time[rows, : len(one.modes)] = one.time
    stream = TaskStream(name, path, arrival, np.empty(n, dtype=np.int32), time)
    for rows, one in drawn:
        stream.shape[rows] = one.shape
        _fill_estimate(stream, rows, one)
        fastest = one.time.min(axis=1)
        _fill(stream, "deadline", rows, relative_deadline(one.demand, fastest), np.nan)
        _fill(stream, "patience", rows, one.patience, np.inf)
        _fill(stream, "bytes_in", rows, one.bytes_in, 0.0)
        _fill(stream, "bytes_out", rows, one.bytes_out, 0.0)
        priority = one.demand.priority
        _fill(stream, "priority", rows, None if priority is None else np.full(len(fastest), priority), 0.0)
        limits = limits_of(one.demand, fastest)
        if limits is not None:
            stream.extra.setdefault("time_limit", np.full(n, np.nan))[rows] = limits
        if one.partition is not None:
            _bind(stream, rows, one.partition.name)
        for key, values in one.extra.items():
            empty = np.full(n, "", dtype=object) if values.dtype == object else np.zeros(n, values.dtype)
            stream.extra.setdefault(key, empty)[rows] = values
        _fill_work(stream, rows, one)
        _fill_data(stream, rows, one.demand)
    return stream


def _fill_estimate(stream: TaskStream, rows: np.ndarray | slice, drawn: _Drawn) -> None:
    """What policies know of the times of a class, where that is not the times themselves."""
    if drawn.error is None and drawn.known is drawn.time:
        return
    if stream.estimate is None:
        stream.estimate = stream.time.copy()
    stream.estimate[rows, : drawn.time.shape[1]] = drawn.known
    if drawn.error is not None:
        stream.estimate[rows] *= drawn.error[:, np.newaxis]


def _fill_work(stream: TaskStream, rows: np.ndarray | slice, drawn: _Drawn) -> None:
    """What the kernels of a class do, in the modes of which it is known."""
    for position, mode in enumerate(drawn.modes):
        peak = peak_of(mode.type) if mode in drawn.work and one_lane(mode) else None
        if peak is None:
            continue
        if stream.work is None:
            stream.work = Known.unknown(*stream.time.shape)
        for column, value in zip(stream.work.columns, drawn.work[mode].parts(peak), strict=True):
            column[rows, position] = value


def _fill_data(stream: TaskStream, rows: np.ndarray | slice, demand: Demand) -> None:
    """The data that the tasks of a class read and write."""
    for key in ("reads", "writes"):
        names = getattr(demand, key)
        if names:
            lists = getattr(stream, key) or [()] * len(stream)
            for row in np.arange(len(stream))[rows].tolist():
                lists[row] = tuple(names)
            setattr(stream, key, lists)


def _bind(stream: TaskStream, rows: np.ndarray | slice, partition: str) -> None:
    if partition not in stream.partitions:
        stream.partitions.append(partition)
    if stream.partition_code is None:
        stream.partition_code = np.zeros(len(stream), dtype=np.int32)
    stream.partition_code[rows] = stream.partitions.index(partition)


def _fill(stream: TaskStream, column: str, rows: np.ndarray | slice, values: np.ndarray | None, default: float) -> None:
    if values is None:
        return
    known = getattr(stream, column)
    if known is None:
        known = np.full(len(stream), default)
        setattr(stream, column, known)
    known[rows] = values


def _users(
    entry: WorkloadEntry, classes: list[Demand], codes: np.ndarray | None, n: int, context: Context, name: str
) -> tuple[np.ndarray | None, list[str]]:
    if codes is None or all(one.users is None and one.user is None for one in entry.classes or []):
        return users_of(entry, n, context.random.stream("users", name))
    merged: dict[str, int] = {}
    column = np.zeros(n, dtype=np.int32)
    for k, demand in enumerate(classes):
        rows = np.flatnonzero(codes == k)
        of_class, names = users_of(demand, len(rows), context.random.stream("users", name, str(k)))
        numbers = np.array([merged.setdefault(user, len(merged)) for user in names])
        column[rows] = numbers[0] if of_class is None else numbers[of_class]
    return column, list(merged)


class _Ways:
    """The ways to run the tasks of one class: modes and times, from any of the forms a scenario has."""

    def __init__(self, demand: Demand, n: int, label: tuple[str, ...], context: Context):
        self.demand = demand
        self.n = n
        self.label = label
        self.context = context
        self.book: ModeBook = context.modes
        self.found: list[tuple[Mode, np.ndarray]] = []
        self.work: dict[Mode, Work] = {}
        """What kernels do in modes of which that is known."""
        self.bytes_in: np.ndarray | None = None
        self.partition: Partition | None = None
        self.path: Path_ = ()

    def expand(self) -> None:
        demand = self.demand
        if demand.modes is not None:
            self._full_form(demand.modes)
        elif demand.profile is not None:
            self._profile(profile_use(demand))
        elif demand.work is not None:
            self._cost_model(self._work_time(demand.work), None)
        elif demand.training is not None:
            self._training(demand.training)
        if demand.modes is None:
            self._short_form()

    def _sample(self, key: str, distribution: Any) -> np.ndarray:
        return np.asarray(distribution.sample(self.context.random.stream("sizes", *self.label, key), self.n))

    def _short_form(self) -> None:
        demand = self.demand
        reference = None if demand.gpu_time is None else self._sample("gpu_time", demand.gpu_time)
        typed = {key.removeprefix(GPU_TIME): self._sample(key, d) for key, d in demand.typed_gpu_time.items()}
        on_cores = self._time_on_cores(reference if reference is not None else next(iter(typed.values()), None))
        if on_cores is not None:
            ways = [self._cpu_mode(device, on_cores / device.speed) for device in self._of("cpu")]
            self.found = ways + [way for way in self.found if not way[0].on_cpu]
        own = {device.name: times for kind, times in typed.items() for device in self._of(kind)}
        self.found = [way for way in self.found if way[0].type.name not in own]
        if reference is not None:
            taken = {mode.type.name for mode, _ in self.found if not mode.on_cpu}
            generic = {d.name: reference / d.speed for d in self._of("gpu") if d.name not in taken}
            own = {**generic, **own}
        for device in self.context.cluster.types.values():
            if device.name in own and device.kind != "cpu":
                self._gpu_modes(device, own[device.name])

    def _time_on_cores(self, reference: np.ndarray | None) -> np.ndarray | None:
        """The times of `cpu_time`; a speedup is relative to `reference`, or else to the fastest mode found so far."""
        given = self.demand.cpu_time
        if given is None:
            return None
        if not isinstance(given, Speedup):
            return self._sample("cpu_time", given)
        if reference is None and self.found:
            reference = np.min([times for _, times in self.found], axis=0)
        return None if reference is None else reference * given.speedup

    def _of(self, kind: str) -> list[DeviceType]:
        return self.book.of_kind(kind)

    def _cpu_mode(self, device: DeviceType, times: np.ndarray) -> tuple[Mode, np.ndarray]:
        memory = self.demand.memory or 0
        mode = self.book.mode(
            device,
            cpus=self.demand.cpus,
            memory=memory,
            span_any=self.demand.span == "any",
            span_speed=self.demand.span_speed or 1.0,
            span_speeds=span_speeds(self.demand),
            partition=self.partition,
            nodes=self.demand.nodes or 1,
            exchange=(exchange := self._exchange(device, 1)),
        )
        return mode, times * _stretch(exchange)

    def _exchange(self, device: DeviceType, each: int) -> Exchange | None:
        """What communication makes of a step, with this number of ranks on each node: over the slowest links."""
        communication = self.demand.communication
        if communication is None:
            return None
        cluster, nodes = self.context.cluster, self.demand.nodes or 1
        of = (n for n in cluster.nodes if device in (n.cpu.type, *(d.type for d in n.accelerators)))
        beyond = pcie_of(device)
        found = [
            exchange_over(cluster, spec, nodes, communication.every, 0.0,
                          [communication.phase(nodes, each, spec, beyond)], largest=communication.largest)
            for spec in _kinds(of)
        ]
        return max(found, key=lambda one: one.nominal, default=None)

    def _gpu_modes(
        self, device: DeviceType, times: np.ndarray, gpu_memory: int = 0, gpus: float | None = None,
        exchange: Exchange | None = None, nodes: int | None = None,
    ) -> None:  # fmt: skip
        """The mode on a type, or those of `scaling`, with times for one GPU."""
        demand = self.demand
        counts = {"": 1.0} if demand.scaling is None else demand.scaling
        stretch = 1.0
        if demand.communication is not None:
            exchange = self._exchange(device, max(1, round(gpus or demand.gpus or 1.0)))
            stretch = _stretch(exchange)
        for count, speedup in counts.items():
            mode = self.book.mode(
                device,
                gpus=float(count) if count else gpus or demand.gpus or 1.0,
                cpus=demand.cpus,
                memory=demand.memory or 0,
                gpu_memory=gpu_memory if demand.gpu_memory is None else demand.gpu_memory,
                span_any=demand.span == "any",
                span_speed=demand.span_speed or 1.0,
                span_speeds=span_speeds(demand),
                upload=demand.upload or 0.0,
                download=demand.download or 0.0,
                partition=self.partition,
                nodes=nodes or demand.nodes or 1,
                exchange=exchange,
            )
            self.found.append((mode, times / speedup * stretch))

    def _full_form(self, modes: list[TaskMode]) -> None:
        demand = self.demand
        reference: np.ndarray | None = None
        for number, way in enumerate(modes):
            gpus = way.gpus or demanded_share(way.work) or demand.gpus or 1.0
            cpus = _given(way.cpus, demand.cpus)
            if way.time is None:
                drawn, timed = None, self._computed(way, gpus, cpus or 1.0)
            else:
                drawn = self._drawn(number, way.time, reference)
                timed = [] if drawn is None else self._scaled(way.device, drawn)
            if reference is None:
                reference = drawn if drawn is not None or not timed else np.min([times for _, times in timed], axis=0)
            for device, times in timed:
                mode = self._listed_mode(way, device, gpus, cpus)
                self.found.append((mode, times))
                if way.work is not None:
                    self.work[mode] = way.work

    def _listed_mode(self, way: TaskMode, device: DeviceType, gpus: float, cpus: float | None) -> Mode:
        """A mode of `modes:` on a type of device; what it does not say itself is as the task says."""
        demand = self.demand
        return self.book.mode(
            device,
            gpus=gpus,
            cpus=cpus,
            memory=_given(way.memory, demand.memory) or 0,
            gpu_memory=self._gpu_memory(way),
            span_any=(way.span or demand.span) == "any",
            span_speed=way.span_speed or demand.span_speed or 1.0,
            span_speeds=span_speeds(way, demand),
            upload=_given(way.upload, demand.upload) or 0.0,
            download=_given(way.download, demand.download) or 0.0,
            name=way.name,
            partition=self.partition,
            nodes=way.nodes or (1 if way.span is not None else demand.nodes) or 1,
        )

    def _drawn(self, number: int, time: Any, reference: np.ndarray | None) -> np.ndarray | None:
        """The times of a mode that says them; None for a speedup of a mode that has none on this cluster."""
        if isinstance(time, Speedup):
            return None if reference is None else reference * time.speedup
        return self._sample(f"modes.{number}", time)

    def _scaled(self, kind: str, drawn: np.ndarray) -> list[tuple[DeviceType, np.ndarray]]:
        """Times on each type of a kind, by its speed; on a named type as they are."""
        return [(one, drawn / one.speed if kind == one.kind and kind != one.name else drawn) for one in self._of(kind)]

    def _computed(self, way: TaskMode, gpus: float, cores: float) -> list[tuple[DeviceType, np.ndarray]]:
        """The times of a mode with known work, on each type of its device with a known peak."""
        seconds = self._work_time(way.work) if way.work else self._profile_time(profile_use(way, self.demand))
        devices = self._of(way.device)
        timed = [(one, peak) for one in devices if (peak := peak_of(one)) is not None]
        if devices and not timed:
            names = ", ".join(one.name for one in devices)
            raise ValueError(f"nothing is known of how fast {names} is; give it a peak under cluster")
        return [(one, _on(one, peak, seconds, gpus, cores)) for one, peak in timed]

    def _gpu_memory(self, way: TaskMode) -> int:
        given = self.demand.gpu_memory if way.gpu_memory is None else way.gpu_memory
        if given is None and way.profile is not None:
            return profile_use(way, self.demand).gpu_memory
        return given or 0

    def _work_time(self, work: Work) -> Seconds:
        return lambda peak, share: np.full(self.n, work.seconds(peak, share))

    def _profile_time(self, use: ProfileUse) -> Seconds:
        # The same draws for all modes: how many steps there are does not depend on where they are made.
        steps = drawn_steps(self._sample("steps", use.steps))
        if self.bytes_in is None:
            self.bytes_in = steps * use.input_bytes
        return lambda peak, share: steps * use.seconds_per_step(peak, share)

    def _profile(self, use: ProfileUse) -> None:
        self._cost_model(self._profile_time(use), use.gpu_memory)

    def _training(self, training: TrainingSpec) -> None:
        """A mode for each width on every type of GPU with a known peak and enough memory."""
        where = (*self.path, "training")
        steps = drawn_steps(self._sample("training.steps", training.steps))
        refused: list[str] = []
        for nodes in training.widths or [self.demand.nodes or 1]:
            wide = f" (on {nodes} node{'s' * (nodes > 1)})" if training.widths else ""
            try:
                plan = training.plan(nodes * round(self.demand.gpus or 1))
            except KeyProblem as problem:
                raise self.context.fail((*where, problem.key), f"{problem}{wide}") from None
            refused += [f"{why}{wide}" for why in self._trained(training, plan, nodes, steps)]
        if self.found:
            return
        if refused:
            raise self.context.fail(where, "; ".join(dict.fromkeys(refused)))
        there = [one.name for one in self.context.cluster.types.values() if one.kind != "cpu"]
        if self.demand.devices is not None and there:
            wanted = " or ".join(self.demand.devices)
            text = f"the cluster has no accelerator {wanted}; there are {', '.join(there)}"
            raise self.context.fail((*self.path, "devices"), text)
        raise self.context.fail(where, "the cluster has no GPUs, on which training runs")

    def _trained(self, training: TrainingSpec, plan: formulas.ParallelPlan, nodes: int, steps: np.ndarray) -> list[str]:
        """Find the modes of one width; returns why GPUs with too little memory are left out."""
        demand, gpus = self.demand, round(self.demand.gpus or 1)
        model = training.transformer()
        state, kept = formulas.memory(model, plan)
        refused = []
        for device in self.context.cluster.types.values():
            peak = peak_of(device)
            wanted = demand.devices is None or device.name in demand.devices or device.kind in demand.devices
            specs = _kinds(n for n in self.context.cluster.nodes if any(d.type is device for d in n.accelerators))
            if not wanted or device.kind == "cpu" or not specs:
                continue
            if peak is None:
                refused.append(f"nothing is known of how fast {device.name} is; give it a peak under cluster")
                continue
            if device.memory is not None and state + kept > device.memory:
                refused.append(too_large(state, kept, device.memory, device.name))
                continue
            exchange = max(
                (_step(self.context.cluster, spec, nodes, model, plan, machine_of(spec, gpus, device, peak, training))
                 for spec in specs), key=lambda one: one.nominal)  # fmt: skip
            slowest = exchange.nominal
            narrowest = min(spec.island_size or gpus for spec in specs)
            if plan.tensor > min(gpus, narrowest):
                text = f"tensor {plan.tensor} is more than the {min(gpus, narrowest)} GPUs that NVLink joins"
                inside = plan.tensor <= gpus  # from island to island of one node
                rates = [pcie_of(device)] if inside else [min(s.network.upload, s.network.download) for s in specs]
                free = f"; {'pcie' if inside else 'network'} has no rate, so that the way beyond takes no time"
                told = f"a step takes {slowest:.4g} s{free if max(rates) == math.inf else ''}"
                self.context.warnings.append(f"{self.label[0]}: {text}: {told}")
            held = math.ceil(state + kept) if device.memory is not None else 0
            self._gpu_modes(device, steps * slowest, held, exchange=exchange, nodes=nodes)
        return refused

    def _cost_model(self, seconds: Seconds, gpu_memory: int | None) -> None:
        """A mode on every type with a known peak (of a CPU: a stated one), or those of them in `devices`."""
        demand = self.demand
        gpus, cores = demanded_share(demand.work) or demand.gpus or 1.0, demand.cpus or 1.0
        for device in self.context.cluster.types.values():
            peak = peak_of(device)
            wanted = demand.devices is None or device.name in demand.devices or device.kind in demand.devices
            if peak is None or not wanted or not self._of(device.name):
                continue
            times = _on(device, peak, seconds, gpus, cores)
            before = len(self.found)
            if device.kind == "cpu":
                self.found.append(self._cpu_mode(device, times))
            else:
                self._gpu_modes(device, times, gpu_memory or 0, gpus)
            if demand.work is not None:
                self.work.update((mode, demand.work) for mode, _ in self.found[before:])


GIB = 2**30


def too_large(state: float, kept: float, room: float, device: str) -> str:
    """Why a plan does not fit, with all figures; sum and memory in GB too, as scenarios and tables have them."""
    parts = f"{state / GIB:.4g} GiB of weights and their states and {kept / GIB:.4g} GiB of activations"
    whole = f"{(state + kept) / 1e9:.4g} GB"
    return f"{parts} ({whole}) are more than the {room / GIB:.4g} GiB ({room / 1e9:.4g} GB) of one {device}"


def _given(own: T | None, default: T | None) -> T | None:
    return default if own is None else own


def _kinds(nodes: Iterable[Node]) -> list[NodeSpec]:
    """One of each kind of these nodes."""
    alike = {id(node.spec): node.spec for node in nodes}.values()
    return list({replace(s, name=None, rack=None, first=None, count=1, partitions=()): s for s in alike}.values())


def pcie_of(device: DeviceType) -> float:
    """Bytes per second from a GPU to another one that NVLink does not join to it."""
    return min(device.link.upload, device.link.download)


def machine_of(
    spec: NodeSpec, gpus: int, device: DeviceType, peak: Peak, training: TrainingSpec
) -> formulas.TrainingMachine:
    """What this number of GPUs of each node computes and sends."""
    return formulas.TrainingMachine(
        flops=peak.flops,
        bandwidth=peak.bandwidth,
        each=gpus,
        inside=spec.nvlink.curve or spec.nvlink.upload,
        card=min(spec.network.upload, spec.network.download) / spec.cards,
        cards=spec.cards,
        latency_inside=spec.nvlink.latency,
        latency=spec.network.latency,
        efficiency=training.efficiency,
        passes=training.passes,
        network=spec.network.curve,
        island=spec.island_size,
        beyond=pcie_of(device),
    )


def _step(
    cluster: Cluster, spec: NodeSpec, nodes: int, model: formulas.Transformer, plan: formulas.ParallelPlan,
    machine: formulas.TrainingMachine,
) -> Exchange:  # fmt: skip
    """A step of training on nodes of this kind."""
    step = formulas.step(model, plan, machine)
    phases = list(formulas.phases(model, plan, machine).values())
    flops = model.flops(plan.batch, "none") / plan.gpus / machine.flops
    pipeline = formulas.step_pipeline(model, plan, machine)
    compute = step.compute + step.update
    return exchange_over(cluster, spec, nodes, compute, step.filling, phases, flops, model.largest, pipeline)


def exchange_over(
    cluster: Cluster, spec: NodeSpec, nodes: int, compute: float, filling: float, phases: list[Phase],
    at_peak: float = math.nan, largest: float = 1.0, pipeline: StepPipeline | None = None,
) -> Exchange:  # fmt: skip
    """A step; its nominal seconds are those on nodes of this kind that are joined without a rack's uplink."""
    card = min(spec.network.upload, spec.network.download) / spec.cards
    seconds = compute + filling
    for phase in phases:
        over = phase.bytes / (card * min(phase.cards, spec.cards)) if nodes > 1 else 0.0
        seconds += (1 + phase.waits) * max(0.0, phase.fixed + over - phase.hidden)
    return Exchange(cluster, compute, filling, tuple(phases), seconds, at_peak, largest, pipeline)


def _stretch(exchange: Exchange | None) -> float:
    """How many times as long as its computing a job with this communication takes."""
    return 1.0 if exchange is None else exchange.nominal / exchange.compute


def _on(device: DeviceType, peak: Peak, seconds: Seconds, gpus: float, cores: float) -> np.ndarray:
    """Times on a share of a GPU, a gang of GPUs or a number of cores; a gang divides the work evenly."""
    if device.kind == "cpu":
        wide = peak.model_copy(update={"flops": peak.flops * cores, "bandwidth": peak.bandwidth * cores})
        return seconds(wide, 1.0)
    return seconds(peak, min(gpus, 1.0)) / max(gpus, 1.0)
