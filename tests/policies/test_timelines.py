"""The free resources of a node over time, against a second opinion that looks at every instant."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from machines import cpu_mode, gpu_mode

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim_policies.dynamic.common.timelines import Timeline

GPU, OTHER = DeviceType("g"), DeviceType("h")
GB = 10**9


@pytest.mark.quick(3)
@pytest.mark.parametrize("memory", [None, 8 * GB])
@pytest.mark.parametrize("seed", range(8))
def test_windows_are_those_of_every_instant(seed, memory):
    """Whole times 0 to 20; some of what is occupied is more than there is."""
    random = np.random.default_rng(seed)
    cluster = Cluster([NodeSpec(cpus=4, memory=memory, accelerators=((GPU, 4), (OTHER, 1)), count=1)])
    node = cluster.nodes[0]
    host = {"millicores": int(random.integers(0, 3)) * 1000, "memory": int(random.integers(0, 4)) * GB}
    modes = [gpu_mode(GPU, 1), gpu_mode(GPU, 3, **host), gpu_mode(OTHER, 1, **host), cpu_mode(node.cpu.type, 2)]
    modes.append(gpu_mode(DeviceType("none"), 1))
    timeline = Timeline.empty(node, (), 0.0)
    taken = []
    for _ in range(12):
        start, mode = float(random.integers(0, 15)), modes[int(random.integers(4))]
        end = math.inf if random.random() < 0.2 else start + float(random.integers(1, 6))
        taken.append((start, end, mode))
        timeline.occupy(start, end, mode, max(1, mode.gpus))

        def free(time, kind):
            here = [one for start, end, one in taken if start <= time < end]
            return {
                "cores": 4000 - sum(one.millicores for one in here),
                "memory": (math.inf if memory is None else memory) - sum(one.memory for one in here),
                "gpus": {GPU: 4, OTHER: 1}.get(kind, 0) - sum(one.gpus for one in here if one.type is kind),
            }

        for mode in modes:
            windows, fits = timeline.windows(mode), []
            for time in range(41):
                there = free(time, mode.type)
                host = mode.millicores <= there["cores"] and mode.memory <= there["memory"]
                fits.append(host and (not mode.gpus or mode.gpus <= there["gpus"]))
                assert fits[-1] == any(begin <= time < end for begin, end in windows)
            for now, duration in product(range(0, 21, 3), (1, 2, 5)):
                gaps = [time for time in range(now, 36) if all(fits[time : time + duration])]
                until = [time for time in range(now, 41) if not fits[time]]
                assert timeline.open_until(mode, now) == (-math.inf if not fits[now] else min(until, default=math.inf))
                for last in (math.inf, now + 4):
                    first, start = timeline.first_gap(mode, duration, now, last)
                    assert start == (gaps[0] if gaps and gaps[0] <= last else math.inf)
                    assert not any(fits[now : int(min(first, 41))])
