"""Jobs with gangs and their runs on clusters of GPUs: the load that benchmarks of clusters share.

Jobs: 1, 2, 4 and 8 GPUs with shares .60, .15, .15, .10; lognormal durations of median 600 s, shape 1 (mean 989 s), on
whole seconds; Poisson arrivals; gangs stay on one node of 8 GPUs; first fit; exact estimates.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 20240901
WIDTHS, SHARES = (1, 2, 4, 8), (0.60, 0.15, 0.15, 0.10)
MEDIAN, SIGMA = 600.0, 1.0
DEPTH = 100


@dataclass(frozen=True)
class Sizes:
    """How much work the figures take."""

    repetitions: int = 3
    callbacks: int = 600_000
    jobs: int = 1_000_000
    fewer: int = 100_000
    peer_jobs: int = 100_000
    peer_nodes: tuple[int, ...] = (64, 512)
    fair_jobs: tuple[int, ...] = (400, 4_000)
    saturated: tuple[int, ...] = (1_000, 4_000, 16_000)
    backfilled: tuple[int, ...] = (2_000, 4_000, 8_000, 16_000)


QUICK = Sizes(1, 30_000, 4_000, 1_000, 1_000, (64,), (100,), (50, 100), (200, 400))


@dataclass(frozen=True)
class Jobs:
    arrival: np.ndarray
    width: np.ndarray
    duration: np.ndarray


def draw(count: int, gpus: int, load: float, seed: int = SEED) -> Jobs:
    """Random jobs that ask for `load` of so many GPUs."""
    random = np.random.default_rng(seed)
    duration = np.ceil(random.lognormal(math.log(MEDIAN), SIGMA, count))
    width = random.choice(WIDTHS, count, p=SHARES)
    mean = MEDIAN * math.exp(SIGMA**2 / 2) * float(np.dot(WIDTHS, SHARES))
    arrival = np.floor(np.cumsum(random.exponential(mean / (load * gpus), count)))
    return Jobs(arrival, width, duration)


def run_input(
    jobs: Jobs, nodes: int, policy: str, span: bool = False, *, sizes: int = 1, pairs: bool = False, users: int = 1,
    placement: str | None = None, per_node: int = 8, **parameters: Any,
) -> Any:
    """placement: a rule instead of the first nodes that fit.  sizes: of each job, twice the GPUs for 1.8 times the
    speed, up to a node.  pairs: devices that two jobs of four classes share, with measured speeds.  users: the number
    of users, each as likely as another.  per_node: GPUs of a node."""
    from hetsim.model.cluster import Cluster, NodeSpec
    from hetsim.model.device_type import WHOLE, DeviceType, Sharing
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.record import RunInput
    from hetsim.model.tasks import Tasks
    from hetsim.scenario.schema.policy import PolicySpec

    kind, classes = DeviceType("gpu"), "abcd"
    if pairs:
        slower = tuple((x, y, 1.1 + 0.2 * (i + j)) for i, x in enumerate(classes) for j, y in enumerate(classes))
        kind = DeviceType("gpu", streams=2, sharing=Sharing("timeslice", pairs=slower))
        parameters["pairs"] = True
    shapes, speeds = [], 1.8 ** np.arange(sizes)
    for width in WIDTHS:
        widths = [width * 2**n for n in range(sizes) if width * 2**n <= max(WIDTHS)]
        shapes.append(Shape([Mode(f"{w} gpu", kind, gpus=w, share=WHOLE, span_any=span) for w in widths]))
    times = jobs.duration.reshape(-1, 1) / speeds
    tasks = Tasks(
        arrival=jobs.arrival, shape=np.searchsorted(WIDTHS, jobs.width), shapes=shapes, time=times, estimate=times,
        classes=list(classes), class_code=np.arange(len(times)) % len(classes) if pairs else None,
        users=[f"user {number}" for number in range(users)],
        user_code=np.random.default_rng(SEED).integers(0, users, len(times)),
    )  # fmt: skip
    cluster = Cluster([NodeSpec(cpus=32, accelerators=((kind, per_node),), count=nodes)])
    if policy == "easy_backfill":
        parameters["depth"] = DEPTH
    if placement:
        parameters["placement"] = PolicySpec("placement", placement)
    return RunInput("cluster", cluster, tasks, PolicySpec("scheduler", policy, parameters).make(), policy=policy)


def simulate(jobs: Jobs, nodes: int, policy: str, span: bool = False, **more: Any) -> tuple[float, Any]:
    """Processor seconds of a run from arrays to the record, and the record."""
    from hetsim.engine.simulation import Simulation

    gc.collect()
    run = run_input(jobs, nodes, policy, span, **more)
    began = time.process_time()
    record = Simulation(run).run()
    return time.process_time() - began, record
