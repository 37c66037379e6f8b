"""Build modes, requests and a `Service` from a `service:` entry."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hetsim.model.batch_times import StageTable
from hetsim.model.demand import UNLIMITED_BATCH, BatchTimes
from hetsim.model.device_type import WHOLE, DeviceType, micro_share
from hetsim.model.mode import Mode
from hetsim.model.service import ReplicaKind, Service
from hetsim.model.step_times import LinearSteps
from hetsim.model.tasks import Tasks
from hetsim.policy import Batching
from hetsim.scenario.building.language_model import TOKENS, DrawnRequests, ServedLanguage, request_rate
from hetsim.scenario.building.streams import Context, TaskStream, draw_codes
from hetsim.scenario.file.document import Path_, key_of
from hetsim.scenario.schema.batch_tables import remarks
from hetsim.scenario.schema.demand import Demand
from hetsim.scenario.schema.language_model import LanguageModel
from hetsim.scenario.schema.service import ComputeStage, ServiceSpec, VariantSpec
from hetsim.scenario.schema.workload import WorkloadEntry

OWN = ("service", "batching")  # Path of an entry's own batching policy.


class DrawnService(DrawnRequests[ServiceSpec]):
    """Builder of the service of one `workload:` entry, and its requests."""

    @cached_property
    def modes(self) -> list[tuple[Mode, ComputeStage]]:
        """Modes of all variants of the service on their devices, with compute stages."""
        modes: list[tuple[Mode, ComputeStage]] = []
        self.kinds: list[ReplicaKind] = []  # the replicas in each mode, if there are any
        for way in self.service.ways:
            devices = self.context.modes.of_kind(way.device)
            self._remark(way)
            if not devices:
                self.context.note_missing(self.name, f"device: {way.device}", way.device)
            for device in devices:
                memory, there = way.gpu_memory or 0, device.memory
                if device.sharing.kind == "mig":  # the smallest slice with room for one request
                    memory += way.gpu_memory_per_item
                    slices = device.slices_for(micro_share(min(way.used("gpus"), 1.0)), memory)
                    there = min((one.bytes_of(there) for one in slices), default=there)
                self._room(device, memory, there)
                limit = self._limit(way, device, way.gpu_memory or 0, there)
                if self.service.kept:
                    self.kinds.append(self._kept(device, way))
                own = way.model_copy(update={"cpus": None, "memory": None}) if self.service.kept else way
                mode = self.context.modes.served(device, own, memory, limit, several=len(devices) > 1)
                modes.append((mode, way.compute))
        all_names = ["", *(way.name for way in self.service.ways), *(mode.type.name for mode, _ in modes)]
        for name in [one for one in self.service.replicas or {} if one not in all_names]:
            raise self._fail(f"replicas.{name}", f"{name} is neither a variant of this service nor a type of device")
        return modes

    def _kept(self, device: DeviceType, way: VariantSpec) -> ReplicaKind:
        """Return the replicas of a variant on a type of device, with their initial number."""
        gpus, weights, modes = way.used("gpus"), self.service.model or 0, self.context.modes
        kept = Demand.model_construct(gpus=gpus, cpus=way.cpus, memory=way.memory, gpu_memory=weights)
        mode = modes.mode(device, kept, name=self.name)
        if device.kind == "cpu" or device.sharing.kind != "exclusive" or gpus < 1 or not modes.fits(mode):
            shared = f"{device.name} is no accelerator of which it has whole ones to itself (sharing: exclusive)"
            why = modes.why_not(mode, "") if mode.whole_devices and not modes.fits(mode) else shared
            raise self._fail("replicas" if self.service.replicas else "scale", f"no replica can start: {why}")
        if device.streams > 1:
            mode = replace(mode, share=device.streams * WHOLE)  # nothing may be in flight there before it
        scaling, given = self.service.scale, self.service.replicas or {}
        first = 0 if self.kinds else given.get("", 0) if scaling is None else scaling.min_replicas
        count = next((given[name] for name in (way.name, device.name) if name in given), first)
        return ReplicaKind(LinearSteps(), 0, weights * int(gpus), count, mode=mode)

    def _remark(self, way: VariantSpec) -> None:
        for name in ("upload", "compute", "download"):
            stage = getattr(way, name)
            if stage.measured is None:
                continue
            beyond = stage.extrapolate and (way.max_batch is None or way.max_batch > stage.measured.sizes[-1])
            what = f"{self.name}: {name}" if way.name is None else f"{self.name}: {name} of {way.name}"
            sentences = remarks(stage.measured, what, beyond)
            self.context.warnings += [text for text in sentences if text not in self.context.warnings]

    def _room(self, device: Any, memory: int, there: int | None) -> None:
        needed = (self.service.model or 0) + memory
        if device.kind != "cpu" and there is not None and needed > there:
            where = f"one {device.name}" if there == device.memory else f"a slice of {device.name}"
            text = f"the model and its batches need {needed / 1e9:g} GB, {where} has {there / 1e9:g} GB"
            raise self._fail("model", text)

    def _limit(self, way: VariantSpec, device: Any, memory: int, capacity: int | None) -> int:
        """Return the maximum batch size that measurements, max_batch and GPU memory allow."""
        limit = UNLIMITED_BATCH if way.max_batch is None else way.max_batch
        for stage in (way.upload, way.compute, way.download):
            if stage.measured is not None and not stage.extrapolate:
                limit = min(limit, stage.measured.sizes[-1])
        if way.gpu_memory_per_item and capacity is not None and device.kind != "cpu":
            batches = 1 if device.sharing.kind == "mig" else device.streams
            room = capacity - (self.service.model or 0) - memory * batches
            limit = min(limit, int(room // (batches * way.gpu_memory_per_item)))
            if limit < 1:
                memory_there = f"the {capacity / 1e9:g} GB of one {device.name}"
                text = f"one request per stream and the model do not fit into {memory_there}"
                raise self.context.fail((*self.path, "service"), text)
        return limit

    def ways(self, n: int, label: tuple[str, ...], demand: Demand) -> list[tuple[Mode, np.ndarray]]:
        """Draw n requests, set `self.extra` to their tokens; return (mode, seconds) pairs."""
        self.extra = {} if demand.tokens is None else self._tokens_of(demand, n, label)
        return self._times(n, label)

    def recorded(self, extra: dict[str, np.ndarray], n: int) -> list[tuple[Mode, np.ndarray]]:
        """Return modes and times of a trace's n requests; `extra`: its further columns."""
        self.extra = {key: extra[key] for key in TOKENS if key in extra}
        return self._times(n, (self.name,))

    def _times(self, n: int, label: tuple[str, ...]) -> list[tuple[Mode, np.ndarray]]:
        stream = self.context.random.stream
        modes = []
        for number, (mode, compute) in enumerate(self.modes):
            if (per_item := compute.per_item) is None:
                times = np.zeros(n)
            elif per_item.mean == 0 or per_item.scv == 0:
                times = np.full(n, per_item.mean)
            else:
                times = per_item.sample(stream("sizes", *label, f"service.{number}"), n)
            for key in TOKENS:
                if each := getattr(compute, f"per_{key.removesuffix('s')}"):
                    times = times + each * self._tokens(key)
            modes.append((mode, times))
        return modes

    def _tokens(self, key: str) -> np.ndarray:
        if key not in self.extra:
            text = f"per_{key.removesuffix('s')} needs the lengths of requests: "
            text += "give the entry tokens: {prompt: ..., output: ...}, or a trace that has them"
            raise self.context.fail((*self.path, "service"), text)
        return self.extra[key]

    def finish(self, stream: TaskStream, entry: WorkloadEntry) -> None:
        """Check the requests, and add the service to the stream."""
        stream.service = self.service
        stream.replica_modes = [(kind, mode) for kind, (mode, _) in zip(self.kinds, self.modes, strict=False)]
        if self.service.model is not None and not self.service.kept:
            weights = f"{self.name}:model"
            stream.reads = [(weights, *row) for row in stream.reads or [()] * len(stream)]
        if (cache := self.service.cache) is not None:
            popularity = np.arange(1, cache.inputs + 1, dtype=float) ** -cache.zipf
            drawn = draw_codes(popularity, len(stream), self.context.random.stream("inputs", self.name))
            stream.extra["input"] = drawn.astype(np.int64)
        if not len(stream):
            return
        fitting = [pair for pair in self.modes if self.context.modes.fits(pair[0])]
        own = [_own(compute, stream.time[:, number]) for number, (_, compute) in enumerate(fitting)]
        modes = [mode for mode, _ in fitting]
        size_in, size_out = (0.0 if c is None else float(c.min()) for c in (stream.bytes_in, stream.bytes_out))
        alone = [_stages(mode, 1, 0.0, bytes_in=size_in, bytes_out=size_out).total for mode in modes]
        shortest_way = min(rest + shortest for rest, (shortest, _) in zip(alone, own, strict=True))
        away = sum(self.service.network.given.values())
        shortest = math.inf if stream.deadline is None else float(np.nanmin(stream.deadline))
        if shortest < shortest_way + away:
            text = f"no request can meet it: a batch of one takes {1e3 * shortest_way:.4g} ms on an idle device"
            text += f", and the way there and back {1e3 * away:.4g} ms" if away else ""
            raise self.context.fail((*self.path, "slo"), text)
        mean_in, mean_out = (0.0 if c is None else float(c.mean()) for c in (stream.bytes_in, stream.bytes_out))

        def capacity(limit: int) -> float:
            means = zip(modes, own, strict=True)
            bytes_ = {"bytes_in": mean_in, "bytes_out": mean_out}
            return sum(self._capacity(mode, limit, mean, **bytes_) for mode, (_, mean) in means)

        rate = request_rate(entry, stream)

        def overload(batching: Batching, policy: str) -> tuple[str, float] | None:
            limit = max(mode.batch_limit for mode in modes)
            max_batch, cap = capacity(limit), limit if batching.max_batch is None else min(limit, batching.max_batch)
            why = f"{policy} forms batches of at most {cap}, with which"
            larger = f"batches of {limit}" if limit < UNLIMITED_BATCH else "larger ones"
            otherwise = f"the service allows {larger} ({max_batch:.4g}/s)"
            return self._overload(rate, max_batch, capacity(cap), servers="devices", why=why, otherwise=otherwise)

        stream.overload = overload

    def _capacity(self, mode: Mode, limit: int, each: float, bytes_in: float, bytes_out: float) -> float:
        max_batch = min(mode.batch_limit, limit, 10**9)
        stages = [stage for stage in (mode.upload, mode.table, mode.download) if isinstance(stage, StageTable)]
        sizes = {max_batch, *(size for stage in stages for size in stage.sizes if size < max_batch)}
        return max(self._served(mode, size, each, bytes_in=bytes_in, bytes_out=bytes_out) for size in sizes)

    def _served(self, mode: Mode, size: int, each: float, bytes_in: float, bytes_out: float) -> float:
        """Return the maximum requests/s in a mode, with overlapping batches of `size`."""
        up, compute, down = _stages(mode, size, each, bytes_in=bytes_in, bytes_out=bytes_out)
        longest = max(compute, up + down if mode.type.link.duplex == "half" else max(up, down))
        streams = 1 if mode.on_cpu else mode.type.streams
        if self.service.kept:
            kind = next(kind for kind, (one, _) in zip(self.kinds, self.modes, strict=True) if one is mode)
            number = kind.replicas if self.service.scale is None else self.service.scale.max_replicas
            return number * size / max(longest, (up + compute + down) / streams)
        cluster = self.context.cluster
        count = sum(device.type is mode.type for node in cluster.nodes for device in node.accelerators)
        devices = sum(n.cpus for n in cluster.nodes if n.cpu.type is mode.type) if mode.on_cpu else count
        return devices / max(1.0, mode.width) * size / max(longest, (up + compute + down) / streams)


def _stages(mode: Mode, size: int, each: float, bytes_in: float, bytes_out: float) -> BatchTimes:
    link, (up, compute, down) = mode.type.link, mode.stages(size, each * size)
    if not mode.on_cpu:
        up += link.latency + size * bytes_in / link.upload if bytes_in else 0.0
        down += link.latency + size * bytes_out / link.download if bytes_out else 0.0
    return BatchTimes(up, compute, down)


def _own(compute: ComputeStage, times: np.ndarray) -> tuple[float, float]:
    """Return minimum and mean seconds a request adds to a batch; equal without tokens."""
    if compute.by_tokens:
        return float(times.min()), float(times.mean())
    mean = 0.0 if compute.per_item is None else float(compute.per_item.mean)
    return mean, mean


def serving_of(entry: WorkloadEntry, name: str, path: Path_, context: Context) -> DrawnService | ServedLanguage | None:
    """Return the builder of an entry's service; None if the entry has plain tasks."""
    if isinstance(entry.service, LanguageModel):
        return ServedLanguage(entry.service, name, path, context)
    return None if entry.service is None else DrawnService(entry.service, name, path, context)


def service_of(stream: TaskStream, spec: ServiceSpec, rows: np.ndarray, tasks: Tasks) -> Service:
    """Return the service of an entry's tasks; `rows`: rows of these tasks, by arrival."""
    shape = tasks.shapes[tasks.shape[rows[0]]]
    times = tasks.estimate[rows][:, : len(shape.modes)]
    alike = bool((times == times[0]).all() and (tasks.time[rows][:, : len(shape.modes)] == times[0]).all())
    return Service(
        name=stream.name,
        shape=shape,
        rows=rows,
        # A mean of equals may be off by a bit.
        per_item=tuple((times[0] if alike else times.mean(axis=0)).tolist()),
        slo=math.inf if stream.deadline is None else float(np.nanmin(stream.deadline)),
        alike=alike,
        bytes_in=_average(tasks.bytes_in, rows),
        bytes_out=_average(tasks.bytes_out, rows),
        cache=None if spec.cache is None else spec.cache.made(),
        kinds=tuple(kind for kind, mode in stream.replica_modes if mode in shape.modes),
        scaling=None if spec.scale is None else spec.scale.made(),
        start=spec.start,
        key=key_of((*stream.path, "service")),
        policy_key="policy.batching" if spec.batching is None else key_of((*stream.path, *OWN)),
        **spec.given,
        **spec.network.given,
    )


def _average(column: np.ndarray | None, rows: np.ndarray) -> float:
    return 0.0 if column is None else float(column[rows].mean())
