"""Building does not copy keys of scenario files one by one, but where a value is drawn, merged or refused there."""

import ast
from pathlib import Path

from test_readers import PATTERNS

import hetsim as hs

NAMES = {pattern.rpartition(".")[2] for pattern in PATTERNS} - {"*"}
DEMANDS = "what a task asks for is drawn or found by device type, and interned with that of others"
COPIED = {
    ("cluster", "speed power peak"): "of the cores of a node, which are a device type of their own",
    ("drawn_modes", "cpus partition slice name largest"): DEMANDS,
    ("faults", "mean"): "of a distribution",
    ("job_steps", "flops bandwidth cards latency efficiency passes"): "a machine of `hetsim.theory` is made of both",
    ("language_model", "gpus name max_num_batched_tokens"): "merged with what replicas and variants say",
    ("pipeline", "cpus"): DEMANDS,
    ("recorded", "shape time work"): "columns that were drawn",
    ("run_input", "decisions name"): "the name of the run; the class is the schema's",
    ("served", "name"): "of the stream, which the entry or its number named",
    ("site", "name"): "nodes are matched with partitions by it",
}
"""File and keys, and why they are copied."""


def makes(call):
    """True if a class is called, or a copy made; arguments of functions are named wherever there are more than four."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name[:1].isupper() or name in ("replace", "model_copy", "partial")


def copied():
    """Keys with which building/ makes an object from a value that has them under the same name."""
    for file in sorted((Path(hs.__file__).parent / "scenario" / "building").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for given in node.keywords if isinstance(node, ast.Call) and makes(node) else ():
                if given.arg in NAMES and isinstance(given.value, ast.Attribute) and given.value.attr == given.arg:
                    yield file.stem, given.arg


def test_no_key_is_typed_again_in_building():
    allowed = {(file, key) for file, keys in COPIED for key in keys.split()}
    assert len(allowed) > 15
    assert not sorted(set(copied()) - allowed), "make the class from the schema (hetsim.scenario.generated)"
