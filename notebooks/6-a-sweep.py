# %% [markdown]
# # A sweep, a Pareto front, a choice
#
# How many nodes does a cluster need, and which policy should it use? A sweep runs a scenario at every point of a grid, under every policy, with the same arrivals for all policies.

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
# The table has one row per point and policy. A column is a key or a metric under its own name, followed by the bounds of its confidence interval. Times are in seconds, and shares are between 0 and 1.

# %%
swept.table[[nodes, "policy", "response_mean", "response_mean_ci_low", "response_mean_ci_high"]].head()

# %% [markdown]
# The picture shows the mean response by the size of the cluster, with 95 % confidence intervals:

# %%
hs.plots.against(swept, nodes, "response_mean")

# %% [markdown]
# Nodes cost money, and users dislike waiting. The Pareto front joins the points that no other point beats in both:

# %%
hs.plots.pareto(swept, nodes, "response_mean")

# %% [markdown]
# Which policy should be chosen if the size of the cluster is not known yet? The regret of a policy is its distance from the best policy at each size.

# %%
hs.plots.regret(swept, "response_mean")

# %%
grid = swept.pivot("policy", nodes, "response_mean")  # seconds; a row a size, a column a policy
(100 * grid.sub(grid.min(axis=1), axis=0).div(grid.min(axis=1), axis=0)).agg(["mean", "max"]).round(1)

# %% [markdown]
# The last step chooses the smallest cluster that meets a target. `hs.size` finds this cluster by bisection over replications, and states its confidence:

# %%
hs.size("deep-learning-mix", "slowdown_p95 < 4", nodes, policy="sjf", most=12, replications=10)
