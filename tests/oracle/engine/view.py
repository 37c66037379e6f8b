"""The engine's side of the view: what a policy may ask (the contract is `sim.policy.contract.View`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from oracle.engine.backlog import Backlog
from oracle.engine.ends import Ends
from oracle.engine.holdings import GpuState, NodeState, available_at
from oracle.engine.launch import COMPUTE, DOWNLOAD, QUEUED, RESTORE, STAGE_NAMES, UPLOAD, Launch
from oracle.engine.links import Links
from oracle.engine.nodes import NodeColumns
from oracle.engine.pipeline import BatchLaunch
from oracle.engine.pool import PoolEnds
from oracle.engine.shadow import EarliestFit, Shadows
from oracle.engine.sketches import Tally, on_sketch, release, what_if_copy
from oracle.engine.transfers import items_of
from sim.model.cluster import WHOLE, Cluster, Device, DeviceType
from sim.model.plan import Placement
from sim.model.tasks import RUNNING, Item, Mode, Task
from sim.policy.contract import PlacementRule

if TYPE_CHECKING:
    from oracle.engine.simulation import Simulation
    from sim.policy.request_queue import RequestQueue


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


class EngineView:
    """See `sim.policy.contract.View`; nothing here changes the state of the run."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._capacity = simulation.capacity
        self._places = simulation.places
        self._links = simulation.links
        self._clock = simulation.clock
        self._asked_at = self._asked = 0
        self.cluster: Cluster = simulation.input.cluster
        self.items: Sequence[Item] = simulation.tasks.items
        self.random = simulation.input.random.stream("policy")
        self.nodes = NodeColumns(simulation.capacity)
        self._first = simulation.capacity.first
        self._with_items = bool(simulation.tasks.items)
        self._specs: dict[DeviceType, int] = {}
        self._only: dict[Mode, tuple[Any, ...]] = {}
        self._shadows = Shadows(self)

    @property
    def now(self) -> float:
        return self._clock._now

    @property
    def releases(self) -> int:
        return self._capacity.releases

    @property
    def launches(self) -> int:
        return self._simulation.last_launch

    @property
    def steady(self) -> bool:
        return self._simulation.steady

    @cached_property
    def ends(self) -> Ends:
        """When nodes will have room; only where the run is steady."""
        return Ends(self)

    @cached_property
    def pool(self) -> PoolEnds:
        """When accelerators will be free, wherever they are; only where the run is steady."""
        return PoolEnds(self)

    # Where does it fit? -------------------------------------------------------------------------------------

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            return rule(task, self)
        if self._with_items:
            return self._fit_with_items(task)
        modes = task.shape.modes
        if len(modes) == 1:
            return self._first(modes[0])
        for position in task.modes_by_speed():
            placement = self._first(modes[position])
            if placement is not None:
                return placement
        return None

    def _fit_with_items(self, task: Task) -> Placement | None:
        """As `fit`, passing over devices without room for the task's data."""
        for position in task.modes_by_speed():
            mode = task.shape.modes[position]
            placement = self._first(mode)
            if placement is None or self.holds(task, placement):
                if placement is not None:
                    return placement
                continue
            for node in self.nodes_fitting(mode):
                placement = self.on_node(mode, node, task)
                if placement is not None:
                    return placement
        return None

    def holds(self, tasks: Task | Sequence[Task], placement: Placement) -> bool:
        """Is there room for the data these tasks read and write there, besides their own memory?"""
        if isinstance(tasks, Task):
            tasks = (tasks,)
        refusal = self._simulation.launcher.transfers.items_refusal(tasks, placement, placement.mode.gpu_memory)
        return refusal is None

    def first_among(self, mode: Mode, nodes: int) -> Placement | None:
        mask = self._capacity.mask(mode) & nodes
        if mask:
            return self._capacity.on_node(mode, self._capacity.nodes[(mask & -mask).bit_length() - 1])
        if not mode.span_any:
            return None
        return self._capacity._across(mode, (self._capacity.nodes[node] for node in self._capacity.nodes_in(nodes)))

    def emptiest(self, mode: Mode, task: Task | None = None) -> Placement | None:
        """See the contract.  Cost: O(1) where there is one such device, else linear in those on which it fits."""
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
            return self._first(mode)
        if task is not None and self._with_items:
            there = {option: option.devices[0] for option in self.options(task, mode)}
            return min(there, key=lambda p: (self.load(there[p]), self.missing_bytes(task, there[p])), default=None)
        best, most = None, 0
        for number in self._capacity.nodes_in(self._capacity.mask(mode)):
            gpu = self._capacity.best_gpu(mode, self._capacity.nodes[number])
            if gpu is not None and gpu.free > most:
                best, most = gpu, gpu.free
                if most == mode.type.streams * WHOLE:
                    break
        if best is None:
            return None
        placement = best.placements.get(mode)
        if placement is None:
            placement = best.placements[mode] = Placement(mode, (best.device,))
        return placement

    def _only_place(self, mode: Mode) -> tuple[Any, ...]:
        """The one accelerator of its type with its node, and the mode placed there; nothing where there are more."""
        if mode.on_cpu or mode.gpus != 1 or mode.type.sharing.kind == "mig" or self.cluster.count(mode.type.name) != 1:
            return ()
        device = next(device for device in self.cluster.devices if device.type is mode.type)
        if not mode.allows(device.node):
            return ()
        return Placement(mode, (device,)), self._capacity.of[device.index], self._capacity.nodes[device.node]

    def nodes_fitting(self, mode: Mode) -> list[int]:
        return list(self._capacity.nodes_in(self._capacity.mask(mode)))

    def on_node(self, mode: Mode, node: int, task: Task | None = None) -> Placement | None:
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
        """Every placement of a one-device mode that fits now; of a gang one a node."""
        found = []
        if distinct and self.alike(task, mode):
            first = self._first(mode)
            return [] if first is None else [first]
        for node in self.nodes_fitting(mode):
            state = self._capacity.nodes[node]
            if mode.gpus == 1:
                for gpu in state.gpus:
                    if gpu.device.type is mode.type and gpu.takes(mode):
                        placement = Placement(mode, (gpu.device,))
                        if not self._with_items or self.holds(task, placement):
                            found.append(placement)
            else:
                placement_here = self.on_node(mode, node, task)
                if placement_here is not None:
                    found.append(placement_here)
        return found

    def alike(self, task: Task, mode: Mode) -> bool:
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

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None:
            return self._capacity.refusal(placement) is None and (not tasks or self.holds(tasks, placement))
        return bool(self._capacity.mask(mode)) or (mode.span_any and self._first(mode) is not None)

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
        if self._simulation.steady and task._launch is None:
            mode, left = placement.mode, 1.0 - task.done
            return mode.fixed * left + task.estimates[task.shape.position[mode]] * left
        return self.stages((task,), placement).total

    def stages(self, tasks: Sequence[Task], placement: Placement) -> StageEstimate:
        """What each stage would take if these tasks started there now, on idle links and engines.

        Reckoned by the engine's own functions, on estimates.  Of a running task (a Move) what it has left counts.
        """
        mode = placement.mode
        transfers = self._simulation.launcher.transfers
        now = self.now
        needed = mode.share or mode.millicores
        states = [self._capacity.of[device.index] for device in placement.devices]
        ready = max(available_at(state, now, state.left - needed) for state in states)
        left = [self._left(task) for task in tasks]
        works = [t.estimates[t.shape.position[mode]] * part for t, part in zip(tasks, left, strict=True)]
        rate = min(state.frequency / state.slowdown for state in states)
        rate *= mode.span_rate(placement.devices)
        restored = [t for t in tasks if t._history is not None and t.done > 0 or t.state == RUNNING]
        return StageEstimate(
            ready=max(0.0, ready - now),
            write_back=self._write_back(tasks, placement) if self._with_items else 0.0,
            upload=transfers.upload_seconds(tasks, placement),
            restore=sum(task.shape.stopping.restore for task in restored),
            compute=(mode.fixed * max(left) + math.fsum(works)) / rate,
            download=transfers.download_seconds(tasks, placement),
        )

    def _left(self, task: Task) -> float:
        """The estimated part of the work still to do, of a running task its progress included."""
        launch = task._launch
        if task.state != RUNNING or launch is None:
            return 1.0 - task.done
        mode = launch.placement.mode
        whole = mode.fixed + task.estimates[task.shape.position[mode]]
        return self._remaining(launch) / whole if whole > 0 else 0.0

    def _write_back(self, tasks: Sequence[Task], placement: Placement) -> float:
        """Seconds until only copies that a start there would evict are on the host."""
        longest = 0.0
        for device in placement.devices:
            state = self._capacity.of[device.index]
            if not isinstance(state, GpuState):
                continue
            here = self._places.on(device)
            wanted = items_of(tasks)
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
        return self._remaining(launch)

    def remaining_of(self, launch: Any) -> float:
        """Estimated compute seconds of a launch of any kind."""
        if isinstance(launch, BatchLaunch):
            if launch.compute_start > self.now:
                return launch.planned
            return max(0.0, launch.compute_start + launch.planned - self.now)
        return self._remaining(launch)

    def _remaining(self, launch: Launch) -> float:
        """Estimated compute seconds a launch has left at rate 1; 0 after an overrun."""
        planned = self._planned(launch)
        if launch.stages is None:
            return max(0.0, planned - (self.now - launch.decided))
        if launch.stage < COMPUTE:
            return planned
        if launch.stage > COMPUTE:
            return 0.0
        done = launch.total - launch.left + launch.rate * (self.now - launch.updated)
        return max(0.0, planned - done)

    @staticmethod
    def _planned(launch: Launch) -> float:
        """Estimated compute seconds of a launch as it looked when it started."""
        mode, tasks = launch.placement.mode, launch.tasks
        if len(tasks) == 1 and launch.terms is None:
            task = launch.task
            return (mode.fixed + task.estimates[launch.position]) * (1.0 - task.done)
        works = [t.estimates[t.shape.position[mode]] * (1.0 - t.done) for t in tasks]
        padding = 0.0 if launch.terms is None else launch.terms.padding
        return mode.fixed * max(1.0 - t.done for t in tasks) + (math.fsum(works) + padding)

    def expected_finish(self, task: Task) -> float:
        launch = task._launch
        if launch.stages is None:
            # The very float of the event, if the estimate is exact: not now + what is left.
            return max(self.now, launch.decided + self._planned(launch))
        return self._pipeline(launch).end

    def _pipeline(self, launch: Launch) -> EngineTimes:
        """When a launch will be through its engines: those before it on its first accelerator are followed
        through upload, compute and download in start order, as the engines serve them."""
        lead = self._capacity.of[launch.placement.devices[0].index]
        before = lead.engines.staged if isinstance(lead, GpuState) else [launch]
        times = EngineTimes(self.now, self.now, self.now, self.now)
        for other in before:
            times = self._follow(other, times)
            if other is launch:
                break
        return times

    def _follow(self, launch: Launch, free: EngineTimes) -> EngineTimes:
        """The engines' next free times once they have served this launch too."""
        now = self.now
        stages = launch.stages
        assert stages is not None
        transfers = self._simulation.launcher.transfers
        down = transfers.download_seconds(launch.tasks, launch.placement, launch.terms)
        if launch.stage == DOWNLOAD:
            began = stages.download_start
            end = max(now, began + down) if began == began else free.download + down
            return EngineTimes(free.upload, free.compute, end, end)
        if launch.stage == COMPUTE:
            # Reckoned from when the rate was last set, so that the answer is the same float at any time.
            uploaded = now
            left = self._planned(launch) - (launch.total - launch.left)
            computed = max(now, launch.updated + left / (launch.rate or 1.0))
        else:
            uploaded = self._upload_end(launch, free.upload)
            alone = launch.placement.mode.share == WHOLE
            computed = max(uploaded, free.compute if alone else now) + self._remaining(launch)
        end = max(computed, free.download if down else computed) + down
        return EngineTimes(max(free.upload, uploaded), max(free.compute, computed), max(free.download, end), end)

    def _upload_end(self, launch: Launch, upload_free: float) -> float:
        stages = launch.stages
        assert stages is not None
        if launch.stage in (RESTORE, QUEUED):
            return self.now
        if launch.stage == UPLOAD:
            began = stages.upload_start
            if began == began:
                return max(self.now, began + stages.upload_estimate)
            return upload_free + stages.upload_estimate
        states = [self._capacity.of[device.index] for device in launch.placement.devices]
        ready = max(available_at(state, self.now, state.left) for state in states)
        seconds = self._simulation.launcher.transfers.upload_seconds(launch.tasks, launch.placement, launch.terms)
        return max(upload_free, ready) + seconds

    def free_at(self, device: Device, engine: Engine = "stream") -> float:
        """When an engine of a device will have served everything in flight; "stream": when one more whole launch
        may start there (for cores: when one is free)."""
        if self._simulation.pipeline is not None:
            return self._simulation.pipeline.free_at(device, engine)
        if engine == "stream":
            state = self._capacity.of[device.index]
            if state.left >= (WHOLE if isinstance(state, GpuState) else 1000):
                return self.now
            ends = [self.expected_finish(task) for task in self.running_on(device)]
            return min(ends, default=self.now)
        times = EngineTimes(self.now, self.now, self.now, self.now)
        for launch in self._simulation.launches_on(device):
            if launch.stages is not None:
                times = self._follow(launch, times)
            else:
                times = times._replace(compute=max(times.compute, self.now + self._remaining(launch)))
        return float(getattr(times, engine))

    def _count_question(self) -> None:
        """A policy that asks who waits or runs again and again, and decides nothing, would never come back."""
        decisions = self._simulation.decisions
        if decisions != self._asked_at:
            self._asked_at, self._asked = decisions, 0
        self._asked += 1
        if self._asked > ASKED_IN_VAIN:
            questions = f"{self._asked:,} times which tasks wait or run"
            raise self._simulation.illegal(f"asked {questions}, decided nothing and goes on: it loops")

    # Who? ---------------------------------------------------------------------------------------------------

    def running(
        self, by: Literal["finish", "start"] = "finish", device: Device | None = None, own: bool = False
    ) -> list[Task]:
        self._count_question()
        if device is not None:
            return self.running_on(device)
        launches = list(self._simulation.running.values())
        if by == "finish":
            launches.sort(key=lambda launch: self.expected_finish(launch.task))
        return [task for launch in launches for task in launch.tasks]

    def running_on(self, device: Device) -> list[Task]:
        """Running tasks on a device, in the order of their start."""
        return [task for launch in self._simulation.launches_on(device) for task in launch.tasks]

    def placement_of(self, task: Task) -> Placement | None:
        """Where a running task runs."""
        return None if task._launch is None else task._launch.placement

    def stage_of(self, task: Task) -> str | None:
        """The stage of a running task's launch: preparing, upload, restore, queued for compute, compute, download."""
        launch = task._launch
        if launch is None:
            return None
        return "compute" if launch.stages is None else STAGE_NAMES[launch.stage]

    def batch_of(self, task: Task) -> tuple[Task, ...]:
        """The tasks of a running task's launch."""
        return () if task._launch is None else task._launch.tasks

    def waiting(self, count: int | None = None, own: bool = False) -> list[Task]:
        self._count_question()
        return list(self._simulation.waiting.values())[:count]

    # Under the names of today ------------------------------------------------------------------------------------

    @property
    def changes(self) -> Any:
        return self

    def first(self, mode: Any, task: Any = None, *, node: Any = None, among: Any = None, by: str = "node") -> Any:
        if by == "load":
            return self.emptiest(mode, task)
        if node is not None:
            return self.on_node(mode, node, task)
        return self._first(mode) if among is None else self.first_among(mode, among)

    def launch_of(self, task: Task) -> Any:
        view = self

        class Seen:
            placement = property(lambda _: view.placement_of(task))
            stage = property(lambda _: view.stage_of(task))
            tasks = property(lambda _: view.batch_of(task))
            finish = property(lambda _: view.expected_finish(task))

        return Seen()

    def num_waiting(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> int:
        return self.waiting_count if kind is class_ is None else self.waiting_for(kind, class_)

    @property
    def waiting_count(self) -> int:
        return len(self._simulation.waiting)

    @property
    def oldest(self) -> Task | None:
        return next(iter(self._simulation.waiting.values()), None)

    def queue_of(self, task: Task) -> RequestQueue | None:
        return self._simulation._queue_of.get(task.shape)

    def free(self, kind: str, node: int | None = None) -> float:
        if node is not None:
            return self.free_on(node, kind)
        return sum(self.free_on(node.index, kind) for node in self._capacity.nodes)

    def free_on(self, node: int, kind: str) -> float:
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

    def backlog(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> float:
        return self._work_ahead().seconds(kind, class_)

    def waiting_for(self, kind: str | None = None, class_: str | None = None) -> int:
        return self._work_ahead().count(kind, class_)

    def _work_ahead(self) -> Backlog:
        simulation = self._simulation
        if simulation.backlog is None:
            simulation.backlog = Backlog(simulation)
            simulation.launcher.compute.materialised = simulation.backlog.materialised
        return simulation.backlog

    def attained(self, who: Task | str) -> float:
        received = self._simulation.received
        return received.task(who) if isinstance(who, Task) else received.user(who)

    def holders(self, item: int) -> list[Device | int]:
        devices = self.cluster.devices
        return [devices[place] if place >= 0 else -1 - place for place in self._places.where[item]]

    def missing_bytes(self, task: Task, device: Device) -> int:
        return sum(self._places.items[item].size for item in self._places.missing(task.reads, device))

    # What if? -------------------------------------------------------------------------------------------------

    def earliest_fit(self, task: Task, mode: Mode | None = None) -> EarliestFit:
        return self._shadows.of(task, mode)

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        capacity = self._capacity
        modes = [task.shape.modes[position] for position in task.modes_by_speed()]
        counted = all(map(capacity.countable, modes))
        tallies: dict[int, Tally] = {}
        sketches: dict[int, NodeState] = {}
        stopped: dict[int, list[Task]] = {}
        for victim in victims:
            if not victim.shape.preemptible or victim._launch is None:
                continue
            launch = victim._launch
            if not stopped and launch.placement.mode is modes[0]:
                # The first victim holds just what is wanted: nothing has to be tried out.
                return launch.placement, [victim]
            if counted and not capacity.countable(launch.placement.mode):
                counted = False
                sketches = {number: self._released(number, tasks) for number, tasks in stopped.items()}
            if counted:
                number = launch.placement.devices[0].node
                tally = tallies.get(number)
                if tally is None:
                    tally = tallies[number] = Tally(capacity.nodes[number])
                    stopped[number] = []
                if any(launch is other._launch for other in stopped[number]):
                    continue
                tally.release(launch.placement)
                stopped[number].append(victim)
                for mode in modes:
                    if tally.fits(mode, capacity.types[mode.type]):
                        return self._sparing_counted(number, mode, stopped[number])
                continue
            for number in dict.fromkeys(device.node for device in launch.placement.devices):
                if number not in sketches:
                    sketches[number] = what_if_copy(capacity.nodes[number])
                    stopped[number] = []
                if launch in (other._launch for other in stopped[number]):
                    continue
                release(sketches[number], launch.placement, launch)
                stopped[number].append(victim)
                for mode in modes:
                    placement = on_sketch(sketches[number], mode)
                    if placement is not None:
                        return self._sparing(number, mode, stopped[number])
        return None

    def _released(self, number: int, victims: list[Task]) -> NodeState:
        """A node as it would be without these tasks."""
        sketch = what_if_copy(self._capacity.nodes[number])
        for victim in victims:
            release(sketch, victim._launch.placement, victim._launch)
        return sketch

    def _sparing_counted(self, number: int, mode: Mode, victims: list[Task]) -> tuple[Placement, list[Task]]:
        """As `_sparing`, where counting is enough."""
        kind = self._capacity.types[mode.type]
        tally = Tally(self._capacity.nodes[number])
        for victim in victims:
            tally.release(victim._launch.placement)
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
            sketch = what_if_copy(capacity.nodes[number])
            for victim in needed:
                if victim is not spared:
                    release(sketch, victim._launch.placement, victim._launch)
            if sketch.fits(mode):
                needed.remove(spared)
        return needed
