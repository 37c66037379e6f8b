# %% [markdown]
# # Admission: theory beside simulation
#
# When more is asked for than a cluster can do, somebody is disappointed. Who, is for admission to say. First a system that theory solves, then one that it does not.

# %%
import sim
from sim import theory

# %% [markdown]
# Sixteen servers at 13.7 customers a second of one second each: `hetsim theory` checks the assumptions one by one and sets the exact answer beside the simulation.

# %%
exact = theory.mmc(13.7, 1.0, servers=16)
runs = sim.run("mm16", replications=10)
for name in ("wait_mean", "wait_p95"):
    predicted = exact.wait_mean if name == "wait_mean" else exact.wait_percentile(0.95)
    interval = runs.interval(name)
    told = "covered" if interval.covers(predicted) else "missed"
    print(f"{name}: exact {predicted:.3f} s, simulated {interval.mean:.3f} ± {interval.half_width:.3f} s, {told}")

# %% [markdown]
# A limit on the queue turns M/M/16 into M/M/16/K. Its loss is exact too.

# %%
for limit in (0, 4, 16):
    predicted = theory.mmck(20.0, 1.0, servers=16, room=16 + limit).loss
    limited = sim.run(
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
overload = sim.compare("overload", policies, metrics=metrics)
overload.shown_table()

# %% [markdown]
# Accepting everybody serves almost nobody in time; refusing the few long tasks that cannot make it saves the rest.

# %%
means = overload.table["goodput_fraction", "mean"]
print(f"goodput fraction {100 * means['accept all']:.0f} % when all are accepted, "
      f"{100 * means.drop('accept all').min():.0f} to {100 * means.drop('accept all').max():.0f} % with admission")
sim.plots.pareto(overload, "rejected_fraction", "attainment_admitted").figure

# %% [markdown]
# Naor's question (1969): who decides for himself joins queues that are too long for all. Thresholds for a reward of 10 and a cost of 1 a second, at one server of rate 1 and arrivals of 0.9:

# %%
best = theory.naor(0.9, 1.0, reward=10, cost=1)
best
