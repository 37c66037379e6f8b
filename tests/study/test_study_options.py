"""The options of a study are declared once, and functions, commands, checks and texts agree with the declaration."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import click
import numpy as np
import pytest

import hetsim as hs
from hetsim import registry
from hetsim.cli.program import VERBS
from hetsim.errors import UsageError
from hetsim.experiment.options import LocalKeywords, RunKeywords, SearchKeywords, StudyKeywords, StudyOptions
from hetsim.experiment.progress import reporting
from hetsim.scenario.schema.whole import MAX_REPLICATIONS
from hetsim.workload.rows.request_rows import RequestCut

ALL = {one.name: one for one in fields(StudyOptions)}
TAKES = {
    "run": RunKeywords, "replicate": StudyKeywords, "compare": StudyKeywords, "sweep": StudyKeywords,
    "tune": SearchKeywords, "size": SearchKeywords, "train": LocalKeywords, "plan_precision": LocalKeywords,
}  # fmt: skip
VERBS_OF = ("compare", "sweep", "tune", "size", "train")
OF_VERBS = {"run": "replicate", **{verb: verb for verb in VERBS_OF}}
SYSTEM = {
    "cluster": {"nodes": {"gpus": {"type": "a", "count": 2}}},
    "workload": {"arrivals": {"rate": "1/s"}, "count": 20, "size": "1 s"},
}


def test_what_type_checkers_see_is_what_is_declared():
    hints = {name: hint.__forward_arg__ for name, hint in StudyKeywords.__annotations__.items()}
    assert hints == {name: one.type for name, one in ALL.items()}


@pytest.mark.parametrize("name", TAKES)
def test_functions_show_each_option_with_its_default_and_what_it_is(name: str):
    function = getattr(hs, name)
    parameters, text = inspect.signature(function).parameters, inspect.getdoc(function)
    for option in TAKES[name].__annotations__:
        assert parameters[option].default == ALL[option].default
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert len(re.findall(rf"(?<!\w){option}: ", text or "")) == 1, option
    assert "options:" not in text
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("name", OF_VERBS)
def test_commands_have_the_options_of_their_function(name: str):
    command = registry.load_object(VERBS[name])
    options = {one.name: one for one in command.params if isinstance(one, click.Option)}
    for option in TAKES[OF_VERBS[name]].__annotations__:
        declared = ALL[option].metadata
        assert (option in options) == ("flag" in declared)
        if "flag" in declared:
            assert options[option].opts == [declared["flag"]]
            assert options[option].help


@pytest.mark.parametrize(
    ("function", "given"), [("run", {"worker": 2}), ("tune", {"replications": 3}), ("train", {"dask": "x"})]
)
def test_an_option_that_a_function_does_not_take_is_refused(function: str, given: dict[str, Any]):
    """Also one that other functions take: nothing is left out silently."""
    with pytest.raises(TypeError, match=f'{function}\\(\\) has no parameter "{next(iter(given))}"'):
        getattr(hs, function)(SYSTEM, **given)


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if "low" in one.metadata])
def test_numbers_have_the_bounds_that_are_declared(name: str):
    low, high = ALL[name].metadata["low"], ALL[name].metadata.get("high")
    for value in (low, np.int64(low), *([high] if high else [])):
        assert getattr(StudyOptions(**{name: value}), name) == value
    for value in (low - 1, True, 2.5, "4", *([high + 1] if high else [])):
        with pytest.raises(UsageError, match=f"{name} must be a whole number"):
            StudyOptions(**{name: value})


def test_the_most_replications_are_those_of_a_scenario():
    assert ALL["replications"].metadata["high"] == MAX_REPLICATIONS


@pytest.mark.parametrize("given", [{"workers": 2}, {"executor": object()}])
def test_dask_takes_no_other_workers(given: dict[str, Any]):
    with pytest.raises(UsageError, match="with dask, workers and executor must be left out: the Dask cluster has"):
        StudyOptions(dask="tcp://HOST:8786", **given)


def test_no_number_of_workers_is_one_a_core():
    from hetsim.experiment.workers import Workers, cores

    assert Workers(None).workers == cores()
    assert Workers(None, dask="tcp://HOST:8786").workers == 1
    assert Workers(3).workers == 3


@pytest.mark.parametrize("given", [True, False, None])
def test_progress_without_a_terminal_needs_no_function(given: bool | None):
    with reporting(given) as told:
        assert told is None


def test_progress_is_told_to_a_function():
    shares: list[float] = []
    with reporting(shares.append) as told:
        assert told is not None
        told(0.5)
    assert shares == [0.5]


@pytest.mark.parametrize("name", ["azure_llm", "burstgpt", "mooncake", "requests"])
def test_readers_of_requests_take_every_cut(name: str):
    """The same declaration for readers: parameters of a trace are checked against the signature."""
    parameters = inspect.signature(registry.entry("traces", name)).parameters
    for one in fields(RequestCut):
        assert parameters[one.name].default == one.default
        assert parameters[one.name].annotation is not inspect.Parameter.empty


@pytest.mark.parametrize(("call", "said"), [
    (lambda: hs.run("mm16", overrides=3), "overrides must be a mapping of keys to values, or a list of key.path=value"),
    (lambda: hs.run("mm16", overrides="seed=3"), "overrides must be a mapping of keys to values, or a list of"),
    (lambda: hs.run("mm16", overrides=[3]), '--set must be key.path=value; got "3"'),
    (lambda: hs.replicate("mm16", metrics=3, replications=2), "metrics must be a list of names; got 3"),
    (lambda: hs.compare("mm16", 3), "policies must be a list of policies, or a mapping of labels to them; got 3"),
    (lambda: hs.sweep("mm16", points=3), "points must be a list of mappings; got 3"),
    (lambda: hs.replicate("mm16", progress="x", replications=2), "progress must be True, or a function of the share"),
])  # fmt: skip
def test_arguments_of_another_kind_are_refused_in_a_sentence(call, said):
    with pytest.raises(UsageError) as caught:
        call()
    assert said in str(caught.value)
