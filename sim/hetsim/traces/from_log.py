"""A scenario from a log: cluster, limits and times of reduced capacity.

`variants` are scenarios, each with one more property that is inferred from the log, so that simulated waits can be
compared with the recorded waits: the log as recorded; then from a later time on, with the jobs present at that time
(warm start); then with nodes that were down; then with the limits of users or queues.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim import registry
from hetsim.workload.logs.recorded_log import (
    HeldOverTime,
    Jobs,
    NodeParts,
    correlation,
    level_of,
    node_parts,
    rank_correlation,
)
from hetsim.workload.logs.summary import held_amounts, on_gpus
from hetsim.workload.logs.waits import Explained, half_of
from hetsim.workload.traces import TaskTable

NODE = 8  # GPUs per node if the log does not state it
POLICY = "easy_backfill"
CUTS = ("since", "until", "sample", "time_scale", "warm_start")  # options of a trace that change its time axis
LEFT = 0.05  # share of unexplained waiting above which further explanations are tried
FEW = 20  # minimum number of jobs for a comparison


@dataclass
class Variant:
    """A scenario, what it adds to the variant before it, and its simulated waits."""

    name: str
    document: dict[str, Any]
    jobs: int = 0
    recorded: float = math.nan
    simulated: float = math.nan
    correlation: float = math.nan
    rank_correlation: float = math.nan
    # mean difference of simulated and recorded waits, of the half of the jobs not used for inference
    error: float = math.nan
    kept: bool = True  # nearer to the record than the variant before; the next variant builds on it
    # recorded and simulated waits of the compared jobs
    waits: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)


@dataclass
class Compared:
    """Scenarios for a log, and notes on log properties that no scenario includes."""

    variants: list[Variant]
    notes: list[str] = field(default_factory=list)
    # names of the steps to try, and the functions that add them to a scenario
    steps: list[tuple[str, Callable[[dict[str, Any]], None]]] = field(default_factory=list)

    @property
    def best(self) -> Variant:
        """The scenario variant whose simulated waits are closest to those in the log."""
        return [one for one in self.variants if one.kept][-1]


# The cluster ----------------------------------------------------------------------------------------------------


def inferred_nodes(table: TaskTable) -> list[dict[str, Any]]:
    """Return nodes with the capacity that the log shows (`recorded_log.capacity_of`).

    If the log names the nodes of each job, these nodes are returned.  Otherwise the result is one node with all cores,
    or, for each GPU type, as many nodes of 8 GPUs as necessary (of fewer GPUs if no job uses 8).
    """
    start = table.extra.get("recorded_start", table.arrival)
    begin = np.where(np.isnan(start), table.arrival, start)
    took = np.min(list(table.times.values()), axis=0)
    gpus, cores = held_amounts(table)
    parts = node_parts(table.extra.get("recorded_node"), gpus, begin, begin + took)
    if parts is not None:
        return _named(table, parts, begin, end=begin + took, amounts=(gpus, cores))
    if not gpus.any():
        peak, nodes = max(1, int(level_of(begin, begin + took, cores))), table.numbers.get("nodes")
        if nodes is None or not (nodes > 1).any():
            return [{"name": "pool", "cpus": peak}]
        count = np.where(np.isnan(nodes), 1.0, nodes)
        each = math.ceil((cores / count).max())
        return [{"name": "n", "count": max(math.ceil(peak / each), int(count.max())), "cpus": each}]
    return _pools(table, begin, begin + took, gpus=gpus, cores=cores)


def _named(
    table: TaskTable, parts: NodeParts, begin: np.ndarray, end: np.ndarray, amounts: tuple[np.ndarray, np.ndarray]
) -> list[dict[str, Any]]:
    nodes = []
    share = np.bincount(parts.job)[parts.job]
    for name in sorted(set(parts.names)):
        here = parts.jobs_on(parts.names.index(name))
        if not len(here):
            continue  # the earlier name of another
        rows = parts.job[here]
        peaks = [int(level_of(begin[rows], end[rows], amount[rows] / share[here])) for amount in amounts]
        if peaks[0]:  # cores next to GPUs: the most that was held, so that they keep no job that ran
            held_cores = HeldOverTime(begin[rows], end[rows], amounts[1][rows] / share[here])
            peaks[1] = max(peaks[1], math.ceil(held_cores.level.max() - 1e-9))
        node: dict[str, Any] = {"name": name, "cpus": max(1, peaks[1])}
        if peaks[0]:
            kinds = _kinds(table)[rows][amounts[0][rows] > 0]
            node["gpus"] = {"type": str(kinds[0]), "count": peaks[0]}
        nodes.append(node)
    return nodes


def _kinds(table: TaskTable) -> np.ndarray:
    if table.devices is None:
        return np.full(len(table), "gpu", dtype=object)
    return np.array([str(one).split("|")[0] or "gpu" for one in table.devices.tolist()], dtype=object)


def _pools(
    table: TaskTable, begin: np.ndarray, end: np.ndarray, gpus: np.ndarray, cores: np.ndarray
) -> list[dict[str, Any]]:
    kinds = _kinds(table)
    on_gpu = on_gpus(table) & (gpus > 0)
    pools: list[dict[str, Any]] = []
    rows_of = {kind: np.flatnonzero(on_gpu & (kinds == kind)) for kind in sorted(set(kinds[on_gpu]))}
    peaks = {kind: int(level_of(begin[rows], end[rows], gpus[rows])) for kind, rows in rows_of.items()}
    counts = {kind: math.ceil(count / min(NODE, count)) for kind, count in peaks.items()}
    nodes = sum(counts.values())
    alone = math.ceil(cores[~on_gpu].max(initial=0.0))
    each = max(1, alone, math.ceil(int(level_of(begin, end, cores)) / nodes))
    # A gang over nodes holds its cores in proportion: a node must have them for its part.
    share = np.where(on_gpu & (gpus >= 1), cores / np.maximum(gpus, 1.0), cores)
    for kind, count in counts.items():
        size = min(NODE, peaks[kind])
        wide = math.ceil(float(share[rows_of[kind]].max(initial=0.0)) * size - 1e-9)
        name = f"{kind}-" if len(counts) > 1 else "n"
        gpu = {"type": kind, "count": size}
        pools.append({"name": name, "count": count, "cpus": max(each, wide), "gpus": gpu})
    return pools


# Scenarios ------------------------------------------------------------------------------------------------------


def document_of(
    name: str, trace: Mapping[str, Any], nodes: Any, policy: str | None = None, entry: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the scenario of a log, on a given cluster or inferred nodes."""
    cluster = nodes if isinstance(nodes, dict) else {"nodes": nodes}
    rest = {"unfit": "leave_out", "span": "any"} if entry is None else dict(entry)
    return {
        "name": name,
        "cluster": cluster,
        "workload": [{"name": "jobs", "trace": dict(trace), **rest}],
        "policy": policy or POLICY,
    }


def variants(document: dict[str, Any], explained: Explained, pooled: bool, cluster_nodes: list[str] | None) -> Compared:
    """Return the log as recorded, and steps that each add an inferred property.

    `pooled`: the cluster was inferred, or has no partitions, so that limits can become partitions.
    `cluster_nodes`: names of the cluster's nodes; downtimes are simulated only if it has at least two names.
    """
    compared = Compared([Variant("as it stands", deepcopy(document))])
    first = compared.variants[0].document
    begin = _cut(first["workload"][0]["trace"], explained, compared)
    cut = {} if begin is None else {"since": f"{begin:.0f} s", "warm_start": True}
    if begin is not None:
        name = "from there with the jobs that ran (warm start)"
        compared.steps.append((name, lambda last: last["workload"][0]["trace"].update(cut)))

    def go_down(last: dict[str, Any]) -> None:
        warm = "warm_start" in last["workload"][0]["trace"] and begin is not None
        last["faults"] = [*last.get("faults", []), *_down(explained, cluster_nodes, begin if warm and begin else 0.0)]

    if _down(explained, cluster_nodes, 0.0):
        compared.steps.append(("with the nodes that were down", go_down))
    elif len(explained.curve) > 1:
        text = "times with less capacity are not simulated: the cluster is one pool, so no part can be down"
        compared.notes.append(text)
    limits = explained.limits
    if limits is not None and pooled and not (first.get("site") or {}).get("partitions"):
        name = f"with the limits by {limits.kind}"
        compared.steps.append((name, lambda last: take_in_limits(last, limits.kind, limits.max_held, explained.jobs)))
    elif limits is not None:
        compared.notes.append("the limits are not simulated: the cluster has its own partitions")
    return compared


def _cut(trace: Mapping[str, Any], explained: Explained, found: Compared) -> float | None:
    """Return when (s) to cut the log for a warm start; None: not needed or impossible."""
    jobs = explained.jobs
    if explained.warm_end <= float(jobs.arrival[0]):
        return None
    if any(key in trace for key in CUTS):
        found.notes.append("there is no warm start: the trace is already cut or scaled")
        return None
    if "warm_start" not in inspect.signature(registry.entry("traces", trace["format"])).parameters:
        found.notes.append(f"there is no warm start: format: {trace['format']} does not support it")
        return None
    if (jobs.arrival >= explained.warm_end).sum() < FEW:
        found.notes.append(f"there is no warm start: fewer than {FEW} jobs arrive after the warm-up part of the log")
        return None
    return math.ceil(explained.warm_end)


def _down(explained: Explained, names: list[str] | None, offset: float) -> list[dict[str, Any]]:
    """Return windows in which nodes are down, enough to explain missing capacity.

    The windows are announced in advance, so that jobs can end before them: no job in the log was interrupted.  The
    notice is the 95 % quantile of the run times.
    """
    if names is None or len(names) < 2:
        return []
    each = explained.capacity / len(names)
    points = [*explained.curve, (float(explained.jobs.end.max()), explained.capacity)]
    runs: list[tuple[float, float, int]] = []
    for (begin, level), (end, _) in zip(points, points[1:], strict=False):
        count = int(max(0.0, explained.capacity - level) / each + 1e-9)
        begin = max(begin, offset)
        if count and end > begin:
            if runs and runs[-1][2] == count and math.isclose(runs[-1][0] + runs[-1][1], begin - offset):
                begin = runs.pop()[0] + offset
            runs.append((begin - offset, end - begin, count))
    windows = []
    lead = float(np.quantile(explained.jobs.end - explained.jobs.start, 0.95))
    for begin, length, count in runs:
        window = {"nodes": names[-count:], "from": f"{begin:.0f} s", "for": f"{length:.0f} s",
                  "announced": f"{max(0.0, begin - lead):.0f} s"}  # fmt: skip
        windows.append({"maintenance": window})
    return windows


def take_in_limits(document: dict[str, Any], kind: str, most: Mapping[str, float], jobs: Jobs) -> None:
    """Add a partition for each group with a limit, and a partition for all other jobs.

    Each partition has all nodes.  kind: column of the groups, such as `user`.  most: limit by group (GPUs or cores).
    """
    key = "max_gpus" if jobs.unit == "GPUs" else "max_cpus"
    names = {name: f"{kind}-{name}" for name in most}
    rest = "others"
    rules: dict[str, Any] = {
        names[name]: {"nodes": "*", key: int(limit) if float(limit).is_integer() else float(limit)}
        for name, limit in most.items()
    }
    document["site"] = {**document.get("site", {}), "partitions": {**rules, rest: {"nodes": "*", "default": True}}}
    document["workload"][0]["partition"] = {"column": kind, "names": names, "others": rest}


# Simulated against recorded -------------------------------------------------------------------------------------


def compare(
    compared: Compared, explained: Explained, widest: float = 0.0, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Simulate variants of a log's scenario one by one, and add them to `compared`.

    Each variant makes one more change (a step of `compared`), which is kept if it brings the waits closer to the
    recorded waits, for the half of the jobs not used for inference (`half_of`).  Only jobs that arrive after `warm_end`
    are compared.  `widest`: GPUs of the largest node.  If gangs may use several nodes although all of them fit on one,
    a further step restricts each gang to one node.
    """
    begin = explained.warm_end
    gangs = explained.jobs.unit == "GPUs" and 1 < float(explained.jobs.amount.max()) <= widest
    unexplained = explained.shares["held back"] + explained.shares["fragmented"] >= LEFT
    if gangs and unexplained and compared.variants[0].document["workload"][0].get("span") == "any":
        compared.steps.append(("with each gang on one node", lambda last: last["workload"][0].pop("span")))
    tell(f"simulating {compared.variants[0].name}")
    _simulate(compared.variants[0], begin)
    for name, take_in in compared.steps:
        best = compared.best
        tried = Variant(name, deepcopy(best.document))
        take_in(tried.document)
        tell(f"simulating {name}")
        _simulate(tried, begin)
        tried.kept = tried.error < best.error or (math.isnan(best.error) and not math.isnan(tried.error))
        compared.variants.append(tried)


def _simulate(variant: Variant, begin: float) -> None:
    from hetsim.experiment.run import one_run, prepare

    tasks = one_run(prepare(variant.document)).tasks
    warm = "at_cut" in tasks
    offset = math.ceil(begin) if "warm_start" in variant.document["workload"][0]["trace"] and warm else 0.0
    chosen = tasks["recorded_start"].notna() & (tasks["status"] == "completed")
    chosen &= (tasks["at_cut"] == 0) if warm else (tasks["arrival"] >= math.ceil(begin))
    part = tasks[chosen]
    arrival = part["arrival"].to_numpy(dtype=float)
    recorded = part["recorded_start"].to_numpy(dtype=float) - arrival
    simulated = part["start"].to_numpy(dtype=float) - arrival
    variant.jobs, variant.waits = len(part), (recorded, simulated)
    if len(part):
        judge = half_of(arrival + offset) == 1
        judge = judge if judge.any() else ~judge
        variant.error = float(np.abs(simulated - recorded)[judge].mean())
        variant.recorded, variant.simulated = float(recorded.mean()), float(simulated.mean())
        variant.correlation = correlation(recorded, simulated)
        variant.rank_correlation = rank_correlation(recorded, simulated)
