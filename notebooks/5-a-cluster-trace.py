# %% [markdown]
# # A GPU cluster's trace under six policies
#
# Replaying a cluster's job log under another policy is what most users come for. The log that ships is a small generated one in the format of Alibaba's GPU trace of 2023: pods on parts of GPUs, on whole ones and on several, some of which name the GPU types they can run on. Put the path of your own file in its place; `hetsim list traces` names the formats that are read.

# %%
import hetsim as hs

trace = hs.load("pods-on-parts-of-gpus")
run = trace.build()
print(f"{len(run.tasks):,} pods on {run.cluster.describe()}")

# %% [markdown]
# Six policies meet the same log, drawn ten times by blocks of six hours, so that intervals tell how much of a difference is this log's own.

# %%
policies = {
    "fcfs": "fcfs",
    "fcfs_skip": "fcfs_skip",
    "best_fit": {"scheduler": "fcfs_skip", "placement": "best_fit"},
    "fgd": {"scheduler": "fcfs_skip", "placement": "fgd"},
    "sjf": "sjf",
    "easy_backfill": "easy_backfill",
}
metrics = ["wait_mean", "wait_p95", "bounded_slowdown_10s_mean", "gpu_allocation", "fragmentation"]
found = hs.compare(trace, policies, metrics=metrics, baseline="fcfs")
found.shown_table()

# %% [markdown]
# What is shown, and what is not, in words:

# %%
for sentence in found.sentences:
    if "wait mean" in sentence:
        print(sentence)

# %% [markdown]
# Why is first come, first served so bad here? `explain` splits the waiting of every pod by cause.

# %%
one = hs.run(trace, policy="fcfs")
causes = one.explain(by="class").drop(columns="tasks")
(100 * causes.div(causes["wait"], axis=0)).drop(columns="wait").loc[:, lambda table: table.max() > 1].round(1)

# %% [markdown]
# Most of it is head-of-line blocking: the first pod in the queue does not fit, and blocks all pods behind it, although there is room for them. Which pod is that? `explain` names it for every stretch of a pod's wait; here for every tenth pod that waited.

# %%
from pathlib import Path

import pandas as pd

stretches = pd.concat(one.explain(pod) for pod in one.tasks.query("wait > 0")["id"][::10])
behind = stretches[stretches["cause"] == "head_of_line"]
log = pd.read_csv(Path(trace.file).parent / "pods.csv", index_col="name")
log["names types"] = log["gpu_spec"].notna()
kinds = ["names types", "num_gpu"]

names = behind["detail"].str.removeprefix("behind task ").str.partition("#")[0]  # a pod that is drawn again is pod#2
at_head = log.loc[names, kinds].assign(seconds=behind["seconds"].to_numpy()).groupby(kinds)["seconds"].sum()
told = pd.DataFrame({"of all pods": log.groupby(kinds).size() / len(log), "of the time at the head": at_head / at_head.sum()})
(100 * told.fillna(0.0)).round(1)

# %%
stands = told["of the time at the head"]
print(f"behind pods that name GPU types {100 * stands[True].sum():.0f} %, behind others of several GPUs {100 * stands[False][[2, 4]].sum():.0f} %")

# %% [markdown]
# So it is two kinds: pods that wait for a GPU type of their choice, and pods on several GPUs, which have to find them on one node. The queue and the GPUs over time, with and without the rule that no pod passes the head of the queue:

# %%
skipping = hs.run(trace, policy="fcfs_skip")
hs.plots.over_time({"fcfs": one, "fcfs_skip": skipping})

# %% [markdown]
# And how single pods fare:

# %%
hs.plots.distributions({"fcfs": one, "fcfs_skip": skipping, "sjf": hs.run(trace, policy="sjf")})

# %% [markdown]
# What changed for which users, and where the two policies first parted:

# %%
hs.difference(one, skipping).sentences
