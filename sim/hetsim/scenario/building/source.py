"""What is read of a scenario to build a run of it."""

from __future__ import annotations

from typing import Protocol

from hetsim.scenario.readers import ReadScenario
from hetsim.workload.traces import TaskTable


class ScenarioSource(ReadScenario, Protocol):
    """What is read of a scenario to build a run of it; a `Scenario` has it."""

    notes: list[str]

    def table(self, entry: int) -> TaskTable:
        """The trace of a workload entry; read once."""
        ...
