"""Comparison of policies by paired differences, with Holm's correction.

Replication r of every policy has the same arrivals, sizes and faults (common random numbers), so differences are taken
pair by pair.  For each metric all compared pairs are tested together; a policy is reported above or below another only
if the corrected interval of their difference excludes zero.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName, UsageError
from hetsim.results.declared import current_name, declaration, has_direction, hide_if_zero, higher_is_better
from hetsim.results.formatting import SECONDS, figures, fitting, metric_name, one, several, units_of, with_unit
from hetsim.results.many_runs.findings import COLUMNS, Finding, clearly_best, paired_findings, seen_from
from hetsim.results.many_runs.groups import differences_of_groups, table_of_groups
from hetsim.results.many_runs.replications import COMMON_END, REPLICATIONS, Replications
from hetsim.results.many_runs.selection import Selection
from hetsim.results.one_run import metrics, store
from hetsim.results.one_run.groups import checked
from hetsim.results.one_run.metrics import metric
from hetsim.results.one_run.plans import PLAN_COLUMNS, plans_table, reservations
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Picture, drawn
from hetsim.results.statistics import student_interval
from hetsim.results.stored_files import check_names, read_json, reading_stored

COMPARISON = "comparison.json"
PLAN_TITLES = ("planned makespan", "simulated makespan", "lower bound", "ratio", "planning time")


@dataclass
class Comparison:
    """The outcome of `compare`.  Attributes:

    table        a row per policy; columns (metric, "mean"), (metric, "half_width") of the interval of that mean, and
                 (metric, "n"), the number of runs in which the metric is defined
    pairs        a row per metric and compared pair: metric, policy, other, difference (policy - other), half_width, p,
                 significant, n; half_width and p are corrected by Holm's procedure
    winners      metric -> the policy that is better than all others, or None
    findings     by metric: tests of all policies against the baseline, or if there is none, of the best against all
    sentences    the findings as text
    plans        if a policy has a plan, a row per policy: planned_makespan, makespan, lower_bound, ratio, planning_s,
                 all of the first run (`hetsim.results.one_run.plans`); otherwise no rows
    plan_notes   remarks on the plans
    selection    selection of the best policy with a stated probability, if requested
                 (`hetsim.results.many_runs.selection`)
    identical    True if nothing is random, so that one run of each policy was compared
    runs         the compared runs, by policy
    baseline     the policy with which all others were compared, if one was named
    asked        arguments with which `hetsim.compare` was called: metrics, by; best, probability, delta, replications
    refused      policies that cannot run the scenario, with the reason; the other attributes leave these policies out
    planners     policies that plan and know all arrival times from the start (empty if all tasks arrive together)
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    winners: dict[str, str | None]
    findings: list[Finding]
    confidence: float
    plans: pd.DataFrame = field(default_factory=lambda: plans_table({}))
    plan_notes: list[str] = field(default_factory=list)
    selection: Selection | None = None
    identical: bool = False
    runs: Mapping[str, Replications | Result] = field(default_factory=dict, repr=False)
    baseline: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict, repr=False)
    refused: Mapping[str, str] = field(default_factory=dict)
    planners: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, directory: str | Path) -> "Comparison":
        """Load a comparison, and evaluate it again from its runs.

        Parameters: directory: the directory of the comparison.
        Returns: the comparison.
        Raises: UsageError: the directory has no comparison, or is damaged.
        """
        folder = Path(directory)
        with reading_stored(folder):
            try:
                about = store.read_mark(folder)
                stored = read_json(folder / COMPARISON)
                pairs = {(row["policy"], row["other"]) for row in stored["differences"]}
                metrics = list(dict.fromkeys(current_name(row["metric"]) for row in stored["differences"]))
                check_names(folder / store.MARK, about["policies"].values())
                labels = {label: folder / name for label, name in about["policies"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
                raise UsageError(f"{folder} is not the directory of a comparison: {problem}") from None
            runs: dict[str, Result | Replications] = {
                label: Replications.load(inner) if (inner / REPLICATIONS).is_file() else Result.load(inner)
                for label, inner in labels.items()
            }
            others = sorted({other for _, other in pairs})
            baseline = stored.get("baseline", others[0] if len(others) == 1 and len(runs) > 2 else None)
            again = compare(runs, metrics or None, baseline=baseline, refused=stored.get("refused"))
            return replace(again, asked=about.get("asked", {}))

    @property
    def metrics(self) -> list[str]:
        return list(self.winners)

    @property
    def sentences(self) -> list[str]:
        selected = [] if self.selection is None else self.selection.sentences
        return selected + [finding.sentence for finding in self.findings]

    def cells(self, metric: str) -> list[str]:
        """Return a metric's values by policy as text, in one unit; ◂ marks the winner."""
        part = self.table[metric]
        texts = several(part["mean"].tolist(), units_of(metric), part["half_width"].tolist())
        return [
            text + (" ◂" if policy == self.winners[metric] else "")
            for text, policy in zip(texts, self.table.index, strict=True)
        ]

    def shown_table(self) -> pd.DataFrame:
        """Return the table with formatted texts: a row per policy, a column per metric."""
        return pd.DataFrame({metric_name(name): self.cells(name) for name in self.metrics}, index=self.table.index)

    def shown_plans(self) -> pd.DataFrame:
        """Return the plans as a table of formatted texts, times in one unit; –: undefined."""
        times = self.plans[list(PLAN_COLUMNS[:3])].to_numpy()
        factor, unit = fitting(times.ravel().tolist(), SECONDS)
        texts = [[with_unit(figures(value / factor, 4), unit) for value in column] for column in times.T.tolist()]
        texts.append([f"{value:.3f}" if value < 10 else figures(value, 4) for value in self.plans["ratio"]])
        texts.append([one(value, SECONDS) for value in self.plans["planning_s"]])
        return pd.DataFrame(dict(zip(PLAN_TITLES, texts, strict=True)), index=self.plans.index)

    @property
    def plans_title(self) -> str:
        replicated = (self.pairs["n"] > 1).any() if len(self.pairs) else False
        return "Plans" + (" (of the first replication)" if replicated else "")

    def by(self, group: str, names: Iterable[str] | None = None) -> pd.DataFrame:
        """Compare groups of tasks: the metrics of each group under each policy.

        Parameters:
            group: class, gpus (the number requested) or user; groups of replications must be requested before the runs,
                by `compare(..., by=["gpus"])`
            names: metrics; by default, those usual for groups
        Returns: index (group, policy), columns (metric, mean | half_width | n).
        """
        table = table_of_groups(self.runs, checked(group)[0], self.confidence)
        return table if names is None else table[list(names)]

    @property
    def single(self) -> bool:
        """Return True if some policy has only one run, so that no intervals are possible."""
        return any(not isinstance(run, Replications) or len(run) < 2 for run in self.runs.values())

    @property
    def base(self) -> str:
        """The policy with which groups are compared: the baseline, else the first one."""
        return next(iter(self.runs)) if self.baseline is None else self.baseline

    def differences_by(self, group: str, names: Iterable[str] | None = None) -> pd.DataFrame:
        """Compare the policies with the `base` in each group of tasks.

        Parameters: group: class, gpus or user; names: metrics; by default, those usual for groups.
        Returns: rows by metric, group and policy except base; columns: the group, then those of `Comparison.pairs`.
        Raises: UnknownName: a metric that has no values by group.
        """
        table = differences_of_groups(self.runs, checked(group)[0], self.base, self.confidence)
        if names is None:
            return table
        names = list(names)
        compared = dict.fromkeys(table["metric"])
        for name in names:
            if name not in compared:
                metric(name)
                if compared:
                    raise UnknownName("metric of groups", name, compared)
        return table[table["metric"].isin(names)].reset_index(drop=True)

    def plot(self) -> Picture:
        """Return a picture: a panel per metric with each policy's mean and interval."""
        return drawn("comparison", self)

    def __repr__(self) -> str:
        plans = [] if self.plans.empty else ["", self.plans_title, self.shown_plans().to_string(line_width=100)]
        plans += self.plan_notes
        plans += [f"{policy} refuses: {reason}" for policy, reason in self.refused.items()]
        return "\n".join([self.shown_table().to_string(line_width=100), *plans, "", *self.sentences])

    def _repr_html_(self) -> str:
        plans = "" if self.plans.empty else f"<div>{escape(self.plans_title)}</div>{self.shown_plans().to_html()}"
        said = "".join(f"<div>{escape(text)}</div>" for text in [*self.plan_notes, *self.sentences])
        said += "".join(f"<div>{escape(f'{name} refuses: {reason}')}</div>" for name, reason in self.refused.items())
        return self.shown_table().to_html() + plans + said


def compare(
    runs: Mapping[str, Replications | Result],
    metrics: Iterable[str] | None = None,
    *,
    baseline: str | None = None,
    confidence: float = 0.95,
    selection: Selection | None = None,
    refused: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare policies on metrics, over the replications that all policies have.

    With a `baseline` every policy is compared with the baseline, otherwise all pairs are compared.  `metrics`: names of
    metrics, or of sets (`one_run.metrics`), of which only the metrics that apply to the runs are compared; by default
    the usual set.  `selection` and `refused` (by policy, why it did not run) are only stored in the result.  In each
    replication, the energy of all policies is measured up to one common end.
    """
    refused = refused or {}
    _check_asked({**runs, **refused}, baseline, confidence)
    sets = {name: Replications([run], keep=True) if isinstance(run, Result) else run for name, run in runs.items()}
    identical = all(of_metric.identical for of_metric in sets.values())
    if identical:  # the same number many times over is no evidence
        sets = {name: of_metric.first for name, of_metric in sets.items()}
    columns = telling_metrics(sets, ["usual"] if metrics is None else metrics)
    policies = list(sets)
    pairs = [(p, baseline) for p in policies if p != baseline] if baseline else list(combinations(policies, 2))
    table, rows, winners, findings = {}, [], {}, []
    for name, frame in columns.items():
        intervals = [student_interval(frame[policy].to_numpy(), confidence, name) for policy in policies]
        table[name, "mean"] = [interval.mean for interval in intervals]
        table[name, "half_width"] = [interval.half_width for interval in intervals]
        table[name, "n"] = [interval.n for interval in intervals]
        each = [(policy, other, frame[[policy, other]].to_numpy(dtype=np.float64)) for policy, other in pairs]
        of_metric = [replace(row, identical=identical) for row in paired_findings(name, each, confidence)]
        rows += of_metric
        is_open = not has_direction(name) or np.isinf(frame.to_numpy(dtype=np.float64)).any()
        winners[name] = None if is_open else clearly_best(of_metric, policies)
        findings += of_metric if baseline is not None else _of_the_best(name, frame, of_metric)
    first = {name: min(one.results, key=lambda result: result.replication) for name, one in sets.items() if one.results}
    plans = plans_table(first)
    planned = plans.index[plans["planned_makespan"].notna()]
    # A policy that plans in mid-run notes whether it knows later tasks; all others that plan do.
    planners = [name for name in planned if first[name].notes.get("foresight", True)
                and np.ptp(first[name].record.input.tasks.arrival) > 0]  # fmt: skip
    knows = "knows" if len(planners) == 1 else "know"
    foresight = [f"{', '.join(planners)} {knows} all arrivals from the start"] if planners else []
    return Comparison(
        table=pd.DataFrame(table, index=pd.Index(policies, name="policy")),
        pairs=pd.DataFrame([row.row for row in rows], columns=list(COLUMNS)), winners=winners, findings=findings,
        confidence=confidence, plans=plans,
        plan_notes=foresight + [f"{name}: {text}" for name, run in first.items() for text in reservations(run.notes)],
        selection=selection, identical=identical, runs=dict(runs), baseline=baseline, refused=dict(refused),
        planners=planners,
    )  # fmt: skip


def _check_asked(runs: Mapping[str, Any], baseline: str | None, confidence: float) -> None:
    if len(runs) < 2:
        raise UsageError("a comparison needs at least two policies")
    if baseline is not None and baseline not in runs:
        raise UnknownName("policy", baseline, runs)
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be between 0 and 1 (for example 0.95); got {confidence:g}")


def telling_metrics(sets: Mapping[str, Replications], asked: Iterable[str]) -> dict[str, pd.DataFrame]:
    """Return the metrics to compare, each as a table for paired differences.

    A table has a row per replication and a column per policy; its values are contributions (`estimands`), whose mean
    estimates the metric.  `asked` has names of metrics, which are all compared, and names of metric sets, whose metrics
    are compared if they apply: the makespan if no run has a horizon; metrics of deadlines, rejections, energy, users
    and prices if the runs have these; CPU utilization if there are no GPUs.
    """
    asked = list(asked)
    by_name, expanded = metrics.by_name(asked), metrics.expanded(asked)
    made = set(metrics.expanded(name for name in asked if name != "usual"))  # the usual ones only where kept
    names = [name for name in expanded if name in by_name or _is_comparable(name, sets, name in made)]
    columns = {name: _columns(sets, name) for name in names}
    gpus = "gpu_utilization"
    if gpus in columns and gpus not in by_name and columns[gpus].isna().all(axis=None):
        columns["cpu_utilization"] = _columns(sets, "cpu_utilization")
    telling = {name: frame for name, frame in columns.items() if name in by_name or frame.notna().any(axis=None)}
    some = {
        name: frame for name, frame in telling.items()
        if name in by_name or not hide_if_zero(name) or (frame.fillna(0.0) != 0).any(axis=None)
    }  # fmt: skip
    return some or telling


def _is_comparable(name: str, sets: Mapping[str, Replications], made: bool) -> bool:
    runs = list(sets.values())
    if (declared := declaration(name)) is not None and declared.needs_end:
        drained = all(math.isinf(result.horizon) for one in runs for result in one.results)
        return drained and not any(one.column(name).isna().any() for one in runs)
    if name == "jain" and any(len(result.record.input.tasks.users) < 2 for one in runs for result in one.results[:1]):
        return False  # of one user it is 1
    return all(one.keeps(name) or (made and len(one.results) == len(one)) for one in runs)


def _columns(sets: Mapping[str, Replications], metric: str) -> pd.DataFrame:
    columns = {name: runs.column(metric) for name, runs in sets.items()}
    common = set.intersection(*(set(column.index) for column in columns.values()))
    columns = {name: runs.among(common).contributions(metric) for name, runs in sets.items()}
    if metric in COMMON_END:
        ends = pd.concat([runs.ends for runs in sets.values()], axis=1).max(axis=1)
        columns = {name: runs.energy_until(ends)[metric] for name, runs in sets.items()}
    return pd.concat(columns, axis=1, join="inner")


def _of_the_best(metric: str, frame: pd.DataFrame, found: list[Finding]) -> list[Finding]:
    means = frame.mean()
    if not means.notna().any():
        return []
    return seen_from(found, str(means.idxmax() if higher_is_better(metric) else means.idxmin()))
