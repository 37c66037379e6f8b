"""Invariants, tested at the end of every round when `--check` is on.  Slow on purpose: everything is recounted."""

from __future__ import annotations

import math

from sim.engine.core.state import RunState, launches_on
from sim.engine.flight.launch import BEFORE, COMPUTE
from sim.engine.language.serving import Serving
from sim.engine.queues.sliced import Sliced
from sim.engine.resources.occupancy import GpuState
from sim.engine.resources.partition_limits import Budget
from sim.errors import InvariantError
from sim.model.cluster import WHOLE, Partition
from sim.model.record import COMPLETED, UNFINISHED
from sim.model.tasks import RUNNING, WAITING


class Checker:
    """Recounts what the engine keeps incrementally and compares."""

    def __init__(self, state: RunState, serving: Serving | None):
        self.state = state
        self.serving = serving
        self.checks = 0
        self._last_now = -math.inf

    def check(self) -> None:
        self.checks += 1
        self._time()
        self._tasks()
        self._capacity()
        self._stages()
        self._items()
        if self.serving is not None:
            for defect in self.serving.defects():
                self._require(False, defect)
        if self.checks % 64 == 1:
            self._columns()

    def _require(self, condition: bool, what: str) -> None:
        if not condition:
            raise InvariantError(f"t = {self.state.clock._now:g} s: {what}")

    def _time(self) -> None:
        now = self.state.clock._now
        self._require(now >= self._last_now, f"time ran backwards from {self._last_now:g} s")
        self._last_now = now

    def _tasks(self) -> None:
        """Every task that has arrived is in exactly one place."""
        state = self.state
        in_launches = state.iterating
        seen: set[int] = set()
        for launch in state.running.values():
            in_launches += launch.count
            for task in launch._tasks or ():
                self._require(task.state == RUNNING, f"{task} is in a launch but not marked running")
                self._require(task._launch is launch, f"{task} does not know its launch")
                self._require(task.index not in seen, f"{task} runs twice")
                seen.add(task.index)
        for resident in state.residents.values():
            for task in resident.tasks:
                self._require(task.state == RUNNING and task._launch is resident, f"{task} does not know its replica")
        for row, task in state.waiting.items():
            self._require(task.state == WAITING, f"{task} waits but is marked otherwise")
            self._require(row not in seen, f"{task} waits and runs")
            seen.add(row)
        blocked = 0 if state.graph is None else len(state.graph.blocked)
        sent = sum(1 for status in state.recorder.status if status >= UNFINISHED) if self.checks % 64 == 1 else None
        if sent is not None:
            slices = [queue for queue in state.queues if isinstance(queue, Sliced)]
            if slices:
                taken = sum(queue.head_at - len(queue.back) for queue in slices) - state.ended
                answering = any(queue.service.response_delay for queue in slices)
                self._require(taken == in_launches or (answering and taken > in_launches), "a request was lost")
                return
            deferred = sum(1 for status in state.recorder.status if status == UNFINISHED)
            deferred -= len(state.waiting) + in_launches + blocked
            self._require(deferred >= 0, "more tasks in the system than have arrived")
            self._require(
                sent == state.ended + len(state.waiting) + in_launches + blocked + deferred,
                "a task was lost",
            )
            elsewhere = state.input.admission is not None or bool(state.queues)
            self._require(deferred in (0, state.deferred) or elsewhere, "a task is neither here nor there")

    def _capacity(self) -> None:
        """What is free plus what launches hold is what there is."""
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
                self._require(inside, f"a launch of partition {mode.partition} is on {placement}, outside it")
            if mode.limited and mode.partition is not None:
                used.setdefault(mode.partition, Budget(mode.partition)).take(mode, placement.devices)
            for device in placement.devices if mode.gpus else ():
                share[device.index] = share.get(device.index, 0) + mode.share
            for number, held, held_memory in placement.hosts():
                cpu[number] -= held
                if memory[number] is not None:
                    memory[number] -= held_memory  # type: ignore[operator]
        for partition, budget in capacity.budgets.items():
            counted = used.get(partition, Budget(partition))
            same = (counted.gpus, counted.cpus, counted.on) == (budget.gpus, budget.cpus, budget.on)
            self._require(same, f"{partition} does not add up")
            within = budget.max_gpus is None or budget.gpus <= budget.max_gpus
            within = within and (budget.max_cpus is None or budget.cpus <= budget.max_cpus)
            within = within and (budget.max_nodes is None or len(budget.on) <= budget.max_nodes)
            self._require(within, f"jobs of partition {partition} hold more than it allows")
        for node in capacity.nodes:
            self._require(cpu[node.index] == node.cpu_free >= 0, f"cores of {node.node} do not add up")
            expected = memory[node.index]
            self._require(expected is None or expected == node.mem_free >= 0, f"memory of {node.node} does not add up")
            open_masks = [0] * len(node.open)
            for gpu in node.gpus:
                held = share.get(gpu.device.index, 0)
                total = gpu.device.type.streams * WHOLE
                self._require(held + gpu.free == total and gpu.free >= 0, f"shares of {gpu.device} do not add up")
                if gpu.open:
                    open_masks[capacity.types[gpu.device.type]] |= gpu.bit
            for kind, available in enumerate(node.open):
                marked = bool(capacity.with_open[kind] & node.bit)
                self._require(marked == bool(available and node.up), f"the index of nodes is wrong about {node.node}")
            self._require(open_masks == node.open, f"the index of open devices of {node.node} is wrong")

    def _stages(self) -> None:
        """Stages come in order; compute engines are not oversubscribed; copy engines serve one launch."""
        state = self.state
        now = state.clock._now
        for launch in state.running.values():
            table = launch.table
            if table is None:
                continue
            known = [time for time in [launch.decided, *table.times(now)[1:], now] if time == time]
            self._require(known == sorted(known), f"stages of {launch.task} are out of order: {known}")
            self._require(table.armed >= now or table.group is not None, f"{launch.task} should have gone on")
            if table.stage(now) == COMPUTE:
                self._require(0 <= table.left <= table.total * (1 + 1e-9), f"{launch.task} has impossible work left")
                self._require(0 <= table.rate < math.inf, f"{launch.task} computes at rate {table.rate}")
        for gpu in state.capacity.of:
            if isinstance(gpu, GpuState):
                self._lane(gpu, now)

    def _lane(self, gpu: GpuState, now: float) -> None:
        lane = gpu.lane
        tables = [launch.table for launch in lane.flights]
        computing = [launch for launch in lane.flights if launch.table.stage(now) == COMPUTE]
        if lane.group is not None:
            computing = [launch for launch in lane.flights if launch.table.joined and not launch.table.computed]
        share = sum(launch.placement.mode.share for launch in computing)
        if lane.group is not None:
            self._require(share == lane.share, f"compute shares of {gpu.device} do not add up")
        if not lane.sliced:
            self._require(share <= WHOLE, f"the compute engine of {gpu.device} is oversubscribed")
        self._require(all(launch.number in self.state.running for launch in lane.flights),
                      f"something that is over is in flight on {gpu.device}")  # fmt: skip
        for parts, owners in ((lane.uploads, len(tables) + lane.fetching), (lane.downloads, len(tables))):
            served = [part for part in parts if part.at <= now < part.until]
            self._require(len(served) <= 1, f"a copy engine of {gpu.device} serves {len(served)} at once")
            self._require(len(parts) <= owners, f"a copy engine of {gpu.device} serves a ghost")

    def _items(self) -> None:
        """Memory of accelerators: held + pinned + free is capacity, and what lies there fits."""
        state = self.state
        places = state.places
        if not places.items:
            return
        for gpu in state.capacity.of:
            if not isinstance(gpu, GpuState) or gpu.device.type.memory is None:
                continue
            here = places.on(gpu.device)
            held = sum(launch.placement.mode.gpu_memory for launch in launches_on(state, gpu.device))
            if any(gpu.device in launch.placement.devices for launch in state.residents.values()):
                continue  # all of its memory is the replica's
            pinned = sum(places.items[item].size for item in here.pins)
            lying = sum(places.items[item].size for item in here.resident if item not in here.pins)
            self._require(
                held + pinned + gpu.room == gpu.device.type.memory, f"memory of {gpu.device} does not add up"
            )
            self._require(lying == here.unpinned, f"evictable bytes of {gpu.device} do not add up")
            self._require(gpu.room - lying >= 0, f"memory of {gpu.device} is overfull")
            copies = sum(
                places.items[item].size for item, where in enumerate(places.where) if gpu.device.index in where
            )
            early = sum(
                launch.placement.mode.gpu_memory
                for launch in launches_on(state, gpu.device)
                if launch.table is None or launch.table.stage(state.clock._now) != BEFORE
            )
            self._require(
                copies + early <= gpu.device.type.memory,
                f"{gpu.device} holds {copies + early:,} bytes, copies on their way out included",
            )
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
                        self._require(there, f"{task} computes without {places.items[item].name} on {device}")

    def _columns(self) -> None:
        """Causality: nothing starts before it is ready or ends before it starts."""
        state = self.state
        if state.queues:
            return  # these columns are written at the end of the run
        recorder = state.recorder
        arrivals = state.tasks.arrival
        for row, status in enumerate(recorder.status):
            if status == COMPLETED:
                self._require(
                    arrivals[row] <= recorder.start[row] <= recorder.finish[row], f"row {row}: times out of order"
                )
