"""Differences of two runs: tasks, groups of tasks, and the first decision.

Tasks are matched by their id.  The difference shows what another policy, cluster or release changes for the same tasks.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.results.declared import ENERGY
from hetsim.results.formatting import clock, figures, formatter, json_number, metric_name, share
from hetsim.results.one_run.result import Result
from hetsim.results.stored_files import parse_yaml

# Columns of tasks by which two runs can be compared; less is better.
COLUMNS = ("response", "wait", "slowdown", "finish", "start", ENERGY)

GROUPS = ("class", "user")
MAX_ACTIONS = 6  # Maximum number of decisions of one instant that are listed; further ones are counted.

_SAME = ("arrival", "class", "user")


@dataclass(frozen=True)
class FirstDecision:
    """The first time at which two runs differ, and decisions that only one run made."""

    time: float
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


class Difference:
    """Two runs compared by one column of their tasks.

    `tasks`: one row for each common task: id, class, user, status_a, status_b, a and b (the column's value in each
    run), change (b - a; NaN if one run has no value), largest changes first.
    """

    def __init__(self, a: Result, b: Result, column: str = "response"):
        if column not in COLUMNS:
            raise UsageError(f'by must be one of {", ".join(COLUMNS)}; got "{column}"')
        self.a, self.b, self.column = a, b, column
        self.labels = _labels(a, b)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        first, right = self._sides
        kept = ["class", "user", "status", self.column]
        both = first[kept].add_suffix("_a").join(right[kept].add_suffix("_b"), how="inner")
        frame = pd.DataFrame(
            {
                "id": both.index, "class": both["class_a"], "user": both["user_a"],
                "status_a": both["status_a"], "status_b": both["status_b"],
                "a": both[f"{self.column}_a"], "b": both[f"{self.column}_b"],
            }
        ).reset_index(drop=True)  # fmt: skip
        frame["change"] = frame["b"] - frame["a"]
        order = np.lexsort((np.arange(len(frame)), -frame["change"].abs().fillna(-1.0).to_numpy()))
        return frame.iloc[order].reset_index(drop=True)

    @cached_property
    def _sides(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        sides = []
        for run in (self.a, self.b):
            frame = run.tasks.assign(key=run.tasks["id"].astype(str)).set_index("key")
            if frame.index.has_duplicates:
                again = frame.index[frame.index.duplicated()][0]
                raise UsageError(f'{run.name or "a run"} has several tasks "{again}": ids must be unique here')
            sides.append(frame)
        return sides[0], sides[1]

    @cached_property
    def only(self) -> tuple[int, int]:
        """Numbers of tasks that only run a has, and that only run b has."""
        first, right = self._sides
        both = len(self.tasks)
        return len(first) - both, len(right) - both

    @cached_property
    def unlike(self) -> dict[str, int]:
        """Number of common tasks whose arrival, class or user differ, by column."""
        first, right = self._sides
        right = right.reindex(first.index.intersection(right.index, sort=False))
        first = first.loc[right.index]
        differing = {name: int((first[name].astype(object) != right[name].astype(object)).sum()) for name in _SAME}
        return {name: number for name, number in differing.items() if number}

    def by(self, group: str) -> pd.DataFrame:
        """Sum the changes by group.

        Parameters: group: class or user.
        Returns: one row per group, from the largest decrease to the largest increase: `tasks`, `gained` and `lost`
            (numbers of tasks whose value is lower or higher in b), `mean_a`, `mean_b`, `change_mean`, `change_sum`.
        Raises: UsageError: another group.
        """
        if group not in GROUPS:
            raise UsageError(f'group must be {" or ".join(GROUPS)}; got "{group}"')
        frame = self.tasks
        rows = {}
        for name, mine in frame.groupby(group, sort=True, observed=True, dropna=False):
            both = mine.dropna(subset=["change"])
            rows[name] = {
                "tasks": len(mine), "gained": int((both["change"] < 0).sum()),
                "lost": int((both["change"] > 0).sum()), "mean_a": both["a"].mean(), "mean_b": both["b"].mean(),
                "change_mean": both["change"].mean(), "change_sum": both["change"].sum(),
            }  # fmt: skip
        table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(group)
        return table.sort_values("change_mean", kind="stable") if len(table) else table

    @cached_property
    def statuses(self) -> pd.DataFrame:
        """Numbers of tasks with different statuses: columns status_a, status_b, tasks."""
        pairs = self.tasks[["status_a", "status_b"]].astype(str)
        pairs = pairs[pairs["status_a"] != pairs["status_b"]]
        return pairs.value_counts(sort=True).rename("tasks").reset_index()

    @cached_property
    def first(self) -> FirstDecision | None:
        """The first time at which the two runs decide differently, and what; None: never."""
        both = decisions(self.a).merge(decisions(self.b), on=["time", "what"], how="outer", indicator=True)
        both = both[both["_merge"] != "both"]
        if both.empty:
            return None
        time = float(both["time"].min())
        now = both[both["time"] == time]
        decided = {side: tuple(sorted(now.loc[now["_merge"] == side, "what"])) for side in ("left_only", "right_only")}
        return FirstDecision(time, decided["left_only"], decided["right_only"])

    @cached_property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Scenario keys whose values differ: (value in a, value in b); None if absent."""
        if self.a.scenario is None or self.b.scenario is None:
            return {}
        first, right = _flat(self.a), _flat(self.b)
        keys = sorted({*first, *right})
        return {key: (first.get(key), right.get(key)) for key in keys if first.get(key) != right.get(key)}

    @property
    def sentences(self) -> list[str]:
        return list(_sentences(self))

    def to_json(self, top: int = 10) -> dict[str, Any]:
        """Return the difference as plain values for programs.

        Parameters: top: maximum number of entries of "tasks".
        Returns: {"a", "b", "column", "common", "only_a", "only_b", "mean_change", "gained", "lost", "tasks": [...],
            "by": {"class", "user"}, "statuses", "first", "settings", "sentences"}.  "first": the first decision that
            differs; "settings": differing settings.
        """
        frame = self.tasks
        change = frame["change"].dropna()
        return {
            "a": self.labels[0], "b": self.labels[1], "column": self.column,
            "common": len(frame), "only_a": self.only[0], "only_b": self.only[1],
            "mean_change": json_number(float(change.mean()) if len(change) else math.nan),
            "gained": int((change < 0).sum()), "lost": int((change > 0).sum()),
            "tasks": [_plain(row) for row in frame.head(top).to_dict("records")],
            "by": {group: {str(name): _plain(dict(row)) for name, row in self.by(group).iterrows()}
                   for group in GROUPS},
            "statuses": [_plain(row) for row in self.statuses.to_dict("records")],
            "first": None if self.first is None else vars(self.first),
            "settings": {key: list(values) for key, values in self.settings.items()},
            "sentences": self.sentences,
        }  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([f"<Difference {self.labels[0]} | {self.labels[1]}>", *self.sentences])

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(text)}</li>" for text in self.sentences)
        return f"<ul>{lines}</ul>{self.tasks.head(10).to_html(index=False)}"


def difference(a: Result, b: Result, column: str = "response") -> Difference:
    """Compare two runs by a column of their tasks.

    Parameters: a, b: the runs; column: a column of `tasks`.
    Returns: the common tasks with their change, sums by group, and the first decision that differs.
    """
    return Difference(a, b, column)


# Decisions --------------------------------------------------------------------------------------------------------

_ENDED = {"stopped": "stops", "moved": "moves", "lost": "loses"}


def decisions(run: Result) -> pd.DataFrame:
    """All decisions of a run as texts: columns `time` and `what`."""
    launches, tasks = run.launches, run.tasks
    name = launches["task"].astype(str)
    more = launches["members"].to_numpy()
    batch = np.where(more > 1, " and " + pd.Series(more - 1).astype(str).to_numpy(dtype=object) + " more", "")
    started = "starts " + name + batch + " on " + launches["device"].astype(str)
    parts = [pd.DataFrame({"time": launches["decided"].to_numpy(), "what": started.to_numpy(dtype=object)})]
    outcome = launches["outcome"].astype(str)
    for ended, verb in _ENDED.items():
        mine = launches[outcome == ended]
        what = f"{verb} " + mine["task"].astype(str) + " on " + mine["device"].astype(str)
        parts.append(pd.DataFrame({"time": mine["end"].to_numpy(), "what": what.to_numpy(dtype=object)}))
    turned = tasks[tasks["status"].astype(str) == "rejected"]
    what = "rejects " + turned["id"].astype(str)
    parts.append(pd.DataFrame({"time": turned["finish"].to_numpy(), "what": what.to_numpy(dtype=object)}))
    devices = run.record.input.cluster.devices
    rows = [(time, f"sets {devices[index].name} to {change}{f' {figures(value)}' if change == 'frequency' else ''}")
            for time, index, change, value in run.record.device_log
            if change in ("frequency", "sleep", "wake")]  # fmt: skip
    parts.append(pd.DataFrame(rows, columns=["time", "what"]))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


# Words ------------------------------------------------------------------------------------------------------------


def _labels(a: Result, b: Result) -> tuple[str, str]:
    for one, other in (
        (a.policy, b.policy),
        (a.name, b.name),
        *([(str(a.directory), str(b.directory))] if a.directory and b.directory else []),
        (f"seed {a.seed}, replication {a.replication}", f"seed {b.seed}, replication {b.replication}"),
    ):
        if one != other:
            return one, other
    return "the first run", "the second run"


def _sentences(found: Difference) -> Any:
    a, b = found.labels
    frame, (only_a, only_b) = found.tasks, found.only
    if only_a or only_b:
        yield (
            f"the runs did not have the same tasks: {len(frame):,} are in both, {only_a:,} only in {a}, "
            f"{only_b:,} only in {b}"
        )
    if found.unlike:
        which = ", ".join(f"{number:,} with another {name}" for name, number in found.unlike.items())
        alike = all(key.startswith(("policy.", "seed")) for key in found.settings)
        seeds = alike and found.a.seed != found.b.seed
        advice = f"; their seeds are {found.a.seed} and {found.b.seed}: use the same seed" if seeds else ""
        yield f"of the common tasks {which}: the runs did not have the same load{advice}"
    yield _change(found)
    for row in found.statuses.itertuples(index=False):
        tasks = f"{row.tasks:,} task{'s' if row.tasks != 1 else ''}"
        yield f"{tasks} of {a} that {_ENDINGS[str(row.status_a)]} {_ENDINGS[str(row.status_b)]} in {b}"
    yield _first(found)


_ENDINGS = {"completed": "completed", "rejected": "were rejected", "expired": "expired", "failed": "failed",
            "aborted": "were aborted", "unfinished": "were unfinished"}  # fmt: skip


def _change(found: Difference) -> str:
    a, b = found.labels
    change = found.tasks["change"].dropna()
    name = metric_name(found.column)
    if not len(change):
        return f"no task has a {name} in both runs"
    if not change.any():
        return f"every task has the same {name} in both runs"
    write = formatter(found.column if found.column not in ("start", "finish") else "response")
    mean = float(change.mean())
    base = float(found.tasks["a"][change.index].mean())
    part = f" ({share(abs(mean) / base)})" if base > 0 else ""
    gained, lost = int((change < 0).sum()), int((change > 0).sum())
    less, more = ("shorter", "longer") if found.column in ("response", "wait") else ("less", "more")
    way = f"{write(abs(mean))}{part} {less if mean < 0 else more} in {b} than in {a}"
    way = way if mean else f"the same in {b} as in {a}"
    same = len(change) - gained - lost
    return f"mean {name} is {way}: of {len(change):,} tasks {gained:,} gained, {lost:,} lost, {same:,} did not change"


def _first(found: Difference) -> str:
    first = found.first
    a, b = found.labels
    if first is None:
        return "all decisions are the same"
    sides = " · ".join(f"{label} {_some(actions)}" for label, actions in ((a, first.only_a), (b, first.only_b)))
    return f"the first decision that differs is at {clock(first.time)}: {sides}"


def _some(actions: tuple[str, ...]) -> str:
    if not actions:
        return "makes no further decision"
    rest = len(actions) - MAX_ACTIONS
    return ", ".join(actions[:MAX_ACTIONS]) + (f" and {rest} more" if rest > 0 else "")


def _flat(run: Result) -> dict[str, Any]:
    by_path: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
            for number, inner in enumerate(value):
                walk(inner, f"{path}.{number}")
        else:
            by_path[path] = value

    walk(parse_yaml(run.name or "a run", run.scenario or ""), "")
    return by_path


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        str(name): json_number(value) if isinstance(value, int | float | np.integer | np.floating) else str(value)
        for name, value in row.items()
    }
