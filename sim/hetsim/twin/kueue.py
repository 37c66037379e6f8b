"""A forecast of a cluster with Kueue, from its objects (`hetsim twin --kueue`).

Workloads with quota run, others wait; those that are over are the history from which run times and arrivals are drawn.
The policy is `kueue` with the queues, cohorts and flavors of the file, and the priorities of the workloads.
"""

import copy
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import UsageError, suggestion
from hetsim.report.terminal import table
from hetsim.twin import report
from hetsim.twin.forecast import SnapshotCluster, Twin, TwinForecast
from hetsim.workload.logs.history import JobHistory
from hetsim.workload.readers.kueue import RESOURCES, KueueObjects
from hetsim.workload.readers.kueue import nodes as nodes_of
from hetsim.workload.readers.snapshot import SnapshotJob

CAUSES = (("preempt", "preemption"), ("topolog|couldn't assign .*domain", "topology"),
          ("untolerated|affinity|flavor .* not found|unavailable in", "flavor"),
          ("insufficient|quota|no longer fits", "quota"))  # fmt: skip
"""What Kueue's messages speak of, and what a workload then waits for; without a message, for the scheduler."""
CHANGE = re.compile(r"(clusterqueues|cohorts)\.(.+)\.(nominalQuota|borrowingLimit|lendingLimit)\.(?:([^.]+)\.)?(\w+)")
FIELDS = {"nominalQuota": "nominal", "borrowingLimit": "borrowing", "lendingLimit": "lending"}
SHORT = {"gpu": "gpus", "gpus": "gpus", "cores": "cores", **RESOURCES}


class KueueTwin(Twin):
    """The twin whose jobs have the priorities of their workloads."""

    def _with_rules(self, policy: Any) -> Any:
        ranks = [job.priority for job in self.running], [job.priority for job in self.waiting]
        self._own = {"r": ranks[0], "w": ranks[1], "h": self.history.labels["rank"].tolist()}
        return policy


class KueueCluster:
    """A cluster with Kueue at an instant."""

    def __init__(self, path: Path, nodes: Path, now: float | None, fair_sharing: bool):
        self.objects = KueueObjects(path, nodes)
        self.policy = self.objects.policy(fair_sharing)
        self.jobs, over, self.reasons = self.objects.jobs()
        self.nodes = nodes_of(path, nodes=nodes)
        instants = [time for job in self.jobs for time in (job.submit, job.start)] + [end for _, end in over]
        self.now = max((time for time in instants if time == time), default=0.0) if now is None else now
        over.sort(key=lambda one: one[0].submit)
        past, ends = [job for job, _ in over], np.array([end for _, end in over])
        columns = {name: np.array([getattr(job, name) for job in past], dtype=float)
                   for name in ("submit", "start", "limit", "cpus", "gpus")}  # fmt: skip
        texts = {"user": "user", "class": "class_"}
        labels = {name: np.array([getattr(job, key) for job in past], dtype=object) for name, key in texts.items()}
        labels |= {name: np.full(len(past), "", dtype=object) for name in ("partition", "account", "qos")}
        labels["rank"] = np.array([job.priority for job in past])
        kinds = np.array([job.gpu_type for job in past], dtype=object)
        self.history = JobHistory(str(path), runtime=ends - columns["start"], kind=kinds, labels=labels,
                                  nodes=np.ones(len(past)), **columns)  # fmt: skip

    def changed(self, changes: Sequence[str]) -> dict[str, Any]:
        """The policy with quotas changed, as in clusterqueues.team-a.nominalQuota.gpu=64."""
        policy = copy.deepcopy(self.policy)
        for change in changes:
            key, _, value = change.partition("=")
            match = CHANGE.fullmatch(key)
            if match is None or match[5] not in SHORT or not re.fullmatch(r"\d+(\.\d+)?", value):
                text = "takes clusterqueues.NAME.nominalQuota.gpu=64, or borrowingLimit, lendingLimit; cohorts.NAME"
                raise UsageError(f'--what-if {text}; not "{change}"')
            group = policy["queues" if match[1] == "clusterqueues" else "cohorts"]
            if match[2] not in group:
                raise UsageError(f"--what-if: there is no {match[2]} in {match[1]}{suggestion(match[2], list(group))}")
            quotas, resource = group[match[2]].get("quotas", {}), SHORT[match[5]]
            having = [name for name, limits in quotas.items() if resource in limits and match[4] in (None, name)]
            if len(having) != 1:
                names = ", ".join(having or quotas) or "none"
                text = f"name one of the flavors of {match[2]} before {match[5]} ({names}), as in {match[3]}.FLAVOR.gpu"
                raise UsageError(f"--what-if: {text}")
            quotas[having[0]][resource][FIELDS[match[3]]] = float(value)
        return policy

    def forecast(self, policy: dict[str, Any], hours: float, samples: int, seed: int) -> TwinForecast:
        """Starts of the workloads that wait, under this policy."""
        cluster = SnapshotCluster(self.nodes)
        twin = KueueTwin(self.jobs, self.now, self.history, cluster=cluster, horizon=hours * 3600,
                         policy={"scheduler": policy})  # fmt: skip
        return twin.forecast(samples, seed)

    def cause(self, name: str) -> str:
        """The cause of a workload's wait, by what Kueue says of it."""
        text = self.reasons.get(name, "")
        return next((cause for sign, cause in CAUSES if re.search(sign, text)), "the scheduler")

    def queues(self) -> list[dict[str, Any]]:
        """By queue: usage, quota, borrowing, waiting workloads, and whether it starves."""
        rows = []
        for name, queue in self.policy["queues"].items():
            here = [job for job in self.jobs if job.class_ == name]
            waiting, running = [job for job in here if not job.runs], [job for job in here if job.runs]
            unit = "gpus" if any("gpus" in limits for limits in queue.get("quotas", {}).values()) else "cores"
            used = math.fsum(job.gpus if unit == "gpus" else job.cpus for job in running)
            nominal = math.fsum(limits[unit].get("nominal", 0) for limits in queue.get("quotas", {}).values()
                                if unit in limits)  # fmt: skip
            rows.append({"queue": name, "unit": unit, "used": used, "nominal": nominal,
                         "borrows": max(0.0, used - nominal), "waiting": len(waiting),
                         "starves": bool(waiting) and used < nominal})  # fmt: skip
        return rows

    def lines(self, only: Sequence[str]) -> list[str]:
        """Queues and causes as text."""
        rows = [[row["queue"], f"{row['used']:g}", f"{row['nominal']:g}", row["unit"], f"{row['borrows']:g}",
                 str(row["waiting"]), "starves" if row["starves"] else ""] for row in self.queues()]  # fmt: skip
        waits = [[job.id, job.class_, self.cause(job.id), self.reasons[job.id][:70]] for job in self.jobs
                 if not job.runs and (not only or job.id in only)]  # fmt: skip
        shown = table([["queue", "uses", "has", "", "borrows", "waiting", ""], *rows], right=(1, 2, 4, 5))
        return [*shown, "", *table([["workload", "queue", "waits for", "Kueue says"], *waits[: report.SHOWN]])]


def waiting_jobs(jobs: Sequence[SnapshotJob], only: Sequence[str], path: Path) -> None:
    """Raise UsageError for a job that does not wait."""
    if gone := [name for name in only if name not in {job.id for job in jobs if not job.runs}]:
        raise UsageError(f"--job {gone[0]}: no workload of that name waits in {path}")
