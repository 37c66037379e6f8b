"""Quality of service (QOS): tiers with priority, limits and preemption.

Supported are Slurm's MaxJobsPerUser, MaxTRESPerUser, GrpJobs, GrpTRES, Preempt, PreemptMode and PreemptExemptTime.  The
tier of a task is its label `qos`, or its class without that label.  A job that waits because of a limit of its tier
does not block the jobs behind it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds

Gpus = Annotated[float, Field(gt=0)]
Jobs = Annotated[int, Field(ge=1)]


class Tier(BaseModel):
    """One tier of service: its priority and limits.

    priority: priority factor of the tier, from 0 to 1.  max_jobs, max_gpus: limits on running jobs and their GPUs in
        total; with `_per_user`: for each user.  preempts: tiers whose running jobs it may preempt.  preempt_mode: a
        preempted job of this tier begins again (requeue), or keeps its work (suspend).  exempt: seconds that a job of
        this tier runs before it can be preempted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    priority: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_jobs: Jobs | None = None
    max_gpus: Gpus | None = None
    max_jobs_per_user: Jobs | None = None
    max_gpus_per_user: Gpus | None = None
    preempts: tuple[str, ...] = ()
    preempt_mode: Literal["requeue", "suspend"] = "requeue"
    exempt: Seconds = 0.0


NO_TIER = Tier()


class Tiers:
    """The service tiers (QOS) of a site, and the running jobs of each."""

    def __init__(self, tiers: dict[str, Tier]):
        for name, tier in tiers.items():
            if unknown := [other for other in tier.preempts if other not in tiers]:
                raise ValueError(f'qos {name} must preempt one of {", ".join(tiers)}; got "{unknown[0]}"')
        self.tiers = tiers
        self._jobs: dict[tuple[str, str | None], int] = {}  # running jobs by tier and user; by tier and None in all
        self._gpus: dict[tuple[str, str | None], float] = {}
        self._of: dict[int, tuple[str, str, float]] = {}

    def name(self, task: Task) -> str:
        return task.label("qos") or task.class_

    def tier(self, task: Task) -> Tier:
        return self.tiers.get(self.name(task), NO_TIER) if self.tiers else NO_TIER

    def refuses(self, task: Task) -> bool:
        """Return True if a limit of its tier prevents the task from starting."""
        tier = self.tier(task)
        if tier is NO_TIER:
            return False
        name, gpus = self.name(task), task.modes[task.modes_by_speed()[0]].gpu_share
        limits: tuple[tuple[str | None, int | None, float | None], ...] = (
            (None, tier.max_jobs, tier.max_gpus), (task.user, tier.max_jobs_per_user, tier.max_gpus_per_user),
        )  # fmt: skip
        return any(
            (jobs is not None and self._jobs.get((name, user), 0) >= jobs)
            or (limit is not None and self._gpus.get((name, user), 0.0) + gpus > limit + 1e-9)
            for user, jobs, limit in limits
        )

    def starting(self, task: Task, placement: Placement) -> None:
        if not self.tiers:
            return
        name, gpus = self.name(task), placement.mode.gpu_share
        self._of[task.index] = name, task.user, gpus
        self._add(name, task.user, 1, gpus)

    def leave(self, task: Task) -> None:
        if (entry := self._of.pop(task.index, None)) is not None:
            self._add(entry[0], entry[1], -1, -entry[2])

    def _add(self, name: str, user: str, jobs: int, gpus: float) -> None:
        for key in ((name, user), (name, None)):
            self._jobs[key] = self._jobs.get(key, 0) + jobs
            self._gpus[key] = self._gpus.get(key, 0.0) + gpus
