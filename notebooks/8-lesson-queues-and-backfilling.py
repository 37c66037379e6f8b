# %% [markdown]
# # Lesson: queues and backfilling
#
# Why do tasks wait although devices are idle half of the time? What does a second GPU change, and what does the order of the queue change? This lesson takes an hour or two. You need to know means, the exponential distribution, and a little Python.
#
# Each exercise has a cell with `answer_1 = None` and so on. Replace `None` by your answer, run the cell, and then run the cell below it, which checks the answer within 1 %. Answers are numbers, in the unit that the exercise names. Find each answer by hand first: the code of the check contains the formula or the simulation that computes the right answer.

# %%
import pandas as pd

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
# ## 1. The load
#
# Tasks arrive at rate λ, each task takes 1/μ on average, and there are c GPUs. The **offered load** a = λ/μ is the number of GPUs that would be busy on average if no task had to wait. The **load of each GPU** (its utilization) is ρ = a/c. A queue has a steady state only if ρ < 1.
#
# **Exercise 1.** Requests arrive at 150 per second and take 50 ms on average. What is the minimum number of GPUs with which the queue does not grow without bound (`gpus`)? What is the load of each GPU with 10 GPUs (`load`, between 0 and 1)?

# %%
answer_1 = {"gpus": None, "load": None}

# %%
check(answer_1, {"gpus": 8, "load": 0.75}, "a = 150/s × 0.05 s; the number is whole and above a, and the load is a divided by it.")

# %% [markdown]
# ## 2. One GPU: the queue M/M/1
#
# The queue M/M/1 has Poisson arrivals, exponential service times, one server, and the order first come, first served. The next cell simulates this queue with 0.8 tasks per second of 1 s on average.

# %%
queue = {
    "name": "queue",
    "seed": 1,
    "horizon": "5000 s",
    "warmup": "500 s",
    "cluster": {"nodes": {"gpus": {"type": "gpu", "count": 1}}},
    "workload": [
        {
            "name": "tasks",
            "arrivals": {"process": "poisson", "rate": "0.8/s"},
            "gpu_time": {"distribution": "exponential", "mean": "1 s"},
        }
    ],
    "policy": "fcfs",
}
one_run = hs.run(queue)
print(f"busy {100 * one_run.metric('gpu_utilization'):.1f} % of the time")

# %% [markdown]
# A fifth of the time the GPU is idle. Do tasks wait? The number of tasks in the system rises at rate λ and falls at rate μ. In the steady state the two flows between n and n + 1 tasks are equal, so the probability of n tasks is (1 − ρ)ρⁿ, and their mean number is ρ/(1 − ρ). A task that arrives sees this state (Poisson arrivals see time averages) and waits 1/μ on average for each task in the system:
#
# $$W_q = \frac{\rho}{1-\rho}\cdot\frac{1}{\mu} = \frac{\rho}{\mu-\lambda}$$
#
# **Exercise 2.** What is the mean wait with 0.8 tasks per second of 1 s on average, in seconds (`wait`)? What is the mean response, the time from arrival to end (`response`)?

# %%
answer_2 = {"wait": None, "response": None}

# %%
exact = theory.mm1(0.8, 1.0)
check(answer_2, {"wait": exact.wait_mean, "response": exact.response_mean}, "ρ = 0.8; a response is a wait and a service.")

# %% [markdown]
# ## 3. Little's law
#
# Little's law holds for every system in a steady state, for any arrivals, service times and order: the mean number of tasks in the system is the arrival rate times the mean time in the system, L = λW. The three quantities are measured separately: the number as an average over time, the rate by counting, and the time as an average over tasks.

# %%
number = one_run.metric("jobs_in_system_mean")
rate = one_run.metric("throughput")
time = one_run.metric("response_mean")
print(f"L = {number:.3f}; λ × W = {rate:.3f}/s × {time:.3f} s = {rate * time:.3f}")

# %% [markdown]
# The small difference comes from the edges of the run: some tasks arrived before the first second that is measured, and some end after the last.
#
# **Exercise 3.** The monitor of a cluster shows 42 waiting jobs on average, and 12 jobs end per hour. How long does a job wait on average, in hours?

# %%
answer_3 = None

# %%
check(answer_3, 3.5, "Apply the law to the queue alone: L is what waits, W is the wait, λ what passes through.")

# %% [markdown]
# ## 4. The curve that every operator should know
#
# One call runs the simulation at several rates and also draws the prediction of theory. `theory_and_simulation` finds the queueing model that matches the scenario; its points are means with 95 % confidence intervals over the replications.

# %%
rates = ["0.2/s", "0.4/s", "0.6/s", "0.7/s", "0.8/s", "0.9/s"]
theory_and_simulation(queue, "workload.tasks.arrivals.rate", rates, "wait_mean", replications=10)

# %% [markdown]
# **Exercise 4.** At which load is the mean wait nine times the service time (`load`)? By what factor is the wait at a load of 0.95 longer than at a load of 0.9 (`factor`)?

# %%
answer_4 = {"load": None, "factor": None}

# %%
factor = theory.mm1(0.95, 1.0).wait_mean / theory.mm1(0.9, 1.0).wait_mean
check(answer_4, {"load": 0.9, "factor": factor}, "Set ρ/(1 − ρ) to 9; then divide its two values.")

# %% [markdown]
# ## 5. One run is not an answer
#
# The same queue with other random numbers gives another mean wait. The next cell runs ten replications, and computes the confidence interval of the mean:

# %%
runs = hs.replicate(queue, replications=10, metrics=["wait_mean"])
print("mean waits:", *(f"{wait:.2f}" for wait in runs.column("wait_mean")))
interval = runs.interval("wait_mean")
print(f"{interval.mean:.2f} ± {interval.half_width:.2f} s (95 %); exact: {exact.wait_mean:.2f} s")

# %% [markdown]
# A confidence interval of 95 % misses the exact value in one of twenty cases; such a miss is not an error of the simulator. The standard error of a mean of n independent values is their standard deviation divided by √n.
#
# **Exercise 5.** By what factor must the number of replications grow to reduce the standard error to a tenth?

# %%
answer_5 = None

# %%
check(answer_5, 10**2, "√n has to be ten times as large.")

# %% [markdown]
# ## 6. Several GPUs: Erlang's formulas
#
# With c servers and offered load a, Erlang (1917) derived the probability B(a, c) that all servers are busy if a task that finds c busy servers is *lost*. The probability follows from a recursion over the number of servers:
#
# $$B(a, 0) = 1, \qquad B(a, n) = \frac{a\,B(a, n-1)}{n + a\,B(a, n-1)}$$
#
# If tasks *wait* instead (M/M/c), the probability that a task has to wait is C, and the mean wait follows:
#
# $$C(a, c) = \frac{B}{1-\rho\,(1-B)}, \qquad W_q = \frac{C(a, c)}{c\mu-\lambda}$$
#
# **Exercise 6.** Write the recursion for B as a Python function.

# %%
def erlang_b(load, servers):
    """The share of tasks lost at this offered load, with this number of servers."""
    answer_6 = None
    return answer_6


# %%
cases = {case: theory.erlang_b(*case) for case in ((0.5, 1), (1.6, 2), (3.2, 4), (7.5, 10), (95.0, 100))}
check({case: erlang_b(*case) for case in cases}, cases, "begin with 1, and go from n = 1 to the number of servers; with load 0.5 and one server it is 1/3.")

# %% [markdown]
# **Exercise 7.** Four users have one GPU each, and each user sends 0.8 tasks per second of 1 s on average. With a GPU per user a task waits 4 s on average. Now the users share one queue for the four GPUs, so the load of each GPU remains 0.8. What is the mean wait (`wait`, in seconds)? By what factor is this wait shorter than before (`factor`)?

# %%
answer_7 = {"wait": None, "factor": None}

# %%
pooled = theory.mmc(3.2, 1.0, servers=4).wait_mean
check(answer_7, {"wait": pooled, "factor": exact.wait_mean / pooled}, "a = 3.2 and c = 4; cμ − λ is 0.8/s. With your erlang_b(3.2, 4): C, then the wait.")

# %% [markdown]
# Sharing costs nothing and shortens the wait to less than a fifth: no GPU is idle while a task waits in the queue of another GPU. The next picture shows the wait with four GPUs, at the same loads per GPU as above:

# %%
four = {"cluster.nodes.gpus.count": 4}
rates = ["0.8/s", "1.6/s", "2.4/s", "2.8/s", "3.2/s", "3.6/s"]
theory_and_simulation(queue, "workload.tasks.arrivals.rate", rates, "wait_mean", replications=10, overrides=four)

# %% [markdown]
# ## 7. Variability
#
# Service times need not be exponential. For one server and any service time S, the formula of Pollaczek and Khinchine (1930) gives the mean wait from two moments. The squared coefficient of variation, scv, is variance / mean² (0: all equal, 1: exponential):
#
# $$W_q = \frac{\rho}{1-\rho}\cdot\frac{1+\mathrm{scv}}{2}\cdot E[S]$$
#
# **Exercise 8.** At a load of 0.8 and a mean service time of 1 s, what is the mean wait in seconds if all tasks are equally long (`equal`)? What is the mean wait in seconds if their scv is 4, which is low for training jobs (`mixed`)?

# %%
answer_8 = {"equal": None, "mixed": None}

# %%
rights = {"equal": theory.md1(0.8, 1.0).wait_mean, "mixed": theory.mg1(0.8, 1.0, service_scv=4.0).wait_mean}
check(answer_8, rights, "ρ/(1 − ρ) is 4; the factor is 1/2 for equal tasks.")

# %% [markdown]
# The simulation agrees with the formula. With a heavy tail long runs are needed, since a few long tasks cause most of the waiting.

# %%
sizes = {"all equal": "1 s", "lognormal, scv 4": {"distribution": "lognormal", "mean": "1 s", "cv": 2}}
for (name, size), wait in zip(sizes.items(), rights.values()):
    changed = {"workload.tasks.gpu_time": size, "horizon": "20000 s"}
    interval = hs.replicate(queue, overrides=changed, replications=10, metrics=["wait_mean"]).interval("wait_mean")
    print(f"{name:17} exact {wait:5.2f} s, simulated {interval.mean:5.2f} ± {interval.half_width:.2f} s")

# %% [markdown]
# ## 8. Jobs that need several GPUs: first come, first served
#
# A job that needs several GPUs at once may have to wait while some GPUs are free, and the jobs behind it wait as well. Five jobs arrive at a machine with four GPUs:
#
# | job | arrives at | GPUs | runs for |
# | --- | --- | --- | --- |
# | A | 0 s | 2 | 6 s |
# | B | 1 s | 3 | 4 s |
# | C | 2 s | 4 | 2 s |
# | D | 3 s | 1 | 9 s |
# | E | 4 s | 1 | 2 s |

# %%
jobs = {"A": (0, 2, 6), "B": (1, 3, 4), "C": (2, 4, 2), "D": (3, 1, 9), "E": (4, 1, 2)}


def machine(jobs):
    """The scenario: four GPUs, and a table with a job a line."""
    table = pd.DataFrame.from_dict(jobs, orient="index", columns=["arrival", "gpus", "gpu_time"])
    table.to_csv("jobs.csv", index_label="id")
    cluster = {"nodes": {"gpus": {"type": "gpu", "count": 4}}}
    return {"name": "five jobs", "cluster": cluster, "workload": {"trace": {"format": "tasks", "path": "jobs.csv"}}}


def starts(policy, jobs=jobs):
    """When each job starts, as the simulation has it."""
    tasks = hs.run(machine(jobs), policy=policy).tasks
    return dict(zip(tasks["id"], tasks["start"]))


# %% [markdown]
# **Exercise 9.** Draw the schedule on paper, with time to the right and one line per GPU. Under `fcfs` no job may start before a job that arrived earlier. When does each job start, in seconds?

# %%
answer_9 = {"B": None, "C": None, "D": None, "E": None}

# %%
def check_starts(answer, policy, hint):
    simulated = starts(policy)
    check(answer, {name: simulated[name] for name in answer}, hint)


check_starts(answer_9, "fcfs", "B needs three GPUs and has to wait for the end of A. Nothing may pass it.")

# %% [markdown]
# ## 9. EASY backfilling
#
# In EASY backfilling (Lifka 1995) users state how long their jobs run. If the first job of the queue does not fit, EASY computes the **shadow time**, the earliest time at which enough GPUs will be free for this job. The **extra** GPUs are those that will be free at the shadow time and that the first job does not need. A later job may start now if it fits and either ends by the shadow time or takes only extra GPUs. The first job is not delayed; the second job in the queue has no such guarantee.
#
# **Exercise 10.** When does each job start under EASY? As a help, find the shadow time of B and the number of extra GPUs at 3 s, when D arrives.

# %%
answer_10 = {"B": None, "C": None, "D": None, "E": None}

# %%
check_starts(answer_10, "easy_backfill", "B gets three GPUs at 6 s, so one is extra, and D may take it for as long as it likes. C needs all four.")

# %% [markdown]
# ## 10. Conservative backfilling
#
# Every job gets a reservation when it arrives, and a later job may start only if it delays no reservation.
#
# **Exercise 11.** When does each job start under conservative backfilling?

# %%
answer_11 = {"B": None, "C": None, "D": None, "E": None}

# %%
check_starts(answer_11, "conservative_backfill", "When D arrives, C has its reservation: all GPUs from 10 to 12 s. D is too long to end before it.")

# %% [markdown]
# **Exercise 12.** What is the longest run time of D, in seconds, with which D starts at once (at 3 s) under conservative backfilling?

# %%
answer_12 = None

# %%
lengths = [length for length in range(1, 10) if starts("conservative_backfill", {**jobs, "D": (3, 1, length)})["D"] == 3]
check(answer_12, max(lengths), "It has to end when the reservation of C begins.")

# %% [markdown]
# The next cell draws the three schedules. Under EASY job C is delayed: it starts at 12 s, where it would have started at 10 s without backfilling. Even so, the mean wait of the five jobs is shortest under EASY.

# %%
from IPython.display import display

for policy in ("fcfs", "easy_backfill", "conservative_backfill"):
    result = hs.run(machine(jobs), policy=policy)
    print(f"{policy}: mean wait {result.metric('wait_mean'):.1f} s")
    display(hs.plots.gantt(result, until=22))

# %% [markdown]
# ## 11. A real question
#
# The shipped scenario `backfilling` has a log of a machine with 128 processors (drawn from the model of Lublin and Feitelson), at a load of 64 %. The run times that users requested are wrong. The next cell resamples the log ten times by days:

# %%
found = hs.compare(
    "backfilling",
    ["fcfs", "easy_backfill", "conservative_backfill"],
    metrics=["wait_mean", "bounded_slowdown_10s_mean"],
    replications=10,
)
found.shown_table()

# %% [markdown]
# First come, first served leaves processors idle until a wide job fits, and jobs wait for a day and more; with backfilling jobs wait for hours. Which kind of backfilling is better?

# %%
difference = found.runs["easy_backfill"].column("wait_mean") - found.runs["conservative_backfill"].column("wait_mean")
print(f"mean wait, EASY less conservative, draw by draw (min): {(difference / 60).round().astype(int).tolist()}")

# %% [markdown]
# The resampled logs differ far more from one another than the two policies do. Therefore the policies are compared log by log (both policies run the same jobs), and the confidence interval is that of the differences. `found` prints this interval with its verdict:

# %%
found

# %% [markdown]
# **To go on.** Run the comparison with `overrides={"workload.jobs.trace.estimates": "perfect"}`: do all jobs gain if users know how long their jobs run? Then lower the load (`workload.jobs.trace.time_scale`) until first come, first served has a steady state, and find the share of the machine that it can use. The comments of `scenarios/hetsim_scenarios/clusters/backfilling.yaml` describe the results.
