"""Greedy best fit by memory and compute: most demanding first, in tightest places.

Decides the device of each task; a device runs its tasks in the order in which they were placed.  Every device has two
budgets.  The memory budget is its memory; a task uses the memory that its mode occupies (accelerator memory, or node
memory for cores) and that of the items which it reads and writes, each counted once per device.  Nothing is released,
so models and data can remain on the device.  The compute budget of each lane (core or GPU) is the sum of the tasks'
fastest times divided by the number of lanes, or the longest of these times if that is larger; a task uses its compute
time on the lane.  The demand of a task on a device is the larger of the two fractions of a budget that it uses.  Tasks
are ordered by decreasing demand on the device where the demand is smallest.  Each task is placed on the lane where both
budgets suffice and the sum of their remaining fractions is smallest.  If only the compute budget is exceeded
everywhere, the task is placed where it ends first among the lanes with enough memory.  If the memory budget is exceeded
everywhere, it is placed where it ends first among the lanes whose total memory suffices; in the run it then waits for
memory or replaces data.
Reference: Johnson, Demers, Ullman, Garey, Graham, Worst-Case Performance Bounds for Simple One-Dimensional Packing
Algorithms (1974), for best fit by decreasing size, at most 11/9 of the minimum number of bins plus a constant;
Panigrahy, Talwar, Uyeda, Wieder, Heuristics for Vector Bin Packing (2011), for several dimensions.  No ratio for the
makespan.  Weakness: best fit fills one device before it uses the next, so with few tasks other devices are idle; it
chooses a slow device if the fit is tight; transfers are not counted.
Cost: O(n lanes) for n tasks, vectorized over the lanes; with items, O(n (lanes + items of a task × memories)).
"""

from dataclasses import dataclass

import numpy as np

from hetsim.errors import ScenarioError, refusal
from hetsim.model.plan import Plan, can_host
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.instance import Instance, Schedule, runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.insertion import missed
from hetsim_policies.task_graphs import topological

TOLERANCE = 1e-9


class GreedyBestFit(PlannedScheduler):
    """Best fit of sequential tasks by memory and compute, graphs included."""

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "greedy_best_fit", everywhere=False)
        schedule = best_fit(instance, MemoryRoom.from_instance(instance))
        plan = plan_of(instance, schedule)
        plan.notes |= missed(schedule.finish, problem.tasks)
        return plan


@dataclass
class MemoryRoom:
    """Memory of each place (accelerator or host), and tasks' memory by device type."""

    place: np.ndarray  # place of each lane
    capacity: np.ndarray  # bytes of each place; inf: not limited
    need: np.ndarray  # `need[j, t]`: bytes that task j's mode occupies on type t
    items: list[tuple[int, ...]]  # items that each task reads or writes
    size: np.ndarray  # bytes of each item
    hosts: dict[tuple[int, int], np.ndarray]  # by shape and position of a mode: lanes that could run it if idle

    @classmethod
    def from_instance(cls, instance: Instance) -> "MemoryRoom":
        problem = instance.problem
        tasks, nodes = problem.tasks, problem.cluster.nodes
        places, place = instance.places
        capacity = [nodes[one.node].memory if one.type.kind == "cpu" else one.type.memory for one in places]
        need = np.zeros(instance.time.shape)
        for shape in tasks.shapes:
            rows = tasks.shape == shape.index
            for position, mode in enumerate(shape.modes):
                need[rows[:, None] & (instance.mode == position)] = mode.memory if mode.on_cpu else mode.gpu_memory
        lists = [tasks.reads or [()] * len(tasks), tasks.writes or [()] * len(tasks)]
        return cls(
            place=place,
            capacity=np.array([np.inf if one is None else float(one) for one in capacity]),
            need=need,
            items=[tuple(dict.fromkeys([*reads, *writes])) for reads, writes in zip(*lists, strict=True)],
            size=np.array([float(item.size) for item in tasks.items]),
            hosts={
                (shape.index, position): np.array(
                    [one.type is mode.type and can_host(nodes[one.node], mode) for one in places]
                )[place]
                for shape in tasks.shapes
                for position, mode in enumerate(shape.modes)
            },
        )

    def able(self, instance: Instance, task: int, kind_of: np.ndarray) -> np.ndarray:
        """Mask of the cores and GPUs that could run a task, ignoring its data items."""
        able = np.isfinite(instance.time[task, kind_of])
        shape = int(instance.problem.tasks.shape[task])
        for kind, position in enumerate(instance.mode[task].tolist()):
            if position >= 0:
                able &= (kind_of != kind) | self.hosts[shape, position]
        return able


def best_fit(instance: Instance, room: MemoryRoom) -> Schedule:
    """Place tasks one by one (order: `ordered`) on cores or GPUs with enough memory."""
    tasks = instance.problem.tasks
    kind_of = instance.lane_kind
    lane_of = np.concatenate([np.arange(count) for count in instance.counts])
    accelerated = np.array([instance.types[kind].kind != "cpu" for kind in kind_of])
    schedule = Schedule.empty(instance.size)
    shortest = instance.time.min(axis=1, initial=np.inf)
    # Seconds of each lane: the tasks' fastest times over all lanes, or the longest.
    budget = max(float(shortest.sum()) / max(1, sum(instance.counts)), float(shortest.max(initial=0.0)))
    free = room.capacity.copy()
    there = np.zeros((len(room.size), len(free)), dtype=bool)
    load, tail = np.zeros(len(kind_of)), np.zeros(len(kind_of))
    for task in ordered(instance, room, budget):
        items = list(room.items[task])
        missing = (room.size[items, None] * ~there[items]).sum(axis=0)[room.place] * accelerated
        needs = room.need[task, kind_of] + missing
        alone = room.need[task, kind_of] + room.size[items].sum() * accelerated
        able = room.able(instance, task, kind_of) & (alone <= room.capacity[room.place])
        if not able.any():
            raise _too_large(instance, task, room, alone)
        time = np.where(able, instance.time[task, kind_of], np.inf)
        lane = _choose(time, needs, free[room.place], capacity=room.capacity[room.place], load=load, budget=budget)
        before = () if tasks.predecessors is None else tasks.predecessors[task]
        ready = max([float(tasks.arrival[task]), *(float(schedule.finish[one]) for one in before)])
        start = max(ready, float(tail[lane]))
        tail[lane] = schedule.put(task, start, float(time[lane]), kind=int(kind_of[lane]), lane=int(lane_of[lane]))
        load[lane] += time[lane]
        place = int(room.place[lane])
        free[place] -= needs[lane]
        there[items, place] |= bool(accelerated[lane])
    return schedule


def _choose(
    time: np.ndarray, needs: np.ndarray, free: np.ndarray, capacity: np.ndarray, load: np.ndarray, budget: float
) -> int:
    """Return the core or GPU of tightest fit within `budget` s, else of earliest end."""
    roomy = np.isfinite(time) & (needs <= free)
    fits = roomy & (load + time <= budget * (1 + TOLERANCE))
    with np.errstate(divide="ignore", invalid="ignore"):
        memory = np.where(np.isfinite(capacity) & (capacity > 0), (free - needs) / capacity, 0.0)
        rest = memory + (0.0 if budget == 0 else (budget - load - time) / budget)
    if fits.any():
        return int(np.where(fits, rest, np.inf).argmin())
    return int(np.where(roomy if roomy.any() else np.isfinite(time), load + time, np.inf).argmin())


def ordered(instance: Instance, room: MemoryRoom, budget: float) -> list[int]:
    """Return tasks by graph depth, then by descending share of memory or of `budget`."""
    size = instance.size
    largest = np.zeros(len(instance.types))
    np.maximum.at(largest, instance.lane_kind, room.capacity[room.place])
    with np.errstate(divide="ignore", invalid="ignore"):
        memory = np.where(largest > 0, room.need / largest, 0.0)
        demand = np.maximum(memory, instance.time / budget if budget else 0.0)
    demand = np.where(np.isfinite(instance.time), demand, np.inf).min(axis=1, initial=np.inf)
    depth = np.zeros(size, dtype=np.int64)
    if (graph := instance.problem.tasks.predecessors) is not None:
        for task in topological(graph):
            depth[task] = max((depth[before] + 1 for before in graph[task]), default=0)
    return np.lexsort((-demand, depth)).tolist()


def _too_large(instance: Instance, task: int, room: MemoryRoom, alone: np.ndarray) -> ScenarioError:
    usable = np.isfinite(instance.time[task, instance.lane_kind])
    largest = int(np.where(usable, room.capacity[room.place], -1.0).argmax())
    place = room.place[largest]
    device = instance.places[0][place]
    return refusal(
        f"greedy_best_fit: task {instance.problem.tasks.name(task)} needs {alone[largest] / 1e9:.6g} GB for itself and "
        f"its items and fits no device: the largest is {device.name} ({device.type.name}) with "
        f"{room.capacity[place] / 1e9:.6g} GB"
    )
