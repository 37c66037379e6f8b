"""Why tasks wait, and the free GPUs that are of no use, against a recount at every second of random runs.

Everything changes at whole seconds.  The recount asks at each second of every launch whether it is there, and of every
node what is free; it knows nothing of sweeps, heaps or running sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hand_made import gpu_mode, launches, record, workload
from tiers import spread

from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.device_type import WHOLE, DeviceType, Sharing, micro_share
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, EXPIRED, LAUNCH_STOPPED, NOT_ARRIVED, UNFINISHED
from hetsim.results.one_run.explain import CAUSES, causes, explain, explain_all
from hetsim.results.one_run.fragmentation_metrics import fragmentation_between, fragmentation_steps
from hetsim.results.one_run.replay import FreeCapacity, RunReplay
from hetsim.results.one_run.result import Result

END = 24
OPEN = 3
SHARED = DeviceType("s", streams=2, memory=16)
PLAIN = DeviceType("g", memory=10)
CPU = DeviceType("cpu", kind="cpu")
NOWHERE = DeviceType("x")
LEFT, RIGHT = Partition("left", mask=0b0011), Partition("right", mask=0b1100)


def machine() -> Cluster:
    """Devices by node: cores 0 and GPUs 1, 2; 3 and 4 to 6; 7; 8 and 9, 10."""
    return Cluster([
        NodeSpec(cpus=4, memory=64, accelerators=((SHARED, 2),), cpu_type=CPU),
        NodeSpec(cpus=8, accelerators=((SHARED, 1), (PLAIN, 2)), cpu_type=CPU),
        NodeSpec(cpus=6, memory=32, cpu_type=CPU),
        NodeSpec(cpus=2, memory=40, accelerators=((PLAIN, 2),), cpu_type=CPU),
    ])  # fmt: skip


ONE = gpu_mode(kind=PLAIN, millicores=1000, gpu_memory=6)
HALF = gpu_mode(kind=SHARED, share=WHOLE // 2, gpu_memory=5)
PAIR = gpu_mode(2, kind=SHARED, millicores=3000, memory=20)
SPAN = gpu_mode(3, kind=PLAIN, millicores=3000, memory=30, span_any=True)
CORES = Mode("cores", CPU, millicores=2000, memory=8)
MANY = Mode("many", CPU, millicores=9000, memory=18, span_any=True)
NODES = gpu_mode(2, kind=PLAIN, millicores=2000, memory=4, node_count=2)
INSIDE = gpu_mode(kind=SHARED, memory=10, partition=LEFT)
OTHER = Mode("other", CPU, millicores=3000, memory=4, partition=RIGHT)
SHAPES = [[ONE], [HALF], [PAIR], [SPAN], [CORES], [MANY], [NODES], [INSIDE], [OTHER],
          [gpu_mode(kind=NOWHERE), Mode("instead", CPU, millicores=5000)]]  # fmt: skip
WHERE: dict[int, list[tuple[tuple[int, ...], tuple[int, ...] | None]]] = {
    id(ONE): [((5,), None), ((6,), None), ((9,), None), ((10,), None)], id(HALF): [((1,), None), ((2,), None)],
    id(PAIR): [((1, 2), None)], id(SPAN): [((5, 6, 9), None), ((5, 9, 10), None)],
    id(CORES): [((0,), None), ((3,), None), ((7,), None), ((8,), None)],
    id(MANY): [((0, 3), (0, 1, *range(4, 11))), ((3, 7), (*range(6), 8, 9, 10))],
    id(NODES): [((5, 9), None), ((6, 10), None)], id(INSIDE): [((2,), None), ((4,), None)], id(OTHER): [((7,), None)],
    id(SHAPES[9][1]): [((3,), None), ((7,), None)],
}  # fmt: skip
LOG = [(3.0, 1, "down"), (6.0, 1, "up"), (5.0, 9, "sleep"), (11.0, 9, "wake"), (12.0, 9, "awake"), (8.0, 3, "down"),
       (10.0, 3, "up"), (14.0, 7, "sleep"), (17.0, 7, "wake"), (18.0, 7, "awake"), (4.0, 4, "frequency")]  # fmt: skip


@dataclass
class Node:
    """Of one node in one second the free cores (thousandths) and bytes, and by GPU type, share, bytes, usable."""

    cores: int
    memory: float
    gpus: dict[int, Any] = field(default_factory=dict)


def usable(device: int, second: float, log: Any, where: Cluster) -> bool:
    host = where.nodes[where.devices[device].node].cpu.index

    def last(index: int, *kinds: str) -> str:
        return next(
            (what for time, one, what in sorted(log)[::-1] if one == index and what in kinds and time <= second), ""
        )

    failed = "down" in (last(device, "down", "up"), last(host, "down", "up"))
    return not failed and last(device, "sleep", "wake", "awake") in ("", "awake")


def free_at(second: float, rows: list[dict[str, Any]], where: Cluster, log: Any) -> list[Node]:
    nodes = []
    for node in where.nodes:
        memory = math.inf if node.memory is None else node.memory
        nodes.append(Node(node.cpus * 1000, memory))
        for one in node.accelerators:
            size = math.inf if one.type.memory is None else one.type.memory
            nodes[-1].gpus[one.index] = SimpleNamespace(
                type=one.type.name, full=one.type.streams * WHOLE, share=one.type.streams * WHOLE, memory=size,
                usable=usable(one.index, second, log, where),
            )  # fmt: skip
    for row in rows:
        if not (row["decided"] <= second and not row["end"] <= second):
            continue
        mode, (devices, cores) = row["made"], row["at"]
        on = [where.devices[one].node for one in devices]
        if cores is not None and len(devices) > 1:  # numbered through the nodes
            sizes = [where.nodes[node].cpus for node in on]
            on = [on[0] if core < sizes[0] else on[1] for core in cores]
        for node in set(on):
            nodes[node].cores -= math.ceil(mode.millicores * on.count(node) / len(on))
            nodes[node].memory -= math.ceil(mode.memory * on.count(node) / len(on))
        for one in devices:
            if (gpu := nodes[where.devices[one].node].gpus.get(one)) is not None:
                gpu.share -= mode.share
                gpu.memory -= mode.gpu_memory
    for node, found in zip(where.nodes, nodes, strict=True):
        if not usable(node.cpu.index, second, log, where):
            found.cores = 0
    return nodes


def parts_on(mode: Mode, node: Node) -> int:
    """Of a mode of one node whether it fits there; of another the number of its parts that do."""
    good = [gpu for gpu in node.gpus.values() if gpu.type == mode.type.name and gpu.usable
            and gpu.memory >= mode.gpu_memory]  # fmt: skip
    if mode.node_count > 1:
        n = mode.node_count
        there = sum(gpu.share >= mode.share for gpu in good) * n >= mode.gpus
        return int(there and node.cores * n >= mode.millicores and node.memory >= -(-mode.memory // n))
    if mode.span_any and mode.gpus:
        count = sum(gpu.share >= mode.share for gpu in good)
        while count and (
            mode.millicores * count > node.cores * mode.gpus or mode.memory * count > node.memory * mode.gpus
        ):
            count -= 1
        return count
    if mode.span_any:
        each, count = -(-mode.memory // (mode.millicores // 1000)), node.cores // 1000
        while count and each * count > node.memory:
            count -= 1
        return count
    gpus = sum(gpu.share >= mode.share for gpu in good) >= mode.gpus
    return int(gpus and node.cores >= mode.millicores and node.memory >= mode.memory)


def allowed(mode: Mode, nodes: list[Node]) -> list[Node]:
    return [node for number, node in enumerate(nodes) if mode.nodes is None or mode.nodes >> number & 1]


def verdict(mode: Mode, nodes: list[Node]) -> int:
    """2: it fits; 1: it would if all that is free were on one node; 0."""
    there = allowed(mode, nodes)
    parts = sum(parts_on(mode, node) for node in there)
    if mode.span_any:
        fits = parts >= (mode.gpus or mode.millicores // 1000)
    else:
        fits = parts >= mode.node_count
    if fits:
        return 2
    gpus = [gpu for node in there for gpu in node.gpus.values() if gpu.usable and gpu.type == mode.type.name]
    enough = (
        sum(node.cores for node in there) >= mode.millicores and sum(node.memory for node in there) >= mode.memory
        and sum(gpu.share for gpu in gpus) >= mode.gpus * mode.share
        and sum(gpu.memory for gpu in gpus) >= mode.gpus * mode.gpu_memory
    )  # fmt: skip
    return int(enough and mode.type is not NOWHERE)


@dataclass
class Story:
    """A random run with what the recount needs of it."""

    result: Result
    rows: list[dict[str, Any]]
    shape: list[int]
    usable: np.ndarray
    ready: list[float]
    decided: list[float]
    until: list[float]
    log: list[tuple[float, int, str]]
    where: Cluster

    def free(self, second: float) -> list[Node]:
        return free_at(second, self.rows, self.where, self.log)

    def modes(self, task: int) -> list[Mode]:
        return [mode for mode, can in zip(SHAPES[self.shape[task]], self.usable[task], strict=False) if can]


def story(seed: int, count: int = 16, cycles: bool = False, per_start: float = 0.0) -> Story:
    """Tasks whose launches take only what is free; some are stopped once, some never start or never end."""
    rng = np.random.default_rng(seed)
    where, log = machine(), sorted(LOG)
    shape = [int(one) for one in rng.integers(len(SHAPES), size=count)]
    ready = sorted(float(one) for one in rng.integers(0, 10, count))
    times = np.where(np.arange(2) < np.array([len(SHAPES[one]) for one in shape])[:, None], 4.0, np.inf)
    times[np.array(shape) == 9, 0] = rng.choice([4.0, np.inf], int((np.array(shape) == 9).sum()))
    rows: list[dict[str, Any]] = []
    start, finish = [math.nan] * count, [math.nan] * count
    decided, until = [float(END)] * count, [float(END)] * count
    status = [UNFINISHED] * count
    for task in range(count):
        position = len(SHAPES[shape[task]]) - 1
        mode, now = SHAPES[shape[task]][position], ready[task] + float(rng.integers(0, 4))
        fate = rng.choice(["runs", "runs", "runs", "stopped", "stays", "expires"])
        if fate == "expires":
            status[task], finish[task] = EXPIRED, min(now + 2, float(END))
            decided[task] = until[task] = finish[task]
            continue
        for attempt in range(1 + (fate == "stopped")):
            places = WHERE[id(mode)]
            stopped = fate == "stopped" and not attempt
            while now < END - 4:
                length = float(rng.integers(2, 6))
                lag = float(rng.integers(0, 2))
                row = {
                    "task": task, "mode": position, "made": mode, "at": places[int(rng.integers(len(places)))],
                    "decided": now, "start": now + lag, "end": math.nan if fate == "stays" else now + lag + length,
                    "outcome": LAUNCH_STOPPED if stopped else OPEN if fate == "stays" else 0,
                }  # fmt: skip
                seconds = range(int(now), END if fate == "stays" else int(now + lag + length))
                if all(min(value) >= 0 for second in seconds for value in amounts(second, [*rows, row], where, log)):
                    break
                now += 1
            else:
                break
            rows.append(row)
            if not attempt:
                start[task], decided[task], until[task] = row["start"], now, row["start"]
            if row["end"] == row["end"] and not stopped:
                finish[task], status[task] = row["end"], COMPLETED
            now = END if math.isnan(row["end"]) else row["end"] + float(rng.integers(0, 3))
    later = workload(
        [*ready, math.inf], np.concatenate([times, [[4.0, math.inf]]]).tolist(), [list(one) for one in SHAPES],
        [*shape, 0], id=np.array([f"t{number}" for number in range(count + 1)], dtype=object),
        class_code=np.arange(count + 1) % 3, classes=["a", "b", "c"],
    )  # fmt: skip
    rec = record(
        where, later, [*start, math.nan], [*finish, math.nan], [None] * (count + 1), end=float(END),
        status=[*status, NOT_ARRIVED],
    )  # fmt: skip
    rows.sort(key=lambda row: row["decided"])
    rec.places = list(dict.fromkeys(row["at"] for row in rows))
    rec.launches = launches([
        {key: value for key, value in row.items() if key not in ("made", "at")} | {"place": rec.places.index(row["at"])}
        for row in rows
    ])  # fmt: skip
    for row in rows:
        rec.mode[row["task"]], rec.place[row["task"]] = row["mode"], rec.places.index(row["at"])
    rec.device_log = [(time, device, what, 0.0) for time, device, what in log]
    told = [(float(rng.integers(0, END)), int(rng.integers(count)), str(rng.choice(["quota", "reservation", "choice"])))
            for _ in range(12)]  # fmt: skip
    rec.holds = sorted(told, key=lambda one: one[0])
    if cycles:
        rec.cycles = {"asked": np.array([2.0, 7.0, 15.0]), "decided": np.array([4.0, 12.0])}
    if per_start:
        rec.input.decisions = SimpleNamespace(per_start=per_start)  # type: ignore[assignment]
    return Story(Result(rec), rows, shape, np.isfinite(times), ready, decided, until, log, where)


def amounts(second: float, rows: list[dict[str, Any]], where: Cluster, log: Any) -> Iterator[tuple[float, ...]]:
    for node in free_at(second, rows, where, ()):
        yield (node.cores, node.memory, *(one.share for one in node.gpus.values()),
               *(one.memory for one in node.gpus.values()))  # fmt: skip


def waits_at(made: Story, task: int, second: float) -> bool:
    """Has it become ready, or been stopped, and not been decided (or left) since?"""
    joins = [
        made.ready[task],
        *(row["end"] for row in made.rows if row["task"] == task and row["outcome"] == LAUNCH_STOPPED),
    ]
    finish = float(made.result.record.finish[task])
    leaves = [made.decided[task], finish, *(row["decided"] for row in made.rows if row["task"] == task)]
    joined = max((one for one in joins if one <= second), default=-1.0)
    return joined >= 0 and joined > max((one for one in leaves if one <= second), default=-1.0)


def cause_at(made: Story, task: int, second: float, cycle: bool) -> tuple[str, str]:
    """The cause for which a task waits in a second, and behind which it does."""
    nodes = made.free(second)

    def of(one: int) -> int:
        return max(verdict(mode, nodes) for mode in made.modes(one))

    if of(task) < 2:
        return CAUSES[of(task)], ""
    told = [cause for time, one, cause in made.result.record.holds if one == task and time <= second]
    if told:
        return told[-1], ""
    if cycle:
        return "scheduler", ""
    claims = [SHAPES[shape][0].partition for shape in made.shape]
    for one in range(task):  # in order of ready times
        mine, its = claims[task], claims[one]
        apart = mine is not None and its is not None and not mine.claims & its.claims
        if not apart and waits_at(made, one, second) and of(one) < 2:
            return "head_of_line", f"behind task t{one}"
    return "choice", ""


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_the_cause_of_every_second(seed: int):
    cycles, per_start = seed % 3 == 1, 0.25 * (seed % 3 == 2)
    made = story(seed, cycles=cycles, per_start=per_start)
    table = causes(made.result).set_index("id")
    assert list(table.index) == [f"t{number}" for number in range(16)]
    free = -math.inf
    effective = {}
    for row in made.rows:  # starts take effect one after another
        free = max(free, row["decided"]) + per_start
        effective.setdefault(row["task"], free)
    sums = dict.fromkeys(CAUSES, 0.0)
    for task in range(16):
        ready, decided, until = made.ready[task], made.decided[task], made.until[task]
        seconds = [cause_at(made, task, second, cycles and (2 <= second < 4 or 7 <= second < 12 or second >= 15))
                   for second in range(int(ready), int(decided))]  # fmt: skip
        wanted = [(cause, detail, float(len(list(run)))) for (cause, detail), run in groupby(seconds)]
        begun = min(max(effective.get(task, decided), decided), until)
        if begun > decided:
            wanted.append(("scheduler", "decided; its start had not taken effect", begun - decided))
        if until > begun:
            wanted.append(("transfer", "decided; its first stage had not begun", until - begun))
        found = explain(made.result, f"t{task}")
        assert list(zip(found["cause"], found["detail"], found["seconds"], strict=True)) == wanted, task
        assert list(found["from"])[:1] == ([ready] if wanted else []) and list(found["to"])[-1:] == (
            [until] if wanted else []
        )
        for cause in CAUSES:
            total = sum(seconds for one, _, seconds in wanted if one == cause)
            assert table.loc[f"t{task}", cause] == total
            sums[cause] += total
        assert table.loc[f"t{task}", "wait"] == until - ready and table.loc[f"t{task}", "class"] == "abc"[task % 3]
    for by, groups in (("class", 3), ("user", 1), ("gpus", 0)):
        together = explain_all(made.result, by)
        assert together["tasks"].sum() == 16 and len(together) in (groups, 4, 5)
        assert {cause: together[cause].sum() for cause in CAUSES} == pytest.approx(sums)
    assert sum(sums.values()) > 20


def lost_at(made: Story, second: float) -> tuple[float, float, float]:
    """GPUs free, the part of them that the requests cannot use, and GPUs up, in a second."""
    nodes = made.free(second)
    free = lost = 0.0
    for node in nodes:
        left = {one: min(max(gpu.share - (gpu.full - WHOLE), 0), WHOLE) / WHOLE for one, gpu in node.gpus.items()
                if gpu.usable}  # fmt: skip
        free += sum(left.values())
        for shape in made.shape:
            first = next((mode for mode in SHAPES[shape] if mode.gpus), SHAPES[shape][0])
            if not parts_on(first, node):
                lost += sum(left.values()) / len(made.shape)
            elif first.gpus:
                mine = {one: node.gpus[one].type == first.type.name for one in left}
                useless = [part for one, part in left.items() if not mine[one] or part < first.share / WHOLE]
                lost += sum(useless) / len(made.shape)
    return free, lost, float(sum(gpu.usable for node in nodes for gpu in node.gpus.values()))


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_gpus_of_no_use_in_every_second(seed: int):
    made = story(seed + 50, 12)
    time, *found = fragmentation_steps(made.result)
    assert (np.diff(time) > 0).all() and time[0] == 0
    per_second = np.array([lost_at(made, float(second)) for second in range(END)])
    at = np.searchsorted(time, np.arange(END), side="right") - 1
    for column, values in enumerate(found):
        assert values[at] == pytest.approx(per_second[:, column])
    edges = np.array([0.0, 3.0, 7.0, 8.0, 20.0, 24.0, 30.0])
    means = [per_second[int(low):int(high), 1].sum() / per_second[int(low):int(high), 0].sum()
             for low, high in zip(edges[:-2], edges[1:-1], strict=True)]  # fmt: skip
    assert fragmentation_between(made.result, edges) == pytest.approx([*means, math.nan], nan_ok=True)
    table = made.result.fragmentation_over_time
    assert table["allocated_gpus"].to_numpy() == pytest.approx(found[2] - found[0])
    assert table["allocation"].to_numpy() == pytest.approx((found[2] - found[0]) / found[2])
    assert table["fragmentation"].to_numpy() == pytest.approx(np.divide(found[1], found[0], where=found[0] > 0,
                                                              out=np.full(len(time), math.nan)),
                                                              nan_ok=True)  # fmt: skip


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_gpus_of_no_use_where_all_take_whole_ones(seed: int):
    node = NodeSpec(cpus=6, memory=60, accelerators=((PLAIN, 4),), cpu_type=CPU)
    where = Cluster([node, NodeSpec(cpus=20, accelerators=((PLAIN, 2),), cpu_type=CPU),
                     NodeSpec(cpus=3, accelerators=((NOWHERE, 2),), cpu_type=CPU), NodeSpec(cpus=4,
                         cpu_type=CPU)])  # fmt: skip
    shapes = [
        [ONE], [gpu_mode(2, kind=PLAIN, millicores=5000, memory=30)], [gpu_mode(3, kind=PLAIN, span_any=True,
            millicores=9000)],
        [gpu_mode(2, kind=PLAIN, millicores=4000, node_count=2, memory=25)], [gpu_mode(kind=NOWHERE),
            gpu_mode(kind=PLAIN)],
        [Mode("cores", CPU, millicores=4000)], [gpu_mode(kind=PLAIN, gpu_memory=11)],
    ]  # fmt: skip
    at = [
        [(1,), (6,)],
        [(1, 2), (3, 4)],
        [(4, 6, 7), (1, 2, 3)],
        [(2, 6), (4, 7)],
        [(9,), (3,)],
        [(0,), (5,), (11,)],
        [],
    ]
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    shape = [*range(7), *(int(one) for one in rng.integers(6, size=9))]
    for task, kind in enumerate(shape):
        for _ in range(8 if at[kind] else 0):
            number, now = int(rng.integers(len(at[kind]))), float(rng.integers(0, 16))
            mode = shapes[kind][min(number, len(shapes[kind]) - 1)]
            row = {"task": task, "mode": shapes[kind].index(mode), "made": mode, "at": (at[kind][number], None),
                   "decided": now, "start": now + 1.0, "end": now + float(rng.integers(2, 9))}  # fmt: skip
            if rng.random() < 0.1:
                row |= {"end": math.nan, "outcome": OPEN}
            seconds = range(int(now), END if row["end"] != row["end"] else int(row["end"]))
            if all(min(value) >= 0 for second in seconds for value in amounts(second, [*rows, row], where, ())):
                rows.append(row)
                break
    tasks = workload(
        [0.0] * 16, [[1.0, 1.0] if len(shapes[one]) > 1 else [1.0, math.inf] for one in shape], shapes, shape
    )
    rec = record(where, tasks, [math.nan] * 16, [math.nan] * 16, [None] * 16, end=float(END))
    rec.places = list(dict.fromkeys(row["at"] for row in rows))
    rec.launches = launches([
        {key: value for key, value in row.items() if key not in ("made", "at")} | {"place": rec.places.index(row["at"])}
        for row in rows
    ])  # fmt: skip
    result = Result(rec)
    time, free, lost, up = fragmentation_steps(result)
    assert set(up) == {8.0} and time[0] == 0 and (np.diff(time) > 0).all()
    assert ((np.diff(free) != 0) | (np.abs(np.diff(lost)) > 1e-9)).all()
    steps = np.searchsorted(time, np.arange(END), side="right") - 1
    for second in range(END):
        nodes = free_at(second, rows, where, ())
        left = [sum(gpu.share for gpu in node.gpus.values()) / WHOLE for node in nodes]
        wanted = 0.0
        for one in shape:
            first = shapes[one][0]
            ways = shapes[one] if first.gpus else [first]
            wanted += sum(part for node, part in zip(nodes, left, strict=True)
                          if not any(parts_on(mode, node) for mode in ways)) / 16  # fmt: skip
        assert (free[steps[second]], lost[steps[second]]) == (sum(left), pytest.approx(wanted))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(12), 3))
@pytest.mark.parametrize(("low", "high"), [(0.0, float(END)), (3.0, 17.0)])
def test_the_fragmentation_of_a_window_is_a_mean_over_time(seed: int, low: float, high: float):
    """Of the seconds in which GPUs are free, the mean share of them that the mix cannot use."""
    made = story(seed)
    made.result.record.input.warmup, made.result.record.end = low, high
    result = Result(made.result.record)
    table = result.fragmentation_over_time
    shares = []
    for second in range(int(low), int(high)):
        row = table[table["time"] <= second].iloc[-1]
        if row["unallocated_gpus"] > 0:
            shares.append(row["fragmented_gpus"] / row["unallocated_gpus"])
    assert result.metric("fragmentation") == pytest.approx(np.mean(shares) if shares else math.nan, nan_ok=True)


def test_the_free_gpus_of_a_run_by_hand():
    one = record(Cluster([NodeSpec(accelerators=((PLAIN, 1),))]), workload([0], [2], [[gpu_mode(kind=PLAIN)]]), [1],
        [3],
                 [(1,)], end=6.0)  # fmt: skip
    assert [column.tolist() for column in fragmentation_steps(Result(one))] == [
        [0, 1, 3],
        [1, 0, 1],
        [0, 0, 0],
        [1, 1, 1],
    ]
    cores = Mode("cores", CPU, millicores=1000)
    rec = record(Cluster([NodeSpec(cpus=2, cpu_type=CPU)]), workload([0], [2], [[cores]]), [1], [3], [(0,)], end=6.0)
    assert fragmentation_between(Result(rec), np.array([0.0, 6.0])).tolist() == []  # nothing asks for GPUs, or has any
    assert math.isnan(Result(rec).metric("fragmentation"))
    half = record(
        Cluster([NodeSpec(accelerators=((SHARED, 1),))]), workload([0], [2], [[HALF]]), [1], [3], [(1,)], end=6.0
    )
    exact = fragmentation_between(Result(half), np.array([0.0, 2.0, 6.0, 10.0]))
    assert exact.tolist()[:2] == [0, 0] and math.isnan(exact[2])
    at_end = fragmentation_between(Result(half), np.array([4.0, 8.0]))
    assert at_end.tolist() == [0.0] or math.isnan(at_end[0])


def test_batches_wait_until_they_are_decided():
    """Two GPUs; a batch of t0 and t1 is decided at 2 and starts at 3, t2 alone at 4; starts take 0.5 s one by one.

    The start of t2 is decided at 2 too, and takes effect behind that of the batch, at 3.
    """
    tasks = workload([0, 1, 1], [2, 2, 2], id=np.array(["t0", "t1", "t2"], dtype=object))
    rec = record(Cluster([NodeSpec(accelerators=((PLAIN, 2),))]), workload([0, 1, 1], [2] * 3,
        [[gpu_mode(kind=PLAIN)]]),
                 [3, 3, 4], [5, 5, 6], [(1,), (1,), (2,)], batch=np.array([7, 7, -1]))  # fmt: skip
    rec.input.tasks.id = tasks.id
    rec.launches = launches([
        {"task": 0, "place": 0, "launch": 7, "members": 2, "decided": 2, "start": 3, "end": 5},
        {"task": 2, "place": 1, "launch": 8, "decided": 2, "start": 4, "end": 6},
    ])  # fmt: skip
    found = causes(Result(rec)).set_index("id")
    assert found["choice"].tolist() == [2, 1, 1] and found["transfer"].tolist() == [1, 1, 2]
    rec.input.decisions = SimpleNamespace(per_start=0.5)  # type: ignore[assignment]
    rec.batch[2] = 8
    found = causes(Result(rec)).set_index("id")
    assert found["choice"].tolist() == [2, 1, 1] and found["scheduler"].tolist() == [0.5, 0.5, 1.0]
    assert found["transfer"].tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_two_ways_to_replay_agree(seed: int):
    """Running sums over all launches, and launch after launch as it is done for MIG GPUs, give the same states."""
    made = story(seed + 70)
    record, modes = made.result.record, made.result.modes
    asked = [mode for shape in SHAPES for mode in shape]
    further = [np.arange(0.0, END, 3.0)]
    at, columns = RunReplay(record, modes, FreeCapacity(made.where, asked), further).states()
    steps = RunReplay(record, modes, FreeCapacity(made.where, asked), further)
    then, stepped = steps._step_by_step()
    grid = steps.grid

    def of_node(at: np.ndarray, columns: list[np.ndarray], node: int, moment: int) -> list[list[float]]:
        """What the last state says that begins by then."""
        mine = np.flatnonzero((columns[0] == node) & (at <= moment))
        return [column[mine[at[mine].argmax()]].tolist() for column in columns[1:7]]

    assert len(grid) > 10 and len(columns[0]) > len(made.where.nodes)
    for node in range(len(made.where.nodes)):
        for moment in range(len(grid)):
            assert of_node(at, columns, node, moment) == of_node(then, stepped, node, moment), (node, grid[moment])
    assert stepped[7].shape[1:] == (len(asked), 3) and stepped[7].all() and columns[7].shape[1] == 0
    assert (np.diff(stepped[0]) >= 0).all()
    pairs = list(zip(stepped[0].tolist(), then.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


MIG = DeviceType("h", memory=40, sharing=Sharing("mig", layouts=((3 / 7, 3 / 7), (4 / 7, 2 / 7, 1 / 7))))


def test_slices_that_are_free():
    """Layouts of 3 + 3 or 4 + 2 + 1 sevenths: a launch of 4 takes the second; next to it 2 fit, and 3 do not."""
    large, middle, small = (gpu_mode(kind=MIG, share=micro_share(part / 7)) for part in (4, 3, 2))
    rows = [(large, 1.0, 5.0), (small, 2.0, 4.0), (middle, 6.0, 9.0)]
    shapes = [[large], [middle], [small]]
    tasks = workload([0.0] * 6, [1.0] * 6, shapes, [0, 2, 1, 0, 1, 2])
    start = [row[1] for row in rows] + [math.nan] * 3
    rec = record(Cluster([NodeSpec(accelerators=((MIG, 1),))]), tasks, start, [row[2] for row in rows] + [math.nan] * 3,
                 [(1,)] * 3 + [None] * 3, end=10.0)  # fmt: skip
    table = causes(Result(rec))
    # The last three wait throughout.  4 sevenths fit into an empty GPU, 3 next to 3, and 2 next to either, not to both.
    busy = {3: [(1, 5), (6, 9)], 4: [(1, 5)], 5: [(2, 4)]}
    for row, spans in busy.items():
        nothing = sum(high - low for low, high in spans)
        assert table["no_capacity"][row] + table["fragmentation"][row] == nothing, row
        assert table["wait"][row] == 10


def test_a_fused_launch_holds_what_its_kernels_hold_together():
    """Two tasks as one kernel with 6 + 3 GB: from 1 to 4 there is no room for one that asks for 2 of 10."""
    modes = [gpu_mode(kind=PLAIN, gpu_memory=6, share=WHOLE // 2), gpu_mode(kind=PLAIN, gpu_memory=3, share=WHOLE // 2),
             gpu_mode(kind=PLAIN, gpu_memory=2, share=0)]  # fmt: skip
    tasks = workload([0, 0, 0], [3, 3, 3], [[mode] for mode in modes], [0, 1, 2])
    rec = record(Cluster([NodeSpec(accelerators=((PLAIN, 1),))]), tasks, [1, 1, math.nan], [4, 4, math.nan],
                 [(1,), (1,), None], end=6.0, batch=np.array([0, 0, -1]))  # fmt: skip
    rec.launches = launches([{"task": 0, "place": 0, "members": 2, "start": 1, "end": 4}])
    plain = causes(Result(rec))["no_capacity"][2]
    rec.fused = {0: ((0, 1), (0.0, 0.0))}
    replay = RunReplay(rec, Result(rec).modes, FreeCapacity(rec.input.cluster, modes))
    assert replay.modes[0] is not modes[0] and replay.modes[0].parts == (modes[0], modes[1]) and plain == 0
