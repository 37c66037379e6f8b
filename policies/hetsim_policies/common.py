"""Functions that several policies use: grouping, and facts on a running task."""

from collections.abc import Iterable
from typing import TypeVar

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View

Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Group values by key, keeping the order of keys and values."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def place_of(task: Task, view: View) -> Placement:
    """Return the placement of a task that a scheduler has started."""
    placement = view.launch_of(task).placement
    assert placement is not None
    return placement


def part_left(task: Task, view: View) -> float:
    """Remaining fraction of a running task, by the estimate of its mode."""
    total = task.estimate_in(place_of(task, view).mode)
    return view.remaining(task) / total if total > 0 else 0.0
