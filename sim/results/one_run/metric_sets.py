"""Names for sets of metrics, which stand where a metric may be named: `usual`, `cluster` and `all`.

Of a set a comparison shows what tells something of the runs at hand; a metric asked for by its own name is always
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.errors import UnknownName
from sim.results.one_run import metrics
from sim.results.one_run.tables import bound_name

USUAL = (
    "makespan", "response_mean", "response_p95", "goodput_fraction", "rejected", "expired", "failed", "unfinished",
    "gpu_utilization", "rho_p95", "jain", "energy_j", "cost",
)  # fmt: skip
"""What a comparison shows unless told otherwise: few enough to be read at a glance."""


def cluster() -> tuple[str, ...]:
    """What people ask of a cluster's scheduler."""
    bounded = bound_name()
    return (
        "response_mean", "response_p95", "response_p99", "wait_mean", "wait_p95", "slowdown_mean", f"{bounded}_mean",
        f"{bounded}_p95", "makespan", "gpu_utilization", "gpu_allocation", "fragmentation", "queue_length_mean",
        "rho_mean", "rho_p95", "rho_max", "rho_unfair_share", "jain", "preemptions", "migrations", "slo_attainment",
        "goodput_fraction", "rejected", "expired", "failed", "unfinished", "energy_j", "cost", "cost_per_task",
        "cost_held",
    )  # fmt: skip


SETS: dict[str, Callable[[], Iterable[str]]] = {
    "usual": lambda: USUAL,
    "cluster": cluster,
    "all": lambda: metrics.metrics(),
}


def unless_zero(metric: str) -> bool:
    """Is it, of a set, told only where some policy has any?"""
    counts = (
        "rejected", "expired", "failed", "unfinished", "aborted", "deadline_after_end", "preemptions", "migrations",
        "gpu_seconds", "preemptions_recompute", "preemptions_swap", "preemptions_failure",
    )  # fmt: skip
    return metric in counts or metric.endswith("_j")


def check(name: str) -> None:
    """UnknownName with a suggestion if this is neither a metric nor a set of them."""
    known = [*SETS, *metrics.metrics()]
    if name not in known:
        raise UnknownName("metric", name, known)


def expanded(names: Iterable[str]) -> list[str]:
    """Metrics and sets as metrics, each once."""
    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys(SETS[name]() if name in SETS else [name])
    return list(found)


def by_name(names: Iterable[str]) -> set[str]:
    """Those asked for by their own name."""
    return {name for name in names if name not in SETS}
