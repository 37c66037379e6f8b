# %% [markdown]
# # The dual approximation
#
# Forty-five independent tasks are known beforehand; each takes one time on a core and another on a GPU. When is the last one done? To find the best schedule is NP-hard. `dual_approximation` guesses a makespan λ, and either builds a schedule of at most 4λ/3 or proves that none of λ exists (Kedad-Sidhoum, Monna, Mounié, Trystram 2015); bisection does the rest.

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
# The proof, drawn. Long tasks take more than 2λ/3 and medium ones more than λ/3; a device runs one long task or two medium ones at most, and small ones fill it up to 4λ/3.

# %%
hs.plots.shelves(result)

# %% [markdown]
# Beside other planners, and a policy that does not plan: the lower bound is the same for all of them, so each ratio is certified.

# %%
found = hs.compare(batch, ["dual_approximation", "heft", "mct", "graham", "fcfs"])
found.plans[["makespan", "lower_bound", "ratio"]].round(3)

# %% [markdown]
# One instance says little. Over fifty, each with its own certified bound:

# %%
bounds = [run.notes["lower_bound"] for run in hs.replicate(batch, replications=50, keep=True)]
ratios = {}
for policy in ("dual_approximation", "heft", "mct"):
    runs = hs.replicate(batch, policy=policy, replications=50)
    ratios[policy] = runs.values["makespan"].to_numpy() / bounds
    print(f"{policy:20} mean {ratios[policy].mean():.4f}   worst {ratios[policy].max():.4f}")
assert ratios["dual_approximation"].max() <= 4 / 3  # as is proven of it

# %% [markdown]
# Lists can go wrong without limit. Two tasks, one core and one GPU, of (x, 1) and (1, x + 1) seconds: giving the next task to the first idle device costs x + 1 times the optimum.

# %%
for x in (9, 99, 999):
    times = {"workload.first.cpu_time": f"{x} s", "workload.second.gpu_time": f"{x + 1} s"}
    plans = hs.compare("list-lemma", ["graham", "dual_approximation"], overrides=times).plans
    print(f"x = {x:3}: " + ", ".join(f"{policy} {ratio:.0f} times the optimum" for policy, ratio in plans["ratio"].items()))
