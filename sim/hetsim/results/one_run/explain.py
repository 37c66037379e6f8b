"""Why tasks waited: each wait split by cause so that the causes sum to it.

At every moment between ready and the decision to start, in this order:

- `no_capacity`: none of its modes fits anywhere, and the free capacity of the cluster summed would not do.
- `fragmentation`: none fits anywhere, though the sum would do.
- `quota`, `reservation`, `choice`: it would fit, and the policy told this cause (`Annotate`).
- `scheduler`: it would fit, and a cycle of the scheduler is wanted or under way (`policy.decisions`).
- `head_of_line`: it would fit, and a task that became ready earlier waits and does not fit, which may use some of
  the same nodes (their partitions share any).
- `choice`: it would fit, and nothing else explains it: the policy's choice.

From the decision to the first stage is `scheduler` until the start takes effect, then `transfer` (queues for links and
for the compute engine, data moved first, wake-up).  Only the wait before the first start is split; of a task that never
started, the time until it ended or the run did.
"""

from __future__ import annotations

import difflib
import heapq
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.record import LAUNCH_LOST, LAUNCH_STOPPED, STATUS_NAMES, UNFINISHED, Record
from hetsim.model.tasks import Mode
from hetsim.policy.queues import EVERYWHERE
from hetsim.results.one_run import language
from hetsim.results.one_run.groups import by_number, checked, size_labels
from hetsim.results.one_run.launches import launch_numbers
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.replay import FreeCapacity, RunReplay
from hetsim.results.one_run.rows import TableRows

CAUSES = ("no_capacity", "fragmentation", "head_of_line", "quota", "reservation", "transfer", "choice", "scheduler")
_NO_CAPACITY, _FRAGMENTED, _BEHIND, _TRANSFER, _CHOICE, _SCHEDULER = 0, 1, 2, 5, 6, 7
_FITS = 2
_NO_TASK = np.iinfo(np.int64).max


@dataclass
class _Waits:
    """The waits of one run, and what the sweep over it found.

    Stretch k is [grid[k], grid[k + 1]).  `state[v, k]` says for tasks of variant v: 0 no capacity, 1
    fragmented, 2 fits; `head[p, k]` is the rank (by ready time) of the earliest waiting task that does not fit, of
    those with which tasks of partition number p may share a node; `part[v]` is the partition of variant v;
    `cycle[k]`: a cycle of the scheduler is wanted or under way.
    """

    record: Record
    row: np.ndarray
    ready: np.ndarray
    decided: np.ndarray
    effective: np.ndarray
    until: np.ndarray
    variant: np.ndarray
    rank: np.ndarray
    by_rank: np.ndarray
    grid: np.ndarray
    state: np.ndarray
    head: np.ndarray
    part: np.ndarray
    cycle: np.ndarray
    holds: dict[int, tuple[list[float], list[int]]]

    def stretches(self, at: int) -> tuple[slice, np.ndarray]:
        """The stretches between ready and the decision of one wait, and the cause of each."""
        first, last = np.searchsorted(self.grid, (self.ready[at], self.decided[at]))
        part = slice(int(first), int(last))
        cause = self.state[self.variant[at], part].astype(np.int64)
        fits = cause == _FITS
        if fits.any():
            why = np.where(self.head_of(at)[part] < self.rank[at], _BEHIND, _CHOICE)
            why = np.where(self.cycle[part], _SCHEDULER, why)
            holds = self.holds.get(int(self.row[at]))
            if holds is not None:
                index = np.searchsorted(holds[0], self.grid[part], side="right") - 1
                why = np.where(index >= 0, np.array(holds[1])[np.maximum(index, 0)], why)
            cause[fits] = why[fits]
        return part, cause

    def head_of(self, at: int) -> np.ndarray:
        """The earliest task that one may stand behind, by stretch."""
        return self.head[self.part[self.variant[at]]]


def causes(result: Run) -> pd.DataFrame:
    """One row a ready task: `id`, `class`, `user`, `wait`, seconds of each cause.

    Of a request that passes through stages one row, with the waits of all its stages.
    """
    return _causes(result)[0]


def _causes(result: Run) -> tuple[pd.DataFrame, np.ndarray]:
    """The same, and the row of the record (of a request that of its first stage)."""
    waits = _waits(result)
    lengths = np.diff(waits.grid, append=waits.grid[-1])
    seconds = np.zeros((len(waits.row), len(CAUSES)))
    for at in np.flatnonzero(waits.decided > waits.ready).tolist():
        part, cause = waits.stretches(at)
        seconds[at] = np.bincount(cause, weights=lengths[part], minlength=len(CAUSES))
    seconds[:, _SCHEDULER] += waits.effective - waits.decided
    seconds[:, _TRANSFER] += waits.until - waits.effective
    wait, rows = waits.until - waits.ready, waits.row
    tasks = result.record.input.tasks
    ids = None if tasks.id is None else np.asarray(tasks.id)
    if tasks.staged is not None:
        rows, owner = np.unique(tasks.staged.first[rows], return_inverse=True)
        wait = np.bincount(owner, weights=wait)
        seconds = np.column_stack([np.bincount(owner, weights=one) for one in seconds.T])
        ids = np.asarray(tasks.staged.id)
    frame = pd.DataFrame({"id": rows if ids is None else ids[rows]})
    for name, codes, names in (
        ("class", tasks.class_code, tasks.classes),
        ("user", tasks.user_code, tasks.users),
    ):
        frame[name] = [names[0]] * len(rows) if codes is None else [names[code] for code in codes[rows]]
    frame["wait"] = wait
    return pd.concat([frame, pd.DataFrame(exact(seconds, wait), columns=list(CAUSES))], axis=1), rows


def exact(parts: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The parts (rows), adjusted so that each row sums to its total exactly.

    All become multiples of the total's last binary digit, and the greatest takes what is missing.
    """
    digit = np.spacing(total)
    parts = np.rint(parts / digit[:, None]) * digit[:, None]
    parts[np.arange(len(parts)), parts.argmax(axis=1)] += total - parts.sum(axis=1)
    return parts


def explain_all(result: Run, by: str = "class") -> pd.DataFrame:
    """Seconds waited by class, number of GPUs (`gpus`) or user, and by cause."""
    (by,) = checked(by)
    table, rows = _causes(result)
    if by == "gpus":
        labels = size_labels(result.record.input.tasks.shapes)
        table[by] = [labels[shape] for shape in result.record.input.tasks.shape[rows]]
    groups = table.groupby(by, sort=by != "gpus")
    totals = groups[["wait", *CAUSES]].sum()
    if by == "gpus":
        totals = totals.loc[sorted(totals.index, key=by_number)]
    totals[list(CAUSES)] = exact(totals[list(CAUSES)].to_numpy(), totals["wait"].to_numpy())
    totals.insert(0, "tasks", groups.size()[totals.index])
    return totals


def explain(result: Run, task_id: Any) -> pd.DataFrame:
    """The wait of one task as stretches: `from`, `to`, `seconds`, `cause`, `detail`.

    Of a request those of all its stages, with the name of each in the column `stage`.
    """
    waits, rows = _waits(result), find_tasks(result, task_id)
    tables = [_stretches(waits, int(at)) for at in np.flatnonzero(np.isin(waits.row, rows))]
    if not tables:
        raise UsageError(f"task {task_id} never became ready, so it did not wait")
    if len(rows) == 1:
        return tables[0]
    staged = result.record.input.tasks.staged
    assert staged is not None
    ready = waits.row[np.isin(waits.row, rows)].tolist()
    for row, table in zip(ready, tables, strict=True):
        table.insert(0, "stage", staged.stages[staged.stage[row]])
    return pd.concat(tables, ignore_index=True)


def _stretches(waits: _Waits, at: int) -> pd.DataFrame:
    """The stretches of one wait."""
    part, cause = waits.stretches(at)
    lines: list[list[Any]] = []
    for begin, code, head in zip(waits.grid[part], cause, waits.head_of(at)[part], strict=True):
        detail = f"behind task {_name(waits, head)}" if code == _BEHIND else ""
        if not lines or lines[-1][1:] != [CAUSES[code], detail]:
            lines.append([float(begin), CAUSES[code], detail])
    if waits.effective[at] > waits.decided[at]:
        lines.append([float(waits.decided[at]), "scheduler", "decided; its start had not taken effect"])
    if waits.until[at] > waits.effective[at]:
        lines.append([float(waits.effective[at]), "transfer", "decided; its first stage had not begun"])
    ends = ([line[0] for line in lines] + [float(waits.until[at])])[1:]
    rows = [(line[0], end, end - line[0], *line[1:]) for line, end in zip(lines, ends, strict=True)]
    table = pd.DataFrame(rows, columns=["from", "to", "seconds", "cause", "detail"])
    if rows:
        wait = waits.until[at] - waits.ready[at]
        table["seconds"] = exact(table["seconds"].to_numpy()[None, :], np.array([wait]))[0]
    return table


def ending(result: Run, task_id: Any) -> dict[str, Any]:
    """How one task or request ended, as a mapping.

    `status`, `reason`, `at` (NaN if it has not), `launches`, `stops` (launches cut short), `wasted` (device-seconds
    computed that were lost) and `fused_with` (the others of its last launch as one kernel).
    """
    record, mine = result.record, find_tasks(result, task_id)
    row = mine[0]
    if len(mine) > 1:
        rows = TableRows(record)
        row = int(rows.deciding[np.searchsorted(rows(np.arange(len(record.status))), row)])
    status = int(record.status[row])
    facts: dict[str, Any] = {
        "status": STATUS_NAMES[status], "reason": record.reasons.get(row, ""),
        "at": float(record.finish[row]), "launches": int((record.start[mine] == record.start[mine]).sum()), "stops": 0,
        "wasted": 0.0, "fused_with": [],
    }  # fmt: skip
    if status == UNFINISHED:
        facts["at"] = math.nan
    for rows_of, _ in record.fused.values():
        if set(mine) & set(rows_of):
            facts["fused_with"] += [str(record.input.tasks.name(other)) for other in rows_of if other not in mine]
    if record.launches is not None and record.batch is None:
        launched = np.isin(np.asarray(record.launches["task"]), mine)
        cut = np.isin(np.asarray(record.launches["outcome"])[launched], (LAUNCH_STOPPED, LAUNCH_LOST))
        facts["launches"], facts["stops"] = int(launched.sum()), int(cut.sum())
        facts["wasted"] = float(np.asarray(record.launches["lost"], float)[launched].sum())
    return facts


def find_tasks(result: Run, task_id: Any) -> list[int]:
    """Rows of a task or of a request's stages by id; UsageError with near ids.

    Of `stream/id` the id alone will do where no other stream has it.
    """
    tasks = result.record.input.tasks
    if tasks.id is None:
        if str(task_id).isdecimal() and int(task_id) < len(tasks):
            return [int(task_id)]
        raise UsageError(f'no task "{task_id}": ids are the numbers 0 to {len(tasks) - 1}')
    names = {str(name): [row] for row, name in enumerate(tasks.id)}
    inside = {}
    if tasks.staged is not None:
        for row in np.flatnonzero(tasks.staged.stage >= 0).tolist():
            names.setdefault(str(tasks.staged.id[row]), []).append(row)
            inside[str(tasks.id[row])] = 2  # the id of a stage has a stroke itself
    if str(task_id) in names:
        return names[str(task_id)]
    local = [name for name in names if name.split("/", name.count("/") - inside.get(name, 1) + 1)[-1] == str(task_id)]
    if len(local) == 1:
        return names[local[0]]
    if local:
        raise UsageError(f'no task "{task_id}"; did you mean {" or ".join(local[:3])}?')
    near = difflib.get_close_matches(str(task_id), list(names)[:10_000], n=3)
    raise UsageError(f'no task "{task_id}"' + (f"; did you mean {', '.join(near)}?" if near else ""))


def _name(waits: _Waits, rank: int) -> Any:
    return waits.record.input.tasks.name(int(waits.row[waits.by_rank[rank]]))


def _waits(result: Run) -> _Waits:
    """The sweep, once a result."""
    if result.explained is None:
        result.explained = _sweep(result.record, result.modes)
    return result.explained


def _sweep(record: Record, table: ModeTable) -> _Waits:
    tasks = record.input.tasks
    row = np.flatnonzero(~np.isnan(record.ready))
    ready = record.ready[row]
    until = np.where(np.isnan(record.finish[row]), record.end, record.finish[row])
    started = ~np.isnan(record.start[row])
    until = np.where(started, record.start[row], until)
    decided = np.clip(np.where(started, _decided(record)[row], until), ready, until)
    by_rank = np.lexsort((row, ready))
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(len(row))
    # Tasks of one shape differ only in which of its modes they can use at all.
    usable = np.isfinite(tasks.time[row])
    bits = usable @ (1 << np.arange(usable.shape[1]))
    pairs, variant = np.unique(np.column_stack([tasks.shape[row], bits]), axis=0, return_inverse=True)
    variant = variant.reshape(-1)
    asked: list[Mode] = []
    groups: list[list[int]] = []
    for shape, mask in pairs:
        modes = [mode for j, mode in enumerate(tasks.shapes[shape].modes) if int(mask) >> j & 1]
        groups.append(list(range(len(asked), len(asked) + len(modes))))
        asked += modes
    state = FreeCapacity(record.input.cluster, asked)
    wanted, answered = (np.zeros(0), np.zeros(0)) if record.cycles is None else record.cycles.values()
    noted = np.array([time for time, _, _ in record.holds])
    replay = RunReplay(record, table, state, [ready, until, decided, noted, wanted, answered])
    states = np.zeros((len(pairs), len(replay.grid)), np.int8)
    # A task competes only with tasks that can use one of its nodes, or of its devices there.
    partitions = [tasks.shapes[shape].modes[0].partition for shape, _ in pairs]
    bound = [EVERYWHERE if partition is None else partition.claims for partition in partitions]
    masks = list(dict.fromkeys(bound))
    part = np.array([masks.index(mask) for mask in bound], np.int64)
    shares = [np.array([mask & other != 0 for other in bound], dtype=np.bool_) for mask in masks]
    head = np.full((len(masks), len(replay.grid)), _NO_TASK, np.int64)
    queues = _Queues(record, row, ready, decided=decided, variant=variant, rank=rank, variants=len(pairs))
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    now = _verdict(state, owner, len(groups))
    waiting = _some_wait(replay.grid, ready, decided)
    for number, (begin, _, touched) in enumerate(replay.segments(waiting)):
        queues.advance(begin)
        if not waiting[number]:
            continue
        if touched:
            now = _verdict(state, owner, len(groups))
        states[:, number] = now
        for mask, sharing in enumerate(shares):
            blocked = queues.first[(now != _FITS) & sharing]
            if len(blocked):
                head[mask, number] = blocked.min()
    grid = replay.grid
    effective = np.clip(_effective(record, decided, row), decided, until)
    cycle = np.searchsorted(wanted, grid, side="right") > np.searchsorted(answered, grid, side="right")
    return _Waits(
        record, row, ready, decided=decided, effective=effective, until=until, variant=variant, rank=rank,
        by_rank=by_rank, grid=grid, state=states, head=head, part=part, cycle=cycle,
        holds=_holds(record),
    )  # fmt: skip


def _some_wait(grid: np.ndarray, ready: np.ndarray, decided: np.ndarray) -> np.ndarray:
    """In which stretches some task waits for its first start."""
    size = len(grid) + 1
    come = np.bincount(np.searchsorted(grid, ready), minlength=size)
    gone = np.bincount(np.searchsorted(grid, decided), minlength=size)
    return np.cumsum(come - gone)[: len(grid)] > 0


def _verdict(state: FreeCapacity, owner: np.ndarray, count: int) -> np.ndarray:
    """0 no capacity, 1 fragmented, 2 fits, for every variant."""
    verdict = np.zeros(count, np.int8)
    np.maximum.at(verdict, owner, np.where(state.fit(), _FITS, np.where(state.suffices(), _FRAGMENTED, _NO_CAPACITY)))
    return verdict


def _decided(record: Record) -> np.ndarray:
    """When each task's first launch was decided; its start where no launch tells."""
    decided = record.start.copy()
    if record.launches is None:
        return decided
    columns = record.launches
    task, when = np.asarray(columns["task"]), np.asarray(columns["decided"], dtype=np.float64)
    first = np.lexsort((when, task))[::-1]  # the earliest is written last
    decided[task[first]] = when[first]
    if record.batch is not None:
        # The other members of a batch: their last launch, if it was their first too.
        number = launch_numbers(columns)
        place = np.zeros(int(number.max(initial=0)) + 1, np.int64)
        place[number] = np.arange(len(number))
        launch = place[np.maximum(record.batch, 0)]
        member = (record.batch >= 0) & (np.asarray(columns["start"])[launch] == record.start)
        decided = np.where(member, when[launch], decided)
    requests = language.rows_of(record.input)  # their replica's launches are not theirs alone
    decided[requests] = record.start[requests]
    return decided


def _effective(record: Record, decided: np.ndarray, row: np.ndarray) -> np.ndarray:
    """When the first start of each task took effect.

    Starts do so one after another, in the order of decisions.
    """
    time = record.input.decisions
    if time is None or not time.per_start or record.launches is None:
        return decided
    columns = record.launches
    when = np.asarray(columns["decided"], dtype=np.float64)
    number = launch_numbers(columns)
    order = np.argsort(number)
    place, last = np.arange(len(when)) + 1, np.empty(len(when))
    last[order] = np.maximum.accumulate(when[order] - time.per_start * (place - 1)) + time.per_start * place
    effective = np.full(len(record.status), -np.inf)
    task = np.asarray(columns["task"])
    first = np.lexsort((when, task))[::-1]  # the earliest is written last
    effective[task[first]] = last[first]
    if record.batch is not None:
        of_number = dict(zip(number.tolist(), last.tolist(), strict=True))
        members = np.flatnonzero(record.batch >= 0)
        effective[members] = [of_number[one] for one in record.batch[members].tolist()]
    return effective[row]


def _holds(record: Record) -> dict[int, tuple[list[float], list[int]]]:
    """Times and causes that the policy gave for each task."""
    holds: dict[int, tuple[list[float], list[int]]] = {}
    for time, task, cause in record.holds:
        times, stated = holds.setdefault(task, ([], []))
        at = bisect_right(times, time)
        times.insert(at, time)
        stated.insert(at, CAUSES.index(cause))
    return holds


class _Queues:
    """Waiting tasks: the rank of the earliest one of every variant, as time goes on."""

    def __init__(
        self, record: Record, row: np.ndarray, ready: np.ndarray, decided: np.ndarray, variant: np.ndarray,
        rank: np.ndarray, variants: int,
    ):  # fmt: skip
        at = np.arange(len(row))
        events = [(ready, at, np.ones(len(row), bool)), (decided, at, np.zeros(len(row), bool))]
        if record.launches is not None:
            # A task waits again after its launch was stopped or lost, until the next decision (or its end).
            columns = record.launches
            index = np.full(len(record.status), -1)
            index[row] = at
            task = index[np.asarray(columns["task"])]
            again = np.isin(np.asarray(columns["outcome"]), (LAUNCH_STOPPED, LAUNCH_LOST)) & (task >= 0)
            events.append((np.asarray(columns["end"], float)[again], task[again], np.ones(int(again.sum()), bool)))
            events.append(
                (
                    np.asarray(columns["decided"], float)[task >= 0],
                    task[task >= 0],
                    np.zeros(int((task >= 0).sum()), bool),
                )
            )
            ended = ~np.isnan(record.finish[row])
            events.append((record.finish[row][ended], at[ended], np.zeros(int(ended.sum()), bool)))
        times, task, joins = (np.concatenate(parts) for parts in zip(*events, strict=True))
        order = np.lexsort((~joins, times))  # a task that joins and leaves in one instant is gone after it
        self.times = times[order].tolist()
        self.task, self.joins = task[order].tolist(), joins[order].tolist()
        self.variant, self.rank = variant.tolist(), rank.tolist()
        self.waiting = [False] * len(row)
        self.heaps: list[list[tuple[int, int]]] = [[] for _ in range(variants)]
        self.first = np.full(variants, _NO_TASK, np.int64)
        self.at = 0

    def advance(self, now: float) -> None:
        """Take in everything up to and including `now`."""
        changed = set()
        while self.at < len(self.times) and self.times[self.at] <= now:
            task, joins = self.task[self.at], self.joins[self.at]
            self.waiting[task] = joins
            variant = self.variant[task]
            if joins:
                heapq.heappush(self.heaps[variant], (self.rank[task], task))
            changed.add(variant)
            self.at += 1
        for variant in changed:
            heap = self.heaps[variant]
            while heap and not self.waiting[heap[0][1]]:
                heapq.heappop(heap)
            self.first[variant] = heap[0][0] if heap else _NO_TASK
