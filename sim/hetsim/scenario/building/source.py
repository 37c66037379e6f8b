"""What is read of a scenario to build a run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sim.scenario.file.document import Document
from sim.scenario.schema.policy import Policies
from sim.scenario.schema.whole import ScenarioModel
from sim.workload.traces import TaskTable


class ScenarioSource(Protocol):
    """What is read of a scenario to build a run of it; a `Scenario` has it."""

    document: Document
    base: Path
    model: ScenarioModel
    policies: Policies
    notes: list[str]

    def table(self, entry: int) -> TaskTable:
        """The trace of a workload entry; read once."""
        ...
