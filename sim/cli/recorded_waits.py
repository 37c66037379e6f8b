"""What `hetsim trace validate` says of recorded waits: why jobs waited, and how far simulated waits are from that."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cli import console

if TYPE_CHECKING:
    from sim.experiment.from_log import Compared
    from sim.workload.traces import TaskTable
    from sim.workload.waits import Explained

MEANING = {
    "no room": "did not fit into what was free of the cluster",
    "nodes down": "did not fit into what was free of the nodes that were up",
    "before the log": "the head of the log: jobs ran that it does not know",
    "limit": "its {kind} held as much as it ever does",
    "priority": "a job that goes before it waited for room",
    "order": "a job that came earlier waited for room",
    "held back": "it fitted; nothing in the log says why it did not start",
}
MAX_JOBS = 50_000
"""Jobs of which the waits are explained; larger logs need a window."""
MOST_SHOWN = 8


@dataclass
class Subject:
    """A log, its document as far as there is one, and where relative paths begin."""

    table: TaskTable
    document: dict[str, Any]
    inferred: bool
    """Was the cluster taken from the log?"""


def subject_of(file: Path, document: Mapping[str, Any] | None, trace: Mapping[str, Any], table: TaskTable) -> Subject:
    """The scenario of a log: as given where it has a cluster, else on one that the log shows."""
    from sim.experiment.from_log import POLICY, document_of, inferred_nodes

    if document is not None and "cluster" in document:
        whole = dict(document)
        whole["workload"] = [{**_single(document), "trace": dict(trace)}]
        whole.setdefault("policy", POLICY)
        return Subject(table, whole, False)
    entry = None
    if document is not None:
        entry = {key: value for key, value in _single(document).items() if key not in ("trace", "name")}
        entry = {"unfit": "leave_out", "span": "any", **entry}
    name = str((document or {}).get("name", file.stem))
    return Subject(table, document_of(name, trace, inferred_nodes(table), None, entry), True)


def _single(document: Mapping[str, Any]) -> Mapping[str, Any]:
    workload = document.get("workload")
    entry = workload[0] if isinstance(workload, list) and workload else workload
    assert isinstance(entry, Mapping)
    return entry


def told(
    subject: Subject, policy: str | None, simulate: bool, out: Path | None, quiet: bool
) -> tuple[Explained | None, Compared | None]:
    """Explain the recorded waits of a log; simulate and write what follows from them where asked."""
    from sim.experiment.from_log import compare, variants
    from sim.scenario.scenario import load
    from sim.workload.recorded_log import jobs_of
    from sim.workload.waits import explain

    jobs = jobs_of(subject.table)
    if jobs is not None and len(jobs) > MAX_JOBS:
        console.note(f"{len(jobs):,} jobs are too many to explain their waits; choose a window (since, until)")
        jobs = None
    loaded = load(subject.document)
    run = loaded.build()
    names = [node.name for node in run.cluster.nodes]
    explained = None
    if jobs is not None:
        capacity = _capacity(run, jobs.unit)
        explained = explain(subject.table, capacity, cut="at_cut" in subject.table.extra)
    if explained is None:
        if out is not None:
            _write(subject.document, out)
        return None, None
    document = dict(subject.document)
    if policy is not None:
        document["policy"] = policy
    compared = variants(document, explained, not run.cluster.partitions, names)
    if simulate:
        compare(compared, explained, lambda text: console.note(text, quiet))
    if out is not None:
        _write(compared.variants[-1].document, out)
    return explained, compared


def _capacity(run: Any, unit: str) -> float:
    """GPUs, or cores, of a cluster."""
    if unit == "GPUs":
        return float(sum(device.type.kind != "cpu" for device in run.cluster.devices))
    return float(sum(node.cpus for node in run.cluster.nodes))


def _write(document: dict[str, Any], out: Path) -> None:
    from sim.model.files import write_text, write_whole
    from sim.scenario.document import dump

    moved = _moved(document, out.parent)
    write_whole(out, partial(write_text, text=dump(moved)))
    console.note(f"scenario: {out}")


def _moved(value: Any, folder: Path) -> Any:
    """The same with names of files from the point of view of another folder."""
    if isinstance(value, Mapping):
        return {
            key: os.path.relpath(one, folder) if key == "path" and isinstance(one, str) and not os.path.isabs(one)
            else _moved(one, folder)
            for key, one in value.items()
        }  # fmt: skip
    return [_moved(one, folder) for one in value] if isinstance(value, list) else value


# For people and programs ----------------------------------------------------------------------------------------


def lines(explained: Explained, compared: Compared | None, simulated: bool) -> list[str]:
    from sim.report import terminal

    jobs = explained.jobs
    mean = terminal.several([explained.mean_wait], terminal.SECONDS)[0]
    of = f"{explained.capacity:,.6g} {jobs.unit}"
    rows = [["why jobs waited", "of all waiting", ""]]
    for reason, share in explained.shares.items():
        kind = explained.limits.kind if explained.limits is not None else "user"
        rows.append([reason, f"{100 * share:.1f} %", MEANING[reason].format(kind=kind)])
    found = ["", f"mean recorded wait {mean} over {len(jobs):,} jobs, on {of}", "", *terminal.table(rows, right=(1,))]
    found += [f"  {text}" for text in _inferred(explained)]
    if compared is not None and simulated:
        found += _variants(explained, compared)
    return found


def _inferred(explained: Explained) -> list[str]:
    from sim.report import terminal

    found = []
    jobs = explained.jobs
    lacking = [level for _, level in explained.curve if level < explained.capacity]
    if lacking:
        found.append(f"capacity: at times only {min(lacking):,.6g} of {explained.capacity:,.6g} {jobs.unit} were up")
    if explained.warm_end > jobs.arrival[0]:
        at = terminal.several([explained.warm_end - float(jobs.arrival[0])], terminal.SECONDS)[0]
        found.append(f"head: the log holds its usual {jobs.unit} {at} after its first submission")
    if explained.limits is not None:
        limits = sorted(explained.limits.most.items(), key=lambda one: -one[1])
        shown = ", ".join(f"{name} {most:,.6g}" for name, most in limits[:MOST_SHOWN])
        more = f" and {len(limits) - MOST_SHOWN} more" if len(limits) > MOST_SHOWN else ""
        found.append(f"limits by {explained.limits.kind}, in {jobs.unit}: {shown}{more}")
    if explained.order is not None:
        pairs = explained.order.pairs[:MOST_SHOWN]
        shown = ", ".join(f"{first} before {second} ({n} passed, {back} back)" for first, second, n, back in pairs)
        found.append(f"order by {explained.order.kind}: {shown}")
    return found


def _variants(explained: Explained, compared: Compared) -> list[str]:
    from sim.report import terminal

    policy = compared.variants[0].document.get("policy")
    rows = [[f"waits under {_name(policy)}", "jobs", "recorded", "simulated", "correlation", "of ranks"]]
    means = [mean for one in compared.variants if one.jobs for mean in (one.recorded, one.simulated)]
    written = iter(terminal.several(means, terminal.SECONDS)) if means else iter(())
    for variant in compared.variants:
        times = [next(written), next(written)] if variant.jobs else ["–", "–"]
        pair = (variant.correlation, variant.rank_correlation)
        rows.append([variant.name, f"{variant.jobs:,}", *times, *("–" if math.isnan(r) else f"{r:.2f}" for r in pair)])
    found = ["", *terminal.table(rows, right=range(1, 6))]
    first, last = compared.variants[0], compared.variants[-1]
    if last is not first and not math.isnan(first.correlation) and not math.isnan(last.correlation):
        times = terminal.several([last.simulated, last.recorded], terminal.SECONDS)
        ranks = f"{first.correlation:.2f} to {last.correlation:.2f}"
        verb = "rises" if last.correlation > first.correlation else "goes"
        average = f"the mean wait is {times[0]} against {times[1]} on record"
        found += ["", f"With what was inferred the correlation {verb} from {ranks}, and {average}."]
    return found


def _name(policy: Any) -> str:
    if isinstance(policy, Mapping):
        inner = policy.get("scheduler", policy)
        return str(inner.get("name", inner)) if isinstance(inner, Mapping) else str(inner)
    return str(policy)


def mapping(explained: Explained, compared: Compared | None, simulated: bool) -> dict[str, Any]:
    limits, order = explained.limits, explained.order
    found: dict[str, Any] = {
        "jobs": len(explained.jobs),
        "unit": explained.jobs.unit,
        "mean_recorded_wait": explained.mean_wait,
        "capacity": explained.capacity,
        "capacity_curve": [list(point) for point in explained.curve],
        "head_until": explained.warm_end,
        "shares": explained.shares,
        "limits": None if limits is None else {"kind": limits.kind, "most": limits.most},
        "order": None if order is None else {"kind": order.kind, "pairs": [list(pair) for pair in order.pairs]},
    }
    if compared is not None and simulated:
        found["variants"] = [
            {"name": one.name, "jobs": one.jobs, "recorded": one.recorded, "simulated": one.simulated,
             "correlation": None if math.isnan(one.correlation) else one.correlation,
             "rank_correlation": None if math.isnan(one.rank_correlation) else one.rank_correlation}
            for one in compared.variants
        ]  # fmt: skip
    return found
