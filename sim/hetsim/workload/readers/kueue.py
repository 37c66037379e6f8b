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
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from hetsim.errors import KeyProblem
from hetsim.model.units import ExistingFile
from hetsim.workload.readers.kubernetes import GPUS, amount, requests_of
from hetsim.workload.readers.kubernetes import nodes as kubernetes_nodes
from hetsim.workload.readers.snapshot import SnapshotJob
from hetsim.workload.rows.job_log import JobLog, LogCut, TypeNames
from hetsim.workload.rows.json_rows import members
from hetsim.workload.rows.text_rows import Flag

RESOURCES = {"cpu": "cores", "memory": "memory", **dict.fromkeys(GPUS, "gpus")}
LIMITS = {"nominal": "nominalQuota", "borrowing": "borrowingLimit", "lending": "lendingLimit"}
# Keys of the policy's queues, and their paths in a ClusterQueue
RULES = {"strategy": "queueingStrategy", "within_cluster_queue": "preemption.withinClusterQueue",
         "reclaim_within_cohort": "preemption.reclaimWithinCohort",
         "borrow_within_cohort": "preemption.borrowWithinCohort.policy",
         "max_priority_threshold": "preemption.borrowWithinCohort.maxPriorityThreshold",
         "when_can_borrow": "flavorFungibility.whenCanBorrow", "when_can_preempt": "flavorFungibility.whenCanPreempt",
         "preference": "flavorFungibility.preference"}  # fmt: skip
BOOST, LIMIT = "kueue.x-k8s.io/priority-boost", "maximumExecutionTimeSeconds"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TOPOLOGIES = ("required", "preferred", "unconstrained")
HOST = "kubernetes.io/hostname"
MAX_COUNT, MAX_INT, MAX_LONG = 1_000_000, 2**31 - 1, 2**63 - 1
NOT_MODELED = ("admissionChecks", "admissionChecksStrategy", "admissionScope")


class KueueObjects:
    """Kueue's objects in a file, by kind and name, each with its line."""

    def __init__(self, path: Path, nodes: Path):
        self.log = JobLog(path, LogCut())
        self.notes: dict[str, None] = {}
        self.kinds = _objects(self.log)
        self.log.require(self.kinds.get("ClusterQueue", {}), "has no ClusterQueue")
        there = _objects(JobLog(nodes, LogCut()), "Node").get("Node", {})
        self.labels = {name: (one["metadata"].get("labels") or {}) | {"metadata.name": name}
                       for name, (_, one) in there.items()}  # fmt: skip
        self._rooms = [(one.get("status") or {}).get("allocatable") or {} for _, one in there.values()]
        self.flavors = {name: one["spec"] for name, (_, one) in self.kinds.get("ResourceFlavor", {}).items()}
        self.levels = self.each("Topology", lambda name, line, one: [
            str(level["nodeLabel"]) for level in one["spec"]["levels"]])  # fmt: skip
        every = {level: None for levels in self.levels.values() for level in levels if level != HOST}
        self.rack = [*every, ""][len(every) - 1]
        self.domains: dict[str, dict[str, list[str]]] = {}  # nodes by level above the racks, and domain
        for level, name in ((level, name) for level in every if level != self.rack for name in self.labels):
            if domain := self.domain_of(name, level):
                self.domains.setdefault(level, {}).setdefault(domain, []).append(name)
        self.places: dict[tuple[str, ...], str] = {}  # sets of nodes that pods select, and partitions for them
        self._inside: dict[str, tuple[str, ...]] = {}  # nodes by selector
        self.submitted: dict[str, str] = {}  # places of the workloads of manifests
        self._absent: dict[str, dict[str, Any]] = {}  # flavors that quotas name and the file lacks

    def domain_of(self, node: str, level: str) -> str:
        """Return a node's labels from the top level down to `level`, joined by /, or ""."""
        levels, labels = next((one for one in self.levels.values() if level in one), [level]), self.labels[node]
        path = [str(labels[key]) for key in levels[: levels.index(level) + 1] if labels.get(key)]
        return "/".join(path) if labels.get(level) else ""

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
        made = {"cohorts": self.each("Cohort", self._cohort), "queues": self.each("ClusterQueue", self._queue)}
        return {"name": "kueue", "of": "class", "fair_sharing": fair_sharing,
                "flavors": self.each("ResourceFlavor", self._flavor) | self._absent,
                **({"levels": self.domains} if self.domains else {}), **made}  # fmt: skip

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
            if (named := str(flavor["name"])) not in self.flavors:
                self._absent[named] = {"nodes": ["(none)"]}
                self.notes[f"{one['kind']} {name} names the flavor {named}, which the file does not have"] = None
            for given in flavor["resources"]:
                if (resource := RESOURCES.get(given["name"])) is None:
                    self.notes[f"quotas of {given['name']} are not modeled"] = None
                else:
                    limits = {key: amount(given[at]) for key, at in LIMITS.items() if given.get(at) is not None}
                    quotas.setdefault(named, {})[resource] = limits
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
        self._note_stop(f"ClusterQueue {name}", spec)
        return {key: value for key, value in made.items() if value not in (None, "")}

    def _note_stop(self, what: str, spec: dict[str, Any]) -> None:
        if spec.get("stopPolicy", "None") != "None":
            self.notes[f"{what} is stopped ({spec['stopPolicy']}); the model admits its workloads"] = None

    def _local_queue(self, name: str, _: int, one: dict[str, Any]) -> str:
        self._note_stop(f"LocalQueue {name}", one["spec"])
        return str(one["spec"].get("clusterQueue"))

    def jobs(self) -> tuple[list[SnapshotJob], list[tuple[SnapshotJob, float]]]:
        """Return the jobs that run or wait, and the finished jobs with their ends."""
        self._largest = {unit: max((amount(room[name]) for room in self._rooms for name in room
                                    if RESOURCES.get(name) == unit), default=0.0) for unit in ("cores", "gpus")}
        self._queue_of = self.each("LocalQueue", self._local_queue)
        made = [one for one in self.each("Workload", self.job).values() if one is not None]
        over = [(job, end) for job, end in made if end is not None and end == end and job.runs]
        return [job for job, end in made if end is None], over

    def job(self, name: str, line: int, one: dict[str, Any]) -> tuple[SnapshotJob, float | None] | None:
        """Return a job and its end (None: not yet, NaN: unknown); None if it is left out."""
        spec, status, meta = one["spec"], one.get("status") or {}, one["metadata"]
        says = {row["type"]: row for row in status.get("conditions") or ()}
        queue = (status.get("admission") or {}).get("clusterQueue") or self._queue_of.get(
            f"{meta.get('namespace')}/{spec.get('queueName')}", "")  # fmt: skip
        gone = {row["name"]: whole_number(row["count"], "status.reclaimablePods.count")
                for row in status.get("reclaimablePods") or ()}  # fmt: skip
        counts = [max(0, whole_number(pods.get("count", 1), "spec.podSets.count") - gone.get(pods.get("name"), 0))
                  for pods in spec["podSets"]]  # fmt: skip
        needs, kind = _needs(spec["podSets"], counts)
        came = self.log.date(line, "creationTimestamp", str(meta["creationTimestamp"]))
        inactive, listed = spec.get("active") is False, queue in self.kinds["ClusterQueue"]
        start, end = (
            self.log.date(line, key, says[key]["lastTransitionTime"]) or math.nan
            if says.get(key, {}).get("status") == "True" else None for key in ("QuotaReserved", "Finished")
        )  # fmt: skip
        more = self._more(spec, status, queue, ended=end is not None) if listed else {}
        self.reason = next((text for is_so, text in (
            (not listed, f"in no ClusterQueue ({spec.get('queueName')})"), (inactive, "deactivated (spec.active)"),
            (not any(needs.values()), "it has no pods, or they request neither cores nor GPUs"),
            (start is None and "partition" not in more, "no node has the labels that its pods select")) if is_so), "")
        if came is None or self.reason:
            self.log.leave_out(self.reason, line)
            self.notes[f"Workloads are left out: {self.reason}"] = None
            return None
        alone = len(counts) == 1 and (spec["podSets"][0].get("topologyRequest") or {}).get("required") == HOST
        limit, boost = spec.get(LIMIT), (meta.get("annotations") or {}).get(BOOST) or 0
        priority = whole_number(spec.get("priority") or 0, "spec.priority", -MAX_INT, MAX_INT)
        return SnapshotJob(
            name, line, str(meta.get("namespace", "")), partition="", submit=came, class_=queue,
            start=math.nan if start is None else start, cpus=needs["cores"], gpus=needs["gpus"], gpu_type=kind,
            limit=math.inf if limit is None else float(whole_number(limit, f"spec.{LIMIT}", 1, MAX_INT)),
            priority=float(priority + whole_number(boost, f"metadata.annotations.{BOOST}", -MAX_INT, MAX_INT)),
            reason=str(says.get("QuotaReserved", {}).get("message") or "not looked at yet (the scheduler)"),
            more=more, count=1.0 if alone else self._nodes(counts, needs),
        ), end  # fmt: skip

    def _nodes(self, counts: list[int], needs: dict[str, float]) -> float:
        """Return the number of nodes if each pod needs its own node, else 0."""
        count, unit = sum(counts), "gpus" if needs["gpus"] else "cores"
        apart = len(counts) == 1 and 2 * needs[unit] > count * self._largest[unit]
        return float(count) if count == 1 or apart else 0.0

    def _more(self, spec: dict[str, Any], status: dict[str, Any], queue: str, ended: bool) -> dict[str, str]:
        """Return a job's flavors, topology, preemption gate and (if nodes suit) partition."""
        pods, flavors = [one["template"]["spec"] for one in spec["podSets"]], self.flavors
        parts = () if ended else (status.get("admission") or {}).get("podSetAssignments") or ()
        groups = [[str(flavor["name"]) for flavor in group["flavors"]]
                  for group in self.kinds["ClusterQueue"][queue][1]["spec"].get("resourceGroups") or ()]  # fmt: skip
        wanted = sorted((TOPOLOGIES.index(key), str(level)) for one in spec["podSets"]
                        for key, level in (one.get("topologyRequest") or {}).items() if key in TOPOLOGIES and level)
        topology, level = (TOPOLOGIES[wanted[0][0]], wanted[0][1]) if wanted else ("", "")
        level = level if topology in TOPOLOGIES[:2] and self.levels else ""
        names = [name for group in groups for name in group if name in flavors and self._has(flavors[name], level)
                 and all(suits(one, flavors[name]) for one in pods)]  # fmt: skip
        assigned = dict.fromkeys(one for part in parts for one in (part.get("flavors") or {}).values())
        opened = {gate["name"] for gate in status.get("preemptionGates") or () if gate.get("position") != "Closed"}
        closed = any(gate["name"] not in opened for gate in spec.get("preemptionGates") or ())
        assigned = {name: None for name in assigned if name in flavors}
        listed = assigned or len(names) < sum(map(len, groups))
        more = {"flavors": ",".join(assigned or names or ["(none)"]) if listed else "", "preemption": closed * "gated",
                "topology": f"{topology} {level}" if level in self.domains else topology, "file": str(self.log.path)}
        # Flavors are chosen by their own labels, but the nodes of the pods have all that the pods select.
        own_labels, place = [flavors[name].get("nodeLabels") or {} for name in assigned or names], ""
        if any(key not in own for own in own_labels for one in pods for key in _selected(one)):
            selector = repr([(one.get("nodeSelector"), _terms(one)) for one in pods])
            if selector not in self._inside:
                self._inside[selector] = tuple(
                    name for name, labels in self.labels.items() if all(selects(one, labels) for one in pods))
            if not (inside := self._inside[selector]):
                return more
            place = self.places.setdefault(inside, f"selector {len(self.places)}") * (len(inside) < len(self.labels))
        return more | {"partition": place}

    def _has(self, flavor: dict[str, Any], level: str) -> bool:
        """Return True if the topology of a flavor has a level, and nodes have it, too."""
        named = flavor.get("topologyName") or ""
        there = self.levels.get(named, [level] if named else [])  # of a topology that the file lacks, all
        return not level or (level in there and (level in (self.rack, HOST) or level in self.domains))


def whole_number(given: Any, what: str, low: int = 0, high: int = MAX_COUNT) -> int:
    """Return a whole number in a field; ValueError that says what it must be."""
    if not re.fullmatch(r"-?\d{1,19}", str(given)) or not low <= int(given) <= high:
        raise KeyProblem(what, f"{what} must be a whole number from {low:,} to {high:,}; got {given}")
    return int(given)


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
            there = kinds.setdefault(own := kind or str(one["kind"]), {})
            if name in there:
                log.wrong(line, "", f"{own} {name} is also in line {there[name][0]}; keep one of them")
            there[name] = line, one
        except (AttributeError, TypeError, KeyError):
            log.wrong(line, "", "cannot be read as an object with kind, metadata.name and spec")
    log.row_problems.fail_if_any()
    return kinds


def suits(pods: dict[str, Any], flavor: dict[str, Any]) -> bool:
    """Return True if pods (a PodSpec) may run on the nodes of a flavor (its spec).

    Pods must tolerate the flavor's taints, and their selectors must match its node labels; other labels are ignored.
    """
    tolerations = [*(pods.get("tolerations") or ()), *(flavor.get("tolerations") or ())]
    labels = flavor.get("nodeLabels") or {}
    return selects(pods, labels, labels) and all(
        any(tolerates(one, taint) for one in tolerations) for taint in flavor.get("nodeTaints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
    )  # fmt: skip


def selects(pods: dict[str, Any], labels: Mapping[str, str], keys: Collection[str] | None = None) -> bool:
    """Return True if selector and affinity of pods match labels (of these keys)."""
    terms = [[one for one in term if keys is None or one["key"] in keys] for term in _terms(pods)]
    return all(labels.get(key) == value for key, value in (pods.get("nodeSelector") or {}).items()
               if keys is None or key in keys) and (
        not terms or any(all(_matches(one, labels.get(one["key"])) for one in term) for term in terms))  # fmt: skip


def _terms(pods: dict[str, Any]) -> list[list[dict[str, Any]]]:
    needed = (((pods.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}).get("nodeSelectorTerms")
    return [[*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())] for term in needed or ()]


def _selected(pods: dict[str, Any]) -> set[str]:
    return {*(pods.get("nodeSelector") or {}), *(one["key"] for term in _terms(pods) for one in term)}


def _matches(expression: dict[str, Any], value: str | None) -> bool:
    values, operator = expression.get("values") or [], expression["operator"]
    if operator in ("Gt", "Lt"):
        given, what = values[0] if len(values) == 1 else values, f"spec.template: the value of {operator}"
        bound = whole_number(given, what, -MAX_LONG, MAX_LONG)
        number = int(value) if value is not None and re.fullmatch(r"-?\d{1,19}", value) else bound
        return number > bound if operator == "Gt" else number < bound
    there = value is not None
    return {"In": value in values, "NotIn": value not in values, "Exists": there}.get(
        operator, operator == "DoesNotExist" and not there)  # fmt: skip


def tolerates(toleration: dict[str, str], taint: dict[str, str]) -> bool:
    """Return True if a toleration of pods covers a taint of nodes."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def _needs(pod_sets: list[dict[str, Any]], counts: list[int]) -> tuple[dict[str, float], str]:
    needs, kind = {"cores": 0.0, "gpus": 0.0, "memory": 0.0}, ""
    for pods, count in zip(pod_sets, counts, strict=True):
        template = pods["template"]["spec"]
        selected = (template.get("nodeSelector") or {}).items()
        kind = next((value for key, value in selected if "gpu.product" in key), kind)
        for key, value in requests_of(template).items():
            if key in RESOURCES:
                needs[RESOURCES[key]] += value * count
    return needs, kind


def _words(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def nodes(
    path: ExistingFile, *, nodes: ExistingFile, types: TypeNames | None = None, fair_sharing: Flag = False
) -> list[Any]:
    """The nodes of a Kueue cluster with their racks; types: other names for GPU types."""
    objects = KueueObjects(Path(path), Path(nodes))
    wanted = objects.each("ResourceFlavor", lambda name, line, one: {**(one["spec"].get("nodeLabels") or {})})
    listed = kubernetes_nodes(nodes, types=types)
    for node in listed:
        labels = objects.labels[node["name"]]
        if rack := objects.domain_of(node["name"], objects.rack):
            node["rack"] = rack
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
