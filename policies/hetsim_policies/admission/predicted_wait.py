"""Predicted wait: the work ahead on the best mode must fit a limit or deadline.

Decides: the wait is predicted from estimates (`hetsim_policies.admission.common.ahead`: work ahead over servers; of a
request the batches ahead).  It has to stay within `max_wait`; where none is given, the predicted finish within the
deadline. Reference: the queue with bounded workload (Cohen, Single Server Queue with Uniformly Bounded Virtual Waiting
Time, Journal of Applied Probability 5, 1968; Gavish and Schweitzer, The Markovian Queue with Bounded Waiting Time,
1977): exact for one server in order of arrival.
Weakness: as good as the estimates; looks at the best mode only (`slo_feasible` at all); an order that lets others pass
breaks what was predicted.
Cost: O(1) a request, the sums of `view.backlog` a task.
"""

from __future__ import annotations

import math

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Accept, Admission, Reject, View
from hetsim_policies.admission.common.ahead import Ahead

YES = Accept()
ROUNDING = 1e-9
"""Part of the time left that is not argued about."""


class PredictedWait(Admission):
    """A limit on the predicted wait.

    max_wait: longest wait; unless given, tasks may wait as long as they can still meet their deadlines.
    """

    queueing = "limit of work"

    def __init__(self, max_wait: Seconds | None = None):
        self.max_wait = max_wait
        self._no = Reject(reason="would wait too long")
        self._late = Reject(reason="would miss its deadline")

    def begin(self, view: View) -> None:
        self.ahead = Ahead(view)

    def admit(self, task: Task, view: View) -> Accept | Reject:
        if self.max_wait is not None:
            return YES if self.ahead.wait(task) <= self.max_wait else self._no
        time_left = self.ahead.time_left(task)
        if time_left == math.inf or self.ahead.response(task) <= time_left * (1.0 + ROUNDING):
            return YES
        return self._late
