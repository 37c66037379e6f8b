"""Which schedulers can work inside another one, on a part of what it has."""

from __future__ import annotations

from hetsim.errors import Problem, ScenarioError
from hetsim.policy import Backfilling, ListScheduler, Scheduler
from hetsim_policies.dynamic.common.lines import AssigningScheduler

ALONE = ("Defragment", "Gandiva", "PowerDown", "SharingByTable")
"""List schedulers that work on the whole cluster."""


def check_nested(inner: Scheduler, outer: str, key: str, lines: bool) -> None:
    """Raise ScenarioError for a scheduler that cannot work inside another one.

    It must be a list scheduler that looks no further than what fits now, or (`lines`) one that chooses a line for each
    task.
    """
    listing = isinstance(inner, ListScheduler) and not isinstance(inner, Backfilling)
    if (listing and type(inner).__name__ not in ALONE) or (lines and isinstance(inner, AssigningScheduler)):
        return
    more = ", or eft, dmda, dmdas, er_ls" if lines else ""
    text = f"{outer} cannot nest {type(inner).__name__}; it takes a list order (fcfs, sjf, edf, fcfs_skip, ...){more}"
    raise ScenarioError(Problem(text, key=f"policy.scheduler.{key}"))
