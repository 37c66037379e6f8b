"""The page about a comparison of policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote
from typing import Any

from sim.errors import UsageError
from sim.report.html import elements
from sim.report.html.common import (
    DIFFERENCE_TITLES,
    HOLM_OF_METRIC,
    Parts,
    better_sentence,
    commands,
    difference_rows,
    front_picture,
    policy_option,
    policy_text,
    regret_picture,
    scenario_of,
)
from sim.report.html.elements import Cell, Section
from sim.report.overview import comparison_headline, comparison_remarks, first_of
from sim.results.many_runs.compare import Comparison
from sim.results.many_runs.group_differences import difference_cells, difference_note
from sim.results.many_runs.replications import Replications
from sim.results.wording import metric_name, several, units_of

MOST_SENTENCES = 40


def of_comparison(found: Comparison, folder: str) -> Parts:
    """Title, first lines and sections about a comparison."""
    runs: Mapping[str, Any] = found.runs
    first = first_of(next(iter(runs.values())))
    policies = [str(name) for name in found.table.index]
    options = [policy_option(label, _policy(found.runs[label])) for label in found.runs]
    options += _asked(found)
    title = f"{first.name or 'comparison'}: {len(policies)} policies compared"
    place = f"{folder}/{_folder(policies[0])}" if folder else ""
    again = commands(first, place, "compare", _replications(found), options)
    shown_first = sorted(found.findings, key=lambda finding: finding.shown != "different")
    means = found.table
    told = [better_sentence(row, float(means[row.metric, "mean"][row.other])) for row in shown_first[:MOST_SENTENCES]]
    if len(shown_first) > MOST_SENTENCES:
        told.append(f"And {len(shown_first) - MOST_SENTENCES:,} more pairs: the table of differences has all.")
    words = elements.items([*told, *found.plan_notes])
    return title, [comparison_headline(runs)], [
        Section("In words", words + elements.warnings(comparison_remarks(runs))),
        Section("Figures", _compared(found)),
        Section("Pictures", _compared_pictures(found)),
        Section("Differences", _differences(found)),
        Section("By class, by GPUs, by user", _compared_groups(found)),
        Section("Plans", _plans(found)),
        Section("Scenario", scenario_of(first)),
        Section("Make it again", again),
    ]  # fmt: skip


def _asked(found: Comparison) -> list[str]:
    """The options that say what was compared, and how."""
    options = [f"--metric {quote(name)}" for name in found.asked.get("metrics", ())]
    options += [f"--by {quote(name)}" for name in found.asked.get("by", ())]
    if found.baseline is not None:
        options.append(f"--baseline {quote(policy_text(found.baseline, _policy(found.runs[found.baseline])))}")
    return options + [
        f"--{name} {quote(str(found.asked[name]))}" for name in ("best", "probability", "delta") if name in found.asked
    ]


def _replications(found: Comparison) -> int | None:
    """How many were asked for; None where it is the scenario that says how many each policy needs."""
    if "best" in found.asked:
        return found.asked.get("replications")
    numbers = {len(run) if isinstance(run, Replications) else 1 for run in found.runs.values()}
    return numbers.pop() if len(numbers) == 1 else None


def _policy(outcome: Any) -> Any:
    """What stands under `policy:` in the scenario of a run."""
    import yaml

    text = first_of(outcome).scenario
    return None if text is None else yaml.safe_load(text).get("policy")


def _folder(label: str) -> str:
    from sim.experiment.directory import folder_name

    return folder_name(label)


def _compared(found: Comparison) -> str:
    rows = []
    cells = {name: found.cells(name) for name in found.metrics}
    for at, policy in enumerate(found.table.index):
        values = [Cell(cells[name][at], float(found.table[name, "mean"].iloc[at])) for name in found.metrics]
        rows.append([str(policy), *values])
    told = "◂ shown to be better than all others" if any(found.winners.values()) else ""
    return elements.table(["policy", *(metric_name(name) for name in found.metrics)], rows, told)


def _compared_pictures(found: Comparison) -> str:
    from sim import plots
    from sim.plots.style import MOST_LINES

    parts = [elements.picture(lambda: plots.comparison(found), "metrics by policy")]
    order = list(found.runs)
    if "response_mean" in found.metrics:  # of many only the first are told apart
        means = dict(zip(found.table.index, found.table["response_mean", "mean"].astype(float), strict=True))
        order.sort(key=means.__getitem__)
    first = {str(label): first_of(found.runs[label]) for label in (order if len(order) > MOST_LINES else found.runs)}
    parts.append(elements.picture(lambda: plots.distributions(first), "distributions by policy"))
    parts.append(elements.picture(lambda: plots.over_time(first), "the cluster over time by policy"))
    directed = [name for name in found.metrics if found.table[name, "mean"].map(math.isfinite).all()]
    directed.sort(key=lambda name: not name.startswith("response"))  # what most people look at
    return "".join([*parts, regret_picture(found, directed), front_picture(found, directed)])


def _differences(found: Comparison) -> str:
    rows: list[list[str | Cell]] = []
    for metric, mine in found.pairs.groupby("metric", sort=False):
        rows += [[metric_name(str(metric)), *cells] for cells in difference_rows(str(metric), mine)]
    return elements.table(["metric", *DIFFERENCE_TITLES], rows, HOLM_OF_METRIC if rows else "")


_OF_GROUPS = ("tasks", "response_mean", "wait_mean", "slowdown_mean")


def _compared_groups(found: Comparison) -> str:
    parts = []
    for group in ("class", "gpus", "user"):
        try:
            table = found.by(group)
        except UsageError:  # not kept of replications, or no such groups
            continue
        groups = table.index.get_level_values(0).unique()
        if len(groups) < 2:
            continue
        names = [name for name in _OF_GROUPS if name in table.columns.get_level_values(0)]
        columns = []
        for name in names:
            part = table[name]
            texts = several(part["mean"].tolist(), units_of(name), part["half_width"].tolist())
            columns.append([Cell(text, float(mean)) for text, mean in zip(texts, part["mean"], strict=True)])
        rows = [
            [str(name) or "(none)", str(policy), *cells]
            for (name, policy), *cells in zip(table.index, *columns, strict=True)
        ]
        parts.append(elements.table([group, "policy", *(metric_name(name) for name in names)], rows))
        parts.append(_group_differences(found, group, names))
    return "".join(parts)


def _group_differences(found: Comparison, group: str, shown: list[str]) -> str:
    """The paired differences of the metrics shown, to the base."""
    names = [name for name in shown if name != "tasks"]  # of which every policy gets the same
    table = found.differences_by(group, names)
    rows = list(dict.fromkeys(zip(table[group], table["policy"], strict=True)))
    columns = []
    for name in names:
        part = table[table["metric"] == name].set_index([group, "policy"]).reindex(rows)
        values, halves = part["difference"].tolist(), part["half_width"].tolist()
        texts = difference_cells(name, values, halves, part["significant"].eq(True).tolist())
        columns.append([Cell(text, float(value)) for text, value in zip(texts, values, strict=True)])
    cells = [[str(row[0]) or "(none)", str(row[1]), *(column[at] for column in columns)] for at, row in enumerate(rows)]
    note = f"Differences to {found.base}. {difference_note(table, found.confidence, found.identical, found.single)}"
    return elements.table([group, "policy", *(metric_name(name) for name in names)], cells, note)


def _plans(found: Comparison) -> str:
    if found.plans.empty:
        return ""
    shown = found.shown_plans()
    rows = [[str(name), *map(str, row)] for name, *row in shown.itertuples()]
    return elements.table(["policy", *map(str, shown.columns)], rows)
