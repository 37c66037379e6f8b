"""Where replicas load their models from: what contradicts the cluster, and what does not fit there."""

import math
from collections.abc import Sequence

from hetsim.errors import Problem, suggestion
from hetsim.model.cluster import PLACES, NodeSpec
from hetsim.scenario.building.streams import Context, TaskStream

PLACE_NAMES = {"host": "host memory", "disk": "the disk"}


def place_problems(streams: Sequence[TaskStream], context: Context) -> list[Problem]:
    """The problems of places of models; warns of models that evict each other."""
    problems: list[Problem] = []
    totals: dict[str, float] = {}
    for stream, service in ((one, one.language) for one in streams if one.language is not None):
        types, sources = {mode.type for _, mode in stream.replica_modes}, service.start.sources
        nodes = [node.spec for node in context.cluster.nodes if types & {device.type for device in node.accelerators}]
        for place in sources if nodes else ():
            text = _wrong(place, sources[-1], nodes, stores=context.cluster.fabric.stores)
            if not text and place in PLACE_NAMES:
                room = (min if place == sources[-1] else max)(spec.room(place) for spec in nodes)
                totals[place] = total = totals.get(place, 0.0) + service.weights
                if total > room:
                    what = f"{stream.name} has" if (alone := service.weights > room) else "all from there have"
                    text = f"{PLACE_NAMES[place]} of a node has room for {room / 1e9:.4g} GB of models, and {what} "
                    text += f"{(service.weights if alone else total) / 1e9:.4g} GB"
                    if not alone and place != sources[-1]:
                        context.warnings.append(f"{text}: they evict each other")
                        text = ""
            if text:
                problems.append(context.document.problem((*stream.path, "service", "start", "from"), text))
    return problems


def _wrong(place: str, last: str, nodes: Sequence[NodeSpec], stores: dict[str, float]) -> str:
    """What is wrong with a place for models on these nodes; else ""."""
    if place in stores:
        return "" if place == last else f"{place} has every model, so that nothing behind it is asked; put it last"
    if place not in PLACES:
        known = [*PLACES, *stores]
        return f'no place "{place}"' + (suggestion(place, known) or f"; there are {', '.join(known)}")
    if place == "gpu" and all(spec.nvlink.upload == math.inf for spec in nodes):
        return "no node joins its GPUs by nvlink; give it one, or leave gpu out"
    if place == "disk" and (all if place != last else any)(not spec.room(place) for spec in nodes):
        return "a node has no disk; give it one (disk: {read: 7 GB/s}), or leave disk out"
    return ""
