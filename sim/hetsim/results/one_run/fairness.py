"""Fairness metrics: finish-time fairness ρ, and Jain's index over users."""

import math
from collections.abc import Callable

import numpy as np

from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, Record
from hetsim.results.declared import metric
from hetsim.results.one_run.launches import launches_of
from hetsim.results.one_run.measured import Measured, Run, quantile
from hetsim.results.one_run.modes import ModeTable, capacity, gather, mode_time, transfers, units
from hetsim.results.one_run.rows import TableRows
from hetsim.results.one_run.tables import batch_members, by_launch

UNFAIR = 1.1  # A task with a greater ρ counts as treated unfairly.


def rho(run: Measured) -> np.ndarray:
    """Finish-time fairness ρ of the measured tasks that completed."""
    values = run.chosen(run.result.rho)
    return values[~np.isnan(values)]


def rho_of_tasks(result: Run) -> np.ndarray:
    """ρ = response / T_iso for each row of the task table; NaN if not completed.

    T_iso is the task's time on an exclusive 1/N of the cluster in its fastest feasible mode; N is the average number of
    active tasks during the task's life, at least 1.  A mode that needs g of C devices takes max(1, g·N/C) × its time.
    """
    record, table = result.record, result.modes
    tasks, rows = record.input.tasks, TableRows(record)
    rho = np.full(rows.count, math.nan)
    arrival, status = rows(tasks.arrival), record.status[rows.deciding]
    finish = record.finish[rows.deciding]
    finish = np.where(np.isnan(finish), record.end, finish)
    there = np.isfinite(arrival)
    active = _active(arrival[there], finish[there])
    done = np.flatnonzero(status == COMPLETED)
    if not len(done):
        return rho
    begin, end = arrival[done], finish[done]
    with np.errstate(divide="ignore", invalid="ignore"):
        crowd = (np.interp(end, *active) - np.interp(begin, *active)) / (end - begin)
    crowd = np.maximum(np.nan_to_num(crowd, nan=1.0), 1.0)
    isolated = _isolated(table, rows, done, crowd)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho[done] = (end - begin) / isolated
    return rho


def _isolated(table: ModeTable, rows: TableRows, done: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    tasks = table.tasks
    if rows.staged is None:
        return _on_a_share(table, rows(np.arange(len(tasks)))[done], crowd)
    among = np.ones(rows.count)  # A request takes its time alone as much longer as its stages do, each on its share.
    among[done] = crowd
    mine = np.isin(rows.owner, done)
    members, owner = rows.members[mine], rows.owner[mine]
    by_row = np.bincount(owner, weights=_on_a_share(table, members, among[owner]), minlength=rows.count)[done]
    total = np.bincount(owner, weights=_on_a_share(table, members, np.ones(len(members))), minlength=rows.count)[done]
    alone = np.where(np.isnan(rows.staged.alone), np.inf, rows.staged.alone)
    of_stages = rows(rows.staged.stage)[done] >= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(of_stages & (total > 0), rows(alone)[done] * by_row / total, by_row)


def _on_a_share(table: ModeTable, chosen: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    tasks = table.tasks
    isolated = np.full(len(chosen), math.inf)
    moved = transfers(tasks)
    for position in range(table.width):
        part = table.by_shape(position, lambda mode: units(mode) / capacity(mode, table.cluster), math.inf)
        portion = gather(part, tasks.shape[chosen])
        time = mode_time(table, position, moved)[chosen]
        with np.errstate(invalid="ignore"):
            np.fmin(isolated, time * np.maximum(1.0, portion * crowd), out=isolated)
    return isolated


def _active(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return event times, and up to each time the integral of the number of tasks."""
    when = np.concatenate([begin, end])
    change = np.repeat([1, -1], len(begin))
    order = np.argsort(when, kind="stable")
    when, change = when[order], change[order]
    return when, np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(when))])


@metric(unit="ratio", better="less", sets=("fairness", "cluster:160"), title="ρ max", congested=True)
def rho_max(run: Measured) -> float:
    """Maximum finish-time fairness ρ (response / time on a fair share)."""
    return quantile(rho(run), 1.0)


@metric(
    unit="ratio", better="less", weight="_completed", sets=("cluster:140", "groups:150"), title="ρ mean",
    congested=True,
)  # fmt: skip
def rho_mean(run: Measured) -> float:
    """Mean finish-time fairness ρ of completed tasks."""
    values = rho(run)
    return float(values.mean()) if len(values) else math.nan


@metric(
    unit="ratio", better="less", sets=("fairness", "usual:100", "cluster:150", "groups:160", "group_rows:160"),
    title="ρ p95", congested=True,
)  # fmt: skip
def rho_p95(run: Measured) -> float:
    """95th percentile of the finish-time fairness ρ of completed tasks."""
    return quantile(rho(run), 0.95)


@metric(
    unit="share", better="less", weight="_completed", sets=("fairness", "cluster:170"), title="ρ above 1.1",
    congested=True,
)  # fmt: skip
def rho_unfair_share(run: Measured) -> float:
    """Share of completed tasks with a finish-time fairness ρ above 1.1."""
    values = rho(run)
    return float((values > UNFAIR).mean()) if len(values) else math.nan


@metric(unit="ratio", better="more", of="run", sets=("fairness", "usual:110", "cluster:180"))
def jain(run: Measured) -> float:
    """Jain's index (Σx)² / (n Σx²) over n users; 1 is equal treatment.

    x = GPU-seconds / min(demand, entitlement) of a user.  The demand is the GPU-seconds that the user's tasks in the
    window need in their cheapest GPU modes; the entitlement is the GPU-seconds of the window, divided among these users
    by the mean weight of their tasks.  If no task of the run can use a GPU, core-seconds are used instead.
    """
    record, table = run.result.record, run.result.modes
    tasks, rows = record.input.tasks, TableRows(record)
    arrival = rows(tasks.arrival)
    chosen = np.flatnonzero((arrival >= run.low) & (arrival < run.result.horizon))
    users = np.zeros(len(chosen), np.int64)
    if tasks.user_code is not None:
        users = rows(tasks.user_code)[chosen].astype(np.int64)
    of_all = gpu_demand(table)
    on_cores = not of_all.any()
    wanted = rows.total(core_demand(table) if on_cores else of_all)[chosen]
    count = len(tasks.users)
    demand = np.bincount(users, weights=wanted, minlength=count)
    having = demand > 0
    if not having.any():
        return math.nan
    weight = np.ones(len(chosen)) if tasks.weight is None else rows(tasks.weight)[chosen]
    number = np.bincount(users, minlength=count)
    mean_weight = np.where(having, np.bincount(users, weights=weight, minlength=count) / np.maximum(number, 1), 0.0)
    gpus = sum(device.type.kind != "cpu" for device in table.cluster.devices)
    there = sum(node.cpus for node in table.cluster.nodes) if on_cores else gpus
    entitled = run.duration * there * mean_weight / mean_weight.sum()
    received = np.bincount(users, weights=rows.total(_received(run.result, on_cores))[chosen], minlength=count)
    x = (received[having] / np.minimum(demand, entitled)[having]).astype(np.float64)
    squares = float((x * x).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares > 0 else math.nan


def gpu_demand(table: ModeTable) -> np.ndarray:
    """GPU-seconds of each task in its cheapest GPU mode; 0 without a GPU mode."""
    return _demand(table, lambda mode: math.inf if mode.on_cpu else mode.gpu_share)


def core_demand(table: ModeTable) -> np.ndarray:
    """Core-seconds of each task in its cheapest CPU mode; 0 without a CPU mode."""
    return _demand(table, lambda mode: units(mode) if mode.on_cpu else math.inf)


def _demand(table: ModeTable, units_of: Callable[[Mode], float]) -> np.ndarray:
    tasks = table.tasks
    wanted = np.full(len(tasks), math.inf)
    for position in range(table.width):
        size = table.by_shape(position, units_of, math.inf)
        with np.errstate(invalid="ignore"):
            np.fmin(wanted, tasks.time[:, position] * gather(size, tasks.shape), out=wanted)
    wanted[np.isinf(wanted)] = 0.0
    return wanted


def gpu_seconds_of_tasks(result: Run) -> np.ndarray:
    """GPU-seconds computed by each row of the task table; equal shares within a batch."""
    return TableRows(result.record).total(_received(result))


def _received(result: Run, on_cores: bool = False) -> np.ndarray:
    record, table = result.record, result.modes
    if record.input.language:
        return _of_requests(record, table, on_cores)
    launches = launches_of(record, table)
    computed = launches.busy * (1.0 - launches.lost_part)
    return by_launch(record, launches, np.where(table.on_cpu[launches.mode] == on_cores, computed, 0.0))


def _of_requests(record: Record, table: ModeTable, on_cores: bool) -> np.ndarray:
    end = np.where(np.isnan(record.finish), record.end, record.finish)
    computed = record.stage("compute")
    compute = end - record.start if computed is None else computed
    codes = table.codes(record.input.tasks.shape, record.mode)
    size = np.where(table.on_cpu == on_cores, table.units, 0.0)[codes]
    members = batch_members(record)
    return np.nan_to_num(compute) * size / (1 if members is None else members)
