"""The outcome of tuning: the best setting, its figure from fresh runs, its gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from hetsim.results.declared import higher_is_better
from hetsim.results.formatting import formatter, gap, json_number, json_values, metric_name, several, units_of
from hetsim.results.statistics import Interval, PairedDifference, paired_differences, student_interval


@dataclass(frozen=True)
class Setting:
    """Values of the parameters (none: the present setting) and stages of the choice.

    `stage`: the last in which it took part; `values`: of the metric in its replications; `error` if some failed.
    """

    values: dict[str, Any]
    stage: int
    seen: tuple[float, ...]
    error: str = ""

    @property
    def label(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "present setting"


@dataclass(frozen=True)
class Tuning:
    """The outcome of `hetsim.tune`.  Attributes:

    settings       all that were tried, the present one last; `best` is the number of the winner
    ours, present  contributions to the metric (`hetsim.results.one_run.estimands`) under the winner and under the
    present
                   setting, in `len(ours)` further replications that had no part in the choice: numbers `used` and on
    policy         the winner as a scenario writes it under `policy:`
    remarks        what a reader of the figures should know, such as a warm-up that was found; `warnings` of them
    """

    metric: str
    confidence: float
    settings: list[Setting]
    best: int
    ours: tuple[float, ...]
    present: tuple[float, ...]
    used: int
    policy: Mapping[str, Any]
    name: str = ""
    seed: int = 0
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The best values of the parameters; empty if the present setting is best."""
        return dict(self.settings[self.best].values)

    @property
    def keeps(self) -> bool:
        """Return True if the present setting is the best that was tried."""
        return self.best == len(self.settings) - 1

    @cached_property
    def interval(self) -> Interval:
        """Interval under the winner, from replications not used for the choice."""
        return self._interval(self.ours)

    @cached_property
    def interval_before(self) -> Interval:
        """The same under the present setting."""
        return self._interval(self.present)

    def _interval(self, values: tuple[float, ...]) -> Interval:
        interval = student_interval(values, self.confidence, self.metric)
        if len(set(values)) == 1 and len(values) > 1:  # nothing is random
            return Interval(
                self.metric, interval.mean, low=math.nan, high=math.nan, confidence=self.confidence, n=len(values)
            )
        return interval

    @cached_property
    def difference(self) -> PairedDifference:
        """Winner - present setting, paired by replication."""
        return paired_differences([np.asarray(self.ours) - np.asarray(self.present)], self.confidence)[0]

    @property
    def flattered(self) -> float:
        """The mean by which the winner was chosen, biased by the choice."""
        return float(np.mean(self.settings[self.best].seen))

    @property
    def table(self) -> pd.DataFrame:
        """A row a setting, best first: values, last stage, replications, mean, error."""
        up = higher_is_better(self.metric)
        keys = list(self.settings[0].values)
        rows = [
            {
                **{key: one.values.get(key) for key in keys}, "present": number == len(self.settings) - 1,
                "stage": one.stage, "replications": len(one.seen), self.metric: float(np.mean(one.seen)),
                "error": one.error,
            }
            for number, one in enumerate(self.settings)
        ]  # fmt: skip
        frame = pd.DataFrame(rows)
        for key in keys:  # whole numbers stay whole beside the present setting, which has none
            frame[key] = pd.Series([row[key] for row in rows], dtype=object)
        return frame.sort_values(["stage", self.metric], ascending=[False, not up], kind="stable", na_position="last")

    @property
    def sentences(self) -> list[str]:
        """The outcome in sentences."""
        what, seen = metric_name(self.metric), formatter(self.metric)
        level = f"{100 * self.confidence:g} %"
        if self.keeps:
            said = [f"Best of {len(self.settings)} settings: the present one, {what} {self._text(self.interval)}."]
        else:
            said = [f"Best of {len(self.settings)} settings: {self.settings[self.best].label}."]
            said.append(f"{what}: {self._text(self.interval)}, {self._before()}.")
        said.append(
            f"From {len(self.ours)} replications that had no part in the choice ({level} intervals). The {self.used} "
            f"by which it was chosen say {seen(self.flattered)}, which chance may have made too good."
        )
        return [*said, *self.remarks]

    def _text(self, found: Interval) -> str:
        return several([found.mean], units_of(self.metric), [found.half_width])[0]

    def _before(self) -> str:
        """The value of the present setting, and the gain of the winner."""
        difference, error = self.difference, self.settings[-1].error
        if error:
            return f"where the present setting fails ({error})"
        if math.isnan(difference.mean):
            return "which under the present setting is undefined in some replication"
        return f"before {self._text(self.interval_before)}: {self._gain(difference)}"

    def _gain(self, found: PairedDifference) -> str:
        amount = gap(self.metric, found.mean, found.half_width)
        if not found.significant:
            return f"a difference of {amount}, which may be chance"
        better = (found.mean > 0) == (higher_is_better(self.metric))
        return f"{'better' if better else 'worse'} by {amount} (paired)"

    def to_json(self) -> dict[str, Any]:
        """Return {"scenario", "seed", "metric", "best", "policy", "interval", ...}."""

        def interval(found: Interval) -> dict[str, Any]:
            return {**json_values({"mean": found.mean, "ci_low": found.low, "ci_high": found.high}), "n": found.n}

        rows = self.table.drop(columns=["error"]).astype(object).to_dict("records")
        return {
            "scenario": self.name, "seed": self.seed, "metric": self.metric, "best": self.values,
            "policy": dict(self.policy), "interval": interval(self.interval), "before": interval(self.interval_before),
            "difference": {**json_values({"mean": self.difference.mean, "half_width": self.difference.half_width}),
                           "significant": self.difference.significant},
            "used_for_choice": self.used, **({"remarks": list(self.remarks)} if self.remarks else {}),
            "settings": [{**row, self.metric: json_number(row[self.metric])} for row in rows],
        }  # fmt: skip

    def shown(self, rows: int = 10) -> pd.DataFrame:
        """The best settings for people."""
        frame = self.table.head(rows)
        texts = frame[self.metric].map(formatter(self.metric))
        cells = frame.drop(columns=["error", "present"]).astype(object)
        cells[self.metric] = texts
        cells.loc[frame["present"], list(self.settings[0].values)] = "present"
        return cells.rename(columns={self.metric: metric_name(self.metric)})

    def __repr__(self) -> str:
        return "\n".join(["<Tuning>", *self.sentences, "", self.shown().to_string(index=False)])

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{escape(text)}</div>" for text in self.sentences)
        return said + self.shown().to_html(index=False)
