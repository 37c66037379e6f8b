"""Build the faults of a run from the `faults:` part of a scenario."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.cluster import Cluster
from hetsim.model.exchange import link_names
from hetsim.model.faults import FaultEvent, FaultProcess, Faults, Maintenance
from hetsim.model.files import open_text
from hetsim.model.tasks import Tasks
from hetsim.results.formatting import seconds
from hetsim.scenario.building.site import nodes_named
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.site import Fault
from hetsim.workload.distributions import Constant, Uniform

MEANT = "gpu, node, link (with its accelerator), uplink (of a rack), a type, or the name of a device, node or link"
COLUMNS = ("time", "device", "event")
EVENTS = ("down", "up", "slow")

# Logarithms of the number of attempts above which a task gets a warning if it has checkpoints (whose interval is then
# as long as the mean time between failures), a warning in any case, or an error.
SELDOM, HARDLY, NEVER = 1.0, 5.0, 20.0

FOR_EVER = 1e9  # Stands for an infinite number of attempts.


def build_faults(entries: list[Fault], cluster: Cluster, document: Document, base: Path) -> list[Faults]:
    """Build all faults; ScenarioError lists every problem of the entries."""
    sources: list[Faults] = []
    problems: list[Problem] = []
    for number, entry in enumerate(entries):
        path: Path_ = ("faults", number)
        try:
            if entry.maintenance is not None:
                sources.append(_maintenance(entry, cluster, document, path))
            elif entry.file is not None:
                sources += read_events(base / entry.file, cluster, f"fault{number}")
            else:
                sources.append(_process(entry, number, cluster, document=document, path=path))
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)
    return sources


WITHOUT = {
    "uplink": "; racks with an uplink have one (cluster.racks)",
    "link": "; accelerators have one",
    "gpu": "; it has no accelerators",
}  # Messages if the cluster has no device that the word means.


def _process(entry: Fault, number: int, cluster: Cluster, document: Document, path: Path_) -> FaultProcess:
    devices: dict[int, None] = {}
    for where in entry.on or ():
        if not (chosen := _devices(where, cluster)):
            possible = ["gpu", "node", "link", "uplink", *cluster.types, *(node.name for node in cluster.nodes)]
            possible += [*cluster.by_name, *link_names(cluster)]
            near = suggestion(where, possible) or f"; it must be {MEANT}"
            near = WITHOUT.get(where, near)
            raise ScenarioError(document.problem((*path, "on"), f'the cluster has no "{where}"{near}'))
        devices.update(dict.fromkeys(chosen))
    length = entry.lasting if entry.factor is not None else entry.repair
    assert entry.every is not None and length is not None
    every = entry.every
    return entry.made(
        name=entry.name or f"fault{number}", devices=tuple(devices), between=every.sample, lasting=length.sample,
        groups=_racks(cluster) if entry.together else None, mean=every.mean, longest=_longest(every),
    )  # fmt: skip


def _longest(every: Any) -> float:
    if isinstance(every, Constant):
        return float(every.value)
    return float(every.high) if isinstance(every, Uniform) else math.inf


def check_chances(tasks: Tasks, faults: list[Faults], cluster: Cluster, horizon: float = math.inf) -> list[str]:
    """Return warnings about tasks that rarely finish because of faults.

    Raise ScenarioError if tasks cannot be expected to finish, unless the run has a horizon.

    From one checkpoint to the next, restoring included, a task needs an interval without a fault on any of its devices.
    This takes about exp(r × devices × seconds) attempts with r faults per second and device, or infinitely many if the
    time between faults is always shorter.
    """
    rates, longest = _rates(faults, cluster)
    if not any(rates.values()):
        return []
    shortest = np.full(len(tasks), np.inf)
    wanted, between = np.full(len(tasks), np.inf), np.full(len(tasks), np.inf)
    enough = np.full(len(tasks), HARDLY)
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        if shape.stopping.interval < math.inf:
            enough[rows] = SELDOM
        for position, mode in enumerate(shape.modes):
            seconds_alone, interval = mode.computing(1, tasks.time[rows, position]), shape.stopping.interval
            stretch = np.minimum(seconds_alone, interval)
            again = stretch + np.where(seconds_alone > interval, shape.stopping.restore, 0.0)
            hopeless = np.isfinite(stretch) & (again > longest[mode.type.name])
            rate = rates[mode.type.name] * max(1, mode.gpus)
            attempts = np.where(hopeless, FOR_EVER, again * rate)
            better = attempts < shortest[rows]
            wanted[rows[better]] = again[better]
            between[rows[better]] = 1 / rate if rate else math.inf
            shortest[rows] = np.fmin(shortest[rows], attempts)
    shortest[list(tasks.refused)] = 0.0
    rare = np.flatnonzero(shortest > enough)
    if not len(rare):
        return []
    worst = int(rare[np.argmax(shortest[rare])])
    many = f"e^{float(enough[rare].min()):g}"
    needs = f"e^{shortest[worst]:.1f}" if shortest[worst] < FOR_EVER else "infinitely many"
    summary = (
        f"{len(rare):,} of {len(tasks):,} tasks need {many} or more attempts between two checkpoints, because "
        f"devices fail often (task {tasks.name(worst)}: {needs}; it takes {seconds(float(wanted[worst]))} "
        f"without a failure, and its devices fail every {seconds(float(between[worst]))})"
    )
    if shortest[worst] > NEVER:
        never = int((shortest > NEVER).sum())
        text = f"{summary}: {never:,} will practically never finish; give stopping: {{interval: ...}} or fewer faults"
        if horizon < math.inf:
            return [text]
        raise ScenarioError(Problem(text, key="faults"))
    return [summary]


def _rates(faults: list[Faults], cluster: Cluster) -> tuple[dict[str, float], dict[str, float]]:
    """Return the lowest fault rate (1/s) and longest possible uptime (s) of each type."""
    per_device = np.zeros(len(cluster.devices))
    sound = np.full(len(cluster.devices), np.inf)
    for fault in faults:
        if isinstance(fault, FaultProcess) and fault.factor is None:
            # Jobs wait for a link between nodes to come back, and lose nothing.
            devices = [index for index in fault.devices if index < len(per_device)]
            per_device[devices] += 1.0 / fault.mean
            sound[devices] = np.minimum(sound[devices], fault.longest)
    rates: dict[str, float] = {}
    longest: dict[str, float] = {}
    for node in cluster.nodes:
        for device in (node.cpu, *node.accelerators):
            own = per_device[device.index] + (per_device[node.cpu.index] if device is not node.cpu else 0.0)
            rates[device.type.name] = min(rates.get(device.type.name, math.inf), float(own))
            slowest = float(min(sound[device.index], sound[node.cpu.index]))
            longest[device.type.name] = max(longest.get(device.type.name, 0.0), slowest)
    return rates, longest


def _devices(where: str, cluster: Cluster) -> list[int]:
    accelerators = [device for node in cluster.nodes for device in node.accelerators]
    if where == "node":
        return [node.cpu.index for node in cluster.nodes]
    if where == "link":
        return [device.index for device in accelerators]
    first = len(cluster.devices)
    if where == "uplink":
        return [first + len(cluster.nodes) + place for place in range(len(cluster.fabric.uplinks))]
    named = [node.cpu.index for node in cluster.nodes if node.name == where]
    if "/" in where and where not in cluster.by_name:
        named += [first + place for place, name in enumerate(link_names(cluster)) if name == where]
    named += [device.index for device in accelerators if where in (device.name, device.type.name, device.type.kind)]
    return named


def _racks(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    racks: dict[str | None, list[int]] = {}
    for node in cluster.nodes:
        racks.setdefault(node.spec.rack, []).append(node.cpu.index)
    return {
        node.cpu.index: tuple(
            other for other in racks[node.spec.rack] if other != node.cpu.index and node.spec.rack is not None
        )
        for node in cluster.nodes
    }


def _maintenance(entry: Fault, cluster: Cluster, document: Document, path: Path_) -> Maintenance:
    window = entry.maintenance
    assert window is not None
    by_name = {node.name: node.cpu.index for node in cluster.nodes}
    nodes_by_name = {name: nodes_named(name, cluster) for name in window.nodes}
    for name, nodes in nodes_by_name.items():
        if not nodes:
            near = suggestion(name, by_name) or f"; nodes are named {', '.join(list(by_name)[:5])}"
            raise ScenarioError(document.problem((*path, "maintenance", "nodes"), f'there is no node "{name}"{near}'))
    devices = tuple(dict.fromkeys(node.cpu.index for nodes in nodes_by_name.values() for node in nodes))
    return window.made(devices=devices)


def read_events(file: Path, cluster: Cluster, source: str = "") -> list[FaultEvent]:
    """Read fault events from a CSV file: time, device (or node), event, factor."""
    names = {node.name: node.cpu.index for node in cluster.nodes}
    names |= {device.name: device.index for device in cluster.devices}
    names |= {name: len(cluster.devices) + place for place, name in enumerate(link_names(cluster))}
    events: list[FaultEvent] = []
    with open_text(file, "replace") as lines:
        rows = csv.DictReader(lines)
        if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
            lacking = f"the column {missing[0]} is" if len(missing) == 1 else f"the columns {', '.join(missing)} are"
            meant = "time (seconds), device (or node), event (down, up, slow) and factor (of slow)"
            raise ScenarioError(Problem(f"{lacking} missing; faults need {meant}", file=str(file), line=1))
        read = ((_event(row, names, events, source), rows.line_num) for row in rows)
        problems = [Problem(wrong, file=str(file), line=line) for wrong, line in read if wrong is not None]
    if problems:
        raise ScenarioError(problems)
    return sorted(events, key=lambda event: event.time)


def _event(row: dict[str, str], names: dict[str, int], events: list[FaultEvent], source: str) -> str | None:
    device, what = row["device"] or "", row["event"] or ""
    if device not in names:
        return f'the cluster has no device or node "{device}"{suggestion(device, names) or ""}'
    if what not in EVENTS:
        return f'event must be down, up or slow; got "{what}"'
    try:
        time = float(row["time"])
        factor = float(row.get("factor") or 1.0)
    except ValueError:
        return f'time and factor must be numbers; got "{row["time"]}" and "{row.get("factor")}"'
    if not 0 <= time < math.inf or not 1 <= factor < math.inf:
        return f"time must be at least 0 and factor at least 1; got {time:g} and {factor:g}"
    events.append(FaultEvent(time, names[device], what, factor=factor, source=source))
    return None
