"""A threshold on utilization: no admission while a device type is at or above it.

Decides: a task is refused while the share of devices taken of its best mode's type is at the threshold or above, now
or, with `window`, on average (exponentially weighted) over it.
Reference: the thresholds of Borst, Boucherie and Boxma, ERMR: A Generalized Equivalent Random Method (1999), and of
every autoscaler; without `window` and with tasks of one server each it is Erlang's loss system with
⌈threshold · c⌉ places, a queue never forming.
Weakness: without `window` devices are left idle for bursts that an admitted queue would have smoothed; with it, bursts
shorter than the window pass and lulls are refused.  At threshold 1 it is a loss system, not a queue.
Cost: O(devices) a decision.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Fraction, Seconds
from hetsim.policy import Accept, Admission, Reject, View

YES = Accept()
ROUNDING = 1e-9


class UtilizationThreshold(Admission):
    """So much and no more.

    threshold: share of the devices (cores) of a type from which on no task is admitted to it.
    window: seconds over which the share is averaged; 0: as it is now.
    """

    def __init__(self, threshold: Annotated[Fraction, Field(gt=0, le=1)] = 0.9, window: Seconds = 0.0):
        self.threshold = threshold
        self.window = window
        self._capacity: dict[str, int] = {}
        self._average: dict[str, tuple[float, float]] = {}
        """Of each device type the average share, and when it was taken."""
        self._no = Reject(reason=f"{threshold:.0%} of the devices are taken")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        modes = task.modes
        name = modes[0 if len(modes) == 1 else task.modes_by_speed()[0]].type.name
        capacity = self._capacity.get(name)
        if capacity is None:
            capacity = self._capacity[name] = view.cluster.count(name)
        share = 1.0 - view.free(name) / capacity
        if self.window > 0:
            share = self._averaged(name, share, view.now)
        return self._no if share >= self.threshold - ROUNDING else YES

    def _averaged(self, name: str, share: float, now: float) -> float:
        """Average the utilization: the value of this arrival stands since the last one."""
        average, at = self._average.get(name, (0.0, 0.0))
        kept = math.exp((at - now) / self.window)
        average = kept * average + (1.0 - kept) * share
        self._average[name] = average, now
        return average
