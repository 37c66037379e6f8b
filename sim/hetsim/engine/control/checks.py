"""Invariants of `--check`: recounts the engine's state after every round (slow).

Each invariant is an assertion whose message describes the violation.
"""

import math
from dataclasses import dataclass

import numpy as np

from hetsim.engine.core.state import RunState, launches_on
from hetsim.engine.flight.launch import BEFORE, COMPUTE, Launch
from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.resources.partition_limits import Budget
from hetsim.errors import InvariantError
from hetsim.model.cluster import Partition
from hetsim.model.device_type import WHOLE
from hetsim.model.record import COMPLETED, UNFINISHED
from hetsim.model.task import RUNNING, WAITING


@dataclass(eq=False)
class Checker:
    """Recounts the state that the engine updates incrementally, and compares both."""

    state: RunState
    checks: int = 0
    _last_now: float = -math.inf

    def check(self) -> None:
        """Raise InvariantError for the first invariant of the run's state that fails."""
        if not __debug__:
            raise InvariantError("checks need assertions, which python -O leaves out: run without -O")
        self.checks += 1
        now = self.state.clock._now
        try:
            assert now >= self._last_now, f"time ran backwards from {self._last_now:g} s"
            self._last_now = now
            self._tasks()
            self._capacity()
            self._stages(now)
            self._items(now)
            defects = self.state.serving.defects()
            assert not defects, defects[0]
        except AssertionError as error:
            raise InvariantError(f"t = {now:g} s: {error}") from error

    def _tasks(self) -> None:
        """Check that every arrived task is in exactly one state and one container."""
        state = self.state
        in_launches = state.iterating
        seen: set[int] = set()
        for launch in [*self._launches(), *state.residents.values()]:
            in_launches += 0 if launch.resident else launch.count  # a replica's requests are counted in `iterating`
            for task in launch.tasks if launch.resident else launch._tasks or ():
                assert task.state == RUNNING, f"{task} is in a launch but not marked running"
                assert task._launch is launch, f"{task} does not know its launch or replica"
                assert task.index not in seen, f"{task} runs twice"
                seen.add(task.index)
        for row, task in state.waiting.items():
            assert task.state == WAITING, f"{task} waits but is marked otherwise"
            assert row not in seen, f"{task} waits and runs"
            seen.add(row)
        self._requests(seen)
        # Linear in all tasks, so only every 64th time; the columns of requests are written at the end of the run.
        if self.checks % 64 == 1 and not state.queues:
            self._columns(len(state.waiting) + in_launches + len(state.graph.blocked))

    def _requests(self, running: set[int]) -> None:
        state = self.state
        counted = sum(launch.count for launch in self._launches() if launch.terms is not None)
        for queue in state.queues:
            rows = queue.waiting_rows()
            whose = f"of {queue.service.name}"
            assert len(rows) == len(queue), f"{len(rows)} requests {whose} wait, not {len(queue)}"
            assert rows == sorted(set(rows), key=queue.order), f"requests {whose} are out of order"
            assert running.isdisjoint(rows), f"a request {whose} waits and runs"
            counted += len(rows) + (0 if queue.column is None else queue.column.total - queue.arrived)
        answering = any(queue.service.response_delay for queue in state.queues)
        requests_left = state.requests_left
        # Answers in transit are in `requests_left` but in no list.
        assert counted == requests_left or (answering and counted < requests_left), "a request was lost"

    def _launches(self) -> list[Launch]:
        return [*self.state.running.values(), *self.state.lent.values()]

    def _capacity(self) -> None:
        """Check that free and occupied amounts add up to the capacity of each node."""
        state = self.state
        capacity = state.capacity
        cpu = [node.node.cpus * 1000 for node in capacity.nodes]
        memory = [node.node.memory for node in capacity.nodes]
        share: dict[int, int] = {}
        placements = [launch.placement for launch in (*state.residents.values(), *self._launches())]
        used: dict[Partition, Budget] = {}
        for placement in placements:
            mode = placement.mode
            if mode.nodes is not None:
                inside = all(mode.allows(device.node) for device in placement.devices)
                assert inside, f"a launch of partition {mode.partition} is on {placement}, outside it"
            if mode.limited and mode.partition is not None:
                used.setdefault(mode.partition, Budget(mode.partition)).take(mode, placement.devices)
            for device in placement.devices if mode.gpus else ():
                share[device.index] = share.get(device.index, 0) + mode.share
            for number, used_cores, held_memory in placement.hosts():
                cpu[number] -= used_cores
                if memory[number] is not None:
                    memory[number] -= held_memory  # type: ignore[operator]
        self._partitions(used)
        for node in capacity.nodes:
            assert cpu[node.index] == node.cpu_free >= 0, f"cores of {node.node} do not add up"
            expected = memory[node.index]
            assert expected is None or expected == node.mem_free >= 0, f"memory of {node.node} does not add up"
            self._index(node, share)

    def _partitions(self, used: dict[Partition, Budget]) -> None:
        for partition, budget in self.state.capacity.budgets.items():
            counted = used.get(partition, Budget(partition))  # no launch uses the partition
            same = (counted.gpus, counted.cpus, counted.on) == (budget.gpus, budget.cpus, budget.on)
            assert same, f"{partition} does not add up"
            limits = (budget.gpus, budget.max_gpus), (budget.cpus, budget.max_cpus), (len(budget.on), budget.max_nodes)
            within = all(limit is None or usage <= limit for usage, limit in limits)
            assert within, f"jobs of partition {partition} hold more than it allows"

    def _index(self, node: NodeState, share: dict[int, int]) -> None:
        open_masks = [0] * len(node.open)
        for gpu in node.gpus:
            device = gpu.device
            used, total = share.get(device.index, 0), device.type.streams * WHOLE
            kept = [one.placement.mode.share for one in launches_on(self.state, device) if one.resident]
            assert used + gpu.free == total and gpu.free + sum(kept) >= 0, f"shares of {gpu.device} do not add up"
            if gpu.slices is not None:
                there = {launch: launch.placement.mode for launch in launches_on(self.state, device)}
                assert gpu.slices.agree(there), f"slices and launches of {device} do not agree"
            if gpu.open:
                open_masks[gpu.kind] |= gpu.bit
        for kind, available in enumerate(node.open):
            marked = bool(self.state.capacity.with_open[kind] & node.bit)
            assert marked == bool(available and node.up), f"the index of nodes is wrong about {node.node}"
        assert open_masks == node.open, f"the index of open devices of {node.node} is wrong"

    def _stages(self, now: float) -> None:
        """Check the order of stages, and that no compute or copy engine is overbooked."""
        state = self.state
        for launch in self._launches():
            if (table := launch.table) is None:
                continue
            known_times = [time for time in [launch.decided, *table.times(now)[1:], now] if time == time]
            assert known_times == sorted(known_times), f"stages of {launch.task} are out of order: {known_times}"
            assert table.armed >= now or table.group is not None, f"{launch.task} should have gone on"
            if table.stage(now) == COMPUTE:
                assert 0 <= table.left <= table.total * (1 + 1e-9), f"{launch.task} has impossible work left"
                assert 0 <= table.rate < math.inf, f"{launch.task} computes at rate {table.rate}"
        for gpu in state.capacity.of:
            if isinstance(gpu, GpuState):
                lane = gpu.lane
                if lane.flights or lane.uploads or lane.downloads or lane.group is not None:
                    self._lane(gpu, now)  # most devices of a large cluster are idle

    def _lane(self, gpu: GpuState, now: float) -> None:
        lane = gpu.lane
        tables = [launch.table for launch in lane.flights]
        computing = [launch for launch in lane.flights if launch.table.stage(now) == COMPUTE]
        if lane.group is not None:
            computing = [launch for launch in lane.flights if launch.table.joined and not launch.table.computed]
        share = sum(launch.placement.mode.share for launch in computing)
        assert lane.group is None or share == lane.group.share, f"compute shares of {gpu.device} do not add up"
        # A launch that ends now, or computes for 0 s, may still be in the list when the next one begins.
        share -= sum(launch.placement.mode.share for launch in computing if launch.table.finish_at <= now)
        assert lane.sliced or share <= WHOLE, f"the compute engine of {gpu.device} is oversubscribed"
        over = [launch for launch in lane.flights if launch not in self._launches()]
        assert not over, f"something that is over is in flight on {gpu.device}"
        for parts, owners in ((lane.uploads, len(tables) + lane.fetching), (lane.downloads, len(tables))):
            served = [part for part in parts if part.at <= now < part.until]
            assert len(served) <= 1, f"a copy engine of {gpu.device} serves {len(served)} at once"
            assert len(parts) <= owners, f"a copy engine of {gpu.device} serves a ghost"

    def _items(self, now: float) -> None:
        """Check that occupied, pinned and free GPU memory add up, and that all items fit."""
        state = self.state
        places = state.places
        if not places.items:
            return
        for gpu in state.capacity.of:
            if not isinstance(gpu, GpuState) or gpu.device.type.memory is None:
                continue
            here = places.on(gpu.device)
            occupied = sum(launch.placement.mode.gpu_memory for launch in launches_on(state, gpu.device))
            if any(gpu.device in launch.placement.devices for launch in state.residents.values()):
                continue  # a replica owns the whole GPU memory
            pinned = sum(places.items[item].size for item in here.pins)
            lying = sum(places.items[item].size for item in here.resident if item not in here.pins)
            assert occupied + pinned + gpu.room == gpu.device.type.memory, f"memory of {gpu.device} does not add up"
            assert lying == here.unpinned, f"evictable bytes of {gpu.device} do not add up"
            assert gpu.room >= lying, f"memory of {gpu.device} is overfull"
            copies = sum(
                places.items[item].size for item, where in enumerate(places.where) if gpu.device.index in where
            )
            early = sum(
                launch.placement.mode.gpu_memory
                for launch in launches_on(state, gpu.device)
                if launch.table is None or launch.table.stage(now) != BEFORE
            )
            fits = copies + early <= gpu.device.type.memory
            assert fits, f"{gpu.device} holds {copies + early:,} bytes, copies on their way out included"
        for launch in state.running.values():
            if launch.table is None or launch.table.stage(now) != COMPUTE:
                continue
            for device in launch.placement.devices:
                for task in launch.tasks:
                    for item in () if task._done == 1.0 else task.reads:
                        # A task that rewrites an item invalidates the copies that running tasks still use.
                        first = 1 if places.made[item] and places.items[item].home is None else 0
                        void = not places.where[item] or places.version[item] > first
                        there = places.present(item, device) or void
                        assert there, f"{task} computes without {places.items[item].name} on {device}"

    def _columns(self, there: int) -> None:
        """Check numbers and times of all tasks; `there`: waiting, blocked or running."""
        state, recorder = self.state, self.state.recorder
        state.sources.note_arrived()
        status, start = np.asarray(recorder.status), np.asarray(recorder.start)
        unfinished = int((status == UNFINISHED).sum())
        deferred = unfinished - there
        assert deferred >= 0, "more tasks in the system than have arrived"
        assert (status >= UNFINISHED).sum() == state.ended + unfinished, "a task was lost"
        # Only an admission policy defers tasks; else the missing tasks are requests in transit.
        somewhere = deferred in (0, state.deferred) or state.input.admission is not None
        assert somewhere, "a task is neither here nor there"
        in_order = (state.tasks.arrival <= start) & (start <= np.asarray(recorder.finish)) | (status != COMPLETED)
        assert in_order.all(), f"row {in_order.argmin()}: times out of order"
