# %% [markdown]
# # Lesson: transfers, HEFT and batching
#
# When is a GPU worth its transfers? How does a planner choose between different devices, and what does its model omit? How large should a batch be? This lesson takes an hour or two. You need a little Python; the last part uses the load of a queue from the lesson on queues.
#
# Each exercise has a cell with `answer_1 = None` and so on. Replace `None` by your answer, run the cell, and then run the cell below it, which checks the answer within 1 %. Answers are numbers, in the unit that the exercise names. Find each answer by hand first: the code of the check contains the published figure, or the formula or simulation that computes the right answer.

# %%
import hetsim as hs
from hetsim import theory
from hetsim.queueing.picture import theory_and_simulation


def check(answer, right, hint):
    """Say if an answer is right, within 1 %; answer and right: a number, or numbers by name."""
    if not isinstance(right, dict):
        answer, right = {"": answer}, {"": right}
    if None in answer.values():
        print("not answered yet")
        return
    good = sum(abs(float(answer[name]) - right[name]) <= 0.01 * abs(right[name]) for name in right)
    print("right" if good == len(right) else f"not yet ({good} of {len(right)} right): {hint}")


# %% [markdown]
# ## 1. Is the GPU worth its transfers?
#
# A GPU task has three stages: **upload** of its input over PCIe, **compute**, and **download** of its result. A task on a core needs no transfers. In this exercise a task takes 400 ms on a core and 20 ms on a GPU, which is twenty times as fast. The input of the task is uploaded over a link of 12 GB/s, and its result is small.
#
# **Exercise 1.** At which size of the input (in GB) is the core as fast as the GPU?

# %%
answer_1 = None

# %%
def where(gigabytes):
    """The device that ends the task first, when both are free."""
    return hs.run(
        {
            "name": "one task",
            "cluster": {"nodes": {"cpus": 1, "gpus": {"type": "gpu"}, "pcie": {"upload": "12 GB/s"}}},
            "workload": {
                "arrivals": {"process": "all_at_once", "count": 1},
                "cpu_time": "400 ms",
                "gpu_time": "20 ms",
                "bytes_in": f"{gigabytes} GB",
            },
            "policy": {"scheduler": "fcfs", "placement": "earliest_finish"},
        }
    ).tasks["device_type"][0]


sizes = [size / 100 for size in range(400, 500, 2)]
check(answer_1, min(size for size in sizes if where(size) == "cpu"), "The upload may take 380 ms.")

# %% [markdown]
# ## 2. Overlap
#
# A task cannot compute before its input is on the GPU, but the upload of the next task can run while this task computes: besides its compute engine a GPU has a copy engine for each direction. With `streams: 1` a GPU has one task in flight at a time, with `streams: 2` two tasks, and so on. Fifty blocks arrive at once; each takes 100 ms to upload, 150 ms to compute and 110 ms to download.
#
# **Exercise 2.** How long do the fifty blocks take, in seconds, if they run one after the other (`one`)? How long do they take if only the stages themselves limit the overlap (`best`)? Find the slowest stage, and then the time before its first block and after its last block.

# %%
answer_2 = {"one": None, "best": None}

# %%
def blocks(streams, count=50, duplex="full"):
    return hs.run(
        {
            "name": "blocks",
            "cluster": {
                "nodes": {
                    "gpus": {"type": "gpu", "streams": streams},
                    "pcie": {"upload": "10 GB/s", "download": "10 GB/s", "duplex": duplex},
                }
            },
            "workload": {
                "arrivals": {"process": "all_at_once", "count": count},
                "gpu_time": "150 ms",
                "bytes_in": "1 GB",
                "bytes_out": "1.1 GB",
            },
        }
    )


simulated = {"one": blocks(1).metric("makespan"), "best": blocks(50).metric("makespan")}
check(answer_2, simulated, "The slowest stage works without a pause: 50 times 150 ms, and once the other two stages.")

# %% [markdown]
# With s streams at most s blocks are in flight, and each block is in flight for at least 360 ms. By Little's law at most s blocks end per 360 ms, and never more than one block per 150 ms.
#
# **Exercise 3.** How many streams are needed for the maximum rate of blocks?

# %%
answer_3 = None

# %%
pace = simulated["best"]
check(answer_3, min(streams for streams in range(1, 6) if blocks(streams).metric("makespan") < 1.001 * pace), "s/360 has to be 1/150 at least, and s is whole.")

# %% [markdown]
# The next cell draws six blocks, with one stream and with three streams: uploads are orange, computing is blue, and downloads are green.

# %%
from IPython.display import display

for streams in (1, 3):
    display(hs.plots.gantt(blocks(streams, count=6), until=2.2))

# %% [markdown]
# **Exercise 4.** On a half-duplex link uploads and downloads share one rate. What is the shortest time per block in the long run, with any number of streams (in ms)?

# %%
answer_4 = None

# %%
longer, shorter = (blocks(50, count, "half").metric("makespan") for count in (200, 100))
check(answer_4, 1000 * (longer - shorter) / 100, "Now the link sets the pace: it carries an upload and a download for each block.")

# %% [markdown]
# ## 3. Links that are shared
#
# Transfers that use a link at the same time share its rate equally.
#
# **Exercise 5.** Two GPUs are behind one PCIe switch of 12 GB/s. At the same moment one GPU begins to fetch 12 GB, and the other GPU 24 GB. After how many seconds does each GPU have its data?

# %%
answer_5 = {"12 GB": None, "24 GB": None}

# %%
def fetched():
    """When the two uploads end."""
    entry = {"arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "1 s"}
    link = {"upload": "12 GB/s", "switch": {"size": 2, "upload": "12 GB/s"}}
    tasks = hs.run(
        {
            "name": "switch",
            "cluster": {"nodes": {"gpus": {"type": "gpu", "count": 2}, "pcie": link}},
            "workload": [{"name": size, "bytes_in": size, **entry} for size in ("12 GB", "24 GB")],
        }
    ).tasks
    return dict(zip(tasks["class"], tasks["upload"]))


check(answer_5, fetched(), "Each gets 6 GB/s until the smaller one is complete; the rest of the other has the link alone.")

# %% [markdown]
# ## 4. HEFT
#
# Heterogeneous earliest finish time (Topcuoglu, Hariri, Wu 2002) plans a graph of tasks on different processors. The example of the paper has ten tasks, three processors, and data on the edges. The data take one second per byte from one processor to another, and no time on the same processor.

# %%
times = {  # seconds on each processor
    "n1": (14, 16, 9), "n2": (13, 19, 18), "n3": (11, 13, 19), "n4": (13, 8, 17), "n5": (12, 13, 10),
    "n6": (13, 16, 9), "n7": (7, 15, 11), "n8": (5, 11, 14), "n9": (18, 12, 20), "n10": (21, 7, 16),
}
edges = {  # bytes to each successor
    "n1": {"n2": 18, "n3": 12, "n4": 9, "n5": 11, "n6": 14},
    "n2": {"n8": 19, "n9": 16}, "n3": {"n7": 23}, "n4": {"n8": 27, "n9": 23}, "n5": {"n9": 13},
    "n6": {"n8": 15}, "n7": {"n10": 17}, "n8": {"n10": 11}, "n9": {"n10": 13}, "n10": {},
}

# %% [markdown]
# HEFT considers the tasks in decreasing order of **upward rank**. The upward rank of a task is the length of the longest path from the start of the task to the end of the graph, with the mean time of each task over the processors and the time of each edge:
#
# $$\mathrm{rank}(i) = \bar{w}_i + \max_{j\,\in\,\mathrm{succ}(i)} \bigl(c_{ij} + \mathrm{rank}(j)\bigr)$$
#
# For a task without successors the maximum is 0.
#
# **Exercise 6.** Write the upward rank as a Python function.

# %%
def rank(task):
    """The upward rank of a task, by its name."""
    answer_6 = None
    return answer_6


# %%
published = {
    "n1": 108, "n2": 77, "n3": 80, "n4": 80, "n5": 69, "n6": 63.333, "n7": 42.667, "n8": 35.667, "n9": 44.333, "n10": 14.667,
}
check({task: rank(task) for task in times}, published, "n10 has its mean time, 44/3; n7 has 11, and 17 + rank(n10) after it.")

# %% [markdown]
# HEFT assigns each task in turn to the processor on which the task would end first, including the transfer of its data. Task n1 has the highest rank, and ends first on the third processor, at 9 s. Task n3 is next (n4 has the same rank).
#
# **Exercise 7.** At what time would n3 end on each processor?

# %%
answer_7 = {"p1": None, "p2": None, "p3": None}

# %%
data = {"p1": 12, "p2": 12, "p3": 0}
right = {name: 9 + data[name] + length for name, length in zip(data, times["n3"])}
check(answer_7, right, "The 12 bytes of n1 leave the third processor at 9 s; n3 stays where they are, or waits for them.")

# %% [markdown]
# The schedule of HEFT is 80 s long, as published. How good is this schedule? No schedule is shorter than the longest path with each task on its fastest processor and without transfers. The quotient of the two lengths is the paper's **schedule length ratio**.
#
# **Exercise 8.** How long is that path, in seconds (`bound`)? What is the ratio (`ratio`)?

# %%
answer_8 = {"bound": None, "ratio": None}

# %%
plan = hs.run("topcuoglu", policy="heft").notes
right = {"bound": plan["lower_bound"], "ratio": plan["schedule_length"] / plan["lower_bound"]}
check(answer_8, right, "The path goes by n2 and n9: 9 + 13 + 12 + 7 s.")

# %% [markdown]
# ## 5. Effects that the plan omits
#
# HEFT assumes that each pair of processors has a link of its own, and that data are sent as soon as they are computed. In the simulated cluster each processor is a node with one network card, which all transfers of the node share, and a task fetches its data when its turn comes on its device. The next cell runs the plans of four planners in this cluster:

# %%
planners = ("heft", "cpop", "peft", "local_search")
graphs = {policy: hs.run("topcuoglu", policy=policy) for policy in planners}
for policy, result in graphs.items():
    paper = result.notes.get("schedule_length")
    told = "plans by simulation" if paper is None else f"{paper:.0f} s on paper"
    print(f"{policy:13} {told:20} {result.metric('makespan'):.0f} s simulated")

# %% [markdown]
# The schedule that is shortest on paper is not the shortest in the run. `local_search` starts from such plans and changes them step by step, and evaluates each plan by a simulation of the links; its plan is shorter by a quarter. The next cell shows how long tasks wait for uploads:

# %%
for policy in ("heft", "local_search"):
    print(f"{policy}: tasks wait {graphs[policy].tasks['upload'].sum():.0f} s for their uploads, in sum")
    display(hs.plots.gantt(graphs[policy], until=150))

# %% [markdown]
# The better plan sends data ahead, while the device that needs them still works on another task, and assigns tasks to devices where this is possible. **A plan is as good as its model of the machine.** Most often a model omits the links.
#
# ## 6. Batching
#
# A model on a GPU answers a batch of b images in 12 + 1.5·b ms: a part of the time does not depend on the number of images (launches, reading the weights). With larger batches the GPU therefore serves more images per second, and each batch takes longer.
#
# **Exercise 9.** How many images per second does the GPU serve at most with batches of 8 (`eight`)? How many images per second does it serve in the limit of large batches (`limit`)? What is the smallest batch size with which it serves 480 images per second (`batch`)?

# %%
answer_9 = {"eight": None, "limit": None, "batch": None}

# %%
def per_second(batch):
    return batch / (0.012 + 0.0015 * batch)


right = {"eight": per_second(8), "limit": 1 / 0.0015, "batch": next(b for b in range(1, 100) if per_second(b) >= 480)}
check(answer_9, right, "b images in 12 + 1.5·b ms; for the limit divide both by b; b ≥ 0.48·(12 + 1.5·b).")

# %% [markdown]
# **Greedy** batching never waits: when the GPU is free, all waiting images are the next batch. At low load batches are small and fast; as the load rises, the batches and with them the capacity grow without any setting. The queue length at the beginning of a batch is a Markov chain, so the mean response is known exactly. The next picture shows theory and simulation:

# %%
service = {
    "name": "images",
    "seed": 1,
    "horizon": "60 s",
    "warmup": "5 s",
    "cluster": {"nodes": {"gpus": {"type": "gpu"}}},
    "workload": [
        {
            "name": "images",
            "service": {"compute": {"fixed": "12 ms", "per_item": "1.5 ms"}},
            "arrivals": {"process": "poisson", "rate": "480/s"},
            "slo": "100 ms",
        }
    ],
    "policy": {"batching": "serial_greedy"},
}
rates = ["50/s", "100/s", "200/s", "300/s", "400/s", "500/s", "550/s"]
theory_and_simulation(service, "workload.images.arrivals.rate", rates, "response_mean", replications=5)

# %% [markdown]
# The alternative is to wait until a batch of a fixed size is full.
#
# **Exercise 10.** Images arrive at 50 per second (Poisson), and a batch of 21 images is launched when it is full. How long does an image wait on average until its batch is full (`wait`, in ms)? What is the mean response of an image, if the GPU is free when the batch is full (`response`, in ms)?

# %%
answer_10 = {"wait": None, "response": None}

# %%
fill = 1000 * (21 - 1) / 2 / 50
check(answer_10, {"wait": fill, "response": fill + 12 + 1.5 * 21}, "The first waits for 20 gaps of 20 ms, the last for none; the batch then takes 12 + 1.5·21 ms.")

# %%
runs = hs.replicate(
    service,
    policy={"batching": {"name": "fixed_size", "size": 21}},
    overrides={"workload.images.arrivals.rate": "50/s"},
    replications=10,
    metrics=["response_mean"],
)
response = runs.interval("response_mean")
print(f"by simulation {1000 * response.mean:.0f} ± {1000 * response.half_width:.0f} ms; "
      f"greedy: {1000 * theory.greedy_batches(50, fixed=0.012, per_item=0.0015).response_mean:.1f} ms (exact)")

# %% [markdown]
# An image that is due after 100 ms and arrives just after a launch waits for the running batch, and then runs in a batch of its own. Therefore two batches have to fit into 100 ms. This is the rule of Nexus (Shen and others, SOSP 2019).
#
# **Exercise 11.** What is the largest batch size by the rule of Nexus (`batch`)? How many images per second can the GPU serve with this batch size (`rate`)?

# %%
answer_11 = {"batch": None, "rate": None}

# %%
largest = max(b for b in range(1, 100) if 2 * (12 + 1.5 * b) <= 100)
check(answer_11, {"batch": largest, "rate": per_second(largest)}, "12 + 1.5·b is 50 ms at most; b is whole.")

# %% [markdown]
# The next picture shows the share of images answered within 100 ms, by load. `nexus` drops images that cannot be answered in time; above its maximum rate the other images are therefore still in time.

# %%
batchings = {
    "greedy": {"batching": "serial_greedy"},
    "fixed 21": {"batching": {"name": "fixed_size", "size": 21}},
    "nexus": {"batching": "nexus"},
}
rates = ["50/s", "150/s", "300/s", "400/s", "480/s", "550/s", "620/s"]
swept = hs.sweep(
    service, {"workload.images.arrivals.rate": rates}, policies=batchings, metrics=["slo_attainment"], replications=3,
    overrides={"horizon": "30 s"},
)
hs.plots.against(swept, "workload.images.arrivals.rate", "slo_attainment")

# %% [markdown]
# Batches of a fixed size are worst at low load, where an image should not wait at all, and they cannot serve more than 483 images per second. Greedy batching has no such limit, but near saturation its batches grow with the queue and make every image late.
#
# **To go on.** Try `{"name": "size_or_timeout", "max_batch_size": 21, "batch_timeout": "20 ms"}` in the last picture: it launches a full batch, or the waiting images after 20 ms. With `hs.tune` find the timeout that answers most images in time at 300 images per second.
