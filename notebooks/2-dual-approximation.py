# %% [markdown]
# # The dual approximation
#
# Forty-five independent tasks are known beforehand; each task has one run time on a core and another on a GPU. When does the last task end? Finding the best schedule is NP-hard. `dual_approximation` guesses a makespan λ, and either builds a schedule of length at most 4λ/3 or proves that no schedule of length λ exists (Kedad-Sidhoum, Monna, Mounié, Trystram 2015). Bisection over λ finds the smallest guess for which it builds a schedule.

# %%
import hetsim as hs

batch = {
    "name": "batch",
    "seed": 3,
    "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "v100", "count": 3}}]},
    "workload": [
        {
            "name": "kernels",
            "arrivals": {"process": "all_at_once", "count": 30},
            "gpu_time": {"distribution": "lognormal", "mean": "4 s", "cv": 0.8},
            "cpu_time": {"speedup": 6},
        },
        {
            "name": "scalar",
            "arrivals": {"process": "all_at_once", "count": 15},
            "cpu_time": {"distribution": "uniform", "low": "2 s", "high": "14 s"},
            "gpu_time": {"distribution": "uniform", "low": "2 s", "high": "20 s"},
        },
    ],
    "policy": "dual_approximation",
}
result = hs.run(batch)
notes = result.notes
print(f"makespan {result.metric('makespan'):.2f} s; no schedule is shorter than {notes['lower_bound']:.2f} s:")
print(f"at most {result.metric('makespan') / notes['lower_bound']:.3f} times the best, whatever that is.")

# %% [markdown]
# The picture shows the idea of the proof. Long tasks take more than 2λ/3 and medium tasks more than λ/3. A device runs at most one long task or two medium tasks, and small tasks fill the device up to 4λ/3.

# %%
hs.plots.shelves(result)

# %% [markdown]
# The next table compares `dual_approximation` with other planners and with a policy that does not plan. The lower bound is the same for all policies, so each ratio is certified.

# %%
found = hs.compare(batch, ["dual_approximation", "heft", "mct", "graham", "fcfs"])
found.plans[["makespan", "lower_bound", "ratio"]].round(3)

# %% [markdown]
# One instance says little. The next cell runs fifty instances, each with its own certified lower bound:

# %%
bounds = [run.notes["lower_bound"] for run in hs.replicate(batch, replications=50, keep=True)]
ratios = {}
for policy in ("dual_approximation", "heft", "mct"):
    runs = hs.replicate(batch, policy=policy, replications=50)
    ratios[policy] = runs.values["makespan"].to_numpy() / bounds
    print(f"{policy:20} mean {ratios[policy].mean():.4f}   worst {ratios[policy].max():.4f}")
assert ratios["dual_approximation"].max() <= 4 / 3  # as is proven of it

# %% [markdown]
# List scheduling can be arbitrarily bad. Two tasks run on one core and one GPU: the first takes x s on the core and 1 s on the GPU, the second 1 s on the core and x + 1 s on the GPU. Giving the next task to the first idle device takes x + 1 times the optimal makespan.

# %%
for x in (9, 99, 999):
    times = {"workload.first.cpu_time": f"{x} s", "workload.second.gpu_time": f"{x + 1} s"}
    plans = hs.compare("list-lemma", ["graham", "dual_approximation"], overrides=times).plans
    print(f"x = {x:3}: " + ", ".join(f"{policy} {ratio:.0f} times the optimum" for policy, ratio in plans["ratio"].items()))
