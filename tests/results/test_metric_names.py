"""A metric's name is written where it is declared, and in one file more at most."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import syntax

import hetsim as hs
from hetsim.results.declared import declarations


def test_names_of_metrics_stand_in_two_files_at_most():
    places, names = defaultdict(set), set(declarations())
    quoted = re.compile("[\"'](?:" + "|".join(map(re.escape, names)) + ")[\"']")
    for file in sorted(Path(hs.__file__).parent.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        for node in syntax.nodes_of(ast.parse(source)) if quoted.search(source) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
                places[node.value].add(file)
    assert {name: len(files) for name, files in places.items() if len(files) > 2} == {}
