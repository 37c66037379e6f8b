"""A metric's name is written where it is declared, and in one file more at most."""

import ast
from collections import defaultdict
from pathlib import Path

import hetsim as hs
from hetsim.model.record import STATUS_NAMES
from hetsim.results.declared import declarations
from hetsim.results.one_run.tables import OF_STAGES

OTHER_THINGS = {*STATUS_NAMES.values(), *OF_STAGES, "tasks", "launches"}
"""Words that are also outcomes, columns of tasks, or tables."""
MORE = {
    "goodput": 6, "makespan": 6, "fragmentation": 5, "wait_mean": 5, "response_mean": 4,
    "throughput": 4, "planned_makespan": 4, "slowdown_mean": 3, "wait_p95": 3,
}  # fmt: skip
"""Those that are also keys of rewards, plans, predictions or pictures, and in how many files; none may be added."""


def test_names_of_metrics_stand_in_two_files_at_most():
    places = defaultdict(set)
    for file in sorted(Path(hs.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in declarations():
                places[node.value].add(file)
    many = {name: len(files) for name, files in places.items() if len(files) > MORE.get(name, 2)}
    assert {name: count for name, count in many.items() if name not in OTHER_THINGS} == {}
    assert {name: len(files) for name, files in places.items() if name in MORE} == MORE
