"""A metric's name is written where it is declared, and in one file more at most."""

import ast
from collections import defaultdict
from pathlib import Path

import hetsim as hs
from hetsim.results.declared import declarations


def test_names_of_metrics_stand_in_two_files_at_most():
    places = defaultdict(set)
    for file in sorted(Path(hs.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in declarations():
                places[node.value].add(file)
    assert {name: len(files) for name, files in places.items() if len(files) > 2} == {}
