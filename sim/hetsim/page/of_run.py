"""The page about one policy: a run, or replications."""

import math
from collections.abc import Iterator

import pandas as pd

from hetsim.model.record import COMPLETED, STATUS_NAMES
from hetsim.page import columns, elements
from hetsim.page.common import Parts, command, commands, scenario_of
from hetsim.page.elements import Cell, Markup, Section
from hetsim.report.overview import STAGE_COLUMNS, STATISTICS, Figures, first_of, headline, remarks, stage_rows
from hetsim.results.declared import COMPLETED_COUNT, ENERGY, RESPONSE_MEAN, TASK_COUNT, WAIT_MEAN, in_set
from hetsim.results.formatting import formatter, listed, metric_name, several, share, units_of
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run import explain
from hetsim.results.one_run.result import Result

MAX_DEVICES = 100
OPEN_ROWS = 12  # rows above which a table is folded
FATES = {name: f"{name}_count" for status, name in STATUS_NAMES.items() if status != COMPLETED}
MAX_POLICY = 48  # length above which a policy's name is without parameters in the title; the line below has all
MAX_CARDS = 6
Outcome = Result | Replications


def of_run(outcome: Outcome, folder: str) -> Parts:
    """Return title, first lines and sections of the page of a run or replications."""
    first = first_of(outcome)
    policy = first.policy if len(first.policy) <= MAX_POLICY else first.policy.partition(" (")[0]
    title = f"{outcome.name or 'run'} under {policy}" if policy else outcome.name or "run"
    figures, waits = Figures(outcome), columns.waits_by_cause(first)
    cards = [name for name in in_set("page_cards") if figures.is_shown(name)]
    names = [name for name in cards if figures(name)[0] != 0 or name == WAIT_MEAN][:MAX_CARDS]
    shown = [(metric_name(name), figures.text(name) + figures.defined_in(name), name) for name in names]
    words = elements.items(_in_words(outcome, figures, waits)) + elements.warnings(remarks(outcome))
    number = len(outcome) if isinstance(outcome, Replications) else 1
    note = "<p class=note>Only the first replication is shown.</p>" if number > 1 else ""
    packed, _ = columns.packed({first.policy or "run": (first, waits)})
    return title, [headline(outcome)], [
        Section("In words", words + elements.cards(shown)),
        Section("The run", note + elements.explorer()),
        Section("Figures", summary(outcome, figures, elements)),
        Section("By stage", _by_stage(first)),
        Section("More pictures", pictures(first, elements)),
        Section("Energy by device", _energy(first)),
        Section("Scenario", scenario_of(first)),
        Section("Make it again", commands(command(first, folder, "run", number), [first])),
    ], packed  # fmt: skip


def _in_words(outcome: Outcome, figures: Figures, waits: pd.DataFrame | None) -> Iterator[str]:
    fates = "".join(f"; {figures.text(name)} {fate}" for fate, name in FATES.items() if figures(name)[0] > 0)
    many = f", means of {len(outcome)} replications" if isinstance(outcome, Replications) else ""
    yield f"{figures.text(COMPLETED_COUNT)} of {figures.text(TASK_COUNT)} tasks completed{many}{fates}."
    if figures.is_known(WAIT_MEAN) and figures.is_known(RESPONSE_MEAN) and figures(RESPONSE_MEAN)[0] > 0:
        part = share(figures(WAIT_MEAN)[0] / figures(RESPONSE_MEAN)[0])
        causes = "" if waits is None else _causes_in_words(waits, isinstance(outcome, Replications))
        yield f"Tasks waited {figures.text(WAIT_MEAN)} on average, {part} of their response{causes}."
    if isinstance(outcome, Result):
        yield "One run gives no confidence intervals; use --replications 10."
    else:
        yield from outcome.remarks


def _causes_in_words(waits: pd.DataFrame, many: bool) -> str:
    """Return `; causes of the waiting: no capacity 60 % and head of line 40 %`."""
    total = float(waits["wait"].sum())
    parts = {cause: float(waits[cause].sum()) / total for cause in explain.CAUSES} if total > 0 else {}
    largest = sorted((cause for cause in parts if parts[cause] >= 0.01), key=lambda cause: -parts[cause])[:3]
    texts = [f"{cause.replace('_', ' ')} {share(parts[cause])}" for cause in largest]
    return f"; causes of the waiting{' (first replication)' if many else ''}: {listed(texts)}" if texts else ""


def summary(outcome: Outcome, figures: Figures, to: Markup) -> str:
    """Return a table of figures, except those that are 0, undefined or repeated."""
    names = [name for name in map(str, outcome.summary.index) if figures.is_known(name) and figures(name)[0] != 0]
    families: dict[str, dict[str, str]] = {}
    rows: list[list[str | Cell]] = []
    seen = set()
    for name in names:
        family, _, statistic = name.rpartition("_")
        if statistic in STATISTICS and f"{family}_p95" in names:
            families.setdefault(family, {})[statistic] = name
        elif (key := (units_of(name), repr(figures(name)))) not in seen:
            seen.add(key)
            text = figures.text(name) + figures.defined_in(name)
            rows.append([metric_name(name), Cell(text, figures(name)[0]), name])
    spread: dict[tuple[Cell, ...], list[str | Cell]] = {}
    for family, of_family in families.items():
        cells = [
            Cell(figures.text(of_family[one]), figures(of_family[one])[0]) if one in of_family else Cell("–", math.nan)
            for one in STATISTICS
        ]
        spread.setdefault(tuple(cells), [metric_name(family), *cells, f"{family}_…"])
    note = "Metrics that are 0, undefined, or equal to one above are left out: hetsim run --json has all."
    return to.folded(
        to.table(["", *STATISTICS, "name"], spread.values())
        + to.table(["metric", "value", "name"], rows, note), "all figures",
    )  # fmt: skip


def pictures(first: Result, to: Markup) -> str:
    """Return pictures of language models, energy, pipelines and links, if present."""
    from hetsim import plots  # large: not before the folder has been read
    from hetsim.planning.picture import has_pipelines

    parts = []
    if len(first.steps):
        caption = "KV blocks, waiting requests, tokens per step, and times between tokens of language models."
        parts.append(to.picture(lambda: plots.serving(first), "language models over time", caption))
    if first.metric(ENERGY) > 0:
        parts.append(to.picture(lambda: plots.power(first), "power over time", "The area under it is the energy."))
    if has_pipelines(first):
        caption = "A step of the job with the most GPU time, alone on the links: a row a stage, a bar a micro-batch."
        alt = "the schedule of a pipeline"
        parts.append(to.picture(lambda: plots.pipeline(first), alt, caption, optional=True))
    if len(first.links):
        caption = "The share of each link's rate in use; red where two or more jobs shared the link."
        parts.append(to.picture(lambda: plots.links(first), "the links of the network over time", caption))
    return "".join(parts)


def _texts(name: str, values: list[float]) -> list[Cell]:
    units = units_of(name)
    texts = [formatter(name)(value) for value in values] if units == ((1.0, ""),) else several(values, units)
    return [Cell(text, float(value)) for text, value in zip(texts, values, strict=True)]


def _by_stage(first: Result) -> str:
    rows = stage_rows(first)
    note = "The queue length counts each item at every stage; all other figures count a request once."
    return elements.table(list(STAGE_COLUMNS), rows, note) if rows else ""


def _energy(first: Result) -> str:
    table = first.devices[first.devices[ENERGY].notna()].nlargest(MAX_DEVICES, ENERGY, keep="first")
    energies = _texts(ENERGY, table[ENERGY].tolist())
    cells = zip(table["device"].astype(str), table["type"].astype(str), energies, strict=True)
    more = f"The top {len(table)} of {len(first.devices):,} devices" if len(table) < len(first.devices) else ""
    made = elements.table(["device", "type", "energy"], map(list, cells), more) if len(table) else ""
    return elements.folded(made, f"{len(first.devices):,} devices") if len(table) > OPEN_ROWS else made
