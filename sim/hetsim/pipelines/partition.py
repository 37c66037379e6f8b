"""Partition of a network into pipeline stages, over equal or unlike devices.

`pipeline_partition` is PipeDream's dynamic program for equal devices, with replication and nested levels (GPUs in
nodes, nodes in a cluster).  `unlike_partition` is its form for devices and links that differ: generations of GPUs, a
GPU and an NPU.  Both minimize the seconds of the slowest stage or transfer, the time per micro-batch or request.
References: Harlap et al., PipeDream: Fast and Efficient Pipeline Parallel DNN Training (2018), and the optimizer that
its authors published with it.
Cost, with c cuts, M devices (per level): O(c³ M²) for each level, O(c² M³ log c) for each order of unlike groups.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.errors import NothingMeets, UsageError
from hetsim.pipelines.layer_cuts import Cuts, Layer, StageMemory

MAX_CUTS = 1000  # more cuts are refused: time grows with their third power
# Up to this number of groups all orders are tried; above it, orders by speed and a local search from there
ORDERS_OF = 4
# Up to this number of device counts per group all are tried if training is short of memory; above it, all or none
MAX_VARIANTS = 64


@dataclass(frozen=True)
class PipelineStage:
    """The layers after cut `first` - 1 up to cut `last`, on some equal devices."""

    first: int
    last: int
    replicas: int
    device: str = ""


@dataclass(frozen=True)
class PipelinePartition:
    """Stages in order; `seconds` between micro-batches, `latency` of one micro-batch."""

    stages: tuple[PipelineStage, ...]
    seconds: float
    latency: float | None = None


@dataclass(frozen=True)
class NetworkLevel:
    """A level of a network hierarchy: `count` equal parts on links of `rate` bytes/s."""

    count: int
    rate: float


@dataclass(frozen=True)
class EqualDevices:
    """Equal devices; bytes/s to other devices (`link`) and to each other (`inside`)."""

    name: str
    count: int = 1
    speed: float = 1.0
    link: float = math.inf
    inside: float = math.inf
    memory: float = math.inf
    measured: str = ""  # device type whose measured times in the profile apply; default: `name`


@dataclass(frozen=True)
class StageWay:
    """The connection of two groups' devices: bytes per second, and latency."""

    rate: float = math.inf
    latency: float = 0.0
    together: float = math.inf  # bytes per second of all pairs of devices, if they share a part of the path


Ways = Callable[[EqualDevices, EqualDevices], StageWay]


def slower_link(a: EqualDevices, b: EqualDevices) -> StageWay:
    """Return the path between two groups, as fast as the slower of their links."""
    return StageWay(a.inside if a is b else min(a.link, b.link))


def seconds_on(layer: Layer, group: EqualDevices, inference: bool) -> float:
    """Return the seconds of a layer on a group's device, measured or from its speed."""
    given = (layer.on or {}).get(group.measured or group.name)
    return (given if given is not None else layer.forward if inference else layer.seconds) / group.speed


def pipeline_partition(
    cuts: Cuts, levels: Sequence[NetworkLevel], *, activations: bool = True, replication: bool = True,
    memory: float = math.inf,
) -> PipelinePartition:  # fmt: skip
    """Find the pipeline with minimum time between micro-batches on equal devices.

    levels: from the innermost to the outermost.  All devices are used, as PipeDream does; raise UsageError if that is
    impossible or there are too many cuts.  `activations=False` ignores transfers of activations and their gradients;
    without `replication` each device is a stage.  A stage that needs more than a device's `memory` is not a candidate.
    The need grows with the number of devices of later stages (more micro-batches are in flight); with several levels
    it is an upper bound: all devices outside the stage's group count as devices of later stages.  Raise NothingMeets,
    with the needed and the available memory, if no pipeline fits.
    """
    _check_size(cuts)
    weights = cuts.sums([one.weights for one in cuts.layers])
    times = cuts.sums([one.seconds for one in cuts.layers])
    solved: list[_Solved] = []
    within, total = 1, math.prod(level.count for level in levels)
    for number, level in enumerate(levels, 1):
        bounded = number == 1 and memory < math.inf
        room = _Room(StageMemory(cuts, inference=False), memory, total) if bounded else None
        solved.append(
            _level(
                cuts, times, weights, level=level, within=within, last=number == len(levels), activations=activations,
                replication=replication, room=room
            )
        )  # fmt: skip
        times = solved[-1].best[level.count - 1]
        within = level.count
    seconds = float(times[0, -1])
    if math.isinf(seconds):
        parts = " × ".join(str(level.count) for level in levels)
        if memory < math.inf:
            needed = StageMemory(cuts, inference=False).min_bytes(total, True, replication)
            several = "" if len(levels) == 1 else " (and more in nested levels)"
            raise NothingMeets(_too_little(needed, f"each has {_size(memory)}{several}"))
        raise UsageError(f"{len(cuts.sets)} cuts are too few for {parts} devices with a stage each; use fewer devices")
    return PipelinePartition(tuple(_stages(solved, len(solved) - 1, 0, j=len(cuts.sets) - 1, replicas=1)), seconds)


def _size(size: float) -> str:
    unit, factor = next(((u, f) for u, f in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= f), ("B", 1.0))
    return f"{size / factor:.6g} {unit}"


def _too_little(least: float, there: str) -> str:
    text = f"no pipeline fits the memory: the best cut needs {_size(least)} on a device, but {there}"
    return f"{text}; use smaller micro-batches, larger devices or more devices"


@dataclass(frozen=True)
class _Room:
    stages: StageMemory
    memory: float
    devices: int

    def allows(self, replicas: int, used: int) -> np.ndarray:
        """Return which stages fit in memory; used: devices of a stage and all before it."""
        return self.stages.needed(replicas, self.devices - used) <= self.memory


@dataclass(frozen=True)
class _Solved:
    """Best splits of layers [i, j], by parts used: time, last cut or -1, last parts."""

    best: list[np.ndarray]
    cut: list[np.ndarray]
    parts: list[np.ndarray]


def _level(
    cuts: Cuts, times: np.ndarray, weights: np.ndarray, level: NetworkLevel, within: int, last: bool, activations: bool,
    replication: bool, room: _Room | None = None,
) -> _Solved:  # fmt: skip
    """Find the fastest pipelines for all ranges of layers and all numbers of parts.

    A part is one device, or a group of the inner level; the slowest stage's time is minimized.  times, weights: seconds
    and weights of layers [i, j] as a stage on one part.  within: number of devices or groups in a part, which share the
    gradient reduction.  last: True for the outermost level: it begins with the first layer.
    """
    n = len(cuts.sets)
    measured = np.isfinite(times)

    def on(m: int, shared: int) -> np.ndarray:
        reduced = np.where(measured, 4 * (m - 1) * np.where(measured, weights, 0.0) / (level.rate * m) / shared, 0.0)
        return (times + reduced) / m

    starts = 1 if last else n + 1
    solved = _Solved([], [], [])
    for m in range(1, level.count + 1):
        best = on(m, within) if replication or m == 1 else np.full_like(times, math.inf)
        if room is not None:
            best[~room.allows(m, m)] = math.inf
        cut, parts = np.full(best.shape, -1), np.full(best.shape, m)
        for tail in range(1, m if replication else min(m, 2)):
            stage = on(tail, 1)[1:]
            if room is not None:
                stage = np.where(room.allows(tail, m)[1:], stage, math.inf)
            if activations:
                sent = 2 * cuts.crossing / (level.rate * tail)
                arriving = sent.copy()
                arriving[-1] = 0.0  # the whole network's output stays
                stage = np.maximum(stage, np.maximum(sent[:, None], arriving[None, :]))
            stage = np.where(cuts.before, stage, math.inf)
            head = solved.best[m - tail - 1]
            for i in range(starts):
                seconds = np.maximum(head[i][:, None], stage)
                where = np.argmin(seconds, axis=0)
                lowest = seconds[where, np.arange(n)]
                better = lowest < best[i]
                best[i][better], cut[i][better], parts[i][better] = lowest[better], where[better], tail
        solved.best.append(best)
        solved.cut.append(cut)
        solved.parts.append(parts)
    return solved


def _stages(solved: list[_Solved], level: int, i: int, j: int, replicas: int) -> Iterator[PipelineStage]:
    if level < 0:
        yield PipelineStage(i, j, replicas)
        return
    tables, m, stages = solved[level], len(solved[level].best), []
    while True:
        cut, parts = int(tables.cut[m - 1][i, j]), int(tables.parts[m - 1][i, j])
        stages.append((cut + 1 if cut >= 0 else i, j, parts))
        if cut < 0:
            break
        j, m = cut, m - parts
    for first, last, parts in reversed(stages):
        yield from _stages(solved, level - 1, first, j=last, replicas=replicas * parts)


def unlike_partition(
    cuts: Cuts, groups: Sequence[EqualDevices], *, inference: bool = False, replication: bool = True,
    deadline: float = math.inf, reorder: bool = True, ways: Ways = slower_link,
) -> PipelinePartition:  # fmt: skip
    """Find the fastest pipeline over unlike devices; among equals, of minimum latency.

    Training sends activations and gradients and reduces the gradients of a replicated stage; `inference` is the forward
    pass alone.  The latency of an item is the sum of its stages and transfers, at most `deadline`.  Devices may remain
    unused.  A transfer uses the path between two groups (`ways`; default: the slower of their links), in parallel over
    the smaller of the two numbers of replicas.  A stage that needs more than the memory of its devices is not a
    candidate.  For a given order of the groups the result is exact.  With `reorder`, all orders are tried if there are
    at most `ORDERS_OF` groups; for more groups, a local search starts from orders by speed and from the given order.
    Raise NothingMeets, with the limit and the best possible value, if no plan meets the deadline or fits.
    """
    _check_size(cuts)
    search = _Unlike(cuts, inference, replication, ways)
    best: tuple[float, float] = (math.inf, math.inf)
    chosen: PipelinePartition | None = None
    shortest = math.inf

    def attempt(order: Sequence[EqualDevices]) -> bool:
        nonlocal best, chosen, shortest
        plan, bound = search.order(order, deadline, best[0])
        shortest = min(shortest, bound)
        if plan is None or plan.latency is None or (plan.seconds, plan.latency) >= best:
            return False
        best, chosen = (plan.seconds, plan.latency), plan
        return True

    tight = not inference and any(one.memory < math.inf for one in groups)
    for chosen_groups in _variants(groups) if tight else [groups]:
        if not reorder:
            attempt(chosen_groups)
        elif len(chosen_groups) <= ORDERS_OF:
            for order in itertools.permutations(chosen_groups):
                attempt(order)
        else:
            by_speed = sorted(chosen_groups, key=lambda one: float(search.stages_of(one)[0][0][0, -1]))
            for start in (by_speed, by_speed[::-1], list(chosen_groups)):
                _descend(list(start), attempt)
    if chosen is None and math.isinf(shortest):
        needed = search.memory.min_bytes(sum(one.count for one in groups), False, replication)
        there = ", ".join(f"{one.name} has {_size(one.memory)}" for one in groups if one.memory < math.inf)
        raise NothingMeets(_too_little(needed, there))
    if chosen is None:
        raise NothingMeets(
            f"no plan meets the deadline of {deadline:.4g} s: the shortest latency is {shortest:.4g} s; "
            "allow a longer latency, or give faster devices or links"
        )
    return chosen


def _variants(groups: Sequence[EqualDevices]) -> Iterator[list[EqualDevices]]:
    """Yield the groups with each choice of device counts (if too many: all or none)."""
    every = math.prod(one.count + 1 for one in groups) <= MAX_VARIANTS
    counts = [range(one.count, -1, -1) if every else (one.count, 0) for one in groups]
    if len(groups) > ORDERS_OF and not every:
        yield list(groups)
        return
    for used in itertools.product(*counts):
        if any(used):
            yield [
                one if one.count == n else replace(one, count=n) for one, n in zip(groups, used, strict=True) if n
            ]  # fmt: skip


def _descend(order: list[EqualDevices], attempt: Callable[[list[EqualDevices]], bool]) -> None:
    attempt(order)
    improved = True
    while improved:
        improved = False
        for a, b in itertools.combinations(range(len(order)), 2):
            order[a], order[b] = order[b], order[a]
            if attempt(order):
                improved = True
            else:
                order[a], order[b] = order[b], order[a]


class _Unlike:
    def __init__(self, cuts: Cuts, inference: bool, replication: bool, ways: Ways):
        self.cuts, self.inference, self.replication, self.ways = cuts, inference, replication, ways
        self.memory = StageMemory(cuts, inference)
        self.weights = cuts.sums([one.weights for one in cuts.layers])
        self.stages: dict[EqualDevices, list[tuple[np.ndarray, np.ndarray]]] = {}

    def stages_of(self, group: EqualDevices) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (period, latency) in seconds of each stage, by its number of replicas."""
        if group not in self.stages:
            each = self.cuts.sums([seconds_on(one, group, self.inference) for one in self.cuts.layers])
            rows = []
            for m in range(1, (group.count if self.replication else 1) + 1):
                reduced = np.zeros_like(each)
                if m > 1 and not self.inference:
                    measured = np.isfinite(each)
                    reduced[measured] = 4 * (m - 1) * self.weights[measured] / (group.inside * m)
                rows.append(((each + reduced) / m, each + reduced))
            self.stages[group] = rows
        return self.stages[group]

    def order(
        self, groups: Sequence[EqualDevices], deadline: float, below: float
    ) -> tuple[PipelinePartition | None, float]:  # fmt: skip
        """Return the fastest pipeline over groups in this order, and the minimum latency.

        The pipeline is None if none meets `deadline` with at most `below` seconds between items.  The minimum latency
        is that of any pipeline over the groups, however slow; inf if no pipeline fits.
        """
        shortest = self._shortest(groups, math.inf)
        if shortest.latency is None or shortest.latency > deadline:
            return None, math.inf if shortest.latency is None else shortest.latency
        times = self._candidates(groups)
        times = times[times <= below]
        low, high = 0, len(times) - 1  # bisection: a longer time admits every plan of a shorter one
        best_plan: PipelinePartition | None = None
        while low <= high:
            middle = (low + high) // 2
            plan = self._shortest(groups, float(times[middle]))
            if plan.latency is not None and plan.latency <= deadline:
                best_plan, high = PipelinePartition(plan.stages, float(times[middle]), plan.latency), middle - 1
            else:
                low = middle + 1
        return best_plan, shortest.latency

    def _candidates(self, groups: Sequence[EqualDevices]) -> np.ndarray:
        values = [busy[np.isfinite(busy)] for group in groups for busy, _ in self.stages_of(group)]
        for a, b in itertools.combinations_with_replacement(groups, 2):
            for one, other in ((a, b), (b, a)):
                values += [self._sent(self.ways(one, other), m) for m in range(1, min(a.count, b.count) + 1)]
        return np.unique(np.concatenate(values))

    def _alone(self, way: StageWay) -> np.ndarray:
        """Return, by cut, the seconds to send one item's data over the path `way` if idle."""
        seconds = (1 if self.inference else 2) * self.cuts.crossing / way.rate
        return np.where(self.cuts.crossing > 0, way.latency + seconds, 0.0) if way.latency else seconds

    def _sent(self, way: StageWay, shared: int) -> np.ndarray:
        """Return, by cut, the seconds per item if `shared` device pairs send in turn."""
        if way.latency == 0 and way.together == math.inf:
            return (1 if self.inference else 2) * self.cuts.crossing / (way.rate * shared)
        together = (1 if self.inference else 2) * self.cuts.crossing / way.together
        return np.maximum(self._alone(way) / shared, together)

    def _shortest(self, groups: Sequence[EqualDevices], longest: float) -> PipelinePartition:
        """Return the minimum-latency plan with stages of ≤ `longest` s, or an empty plan."""
        n = len(self.cuts.sets)
        # (group, devices used there up to and with the last stage, its replicas) -> latency up to each cut, and from
        # where each came
        reached: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        keys: list[tuple[int, int, int]] = []
        devices = sum(group.count for group in groups)
        before = 0
        for g, group in enumerate(groups):
            tables = self.stages_of(group)
            for used in range(1, group.count + 1):
                for m in range(1, min(used, len(tables)) + 1):
                    busy, item = tables[m - 1]
                    allowed = np.where(busy <= longest, item, math.inf)
                    if group.memory < math.inf:
                        allowed[self.memory.needed(m, devices - before - used) > group.memory] = math.inf
                    latency = allowed[0].copy() if used == m else np.full(n, math.inf)
                    came, cut = np.full(n, -1), np.full(n, -1)
                    for index, (g0, used0, m0) in enumerate(keys):
                        if used != m if g0 < g else used0 != used - m:
                            continue
                        earlier = reached[keys[index]][0]
                        way = self.ways(groups[g0], group)
                        sent = self._sent(way, min(m0, m))
                        start = np.where(sent <= longest, earlier + self._alone(way), math.inf)
                        seconds = start[:, None] + allowed[1:]
                        where = np.argmin(seconds, axis=0)
                        lowest = seconds[where, np.arange(n)]
                        better = lowest < latency
                        latency[better], came[better], cut[better] = lowest[better], index, where[better]
                    if np.isfinite(latency).any():
                        reached[(g, used, m)] = (latency, came, cut)
                        keys.append((g, used, m))
            before += group.count
        if not keys:
            return PipelinePartition((), math.inf)
        last = min(range(len(keys)), key=lambda one: float(reached[keys[one]][0][-1]))
        total = float(reached[keys[last]][0][-1])
        if math.isinf(total):
            return PipelinePartition((), math.inf)
        stages: list[PipelineStage] = []
        j = n - 1
        while True:
            g, _, m = keys[last]
            _, came, cut = reached[keys[last]]
            k = int(cut[j])
            stages.append(PipelineStage(k + 1, j, m, groups[g].name))
            if k < 0:
                return PipelinePartition(tuple(reversed(stages)), longest, total)
            last, j = int(came[j]), k


def memory_of(cuts: Cuts, found: PipelinePartition, inference: bool) -> list[float]:
    memory = StageMemory(cuts, inference)
    devices = [stage.replicas for stage in found.stages]
    return [
        float(memory.needed(stage.replicas, sum(devices[place:]))[stage.first, stage.last])
        for place, stage in enumerate(found.stages, 1)
    ]


def _check_size(cuts: Cuts) -> None:
    if len(cuts.sets) > MAX_CUTS:
        raise UsageError(f"a network must have at most {MAX_CUTS:,} cuts; got {len(cuts.sets):,}: join layers")
