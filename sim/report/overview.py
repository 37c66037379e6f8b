"""What a run or a comparison says first: a headline, and the few figures that answer the question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.model.record import RunInput
from sim.report import terminal
from sim.results.replications import Replications
from sim.results.result import Result

if TYPE_CHECKING:
    from sim.results.compare import Comparison

Outcome = Result | Replications

STATISTICS = ("mean", "p50", "p95", "p99", "max")
UNLESS_ZERO = ("rejected", "energy_j")
"""Metrics that a comparison shows only where some policy has any."""


def first_of(outcome: Outcome) -> Result:
    """A run that stands for all: replications keep their first whole."""
    return outcome.results[0] if isinstance(outcome, Replications) else outcome


def headline(outcome: Outcome, policy: str | None = None) -> str:
    """`mix: 8 × (32 cores, 4 × v100), 1,240 tasks over 72 h (0.83 × capacity), sjf, seed 1`."""
    first = first_of(outcome)
    run = first.record.input
    parts = [run.cluster.describe(), workload(first)]
    shown = first.policy if policy is None else policy
    if shown:
        parts.append(shown)
    parts.append(f"seed {first.seed}")
    if isinstance(outcome, Replications):
        parts.append(f"{len(outcome)} replications")
    return f"{first.name or 'run'}: " + ", ".join(parts)


def workload(result: Result) -> str:
    """How many tasks come in what time, and how much of the cluster they ask for."""
    run = result.record.input
    number = len(result.tasks)
    arrival = result.tasks["arrival"].to_numpy()
    over = result.horizon if math.isfinite(result.horizon) else float(np.ptp(arrival)) if number else 0.0
    text = f"{number:,} task{'s' if number != 1 else ''}"
    if over <= 0:
        return text + (" at once" if number > 1 else "")
    demand = offered_load(run, over)
    # Short bursts ask for many times the capacity of the instant in which they come: that says nothing.
    load = f" ({demand:.2g} × capacity)" if 0.005 < demand < 20 else ""
    return f"{text} over {terminal.seconds(over)}{load}"


def offered_load(run: RunInput, over: float) -> float:
    """Work that arrives / what the devices can do meanwhile, of the type of device most asked for.

    Each task counts in its fastest mode, whose whole devices it holds for its compute time.
    """
    tasks = run.tasks
    usable = np.isfinite(tasks.arrival) & (tasks.arrival <= over + tasks.arrival.min(initial=math.inf))
    time, shape = tasks.time[usable], tasks.shape[usable]
    if not len(time):
        return 0.0
    best = np.argmin(time, axis=1)
    work: dict[str, float] = {}
    for number, this in enumerate(tasks.shapes):
        mine = shape == number
        for position, mode in enumerate(this.modes):
            chosen = mine & (best == position)
            if chosen.any():
                units = mode.gpu_share or mode.cpus / 1000
                seconds = float(time[chosen, position].sum()) * units / max(mode.type.speed, 1e-300)
                work[mode.type.name] = work.get(mode.type.name, 0.0) + seconds
    return max((demand / (run.cluster.count(name) * over) for name, demand in work.items()), default=0.0)


# Figures ------------------------------------------------------------------------------------------------------


class Figures:
    """Values of an outcome's metrics and, with replications, the half-widths of their intervals."""

    def __init__(self, outcome: Outcome):
        self.outcome = outcome
        self.many = isinstance(outcome, Replications)
        self.values: dict[str, tuple[float, float]] = {}
        if isinstance(outcome, Replications):
            for name, row in outcome.summary.iterrows():
                self.values[str(name)] = (float(row["mean"]), (float(row["ci_high"]) - float(row["ci_low"])) / 2)

    def __call__(self, metric: str) -> tuple[float, float]:
        if isinstance(self.outcome, Replications):
            return self.values.get(metric, (math.nan, math.nan))
        return self.outcome.metric(metric), math.nan

    def known(self, metric: str) -> bool:
        return not math.isnan(self(metric)[0])

    def text(self, metric: str) -> str:
        """The value for people, with its unit."""
        value, half = self(metric)
        if self.many and not math.isnan(half):
            return terminal.several([value], terminal.units_of(metric), [half])[0]
        return terminal.formatter(metric)(value)


def overview(outcome: Outcome) -> list[str]:
    """The figures that answer first, as lines."""
    figures = Figures(outcome)
    lines = _distribution(outcome, figures)
    facts = _facts(outcome, figures)
    return [*lines, "", *terminal.table(facts)] if lines else terminal.table(facts)


def _distribution(outcome: Outcome, figures: Figures) -> list[str]:
    """Rows response, wait and slowdown; columns mean and percentiles."""
    columns = ("mean", "p95") if figures.many else STATISTICS
    rows = [["", *columns]]
    for name in ("response", "wait", "slowdown"):
        found = [figures(f"{name}_{column}") for column in columns]
        if all(math.isnan(value) for value, _ in found):
            continue
        units = terminal.units_of(name)
        texts = [terminal.several([value], units, [half])[0] for value, half in found]
        if isinstance(outcome, Result) and any(math.isinf(value) for value, _ in found):
            known = outcome.measured.known(name)
            least = terminal.one(float(known.max()), units) if len(known) else "∞"
            texts = [f"≥ {least}" if math.isinf(v) else text for text, (v, _) in zip(texts, found, strict=True)]
        rows.append([name, *texts])
    return terminal.table(rows, right=range(1, len(columns) + 1)) if len(rows) > 1 else []


def _facts(outcome: Outcome, figures: Figures) -> list[list[str]]:
    rows = [["tasks", _fates(figures)]]
    if figures.known("makespan"):
        rows.append(["makespan", figures.text("makespan")])
    for kind, name in (("gpu", "GPU busy"), ("cpu", "CPU busy")):
        if figures.known(f"{kind}_utilisation") and figures(f"{kind}_allocation")[0] > 0:
            busy, held = figures.text(f"{kind}_utilisation"), figures.text(f"{kind}_allocation")
            rows.append([name, busy if busy == held else f"{busy} (held {held})"])
    if figures.known("slo_attainment"):
        attained, admitted = figures.text("slo_attainment"), figures.text("attainment_admitted")
        rows.append(["deadlines met", attained + (f" ({admitted} of those admitted)" if admitted != attained else "")])
        rows.append(["goodput", f"{figures.text('goodput')}, {figures.text('goodput_fraction')} of arrivals"])
    rows += [[name, figures.text(name)] for name in ("preemptions", "migrations") if figures(name)[0] > 0]
    if figures("energy_j")[0] > 0:
        joules, halves = zip(figures("energy_j"), figures("energy_idle_j"), strict=True)
        total, idle = terminal.several(joules, terminal.JOULES, halves)
        rows.append(["energy", f"{total} (idle {idle})"])
    return rows


def _fates(figures: Figures) -> str:
    """`1,240: 1,200 completed, 40 rejected`."""
    total, _ = figures("tasks")
    fates = [
        f"{figures.text(fate)} {fate}"
        for fate in ("completed", "rejected", "expired", "failed", "unfinished")
        if figures(fate)[0] > 0
    ]
    if fates == [f"{figures.text('tasks')} completed"] or not total:
        return figures.text("tasks") + (", all completed" if total else "")
    return f"{figures.text('tasks')}: " + ", ".join(fates)


def remarks(outcome: Outcome) -> list[str]:
    """Warnings that must stand beside the figures; of replications a few, and how many more."""
    found = list(outcome.warnings)
    if isinstance(outcome, Replications):
        if len(found) > 3:
            found = [*found[:2], f"{len(found) - 2} more replications have such a warning"]
        if len(outcome) > 1 and _identical(outcome):
            found.append(
                "all replications are identical: nothing in this scenario is random, so intervals say nothing"
            )
    return found


def _identical(runs: Replications) -> bool:
    values = runs.values
    return bool((values.eq(values.iloc[0]) | values.isna()).all(axis=None))


def shown_metrics(comparison: Comparison) -> list[str]:
    """The metrics of a comparison, without those that nothing here has (rejections, energy)."""
    metrics = list(comparison.table.columns.get_level_values(0).unique())
    telling = [m for m in metrics if m not in UNLESS_ZERO or (comparison.table[m]["mean"] != 0).any()]
    return telling or metrics


def comparison_lines(comparison: Comparison) -> list[str]:
    """A row a policy, a column a metric in one unit, ◂ at a policy shown to be better than all others."""
    policies = [str(name) for name in comparison.table.index]
    metrics = shown_metrics(comparison)
    columns = []
    for metric in metrics:
        part = comparison.table[metric]
        texts = terminal.several(part["mean"].tolist(), terminal.units_of(metric), part["half_width"].tolist())
        marks = [" ◂" if policy == comparison.winners[metric] else "  " for policy in policies]
        texts = [text + mark for text, mark in zip(texts, marks, strict=True)]
        columns.append([terminal.metric_name(metric) + "  ", *texts])
    first = ["policy", *policies]
    rows = [[name, *(column[number] for column in columns)] for number, name in enumerate(first)]
    infinite = np.isinf(comparison.table[metrics].to_numpy(dtype=float)).any()
    notes = ["∞: unfinished tasks count as +∞"] if infinite else []
    return [*terminal.table(rows, right=range(1, len(columns) + 1), gap=2), *notes, "", *_said(comparison, metrics)]


def _said(comparison: Comparison, metrics: list[str]) -> list[str]:
    """The sentences of a comparison; where no difference is shown, one line for all metrics of a pair."""
    if (comparison.pairs["n"] < 2).all():
        return ["One run of each policy says nothing about chance; --replications 10 would."]
    pairs = {f"{row.policy} and {row.other}" for row in comparison.pairs.itertuples()}
    pairs |= {f"{row.other} and {row.policy}" for row in comparison.pairs.itertuples()}
    shown: list[str] = []
    open_: dict[frozenset[str], tuple[str, list[str]]] = {}
    for sentence in comparison.sentences:
        who, _, rest = sentence.partition(": no difference in ")
        metric = rest.partition(" shown, ")[0]
        if rest and who in pairs:
            if metric in metrics:
                both = frozenset(who.split(" and "))
                open_.setdefault(both, (who, []))[1].append(terminal.metric_name(metric))
        elif any(f" {metric} " in sentence for metric in metrics):
            shown.append(sentence)
    level = f"{comparison.confidence * 100:g} %"
    return shown + [f"{who}: no difference shown in {', '.join(names)} ({level})" for who, names in open_.values()]


def comparison_headline(runs: Mapping[str, Outcome]) -> str:
    """Scenario, cluster, load and how often, but no policy."""
    outcome = next(iter(runs.values()))
    text = headline(outcome, "")
    numbers = {len(run) if isinstance(run, Replications) else 1 for run in runs.values()}
    if len(numbers) > 1:
        text = text.replace(f"{len(outcome)} replications", f"{min(numbers)} to {max(numbers)} replications")  # type: ignore[arg-type]
    return text + ", common random numbers"
