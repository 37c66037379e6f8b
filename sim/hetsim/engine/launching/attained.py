"""Device-seconds received by each task and user, for fair-share policies."""

from typing import Any

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Launch, Timetable
from hetsim.model.record import COMPLETED
from hetsim.model.task import Task


class AttainedService:
    """Service received so far: GPU shares × seconds, or cores × seconds.

    Launches with transfers, and stopped launches, are added when they end; the service of all other launches is
    computed from the tasks' columns.  Sums by user are computed on the first query and updated from then on.
    """

    def __init__(self, run: RunState):
        self.run = run
        self.by_user: dict[str, float] | None = None
        self.busy: Any = None  # column of sums, updated when launches end; None before the first query

    def _begin(self) -> None:
        self.busy = busy = self.run.recorder.detail("busy")  # Launches that end from here on are added by `staged`.
        for row, seconds in self.run.recorder.computed():
            busy[row] += seconds

    def staged(self, task: Task, seconds: float) -> None:
        """Add a task's device-seconds of an ended launch with a row in the launches table."""
        if self.busy is None:
            return
        self.busy[task.index] += seconds  # its plain launches follow from columns
        if self.by_user is not None:
            self.by_user[task.user] = self.by_user.get(task.user, 0.0) + seconds

    def plain(self, task: Task) -> None:
        """Add an ended compute-only launch to the attained service of its user."""
        if self.by_user is not None:
            self.by_user[task.user] = self.by_user.get(task.user, 0.0) + self._of_plain(task.index)

    def _of_plain(self, row: int) -> float:
        run = self.run
        mode = run.tasks.shapes[run.tasks.shape[row]].modes[run.recorder.mode[row]]
        return mode.width * (run.recorder.finish[row] - run.recorder.start[row])

    def task(self, task: Task) -> float:
        """Return the device-seconds that a task has received up to now."""
        if self.busy is None:
            self._begin()
        row, launch = task.index, task._launch
        earlier: float = self.busy[row]
        if launch is not None:
            # Shared steps of a replica are not counted per request.
            return earlier if launch.resident else earlier + self._under_way(launch)
        recorder = self.run.recorder
        ended_plainly = recorder.status[row] == COMPLETED and not recorder.staged(row)
        return earlier + self._of_plain(row) if ended_plainly else earlier

    def _under_way(self, launch: Launch) -> float:
        now = self.run.clock._now
        table: Timetable | None = launch.table
        if table is None:
            return launch.placement.mode.width * (now - launch.decided)
        return (table.busy + table.busy_rate * table.unsettled(now)) / launch.count  # members share it equally

    def user(self, user: str) -> float:
        """Return the device-seconds that a user's tasks have received up to now."""
        run = self.run
        if self.busy is None:
            self._begin()
        if self.by_user is None:
            recorder, tasks = run.recorder, run.tasks
            totals: dict[str, float] = {}  # up to now from the columns
            for row, status in enumerate(recorder.status):
                seconds = self.busy[row]
                if status == COMPLETED and not recorder.staged(row):
                    seconds += self._of_plain(row)
                if seconds:
                    name = tasks.users[0 if tasks.user_code is None else tasks.user_code[row]]
                    totals[name] = totals.get(name, 0.0) + seconds
            self.by_user = totals  # kept up to date from now on
        under_way = sum(
            self._under_way(launch) for launch in (*run.running.values(), *run.lent.values())
            for task in launch.tasks if task.user == user
        )
        return self.by_user.get(user, 0.0) + under_way
