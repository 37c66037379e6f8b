"""The first output of a run or a comparison: a headline and a few key metrics."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from hetsim.model.plan import PLANNED_MAKESPAN
from hetsim.model.record import MOVES, STATUS_NAMES, STOPS
from hetsim.report import terminal
from hetsim.results.declared import COST, ENERGY, MAKESPAN, TASK_COUNT, has_direction
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.findings import Finding
from hetsim.results.many_runs.replications import COMMON_END, Replications
from hetsim.results.one_run.bounds import offered_load
from hetsim.results.one_run.metrics import by_name, expanded
from hetsim.results.one_run.plans import NOT_PROVEN, forecasts, has_plan, reservations
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.steps import SECONDS_COLUMNS

Outcome = Result | Replications

INFINITE = "∞: unfinished tasks count as +∞"
OF_MEANS = "for means and shares of tasks: over all tasks of all replications"
OF_PERCENTILES = "for p95: of the 95th percentile of a replication"
STATISTICS = ("mean", "p50", "p95", "p99", "max")


def first_of(outcome: Outcome) -> Result:
    """Return the run that represents an outcome: for replications, the first one."""
    return outcome.results[0] if isinstance(outcome, Replications) else outcome


def headline(outcome: Outcome, policy: str | None = None) -> str:
    """Return one line that names scenario, cluster, workload, policy and seed.

    For example `mix: 8 × (32 cores, 4 × v100), 1,240 tasks over 72 h (load 0.83), sjf, seed 1`.
    """
    first = first_of(outcome)
    run = first.record.input
    parts = [run.cluster.describe(), workload(first)]
    shown = first.policy if policy is None else policy
    if shown:
        parts.append(shown)
    parts.append(f"seed {first.seed}")
    if drawn := list(dict.fromkeys(text for text in run.traces if text)):
        parts.append(f"open-loop replay of a trace resampled {' and '.join(drawn)}")
    if isinstance(outcome, Replications):
        parts.append(f"{len(outcome)} replications")
    return f"{first.name or 'run'}: " + ", ".join(parts)


def workload(result: Result) -> str:
    """Return the number of tasks or attempts, the time of their arrivals, and load."""
    run = result.record.input
    number = len(result.tasks)
    arrival = result.tasks["arrival"].to_numpy()
    over = result.horizon if math.isfinite(result.horizon) else float(np.ptp(arrival)) if number else 0.0
    sent = result.record.attempt_of  # of clients only: retries are part of the load
    noun = "task" if sent is None or (sent < 0).any() else "attempt"
    text = f"{number:,} {noun}{'s' if number != 1 else ''}"
    if over <= 0:
        return text + (" at once" if number > 1 else "")
    demand = 0.0 if run.language else offered_load(run.tasks, result.modes)  # requests share a replica's steps
    # Short bursts ask for many times the capacity of the instant in which they come: that says nothing.
    load = f" (load {demand:.2g})" if 0.005 < demand < 20 else ""
    return f"{text} over {terminal.seconds(over)}{load}"


# Figures ------------------------------------------------------------------------------------------------------


class Figures:
    """Metric values of an outcome; with replications, their half-widths too."""

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

    def is_known(self, metric: str) -> bool:
        return not math.isnan(self(metric)[0])

    def is_shown(self, metric: str) -> bool:
        """Return True if the metric is in the summary and defined."""
        return (isinstance(self.outcome, Replications) or metric in self.outcome.names) and self.is_known(metric)

    def defined_in(self, metric: str) -> str:
        """Return ` (in 3 of 10 replications)`, if the metric is not defined in all."""
        if not isinstance(self.outcome, Replications):
            return ""
        defined_count, runs = int(self.outcome.column(metric).notna().sum()), len(self.outcome)
        return f" (in {defined_count} of {runs} replications)" if defined_count < runs else ""

    def text(self, metric: str) -> str:
        """Return the value as text, with its unit."""
        value, half = self(metric)
        if metric in COMMON_END and not math.isnan(value):  # in the unit of both
            joules, halves = zip(*map(self, COMMON_END), strict=True)
            return terminal.several(joules, terminal.JOULES, halves)[COMMON_END.index(metric)]
        if self.many and not math.isnan(half):
            return terminal.several([value], terminal.units_of(metric), [half])[0]
        return terminal.formatter(metric)(value)


def overview(outcome: Outcome) -> list[str]:
    """Return the key metrics as lines of text."""
    figures = Figures(outcome)
    lines = _distribution(outcome, figures)
    facts = _facts(outcome, figures)
    if lines:
        lines = [*lines, ""]
    return [*lines, *terminal.table(facts), *_stages(outcome), *_method(outcome)]


STAGE_COLUMNS = ("stage", "on", "items", "wait mean", "wait p95", "service mean", "overhead mean", "batch mean", "busy")


def stage_rows(result: Result) -> list[list[str]]:
    """Return a row per pipeline stage: the values of `STAGE_COLUMNS` as text."""
    table = result.by_stage
    texts = [terminal.several(table[name].tolist(), terminal.SECONDS) for name in SECONDS_COLUMNS]
    used = zip(table["devices"].tolist(), table["device_type"].tolist(), strict=True)
    on = [f"{count} × {kind}" if count > 1 else kind or "–" for count, kind in used]
    items = [terminal.count(number) for number in table["items"]]
    batches = [terminal.figures(number) for number in table["batch_mean"]]
    busy = [terminal.share(part) for part in table["utilization"]]
    return [list(row) for row in zip(map(str, table.index), on, items, *texts, batches, busy, strict=True)]


def _stages(outcome: Outcome) -> list[str]:
    if isinstance(outcome, Replications) and not outcome.results:  # made from values: no run is there
        return []
    if not (rows := stage_rows(first_of(outcome))):
        return []
    first = " (first replication)" if isinstance(outcome, Replications) else ""
    shown = terminal.table([list(STAGE_COLUMNS), *rows], right=range(2, len(STAGE_COLUMNS)))
    return ["", f"By stage{first}, in items:", *shown]


def asked(outcome: Outcome, metrics: Iterable[str]) -> list[str]:
    """Return one line per requested metric; of a set of metrics only the defined ones."""
    figures, names = Figures(outcome), list(metrics)
    own = by_name(names)
    shown = [name for name in expanded(names) if name in own or figures.is_known(name)]
    return terminal.table([[terminal.metric_name(name), figures.text(name)] for name in shown])


def _method(outcome: Outcome) -> list[str]:
    """Return the meaning of the values after ±, and remarks such as the warm-up found."""
    if not isinstance(outcome, Replications):
        return []
    said = list(outcome.remarks)
    if len(outcome) > 1 and not outcome.identical:
        said.insert(0, f"± are 95 % intervals ({OF_MEANS}; {OF_PERCENTILES})")
    return ["", *terminal.paragraphs(said)] if said else []


def _distribution(outcome: Outcome, figures: Figures) -> list[str]:
    columns = ("mean", "p95") if figures.many else STATISTICS
    rows = [["", *columns]]
    for name in ("ttft", "tpot", "itl", "response", "wait", "slowdown"):
        values = [figures(f"{name}_{column}") for column in columns]
        if all(math.isnan(value) for value, _ in values):
            continue
        units = terminal.units_of(name)
        texts = [terminal.several([value], units, [half])[0] for value, half in values]
        if isinstance(outcome, Result) and any(math.isinf(value) for value, _ in values):
            is_known = outcome.measured.known_values(name)
            longest = terminal.lower_bound(float(is_known.max()) if len(is_known) else math.inf, units)
            texts = [longest if math.isinf(v) else text for text, (v, _) in zip(texts, values, strict=True)]
        rows.append([name, *texts])
    lines = terminal.table(rows, right=range(1, len(columns) + 1)) if len(rows) > 1 else []
    return [*lines, INFINITE] if figures.many and any("∞" in line for line in lines) else lines


def _facts(outcome: Outcome, figures: Figures) -> list[list[str]]:
    rows = [["tasks", _fates(figures)]]
    if figures.is_known(MAKESPAN):
        rows.append(["makespan", figures.text(MAKESPAN) + figures.defined_in(MAKESPAN)])
    kept = isinstance(outcome, Result) or outcome.results  # of replications made from values no run is there
    if kept and has_plan(first_of(outcome)):
        rows.append(["plan", _plan(outcome)])
    if kept:
        first = " (first replication)" if isinstance(outcome, Replications) else ""
        rows += [[title, text + first] for title, text in forecasts(first_of(outcome).notes)]
    rows += _busy_rows(figures)
    rows += _step_rows(figures, first_of(outcome) if kept else None)
    rows += _deadline_rows(figures)
    if figures.is_shown("call_goodput"):
        answered, attempts, wasted = map(figures.text, ("call_goodput", "attempts_per_call", "wasted_device_s"))
        rows.append(["calls", f"{answered} answered, {attempts} attempts each, {wasted} of devices wasted"])
    rows += _replicas(figures)
    for name, kinds in ((STOPS, _by_kind(figures)), (MOVES, "")):
        if figures(name)[0] > 0:
            rows.append([name, figures.text(name) + kinds])
    if figures.is_shown("jain") and figures.is_shown("rho_p95"):
        rows.append(["fairness", f"Jain {figures.text('jain')} over users; ρ {figures.text('rho_p95')} (p95)"])
    if figures(ENERGY)[0] > 0:
        total, idle = map(figures.text, COMMON_END)
        rows.append(["energy", f"{total} (idle {idle})"])
    if figures.is_shown(COST):
        rows.append([COST, f"{figures.text(COST)}, {figures.text('cost_held')} of it for devices occupied by tasks"])
    return rows


def _busy_rows(figures: Figures) -> Iterator[list[str]]:
    for kind, name in (("gpu", "GPU busy"), ("cpu", "CPU busy")):
        if figures.is_known(f"{kind}_utilization") and figures(f"{kind}_allocation")[0] > 0:
            busy, allocated = figures.text(f"{kind}_utilization"), figures.text(f"{kind}_allocation")
            yield [name, busy if busy == allocated else f"{busy} (held {allocated})"]


def _step_rows(figures: Figures, first: Result | None) -> Iterator[list[str]]:
    if not figures.is_shown("communication_fraction"):
        return
    parts = [f"communication {figures.text('communication_fraction')}"]
    if figures("bubble_fraction")[0] > 0:
        parts.append(f"bubbles {figures.text('bubble_fraction')}")
    parts.append(f"contention {figures.text('contention_fraction')}")
    yield ["steps", f"{', '.join(parts)} of the jobs' device time"]
    if first is not None and figures.is_shown("network_utilization"):
        uplinks = any(math.isfinite(rate) for rate in first.record.input.cluster.fabric.uplinks.values())
        across = figures("cross_rack_fraction")[0]
        cross_rack = f", {figures.text('cross_rack_fraction')} of the bytes across racks" if across > 0 else ""
        links = "uplinks of racks" if uplinks else "links of nodes"
        yield ["network", f"{links} {figures.text('network_utilization')} busy{cross_rack}"]


def _deadline_rows(figures: Figures) -> Iterator[list[str]]:
    if not figures.is_known("slo_attainment"):
        return
    attained, admitted = figures.text("slo_attainment"), figures.text("attainment_admitted")
    yield ["deadlines met", attained + (f" ({admitted} of those admitted)" if admitted != attained else "")]
    if figures("deadline_after_end")[0] > 0:
        yield ["", f"of all but {figures.text('deadline_after_end')} with a deadline after the end"]
    yield ["goodput", f"{figures.text('goodput')}, {figures.text('goodput_fraction')} of arrivals"]


def _replicas(figures: Figures) -> Iterator[list[str]]:
    if figures.is_shown("kv_used_mean"):
        yield ["KV blocks", f"{figures.text('kv_used_mean')} used, maximum {figures.text('kv_used_max')}"]
    if figures.is_shown("tokens_per_step"):
        yield ["tokens a step", figures.text("tokens_per_step")]
    if figures.is_shown("prefix_hit_rate"):
        served, requested = figures.text("prefix_tokens_served"), figures.text("prefix_tokens_requested")
        yield ["prefix hits", f"{figures.text('prefix_hit_rate')} ({served} of {requested} tokens)"]


def _by_kind(figures: Figures) -> str:
    """Return language models' preemptions by kind, like ` (5 recompute)`, or nothing."""
    kinds = ("recompute", "swap", "failure")
    parts = [f"{figures.text(name)} {kind}" for kind in kinds if figures(name := f"preemptions_{kind}")[0] > 0]
    return f" ({', '.join(parts)})" if parts else ""


def _plan(outcome: Outcome) -> str:
    """Return `makespan 1.24 s planned; ratio 1.03 to the lower bound of 1.2 s; ...`."""
    first = first_of(outcome)
    parts = [f"makespan {first.text(PLANNED_MAKESPAN)} planned"]
    makespan, ratio = first.metric(MAKESPAN), first.metric("makespan_ratio")
    if not math.isnan(ratio):
        bound = makespan / ratio if ratio > 0 else 0.0
        parts.append(f"ratio {terminal.figures(ratio, 4)} to the lower bound of {terminal.seconds(bound)}")
    if not math.isnan(first.planning):
        parts.append(f"planned in {terminal.seconds(first.planning)}")
    parts += reservations(first.notes)
    return "; ".join(parts) + (" (first replication)" if isinstance(outcome, Replications) else "")


def _fates(figures: Figures) -> str:
    """Return `1,240: 1,200 completed, 40 rejected`."""
    total, _ = figures(TASK_COUNT)
    text = figures.text(TASK_COUNT)
    counts = {fate: f"{fate}_count" for fate in STATUS_NAMES.values()}
    fates = [f"{figures.text(name)} {fate}" for fate, name in counts.items() if figures(name)[0] > 0]
    if fates == [f"{text} completed"] or not total:
        return text + (", all completed" if total else "")
    return f"{text}: " + ", ".join(fates)


def remarks(outcome: Outcome) -> list[str]:
    """Return warnings on the metrics; similar ones of replications are merged."""
    if not isinstance(outcome, Replications):
        return _untold(outcome.warnings)
    texts = gathered(outcome)
    if outcome.identical:
        texts.append(outcome.without_chance)
    elif len(outcome) > 1 and outcome.replays:
        texts.append(REPLAYED)
    return texts


def _untold(warnings: Iterable[str]) -> list[str]:
    """Drop warnings about unproven plans, which the report shows in another place."""
    return [text for text in warnings if NOT_PROVEN not in text]


REPLAYED = (
    "every replication replays the same trace: intervals cover only other random inputs; "
    "resample: {block: 1 week} or {by: user} at the workload entry varies the trace too"
)

_REPLICATION = re.compile(r"^replication (\d+): ")
_UNFINISHED = re.compile(r"^(\d+) of \d+ tasks \(([\d.]+)%\) were (unfinished when the run ended: .*)$")
_FIGURE = re.compile(r"(?<![\w.\"#])\d+(?:\.\d+)?(?![\w\"]|\.\d)")  # a number that is not part of a name


def gathered(runs: Replications) -> list[str]:
    """Return replications' warnings: a line per kind, with its numbers as ranges."""
    kinds: dict[str, list[str]] = {}
    warnings = _untold(runs.warnings)
    of_all = dict.fromkeys(warning for warning in warnings if not _REPLICATION.match(warning))
    for warning in warnings:
        text = _REPLICATION.sub("", warning)
        match = _UNFINISHED.match(text)
        text = f"{match[1]} tasks ({float(match[2]):g} %) were {match[3]}" if match else text
        kinds.setdefault(_FIGURE.sub("#", text), []).append(text)
    notes = []
    for texts in kinds.values():
        where = f"in all {len(runs)} replications"
        if len(texts) < len(runs):
            where = f"in {len(texts)} of {len(runs)} replications"
        text = _ranges(texts)
        notes.append(text if len(texts) == 1 and text in of_all else f"{text} ({where})")
    return notes


def _ranges(texts: list[str]) -> str:
    columns = zip(*(map(float, _FIGURE.findall(text)) for text in texts), strict=True)
    ends = [(min(column), max(column)) for column in columns]
    ranges = iter([f"{low:,g}" if low == high else f"{low:,g} to {high:,g}" for low, high in ends])
    return texts[0] if len(set(texts)) == 1 else _FIGURE.sub(lambda _: next(ranges), texts[0])


def comparison_remarks(runs: Mapping[str, Outcome]) -> list[str]:
    """Return warnings, each with its policy; one that all policies have appears once."""
    many = [run for run in runs.values() if isinstance(run, Replications) and len(run) > 1]
    said: dict[str, list[str]] = {}
    for label, run in runs.items():
        for text in gathered(run) if isinstance(run, Replications) else _untold(run.warnings):
            said.setdefault(text, []).append(label)
    texts = [
        f"all policies: {text}" if len(labels) == len(runs) > 1 else f"{label}: {text}"
        for text, labels in said.items()
        for label in (labels if len(labels) < len(runs) else labels[:1])
    ]
    if many and all(run.identical for run in many):
        texts.append(many[0].without_chance)
    elif any(run.replays for run in many):
        texts.append(REPLAYED)
    return texts


def common_remarks(runs: Mapping[str, Outcome]) -> list[str]:
    """Return remarks on the runs of each policy; those of all policies only once."""
    said = {label: list(run.remarks) for label, run in runs.items() if isinstance(run, Replications)}
    every = [text for text in dict.fromkeys(sum(said.values(), [])) if all(text in texts for texts in said.values())]
    own = [f"{label}: {text}" for label, texts in said.items() for text in texts if text not in every]
    return terminal.paragraphs([*every, *own])


# Comparisons --------------------------------------------------------------------------------------------------

LONGEST_LABEL = 44  # length above which a policy's name continues in a second line
GAP = 3  # blanks between two columns


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return one row per policy, one column per metric; ◂ marks the best.

    Columns that do not fit the terminal continue below, with the policies repeated.
    """
    columns = [_marked([terminal.metric_name(m), *comparison.cells(m)]) for m in comparison.metrics]
    names = [f"{name} *" if name in comparison.planners else name for name in comparison.table.index]
    usual = beside(["policy", *names], columns, LONGEST_LABEL)
    usual += ["* knows all arrival times from the start"] if comparison.planners else []
    return [*usual, *_refused(comparison), *_notes(comparison), "", *_plans(comparison), *_said(comparison)]


def _refused(comparison: Comparison) -> list[str]:
    longest = max(map(terminal.width, ["policy", *comparison.table.index, *comparison.refused]))
    room = min(longest, LONGEST_LABEL)
    lines = []
    for label, reason in comparison.refused.items():
        lines += terminal.wrapped(f"{label}{' ' * (room - terminal.width(label) + GAP)}refuses: {reason}", indent=2)
    return lines


def _plans(comparison: Comparison) -> list[str]:
    if comparison.plans.empty:
        return []
    shown = comparison.shown_plans()
    columns = [[str(title), *shown[title]] for title in shown.columns]
    beside_names = beside(["policy", *shown.index], columns, LONGEST_LABEL)
    return [f"{comparison.plans_title}:", *beside_names, *comparison.plan_notes, ""]


def beside(names: list[str], columns: list[list[str]], longest: int | None = None) -> list[str]:
    """Return the lines of a table with the names on the left.

    Columns that do not fit form further tables below it.  Names longer than `longest` continue in a second line.
    """
    labels = [[name] if longest is None else terminal.wrapped(name, longest, 2) for name in names]
    room = terminal.COLUMNS - max(terminal.width(line) for label in labels for line in label)
    lines: list[str] = []
    for block in _blocks(columns, room):
        rows = []
        for number, label in enumerate(labels):
            rows.append([label[0], *(column[number] for column in block)])
            rows += [[line] for line in label[1:]]
        lines += ["", *terminal.table(rows, right=range(1, len(block) + 1), gap=GAP)]
    return lines[1:]


def _marked(cells: list[str]) -> list[str]:
    if not any(cell.endswith(" ◂") for cell in cells):
        return cells
    return [cell if cell.endswith(" ◂") else cell + "  " for cell in cells]


def _blocks(columns: list[list[str]], room: int) -> list[list[list[str]]]:
    blocks: list[list[list[str]]] = []
    room_left = 0
    for column in columns:
        wide = GAP + max(map(terminal.width, column))
        if not blocks or wide > room_left:
            blocks.append([])
            room_left = room
        blocks[-1].append(column)
        room_left -= wide
    return blocks


def _notes(comparison: Comparison) -> list[str]:
    table, notes = comparison.table, []
    for metric in comparison.metrics:
        runs = table[metric]["n"]
        fewer = [f"{runs[policy]:g} under {policy}" for policy in table.index if runs[policy] < runs.max()]
        if fewer:
            name = terminal.metric_name(metric)
            notes.append(f"{name}: of {runs.max():g} runs, defined only in {', '.join(fewer)}")
    means = table[[(metric, "mean") for metric in comparison.metrics]].to_numpy(dtype=float)
    return notes + ([INFINITE] if np.isinf(means).any() else [])


def _said(comparison: Comparison) -> list[str]:
    selected = [] if comparison.selection is None else terminal.paragraphs(comparison.selection.sentences)
    if selected:
        return [*selected, "", *_said(replace(comparison, selection=None))]
    if comparison.identical:
        return ["The scenario is not random: all replications are equal, so differences have no intervals."]
    if (comparison.pairs["n"] < 2).all() and not any(row.left_out for row in comparison.findings):
        if not comparison.pairs["n"].any():
            return terminal.wrapped(_undefined(comparison), indent=2)
        if comparison.single:
            return ["One run of each policy gives no confidence intervals; use --replications 10."]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for row in comparison.findings:
        if has_direction(row.metric):
            groups.setdefault((row.metric, row.policy), []).append(row)
    lines = [line for rows in groups.values() for line in terminal.wrapped(_sentence(rows), indent=2)]
    numbers = sorted({row.n for row in comparison.findings if row.n > 1})
    if not lines or not numbers:
        return lines
    runs = " to ".join(f"{number}" for number in dict.fromkeys((numbers[0], numbers[-1])))
    level = f"{comparison.confidence * 100:g} %"
    method = (
        f"± are {level} intervals: above for the mean of each policy, here for paired differences "
        f"(Holm over the pairs of a metric, {runs} replications)."
    )
    return [*lines, "", *terminal.wrapped(method)]


def _undefined(comparison: Comparison) -> str:
    if len(comparison.table) == 1:
        return f"Nothing can be compared: only {comparison.table.index[0]} can run the scenario."
    names = [terminal.metric_name(name) for name in comparison.metrics]
    where = "in the run of any policy" if comparison.single else "in any run of any policy"
    return f"Nothing can be compared: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not defined {where}."


def _sentence(rows: list[Finding]) -> str:
    """Return `sjf: response mean 63 ± 47 s below fcfs; no significant difference ...`."""
    name = terminal.metric_name(rows[0].metric)
    by_kind: dict[str, list[Finding]] = {}
    for row in rows:
        by_kind.setdefault(row.shown, []).append(row)
    others = {kind: ", ".join(row.other for row in rows) for kind, rows in by_kind.items()}
    parts = []
    if "different" in by_kind:
        parts.append(", ".join(row.gap for row in by_kind["different"]))
    if "equal" in by_kind:
        parts.append(f"the same as under {others['equal']} in every run")
    if set(by_kind) == {"open"}:
        return f"{rows[0].policy}: no significant difference in {name} to {others['open']}"
    if "open" in by_kind:
        parts.append(f"no significant difference to {others['open']}")
    if "one run" in by_kind:
        parts.append(f"one run gives no confidence interval for the difference to {others['one run']}")
    if "undefined" in by_kind:
        parts.append(f"not comparable with {others['undefined']}: infinite or undefined in some runs")
    return f"{rows[0].policy}: {name} {'; '.join(parts)}"


def comparison_headline(runs: Mapping[str, Outcome]) -> str:
    """Return the headline of a comparison: scenario, cluster, load, replications."""
    outcome = next(iter(runs.values()))
    text = headline(outcome, "")
    numbers = {len(run) if isinstance(run, Replications) else 1 for run in runs.values()}
    if len(numbers) > 1:
        text = text.replace(f"{len(outcome)} replications", f"{min(numbers)} to {max(numbers)} replications")  # type: ignore[arg-type]
    return text + ", common random numbers"
