"""The engine's side of the view: what a policy may ask (the contract is `sim.policy.contract.View`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from sim.engine.backlog import Backlog
from sim.engine.complaints import illegal
from sim.engine.durations import planned, seconds_of
from sim.engine.ends import Ends
from sim.engine.holdings import GpuState, NodeState, available_at
from sim.engine.launch import COMPUTE, DOWNLOAD, QUEUED, RESTORE, STAGE_NAMES, UPLOAD, Launch
from sim.engine.launches import Launches
from sim.engine.links import Links
from sim.engine.nodes import NodeColumns
from sim.engine.offers import Offers
from sim.engine.pool import PoolEnds
from sim.engine.received import Received
from sim.engine.requests import Sliced
from sim.engine.shadow import EarliestFit, Shadows
from sim.engine.signals import Signals
from sim.engine.sketches import Tally, on_sketch, release, sketch_of
from sim.engine.state import RunState, launches_on
from sim.engine.stopping import Stops
from sim.engine.waiting import together
from sim.model.cluster import WHOLE, Cluster, Device, DeviceType
from sim.model.plan import Placement
from sim.model.tasks import RUNNING, Item, Mode, Shape, Task
from sim.policy.batching import RequestQueue
from sim.policy.contract import Decision, Imagined, PlacementRule, Scheduler

Engine = Literal["stream", "upload", "compute", "download"]


ASKED_IN_VAIN = 100_000
"""Questions between two decisions after which a policy is reported as looping."""


class StageEstimate(NamedTuple):
    """Seconds of each stage of a launch that has not begun."""

    ready: float
    """Until its devices are ready: state being saved, waking, reconfiguring."""
    write_back: float
    upload: float
    restore: float
    compute: float
    download: float

    @property
    def total(self) -> float:
        return max(self.ready, self.write_back) + self.upload + self.restore + self.compute + self.download


class EngineTimes(NamedTuple):
    """When the engines of an accelerator are free, and when the last launch looked at ends."""

    upload: float
    compute: float
    download: float
    end: float


class Changes:
    """See `sim.policy.contract.Changes`."""

    __slots__ = ("_capacity", "_state")

    def __init__(self, state: RunState):
        self._capacity = state.capacity
        self._state = state

    @property
    def releases(self) -> int:
        return self._capacity.releases

    @property
    def launches(self) -> int:
        return self._state.last_launch

    @property
    def steady(self) -> bool:
        return self._state.steady


class LaunchSeen:
    """See `sim.policy.contract.LaunchSeen`."""

    __slots__ = ("_view", "_launch")

    def __init__(self, view: EngineView, launch: Launch | None):
        self._view = view
        self._launch = launch

    @property
    def placement(self) -> Placement | None:
        return None if self._launch is None else self._launch.placement

    @property
    def stage(self) -> str | None:
        launch = self._launch
        if launch is None:
            return None
        return "compute" if launch.table is None else STAGE_NAMES[launch.table.stage(self._view.now)]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return () if self._launch is None else self._launch.tasks

    @property
    def finish(self) -> float:
        return math.inf if self._launch is None else self._view.finish_of(self._launch)


def _by_readiness(task: Task) -> tuple[float, int]:
    return task.ready, task.index


class EngineView:
    """See `sim.policy.contract.View`; nothing here changes the state of the run."""

    def __init__(self, state: RunState, signals: Signals, received: Received, launches: Launches, stops: Stops):
        self._state = state
        self._signals = signals
        self._received = received
        self._transfers = launches.transfers
        self._stops = stops
        self._capacity = state.capacity
        self._places = state.places
        self._links = state.links
        self._clock = state.clock
        self._asked_at = self._asked = 0
        self.cluster: Cluster = state.input.cluster
        self.items: Sequence[Item] = state.tasks.items
        self.random = state.input.random.stream("policy")
        self.nodes = NodeColumns(state.capacity)
        self.changes = Changes(state)
        self._backlog: Backlog | None = None
        """Work ahead by kind, from the first question on."""
        self._with_items = bool(state.tasks.items)
        self._specs: dict[DeviceType, int] = {}
        self._only: dict[Mode, tuple[Any, ...]] = {}
        self._shadows = Shadows(self)

    @cached_property
    def _slices(self) -> list[Sliced]:
        """Queues whose requests become objects when they are looked at."""
        return [queue for queue in self._state.queues if isinstance(queue, Sliced)]

    @property
    def now(self) -> float:
        return self._clock._now

    @cached_property
    def ends(self) -> Ends:
        """When nodes will have room; only where the run is steady."""
        return Ends(self)

    @cached_property
    def pool(self) -> PoolEnds:
        """When accelerators will be free, wherever they are; only where the run is steady."""
        return PoolEnds(self)

    @cached_property
    def offers(self) -> Offers:
        """What services are offered, for the dispatcher."""
        return Offers(self._capacity)

    # Where does it fit? -------------------------------------------------------------------------------------

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            return rule(task, self)
        if self._with_items:
            return self._fit_with_items(task)
        modes, first = task.shape.modes, self._capacity.first
        if len(modes) == 1:
            return first(modes[0])
        for position in task.modes_by_speed():
            placement = first(modes[position])
            if placement is not None:
                return placement
        return None

    def _fit_with_items(self, task: Task) -> Placement | None:
        """As `fit`, passing over devices without room for the task's data."""
        for position in task.modes_by_speed():
            placement = self._first_with_items(task.shape.modes[position], task)
            if placement is not None:
                return placement
        return None

    def first(
        self,
        mode: Mode,
        task: Task | None = None,
        *,
        node: int | None = None,
        among: int | None = None,
        by: Literal["node", "load"] = "node",
    ) -> Placement | None:
        if by == "load":
            return self._emptiest(mode, task)
        if node is not None:
            return self._on_node(mode, node, task)
        if among is not None:
            return self._first_among(mode, among)
        if task is not None and self._with_items:
            return self._first_with_items(mode, task)
        return self._capacity.first(mode)

    def _first_with_items(self, mode: Mode, task: Task) -> Placement | None:
        """Passing over devices without room for the task's data."""
        placement = self._capacity.first(mode)
        if placement is None or self.holds(task, placement):
            return placement
        there = (self._on_node(mode, node, task) for node in self.nodes.fitting(mode))
        return next((placement for placement in there if placement is not None), None)

    def holds(self, tasks: Task | Sequence[Task], placement: Placement) -> bool:
        """Is there room for the data these tasks read and write there, besides their own memory?"""
        if isinstance(tasks, Task):
            tasks = (tasks,)
        refusal = self._transfers.items_refusal(tasks, placement, placement.mode.gpu_memory)
        return refusal is None

    def _first_among(self, mode: Mode, nodes: int) -> Placement | None:
        mask = self._capacity.mask(mode) & nodes
        if mask:
            return self._capacity.on_node(mode, self._capacity.nodes[(mask & -mask).bit_length() - 1])
        if not mode.span_any:
            return None
        return self._capacity._across(mode, (self._capacity.nodes[node] for node in self._capacity.nodes_in(nodes)))

    def _emptiest(self, mode: Mode, task: Task | None) -> Placement | None:
        """The first by load.  Cost: O(1) for whole devices, else linear in those on which it fits."""
        only = self._only.get(mode)
        if only is None:
            only = self._only[mode] = self._only_place(mode)
        if only:
            placement, gpu, node = only
            if mode.limited and not self._capacity.mask(mode):
                return None
            room = gpu.takes(mode) and mode.millicores <= node.cpu_free and mode.memory <= node.mem_free and node.up
            return placement if room and (task is None or self.holds(task, placement)) else None
        if mode.on_cpu or mode.gpus != 1:
            return self.first(mode, task)
        if task is not None and self._with_items:
            there = {option: option.devices[0] for option in self.options(task, mode)}
            return min(there, key=lambda p: (self.load(there[p]), self._missing_bytes(task, there[p])), default=None)
        offers = self.offers
        offer = offers.of(mode) if offers.serves(mode) else offers.by_looking(mode)
        return None if offer is None else offer[0]

    def _missing_bytes(self, task: Task, device: Device) -> int:
        return sum(self._places.items[item].size for item in self._places.missing(task.reads, device))

    def _only_place(self, mode: Mode) -> tuple[Any, ...]:
        """The one accelerator of its type with its node, and the mode placed there; nothing where there are more."""
        if mode.on_cpu or mode.gpus != 1 or mode.type.sharing.kind == "mig" or self.cluster.count(mode.type.name) != 1:
            return ()
        device = next(device for device in self.cluster.devices if device.type is mode.type)
        if not mode.allows(device.node):
            return ()
        return Placement(mode, (device,)), self._capacity.of[device.index], self._capacity.nodes[device.node]

    def _on_node(self, mode: Mode, node: int, task: Task | None = None) -> Placement | None:
        """The devices the mode would take on one node; with a task: devices that hold its data as well."""
        mask = self._capacity.mask(mode)
        if not mask >> node & 1:
            return None
        state = self._capacity.nodes[node]
        if task is None or not self._with_items or mode.on_cpu:
            return self._capacity.on_node(mode, state)
        chosen = [
            gpu.device
            for gpu in state.gpus
            if gpu.device.type is mode.type and gpu.takes(mode) and self.holds(task, Placement(mode, (gpu.device,)))
        ]
        return Placement(mode, tuple(chosen[: mode.gpus])) if len(chosen) >= mode.gpus else None

    def options(self, task: Task, mode: Mode, distinct: bool = False) -> list[Placement]:
        if distinct and self._alike(task, mode):
            first = self._capacity.first(mode)
            return [] if first is None else [first]
        found = []
        for node in self.nodes.fitting(mode):
            state = self._capacity.nodes[node]
            if mode.gpus == 1:
                for gpu in state.gpus:
                    if gpu.device.type is mode.type and gpu.takes(mode):
                        placement = Placement(mode, (gpu.device,))
                        if not self._with_items or self.holds(task, placement):
                            found.append(placement)
            else:
                placement_here = self._on_node(mode, node, task)
                if placement_here is not None:
                    found.append(placement_here)
        return found

    def _alike(self, task: Task, mode: Mode) -> bool:
        """Would the task end at the same time wherever this mode fits now, so that the first place will do?"""
        kind = mode.type
        if task.reads or not (mode.on_cpu or mode.whole) or kind.streams > 1 or kind.sharing.kind != "exclusive":
            return False
        if mode.span_speeds is not None:
            return False
        specs = self._specs.get(kind)
        if specs is None:
            nodes = self.cluster.nodes
            having = [n for n in nodes if n.cpu.type is kind or any(d.type is kind for d in n.accelerators)]
            specs = self._specs[kind] = len({(n.spec.switch, n.spec.switch_size is None) for n in having})
        return specs == 1 and all(state.normal for state in self._capacity.of)

    def together(self, rows: Sequence[int]) -> tuple[Task, ...] | None:
        return together(self._state, rows)

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None:
            return self._capacity.refusal(placement) is None and (not tasks or self.holds(tasks, placement))
        return bool(self._capacity.mask(mode)) or (mode.span_any and self._capacity.first(mode) is not None)

    def over_limit(self, task: Task) -> bool:
        """See the contract: one test where nothing is limited."""
        modes = task.shape.modes
        if not any(mode.limited for mode in modes):
            return False
        capacity = self._capacity
        for position in task.allowed or range(len(modes)):
            mode = modes[position]
            if not mode.limited:
                return False
            budget = capacity.budget(mode)
            beyond = not budget.new_nodes() and not capacity.room(mode) & budget.mask
            if budget.enough(mode) and not beyond:
                return False
        return True

    # How long? ------------------------------------------------------------------------------------------------

    def duration(self, task: Task, placement: Placement) -> float:
        if self._state.steady and task._launch is None:
            mode, left = placement.mode, 1.0 - task.done
            return mode.fixed * left + task.estimates[task.shape.position[mode]] * left
        return self.stages((task,), placement).total

    def stages(self, tasks: Sequence[Task], placement: Placement) -> StageEstimate:
        """What each stage would take if these tasks started there now, on idle links and engines.

        Reckoned by the engine's own functions, on estimates.  Of a running task (a Move) what it has left counts.
        """
        mode = placement.mode
        transfers = self._transfers
        now = self.now
        needed = mode.share or mode.millicores
        states = [self._capacity.of[device.index] for device in placement.devices]
        ready = max(available_at(state, now, state.left - needed) for state in states)
        left = [self._left(task) for task in tasks]
        if mode.parts:
            seconds = seconds_of(tasks, transfers.fusion(tasks), mode.parts, True)
        else:
            works = [t.estimates[t.shape.position[mode]] * part for t, part in zip(tasks, left, strict=True)]
            seconds = mode.base(len(tasks)) * max(left) + math.fsum(works)
        rate = min(state.frequency / state.slowdown for state in states)
        rate *= mode.span_rate(placement.devices)
        restored = [t for t in tasks if t._history is not None and t.done > 0 or t.state == RUNNING]
        return StageEstimate(
            ready=max(0.0, ready - now),
            write_back=self._write_back(tasks, placement) if self._with_items else 0.0,
            upload=transfers.upload_seconds(tasks, placement),
            restore=sum(task.shape.stopping.restore for task in restored),
            compute=seconds / rate,
            download=transfers.download_seconds(tasks, placement),
        )

    def _left(self, task: Task) -> float:
        """The estimated part of the work still to do, of a running task its progress included."""
        launch = task._launch
        if task.state != RUNNING or launch is None:
            return 1.0 - task.done
        mode = launch.placement.mode
        if mode.parts:
            whole = planned(launch)
            return self.remaining_of(launch) / whole if whole > 0 else 0.0
        whole = mode.fixed + task.estimates[task.shape.position[mode]]
        return self.remaining_of(launch) / whole if whole > 0 else 0.0

    def _write_back(self, tasks: Sequence[Task], placement: Placement) -> float:
        """Seconds until only copies that a start there would evict are on the host."""
        longest = 0.0
        for device in placement.devices:
            state = self._capacity.of[device.index]
            if not isinstance(state, GpuState):
                continue
            here = self._places.on(device)
            wanted = self._transfers.held(tasks, placement.mode)
            claim = self._places.claim(wanted, device) + placement.mode.gpu_memory
            kept = sum(self._places.items[i].size for i in wanted if i in here.resident and i not in here.pins)
            lacking = claim - (state.room - here.unpinned + kept)
            size = 0
            for item in here.resident:
                if lacking <= 0:
                    break
                if item in here.pins or item in wanted:
                    continue
                lacking -= self._places.items[item].size
                if len(self._places.where[item]) == 1:
                    size += self._places.items[item].size
            if size:
                longest = max(longest, Links.alone(self._links.down(device), size))
        return longest

    def remaining(self, task: Task) -> float:
        launch = task._launch
        if task.state != RUNNING or launch is None:
            return task.shortest_remaining
        return self.remaining_of(launch)

    def remaining_of(self, launch: Launch) -> float:
        """Estimated compute seconds a launch has left at rate 1; 0 after an overrun."""
        expected, table, now = planned(launch), launch.table, self.now
        if table is None:
            return max(0.0, expected - (now - launch.decided))
        stage = table.stage(now)
        if stage < COMPUTE:
            return expected
        if stage > COMPUTE:
            return 0.0
        done = table.total - table.left + table.rate * (now - table.updated)
        return max(0.0, expected - done)

    def launch_of(self, task: Task) -> LaunchSeen:
        return LaunchSeen(self, task._launch)

    def finish_of(self, launch: Launch) -> float:
        """When a launch will end, as far as estimates, present rates and the launches before it tell."""
        if launch.table is None:
            # The very float of the event, if the estimate is exact: not now + what is left.
            return max(self.now, launch.decided + planned(launch))
        return self._pipeline(launch).end

    def _pipeline(self, launch: Launch) -> EngineTimes:
        """When a launch will be through its engines: those before it on its first accelerator are followed
        through upload, compute and download in start order, as the engines serve them."""
        table = launch.table
        assert table is not None
        before = table.lanes[0].flights if table.lanes else [launch]
        times = EngineTimes(self.now, self.now, self.now, self.now)
        for other in before:
            times = self._follow(other, times)
            if other is launch:
                break
        return times

    def _follow(self, launch: Launch, free: EngineTimes) -> EngineTimes:
        """The engines' next free times once they have served this launch too."""
        now, table = self.now, launch.table
        assert table is not None
        up, down = self._transfers.estimate(launch)
        stage = table.stage(now)
        if stage == DOWNLOAD:
            began = table.download_start
            end = max(now, began + down) if began <= now else free.download + down
            return EngineTimes(free.upload, free.compute, end, end)
        if stage == COMPUTE:
            # Calculated from when the rate was last set, so that the answer is the same float at any time.
            uploaded = now
            left = planned(launch) - (table.total - table.left)
            computed = max(now, table.updated + left / (table.rate or 1.0))
        else:
            uploaded = self._upload_end(launch, stage, up, free.upload)
            alone = launch.placement.mode.share == WHOLE
            computed = max(uploaded, free.compute if alone else now) + self.remaining_of(launch)
        end = max(computed, free.download if down else computed) + down
        return EngineTimes(max(free.upload, uploaded), max(free.compute, computed), max(free.download, end), end)

    def _upload_end(self, launch: Launch, stage: int, seconds: float, upload_free: float) -> float:
        table = launch.table
        assert table is not None
        if stage in (RESTORE, QUEUED):
            return self.now
        if stage == UPLOAD:
            began = table.upload_start
            return max(self.now, began + seconds) if began <= self.now else upload_free + seconds
        states = [self._capacity.of[device.index] for device in launch.placement.devices]
        ready = max(available_at(state, self.now, state.left) for state in states)
        return max(upload_free, ready) + seconds

    def free_at(self, device: Device, engine: Engine = "stream") -> float:
        """When an engine of a device will have served everything in flight; "stream": when one more whole launch
        may start there (for cores: when one is free)."""
        now = self.now
        state = self._capacity.of[device.index]
        if engine == "stream" and state.left >= (WHOLE if isinstance(state, GpuState) else 1000):
            return now
        times = EngineTimes(now, now, now, now)
        ends = []
        for launch in launches_on(self._state, device):
            if launch.table is None:
                ends.append(self.finish_of(launch))
                times = times._replace(compute=max(times.compute, now + self.remaining_of(launch)))
            else:
                times = self._follow(launch, times)
                ends.append(times.end if launch.table.lanes and device is launch.placement.devices[0]
                            else self._pipeline(launch).end)  # fmt: skip
        return min(ends, default=now) if engine == "stream" else float(getattr(times, engine))

    def _count_question(self) -> None:
        """A policy that asks who waits or runs again and again, and decides nothing, would never come back."""
        decisions = self._state.decisions
        if decisions != self._asked_at:
            self._asked_at, self._asked = decisions, 0
        self._asked += 1
        if self._asked > ASKED_IN_VAIN:
            questions = f"{self._asked:,} times who waits or runs"
            raise illegal(self._state, f"asked {questions}, decided nothing and goes on: it loops")

    # Who? ---------------------------------------------------------------------------------------------------

    def running(self, by: Literal["finish", "start"] = "finish", device: Device | None = None) -> list[Task]:
        self._count_question()
        state = self._state
        launches = list(state.running.values()) if device is None else launches_on(state, device)
        if by == "finish":
            launches.sort(key=self.finish_of)
        return [task for launch in launches for task in launch.tasks]

    def waiting(self, count: int | None = None) -> list[Task]:
        waiting = self._state.waiting.values()
        if count is None:
            self._count_question()
        elif not self._slices:
            return list(islice(waiting, count))
        tasks = list(waiting)
        if not self._slices:
            return tasks
        if count == 1:
            tasks += (head for queue in self._slices if (head := queue.first_fresh()) is not None)
        else:
            for queue in self._slices:
                tasks += queue.fresh()
        return sorted(tasks, key=_by_readiness)[:count]

    def num_waiting(self, kind: str | None = None, class_: str | None = None) -> int:
        if kind is None and class_ is None:
            return len(self._state.waiting) + sum(queue.fresh_count for queue in self._slices)
        return self._work_ahead().count(kind, class_)

    def queue_of(self, task: Task) -> RequestQueue | None:
        return self._state.queue_of.get(task.shape)

    def free(self, kind: str, node: int | None = None) -> float:
        if node is None:
            return sum(self.free(kind, one.index) for one in self._capacity.nodes)
        state = self._capacity.nodes[node]
        if not state.up:
            return 0.0
        total = 0.0
        if kind in ("cpu", state.device.type.name):
            total += state.cpu_free / 1000
        for gpu in state.gpus:
            if kind in (gpu.device.type.kind, gpu.device.type.name) and gpu.up and not gpu.asleep:
                total += min(WHOLE, max(0, gpu.free)) / WHOLE
        return total

    def load(self, device: Device) -> float:
        state = self._capacity.of[device.index]
        if isinstance(state, NodeState):
            return 1.0 - state.cpu_free / (1000 * state.node.cpus) if state.node.cpus else 1.0
        assert isinstance(state, GpuState)
        return device.type.streams - state.free / WHOLE

    def backlog(self, kind: str | None = None, class_: str | None = None) -> float:
        return self._work_ahead().seconds(kind, class_)

    def request_mix(self) -> dict[Shape, int]:
        tasks = self._state.tasks
        counts = np.bincount(tasks.shape, minlength=len(tasks.shapes)).tolist()
        return {shape: count for shape, count in zip(tasks.shapes, counts, strict=True) if count}

    def _work_ahead(self) -> Backlog:
        if self._backlog is None:
            self._backlog = Backlog(self._state, self._slices, self.remaining_of)
            self._signals.materialised = self._backlog.materialised
        return self._backlog

    def attained(self, who: Task | str) -> float:
        return self._received.task(who) if isinstance(who, Task) else self._received.user(who)

    def holders(self, item: int) -> list[Device | int]:
        devices = self.cluster.devices
        return [devices[place] if place >= 0 else -1 - place for place in self._places.where[item]]

    def room(self, device: Device) -> float:
        state = self._capacity.of[device.index]
        usable = isinstance(state, GpuState) and state.up and not state.asleep and state.node.up
        return state.room if usable else 0.0

    def in_use(self, item: int, device: Device) -> bool:
        return item in self._places.on(device).pins

    # What if? -------------------------------------------------------------------------------------------------

    def fork(
        self,
        scheduler: Scheduler,
        decisions: Sequence[Decision] = (),
        seed: int = 0,
        coming: Sequence[tuple[float, Task]] = (),
    ) -> Imagined:
        imagined: Imagined = self._signals.imagine(scheduler, decisions, seed, coming)
        return imagined

    def earliest_fit(self, task: Task, mode: Mode | None = None) -> EarliestFit:
        return self._shadows.of(task, mode)

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        capacity = self._capacity
        modes = [task.shape.modes[position] for position in task.modes_by_speed()]
        counted: dict[Mode, bool] = {mode: capacity.countable(mode) for mode in modes}
        counting = all(counted.values())
        wanted = modes[0] if len(modes) == 1 and counting and modes[0].gpus else None
        kind = capacity.types[modes[0].type]
        lacking: dict[int, int] = {}
        """By node the accelerators that it lacks, where that tells that nothing fits yet without a look at the rest."""
        stopped: dict[int, list[Task]] = {}
        sketches: dict[int, NodeState] = {}
        seen: set[int] = set()
        for victim in victims:
            launch = victim._launch
            if launch is None or not victim.shape.preemptible or launch.number in seen:
                continue
            seen.add(launch.number)
            held = launch.placement
            if not stopped and held.mode is modes[0]:
                # The first victim holds just what is wanted: nothing has to be tried out.
                return held, [victim]
            if held.mode not in counted:
                counted[held.mode] = capacity.countable(held.mode)
            if counting and not counted[held.mode]:
                counting, wanted = False, None
                sketches = {number: self._released(number, tasks) for number, tasks in stopped.items()}
            if not counting:
                for number in dict.fromkeys(device.node for device in held.devices):
                    if number not in sketches:
                        sketches[number] = sketch_of(capacity.nodes[number])
                        stopped[number] = []
                    release(sketches[number], held, launch)
                    stopped[number].append(victim)
                    for mode in modes:
                        if on_sketch(sketches[number], mode) is not None:
                            return self._sparing(number, mode, stopped[number])
                continue
            number = held.devices[0].node
            if number not in stopped:
                stopped[number] = []
                lacking[number] = 0 if wanted is None else wanted.gpus - capacity.nodes[number].open[kind].bit_count()
            stopped[number].append(victim)
            if wanted is not None:
                if held.mode.gpus and held.mode.type is wanted.type:
                    lacking[number] -= held.mode.gpus
                if lacking[number] > 0:
                    continue
            tally = self._tally_without(number, stopped[number])
            for mode in modes:
                if tally.fits(mode, capacity.types[mode.type]):
                    return self._sparing_counted(number, mode, stopped[number])
        return None

    def _tally_without(self, number: int, victims: list[Task]) -> Tally:
        """What would be free on a node without these tasks, where counting is enough."""
        tally = Tally(self._capacity.nodes[number])
        for victim in victims:
            tally.release(victim._launch.placement)
        return tally

    def _released(self, number: int, victims: list[Task]) -> NodeState:
        """A node as it would be without these tasks."""
        sketch = sketch_of(self._capacity.nodes[number])
        for victim in victims:
            release(sketch, victim._launch.placement, victim._launch)
        return sketch

    def _sparing_counted(self, number: int, mode: Mode, victims: list[Task]) -> tuple[Placement, list[Task]]:
        """As `_sparing`, where counting is enough."""
        kind = self._capacity.types[mode.type]
        tally = self._tally_without(number, victims)
        needed = list(victims)
        for spared in victims[:-1]:
            tally.occupy(spared._launch.placement)
            if tally.fits(mode, kind):
                needed.remove(spared)
            else:
                tally.release(spared._launch.placement)
        return tally.place(mode, kind), needed

    def _sparing(self, number: int, mode: Mode, victims: list[Task]) -> tuple[Placement, list[Task]]:
        """The mode on a node once those of the victims have stopped that really must."""
        needed = self._needed(number, mode, victims)
        placement = on_sketch(self._released(number, needed), mode)
        assert placement is not None
        return placement, needed

    def _needed(self, number: int, mode: Mode, victims: list[Task]) -> list[Task]:
        """Of the victims on a node those without which the mode would not fit, sparing the best first."""
        capacity = self._capacity
        needed = list(victims)
        for spared in victims[:-1]:
            sketch = sketch_of(capacity.nodes[number])
            for victim in needed:
                if victim is not spared:
                    release(sketch, victim._launch.placement, victim._launch)
            if sketch.fits(mode):
                needed.remove(spared)
        return needed
