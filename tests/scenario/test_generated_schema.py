"""Classes that are declared once: their schema is made from the dataclass of the model room."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from hetsim.errors import KeyProblem
from hetsim.formulas.training import ParallelPlan, Transformer
from hetsim.model.clients import Clients, Retry, RetryWait
from hetsim.model.cluster import DeviceType, Link, NodeSpec, Partition, Power, Preemption, Price, Sharing
from hetsim.model.decision_time import DecisionTime
from hetsim.model.described import with_default
from hetsim.model.faults import FaultProcess, Maintenance
from hetsim.model.service import Autoscaling, LanguageService, ResultCache, Service
from hetsim.model.step_times import LinearSteps
from hetsim.model.tasks import ComputeTime, Item, SpanSpeeds, StageTime, Stopping
from hetsim.scenario.generated import Keys, Mirror
from hetsim.scenario.schema.whole import ScenarioModel, json_schema
from hetsim.workload.costs.step_costs import Efficiency

ONCE = {
    DeviceType, Link, NodeSpec, Partition, Power, Preemption, Price, Sharing, Autoscaling, ResultCache, LinearSteps,
    ComputeTime, DecisionTime, FaultProcess, Clients, Retry, RetryWait,
    SpanSpeeds, StageTime, Stopping, Efficiency, Item, LanguageService, Maintenance, ParallelPlan, Service, Transformer,
}  # fmt: skip


def mirrors(kind: type = Mirror) -> set[type[BaseModel]]:
    return {found for one in kind.__subclasses__() for found in (one, *mirrors(one))}


def test_every_mirrored_class_is_declared_once():
    assert ScenarioModel and {one.SOURCE for one in mirrors() if one.SOURCE} == ONCE


@pytest.mark.parametrize("source", sorted(ONCE, key=lambda one: one.__name__))
def test_no_key_of_the_dataclass_is_declared_again(source):
    """The schema declares none of the keys that it takes from the dataclass."""
    for model in mirrors():
        if model.SOURCE is source:
            own = [base for base in model.__mro__ if base.__module__.startswith("hetsim.scenario.schema")]
            typed = {name for base in own for name in base.__dict__.get("__annotations__", ())}
            assert not typed & set(model.KEYS), (model, typed)


def test_an_instance_is_what_was_given():
    adapter = TypeAdapter(Keys(Power).model)
    assert adapter.validate_python({"idle": "50 W", "wake": "2 s"}).made() == Power(50.0, wake=2.0)
    assert Keys(Price).model.model_validate({"up": "7200/h"}).made() == Price(2.0, 2.0)
    assert Keys(Link).model.model_validate({"download": "1 GB/s"}).made() == Link(1e9, 1e9)
    assert Keys(Link).model.model_validate({}).made() == Link(math.inf, math.inf)
    stopping = Keys(Stopping).model.model_validate({"interval": "10 s", "checkpoint": "1 s"}).made()
    assert (stopping.interval, stopping.checkpoint) == (11.0, 1.0)
    assert Keys(SpanSpeeds).model.model_validate({"node": 0.5}).made() == SpanSpeeds(1.0, 1.0, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("source", "given", "key"),
    [
        (Preemption, {"kind": "drain", "rate": "1 GB/s"}, "rate"),
        (Link, {"upload": 0}, "upload"),
        (Link, {"download": 0}, "download"),
        (Sharing, {"kind": "timeslice", "switch_cost": 1}, "switch_cost"),
        (Stopping, {"interval": 0}, "interval"),
        (SpanSpeeds, {"node": 0.5, "rack": 0.9}, "rack"),
        (Autoscaling, {"min": 3, "max": 2, "target": 1}, "max"),
    ],
)
def test_the_check_of_the_dataclass_refuses_at_its_key(source, given, key):
    with pytest.raises(ValidationError) as refused:
        Keys(source).model.model_validate(given)
    cause = refused.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, KeyProblem) and cause.key == key


def test_defaults_are_told_once():
    assert with_default("Watts.", 0.0) == "Watts; 0 unless given."
    assert with_default("Is it?", False) == "Is it? false unless given."
    assert with_default("Time, endless unless given.", 0.0) == "Time, endless unless given."
    assert with_default("Time.", None) == "Time."
    keys = json_schema()["$defs"]["PowerSpec"]["properties"]
    assert keys["idle"]["description"] == "Watts while up and doing nothing; 0 unless given."
    assert "unless given; 0 unless given" not in json.dumps(json_schema())


def test_model_classes_load_no_pydantic():
    modules = ("cluster", "service", "step_times")
    code = "".join(f"import hetsim.model.{name}\n" for name in modules) + "import sys\nprint('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_they_are_frozen_and_have_slots():
    """All but Sharing, which caches its slices."""
    assert all(one.__dataclass_params__.frozen for one in ONCE)
    assert {one for one in ONCE if "__slots__" not in vars(one)} == {Sharing}
