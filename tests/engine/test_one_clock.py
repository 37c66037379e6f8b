"""How long a launch computes is asked of `Mode` and `Task`; nothing else adds up what a mode says of it."""

import re
from pathlib import Path

import numpy as np
import pytest

import hetsim as hs
import hetsim_policies
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode, Shape
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks

HAND_MADE = {
    "queueing/stations.py": "a second opinion, held against the clock there",
    "model/tasks.py": "the clock", "model/task.py": "the same of one task",
    "model/fusion.py": "of several tasks it is the largest",
    "policy/remaining.py": "the inverse: own times from what is left",
    "engine/launching/sketches.py": "as `durations.work`, of every launch",
    "engine/views/node_availability.py": "the same", "engine/control/starts.py": "the same",
    "engine/flight/durations.py": "the clock of launches",
    "results/one_run/plans.py": "asks whether there is any", "hybrid/common/outlook.py": "a row of all modes",
    "dynamic/sharing.py": "of a mode whose rate changes only the task's own time",
}
"""Files that use a mode's own seconds, and why."""


@pytest.mark.slow
def test_nothing_else_adds_up_the_seconds_of_a_mode():
    roots = [Path(package.__file__).parent for package in (hs, hetsim_policies)]
    wanted = re.compile(r"\bmodes?(\[\w+\])?\.(fixed|single)\b")
    found = {
        str(file.relative_to(root)) for root in roots for file in root.rglob("*.py")
        if wanted.search(file.read_text(encoding="utf-8"))
    }  # fmt: skip
    assert found == set(HAND_MADE)


@pytest.mark.parametrize("count", [1, 3])
def test_one_new_term_of_the_clock_is_in_all_its_answers(count):
    class Slower(Mode):
        def base(self, count):
            return self.fixed + 7.0 * count

    mode = Slower("gpu", DeviceType("gpu"), gpus=1, share=WHOLE, fixed=0.5)
    assert mode.computing(count, 2.0) == mode.stages(count, 2.0).total == 2.5 + 7 * count
    times = np.array([[2.0]])
    tasks = Tasks(np.zeros(1), np.zeros(1, dtype=int), [Shape([mode])], times, times)
    task = Task(0, 0.0, tasks.shapes[0], (2.0,), (2.0,), tasks)
    task.done = 0.5
    assert task.estimate_at(0) == task.estimate_in(mode) == task.shortest_estimate == 9.5
    assert tasks.computing(times)[0, 0] == 9.5
    assert task.remaining_in(mode) == task.shortest_remaining == 4.75
