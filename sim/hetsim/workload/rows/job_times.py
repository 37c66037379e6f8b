"""Arrival, start and end of jobs, from ambiguous or contradictory times of a log.

A local time in the hour that occurs twice when clocks are set back may be either of two instants; a clock that jumps
yields an end before the start, or a start before the submission.  The evidence, in this order:

    the job itself      submission <= start <= end, and a duration that equals end - start
    the order of ids    if ids increase with the submissions in the rest of the log
    the devices         the job's node (or the cluster) cannot use more devices than in the rest of the log

Remarks count the times that each kind of evidence decided, and the undecided times, with lines of the log as examples.
"""

import re
from array import array
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.workload.rows.text_rows import Twice

if TYPE_CHECKING:
    from hetsim.workload.rows.job_log import JobLog

MOMENT = 60.0
COMMON_SHARE = 0.01  # share of the time for which a level must be in use not to be an accident of the log


class HeldOverTime:
    """An amount in use over time, as steps: `level[k]` is in use from `times[k]` on."""

    def __init__(self, start: np.ndarray, end: np.ndarray, amount: np.ndarray):
        times = np.concatenate([start, end])
        change = np.concatenate([amount, -amount])
        order = np.lexsort((change, times))  # ends before starts at one instant
        self.times, first = np.unique(times[order], return_index=True)
        total = np.cumsum(change[order])
        self.level = np.append(total[first[1:] - 1], total[-1:]) if len(total) else total
        self.level = np.where(np.abs(self.level) < 1e-6, 0.0, self.level)
        self.length = np.append(np.diff(self.times), 0.0)  # seconds of each step; 0 of the last

    def peak(self) -> float:
        """Return the highest amount that is in use for longer than `MOMENT` seconds."""
        return self._level_above(MOMENT)

    def common(self) -> float:
        """Return the level that is exceeded for at most `COMMON_SHARE` of the time in use."""
        return self._level_above(max(COMMON_SHARE * float(self.length[self.level > 0].sum()), MOMENT))

    def _level_above(self, seconds: float) -> float:
        order = np.argsort(-self.level, kind="stable")
        above = np.searchsorted(np.cumsum(self.length[order]), min(seconds, self.length.sum() / 2), side="right")
        return float(self.level[order][min(above, len(order) - 1)]) if len(order) else 0.0

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return the amount in use at each of `times`, after changes at the same instant."""
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place >= 0, self.level[np.maximum(place, 0)], 0.0)


ROUNDED = 1.0  # seconds of contradiction that rounding of times explains
IN_ORDER = 0.98  # share of neighbors by id that must arrive in this order, for ids to be evidence
ENOUGH = 20  # minimum number of jobs in the rest of the log for evidence
COMMON = 0.05  # share of jobs above which a contradiction is the meaning of the columns
NAMED = 10  # number of lines with unresolved times that are named

Times = tuple[float, float | None, float | None]  # arrival, start, run time


@dataclass
class _Open:
    """A job of a log whose columns of times allow several starts and ends."""

    what: str
    options: list[Times]
    line: int = 0
    position: int = -1


HOUR = "have times in an hour that is repeated at the clock change"
JUMP = "have a duration that is not end - start"
EARLY = "began before their submission"


class JobTimes:
    """The times of each job, as far as the log states them."""

    def __init__(self, log: "JobLog", tolerance: float = ROUNDED):
        """`tolerance`: accepted difference, in s, between a duration and end - start."""
        self.log, self.tolerance = log, max(tolerance, ROUNDED)
        self.compared = 0
        self._open: list[_Open] = []
        self._last: _Open | None = None

    def settle(
        self, line: int, arrival: float, start: float | None, end: float | None, took: float | None
    ) -> Times | None:
        """Return a job's times, preliminary if its row is ambiguous; None: skip the job."""
        self._last = None
        choices = product(*((one, one.later) if isinstance(one, Twice) else (one,) for one in (arrival, start, end)))
        given = [(came, began, ended) for came, began, ended in choices if came is not None]
        ways = [(came, began, ended) for came, began, ended in given if self._fits(came, began, ended, took)]
        if any(isinstance(one, Twice) for one in (arrival, start, end)) and ways:
            options = list(dict.fromkeys(_times(came, began, ended, took) for came, began, ended in ways))
            at_once = [one for one in options if one[0] == one[1]]
            if len(at_once) == 1 and len({one[1:] for one in options}) == 1:
                options = at_once  # it waited for no second, or for one hour to the second
            if len(options) > 1:
                self._last = _Open(HOUR, options, line)
            else:
                self._tell(HOUR, "by the order of their times and the duration", line)
            return options[0]
        return self._contradicting(line, given, took)

    def _fits(self, arrival: float, start: float | None, end: float | None, took: float | None) -> bool:
        if start is None:
            return end is None or end - (took or 0.0) >= arrival - ROUNDED
        if start < arrival or (end is not None and end < start):
            return False
        return took is None or end is None or abs(end - start - took) <= self.tolerance

    def _contradicting(self, line: int, given: list[Times], took: float | None) -> Times | None:
        """Return the earliest possible times of a job whose times contradict each other."""
        arrival, start, end = float(given[0][0]), _plain(given[0][1]), _plain(given[0][2])
        backwards = start is not None and end is not None and end < start
        if (took is not None and took < 0) or (took is None and backwards):
            self.log.leave_out("ended before they began", line)
            return None
        if start is not None and end is not None and took is not None:
            self.compared += 1
            if abs(end - start - took) > self.tolerance:
                pairs = [(came, begin) for came, began, ended in given if began is not None and ended is not None
                         for begin in (began, ended - took) if begin >= came]  # fmt: skip
                options: list[Times] = [(float(came), float(begin), took) for came, begin in dict.fromkeys(pairs)]
                if len(options) == 1:
                    self._last = _Open(JUMP, options, line)
                    return options[0]
                self._last = _Open(JUMP, options, line) if options else None
        times = _times(arrival, start, end, took)
        if start is not None and start < arrival:
            self._last = _Open(EARLY, [(start, start, times[2])], line)
            return start, start, times[2]
        return times

    def added(self, position: int) -> None:
        """Store the row of the job last passed to `settle`; negative: it has no row."""
        if self._last is not None and position >= 0:
            self._last.position = position
            self._open.append(self._last)
        self._last = None

    # With the rest of the log ---------------------------------------------------------------------------------

    def finish(self, separate: bool = False) -> None:
        """Decide ambiguous times of jobs; `separate`: attempts of a job do not overlap."""
        jumps = [one for one in self._open if one.what == JUMP]
        if len(jumps) > max(COMMON * self.compared, 1) and self.compared >= ENOUGH:
            text = f"{len(jumps):,} jobs {JUMP}, too many for errors of clocks: the duration is used"
            self.log.notes.append(f"{self.log.path}: {text}")
            self._open = [one for one in self._open if one.what != JUMP]
        separate = separate and self._come_again()
        if not self._open and not separate:
            return
        rest = _Rest(self.log, self._open)
        undecided = []
        self._by_order(rest)
        for one in self._open:
            if len(one.options) == 1 and one.what == JUMP:
                self._tell(JUMP, "by the order of their times", one.line)
        several = [one for one in self._open if len(one.options) > 1]
        for one in several:
            possible = [option for option in one.options if rest.has_room(one, option)]
            rest.place(one, (possible or one.options)[0])
        for one in several:
            chosen = rest.placed[one.position]
            if [option for option in one.options if rest.has_room(one, option)] == [chosen]:
                self._tell(one.what, "by the devices that were free", one.line)
            else:
                undecided.append(one)
            self.log.blocks.patches[one.position] = chosen
        self._name(undecided)
        if separate:
            self._requeued(rest)
        self.log.first = min((float(np.min(block.arrival)) for block in self.log.blocks), default=self.log.first)

    def _come_again(self) -> bool:
        keys = array("q")
        for block in self.log.blocks:
            keys.extend(map(hash, block.ids if len(block.ids) == len(block) else block.names_of(len(block))))
        hashes = np.frombuffer(keys, np.int64) if keys else np.empty(0)
        hashes.sort()
        return bool((hashes[1:] == hashes[:-1]).any())

    def _name(self, undecided: list[_Open]) -> None:
        for what, taken in ((HOUR, "the earlier time is used"), (JUMP, "start and duration are used")):
            if lines := [one.line for one in undecided if one.what == what]:
                shown = ", ".join(map(str, sorted(lines)[:NAMED])) + (", ..." if len(lines) > NAMED else "")
                text = f"{len(lines):,} jobs {what}, and the right value is unknown: {taken}"
                self.log.notes.append(f"{self.log.path}: {text} ({self.log.word}s {shown})")

    def _tell(self, what: str, evidence: str, line: int) -> None:
        self.log.remark(f"{what}: settled {evidence}", line)

    def _by_order(self, rest: "_Rest") -> None:
        early = [one for one in self._open if one.what == EARLY]
        for one in early:
            (_, start, took), (low, high) = one.options[0], rest.around(one.position)
            assert start is not None
            by_id = np.isfinite(low) and low <= start
            self._tell(EARLY, "by the order of ids" if by_id else "with the start as the submission", one.line)
            if by_id:
                # No wait at all is the likeliest one, if the next id allows it.
                came = start if start <= high else (low + high) / 2
                self.log.blocks.patches[one.position] = (float(came), start, took)
        hours = [one for one in self._open if len({way[0] for way in one.options}) > 1]
        before, flipped = -np.inf, False
        ordered = sorted(hours, key=lambda one: (rest.rank[one.position], one.line)) if rest.slack is not None else []
        decided: list[tuple[_Open, float]] = []
        for one in ordered:
            arrivals = sorted({way[0] for way in one.options})
            low, high = rest.around(one.position)
            slack = rest.slack or 0.0
            fitting = [at for at in arrivals if max(low, before) - slack <= at <= high + slack]
            chosen = (fitting or arrivals)[0]
            flipped |= chosen == arrivals[-1]
            before = max(before, chosen)
            decided.append((one, chosen))
        for one, chosen in decided if flipped else ():
            one.options = [way for way in one.options if way[0] == chosen]
            if len(one.options) == 1:
                self._tell(HOUR, "by the order of ids", one.line)
                rest.place(one, one.options[0])
                self.log.blocks.patches[one.position] = one.options[0]

    def _requeued(self, rest: "_Rest") -> None:
        order = np.lexsort((rest.start, rest.keys))
        same = np.flatnonzero(rest.keys[order][1:] == rest.keys[order][:-1])
        for before, here in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
            end = float(rest.start[before] + rest.took[before])
            if rest.arrival[here] < end <= rest.start[here] and here not in self.log.blocks.patches:
                self.log.blocks.patches[here] = (end, float(rest.start[here]), float(rest.took[here]))
                self.log.remark("are later attempts: submitted when the previous one ended", int(rest.lines[here]))


class _Rest:
    """All jobs of a log as columns; known times help to decide ambiguous times."""

    def __init__(self, log: "JobLog", opened: list[_Open]):
        blocks = list(log.blocks)

        def numbers(name: str) -> np.ndarray:
            return np.concatenate([block.number(name) for block in blocks]) if blocks else np.empty(0)

        self.lines = np.concatenate([np.array(block.lines) for block in blocks]) if blocks else np.empty(0, int)
        self.arrival = np.concatenate([np.array(block.arrival) for block in blocks]) if blocks else np.empty(0)
        self.took = np.concatenate([np.array(block.duration) for block in blocks]) if blocks else np.empty(0)
        self.start, gpus, cores = numbers("start"), numbers("gpus"), numbers("cpus")
        self.amount = np.nan_to_num(gpus if np.nansum(gpus) else cores, nan=1.0)
        self.pool = np.array([name for block in blocks for name in _texts(block, "recorded_node")], dtype=object)
        names = [name for block in blocks for name in block.names_of(len(block))]
        self.keys = np.fromiter(map(hash, names), np.int64, len(names))
        self.rank = numbers_in(names)
        self.settled = np.ones(len(names), dtype=bool)
        self.settled[[one.position for one in opened]] = False
        self.placed: dict[int, Times] = {}
        self._limits: dict[Any, float] = {}
        self._by_rank, self.slack = by_ids(np.where(self.settled, self.rank, np.nan), self.arrival)

    def around(self, position: int) -> tuple[float, float]:
        """Return the known arrivals of the next lower and the next higher id (±inf: none)."""
        if self.slack is None or not np.isfinite(self.rank[position]):
            return -np.inf, np.inf
        place = int(np.searchsorted(self.rank[self._by_rank], self.rank[position]))
        low = float(self.arrival[self._by_rank[place - 1]]) if place else -np.inf
        high = float(self.arrival[self._by_rank[place]]) if place < len(self._by_rank) else np.inf
        return low, high

    def place(self, one: _Open, times: Times) -> None:
        self.placed[one.position] = times
        self.arrival[one.position] = times[0]
        if times[1] is not None and times[2] is not None:
            self.start[one.position], self.took[one.position] = times[1], times[2]

    def has_room(self, one: _Open, times: Times) -> bool:
        _, start, took = times
        if start is None or took is None:
            return True
        name = self.pool[one.position] if len(self.pool) else ""
        same = (self.pool == name) if name else np.ones(len(self.start), dtype=bool)
        certain = same & self.settled
        if name not in self._limits:
            used = HeldOverTime(self.start[certain], self.start[certain] + self.took[certain], self.amount[certain])
            self._limits[name] = max(used.common(), float(self.amount[certain].max(initial=0.0)))
        certain = certain | (same & np.isin(np.arange(len(same)), list(self.placed)))
        certain[one.position] = False
        end = start + took
        rows = np.flatnonzero(certain & (self.start < end) & (self.start + self.took > start))
        if not len(rows):
            return True
        others = HeldOverTime(
            np.maximum(self.start[rows], start), np.minimum(self.start[rows] + self.took[rows], end), self.amount[rows]
        )
        max_amount = max(self._limits[name], float(self.amount[one.position]))
        return float(others.level.max()) + float(self.amount[one.position]) <= max_amount + 1e-9


def _texts(block: Any, name: str) -> list[str]:
    if name not in block.texts:
        return [""] * len(block)
    names = list(block.texts[name][1])
    return [names[code] for code in block.codes(name).tolist()]


def numbers_in(names: list[str]) -> np.ndarray:
    """Return the number in each job id (NaN: none); array job 12_3 gives 12.0000003."""
    matches = [None if name.startswith("line ") else re.search(r"(\d+)(?:[\[_](\d+))?", name) for name in names]
    return np.array([np.nan if one is None else float(one[1]) + float(one[2] or 0) / 1e7 for one in matches])


def by_ids(rank: np.ndarray, arrival: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Return the rows sorted by `rank`, and a tolerance (s) for arrivals out of order.

    The tolerance is None if arrivals do not increase with `rank`.
    """
    rows = np.flatnonzero(np.isfinite(rank))
    rows = rows[np.argsort(rank[rows], kind="stable")]
    drops = -np.diff(arrival[rows])
    ordered = len(drops) >= ENOUGH and (drops <= ROUNDED).mean() >= IN_ORDER
    return rows, max(0.0, float(np.quantile(drops, IN_ORDER))) if ordered else None


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)


def _times(arrival: float, start: float | None, end: float | None, took: float | None) -> Times:
    if took is None and start is not None and end is not None:
        took = end - start
    if start is None and end is not None and took is not None:
        start = max(arrival, end - took)
    return float(arrival), _plain(start), _plain(took)
