"""Invariants of `--check`, recounted in full at the end of every round: slow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from hetsim.engine.core.state import RunState, launches_on
from hetsim.engine.flight.launch import BEFORE, COMPUTE
from hetsim.engine.language.serving import Serving
from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.resources.partition_limits import Budget
from hetsim.errors import InvariantError
from hetsim.model.cluster import WHOLE, Partition
from hetsim.model.record import COMPLETED, UNFINISHED
from hetsim.model.task import RUNNING, WAITING


@dataclass(eq=False)
class Checker:
    """Recounts what the engine keeps incrementally and compares."""

    state: RunState
    serving: Serving | None
    checks: int = 0
    _last_now: float = -math.inf

    def check(self) -> None:
        self.checks += 1
        self._time()
        self._tasks()
        self._capacity()
        self._stages()
        self._items()
        if self.serving is not None:
            for defect in self.serving.defects():
                self._fail(defect)
        if self.checks % 64 == 1:  # linear in all tasks: now and then
            self._columns()

    def _fail(self, what: str) -> NoReturn:
        raise InvariantError(f"t = {self.state.clock._now:g} s: {what}")

    def _time(self) -> None:
        now = self.state.clock._now
        if not now >= self._last_now:
            self._fail(f"time ran backwards from {self._last_now:g} s")
        self._last_now = now

    def _tasks(self) -> None:
        """Every task that has arrived is in exactly one place."""
        state = self.state
        in_launches = state.iterating
        seen: set[int] = set()
        for launch in state.running.values():
            in_launches += launch.count
            for task in launch._tasks or ():
                if task.state != RUNNING:
                    self._fail(f"{task} is in a launch but not marked running")
                if task._launch is not launch:
                    self._fail(f"{task} does not know its launch")
                if task.index in seen:
                    self._fail(f"{task} runs twice")
                seen.add(task.index)
        self._residents()
        for row, task in state.waiting.items():
            if task.state != WAITING:
                self._fail(f"{task} waits but is marked otherwise")
            if row in seen:
                self._fail(f"{task} waits and runs")
            seen.add(row)
        blocked = 0 if state.graph is None else len(state.graph.blocked)
        sent = None
        if self.checks % 64 == 1:
            state.sources.note_arrived()
            sent = sum(1 for status in state.recorder.status if status >= UNFINISHED)
        self._requests(seen)
        if sent is not None and not state.queues:
            deferred = sum(1 for status in state.recorder.status if status == UNFINISHED)
            deferred -= len(state.waiting) + in_launches + blocked
            if deferred < 0:
                self._fail("more tasks in the system than have arrived")
            if sent != state.ended + len(state.waiting) + in_launches + blocked + deferred:
                self._fail("a task was lost")
            if deferred not in (0, state.deferred) and state.input.admission is None:
                self._fail("a task is neither here nor there")

    def _requests(self, running: set[int]) -> None:
        """Count each request once: it waits, is in a batch, or is to come by the clock."""
        state = self.state
        counted = sum(launch.count for launch in state.running.values() if launch.terms is not None)
        for queue in state.queues:
            rows = queue.waiting_rows()
            whose = f"of {queue.service.name}"
            if len(rows) != len(queue):
                self._fail(f"{len(rows)} requests {whose} wait, not {len(queue)}")
            if rows != sorted(set(rows), key=queue.order):
                self._fail(f"requests {whose} are out of order")
            if not running.isdisjoint(rows):
                self._fail(f"a request {whose} waits and runs")
            counted += len(rows) + (0 if queue.column is None else queue.column.total - queue.arrived)
        answering = any(queue.service.response_delay for queue in state.queues)
        requests_left = state.requests_left
        if counted != requests_left and not (answering and counted < requests_left):
            self._fail("a request was lost")

    def _residents(self) -> None:
        """Requests in steps of a replica run, and know it."""
        for resident in self.state.residents.values():
            for task in resident.tasks:
                if task.state != RUNNING or task._launch is not resident:
                    self._fail(f"{task} does not know its replica")

    def _capacity(self) -> None:
        """Check that free amounts and those of launches add up to the capacity."""
        state = self.state
        capacity = state.capacity
        cpu = [node.node.cpus * 1000 for node in capacity.nodes]
        memory = [node.node.memory for node in capacity.nodes]
        share: dict[int, int] = {}
        placements = [launch.placement for launch in (*state.residents.values(), *state.running.values())]
        used: dict[Partition, Budget] = {}
        for placement in placements:
            mode = placement.mode
            if mode.nodes is not None:
                inside = all(mode.allows(device.node) for device in placement.devices)
                if not inside:
                    self._fail(f"a launch of partition {mode.partition} is on {placement}, outside it")
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
            if not cpu[node.index] == node.cpu_free >= 0:
                self._fail(f"cores of {node.node} do not add up")
            expected = memory[node.index]
            if expected is not None and not expected == node.mem_free >= 0:
                self._fail(f"memory of {node.node} does not add up")
            self._index(node, share)

    def _partitions(self, used: dict[Partition, Budget]) -> None:
        """Each partition's count is what its launches hold, within its limits."""
        for partition, budget in self.state.capacity.budgets.items():
            counted = used.get(partition, Budget(partition))  # a partition that nothing uses has an empty one
            same = (counted.gpus, counted.cpus, counted.on) == (budget.gpus, budget.cpus, budget.on)
            if not same:
                self._fail(f"{partition} does not add up")
            within = budget.max_gpus is None or budget.gpus <= budget.max_gpus
            within = within and (budget.max_cpus is None or budget.cpus <= budget.max_cpus)
            within = within and (budget.max_nodes is None or len(budget.on) <= budget.max_nodes)
            if not within:
                self._fail(f"jobs of partition {partition} hold more than it allows")

    def _index(self, node: NodeState, share: dict[int, int]) -> None:
        """Check the shares of a node's devices by launch, and the index over them."""
        open_masks = [0] * len(node.open)
        for gpu in node.gpus:
            device = gpu.device
            used, total = share.get(device.index, 0), device.type.streams * WHOLE
            if used + gpu.free != total or gpu.free < 0:
                self._fail(f"shares of {gpu.device} do not add up")
            if gpu.slices is not None:
                there = {launch: launch.placement.mode for launch in launches_on(self.state, device)}
                if not gpu.slices.agree(there):
                    self._fail(f"slices and launches of {device} do not agree")
            if gpu.open:
                open_masks[gpu.kind] |= gpu.bit
        for kind, available in enumerate(node.open):
            marked = bool(self.state.capacity.with_open[kind] & node.bit)
            if marked != bool(available and node.up):
                self._fail(f"the index of nodes is wrong about {node.node}")
        if open_masks != node.open:
            self._fail(f"the index of open devices of {node.node} is wrong")

    def _stages(self) -> None:
        """Check the order of stages, and that no compute or copy engine is overbooked."""
        state = self.state
        now = state.clock._now
        for launch in state.running.values():
            table = launch.table
            if table is None:
                continue
            known_times = [time for time in [launch.decided, *table.times(now)[1:], now] if time == time]
            if known_times != sorted(known_times):
                self._fail(f"stages of {launch.task} are out of order: {known_times}")
            if table.armed < now and table.group is None:
                self._fail(f"{launch.task} should have gone on")
            if table.stage(now) == COMPUTE:
                if not 0 <= table.left <= table.total * (1 + 1e-9):
                    self._fail(f"{launch.task} has impossible work left")
                if not 0 <= table.rate < math.inf:
                    self._fail(f"{launch.task} computes at rate {table.rate}")
        for gpu in state.capacity.of:
            if isinstance(gpu, GpuState):
                lane = gpu.lane
                if lane.flights or lane.uploads or lane.downloads or lane.group is not None:
                    self._lane(gpu, now)  # else nothing is there to be counted, on most devices of a large cluster

    def _lane(self, gpu: GpuState, now: float) -> None:
        lane = gpu.lane
        tables = [launch.table for launch in lane.flights]
        computing = [launch for launch in lane.flights if launch.table.stage(now) == COMPUTE]
        if lane.group is not None:
            computing = [launch for launch in lane.flights if launch.table.joined and not launch.table.computed]
        share = sum(launch.placement.mode.share for launch in computing)
        if lane.group is not None and share != lane.group.share:
            self._fail(f"compute shares of {gpu.device} do not add up")
        # One that ends at this instant, or has nothing to compute, may not have left yet when the next one begins.
        share -= sum(launch.placement.mode.share for launch in computing if launch.table.finish_at <= now)
        if not lane.sliced and share > WHOLE:
            self._fail(f"the compute engine of {gpu.device} is oversubscribed")
        if not all(launch.number in self.state.running for launch in lane.flights):
            self._fail(f"something that is over is in flight on {gpu.device}")
        for parts, owners in ((lane.uploads, len(tables) + lane.fetching), (lane.downloads, len(tables))):
            served = [part for part in parts if part.at <= now < part.until]
            if len(served) > 1:
                self._fail(f"a copy engine of {gpu.device} serves {len(served)} at once")
            if len(parts) > owners:
                self._fail(f"a copy engine of {gpu.device} serves a ghost")

    def _items(self) -> None:
        """Check memory of accelerators: held + pinned + free is capacity, and items fit."""
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
                continue  # all of its memory is the replica's
            pinned = sum(places.items[item].size for item in here.pins)
            lying = sum(places.items[item].size for item in here.resident if item not in here.pins)
            if occupied + pinned + gpu.room != gpu.device.type.memory:
                self._fail(f"memory of {gpu.device} does not add up")
            if lying != here.unpinned:
                self._fail(f"evictable bytes of {gpu.device} do not add up")
            if gpu.room - lying < 0:
                self._fail(f"memory of {gpu.device} is overfull")
            copies = sum(
                places.items[item].size for item, where in enumerate(places.where) if gpu.device.index in where
            )
            early = sum(
                launch.placement.mode.gpu_memory
                for launch in launches_on(state, gpu.device)
                if launch.table is None or launch.table.stage(state.clock._now) != BEFORE
            )
            if copies + early > gpu.device.type.memory:
                self._fail(f"{gpu.device} holds {copies + early:,} bytes, copies on their way out included")
        for launch in state.running.values():
            if launch.table is None or launch.table.stage(state.clock._now) != COMPUTE:
                continue
            for device in launch.placement.devices:
                for task in launch.tasks:
                    for item in () if task._done == 1.0 else task.reads:
                        # A task that rewrites an item voids the copies on which others still compute.
                        first = 1 if places.made[item] and places.items[item].home is None else 0
                        void = not places.where[item] or places.version[item] > first
                        there = places.present(item, device) or void
                        if not there:
                            self._fail(f"{task} computes without {places.items[item].name} on {device}")

    def _columns(self) -> None:
        """Causality: nothing starts before it is ready or ends before it starts."""
        state = self.state
        if state.queues:
            return  # these columns are written at the end of the run
        recorder = state.recorder
        arrivals = state.tasks.arrival
        for row, status in enumerate(recorder.status):
            if status == COMPLETED and not arrivals[row] <= recorder.start[row] <= recorder.finish[row]:
                self._fail(f"row {row}: times out of order")
