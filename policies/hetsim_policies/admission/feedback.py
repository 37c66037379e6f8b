"""Admission by measured load: response times, time in the queue, tasks per server."""

import math
import zlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Fraction, Seconds
from hetsim.policy import Accept, Admission, PlanProblem, Reject, View
from hetsim_policies.admission.common.estimates import known_classes, servers

YES = Accept()
Limit = Annotated[int, Field(ge=1)]


class Gradient(Admission):
    """A limit on tasks in the system, from the ratio of base to current response time.

    Decides: a task is admitted while fewer than the limit are in the system.  Time is divided into windows; a window
    ends when `window` seconds have passed and `samples` tasks have ended in it.  Then the limit L becomes (1 − s) L + s
    (g L + queue).  Here s is `smoothing`, and g is tolerance · B / R, limited to [0.5, 1], where R is the mean response
    of the window and B the base response.  If less than half of L was ever used during the window, L is not changed.
    Reference: concurrency-limits of Netflix (2018), classes GradientLimit (base: the minimum) and Gradient2Limit (base:
    an average over long windows); the idea is that of TCP Vegas (Brakmo and Peterson, 1995).  Known: in equilibrium L
    (1 − g) = queue.  For c servers that are always busy, with equal service times, L = queue + tolerance · c.
    Weakness: if service times vary, the minimum is too low, and so is the limit; an average rises during a long
    overload, and so does the limit.  One limit is used for all classes and devices.  Cost: O(1).

    start, min_limit, max_limit: the initial limit, and its bounds.
    queue: number of tasks added to g L at each update.
    tolerance: allowed ratio of the response to the base response.
    smoothing: weight of the new value in the limit.
    window, samples: minimum length of a window in seconds, and in ended tasks.
    base: the base response is the minimum over all windows so far, or their exponentially weighted average.
    memory: number of windows over which the average is taken (weight of a new window: 2 / (memory + 1)).
    """

    def __init__(
        self,
        start: Limit = 20,
        min_limit: Limit = 1,
        max_limit: Limit = 200,
        queue: Annotated[float, Field(gt=0)] = 4,
        tolerance: Annotated[float, Field(ge=1)] = 1.5,
        smoothing: Annotated[Fraction, Field(gt=0, le=1)] = 0.2,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        samples: Limit = 10,
        base: Literal["minimum", "average"] = "minimum",
        memory: Limit = 600,
    ):
        self.limit = float(min(max(start, min_limit), max_limit))
        self.bounds = float(min_limit), float(max_limit)
        self.queue, self.tolerance, self.smoothing = queue, tolerance, smoothing
        self.window, self.samples = window, samples
        self.base, self.memory = base, memory
        self.base_response = math.inf
        self._inside: dict[int, None] = {}
        self._peak = 0
        self._responses: list[float] = []
        self._end = window
        self._no = Reject(reason="the limit that response times allow is reached")

    def begin(self, view: View) -> None:
        self.view = view

    def admit(self, task: Task, view: View) -> Accept | Reject:
        if len(self._inside) >= int(self.limit):
            self._peak = max(self._peak, len(self._inside))
            return self._no
        self._inside[task.index] = None
        self._peak = max(self._peak, len(self._inside))
        return YES

    def gone(self, task: Task) -> None:
        self._inside.pop(task.index, None)

    def finished(self, task: Task) -> None:
        self.gone(task)
        now = self.view.now
        self._responses.append(now - task.arrival)
        if now >= self._end and len(self._responses) >= self.samples:
            self._update(math.fsum(self._responses) / len(self._responses))
            self._responses.clear()
            self._peak, self._end = len(self._inside), now + self.window

    def _update(self, response: float) -> None:
        if self.base == "minimum" or self.base_response == math.inf:
            self.base_response = min(self.base_response, response)
        else:
            self.base_response += (response - self.base_response) * 2.0 / (self.memory + 1.0)
            if self.base_response > 2.0 * response:  # after a long overload
                self.base_response *= 0.95
        if self._peak >= self.limit / 2.0:
            gradient = min(1.0, max(0.5, self.tolerance * self.base_response / response)) if response > 0 else 1.0
            limit = (1.0 - self.smoothing) * self.limit + self.smoothing * (self.limit * gradient + self.queue)
            self.limit = min(max(limit, self.bounds[0]), self.bounds[1])


LEVELS = 128  # number of user levels within a business priority
ALL = math.inf, 0  # a cut-off below all levels


class Dagor(Admission):
    """DAGOR: a cut-off among priority levels, set by the time tasks spend in queues.

    Decides: tasks are ranked in levels, by `priority` (highest first), and within a priority by one of 128 numbers, a
    hash of the user that changes every hour.  A task is admitted if its level ranks above the cut-off.  A window ends
    after `window` or `requests` arrivals; it counts as overloaded if the tasks that left the queue in this window had
    waited longer than `target` on average, or if none left it although tasks wait.  The next cut-off is chosen by what
    it would have admitted in this window: after an overloaded window 5 % fewer tasks than were admitted, otherwise more
    tasks, by 1 % of the arrivals.
    Reference: Zhou et al., Overload Control for Scaling WeChat Microservices (SoCC 2018), section 4, algorithm 1.
    For: workloads with many users; a user that is admitted remains admitted.  Weakness: a level is admitted or refused
    as a whole; a refused level with more than 1 % of all arrivals remains refused as long as the levels above it have
    enough arrivals (give tasks `users`, so that each level has few).  In a small system a window has few arrivals, and
    the cut-off is coarse.  Cost: O(1) a task and O(levels log levels) a window; requests of a service are handled as
    Task objects, which is slower than arrays.

    target: mean time in the queue above which a window counts as overloaded.
    window, requests: seconds or arrivals that end a window, whichever comes first.
    shed: share of the admissions to remove after an overloaded window.
    grow: share of the arrivals to add to the admissions after any other window.
    """

    def __init__(
        self,
        target: Annotated[Seconds, Field(gt=0)] = 0.02,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        requests: Limit = 2000,
        shed: Annotated[Fraction, Field(gt=0, lt=1)] = 0.05,
        grow: Annotated[Fraction, Field(gt=0, le=1)] = 0.01,
    ):
        self.target, self.window, self.requests = target, window, requests
        self.shed, self.grow = shed, grow
        self.cut = ALL  # first level that is refused
        self._counts: dict[tuple[float, int], int] = {}
        self._arrived = self._admitted = self._left = 0
        self._waited = 0.0
        self._end = window
        self._no = Reject(reason="its priority is below the cut-off")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        now = view.now
        if now >= self._end or self._arrived >= self.requests:
            self._next_window(view)
        level = -task.priority, zlib.crc32(f"{task.user}/{now // 3600:.0f}".encode()) % LEVELS
        self._arrived += 1
        self._counts[level] = self._counts.get(level, 0) + 1
        if level >= self.cut:
            return self._no
        self._admitted += 1
        return YES

    def leaving(self, task: Task, view: View) -> None:
        self._left += 1
        self._waited += view.now - task.ready

    def _next_window(self, view: View) -> None:
        overloaded = self._waited > self.target * self._left if self._left else view.num_waiting() > 0
        change = -self.shed * self._admitted if overloaded else self.grow * self._arrived
        wanted = self._admitted + change
        self.cut, total = ALL, 0
        for level in sorted(self._counts):
            total += self._counts[level]
            if total > wanted:
                self.cut = level
                break
        self._counts.clear()
        self._arrived = self._admitted = self._left = 0
        self._waited, self._end = 0.0, view.now + self.window


class ClassShedding(Admission):
    """Refuse classes of low criticality first, as the load rises.

    Decides: the load of a device type is the number of admitted tasks in the system divided by the number that can run
    at once in their best mode, averaged over the last `memory` seconds (exponentially weighted).  A class is refused
    while the load is at or above the class's limit; classes without a limit are always admitted.
    Reference: Beyer, Jones, Petoff and Murphy, Site Reliability Engineering (2016), chapter 21, "Handling overload"
    (criticality, executor load average); for the disabling of optional work Klein, Maggio, Årzén and
    Hernández-Rodriguez, Brownout (ICSE 2014).  Proven: with `memory` 0 and one class on c servers it is the M/M/c/K
    queue with K = ⌈limit · c⌉.  Weakness: limits are set by hand; a refused class starves while the load of more
    critical classes stays at its limit, and an average reacts late to a burst.  Cost: O(1).

    limits: by class, the load (tasks in the system per server) at which the class is refused.
    memory: seconds over which the load is averaged; 0: the present load.
    """

    def __init__(self, limits: dict[str, Annotated[float, Field(gt=0)]], memory: Seconds = 0.0):
        self.limits: Mapping[str, float] = limits
        self.memory = memory
        self._inside: dict[int, str] = {}
        # By device type: tasks in the system, their average, and the time of that average
        self._loads: dict[str, list[float]] = {}
        self._servers: dict[str, int] = {}

    def check(self, problem: PlanProblem) -> None:
        known_classes(problem, self.limits, "limits")

    def begin(self, view: View) -> None:
        self.view = view

    def admit(self, task: Task, view: View) -> Accept | Reject:
        mode = task.modes[task.modes_by_speed()[0]]
        name = mode.type.name
        load = self._averaged(name)
        if name not in self._servers:
            self._servers[name] = servers(view.cluster, mode)
        if (limit := self.limits.get(task.class_)) is not None and load[1] >= limit * self._servers[name]:
            return Reject(reason=f"the load is above the limit of {task.class_}")
        load[0] += 1.0
        self._inside[task.index] = name
        return YES

    def finished(self, task: Task) -> None:
        if (name := self._inside.pop(task.index, None)) is not None:
            self._averaged(name)[0] -= 1.0

    gone = finished

    def _averaged(self, name: str) -> list[float]:
        """Update and return [tasks in system, moving average, time] of a device type."""
        now = self.view.now
        load = self._loads.setdefault(name, [0.0, 0.0, now])
        fade = math.exp((load[2] - now) / self.memory) if self.memory else 0.0
        load[1], load[2] = fade * load[1] + (1.0 - fade) * load[0], now
        return load
