"""SLO feasibility: admit only tasks that can still meet their deadline in a mode.

Decides: a task is admitted if in some mode its predicted wait and its own stages (transfers of missing data included)
end by its deadline; a request if the batches ahead and the one it would be in do
(`hetsim_policies.admission.common.ahead`). Tasks without a deadline are admitted.
Reference: the admission of Clockwork (Gujarati et al., Serving DNNs like Clockwork, OSDI 2020, section 4): a request
that cannot be served in time is refused at once.
Weakness: what is admitted is not promised its mode: a scheduler that takes another, or lets others pass, breaks the
prediction (`redirect` ties a task to the mode).  A safety factor above 1 covers some of that.
Cost: O(1) a request, O(modes) questions for work ahead a task.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.policy import Accept, Admission, Reject, View
from hetsim_policies.admission.common.ahead import Ahead

YES = Accept()
ROUNDING = 1e-9
"""Part of the time left that is not argued about."""


class SloFeasible(Admission):
    """Admits tasks that can meet their deadline.

    safety: factor on the predicted time; above 1 is cautious.
    """

    def __init__(self, safety: Annotated[float, Field(gt=0)] = 1.0):
        self.safety = safety
        self._no = Reject(reason="cannot meet its deadline")

    def begin(self, view: View) -> None:
        self.ahead = Ahead(view)

    def time_left(self, task: Task, view: View) -> float:
        """Seconds that the prediction may come to; inf without a deadline."""
        return self.ahead.time_left(task) * (1.0 + ROUNDING) / self.safety

    def admit(self, task: Task, view: View) -> Accept | Reject:
        time_left = self.time_left(task, view)
        if time_left == math.inf:
            return YES
        ahead = self.ahead
        if ahead.service(task) is not None:
            return YES if ahead.response(task) <= time_left else self._no
        return YES if any(ahead.response(task, p) <= time_left for p in task.modes_by_speed()) else self._no
