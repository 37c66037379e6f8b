"""Manifests that are not submitted yet, as workloads (`twin --kueue`, `--job`)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.files import open_input
from hetsim.scenario.file import document
from hetsim.workload.readers.kueue import MAX_INT, TOPOLOGIES, KueueObjects, unreadable, whole_number
from hetsim.workload.readers.snapshot import SnapshotJob

LABEL = "kueue.x-k8s.io/"
KINDS = ("Job", "Pod", "PodTemplate", "Workload")


def unsubmitted(path: Path, objects: KueueObjects, now: float) -> list[SnapshotJob]:
    """Return the jobs of a manifest as if they were submitted at `now`.

    The file has YAML documents of the kinds `Job` (batch/v1), `Pod`, `PodTemplate` and `Workload` (Kueue); other kinds
    are ignored.  ScenarioError with file and line if a document cannot be read, or if its queue does not exist.
    """
    jobs = []
    for described, where, one in chain.from_iterable(map(_listed, _documents(path))):
        if (kind := one.get("kind") if isinstance(one, dict) else None) in KINDS:
            try:
                jobs.append(_job(one, kind, objects, now))
            except (AttributeError, TypeError, KeyError, ValueError) as error:
                text, key = f"cannot be read as a {kind}: {unreadable(error)}", getattr(error, "key", "kind")
                raise ScenarioError(described.problem((*where, *key.split(".")), text)) from None
            new, at = jobs[-1], described.problem((*where, "kind"), "")
            new.more["file"], new.line = str(path), at.line or 0
            if new.id in objects.submitted:
                text = f"{new.id} is also in {objects.submitted[new.id]}; keep one of them, or rename it"
                raise ScenarioError(replace(at, message=text))
            objects.submitted[new.id] = f"{path}:{at.line}"
    if not jobs:
        raise ScenarioError(Problem(f"has no object of kind {', '.join(KINDS)}", file=str(path)))
    return jobs


def _listed(described: document.Document) -> list[tuple[document.Document, Any, Any]]:
    """Return document, path and content of each object, those of a `List` one by one."""
    if not str(described.data.get("kind")).endswith("List"):
        return [(described, (), described.data)]
    if not isinstance(items := described.data.get("items") or [], list):
        raise ScenarioError(described.problem(("items",), "must be a list of objects"))
    return [(described, ("items", number), one) for number, one in enumerate(items)]


def _documents(path: Path) -> Iterator[document.Document]:
    lines = 0
    with open_input(path) as stream:
        content = stream.read()
    for part in re.split(rb"(?m)(^---[^\n]*\n)", content):
        if re.search(rb"(?m)^[^-#\s]", part):
            yield document.parse(b"\n" * lines + part, str(path))
        lines += part.count(b"\n")


def _job(one: dict[str, Any], kind: str, objects: KueueObjects, now: float) -> SnapshotJob:
    came = datetime.fromtimestamp(now, UTC).isoformat()
    meta = {"namespace": "default", **one["metadata"], "creationTimestamp": came}
    space, name = meta["namespace"], meta.get("name") or str(meta["generateName"]).rstrip("-")
    spec = one["spec"] if kind == "Workload" else _workload(one, kind, meta.get("labels") or {})
    if not (queue := spec.get("queueName")):
        raise ValueError(f"no queue is named; add the label {LABEL}queue-name")
    if f"{space}/{queue}" not in (queues := objects.kinds.get("LocalQueue", {})):
        raise ValueError(f"there is no LocalQueue {space}/{queue}{suggestion(f'{space}/{queue}', list(queues))}")
    if f"{space}/{name}" in objects.kinds.get("Workload", {}):
        raise ValueError(f"{space}/{name} is already on the cluster; --job {space}/{name} prints a forecast if waiting")
    complete = {"priority": _priority(spec, objects)} | {key: value for key, value in spec.items() if value is not None}
    if (job := objects.job(f"{space}/{name}", 0, {"metadata": meta, "spec": complete})) is None:
        raise ValueError(objects.reason)
    job[0].reason = ""
    return job[0]


def _workload(one: dict[str, Any], kind: str, labels: dict[str, str]) -> dict[str, Any]:
    spec = one.get("spec") or {}
    template = one if kind == "Pod" else one["template"] if kind == "PodTemplate" else spec["template"]
    labels = {**((template.get("metadata") or {}).get("labels") or {}), **labels}
    counts = [whole_number(spec.get(key, 1), f"spec.{key}") for key in ("parallelism", "completions")
              if kind == "Job" and (key == "parallelism" or spec.get(key) is not None)]  # fmt: skip
    seconds: Any = labels.get(f"{LABEL}max-exec-time-seconds")
    if seconds is not None:
        seconds = whole_number(seconds, "metadata.labels.max-exec-time-seconds", 1, MAX_INT)
    elif (deadline := spec.get("activeDeadlineSeconds")) is not None:
        seconds = whole_number(deadline, "spec.activeDeadlineSeconds", 1, MAX_INT)
    notes = (template.get("metadata") or {}).get("annotations") or {}
    wanted = {key: level for key in TOPOLOGIES if (level := notes.get(f"{LABEL}podset-{key}-topology")) != "false"}
    return {
        "queueName": labels.get(f"{LABEL}queue-name"),
        "priorityClassName": labels.get(f"{LABEL}priority-class") or template["spec"].get("priorityClassName"),
        "maximumExecutionTimeSeconds": seconds,
        "podSets": [{"count": min(counts, default=1), "template": template, "topologyRequest": wanted}],
    }


def _priority(spec: dict[str, Any], objects: KueueObjects) -> int:
    classes = {**objects.kinds.get("PriorityClass", {}), **objects.kinds.get("WorkloadPriorityClass", {})}
    others = [other["spec"] for _, other in objects.kinds.get("Workload", {}).values()]
    priorities = {_class(other): other.get("priority") for other in others}
    priorities |= {name: one["value"] for name, (_, one) in classes.items()} | {None: 0}
    if priorities.get(name := _class(spec)) is None:
        text = "is not known, and 0 here; add workloadpriorityclasses to kubectl get"
        objects.notes[f"the priority of class {name} {text}"] = None
    return priorities.get(name) or 0


def _class(spec: dict[str, Any]) -> str | None:
    return spec.get("priorityClassName") or (spec.get("priorityClassRef") or {}).get("name")
