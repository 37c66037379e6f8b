"""The objects of Kueue (`kueue_objects`), as kubectl prints them.

    kubectl get clusterqueues,cohorts,resourceflavors,localqueues,workloads,topologies -A -o json > k.json
    kubectl get nodes -o json > n.json
    hetsim trace convert k.json site.yaml --form kueue_objects --option nodes=n.json

Nodes are those of n.json, in racks by the level of the topology above the host, and each flavor is a partition of
those with its labels.  Converted, the file becomes
`policy:`, the cluster queues, cohorts and flavors as `kueue` takes them.  cpu, memory and GPUs have quotas there; other
resources, and what `kueue` does not model, are named in a note.  `fair_sharing: true`: as Kueue's Configuration says.
Reference: Kueue's API, v1beta1 and v1beta2 (kubernetes-sigs/kueue).
"""

import math
import re
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
NOT_MODELED = {"ClusterQueue": ("admissionChecks", "admissionChecksStrategy", "admissionScope")}


class KueueObjects:
    """The objects of a file by kind and name, each with its line."""

    def __init__(self, path: Path, nodes: Path):
        self.log = JobLog(path, LogCut())
        self.kinds: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {}
        self.notes: dict[str, None] = {}
        for line, one in members(path, "items"):
            try:
                meta = one["metadata"]
                name = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
                self.kinds.setdefault(str(one["kind"]), {})[name] = line, one
            except (AttributeError, TypeError, KeyError) as error:
                self.log.wrong(line, "", f"cannot be read as an object with kind and name: {error}")
        self.log.require(self.kinds.get("ClusterQueue", {}), "has no ClusterQueue")
        self.labels = {str(one["metadata"]["name"]): one["metadata"].get("labels") or {}
                       for _, one in members(nodes, "items")}  # fmt: skip

    def specs(self, kind: str) -> dict[str, dict[str, Any]]:
        """The specs of all objects of a kind, by name."""
        return {name: one.get("spec") or {} for name, (_, one) in self.kinds.get(kind, {}).items()}

    def policy(self, fair_sharing: bool = False) -> dict[str, Any]:
        """The policy `kueue` as these objects set it up."""
        parts: dict[str, Any] = {"name": "kueue", "of": "class", "fair_sharing": fair_sharing}
        parts["flavors"] = {}
        for name, spec in self.specs("ResourceFlavor").items():
            wanted = spec.get("nodeLabels") or {}
            parts["flavors"][name] = {"partitions": [name]} if wanted else {}
            if not any(wanted.items() <= labels.items() for labels in self.labels.values()):
                self.notes[f"flavor {name} has no node"] = None
                parts["flavors"][name] = {"nodes": ["(none)"]}
            parts["flavors"][name] |= {"topology": "preferred"} if spec.get("topologyName") else {}
        for kind, key, make in (("Cohort", "cohorts", self._cohort), ("ClusterQueue", "queues", self._queue)):
            parts[key] = {}
            for name, (line, one) in self.kinds.get(kind, {}).items():
                try:
                    parts[key][name] = make(name, one.get("spec") or {})
                except (AttributeError, TypeError, KeyError, ValueError) as error:
                    self.log.wrong(line, "", f"cannot be read as a {kind}: {error}")
        self.log.row_problems.fail_if_any()
        return parts

    def _cohort(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        weight = (spec.get("fairSharing") or {}).get("weight")
        parent = spec.get("parentName") or spec.get("parent")
        made = {"parent": parent, "quotas": self._quotas(spec), "weight": None if weight is None else amount(weight)}
        return {key: value for key, value in made.items() if value not in (None, {}, "")}

    def _queue(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        made = self._cohort(name, spec)
        made |= {"cohort": cohort} if (cohort := spec.get("cohortName") or spec.get("cohort")) else {}
        made |= {"strategy": _words(spec["queueingStrategy"])} if "queueingStrategy" in spec else {}
        preemption, fungibility = spec.get("preemption") or {}, spec.get("flavorFungibility") or {}
        for key in ("withinClusterQueue", "reclaimWithinCohort"):
            made |= {_words(key): _words(preemption[key])} if key in preemption else {}
        borrow = preemption.get("borrowWithinCohort") or {}
        made |= {"borrow_within_cohort": _words(borrow["policy"])} if "policy" in borrow else {}
        if borrow.get("maxPriorityThreshold") is not None:
            made["max_priority_threshold"] = borrow["maxPriorityThreshold"]
        for key in ("whenCanBorrow", "whenCanPreempt"):
            given = _words(fungibility.get(key, ""))
            made |= {_words(key): "may_stop_search" if given in ("borrow", "preempt") else given} if given else {}
        made |= {"preference": _words(fungibility["preference"])} if fungibility.get("preference") else {}
        for key in NOT_MODELED["ClusterQueue"]:
            if spec.get(key):
                self.notes[f"ClusterQueue {name}: {key} is not modeled"] = None
        if spec.get("stopPolicy", "None") != "None":
            self.notes[f"ClusterQueue {name} is stopped ({spec['stopPolicy']}); here it admits workloads"] = None
        return made

    def _quotas(self, spec: dict[str, Any]) -> dict[str, Any]:
        quotas: dict[str, Any] = {}
        for group in spec.get("resourceGroups") or ():
            for flavor in group["flavors"]:
                for one in flavor["resources"]:
                    if (name := RESOURCES.get(one["name"])) is None:
                        self.notes[f"quotas of {one['name']} are not modeled"] = None
                        continue
                    keys = {"nominal": "nominalQuota", "borrowing": "borrowingLimit", "lending": "lendingLimit"}
                    limits = {key: amount(one[given]) for key, given in keys.items() if one.get(given) is not None}
                    quotas.setdefault(str(flavor["name"]), {})[name] = limits
        return quotas

    def jobs(self) -> tuple[list[SnapshotJob], list[tuple[SnapshotJob, float]], dict[str, str]]:
        """Workloads that run or wait, those that are over, and what Kueue says.

        Those that are over have their ends.
        """
        queue_of = {name: str(spec.get("clusterQueue")) for name, spec in self.specs("LocalQueue").items()}
        there, over, reasons = list[SnapshotJob](), list[tuple[SnapshotJob, float]](), dict[str, str]()
        for name, (line, one) in self.kinds.get("Workload", {}).items():
            try:
                spec, status, meta = one["spec"], one.get("status") or {}, one["metadata"]
                says = {row["type"]: row for row in status.get("conditions") or () if row.get("status") == "True"}
                reserved = [row for row in status.get("conditions") or () if row["type"] == "QuotaReserved"]
                waits: dict[str, Any] = next(iter(reserved), {})
                queue = (status.get("admission") or {}).get("clusterQueue") or queue_of.get(
                    f"{meta.get('namespace')}/{spec.get('queueName')}", "")  # fmt: skip
                if queue not in self.kinds["ClusterQueue"]:
                    self.log.leave_out(f"in no ClusterQueue ({spec.get('queueName')})", line)
                    continue
                start = math.nan
                if "QuotaReserved" in says:
                    start = self.log.date(line, "QuotaReserved", says["QuotaReserved"]["lastTransitionTime"]) or start
                needs, kind = _needs(spec["podSets"])
                came = self.log.date(line, "creationTimestamp", str(meta["creationTimestamp"]))
                if came is None or not any(needs.values()):
                    self.log.leave_out("asks for neither cores nor GPUs", line)
                    continue
                job = SnapshotJob(
                    name, line, str(meta.get("namespace", "")), partition="", submit=came, start=start, class_=queue,
                    limit=float(spec.get("maximumExecutionTimeSeconds") or math.inf), cpus=needs["cores"],
                    gpus=needs["gpus"], gpu_type=kind, priority=float(spec.get("priority") or 0),
                    reason=str(waits.get("message", "")),
                )  # fmt: skip
                if "Finished" in says:
                    end = self.log.date(line, "Finished", says["Finished"]["lastTransitionTime"])
                    over += [(job, end)] if end is not None and start == start else []
                else:
                    there.append(job)
                    reasons[name] = str(waits.get("message") or "not looked at yet (the scheduler)")
            except (AttributeError, TypeError, KeyError, ValueError) as error:
                self.log.wrong(line, "", f"cannot be read as a Workload: {error}")
        self.log.row_problems.fail_if_any()
        return there, over, reasons


def _needs(pod_sets: list[dict[str, Any]]) -> tuple[dict[str, float], str]:
    """The requests of all pods of a workload, and the type of GPU that they select."""
    needs, kind = {"cores": 0.0, "gpus": 0.0, "memory": 0.0}, ""
    for pods in pod_sets:
        template = pods["template"]["spec"]
        selected = (template.get("nodeSelector") or {}).items()
        kind = next((value for key, value in selected if "gpu.product" in key), kind)
        for container in template.get("containers") or ():
            resources = container.get("resources") or {}
            for key, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                if key in RESOURCES:
                    needs[RESOURCES[key]] += amount(value) * int(pods.get("count", 1))
    return needs, kind


def _words(text: str) -> str:
    """StrictFIFO as strict_fifo, LowerPriority as lower_priority."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def nodes(
    path: ExistingFile, *, nodes: ExistingFile, types: TypeNames | None = None, fair_sharing: Flag = False
) -> list[Any]:
    """The nodes of a cluster with Kueue, in the racks of its topology."""
    objects = KueueObjects(Path(path), Path(nodes))
    levels = [level["nodeLabel"] for spec in objects.specs("Topology").values()
              for level in spec.get("levels") or () if level.get("nodeLabel") != "kubernetes.io/hostname"]  # fmt: skip
    listed = kubernetes_nodes(nodes, types=types)
    for node in listed:
        labels = objects.labels[node["name"]]
        if levels and labels.get(levels[-1]):
            node["rack"] = str(labels[levels[-1]])
        wanted = {name: spec.get("nodeLabels") or {} for name, spec in objects.specs("ResourceFlavor").items()}
        if inside := [name for name, pairs in wanted.items() if pairs and pairs.items() <= labels.items()]:
            node["partitions"] = inside
    return listed


def policy_and_notes(
    path: str, *, nodes: str, fair_sharing: bool = False, **_: Any
) -> tuple[dict[str, Any], list[str]]:
    """`policy:` of the objects in a file, and notes on what it leaves out."""
    objects = KueueObjects(Path(path), Path(nodes))
    policy = objects.policy(fair_sharing)
    return {"policy": {"scheduler": policy}}, [f"{path}: {note}" for note in objects.notes]


nodes.more = policy_and_notes  # type: ignore[attr-defined]
