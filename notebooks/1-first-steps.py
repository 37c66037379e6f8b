# %% [markdown]
# # First steps
#
# hetsim answers: *which scheduling policy should this cluster of CPUs and GPUs use under this load, and what will it do?* A scenario is a YAML file, a mapping, or the name of one that ships.

# %%
import hetsim as hs

result = hs.run("first-steps")
result

# %% [markdown]
# Every task is a row. Times are seconds, sizes bytes.

# %%
columns = ["id", "class", "arrival", "wait", "response", "slowdown", "device", "upload", "compute", "download"]
result.tasks.nlargest(5, "response")[columns].round(2)

# %% [markdown]
# Which task ran where and when; uploads, computing and downloads are told apart.

# %%
hs.plots.gantt(result)

# %% [markdown]
# Some training tasks ran on cores, where they take five times as long (`speedup: 5` in the scenario). What did that cost?

# %%
training = result.tasks[result.tasks["class"] == "train"]
on_cores = training[training["device_type"] == "cpu"]["compute"]
print(f"{len(on_cores)} of {len(training)} training tasks: {on_cores.mean():.0f} s on average on a core, {on_cores.mean() / 5:.0f} s on a GPU")

# %% [markdown]
# Where did the waiting come from? Each second of it has a cause.

# %%
result.explain(by="class").round(1)

# %% [markdown]
# Would another policy be better? Every policy meets the same arrivals and sizes, so differences are paired, and a winner is named only where the interval of the difference excludes zero.

# %%
hs.compare(
    "first-steps",
    policies=["fcfs", "sjf", {"scheduler": "fcfs_skip", "placement": "earliest_finish"}],
    replications=10,
)

# %% [markdown]
# And what would a third node do? Any key of the scenario can be changed from outside.

# %%
for nodes in (2, 3, 4):
    larger = hs.run("first-steps", overrides={"cluster.nodes.0.count": nodes})
    print(f"{nodes} nodes: mean response {larger.metric('response_mean'):.0f} s")
