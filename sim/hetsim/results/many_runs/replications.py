"""Several runs of one scenario: values of all metrics, intervals of their means."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName, UsageError
from hetsim.results.declared import ENERGY, TASK_COUNT, current_name, in_set
from hetsim.results.formatting import json_values, several, units_of
from hetsim.results.many_runs.groups import table_of_groups
from hetsim.results.one_run import store
from hetsim.results.one_run.estimands import contributions, weight_of, weights
from hetsim.results.one_run.groups import Grouping, checked, kept_values
from hetsim.results.one_run.result import Result, html_table
from hetsim.results.panels import Picture, drawn
from hetsim.results.statistics import Interval, deviation, student_interval
from hetsim.results.stored_files import read_frame, reading_stored

COMMON_END = (ENERGY, "energy_idle_j")  # Metrics measured up to one common end when policies are compared.


REPLICATIONS = "replications.parquet"
FIRST = "replication-0"  # Subdirectory of the one replication that is saved completely.


class Replications:
    """Replications of one scenario under one policy.

    Only values of metrics are kept (`values`: a row per replication), and complete runs with `keep=True`.  Intervals
    are Student t intervals over the replications.  A mean over customers is estimated as a ratio of two sums, since the
    number of customers is random; every other metric as the mean of the replications' values
    (`hetsim.results.one_run.estimands`).  If all replications are identical, since nothing is random, there are no
    intervals.  `remarks`: facts about the runs that a reader should know, such as the warm-up cut and the precision.
    """

    def __init__(self, results: Iterable[Result] = (), metrics: Iterable[str] | None = None, *, keep: bool = False):
        """metrics: further names (or `Grouping` texts) to store; keep: store whole runs."""
        self.name, self.policy, self.seed = "", "", 0
        self.results: list[Result] = []
        self.warnings: list[str] = []
        self.remarks: list[str] = []
        self._further = list(metrics or ())
        self._keep = keep
        self._rows: dict[int, dict[str, float]] = {}
        for result in results:
            self.add(result)

    @classmethod
    def load(cls, directory: str | Path) -> "Replications":
        """Load replications: the metrics of all, and the complete first run.

        Parameters: directory: the directory of the replications.
        Returns: the replications.
        Raises: UsageError: the directory has no replications, or is damaged.
        """
        folder = Path(directory)
        with reading_stored(folder):
            try:
                about = store.read_mark(folder)
                values = read_frame(folder / REPLICATIONS).rename(columns=current_name)
                runs = cls()
                for row in values.reset_index().to_dict("records"):
                    runs.add_values({str(name): value for name, value in row.items()})
                runs.name, runs.policy, runs.seed = about["name"], about["policy"], about["seed"]
                runs.warnings = list(about["warnings"])
                runs.remarks = list(about.get("remarks", ()))
            except (OSError, ValueError, KeyError, TypeError) as problem:
                raise UsageError(f"{folder} is not a directory of replications: {problem}") from None
        runs.results.append(Result.load(folder / FIRST))
        return runs

    def add(self, result: Result) -> None:
        self.add_values(replication_values(result, self._further), result)
        if self._keep:
            self.results.append(result)

    def add_values(self, row: Mapping[str, float], about: Result | None = None) -> None:
        """Add a run by its metrics; `about`: its result for name and warnings, or None."""
        values = dict(row)
        number = int(values.pop("replication"))
        if number in self._rows:
            raise UsageError(f"replication {number} is given twice")
        self._rows[number] = values
        if about is not None:
            if len(self._rows) == 1:
                self.name, self.policy, self.seed = about.name, about.policy, about.seed
            self.warnings += [f"replication {number}: {warning}" for warning in about.warnings]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Result]:
        """Iterate over the complete runs, in order of replication."""
        if len(self.results) < len(self):
            raise UsageError("only the metrics of the runs were kept; use keep=True for whole runs")
        return iter(sorted(self.results, key=lambda result: result.replication))

    @property
    def values(self) -> pd.DataFrame:
        """Values of metrics: a row per replication, a column per metric."""
        frame = self._frame()
        return frame[[name for name in frame.columns if not name.startswith("_")]]

    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame.from_dict(self._rows, orient="index").sort_index().rename_axis("replication")

    def _column(self, name: str) -> pd.Series:
        numbers = sorted(self._rows)
        kept = [self._rows[number].get(name, math.nan) for number in numbers]
        return pd.Series(kept, index=pd.Index(numbers, name="replication"), name=name)

    def keeps(self, metric: str) -> bool:
        """Return True if some replication has a value of this metric."""
        return not metric.startswith("_") and any(metric in row for row in self._rows.values())

    def column(self, metric: str) -> pd.Series:
        """Get one metric by replication.

        Parameters: metric: its name.
        Returns: its values.
        Raises: UnknownName: the metric was not kept.
        """
        if self.keeps(metric):
            return self._column(metric)
        if self.results and len(self.results) == len(self):
            for result in self.results:
                kept = {metric: result.metric(metric), **weights(result.measured, [metric])}
                self._rows[result.replication].update(kept)
            return self._column(metric)
        raise UnknownName("metric", metric, self.values.columns, " among those kept of the replications")

    def contributions(self, metric: str) -> pd.Series:
        """Return one value per replication; the mean of the values estimates the metric.

        For a mean over tasks or tokens these are jackknife pseudo-values, in which replications with more tasks or
        tokens have more weight; for any other metric they are the replications' own values.
        """
        column, weight = self.column(metric), weight_of(metric)
        if weight is None or not any(weight in row for row in self._rows.values()):
            return column
        return contributions(pd.DataFrame({metric: column, weight: self._column(weight)}), metric)

    def by(self, group: str, names: Iterable[str] | None = None) -> pd.DataFrame:
        """Get metrics of groups of tasks, over the replications.

        Parameters: group: class, gpus or user; unless all runs are kept, it must be requested before the runs
            (`by=["gpus"]`); names: metrics.
        Returns: index group, columns (metric, mean | half_width | n).
        """
        table = table_of_groups({"": self}, checked(group)[0]).droplevel("policy")
        return table if names is None else table[list(names)]

    def interval(self, metric: str, confidence: float = 0.95) -> Interval:
        """Get the interval for a metric (`hetsim.results.one_run.estimands`).

        Parameters: metric: its name; confidence: confidence level.
        Returns: mean, ends and the number of replications.
        Raises: UsageError: fewer than two replications have a value, or all are identical.
        """
        column = self.contributions(metric)
        if self.identical:
            raise UsageError(f"there is no confidence interval for {metric}: {self.without_chance}")
        if len(column.dropna()) < 2:
            raise UsageError(f"a confidence interval for {metric} needs two replications in which it is defined")
        return student_interval(column.to_numpy(), confidence, metric)

    def relative_half_width(self, metric: str, confidence: float = 0.95) -> float:
        """Get the half-width of an interval, divided by |mean|.

        Parameters: metric: its name; confidence: confidence level.
        Returns: the ratio; infinite if there is no interval.
        """
        mean_of = student_interval(self.contributions(metric).to_numpy(), confidence, metric)
        if math.isnan(mean_of.half_width) or self.identical:
            return math.inf
        if mean_of.half_width == 0:
            return 0.0
        return mean_of.half_width / abs(mean_of.mean) if mean_of.mean else math.inf

    @property
    def identical(self) -> bool:
        """Return True if all replications, two or more, are equal: nothing is random."""
        rows = iter(self._rows.values())
        first = next(rows, None)
        if first is None or len(self._rows) < 2:
            return False
        return all(
            row.get(name) == value or (math.isnan(value) and math.isnan(row.get(name, math.nan)))
            for row in rows for name, value in first.items()
        )  # fmt: skip

    @property
    def first(self) -> "Replications":
        """The first replication alone."""
        number = min(self._rows)
        chosen = Replications()
        chosen.add_values({"replication": number, **self._rows[number]})
        chosen.name, chosen.policy, chosen.seed = self.name, self.policy, self.seed
        chosen.results = [result for result in self.results if result.replication == number]
        return chosen

    def among(self, numbers: Iterable[int]) -> "Replications":
        """Return only the replications whose numbers are given."""
        chosen = set(numbers)
        if chosen >= set(self._rows):
            return self
        subset = Replications()
        subset._rows = {number: row for number, row in self._rows.items() if number in chosen}
        return subset

    @property
    def without_chance(self) -> str:
        """Message that says why identical replications have no intervals, and what to do."""
        if not any(row.get(TASK_COUNT, 1) for row in self._rows.values()):
            return "no task arrived in the window of any replication: between warm-up and horizon"
        text = "all replications are equal: the scenario is not random, so there are no intervals"
        return f"{text}. {RESAMPLE}" if self.replays else text

    @property
    def replays(self) -> bool:
        """Return True if the scenario replays a trace unchanged."""
        return bool(self.results) and "" in self.results[0].record.input.traces

    @property
    def summary(self) -> pd.DataFrame:
        """Table: index `metric`; columns mean, sd, ci_low, ci_high (95 %), n.

        Mean and interval are those that the method `interval` returns; `sd`: standard deviation over the replications.
        """
        rows = {}
        same, frame = self.identical, self._frame()
        for name, column in self.values.items():
            values = column.to_numpy(dtype=np.float64)
            interval = student_interval(contributions(frame, str(name)).to_numpy(), metric=str(name))
            spread = deviation(values[~np.isnan(values)])
            low, high = (math.nan, math.nan) if same else (interval.low, interval.high)
            rows[name] = (interval.mean, spread, low, high, interval.n)
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "sd", "ci_low", "ci_high", "n"])
        return table.rename_axis("metric")

    def energy_until(self, ends: pd.Series) -> pd.DataFrame:
        """Return energy_j and energy_idle_j as if each run idled from its end to `ends`."""
        own = self.ends
        further = (ends.reindex(own.index) - own).clip(lower=0.0) * self._column(_WATTS)
        return pd.DataFrame({name: self._column(name) for name in COMMON_END}).add(further.to_numpy(), axis=0)

    @property
    def ends(self) -> pd.Series:
        return self._column(_END)

    def to_json(self) -> dict[str, Any]:
        """Return {"scenario", "seed", "summary": {metric: {mean, sd, ...}}}."""
        summary = {
            str(name): {
                **json_values({key: row[key] for key in ("mean", "sd", "ci_low", "ci_high")}),
                "n": int(row["n"]),
            }
            for name, row in self.summary.iterrows()
        }
        return {"scenario": self.name, "seed": self.seed, "summary": summary}

    def plot(self) -> Picture:
        """Return a picture: the first run, and the mean response of each replication."""
        return drawn("default", self)

    def _title(self) -> str:
        how = "no intervals: all equal" if self.identical else "95 % intervals"
        parts = (self.name or "runs", self.policy, f"seed {self.seed}", f"{len(self)} replications, {how}")
        return " · ".join(part for part in parts if part)

    def _shown(self) -> dict[str, str]:
        shown = {}
        for name in in_set("display"):
            mean_of = student_interval(self.contributions(name).to_numpy(), metric=name) if self.keeps(name) else None
            if mean_of is not None and not math.isnan(mean_of.mean):
                half = math.nan if self.identical else mean_of.half_width
                shown[name] = several([mean_of.mean], units_of(name), [half])[0]
        return shown

    def __repr__(self) -> str:
        lines = [f"{name:<18}{text}" for name, text in self._shown().items()]
        return "\n".join([f"<Replications {self._title()}>", *lines, *(f"! {text}" for text in self.warnings[:5])])

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._shown(), self.warnings[:5])


RESAMPLE = (
    "Replays of one trace are all equal: give its entry resample: {block: 1 week} (blocks of time drawn from "
    "the trace) or resample: {by: user} (users drawn with replacement)"
)

# Columns that begin with _ are kept for comparisons, groups and estimates; they are not metrics.
_END, _WATTS = "_end", "_watts_at_end"
ALWAYS = ("replication", _END, _WATTS)  # Values kept of every run, whatever metrics are requested.


def replication_values(result: Result, metrics: Iterable[str] = ()) -> dict[str, float]:
    """Return a run's replication number, and all values that `Replications` stores."""
    asked = [(name, Grouping.parse(name)) for name in metrics]
    plain = [name for name, grouping in asked if grouping is None]
    values = {"replication": float(result.replication), **result.values(), **result.values(plain)}
    values |= weights(result.measured, list(values))
    for _, grouping in asked:
        if grouping is not None:
            values |= kept_values(result, grouping)
    return values | {_END: result.end, _WATTS: result.usage.watts_at_end}
