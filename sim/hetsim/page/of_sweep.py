"""The page about a sweep: a scenario at many points, under one policy or several."""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import product
from shlex import quote
from typing import Any

import pandas as pd

from hetsim.errors import HetsimError, UsageError
from hetsim.experiment.points import parse_over
from hetsim.experiment.policies import written
from hetsim.page import common, elements
from hetsim.page.elements import Cell, Markup, Section
from hetsim.results.declared import has_direction, higher_is_better
from hetsim.results.formatting import listed, metric_name, several, units_of
from hetsim.results.many_runs.findings import Finding, seen_from
from hetsim.results.many_runs.point_differences import Leads, findings_by_point, leads
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import knees
from hetsim.scenario.file.document import parse_value

MAX_METRICS = 3  # number of metrics with a sentence, if there is only one policy

Findings = Mapping[str, dict[int, list[Finding]]]  # by metric and point


def of_sweep(found: Sweep, folder: str) -> common.Parts:
    """Return title, first lines and sections of the page of a sweep."""
    findings = findings_of(found)
    words = elements.items([*_swept_in_words(found, findings), *_differing_in_words(found, findings),
                            *(f"{text}." for text in knees(found))])  # fmt: skip
    failed = [f"point {row.point} under {row.policy} failed: {row.error}" for row in found.failed.itertuples()]
    policies = list(dict.fromkeys(found.table["policy"]))
    under = f" under {policies[0]}" if len(policies) == 1 else ""
    return f"{found.name or 'sweep'}{under}", [found.title], [
        Section("In words", words + elements.warnings([*found.remarks, *failed[:20]])),
        Section("Pictures", swept_pictures(found, elements)),
        Section("All points", swept_table(found, elements)),
        Section("Differences", differences(found, findings, elements)),
        Section("Scenario", _swept_scenario(found)),
        Section("Make it again", _again(found, folder) if found.directory else ""),
    ], b""  # fmt: skip


# In words ---------------------------------------------------------------------------------------------------------


def findings_of(found: Sweep) -> Findings:
    """Return paired differences in the metrics shown, if there are several policies."""
    if found.table["policy"].nunique() < 2 or found.table["point"].nunique() > common.MAX_ROWS:
        return {}
    return {name: findings_by_point(found, name) for name in found.shown_metrics}


def _swept_in_words(found: Sweep, findings: Findings) -> Iterator[str]:
    policies = list(dict.fromkeys(found.table["policy"]))
    if len(policies) == 1:
        yield f"Every point was run under {policies[0]}."
    # The table of all points has every metric: of several policies one metric is enough to say which leads where.
    room = MAX_METRICS if len(policies) == 1 else 1
    for name in found.shown_metrics:
        try:
            row = found.best(name)
        except UsageError:
            continue
        at = _at(found, int(row["point"]))
        under = f" under {row['policy']}" if len(policies) > 1 else ""
        extreme = "highest" if higher_is_better(name) else "lowest"
        half = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2 if f"{name}_ci_high" in row else math.nan
        subject, figure = common.sentence_case(metric_name(name)), several([row[name]], units_of(name), [half])[0]
        yield f"{subject} is {extreme}, {figure}, with {at or 'the only point'}{under}."
        yield from _leads_in_words(leads(found, name, findings.get(name)), name)
        room -= 1
        if not room:
            break
    if found.table["replications"].max() > 1:
        yield "The best of many estimates is biased: repeat the run with another seed before relying on it."
    elif len(policies) > 1:
        yield "One run of each policy at a point gives no confidence intervals; use --replications 10."


def _at(found: Sweep, point: int) -> str:
    return ", ".join(f"{key} = {found.points[key].loc[point]}" for key in found.keys)


def _leads_in_words(led: Leads, metric: str) -> Iterator[str]:
    if not led.points:
        return
    alone = [f"{policy} at {number}" for policy, number in _by_number(led.alone)]
    ties = [f"{listed(tied)} tie at {number}" for tied, number in _by_number(led.ties)]
    text = "; ".join([", ".join(alone), *ties] if alone else ties)
    yield f"Points at which each policy has the best {metric_name(metric)}, of {led.points}: {text}."
    if led.tested and not led.shown:
        yield f"No policy is significantly better than all others in {metric_name(metric)} at any of the points."
    elif led.tested:
        clear = ", ".join(f"{policy} at {number} of {led.points} points" for policy, number in _by_number(led.shown))
        rest = led.points - sum(led.shown.values())
        more = f"; the other {rest} show no significant best" if rest else ""
        yield f"Clearly best in {metric_name(metric)}, better than all others: {clear}{more}."


def _by_number(numbers: Mapping[Any, int]) -> list[tuple[Any, int]]:
    return sorted(numbers.items(), key=lambda item: -item[1])


def _differing_in_words(found: Sweep, findings: Findings) -> Iterator[str]:
    metric = next((name for name in findings if has_direction(name) and findings[name]), None)
    if metric is None:
        return
    means = found.table.drop_duplicates(["point", "policy"]).set_index(["point", "policy"])[metric].dropna()
    largest, sentence, number = 0.0, "", 0
    for point, of_point in findings[metric].items():
        mine = means.xs(point) if point in means.index.get_level_values(0) else means.iloc[:0]
        if not len(mine):
            continue
        for finding in seen_from(of_point, str(mine.idxmax() if higher_is_better(metric) else mine.idxmin())):
            base = float(mine[finding.other])
            if finding.shown != "different":
                continue
            number += 1
            share = abs(finding.difference / base) if base else 0.0
            if not sentence or share > largest:
                at = _at(found, point)
                largest, sentence = share, (f"With {at}: " if at else "") + common.better_sentence(finding, base)
    if sentence:
        yield sentence
    if number > 1:
        yield f"The table of differences has {number - 1:,} more."


# Pictures and tables ----------------------------------------------------------------------------------------------


def swept_pictures(found: Sweep, to: Markup) -> str:
    """Return pictures of metrics against swept keys, regret, and a Pareto front."""
    from hetsim import plots  # large: not before the folder has been read

    varied = [key for key in found.keys if found.table[key].nunique() > 1]
    policies = list(dict.fromkeys(found.table["policy"]))
    parts = []
    for name in found.shown_metrics[:2]:
        if len(varied) == 1:
            # Refused for samples of a list of which some are the same, or where all have failed.
            draw = partial(plots.against, found, varied[0], name)
            parts.append(to.picture(draw, f"{metric_name(name)} against {varied[0]}", optional=True))
        elif len(varied) == 2:
            for policy in policies[:4]:
                where = {"policy": policy} if len(policies) > 1 else None
                # Refused where sampled points are not a grid.
                draw = partial(plots.sweep_map, found, varied[0], varied[1], name, where=where)
                alt = f"{metric_name(name)} over {varied[0]} and {varied[1]}"
                parts.append(to.picture(draw, alt, optional=True))
    if len(policies) > 1:
        parts.append(common.regret_picture(found, found.shown_metrics, to))
    parts.append(common.front_picture(found, found.shown_metrics, to))
    return "".join(parts)


def swept_table(found: Sweep, to: Markup) -> str:
    """Return a table with one row per point and policy."""
    titles, texts = found.shown(common.MAX_ROWS)
    frame = found.table.iloc[:common.MAX_ROWS]
    metrics = [metric_name(name) for name in found.shown_metrics]
    rows = []
    for at, row in enumerate(texts):
        cells: list[str | Cell] = []
        for title, text in zip(titles, row, strict=True):
            if title in metrics:
                cells.append(Cell(text, float(frame[found.shown_metrics[metrics.index(title)]].iloc[at])))
            elif title == "point":
                cells.append(Cell(text, float(text)))
            elif title in found.keys and pd.api.types.is_numeric_dtype(frame[title]):
                cells.append(Cell(text, float(frame[title].iloc[at])))
            else:
                cells.append(text)
        rows.append(cells)
    more = f"The first {common.MAX_ROWS:,} of {len(found):,} rows" if len(found) > common.MAX_ROWS else ""
    return to.table(titles, rows, more)


def differences(found: Sweep, findings: Findings, to: Markup) -> str:
    """Return paired differences of all pairs of policies, at points with replications."""
    rows: list[list[str | Cell]] = []
    for metric, by_point in findings.items():
        every = [(point, finding) for point, of_point in by_point.items() for finding in of_point]
        if not any(finding.n > 1 for _, finding in every):
            continue
        cells = common.difference_rows(metric, pd.DataFrame([vars(finding) for _, finding in every]))
        for (point, _), row in zip(every, cells, strict=True):
            at = [str(found.points[key].loc[point]) for key in found.keys]
            rows.append([metric_name(metric), Cell(str(point), float(point)), *at, *row])
    note = "Paired over replications; intervals and p are corrected by Holm's procedure over the pairs of all points."
    if len(rows) > common.MAX_ROWS:
        note += f" The first {common.MAX_ROWS:,} of {len(rows):,} rows."
    titles = ["metric", "point", *found.keys, *common.DIFFERENCE_TITLES]
    return to.table(titles, rows[: common.MAX_ROWS], note if rows else "")


def _swept_scenario(found: Sweep) -> str:
    file = None if found.directory is None else found.directory / "scenario.yaml"
    if file is None or not file.is_file():
        return ""
    return elements.code(file.read_text(encoding="utf-8"), "the scenario that was swept")


def _again(found: Sweep, folder: str) -> str:
    command, table, more = again(found, folder)
    points = f"<p>with the points in a file{more}:</p>" + elements.code(table, "points.csv") if table else ""
    return elements.code(command) + points + _unknown(found)


def again(found: Sweep, folder: str) -> tuple[str, str, str]:
    """Return the command that repeats a sweep, its points as CSV, and a note on them."""
    points, policies = _by_point(found)
    crossed = all(mine == policies[0] for mine in policies)
    options, table, more = [], "", ""
    if crossed and (grid := _grid(found)) is not None:
        options = [f"--over {quote(text)}" for text in grid]
    elif found.keys or not crossed:
        options = ["--points points.csv"]
        rows = [[_text(found.points[key].loc[point]) for key in found.keys] for point in points]
        titles = list(found.keys)
        if not crossed:
            titles.append("policy")
            each = zip(rows, policies, strict=True)
            rows = [[*row, common.policy_text(label)] for row, mine in each for label in mine]
        once = [list(row) for row in dict.fromkeys(map(tuple, rows))]
        more = ", without repeated points" if len(once) < len(rows) else ""
        table = _as_csv([titles, *once])
    if crossed:
        options += [common.policy_option(label) for label in policies[0]]
    options += [f"--metric {quote(name)}" for name in found.metrics]
    if isinstance(found.replications, int):
        options.append(f"--replications {found.replications}")
    else:
        wanted = ", ".join(f"{key}: {value}" for key, value in found.replications.items())
        options.append(f"--set {quote(f'replications={{{wanted}}}')}")
    if "seed" not in found.keys:
        options.append(f"--seed {found.seed}")
    return " ".join([f"hetsim sweep {common.scenario_file(folder)}", *options]), table, more


def _by_point(found: Sweep) -> tuple[list[int], list[list[str]]]:
    mine: dict[int, list[str]] = {}
    for point, label in zip(found.table["point"].tolist(), found.table["policy"].tolist(), strict=True):
        mine.setdefault(int(point), []).append(str(label))
    return list(mine), list(mine.values())


def _grid(found: Sweep) -> list[str] | None:
    """Return the arguments of --over (keys to sweep) if points form a grid, else None."""
    columns = {key: found.points[key].tolist() for key in found.keys}
    axes = {key: list({_text(value): value for value in values}.values()) for key, values in columns.items()}
    if [list(row) for row in zip(*columns.values(), strict=True)] != [list(row) for row in product(*axes.values())]:
        return None if found.keys else []
    texts = []
    for key, values in axes.items():
        text = f"{key}=" + ",".join(map(_text, values))
        try:
            read = parse_over(text)
        except UsageError:
            return None
        if read != (key, [parse_value(_text(value)) for value in values]):
            return None  # a value has a comma, or looks like a range
        texts.append(text)
    return texts


def _text(value: Any) -> str:
    """Return a value in scenario syntax; text that reads as a number keeps its quotes."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    try:
        read = parse_value(value)
    except HetsimError:
        return json.dumps(value, ensure_ascii=False)
    plain = isinstance(read, str | dict | list)  # of these the text is kept
    return value if plain else json.dumps(value, ensure_ascii=False)


def _as_csv(rows: Sequence[Sequence[str]]) -> str:
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _unknown(found: Sweep) -> str:
    names = [label for label in dict.fromkeys(found.table["policy"]) if written(label) is None]
    if not names:
        return ""
    text = f"{', '.join(names)}: a name given in Python; replace it by the policy that it names."
    return elements.warnings([text])
