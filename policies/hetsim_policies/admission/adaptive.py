"""Adaptive: a limit on the predicted wait that follows the share met in time.

Decides: as `predicted_wait` with a limit of its own.  After each answer the limit is multiplied by
exp(−gain · percentile) if it was late and by exp(gain · (1 − percentile)) if it was in time: in balance just the share
1 − percentile is late, whatever the load and however wrong the predictions.  It stays below a few times the target.
Reference: Robbins and Monro, A Stochastic Approximation Method (1951), for a quantile; as admission control with
feedback from measured response times: Welsh and Culler, Adaptive Overload Control for Busy Internet Servers (2003).
Known: the balance is that of a stationary load; after a jump the limit needs about 1/(gain · percentile) late answers
to come down by a factor e, and longer to go up.  Weakness: learns from answers, so always a response time too late.
Cost: that of `predicted_wait`.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Fraction, Seconds
from hetsim.policy import Accept, Admission, Reject, View
from hetsim_policies.admission.common.ahead import Ahead

YES = Accept()
MIN_MARGIN, MAX_MARGIN = 1e-3, 4.0
"""The limit stays within these parts of the response time that is wanted."""


class Adaptive(Admission):
    """A limit that holds a percentile.

    target: the response time that is to be held; unless given, the tasks' own deadlines.
    percentile: the share of admitted tasks that is to be within it.
    gain: step of the limit's logarithm after one answer.
    """

    def __init__(
        self,
        target: Annotated[Seconds, Field(gt=0)] | None = None,
        percentile: Annotated[Fraction, Field(gt=0, lt=1)] = 0.95,
        gain: Annotated[float, Field(gt=0, le=1)] = 0.05,
    ):
        self.target = target
        self.percentile = percentile
        self.gain = gain
        self.limit = math.inf
        """Longest predicted wait that is admitted; none before the first answer."""
        self._no = Reject(reason="would wait longer than answers in time allow")

    def begin(self, view: View) -> None:
        self.view = view
        self.ahead = Ahead(view)
        self._admitted: dict[int, None] = {}

    def admit(self, task: Task, view: View) -> Accept | Reject:
        wait = self.ahead.wait(task)
        if wait > self.limit:
            return self._no
        self._admitted[task.index] = None
        return YES

    def finished(self, task: Task) -> None:
        self._learn(task, False)

    def gone(self, task: Task) -> None:
        self._learn(task, True)

    def _learn(self, task: Task, gone: bool) -> None:
        """Note whether a task has ended in time; one that reneged was late."""
        if task.index not in self._admitted:
            return
        del self._admitted[task.index]
        wanted = self.target or task.deadline - task.arrival
        if wanted == math.inf:
            return
        late = gone or self.view.now > task.arrival + wanted
        step = -self.percentile if late else 1.0 - self.percentile
        limit = min(self.limit, MAX_MARGIN * wanted) * math.exp(self.gain * step)
        self.limit = min(max(limit, MIN_MARGIN * wanted), MAX_MARGIN * wanted)
