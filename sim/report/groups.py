"""What became of each group of tasks, as text: made from the tables of `sim.results.groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from sim.report import terminal
from sim.report.overview import beside
from sim.results.groups import TITLES, checked, group_metrics, telling
from sim.results.metrics import RUN_ONLY

SHOWN = ("tasks", "rejected", "expired", "failed", "unfinished", "wait_mean", "response_mean", "response_p95",
         "bounded", "slo_attainment", "rho_p95", "preemptions", "gpu_seconds", "energy_of_tasks_j",
         "cost_held")  # fmt: skip
"""What a terminal shows of each group, where it tells something; files have more."""


def groups_lines(tables: Mapping[str, pd.DataFrame], by: Iterable[str], further: Iterable[str] = ()) -> list[str]:
    """The tables as text: a row a group and policy; `further` metrics are shown beside the usual ones."""
    lines = []
    for name in checked(by):
        if name not in tables:
            lines += ["", f"By {TITLES[name]}: there is one group only."]
            continue
        lines += ["", f"By {TITLES[name]}:", *_lines(tables[name], name, further)]
    return lines


def _lines(table: pd.DataFrame, by: str, further: Iterable[str]) -> list[str]:
    bounded = next(name for name in group_metrics() if name.startswith("bounded"))
    wanted = [bounded if name == "bounded" else name for name in SHOWN]
    wanted += [name for name in further if name not in RUN_ONLY and name not in wanted]
    shown = [name for name in wanted if name in telling(table) or (name in further and name in table)]
    several = table.index.get_level_values("policy").nunique() > 1
    labels = []
    for group in dict.fromkeys(table.index.get_level_values(0)):
        policies = table.loc[[group]].index.get_level_values("policy")
        labels += [[str(group) if not number else "", str(policy)] for number, policy in enumerate(policies)]
    head = [TITLES[by], "policy"]
    if not several:
        labels, head = [label[:1] for label in labels], head[:1]
    names = terminal.table([head, *labels])
    columns = [[terminal.metric_name(name), *_cells(table, name)] for name in shown]
    return beside(names, columns)


def _cells(table: pd.DataFrame, metric: str) -> list[str]:
    """One unit for a column; a number of tasks that is the same in every run as it is."""
    part = table[metric]
    return terminal.several(part["mean"].tolist(), terminal.units_of(metric), part["half_width"].tolist())
