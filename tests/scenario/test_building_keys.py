"""Building does not copy keys of scenario files one by one, but where a value is drawn, merged or refused there."""

import ast
from pathlib import Path

from test_readers import PATTERNS

import hetsim as hs

NAMES = {pattern.rpartition(".")[2] for pattern in PATTERNS} - {"*"}
DEMANDS = "what a task asks for is drawn or found by device type, and interned with that of others"
COPIED = {
    ("drawn_modes", "partition name"): DEMANDS,
    ("drawn_modes", "largest"): "an argument of the time of a step, which training computes instead",
    ("faults", "mean"): "of a distribution",
    ("job_steps", "flops bandwidth cards latency efficiency passes"): "a machine of `hetsim.theory` is made of both",
    ("job_steps", "largest"): "of a transformer; no key",
    ("language_model", "gpus"): "of a replica: the demand of a task is made of it and of the memory of the device",
    ("language_model", "name"): "of the stream, which the entry or its number named",
    ("pipeline", "cpus"): DEMANDS,
    ("pipeline", "cluster training replication"): "arguments; a plan is cached by them",
    ("recorded", "shape time work load"): "columns that were drawn, and the load to which they are stretched",
    ("synthetic", "partition work"): "of ways to run that were drawn",
    ("run_input", "decisions name"): "the name of the run; the class is the schema's",
    ("served", "name"): "of the stream, which the entry or its number named",
    ("site", "name"): "nodes are matched with partitions by it",
}
"""File and keys, and why they are copied."""


def copied():
    """Keys with which building/ calls a class or function and gives what a value has under the same name."""
    for file in sorted((Path(hs.__file__).parent / "scenario" / "building").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for given in node.keywords if isinstance(node, ast.Call) else ():
                if given.arg in NAMES and isinstance(given.value, ast.Attribute) and given.value.attr == given.arg:
                    yield file.stem, given.arg


def test_no_key_is_typed_again_in_building():
    allowed = {(file, key) for file, keys in COPIED for key in keys.split()}
    assert set(copied()) == allowed, "make the class from the schema (hetsim.scenario.generated), or say why not"
