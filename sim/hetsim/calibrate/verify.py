"""Drives a device with requests in real time, and simulates the same requests."""

import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.calibrate.measure import FittedLine, MeasuredDevice, Overlapping
from hetsim.model.batch_times import StageTable
from hetsim.results.declared import THROUGHPUT

POLL = 2e-5  # seconds between checks of what is in flight
SPIN = 5e-4  # last seconds of a wait, which are a busy loop: a sleep may end that much late


class RequestClock:
    def now(self) -> float:
        return time.perf_counter()

    def wait(self, until: float) -> None:
        """Sleep until the time `until`; return at once if this time has passed."""
        while (remaining := until - time.perf_counter()) > 0:
            if remaining > SPIN:
                time.sleep(remaining - SPIN)


@dataclass(frozen=True)
class ServiceProfile:
    """Stage times of a service profile, as functions of the batch size."""

    upload: FittedLine | StageTable
    compute: FittedLine | StageTable
    download: FittedLine | StageTable
    max_batch: int

    @classmethod
    def from_service(cls, service: Any) -> "ServiceProfile":
        """Build a profile (stage times, batch limit) from a validated `service:` section."""

        def line(stage: Any) -> FittedLine | StageTable:
            if stage is None:
                return FittedLine(0.0, 0.0, ())
            if stage.measured is not None:
                return stage.measured
            each = stage.per_item
            return FittedLine(float(getattr(each, "mean", each) or 0.0), stage.fixed, ())

        return cls(line(service.upload), line(service.compute), line(service.download), service.max_batch or 64)

    @property
    def capacity(self) -> float:
        """Requests per second if full batches run one after the other."""
        n = self.max_batch
        return n / (self.upload.seconds_for(n) + self.compute.seconds_for(n) + self.download.seconds_for(n))


def poisson(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Draw arrival times (s, rounded to whole ns), at least one."""
    random = np.random.default_rng(seed)
    count = max(1, random.poisson(rate * seconds))
    return np.sort(np.round(random.random(count) * seconds, 9))


def serve_serial(device: MeasuredDevice, arrivals: np.ndarray, most: int, clock: RequestClock) -> np.ndarray:
    """Serve one batch (all waiting, up to `most`) at a time; return response times."""
    finish, done = np.empty(len(arrivals)), 0
    due = clock.now() + arrivals  # by the clock's own numbers: what has been waited for is there
    memory = device.memories[0] if device.memories else ""
    while done < len(arrivals):
        clock.wait(float(due[done]))
        size = min(int(np.searchsorted(due, clock.now(), side="right")) - done, most)
        if device.kind != "cpu":
            device.upload(size, memory)
        device.compute(size)
        if device.kind != "cpu":
            device.download(size, memory)
        finish[done : done + size] = clock.now()
        done += size
    return finish - due


def serve_overlapped(
    device: Overlapping, arrivals: np.ndarray, profile: ServiceProfile, most: int, clock: RequestClock
) -> np.ndarray:
    """Serve requests in batches of up to `most`, two at a time; return response times.

    A batch is uploaded so that it has arrived when the device has computed the one before.
    """
    finish, taken, done = np.empty(len(arrivals)), 0, 0
    due = clock.now() + arrivals
    flying: deque[tuple[int, Callable[[], bool]]] = deque()
    computed = 0.0  # when the last submitted batch ends computing, by the profile
    while done < len(arrivals):
        while flying and flying[0][1]():
            size, _ = flying.popleft()
            finish[done : done + size] = clock.now()
            done += size
        now = clock.now()
        size = min(int(np.searchsorted(due, now, side="right")) - taken, most)
        just_in_time = now >= computed - profile.upload.seconds_for(size)
        if size > 0 and len(flying) < 2 and (not flying or size == most or just_in_time):
            begin = max(now + profile.upload.seconds_for(size), computed if flying else 0.0)
            computed = begin + profile.compute.seconds_for(size)
            flying.append((size, device.submit(size)))
            taken += size
        elif not flying and taken < len(arrivals):
            clock.wait(float(due[taken]))
        else:
            clock.wait(clock.now() + POLL)
    return finish - due


def warm(device: MeasuredDevice, most: int) -> None:
    """Compute a batch of each size once before timing: the first may take longer.

    On a GPU these are all sizes up to `most`, since libraries choose kernels by size; on a CPU, powers of two.
    """
    powers = {*(1 << k for k in range(most.bit_length())), most}
    for size in range(most, 0, -1) if device.kind != "cpu" else sorted(powers):
        device.compute(size)


def simulated(service: Mapping[str, Any], kind: str, arrivals: np.ndarray, policy: str, streams: int) -> np.ndarray:
    """Return response times of the same requests in the simulation."""
    from hetsim.experiment.run import run

    nodes: dict[str, Any] = {"cpus": 1}
    if kind != "cpu":
        nodes["gpus"] = {"type": "measured", "count": 1, "streams": streams}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "arrivals.csv"
        table.write_text("arrival\n" + "\n".join(f"{value:.9f}" for value in arrivals.tolist()))
        trace = {"format": "requests", "path": str(table)}
        document = {
            "name": "verify", "cluster": {"nodes": nodes}, "policy": {"batching": policy},
            "workload": [{"name": "requests", "trace": trace, "service": dict(service)}],
        }  # fmt: skip
        return np.asarray(run(document).tasks["response"].to_numpy(), float)


@dataclass(frozen=True)
class VerifiedRow:
    """Measured and simulated figures at one rate under one policy."""

    policy: str
    rate: float
    measured: np.ndarray
    simulated: np.ndarray
    arrivals: np.ndarray

    @property
    def error(self) -> float:
        """Error of the simulated mean latency, divided by the measured mean."""
        return float(self.simulated.mean() / self.measured.mean() - 1)

    def figures(self) -> list[tuple[str, float, float]]:
        """Return name, measured and simulated value of each figure, in s or requests/s."""
        there, here = self.measured, self.simulated
        rows = [("mean", float(there.mean()), float(here.mean()))]
        rows += [(f"p{q}", float(np.quantile(there, q / 100)), float(np.quantile(here, q / 100))) for q in (50, 99)]
        lasted = (float((self.arrivals + one).max()) - float(self.arrivals[0]) for one in (there, here))
        measured, simulated = (len(there) / seconds for seconds in lasted)
        return [*rows, (THROUGHPUT, measured, simulated)]


def verify(
    device: MeasuredDevice, service: Mapping[str, Any], profile: ServiceProfile, rates: list[float], seconds: float,
    seed: int = 0, clock: RequestClock | None = None, tell: Callable[[str], None] = lambda _: None,
) -> list[VerifiedRow]:  # fmt: skip
    """Measure and simulate Poisson arrivals at each rate, to compare the two.

    Each rate is run with batches one after the other and, if the device can, with transfers that overlap computing.
    """
    clock = clock or RequestClock()
    max_size = profile.max_batch
    rows = []
    for number, rate in enumerate(rates):
        arrivals = poisson(rate, seconds, seed + number)
        if number == 0:
            warm(device, max_size)
        tell(f"driving {rate:.4g} requests/s for {seconds:g} s")
        there = serve_serial(device, arrivals, max_size, clock)
        here = simulated(service, device.kind, arrivals, policy="serial_greedy", streams=1)
        rows.append(VerifiedRow("serial_greedy", rate, there, simulated=here, arrivals=arrivals))
        if isinstance(device, Overlapping) and device.kind != "cpu":
            there = serve_overlapped(device, arrivals, profile, most=max_size, clock=clock)
            here = simulated(service, device.kind, arrivals, policy="async_linear", streams=2)
            rows.append(VerifiedRow("async_linear", rate, there, simulated=here, arrivals=arrivals))
    return rows
