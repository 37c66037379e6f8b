"""The page about a comparison of policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sim.errors import UsageError
from sim.report.html import elements
from sim.report.html.common import Parts, commands, front_picture, policy_option, regret_picture, scenario_of
from sim.report.html.elements import Cell, Section
from sim.report.overview import comparison_headline, comparison_remarks, first_of
from sim.results.compare import Comparison, Finding
from sim.results.metrics import HIGHER_IS_BETTER
from sim.results.wording import figures, metric_name, pair, several, units_of

MOST_SENTENCES = 40


def of_comparison(found: Comparison, folder: str) -> Parts:
    """Title, first lines and sections about a comparison."""
    runs: Mapping[str, Any] = found.runs
    first = first_of(next(iter(runs.values())))
    policies = [str(name) for name in found.table.index]
    options = [policy_option(label, _policy(found.runs[label])) for label in found.runs]
    title = f"{first.name or 'comparison'}: {len(policies)} policies compared"
    many = next(iter(runs.values()))
    again = commands(first, f"{folder}/{_folder(policies[0])}" if folder else "", "compare", many, options)
    shown_first = sorted(found.findings, key=lambda finding: finding.shown != "different")
    told = [_better(found, finding) for finding in shown_first[:MOST_SENTENCES]]
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


def _policy(outcome: Any) -> Any:
    """What stands under `policy:` in the scenario of a run."""
    import yaml

    text = first_of(outcome).scenario
    return None if text is None else yaml.safe_load(text).get("policy")


def _folder(label: str) -> str:
    from sim.experiment.directory import folder_name

    return folder_name(label)


def _better(found: Comparison, finding: Finding) -> str:
    """`sjf is better than fcfs in response mean by 36 ± 5 %, n = 20`; else the finding's own sentence."""
    base = abs(float(found.table[finding.metric, "mean"][finding.other]))
    if finding.shown != "different" or not (base > 0 and math.isfinite(base)):
        return finding.sentence
    lower = finding.difference < 0
    better = lower != (finding.metric in HIGHER_IS_BETTER)
    share = pair(100 * abs(finding.difference) / base, 100 * finding.half_width / base)
    return (
        f"{finding.policy} is {'better' if better else 'worse'} than {finding.other} in {metric_name(finding.metric)} "
        f"by {share} %, n = {finding.n} ({finding.gap}; paired, {100 * finding.confidence:g} %, Holm)."
    )


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

    parts = [elements.picture(plots.comparison(found), "metrics by policy")]
    order = list(found.runs)
    if "response_mean" in found.metrics:  # of many only the first are told apart
        means = dict(zip(found.table.index, found.table["response_mean", "mean"].astype(float), strict=True))
        order.sort(key=means.__getitem__)
    first = {str(label): first_of(found.runs[label]) for label in (order if len(order) > MOST_LINES else found.runs)}
    parts.append(elements.picture(plots.distributions(first), "distributions by policy"))
    parts.append(elements.picture(plots.over_time(first), "the cluster over time by policy"))
    directed = [name for name in found.metrics if found.table[name, "mean"].map(math.isfinite).all()]
    directed.sort(key=lambda name: not name.startswith("response"))  # what most people look at
    return "".join([*parts, regret_picture(found, directed), front_picture(found, directed)])


def _differences(found: Comparison) -> str:
    rows = []
    for record in found.pairs.to_dict("records"):
        unit = several([record["difference"]], units_of(record["metric"]), [record["half_width"]])[0]
        rows.append([
            metric_name(record["metric"]), str(record["policy"]), str(record["other"]),
            Cell(unit, float(record["difference"])), Cell(figures(record["p"], 2), float(record["p"])),
            "yes" if record["significant"] else "no", Cell(str(record["n"]), float(record["n"])),
        ])  # fmt: skip
    return elements.table(["metric", "policy", "other", "policy - other", "p", "shown", "n"], rows)


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
    return "".join(parts)


def _plans(found: Comparison) -> str:
    if found.plans.empty:
        return ""
    shown = found.shown_plans()
    rows = [[str(name), *map(str, row)] for name, *row in shown.itertuples()]
    return elements.table(["policy", *map(str, shown.columns)], rows)
