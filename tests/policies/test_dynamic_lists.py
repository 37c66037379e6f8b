"""Lists and books of dynamic schedulers against second opinions: every entry and every instant is looked at."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, gpu_mode, tasks_of

from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.task import ENDED, RUNNING, WAITING, Task
from hetsim.policy.preemption import RunningList
from hetsim_policies.dynamic.common.fair_tree import DecayedUsage
from hetsim_policies.dynamic.common.timelines import LimitedPool, Timeline
from hetsim_policies.dynamic.common.two_ended import TwoEnded
from hetsim_policies.dynamic.earliest import Alike
from hetsim_policies.dynamic.elastic import RigidJobs
from hetsim_policies.dynamic.lws import _include, _outwards

GPU, OTHER = DeviceType("g"), DeviceType("h")


def tasks(count: int) -> list[Task]:
    """Tasks that arrive two at a time."""
    table = tasks_of([Job([gpu_mode(GPU)], [1.0], float(row // 2)) for row in range(count)])
    return [Task(row, float(row // 2), table.shapes[0], (1.0,), (1.0,), table) for row in range(count)]


# Queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_running_tasks_by_key(seed: int):
    """Those that run since their last start, by key; far more come and go than are kept."""
    random = np.random.default_rng(seed)
    running, entries, rows = RunningList(), {}, tasks(90)
    for number in range(400):
        task = rows[int(random.integers(90))]
        if task.state == RUNNING and random.random() < 0.4:
            task.state = ENDED
            entries.pop(task.index, None)
        else:  # an entry of an earlier start is void from now on
            key, task.memo = float(random.integers(0, 30)), number
            running.push(key, task)
            task.state = RUNNING
            entries[task.index] = key, number, task
        expected = sorted(entries.values(), key=lambda entry: entry[:2])
        assert [one.index for one in running.all()] == [one.index for *_, one in expected]
        limit = float(random.integers(0, 32))
        assert list(running.until(lambda key, limit=limit: key >= limit)) == [
            one for key, _, one in expected if key < limit
        ]
        head = running.head()
        assert head == ((expected[0][0], expected[0][2]) if expected else None)
        if head is not None and random.random() < 0.1:
            running.pop()
            del entries[head[1].index]
            head[1].memo = None
    assert len(running._entries) < 200
    running.clear()
    assert running.head() is None and not list(running.until(lambda _: False))


def test_a_queue_with_two_ends():
    """At each end the least key goes first, of equal ones that of the lower ticket; what is over is passed over."""
    random = np.random.default_rng(3)
    queue, rows = TwoEnded(), tasks(12)
    keys: dict[int, tuple[float, float]] = {}
    for _ in range(200):
        task = rows[int(random.integers(12))]
        if task.index in keys and random.random() < 0.4:
            task.state = RUNNING
            del keys[task.index]
        else:
            task.state, keys[task.index] = WAITING, (float(random.random()), float(random.random()))
            queue.push(task, *((key,) for key in keys[task.index]))
        for end in (0, 1):
            head = queue.head(end)
            least = min(keys, key=lambda row, end=end: keys[row][end], default=None)
            assert (None if head is None else (head[2].index, head[0])) == (
                None if least is None else (least, (keys[least][end],))
            )


def test_the_line_that_is_free_first():
    """Of those that are up, whatever has changed; among equals the first."""
    random = np.random.default_rng(4)
    lines: list[Any] = [SimpleNamespace(number=n, up=True, end=0.0) for n in range(4)]
    alike = Alike(GPU)
    for line in lines:
        line.first_end = lambda line=line: line.end
        alike.add(line)
    for _ in range(300):
        line = lines[int(random.integers(4))]
        if random.random() < 0.3:
            line.up = not line.up
        else:
            line.end = float(random.integers(0, 9))
            line.changed(line)
        usable = [one for one in lines if one.up]
        assert alike.first() is (min(usable, key=lambda one: (one.end, one.number)) if usable else None)
    assert len(alike._heap) <= 64 + 4 * 4 + 1


def test_nodes_from_one_outwards():
    random = np.random.default_rng(5)
    for _ in range(40):
        nodes: list[int] = []
        for node in random.integers(0, 12, 8).tolist():
            _include(nodes, node)
        assert nodes == sorted(set(nodes))
        here = int(random.integers(-1, 13))
        assert list(_outwards(nodes, here)) == sorted(nodes, key=lambda node: (abs(node - here), -node))


@pytest.mark.parametrize("seed", range(3))
def test_jobs_of_one_size_each(seed: int):
    """Dealt out by key as far as devices go, a job that does not fit being passed; then by width, and by arrival."""
    random = np.random.default_rng(seed)
    modes, rows, jobs = [gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(OTHER, 3)], tasks(14), RigidJobs()
    there: dict[int, tuple[Any, float]] = {}
    came: list[int] = []
    for _ in range(120):
        task = rows[int(random.integers(9))]
        if task.index in there:
            jobs.remove(task)
            del there[task.index]
            came.remove(task.index)
        else:
            there[task.index] = modes[int(random.integers(3))], float(random.integers(0, 5))
            jobs.add(task, *there[task.index])
            came.append(task.index)
        jobs.remove(rows[13])  # is not there
        assert len(jobs) == len(there) and set(jobs.modes()) == {mode for mode, _ in there.values()}
        by_arrival = sorted(there, key=lambda row: (rows[row].arrival, came.index(row)))
        blocked = [mode for mode in modes if random.random() < 0.3]
        assert [task.index for task in jobs.in_order(blocked)] == [
            row for row in by_arrival if there[row][0] not in blocked
        ]
        running = [(float(random.integers(0, 5)), rows[row].arrival, row, modes[int(random.integers(3))])
                   for row in range(9, 12)]  # fmt: skip
        free = {"g": float(random.integers(0, 6)), "h": float(random.integers(0, 7))}
        every = [(key, rows[row].arrival, row, mode) for row, (mode, key) in there.items()] + running
        remaining, dealt = dict(free), []
        for _, _, row, mode in sorted(every, key=lambda entry: entry[:3]):
            if mode.gpus <= remaining[mode.type.name]:
                remaining[mode.type.name] -= mode.gpus
                dealt.append(row)
        kept, chosen = jobs.deal(running, free)
        assert free == remaining and sorted(kept) == [row for row in sorted(dealt) if row > 8]
        assert [task.index for task in chosen] == [row for row in dealt if row < 9]
        widest = sorted((row for row in dealt if row < 9), key=lambda row: -there[row][0].gpus)
        order = sorted(widest, key=lambda row: (-there[row][0].gpus, by_arrival.index(row)))
        assert [task.index for task in jobs.widest_first(chosen)] == order


def test_a_mode_that_is_blocked_while_jobs_are_tried():
    """Nothing more of it comes; a job that was started meanwhile is not in the way of the next."""
    rows, jobs, one, two = tasks(6), RigidJobs(), gpu_mode(GPU), gpu_mode(GPU, 2)
    for row, task in enumerate(rows):
        jobs.add(task, (one, two)[row % 2], 0.0)
    blocked: dict[Any, None] = {}
    tried = []
    for task in jobs.in_order(blocked):
        tried.append(task.index)
        jobs.remove(task)
        if task.index == 1:
            blocked[two] = None
    assert tried == [0, 1, 2, 4]


# Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half_life", [0.02, 3.0, 50.0])
def test_usage_that_halves(half_life: float):
    """At each look all amounts decay by the time that has passed, and what was received in it is added."""
    random = np.random.default_rng(1)
    usage: DecayedUsage[str] = DecayedUsage(half_life)
    owners, now = ["u", "v", "w"], 0.0
    amounts, rates = dict.fromkeys(owners, 0.0), dict.fromkeys(owners, 0)
    for owner in owners:
        usage.open(owner)
    assert list(usage) == owners
    for _ in range(40):
        passed = float(random.choice([0.0, 0.3, 1.0, 4.0]))
        now += passed
        usage.advance(now)
        for one in owners:
            amounts[one] = amounts[one] * 0.5 ** (passed / half_life) + rates[one] * 1e-6 * passed
        owner = owners[int(random.integers(3))]
        if random.random() < 0.3:
            usage.change_rate(owner, 0, 1.5)
            amounts[owner] += 1.5
        else:
            change = int(random.integers(-rates[owner], 3_000_000))
            rates[owner] += change
            usage.change_rate(owner, change)
        usage.open(owner)  # again: nothing is lost
        looked_at = [one for one in owners if random.random() < 0.5]
        assert [usage[one] for one in looked_at] == pytest.approx([amounts[one] for one in looked_at])
        assert usage.total == pytest.approx(math.fsum(amounts.values()))


@pytest.mark.parametrize("seed", range(3))
def test_how_much_of_a_gang_fits_at_every_instant(seed: int):
    """Of four GPUs some are taken whole, with a core and 3 bytes each, and some in halves, with half a core."""
    random = np.random.default_rng(seed)
    node = Cluster([NodeSpec(cpus=5, memory=13, accelerators=((GPU, 4),))]).nodes[0]
    timeline = Timeline.empty(node, (), 0.0)
    gang, half = (
        gpu_mode(GPU, 3, span_any=True, millicores=3000, memory=9),
        gpu_mode(GPU, 0.5, millicores=500, memory=2),
    )
    taken: list[tuple[float, float, Any, int]] = []
    for _ in range(9):
        start = float(random.integers(0, 10))
        mode, amount = [(gang, 1), (gang, 2), (half, 1)][int(random.integers(3))]
        taken.append((start, start + float(random.integers(1, 6)), mode, amount))
        timeline.occupy(*taken[-1])

    def fitting(time: float) -> tuple[int, int]:
        """Devices of a gang, and halves (0 or 1)."""
        here = [entry for entry in taken if entry[0] <= time < entry[1]]
        halves, whole = (sum(n for *_, mode, n in here if mode is one) for one in (half, gang))
        cores, memory = 5000 - 1000 * whole - 500 * halves, 13 - 3 * whole - 2 * halves
        devices = 4 - whole - -(-halves // 2)
        one_more = devices > 0 or (devices == 0 and halves % 2)
        whole_ones = [n for n in range(4) if n <= devices and 1000 * n <= cores and 3 * n <= memory]
        return max(whole_ones, default=0), int(one_more and cores >= 500 and memory >= 2)

    for begin in range(17):
        for end in (begin + 1, begin + 3):
            expected = [min(fitting(time)[number] for time in range(begin, end)) for number in (0, 1)]
            assert [timeline.max_amount(mode, begin, end) for mode in (gang, half)] == expected
    assert timeline.max_amount(gang, 20.0, math.inf) == 3


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_of_a_partition_at_every_instant(seed: int):
    """Two and a half GPUs in all: the first instant from which a mode is within the limit for long enough."""
    random = np.random.default_rng(seed)
    pool = LimitedPool(Partition("p", 1, max_gpus=2.5), 0.0)
    modes = [gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(GPU, 0.5), gpu_mode(GPU, 3)]
    taken: list[tuple[float, float, Any]] = []
    for _ in range(6):
        start, mode = float(random.integers(0, 12)), modes[int(random.integers(3))]
        end = math.inf if random.random() < 0.15 else start + float(random.integers(1, 5))
        taken.append((start, end, mode))
        pool.occupy(start, end, mode)
        used = [sum(one.gpus * one.share for begin, end, one in taken if begin <= time < end) for time in range(60)]
        for mode in modes:
            room = [mode.gpus * mode.share <= 2.5 * WHOLE - amount for amount in used]
            for since in range(0, 18, 2):
                for duration in (1, 3):
                    starts = [time for time in range(since, 40) if all(room[time : time + duration])]
                    assert pool.earliest(mode, duration, float(since)) == (starts[0] if starts else math.inf)
