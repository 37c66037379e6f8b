# %% [markdown]
# # A GPU cluster's trace under six policies
#
# Most users want to replay a cluster's job log under another policy. The log that ships with hetsim is small and generated, in the format of Alibaba's GPU trace of 2023. It has pods on a part of a GPU, on one GPU and on several GPUs, and some pods name the GPU types on which they can run. Replace its path by that of your own file; `hetsim list traces` names the formats that hetsim reads.

# %%
import hetsim as hs

trace = hs.load("pods-on-parts-of-gpus")
run = trace.build()
print(f"{len(run.tasks):,} pods on {run.cluster.describe()}")

# %% [markdown]
# Six policies run the same log, resampled ten times in blocks of six hours. The confidence intervals show how much the differences depend on this particular log.

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
# The comparison also states in words which differences are significant:

# %%
for sentence in found.sentences:
    if "wait mean" in sentence:
        print(sentence)

# %% [markdown]
# Why is first come, first served so bad on this log? `explain` splits the waiting time of every pod by cause.

# %%
one = hs.run(trace, policy="fcfs")
causes = one.explain(by="class").drop(columns="tasks")
(100 * causes.div(causes["wait"], axis=0)).drop(columns="wait").loc[:, lambda table: table.max() > 1].round(1)

# %% [markdown]
# Most of the waiting is head-of-line blocking: the first pod in the queue does not fit, and blocks all pods behind it, although there is room for them. Which pod is at the head? `explain` names the head for every interval of a pod's wait; the next cell does this for every tenth pod that waited.

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
# Two kinds of pods block the queue: pods that wait for a particular GPU type, and pods on several GPUs, which need all of them on one node. The next picture shows the queue and the GPUs over time, with the rule that no pod passes the head of the queue (`fcfs`) and without it (`fcfs_skip`):

# %%
skipping = hs.run(trace, policy="fcfs_skip")
hs.plots.over_time({"fcfs": one, "fcfs_skip": skipping})

# %% [markdown]
# The next picture shows the distributions over single pods:

# %%
hs.plots.distributions({"fcfs": one, "fcfs_skip": skipping, "sjf": hs.run(trace, policy="sjf")})

# %% [markdown]
# `hs.difference` states which users' pods changed, and at which decision the two policies first differ:

# %%
hs.difference(one, skipping).sentences
