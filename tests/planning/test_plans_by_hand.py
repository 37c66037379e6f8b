"""Parts of plans of trainings by themselves, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hetsim.errors import UsageError
from hetsim.planning import training_plans


def test_how_gpus_can_be_divided():
    assert [training_plans._divisors(number) for number in (1, 7, 12)] == [[1], [1, 7], [1, 2, 3, 4, 6, 12]]
    assert [training_plans._powers(number) for number in (1, 12, 16, 7)] == [[1], [1, 2, 4], [1, 2, 4, 8, 16], [1]]
    entry: Any = SimpleNamespace(used={"gpus": 8, "nodes": 3}.__getitem__, training=SimpleNamespace(widths=None))
    assert training_plans._widths(entry, None) == [(3, 8)]
    entry.training.widths = [1, 4]
    assert training_plans._widths(entry, None) == [(1, 8), (4, 8)]
    assert training_plans._widths(entry, [16, 4, 8, 16, 3]) == [(2, 8), (1, 4), (1, 8), (1, 3)]
    with pytest.raises(UsageError, match="the number of GPUs must be a multiple of 8, the GPUs of one node"):
        training_plans._widths(entry, [16, 12])


def test_a_plan_fits_that_fills_the_memory():
    def candidate(room: int | None, **more: Any) -> Any:
        step: Any = SimpleNamespace(seconds=2.0)
        plan: Any = SimpleNamespace(gpus=4)
        given: dict[str, Any] = {"device": "g", "plan": plan, "step": step, "state": 3.0, "kept": 2.0, "steps": 900.0}
        return training_plans.PlanCandidate(**(given | more), room=room, pipeline=None)

    assert [candidate(room).fits for room in (None, 4, 5, 6)] == [True, False, True, True]
    assert candidate(5).gpu_hours == 2.0
    with pytest.raises(UsageError, match="the plan must have at least two stages to be drawn; got one"):
        candidate(5).schedule()
    assert training_plans._ranked(candidate(5), "time") == (2.0, 2.0)
    assert training_plans._ranked(candidate(5, steps=1800.0), "gpu_hours") == (4.0, 2.0)
