# %% [markdown]
# # Admission: theory beside simulation
#
# When more is asked for than a cluster can do, some requests are not served in time. Admission control selects which. First a system that theory solves, then one that it does not.

# %%
import pandas as pd

import hetsim as hs
from hetsim import theory
from hetsim.queueing.matching import match

# %% [markdown]
# Sixteen servers at 13.7 customers a second of one second each. Which exact model is that, and does every one of its assumptions hold? `match` is what `hetsim theory mm16` asks: it looks up each assumption in the scenario, with the key that decides it.

# %%
mm16 = match(hs.load("mm16"))
print(f"{mm16.model}: {mm16.verdict}")
pd.DataFrame(mm16.assumptions)[["holds", "text", "key", "value"]]

# %% [markdown]
# All hold, so the predictions are exact, and the intervals of the simulation have to cover them, but for one in twenty by chance:

# %%
def beside(found, runs):
    """Each figure that the model predicts, and the interval of the runs."""
    for row in found.rows:
        interval = runs.interval("rejected_fraction" if row.metric == "loss" else row.metric)
        told = "covered" if interval.covers(row.value) else "missed"
        print(f"{row.metric:20} exact {row.value:7.3f}, simulated {interval.mean:7.3f} ± {interval.half_width:.3f}, {told}")


beside(mm16, hs.replicate("mm16", replications=10, metrics=[row.metric for row in mm16.rows]))

# %% [markdown]
# Change one thing, and the answer may no longer be exact, or there is none:

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
# Now heavy-tailed GPU tasks, with a fallback on cores ten times as slow, at 1.3 times the capacity; each is due after two minutes. Goodput is what ends in time.

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
# If all tasks are accepted, almost none ends in time; rejecting the few long tasks that cannot meet their deadline saves the rest.

# %%
means = overload.table["goodput_fraction", "mean"]
print(f"goodput fraction {100 * means['accept all']:.0f} % when all are accepted, "
      f"{100 * means.drop('accept all').min():.0f} to {100 * means.drop('accept all').max():.0f} % with admission")
hs.plots.pareto(overload, "rejected_fraction", "attainment_admitted")

# %% [markdown]
# Naor's question (1969): customers that decide for themselves join queues that are longer than is best for all of them together. Thresholds for a reward of 10 and a cost of 1 a second, at one server of rate 1 and arrivals of 0.9:

# %%
best = theory.naor(0.9, 1.0, reward=10, cost=1)
best

# %% [markdown]
# The policy `naor` has these thresholds. Under each of them the queue is M/M/1 with so many places, and its welfare, the rewards earned less the cost of waiting, is known exactly; the simulation beside it:

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
# Customers that decide for themselves lose a fifth of the welfare; an owner that sells admission rejects more of them than is best for all.
