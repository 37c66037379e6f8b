"""A second opinion on the view: every verb in every round, against the record.

What waits and runs is reckoned from the launches of the record, when the run is over; what is free and what fits, from
what runs, with none of the engine's bookkeeping.  So a verb that lies is found in whatever round it does.  In tests the
conformance suite has one in each of its runs (`conftest.py`), and names what it finds as the rule `view`.

Requests to language models are reckoned from the steps of their replicas (`witness_language`).  Tasks that were
stopped, and shared devices, are checked for what is certain of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from witness_language import LanguageLives, device_indexes, held_by_replicas, model_of, of_own, of_queues

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.record import COMPLETED, LAUNCH_COMPLETED, Record, RunInput
from hetsim.model.service import LanguageService
from hetsim.model.task import Task
from hetsim.policy.contract import View
from hetsim.policy.decisions import Decision, Set
from hetsim.results.one_run.language import rows_of
from hetsim.testing import conformance

STAGES = {"upload": ("upload_start", "upload_end"), "compute": ("compute_start", "compute_end"),
          "download": ("download_start", "end")}  # fmt: skip
CLOSE = 1e-9
BETWEEN_ROUNDS = 0.0171
"""Seconds from one look at language models to the next, at the beginning of a run."""
FURTHER = 0.005
"""The same later on, as a part of the time that has passed."""


@dataclass
class Look:
    """Answers of the verbs on waiting and running tasks, by row, as a round begins."""

    now: float
    waiting: list[int]
    running: list[int]
    devices: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stage: dict[int, str | None] = field(default_factory=dict)
    batch: dict[int, tuple[int, ...]] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    attained: dict[int, float] = field(default_factory=dict)
    requests: dict[int, None] = field(default_factory=dict)
    """Rows of requests to language models among them."""
    remaining: dict[int, float] = field(default_factory=dict)
    """Of these."""
    occupied: set[int] = field(default_factory=set)
    """Devices that replicas hold."""
    received: float = 0.0
    """Device-seconds of all users together."""


class CountedRoom:
    """Free capacity, counted from the running tasks."""

    def __init__(self, cluster: Cluster, placements: Sequence[Placement]):
        self.cluster = cluster
        self.cores = [node.cpus * 1000 for node in cluster.nodes]
        self.memory = [math.inf if node.memory is None else node.memory for node in cluster.nodes]
        self.share = {device: device.type.streams * WHOLE for node in cluster.nodes for device in node.accelerators}
        self.room = {device: math.inf if device.type.memory is None else device.type.memory for device in self.share}
        for placement in placements:
            self.change(placement, -1)

    def change(self, placement: Placement, sign: int) -> None:
        """Give back (1) or take (-1) what a launch holds."""
        mode = placement.mode
        for node in dict.fromkeys(device.node for device in placement.devices):
            here = [device for device in placement.devices if device.node == node]
            part = 1.0 if mode.on_cpu or len(here) == mode.gpus else len(here) / mode.gpus
            if placement.parts is not None:
                part = placement.parts[placement.devices.index(here[0])] / mode.millicores
            cores = mode.millicores * part
            self.cores[node] += sign * (round(cores) if mode.on_cpu else math.ceil(cores))
            self.memory[node] += sign * math.ceil(mode.memory * part)
            for device in here if mode.gpus else ():
                self.share[device] += sign * mode.share
                self.room[device] += sign * mode.gpu_memory

    def seats(self, mode: Mode, node: int) -> int:
        """On how many accelerators of a node one launch in this mode has room."""
        there = self.cluster.nodes[node].accelerators
        seats = (self.share[d] >= mode.share and self.room[d] >= mode.gpu_memory for d in there if d.type is mode.type)
        return sum(seats)

    def fits_on(self, mode: Mode, node: int) -> bool:
        if mode.millicores > self.cores[node] or mode.memory > self.memory[node] or not mode.allows(node):
            return False
        return self.cluster.nodes[node].cpu.type is mode.type if mode.on_cpu else self.seats(mode, node) >= mode.gpus

    def nodes(self, mode: Mode) -> list[int]:
        return [node.index for node in self.cluster.nodes if self.fits_on(mode, node.index)]


class Witness:
    """Looks at every verb, round by round; `lies` tells what cannot be."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.found: list[str] = []
        self._before = (0, 0)
        self.language: Sequence[LanguageService] = ()
        """The language models of the run."""
        self._replicas: list[Placement] = []

    def look(self, view: View, tasks: Any, counted: bool) -> None:
        """Call every verb of the view.  counted: all occupants run, every device is up."""
        waiting, running = view.waiting(), view.running("start")
        look = Look(view.now, [task.index for task in waiting], [task.index for task in running])
        self.looks.append(look)
        look.requests = {task.index: None for task in (*waiting, *running) if model_of(view, task) is not None}
        if self.language:
            look.remaining = {task.index: view.remaining(task) for task in (*waiting, *running)}
            look.received = math.fsum(map(view.attained, tasks.users))
            self._replicas = held_by_replicas(view, self.language)
            look.occupied = device_indexes(self._replicas)
        placements: dict[int, Placement] = {}
        for task in running:
            seen, row = view.launch_of(task), task.index
            if seen.placement is None or seen.stage is None or task not in seen.tasks:
                self._tell(view, f"launch_of({task}) knows nothing of a running task")
                continue
            if row not in look.requests:
                placements[seen.tasks[0].index] = seen.placement
            look.devices[row] = tuple(device.index for device in seen.placement.devices)
            look.stage[row], look.batch[row] = seen.stage, tuple(other.index for other in seen.tasks)
            look.finish[row], look.attained[row] = seen.finish, view.attained(task)
            if not seen.finish >= view.now or view.remaining(task) < 0:
                self._tell(view, f"{task} was to finish at {seen.finish:g} s, with {view.remaining(task):g} s left")
        for text in (*of_queues(view, waiting), *of_own(view, waiting, running, self._replicas)):
            self._tell(view, text)
        self._of_waiting(view, waiting, running)
        self._of_running(view, look, running)
        changes = view.changes.releases, view.changes.launches
        if changes < self._before or changes[1] < len(placements):
            self._tell(view, f"changes say {changes} releases and launches after {self._before}")
        self._before = changes
        if counted:
            room = CountedRoom(view.cluster, [*self._replicas, *placements.values()])
            self._of_room(view, room, [task for task in waiting if task.index not in look.requests], tasks)

    def _tell(self, view: View, text: str) -> None:
        self.found.append(f"at t = {view.now:g} s {text}")

    def _of_waiting(self, view: View, waiting: list[Task], running: list[Task]) -> None:
        """Check num_waiting, waiting, remaining, backlog, queue_of and launch_of."""
        if view.num_waiting() != len(waiting) or view.waiting(1) != waiting[:1]:
            self._tell(view, f"num_waiting() is {view.num_waiting()}, waiting() has {len(waiting)} tasks")
        counts: dict[tuple[str, str], int] = {}
        seconds = math.fsum(map(view.remaining, waiting))
        for task in waiting:
            best = task.modes[min(task.allowed or range(len(task.modes)), key=lambda i: _alone(task, i))]
            counts[best.type.name, task.class_] = counts.get((best.type.name, task.class_), 0) + 1
            remaining = (1.0 - task.done) * min(_alone(task, i) for i in task.allowed or range(len(task.modes)))
            if model_of(view, task) is not None and view.attained(task) > 0:
                remaining = min(remaining, view.remaining(task))  # it has been in steps before
            if not math.isclose(view.remaining(task), remaining, rel_tol=CLOSE, abs_tol=CLOSE):
                self._tell(view, f"remaining({task}) is {view.remaining(task):g} s and should be {remaining:g} s")
            if view.launch_of(task).placement is not None or view.launch_of(task).tasks:
                self._tell(view, f"launch_of({task}) tells of a launch, and it waits")
            queue = view.queue_of(task)
            if queue is not None and queue.service.shape is not task.shape:
                self._tell(view, f"queue_of({task}) is that of another service")
        for (kind, class_), count in counts.items():
            if view.num_waiting(kind, class_) != count:
                answer = view.num_waiting(kind, class_)
                self._tell(view, f"num_waiting({kind!r}, {class_!r}) is {answer}, {count} wait")
        launches = {view.launch_of(task).tasks[:1]: task for task in running if model_of(view, task) is None}
        seconds += math.fsum(view.remaining(task) for task in running if model_of(view, task) is not None)
        seconds += math.fsum(map(view.remaining, launches.values()))
        if not math.isclose(view.backlog(), seconds, rel_tol=1e-6, abs_tol=1e-6):
            self._tell(view, f"backlog() is {view.backlog():g} s and should be {seconds:g} s")

    def _of_running(self, view: View, look: Look, running: list[Task]) -> None:
        """running by finish and by device, free_at."""
        ends = [view.launch_of(task).finish for task in view.running("finish")]
        if len(ends) != len(running) or ends != sorted(ends):
            self._tell(view, "running('finish') is not in the order of finish")
        for device in view.cluster.devices:
            mine = [row for row in look.running if device.index in look.devices.get(row, ())]
            if [task.index for task in view.running("start", device)] != mine:
                self._tell(view, f"running('start', {device}) is not what runs there")
            idle = not mine and device.index not in look.occupied
            if view.free_at(device) < view.now or (idle and view.free_at(device, "compute") > view.now):
                self._tell(view, f"free_at({device}) is {view.free_at(device):g} s")

    def _of_room(self, view: View, room: CountedRoom, waiting: list[Task], tasks: Any) -> None:
        """Check free, load, fits, first, options and nodes; of first tasks, also fit."""
        for node in view.cluster.nodes:
            free = sum(min(WHOLE, max(0, room.share[device])) for device in node.accelerators) / WHOLE
            cores = room.cores[node.index] / 1000
            answer = view.free("cpu", node.index), sum(view.free(d.name, node.index) for d in _types(node))
            if not (math.isclose(answer[0], cores, abs_tol=CLOSE) and math.isclose(answer[1], free, abs_tol=CLOSE)):
                self._tell(view, f"free says {answer} cores and GPUs of {node.name}, where {cores:g} and {free:g} are")
            for device in node.accelerators:
                load = device.type.streams - room.share[device] / WHOLE
                if not math.isclose(view.load(device), load, abs_tol=CLOSE):
                    self._tell(view, f"load({device}) is {view.load(device):g} and should be {load:g}")
        for mode in dict.fromkeys(tasks.modes):
            if mode.limited or mode.type.sharing.kind == "mig" or mode.span_any:
                continue
            nodes = room.nodes(mode)
            first = view.first(mode)
            if view.nodes.fitting(mode) != nodes or view.nodes.candidates(mode).tolist() != nodes:
                self._tell(view, f"{mode} fits on nodes {nodes}; nodes.fitting says {view.nodes.fitting(mode)}")
            if view.fits(mode) != bool(nodes) or (first is None) == bool(nodes):
                self._tell(view, f"fits({mode}) is {view.fits(mode)} and first gives {first}; it fits on {nodes}")
            elif first is not None and (first.devices[0].node != nodes[0] or not view.fits(mode, first)):
                self._tell(view, f"first({mode}) is {first}; the first node where it fits is {nodes[0]}")
        for task in waiting[:3]:
            self._of_task(view, room, task)

    def _of_task(self, view: View, room: CountedRoom, task: Task) -> None:
        """Check fit, options, holds, duration, stages, earliest_fit and the like."""
        placement, shadow = view.fit(task), view.earliest_fit(task)
        if shadow.time < view.now or (placement is not None and shadow.time != view.now):
            self._tell(view, f"earliest_fit({task}) is {shadow.time:g} s, and fit gives {placement}")
        if placement is not None:
            seconds, stages = view.duration(task, placement), view.stages((task,), placement).total
            if not view.holds(task, placement) or view.over_limit(task):
                self._tell(view, f"fit({task}) gives {placement}, which holds or over_limit refuses")
            if not math.isclose(seconds, stages, rel_tol=CLOSE, abs_tol=CLOSE):
                self._tell(view, f"duration({task}) is {seconds:g} s, its stages are {stages:g} s")
        modes = [task.modes[position] for position in task.modes_by_speed()]
        if view.items or any(m.limited or m.span_any or m.type.sharing.kind == "mig" for m in modes):
            return
        fitting = {mode: room.nodes(mode) for mode in modes}
        if (placement is not None) != any(fitting.values()):
            self._tell(view, f"fit({task}) gives {placement}; its modes fit on nodes {list(fitting.values())}")
        for mode, nodes in fitting.items():
            seats = len(nodes) if mode.gpus != 1 else sum(room.seats(mode, node) for node in nodes)
            options = view.options(task, mode)
            if len(options) != seats or not all(view.fits(mode, option) for option in options):
                self._tell(view, f"options({task}, {mode}) are {len(options)}; there are {seats}")
        if placement is None:
            self._of_what_if(view, modes, task, shadow.time)

    def _of_what_if(self, view: View, modes: list[Mode], task: Task, told: float) -> None:
        """Check when a task fits if running launches end as expected; and make_room."""
        running: dict[int, tuple[float, Placement, Task]] = {}
        for other in view.running("finish", own=True):
            seen = view.launch_of(other)
            if seen.placement is None or seen.placement.mode.type.sharing.kind == "mig":
                return
            running.setdefault(seen.tasks[0].index, (seen.finish, seen.placement, other))
        occupied = [*self._replicas, *(placement for _, placement, _ in running.values())]
        room, time = CountedRoom(view.cluster, occupied), math.inf
        for finish, placement, _ in sorted(running.values(), key=lambda one: one[0]):
            room.change(placement, 1)
            if any(map(room.nodes, modes)):
                time = finish
                break
        if time != told and not math.isclose(time, told, rel_tol=CLOSE):
            self._tell(view, f"earliest_fit({task}) is {told:g} s and should be {time:g} s")
        victims = [other for _, _, other in running.values() if other.shape.preemptible]
        made = view.make_room(task, victims)
        room = CountedRoom(view.cluster, occupied)
        for victim in victims if made is None else made[1]:
            room.change(running[view.launch_of(victim).tasks[0].index][1], 1)
        if made is None:
            if any(map(room.nodes, modes)):
                self._tell(view, f"make_room({task}) finds none; if all that may be stopped were, it would fit")
        elif not made[1] or not room.fits_on(made[0].mode, made[0].devices[0].node):
            self._tell(view, f"make_room({task}) names {made[1]}, and it would not fit on {made[0]} then")

    def lies(self, record: Record) -> Iterator[str]:
        """All that was said and was not so, by the record."""
        yield from self.found
        lives, language = _Lives(record), LanguageLives(record)
        for look in self.looks:
            for text in (*lives.compare(look), *language.compare(look)):
                yield f"at t = {look.now:g} s {text}"


class _Lives:
    """The times at which each task waited and ran, from the recorded launches."""

    def __init__(self, record: Record):
        self.record = record
        self.name = record.input.tasks.name
        self.language = set(rows_of(record.input).tolist())
        self.columns: dict[str, Any] = record.launches or {
            "decided": record.start, "end": record.finish, "place": record.place,
            "compute_start": record.start, "compute_end": record.finish,
        }  # fmt: skip
        self.certain = record.input.admission is None
        """Does every task wait from when it is ready?  Admission may have deferred it, which is not written down."""
        rows = self._launches_of_rows()
        done = record.status == COMPLETED
        # Of tasks with one launch that ended well everything is certain.
        self.launch = {
            row: mine[0] for row, mine in rows.items() if len(mine) == 1 and done[row] and row not in self.language
        }
        self.members: dict[int, list[int]] = {}
        for row, launch in self.launch.items():
            self.members.setdefault(launch, []).append(row)

    def _launches_of_rows(self) -> dict[int, list[int]]:
        """The launches of each task, as positions in the columns.

        Empty if a batch was stopped, as the record does not keep the members of a stopped batch.
        """
        record, columns = self.record, self.columns
        if record.launches is None:
            return {row: [row] for row in np.flatnonzero(record.place >= 0).tolist()}
        batches: dict[int, list[int]] = {}
        if record.batch is not None:
            for row, number in enumerate(record.batch.tolist()):
                batches.setdefault(int(number), []).append(row)
        rows: dict[int, list[int]] = {}
        for launch, members in enumerate(columns["members"].tolist()):
            if members > 1 and columns["outcome"][launch] != LAUNCH_COMPLETED:
                return {}
            single = [int(columns["task"][launch])]
            for row in single if members == 1 else batches.get(int(columns["launch"][launch]), []):
                rows.setdefault(row, []).append(launch)
        return rows

    def compare(self, look: Look) -> Iterator[str]:
        now, columns, ready = look.now, self.columns, self.record.ready
        waiting, running = set(look.waiting), set(look.running)
        for row, launch in self.launch.items():
            decided, end = float(columns["decided"][launch]), float(columns["end"][launch])
            # At the very instant of a change it depends on the round.
            if decided < now < end:
                if row not in running or row in waiting:
                    yield f"task {self.name(row)} runs, and is not among running()"
                    continue
                yield from self._of(row, launch, look)
            elif (now < decided or now > end) and row in running:
                yield f"task {self.name(row)} is among running() and ran from {decided:g} to {end:g} s"
            if ready[row] < now < decided and row not in waiting and self.certain:
                yield f"task {self.name(row)} waits since {ready[row]:g} s, and is not among waiting()"
            if (now < ready[row] or now > decided) and row in waiting:
                yield f"task {self.name(row)} is among waiting() and waited from {ready[row]:g} to {decided:g} s"
        order = [ready[row] for row in look.waiting if row in self.launch]
        if self.certain and order != sorted(order):
            yield "waiting() is not in the order in which tasks became ready"
        starts = [columns["decided"][self.launch[row]] for row in look.running if row in self.launch]
        if starts != sorted(starts):
            yield "running('start') is not in the order of starts"

    def _of(self, row: int, launch: int, look: Look) -> Iterator[str]:
        """Answers about a running task."""
        columns, name, now = self.columns, self.name(row), look.now
        devices = self.record.places[int(columns["place"][launch])][0]
        if look.devices.get(row) != devices:
            yield f"task {name} ran on devices {devices}, launch_of says {look.devices.get(row)}"
        if set(look.batch.get(row, ())) != set(self.members[launch]):
            yield f"task {name} was launched with {self.members[launch]}, launch_of says {look.batch.get(row)}"
        for stage, (since, until) in STAGES.items():
            inside = since in columns and columns[since][launch] < now < columns[until][launch]
            if inside and look.stage.get(row) != stage:
                yield f"task {name} was in stage {stage}, launch_of says {look.stage.get(row)}"
        yield from self._of_time(row, launch, look)

    def _of_time(self, row: int, launch: int, look: Look) -> Iterator[str]:
        """Answers about a task that has its devices for itself, at nominal speed."""
        columns, record, name, now = self.columns, self.record, self.name(row), look.now
        kind = record.input.cluster.devices[look.devices[row][0]].type
        shared = kind.kind != "cpu" and (kind.streams > 1 or kind.sharing.kind != "exclusive")
        if shared or record.device_log:
            return
        begun, ended = float(columns["compute_start"][launch]), float(columns["compute_end"][launch])
        members = len(self.members[launch])
        if "busy" in columns and begun < now < ended:
            received = columns["busy"][launch] / members * (now - begun) / (ended - begun)
            if not math.isclose(look.attained[row], received, rel_tol=1e-6, abs_tol=1e-6):
                yield f"task {name} had received {received:g} s, attained says {look.attained[row]:g}"
        exact = record.input.tasks.estimate is record.input.tasks.time and members == 1
        only = begun == columns["decided"][launch] and ended == columns["end"][launch]
        if exact and only and not math.isclose(look.finish[row], ended, rel_tol=CLOSE):
            yield f"task {name} finished at {ended:g} s as expected, launch_of said {look.finish[row]:g} s"


def _alone(task: Task, position: int) -> float:
    return task.estimates[position] + task.modes[position].single


def _types(node: Any) -> list[Any]:
    return list(dict.fromkeys(device.type for device in node.accelerators))


# In each run of the conformance suite ---------------------------------------------------------------------------


class WitnessedScheduler(conformance.WatchedScheduler):
    """A proxy of a policy with a witness, which looks before each round."""

    tasks: Any
    """The table of the run."""

    def __init__(self, policy: Any):
        super().__init__(policy)
        self.witness = Witness()
        self.uncountable = False
        """Has a device been given another frequency, put to sleep, or failed?"""

    def run(self, inputs: RunInput) -> Record:
        return self.looked_at(inputs) if inputs.language else self.simulation(inputs).run()

    def simulation(self, inputs: RunInput) -> Simulation:
        self.tasks, self.witness.language = inputs.tasks, inputs.language
        return Simulation(inputs, check=True)

    def looked_at(self, inputs: RunInput, every: float = BETWEEN_ROUNDS) -> Record:
        """A run with looks between rounds as well: replicas go from step to step without any."""
        simulation = self.simulation(inputs)
        self._look_between(simulation, every)
        return simulation.run()

    def breaches(self, record: Record) -> Iterator[tuple[str, str]]:
        yield from super().breaches(record)
        yield from (("view", text) for text in islice(self.witness.lies(record), 3))

    def schedule(self, view: View) -> Iterator[Decision]:
        self._look(view)
        for decision in super().schedule(view):
            self.uncountable = self.uncountable or isinstance(decision, Set)
            yield decision

    def _look(self, view: View) -> None:
        self.witness.look(view, self.tasks, counted=not (self.uncountable or view.items))

    def _look_between(self, simulation: Simulation, every: float) -> None:
        self._look(self._view)
        state = simulation.state
        if state.sources.to_come or state.iterating or state.running or state.waiting:
            later = self._view.now + max(every, FURTHER * self._view.now)
            simulation.at(later, partial(self._look_between, simulation, every))


class WitnessedPlanner(WitnessedScheduler):
    """The same of a policy that plans all tasks beforehand."""

    prepare = conformance.WatchedPlanner.prepare
