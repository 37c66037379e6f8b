"""A system that has emptied is as good as new, for every dynamic scheduler that remembers nothing of what has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate
from test_conformance import SCHEDULERS, make

from hetsim import registry
from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType

GAP = 7200.0
"""A multiple of all intervals and rounds, after which all has ended; times are eighths, so that sums are exact."""
WITH_MEMORY = {
    "gandiva": "measured pairs", "lws": "random numbers, which go on", "pollux": "random numbers, which go on",
    "qssf": "run times of users", "slurm_multifactor": "usage by user", "wfq": "virtual times of users",
}  # fmt: skip
"""Those that do remember, and what."""
SLOW, FAST = DeviceType("slow"), DeviceType("fast", speed=2.0)
CPU = DeviceType("cpu", kind="cpu")
SPECS = [NodeSpec(cpus=4, accelerators=((SLOW, 2), (FAST, 1)), cpu_type=CPU),
         NodeSpec(cpus=2, accelerators=((SLOW, 2),), cpu_type=CPU)]  # fmt: skip


def is_dynamic(name: str) -> bool:
    return registry.policy("scheduler", name).__module__.startswith("hetsim_policies.dynamic")


def only_gpus(random: np.random.Generator, at: float) -> Job:
    """On one GPU of either type, or on one or two of the slow one."""
    modes = [gpu_mode(SLOW), gpu_mode(FAST) if random.random() < 0.7 else gpu_mode(SLOW, 2)]
    times = (random.integers(4, 120, len(modes)) / 8).tolist()
    return Job(modes, times, at, stopping=Stopping(save=0.125, restore=0.25))


def both_sides(random: np.random.Generator, at: float) -> Job:
    """On a core, or on either GPU, each sometimes the fastest."""
    times = (random.integers(4, 160, 3) / 8).tolist()
    wrong = [time * float(random.choice([0.5, 1.0, 2.0])) for time in times]
    return Job([cpu_mode(CPU), gpu_mode(SLOW), gpu_mode(FAST)], times, at, estimates=wrong)


def sizes(random: np.random.Generator, at: float) -> Job:
    """On one, two or four GPUs."""
    time = int(random.integers(8, 160)) / 8
    return Job([gpu_mode(SLOW, n, span_any=n > 2) for n in (1, 2, 4)], [time, time * 0.625, time * 0.375], at)


KINDS = (only_gpus, both_sides, sizes)
NAMES = [name for name in SCHEDULERS if is_dynamic(name) and name not in WITH_MEMORY]
EVERY = [pytest.param(name, kind, marks=() if (number + turn) % 3 == 0 else pytest.mark.slow)
         for number, name in enumerate(NAMES) for turn, kind in enumerate(KINDS)]  # fmt: skip
"""The quick tier tries each scheduler with one kind of jobs, by turns."""


@pytest.mark.quick(13)
@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_second_burst_is_served_as_the_first(name: str, kind: Callable[[np.random.Generator, float], Job]):
    random = np.random.default_rng(len(name))
    arrival = np.sort(random.integers(0, 48, 8)) / 8
    jobs = [kind(random, float(at)) for at in arrival]
    both = jobs + [replace(job, arrival=job.arrival + GAP) for job in jobs]
    record = simulate(SPECS, both, make(name))
    first, second = np.arange(8), np.arange(8, 16)
    assert record.finish[first].max() < GAP
    assert record.status[second].tolist() == record.status[first].tolist()
    assert (record.start[second] - GAP).tolist() == pytest.approx(record.start[first].tolist(), nan_ok=True)
    assert (record.finish[second] - GAP).tolist() == pytest.approx(record.finish[first].tolist(), nan_ok=True)
    assert record.mode[second].tolist() == record.mode[first].tolist()
