"""A metric's name is written where it is declared, and in one file more at most."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest
import syntax

from hetsim.results.declared import declarations

SIMULATOR = Path(__file__).parents[2] / "sim"

syntax.look("texts", lambda nodes: {node.value for node in nodes.get(ast.Constant, ()) if isinstance(node.value, str)})


@pytest.mark.xdist_group("sources")
def test_names_of_metrics_stand_in_two_files_at_most():
    places, names = defaultdict(set), set(declarations())
    for file, texts in syntax.seen("texts").items():
        if file.is_relative_to(SIMULATOR):
            for name in texts & names:
                places[name].add(file)
    assert len(places) > 40
    assert {name: len(files) for name, files in places.items() if len(files) > 2} == {}
