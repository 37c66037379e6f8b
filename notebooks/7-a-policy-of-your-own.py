# %% [markdown]
# # A policy of your own
#
# A policy reads a view of the cluster and yields decisions; the engine checks each one and carries it out before the next. Here is one: shortest job first, except that whoever has waited longer than a patience goes first.

# %%
import sim
from sim.policy import ListScheduler, Start


class PatientSjf(ListScheduler):
    """Shortest job first, but whoever has waited `patience` seconds goes first."""

    def __init__(self, patience: float = 600.0):
        super().__init__(order=lambda task: task.shortest_estimate)
        self.patience = patience

    def schedule(self, view):
        for task in list(view.waiting()):  # in order of arrival
            placement = view.fit(task)
            if placement and view.now - task.ready > self.patience:
                yield Start(task, placement)
        yield from super().schedule(view)


_ = sim.register("patient_sjf", PatientSjf)

# %% [markdown]
# Does it keep the contract? The conformance suite tries it on small systems with gangs, fractions, memory, transfers, graphs and preemption, with the engine's invariants on.

# %%
from sim.testing import check_policy

check_policy(PatientSjf)
print("no rule broken")

# %% [markdown]
# A policy that breaks a rule is told which, in a sentence:

# %%
class Forgetful(ListScheduler):
    """Never starts a task of the class that it dislikes."""

    def __init__(self):
        super().__init__(order=lambda task: task.arrival)

    def ready(self, task):
        if task.index % 7 != 3:
            super().ready(task)


try:
    check_policy(Forgetful)
except AssertionError as complaint:
    print(*str(complaint).splitlines()[:3], sep="\n")

# %% [markdown]
# What is it worth? Sjf lets long jobs wait; patience should help the worst off, at a price in the mean.

# %%
found = sim.compare(
    "deep-learning-mix",
    {"fcfs": "fcfs", "sjf": "sjf", "patient": {"name": "patient_sjf", "patience": 3600.0}},
    metrics=["response_mean", "wait_p95", "wait_max"],
    replications=10,
)
found

# %% [markdown]
# Slowdown and the longest wait want opposite things. Which patience is best for the slowdown of all but the worst twentieth? `tune` searches by successive halving, and states the interval of the winner from runs that had no part in the choice.

# %%
tuned = sim.tune(
    "deep-learning-mix",
    "patient_sjf",
    over={"patience": [1800.0, 7200.0, 21600.0, 43200.0]},
    metric="slowdown_p95",
)
tuned

# %% [markdown]
# Two runs side by side: where do the policies first part, and who gained?

# %%
runs = [sim.run("deep-learning-mix", policy=policy, replications=1) for policy in ("sjf", "patient_sjf")]
sim.difference(*runs, "wait").sentences
