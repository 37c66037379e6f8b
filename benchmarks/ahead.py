"""What a rollout is worth over its base: `python -m benchmarks.ahead [--quick] [--only NAME,...]`.

Ten scenarios of different kinds, each with a base, an objective and lognormal errors of the estimates of mean 1.  Base
and rollout meet the same loads and the same errors.  A cell is the mean of base and rollout, and their paired
difference in percent of the base with its 95 % confidence interval (Student's t over the replications).  Upper limits
should be at most 2 % everywhere.  Less is better in all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.measure import Row, chosen, parser_of, print_table

LIMIT = 0.02
"""Part of the base by which the upper limit of (rollout - base) may exceed 0."""
SKIP = {"name": "sjf", "discipline": "skip"}


@dataclass(frozen=True)
class Case:
    """A scenario (a shipped one by name), its base, and what is to be least: a metric of the run."""

    scenario: str | Mapping[str, Any]
    base: Any
    metric: str
    objective: str
    rollout: Mapping[str, Any] = field(default_factory=dict)
    of: Callable[[np.ndarray], np.ndarray] = lambda values: values
    """What is least of the metric."""


def machine(workload: Any, **nodes: Any) -> dict[str, Any]:
    entries = workload if isinstance(workload, list) else [workload]
    return {"cluster": {"nodes": [nodes]}, "workload": entries, "seed": 1}


def jobs(name: str, rate: str, until: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "arrivals": {"process": "poisson", "rate": rate}, "until": until, **more}


def drawn(mean: str, cv: float) -> dict[str, Any]:
    return {"distribution": "lognormal", "mean": mean, "cv": cv}


A100 = {"type": "a100", "count": 4}
CASES = {
    "deeprm": Case("deeprm", "sjf", "slowdown_mean", "slowdown"),
    "cores or GPU": Case(
        machine(
            {"name": "kernels", "arrivals": {"process": "all_at_once", "count": 30}, "gpu_time": drawn("10 s", 1.0),
             "cpu_time": {"speedup": 8}},
            cpus=4, gpus={"type": "v100", "count": 1},
        ), "fcfs_skip", "response_mean", "response",
    ),
    "gangs": Case(
        machine(
            [jobs("small", "20/h", "3 h", gpus=1, gpu_time={"distribution": "exponential", "mean": "10 min"}),
             jobs("gang", "1/h", "3 h", gpus=4, gpu_time={"distribution": "exponential", "mean": "20 min"})],
            cpus=32, gpus=A100,
        ), "fcfs_skip", "slowdown_mean", "slowdown",
    ),
    "backfilling": Case(
        machine(
            [jobs("narrow", "12/h", "5 h", cpus=8, cpu_time=drawn("40 min", 1.5)),
             jobs("wide", "1.5/h", "5 h", cpus=48, cpu_time=drawn("40 min", 1.0))],
            cpus=64,
        ), "easy_backfill", "response_mean", "response",
    ),
    "parts of GPUs": Case(
        machine(
            [jobs("part", "30/h", "2 h", gpus=0.25, gpu_time=drawn("8 min", 1.5)),
             jobs("whole", "6/h", "2 h", gpus=1, gpu_time=drawn("8 min", 1.0))],
            cpus=32, gpus={"type": "a100", "count": 2},
        ), {"name": "fcfs_skip", "placement": "best_fit"}, "response_mean", "response",
    ),
    "deadlines": Case(
        machine(
            jobs("jobs", "35/h", "2 h", cpus=4, cpu_time=drawn("7 min", 1.2), slo={"factor": 4}),
            cpus=16,
        ), "edf", "slo_attainment", "deadline_misses", of=lambda met: 1.0 - met,
    ),
    "transfers": Case(
        machine(
            jobs("images", "3/s", "15 s", gpu_time=drawn("0.5 s", 1.0), bytes_in="1.5 GB", bytes_out="0.2 GB"),
            cpus=8, pcie={"upload": "12 GB/s", "download": "12 GB/s"},
            gpus={"type": "a100", "count": 2, "streams": 2},
        ), SKIP, "response_mean", "response",
    ),
    "task graph": Case(
        "cholesky-8", "priority", "response_mean", "response", {"candidates": 2, "samples": 4, "forks": 12}
    ),
    "energy": Case(
        {"seed": 1, "cluster": {"nodes": [{"cpus": 16, "gpus": [
            {"type": "fast", "count": 2, "power": {"idle": "40 W", "busy": "400 W"}},
            {"type": "thrifty", "count": 2, "power": {"idle": "15 W", "busy": "90 W"}}]}]},
         "workload": [jobs("jobs", "40/h", "90 min", **{"gpu_time.fast": drawn("5 min", 1.0),
                                                     "gpu_time.thrifty": drawn("9 min", 1.0)})]},
        "fcfs_skip", "energy_tasks_j", "energy",
    ),
    "a rush hour": Case(
        machine(
            {"name": "jobs", "arrivals": {"process": "diurnal", "mean": "30/h", "amplitude": 0.8, "period": "2 h"},
             "until": "2 h", "cpus": 4, "cpu_time": drawn("7 min", 1.5)},
            cpus=16,
        ), SKIP, "response_mean", "response",
        {"arrivals": "learned", "horizon": "30 min", "samples": 4, "forks": 16, "candidates": 3},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much work the table takes."""

    replications: int = 30
    errors: tuple[float, ...] = (0.0, 0.3, 1.0)


QUICK = Sizes(2, (0.3,))


@dataclass(frozen=True)
class Cell:
    """Means of base and rollout, and the paired difference with its limits, in parts of the base."""

    base: float
    ahead: float
    difference: float
    half: float

    @property
    def high(self) -> float:
        return self.difference + self.half

    @property
    def verdict(self) -> str:
        if self.high < 0:
            return "better"
        if self.difference - self.half > 0:
            return "worse" if self.high > LIMIT else "worse by less than 2 %"
        return "" if self.high <= LIMIT else "above 2 %"

    def __str__(self) -> str:
        text = f"{self.base:.4g} → {self.ahead:.4g}, {100 * self.difference:+.1f} ± {100 * self.half:.1f} %"
        return f"{text} {self.verdict}".rstrip()


def cell(case: Case, error: float, replications: int) -> Cell:
    """Base against rollout under one error of the estimates."""
    from scipy.stats import t

    means = []
    described = _with_error(case.scenario, error)
    for policy in (case.base, {"name": "rollout", "base": case.base, "objective": case.objective, **case.rollout}):
        found = hs.replicate(described, policy=policy, replications=replications, metrics=[case.metric])
        means.append(case.of(found.values[case.metric].to_numpy(dtype=float)))
    base, ahead = means
    unit = float(base.mean())
    gain = ahead - base
    half = float(t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain)))
    return Cell(unit, float(ahead.mean()), float(gain.mean()) / unit, half / unit)


def _with_error(scenario: str | Mapping[str, Any], error: float) -> Any:
    """The scenario with lognormal errors of mean 1 in the estimates of all of its tasks."""
    loaded = hs.load(scenario if isinstance(scenario, str) else copy.deepcopy(dict(scenario)))
    known: Any = {"distribution": "lognormal", "cv": error} if error else 1
    count = len(entries) if isinstance(entries := loaded.raw["workload"], list) else 1
    return loaded.with_overrides({f"workload.{number}.estimates.error": known for number in range(count)})


def case_rows(name: str, sizes: Sizes) -> Iterator[Row | str]:
    case = CASES[name]
    base = case.base if isinstance(case.base, str) else " ".join(map(str, case.base.values()))
    cells = [cell(case, error, sizes.replications) for error in sizes.errors]
    yield "| " + " | ".join([name, f"`{base}`, {case.objective}", *map(str, cells)]) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("ahead", __doc__, CASES)
    parser.add_argument("--replications", type=int, default=Sizes.replications, help="paired, 30 unless given")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes(options.replications)
    figures: dict[str, Callable[[], Iterator[Row | str]]] = {name: partial(case_rows, name, sizes) for name in CASES}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
