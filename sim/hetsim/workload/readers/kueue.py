"""The objects of Kueue (`kueue_objects`), as kubectl prints them.

    kubectl get clusterqueues,cohorts,resourceflavors,localqueues,workloads,topologies -A -o json > k.json
    kubectl get nodes -o json > n.json
    hetsim trace convert k.json site.yaml --format kueue_objects --option nodes=n.json

Nodes are those of n.json; the level of the topology above the host defines their racks; each flavor is a partition of
the nodes with its labels.  A conversion also writes `policy:`, with the cluster queues, cohorts and flavors as
parameters of `kueue`.  cpu, memory and GPUs have quotas; a note names other resources, and what `kueue` does not model.
`fair_sharing: true` is for sites whose Configuration of Kueue enables it.
Reference: Kueue's API, v1beta1 and v1beta2 (kubernetes-sigs/kueue).
"""

import math
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from hetsim.model.units import ExistingFile
from hetsim.workload.readers.kubernetes import GPUS, amount
from hetsim.workload.readers.kubernetes import nodes as kubernetes_nodes
from hetsim.workload.readers.snapshot import SnapshotJob
from hetsim.workload.rows.job_log import JobLog, LogCut, TypeNames
from hetsim.workload.rows.json_rows import members
from hetsim.workload.rows.text_rows import Flag

RESOURCES = {"cpu": "cores", "memory": "memory", **dict.fromkeys(GPUS, "gpus")}
LIMITS = {"nominal": "nominalQuota", "borrowing": "borrowingLimit", "lending": "lendingLimit"}
# Keys of the policy's queues, and their paths in a ClusterQueue
RULES = {
    "strategy": "queueingStrategy", "within_cluster_queue": "preemption.withinClusterQueue",
    "reclaim_within_cohort": "preemption.reclaimWithinCohort",
    "borrow_within_cohort": "preemption.borrowWithinCohort.policy",
    "max_priority_threshold": "preemption.borrowWithinCohort.maxPriorityThreshold",
    "when_can_borrow": "flavorFungibility.whenCanBorrow", "when_can_preempt": "flavorFungibility.whenCanPreempt",
    "preference": "flavorFungibility.preference",
}  # fmt: skip
BOOST = "kueue.x-k8s.io/priority-boost"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TOPOLOGIES = ("required", "preferred", "unconstrained")
NOT_MODELED = ("admissionChecks", "admissionChecksStrategy", "admissionScope")


class KueueObjects:
    """Kueue's objects in a file, by kind and name, each with its line."""

    def __init__(self, path: Path, nodes: Path):
        self.log = JobLog(path, LogCut())
        self.notes: dict[str, None] = {}
        self.kinds = _objects(self.log)
        self.log.require(self.kinds.get("ClusterQueue", {}), "has no ClusterQueue")
        there = _objects(JobLog(nodes, LogCut()), "Node").get("Node", {})
        self.labels = {name: one["metadata"].get("labels") or {} for name, (_, one) in there.items()}
        self._rooms = [(one.get("status") or {}).get("allocatable") or {} for _, one in there.values()]

    def each(self, kind: str, make: Callable[[str, int, dict[str, Any]], Any]) -> dict[str, Any]:
        """Return, by name, `make(name, line, object)` of each object of a kind."""
        made = {}
        for name, (line, one) in self.kinds.get(kind, {}).items():
            try:
                made[name] = make(name, line, one)
            except (AttributeError, TypeError, KeyError, ValueError) as error:
                self.log.wrong(line, "", f"cannot be read as a {kind}: {unreadable(error)}")
        self.log.row_problems.fail_if_any()
        return made

    def policy(self, fair_sharing: bool = False) -> dict[str, Any]:
        """Return the policy `kueue` with the parameters that these objects define."""
        return {"name": "kueue", "of": "class", "fair_sharing": fair_sharing,
                "flavors": self.each("ResourceFlavor", self._flavor), "cohorts": self.each("Cohort", self._cohort),
                "queues": self.each("ClusterQueue", self._queue)}  # fmt: skip

    def _flavor(self, name: str, _: int, one: dict[str, Any]) -> dict[str, Any]:
        wanted, made = one["spec"].get("nodeLabels") or {}, dict[str, Any]()
        if not any(wanted.items() <= labels.items() for labels in self.labels.values()):
            self.notes[f"flavor {name} has no node"] = None
            made = {"nodes": ["(none)"]}
        elif wanted:
            made = {"partitions": [name]}
        return made | ({"topology": "preferred"} if one["spec"].get("topologyName") else {})

    def _cohort(self, name: str, _: int, one: dict[str, Any]) -> dict[str, Any]:
        spec, quotas = one["spec"], dict[str, dict[str, Any]]()
        for flavor in (flavor for group in spec.get("resourceGroups") or () for flavor in group["flavors"]):
            for given in flavor["resources"]:
                if (resource := RESOURCES.get(given["name"])) is None:
                    self.notes[f"quotas of {given['name']} are not modeled"] = None
                else:
                    limits = {key: amount(given[at]) for key, at in LIMITS.items() if given.get(at) is not None}
                    quotas.setdefault(str(flavor["name"]), {})[resource] = limits
        weight = (spec.get("fairSharing") or {}).get("weight")
        made = {"parent": spec.get("parentName") or spec.get("parent"), "quotas": quotas,
                "weight": None if weight is None else amount(weight)}  # fmt: skip
        return {key: value for key, value in made.items() if value not in (None, {}, "")}

    def _queue(self, name: str, line: int, one: dict[str, Any]) -> dict[str, Any]:
        spec = one["spec"]
        made = self._cohort(name, line, one) | {"cohort": spec.get("cohortName") or spec.get("cohort") or None}
        for key, at in RULES.items():
            *groups, last = at.split(".")
            given = reduce(lambda part, group: part.get(group) or {}, groups, spec).get(last)
            made[key] = _words(given) if isinstance(given, str) else given
        for key in ("when_can_borrow", "when_can_preempt"):
            made[key] = "may_stop_search" if made[key] in ("borrow", "preempt") else made[key]
        self.notes |= {f"ClusterQueue {name}: {key} is not modeled": None for key in NOT_MODELED if spec.get(key)}
        if spec.get("stopPolicy", "None") != "None":
            self.notes[f"ClusterQueue {name} is stopped ({spec['stopPolicy']}); the model admits its workloads"] = None
        return {key: value for key, value in made.items() if value not in (None, "")}

    def jobs(self) -> tuple[list[SnapshotJob], list[tuple[SnapshotJob, float]]]:
        """Return the jobs that run or wait, and the finished jobs with their ends."""
        self._largest = {unit: max((amount(room[name]) for room in self._rooms for name in room
                                    if RESOURCES.get(name) == unit), default=0.0) for unit in ("cores", "gpus")}
        self._queue_of = self.each("LocalQueue", lambda name, line, one: str(one["spec"].get("clusterQueue")))
        made = [one for one in self.each("Workload", self.job).values() if one is not None]
        over = [(job, end) for job, end in made if end is not None and end == end and job.runs]
        return [job for job, end in made if end is None], over

    def job(self, name: str, line: int, one: dict[str, Any]) -> tuple[SnapshotJob, float | None] | None:
        """Return a workload's job and its end (None: not ended, NaN: unknown), or None."""
        spec, status, meta = one["spec"], one.get("status") or {}, one["metadata"]
        says = {row["type"]: row for row in status.get("conditions") or ()}
        queue = (status.get("admission") or {}).get("clusterQueue") or self._queue_of.get(
            f"{meta.get('namespace')}/{spec.get('queueName')}", "")  # fmt: skip
        gone = {row["name"]: int(row["count"]) for row in status.get("reclaimablePods") or ()}
        needs, kind = _needs(spec["podSets"], gone)
        came = self.log.date(line, "creationTimestamp", str(meta["creationTimestamp"]))
        inactive, listed = spec.get("active") is False, queue in self.kinds["ClusterQueue"]
        if came is None or not listed or not any(needs.values()) or inactive:
            reason = "deactivated (spec.active)" if inactive else "requests neither cores nor GPUs"
            reason = reason if listed else f"in no ClusterQueue ({spec.get('queueName')})"
            self.log.leave_out(reason, line)
            self.notes[f"Workloads are left out: {reason}"] = None
            return None
        start, end = (
            self.log.date(line, key, says[key]["lastTransitionTime"]) or math.nan
            if says.get(key, {}).get("status") == "True" else None for key in ("QuotaReserved", "Finished")
        )  # fmt: skip
        return SnapshotJob(
            name, line, str(meta.get("namespace", "")), partition="", submit=came, class_=queue,
            start=math.nan if start is None else start, cpus=needs["cores"], gpus=needs["gpus"], gpu_type=kind,
            limit=float(spec.get("maximumExecutionTimeSeconds") or math.inf),
            priority=float(spec.get("priority") or 0) + float((meta.get("annotations") or {}).get(BOOST) or 0),
            reason=str(says.get("QuotaReserved", {}).get("message") or "not looked at yet (the scheduler)"),
            more=self._more(spec, status, ended=end is not None), count=self._nodes(spec["podSets"], needs, gone),
        ), end  # fmt: skip

    def _nodes(self, pod_sets: list[dict[str, Any]], needs: dict[str, float], gone: dict[str, int]) -> float:
        """Return the number of pods if each needs its own node, else 0."""
        count = sum(int(pods.get("count", 1)) for pods in pod_sets) - sum(gone.values())
        unit = "gpus" if needs["gpus"] else "cores"
        apart = len(pod_sets) == 1 and 2 * needs[unit] > count * self._largest[unit]
        return float(count) if count == 1 or apart else 0.0

    def _more(self, spec: dict[str, Any], status: dict[str, Any], ended: bool) -> dict[str, str]:
        """Return what restricts a workload: flavors, topology, a closed preemption gate."""
        specs = {name: one["spec"] for name, (_, one) in self.kinds.get("ResourceFlavor", {}).items()}
        names, parts = list(specs), () if ended else (status.get("admission") or {}).get("podSetAssignments") or ()
        for pods in spec["podSets"]:
            names = [name for name in names if suits(pods["template"]["spec"], specs[name])]
        assigned = dict.fromkeys(one for part in parts for one in (part.get("flavors") or {}).values() if one in specs)
        wanted = {key for pods in spec["podSets"] for key, name in (pods.get("topologyRequest") or {}).items() if name}
        opened = {gate["name"] for gate in status.get("preemptionGates") or () if gate.get("position") != "Closed"}
        closed = any(gate["name"] not in opened for gate in spec.get("preemptionGates") or ())
        return {"flavors": ",".join(assigned or names or ["(none)"]) if assigned or len(names) < len(specs) else "",
                "topology": next(filter(wanted.__contains__, TOPOLOGIES), ""), "preemption": closed * "gated"}


def unreadable(error: Exception) -> str:
    """Return why an object cannot be read, from the error that was raised."""
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    return str(error) if isinstance(error, ValueError) else "a field does not have the type that Kueue defines"


def _objects(log: JobLog, kind: str | None = None) -> dict[str, dict[str, tuple[int, dict[str, Any]]]]:
    kinds: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {}
    for line, one in members(log.path, "items"):
        try:
            meta, one["spec"] = one["metadata"], {**(one.get("spec") or {})}
            name = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
            kinds.setdefault(kind or str(one["kind"]), {})[name] = line, one
        except (AttributeError, TypeError, KeyError):
            log.wrong(line, "", "cannot be read as an object with kind, metadata.name and spec")
    log.row_problems.fail_if_any()
    return kinds


def suits(pods: dict[str, Any], flavor: dict[str, Any]) -> bool:
    """Return True if pods (a PodSpec) may run on the nodes of a flavor (its spec).

    They tolerate its taints, and select no other value of its node labels; a selector of other labels does not matter.
    """
    labels, affinity = flavor.get("nodeLabels") or {}, (pods.get("affinity") or {}).get("nodeAffinity") or {}
    tolerations = [*(pods.get("tolerations") or ()), *(flavor.get("tolerations") or ())]
    terms = [[one for one in term.get("matchExpressions") or () if one["key"] in labels]
             for term in (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()]  # fmt: skip
    return (
        all(labels.get(key, value) == value for key, value in (pods.get("nodeSelector") or {}).items())
        and (not terms or any(all(_matches(one, labels[one["key"]]) for one in term) for term in terms))
        and all(any(tolerates(one, taint) for one in tolerations) for taint in flavor.get("nodeTaints") or ()
                if taint.get("effect") in ("NoSchedule", "NoExecute"))
    )  # fmt: skip


def _matches(expression: dict[str, Any], value: str) -> bool:
    values, operator = expression.get("values") or [], expression["operator"]
    if operator in ("Gt", "Lt"):
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return {"In": value in values, "NotIn": value not in values, "Exists": True}.get(operator, False)


def tolerates(toleration: dict[str, str], taint: dict[str, str]) -> bool:
    """Return True if a toleration of pods covers a taint of nodes."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def _needs(pod_sets: list[dict[str, Any]], gone: dict[str, int]) -> tuple[dict[str, float], str]:
    needs, kind = {"cores": 0.0, "gpus": 0.0, "memory": 0.0}, ""
    for pods in pod_sets:
        count = max(0, int(pods.get("count", 1)) - gone.get(str(pods.get("name")), 0))
        template = pods["template"]["spec"]
        selected = (template.get("nodeSelector") or {}).items()
        kind = next((value for key, value in selected if "gpu.product" in key), kind)
        for container in template.get("containers") or ():
            resources = container.get("resources") or {}
            for key, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                if key in RESOURCES:
                    needs[RESOURCES[key]] += amount(value) * count
    return needs, kind


def _words(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def nodes(
    path: ExistingFile, *, nodes: ExistingFile, types: TypeNames | None = None, fair_sharing: Flag = False
) -> list[Any]:
    """The nodes of a cluster with Kueue, in the racks of its topology."""
    objects = KueueObjects(Path(path), Path(nodes))
    levels = objects.each("Topology", lambda name, line, one: [
        str(level["nodeLabel"]) for level in one["spec"]["levels"] if level["nodeLabel"] != "kubernetes.io/hostname"])
    rack = ["", *(level for several in levels.values() for level in several)][-1]
    wanted = objects.each("ResourceFlavor", lambda name, line, one: {**(one["spec"].get("nodeLabels") or {})})
    listed = kubernetes_nodes(nodes, types=types)
    for node in listed:
        labels = objects.labels[node["name"]]
        if labels.get(rack):
            node["rack"] = str(labels[rack])
        if inside := [name for name, pairs in wanted.items() if pairs and pairs.items() <= labels.items()]:
            node["partitions"] = inside
    return listed


def policy_and_notes(
    path: str, *, nodes: str, fair_sharing: bool = False, **_: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return `policy:` for the objects in a file, and notes on what is not modeled."""
    objects = KueueObjects(Path(path), Path(nodes))
    return {"policy": {"scheduler": objects.policy(fair_sharing)}}, [f"{path}: {note}" for note in objects.notes]


nodes.more = policy_and_notes  # type: ignore[attr-defined]
