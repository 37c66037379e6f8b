"""A small cluster with Kueue, as kubectl prints it."""

import json
from datetime import datetime


def at(minute):
    return f"2026-06-09T{10 + minute // 60:02d}:{minute % 60:02d}:00Z"


def instant(minute):
    return datetime.fromisoformat(at(minute)).timestamp()


def workload(name, queue, gpus, came, start=None, end=None, priority=0, message=""):
    conditions = []
    if start is not None:
        conditions.append({"type": "QuotaReserved", "status": "True", "lastTransitionTime": at(start)})
    elif message:
        conditions.append(
            {"type": "QuotaReserved", "status": "False", "lastTransitionTime": at(came), "message": message}
        )
    if end is not None:
        conditions.append({"type": "Finished", "status": "True", "lastTransitionTime": at(end)})
    pods = {"name": "main", "count": gpus, "template": {"spec": {"containers": [
        {"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}]}}}  # fmt: skip
    status = {"conditions": conditions} | ({"admission": {"clusterQueue": queue}} if start is not None else {})
    return {"kind": "Workload", "metadata": {"namespace": queue, "name": name, "creationTimestamp": at(came)},
            "spec": {"queueName": "main", "podSets": [pods], "priority": priority}, "status": status}  # fmt: skip


def queue(name, nominal, **more):
    quota = {"name": "nvidia.com/gpu", "nominalQuota": str(nominal)}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {
        "cohortName": "all", "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": [{"flavors": [{"name": "a100", "resources": [quota]}]}],
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}, **more}}  # fmt: skip


def objects():
    over = [
        workload(f"old-{k}", "ab"[k % 2], 1 + k % 2, came=4 * k, start=4 * k, end=4 * k + 10 + k) for k in range(40)
    ]
    there = [
        workload("r1", "a", 4, 170, start=170), workload("r2", "a", 2, 171, start=171),
        workload("r3", "b", 1, 172, start=172),
        workload("w1", "b", 2, 174, message="couldn't assign flavors to pod set main: insufficient unused quota for "
                 "nvidia.com/gpu in flavor a100, 1 more needed. Pending the preemption of 1 workload(s)"),
        workload("w2", "a", 4, 175, priority=5, message="insufficient unused quota for nvidia.com/gpu in flavor a100"),
        workload("w3", "a", 1, 176),
    ]  # fmt: skip
    local = [{"kind": "LocalQueue", "metadata": {"namespace": name, "name": "main"}, "spec": {"clusterQueue": name}}
             for name in "ab"]  # fmt: skip
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "a100"}, "spec": {
        "nodeLabels": {"gpu": "a100"}, "topologyName": "racks"}}  # fmt: skip
    levels = [{"nodeLabel": "block"}, {"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": levels}}
    return [queue("a", 4), queue("b", 4), flavor, topology, *local, *over, *there]


def nodes():
    return [{"metadata": {"name": f"n{k}", "labels": {"gpu": "a100", "rack": f"r{k // 2}"}},
             "status": {"allocatable": {"cpu": "64", "nvidia.com/gpu": "2"}}} for k in range(4)]  # fmt: skip


def write(folder, items=None):
    """Write both files into a folder; their paths."""
    k, n = folder / "k.json", folder / "n.json"
    k.write_text(json.dumps({"kind": "List", "items": objects() if items is None else items}, indent=1))
    n.write_text(json.dumps({"kind": "List", "items": nodes()}, indent=1))
    return k, n
