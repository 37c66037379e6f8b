"""Local search for any assignment planner: shorten the lane that ends last.

The longest lane is the core or GPU that ends last.  In each step, one change is made that shortens this lane without
making another lane as long as this one was.  Of these changes it is the best:
    move    a task of the longest lane is moved to another lane
    swap    a task of the longest lane is exchanged with a task of another lane
    chain   a task of the longest lane is moved to another lane, and a task there to a third lane
The search ends when none of the three changes improves the schedule, when the makespan is `enough`, or after a maximum
number of pairs of tasks.  It is restarted `rounds` times (iterated local search): some tasks of the longest lane and of
other lanes are moved to suitable lanes, the search runs again, and the best schedule is kept.
Reference: moves and swaps for R||Cmax as in Glass, Potts, Shade, Unrelated Parallel Machine Scheduling Using Local
Search (1994); ejection chains: Glover (1996); the restarts: Lourenço, Martin, Stützle, Iterated Local Search (2003).
Cost: O(tasks of the longest lane × n + n lanes) per change, vectorized.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim_policies.static.common.bounds import TOLERANCE
from hetsim_policies.static.common.instance import Instance, Schedule
from hetsim_policies.static.common.unrelated import good_prices

PAIRS = 5_000_000  # maximum number of task pairs of one descent: about 50 ms
EFFORT = 30_000_000  # maximum number of task pairs of all descents of a schedule: about a second
RESTARTS = 6  # default number of restarts from a local optimum
THROWN = 4  # number of tasks that a restart moves off the longest lane, and off other lanes


@dataclass
class DescentLanes:
    """Tasks on lanes (cores or GPUs): their times, types and assignment.

    `time[j, t]`: time of task j on type t; `kind`: type of each lane; `lane`: lane of each task.
    """

    time: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    load: np.ndarray

    @classmethod
    def on_lanes(
        cls, time: np.ndarray, counts: Sequence[int], lane: np.ndarray, since: np.ndarray | None = None
    ) -> "DescentLanes":
        """Build from each task's lane, numbered over all types; since: initial loads (s)."""
        kind = np.repeat(np.arange(len(counts)), counts)
        load = np.zeros(len(kind)) if since is None else since.astype(float)
        np.add.at(load, lane, time[np.arange(len(lane)), kind[lane]])
        return cls(time, kind, lane.copy(), load)

    def put(self, task: int, to: int) -> None:
        self.load[self.lane[task]] -= self.time[task, self.kind[self.lane[task]]]
        self.load[to] += self.time[task, self.kind[to]]
        self.lane[task] = to

    def copy(self) -> "DescentLanes":
        return DescentLanes(self.time, self.kind, self.lane.copy(), self.load.copy())


def descend(lanes: DescentLanes, enough: float, pairs: int = PAIRS, prices: np.ndarray | None = None) -> int:
    """Improve an assignment in place to a local optimum of the makespan.

    Returns the number of pairs of tasks whose exchange was examined.  enough: makespan at which the search ends.
    pairs: maximum number of pairs.  prices: value of a second on each device type.  If no change shortens the longest
    lane (core or GPU), changes on other lanes are compared by the value of the work that they save.
    """
    size = len(lanes.lane)
    looked = turn = 0
    while size:
        longest = int(lanes.load.argmax())
        goal = lanes.load[longest] * (1 - TOLERANCE)
        mine = np.flatnonzero(lanes.lane == longest)
        looked += len(mine) * size
        if goal <= enough or not len(mine) or looked > pairs or len(mine) * size > PAIRS:
            break
        if (changes := _best_change(lanes, longest, mine, goal)) is None and prices is not None:
            changes, turn = _cheaper_change(lanes, prices, goal, turn)
            looked += len(mine) * size
        if not changes:
            break
        for task, to in changes:
            lanes.put(task, to)
    return looked


def _best_change(lanes: DescentLanes, longest: int, mine: np.ndarray, goal: float) -> list[tuple[int, int]] | None:
    """Return moves (task, device) after which the changed lanes end earliest.

    mine: tasks of the longest lane.  None if a changed lane would not end before `goal`.
    """
    time, kind, lane, load = lanes.time, lanes.kind, lanes.lane, lanes.load
    rows = np.arange(len(lane))
    order = []  # the least loaded lane of each type that has lanes
    for number in dict.fromkeys(kind.tolist()):
        here = np.flatnonzero(kind == number)
        order.append(int(here[load[here].argmin()]))
    own = time[mine, kind[longest]]
    moved = np.stack([load[to] + time[mine, kind[to]] for to in order], axis=1)
    # After task i of the longest lane has come to the lane of task j, and j has left it.
    there = (load[lane] - time[rows, kind[lane]])[None, :] + time[mine][:, kind[lane]]
    here = load[longest] - own[:, None] + time[None, :, kind[longest]]
    swapped = np.maximum(here, there)
    swapped[:, mine] = np.inf
    # Where j could go instead: the best of the least loaded lanes of each type but its own and the longest.
    third, to_third = _elsewhere(lanes, longest)
    chained = np.maximum(np.maximum(there, third[None, :]), (load[longest] - own)[:, None])
    chained[:, mine] = np.inf
    best = float(moved.min()), float(swapped.min()), float(chained.min())
    if min(best) >= goal:
        return None
    if best[0] <= min(best[1:]):
        i, j = divmod(int(moved.argmin()), len(order))
        return [(int(mine[i]), int(order[j]))]
    i, j = divmod(int((swapped if best[1] <= best[2] else chained).argmin()), len(lane))
    return [(j, longest if best[1] <= best[2] else int(to_third[j])), (int(mine[i]), int(lane[j]))]


def _cheaper_change(
    lanes: DescentLanes, prices: np.ndarray, goal: float, first: int
) -> tuple[list[tuple[int, int]], int]:
    """Return moves (task, lane) that save work, and the lane from which they start.

    A lane is a core or GPU.  `prices`: value of a second of work on each device type.  Lanes are tried from `first` on,
    until a move or swap saves work; changed lanes must end before `goal`.  The change does not shorten the longest
    lane, but makes room for changes that do.  If nothing saves work, there are no moves.
    """
    time, kind, lane, load = lanes.time, lanes.kind, lanes.lane, lanes.load
    rows, count = np.arange(len(lane)), len(load)
    worth = prices[kind]
    with np.errstate(invalid="ignore"):
        cost = np.where(np.isfinite(time[:, kind]), time[:, kind] * worth, np.inf)
    own_cost = cost[rows, lane]
    for step in range(count):
        here = (first + step) % count
        mine = np.flatnonzero(lane == here)
        if not len(mine):
            continue
        moved = np.where(load + time[mine][:, kind] < goal, cost[mine] - own_cost[mine][:, None], 0.0)
        moved[:, here] = 0.0
        after_here = load[here] - time[mine, kind[here]][:, None] + time[None, :, kind[here]]
        after_there = (load[lane] - time[rows, kind[lane]])[None, :] + time[mine][:, kind[lane]]
        swapped = cost[mine][:, lane] + cost[None, :, here] - own_cost[mine][:, None] - own_cost[None, :]
        swapped = np.where((after_here < goal) & (after_there < goal), swapped, 0.0)
        swapped[:, mine] = 0.0
        best = float(moved.min()), float(swapped.min())
        if min(best) < -TOLERANCE * goal:
            if best[0] <= best[1]:
                i, to = divmod(int(moved.argmin()), count)
                return [(int(mine[i]), to)], here
            i, j = divmod(int(swapped.argmin()), len(lane))
            return [(int(mine[i]), int(lane[j])), (j, here)], here
    return [], first


def _elsewhere(lanes: DescentLanes, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (ends, lanes): each task's best move to a lane other than `longest`."""
    candidates = []
    for kind in dict.fromkeys(lanes.kind.tolist()):  # two of each type, as one may be the task's own
        here = np.flatnonzero((lanes.kind == kind) & (np.arange(len(lanes.kind)) != longest))
        candidates += here[np.argsort(lanes.load[here], kind="stable")[:2]].tolist()
    if not candidates:
        return np.full(len(lanes.lane), np.inf), np.zeros(len(lanes.lane), dtype=np.int64)
    to = np.array(candidates)
    after = lanes.load[to] + lanes.time[:, lanes.kind[to]]
    after[lanes.lane[:, None] == to] = np.inf
    best = after.argmin(axis=1)
    return after[np.arange(len(best)), best], to[best]


def improved(
    time: np.ndarray, counts: Sequence[int], lane: np.ndarray, enough: float = 0.0, since: np.ndarray | None = None,
    rounds: int = RESTARTS, pairs: int = EFFORT, others: Sequence[np.ndarray] = (),
) -> np.ndarray:  # fmt: skip
    """Return each task's core or GPU after a local search; the makespan never grows.

    enough: makespan at which the search ends, such as a lower bound.  since: time from which each lane (core or GPU) is
    free; None: 0.  rounds: maximum number of restarts.  pairs: maximum number of pairs of tasks to examine.
    others: alternative assignments of tasks to lanes; a descent of half the effort starts from each of them, too, and
    the best result is improved further.
    """
    if not len(lane):
        return lane
    best = DescentLanes.on_lanes(time, counts, lane, since)
    if best.load.max() <= enough:
        return lane
    prices = good_prices(time, counts)
    if others:
        starts = [best, *(DescentLanes.on_lanes(time, counts, other, since) for other in others)]
        for start in starts:
            descend(start, enough, pairs // 2, prices)
        best = min(starts, key=lambda start: float(start.load.max()))
    budget = pairs - descend(best, enough, pairs, prices)
    random = np.random.default_rng(0)  # restarts are part of the algorithm, not of the run's randomness
    for _ in range(rounds):
        if budget <= 0 or best.load.max() <= enough:
            break
        trial = best.copy()
        _throw(trial, random)
        budget -= descend(trial, enough, budget, prices)
        if trial.load.max() < best.load.max() * (1 - TOLERANCE):
            best = trial
    again = DescentLanes.on_lanes(time, counts, best.lane, since)  # loads above carry rounding
    return best.lane if again.load.max() <= DescentLanes.on_lanes(time, counts, lane, since).load.max() else lane


def is_additive(instance: Instance) -> bool:
    """Return True if the end of each core or GPU is the sum of its tasks' times."""
    tasks = instance.problem.tasks
    plain = not any(tasks.predecessors or ()) and not any(tasks.reads or ()) and not any(tasks.writes or ())
    return instance.size > 0 and plain and float(np.ptp(tasks.arrival)) == 0


def descended(
    instance: Instance, schedule: Schedule, enough: float | None = None, others: Sequence[Schedule] = ()
) -> Schedule:
    """Return the schedule improved by local search; lanes run longest tasks first.

    The given schedule is returned if the search does not improve it, or if tasks arrive at different times, have
    predecessors, or read or write data items: then the makespan is not only a sum of times.  enough: makespan at which
    the search ends, such as a lower bound (None: 0).  others: schedules from which a descent starts too.
    """
    tasks = instance.problem.tasks
    if not is_additive(instance):
        return schedule
    first, kinds = instance.first_lane, instance.lane_kind
    begin = float(tasks.arrival[0])
    since = None if instance.free is None else np.maximum(0.0, np.concatenate(instance.free) - begin)
    lane, *more = (first[one.kind] + one.lane for one in (schedule, *others))
    better = improved(instance.time, instance.counts, lane, enough=enough or 0.0, since=since, others=more)
    made = Schedule.empty(instance.size)
    free = np.full(sum(instance.counts), begin) if since is None else since + begin
    needs = instance.time[np.arange(instance.size), kinds[better]]
    for task in np.argsort(-needs, kind="stable").tolist():
        to = int(better[task])
        kind = int(kinds[to])
        free[to] = made.put(task, float(free[to]), float(needs[task]), kind=kind, lane=to - int(first[kind]))
    return made if made.makespan < schedule.makespan else schedule


def _throw(lanes: DescentLanes, random: np.random.Generator) -> None:
    mine = np.flatnonzero(lanes.lane == int(lanes.load.argmax()))
    chosen = [*random.permutation(mine)[:THROWN].tolist(), *random.integers(len(lanes.lane), size=THROWN).tolist()]
    for task in dict.fromkeys(chosen):
        after = lanes.load + lanes.time[task, lanes.kind]
        after[lanes.lane[task]] = np.inf
        ranked = np.argsort(after, kind="stable")[:3]
        to = int(ranked[random.integers(len(ranked))])
        if np.isfinite(lanes.time[task, lanes.kind[to]]):
            lanes.put(task, to)
