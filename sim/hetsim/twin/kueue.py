"""A forecast of a cluster with Kueue, from its objects (`hetsim twin --kueue`).

Workloads with quota run, others wait; finished workloads are the history from which run times and arrivals are drawn.
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
from hetsim.twin.manifest import unsubmitted
from hetsim.workload.logs.history import JobHistory
from hetsim.workload.readers.kueue import RESOURCES, KueueObjects
from hetsim.workload.readers.kueue import nodes as nodes_of
from hetsim.workload.readers.snapshot import FURTHER

# Patterns in Kueue's messages, and the cause of the wait; without a match, the scheduler
CAUSES = (("preempt", "preemption"), ("topolog|couldn't assign .*domain", "topology"),
          ("untolerated|affinity|flavor .* not found|unavailable in", "flavor"),
          ("insufficient|quota|no longer fits", "quota"))  # fmt: skip
CHANGE = re.compile(r"(clusterqueues|cohorts)\.(.+)\.(nominalQuota|borrowingLimit|lendingLimit)\.(?:([^.]+)\.)?(\w+)")
FIELDS = {"nominalQuota": "nominal", "borrowingLimit": "borrowing", "lendingLimit": "lending"}
SHORT = {"gpu": "gpus", "gpus": "gpus", "cores": "cores", **RESOURCES}


class KueueTwin(Twin):
    """A `Twin` with Kueue: each job has the priority of its Kueue Workload object."""

    def _with_rules(self, policy: Any) -> Any:
        ranks = [job.priority for job in self.running], [job.priority for job in self.waiting]
        self._own = {"r": ranks[0], "w": ranks[1], "h": self.history.labels["rank"].tolist()}
        return policy


class KueueCluster:
    """A cluster with Kueue at an instant: its nodes, jobs, history and policy."""

    def __init__(self, path: Path, nodes: Path, now: float | None, fair_sharing: bool, manifests: Sequence[Path] = ()):
        self.objects = KueueObjects(path, nodes)
        self.policy = self.objects.policy(fair_sharing)
        self.nodes = nodes_of(path, nodes=nodes)
        self.jobs, over = self.objects.jobs()
        instants = [time for job in self.jobs for time in (job.submit, job.start)] + [end for _, end in over]
        self.now = max((time for time in instants if time == time), default=0.0) if now is None else now
        self.unsubmitted = [job for file in manifests for job in unsubmitted(file, self.objects, self.now)]
        for inside, name in self.objects.places.items():
            for node in (node for node in self.nodes if node["name"] in inside):
                node["partitions"] = [*node.get("partitions", ()), name]
        over.sort(key=lambda one: one[0].submit)
        past = [job for job, _ in over]
        columns = {name: np.array([getattr(job, name) for job in past], dtype=float)
                   for name in ("submit", "start", "limit", "cpus", "gpus", "count", "priority")}  # fmt: skip
        texts = {name: np.array([getattr(job, name) for job in past], dtype=object)
                 for name in ("gpu_type", "user", "class_", "partition", "account", "qos")}  # fmt: skip
        labels = {"rank": columns.pop("priority"), "class": texts.pop("class_")}
        texts |= {name: np.array([job.more.get(name, "") for job in past], dtype=object)
                  for name in (*FURTHER, "partition")}  # fmt: skip
        runtime, kind = np.array([end for _, end in over]) - columns["start"], texts.pop("gpu_type")
        self.history = JobHistory(str(path), runtime=runtime, kind=kind, labels=texts | labels,
                                  nodes=columns.pop("count"), **columns)  # fmt: skip

    def changed(self, changes: Sequence[str]) -> dict[str, Any]:
        """Return the Kueue policy after changes like clusterqueues.A.nominalQuota.gpu=64."""
        policy = copy.deepcopy(self.policy)
        for change in changes:
            key, _, value = change.partition("=")
            match = CHANGE.fullmatch(key)
            if match is None or match[5] not in SHORT or not re.fullmatch(r"\d+(\.\d+)?", value):
                text = "must be like clusterqueues.NAME.nominalQuota.gpu=64 (or borrowingLimit, lendingLimit, cohorts)"
                raise UsageError(f'--what-if {text}; got "{change}"')
            group = policy["queues" if match[1] == "clusterqueues" else "cohorts"]
            if match[2] not in group:
                raise UsageError(f"--what-if: {match[1]} has no {match[2]}{suggestion(match[2], list(group))}")
            quotas, resource = group[match[2]].get("quotas", {}), SHORT[match[5]]
            having = [name for name, limits in quotas.items() if resource in limits and match[4] in (None, name)]
            if len(having) != 1:
                names = ", ".join(having or quotas) or "none"
                text = f"name one of the flavors of {match[2]} before {match[5]} ({names}), as in {match[3]}.FLAVOR.gpu"
                raise UsageError(f"--what-if: {text}")
            quotas[having[0]][resource][FIELDS[match[3]]] = float(value)
        return policy

    def forecast(self, policy: dict[str, Any], hours: float, samples: int, seed: int) -> TwinForecast:
        """Return a forecast of the starts of waiting workloads, under this policy."""
        cluster = SnapshotCluster(self.nodes)
        twin = KueueTwin([*self.jobs, *self.unsubmitted], self.now, self.history, cluster=cluster, horizon=hours * 3600,
                         policy={"scheduler": policy})  # fmt: skip
        return twin.forecast(samples, seed)

    def causes(self) -> dict[str, str]:
        """Return why each workload waits, from Kueue's message."""
        return {job.id: next((cause for sign, cause in CAUSES if re.search(sign, job.reason)), "the scheduler")
                for job in self.jobs} | {job.id: "not submitted" for job in self.unsubmitted}  # fmt: skip

    def queues(self) -> list[dict[str, Any]]:
        """Return, by queue, its usage, quota, borrowing, waiting workloads and starvation."""
        rows = []
        for name, queue in self.policy["queues"].items():
            quotas = queue.get("quotas", {}).values()
            unit = "gpus" if any("gpus" in limits for limits in quotas) else "cores"
            here = [job for job in self.jobs if job.class_ == name]
            used = math.fsum(job.gpus if unit == "gpus" else job.cpus for job in here if job.runs)
            nominal = math.fsum(limits[unit].get("nominal", 0) for limits in quotas if unit in limits)
            waiting = sum(not job.runs for job in here)
            rows.append({"queue": name, "used": used, "nominal": nominal, "unit": unit,
                         "borrows": max(0.0, used - nominal), "waiting": waiting,
                         "starves": bool(waiting) and used < nominal})  # fmt: skip
        return rows

    def tables(self, only: Sequence[str] = ()) -> dict[str, list[list[str]]]:
        """Return tables of queues and of causes of waits; the first row has the headings."""
        rows = [[f"{one:g}" if isinstance(one, float) else str(one) for one in list(row.values())[:-1]]
                + ["starves" if row["starves"] else ""] for row in self.queues()]  # fmt: skip
        causes = self.causes()
        waits = [[job.id, job.class_, causes[job.id], job.reason[:70]] for job in [*self.jobs, *self.unsubmitted]
                 if not job.runs and (not only or job.id in only)]  # fmt: skip
        return {"Queues": [["queue", "uses", "has", "unit", "borrows", "waiting", "state"], *rows],
                "Why workloads wait": [["workload", "queue", "waits for", "Kueue says"], *waits]}  # fmt: skip

    def lines(self, only: Sequence[str]) -> list[str]:
        queues, waits = self.tables(only).values()
        return [*table(queues, right=(1, 2, 4, 5)), "", *table(waits[: report.SHOWN + 1])]
