# %% [markdown]
# # A sweep, a front, a choice
#
# How many nodes, and which policy? A sweep runs a scenario at every point of a grid, under every policy, with the same arrivals for all of them.

# %%
import hetsim as hs

nodes = "cluster.nodes.0.count"
swept = hs.sweep(
    "deep-learning-mix",
    {nodes: [3, 4, 5, 6]},
    policies=["fcfs", "sjf", "las"],
    metrics=["response_mean", "slowdown_p95", "gpu_utilization"],
    replications=5,
)
swept

# %% [markdown]
# The table is tidy: one row a point and policy. A column is a key or a metric under its own name, with the ends of its interval beside it; times are in seconds, shares between 0 and 1.

# %%
swept.table[[nodes, "policy", "response_mean", "response_mean_ci_low", "response_mean_ci_high"]].head()

# %% [markdown]
# Response against the size of the cluster, with 95 % intervals:

# %%
hs.plots.against(swept, nodes, "response_mean")

# %% [markdown]
# Nodes cost money and waiting costs patience. The front joins what nothing else beats in both:

# %%
hs.plots.pareto(swept, nodes, "response_mean")

# %% [markdown]
# Which policy, if the size is not known yet? The regret of each: how far it is from the best at each size.

# %%
hs.plots.regret(swept, "response_mean")

# %%
grid = swept.pivot("policy", nodes, "response_mean")  # seconds; a row a size, a column a policy
(100 * grid.sub(grid.min(axis=1), axis=0).div(grid.min(axis=1), axis=0)).agg(["mean", "max"]).round(1)

# %% [markdown]
# The choice then is the smallest cluster that keeps a promise, found by bisection over replications and stated with its confidence:

# %%
hs.size("deep-learning-mix", "slowdown_p95 < 4", nodes, policy="sjf", most=12, replications=10)
