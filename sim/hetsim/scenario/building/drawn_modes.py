"""Modes of tasks with random times (task classes) or computed times (training)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.formulas import training as formulas
from hetsim.model.cluster import Cluster, Node, NodeSpec, Partition
from hetsim.model.device_type import DeviceType
from hetsim.model.exchange import Exchange, Phase, StepPipeline
from hetsim.model.mode import Mode
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.building.streams import Context, peak_of
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import GPU_TIME, Demand, Speedup, TaskMode, demanded_share, profile_use
from hetsim.scenario.schema.training import TrainingSpec
from hetsim.workload.costs.profiles import ProfileUse
from hetsim.workload.costs.roofline import Peak, Work
from hetsim.workload.distributions import drawn_steps

GIB = 2**30


def too_large(state: float, kept: float, room: float, device: str) -> str:
    """Return the error text for weights and activations that exceed a device's memory."""
    parts = f"{state / GIB:.4g} GiB of weights and their states and {kept / GIB:.4g} GiB of activations"
    total = f"{(state + kept) / 1e9:.4g} GB"
    return f"{parts} ({total}) exceed the {room / GIB:.4g} GiB ({room / 1e9:.4g} GB) of one {device}"


def kinds_of(nodes: Iterable[Node]) -> list[NodeSpec]:
    alike = {id(node.spec): node.spec for node in nodes}.values()
    return list({replace(s, name=None, rack=None, first=None, count=1, partitions=()): s for s in alike}.values())


def pcie_of(device: DeviceType) -> float:
    """Return the bytes per second between GPUs that communicate over PCIe."""
    return min(device.link.upload, device.link.download)


def machine_of(
    spec: NodeSpec, gpus: int, device: DeviceType, peak: Peak, training: TrainingSpec
) -> formulas.TrainingMachine:
    """Return the rates for training on `gpus` GPUs of each node."""
    return formulas.TrainingMachine(
        flops=peak.flops, bandwidth=peak.bandwidth, each=gpus, inside=spec.nvlink.curve or spec.nvlink.upload,
        card=min(spec.network.upload, spec.network.download) / spec.cards, cards=spec.cards,
        latency_inside=spec.nvlink.latency, latency=spec.network.latency, efficiency=training.efficiency,
        passes=training.passes, network=spec.network.curve, island=spec.island_size, beyond=pcie_of(device),
    )  # fmt: skip


def training_step(
    cluster: Cluster, spec: NodeSpec, nodes: int, model: formulas.Transformer, plan: formulas.ParallelPlan,
    machine: formulas.TrainingMachine,
) -> Exchange:  # fmt: skip
    """Return a training step, computing and communication, on `nodes` nodes of a kind."""
    step = formulas.step(model, plan, machine)
    phases = list(formulas.phases(model, plan, machine).values())
    flops = model.flops(plan.batch, "none") / plan.gpus / machine.flops
    pipeline = formulas.step_pipeline(model, plan, machine)
    compute = step.compute + step.update
    return exchange_over(
        cluster, spec, nodes, compute=compute, filling=step.filling, phases=phases, at_peak=flops,
        largest=model.largest, pipeline=pipeline
    )


def exchange_over(
    cluster: Cluster, spec: NodeSpec, nodes: int, compute: float, filling: float, phases: list[Phase],
    at_peak: float = math.nan, largest: float = 1.0, pipeline: StepPipeline | None = None,
) -> Exchange:  # fmt: skip
    """Return a training step with communication; nominal time without rack uplinks."""
    card = min(spec.network.upload, spec.network.download) / spec.cards
    seconds = compute + filling
    for phase in phases:
        seconds += (1 + phase.waits) * max(0.0, phase.fixed + phase.over(card, spec.cards) - phase.hidden)
    return Exchange(
        cluster, compute, filling, phases=tuple(phases), nominal=seconds, at_peak=at_peak, largest=largest,
        pipeline=pipeline
    )


def stretch_of(exchange: Exchange | None) -> float:
    """Return step time with communication / compute time; 1 without communication."""
    return 1.0 if exchange is None else exchange.nominal / exchange.compute


# Function from a device's peak and a share of the device to the times of the tasks.
Seconds = Callable[[Peak, float], np.ndarray]


class DrawnModes:
    """Builder of the modes (ways to run) of a class of tasks, with each task's times."""

    def __init__(self, demand: Demand, n: int, label: tuple[str, ...], context: Context):
        self.demand = demand
        self.n = n
        self.label = label
        self.context = context
        self.book: ModeBook = context.modes
        self.found: list[tuple[Mode, np.ndarray]] = []
        self.work: dict[Mode, Work] = {}  # what kernels do in modes of which that is known
        self.bytes_in: np.ndarray | None = None
        self.partition: Partition | None = None
        self.path: Path_ = ()

    def expand(self) -> None:
        demand = self.demand
        if demand.modes is not None:
            self._full_form(demand.modes)
        elif demand.profile is not None:
            use = profile_use(demand)
            self._cost_model(self._profile_time(use), use.gpu_memory)
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
        if (given := self.demand.cpu_time) is None:
            return None
        if not isinstance(given, Speedup):
            return self._sample("cpu_time", given)
        if reference is None and self.found:
            reference = np.min([times for _, times in self.found], axis=0)
        return None if reference is None else reference * given.speedup

    def _of(self, kind: str) -> list[DeviceType]:
        return self.book.of_kind(kind)

    def _cpu_mode(self, device: DeviceType, times: np.ndarray) -> tuple[Mode, np.ndarray]:
        exchange = self._exchange(device, 1)
        mode = self.book.mode(device, self.demand, partition=self.partition, exchange=exchange)
        return mode, times * stretch_of(exchange)

    def _exchange(self, device: DeviceType, each: int) -> Exchange | None:
        """Return a step's communication on the slowest kind of node, or None without any."""
        if (communication := self.demand.communication) is None:
            return None
        cluster, nodes = self.context.cluster, self.demand.used("nodes")
        nodes_with_device = (n for n in cluster.nodes if device in (n.cpu.type, *(d.type for d in n.accelerators)))
        beyond = pcie_of(device)
        exchanges = [
            exchange_over(
                cluster, spec, nodes, compute=communication.every, filling=0.0,
                phases=[communication.phase(nodes, each, spec, beyond)], largest=communication.largest,
            )  # fmt: skip
            for spec in kinds_of(nodes_with_device)
        ]
        return max(exchanges, key=lambda one: one.nominal, default=None)

    def _gpu_modes(
        self, device: DeviceType, times: np.ndarray, gpu_memory: int = 0, gpus: float | None = None,
        exchange: Exchange | None = None, nodes: int | None = None,
    ) -> None:  # fmt: skip
        """Add a GPU mode per count in `scaling` (or one); `times`: seconds at speedup 1."""
        demand = self.demand
        counts = {"": 1.0} if demand.scaling is None else demand.scaling
        stretch = 1.0
        if demand.communication is not None:
            exchange = self._exchange(device, max(1, round(gpus or demand.used("gpus"))))
            stretch = stretch_of(exchange)
        for count, speedup in counts.items():
            values = {
                "gpus": float(count) if count else gpus or demand.gpus,
                "gpu_memory": gpu_memory if demand.gpu_memory is None else demand.gpu_memory,
                "nodes": nodes or demand.nodes,
            }
            occupied = demand.model_copy(update=values)
            mode = self.book.mode(device, occupied, partition=self.partition, exchange=exchange)
            self.found.append((mode, times / speedup * stretch))

    def _full_form(self, modes: list[TaskMode]) -> None:
        demand = self.demand
        reference: np.ndarray | None = None
        for number, way in enumerate(modes):
            way = way.within(demand)
            if way.time is None:
                drawn, timed = None, self._computed(way)
            else:
                drawn = self._drawn(number, way.time, reference)
                timed = [] if drawn is None else self._scaled(way.device, drawn)
            if reference is None:
                reference = drawn if drawn is not None or not timed else np.min([times for _, times in timed], axis=0)
            for device, times in timed:
                mode = self.book.mode(device, way, name=way.name, partition=self.partition)
                self.found.append((mode, times))
                if way.work is not None:
                    self.work[mode] = way.work

    def _drawn(self, number: int, time: Any, reference: np.ndarray | None) -> np.ndarray | None:
        if isinstance(time, Speedup):
            return None if reference is None else reference * time.speedup
        return self._sample(f"modes.{number}", time)

    def _scaled(self, kind: str, drawn: np.ndarray) -> list[tuple[DeviceType, np.ndarray]]:
        """Return times on each type, divided by its speed unless `kind` names the type."""
        return [(one, drawn / one.speed if kind == one.kind and kind != one.name else drawn) for one in self._of(kind)]

    def _computed(self, way: TaskMode) -> list[tuple[DeviceType, np.ndarray]]:
        seconds = self._work_time(way.work) if way.work else self._profile_time(profile_use(way))
        gpus, cores = way.used("gpus"), way.cpus or 1.0
        devices = self._of(way.device)
        timed = [(one, peak) for one in devices if (peak := peak_of(one)) is not None]
        if devices and not timed:
            names = ", ".join(one.name for one in devices)
            raise ValueError(f"the speed of {names} is unknown; give it the key peak under cluster")
        shares = [one.sharing.share_of(way.slice) or gpus for one, _ in timed]
        ways = zip(timed, shares, strict=True)
        return [(one, _on(one, peak, seconds, gpus=share, cores=cores)) for (one, peak), share in ways]

    def _work_time(self, work: Work) -> Seconds:
        return lambda peak, share: np.full(self.n, work.seconds(peak, share))

    def _profile_time(self, use: ProfileUse) -> Seconds:
        # The same draws for all modes: how many steps there are does not depend on where they are made.
        steps = drawn_steps(self._sample("steps", use.steps))
        if self.bytes_in is None:
            self.bytes_in = steps * use.input_bytes
        return lambda peak, share: steps * use.seconds_per_step(peak, share)

    def _training(self, training: TrainingSpec) -> None:
        where = (*self.path, "training")
        steps = drawn_steps(self._sample("training.steps", training.steps))
        refused: list[str] = []
        for nodes in training.widths or [self.demand.used("nodes")]:
            wide = f" (on {nodes} node{'s' * (nodes > 1)})" if training.widths else ""
            try:
                plan = training.plan(nodes * round(self.demand.used("gpus")))
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
        raise self.context.fail(where, "training needs GPUs, but the cluster has none")

    def _trained(self, training: TrainingSpec, plan: formulas.ParallelPlan, nodes: int, steps: np.ndarray) -> list[str]:
        demand, gpus = self.demand, round(self.demand.used("gpus"))
        model = training.transformer()
        state, kept = formulas.memory(model, plan)
        refused = []
        for device in self.context.cluster.types.values():
            peak = peak_of(device)
            wanted = demand.devices is None or device.name in demand.devices or device.kind in demand.devices
            on_device = [n for n in self.context.cluster.nodes if any(d.type is device for d in n.accelerators)]
            specs = kinds_of(on_device)
            if not wanted or device.kind == "cpu" or not specs:
                continue
            if peak is None:
                refused.append(f"the speed of {device.name} is unknown; give it the key peak under cluster")
                continue
            if device.memory is not None and state + kept > device.memory:
                refused.append(too_large(state, kept, device.memory, device.name))
                continue
            exchange = max(
                (training_step(self.context.cluster, spec, nodes, model=model, plan=plan,
                                         machine=machine_of(spec, gpus, device, peak=peak, training=training))
                 for spec in specs), key=lambda one: one.nominal)  # fmt: skip
            slowest = exchange.nominal
            narrowest = min(spec.island_size or gpus for spec in specs)
            if plan.tensor > min(gpus, narrowest):
                text = f"tensor ({plan.tensor}) is above {min(gpus, narrowest)}, the number of GPUs that NVLink joins"
                inside = plan.tensor <= gpus  # from island to island of one node
                network = (min(spec.network.upload, spec.network.download) for spec in specs)
                rates = [pcie_of(device)] if inside else list(network)
                free = f"; {'pcie' if inside else 'network'} has no rate, so transfers over it take 0 s"
                consequence = f"a step takes {slowest:.4g} s{free if max(rates) == math.inf else ''}"
                self.context.warnings.append(f"{self.label[0]}: {text}: {consequence}")
            bytes_needed = math.ceil(state + kept) if device.memory is not None else 0
            self._gpu_modes(device, steps * slowest, bytes_needed, exchange=exchange, nodes=nodes)
        return refused

    def _cost_model(self, seconds: Seconds, gpu_memory: int | None) -> None:
        demand = self.demand
        gpus, cores = demanded_share(demand.work) or demand.used("gpus"), demand.cpus or 1.0
        for device in self.context.cluster.types.values():
            peak = peak_of(device)
            wanted = demand.devices is None or device.name in demand.devices or device.kind in demand.devices
            if peak is None or not wanted or not self._of(device.name):
                continue
            times = _on(device, peak, seconds, gpus=device.sharing.share_of(demand.slice) or gpus, cores=cores)
            before = len(self.found)
            if device.kind == "cpu":
                self.found.append(self._cpu_mode(device, times))
            else:
                self._gpu_modes(device, times, gpu_memory or 0, gpus)
            if demand.work is not None:
                self.work.update((mode, demand.work) for mode, _ in self.found[before:])


def _on(device: DeviceType, peak: Peak, seconds: Seconds, gpus: float, cores: float) -> np.ndarray:
    """Return computing times on `cores` cores, or on `gpus` GPUs (or a share of one)."""
    if device.kind == "cpu":
        wide = peak.model_copy(update={"flops": peak.flops * cores, "bandwidth": peak.bandwidth * cores})
        return seconds(wide, 1.0)
    return seconds(peak, min(gpus, 1.0)) / max(gpus, 1.0)
