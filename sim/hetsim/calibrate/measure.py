"""Devices to measure, and their median stage times as profiles."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hetsim.calibrate.shapes import Shaped
from hetsim.errors import HetsimError
from hetsim.model.batch_times import nearest_line


@runtime_checkable
class MeasuredDevice(Protocol):
    """A device that runs a model; upload, compute and download return their seconds.

    `kind` is `cpu` (without transfers: `upload` and `download` are never called) or `gpu`.  `bytes_in` and `bytes_out`
    are those of one item.  `memories`: the kinds of host memory from which transfers can start, such as pinned; the
    service profile uses the first kind.
    """

    name: str
    kind: str
    bytes_in: int
    bytes_out: int
    memories: tuple[str, ...]

    def upload(self, n: int, memory: str) -> float: ...

    def compute(self, n: int) -> float: ...

    def download(self, n: int, memory: str) -> float: ...


@runtime_checkable
class Overlapping(Protocol):
    """A device that can upload one batch while it computes another."""

    def overlapped(self, n: int) -> float:
        """Return the seconds per batch of n, while each upload overlaps computing."""
        ...

    def submit(self, n: int) -> Callable[[], bool]:
        """Start a batch of n after those already submitted; return a test for completion."""
        ...


class HostDevice:
    """This machine's CPU as a device; the function `run(n)` computes a batch of n."""

    kind = "cpu"
    memories: tuple[str, ...] = ()

    def __init__(self, run: Callable[[int], object], name: str, bytes_in: int = 0, bytes_out: int = 0):
        self.run, self.name, self.bytes_in, self.bytes_out = run, name, bytes_in, bytes_out

    def upload(self, n: int, memory: str) -> float:
        return 0.0

    def compute(self, n: int) -> float:
        begin = time.perf_counter()
        self.run(n)
        return time.perf_counter() - begin

    def download(self, n: int, memory: str) -> float:
        return 0.0


MIN_SECONDS = 1e-9
MAX_SPREAD = 0.1  # half the interquartile range of repeats / median, above which the device is probably in use


class CalibrationError(HetsimError):
    """The stage times of a device do not fit the linear model."""


@dataclass
class MeasuredStages:
    """Median seconds by stage and batch size, fitted lines, and overlapped seconds."""

    device: MeasuredDevice
    batches: tuple[int, ...]
    repeats: int
    medians: dict[str, tuple[float, ...]]
    lines: "dict[str, FittedLine]"
    spread: dict[str, float] = field(default_factory=dict)  # half the interquartile range / median, mean over sizes
    overlapped: tuple[float, ...] = ()
    remarks: list[str] = field(default_factory=list)

    def stage(self, name: str) -> "FittedLine":
        """Return a stage's fitted line; for transfers, from the first kind of host memory."""
        if name == "compute" or not self.device.memories:
            return self.lines.get(name, FittedLine(0.0, 0.0, ()))
        return self.lines[f"{name} {self.device.memories[0]}"]


def measure(
    device: MeasuredDevice, batches: Sequence[int], repeats: int = 15, warmup: int = 3,
    tell: Callable[[str], None] = lambda _: None,
) -> MeasuredStages:  # fmt: skip
    """Time all stages at all batch sizes; CalibrationError if they fit no line."""
    stages: dict[str, Callable[[int], float]] = {"compute": device.compute}
    for memory in device.memories if device.kind != "cpu" else ():
        stages[f"upload {memory}"] = lambda n, memory=memory: device.upload(n, memory)  # type: ignore[misc]
        stages[f"download {memory}"] = lambda n, memory=memory: device.download(n, memory)  # type: ignore[misc]
    medians: dict[str, tuple[float, ...]] = {}
    spread = {}
    for name, stage in stages.items():
        tell(f"measuring {name}")
        times = [_timed(stage, n, repeats, warmup) for n in batches]
        medians[name] = tuple(map(_median, times))
        spread[name] = statistics.mean(map(_spread, times))
    lines = {name: fit(batches, values) for name, values in medians.items()}
    measured = MeasuredStages(device, tuple(batches), repeats, medians=medians, lines=lines, spread=spread)
    _check(measured)
    if isinstance(device, Overlapping) and device.kind != "cpu":
        tell("measuring two streams")
        rounds = max(3, repeats // 5)
        measured.overlapped = tuple(_median(_timed(device.overlapped, n, rounds, 1)) for n in batches)
    return measured


def _timed(stage: Callable[[int], float], n: int, repeats: int, warmup: int) -> list[float]:
    for _ in range(warmup):
        stage(n)
    return [stage(n) for _ in range(repeats)]


def _median(times: list[float]) -> float:
    return max(MIN_SECONDS, statistics.median(times))


def _spread(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2 / _median(times)


def _check(found: MeasuredStages) -> None:
    times, sizes = found.medians["compute"], found.batches
    if found.lines["compute"].per_item <= 0 or times[-1] <= times[0]:
        first, last = (f"{1e3 * times[k]:.4g} ms for {sizes[k]}" for k in (0, -1))
        raise CalibrationError(
            f"the compute time does not grow with the batch size ({first}, {last}), so time per request is unknown: "
            "measure larger batches, or repeat more often (--repeats)"
        )
    for name, line in found.lines.items():
        points = pairwise(zip(found.batches, found.medians[name], strict=True))
        if falls := [b for (_, s), (b, t) in points if t < 0.9 * s]:
            found.remarks.append(f"{name}: a batch of {falls[0]} took less time than the smaller one before it")
        if found.spread[name] > MAX_SPREAD:
            scatter = f"repeats scatter by ±{found.spread[name]:.0%} around their median"
            found.remarks.append(f"{name}: {scatter}; other load on the machine may be the cause")
        if line.worst > 0.15:
            found.remarks.append(f"{name}: times are up to {line.worst:.0%} off the fitted line: inaccurate")


# Profiles -------------------------------------------------------------------------------------------------------


def service_profile(found: MeasuredStages) -> dict[str, Any]:
    """Return the service profile for scenarios, with a note on how it was measured."""
    service: dict[str, Any] = {"compute": _stage(found.stage("compute"))}
    if found.device.kind == "cpu":
        service["device"] = "cpu"
    else:
        service |= {"upload": _stage(found.stage("upload")), "download": _stage(found.stage("download"))}
    service["max_batch"] = found.batches[-1]
    return {"service": service, "measured": _measured(found)}


def from_elsewhere(what: str, stages: Mapping[str, Shaped]) -> dict[str, Any]:
    """Return the service profile of stage times measured by others; `what`: source."""
    service: dict[str, Any] = {}
    for name in ("upload", "compute", "download"):
        if name in stages:
            one = stages[name]
            line = FittedLine(*one.line, ())
            service[name] = _stage(line) if one.chosen == "line" else {n: _time(t) for n, t in one.knots.items()}
    service["max_batch"] = stages["compute"].sizes[-1]
    about = {name: one.about for name, one in stages.items()}
    return {"service": service, "measured": {"from": what, "stages": about}}


def link_profile(found: MeasuredStages) -> dict[str, Any] | None:
    """Return the link profile (bytes per second and latency); None without transfers."""
    device = found.device
    if device.kind == "cpu":
        return None
    up, down = found.stage("upload"), found.stage("download")
    pcie: dict[str, Any] = {}
    for name, line, size in (("upload", up, device.bytes_in), ("download", down, device.bytes_out)):
        if line.per_item > 0 and size:
            pcie[name] = f"{size / line.per_item / 1e9:.6g} GB/s"
    pcie["latency"] = _time(min(up.fixed, down.fixed))
    return {"pcie": pcie, "measured": _measured(found)}


def _stage(line: "FittedLine") -> dict[str, str]:
    fixed = {"fixed": _time(line.fixed)}
    return {"per_item": _time(line.per_item), **fixed} if line.per_item else fixed


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.6g} ms"


def _measured(found: MeasuredStages) -> dict[str, Any]:
    stages = {
        name: {"medians_ms": [float(f"{1e3 * value:.6g}") for value in values],
               "residuals": [round(value, 4) for value in found.lines[name].residuals],
               "spread": round(found.spread[name], 4)}
        for name, values in found.medians.items()
    }  # fmt: skip
    device = found.device
    about = {
        "device": device.name, "kind": device.kind, "bytes_in": device.bytes_in, "bytes_out": device.bytes_out,
        "batches": list(found.batches), "repeats": found.repeats, "stages": stages,
    }  # fmt: skip
    if found.overlapped:
        about["two_streams_ms"] = [float(f"{1e3 * value:.6g}") for value in found.overlapped]
    return about


@dataclass(frozen=True)
class FittedLine:
    """A line fitted to stage times, and its relative error at each measured size."""

    per_item: float
    fixed: float
    residuals: tuple[float, ...]

    def seconds_for(self, n: int) -> float:
        return self.per_item * n + self.fixed

    @property
    def worst(self) -> float:
        return max(map(abs, self.residuals), default=0.0)


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> FittedLine:
    """Return the line nearest to these times (`nearest_line`); 0 if all times are 0."""
    n, tau = np.asarray(sizes, float), np.asarray(seconds, float)
    if not tau.any():
        return FittedLine(0.0, 0.0, (0.0,) * len(n))
    per_item, fixed = nearest_line(n, tau)
    return FittedLine(per_item, fixed, tuple((tau / (per_item * n + fixed) - 1).tolist()))
