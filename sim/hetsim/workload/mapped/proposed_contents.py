"""Proposes the columns of a log from their contents, for names in any language.

The evidence: columns of instants with the same order in most rows (arrival, start, end), a duration that equals the
difference of two instants, a limit that durations rarely exceed, small whole numbers that rarely exceed those of
another column (GPUs, cores), and how often texts repeat.  Each finding states the share of rows that support it.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.workload.mapped.proposed_columns import GPU_NAME, INSTANTS, UNIT_OF, Column, Proposal, seconds_of
from hetsim.workload.rows.job_times import HeldOverTime

SURE = 0.98  # share of rows that must support a finding
UNITS = (1.0, 1e-3, 60.0, 3600.0)
ALIKE = 0.3  # minimum correlation of the logarithms of a limit and of run times
FEW = 8  # minimum number of rows for conclusions from contents
STATES = re.compile(r"[A-Za-zÀ-ÿ _-]+")


class Contents:
    """Columns without a job attribute so far, as numbers if possible; NaN: blank."""

    def __init__(self, columns: Sequence[Column], chosen: dict[str, Column], rows: int, found: Proposal):
        taken = {column.name for column in chosen.values()}
        self.chosen, self.found, self.rows = chosen, found, rows
        self.left = [column for column in columns if column.name not in taken and column.cells]
        self.numbers = {one.name: _by_row(one, one.numbers) for one in columns if one.numbers is not None}
        self.instants = {column.name: _by_row(column, seconds_of(column)) for column in columns
                         if column.forms or column.typed == "instant"}  # fmt: skip

    def choose(self) -> None:
        """Choose columns for the job attributes that have none yet."""
        if self.rows < FEW:
            return
        self._times()
        self._spans()
        self._id()
        self._amounts()
        self._texts()

    def _take(self, target: str, column: Column, evidence: str) -> None:
        self.chosen[target] = column
        self.left = [one for one in self.left if one is not column]
        self.found.unsure.append(f'{target}: "{column.name}" was used because of its content: {evidence}')

    def _times(self) -> None:
        open_ = [one for one in INSTANTS[:3] if one not in self.chosen]
        given = [self.chosen[one] for one in INSTANTS[:3] if one in self.chosen]
        dates = [one for one in self.left if one.name in self.instants]
        dates += [one for one in given if one.name in self.instants]
        if not open_ or len(dates) != 3 or len(open_) + len(given) != 3:
            return
        zero = self.instants[dates[0].name]
        dates.sort(key=lambda one: float(np.nanmean(self.instants[one.name] - zero)))
        first, second, third = (self.instants[one.name] for one in dates)
        share = min(_share(first <= second, first + second), _share(second <= third, second + third))
        if share < SURE or any(self.chosen.get(one, two) is not two for one, two in zip(INSTANTS, dates, strict=False)):
            return
        names = " <= ".join(f'"{one.name}"' for one in dates)
        for target, column in zip(INSTANTS, dates, strict=False):
            if target not in self.chosen:
                self._take(target, column, f"{names} in {_percent(share)} of rows")

    def _spans(self) -> None:
        at = {one: self.instants.get(self.chosen[one].name) for one in INSTANTS if one in self.chosen}
        for target, low, high in (("duration", "start", "end"), ("wait", "arrival", "start")):
            begin, end = at.get(low), at.get(high)
            if target in self.chosen or begin is None or end is None:
                continue
            shares = []
            for column in (one for one in self.left if one.name in self.numbers):
                for unit in UNITS:
                    off = np.abs(self.numbers[column.name] * unit - (end - begin))
                    shares.append((_share(off <= max(2.0, unit), off), -unit, column))
            best = max(shares, key=lambda one: one[:2], default=None)
            if best is not None and best[0] >= SURE and np.nanmax(self.numbers[best[2].name]) > 0:
                self._take(target, best[2], f"it is {high} - {low} in {_percent(best[0])} of rows")
        took = self._seconds()
        limits = []
        for column in [one for one in self.left if one.name in self.numbers]:
            values = self.numbers[column.name]
            if took is None or "time_limit" in self.chosen or len(set(column.cells)) > len(column.cells) / 2:
                continue
            for unit in UNITS:
                share = _share(values * unit >= took - max(2.0, unit), values + took)
                positive = np.isfinite(values + took) & (values > 0) & (took > 0)
                middle = float(np.median(values[positive] * unit / took[positive])) if positive.any() else 0.0
                if share >= 0.9 and 1.0 <= middle <= 20 and len(set(column.cells)) > 1:
                    alike = float(np.corrcoef(np.log(values[positive]), np.log(took[positive]))[0, 1])
                    limits.append((alike, share, unit, column))
        if limits and (best_limit := max(limits, key=lambda one: one[:3]))[0] >= ALIKE:
            _, share, unit, column = best_limit
            self._take("time_limit", column, f"run times are at most that in {_percent(share)} of rows")
            self.found.keys.setdefault("units", {})["time_limit"] = UNIT_OF[unit]

    def _seconds(self) -> np.ndarray | None:
        if not {"start", "end"} <= set(self.chosen):
            return None
        low, high = (self.instants.get(self.chosen[one].name) for one in ("start", "end"))
        return None if low is None or high is None else high - low

    def _id(self) -> None:
        for column in self.left:
            integral = column.numbers is None or all(value % 1 == 0 for value in column.numbers)
            plain = integral and column.name not in self.instants and not column.blank
            if "id" not in self.chosen and plain and len(set(map(str, column.cells))) == len(column.cells):
                self._take("id", column, "no value is repeated")

    def _amounts(self) -> None:
        """Choose the columns of GPUs and cores: small whole numbers, GPUs mostly <= cores."""
        small = [one for one in self.left if one.numbers is not None and len(set(one.cells)) <= 64
                 and all(value % 1 == 0 and 0 <= value <= 4096 for value in one.numbers)]  # fmt: skip
        given = [self.chosen[one] for one in ("gpus", "cpus") if one in self.chosen]
        pairs = []
        for one in small:
            for other in (*small, *(one for one in given if one.name in self.numbers)):
                low, high = self.numbers[one.name], self.numbers[other.name]
                share, more = _share(low <= high, low + high), float(np.nanmean(high) / max(np.nanmean(low), 1e-9))
                if one is not other and share >= SURE and more > 1:
                    pairs.append((more, one, other, share))
        if "gpus" not in self.chosen and pairs:
            _, one, other, share = min(pairs, key=lambda pair: pair[0])
            text = f'small whole numbers that never exceed "{other.name}" in {_percent(share)} of rows'
            self._take("gpus", one, text)
            if "cpus" not in self.chosen and other in self.left:
                self._take("cpus", other, f'whole numbers that are at least "{one.name}" in {_percent(share)} of rows')
        elif "gpus" not in self.chosen and len(small) == 1 and max(small[0].numbers or [0]) <= 64:
            self._take("gpus", small[0], "the only column of small whole numbers")

    def _texts(self) -> None:
        texts = [one for one in self.left if one.numbers is None and one.name not in self.instants and not one.typed]
        kinds = {one.name: len(set(map(str, one.cells))) for one in texts}
        for one in texts:
            if "devices" not in self.chosen and all(GPU_NAME.search(str(cell)) for cell in one.cells):
                self._take("devices", one, "all values look like names of GPUs")
        nodes = [one for one in texts if one in self.left and kinds[one.name] > 1 and _like_nodes(one)]
        if "recorded_node" not in self.chosen and nodes:
            peaks = [self._peak(one) for one in nodes]
            node, peak = min(zip(nodes, peaks, strict=True), key=lambda pair: pair[1])
            self._take("recorded_node", node, f"{kinds[node.name]} names with numbers, which are repeated"
                       + (f", on which at most {peak:g} are used at once" if max(peaks) > peak else ""))  # fmt: skip
        rest = sorted((one for one in texts if one in self.left and 1 < kinds[one.name] <= 0.5 * self.rows),
                      key=lambda one: -kinds[one.name])  # fmt: skip
        for target in ("user", "status", "class"):
            fits = [one for one in rest if one in self.left and (target != "status" or _like_states(one))]
            pick = fits[0] if target == "user" and len(fits) > 0 and kinds[fits[0].name] > 3 else None
            pick = fits[-1] if target != "user" and fits else pick
            if pick is not None and target not in self.chosen and not (target == "class" and "queue" in self.chosen):
                self._take(target, pick, f"{kinds[pick.name]} different texts in {self.rows:,} rows")

    def _peak(self, column: Column) -> float:
        """Return the highest peak use of devices by jobs that share a value of the column."""
        if (took := self._seconds()) is None or column.blank:
            return 0.0
        start, devices = self.instants[self.chosen["start"].name], self.chosen.get("gpus", self.chosen.get("cpus"))
        amount = np.ones(len(took)) if devices is None else self.numbers.get(devices.name, np.ones(len(took)))
        names, there = np.array(list(map(str, column.cells))), np.isfinite(start + took + amount)
        rows = [np.flatnonzero(there & (names == name)) for name in sorted(set(column.cells))]
        return max(float(HeldOverTime(start[one], start[one] + took[one], amount[one]).level.max(initial=0.0))
                   for one in rows)  # fmt: skip


def _by_row(column: Column, values: Sequence[float] | None) -> np.ndarray:
    by_row = np.full(len(column.there), np.nan)
    if values is not None:
        by_row[np.array(column.there, dtype=bool)] = values
    return by_row


def _share(true: Any, known: np.ndarray) -> float:
    there = np.isfinite(known)
    return float(np.asarray(true)[there].mean()) if there.sum() >= FEW else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _like_nodes(column: Column) -> bool:
    names = [str(cell) for cell in column.cells]
    stems = {re.sub(r"\d+.*", "", name) for name in names}
    return len(stems) <= 3 and all(re.search(r"[A-Za-z].*\d", name) for name in names) and len(set(names)) < len(names)


def _like_states(column: Column) -> bool:
    kinds = set(map(str, column.cells))
    return len(kinds) <= 8 and all(STATES.fullmatch(one) for one in kinds)
