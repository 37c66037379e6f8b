"""Admission under load that moves, against the exact optimum: `python -m benchmarks.moving_load`.

Four GPUs, exponential tasks of mean 1 s, Poisson arrivals at 0.4 or 8 per second in turns, each for an exponential time
of mean 300 s, or 20 s.  An answer is worth 5, a second in the system costs 1.  The optimum knows the model and the
phase it is in; it is solved by value iteration over (phase, number in the system).  A cell is what a policy earns a
task, of the optimum, with the standard error over the replications.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.measure import Row, chosen, parser_of, print_table

RATES, SERVERS, WORTH, COST = (0.4, 8.0), 4, 5.0, 1.0
PHASES = (300.0, 20.0)
"""Mean seconds of a phase, by setting."""
POLICIES: dict[str, Any] = {
    "accept_all": "accept_all",
    "queue_limit": {"name": "queue_limit", "limit": 2},
    "predicted_wait": {"name": "predicted_wait", "max_wait": "2 s"},
    "erlang_wait": {"name": "erlang_wait", "max_wait": "2 s", "p": "5%"},
    "utilization_threshold": {"name": "utilization_threshold", "threshold": "100%"},
    "trunk_reservation": {"name": "trunk_reservation", "reserve": {"tasks": 0}},
    "token_bucket": {"name": "token_bucket", "rate": "3.6/s", "burst": 4},
    "naor": {"name": "naor", "reward": WORTH, "cost": COST},
    "mdp_threshold": {"name": "mdp_threshold", "rewards": {"tasks": WORTH}, "holding": {"tasks": COST}},
    "slo_feasible": "slo_feasible",
    "redirect": "redirect",
    "codel": {"name": "codel", "target": "500 ms", "interval": "2 s"},
    "adaptive": {"name": "adaptive", "target": "4 s"},
}


def scenario(phase: float, admission: Any, horizon: float = 3900.0) -> dict[str, Any]:
    arrivals = {"process": "mmpp", "rates": [f"{rate}/s" for rate in RATES], "holding": [f"{phase} s"] * 2}
    times = {"distribution": "exponential", "mean": "1 s"}
    return {
        "name": "moving-load", "seed": 1, "warmup": "5 min", "horizon": f"{horizon} s",
        "cluster": {"nodes": {"gpus": {"type": "a100", "count": SERVERS}}},
        "workload": {"name": "tasks", "arrivals": arrivals, "gpu_time": times, "slo": "4 s",
                     "estimates": {"basis": "mean"}},
        "policy": {"scheduler": "fcfs", "admission": admission},
    }  # fmt: skip


def optimum(phase: float, places: int = 80) -> float:
    """What the best admission earns per second: relative value iteration on the uniformized chain."""
    number = np.arange(places + 1)
    busy, arrive = np.minimum(number, SERVERS), np.array(RATES)[:, None]
    total = max(RATES) + SERVERS + 1 / phase
    worth = np.zeros((2, places + 1))
    while True:
        joined = np.column_stack([WORTH + worth[:, 1:], np.full(2, -np.inf)])
        asked, left = np.maximum(joined, worth), worth[:, np.maximum(number - 1, 0)]
        stay = total - arrive - busy - 1 / phase
        new = (arrive * asked + busy * left + worth[::-1] / phase + stay * worth - COST * number) / total
        change = new - worth
        if np.ptp(change) < 1e-9:
            return float(change.mean() * total)
        worth = new - new[0, 0]


def earned(phase: float, admission: Any, replications: int, horizon: float = 3900.0) -> tuple[float, float]:
    """What a policy earns a task, and the standard error: a ratio of sums over replications (delta method)."""
    runs: Any = hs.replicate(scenario(phase, admission, horizon), replications=replications, keep=True)
    came, done, response = (runs.column(name).to_numpy() for name in ("task_count", "completed_count", "response_mean"))
    return ratio_with_error(done * (WORTH - COST * response), came)


def ratio_with_error(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    ratio = above.sum() / below.sum()
    spread = np.std(above - ratio * below, ddof=1) / np.sqrt(len(above))
    return float(ratio), float(spread / below.mean())


def rows(name: str, replications: int) -> list[Row]:
    cells = []
    for phase in PHASES:
        best = optimum(phase) / np.mean(RATES)
        value, error = earned(phase, POLICIES[name], replications)
        cells.append(f"{value:6.2f} ± {error:.2f}, {value / best:7.1%} ± {error / best:.1%}")
    return [Row(name, " | ".join(cells))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("moving_load", __doc__, POLICIES)
    options = parser.parse_args(arguments)
    figures = {name: partial(rows, name, 3 if options.quick else 30) for name in POLICIES}
    print(f"optimum a task: {', '.join(f'{optimum(p) / np.mean(RATES):.3f} (phases of {p:g} s)' for p in PHASES)}")
    print_table(figures, chosen(parser, figures, options.only), options.quick, Row("policy", "300 s | 20 s"))


if __name__ == "__main__":
    main()
