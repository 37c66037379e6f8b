"""Redirect: a task late on its best device goes to a slower one that is in time.

Decides: the modes are gone through from the fastest on; the first with a predicted finish that meets the deadline is
the one the task is tied to; if there is none it is refused.  Requests, which share the mode of their batch, are
admitted or refused as `slo_feasible` does, and so is what has one mode.  Tasks without a deadline are free to run
anywhere.
Reference: the spilling of work to slower processors by predicted completion (Maheswaran, Ali, Siegel, Hensgen and
Freund, Dynamic Mapping of a Class of Independent Tasks onto Heterogeneous Computing Systems, 1999: minimum completion
time), here at admission and against a deadline.
Weakness: tied tasks need a scheduler under which a head that waits for a GPU does not hold up those for the CPU
(`fcfs_skip`, or discipline: skip).
Cost: O(modes) questions for work ahead.
"""

from __future__ import annotations

import math

from hetsim.model.task import Task
from hetsim.policy import Accept, Reject, View
from hetsim_policies.admission.slo_feasible import SloFeasible


class Redirect(SloFeasible):
    """Ties a task to the fastest mode that is in time.

    safety: factor on the predicted time; above 1 is cautious.
    """

    def admit(self, task: Task, view: View) -> Accept | Reject:
        time_left = self.time_left(task, view)
        if time_left == math.inf or len(task.modes) == 1 or self.ahead.service(task) is not None:
            return super().admit(task, view)
        for position in task.modes_by_speed():
            if self.ahead.response(task, position) <= time_left:
                return Accept((position,))
        return self._no
