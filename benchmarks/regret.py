"""What admission policies leave of the exact optimum, under four loads: `python -m benchmarks.regret [--write]`.

Four GPUs and exponential tasks of mean 1 s.  An answer is worth 5, a second in the system costs 1.  Poisson arrivals,
4.2 a second in the mean:

steady        always 4.2
mmpp 300 s    0.4 or 8 in turns, each for an exponential time of mean 300 s
mmpp 20 s     the same with 20 s
square wave   0.4 or 8 in turns, each for 60 s

The optimum knows the model and the phase it is in, of the square wave the time, too; it is solved by value iteration
over (phase, number in the system), and over the number in the system as time goes back through the period.  A cell is
what a policy earns a task, and of the optimum, with the standard error over 30 replications of an hour.  `--write`
keeps all cells in benchmarks/regret.csv and puts the table into docs/admission.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.measure import ROOT, parser_of

RATES, SERVERS, WORTH, COST = (0.4, 8.0), 4, 5.0, 1.0
MEAN = float(np.mean(RATES))
HALF = 60.0
"""Seconds of each half of the square wave."""
PLACES = 80
LOADS: dict[str, dict[str, Any]] = {
    "steady": {"process": "poisson", "rate": f"{MEAN}/s"},
    "mmpp 300 s": {"process": "mmpp", "rates": [f"{rate}/s" for rate in RATES], "holding": ["300 s"] * 2},
    "mmpp 20 s": {"process": "mmpp", "rates": [f"{rate}/s" for rate in RATES], "holding": ["20 s"] * 2},
    "square wave": {"process": "piecewise_poisson", "period": f"{2 * HALF} s",
                    "rate": [["0 s", f"{RATES[0]}/s"], [f"{HALF} s", f"{RATES[1]}/s"]]},
}  # fmt: skip
POLICIES: dict[str, tuple[Any, str]] = {
    "accept_all": ("accept_all", "nothing"),
    "queue_limit": ({"name": "queue_limit", "limit": 2}, "a short queue"),
    "mdp_threshold": ({"name": "mdp_threshold", "rewards": {"tasks": WORTH}, "holding": {"tasks": COST}},
                      "the rewards of this table"),
    "naor": ({"name": "naor", "reward": WORTH, "cost": COST, "objective": "social"}, "the rewards of this table"),
    "trunk_reservation": ({"name": "trunk_reservation", "reserve": {"tasks": 0}, "servers": 5}, "a limit on tasks"),
    "utilization_threshold": ({"name": "utilization_threshold", "threshold": "100%"}, "no queue"),
    "class_shedding": ({"name": "class_shedding", "limits": {"tasks": 1.5}}, "tasks per server"),
    "erlang_wait": ({"name": "erlang_wait", "max_wait": "2 s", "p": "5%"}, "waits up to 2 s for 95 % of the tasks"),
    "predicted_wait": ({"name": "predicted_wait", "max_wait": "2 s"}, "waits of at most 2 s"),
    "adaptive": ({"name": "adaptive", "target": "4 s"}, "a 95th percentile of 4 s"),
    "token_bucket": ({"name": "token_bucket", "rate": "3.6/s", "burst": 4}, "a rate"),
    "gradient": ({"name": "gradient", "base": "average"}, "responses close to the usual response time"),
    "dagor": ({"name": "dagor", "target": "500 ms"}, "a bounded time in the queue, for many users"),
    "slo_feasible": ("slo_feasible", "the deadline after 4 s"),
    "redirect": ("redirect", "the deadline after 4 s"),
    "codel": ({"name": "codel", "target": "500 ms", "interval": "2 s"}, "senders that slow down, no standing queue"),
    "head_codel": ({"name": "head_codel", "target": "500 ms", "interval": "2 s"}, "as for `codel`"),
}  # fmt: skip
"""By policy its parameters, which are plain choices and not tuned, and what it aims at."""
BAR = 0.9
REACHING = ("queue_limit", "mdp_threshold", "naor", "trunk_reservation")
"""Policies that earn the bar under every load, even less two standard errors."""
FIGURES, PAGE = ROOT / "benchmarks" / "regret.csv", ROOT / "docs" / "admission.md"
HEAD = ["policy", "load", "earned", "error", "optimum"]


def scenario(load: str, admission: Any, horizon: float = 3900.0) -> dict[str, Any]:
    """Estimates tell the mean only, and users count for `dagor` alone."""
    return {
        "name": "regret", "seed": 1, "warmup": "5 min", "horizon": f"{horizon} s",
        "cluster": {"nodes": {"gpus": {"type": "a100", "count": SERVERS}}},
        "workload": [{"name": "tasks", "arrivals": LOADS[load], "slo": "4 s", "estimates": {"basis": "mean"},
                      "users": 1000, "gpu_time": {"distribution": "exponential", "mean": "1 s"}}],
        "policy": {"scheduler": "fcfs", "admission": admission},
    }  # fmt: skip


@cache
def optimum(load: str) -> float:
    """What the best admission earns per second."""
    if load == "square wave":
        return _of_wave()
    if load == "steady":
        return _of_phases([MEAN], 0.0)
    return _of_phases(RATES, 1 / float(load.split()[1]))


def _of_phases(rates: Sequence[float], leave: float) -> float:
    """Relative value iteration on the uniformized chain of phase and number in the system."""
    number = np.arange(PLACES + 1)
    busy, arrive = np.minimum(number, SERVERS), np.array(rates)[:, None]
    total = max(rates) + SERVERS + leave
    worth = np.zeros((len(rates), PLACES + 1))
    while True:
        joined = np.column_stack([WORTH + worth[:, 1:], np.full(len(rates), -np.inf)])
        asked, left = np.maximum(joined, worth), worth[:, np.maximum(number - 1, 0)]
        stay = total - arrive - busy - leave
        new = (arrive * asked + busy * left + worth[::-1] * leave + stay * worth - COST * number) / total
        change = new - worth
        if np.ptp(change) < 1e-9:
            return float(change.mean() * total)
        worth = new - new[0, 0]


def _of_wave(rates: Sequence[float] = RATES, half: float = HALF, step: float = 0.01) -> float:
    """Value iteration back through the period, by Heun's method: what a period earns once it is the same from all."""
    number = np.arange(PLACES + 1)
    busy = np.minimum(number, SERVERS)
    below = np.maximum(number - 1, 0)

    def slope(worth: np.ndarray, rate: float) -> np.ndarray:
        joined = np.append(WORTH + worth[1:], -np.inf)
        return rate * np.maximum(joined - worth, 0.0) + busy * (worth[below] - worth) - COST * number

    worth = np.zeros(PLACES + 1)
    while True:
        before = worth
        for rate in reversed(rates):
            for _ in range(round(half / step)):
                first = slope(worth, rate)
                worth = worth + step / 2 * (first + slope(worth + step * first, rate))
        change = worth - before
        if np.ptp(change) < 1e-6:
            return float(change.mean() / (2 * half))


def earned(load: str, name: str, replications: int, horizon: float = 3900.0) -> tuple[float, float]:
    """What a policy earns a task, and the standard error: a ratio of sums over replications (delta method)."""
    given = scenario(load, POLICIES[name][0], horizon)
    runs: Any = hs.replicate(given, replications=replications, keep=True, workers=1)
    came, done, response = (runs.column(one).to_numpy() for one in ("task_count", "completed_count", "response_mean"))
    return ratio_with_error(done * (WORTH - COST * response), came)


def ratio_with_error(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    ratio = above.sum() / below.sum()
    spread = np.std(above - ratio * below, ddof=1) / np.sqrt(len(above))
    return float(ratio), float(spread / below.mean())


def read(path: Path = FIGURES) -> list[dict[str, Any]]:
    """The cells that were kept."""
    with path.open(encoding="utf-8") as file:
        return [{key: text if key in HEAD[:2] else float(text) for key, text in row.items()}
                for row in csv.DictReader(file)]  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page's table: a row a policy, with the share of the optimum under each load."""
    lines = [f"| policy | aims at | {' | '.join(LOADS)} |", f"| --- | --- | {' | '.join('---' for _ in LOADS)} |"]
    for name, (_, aim) in POLICIES.items():
        cells = [_cell(row) for load in LOADS for row in rows if (row["policy"], row["load"]) == (name, load)]
        lines.append(f"| `{name}` | {aim} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    share, error = row["earned"] / row["optimum"], row["error"] / row["optimum"]
    return "below 0" if share < 0 else f"{100 * share:.1f} ± {100 * error:.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("regret", __doc__, POLICIES)
    parser.add_argument("--write", action="store_true", help="keep the cells, and put the table into the page")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only.split(",") if options.only else POLICIES:
        for load in LOADS:
            value, error = earned(load, name, 3 if options.quick else 30)
            best = optimum(load) / MEAN
            rows.append({"policy": name, "load": load, "earned": round(value, 4), "error": round(error, 4),
                         "optimum": round(best, 4)})  # fmt: skip
            print(f"{name:22}{load:12} {value:8.3f} ± {error:.3f} of {best:.3f}: {_cell(rows[-1])}", flush=True)
    if options.write:
        with FIGURES.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, HEAD, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        page = PAGE.read_text(encoding="utf-8")
        pattern = r"(?m)^\| policy \| aims at \|.*\n(?:\|.*\n)+"
        PAGE.write_text(re.sub(pattern, lambda _: table(rows) + "\n", page), encoding="utf-8")


if __name__ == "__main__":
    main()
