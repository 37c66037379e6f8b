"""Admission by the wait that estimates predict for a new task."""

import math
from typing import Annotated, Any, cast

import numpy as np
from pydantic import Field

from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.service import LanguageService
from hetsim.model.task import Task
from hetsim.model.units import Fraction, Seconds
from hetsim.policy import Accept, Admission, Reject, RequestQueue, View
from hetsim_policies.admission.common.estimates import RecentArrivals, servers

FEW = 4  # maximum number of devices of which each is queried for the time it is free


class Ahead:
    """Predicts when a new task would start and end.

    Tasks: the predicted wait in a mode is the estimated work of all waiting and running tasks on the mode's device
    type, divided by the number of launches of that mode that fit simultaneously.  It is 0 if no task waits and the task
    fits now.  With exact estimates this is the true wait on one server in order of arrival.  On several servers it is
    slightly too short, and under other orders of service it is an average over tasks.  The widths of waiting tasks are
    ignored.
    Requests that are served in batches: the prediction is the sum of the remaining time of the batch in flight, the
    full batches ahead of the request, and its own batch, which includes requests that arrive before it starts.  Batches
    are assumed to be greedy; delays by the batching policy and by other services are not included.
    Requests to a language model: the predicted wait is the time that the first request in the queue has waited so far
    (the delay of the head of the line: Ibrahim and Whitt, Real-Time Delay Estimation Based on Delay History,
    Manufacturing & Service Operations Management 11(3), 2009).  Then the request takes the time that it would take
    alone.  This is too short if many requests are in the same steps, and late after a change of load.
    Cost: O(1) per request on one device, linear in the requests of a language model; one `view.backlog` per task.
    """

    def __init__(self, view: View, memory: int = 500):
        self.view = view
        self.memory = memory
        self._nominal: dict[Mode, tuple[str, int, Placement | None]] = {}
        self._services: dict[Shape, BatchesAhead | TokensAhead] = {}

    def wait(self, task: Task, position: int | None = None) -> float:
        """Return seconds until the task would start in its mode number `position`.

        position: None for the fastest mode; requests to a service ignore it.
        """
        if (service := self.service(task)) is not None:
            return service.wait()
        return self._wait(task.modes[task.modes_by_speed()[0] if position is None else position])

    def response(self, task: Task, position: int | None = None) -> float:
        """Return seconds until the task would end in mode `position` (None: the fastest)."""
        if (service := self.service(task)) is not None:
            return service.response(task)
        position = task.modes_by_speed()[0] if position is None else position
        return self._wait(task.modes[position]) + self._alone(task, position)

    def time_left(self, task: Task) -> float:
        """Seconds until the task's deadline; inf without one."""
        queue = None if task.shape in self._services else self.view.queue_of(task)
        generated = queue is not None and isinstance(queue.service, LanguageService)
        service = self.service(task) if generated else self._services.get(task.shape)
        if service is not None and service.slo < math.inf:
            return task.arrival + service.slo - self.view.now
        return task.deadline - self.view.now

    def service(self, task: Task) -> "BatchesAhead | TokensAhead | None":
        """Return the predictor of the task's service; None if the task is not a request."""
        if (line := self._services.get(task.shape)) is None:
            if (queue := self.view.queue_of(task)) is None:
                return None
            if isinstance(queue.service, LanguageService):
                line = TokensAhead(self.view, queue)
            else:
                line = BatchesAhead(self.view, queue, task, self.memory)
            self._services[task.shape] = line
        return line

    def _wait(self, mode: Mode) -> float:
        name, count, _ = self._of(mode)
        view = self.view
        if not view.num_waiting(name, own=True) and view.fits(mode):
            return 0.0
        return view.backlog(name, own=True) / count

    def _alone(self, task: Task, position: int) -> float:
        mode = task.modes[position]
        fixed = mode.upload.seconds_for(1) or mode.download.seconds_for(1)
        moves = fixed or task.bytes_in or task.bytes_out or task.reads or task.writes
        if moves and (placement := self._of(mode)[2]) is not None:
            return self.view.duration(task, placement)
        return task.estimate_at(position)

    def _of(self, mode: Mode) -> tuple[str, int, Placement | None]:
        if (nominal := self._nominal.get(mode)) is None:
            cluster = self.view.cluster
            nominal = self._nominal[mode] = mode.type.name, servers(cluster, mode), somewhere(cluster, mode)
        return nominal


class BatchesAhead:
    """Predicts waits of one service from the batches ahead of a new request."""

    def __init__(self, view: View, queue: RequestQueue, task: Task, memory: int):
        self.view = view
        self.queue = queue
        self.mode = mode = task.modes[task.modes_by_speed()[0]]
        self.devices: list[Device] = [device for device in view.cluster.devices if device.type is mode.type]
        self.placement = Placement(mode, (self.devices[0],))
        self.limit = mode.batch_limit
        self.rate = RecentArrivals(memory)
        self.there = queue.service.request_delay
        self.back = queue.service.response_delay
        self.slo = queue.service.slo
        self._running = -1, -1  # launches and releases when it was last asked when a device is free
        self._free = 0.0
        self._times: dict[int, float] = {}
        self._compute = queue.stages(self.limit, self.placement).compute if self.limit < 10**6 else math.inf

    def wait(self) -> float:
        """Seconds until a request that arrives now joins a batch."""
        residual, waiting = self._residual(), len(self.queue)
        if waiting < self.limit:
            return residual
        return residual + waiting // self.limit * self._compute / len(self.devices)

    def response(self, task: Task) -> float:
        """Seconds until a new request is answered; its batch includes expected arrivals."""
        self.rate.note(self.view.now)
        residual, waiting, limit = self._residual(), len(self.queue), self.limit
        if waiting >= limit:
            residual += waiting // limit * self._compute / len(self.devices)
            waiting %= limit
        size = waiting + 1
        if (rate := self.rate.value) is not None:
            size += int(rate * residual)
        return self.there + residual + self._time(size if size < limit else limit) + self.back

    def _time(self, size: int) -> float:
        if (seconds := self._times.get(size)) is None:
            seconds = self._times[size] = self.queue.stages(size, self.placement).total
        return seconds

    def _residual(self) -> float:
        view, devices = self.view, self.devices
        if len(devices) <= FEW:
            running = view.changes.launches, view.changes.releases
            if running != self._running:  # asking for every request would be a third of its cost
                self._running = running
                self._free = min(view.free_at(device, "compute") for device in devices)
            remaining = self._free - view.now
            return remaining if remaining > 0 else 0.0
        if view.first(self.mode) is not None:
            return 0.0
        # The least of d times that are each anywhere in a batch.
        return self._time(max(1, min(self.limit, len(self.queue)))) / (len(devices) + 1)


class TokensAhead:
    """Predicts the wait and the response of a new request to one language model."""

    def __init__(self, view: View, queue: RequestQueue):
        self.view = view
        self.queue = queue
        self.service = service = cast(Any, queue.service)
        self.slo: float = service.ttft

    def wait(self) -> float:
        """Predicted wait: the time that the oldest request has waited for its first step."""
        view, queue = self.view, self.queue
        if not len(queue):
            return 0.0
        head = queue.head
        if view.attained(head) > 0:  # it has given way, and waits again
            head = next((task for task in queue.tasks() if view.attained(task) <= 0), head)
            if view.attained(head) > 0:
                return 0.0
        return max(0.0, view.now - head.ready - self.service.request_delay)

    def response(self, task: Task) -> float:
        """Return the predicted seconds until the last token of a new request.

        If the service limits the time to the first token, return instead a number to compare with this limit: the
        larger of the predicted seconds until the first token, and the limit plus the predicted lateness of the last
        token.
        """
        service, position = self.service, task.modes_by_speed()[0]
        before = service.request_delay + self.wait()
        in_time = before + task.estimates[position] + service.response_delay
        if self.slo == math.inf:
            return in_time
        prompt = np.array([int(float(task.label("prompt_tokens")))])  # floats if other tasks have none
        read = service.kinds[position].step.alone(prompt, np.ones_like(prompt), service.max_num_batched_tokens)
        first = before + float(read[0]) + service.response_delay
        return max(first, in_time - (task.deadline - task.arrival - self.slo))


def somewhere(cluster: Cluster, mode: Mode) -> Placement | None:
    """Return devices for a mode as if all were free; None if there are too few."""
    wanted = max(1, mode.gpus)
    for node in cluster.nodes:
        here = [node.cpu] if mode.on_cpu else list(node.accelerators)
        fitting = [device for device in here if device.type is mode.type]
        if len(fitting) >= wanted:
            return Placement(mode, tuple(fitting[:wanted]))
    across = [device for device in cluster.devices if device.type is mode.type]
    return Placement(mode, tuple(across[:wanted])) if mode.span_any and len(across) >= wanted else None


YES = Accept()
ROUNDING = 1e-9  # relative rounding error of the time left


class PredictedWait(Admission):
    """Predicted wait: a task's predicted wait must be within a limit or deadline.

    Decides: the wait is predicted from estimates (`hetsim_policies.admission.predicted`: work ahead divided by servers;
    for a request, the batches ahead).  The task is admitted if the wait is at most `max_wait`; without that parameter,
    if the predicted finish is by its deadline.  Reference: the queue with bounded workload (Cohen, Single Server Queue
    with Uniformly Bounded Virtual Waiting Time, Journal of Applied Probability 5, 1968; Gavish and Schweitzer, The
    Markovian Queue with Bounded Waiting Time, 1977): exact for one server in order of arrival.
    Weakness: it depends on the estimates; it considers the best mode only (`slo_feasible` considers all modes); if
    later tasks may pass a task, its prediction is wrong.  Cost: O(1) per request, the sums of `view.backlog` per task.

    max_wait: maximum predicted wait; default: as long as the task can still meet its deadline.
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


class SloFeasible(Admission):
    """SLO feasibility: admit only tasks that can still meet their deadline.

    Decides: a task is admitted if in some mode its predicted wait and its own stages (transfers of missing data
    included) end by its deadline.  A request is admitted if the batches ahead of it and its own batch end by its
    deadline (`hetsim_policies.admission.predicted`).  Tasks without a deadline are admitted.
    Reference: the admission of Clockwork (Gujarati et al., Serving DNNs like Clockwork, OSDI 2020, section 4): a
    request that cannot be served in time is refused immediately.
    Weakness: an admitted task is not bound to the mode: if the scheduler chooses another mode, or lets later tasks
    pass, the prediction is wrong (`redirect` binds a task to its mode).  A safety factor above 1 allows for part of
    this error.  Cost: O(1) per request; O(modes) calls of `backlog` per task.

    safety: factor on the predicted time; above 1 is cautious.
    """

    def __init__(self, safety: Annotated[float, Field(gt=0)] = 1.0):
        self.safety = safety
        self._no = Reject(reason="cannot meet its deadline")

    def begin(self, view: View) -> None:
        self.ahead = Ahead(view)

    def time_left(self, task: Task, view: View) -> float:
        """Maximum predicted response (s) of an admitted task; inf without a deadline."""
        return self.ahead.time_left(task) * (1.0 + ROUNDING) / self.safety

    def admit(self, task: Task, view: View) -> Accept | Reject:
        time_left = self.time_left(task, view)
        if time_left == math.inf:
            return YES
        ahead = self.ahead
        if ahead.service(task) is not None:
            return YES if ahead.response(task) <= time_left else self._no
        return YES if any(ahead.response(task, p) <= time_left for p in task.modes_by_speed()) else self._no


class Redirect(SloFeasible):
    """Redirect: a task that is late on its best device is bound to a slower one.

    Decides: modes are tried from the fastest on; the task is bound to the first mode with a predicted finish by its
    deadline, or refused if there is none.  Requests (which use the mode of their batch) and tasks with one mode are
    admitted or refused as by `slo_feasible`.  Tasks without a deadline may run anywhere.
    Reference: the spilling of work to slower processors by predicted completion (Maheswaran, Ali, Siegel, Hensgen and
    Freund, Dynamic Mapping of a Class of Independent Tasks onto Heterogeneous Computing Systems, 1999: minimum
    completion time), here at admission and against a deadline.
    Weakness: bound tasks need a scheduler under which a head that waits for a GPU does not block tasks for the CPU
    (`fcfs_skip`, or discipline: skip).  Cost: O(modes) queries of the work ahead.

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


MIN_MARGIN, MAX_MARGIN = 1e-3, 4.0  # bounds of the limit, as fractions of the target response time


class Adaptive(Admission):
    """Adaptive: a limit on the predicted wait, adjusted to the share of late answers.

    Decides: as `predicted_wait`, with an adaptive limit.  After each answer the limit is multiplied by exp(−gain ·
    percentile) if it was late and by exp(gain · (1 − percentile)) if it was in time: in equilibrium exactly the share 1
    − percentile of the answers is late, whatever the load and the error of predictions.  The limit stays between 1/1000
    of the target and 4 times the target.  Reference: Robbins and Monro, A Stochastic Approximation Method (1951), for a
    quantile; as admission control with feedback from measured response times: Welsh and Culler, Adaptive Overload
    Control for Busy Internet Servers (2003).  Known: the equilibrium is that of a stationary load; after a jump the
    limit needs about 1/(gain · percentile) late answers to fall by a factor e, and longer to rise.  Weakness: it learns
    from answers, so it reacts one response time late.  Cost: O(1) per request of a service; for other tasks a call of
    `view.backlog`.

    target: the response time to meet; default: the tasks' own deadlines.
    percentile: the share of admitted tasks that should meet the target.
    gain: an answer changes the logarithm of the limit by at most this.
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
        self.limit = math.inf  # longest predicted wait that is admitted; none before the first answer
        self._no = Reject(reason="would wait longer than answers in time allow")

    def begin(self, view: View) -> None:
        self.view = view
        self.ahead = Ahead(view)
        self._admitted: dict[int, None] = {}

    def admit(self, task: Task, view: View) -> Accept | Reject:
        if self.ahead.wait(task) > self.limit:
            return self._no
        self._admitted[task.index] = None
        return YES

    def finished(self, task: Task) -> None:
        self._learn(task, False)

    def gone(self, task: Task) -> None:
        self._learn(task, True)

    def _learn(self, task: Task, gone: bool) -> None:
        """Adjust the limit after a task has ended; reneging (`gone`) counts as late."""
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
