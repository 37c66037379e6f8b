"""Names of other packages: policies, arrival processes and trace readers come through entry points."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import hetsim as hs
import hetsim_policies
from hetsim import registry
from hetsim.errors import UnknownName
from hetsim.policy import ListScheduler
from hetsim.workload.arrivals import ArrivalProcess
from hetsim.workload.readers.task_table import read


class Clockwork(ArrivalProcess):
    """One arrival at every full second."""

    process: Literal["clockwork"]

    def _blocks(self, rng: np.random.Generator, last: float | None) -> Iterator[np.ndarray]:
        start = 0.0
        while True:
            yield start + np.arange(100.0)
            start += 100.0


class LastFirst(ListScheduler):
    """The latest arrival goes first."""

    def __init__(self) -> None:
        super().__init__(order=lambda task: -task.arrival)


def reader(path):
    """A trace format of another package."""
    return read(path)


@pytest.fixture
def installed(monkeypatch):
    """As if a package with these entry points were installed."""
    points = {
        "hetsim.policies": {"last_first": f"{__name__}:LastFirst"},
        "hetsim.arrivals": {"clockwork": f"{__name__}:Clockwork"},
        "hetsim.traces": {"theirs": f"{__name__}:reader"},
    }
    monkeypatch.setattr(registry, "of_packages", lambda group: points.get(group, {}))


def scenario(**entry):
    cluster = {"nodes": [{"gpus": {"type": "g", "count": 1}}]}
    return {"name": "theirs", "cluster": cluster, "workload": [entry], "policy": "last_first"}


def test_a_scenario_names_what_another_package_brings(installed, tmp_path):
    entry = {"arrivals": {"process": "clockwork"}, "count": 3, "gpu_time": "2.5 s"}
    result = hs.run(scenario(**entry))
    assert result.tasks["arrival"].tolist() == [0.0, 1.0, 2.0]
    assert result.tasks["start"].tolist() == [0.0, 5.0, 2.5]
    table = tmp_path / "tasks.csv"
    table.write_text("id,arrival,gpu_time\na,0,1\nb,0,1\n", encoding="utf-8")
    assert len(hs.run(scenario(trace={"format": "theirs", "path": str(table)})).tasks) == 2


def test_unknown_names_are_answered_with_near_ones(installed):
    with pytest.raises(UnknownName, match='did you mean "last_first"'):
        registry.policy("scheduler", "last_frist")
    entry = {"arrivals": {"process": "clokwork"}, "count": 3, "gpu_time": "2.5 s"}
    with pytest.raises(hs.errors.ScenarioError, match='did you mean "clockwork"'):
        hs.run(scenario(**entry))


def test_a_scenario_cannot_name_code():
    with pytest.raises(hs.errors.ScenarioError, match="unknown scheduler"):
        hs.run({**scenario(arrivals={"process": "all_at_once", "count": 1}, gpu_time="1 s"), "policy": "os:system"})


FOLDERS = ("static", "dynamic", "hybrid", "admission", "batching", "placement_rules", "learning", "routing", "scaling")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_head_of_a_folder_of_policies_lists_its_algorithms(folder: str):
    """All of its files, once each: a file there is an algorithm that a scenario can name."""
    package = importlib.import_module(f"hetsim_policies.{folder}")
    files = {path.stem for path in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    listed = re.findall(r"^    (\w+)  ", package.__doc__, re.M)
    assert sorted(listed) == sorted(files)
    used = {reference.partition(":")[0] for names in hetsim_policies.CATALOGUE.values() for reference in names.values()}
    assert {f"hetsim_policies.{folder}.{name}" for name in files} <= used
