"""Groups of tasks as text, from the tables of `hetsim.results.one_run.groups`."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from hetsim.report import terminal
from hetsim.report.overview import beside
from hetsim.results.declared import TASK_COUNT, in_set, of_groups
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.groups import SHOWN_MARK, difference_cells, difference_note, telling
from hetsim.results.one_run.groups import TITLES, checked, title


def groups_lines(
    tables: Mapping[str, pd.DataFrame], by: Iterable[str], further: Iterable[str] = (),
    comparison: Comparison | None = None, only: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """Return tables of groups as text, one row per group and policy.

    With a comparison, the paired differences to its base follow each table.  `only`: the metrics to show; empty: all.
    """
    lines, further = [], list(further)
    for name in checked(by):
        if name not in tables:
            lines += ["", f"By {TITLES[name]}: there is only one group."]
            continue
        wanted = in_set("group_rows")
        wanted += [one for one in further if of_groups(one) and one not in wanted]
        shown = [one for one in wanted if one in telling(tables[name]) or (one in further and one in tables[name])]
        shown = [one for one in shown if one in (TASK_COUNT, *only)] if only else shown
        lines += ["", f"By {title(name, tables[name].index.get_level_values(0))}:", *_lines(tables[name], name, shown)]
        if comparison is not None:
            lines += _differences(comparison, name, shown)
    return lines


def _lines(table: pd.DataFrame, by: str, shown: Sequence[str]) -> list[str]:
    several = table.index.get_level_values("policy").nunique() > 1
    labels = []
    for group in dict.fromkeys(table.index.get_level_values(0)):
        policies = table.loc[[group]].index.get_level_values("policy")
        labels += [[str(group) if not number else "", str(policy)] for number, policy in enumerate(policies)]
    head = [title(by, table.index.get_level_values(0)), "policy"]
    if not several:
        labels, head = [label[:1] for label in labels], head[:1]
    names = terminal.table([head, *labels])
    columns = [
        [terminal.metric_name(name), *terminal.several(table[name]["mean"].tolist(), terminal.units_of(name),
                                                       table[name]["half_width"].tolist())]
        for name in shown
    ]  # fmt: skip
    return beside(names, columns)


def _differences(comparison: Comparison, by: str, shown: Sequence[str]) -> list[str]:
    names = [name for name in shown if name != TASK_COUNT]  # of which every policy gets the same
    differences = comparison.differences_by(by, names)
    if differences.empty:
        return []
    rows = list(dict.fromkeys(zip(differences[by], differences["policy"], strict=True)))
    called = title(by, differences[by])
    labels = [[called, "policy"]]
    labels += [
        [str(group) if not number or rows[number - 1][0] != group else "", str(policy)]
        for number, (group, policy) in enumerate(rows)
    ]
    columns, same = [], []
    for name in names:
        part = differences[differences["metric"] == name].set_index([by, "policy"]).reindex(rows)
        if (part["difference"] == 0).all() and not (part["half_width"] > 0).any():
            same.append(terminal.metric_name(name))
            continue
        marks = part["significant"].eq(True).tolist()
        cells = difference_cells(name, part["difference"].tolist(), part["half_width"].tolist(), marks)
        room = " " * len(SHOWN_MARK) if any(marks) else ""  # so that figures stand below figures
        cells = [cell if is_marked else cell + room for cell, is_marked in zip(cells, marks, strict=True)]
        columns.append([terminal.metric_name(name), *cells])
    note = difference_note(differences, comparison.confidence, comparison.identical, comparison.single)
    notes = [note] if columns else []
    if same:
        notes.insert(0, f"Equal under all policies in every run: {', '.join(same)}.")
    head = f"Differences to {comparison.base}, by {called}:"
    table = beside(terminal.table(labels), columns) if columns else []
    return ["", head, *table, *terminal.paragraphs(notes)]
