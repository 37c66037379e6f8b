"""The same jobs in another simulator of clusters and in this one.

`python -m benchmarks.cluster --peer NAME --path FOLDER` runs them in turns and prints the ratio of processor times, and
whether all starts are equal where ours has the peer's model of a cluster.  FOLDER is a checkout of the peer, or for
AccaSim an environment that has it:

    accasim  python -m venv FOLDER && FOLDER/bin/pip install accasim
    helios   S-Lab-System-Group/HeliosArtifact: the simulator of Helios (SC 2021)
    pai      alibaba/clusterdata: the simulator of the trace of 2020 (NSDI 2022)
    cqsim    SPEAR-UIC/CQSim
    gavel    stanford-futuredata/gavel (OSDI 2020), whose checkout is made an environment with what it needs:
             python -m venv FOLDER && FOLDER/bin/pip install cvxpy ecos

A peer runs with FOLDER/bin/python if there is one, else with this Python; Helios and PAI want pandas and matplotlib.
A run of a peer that takes longer than --limit seconds is made again with fewer jobs; the figure says how many.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gang_load import SEED, Jobs, Sizes, draw, simulate
from benchmarks.measure import Row

BEGIN = r"""
import contextlib, csv, io, json, os, resource, sys, time
peer, folder, policy, nodes, limit = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
os.chdir(folder)
with open("jobs.csv") as file:
    jobs = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
"""
END = r"""
print("RESULT" + json.dumps({"seconds": spent, "starts": starts}))
"""
ACCASIM = r"""
import collections, collections.abc
from datetime import datetime
for name in ("Mapping", "MutableMapping", "Sequence", "Iterable", "Callable"):
    setattr(collections, name, getattr(collections.abc, name))  # AccaSim 1.1.3 was written for Python 3.9
from accasim.base.simulator_class import Simulator
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import FirstInFirstOut, ShortestJobFirst, EASYBackfilling
kinds = {"fcfs": FirstInFirstOut, "sjf": ShortestJobFirst, "easy_backfill": EASYBackfilling}
with open("system.json", "w") as file:
    json.dump({"groups": {"g0": {"core": 8, "mem": 1_000_000}}, "resources": {"g0": nodes}}, file)
began = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    simulator = Simulator("jobs.swf", "system.json", kinds[policy](FirstFit()), scheduling_output=True,
                          RESULTS_FOLDER_NAME="out", pprint_output=False, statistics_output=False)
    simulator.start_simulation()
spent = time.process_time() - began
starts = {}
for root, _, names in os.walk("."):
    for name in names:
        if name.startswith("sched"):
            for line in open(os.path.join(root, name)):
                at = datetime.strptime(line.rsplit("__", 1)[1].split(";")[0], "%Y-%m-%d %H:%M:%S")
                starts[int(line.split(";")[0])] = (at - datetime(1970, 1, 1)).total_seconds()
"""
HELIOS = r"""
import logging
sys.path.insert(0, os.path.join(peer, "framework", "QSSF Service"))
import cluster, policies
from job import Job, Trace
kinds = {"fcfs": policies.FirstInFirstOut, "sjf": policies.ShortestJobFirst,
         "srtf": policies.ShortestRemainingTimeFirst}
class Row(dict):
    to_dict = dict.copy
trace = Trace()
for job in jobs:
    trace.append_job(Job(Row(number=job["number"], vc="vc", submit_time=job["arrival"], gpu_num=job["width"],
                             duration=job["duration"], remain=job["duration"], ckpt_times=0, status="none")))
machine = cluster.VC("vc", nodes, 8, 96)
logger = logging.getLogger("helios")
logger.disabled = True
began = time.process_time()
made = kinds[policy](trace, machine, "consolidate", ".", logger, 0)
made.simulate()
spent = time.process_time() - began
starts = {job["number"]: job["start_time"] for job in made.trace.job_list}
"""
PAI = r"""
import logging
sys.path.insert(0, os.path.join(peer, "cluster-trace-gpu-v2020", "simulator"))
import simulator as module
from node import Node
logging.disable(logging.CRITICAL)
with open("pai.csv", "w") as file:
    file.write("job_id,submit_time,duration,num_gpu,num_cpu,num_inst,user,gpu_type\n")
    for job in jobs:
        file.write("{number},{arrival},{duration},{width},0,1,u,MISC\n".format(**job))
class Simulator(module.Simulator):
    def init_node_list(self):
        return [Node(id=number, num_gpus=8, num_cpus=96) for number in range(self.num_nodes)]
began = time.process_time()
made = Simulator("pai.csv", alloc_policy={"fcfs_skip": 8, "sjf": 0}[policy], preempt_policy=2, sort_node_policy=0,
                 num_nodes=nodes, pattern=0, num_spare_node=0, num_jobs_limit=len(jobs))
made.init_go()
while not made.exit_flag:
    made.tic(made.delta)
spent = time.process_time() - began
done = made.cluster.job_history.job_done_list
starts = {job["job_id"]: job["submit_time"] + job["jct"] - job["duration"] for job in done}
"""
CQSIM = r"""
sys.path.insert(0, os.path.join(peer, "src"))
with contextlib.redirect_stdout(io.StringIO()):
    import cqsim_main
    began = time.process_time()
    cqsim_main.cqsim_main({
        "path_in": "./", "path_out": "./", "path_fmt": "./", "path_debug": "./", "job_trace": "jobs.swf",
        "node_struc": "jobs.swf", "job_save": "j", "node_save": "n", "ext_fmt_j": ".csv", "ext_fmt_j_c": ".con",
        "ext_fmt_n": ".csv", "ext_fmt_n_c": ".con", "output": "out", "ext_si": ".ult", "ext_ai": ".adp",
        "ext_jr": ".rst", "log_freq": 100_000, "read_input_freq": 1_000, "debug": "debug", "ext_debug": ".log",
        "debug_lvl": 0, "start": 0.0, "read_num": -1, "anchor": 0, "cluster_fraction": 1.0,
        "backfill": int(policy == "easy_backfill"), "bf_para": [], "win": 0, "win_para": [], "ad_win_para": [],
        "alg": ["-t"] if policy == "sjf" else ["w"], "alg_sign": [0], "ad_alg_para": [], "monitor": None,
    })
spent = time.process_time() - began
first = jobs[0]["arrival"]  # CQSim's clock begins with the first job
with open("out.rst") as file:
    starts = {int(line.split(";")[0]): first + float(line.split(";")[7]) for line in file if line.strip()}
"""
GAVEL = r"""
import logging, types
sys.path.insert(0, os.path.join(peer, "scheduler"))
class Blank(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
for name in ("matrix_completion", "psutil", "throughput_estimator", "runtime", "runtime.rpc"):
    sys.modules[name] = Blank(name)  # what it needs on real clusters only
logging.disable(logging.CRITICAL)
import scheduler, utils
from job import Job
utils.get_ip_address = lambda: "localhost"
name, _, renewed = policy.partition(" ")
kinds = {"max_min_fairness": "max_min_fairness", "isolated": "isolated", "fcfs_rounds": "fifo",
         "finish_time_fairness": "finish_time_fairness"}
with open("types.json", "w") as file:
    json.dump({"v100": {"('x', 1)": {"null": 1.0}}}, file)  # steps of a second
began = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    made = scheduler.Scheduler(
        utils.get_policy(kinds[name], solver="ECOS", seed=0), throughputs_file="types.json", simulate=True,
        minimum_time_between_allocation_resets=0 if renewed else 1920)
    made.simulate({"v100": nodes}, arrival_times=[job["arrival"] for job in jobs],
                  jobs=[Job(None, "x", "", "", "", job["duration"], job["duration"]) for job in jobs])
spent = time.process_time() - began
starts = {key[0] + 1: jobs[key[0]]["arrival"] + value for key, value in made._job_completion_times.items()}  # ends
"""


@dataclass(frozen=True)
class Peer:
    """Another simulator: the program that runs it, and the model of a cluster with which ours should agree."""

    program: str
    policies: tuple[str, ...]
    model: str
    """The model in words."""
    alike: dict[str, Any] = field(default_factory=dict)
    """What `gang_load.run_input` takes for it."""
    apart: str = ""
    """What the peer does otherwise."""
    exact: tuple[str, ...] = ("fcfs",)
    """The policies whose starts are to be equal."""
    target: float = 10.0


ANYWHERE = {"span": True}
PEERS = {
    "accasim": Peer(ACCASIM, ("fcfs", "sjf", "easy_backfill"), "gangs across nodes", ANYWHERE,
                    "its backfilling looks at the whole queue, and ties in its orders fall otherwise"),
    "helios": Peer(HELIOS, ("fcfs", "sjf", "srtf"), "best fit", {"placement": "best_fit"},
                   "its srtf stops jobs by the number of free GPUs alone, and a stop costs 7 to 60 s",
                   exact=("fcfs", "sjf")),
    "pai": Peer(PAI, ("fcfs_skip", "sjf"), "first fit, no order kept", {"discipline": "skip"},
                "it looks again only where numbers of free GPUs or of jobs have changed", exact=("fcfs_skip", "sjf")),
    "cqsim": Peer(CQSIM, ("fcfs", "sjf", "easy_backfill"), "gangs across nodes", ANYWHERE,
                  "its backfilling looks at the whole queue"),
    "gavel": Peer(GAVEL, tuple(f"{name}{more}" for name in ("fcfs_rounds", "isolated", "max_min_fairness",
                                                            "finish_time_fairness") for more in ("", " renewed")),
                  "rounds", apart="it renews fractions every 32 minutes at most (renewed: whenever jobs come or go), "
                  "and forgets then what jobs had received", exact=("fcfs_rounds renewed",)),
}  # fmt: skip


def write_jobs(jobs: Jobs, nodes: int, folder: Path) -> None:
    """The same jobs as a table and as SWF (processors are GPUs)."""
    with (folder / "jobs.csv").open("w") as table, (folder / "jobs.swf").open("w") as swf:
        table.write("number,arrival,width,duration\n")
        swf.write(f"; UnixStartTime: 0\n; MaxNodes: {nodes}\n; MaxProcs: {8 * nodes}\n; StartTime: 0\n")
        rows = zip(jobs.arrival.tolist(), jobs.width.tolist(), jobs.duration.tolist(), strict=True)
        for number, (arrival, width, duration) in enumerate(rows, 1):
            a, d = int(arrival), int(duration)
            table.write(f"{number},{a},{width},{d}\n")
            # A kilobyte of memory: AccaSim's EASY divides by what is asked for.
            fields = [number, a, -1, d, width, -1, -1, width, d, 1, 1, 1, 1, -1, 1, 1, -1, -1]
            swf.write(" ".join(map(str, fields)) + "\n")


def peer_run(
    name: str, path: Path, jobs: Jobs, nodes: int, policy: str, limit: float
) -> tuple[float, dict[int, float]] | None:
    """The peer's processor seconds and starts by job; None if it took more seconds than the limit."""
    own = path / "bin" / "python"
    interpreter = str(own) if own.exists() else sys.executable
    program = BEGIN + PEERS[name].program + END
    with tempfile.TemporaryDirectory() as folder:
        write_jobs(jobs, nodes, Path(folder))
        given = [str(path.resolve()), folder, policy, str(nodes), f"{limit:.0f}"]
        done = subprocess.run([interpreter, "-c", program, *given], capture_output=True, text=True, check=False)
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return None
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found = json.loads(line.removeprefix("RESULT"))
    return max(found["seconds"], 1e-6), {int(key): value for key, value in found["starts"].items()}


def peer_figures(sizes: Sizes, name: str, path: Path, limit: float) -> Iterator[Row | str]:
    """Jobs per second beside the peer, and whether the starts are the same."""
    peer = PEERS[name]
    if name == "gavel":
        for count, policy in itertools.product(sizes.fair_jobs, peer.policies):
            yield from in_rounds(path, count, policy, limit)
        yield f"{name}: {peer.apart}"
        return
    for nodes in sizes.peer_nodes:
        for load in (0.7, 0.95):
            for policy in peer.policies:
                yield from beside(name, path, sizes.peer_jobs, nodes, load, policy, limit)
    yield f"{name}: {peer.apart}"


def beside(
    name: str, path: Path, count: int, nodes: int, load: float, policy: str, limit: float
) -> Iterator[Row | str]:
    peer = PEERS[name]
    figure = f"{name}, {nodes} nodes, {load}: {policy}"
    jobs = draw(count, 8 * nodes, load)
    spent, record = simulate(jobs, nodes, policy, **peer.alike)
    ours = [spent]
    theirs = peer_run(name, path, jobs, nodes, policy, limit)
    if theirs is None:
        yield Row(figure, f"{count / spent:,.0f} jobs/s; more than {limit:g} s for {count:,} jobs")
        if count >= 2_000:
            yield from beside(name, path, count // 5, nodes, load, policy, limit)
        return
    ours += [simulate(jobs, nodes, policy, **peer.alike)[0] for _ in range(2)]
    spent = statistics.median(ours)
    ratio = theirs[0] / spent
    rates = f"{count / spent:,.0f} against {count / theirs[0]:,.0f} jobs/s"
    wanted = peer.target
    yield Row(f"{figure}, {count:,} jobs", f"{rates}: {ratio:.1f} ×", f"≥ {wanted:g} ×", ratio >= wanted)
    begun = np.array([theirs[1].get(row + 1, math.nan) for row in range(count)])
    same = float((begun == record.start).mean())
    text = f"{same:.2%} of the jobs, on average {float(np.nanmean(begun - record.start)):+.2g} s"
    exact = policy in peer.exact
    yield Row(f"  same starts, {peer.model}", text, "100 %" if exact else "", same == 1 if exact else None)


FAIR_GPUS, FAIR_LOAD = 36, 1.1
"""Gavel's cluster has 36 GPUs of each type; at a lower load most of its jobs never wait."""


def in_rounds(path: Path, count: int, policy: str, limit: float) -> Iterator[Row | str]:
    """Shares in rounds of six minutes beside Gavel: jobs of one GPU of one type, durations as Gavel draws them."""
    random = np.random.default_rng(SEED)
    minutes = 10 ** np.where(random.random(count) < 0.2, random.uniform(3, 4, count), random.uniform(1.5, 3, count))
    mean = 60 * (0.8 * (1_000 - 10**1.5) / (1.5 * math.log(10)) + 0.2 * 9_000 / math.log(10))
    arrival = np.floor(np.cumsum(random.exponential(mean / (FAIR_LOAD * FAIR_GPUS), count)))
    jobs = Jobs(arrival - arrival[0], np.ones(count, dtype=int), np.ceil(60 * minutes))
    name = policy.partition(" ")[0]
    more = {"isolated": {"spare": True}}.get(name, {})
    ours = [simulate(jobs, FAIR_GPUS, name, per_node=1, mid_round=False, **more) for _ in range(2)]
    theirs = peer_run("gavel", path, jobs, FAIR_GPUS, policy, limit)
    spent = min(seconds for seconds, _ in ours)
    figure = f"gavel, {FAIR_GPUS} GPUs, {FAIR_LOAD}: {policy}, {count:,} jobs"
    if theirs is None:
        yield Row(figure, f"{spent:.2f} s; more than {limit:g} s")
        return
    ratio = theirs[0] / spent
    yield Row(figure, f"{spent:.2f} against {theirs[0]:.1f} s: {ratio:.1f} ×", "≥ 10 ×", ratio >= 10)
    ends = np.array([theirs[1][row + 1] for row in range(count)])
    means = [float((end - jobs.arrival).mean()) for end in (ours[0][1].finish, ends)]
    same = float((np.abs(ends - ours[0][1].finish) < 1e-6).mean())
    apart = f"{means[0]:,.0f} against {means[1]:,.0f} s: {means[0] / means[1] - 1:+.2%}"
    text = f"mean response {apart}; {same:.1%} of the ends"
    exact = policy in PEERS["gavel"].exact
    yield Row("  the same", text, "100 %" if exact else "", same == 1 if exact else None)
