"""Classes that are declared once: their schema is made from the dataclass of the model room."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from shared_schema import shared_schema

from hetsim.errors import KeyProblem
from hetsim.formulas.training import ParallelPlan, Transformer
from hetsim.model.clients import Clients, Hedge, Retry, RetryWait
from hetsim.model.cluster import Disk, NodeSpec, Partition
from hetsim.model.demand import ComputeTime, SpanSpeeds, StageTime, Stopping
from hetsim.model.described import Described, descriptions, with_default
from hetsim.model.device_type import DeviceType, Link, Power, Preemption, Price, Sharing
from hetsim.model.faults import FaultProcess, Maintenance
from hetsim.model.record import DecisionTime
from hetsim.model.service import LanguageService, ReplicaStart, ResultCache, ScaleBounds, Service
from hetsim.model.step_times import LinearSteps
from hetsim.model.tasks import Item
from hetsim.model.units import Bytes, BytesPerSecond, PerSecond, Seconds, Share, in_units
from hetsim.scenario.fields import Keys, Mirror
from hetsim.scenario.schema.whole import ScenarioModel
from hetsim.workload.costs.roofline import Efficiency

ONCE = {
    DeviceType, Link, NodeSpec, Partition, Power, Preemption, Price, Sharing, ScaleBounds, ResultCache, LinearSteps,
    ComputeTime, DecisionTime, FaultProcess, Clients, Hedge, Retry, RetryWait,
    SpanSpeeds, StageTime, Stopping, Efficiency, Item, LanguageService, Maintenance, ParallelPlan, Service, Transformer,
    Disk, ReplicaStart,
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
        (ScaleBounds, {"min": 3, "max": 2}, "max"),
    ],
)
def test_the_check_of_the_dataclass_refuses_at_its_key(source, given, key):
    with pytest.raises(ValidationError) as refused:
        Keys(source).model.model_validate(given)
    cause = refused.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, KeyProblem) and cause.key == key


@pytest.mark.slow
def test_defaults_are_told_once():
    assert with_default("Watts.", 0.0) == "Watts. Default: 0."
    assert with_default("Is it?", False) == "Is it? Default: false."
    assert with_default("Time. Default: endless.", 0.0) == "Time. Default: endless."
    assert with_default("Time.", None) == with_default("Time.", {}) == "Time."
    assert with_default("Time.", math.inf) == "Time. Default: no limit."
    assert with_default("Sharing.", Sharing("mps")) == "Sharing. Default: mps."
    assert with_default("Causes.", ["timeout", "failed"]) == "Causes. Default: timeout, failed."
    assert "reach, fitted on A100. Default: 70.3%." in json.dumps(shared_schema())
    words = json.dumps(shared_schema()).replace('"', "\n")
    assert not re.search("(unless given|Default:).*(unless given|Default:)", words)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("part", "key", "end"), [
    ("PowerSpec", "idle", "nothing. Default: 0."), ("SpanSpeedsSpec", "island", "mode's time. Default: 1."),
    ("ClientsSpec", "timeout", "attempt. Default: no limit."), ("TaskMode", "batch", "processes. Default: 64."),
    ("TaskMode", "efficiency", "reaches. Default: 50%."), ("WorkloadEntry", "nodes", "each. Default: 1."),
    ("Diurnal", "period", "to the next. Default: 1 d."),
    ("Roofline", "link_latency", "two such sums. Default: 10 us."),
    ("ServiceSpec", "device", "runs. Default: gpu."), ("Accelerator", "kind", "`accelerators`. Default: gpu."),
])  # fmt: skip
def test_what_is_used_without_a_key_is_appended(part: str, key: str, end: str):
    """The default, what code uses in place of null, what the dataclass has, in the shortest unit."""
    assert shared_schema()["$defs"][part]["properties"][key]["description"].endswith(end)


@pytest.mark.parametrize(("value", "unit", "text"), [
    (86400.0, Seconds, "1 d"), (5400.0, Seconds, "90 min"), (1e-5, Seconds, "10 us"), (0.0, Seconds, "0"),
    (49152, Bytes, "48 KiB"), (1.2e10, BytesPerSecond, "12 GB/s"), (40 / 3600, PerSecond, "40/h"),
    (0.703, Share, "70.3%"),
])  # fmt: skip
def test_a_number_in_its_unit_is_read_as_that_number(value: float, unit: Any, text: str):
    assert in_units(value, unit.__metadata__) == text
    assert TypeAdapter(unit).validate_python(text if value else 0) == pytest.approx(value or 0, rel=1e-12)


IN_WORDS = {
    "cycle": "0 says something else", "block": "0 says something else",
    "cpus": "1 on cores, 0 on GPUs",
    "count": "without it all clients share one budget", "cpu": "where its cores differ from the default",
}  # fmt: skip


def test_no_description_repeats_its_default():
    """The generator appends it; the text below a field says only what is not the value itself."""
    models, typed = [Described], {}
    while models:
        models += (model := models.pop()).__subclasses__()
        for name, text in descriptions(model).items():
            default = model.model_fields[name].default
            is_plain = isinstance(default, bool | int | float | str) and default != ""
            words = re.findall(r"\w+", str(model.model_fields[name].annotation).partition("Literal")[2])
            choices = "".join(f"|{word}" for word in words)
            value = rf"\b(\d[\d.]*( ?\w+|%)?|one|true|false{choices})"
            states = rf"{value},? (on \w+ )?unless given|unless given,? .*\d|Default: ({value}\b|.*\d)|\bdefault\b"
            if re.search(r"unless given|left out|\b[Dd]efault\b" if is_plain else states, text):
                typed[name] = text
    assert typed.keys() == IN_WORDS.keys(), typed


@pytest.mark.slow
def test_model_classes_load_no_pydantic():
    modules = ("cluster", "service", "step_times")
    code = "".join(f"import hetsim.model.{name}\n" for name in modules) + "import sys\nprint('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_they_are_frozen_and_have_slots():
    """All but Sharing, which caches its slices."""
    assert all(one.__dataclass_params__.frozen for one in ONCE)
    assert {one for one in ONCE if "__slots__" not in vars(one)} == {Sharing}
