"""Pods and nodes of Kubernetes (`format: kubernetes`, `kubernetes_nodes`), as `kubectl get -o json` prints them.

    kubectl get pods --all-namespaces -o json > pods.json
    kubectl get nodes -o json > nodes.json

A pod holds the requests of its containers together (or of one of its init containers, if that asks for more): cpu,
memory, nvidia.com/gpu.  It came at its creationTimestamp, started when its first container did (or at status.startTime)
and ran until its last one finished.  A nodeSelector nvidia.com/gpu.product keeps it to that type.  The node is
`recorded_node`, the namespace the class, the phase `status`, and the label `user_label` (default: user) the user.

Left out and counted: pods that never started, that still run, and those of which nothing is asked.
Nodes: allocatable cores (rounded down), memory and GPUs, whose type is the label nvidia.com/gpu.product.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sim.model.paths import ExistingFile
from sim.model.units import shown
from sim.workload.job_rows import Cut, JobLog, Named, TypeNames, job_log
from sim.workload.json_rows import members

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"

_AMOUNT = re.compile(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)(m|k|[KMGTPE]i?)?")
_FACTOR = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


@job_log
def read(log: JobLog, *, user_label: Named = "user") -> JobLog:
    """Pods of a Kubernetes cluster as kubectl get pods -o json prints them: requests, nodes, phases."""
    log.dated = True
    for line, pod in members(log.path, "items"):
        try:
            _pod(log, line, pod, user_label)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            log.wrong(line, "", f"is no pod that can be read: {error}")
    return log


def _pod(log: JobLog, line: int, pod: dict[str, Any], user_label: str) -> None:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    came = log.date(line, "creationTimestamp", str(meta.get("creationTimestamp") or ""))
    began, ended = _span(log, line, status)
    held = _requests(spec)
    phase = str(status.get("phase") or "")
    if came is None:
        return
    if began is None:
        log.leave_out(f"never started ({phase or 'no phase'})", line)
    elif ended is None:
        log.leave_out(f"no end ({phase or 'no phase'})", line)
    elif ended < began or began < came:
        log.leave_out("ended before they began" if ended < began else "began before they came", line)
    elif not held["cpu"] and not held[GPU]:
        log.leave_out("ask for neither cores nor GPUs", line)
    else:
        labels = {
            "user": (meta.get("labels") or {}).get(user_label),
            "class": meta.get("namespace"),
            "status": phase,
            "recorded_node": spec.get("nodeName"),
            "devices": (spec.get("nodeSelector") or {}).get(PRODUCT) if held[GPU] else "",
        }
        texts = {key: str(value) for key, value in labels.items() if value}
        name = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
        log.add(
            line, name, came, ended - began,
            cpus=held["cpu"], gpus=held[GPU], memory=float(int(held["memory"])), start=began, **texts,
        )  # fmt: skip


def _span(log: JobLog, line: int, status: dict[str, Any]) -> tuple[float | None, float | None]:
    """When the first container started and the last one finished, as far as they did."""
    done = [(one.get("state") or {}).get("terminated") for one in status.get("containerStatuses") or []]
    starts = [str(one["startedAt"]) for one in done if one and one.get("startedAt")]
    ends = [str(one["finishedAt"]) for one in done if one and one.get("finishedAt")]
    first = min(starts, default=str(status.get("startTime") or ""))
    began = log.date(line, "startedAt", first) if first else None
    ended = log.date(line, "finishedAt", max(ends)) if ends and all(done) else None
    return began, ended


def _requests(spec: dict[str, Any]) -> dict[str, float]:
    """What the containers of a pod ask for."""
    total = dict.fromkeys(("cpu", "memory", GPU), 0.0)
    for container in spec.get("containers") or []:
        for key, value in _of(container).items():
            total[key] += value
    for container in spec.get("initContainers") or []:
        for key, value in _of(container).items():
            total[key] = max(total[key], value)
    return total


def _of(container: dict[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {key: amount(asked[key]) for key in ("cpu", "memory", GPU) if key in asked}


def amount(value: Any) -> float:
    """A quantity such as 250m, 64Gi or 8; ValueError if it is none."""
    match = _AMOUNT.fullmatch(str(value))
    if not match:
        raise ValueError(f"{shown(value)} is no quantity such as 250m or 64Gi")
    return float(match[1]) * _FACTOR.get(match[2], 1.0)


def nodes(path: ExistingFile, *, types: TypeNames | None = None) -> list[dict[str, Any]]:
    """The nodes of a Kubernetes cluster as kubectl get nodes -o json prints them: cores, memory, GPUs and product."""
    log = JobLog(Path(path), Cut())
    found = []
    for line, one in members(log.path, "items"):
        try:
            meta, status = one["metadata"], one["status"]
            has = status.get("allocatable") or status["capacity"]
            node: dict[str, Any] = {"name": str(meta["name"]), "cpus": int(amount(has["cpu"]))}
            if "memory" in has:
                node["memory"] = f"{int(amount(has['memory']))} B"
            gpus = int(amount(has.get(GPU, 0)))
            if gpus:
                kind = str((meta.get("labels") or {}).get(PRODUCT) or "gpu")
                node["gpus"] = {"type": (types or {}).get(kind, kind), "count": gpus}
            found.append(node)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            log.wrong(line, "", f"is no node that can be read: {error}")
    log.complaints.fail_if_any()
    if not found:
        log.fail("has no nodes")
    return found
