"""Everything may wait.

The default.  Reference: none; it is the absence of admission control.
Weakness: under overload queues grow without bound, and so does every waiting time.  Cost: none to speak of.
"""

from __future__ import annotations

from hetsim.model.task import Task
from hetsim.policy import Accept, Admission, View

YES = Accept()


class AcceptAll(Admission):
    """Accept every task, in all its modes."""

    queueing = "open"

    def admit(self, task: Task, view: View) -> Accept:
        return YES
