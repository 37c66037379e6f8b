"""Build the workload's entries and data items, and collect their problems."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.randomness import RandomTree
from hetsim.model.tasks import Item
from hetsim.model.units import MAX_BYTES, MAX_NUMBER, Seconds
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.building.recorded import build_recorded
from hetsim.scenario.building.site import with_partitions
from hetsim.scenario.building.streams import Context, TaskStream
from hetsim.scenario.building.synthetic import build_synthetic
from hetsim.scenario.fields import Model
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.cluster import ClusterSpec as ClusterModel
from hetsim.scenario.schema.site import SiteSpec
from hetsim.scenario.schema.workload import DataItem, WorkloadEntry
from hetsim.workload.traces import TaskTable

M = TypeVar("M", bound=BaseModel)


def check_parts(document: Document, base: Path, tables: dict[int, TaskTable]) -> list[Problem]:
    """Return problems of cluster and entries that concern more than one key.

    Called for a scenario in which other keys are invalid, so that one report lists these problems too.  `tables`: the
    readable traces, by entry.
    """
    data, context = document.data, {"base": str(base)}
    entries = _as_list(data.get("workload"))
    valid = {number: _valid(WorkloadEntry, entry, context) for number, entry in enumerate(entries)}
    cluster = _valid(ClusterModel, data.get("cluster"), context)
    items = [_valid(DataItem, item, context) for item in _as_list(data.get("data"))]
    try:
        site = _valid(SiteSpec, data.get("site") or {}, context) or SiteSpec()
        built = None if cluster is None else with_partitions(build_cluster(cluster, document), site, document)
    except ScenarioError as error:
        return [*error.problems, *_repeated(entries, document)]
    if built is None or None in items:
        return list(_repeated(entries, document))
    horizon = _valid(ScenarioHorizon, {"horizon": data.get("horizon")}, context)
    # Under a horizon that is wrong itself, one second: nothing then seems to go on for ever.
    limit = 1.0 if horizon is None else math.inf if horizon.horizon is None else horizon.horizon
    checked = {
        number: entry
        for number, entry in valid.items()
        if entry is not None and (entry.trace is None or number in tables)
    }
    book = Context(document, built, ModeBook(built), random=RandomTree(0, 0), horizon=limit)
    _, _, problems = build_parts(checked, [item for item in items if item], tables.__getitem__, book)
    return problems


class ScenarioHorizon(Model):
    """The key `horizon` alone, which can be read although other keys are invalid."""

    horizon: Seconds | None = None


def _valid(model: type[M], value: Any, context: dict[str, str]) -> M | None:
    try:
        return model.model_validate(value, context=context)
    except ValidationError:
        return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def entry_names(entries: list[Any]) -> list[str | None]:
    """Return each entry's name, else class, else `stream0` etc.; None: invalid name."""
    given = enumerate(entry if isinstance(entry, dict) else {} for entry in entries)
    names = [entry.get("name") or entry.get("class") or f"stream{number}" for number, entry in given]
    return [str(name) if isinstance(name, str | int) else None for name in names]


def _repeated(entries: list[Any], document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, name in enumerate(entry_names(entries)):
        if name is not None and first.setdefault(name, number) != number:
            message = f'the name "{name}" is that of workload.{first[name]}; give another (name: ...)'
            yield document.problem(("workload", number), message)


def build_parts(
    entries: dict[int, WorkloadEntry], data: list[DataItem], tables: Callable[[int], TaskTable], context: Context
) -> tuple[list[TaskStream], list[Item], list[Problem]]:
    """Build streams and data items; also return all problems found."""
    raw = _as_list(context.document.data.get("workload"))
    problems = list(_repeated(raw, context.document))
    streams: list[TaskStream] = []
    names = entry_names(raw)
    for number, entry in entries.items():
        path: Path_ = ("workload", number)
        name = names[number] or f"stream{number}"
        try:
            with np.errstate(all="ignore"):  # what overflows is found below, in the times
                if entry.trace is None:
                    streams.append(build_synthetic(entry, name, path, context))
                else:
                    streams.append(build_recorded(entry, name, path, table=tables(number), context=context))
        except ScenarioError as error:
            problems += error.problems
        except ArithmeticError:
            problems.append(context.problem(path, "the numbers are too large or too small to compute with"))
        except ValueError as error:  # what only the cost model or a distribution can tell when it is used
            problems.append(context.problem(path, str(error)))
    for stream in streams:
        problems += _absurd(stream, context)
        stream.calls = entries[int(stream.path[1])].clients
        if stream.calls is not None and (stream.predecessors or stream.reads or stream.writes):
            text = "clients resend single attempts, so tasks with predecessors or data items cannot have clients"
            problems.append(context.problem((*stream.path, "clients"), text))
    items, wrong_items = _items(data, context)
    models = {f"{one.name}:model": one.service.model for one in streams if one.service and not one.service.kept}
    items += [Item(name, size, lasting=True) for name, size in models.items() if size is not None]
    listed = {item.name for item in items}
    sizes = {name: size for stream in streams for name, size in stream.items.items() if name not in listed}
    items += [Item(name, size) for name, size in sizes.items()]
    return streams, items, [*problems, *wrong_items, *_unknown_items(streams, items, context)]


def _absurd(stream: TaskStream, context: Context) -> list[Problem]:
    sizes = ((key, getattr(stream, key)) for key in ("bytes_in", "bytes_out"))
    problems = [
        context.problem((*stream.path, key), f"must be below {MAX_BYTES:.3g} bytes; got {column.max():.3g} bytes")
        for key, column in sizes if column is not None and len(column) and not column.max() < MAX_BYTES
    ]  # fmt: skip
    times = stream.time if stream.estimate is None else stream.estimate
    columns = [stream.arrival, stream.time, times]
    beyond = any(np.isnan(values).any() or (values[np.isfinite(values)] > MAX_NUMBER).any() for values in columns)
    if beyond or not np.isfinite(stream.time).any(axis=1).all():
        message = "the numbers are too large or too small to compute with: a time is not finite"
        problems.append(context.problem(stream.path, message))
    return problems


def _items(data: list[DataItem], context: Context) -> tuple[list[Item], list[Problem]]:
    homes = {node.name: node.index for node in context.cluster.nodes}
    items: list[Item] = []
    names: set[str] = set()
    problems = []
    for number, item in enumerate(data):
        path: Path_ = ("data", number)
        if item.home is not None and item.home not in homes:
            near = suggestion(item.home, homes) or f"; nodes are named {', '.join(list(homes)[:5])}"
            problems.append(context.problem((*path, "home"), f'there is no node "{item.home}"{near}'))
        if item.name in names:
            problems.append(context.problem((*path, "name"), f'the item "{item.name}" is listed twice'))
        names.add(item.name)
        items.append(item.made(home=None if item.home is None else homes.get(item.home)))
    return items, problems


def _unknown_items(streams: list[TaskStream], items: list[Item], context: Context) -> Iterator[Problem]:
    item_names = {item.name for item in items}
    for key in ("reads", "writes"):
        for stream in streams:
            lists = getattr(stream, key) or ()
            if missing := list(dict.fromkeys(name for row in lists for name in row if name not in item_names)):
                named = ", ".join(f'"{name}"' for name in missing[:5]) + (", ..." if len(missing) > 5 else "")
                near = suggestion(missing[0], item_names)
                message = f"{named} not listed under data: (items with name and size){near}"
                yield context.problem((*stream.path, key), message)
