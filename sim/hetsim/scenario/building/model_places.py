"""Checks of the places that replicas load models from: contradictions, space."""

import math
from collections.abc import Sequence
from typing import Any, cast

from hetsim.errors import Problem, suggestion
from hetsim.model.cluster import PLACES, NodeSpec
from hetsim.scenario.building.streams import Context, TaskStream
from hetsim.scenario.schema.workload import WorkloadEntry

PLACE_NAMES = {"host": "host memory of a node", "disk": "the disk of a node"}


def place_problems(streams: Sequence[TaskStream], workload: Sequence[WorkloadEntry], context: Context) -> list[Problem]:
    """Return problems of places to load models from; warn if models evict each other."""
    problems: list[Problem] = []
    totals, crowded = dict[str, float](), dict[str, str]()
    places = [*PLACES, *context.cluster.fabric.stores]
    for number, entry in enumerate(workload):  # of models that do not fit on a device, too, which have no stream
        for place in () if entry.service is None else dict.fromkeys(entry.service.start.sources):
            if place not in places:
                text = f'no place "{place}"' + (suggestion(place, places) or f"; there are {', '.join(places)}")
                problems.append(context.document.problem(("workload", number, "service", "start", "from"), text))
    for stream in (one for one in streams if one.replica_modes):
        service, path = cast(Any, stream.language or stream.service), (*stream.path, "service", "start", "from")
        types, sources = {mode.type for _, mode in stream.replica_modes}, service.start.sources
        weights = max(kind.weights for kind, _ in stream.replica_modes)
        nodes = [node.spec for node in context.cluster.nodes if types & {device.type for device in node.accelerators}]
        for place in dict.fromkeys(sources) if nodes else ():
            text = _wrong(place, sources, nodes, stores=context.cluster.fabric.stores)
            if not text and place in PLACE_NAMES:
                room = (min if place == sources[-1] else max)(spec.room(place) for spec in nodes)
                totals[place] = total = totals.get(place, 0.0) + weights
                if total > room:
                    what = f"{stream.name} has" if (alone := weights > room) else "the models of all services have"
                    size = (weights if alone else total) / 1e9
                    text = f"{PLACE_NAMES[place]} has room for {room / 1e9:.4g} GB of models, but {what} {size:.4g} GB"
                    if not alone and place != sources[-1]:
                        crowded[place] = f"{context.document.problem(path, text)}: they evict each other"
                        text = ""
            if text:
                problems.append(context.document.problem(path, text))
    context.warnings += crowded.values()
    return problems


def _wrong(place: str, sources: Sequence[str], nodes: Sequence[NodeSpec], stores: dict[str, float]) -> str:
    """Return why models cannot be loaded from a source on these nodes; "" if they can."""
    is_last = place == sources[-1]
    if sources.count(place) > 1:
        return f"from must list each place once; got {place} twice"
    if place in stores:
        return "" if is_last else f"{place} has every model, so places after it are never used; put it last"
    if place == "gpu" and (is_last or all(spec.nvlink.upload == math.inf for spec in nodes)):
        return "gpu needs nvlink on a node, and a place after gpu: host, disk or a store"
    if place == "disk" and (any if is_last else all)(not spec.room(place) for spec in nodes):
        return "a node has no disk; add one (disk: {read: 7 GB/s}), or leave disk out"
    return ""
