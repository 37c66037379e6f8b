"""The command that makes a sweep again: the same keys, values and policies, in the same order."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from itertools import product
from shlex import quote
from typing import Any

from hetsim.errors import HetsimError, UsageError
from hetsim.experiment.points import parse_over
from hetsim.experiment.policies import written
from hetsim.report.html import elements
from hetsim.report.html.common import policy_option, policy_text, scenario_file
from hetsim.results.many_runs.sweep import Sweep
from hetsim.scenario.file.document import parse_value


def again(found: Sweep, folder: str) -> str:
    """The command: a grid as its keys, other points as a table to be saved first; the policies always by name."""
    points, policies = _by_point(found)
    crossed = all(mine == policies[0] for mine in policies)
    options, table = [], ""
    if crossed and (grid := _grid(found)) is not None:
        options = [f"--over {quote(text)}" for text in grid]
    elif found.keys or not crossed:
        options = ["--points points.csv"]
        rows = [[_text(found.points[key].loc[point]) for key in found.keys] for point in points]
        titles = list(found.keys)
        if not crossed:
            titles.append("policy")
            each = zip(rows, policies, strict=True)
            rows = [[*row, policy_text(label)] for row, mine in each for label in mine]
        once = [list(row) for row in dict.fromkeys(map(tuple, rows))]
        more = ", where what was drawn several times stands once" if len(once) < len(rows) else ""
        table = f"<p>with the points in a file{more}:</p>" + elements.code(_as_csv([titles, *once]), "points.csv")
    if crossed:
        options += [policy_option(label) for label in policies[0]]
    options += [f"--metric {quote(name)}" for name in found.metrics]
    if isinstance(found.replications, int):
        options.append(f"--replications {found.replications}")
    else:
        wanted = ", ".join(f"{key}: {value}" for key, value in found.replications.items())
        options.append(f"--set {quote(f'replications={{{wanted}}}')}")
    if "seed" not in found.keys:
        options.append(f"--seed {found.seed}")
    words = [f"hetsim sweep {scenario_file(folder)}", *options]
    return elements.code(" ".join(words)) + table + _unknown(found)


def _by_point(found: Sweep) -> tuple[list[int], list[list[str]]]:
    """The points in order, and the policies of each."""
    mine: dict[int, list[str]] = {}
    for point, label in zip(found.table["point"].tolist(), found.table["policy"].tolist(), strict=True):
        mine.setdefault(int(point), []).append(str(label))
    return list(mine), list(mine.values())


def _grid(found: Sweep) -> list[str] | None:
    """What stands behind each --over, if the points are all combinations in order and can be written so."""
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
    """A value as a scenario would have it; a text that reads as a number keeps its quotes."""
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
    """Policies with names of their own, of which the directory does not keep what they stand for."""
    names = [label for label in dict.fromkeys(found.table["policy"]) if written(label) is None]
    if not names:
        return ""
    text = f"{', '.join(names)}: a name given in Python; write in its place the policy that it stands for."
    return elements.warnings([text])
