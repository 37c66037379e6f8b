# %% [markdown]
# # Admission: theory compared with simulation
#
# If requests exceed the capacity of a cluster, some of them are not served in time. Admission control selects the requests to serve. This notebook begins with a system that theory solves, and continues with a system that theory does not solve.

# %%
import pandas as pd

import hetsim as hs
from hetsim import theory
from hetsim.queueing.matching import match

# %% [markdown]
# Sixteen servers serve 13.7 customers per second, with a mean service time of one second. Which exact model describes this system, and do all assumptions of the model hold? `match`, which `hetsim theory mm16` also calls, checks each assumption in the scenario, and names the key that decides it.

# %%
mm16 = match(hs.load("mm16"))
print(f"{mm16.model}: {mm16.verdict}")
pd.DataFrame(mm16.assumptions)[["holds", "text", "key", "value"]]

# %% [markdown]
# All assumptions hold, so the predictions are exact. The confidence intervals of the simulation have to cover the predictions, except for one in twenty by chance:

# %%
def beside(found, runs):
    """Each figure that the model predicts, and the interval of the runs."""
    for row in found.rows:
        interval = runs.interval("rejected_fraction" if row.metric == "loss" else row.metric)
        told = "covered" if interval.covers(row.value) else "missed"
        print(f"{row.metric:20} exact {row.value:7.3f}, simulated {interval.mean:7.3f} ± {interval.half_width:.3f}, {told}")


beside(mm16, hs.replicate("mm16", replications=10, metrics=[row.metric for row in mm16.rows]))

# %% [markdown]
# After a single change of the scenario the prediction may only be approximate, or no model may match:

# %%
for change in ({"workload.customers.gpu_time": "1 s"}, {"policy": "sjf"}):
    other = match(hs.load("mm16", change))
    failed = "; ".join(one.text for one in other.failed)
    why = f"does not hold: {failed}" if failed else "the formula is an approximation"
    print(f"{change}: {other.verdict} ({other.model}): {why}")

# %% [markdown]
# A limit on the queue turns M/M/16 into M/M/16/K, whose loss is known exactly:

# %%
for limit in (0, 4, 16):
    predicted = theory.mmck(20.0, 1.0, servers=16, room=16 + limit).loss
    limited = hs.replicate(
        "mm16", replications=5, metrics=["rejected_fraction"],
        policy={"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": limit}},
        overrides={"workload.0.arrivals.rate": "20/s"},
    )
    interval = limited.interval("rejected_fraction")
    print(f"{limit:2} may wait: loss {predicted:.4f} exact, {interval.mean:.4f} ± {interval.half_width:.4f} simulated")

# %% [markdown]
# The next scenario has heavy-tailed tasks on GPUs, or on cores that are ten times as slow, at 1.3 times the capacity; each task is due after two minutes. Goodput counts the tasks that end in time.

# %%
policies = {
    "accept all": {"scheduler": "fcfs"},
    "queue limit": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 30}},
    "predicted wait": {"scheduler": "fcfs", "admission": {"name": "predicted_wait", "max_wait": "1 min"}},
    "deadline feasible": {"scheduler": "fcfs", "admission": "slo_feasible"},
    "feasible somewhere": {"scheduler": "fcfs_skip", "admission": "redirect"},
}
metrics = ["goodput_fraction", "attainment_admitted", "rejected_fraction", "jain"]
overload = hs.compare("overload", policies, metrics=metrics)
overload.shown_table()

# %% [markdown]
# If all tasks are accepted, almost no task ends in time. Rejecting the few long tasks that cannot meet their deadlines lets the other tasks end in time.

# %%
means = overload.table["goodput_fraction", "mean"]
print(f"goodput fraction {100 * means['accept all']:.0f} % when all are accepted, "
      f"{100 * means.drop('accept all').min():.0f} to {100 * means.drop('accept all').max():.0f} % with admission")
hs.plots.pareto(overload, "rejected_fraction", "attainment_admitted")

# %% [markdown]
# Naor (1969) showed that customers that decide for themselves join queues that are longer than the best queue for all customers together. The next cell computes the thresholds for a reward of 10 and a cost of 1 per second, with one server of rate 1 and an arrival rate of 0.9:

# %%
best = theory.naor(0.9, 1.0, reward=10, cost=1)
best

# %% [markdown]
# The policy `naor` applies these thresholds. Under a threshold n the queue is M/M/1/n, and its welfare (the rewards earned less the cost of time in the system) is known exactly. The next cell compares the exact welfare with the simulation:

# %%
toll = {
    "name": "toll",
    "seed": 1,
    "horizon": "8000 s",
    "warmup": "500 s",
    "cluster": {"nodes": {"gpus": {"type": "server"}}},
    "workload": {
        "name": "customers",
        "arrivals": {"process": "poisson", "rate": "0.9/s"},
        "gpu_time": {"distribution": "exponential", "mean": "1 s"},
    },
}
asked = ["throughput", "jobs_in_system_mean", "rejected_fraction"]
for objective in ("individual", "social", "revenue"):
    rule = {"name": "naor", "reward": 10, "cost": 1, "objective": objective, "arrival_rate": "0.9/s", "service_time": "1 s"}
    policy = {"scheduler": "fcfs", "admission": rule}
    exact = theory.mmck(0.9, 1.0, servers=1, room=getattr(best, objective))
    runs = hs.replicate(toll, policy=policy, replications=10, metrics=asked)
    welfare = 10 * runs.column("throughput") - runs.column("jobs_in_system_mean")
    loss = runs.interval("rejected_fraction")
    print(f"{objective:10} at most {getattr(best, objective):2} in the system: "
          f"welfare {10 * exact.throughput - exact.jobs_in_system_mean:.2f} exact, {welfare.mean():.2f} simulated; "
          f"turned away {exact.loss:.3f} exact, {loss.mean:.3f} ± {loss.half_width:.3f} simulated, "
          f"{'covered' if loss.covers(exact.loss) else 'missed'}")

# %% [markdown]
# If customers decide for themselves, a fifth of the welfare is lost. An owner that sells admission rejects more customers than is best for all customers.
