# %% [markdown]
# # First steps
#
# hetsim answers the question: *which scheduling policy should this cluster of CPUs and GPUs use under this load, and what will the policy do?* A scenario is a YAML file, a Python mapping, or the name of a scenario that ships with hetsim.

# %%
import hetsim as hs

result = hs.run("first-steps")
result

# %% [markdown]
# Each task is a row of the table. Times are in seconds, sizes in bytes.

# %%
columns = ["id", "class", "arrival", "wait", "response", "slowdown", "device", "upload", "compute", "download"]
result.tasks.nlargest(5, "response")[columns].round(2)

# %% [markdown]
# The Gantt chart shows on which device and when each task ran; uploads, computing and downloads have different colors.

# %%
hs.plots.gantt(result)

# %% [markdown]
# Some training tasks ran on cores, where they take five times as long (`speedup: 5` in the scenario). How much longer did these tasks take?

# %%
training = result.tasks[result.tasks["class"] == "train"]
on_cores = training[training["device_type"] == "cpu"]["compute"]
print(f"{len(on_cores)} of {len(training)} training tasks: {on_cores.mean():.0f} s on average on a core, {on_cores.mean() / 5:.0f} s on a GPU")

# %% [markdown]
# Why did tasks wait? Each second of waiting has a cause.

# %%
result.explain(by="class").round(1)

# %% [markdown]
# Would another policy be better? Every policy has the same arrivals and sizes, so differences are paired. A winner is named only where the confidence interval of the difference excludes zero.

# %%
hs.compare(
    "first-steps",
    policies=["fcfs", "sjf", {"scheduler": "fcfs_skip", "placement": "earliest_finish"}],
    replications=10,
)

# %% [markdown]
# How much would a third node help? Overrides change any key of the scenario.

# %%
for nodes in (2, 3, 4):
    larger = hs.run("first-steps", overrides={"cluster.nodes.0.count": nodes})
    print(f"{nodes} nodes: mean response {larger.metric('response_mean'):.0f} s")
