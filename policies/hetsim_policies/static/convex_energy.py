"""Minimum energy before a deadline: devices and frequencies from a convex program.

Decides where tasks run and the frequency of each device; the cores of a node have one common frequency.  At frequency f
(1 is full speed) work takes 1/f of its time, and the dynamic power (busy - idle) is multiplied by f³.  So W seconds of
work cost f² W times the dynamic power, and the lowest frequency that meets the deadline is best.  Idle power is drawn
until the deadline in any case, as no device is put to sleep.
Independent tasks that are all present at the start: let a type have L lanes (cores or GPUs), dynamic power δ per lane,
lowest frequency f and a load of W seconds at full speed.  Until the deadline D its dynamic energy is at least δ W max(W
/ (L D), f)², also if frequencies vary (Jensen's inequality).  The sum over types is convex in the loads W, which are
linear in the fractions of the tasks on each type.  Its minimum, found by tangents from below (Kelley, The Cutting-Plane
Method for Solving Convex Programs, 1960), is a lower bound on the dynamic energy of every schedule.  The solution is
then *rounded*: each task is assigned to the type with its largest fraction; on each type tasks are assigned to lanes,
longest first; then single tasks are moved while this saves energy.  There is no ratio for the rounding; the plan's
notes give planned energy and bound.
Task graphs: lanes and order are those of `heft`, and only the frequencies come from a convex program: the sum of δ W /
s² over devices, with slowness s = 1/f, is minimized such that no path is longer than the deadline, again by tangents; a
path becomes a row of the program when it is found to be too long.  A candidate is the fast planner's schedule
(greedy_dual or mct; heft for graphs), slowed down; so the plan never needs more energy than that schedule at full speed
with idling until the deadline.
Reference: Yao, Demers, Shenker, A Scheduling Model for Reduced CPU Energy (1995), for the cubic power and why one speed
is best; Li, Energy and Time Constrained Task Scheduling on Multiprocessor Computers with Discrete Speed Levels (2008)
and Pruhs, van Stee, Uthaisombut, Speed Scaling of Tasks with Precedence Constraints (2008) for several speeds.
Weakness: one frequency per device for the whole run, so a node's cores are as fast as the most loaded one needs;
deadlines of single tasks are ignored; if estimates are too low the deadline is missed.  If data move or memory is
short, the engine simulates each plan, and the program is solved again for earlier deadlines until the simulated plan
meets the deadline.  Cost: about five linear programs of n variables per type, then O(n lanes) per round of moves;
graphs: some tens of linear programs of one variable per device, each with O(n + edges) for the longest path.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hetsim.errors import ScenarioError, refusal
from hetsim.model.device import Device
from hetsim.model.plan import Plan, lane_names
from hetsim.model.units import Seconds
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.instance import Instance, Schedule, by_arrival, list_schedule, runnable
from hetsim_policies.static.common.outcome import finished, plan_of
from hetsim_policies.static.common.ranks import traffic_of
from hetsim_policies.static.common.search import bound_together, seed_of
from hetsim_policies.task_graphs import graph_of

ROUNDING = 1e-9  # frequencies are higher by this fraction, so that the last task ends before the deadline
TRIALS = 12  # number of bisection steps if plans are simulated on the engine


class ConvexEnergy(PlannedScheduler):
    """Minimum energy for a deadline, for sequential tasks, graphs included.

    deadline: seconds from the first arrival to the last finish.
    slack: instead of `deadline`: the deadline divided by the makespan at full speed; default: 1.5.
    min_frequency: the lowest frequency of devices, as a fraction of full speed.
    """

    def __init__(
        self,
        deadline: Annotated[Seconds, Field(gt=0)] | None = None,
        slack: Annotated[float, Field(ge=1)] | None = None,
        min_frequency: Annotated[float, Field(gt=0, le=1)] = 0.1,
    ):
        super().__init__()
        if deadline is not None and slack is not None:
            raise ValueError("deadline and slack exclude each other; give one of them")
        if not 0 < min_frequency <= 1 or (slack is not None and not 1 <= slack < np.inf):
            raise ValueError("min_frequency must be above 0 and at most 1, slack finite and at least 1")
        if deadline is not None and not 0 < deadline < np.inf:
            raise ValueError("deadline must be above 0 s")
        self.deadline, self.min_frequency = deadline, min_frequency
        self.slack = 1.5 if slack is None else slack

    def plan(self, problem: PlanProblem) -> Plan:
        # Transfers take as long at any frequency, so frequencies are chosen for computing alone and then tried.
        instance = runnable(problem, "convex_energy")
        instance = replace(instance, time=np.where(np.isfinite(instance.time), instance.compute, np.inf))
        if not instance.size:
            return Plan([], makespan=0.0)
        machine = Machine.from_instance(instance)
        graph = bound_together(instance)
        seed = seed_of(instance, traffic_of(instance, graph_of(problem.tasks)) if graph else None)
        if not graph:  # on each lane by arrival, which is never later than the order of the planner
            seed.schedule = machine.scheduled(machine.lanes_of(seed.schedule), np.ones(len(machine.devices)))
        full = plan_of(instance, seed.schedule, seed.bound, draft=True)
        trial = problem.simulate if _moves_data(problem) else None
        shortest = trial(full) if trial else float(full.makespan or 0.0)
        deadline = self.slack * shortest if self.deadline is None else self.deadline
        if shortest > deadline * (1 + ROUNDING):
            fastest = float(instance.time.min(axis=1, initial=np.inf).max(initial=0.0))  # no schedule is shorter
            raise _too_late(shortest, max(seed.bound or 0.0, fastest), deadline)
        make = partial(planned_graph if graph else planned_loads, machine, seed.schedule, self.min_frequency)
        if not deadline:  # no task takes any time
            plan = full
        elif trial is None:
            plan = make(deadline)
        else:
            plan = _in_time(make, trial, make(deadline), full=full, deadline=deadline)
        plan.notes |= {
            "deadline": deadline,
            "full_speed_makespan": shortest,
            "dynamic_energy_j": machine.energy(plan),
            "full_speed_dynamic_energy_j": machine.energy(full),
        }
        plan.bound = full.bound
        return finished(instance, plan, judged=trial is not None)


def _moves_data(problem: PlanProblem) -> bool:
    tasks = problem.tasks
    if any(column is not None for column in (tasks.bytes_in, tasks.bytes_out, tasks.reads, tasks.writes)):
        return True
    modes = tasks.modes
    stages = any(stage.seconds_for(1) for mode in modes for stage in (mode.upload, mode.download))
    return stages or any(mode.memory or mode.gpu_memory or (mode.gpus and mode.millicores) for mode in modes)


def _too_late(shortest: float, bound: float, deadline: float) -> ScenarioError:
    late, excess = shortest - deadline, bound - deadline
    if excess > 0:
        text = f"no schedule meets the deadline of {deadline:.6g} s: even at full speed all take at least {bound:.6g} s"
        text += f", {excess:.6g} s longer; the best schedule found takes {shortest:.6g} s"
    else:
        text = f"the deadline of {deadline:.6g} s is not met: the best schedule found takes {shortest:.6g} s"
        text += f" at full speed, {late:.6g} s longer (no schedule takes less than {bound:.6g} s)"
    return refusal(f"convex_energy: {text}; give a later deadline")


def _in_time(
    make: Callable[[float], Plan], trial: Callable[[Plan], float], plan: Plan, full: Plan, deadline: float
) -> Plan:
    plan.makespan = trial(plan)
    if plan.makespan <= deadline:
        return plan
    best = full
    low, high = 0.0, deadline
    for _ in range(TRIALS):
        guess = (low + high) / 2
        try:
            plan = make(guess)
        except ScenarioError:  # no assignment is that fast
            low = guess
            continue
        plan.makespan = trial(plan)
        if plan.makespan <= deadline:
            best, low = plan, guess
        else:
            high = guess
    if best is full:
        best.makespan = trial(full)
    return best


# Devices ----------------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """Cores and GPUs (lanes) and their devices, with time and energy of work."""

    instance: Instance
    devices: list[Device]
    device: np.ndarray  # device of each lane; the cores of a node are one
    watts: np.ndarray  # dynamic power of each device (of a core) at full speed
    type_watts: np.ndarray
    start: float  # first arrival
    together: bool  # True if all tasks arrive at once

    @classmethod
    def from_instance(cls, instance: Instance) -> "Machine":
        devices, device = instance.places
        arrival = instance.problem.tasks.arrival
        return cls(
            instance=instance, devices=devices, device=device,
            watts=np.array([max(0.0, one.type.power.busy - one.type.power.idle) for one in devices]),
            type_watts=np.array([max(0.0, kind.power.busy - kind.power.idle) for kind in instance.types]),
            start=float(arrival.min()), together=float(arrival.min()) == float(arrival.max()),
        )  # fmt: skip

    def lanes_of(self, schedule: Schedule) -> np.ndarray:
        return self.instance.first_lane[schedule.kind] + schedule.lane

    def times(self, lanes: np.ndarray) -> np.ndarray:
        return self.instance.time[np.arange(self.instance.size), self.instance.lane_kind[lanes]]

    def frequencies(self, lanes: np.ndarray, deadline: float, min_frequency: float) -> np.ndarray:
        """Minimum frequency of each device that meets the deadline; above 1 if impossible.

        From every arrival on, a core or GPU must finish the work of this and all later tasks by the deadline.
        """
        arrival, needs = self.instance.problem.tasks.arrival, self.times(lanes)
        order = np.lexsort((arrival, lanes))[::-1]
        lane = lanes[order]
        done = np.cumsum(needs[order])
        first = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
        before = np.concatenate([[0.0], done])[first]
        done -= np.repeat(before, np.diff(np.append(first, len(lane))))
        available = self.start + deadline - arrival[order]
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(done > 0, np.where(available > 0, done / available, np.inf), 0.0)
        frequencies = np.full(len(self.devices), min_frequency)
        np.maximum.at(frequencies, self.device[lane], needed)
        return frequencies

    def cost(self, lanes: np.ndarray, deadline: float, min_frequency: float) -> float:
        """Dynamic joules of all tasks on their `lanes`; inf if the deadline cannot be met."""
        frequencies = self.frequencies(lanes, deadline, min_frequency)
        if (frequencies > 1 + ROUNDING).any():
            return float("inf")
        work = np.bincount(self.device[lanes], self.times(lanes), minlength=len(self.devices))
        return float((self.watts * work * np.minimum(frequencies, 1.0) ** 2).sum())

    def frugal(self) -> np.ndarray:
        """Assign each task to the type where it uses least energy at full speed."""
        possible = np.isfinite(self.instance.time)
        joules = np.where(possible, np.where(possible, self.instance.time, 0.0) * self.type_watts, np.inf)
        return np.eye(len(self.type_watts))[joules.argmin(axis=1)]

    def scheduled(self, lanes: np.ndarray, frequencies: np.ndarray) -> Schedule:
        return by_arrival(self.instance, lanes, self.times(lanes) / frequencies[self.device[lanes]])

    def named(self, frequencies: np.ndarray, lanes: np.ndarray) -> dict[str, float]:
        """Return frequencies below full speed, by name of each device that has work."""
        work = np.bincount(self.device[lanes], self.times(lanes), minlength=len(self.devices)).tolist()
        rows = zip(self.devices, frequencies.tolist(), work, strict=True)
        return {device.name: value for device, value, load in rows if value < 1 and load > 0}

    def energy(self, plan: Plan) -> float:
        lanes = lane_names(self.instance.problem.cluster)
        kinds = {kind: number for number, kind in enumerate(self.instance.types)}
        total = 0.0
        for step in plan.steps:
            device = lanes[step.devices[0]]
            kind = kinds[device.type]
            seconds = float(self.instance.time[step.task, kind])
            total += seconds * float(self.type_watts[kind]) * plan.frequencies.get(device.name, 1.0) ** 2
        return total


def _settled(frequencies: np.ndarray) -> np.ndarray:
    """Raise frequencies slightly, up to full speed, to allow for rounding."""
    return np.minimum(1.0, frequencies * (1 + ROUNDING))


# Independent tasks ------------------------------------------------------------------------------------------------


def planned_loads(machine: Machine, seed: Schedule, min_frequency: float, deadline: float) -> Plan:
    """Return the best of three assignments, each improved by single moves.

    These are: the rounded optimum of the relaxed program; each task where it needs the least energy; the `seed`.
    """
    fractions, bound = relaxed(machine, deadline, min_frequency)
    candidates = [machine.lanes_of(seed), rounded(machine, machine.frugal())]
    if fractions is not None:
        candidates.append(rounded(machine, fractions))
    if machine.together:
        candidates = [descended(machine, lanes, deadline, min_frequency) for lanes in candidates]
    costs = [machine.cost(lanes, deadline, min_frequency) for lanes in candidates]
    if min(costs) == float("inf"):
        raise ScenarioError(f"no assignment was found that meets the deadline of {deadline:g} s")
    lanes = candidates[int(np.argmin(costs))]
    frequencies = _settled(machine.frequencies(lanes, deadline, min_frequency))
    named = machine.named(frequencies, lanes)
    plan = plan_of(machine.instance, machine.scheduled(lanes, frequencies), frequencies=named, draft=True)
    plan.notes["dynamic_energy_bound_j"] = bound
    return plan


def relaxed(machine: Machine, deadline: float, min_frequency: float) -> tuple[np.ndarray | None, float]:
    """Return fractions of tasks on types (None: infeasible) and the energy in joules.

    Inside the program, so that all values are near 1, loads are divided by the deadline, and energies by the energy
    that the type of highest power uses until the deadline.
    """
    instance = machine.instance
    size, kinds = instance.time.shape
    lanes = np.asarray(instance.counts, dtype=float)
    top = float(machine.type_watts.max(initial=0.0)) or 1.0
    watts = machine.type_watts / top
    available = (machine.start + deadline - instance.problem.tasks.arrival) * (1 + ROUNDING)
    task, kind = np.nonzero(instance.time <= available[:, None])
    load = instance.time[task, kind] / deadline
    count = len(task)
    # Unknowns: the fractions, then the load and the cost of each type.
    ones, columns = np.ones(count), np.arange(count)
    row = np.concatenate([task, size + kind, size + np.arange(kinds)])
    column = np.concatenate([columns, columns, count + np.arange(kinds)])
    sums = csr_array((np.concatenate([ones, load, -np.ones(kinds)]), (row, column)), (size + kinds, count + 2 * kinds))
    total = np.concatenate([np.ones(size), np.zeros(kinds)])
    price = np.concatenate([np.zeros(count + kinds), np.ones(kinds)])
    bounds = [(0.0, 1.0)] * count + [(0.0, one * (1 + ROUNDING)) for one in lanes.tolist()] + [(0.0, None)] * kinds
    points = [lanes * part for part in np.linspace(0.0, 1.0, 9)]
    best, value = None, 0.0
    for _ in range(12):
        tangents, limits = _tangents(points, lanes, watts, min_frequency=min_frequency, count=count)
        answer = linprog(price, tangents, limits, A_eq=sums, b_eq=total, bounds=bounds, method="highs")
        if answer.x is None:
            break
        best, value = answer.x, max(value, float(answer.fun))
        loads = best[count : count + kinds]
        exact = float((watts * loads * np.maximum(loads / np.maximum(lanes, 1.0), min_frequency) ** 2).sum())
        if exact <= value * (1 + 1e-4) + 1e-12:
            break
        points.append(loads)
    if best is None:
        return None, 0.0
    fractions = np.zeros((size, kinds))
    fractions[task, kind] = best[:count]
    return fractions, value * (1 - 1e-6) * deadline * top  # the solver is right to 1e-7


def _tangents(
    points: list[np.ndarray], lanes: np.ndarray, watts: np.ndarray, min_frequency: float, count: int
) -> tuple[csr_array, np.ndarray]:
    """Return linear constraints (matrix, limits) that bound the energy from below.

    The energy of a device type is δ W max(W / L, min)².  δ: watts of the type at full speed; W: its load (work /
    deadline); L: its devices; min: the lowest frequency.  The constraints are tangents of this curve at the loads
    `points`.  count: number of the linear program's first columns, which are the fractions of tasks.
    """
    kinds = len(lanes)
    at = np.concatenate(points)
    kind = np.tile(np.arange(kinds), len(points))
    speed = at / np.maximum(lanes[kind], 1.0)
    slow = speed < min_frequency
    slope = watts[kind] * np.where(slow, min_frequency**2, 3 * speed**2)
    value = watts[kind] * at * np.where(slow, min_frequency, speed) ** 2
    rows = np.arange(len(at))
    entries = np.concatenate([slope, -np.ones(len(at))])
    places = np.concatenate([rows, rows]), np.concatenate([count + kind, count + kinds + kind])
    return csr_array((entries, places), (len(at), count + 2 * kinds)), slope * at - value


def rounded(machine: Machine, fractions: np.ndarray) -> np.ndarray:
    """Assign tasks, longest first, to devices of the type of their largest fraction."""
    kind = fractions.argmax(axis=1)
    lanes = np.empty(machine.instance.size, dtype=np.int64)
    for number, count in enumerate(machine.instance.counts):
        chosen = np.flatnonzero(kind == number)
        needs = machine.instance.time[:, number]
        if order := chosen[np.argsort(-needs[chosen], kind="stable")].tolist():
            lanes[order] = machine.instance.first_lane[number] + list_schedule(needs, count, order)[1][order]
    return lanes


def descended(machine: Machine, lanes: np.ndarray, deadline: float, min_frequency: float) -> np.ndarray:
    """Return improved `lanes`: move each task, largest first, to its cheapest device.

    The pass over all tasks is repeated a few times.  This assumes that all tasks arrive together.  A core or GPU that
    ends after the deadline adds a penalty to the cost, so that moves make it end earlier.
    """
    instance, kind, device, watts = machine.instance, machine.instance.lane_kind, machine.device, machine.watts
    lanes, needs = lanes.copy(), machine.times(lanes)
    load = np.bincount(lanes, needs, minlength=len(kind))
    work = np.bincount(device, load, minlength=len(machine.devices))
    longest = np.zeros(len(machine.devices))
    np.maximum.at(longest, device, load)
    mates = [np.flatnonzero(device == number) for number in range(len(machine.devices))]

    def cost(work: np.ndarray, longest: np.ndarray, watts: np.ndarray) -> np.ndarray:
        joules = watts * work * np.maximum(longest / deadline, min_frequency) ** 2
        return np.asarray(joules + np.where(longest > deadline * (1 + ROUNDING), LATE * longest, 0.0))

    for _ in range(max(1, min(4, 40_000 // max(1, instance.size)))):
        moved = False
        for task in np.argsort(-needs, kind="stable").tolist():
            lane = int(lanes[task])
            here = int(device[lane])
            load[lane] -= needs[task]
            work[here] -= needs[task]
            longest[here] = load[mates[here]].max()
            possible = np.isfinite(instance.time[task, kind])
            time = np.where(possible, instance.time[task, kind], 0.0)
            more = cost(work[device] + time, np.maximum(longest[device], load + time), watts[device])
            more = np.where(possible, more - cost(work, longest, watts)[device], np.inf)
            best = int(more.argmin())
            if more[best] < more[lane] - 1e-9 * abs(more[lane]):
                lanes[task], lane, moved = best, best, True
                needs[task] = time[best]
            load[lane] += needs[task]
            work[device[lane]] += needs[task]
            longest[device[lane]] = max(longest[device[lane]], load[lane])
        if not moved:
            break
    return lanes


LATE = 1e12  # joules per second of lateness: more than anything real


# Task graphs ------------------------------------------------------------------------------------------------------


def planned_graph(machine: Machine, seed: Schedule, min_frequency: float, deadline: float) -> Plan:
    """Plan with the seed's assignment and order and the best frequency of each device."""
    frequencies = _settled(1 / slownesses(machine, seed, min_frequency, deadline))
    named = machine.named(frequencies, machine.lanes_of(seed))
    return plan_of(machine.instance, seed, frequencies=named, draft=True)


def slownesses(machine: Machine, schedule: Schedule, min_frequency: float, deadline: float) -> np.ndarray:
    """Return each device's 1 / frequency that minimizes energy within the deadline."""
    lanes = machine.lanes_of(schedule)
    number = len(machine.devices)
    joules = machine.watts * np.bincount(machine.device[lanes], machine.times(lanes), minlength=number)
    cost = joules / (float(joules.max(initial=0.0)) or 1.0)
    safe = np.ones(number)
    if _overrun(machine, schedule, safe, deadline)[0] > 0:
        raise ScenarioError(f"even at full speed the tasks take longer than the deadline of {deadline:g} s")
    points = [np.full(number, one) for one in np.geomspace(1.0, 1 / min_frequency, 12)]
    paths: list[np.ndarray] = []
    limits: list[float] = []
    slow = safe
    for _ in range(80):
        slow, value = _slowest(cost, points, paths, limits=limits, min_frequency=min_frequency)
        late, path, limit = _overrun(machine, schedule, slow, deadline)
        exact = float((cost / slow**2).sum())
        if late <= ROUNDING * deadline and exact <= value * (1 + 1e-4) + 1e-12:
            break
        points.append(slow)
        if late > 0:
            paths.append(path)
            limits.append(limit)
    # The longest path is convex in slownesses: on the way to a feasible point it becomes short enough.
    low, high = 0.0, 1.0
    if _overrun(machine, schedule, slow, deadline)[0] <= 0:
        return slow
    for _ in range(40):
        part = (low + high) / 2
        if _overrun(machine, schedule, safe + part * (slow - safe), deadline)[0] <= 0:
            low = part
        else:
            high = part
    return safe + low * (slow - safe)


def _slowest(
    cost: np.ndarray, points: list[np.ndarray], paths: list[np.ndarray], limits: list[float], min_frequency: float
) -> tuple[np.ndarray, float]:
    """Minimize the energy Σ cost / s² over slowdowns s, with limits of paths.

    s is a slowdown per task or device, from 1 to 1 / min_frequency.  1 / s² is replaced by its tangents at `points`, so
    the result is a lower bound.  Each path (a row of weights of s) has a limit in seconds.  Returns s and the energy.
    """
    number = len(cost)
    rows, right = [], []
    for point in points:
        slope = -2 * cost / point**3
        rows.append(np.hstack([np.diag(slope), -np.eye(number)]))
        right.append(slope * point - cost / point**2)
    for path, limit in zip(paths, limits, strict=True):
        rows.append(np.hstack([path, np.zeros(number)])[None])
        right.append(np.array([limit]))
    price = np.concatenate([np.zeros(number), np.ones(number)])
    bounds = [(1.0, 1 / min_frequency)] * number + [(0.0, None)] * number
    answer = linprog(price, np.vstack(rows), np.concatenate(right), bounds=bounds, method="highs")
    if answer.x is None:  # paths that rounding makes a hair too long
        return np.ones(number), float(cost.sum())
    return np.maximum(1.0, answer.x[:number]), float(answer.fun)


def _overrun(
    machine: Machine, schedule: Schedule, slow: np.ndarray, deadline: float
) -> tuple[float, np.ndarray, float]:
    """Return how late the longest path ends (s), its work, and its time limit.

    slow: slowdown of each device (1: full speed).  Work is in seconds at full speed, by device; the limit is the number
    of seconds from the arrival of the path's first task to the deadline.
    """
    finish, cause = finishes(machine, schedule, slow)
    last = int(finish.argmax())
    work = np.zeros(len(slow))
    lanes = machine.lanes_of(schedule)
    needs = machine.times(lanes)
    task = last
    while True:
        work[machine.device[lanes[task]]] += needs[task]
        if cause[task] < 0:
            break
        task = int(cause[task])
    available = machine.start + deadline - float(machine.instance.problem.tasks.arrival[task])
    return float(finish[last]) - machine.start - deadline, work, available


def finishes(machine: Machine, schedule: Schedule, slow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each task's end, and the task it waits for (-1: none); slow: 1/frequency."""
    tasks = machine.instance.problem.tasks
    lanes = machine.lanes_of(schedule)
    needs = (machine.times(lanes) * slow[machine.device[lanes]]).tolist()
    placed = np.empty(len(lanes), dtype=np.int64)
    placed[schedule.order] = np.arange(len(lanes))
    finish, cause = [0.0] * len(lanes), [-1] * len(lanes)
    last: dict[int, int] = {}
    row, arrival = lanes.tolist(), tasks.arrival.tolist()
    graph = graph_of(tasks)
    for task in np.lexsort((placed, schedule.finish, schedule.start)).tolist():
        begin = arrival[task]
        waits = [*graph[task], last[row[task]]] if row[task] in last else graph[task]
        for other in waits:
            if finish[other] > begin:
                begin, cause[task] = finish[other], other
        finish[task] = begin + needs[task]
        last[row[task]] = task
    return np.array(finish), np.array(cause)
