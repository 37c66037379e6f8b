"""Why tasks waited: each wait split into causes that sum to the wait.

The cause at each moment between ready and the decision to start is the first that applies:

- `transfer`: the task is a request to a language model whose first replicas are loading the model.
- `no_capacity`: no mode of the task fits on a node, and the free capacity of the whole cluster is too small.
- `fragmentation`: no mode fits on a node, though the free capacity of the whole cluster would be enough.
- `quota`, `reservation`, `topology`, `choice`: a mode fits, and the policy stated this cause (`Annotate`).
- `scheduler`: a mode fits, and a scheduling cycle is pending or running (`policy.decisions`).
- `head_of_line`: a mode fits, and an earlier waiting task that may use some of the same nodes does not fit.
- `choice`: a mode fits and nothing else explains the wait: the policy's choice.

The time from the decision to the first stage is `scheduler` until the start takes effect, then `transfer` (queues for
links and for the compute engine, data moved first, wake-up).  Only the wait before the first start is split; for a
task that never started, the wait lasts until the task or the run ended.
"""

import difflib
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.mode import Mode
from hetsim.model.record import LAUNCH_LOST, LAUNCH_STOPPED, STATUS_NAMES, Record
from hetsim.policy.queues import EVERYWHERE
from hetsim.results.one_run import language
from hetsim.results.one_run.groups import by_number, checked, size_labels
from hetsim.results.one_run.launches import launch_numbers
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.replay import FITS, FreeCapacity, RunReplay
from hetsim.results.one_run.rows import TableRows

CAUSES = ("no_capacity", "fragmentation", "head_of_line", "quota", "reservation", "transfer", "choice", "scheduler",
          "topology")  # fmt: skip
_NO_CAPACITY, _FRAGMENTED, _BEHIND, _TRANSFER, _CHOICE, _SCHEDULER = 0, 1, 2, 5, 6, 7
_LOADS = FITS + 1  # state of a request: its service has no replica with the model, and one that loads it
_NO_TASK = np.iinfo(np.int64).max


@dataclass
class _Waits:
    """The waits of one run, and the state of the cluster in each time interval.

    Interval k is [grid[k], grid[k + 1]).  `state[v, k]` is for tasks of variant v (equal modes and partition): 0 no
    capacity, 1 fragmented, 2 fits; `head[p, k]` is the rank (by ready time) of the first waiting task that does not
    fit, among the tasks that may use a node of partition p; `part[v]` is the partition of variant v; `cycle[k]`: a
    scheduling cycle is pending or running.
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
        first, last = np.searchsorted(self.grid, (self.ready[at], self.decided[at]))
        part = slice(int(first), int(last))
        cause = self.state[self.variant[at], part].astype(np.int64)
        cause[cause == _LOADS] = _TRANSFER
        fits = cause == FITS
        if fits.any():
            why = np.where(self.head_of(at)[part] < self.rank[at], _BEHIND, _CHOICE)
            why = np.where(self.cycle[part], _SCHEDULER, why)
            if (holds := self.holds.get(int(self.row[at]))) is not None:
                index = np.searchsorted(holds[0], self.grid[part], side="right") - 1
                why = np.where(index >= 0, np.array(holds[1])[np.maximum(index, 0)], why)
            cause[fits] = why[fits]
        return part, cause

    def head_of(self, at: int) -> np.ndarray:
        return self.head[self.part[self.variant[at]]]


def causes(result: Run) -> pd.DataFrame:
    """Return a table with the wait of each task that became ready, split by cause.

    Columns: `id`, `class`, `user`, `wait`, seconds by cause (`CAUSES`).  A request with stages is one row for all.
    """
    return _causes(result)[0]


def _causes(result: Run) -> tuple[pd.DataFrame, np.ndarray]:
    waits = _waits(result)
    seconds = _seconds(waits)
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
    for name, codes, names in (("class", tasks.class_code, tasks.classes), ("user", tasks.user_code, tasks.users)):
        frame[name] = [names[0]] * len(rows) if codes is None else [names[code] for code in codes[rows]]
    frame["wait"] = wait
    return pd.concat([frame, pd.DataFrame(exact(seconds, wait), columns=list(CAUSES))], axis=1), rows


def _seconds(waits: _Waits) -> np.ndarray:
    tick = 2.0 ** (math.frexp(max(float(waits.grid[-1]), 1e-300))[1] - 61)
    ends = np.rint(waits.grid / tick).astype(np.int64)
    lengths = np.diff(ends, append=ends[-1])
    ticks = np.zeros((len(waits.row), len(CAUSES)), np.int64)
    first, last = np.searchsorted(waits.grid, (waits.ready, waits.decided))
    place = np.full(len(waits.record.status), -1)
    place[waits.row] = np.arange(len(waits.row))
    # Stated causes: from each one to the next one of the same task, or to its decision.
    stated = [(at, *one) for row, (times, codes) in waits.holds.items() if (at := int(place[row])) >= 0
              for one in zip(times, [*times[1:], math.inf], codes, strict=True)]  # fmt: skip
    owner, begin, until, code = np.array(stated, dtype=float).reshape(-1, 4).T
    owner, code = owner.astype(np.int64), code.astype(np.int64)
    begin, until = (np.clip(np.searchsorted(waits.grid, one), first[owner], last[owner]) for one in (begin, until))
    unstated = last.copy()
    np.minimum.at(unstated, owner, begin)
    for variant, state in enumerate(waits.state):
        rows, kept = np.flatnonzero(waits.variant == variant), waits.variant[owner] == variant
        busy = {_NO_CAPACITY: state == _NO_CAPACITY, _FRAGMENTED: state == _FRAGMENTED, _TRANSFER: state == _LOADS,
                _SCHEDULER: (state == FITS) & waits.cycle}  # fmt: skip
        for cause, there in busy.items():
            total = np.append(0, np.cumsum(np.where(there, lengths, 0)))
            ticks[rows, cause] += total[(unstated if cause == _SCHEDULER else last)[rows]] - total[first[rows]]
        total = np.append(0, np.cumsum(np.where(state == FITS, lengths, 0)))
        np.add.at(ticks, (owner[kept], code[kept]), total[until[kept]] - total[begin[kept]])
        fits = np.flatnonzero((state == FITS) & ~waits.cycle)
        low, high = np.searchsorted(fits, (first[rows], unstated[rows]))
        head = np.minimum(waits.head[waits.part[variant]][fits], len(waits.row))
        ticks[rows, _BEHIND] += _sum_below(head, lengths[fits], low, last=high, bound=waits.rank[rows])
        total = np.append(0, np.cumsum(lengths[fits]))
        ticks[rows, _CHOICE] += total[high] - total[low]
    ticks[:, _CHOICE] -= ticks[:, _BEHIND]
    return ticks * tick


def _sum_below(
    values: np.ndarray, weights: np.ndarray, first: np.ndarray, last: np.ndarray, bound: np.ndarray
) -> np.ndarray:
    """Sum weights of values < bound[i] in ranges [first[i], last[i]) (wavelet matrix)."""
    total = np.zeros(len(first), np.int64)
    for bit in reversed(range(int(max(values.max(initial=0), bound.max(initial=0))).bit_length())):
        one, go = (values >> bit & 1).astype(bool), (bound >> bit & 1).astype(bool)
        below = np.append(0, np.cumsum(np.where(one, 0, weights)))
        total += np.where(go, below[last] - below[first], 0)
        zeros = np.append(0, np.cumsum(~one))
        first, last = (np.where(go, zeros[-1] + at - zeros[at], zeros[at]) for at in (first, last))
        order = np.argsort(one, kind="stable")
        values, weights = values[order], weights[order]
    return total


def exact(parts: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Round the parts so that each row sums exactly to its total."""
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
    """Return a task's wait as intervals: `from`, `to`, `seconds`, `cause`, `detail`.

    For a request, the intervals of all stages, with the stage's name in the column `stage`.
    """
    waits, rows = _waits(result), find_tasks(result, task_id)
    tables = [_stretches(waits, int(at)) for at in np.flatnonzero(np.isin(waits.row, rows))]
    if not tables:
        raise UsageError(f"task {task_id} never became ready, so it did not wait")
    if len(rows) == 1:
        return tables[0]
    staged = result.record.input.tasks.staged
    assert staged is not None
    for row, table in zip(waits.row[np.isin(waits.row, rows)].tolist(), tables, strict=True):
        table.insert(0, "stage", staged.stages[staged.stage[row]])
    return pd.concat(tables, ignore_index=True)


def _stretches(waits: _Waits, at: int) -> pd.DataFrame:
    part, cause = waits.stretches(at)
    lines: list[list[Any]] = []
    for begin, code, head in zip(waits.grid[part], cause, waits.head_of(at)[part], strict=True):
        name = waits.record.input.tasks.name
        detail = f"behind task {name(int(waits.row[waits.by_rank[head]]))}" if code == _BEHIND else ""
        detail = "a replica loads the model" if code == _TRANSFER else detail
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
    """Describe how one task or request ended, as a mapping.

    `status`, `reason`, `at` (NaN if it has not ended), `launches`, `stops` (launches that were stopped or lost),
    `wasted` (device-seconds of lost work) and `fused_with` (tasks that were launched with it as one kernel).
    """
    record, mine = result.record, find_tasks(result, task_id)
    row = mine[0]
    if len(mine) > 1:
        rows = TableRows(record)
        row = int(rows.deciding[np.searchsorted(rows(np.arange(len(record.status))), row)])
    facts: dict[str, Any] = {
        "status": STATUS_NAMES[int(record.status[row])], "reason": record.reasons.get(row, ""),
        "at": float(record.finish[row]), "launches": int((record.start[mine] == record.start[mine]).sum()), "stops": 0,
        "wasted": 0.0, "fused_with": [],
    }  # fmt: skip
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
    """Return the rows of a task, or of a request's stages, by its id.

    For an id `stream/id`, the part `id` is enough if no other stream has it.  Raises UsageError, which names similar
    ids, if no task has the id.
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


def _waits(result: Run) -> _Waits:
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
    usable = np.isfinite(tasks.time[row])  # Tasks of one shape differ only in which of its modes they can use at all.
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
    replicas = _replicas(record)
    replay = RunReplay(record, table, state, [ready, until, decided, noted, wanted, answered, replicas[4]])
    states = np.zeros((len(pairs), len(replay.grid)), np.int8)
    # A task competes only with tasks that can use one of its nodes, or of its devices there.
    partitions = [tasks.shapes[shape].modes[0].partition for shape, _ in pairs]
    bound = [EVERYWHERE if partition is None else partition.claims for partition in partitions]
    masks = list(dict.fromkeys(bound))
    part = np.array([masks.index(mask) for mask in bound], np.int64)
    shares = [np.array([mask & other != 0 for other in bound], dtype=np.bool_) for mask in masks]
    head = np.full((len(masks), len(replay.grid)), _NO_TASK, np.int64)
    verdicts = replay.verdicts()
    queues = _Queues(record, row, ready, decided=decided, rank=rank, grid=replay.grid)
    for number, group in enumerate(groups):
        states[number] = verdicts[group].max(axis=0)
        states[number][_loading(replay.grid, *replicas[1:, replicas[0] == pairs[number][0]])] = _LOADS
        first = np.where(states[number] < FITS, queues.first(np.flatnonzero(variant == number)), _NO_TASK)
        for mask, sharing in enumerate(shares):
            if sharing[number]:
                np.minimum(head[mask], first, out=head[mask])
    grid = replay.grid
    effective = np.clip(_effective(record, decided, row), decided, until)
    cycle = np.searchsorted(wanted, grid, side="right") > np.searchsorted(answered, grid, side="right")
    return _Waits(
        record, row, ready, decided=decided, effective=effective, until=until, variant=variant, rank=rank,
        by_rank=by_rank, grid=grid, state=states, head=head, part=part, cycle=cycle,
        holds=_holds(record),
    )  # fmt: skip


def _replicas(record: Record) -> np.ndarray:
    """Return a column by replica: shape, decision time, end, loading's start and end."""
    batches = np.array([(shape, *times) for shape, _, _, *times in record.occupied]).reshape(-1, 5).T
    if record.launches is None:
        return batches
    columns = [np.asarray(record.launches[name]) for name in ("task", "decided", "end", "upload_start", "upload_end")]
    rows = np.stack([record.input.tasks.shape[columns[0]], *columns[1:]])
    return np.hstack([rows[:, language.periods(record, columns[0])], batches])


def _loading(grid: np.ndarray, came: np.ndarray, gone: np.ndarray, begun: np.ndarray, loaded: np.ndarray) -> np.ndarray:
    came, gone, begun, loaded = (np.searchsorted(np.sort(one), grid, "right") for one in (came, gone, begun, loaded))
    return (begun > loaded) & (came - gone == begun - loaded)


def _decided(record: Record) -> np.ndarray:
    """Decision time of each task's first launch, or its start if none is recorded."""
    decided = record.start.copy()
    if record.launches is None:
        return decided
    columns = record.launches
    task, when = np.asarray(columns["task"]), np.asarray(columns["decided"], dtype=np.float64)
    first = np.lexsort((when, task))[::-1]  # the earliest is written last
    decided[task[first]] = when[first]
    if record.batch is not None:
        number = launch_numbers(columns)  # The other members of a batch: their last launch, if it was their first too.
        place = np.zeros(int(number.max(initial=0)) + 1, np.int64)
        place[number] = np.arange(len(number))
        launch = place[np.maximum(record.batch, 0)]
        member = (record.batch >= 0) & (np.asarray(columns["start"])[launch] == record.start)
        decided = np.where(member, when[launch], decided)
    requests = language.rows_of(record.input)  # their replica's launches are not theirs alone
    decided[requests] = record.start[requests]
    return decided


def _effective(record: Record, decided: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return when the first start of each of these tasks (`row`) was carried out.

    That is later than the decision if starts take time (`per_start`): they are carried out one after another.
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
    holds: dict[int, tuple[list[float], list[int]]] = {}
    for time, task, cause in record.holds:
        times, stated = holds.setdefault(task, ([], []))
        at = bisect_right(times, time)
        times.insert(at, time)
        stated.insert(at, CAUSES.index(cause))
    return holds


class _Queues:
    """Waiting tasks over time; a stopped or lost task waits until it is started again."""

    def __init__(
        self, record: Record, row: np.ndarray, ready: np.ndarray, decided: np.ndarray, rank: np.ndarray,
        grid: np.ndarray,
    ):  # fmt: skip
        at, ended = np.arange(len(row)), ~np.isnan(record.finish[row])
        joins, leaves = [(ready, at)], [(decided, at), (record.finish[row][ended], at[ended])]
        if record.launches is not None:
            columns = record.launches
            index = np.full(len(record.status), -1)
            index[row] = at
            task = index[np.asarray(columns["task"])]
            again = np.isin(np.asarray(columns["outcome"]), (LAUNCH_STOPPED, LAUNCH_LOST)) & (task >= 0)
            joins.append((np.asarray(columns["end"], float)[again], task[again]))
            leaves.append((np.asarray(columns["decided"], float)[task >= 0], task[task >= 0]))
        come, self.task = (np.concatenate(parts) for parts in zip(*joins, strict=True))
        gone, goes = (np.concatenate(parts) for parts in zip(*leaves, strict=True))
        # The first time not before it at which the task leaves; a task that joins in that instant is gone after it.
        times, owner = np.append(come, gone), np.append(self.task, goes)
        order = np.lexsort((np.arange(len(times)) >= len(come), times, owner))
        after = np.append(order[order >= len(come)], -1)
        place = np.searchsorted(np.flatnonzero(order >= len(come)), np.argsort(order)[: len(come)])
        leave = after[place]
        until = np.where((leave >= 0) & (owner[leave] == self.task), times[leave], math.inf)
        self.begin, self.end = np.searchsorted(grid, come), np.searchsorted(grid, until)
        self.rank, self.size, self.count = rank[self.task], len(grid), len(row)

    def first(self, rows: np.ndarray) -> np.ndarray:
        mine = np.flatnonzero(np.isin(self.task, rows))
        initial = mine[mine < self.count]
        initial = initial[np.argsort(self.rank[initial])]
        # In order of rank, which is that of coming, a task is first once all before it have gone.
        end = np.maximum.accumulate(self.end[initial])
        begin = np.maximum(self.begin[initial], np.append(0, end)[:-1])
        lengths = np.maximum(end - begin, 0)
        first = np.full(self.size, _NO_TASK)
        stretches = np.repeat(begin - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        first[stretches] = np.repeat(self.rank[initial], lengths)
        for one in mine[mine >= self.count].tolist():
            part = first[self.begin[one] : self.end[one]]
            np.minimum(part, self.rank[one], out=part)
        return first
