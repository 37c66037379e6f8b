"""Targets such as `response_p99 < 200 ms`, and tests of them by replicated runs."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.errors import RunError, UsageError
from hetsim.experiment.sensitivity import INTERVAL, paired
from hetsim.experiment.stopping import Pilot, find_cuts, pilot_size
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.model.units import RATE, TIME, is_number, parse, parse_fraction, shown
from hetsim.results.declared import declaration
from hetsim.results.formatting import JOULES, PER_TIME, PERCENT, SECONDS, units_of
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.metrics import metric
from hetsim.results.statistics import half_width

MORE = 4  # factor of the replications at the last look, if the requested number leaves the verdict open


def looks(replications: int) -> list[int]:
    """Return the replication counts at which to test targets: 3, n/3, n and MORE × n."""
    third = math.ceil(replications / 3)
    return [*([3] if third > 3 else []), *([third] if third >= 3 else []), replications, MORE * replications]


# Verdicts on a size; UNDEFINED: the metric has no value in some replication, e.g. if no task completed
MET, MISSED, OPEN, UNDEFINED = "met", "missed", "open", "not defined"

_TARGET = re.compile(r"\s*([a-z][\w.]*)\s*(<=|>=|<|>|≤|≥)\s*(.+?)\s*$")

# whole numbers of a scenario that are not sizes, and why
NO_SIZES = {"seed": "it selects the random numbers", "replications": "it is the number of runs",
            "replications.max": "it is the number of runs"}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A target such as `metric < value`; `strict` is True for < and >."""

    metric: str
    below: bool
    value: float
    text: str
    strict: bool = True

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse a target such as `response_p99 < 200 ms`; raise UsageError if invalid."""
        if not (match := _TARGET.match(text)):
            raise UsageError(f"a target must be METRIC < VALUE (or with >, <= or >=); got {shown(text)}")
        name, sign, written = match.groups()
        metric(name)
        try:
            value = _value(written, name)
        except ValueError as error:
            raise UsageError(f"--target {shown(text)}: {error}") from None
        return cls(name, sign in ("<", "<=", "≤"), value, f"{name} {sign} {written}", strict=sign in ("<", ">"))

    def judge(self, mean: float, half: float) -> str:
        """Judge a mean by a one-sided half-width: met, missed, or open."""
        if math.isinf(mean):
            return MET if (mean < 0) == self.below else MISSED
        gap = self.gap(mean)
        if gap == 0 == half:  # no spread, on the value itself
            return MISSED if self.strict else MET
        return MET if gap >= half else MISSED if gap <= -half else OPEN

    def gap(self, mean: float) -> float:
        """Return how far an estimate is inside the target; negative if it misses.

        For a share of tasks the distance is logarithmic in the share that misses.  A sample with few late tasks also
        has a small spread, so that the usual confidence interval would be too short (docs/statistics.md).
        """
        declared = declaration(self.metric)
        gap = self.value - mean if self.below else mean - self.value
        if declared is None or not declared.congested or declared.unit != "share":
            return gap
        missed, allowed = (1 - mean, 1 - self.value) if declared.better == "more" else (mean, self.value)
        if min(missed, allowed) <= 0:
            return gap
        return math.copysign(missed * math.log(allowed / missed), gap)

    def missed_by(self, waits: Sequence[float], tasks: int) -> bool:
        """Return True if every run must miss the target because of an overload.

        waits: a pair (n, s); n tasks are served, and their waits rise evenly from 0 to at least s seconds.  tasks:
        number of all tasks.
        """
        served, longest = waits
        measure = re.fullmatch(r"(?:response|wait)_(?:mean|p(\d\d))", self.metric)
        if measure is None or not self.below or longest <= self.value:
            return False
        if measure[1] is None:
            return served / tasks * longest / 2 > self.value
        return served / tasks * (1 - self.value / longest) > 1 - int(measure[1]) / 100


def _value(text: str, name: str) -> float:
    units = units_of(name)
    if units == SECONDS:
        return parse(text, TIME, "200 ms")
    if units == PER_TIME:
        return parse(text, RATE, "40/h")
    if units == JOULES:
        return parse(text, {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}, "5 kWh")
    if units == PERCENT and text.endswith("%"):
        return parse_fraction(text)
    try:
        value = float(text)
    except ValueError:
        example = "95% or 0.95" if units == PERCENT else "3.5"
        raise ValueError(f"must be a number such as {example}; got {shown(text)}") from None
    if not is_number(value):
        raise ValueError(f"must be a finite number; got {shown(text)}")
    return value


@dataclass(frozen=True)
class TargetFinding:
    """The estimate for one target; `half` is the half-width of a one-sided interval."""

    mean: float
    half: float
    verdict: str


@dataclass(frozen=True)
class TargetsTrial:
    """Findings for all targets in one case; `reason` states why the case cannot run."""

    replications: int
    findings: tuple[TargetFinding, ...]
    reason: str = ""

    @property
    def verdict(self) -> str:
        said = [finding.verdict for finding in self.findings]
        return next((one for one in (MISSED, UNDEFINED, OPEN) if one in said), MET)


class Judge:
    """Tests targets on cases (scenarios); each verdict is wrong with P <= `error`."""

    def __init__(self, study: Study, targets: Sequence[Target], replications: int, error: float):
        self.study, self.targets, self.looks = study, targets, looks(replications)
        self.first, self.error = self.looks[0], error / len(self.looks)

    def try_(self, case: Case, where: str) -> tuple[TargetsTrial, Replicates | None]:
        """Test a case, with more replications while a verdict is open.

        A case that the scenario's checks refuse (a gang that never fits) misses the targets.  Raise UsageError, which
        names `where`, if runs are too short to find a warm-up, and RunError if a run fails in another way.
        """
        warmup = None
        if case.auto_warmup:
            pilot = Pilot(case, pilot_size(self.looks[-1]))
            self.study.meter.expect(pilot.size)
            find_cuts(self.study, [pilot])
            if pilot.too_short is not None:
                raise UsageError(f"{where}: {pilot.too_short}")
            if pilot.error is not None:
                return self._refused(pilot.error.error, pilot.error.refused, where), None
            assert pilot.cut is not None
            warmup = pilot.cut.time
        series = Replicates(case, self.first, warmup=warmup, runs=Replications())
        self.study.make([series])
        for outcome in series.taken:
            if outcome.values is None:
                return self._refused(outcome.error, outcome.refused, where), None
        trial = self._look(series)
        for count in self.looks[1:]:  # each look goes on where the one before it ended
            if trial.verdict == OPEN:
                self.study.more(series, count)
                self.study.make([])
                trial = self._look(series)
        return trial, series

    def sensitivity(self, series: Replicates | None, findings: Sequence[Any], name: str = "") -> dict[str, Any]:
        """Return the effects of 1 % longer LLM steps on the results of the case `name`."""
        if series is None:
            return {}
        rows = [outcome.values or {} for outcome in series.taken]
        metrics = [target.metric for target in self.targets]
        sensitivity = paired(self.study, series.case, rows, warmup=series.warmup, further=metrics)
        verdicts = {}
        for target, finding in zip(self.targets, findings, strict=True):
            if (row := sensitivity.get("metrics", {}).get(target.metric)) is not None:
                verdicts[target.text] = target.judge(finding.mean + row["longer"] - row["mean"], finding.half)
        intervals = [text for text in series.taken[0].warnings if INTERVAL in text] if sensitivity else []
        more = {"verdicts": verdicts, "intervals": intervals, "case": name}
        return sensitivity and sensitivity | {key: value for key, value in more.items() if value}

    def _refused(self, error: str, refused: bool, where: str) -> TargetsTrial:
        if not refused:
            raise RunError(f"{where}: {error}")
        nothing = TargetFinding(math.nan, math.nan, MISSED)
        return TargetsTrial(0, (nothing,) * len(self.targets), error.splitlines()[0])

    def _look(self, series: Replicates) -> TargetsTrial:
        runs = series.runs
        assert runs is not None
        findings = []
        for target in self.targets:
            values = runs.column(target.metric)
            if values.notna().all():
                values = runs.contributions(target.metric)
            findings.append(self._judge(target, values.to_numpy(dtype=float)))
        return TargetsTrial(len(series.taken), tuple(findings))

    def _judge(self, target: Target, values: np.ndarray) -> TargetFinding:
        if np.isnan(values).any():
            return TargetFinding(math.nan, math.nan, UNDEFINED)
        if np.isfinite(values[0]) and (values == values[0]).all():  # exactly, where a sum would be rounded
            if len(values) < self.looks[-2]:  # equal values of a short look, as of rare events, show no spread
                return TargetFinding(float(values[0]), math.nan, OPEN)
            mean, half = float(values[0]), 0.0
        else:
            mean, sound = float(values.mean()), np.isfinite(values).all()
            half = half_width(values, target.metric, 1 - self.error) if sound else math.nan
        return TargetFinding(mean, half, target.judge(mean, half))
