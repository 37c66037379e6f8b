"""Calls of clients that time out, retry or hedge: their table and metrics.

A call is one row, even if it has several attempts, each with requests to a chain of services.  A call is answered by
its only completed attempt: an attempt that completes after its client gave up counts as aborted.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.record import ABORTED, COMPLETED, NOT_ARRIVED, STATUS_NAMES, UNFINISHED, Record
from hetsim.results.declared import metric
from hetsim.results.one_run import language
from hetsim.results.one_run.launches import categorical, launches_of
from hetsim.results.one_run.measured import Measured, quantile
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.rows import TableRows
from hetsim.results.one_run.tables import by_launch

RATES = "calls answered (1/s)", "attempts (1/s)", "devices at wasted work"
PARTS = 60  # Number of equal parts of a run in which goodput is checked.


class CallRows:
    """Sent calls of clients: task rows of first, last and answered attempt (-1: none)."""

    def __init__(self, record: Record, attempt_of: np.ndarray, call_end: np.ndarray):
        status, count = record.status, len(attempt_of)
        sent = np.flatnonzero((status != NOT_ARRIVED) & (attempt_of >= 0))
        attempts = np.bincount(attempt_of[sent], minlength=count)
        self.first = np.flatnonzero(attempts)
        self.attempts = attempts[self.first]
        last, answer = np.zeros(count, np.int64), np.full(count, -1)
        np.maximum.at(last, attempt_of[sent], sent)
        self.last = last[self.first]
        done = sent[status[sent] == COMPLETED][::-1]
        answer[attempt_of[done]] = done  # of a chain the first stage, which stands before the others
        self.end = call_end[self.first]
        self.answer = np.where(np.isnan(self.end), -1, answer[self.first])
        self.answered = self.answer >= 0
        fate = np.where(status[self.last] == UNFINISHED, ABORTED, status[self.last])
        self.status = np.where(self.answered, COMPLETED, np.where(np.isnan(self.end), UNFINISHED, fate))
        self.response = np.where(self.answered, self.end - record.input.tasks.arrival[self.first], np.nan)


def call_rows(record: Record) -> CallRows | None:
    """Return the calls of a record; None if no client makes calls."""
    if record.attempt_of is None or record.call_end is None:
        return None
    return CallRows(record, record.attempt_of, record.call_end)


def wasted_attempts(record: Record) -> np.ndarray:
    """Mask of attempts that failed to answer their call, or whose client has left."""
    attempt_of, call_end = record.attempt_of, record.call_end
    assert attempt_of is not None and call_end is not None
    awaited = (record.status == UNFINISHED) & np.isnan(call_end[attempt_of])
    awaited[list(record.reasons)] = False  # clients have left those that have a reason
    return (attempt_of >= 0) & ~awaited & (record.status != NOT_ARRIVED) & (record.status != COMPLETED)


def calls_table(record: Record, tasks: pd.DataFrame) -> pd.DataFrame:
    """Return the table of calls: one row per call that was sent.

    `id`, `class`, `user`, `arrival` and `deadline` are those of the first attempt, `attempts` is their number,
    `answered_by` the id of the answered attempt, `finish` the time at which the answer came or the client gave up.  A
    call that was given up has the status of its last attempt.
    """
    if (calls := call_rows(record)) is None:
        return pd.DataFrame()
    rows = TableRows(record)(np.arange(len(record.status)))
    first = tasks.iloc[np.searchsorted(rows, calls.first)].reset_index(drop=True)
    ids = tasks["id"].to_numpy()[np.searchsorted(rows, np.maximum(calls.answer, rows[0]))]
    columns: dict[str, Any] = {name: first[name] for name in ("id", "class", "user", "arrival")}
    names = [STATUS_NAMES[code] for code in range(len(STATUS_NAMES))]
    answers = pd.Series(ids).where(calls.answered)
    columns |= {
        "finish": calls.end, "response": calls.response, "attempts": calls.attempts,
        "answered_by": answers.astype("Int64") if ids.dtype.kind == "i" else answers,
        "status": categorical(calls.status, names), "deadline": first["deadline"],
    }  # fmt: skip
    return pd.DataFrame(columns)


def wasted_seconds(record: Record, modes: ModeTable, low: float, high: float) -> float:
    if record.attempt_of is None:
        return math.nan
    launches = launches_of(record, modes)
    begin, end = launches.compute_start, launches.compute_end
    inside = np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0.0)
    busy = launches.busy * np.divide(inside, end - begin, out=np.zeros(len(begin)), where=end > begin)
    if (received := record.received) is None:
        return float(by_launch(record, launches, busy)[wasted_attempts(record)].sum())
    seconds = by_launch(record, launches, np.where(language.periods(record, launches.task), 0.0, busy))
    start, last = record.start, np.where(np.isnan(record.finish), record.end, record.finish)
    inside = np.maximum(np.minimum(last, high) - np.maximum(start, low), 0.0)  # of a request: evenly from first to last
    seconds += received * np.divide(inside, last - start, out=np.zeros(len(start)), where=last > start)
    return float(seconds[wasted_attempts(record)].sum())


def rates_over(record: Record, modes: ModeTable, edges: np.ndarray) -> dict[str, np.ndarray]:
    """By interval: calls answered/s, attempts sent/s, and mean devices on wasted work."""
    calls, width = call_rows(record), np.diff(edges)
    if calls is None or record.attempt_of is None:
        return {}
    sent = record.input.tasks.arrival[(record.attempt_of >= 0) & (record.status != NOT_ARRIVED)]
    wasted = [wasted_seconds(record, modes, *between) for between in zip(edges[:-1], edges[1:], strict=True)]
    rates = [np.histogram(times, edges)[0] / width for times in (calls.end[calls.answered], sent)]
    return dict(zip(RATES, (*rates, np.array(wasted) / width), strict=True))


def not_back(record: Record) -> list[str]:
    """Return a warning if few calls are answered after a time of overload.

    The time up to the last arrival is divided into equal parts.  A part is good if at least 80 % of its calls were
    answered; the served rate is the highest arrival rate of a good part.  The overload ends with the last part that is
    good or whose arrival rate is clearly above the served rate.  The warning is returned if at least a quarter of the
    whole time is after this end, and less than half of the calls in that time were answered.
    """
    calls = call_rows(record)
    arrival = record.input.tasks.arrival[[] if calls is None else calls.first]
    if calls is None or len(arrival) < 10 * PARTS or arrival.max() <= 0:
        return []
    part = np.minimum((arrival / arrival.max() * PARTS).astype(int), PARTS - 1)
    decided, answered = (np.bincount(part, mask, PARTS) for mask in (calls.status != UNFINISHED, calls.answered))
    sent, well = np.bincount(part, minlength=PARTS), answered >= 0.8 * np.maximum(decided, 1)
    served = sent[well].max(initial=0)
    after = int(np.flatnonzero(well | (sent > served + 3 * math.sqrt(served))).max(initial=-1)) + 1
    if not well.any() or after > 0.75 * PARTS or answered[after:].sum() >= 0.5 * decided[after:].sum():
        return []
    length = arrival.max() / PARTS
    text = f"goodput has not recovered {arrival.max() - after * length:.0f} s after the last arrival above capacity: "
    return [f"{text}{answered[after:].sum() / decided[after:].sum():.0%} of the calls are answered, at a rate of "
            f"{sent[after:].mean() / length:.3g}/s; {served / length:.3g}/s was served before"]  # fmt: skip


def _of_window(run: Measured) -> tuple[CallRows, np.ndarray] | None:
    record = run.result.record
    if (calls := call_rows(record)) is None:
        return None
    first = np.zeros(len(record.status), bool)
    first[run.chosen(TableRows(record)(np.arange(len(first))))] = True
    return calls, first[calls.first]


@metric(unit="1/s", better="more", sets=("calls",))
def call_goodput(run: Measured) -> float:
    """Calls answered in the window, and by their deadline if there is one, per second."""
    window = _of_window(run)
    if window is None or run.duration <= 0:
        return math.nan
    calls, measured = window
    deadline = run.result.record.input.tasks.deadline
    late = False if deadline is None else calls.end > deadline[calls.first]
    return int((calls.answered & measured & ~late & (calls.end <= run.high)).sum()) / run.duration


@metric(unit="ratio", better="less", sets=("calls",), congested=True)
def attempts_per_call(run: Measured) -> float:
    """Mean number of attempts of the calls in the window."""
    window = _of_window(run)
    return math.nan if window is None or not window[1].any() else float(window[0].attempts[window[1]].mean())


@metric(unit="s", better="less", of="run", sets=("calls",))
def wasted_device_s(run: Measured) -> float:
    """Device-seconds in the window spent on attempts that did not answer a call."""
    return wasted_seconds(run.result.record, run.result.modes, run.low, run.high)


@metric(unit="s", better="less", sets=("calls",), congested=True)
def call_response_p99(run: Measured) -> float:
    """99th percentile of the time until the answer; unanswered calls count as +inf."""
    if (window := _of_window(run)) is None:
        return math.nan
    calls, measured = window
    values = calls.response[calls.answered & measured]
    return quantile(values, 0.99, int(measured.sum()) - len(values))
