"""A plan that is followed while it is valid, and repaired when it is not.

Decides where and when.  A planner makes a plan of the present tasks: every lane (core or accelerator) has its steps in
order, and starts its next step when it is free.  The end of the plan is forecast from the estimated ends of running
tasks and the coming steps.  Repairs, in this order:
1. Order.  A lane whose next step cannot start yet starts a later step, if this delays no other step.
2. Theft.  An idle lane takes a step from the lane that will end last, if the step then ends sooner; and, with
   `restart`, restarts a task that runs elsewhere and would end sooner here (the work done there is lost).
3. New plan.  The unstarted steps are planned again when the forecast of the end differs from the plan by more than
`threshold` of the planned time, or when devices failed or were repaired.  The new plan is adopted only if it ends
sooner by the forecast.
The time of a task that exceeds its estimate is predicted from ended tasks that were as late (`Experience`).
Tasks that arrive later are put on the lane where they end first, and are part of the next plan.  With exact estimates
the policy follows the plan, except for thefts that end a task sooner.  Reference: the three levels are those of dynamic
rescheduling after Sakellariou and Zhao, A Low-cost Rescheduling Policy for Efficient Mapping of Workflows on Grid
Systems (2004), where only late tasks are planned again, and of Agullo, Beaumont, Eyraud-Dubois, Kumar, Are Static
Schedules So Bad? (2016), where plans are followed loosely; restarts are the spoliation of `heteroprio`.  No ratio is
proven once anything differs from its estimate.  Weakness: it plans for the makespan, so under a steady load other
policies have shorter responses; it relies on estimates until tasks are late; it does not recognize a slow device as the
cause of late tasks; tasks that the planner cannot plan (gangs, fractions of GPUs) start as soon as they fit, before the
plan, and may wait long under a steady load.  Cost: O(lanes) per round; a repair visits one queue.  A forecast is linear
in the remaining steps; while half of these end, it is made about LOOKS times.  After a plan of n tasks, no new plan is
made before the fraction PAUSE of the planned time and PAUSE × n events have passed; so with a planner of cost C(n),
planning costs at most C(n) / (PAUSE n) per event.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan
from hetsim.model.task import RUNNING, Task
from hetsim.policy import (
    Decision,
    Fetch,
    ListScheduler,
    PlannedScheduler,
    PlanProblem,
    Progress,
    RemainingProblem,
    Scheduler,
    Start,
    Stop,
    View,
    Wait,
)
from hetsim.policy.planned import placement_of
from hetsim_policies.dynamic.heteroprio import from_scratch
from hetsim_policies.hybrid.common.inner import default_planner, plannable
from hetsim_policies.hybrid.common.planned_lanes import (
    Board,
    LaneForecast,
    Movable,
    PlannedJob,
    PlannedLane,
    min_seconds,
)

Order = Literal["acceleration", "longest", "arrival"]

PAUSE = 0.05  # Minimum between two plans: fraction of the planned time, and of tasks that end, arrive or start
LOOKS = 64  # approximate number of forecasts while half of the remaining steps end


class PlanAndRepair(Scheduler):
    """Follows a plan; reorders, steals, restarts and replans when it goes wrong.

    planner: a static policy, by name or as a mapping with its parameters; default: `dual_approximation` for
        independent tasks without transfers on cores and one type of GPU, `peft` for task graphs, else `heft`.
    dynamic: the order of tasks that are not in the plan: by acceleration (the most accelerated first), longest first,
        or by arrival.
    threshold: a new plan is made when the forecast end differs from the plan by this fraction of the planned time.
    foresight: the planner knows the future arrivals, as static policies do.
    restart: an idle core or GPU may restart a task that runs elsewhere.
    prefetch: the inputs of an accelerator's next step are transferred while the step before it runs.
    """

    def __init__(
        self,
        planner: PlannedScheduler | None = None,
        dynamic: Order = "acceleration",
        threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1,
        foresight: bool = False,
        restart: bool = True,
        prefetch: bool = True,
    ):
        self.planner = planner
        self.dynamic = dynamic
        self.threshold = threshold
        self.foresight = foresight
        self.restart = restart
        self.prefetch = prefetch
        self.notes: dict[str, Any] = {"plans": 0, "plans_kept": 0, "reordered": 0, "stolen": 0, "restarted": 0}
        self._waiting: dict[int, Task] = {}
        self._new: dict[int, Task] = {}  # waiting tasks that need a place in the plan
        self._beside = ListScheduler(self._key, discipline="skip")  # queue of tasks that no plan can include
        self._stranded: dict[int, Task] = {}  # and those that no lane can run which is up
        self._plannable: dict[Shape, bool] = {}
        self._seen = LaneForecast()
        self._look_at = math.inf  # when something that runs now will be late
        self._promised = math.inf
        self._planned_at = -math.inf
        self._planned_size = 0
        self._events = 0  # tasks that have ended or come since the last plan
        self._upset = True  # True if devices have failed or come back since

    def check(self, problem: PlanProblem) -> None:
        if self.planner is not None:
            self.planner.check(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self._problem = problem
        self._progress = Progress(problem)
        self._board = Board(problem, self._progress.is_up)
        self._plannable = plannable(problem, self.planner, self.foresight)

    def begin(self, view: View) -> None:
        self._view = view

    def ready(self, task: Task) -> None:
        self._progress.ready(task)
        self._waiting[task.index] = task
        self._events += 1
        if (job := self._board.ended(task.index, self._view.now, completed=False)) is not None:
            job.fetched = False  # It was stopped: it goes on before what comes after it.
            self._board.put_first(job)
        if (planned_job := self._board.pending.get(task.index)) is not None:
            self._board.arrived(planned_job, task)
        elif self._can_be_planned(task):
            self._new[task.index] = task
        else:
            self._beside.ready(task)

    def finished(self, task: Task) -> None:
        self._progress.ended(task)
        self._events += 1
        self._board.ended(task.index, self._view.now, completed=True)

    def gone(self, task: Task) -> None:
        self._progress.ended(task)
        self._events += 1
        self._board.ended(task.index, self._view.now, completed=False)
        self._forget(task.index)
        if (job := self._board.pending.get(task.index)) is not None:
            self._board.take_out(job)

    def device(self, device: Device, up: bool) -> None:
        self._progress.device(device, up)
        self._upset = True
        self._events += 1
        self._board.devices_changed()
        if up:
            self._new |= self._stranded
            self._stranded = {}

    def _forget(self, row: int) -> None:
        for tasks in (self._waiting, self._new, self._stranded):
            tasks.pop(row, None)

    def schedule(self, view: View) -> Iterator[Decision]:
        if self._off_plan(view):
            self._plan(view)
        for decision in self._beside.schedule(view):  # unplannable tasks that fit, in the order of the fallback
            if isinstance(decision, Wait):
                break
            if isinstance(decision, Start):
                assert isinstance(decision.tasks, Task)
                self._forget(decision.tasks.index)
            yield decision
        if self._new:
            self._house(view)
        for job in self._board.startable(view):  # they head all their lanes, as the plan has it
            yield self._start(job, view)
        if self.prefetch and self._problem.tasks.reads is not None:
            yield from self._fetch(view)
        if (idle := self._board.idle()) and (self._board.pending or (self.restart and self._board.running)):
            yield from self._repair(idle, view)
            if (again := self._board.next_look(view.now)) < math.inf:
                self._look_at = again
                yield Wait(until=again)

    def _start(self, job: PlannedJob, view: View) -> Start:
        self._forget(job.row)
        return self._board.start(job, view)

    def _fetch(self, view: View) -> Iterator[Decision]:
        for lane in self._board.lanes.values():
            job = lane.head() if lane.running and lane.device.type.kind != "cpu" else None
            if job is None or job.task is None or job.fetched or not view.holds(job.task, job.placement):
                continue
            job.fetched = True
            for item in dict.fromkeys(job.task.reads):
                if (holders := view.holders(item)) and lane.device not in holders:
                    yield Fetch(item, lane.device)

    def _repair(self, idle: list[PlannedLane], view: View) -> Iterator[Decision]:
        """Start jobs on idle devices: jobs planned anywhere, or (`restart`) running jobs."""
        for lane in [lane for lane in idle if lane.queue]:
            if (job := reordered(self._board, lane, self._look(view), view)) is not None:
                self.notes["reordered"] += 1
                yield self._start(job, view)
        in_vain: dict[int, None] = {}
        barren: dict[int, None] = {}  # lane types with nothing to move or restart, until something starts
        tried: Known = {}
        for lane in idle:
            if lane.running or lane.kind in barren or lane.group in in_vain:
                continue
            if (moved := stolen(self._board, lane, self._look(view), view)) is not None:
                self.notes["stolen"] += 1
                self._board.take_out(moved[0])
                self._board.put(moved[1])
                yield self._start(moved[1], view)
                tried, barren = {}, {}
                continue
            job = restartable(self._board, lane, view, tried) if self.restart else None
            if job is None:
                in_vain[lane.group] = None
                movable = self._board.movable.get(lane.device.type)
                if movable is not None and not movable.steps and not tried.get(lane.device.type):
                    barren[lane.kind] = None
                continue
            assert job.task is not None
            self.notes["restarted"] += 1
            yield Stop(job.task, keep=False)
            self._board.take_out(self._board.pending[job.row])
            self._board.put(job)
            yield self._start(job, view)
            tried, barren = {}, {}

    def _look(self, view: View) -> LaneForecast:
        """Return the forecast; renew it if enough steps have changed or a step is late."""
        due = view.now >= self._look_at
        if due:
            self._look_at = math.inf
        if self._board.changes > len(self._board.pending) // LOOKS or (due and self._board.late(view.now)):
            self._seen = self._board.forecast(view)
        return self._seen

    def _off_plan(self, view: View) -> bool:
        """Return True if a new plan would help, and enough time and events have passed."""
        if not self.notes["plans"]:
            return bool(self._new)
        if not (self._board.pending or self._new) or self._events < max(1.0, PAUSE * self._planned_size):
            return False
        span = self._promised - self._planned_at
        if span < math.inf and view.now < self._planned_at + PAUSE * span:
            return False
        return self._upset or abs(self._look(view).end - self._promised) > self.threshold * span

    def _plan(self, view: View) -> None:
        tasks = self._problem.tasks

        def may_plan(row: int) -> bool:
            if (task := self._waiting.get(row)) is not None:
                return self._can_be_planned(task)
            return self._plannable.get(tasks.shapes[tasks.shape[row]], False)

        rest = self._progress.rest(view, self.foresight, lambda task: self._board.finish(task, view), may_plan)
        if not rest.rows:
            return
        plan = (self.planner or default_planner(rest.problem)).plan(rest.problem)
        first, pending = not self.notes["plans"], self._board.pending
        before = math.inf if first else self._board.forecast(view).end
        self.notes["plans"] += 1
        self._adopt(rest, plan)
        self._seen = self._board.forecast(view)
        if first:
            self.notes["planned_makespan"] = self._seen.end - rest.problem.origin
            self.notes["foresight"] = self.foresight
            if plan.bound is not None and len(rest.rows) == len(self._problem.tasks):
                self.notes["lower_bound"] = float(plan.bound)
        elif self._seen.end >= before and len(pending) >= len(self._board.pending):
            self.notes["plans_kept"] += 1
            self._board.clear()
            for job in pending.values():
                self._board.put(job)
            self._seen = self._board.forecast(view)
        self._new = {row: task for row, task in self._new.items() if row not in self._board.pending}
        self._promised, self._planned_at, self._planned_size = self._seen.end, view.now, len(rest.rows)
        self._events, self._upset = 0, False

    def _adopt(self, rest: RemainingProblem, plan: Plan) -> None:
        tasks, old = self._problem.tasks, self._board.pending
        self._board.clear()
        for step in rest.steps(plan):
            placement = placement_of(step, tasks, self._problem.cluster)
            lanes = tuple(self._board.lanes[name] for name in step.devices)
            task = self._waiting.get(step.task)
            job = PlannedJob(step.task, placement, lanes, seconds=self._seconds(step.task, step.mode), task=task)
            was = old.get(step.task)
            job.fetched = was is not None and was.fetched and was.lanes == lanes
            self._board.put(job)

    def _house(self, view: View) -> None:
        """Put new tasks at the end of the device queue in which they would end first."""
        ends = dict(self._look(view).lane)
        board, now = self._board, view.now
        for task in sorted(self._new.values(), key=self._key):
            best: tuple[float, PlannedLane, int, float] | None = None
            for position, mode in enumerate(task.modes):
                if task.allowed is not None and position not in task.allowed:
                    continue
                seconds = self._seconds(task.index, position)
                soonest = now + seconds
                for lane in board.able(mode):
                    at = ends.get(lane.number, 0.0)
                    end = soonest if at <= now else at + seconds
                    if (best is None or end < best[0]) and board.is_up(lane):
                        best = end, lane, position, seconds
                    if best is not None and best[0] <= soonest:  # no other lane is earlier
                        break
            if best is None:
                self._stranded[task.index] = task
            else:
                end, lane, position, seconds = best
                ends[lane.number] = end
                placement = lane.placed(task.modes[position])
                assert placement is not None
                board.put(PlannedJob(task.index, placement, (lane,), seconds=seconds, task=task))
        self._new = {}

    def _seconds(self, row: int, position: int) -> float:
        tasks = self._problem.tasks
        mode = tasks.shapes[tasks.shape[row]].modes[position]
        task = self._waiting.get(row)
        return mode.computing(1, float(tasks.time[row, position])) * (1.0 if task is None else 1.0 - task.done)

    def _key(self, task: Task) -> tuple[float, int]:
        if self.dynamic == "arrival":
            return 0.0, task.index
        if self.dynamic == "longest":
            return -task.shortest_remaining, task.index
        finite = list(filter(math.isfinite, map(task.estimate_at, range(len(task.modes)))))
        return -(max(finite) / min(finite) if finite and min(finite) > 0 else 1.0), task.index

    def _can_be_planned(self, task: Task) -> bool:
        if not self._plannable.get(task.shape, False):
            return False
        lanes = self._board.lanes.values()
        return task.allowed is None or any(lane.placed(task.modes[i]) for i in task.allowed for lane in lanes)


# Repairs without a new plan: each finds a step that can start on an idle lane now.  A reordered step delays no other
# step; a stolen or restarted step ends sooner than it would have ended.


ROUNDING = 1e-9  # minimum relative gain of remaining time, against rounding errors

# By lane type: running tasks that might end sooner there, with their ends
Known = dict[DeviceType, list[tuple[float, PlannedJob]]]


def reordered(board: Board, lane: PlannedLane, seen: LaneForecast, view: View) -> PlannedJob | None:
    """Return a step that can start before a lane's head without delaying it, if any."""
    now, limit, position = view.now, math.inf, lane.arrived
    for job in lane.queue.values():
        if not position:
            return None
        if job.task is not None:
            position -= 1
            if job.alone and now + job.seconds <= limit and board.fits(job.task, job.placement, view):
                return job
        if (limit := min(limit, seen.start.get(job.row, now))) <= now:
            return None
    return None


def stolen(board: Board, lane: PlannedLane, seen: LaneForecast, view: View) -> tuple[PlannedJob, PlannedJob] | None:
    """Return a planned job to take from another device, and the job as planned here.

    The device that ends last is tried first, then the next to last, and so on.  Of its jobs that would end sooner on
    `lane`, return the job that minimizes the later end of the two devices.  None: no such job.
    """
    now, kind = view.now, lane.device.type
    if board.separable(view):
        if (movable := board.movable.get(kind)) is None:
            movable = board.movable[kind] = Movable(kind, board.loaded)
        steps = movable.towards(seen, now)
    else:
        steps = [(victim, _movable(victim, lane, seen, view)) for victim in board.loaded.values()]
    steps.sort(key=lambda one: (-seen.lane.get(one[0].number, 0.0), one[0].number))
    for victim, jobs in steps:
        end = seen.lane.get(victim.number, 0.0)
        best: tuple[float, PlannedJob, PlannedJob] | None = None
        for job in jobs if victim is not lane else ():
            assert job.task is not None
            here = board.at(job.task, lane, view, lambda task, placement, view: view.duration(task, placement))
            if here is None:
                continue
            ends = view.now + here.seconds
            value = max(ends, end - job.seconds) if end < math.inf else ends
            sooner = ends < seen.finish.get(job.row, end) - ROUNDING * here.seconds
            if sooner and value < end and (best is None or value < best[0]):
                best = value, job, here
        if best is not None:
            return best[1], best[2]
    return None


def _movable(victim: PlannedLane, lane: PlannedLane, seen: LaneForecast, view: View) -> list[PlannedJob]:
    steady, end = view.changes.steady, seen.lane.get(victim.number, 0.0)
    return [
        job
        for job in victim.queue.values()
        if job.task is not None
        and job.alone
        and not (steady and view.now + min_seconds(job.task, lane.device.type) >= seen.finish.get(job.row, end))
    ]


def restartable(board: Board, lane: PlannedLane, view: View, known: Known) -> PlannedJob | None:
    """Return the running task with the latest end that would end sooner on this lane.

    Return None if no task would.  A late task is expected to be equally late on the new lane (core or GPU), so it moves
    only to faster lanes.  Ends are computed from the current state: forecasts made before the last restart would select
    the same task repeatedly.
    known: earlier results for lanes of the same type, valid until something starts.
    """
    kind = lane.device.type
    if kind not in known:
        if view.changes.steady:
            ends = board.restartable(kind, view, ROUNDING)
        else:
            jobs = [job for job, _ in board.running.values()]
            ends = [(board.finish(job.task, view), job) for job in jobs if job.task is not None]
        known[kind] = sorted(ends, key=lambda one: (-one[0], one[1].number))
    for end, job in known[kind]:
        task = job.task
        if task is None or not job.alone or not task.shape.preemptible or task.state != RUNNING:
            continue
        here = board.at(task, lane, view, from_scratch)
        if here is not None and here.seconds * board.lateness(job.row, view.now) < (end - view.now) * (1 - ROUNDING):
            return here
    return None
