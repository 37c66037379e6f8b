"""Pods and nodes of Kubernetes, as `kubectl get -o json` prints them.

    kubectl get pods --all-namespaces -o json > pods.json
    kubectl get nodes -o json > nodes.json

The list may be that of kubectl, a JSON list, or JSON lines of pods or of watch events ({"type": ..., "object": POD}),
in which the last event of a pod counts.  A pod occupies what all its containers and sidecars request together (or one
of its init containers, if that is more), and its overhead: cpu, memory, GPUs (nvidia.com/gpu, amd.com/gpu,
gpu.intel.com/i915 or xe).  It arrived at its creationTimestamp, started with its first container (or at
status.startTime) and ran until its last container finished.  A pod whose containers restarted occupied its devices from
PodScheduled (or status.startTime) on; `attempts` counts them.  Its time limit is activeDeadlineSeconds.  A nodeSelector
nvidia.com/gpu.product (amd.com/gpu.product-name, gpu.intel.com/product) restricts it to that type.  The node becomes
`recorded_node`, the namespace the class, the phase the column `status`, and the label that `user_label` names (default:
user) the user.

Pods of one gang are one job with their total resources, named after the gang: by the first label or annotation of
Volcano, Kubeflow, JobSet, Kueue, Ray and the coscheduling plug-in that a pod has, or by the label that
`gang: {by: LABEL}` names; with `gang: false` each pod is a job.

Skipped and counted: pods that never started, that still run, that request nothing, or that request GPUs of two makes.
Counted and read: pods that request a resource that is not supported, such as a MIG slice (nvidia.com/mig-1g.10gb) or a
shared GPU (nvidia.com/gpu.shared); the resource is ignored.  Nodes: allocatable cores (rounded down), memory and GPUs;
the GPU type is the same label, or else gpu, amd or intel.  Nodes that are cordoned (spec.unschedulable) or not ready
are skipped unless `down: true`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hetsim.model.units import ExistingFile, shown
from hetsim.workload.mapped.mapping import GangOf
from hetsim.workload.rows.job_log import JobLog, LogCut, Named, TypeNames
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.job_times import JobTimes
from hetsim.workload.rows.json_rows import first_sign, members
from hetsim.workload.rows.rows_of_a_job import JobRows
from hetsim.workload.rows.rows_of_a_job import gang as declared_gang
from hetsim.workload.rows.text_rows import Flag

# Resources that are whole GPUs: label of the product, and GPU type if there is no label
GPUS = {"nvidia.com/gpu": ("nvidia.com/gpu.product", "gpu"), "amd.com/gpu": ("amd.com/gpu.product-name", "amd"),
        "gpu.intel.com/i915": ("gpu.intel.com/product", "intel"),
        "gpu.intel.com/xe": ("gpu.intel.com/product", "intel")}  # fmt: skip
READ = ("cpu", "memory", *GPUS)
# Labels and annotations that name the gang of a pod
GANGS = ("volcano.sh/job-name", "scheduling.k8s.io/group-name", "training.kubeflow.org/job-name", "pytorch-job-name",
         "tf-job-name", "mpi-job-name", "jobset.sigs.k8s.io/jobset-name", "kueue.x-k8s.io/pod-group-name",
         "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "ray.io/cluster")  # fmt: skip

_AMOUNT = re.compile(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)(m|k|[KMGTPE]i?)?")
_FACTOR = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Ki": 2**10, "Mi": 2**20,
           "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}  # fmt: skip


@job_log
def read(log: JobLog, *, user_label: Named = "user", gang: GangOf | Literal[False] | None = None) -> JobLog:
    """Pods of a Kubernetes cluster from kubectl get pods -o json, grouped into gangs."""
    log.dated = True
    makes: dict[str, list[int]] = {}  # of each make: pods that name no product, and the first line
    times = JobTimes(log)

    def job(line: int, row: dict[str, Any], whole: str | None) -> None:
        name, came, began, ended = (row.pop(key) for key in ("id", "arrival", "start", "end"))
        row.pop("duration", None)
        settled = times.settle(line, came, began, end=ended, took=None)
        if settled is None or settled[1] is None or settled[2] is None:
            return
        if row.get("attempts", 1) > 1:
            log.remark("restarted: their time is from scheduling to their last end", line)
        times.added(log.add(line, name, settled[0], settled[2], start=settled[1], **row))

    by = "its labels" if gang is None else gang.by if gang else ""
    rows = JobRows(log, declared_gang(by, gang.columns if gang else None), job)
    for line, pod in _pods(log):
        try:
            row = _pod(log, line, pod, user_label=user_label, makes=makes)
            name = _gang(pod["metadata"], (by,) if gang else GANGS if gang is None else ())
            if row is not None and name:
                rows.take(name, line, row)
            elif row is not None:
                job(line, row, None)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            log.wrong(line, "", f"cannot be read as a pod: {error}")
    rows.finish()
    times.finish()
    if len(makes) > 1:
        for key, (count, line) in makes.items():
            if count:
                sentence = f"{count:,} pods request {key} without a product (first: line {line})"
                log.notes.append(f"{log.path}: {sentence}; in a cluster with several GPU types they may run on any")
    return log


def _pods(log: JobLog) -> Iterator[tuple[int, Any]]:
    sign = first_sign(log.path)
    first = _object(next(log.filled_lines())[1]) if sign == "{" else None
    if first is None or not {"metadata", "object"} & set(first):
        yield from members(log.path, None if sign == "[" else "items")
        return
    last: dict[str, tuple[int, Any]] = {}
    for number, text in log.filled_lines():
        if (pod := _object(text)) is None:
            log.wrong(number, "", "the line is not a JSON object")
            continue
        pod = pod.get("object", pod)
        meta = (pod.get("metadata") if isinstance(pod, dict) else None) or {}
        key = str(meta.get("uid") or (meta.get("namespace"), meta.get("name"), meta.get("creationTimestamp")))
        if key in last:
            log.pass_over("earlier states of a pod", last[key][0])
        last[key] = number, pod
    yield from last.values()


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _gang(meta: dict[str, Any], names: tuple[str, ...]) -> str | None:
    given = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    name = next((str(given[name]) for name in names if given.get(name)), None)
    return f"{meta['namespace']}/{name}" if name and meta.get("namespace") else name


def _pod(
    log: JobLog, line: int, pod: dict[str, Any], user_label: str, makes: dict[str, list[int]]
) -> dict[str, Any] | None:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    came = log.date(line, "creationTimestamp", str(meta.get("creationTimestamp") or ""))
    began, ended, attempts = _span(log, line, status)
    requests = requests_of(spec)
    phase = str(status.get("phase") or "")
    if came is None:
        return None
    if began is None or ended is None:
        log.leave_out(f"{'never started' if began is None else 'no end'} ({phase or 'no phase'})", line)
        return None
    if reason := _unusable(requests):
        log.leave_out(reason, line)
        return None
    for key in _unread(requests):
        log.remark(f"request {key}, which is not modeled: these pods are kept without it", line)
    labels = {"user": (meta.get("labels") or {}).get(user_label), "class": meta.get("namespace"), "status": phase,
              "recorded_node": spec.get("nodeName"), "devices": _product(spec, requests, line, makes)}  # fmt: skip
    texts = {key: str(value) for key, value in labels.items() if value}
    name = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
    limit = spec.get("activeDeadlineSeconds")
    gpus = sum((requests[key] for key in _makes(requests)), 0.0)
    return {"id": name, "arrival": came, "start": began, "end": ended, "cpus": requests["cpu"], "gpus": gpus,
            "memory": float(int(requests["memory"])), **({"attempts": attempts} if attempts > 1 else {}),
            **({"time_limit": float(limit), "estimate": float(limit)} if limit else {}), **texts}  # fmt: skip


def _makes(held: dict[str, float]) -> list[str]:
    return [key for key in GPUS if held.get(key)]


def _unread(held: dict[str, float]) -> list[str]:
    return sorted(key for key, value in held.items() if value and key not in READ)


def _unusable(held: dict[str, float]) -> str:
    makes = _makes(held)
    if not held["cpu"] and not makes:
        unread = _unread(held)
        return "request neither cores nor GPUs" + (f", but {', '.join(unread)}" if unread else "")
    return f"request GPUs of several types ({', '.join(makes)})" if len(makes) > 1 else ""


def _product(spec: dict[str, Any], held: dict[str, float], line: int, makes: dict[str, list[int]]) -> Any:
    """Return the GPU product that a pod selects; count pods without one by GPU make."""
    if (make := next(iter(_makes(held)), None)) is None:
        return ""
    product = (spec.get("nodeSelector") or {}).get(GPUS[make][0])
    count, first = makes.setdefault(make, [0, line])
    if not product:
        makes[make] = [count + 1, first if count else line]
    return product


def _span(log: JobLog, line: int, status: dict[str, Any]) -> tuple[float | None, float | None, float]:
    containers = status.get("containerStatuses") or []
    done = [(one.get("state") or {}).get("terminated") for one in containers]
    restarts = max((int(one.get("restartCount") or 0) for one in containers), default=0)
    starts = [str(one["startedAt"]) for one in done if one and one.get("startedAt")]
    ends = [str(one["finishedAt"]) for one in done if one and one.get("finishedAt")]
    scheduled = [str(one.get("lastTransitionTime") or "") for one in status.get("conditions") or []
                 if one.get("type") == "PodScheduled" and one.get("status") == "True"]  # fmt: skip
    bound = min([one for one in (*scheduled, str(status.get("startTime") or "")) if one], default="")
    first = min([bound] if restarts and bound else starts, default=bound)
    began = log.date(line, "startedAt", first) if first else None
    ended = log.date(line, "finishedAt", max(ends)) if ends and all(done) else None
    return began, ended, 1.0 + restarts


def requests_of(spec: dict[str, Any]) -> dict[str, float]:
    """Return a PodSpec's requests: of its containers or, if larger, init containers."""
    total, starts = Counter[str](), Counter[str]()
    for container in spec.get("initContainers") or []:
        own: Any = Counter(_of(container))
        starts |= total + own
        total.update(own if container.get("restartPolicy") == "Always" else {})  # a sidecar runs beside the others
    for container in spec.get("containers") or []:
        total.update(_of(container))
    overhead: Any = _of({"resources": {"requests": spec.get("overhead")}})
    return {"cpu": 0.0, "memory": 0.0, **((total | starts) + Counter(overhead))}


def _of(container: dict[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {key: amount(value) for key, value in asked.items() if key in READ or "/" in key}


def amount(value: Any) -> float:
    """Return the number in a quantity such as 250m, 64Gi or 8; else ValueError."""
    if not (match := _AMOUNT.fullmatch(str(value))):
        raise ValueError(f"{shown(value)} is not a quantity such as 250m or 64Gi")
    return float(match[1]) * _FACTOR.get(match[2], 1.0)


def nodes(path: ExistingFile, *, types: TypeNames | None = None, down: Flag = False) -> list[dict[str, Any]]:
    """Nodes and their GPUs, from the output of kubectl get nodes -o json.

    types: other names for GPU types.
    down: also return nodes that are cordoned or not ready.
    """
    log = JobLog(Path(path), LogCut())
    nodes_there = []
    away = 0
    for line, one in members(log.path, "items"):
        try:
            if not down and not _up(one):
                away += 1
                continue
            meta, status = one["metadata"], one["status"]
            has = status.get("allocatable") or status["capacity"]
            node: dict[str, Any] = {"name": str(meta["name"]), "cpus": int(amount(has["cpu"]))}
            if "memory" in has:
                node["memory"] = f"{int(amount(has['memory']))} B"
            gpus = []
            for key, (label, plain) in GPUS.items():
                if count := int(amount(has.get(key, 0))):
                    kind = str((meta.get("labels") or {}).get(label) or plain)
                    gpus.append({"type": (types or {}).get(kind, kind), "count": count})
            if gpus:
                node["gpus"] = gpus if len(gpus) > 1 else gpus[0]
            nodes_there.append(node)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            log.wrong(line, "", f"cannot be read as a node: {error}")
    some = f" but {away:,} that are cordoned or not ready; down: true keeps them" if away else ""
    log.require(nodes_there, f"has no nodes{some}")
    return nodes_there


def _up(node: dict[str, Any]) -> bool:
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    conditions = (node.get("status") or {}).get("conditions") or []
    return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
