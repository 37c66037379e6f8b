"""Build partitions from the `site:` part of a scenario, and apply rules to tasks."""

import math
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.cluster import Cluster, Node, Partition
from hetsim.model.tasks import Tasks
from hetsim.results.formatting import seconds
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.demand import Demand, PartitionColumn
from hetsim.scenario.schema.site import SiteSpec
from hetsim.workload.node_lists import hosts
from hetsim.workload.traces import TaskTable

if TYPE_CHECKING:
    from hetsim.scenario.building.streams import Context

SHOWN = 3  # Maximum number of reasons for rejections in a warning.


def with_partitions(cluster: Cluster, site: SiteSpec, document: Document) -> Cluster:
    """Return the cluster with its partitions, named by nodes or listed in `site`."""
    problems: list[Problem] = []
    if any(rules.nodes for rules in site.partitions.values()):
        cluster = _told(cluster, site)
    for name, rules in site.partitions.items():
        path: Path_ = ("site", "partitions", name)
        before = cluster.partitions.get(name, Partition(name))
        mask = before.mask
        for pattern in rules.nodes or ():
            if not _matching(pattern, cluster):
                names = [node.name for node in cluster.nodes]
                near = suggestion(pattern, names) or f"; nodes are named {', '.join(names[:5])}"
                problems.append(document.problem((*path, "nodes"), f'there is no node "{pattern}"{near}'))
        if not mask and not problems:
            where = "give the partition to nodes (cluster.nodes: [{partitions: [...]}]), or list nodes here"
            problems.append(document.problem(path, f'partition "{name}" has no nodes; {where}'))
        cluster.partitions[name] = replace(before, mask=mask, **rules.given)
    if problems:
        raise ScenarioError(problems)
    return cluster


def _told(cluster: Cluster, site: SiteSpec) -> Cluster:
    extra: dict[int, list[str]] = {}
    for name, rules in site.partitions.items():
        for pattern in rules.nodes or ():
            here = _matching(pattern, cluster)
            for node in cluster.nodes:
                if here >> node.index & 1:
                    extra.setdefault(node.index, []).append(name)
    specs = []
    for node in cluster.nodes:
        inside = tuple(dict.fromkeys([*node.spec.partitions, *extra.get(node.index, ())]))
        specs.append(replace(node.spec, count=1, name=node.name, partitions=inside))
    return Cluster(specs)


def nodes_named(pattern: str, cluster: Cluster) -> list[Node]:
    """Return the nodes that match a name, a range (`n[0-3]`) or a pattern (`n*`)."""
    wanted = dict.fromkeys(hosts(pattern)) if "[" in pattern or "," in pattern else {pattern: None}
    return [
        node for node in cluster.nodes
        if node.name in wanted or ("*" in pattern and fnmatchcase(node.name, pattern))
    ]  # fmt: skip


def _matching(pattern: str, cluster: Cluster) -> int:
    return sum(1 << node.index for node in nodes_named(pattern, cluster))


def default_of(cluster: Cluster) -> Partition | None:
    """Return the partition of tasks that name none; None if they may use all nodes."""
    return next((one for one in cluster.partitions.values() if one.default), None)


def drawn_partition(demand: Demand, path: Path_, context: "Context") -> Partition | None:
    """Return the partition of an entry's drawn tasks; ScenarioError if it is unknown."""
    if (given := demand.partition) is None:
        return default_of(context.cluster)
    if isinstance(given, PartitionColumn):
        raise context.fail((*path, "partition"), "must be the name of a partition: drawn tasks have no columns")
    return _named_partition(given, path, context)


def unknown_partition(name: str, cluster: Cluster) -> str:
    """Return an error text for an unknown partition, with a suggestion or all names."""
    names = list(cluster.partitions)
    near = suggestion(name, names) or (f"; there are {', '.join(names[:8])}" if names else "; the cluster has none")
    return f'unknown partition "{name}"{near}'


def recorded_partitions(
    demand: Demand, path: Path_, table: TaskTable, kept: np.ndarray, context: "Context"
) -> tuple[np.ndarray, list[Partition | None], dict[int, str]]:
    """Return each row's partition number, all partitions, and {row: why rejected}.

    Rows that name no partition are in the partition of the entry, or in the default partition.
    """
    import pandas as pd

    existing, given = context.cluster.partitions, demand.partition
    fallback = _named_partition(given, path, context) if isinstance(given, str) else default_of(context.cluster)
    column = given if isinstance(given, PartitionColumn) else PartitionColumn()
    if column.others is not None and column.others not in existing:
        raise context.fail((*path, "partition", "others"), unknown_partition(column.others, context.cluster))
    cells = {"user": table.user, "class": table.class_}.get(column.column, table.extra.get(column.column))
    if given is column and cells is None:
        near = suggestion(column.column, table.extra) or f"; it has {', '.join(table.extra) or 'no such columns'}"
        raise context.fail((*path, "partition", "column"), f'{table.source} has no column "{column.column}"{near}')
    if cells is None or not existing:
        return np.zeros(len(kept), dtype=np.int32), [fallback], {}
    codes, values = pd.factorize(np.array([_text(cell) for cell in cells[kept].tolist()], dtype=object))
    names = [column.names.get(value, value) for value in values.tolist()]
    if column.others is not None:
        names = [name if not name or name in existing else column.others for name in names]
    refused = {}
    for code, name in enumerate(names):
        if name and name not in existing:
            reason = unknown_partition(name, context.cluster)
            refused.update(dict.fromkeys(np.flatnonzero(codes == code).tolist(), reason))
    return codes.astype(np.int32), [existing.get(name) if name else fallback for name in names], refused


def _named_partition(name: str, path: Path_, context: "Context") -> Partition:
    if name not in context.cluster.partitions:
        raise context.fail((*path, "partition"), unknown_partition(name, context.cluster))
    return context.cluster.partitions[name]


def _text(cell: object) -> str:
    if cell is None or cell != cell:
        return ""
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


# The rules --------------------------------------------------------------------------------------------------------


def apply_rules(tasks: Tasks, site: SiteSpec, context: "Context") -> None:
    """Apply the site's time limits and rejections to the merged tasks."""
    limit = _asked(tasks)
    if any(tasks.partitions):
        limit = _by_partition(tasks, limit, context.cluster)
    if limit is not None and np.isfinite(limit).any():
        tasks.time_limit = limit
        tasks.extra["time_limit"] = np.where(np.isinf(limit), math.nan, limit)
        if site.at_limit == "kill":
            _bound_estimates(tasks, limit + site.grace)
    if tasks.refused:
        context.warnings.append(refusals(tasks))


def _asked(tasks: Tasks) -> np.ndarray | None:
    if (column := tasks.extra.get("time_limit")) is None:
        return None
    values = np.array(column, dtype=float)
    return np.where(values > 0, values, math.inf)


def _by_partition(tasks: Tasks, limit: np.ndarray | None, cluster: Cluster) -> np.ndarray | None:
    """Return time limits with partition defaults; reject tasks that violate rules."""
    codes = np.zeros(len(tasks), dtype=np.int32) if tasks.partition_code is None else tasks.partition_code
    for code, name in enumerate(tasks.partitions):
        if not name:
            continue
        partition = cluster.partitions[name]
        rows = np.flatnonzero(codes == code)
        usual = partition.default_time if partition.default_time is not None else partition.max_time
        if math.isfinite(usual):
            limit = np.full(len(tasks), math.inf) if limit is None else limit
            long = rows[np.isfinite(limit[rows]) & (limit[rows] > partition.max_time)]
            for row in long.tolist():
                asks = f"asks for {seconds(float(limit[row]))}, more than the {seconds(partition.max_time)} of"
                tasks.refused.setdefault(row, f"{asks} partition {name}")
            limit[rows[np.isinf(limit[rows])]] = usual
        _keep_out(tasks, rows, partition)
    return limit


def _keep_out(tasks: Tasks, rows: np.ndarray, partition: Partition) -> None:
    codes, column = tasks.user_code, tasks.extra.get("account")
    users = (tasks.users[0 if codes is None else codes[row]] for row in rows.tolist())
    accounts = ("" if column is None else _text(column[row]) for row in rows.tolist())
    for kind, names, admitted in (("user", users, partition.users), ("account", accounts, partition.accounts)):
        if admitted is None:
            continue
        for row, name in zip(rows.tolist(), names, strict=True):
            if name not in admitted:
                owner = f"{kind} {name}" if name else f"a task without {'a user' if kind == 'user' else 'an account'}"
                tasks.refused.setdefault(row, f"{owner} may not use partition {partition}")


def _bound_estimates(tasks: Tasks, end: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        latest = np.maximum(0.0, end[:, np.newaxis] - tasks.computing(np.zeros_like(tasks.estimate)))
        longer = np.isfinite(tasks.estimate) & (tasks.estimate > latest)
    if longer.any():
        tasks.estimate = np.where(longer, latest, tasks.estimate)


def refusals(tasks: Tasks) -> str:
    """Return a text on the number of tasks that are rejected at arrival, by reason."""
    counts: dict[str, int] = {}
    for reason in tasks.refused.values():
        alike = re.sub("^asks for [^,]*, ", "asks for ", reason)  # what is asked for differs from task to task
        counts[alike] = counts.get(alike, 0) + 1
    common = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    reasons = "; ".join(f"{number:,}: {reason}" for reason, number in common[:SHOWN])
    others = len(common) - SHOWN
    rest = f"; and {others} other reason{'s' * (others > 1)}" if others > 0 else ""
    return f"{len(tasks.refused):,} of {len(tasks):,} tasks are rejected at arrival ({reasons}{rest})"
