"""Building does not copy keys of scenario files one by one, but where a value is drawn, merged or refused there."""

import ast
from pathlib import Path

import pytest
from test_readers import PATTERNS

import hetsim as hs

NAMES = {pattern.rpartition(".")[2] for pattern in PATTERNS} - {"*"}
DEMANDS = "what a task asks for is drawn or found by device type, and interned with that of others"
BUILT = "of a class that is built, or an argument of a function; no field is made from a key of its name"
COPIED = {
    ("cluster", "contention"): "the fabric is built of it and of the switches",
    ("drawn_modes", "partition name"): DEMANDS,
    ("drawn_modes", "nodes"): "one of several in training, else that of the task",
    ("drawn_modes", "largest"): "an argument of the time of a step, which training computes; of a transformer",
    ("faults", "mean"): "of a distribution",
    ("drawn_modes", "flops bandwidth cards latency efficiency passes"): "a machine of `hetsim.theory` is made of both",
    ("language_model", "gpus"): "of a replica: the demand of a task is made of it and of the memory of the device",
    ("language_model", "start"): "declared for services of every kind in `schema.service`",
    ("language_model", "weights"): "made from the step or the architecture",
    ("language_model", "name"): "of the stream, which the entry or its number named",
    ("merging", "name clients think"): BUILT,
    ("model_places", "stores"): "an argument of the check of places",
    ("modes", "memory"): DEMANDS,
    ("stream", "cpus"): DEMANDS,
    ("stream", "cluster training replication"): "arguments; a plan is cached by them",
    ("recorded", "shape time work load"): "columns that were drawn, and the load to which they are stretched",
    ("recorded", "cluster"): BUILT,
    ("recorded_modes", "table"): BUILT,
    ("served", "service"): BUILT,
    ("served", "start"): "declared for services of every kind in `schema.service`",
    ("served", "gpus cpus memory"): "of a replica: what it keeps is made of them and of its model",
    ("site trace_keys", "user"): "a column of a trace, which has a field of its own",
    ("synthetic", "partition work time"): "of ways to run that were drawn",
    ("synthetic", "qos account"): "a column of texts is made of each",
    ("run_input", "decisions name"): "the name of the run; the class is the schema's",
    ("served", "name"): "of the stream, which the entry or its number named",
    ("site", "name"): "nodes are matched with partitions by it",
}
"""File and keys, and why they are copied."""


def copied(tree):
    """Keys whose value is given on as it is, under the same name: to a class or function, or in a mapping.

    From an attribute, from what is used without the key, or from a local name that one of these was given to.
    """
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.Module):
            continue
        same = {key for key, value in bound(scope) if is_read(value, key)}
        for node in ast.walk(scope):
            for key, value in given(node):
                if key in NAMES and (is_read(value, key) or (isinstance(value, ast.Name) and value.id == key in same)):
                    yield key


def bound(scope):
    """Names to which a function gives values, and these."""
    for node in ast.walk(scope):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            pairs = zip(target.elts, node.value.elts, strict=True) if (
                isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)) else [(target, node.value)]
            yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def given(node):
    """Names and values that a call or a mapping has; of a class by place the name is that of the value."""
    if isinstance(node, ast.Call):
        yield from ((one.arg, one.value) for one in node.keywords)
        if (getattr(node.func, "id", "") or getattr(node.func, "attr", ""))[:1].isupper():
            yield from ((one.attr, one) for one in node.args if isinstance(one, ast.Attribute))
    elif isinstance(node, ast.Dict):
        yield from ((getattr(one, "value", None), value) for one, value in zip(node.keys, node.values, strict=True))


def is_read(value, key):
    """Is it `.key`, `.used("key")` or `getattr(..., "key")`?"""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("used", "getattr"):
        return any(isinstance(one, ast.Constant) and one.value == key for one in value.args)
    return isinstance(value, ast.Attribute) and value.attr == key


@pytest.mark.slow
def test_no_key_is_typed_again_in_building():
    sources = Path(hs.__file__).parent
    files = [sources / "planning" / "stream.py", *sorted((sources / "scenario" / "building").rglob("*.py"))]
    found = {(file.stem, key) for file in files for key in copied(ast.parse(file.read_text(encoding="utf-8")))}
    allowed = {(file, key) for files, keys in COPIED for file in files.split() for key in keys.split()}
    assert found == allowed, "make the class from the schema (hetsim.scenario.fields), or say why not"


@pytest.mark.parametrize("text", [
    "Mode(memory=way.memory)", "Mode(memory=way.used('memory'))", "Mode(memory=getattr(way, 'memory'))",
    "Mode(device, way.memory)", "Mode(**{'memory': way.memory})", "dict(memory=way.memory)",
    "def f(way):\n    memory = way.memory\n    return Mode(memory=memory)",
    "def f(way):\n    memory, cpus = way.memory, 1\n    return {'memory': memory}",
])  # fmt: skip
def test_however_a_key_is_copied_it_is_seen(text):
    assert set(copied(ast.parse(text))) == {"memory"}


@pytest.mark.parametrize("text", [
    "Mode(memory=way.memory + 1)", "Mode(memory=0 if on_cpu else way.memory)", "Mode(**way.demand.given)",
    "check(way.memory)", "def f(memory):\n    return Mode(memory=memory)", "{'memory': drawn(way.memory)}",
])  # fmt: skip
def test_what_is_drawn_merged_or_given_on_is_no_copy(text):
    assert not list(copied(ast.parse(text)))
