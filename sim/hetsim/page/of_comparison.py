"""The page about a comparison of policies."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from shlex import quote
from typing import Any

from hetsim.errors import UsageError
from hetsim.experiment.directory import folder_name
from hetsim.page import columns, common, elements
from hetsim.page.elements import Cell, Markup, Section
from hetsim.report.overview import Figures, comparison_headline, comparison_remarks, first_of
from hetsim.results.declared import DEFAULT_METRIC, TASK_COUNT, has_direction, higher_is_better, in_set
from hetsim.results.formatting import listed, metric_name, several, units_of
from hetsim.results.many_runs.compare import COMPARISON, Comparison
from hetsim.results.many_runs.findings import Finding
from hetsim.results.many_runs.groups import SHOWN_MARK, difference_cells, difference_note
from hetsim.results.many_runs.replications import COMMON_END, Replications
from hetsim.results.stored_files import parse_yaml

MAX_CARDS = 6
MAX_METRICS = 3  # metrics with a sentence; the table of differences has the other metrics
MAX_RUNS = 8  # maximum number of runs whose tasks are on the page
MAX_OTHERS = 3  # maximum number of policies that a sentence compares with the best policy


def of_comparison(found: Comparison, folder: str) -> common.Parts:
    """Return title, first lines and sections of the page of a comparison."""
    from hetsim import plots  # large: not before the folder has been read

    runs: Mapping[str, Any] = found.runs
    first = first_of(next(iter(runs.values())))
    policies = [str(name) for name in found.table.index]
    title = f"{first.name or 'comparison'}: {len(policies)} policies compared"
    words = elements.items([*_in_words(found), *(f"{note.removesuffix('.')}." for note in found.plan_notes)])
    runs_shown, packed = _walked(found)
    return title, [comparison_headline(runs)], [
        Section("In words", "".join([
            words, elements.cards(_best_figures(found)), elements.warnings(comparison_remarks(runs)),
            elements.picture(lambda: plots.comparison(found), "metrics by policy"),
        ])),
        Section("Figures", compared(found, elements)),
        Section("The runs", runs_shown),
        Section("Pictures", compared_pictures(found, elements)),
        Section("Differences", differences(found, elements)),
        Section("By class, by GPUs, by user", _compared_groups(found)),
        Section("Plans", _plans(found)),
        Section("Scenario", common.scenario_of(first)),
        Section("Make it again", common.commands(again(found, folder), map(first_of, runs.values()))),
    ], packed  # fmt: skip


def _in_words(found: Comparison) -> Iterator[str]:
    metrics = [name for name in found.metrics if has_direction(name)] or found.metrics
    by_metric = {name: [finding for finding in found.findings if finding.metric == name] for name in metrics}
    single = _metrics_with(by_metric, any, "one run")
    for name in single[:MAX_METRICS]:
        yield _best_of_single_runs(found, name)
    if single and not found.identical:
        yield "One run of each policy gives no confidence intervals; use --replications 10."
    different = [rows for rows in (_best_shown(found, rows) for rows in by_metric.values()) if rows]
    for rows in different[:MAX_METRICS]:
        yield _better_than(found, rows, by_metric[rows[0].metric])
    if same := _metrics_with(by_metric, all, "open", "equal"):
        names = listed([metric_name(name) for name in same])
        yield f"No significant difference in {names} ({found.confidence * 100:g} %, Holm)."
    if undefined := _metrics_with(by_metric, any, "undefined"):
        names = listed([metric_name(name) for name in undefined])
        yield f"Not all policies can be compared in {names}: undefined or infinite in some runs."


def _best_figures(found: Comparison) -> Iterator[tuple[str, str, str]]:
    runs = {str(label): Figures(run) for label, run in found.runs.items()}
    more = [name for name in in_set("page_cards") if name not in COMMON_END]  # the table ends all policies together
    texts = {name: dict(zip(found.table.index, found.cells(name), strict=True)) for name in found.metrics}
    count = 0
    for name in filter(has_direction, dict.fromkeys([*found.metrics, *more])):
        means = {label: run(name)[0] for label, run in runs.items() if label in found.table.index}
        if name in texts:
            means = dict(zip(found.table.index.astype(str), found.table[name, "mean"].astype(float), strict=True))
        if count == MAX_CARDS or not all(map(math.isfinite, means.values())) or not any(means.values()):
            continue
        count += 1
        best = (max if higher_is_better(name) else min)(means.values())
        by = [label for label, mean in means.items() if mean == best]
        text = texts[name][by[0]].removesuffix(" ◂") if name in texts else runs[by[0]].text(name)
        word = "highest" if higher_is_better(name) else "lowest"
        yield f"{word} {metric_name(name)}: {listed(by) if len(by) <= 2 else f'{len(by)} policies'}", text, name


def _metrics_with(
    by_metric: dict[str, list[Finding]], some: Callable[[Iterable[bool]], bool], *shown: str
) -> list[str]:
    return [name for name, rows in by_metric.items() if rows and some(row.shown in shown for row in rows)]


def _best_of_single_runs(found: Comparison, metric: str) -> str:
    """Return `The lowest response mean is 8 min under sjf, compared with ...`."""
    means = found.table[metric, "mean"].dropna().sort_values(ascending=not higher_is_better(metric), kind="stable")
    texts = several(means.tolist(), units_of(metric), [math.nan] * len(means))
    others = [f"{text} under {policy}" for text, policy in zip(texts[1:], means.index[1:], strict=True)]
    if len(others) > MAX_OTHERS:
        others = [*others[:MAX_OTHERS], f"{len(others) - MAX_OTHERS:,} more in the table of figures"]
    end = "highest" if higher_is_better(metric) else "lowest"
    if means.nunique() == 1:
        return f"All policies have the same {metric_name(metric)}: {texts[0]}."
    return f"The {end} {metric_name(metric)} is {texts[0]} under {means.index[0]}, compared with {listed(others)}."


def _best_shown(found: Comparison, rows: list[Finding]) -> list[Finding]:
    different = [row for row in rows if row.shown == "different"]
    if not different:
        return []
    means = found.table[rows[0].metric, "mean"]
    ranked = sorted({row.policy: None for row in different}, key=lambda policy: float(means[policy]))
    best = ranked[-1 if higher_is_better(rows[0].metric) else 0]
    return [row for row in different if row.policy == best]


def _better_than(found: Comparison, rows: list[Finding], of_metric: list[Finding]) -> str:
    """Return `sjf is better than fcfs in response mean by 36 ± 5 %; also ...`."""
    means = found.table[rows[0].metric, "mean"]
    text = common.better_sentence(rows[0], float(means[rows[0].other]))
    more = [row.gap for row in rows[1 : 1 + MAX_OTHERS]]
    if len(rows) > 1 + MAX_OTHERS:
        more.append(f"{len(rows) - 1 - MAX_OTHERS:,} more pairs: the table of differences has all")
    if more:
        text = f"{text.removesuffix('.')}; also {listed(more)}."
    unclear = [row.other for row in of_metric if row.policy == rows[0].policy and row.shown == "open"]
    if unclear:
        others = unclear if len(unclear) <= MAX_OTHERS else [*unclear[:MAX_OTHERS], f"{len(unclear) - MAX_OTHERS} more"]
        text = f"{text.removesuffix('.')}; no significant difference to {listed(others)}."
    return text


def again(found: Comparison, folder: str) -> str:
    """Return the command that repeats the comparison."""
    options = [common.policy_option(label, _policy(found.runs[label])) for label in found.runs]
    options += [common.policy_option(label, None) for label in found.refused]
    place = f"{folder}/{folder_name(str(found.table.index[0]))}" if folder else ""
    first = first_of(next(iter(found.runs.values())))
    return common.command(first, place, "compare", replications=_replications(found), more=[*options, *_asked(found)])


def _asked(found: Comparison) -> list[str]:
    options = [f"--metric {quote(name)}" for name in found.asked.get("metrics", ())]
    options += [f"--by {quote(name)}" for name in found.asked.get("by", ())]
    if found.baseline is not None:
        options.append(f"--baseline {quote(common.policy_text(found.baseline, _policy(found.runs[found.baseline])))}")
    return options + [
        f"--{name} {quote(str(found.asked[name]))}" for name in ("best", "probability", "delta") if name in found.asked
    ]


def _replications(found: Comparison) -> int | None:
    if "best" in found.asked:
        return found.asked.get("replications")
    numbers = {len(run) if isinstance(run, Replications) else 1 for run in found.runs.values()}
    return numbers.pop() if len(numbers) == 1 else None


def _policy(outcome: Any) -> Any:
    text = first_of(outcome).scenario
    return None if text is None else parse_yaml(outcome.name, text).get("policy")


def compared(found: Comparison, to: Markup) -> str:
    """Return a table of each policy's metrics, with significant differences marked."""
    rows = []
    side = "other" if found.baseline is None else "policy"
    starred = {(row.metric, getattr(row, side)) for row in found.findings if row.shown == "different"}
    cells = {
        name: [text + SHOWN_MARK * ((name, policy) in starred)
               for text, policy in zip(found.cells(name), found.table.index, strict=True)]
        for name in found.metrics
    }  # fmt: skip
    for at, policy in enumerate(found.table.index):
        values = [Cell(cells[name][at], float(found.table[name, "mean"].iloc[at])) for name in found.metrics]
        rows.append([str(policy), *values])
    rows += [[policy, f"refuses: {reason}", *[""] * (len(cells) - 1)] for policy, reason in found.refused.items()]
    no_interval = found.single or found.identical
    verdict = [] if no_interval else [f"means ± half-widths of {100 * found.confidence:g} % intervals"]
    verdict += ["◂ significantly better than all others"] if any(found.winners.values()) else []
    base = "the policy with the best mean" if found.baseline is None else found.baseline
    verdict += [f"* significantly different from {base} (Holm)"] if starred else []
    return to.table(["policy", *(metric_name(name) for name in found.metrics)], rows, "; ".join(verdict))


def compared_pictures(found: Comparison, to: Markup) -> str:
    """Return pictures of each policy's regret, and of the Pareto front of two metrics."""
    directed = [name for name in found.metrics if found.table[name, "mean"].map(math.isfinite).all()]
    directed.sort(key=lambda name: not name.startswith("response"))  # what most people look at
    return common.regret_picture(found, directed, to) + common.front_picture(found, directed, to)


def _walked(found: Comparison) -> tuple[str, bytes]:
    """Return HTML to explore the tasks of up to `MAX_RUNS` policies, and its data."""
    order = list(map(str, found.runs))
    if DEFAULT_METRIC in found.metrics and len(order) > MAX_RUNS:
        means = dict(zip(found.table.index, found.table[DEFAULT_METRIC, "mean"].astype(float), strict=True))
        order.sort(key=means.__getitem__)
    firsts = {label: first_of(found.runs[label]) for label in order[:MAX_RUNS]}
    packed, omitted = columns.packed({label: (run, columns.waits_by_cause(run)) for label, run in firsts.items()})
    notes = [f"Not shown here: {listed([*omitted, *order[MAX_RUNS:]])}."] if omitted or order[MAX_RUNS:] else []
    if any(isinstance(run, Replications) for run in found.runs.values()):
        notes.insert(0, "Only the first replication is shown.")
    return (f'<p class="note">{elements.escape(" ".join(notes))}</p>' if notes else "") + elements.explorer(), packed


def differences(found: Comparison, to: Markup) -> str:
    """Return a table of paired differences (if many, only those to the best policy)."""
    rows: list[list[str | Cell]] = []
    note = common.HOLM_OF_METRIC
    for metric, mine in found.pairs.groupby("metric", sort=False):
        if len(found.pairs) > common.MAX_ROWS:
            means = found.table[metric, "mean"].dropna()
            best = means.idxmax() if higher_is_better(str(metric)) else means.idxmin()
            mine = mine[(mine[["policy", "other"]] == best).any(axis=1)]
        rows += [[metric_name(str(metric)), *cells] for cells in common.difference_rows(str(metric), mine)]
    if len(rows) < len(found.pairs):
        note += f" Only differences to the best policy of each metric; {COMPARISON} has all {len(found.pairs):,} pairs."
    return to.table(["metric", *common.DIFFERENCE_TITLES], rows, note if rows else "")


def _compared_groups(found: Comparison) -> str:
    parts = []
    for group in ("class", "gpus", "user"):
        try:
            table = found.by(group)
        except UsageError:  # not kept of replications, or no such groups
            continue
        if len(table.index.get_level_values(0).unique()) < 2:
            continue
        those = (TASK_COUNT, *in_set("page_tasks")[:3])
        names = [name for name in those if name in table.columns.get_level_values(0)]
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
    names = [name for name in shown if name != TASK_COUNT]  # of which every policy gets the same
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
