"""A limit on how many wait: globally, for each class, for each type of device.

Decides: a task may wait unless as many wait already, in all, of its class, or for the device type of its best mode,
as a limit says; with a limit of 0 it must be able to start at once.
Reference: the waiting room of Erlang's and Kendall's queues (M/M/c/K: Kleinrock, Queueing Systems I, 1975, section
3.6).  Exact for tasks of one server each: a limit of L is the loss system with K = c + L places.
Weakness: counts heads, not work: with heavy tails the same number may mean a second or an hour.  Of tasks that come
at one instant, those that will start in the round to follow count as waiting.
Cost: O(1); per class and device, O(classes × device types) once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.task import Task
from hetsim.policy import Accept, Admission, PlanProblem, Reject, View
from hetsim_policies.admission.common.names import known_classes, known_devices

Limit = Annotated[int, Field(ge=0)]

YES = Accept()


class QueueLimit(Admission):
    """Limits on waiting tasks; at least one is to be given.

    limit: most tasks waiting in all.
    per_class: most of a class, by its name.
    per_device: most waiting for a device type or kind (cpu, gpu), by its name: those with a best mode on it.
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
        self._no = Reject(reason=f"{limit} wait already")

    def check(self, problem: PlanProblem) -> None:
        if self.limit is None and not self.per_class and not self.per_device:
            text = "queue_limit without a limit; give limit, per_class or per_device"
            raise ScenarioError(Problem(text, key="policy.admission"))
        known_classes(problem, self.per_class, "per_class")
        known_devices(problem, self.per_device, "per_device")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        waiting = view.num_waiting()
        if self._global_only:
            return YES if waiting < self.limit or self._starts_at_once(task, view, waiting) else self._no  # type: ignore[operator]
        if self.limit is not None and waiting >= self.limit and not self._starts_at_once(task, view, waiting):
            return self._no
        class_ = task.class_ if self.per_class else ""
        limit = self.per_class.get(class_)
        if limit is not None:
            waiting = view.num_waiting(None, class_)
            if waiting >= limit and not self._starts_at_once(task, view, waiting):
                return Reject(reason=f"{limit} of {class_} wait already")
        if self.per_device:
            best = task.modes[task.modes_by_speed()[0]].type
            for name in (best.name, best.kind):
                limit = self.per_device.get(name)
                if limit is not None:
                    waiting = view.num_waiting(name)
                    if waiting >= limit and not self._starts_at_once(task, view, waiting):
                        return Reject(reason=f"{limit} wait for {name} already")
        return YES

    @staticmethod
    def _starts_at_once(task: Task, view: View, waiting: int) -> bool:
        """Return True if no task that counts waits and this one fits now."""
        return waiting == 0 and any(view.fits(mode) for mode in task.modes)
