"""Crowded systems in which every rule of a scheduler meets a case, and parameters under which it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Link, Power, Preemption, Price, Sharing
from hetsim.model.faults import FaultEvent, Faults, Maintenance
from hetsim.model.mode import Mode, Shape
from hetsim.model.record import RunInput
from hetsim.model.slices import Slice
from hetsim.model.tasks import Item, Tasks
from hetsim.testing.systems import CPU, GB, System, _served, cpu_mode, gpu_mode
from hetsim_policies.dynamic.common.fair_tree import Account
from hetsim_policies.dynamic.common.service_tiers import Tier

POWER = Power(idle=40, busy=240, sleep=5, wake=0.5)
USERS, CLASSES, ACCOUNTS = ["ada", "bob", "eve", "zoe"], ["a", "b", "c"], ["x", "y", "z"]
QUALITIES = ["high", "low", ""]

class Crowd(NamedTuple):
    system: System
    faults: list[Faults]
    grace: float | None

    def run_input(self, scheduler: Any) -> RunInput:
        return replace(self.system.run_input(scheduler), faults=self.faults, grace=self.grace)


def _types(**more: Any) -> tuple[DeviceType, DeviceType]:
    """Two types, the second twice as fast, with other watts and at another price."""
    slow = DeviceType("slow", memory=8 * GB, power=POWER, price=Price(1 / 3600, 1 / 3600), **more)
    fast = DeviceType(
        "fast", memory=16 * GB, speed=2.0, power=replace(POWER, idle=60, busy=600), price=Price(3 / 3600, 1 / 3600),
        **more,
    )  # fmt: skip
    return slow, fast


def _crowd(
    seed: int, specs: list[NodeSpec], shapes: list[Shape], *, count: int = 45, wrong: bool = False, parts: Any = (),
    faults: Callable[[Cluster], list[Faults]] = lambda cluster: [], grace: float | None = None, gap: float = 0.35,
    deadlines: bool = False, **columns: Any,
) -> Crowd:  # fmt: skip
    """Tasks of these shapes that come in bursts, so that they queue, and a few late ones that do not."""
    random = np.random.default_rng(seed)
    cluster = Cluster(specs)
    for one in parts:
        cluster.partitions[one.name] = one
    arrival = np.cumsum(random.exponential(gap, count) * (random.random(count) < 0.6))
    arrival[-6:] += 40 + np.arange(6) * random.choice([0.5, 9.0])
    if seed % 2:
        arrival = np.floor(arrival * 2) / 2
    shape = random.integers(0, len(shapes), count).astype(np.int32)
    time = np.full((count, max(len(one.modes) for one in shapes)), np.inf)
    size = random.lognormal(0.8, 0.8, count)
    for row, kind in enumerate(shape.tolist()):
        for place, mode in enumerate(shapes[kind].modes):
            width = max(mode.gpu_share, 0.5) if mode.gpus else mode.millicores / 4000
            time[row, place] = size[row] / width**0.7 / mode.type.speed * random.uniform(0.8, 1.25)
    if seed % 2:
        time = np.ceil(time * 2) / 2
    estimate = time * random.choice([0.6, 1.0, 1.0, 2.5], (count, 1)) if wrong else time
    start = arrival + np.where(random.random(count) < 0.2, np.nan, random.exponential(3.0, count))
    names = [node.name for node in cluster.nodes]
    where = ["|".join(random.choice(names, random.integers(0, 3), replace=False)) for _ in range(count)]
    where[0] = "elsewhere|" + names[0]
    extra = {"account": _labels(random, ACCOUNTS, count), "qos": _labels(random, QUALITIES, count),
             "vc": _labels(random, ["v", "w"], count), "recorded_start": start,
             "recorded_node": np.array(where, dtype=object)}  # fmt: skip
    deadline = arrival + random.exponential(25.0, count) * (time.min(axis=1) + 0.5)
    deadline[random.random(count) < 0.3] = np.nan
    leaves = arrival + np.where(random.random(count) < 0.15, random.exponential(6.0, count), np.inf)
    tasks = Tasks(
        arrival, shape, shapes, time=time, estimate=estimate,
        priority=random.integers(0, 4, count).astype(float), weight=random.integers(1, 4, count).astype(float),
        user_code=np.sort(random.integers(0, 4, count))[random.permutation(count)], users=USERS,
        class_code=random.integers(0, 3, count), classes=CLASSES, extra=extra,
        deadline=deadline if deadlines else None, expires=leaves if wrong else None, **columns,
    )  # fmt: skip
    return Crowd(System(f"crowd {seed}", cluster, tasks, seed=seed), faults(cluster), grace)


def _labels(random: np.random.Generator, names: list[str], count: int) -> np.ndarray:
    return np.array(names, dtype=object)[random.integers(0, len(names), count)]


def elastic(seed: int, wrong: bool = False) -> Crowd:
    """Sizes from one to four on two types, and rigid jobs, some of which cannot be stopped."""
    slow, fast = _types()
    span = {"span_any": True, "span_speed": 0.7}
    shapes = [
        Shape([gpu_mode(slow, n, **(span if n > 2 else {})) for n in (1, 2, 4)] + [gpu_mode(fast, n) for n in (1, 2)]),
        Shape([gpu_mode(slow, n) for n in (1, 2, 3)], Stopping(save=0.2, restore=0.3)),
        Shape([gpu_mode(fast, 1), gpu_mode(slow, 1)], Stopping(save=0.1, restore=0.1)),
        Shape([gpu_mode(slow, 2)], preemptible=False),
        Shape([gpu_mode(fast, n) for n in (1, 2)] + [cpu_mode(2)]),
        Shape([cpu_mode(1)]),
    ]
    specs = [NodeSpec(cpus=4, accelerators=((slow, 4),), count=2, cpu_type=CPU),
             NodeSpec(cpus=4, accelerators=((fast, 2), (slow, 1)), cpu_type=CPU)]  # fmt: skip
    return _crowd(seed, specs, shapes, wrong=wrong, deadlines=wrong)


def parts(seed: int, wrong: bool = False) -> Crowd:
    """Partitions that overlap, of two tiers, with limits on GPUs, cores and nodes; gangs over nodes."""
    slow, fast = _types()
    inside = [("p",), ("p", "q"), ("q", "r"), ("r",)]
    specs = [NodeSpec(cpus=8, accelerators=((slow if n < 3 else fast, 3),), partitions=names, cpu_type=CPU)
             for n, names in enumerate(inside)]  # fmt: skip
    p = Partition("p", 0b0011, max_gpus=4, tier=1)
    q, r = Partition("q", 0b0110, max_nodes=1), Partition("r", 0b1100, max_cpus=9, tier=1 + seed % 2)
    shapes = [
        Shape([gpu_mode(slow, 1, millicores=1000, partition=p)], Stopping(save=0.2)),
        Shape([gpu_mode(slow, 4, node_count=1 + seed % 2, span_any=True, partition=p), gpu_mode(slow, 2, partition=p)]),
        Shape([gpu_mode(slow, 2, partition=q), gpu_mode(slow, 1, partition=q)]),
        Shape([gpu_mode(fast, 2, millicores=3000, partition=r), gpu_mode(slow, 2, millicores=3000, partition=r)]),
        Shape([cpu_mode(3, partition=r)]),
        Shape([gpu_mode(slow, 4, span_any=True, span_speed=0.5)]),
    ]
    code = np.array([1, 1, 2, 3, 3, 0])
    made = _crowd(seed, specs, shapes, wrong=wrong, parts=(p, q, r))
    tasks = made.system.tasks
    bound = replace(tasks, partition_code=code[tasks.shape].astype(np.int32), partitions=["", "p", "q", "r"])
    return made._replace(system=replace(made.system, tasks=bound))


def shared(seed: int, sharing: Sharing, streams: int = 1, wrong: bool = False) -> Crowd:
    """Fractions and whole devices under a kind of sharing, with host cores and memory of both."""
    slow, fast = _types(sharing=sharing, streams=streams)
    few = {"millicores": 500, "memory": 2 * GB}

    def sizes(kind: DeviceType, *shares: float) -> list[Mode]:
        return [gpu_mode(kind, share, gpu_memory=round(2 * share + 1) * GB, **few) for share in shares]

    shapes = [
        Shape(sizes(slow, 1, 0.5, 0.25), Stopping(save=0.1, restore=0.1)),
        Shape(sizes(fast, 1, 0.5) + sizes(slow, 0.5)),
        Shape(sizes(slow, 0.5)),
        Shape(sizes(slow, 1), preemptible=False),
        Shape([gpu_mode(slow, 2, millicores=2000)]),
    ]
    specs = [NodeSpec(cpus=4, memory=20 * GB, accelerators=((slow, 2), (fast, 1)), count=2, cpu_type=CPU)]
    return _crowd(seed, specs, shapes, count=36, wrong=wrong)


PAIRS = (("a", "a", 1.2), ("a", "b", 1.4), ("b", "a", 1.1), ("b", "b", 1.9), ("c", "a", 1.3), ("a", "c", 1.25))
THIRDS = (Slice(0.5, 3 * GB), Slice(0.25, 2 * GB), Slice(0.25, 2 * GB))
MIG = Sharing("mig", layouts=((1.0,), (0.5, 0.5), THIRDS), reconfigure=0.4, recut="idle")


def broken(seed: int) -> Crowd:
    """Costly stops, time limits, fractions, devices that fail, slow down and are maintained; no memory is stated."""
    slow, fast = (replace(kind, memory=None) for kind in _types(preemption=Preemption("context_switch")))
    stopping = Stopping(save=0.25, restore=0.5, interval=1.0)
    shapes = [
        Shape([gpu_mode(slow, 1)], stopping),
        Shape([gpu_mode(slow, 2, millicores=1000), gpu_mode(fast, 1, millicores=1000)], replace(stopping, state=GB)),
        Shape([gpu_mode(fast, 1)], preemptible=False),
        Shape([gpu_mode(slow, 3, span_any=True, span_speed=0.6)], stopping),
        Shape([gpu_mode(slow, 1), gpu_mode(slow, 0.5)], stopping),
        Shape([cpu_mode(2)]),
    ]

    def faults(cluster: Cluster) -> list[Faults]:
        gpus = [device.index for device in cluster.devices if device.local >= 0]
        host = cluster.nodes[1].cpu.index
        return [
            FaultEvent(3.0, gpus[0], "down"), FaultEvent(9.0, gpus[0], "up"), FaultEvent(5.0, gpus[3], "slow", 2.0),
            FaultEvent(12.0, host, "down"), FaultEvent(15.0, host, "up"),
            Maintenance((gpus[1], gpus[2]), start=18.0, length=6.0, announced=10.0),
        ]  # fmt: skip

    specs = [NodeSpec(cpus=4, accelerators=((slow, 3), (fast, 1)), count=2, cpu_type=CPU)]
    made = _crowd(seed, specs, shapes, wrong=True, faults=faults, grace=0.5, deadlines=True)
    tasks = made.system.tasks
    limit = np.where(np.arange(len(tasks)) % 5, np.inf, np.ceil(tasks.estimate.min(axis=1) * 2))
    return made._replace(system=replace(made.system, tasks=replace(tasks, time_limit=limit)))


def data(seed: int) -> Crowd:
    """A graph of tasks that read and write items over links and a network."""
    link = Link(upload=2 * GB, download=3 * GB, latency=0.02)
    slow, fast = _types(link=link, streams=1 + seed % 2)
    shapes = [
        Shape([cpu_mode(1), gpu_mode(slow), gpu_mode(fast)]),
        Shape([cpu_mode(2), gpu_mode(fast)]),
        Shape([gpu_mode(slow), gpu_mode(fast)], Stopping(save=0.1)),
        Shape([cpu_mode(1)]),
    ]
    count, random = 40, np.random.default_rng(seed + 100)
    near = [random.integers(max(0, row - 8), row, random.integers(0, 3)) for row in range(1, count)]
    before = [(), *(tuple(sorted(set(rows.tolist()))) for rows in near)]
    items = [Item("all", GB), Item("home", 2 * GB, home=1)]
    items += [Item(f"of {row}", int(random.integers(GB // 8, GB))) for row in range(count)]
    reads = [(*(i for i in (0, 1) if random.random() < 0.4), *(2 + one for one in rows)) for rows in before]
    writes = [(2 + row,) for row in range(count)]
    network = Link(upload=GB, download=GB, latency=0.01)
    specs = [NodeSpec(cpus=3, accelerators=((slow, 2), (fast, 1)), network=network, cpu_type=CPU),
             NodeSpec(cpus=2, accelerators=((slow, 1),), network=network, cpu_type=CPU)]  # fmt: skip
    return _crowd(seed, specs, shapes, count=count, gap=0.1, predecessors=before, items=items, reads=reads,
                  writes=writes, bytes_in=random.integers(0, 3, count) * GB // 2)  # fmt: skip


def language() -> Crowd:
    """Tasks next to the replicas of a language model, whose requests no policy starts, moves or stops."""
    chat = {"service": {"kind": "llm", "step": {"fixed": "0.1 s"}}, "tokens": {"prompt": 10, "output": 30}}
    work = [{"name": "chat", "arrivals": {"process": "poisson", "rate": "0.7/s"}, "count": 20, **chat}]
    for name, gpus, seconds in (("a", 1, 2), ("b", 2, 3), ("c", 0.5, 2), ("a2", 1, 1)):
        time = {"distribution": "exponential", "mean": f"{seconds * gpus} s"}
        work.append({"name": name, "arrivals": {"process": "poisson", "rate": "0.8/s"}, "count": 9, "gpus": gpus,
                     "gpu_time": time})  # fmt: skip
    return Crowd(_served("language", {"type": "g", "count": 4}, work), [], None)


def crowds() -> Iterator[Crowd]:
    yield elastic(0)
    yield elastic(1, wrong=True)
    yield parts(2)
    yield parts(3, wrong=True)
    yield shared(4, Sharing("mps", interference=0.4))
    yield shared(5, Sharing("mps", interference=0.3, pairs=PAIRS), streams=2, wrong=True)
    yield shared(6, Sharing("timeslice", switch_cost=0.1, pairs=PAIRS[:3]), streams=2)
    yield shared(7, MIG, wrong=True)
    yield shared(8, Sharing())
    yield broken(9)
    yield data(10)
    yield data(11)
    yield shared(12, Sharing("timeslice", switch_cost=0.2, pairs=PAIRS), streams=2, wrong=True)
    yield language()


QOS = {
    "high": Tier(priority=1.0, max_gpus_per_user=4, preempts=("low",), max_jobs=6),
    "low": Tier(priority=0.2, max_gpus=5, max_jobs_per_user=3, preempt_mode="suspend", exempt="1 s"),
    "a": Tier(priority=0.5, preempts=("low", "b")), "b": Tier(exempt="0.5 s"),
}  # fmt: skip
TREE = {"x": Account(shares=2.0), "y": Account(parent="x"), "z": Account(parent="x", shares=3.0)}
SHARES = {"ada": 5.0, "bob": 1.0, "eve": 0.5}
SHORT = {"round_length": 2.0}
GIVEN: dict[str, list[dict[str, Any]]] = {
    "afs": [{"interval": 1.5}],
    "allox": [{"alpha": 0.3, "window": 5}],
    "as_recorded": [{"nodes": False}],
    "conservative_backfill": [{"depth": 4}, {"depth": None}],
    "defragment": [{"margin": 0.2, "minimum_run": 0.5, "max_moves": 2}, {"discipline": "block", "margin": 0.0}],
    "drf": [{"weights": SHARES, "discipline": "block"}],
    "easy_backfill": [{"depth": 3}, {"depth": None}],
    "edf": [{"preemptive": True, "discipline": "skip"}, {"drop_expired": True}, {"preemptive": True}],
    "fcfs_rounds": [SHORT, {"round_length": 1.0, "rule": "deficit", "mid_round": False, "blind": True}],
    "finish_time_fairness": [{**SHORT, "levels": 3}, {**SHORT, "pairs": True}],
    "gandiva": [{"trial": 1.0}, {"trial": 0.5, "threshold": 1.4}],
    "gang_backfill": [{"depth": 4}],
    "heteroprio": [{"spoliation": False}],
    "isolated": [SHORT, {"round_length": 1.0, "rule": "deficit", "spare": True, "mid_round": False}],
    "las": [{"thresholds": [1.0, 4.0], "discipline": "skip"}, {"thresholds": [2.0]}],
    "las_intervals": [{"interval": 1.5, "thresholds": [6.0, 2.0]}],
    "max_min_fairness": [SHORT, {**SHORT, "levels": 1, "rule": "deficit"}, {**SHORT, "pairs": True, "threshold": 1.1}],
    "max_throughput": [SHORT, {**SHORT, "costs": "prices"}, {**SHORT, "pairs": True, "mid_round": False}],
    "min_makespan": [{**SHORT, "pairs": True}, {"round_length": 1.0, "rule": "deficit"}],
    "multi_generation": [{"budget": 1.1}, {"budget": 2.5, "measure": "cost"}],
    "optimus": [{"interval": 1.5}],
    "optimus_intervals": [{"interval": 1.0}],
    "pollux": [{"interval": 2.0, "population": 8, "generations": 4, "restart": 0.5},
               {"interval": 3.0, "population": 6, "generations": 3, "restart": 0.0, "fairness": -3.0}],
    "power_down": [{"patience": 0.3, "memory": 8.0}, {"safety": 2.0, "memory": 20.0}, {"patience": 1.0, "safety": 0.0}],
    "priority": [{"preemptive": True}, {"preemptive": True, "aging": 0.3, "discipline": "skip"}, {"aging": 0.5}],
    "processor_sharing": [{"discipline": "block"}],
    "qssf": [{"default": 2.0, "trust": 1.0, "decay": 0.5, "discipline": "skip"}, {"quantile": 0.7, "window": 4}],
    "quota_borrow": [{"quotas": {"ada": 4, "bob": 2}, "default": 1}, {"quotas": {"x": 3, "y": 2}, "of": "account"},
                     {"quotas": {"a": 4}, "default": 1.5, "of": "class", "tiers": {"high": 2.0, "low": 1.0}},
                     {"default": 3, "reclaim": False, "of": "vc"}, {"default": 4, "borrow": False}],
    "round_robin": [{"quantum": 0.4}],
    "sharing": [{"table": {"a": {"b": 1.3, "a": 1.0}, "b": {"a": 1.1}}}, {"margin": 0.15}],
    "similarity": [{"prefer": "together", "discipline": "block"}],
    "sjf": [{"discipline": "skip"}],
    "slurm_multifactor": [
        {"calc_period": 0.0, "bf_interval": 0.0, "half_life": 4.0, "max_age": 10.0, "shares": SHARES},
        {"calc_period": 2.0, "bf_interval": 1.0, "sched_interval": 1.5, "default_queue_depth": 3, "half_life": 2.0,
         "bf_max_job_test": 6, "max_age": 5.0, "small_first": True, "partitions": {"p": 1.0, "q": 0.5, "a": 0.7}},
        {"calc_period": 1.0, "bf_interval": 0.5, "accounts": TREE, "shares": SHARES, "half_life": 8.0, "qos": QOS},
        {"calc_period": 0.0, "bf_interval": 0.0, "bf_resolution": 1.0, "bf_job_part_count_reserve": 2, "max_age": 8.0,
         "bf_max_job_user": 2, "fair_share": 0.0},
        {"bf_interval": 0.0, "sched_interval": 0.0, "qos": QOS, "bf_max_job_user": 3, "bf_job_part_count_reserve": 1},
        {"bf_max_job_test": 0, "sched_interval": 2.0, "default_queue_depth": 2, "half_life": 1.0, "calc_period": 0.5},
    ],
    "speedup_mean": [{"interval": 1.5}, {"interval": 2.0, "fairness": -4.0}],
    "srtf": [{"discipline": "skip", "margin": 0.5}, {"margin": 1.0}],
    "tetris": [{"shortness": 0.0}],
    "themis": [{"lease": 1.5}],
    "tiresias": [{"thresholds": [1.0, 5.0]}, {"thresholds": [3.0], "discipline": "skip"}],
    "unicep": [{"discipline": "skip"}, {"formula": "schedgym"}],
    "wfp3": [{"discipline": "skip"}, {"formula": "schedgym", "discipline": "keep"}],
    "wfq": [{"weights": SHARES}, {"weights": {"zoe": 4.0}, "discipline": "skip"}],
}  # fmt: skip
"""What each scheduler is given besides its defaults: every parameter off its default, at the scale of these tasks."""
PLAIN = ("conservative_backfill", "easy_backfill", "gang_backfill", "dmda", "dmdas", "eft", "er_ls", "heteroprio",
         "lws", "as_recorded", "tetris", "similarity", "sharing", "multi_generation", "allox", "srtf", "wfp3", "unicep",
         "wfq", "drf", "fcfs", "processor_sharing")  # fmt: skip
"""Those whose defaults are at this scale, too."""
CASES = {name: (name, {}) for name in PLAIN} | {
    f"{name} {given}": (name, given) for name, variants in GIVEN.items() for given in variants
}
