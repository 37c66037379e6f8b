# %% [markdown]
# # Serving with asynchronous transfers
#
# A GPU answers requests in batches. While one batch computes, the next batch could already be uploaded over PCIe. Zhang, Zha, Wan and Cheng (IPDPSW 2019) choose the batch size so that the upload of a batch is hidden by the computing of the previous batch (policy `async_linear`). The policy `serial_greedy` starts all waiting requests when the GPU is free. The shipped scenarios use the ResNet-50 of these authors on a GTX 1080 Ti.

# %%
import hetsim as hs

capacity = hs.compare("async-capacity", [{"batching": "serial_greedy"}, {"batching": "async_linear"}])
capacity

# %% [markdown]
# The table shows the capacity, with clients that never pause and batches of 64. The stage times were chosen to give the published gain, so this gain only shows that uploads and computing overlap correctly.

# %%
serial, overlapped = (run.metric("throughput") for run in capacity.runs.values())
print(f"{serial:.0f}/s one after the other, {overlapped:.0f}/s overlapped: {100 * (overlapped / serial - 1):.1f} % more")

# %% [markdown]
# The Gantt chart shows the overlap: uploads are orange, and computing is blue.

# %%
few = {"workload.resnet50.count": 900, "workload.resnet50.arrivals.clients": 256}
hs.plots.gantt(hs.run("async-capacity", overrides=few))

# %% [markdown]
# The latency is a prediction; nothing is fitted to it. Poisson requests arrive at 27, 90 and 98.5 % of the serial capacity, in runs of a minute:

# %%
batchings = {"serial": {"batching": "serial_greedy"}, "async": {"batching": "async_linear"}}
for rate in (196, 653, 715):
    load = {"workload.resnet50.arrivals.rate": f"{rate}/s"}
    found = hs.compare("async-latency", batchings, overrides=load, metrics=["response_mean"])
    one, other = found.table["response_mean", "mean"]
    print(f"{rate}/s: {1000 * one:6.1f} ms serial, {1000 * other:6.1f} ms overlapped, {100 * (other / one - 1):+.0f} %")

# %% [markdown]
# The published prototype gained 75 % at the last rate. A run of one minute is too short for a comparison with this figure: at 98.5 % of its capacity a queue that begins empty grows for minutes. Runs of five minutes, without their first minute, approach the mean of the stationary queue, which is known exactly:

# %%
from hetsim import theory

load = {"workload.resnet50.arrivals.rate": "715/s", "horizon": "300 s", "warmup": "60 s"}
found = hs.compare("async-latency", batchings, overrides=load, metrics=["response_mean"])
one, other = found.table["response_mean", "mean"]
steady = theory.greedy_batches(715, fixed=0.0132, per_item=0.001378).response_mean
print(f"715/s: {1000 * one:.0f} ms serial (exact: {1000 * steady:.0f} ms), {1000 * other:.0f} ms overlapped, "
      f"{100 * (other / one - 1):+.0f} %, against the exact mean {100 * (other / steady - 1):+.0f} %")

# %% [markdown]
# In the long run the model predicts a latency that is 84 % lower, which is more than the published gain. Over a minute or two the model predicts 75 to 80 %, as the serial queue is not yet stationary.
#
# The next picture shows the latency from light load to a load near the capacity:

# %%
rates = [f"{rate}/s" for rate in (100, 200, 300, 400, 500, 600, 650, 690)]
swept = hs.sweep(
    "async-latency", {"workload.resnet50.arrivals.rate": rates}, policies=batchings, replications=3,
    overrides={"horizon": "40 s"},
)
hs.plots.against(swept, "workload.resnet50.arrivals.rate", "response_mean")

# %% [markdown]
# Why trust the serial curve? The curve can be computed exactly, without simulation: if a batch takes all waiting requests and its time is linear in its size, the queue lengths at service starts are a Markov chain. The confidence intervals must cover the exact values, except for one interval in twenty by chance.

# %%
for rate in (200, 400, 600):
    exact = theory.greedy_batches(rate, fixed=0.0132, per_item=0.001378).response_mean
    changed = {"workload.resnet50.arrivals.rate": f"{rate}/s"}
    runs = hs.replicate("async-latency", policy=batchings["serial"], overrides=changed)
    interval = runs.interval("response_mean")
    mark = "covered" if interval.covers(exact) else "missed"
    print(f"{rate}/s: exact {1000 * exact:.2f} ms, simulated {1000 * interval.mean:.2f} ± {1000 * interval.half_width:.2f} ms, {mark}")
