"""The page about one policy: a run, or replications."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from hetsim.errors import UsageError
from hetsim.report.html import elements
from hetsim.report.html.common import Parts, commands, scenario_of
from hetsim.report.html.elements import Cell, Section
from hetsim.report.overview import STAGE_COLUMNS, first_of, headline, remarks, stage_rows
from hetsim.results.declared import COMPLETED_COUNT, ENERGY, TASK_COUNT, WAIT_MEAN, in_set
from hetsim.results.formatting import Unit, count, formatter, metric_name, several, units_of
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.training_pipelines import has_pipelines

SLOWEST = 25
MAX_DEVICES = 100

Outcome = Result | Replications


def of_run(outcome: Outcome, folder: str) -> Parts:
    """Title, first lines and sections about a run or replications."""
    first = first_of(outcome)
    title = f"{outcome.name or 'run'} under {first.policy}" if first.policy else outcome.name or "run"
    words = elements.items(_in_words(outcome)) + elements.warnings(remarks(outcome))
    number = len(outcome) if isinstance(outcome, Replications) else 1
    return title, [headline(outcome)], [
        Section("In words", words),
        Section("Figures", _summary(outcome)),
        Section("Pictures", _pictures(outcome)),
        Section("By class and by user", _groups(outcome)),
        Section("By stage", _by_stage(first)),
        Section("Where the waiting came from", _waiting(first)),
        Section("Devices", _devices(first)),
        Section("The slowest tasks", _slowest(first)),
        Section("Scenario", scenario_of(first)),
        Section("Make it again", commands(first, folder, "run", number)),
    ]  # fmt: skip


def _in_words(outcome: Outcome) -> Iterator[str]:
    """Sentences on the tasks, the cluster, and what is left open."""
    if isinstance(outcome, Result):
        yield f"{count(outcome.metric(COMPLETED_COUNT))} of {count(outcome.metric(TASK_COUNT))} tasks completed."
        defined = [name for name in outcome.names if math.isfinite(outcome.metric(name))]
        yield from _of_tasks_and_cluster({name: outcome.text(name) for name in defined})
        yield "This is one run: it tells nothing about chance. Replications add intervals."
        return
    texts = {}
    for name, (mean, half, number) in _means(outcome).items():
        fewer = "" if number == len(outcome) else f" (in {number} of the replications)"
        texts[name] = several([mean], units_of(name), [half])[0] + fewer
    intervals = "" if outcome.identical else ", with 95 % confidence intervals"
    yield f"These are means of {len(outcome)} replications{intervals}."
    yield from _of_tasks_and_cluster(texts)
    yield from outcome.remarks


def _of_tasks_and_cluster(texts: Mapping[str, str]) -> Iterator[str]:
    """`Tasks: response mean 38 s, wait mean 12 s.`, and the same of the cluster."""
    for label, names in (("Tasks", in_set("page_tasks")), ("Cluster", in_set("page_cluster"))):
        texts_shown = [f"{metric_name(name)} {texts[name]}" for name in names if name in texts]
        if texts_shown:
            yield f"{label}: {', '.join(texts_shown)}."


def _by_family(values: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Values with half-widths as texts, by name: those of one kind in one unit."""
    families: dict[tuple[str, tuple[Unit, ...]], list[str]] = {}
    for name in values:
        families.setdefault((name.partition("_")[0], units_of(name)), []).append(name)
    family_of: dict[str, str] = {}
    for (_, units), names in families.items():
        means, halves = zip(*(values[name] for name in names), strict=True)
        if len(units) == 1 and all(math.isnan(half) for half in halves):
            texts = [formatter(name)(value) for name, value in zip(names, means, strict=True)]
        else:
            texts = several(means, units, halves)
        family_of.update(zip(names, texts, strict=True))
    return family_of


def _means(outcome: Replications) -> dict[str, tuple[float, float, int]]:
    """Of every defined metric its mean, half-width, and number of runs."""
    table = outcome.summary
    columns = {column: table[column].astype(float).tolist() for column in ("mean", "ci_low", "ci_high", "n")}
    rows = zip(map(str, table.index), *columns.values(), strict=True)
    return {name: (mean, (high - low) / 2, int(n)) for name, mean, low, high, n in rows if math.isfinite(mean)}


def _summary(outcome: Outcome) -> str:
    if isinstance(outcome, Result):
        values = {name: value for name, value in outcome.values().items() if not math.isnan(value)}
        finite = {name: (value, math.nan) for name, value in values.items() if math.isfinite(value)}
        texts = {name: outcome.text(name) for name in values} | _by_family(finite)
        return elements.table(
            ["metric", "value", "name"],
            [[metric_name(name), Cell(texts[name], value), name] for name, value in values.items()],
        )
    means = _means(outcome)
    texts = _by_family({name: (mean, half) for name, (mean, half, _) in means.items()})
    rows = [
        [metric_name(name), Cell(texts[name], mean), Cell(str(number), number), name]
        for name, (mean, _, number) in means.items()
    ]
    return elements.table(["metric", "mean and half of its 95 % interval", "n", "name"], rows)


def _pictures(outcome: Outcome) -> str:
    from hetsim import plots

    first = first_of(outcome)
    parts = [elements.picture(lambda: plots.default(outcome), "the run over time and how tasks fared")]
    if len(first.tasks):
        caption = "What computed, and when."
        parts.append(elements.picture(lambda: plots.heat_map(first), "busy devices over time", caption))
        runs = {first.policy or "run": first}
        parts.append(elements.picture(lambda: plots.distributions(runs), "distributions over tasks"))
    if len(first.steps):
        caption = "What replicas of language models held, had to do, and did in a step; and the times between tokens."
        parts.append(elements.picture(lambda: plots.serving(first), "language models over time", caption))
    if first.metric(ENERGY) > 0:
        parts.append(elements.picture(lambda: plots.power(first), "power over time", "The area is the energy."))
    if has_pipelines(first):
        caption = "A step of the job with the most GPU time, alone on the links: a row a stage, a bar a micro-batch."
        alt = "the schedule of a pipeline"
        parts.append(elements.picture(lambda: plots.pipeline(first), alt, caption, optional=True))
    if len(first.links):
        caption = "How busy each link was; red where two jobs or more shared it."
        parts.append(elements.picture(lambda: plots.links(first), "the links of the network over time", caption))
    note = "Of replications the first is drawn." if isinstance(outcome, Replications) else ""
    return "".join(parts) + (f"<p>{note}</p>" if note else "")


def _groups(outcome: Outcome) -> str:
    first = first_of(outcome)
    parts = []
    for group in ("class", "user"):
        names = first.tasks[group].astype(str).nunique()
        if names > 1:
            frame = first.by(group, in_set("page_groups")).dropna(axis=1, how="all")
            frame = frame.sort_values(TASK_COUNT, ascending=False, kind="stable").head(MAX_DEVICES)
            of_replication = " (of the first replication)" if isinstance(outcome, Replications) else ""
            parts.append(_frame(frame, group, f"By {group}{of_replication}"))
    return "".join(parts)


def _frame(frame: pd.DataFrame, label: str, caption: str = "") -> str:
    """A table with metrics as columns and the names of its rows as index."""
    columns = {str(name): _texts(str(name), frame[name].tolist()) for name in frame.columns}
    rows = [[str(index) or "(none)", *cells] for index, *cells in zip(frame.index, *columns.values(), strict=True)]
    return elements.table([label, *(metric_name(name) for name in columns)], rows, caption)


def _texts(name: str, values: list[float]) -> list[Cell]:
    units = units_of(name)
    texts = [formatter(name)(value) for value in values] if units == ((1.0, ""),) else several(values, units)
    return [Cell(text, float(value)) for text, value in zip(texts, values, strict=True)]


def _by_stage(first: Result) -> str:
    rows = stage_rows(first)
    note = "Each item is counted at every stage; all other figures but the queue length count a request once."
    return elements.table(list(STAGE_COLUMNS), rows, note) if rows else ""


def _waiting(first: Result) -> str:
    from hetsim.results.one_run.explain import CAUSES, explain_all

    if first.metric(WAIT_MEAN) != first.metric(WAIT_MEAN) or first.metric(WAIT_MEAN) == 0:
        return ""
    try:
        table = explain_all(first, "class")
    except UsageError:  # a run with waiting that cannot be split
        return ""
    shown = [cause for cause in CAUSES if table[cause].sum() > 0]
    rows = []
    means = _texts(WAIT_MEAN, (table["wait"] / table["tasks"].clip(lower=1)).tolist())
    for (name, row), mean in zip(table.iterrows(), means, strict=True):
        wait, tasks = float(row["wait"]), float(row["tasks"])
        parts = [Cell(f"{100 * float(row[cause]) / wait:.3g} %" if wait else "–", float(row[cause])) for cause in shown]
        rows.append([str(name) or "(all)", Cell(count(tasks), tasks), mean, *parts])
    return elements.table(["class", "tasks", "mean wait", *(cause.replace("_", " ") for cause in shown)], rows,
                      "Share of the waiting by cause")  # fmt: skip


def _devices(first: Result) -> str:
    table = first.devices
    names = [name for name in ("utilization", "allocation") if table[name].notna().any()]
    kept = table if len(table) <= MAX_DEVICES else table.nlargest(MAX_DEVICES, "busy", keep="first")
    drawn = bool(table[ENERGY].notna().any())
    energies = _texts(ENERGY, kept[ENERGY].tolist())
    rows = []
    for record, drew in zip(kept.to_dict("records"), energies, strict=True):
        shares = [Cell("–" if math.isnan(record[n]) else f"{100 * record[n]:.3g} %", float(record[n])) for n in names]
        launches = Cell(count(record["launches"]), record["launches"])
        rows.append([str(record["device"]), str(record["type"]), *shares, launches, *([drew] if drawn else [])])
    more = f"The busiest {len(kept)} of {len(table):,}" if len(kept) < len(table) else ""
    return elements.table(["device", "type", *names, "launches", *(["energy"] if drawn else [])], rows, more)


def _slowest(first: Result) -> str:
    table = first.tasks.dropna(subset=["response"])
    kept = table.nlargest(SLOWEST, "response", keep="first")
    if kept.empty:
        return ""
    columns = ["response", "wait", "slowdown"]
    texts = [_texts(name, kept[name].astype(float).tolist()) for name in columns]
    known_columns = kept[["id", "class", "user", "device"]].astype(object)
    facts = known_columns.where(known_columns.notna(), "").astype(str).to_numpy().tolist()
    rows = [[*fact, *cells] for fact, *cells in zip(facts, *texts, strict=True)]
    return elements.table(["task", "class", "user", "device", *columns], rows)
