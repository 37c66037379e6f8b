"""Schedules of micro-batches in pipeline stages: GPipe, 1F1B, interleaved.

The closed forms of a step (`hetsim.formulas.training.step`) are the end times of these schedules.  A run of hetsim uses
the closed forms; pictures show the schedules.
References: Huang et al., GPipe (2019); Narayanan et al., PipeDream (2019), and Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM (2021), whose order an interleaved schedule has.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Literal

from hetsim.errors import UsageError
from hetsim.model.exchange import StepPipeline
from hetsim.pipelines.layer_cuts import Cuts
from hetsim.pipelines.partition import EqualDevices, PipelinePartition, Ways, seconds_on, slower_link

PipelineOrder = Literal["gpipe", "1f1b", "interleaved", "forward"]  # `forward` is inference
MAX_PASSES = 20_000  # maximum number of passes; a larger step is shown with fewer micro-batches


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of a stage (or chunk) for one micro-batch."""

    forward: float
    backward: float = 0.0
    exchange: tuple[float, float] = (0.0, 0.0)  # idle seconds of communication after each forward and backward pass
    # extra seconds of each forward and backward pass of the last chunk, e.g. of the vocabulary layer
    more: tuple[float, float] = (0.0, 0.0)
    replicas: int = 1
    name: str = ""


@dataclass(frozen=True)
class BoundarySeconds:
    """Seconds to send a micro-batch to the next stage, and seconds for its gradients."""

    there: float = 0.0
    back: float = 0.0
    lanes: int = 1  # number of concurrent transfers, both directions together


@dataclass(frozen=True)
class PipelineSlot:
    """A micro-batch's pass through a stage, which communicates from `end` to `free`."""

    stage: int
    replica: int
    micro_batch: int
    chunk: int
    forward: bool
    begin: float
    end: float
    free: float


@dataclass(frozen=True)
class PipelineTransfer:
    source: int
    target: int
    micro_batch: int
    forward: bool
    begin: float
    end: float


@dataclass(frozen=True)
class PipelineSchedule:
    """All passes by begin time, and transfers; stages are numbered from 0."""

    order: PipelineOrder
    stages: tuple[StageSeconds, ...]
    micro_batches: int
    chunks: int
    slots: tuple[PipelineSlot, ...]
    transfers: tuple[PipelineTransfer, ...]
    after: tuple[tuple[str, float], ...] = ()  # name and seconds of what every stage does after its last pass
    all_micro_batches: int | None = None  # number of micro-batches of the step, if only the first are laid out
    seconds: float | None = None  # seconds of the whole training step with all micro-batches
    name: str = ""

    @property
    def makespan(self) -> float:
        return max(slot.free for slot in self.slots) + sum(seconds for _, seconds in self.after)

    @property
    def bubble(self) -> float:
        """Fraction of a step in which the busiest device is idle.

        If only the first micro-batches are laid out, the bubble is still that of the whole step, since the pipeline
        fills and empties once, whatever their number.
        """
        work: dict[tuple[int, int], float] = {}
        for slot in self.slots:
            work[slot.stage, slot.replica] = work.get((slot.stage, slot.replica), 0.0) + slot.free - slot.begin
        longest = max(work.values()) + sum(seconds for _, seconds in self.after)
        step_seconds = self.makespan if self.all_micro_batches is None or self.seconds is None else self.seconds
        return (self.makespan - longest) / step_seconds if longest else 0.0


Pass = tuple[bool, int, int]  # (is forward, micro-batch, chunk)


def stage_order(
    order: PipelineOrder, stages: int, stage: int, micro_batches: Sequence[int], chunks: int = 1,
    flying: int | None = None,
) -> list[Pass]:  # fmt: skip
    """Return the passes of one stage (or of one of its replicas) in order.

    chunks: number of separate parts of the model on each stage.  flying: maximum number of micro-batches in flight
    under 1F1B; None: the number of stages from this one to the last.
    """
    if order == "forward":
        return [(True, number, 0) for number in micro_batches]
    if order == "gpipe":
        return [(ahead, number, 0) for ahead in (True, False) for number in micro_batches]
    total = len(micro_batches) * chunks
    rounds = stages * chunks
    forward: list[Pass] = []
    backward: list[Pass] = []
    for place in range(total):
        if chunks == 1:
            number, chunk = micro_batches[place], 0
        else:  # `stages` micro-batches go through a chunk, then the same through the next
            number = micro_batches[place // rounds * stages + place % stages]
            chunk = place % rounds // stages
        forward.append((True, number, chunk))
        backward.append((False, number, chunks - 1 - chunk))
    if chunks == 1:
        ahead = (stages - stage if flying is None else flying) - 1
    else:
        ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, total)
    passes = forward[:ahead]
    for place in range(ahead, total):
        passes += [forward[place], backward[place - ahead]]
    return passes + backward[total - ahead :]


class _Stage:
    def __init__(self, stage: int, replica: int, passes: list[Pass]):
        self.stage, self.replica, self.passes = stage, replica, passes
        self.next, self.free = 0, True


def pipeline_schedule(
    stages: Sequence[StageSeconds], micro_batches: int, order: PipelineOrder, chunks: int = 1,
    boundaries: Sequence[BoundarySeconds] = (),
) -> PipelineSchedule:  # fmt: skip
    """Lay out all passes: each stage runs its passes in order, as inputs arrive.

    Replicas process micro-batches in turn; under 1F1B each replica has at most 1 + ceil(later devices / replicas of the
    stage) of them in flight.  Without `boundaries` the only communication is `StageSeconds.exchange`.  Cost is O(n log
    n) with n = 2 × stages × chunks × micro-batches passes.
    """
    return _Layout(stages, micro_batches, order, chunks=chunks, boundaries=boundaries).schedule()


class _Layout:
    def __init__(
        self, stages: Sequence[StageSeconds], micro_batches: int, order: PipelineOrder, chunks: int,
        boundaries: Sequence[BoundarySeconds],
    ):  # fmt: skip
        self.stages, self.order, self.chunks, self.micro_batches = stages, order, chunks, micro_batches
        self.boundaries = boundaries or [BoundarySeconds()] * (len(stages) - 1)
        self.devices: list[list[_Stage]] = []
        for number, stage in enumerate(stages):
            flying = 1 + math.ceil(sum(one.replicas for one in stages[number + 1 :]) / stage.replicas)
            self.devices.append([
                _Stage(number, replica, stage_order(
                    order, len(stages), number, micro_batches=range(replica, micro_batches, stage.replicas),
                    chunks=chunks, flying=flying))
                for replica in range(stage.replicas)
            ])  # fmt: skip
        self.lanes = [[0.0] * one.lanes for one in self.boundaries]
        self.arrived: set[tuple[int, Pass]] = {(0, (True, number, 0)) for number in range(micro_batches)}
        self.events: list[tuple[float, int, _Stage | None, tuple[int, Pass] | None]] = []
        self.numbers = count()
        self.slots: list[PipelineSlot] = []
        self.transfers: list[PipelineTransfer] = []

    def schedule(self) -> PipelineSchedule:
        for group in self.devices:
            for device in group:
                self._start(device, 0.0)
        while self.events:
            now, _, freed, came = heapq.heappop(self.events)
            if freed is not None:
                freed.free = True
                self._start(freed, now)
            if came is not None:
                self.arrived.add(came)
                stage, (_, number, _) = came
                self._start(self.devices[stage][number % len(self.devices[stage])], now)
        return PipelineSchedule(
            self.order, tuple(self.stages), self.micro_batches, chunks=self.chunks, slots=tuple(self.slots),
            transfers=tuple(self.transfers)
        )

    def _start(self, device: _Stage, now: float) -> None:
        if not device.free or device.next == len(device.passes):
            return
        one = device.passes[device.next]
        if (device.stage, one) not in self.arrived:
            return
        ahead, number, chunk = one
        stage = self.stages[device.stage]
        seconds = stage.forward if ahead else stage.backward
        if chunk == self.chunks - 1:
            seconds += stage.more[0 if ahead else 1]
        end = now + seconds
        free = end + stage.exchange[0 if ahead else 1]
        device.next, device.free = device.next + 1, False
        times = {"begin": now, "end": end, "free": free}
        self.slots.append(PipelineSlot(device.stage, device.replica, number, chunk=chunk, forward=ahead, **times))
        heapq.heappush(self.events, (free, next(self.numbers), device, None))
        self._send(device.stage, one, end, free)

    def _send(self, stage: int, one: Pass, end: float, free: float) -> None:
        ahead, number, chunk = one
        last = len(self.stages) - 1
        target, then = stage + (1 if ahead else -1), one
        if ahead and stage == last:
            if self.order == "forward":
                return
            target, then = (0, (True, number, chunk + 1)) if chunk + 1 < self.chunks else (last, (False, number, chunk))
        elif not ahead and stage == 0:
            if chunk == 0:
                return
            target, then = last, (False, number, chunk - 1)
        arrives = free
        if abs(target - stage) == 1:
            source = min(stage, target)
            boundary = self.boundaries[source]
            seconds = boundary.there if ahead else boundary.back
            if seconds:
                lanes = self.lanes[source]
                lane = number % len(lanes)
                end = max(free, lanes[lane])
                arrives = lanes[lane] = end + seconds
        if target != stage and arrives > end:
            self.transfers.append(PipelineTransfer(stage, target, number, forward=ahead, begin=end, end=arrives))
        heapq.heappush(self.events, (arrives, next(self.numbers), None, (target, then)))


def step_schedule(pipeline: StepPipeline, seconds: Mapping[str, float], whole: float) -> PipelineSchedule:
    """Return the schedule of a training step, whose length is given by a formula.

    seconds: exposed communication of a whole step by phase; whole: seconds of the step by the formula.  All-reduces of
    tensor parallelism and expert exchanges are part of the passes; gradient reduction and the update follow the last
    pass of each stage.  If there are more than MAX_PASSES passes, only the first micro-batches are laid out.  Raise
    UsageError if even the shortest schedule (one micro-batch or, with several chunks, one per stage) has more passes.
    """
    stages, all_of_them, chunks = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    each = all_of_them * chunks
    ahead = pipeline.ahead * seconds.get("tensor", 0.0) + seconds.get("experts", 0.0) / 2
    back = seconds.get("tensor", 0.0) + seconds.get("experts", 0.0) - ahead
    hop = seconds.get("pipeline", 0.0) / 2 / each
    stage = StageSeconds(pipeline.forward / chunks + ahead / each, pipeline.backward / chunks + back / each, (hop, hop))
    last = replace(stage, more=(pipeline.head / 3, pipeline.head * 2 / 3))
    limit = MAX_PASSES // (2 * stages * chunks)
    if chunks > 1:
        limit -= limit % stages  # an interleaved schedule goes in rounds of its stages
    if limit < 1:
        raise UsageError(f"{stages:,} stages of {chunks} chunks are too many to draw")
    drawn = min(all_of_them, limit)
    schedule = pipeline_schedule([stage] * (stages - 1) + [last], drawn, pipeline.schedule, chunks)
    ends = (("gradients", seconds.get("data", 0.0)), ("update", pipeline.update))
    given = all_of_them if drawn < all_of_them else None
    return replace(schedule, after=tuple(one for one in ends if one[1]), all_micro_batches=given, seconds=whole)


def partition_schedule(
    cuts: Cuts, found: PipelinePartition, groups: Mapping[str, EqualDevices], *, inference: bool, micro_batches: int,
    ways: Ways = slower_link,
) -> PipelineSchedule:  # fmt: skip
    """Return the schedule of micro-batches in a partition: 1F1B, or forward only.

    groups: the devices, by the names in the stages.  Transfers overlap computing, both directions on the same links, as
    in the partition; replicas reduce gradients with each backward pass.  The time of a layer is divided into forward
    and backward passes in the ratio of the profile, or 1 : 2 if the profile has no ratio for the layer.
    """
    stages = []
    for stage in found.stages:
        group, layers = groups[stage.device], cuts.between(stage.first, stage.last)
        seconds = [seconds_on(one, group, inference) for one in layers]
        ahead = [both if inference else both * (one.forward / one.seconds if one.seconds else 1 / 3)
                 for one, both in zip(layers, seconds, strict=True)]  # fmt: skip
        reduced = 0.0
        if stage.replicas > 1 and not inference:
            weights = math.fsum(one.weights for one in layers)
            reduced = 4 * (stage.replicas - 1) * weights / (group.inside * stage.replicas)
        back = math.fsum(seconds) - math.fsum(ahead)
        stages.append(StageSeconds(math.fsum(ahead), back + reduced, replicas=stage.replicas, name=stage.device))
    boundaries = []
    for one, other in pairwise(found.stages):
        way = ways(groups[one.device], groups[other.device])
        sent = float(cuts.crossing[one.last])
        seconds_of_it = way.latency + sent / way.rate if sent else 0.0
        back = 0.0 if inference or not sent else sent / way.rate
        boundaries.append(BoundarySeconds(seconds_of_it, back, min(one.replicas, other.replicas)))
    order: PipelineOrder = "forward" if inference else "1f1b"
    return pipeline_schedule(stages, micro_batches, order, boundaries=boundaries)
