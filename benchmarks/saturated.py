"""What schedulers cost a job where the queue only grows: the figure `saturated` of `python -m benchmarks.cluster`.

64 nodes of 8 GPUs with a load of 1.2; jobs as in `benchmarks.gang_load`.  A cost that grows with the number of jobs is
one that grows with the queue.
"""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from benchmarks.gang_load import Sizes, draw, simulate
from benchmarks.measure import Row, in_turns, median_ratio

NODES = 64

SATURATED: dict[str, dict[str, Any]] = {
    "easy_backfill": {},
    "slurm_multifactor": {},
    "slurm_multifactor with 20 users": {"users": 20},
    "conservative_backfill": {},
    "allox": {},
    "afs": {},
    "speedup_mean": {},
    "optimus": {},
    "afs, jobs of several sizes": {"sizes": 4},
    "speedup_mean, jobs of several sizes": {"sizes": 4},
    "optimus, jobs of several sizes": {"sizes": 4},
    "finish_time_fairness": {},
    "finish_time_fairness with pairs": {"pairs": True},
}


class OutOfTime(BaseException):
    """Not an Exception: the engine would say that the policy raised it."""


def limited(step: Callable[[], float], limit: float) -> float:
    """What a step returns; inf if it takes more processor seconds than the limit."""

    def stop(*_: Any) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return step()
    except OutOfTime:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def seconds(count: int, load: float, policy: str, **more: Any) -> float:
    return simulate(draw(count, 8 * NODES, load), NODES, policy, **more)[0]


def saturated_figures(sizes: Sizes, limit: float) -> Iterator[Row]:
    """Microseconds a job at each number of jobs; and what multifactor priority costs against EASY."""
    counts = " / ".join(f"{count:,}" for count in sizes.saturated)
    for name, more in SATURATED.items():
        policy, texts = name.split(",")[0].split(" ")[0], []
        for count in sizes.saturated:
            spent = math.inf if "-" in texts else limited(partial(seconds, count, 1.2, policy, **more), limit)
            texts.append("-" if spent == math.inf else f"{spent / count * 1e6:,.0f}")
        yield Row(name, " / ".join(texts) + f" µs a job ({counts})")
    for users, load, count in product((1, 20), (0.95, 1.2), sizes.backfilled):
        spent = in_turns(
            sizes.repetitions,
            easy=partial(seconds, count, load, "easy_backfill", users=users),
            slurm=partial(seconds, count, load, "slurm_multifactor", users=users),
        )
        ratio = median_ratio(spent["slurm"], spent["easy"])
        each = statistics.median(spent["slurm"]) / count * 1e6
        figure = f"slurm_multifactor over EASY, {users} users, {load}, {count:,}"
        yield Row(figure, f"{ratio:.1f} × ({each:.0f} µs a job)", "≤ 3 ×", ratio <= 3)
