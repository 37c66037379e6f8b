"""A scheduling policy: shortest job first, but a task that has waited long goes first.

`python my_policy.py` compares it with two others.
"""

from hetsim.model.units import Seconds
from hetsim.policy import ListScheduler, Start


class PatientSjf(ListScheduler):
    """Shortest job first, except for tasks that have waited longer than `patience`."""

    def __init__(self, patience: Seconds = 3600.0):
        super().__init__(order=lambda task: task.shortest_estimate)
        self.patience = patience

    def schedule(self, view):
        for task in list(view.waiting()):  # in order of arrival
            placement = view.fit(task)
            if placement and view.now - task.ready > self.patience:
                yield Start(task, placement)
        yield from super().schedule(view)


if __name__ == "__main__":
    import hetsim as hs

    hs.register("patient_sjf", PatientSjf)  # for this process; an entry point of a package makes it known to all
    policies = ["fcfs", "sjf", "patient_sjf"]
    print(hs.compare("scenario.yaml", policies, metrics=["response_mean", "wait_max"], replications=10))
