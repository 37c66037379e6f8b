"""A fact is declared once: fields that a class of the schema and one of the model share by name are different facts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from shared_schema import shared_schema

import hetsim as hs
from hetsim.model.described import Described
from hetsim.scenario.fields import Mirror

DIFFERENT = {
    "null says that an entry, a class or a mode does not say it; the model has one value for each launch": (
        "Held/Mode Occupied/Mode"
    ),
    "the scenario has a distribution or a rule, the model what was drawn, by row": (
        "Demand/Tasks Demand/ClosedStream Demand/Service Demand/LanguageService WorkloadEntry/Tasks "
        "WorkloadEntry/ClosedStream"
    ),
    "the scenario has it as people write it, the model what is built from all of it": (
        "ScenarioModel/RunInput Policies/RunInput SharingSpec/Sharing MeasuredSpec/Mode StepTime/LinearSteps "
        "StepTime/KernelSteps Nodes/Node LanguageModel/ReplicaKind ClusterSpec/Fabric"
    ),
    "upload and download of a network are other names of out and in; its curve is rows, not the built curve": (
        "NodeNetworkSpec/Link NodeNetworkSpec/Mode"
    ),
    "seconds that a stage took": (
        "Held/Record Held/BatchTimes NodeNetworkSpec/Record NodeNetworkSpec/BatchTimes VariantSpec/Record "
        "VariantSpec/BatchTimes"
    ),
    "stages as the scenario has them, by their coefficients; the rate of a link; a built mode": (
        "VariantSpec/Mode VariantSpec/Link Held/Link"
    ),
    "of a launch, not of a node": "Occupied/NodeSpec Occupied/Node",
    "other things with the same names": (
        "TaskMode/FaultEvent Disaggregated/LinearSteps Disaggregated/KernelSteps LanguageModel/DeviceType "
        "PolicySpec/DeviceType Replicas/Record WorkloadEntry/NodeSpec WorkloadEntry/FaultProcess"
    ),
}
"""Classes that share two names or more, by the reason why neither can be made from the other."""


def fields(folder: str) -> Iterator[tuple[str, set[str]]]:
    for file in sorted((Path(hs.__file__).parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                typed = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                named = [one for one in typed if "ClassVar" not in ast.unparse(one.annotation)]
                yield node.name, {one.target.id for one in named if isinstance(one.target, ast.Name)}


@pytest.mark.slow
def test_no_field_of_the_model_is_declared_again_in_the_schema():
    pairs = product(fields("scenario/schema"), fields("model"))
    shared = {f"{spec}/{made}": mine & others for (spec, mine), (made, others) in pairs if len(mine & others) > 1}
    listed = {pair for pairs in DIFFERENT.values() for pair in pairs.split()}
    assert shared.keys() == listed, "make the schema from the dataclass (hetsim.scenario.fields), or say why not"


NODES = {"count": 3, "cpus": 4, "gpus": {"type": "v100", "count": 2, "memory": "16 GB"}}
ARRIVALS = {"arrivals": {"process": "poisson", "rate": "2/s"}, "count": 12}
TASKS = {**ARRIVALS, "gpu_time": {"distribution": "exponential", "mean": "1 s"}}
PROFILED = {**ARRIVALS, "profile": "cnn_training"}
LLM = {"kind": "llm", "model": "1 GB", "step": {"fixed": "10 ms"}, "kv": {"per_token": "1 MB"}}
ASKED = {**ARRIVALS, "tokens": {"prompt": 50, "output": 20}}
FULL = {**ARRIVALS, "tokens": {"prompt": 500, "output": 20}}
"""Prompts for which the memory of a GPU is the limit."""
BYTES = {**LLM, "model": "10 GB", "kv": {"per_token": "3 MB"}}
ESTIMATED = {"kind": "llm", "model": "llama-2-7b", "gpu": "v100"}
TRACE = {"trace": {"format": "tasks", "path": "tasks.csv"}}
TABLE = {"table": "times.csv", "unit": "ms"}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    **dict.fromkeys(("gpus", "memory", "nodes", "upload", "download", "priority", "weight", "estimates"), (TASKS, "")),
    **dict.fromkeys(("batch", "steps", "efficiency"), (PROFILED, "")),
    **dict.fromkeys(("skip", "time_scale"), (TRACE, "")),
    "span": ({**TASKS, "gpus": 2}, ""),
    "span_speed": ({**TASKS, "gpus": 2, "span": "any"}, ""),
    "loc": ({**ARRIVALS, "gpu_time": {"distribution": "scipy", "name": "expon", "scale": "1 s"}}, "gpu_time"),
    "service.batch": ({**ARRIVALS, "service": {"compute": TABLE}}, "service.compute"),
    "service.time": ({**ARRIVALS, "service": {"compute": TABLE}}, "service.compute"),
    "replicas": ({**ASKED, "service": LLM}, "service"),
    "memory_share where model is an architecture": ({**FULL, "service": ESTIMATED}, "service"),
    "memory_share where it is bytes": ({**FULL, "service": BYTES}, "service"),
    "policy": (TASKS, "policy"),
}
"""An entry of a workload by key, and where in it the key stands."""
IN_UNITS = {"memory": "B", "upload": "s", "download": "s", "loc": "s"}


def used_values() -> dict[str, Any]:
    """Values that are used without keys of the schema, by key; those of dataclasses are their defaults."""
    shared_schema()
    models, values = [Described], {}
    while models:
        models += (model := models.pop()).__subclasses__()
        own = {} if issubclass(model, Mirror) and "SOURCE" in vars(model) else vars(model).get("USED", {})
        of_a_table = model.__name__ == "MeasuredSpec"
        for key, value in own.items():
            name = f"service.{key}" if of_a_table else key
            several = value if isinstance(value, dict) else {"": value}
            for where, one in several.items():
                case = f"{name} {where}".strip()
                assert values.setdefault(case, one) == one, case
    return values


@pytest.mark.slow
def test_every_value_that_is_used_has_a_case():
    assert used_values().keys() == CASES.keys()


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_said_to_be_used_without_a_key_is_what_a_run_uses(name: str, tmp_path: Path, monkeypatch):
    """To give the value that a description states changes nothing."""
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("arrival,cpu_time\n0,1\n2,1\n3,2\n")
    Path("times.csv").write_text("batch,time\n1,5\n2,8\n4,11\n")
    (entry, place), key = CASES[name], name.partition(" ")[0].rpartition(".")[2]
    value = used_values()[name]
    value = f"{value} {IN_UNITS[name]}" if name in IN_UNITS else value
    runs = []
    for more in ({}, {key: value}):
        document = {"seed": 3, "cluster": {"nodes": NODES}, "workload": deepcopy(entry)}
        at: Any = document if place == "policy" else document["workload"]
        for part in place.replace("policy", "").split("."):
            at = at[part] if part else at
        at.update(more)
        runs.append(hs.run(document).tasks)
    pd.testing.assert_frame_equal(*runs)


@pytest.mark.parametrize("service", [BYTES, ESTIMATED], ids=["bytes", "architecture"])
def test_less_memory_than_is_said_changes_a_run(service: dict[str, Any]):
    """So the cases of `memory_share` can fail."""
    share = {BYTES["model"]: 0.9, "llama-2-7b": 0.87}[service["model"]]
    runs = [hs.run({"seed": 3, "cluster": {"nodes": NODES}, "workload": {**FULL, "service": {**service, **more}}})
            for more in ({}, {"memory_share": share})]  # fmt: skip
    assert not runs[0].tasks.equals(runs[1].tasks)
