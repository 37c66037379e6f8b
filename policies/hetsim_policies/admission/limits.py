"""Admission of everything, or by limits that use no estimates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.task import Task
from hetsim.model.units import Fraction, PerSecond, Seconds
from hetsim.policy import Accept, Admission, Defer, PlanProblem, Reject, View
from hetsim_policies.admission.common.estimates import known_classes, known_devices

YES = Accept()


class AcceptAll(Admission):
    """Accept all: every task is admitted.

    The default.  Reference: none; it is the absence of admission control.
    Weakness: under overload queues and waiting times grow without bound.  Cost: negligible.
    """

    queueing = "open"
    rejects = False

    def admit(self, task: Task, view: View) -> Accept:
        return YES


Limit = Annotated[int, Field(ge=0)]


class QueueLimit(Admission):
    """A limit on waiting tasks: in total, by class, or by device type.

    Decides: a task is refused if the number of waiting tasks, in total, of its class, or for the device type of its
    best mode, has reached a limit; with a limit of 0 the task must be able to start immediately.
    Reference: the waiting room of Erlang's and Kendall's queues (M/M/c/K: Kleinrock, Queueing Systems I, 1975, section
    3.6).  For tasks of one server each, a limit of L on c servers is exactly the system M/M/c/K with K = c + L places.
    Weakness: it counts tasks, not work: with heavy tails the same number may mean a second or an hour of work.  If
    several tasks arrive at the same instant, some of them can start before the next arrival but still count as waiting.
    The limit on the total leaves such tasks out; limits by class or device, and limits on requests of a service,
    include them.  Cost: O(1) per decision, O(limit) if several tasks arrive at the same instant; with limits by class
    or device, O(classes × device types) once.

    limit: maximum number of waiting tasks in total.
    per_class: maximum number of waiting tasks by class.
    per_device: maximum number of waiting tasks by device type or kind (cpu, gpu) of their best mode.
    """

    queueing = "limit"

    def __init__(
        self,
        limit: Limit | None = None,
        per_class: dict[str, Limit] | None = None,
        per_device: dict[str, Limit] | None = None,
    ):
        self.limit = limit
        self.per_class: Mapping[str, int] = per_class or {}
        self.per_device: Mapping[str, int] = per_device or {}
        self._global_only = limit is not None and not (per_class or per_device)
        self._no = Reject(reason=f"{limit} tasks wait already")
        self._admitted_at = -math.inf

    def check(self, problem: PlanProblem) -> None:
        if self.limit is None and not self.per_class and not self.per_device:
            text = "queue_limit needs at least one of limit, per_class and per_device"
            raise ScenarioError(Problem(text, key="policy.admission"))
        known_classes(problem, self.per_class, "per_class")
        known_devices(problem, self.per_device, "per_device")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        waiting = view.num_waiting()
        if self._global_only and self.limit is not None:
            full = waiting >= self.limit and not self._starts_at_once(task, view, waiting)
            if full and (self._admitted_at != view.now or self._waiting_after(task, view) > self.limit):
                return self._no
            self._admitted_at = view.now
            return YES
        if self.limit is not None and waiting >= self.limit and not self._starts_at_once(task, view, waiting):
            return self._no
        class_ = task.class_ if self.per_class else ""
        if (limit := self.per_class.get(class_)) is not None:
            waiting = view.num_waiting(None, class_)
            if waiting >= limit and not self._starts_at_once(task, view, waiting):
                return Reject(reason=f"{limit} tasks of {class_} wait already")
        if self.per_device:
            best = task.modes[task.modes_by_speed()[0]].type
            for name in (best.name, best.kind):
                if (limit := self.per_device.get(name)) is not None:
                    waiting = view.num_waiting(name)
                    if waiting >= limit and not self._starts_at_once(task, view, waiting):
                        return Reject(reason=f"{limit} tasks wait for {name} already")
        return YES

    @staticmethod
    def _waiting_after(task: Task, view: View) -> float:
        """Return how many tasks, `task` included, wait without a free device.

        Return inf if one of them has waited since an earlier instant: `task` is then rejected in any case.
        """
        tasks, free_devices, unplaced = [*view.waiting(), task], dict[str, float](), 0
        if tasks[0].arrival < view.now:
            return math.inf
        for one in tasks:
            for mode in one.modes:
                room = free_devices.setdefault(mode.type.name, view.free(mode.type.name))
                if mode.width <= room and view.fits(mode):
                    free_devices[mode.type.name] = room - mode.width
                    break
            else:
                unplaced += 1
        return unplaced

    @staticmethod
    def _starts_at_once(task: Task, view: View, waiting: int) -> bool:
        return waiting == 0 and any(view.fits(mode) for mode in task.modes)


ROUNDING = 1e-9  # rounding error of a number of tokens


class TokenBucket(Admission):
    """A token bucket: `rate` admissions per second, in bursts of at most `burst`.

    Decides: tokens are added to a bucket of capacity `burst` at `rate`; a task needs one token.  Without a token the
    task is refused (policing), or deferred until a token is due (shaping), in order of arrival.  There may be a bucket
    per class or user.
    Reference: Turner, New Directions in Communications (or Which Way to the Information Age?), IEEE Communications
    Magazine 24 (1986); for Poisson arrivals the refused share is the loss probability of an M/D/1 queue with `burst`
    places, and the delay by shaping with `burst` 1 is the waiting time of M/D/1.
    Proven: in any interval of length t at most burst + rate · t are admitted.  Weakness: it ignores the load: idle
    devices do not raise the rate, and a rate above capacity does not limit the queue.  Cost: O(1).

    rate: tokens per second.  burst: capacity of the bucket in tokens; it is full at the start.
    per: one bucket for all, or one for each class or user.
    excess: refuse a task without a token, or defer it until a token is due.
    """

    queueing = "token bucket"

    def __init__(
        self,
        rate: Annotated[PerSecond, Field(gt=0)],
        burst: Annotated[float, Field(ge=1)] = 1,
        per: Literal["all", "class", "user"] = "all",
        excess: Literal["reject", "defer"] = "reject",
    ):
        self.rate = rate
        self.burst = float(burst)
        self.per = per
        self.excess = excess
        self.rejects = excess == "reject"
        # Tokens of each bucket (negative if some are promised), and the time of that count
        self._levels: dict[str, list[float]] = {}
        self._promised: dict[int, None] = {}
        self._no = Reject(reason="no token left")

    def admit(self, task: Task, view: View) -> Accept | Reject | Defer:
        if self._promised and task.index in self._promised:
            del self._promised[task.index]
            return YES
        name = "" if self.per == "all" else task.class_ if self.per == "class" else task.user
        now = view.now
        if (level := self._levels.get(name)) is None:
            level = self._levels[name] = [self.burst, now]
        tokens = min(self.burst, level[0] + (now - level[1]) * self.rate)
        level[1] = now
        if tokens >= 1.0 - ROUNDING:
            level[0] = tokens - 1.0
            return YES
        if self.excess == "reject":
            level[0] = tokens
            return self._no
        level[0] = tokens - 1.0
        self._promised[task.index] = None
        return Defer(now + (1.0 - tokens) / self.rate)


class UtilizationThreshold(Admission):
    """A threshold on utilization: no admission while a device type is at or above it.

    Decides: a task is refused while the occupied share of the devices of its best mode's type is at or above the
    threshold.  With `window` the share is an exponentially weighted average over the window.
    Reference: the thresholds of Borst, Boucherie and Boxma, ERMR: A Generalized Equivalent Random Method (1999), and of
    every autoscaler; without `window` and with tasks of one server each it is Erlang's loss system with
    ⌈threshold · c⌉ places and no queue.  Weakness: without `window`, no queue forms that would keep devices busy after
    a burst.  With `window`, bursts shorter than it are admitted completely, but tasks that arrive just after a burst
    are refused.  At threshold 1 it is a loss system, not a queue.  Cost: O(devices) per decision.

    threshold: share of the devices (cores) of a type at which no further task is admitted to it.
    window: seconds over which the share is averaged; 0: the present share.
    """

    def __init__(self, threshold: Annotated[Fraction, Field(gt=0, le=1)] = 0.9, window: Seconds = 0.0):
        self.threshold = threshold
        self.window = window
        self._capacity: dict[str, int] = {}
        # Average share of each device type, and the time of that average
        self._average: dict[str, tuple[float, float]] = {}
        self._no = Reject(reason=f"{threshold:.0%} of the devices are occupied")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        modes = task.modes
        name = modes[0 if len(modes) == 1 else task.modes_by_speed()[0]].type.name
        if (capacity := self._capacity.get(name)) is None:
            capacity = self._capacity[name] = view.cluster.count(name)
        share = 1.0 - view.free(name) / capacity
        if self.window > 0:
            share = self._averaged(name, share, view.now)
        return self._no if share >= self.threshold - ROUNDING else YES

    def _averaged(self, name: str, share: float, now: float) -> float:
        """Update a type's average occupied share to `now`, and return it.

        share: the occupied share since the last call.
        """
        average, at = self._average.get(name, (0.0, 0.0))
        kept = math.exp((at - now) / self.window)
        average = kept * average + (1.0 - kept) * share
        self._average[name] = average, now
        return average


class Codel(Admission):
    """CoDel, controlled delay: refuse ever more often while the queue remains old.

    The queue is old while its head (the task that waits longest) has waited for longer than a target.

    Decides: the original CoDel drops packets as they leave the queue.  Admission decides only at arrivals, so this
    policy uses the age of the head as sojourn time and refuses the new task.  (Admitted tasks are not dropped; a
    scheduler could do so with `Reject`.)  If the age has been above `target` for a whole `interval`, one task is
    refused; after `count` refusals the next one follows interval/√count later, until the age is below the target.  Each
    service has its own queue; other tasks share one.
    Reference: Nichols and Jacobson, Controlling Queue Delay, ACM Queue 10(5) (2012); RFC 8289 for the control law.
    For: closed loops, with clients that slow down when they are refused, and loads slightly above capacity for a long
    time.  Weakness: open arrivals far above capacity need many intervals until refusals are frequent enough: under the
    varying load of docs/admission.md its reward per task is -0.83 with phases of 300 s and -1.38 with phases of 20 s,
    while rejecting all gives 0.  It reacts one queueing delay late.  If tasks are not served in the order of arrival, a
    single starved task keeps the age high, and all new tasks are refused.  Cost: O(1).

    target: acceptable age of the head.
    interval: seconds above the target before the first refusal; about the longest usual response time.
    """

    def __init__(self, target: Annotated[Seconds, Field(gt=0)], interval: Annotated[Seconds, Field(gt=0)]):
        self.target = target
        self.interval = interval
        self._laws: dict[object, ControlLaw] = {}  # by queue; tasks have one together, None
        self._no = Reject(reason="the head of the queue has waited too long")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        queue, now = view.queue_of(task), view.now
        if queue is not None:
            age = now - queue.arrival(0) if len(queue) else 0.0
        else:
            oldest = view.waiting(1, own=True)
            age = now - oldest[0].ready if oldest else 0.0
        return self._no if self._law(queue).refuses(now, age) else YES

    def _law(self, queue: object) -> "ControlLaw":
        if queue not in self._laws:
            self._laws[queue] = ControlLaw(self.target, self.interval)
        return self._laws[queue]


class HeadCodel(Codel):
    """CoDel at the head: drop tasks that waited too long when they could start.

    Decides: a task that is about to start is dropped by the control law of `codel`, applied to its own sojourn time.
    All tasks are admitted.
    Reference: Nichols, Jacobson, McGregor and Iyengar, Controlled Delay Active Queue Management, RFC 8289 (2018).
    For: queues in which the clients of the oldest tasks have given up.
    Weakness: after `count` drops the next one is interval/√count later, so if tasks wait many times longer than the
    target, it takes long until enough are dropped.  Cost: O(1); requests of a service are handled as Task objects,
    which is slower than arrays.

    target: acceptable sojourn time.
    interval: seconds above the target before the first drop.
    """

    def admit(self, task: Task, view: View) -> Accept:
        return YES

    def leaving(self, task: Task, view: View) -> Reject | None:
        return self._no if self._law(view.queue_of(task)).refuses(view.now, view.now - task.ready) else None


@dataclass(eq=False, slots=True)
class ControlLaw:
    """CoDel's control law (RFC 8289): when a queue's tasks are refused or dropped."""

    target: float
    interval: float
    above_since: float = math.inf  # one interval after the age rose above the target; inf while it is below
    refusing: bool = False
    count: int = 0
    last_count: int = 0
    next: float = 0.0

    def refuses(self, now: float, age: float) -> bool:
        if age < self.target:
            self.above_since = math.inf
        elif self.above_since == math.inf:
            self.above_since = now + self.interval
        if now < self.above_since:  # it has not been above the target for an interval
            self.refusing = False
            return False
        if not self.refusing:
            self.refusing = True
            # Soon after the last spell the rate that was needed then is a good guess.
            recent = self.count - self.last_count > 1 and now - self.next < 16 * self.interval
            self.count = self.count - self.last_count if recent else 1
            self.last_count = self.count
            self.next = now + self.interval / math.sqrt(self.count)
            return True
        if now < self.next:
            return False
        self.count += 1
        self.next += self.interval / math.sqrt(self.count)
        return True
