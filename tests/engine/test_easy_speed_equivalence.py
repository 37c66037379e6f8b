"""What is kept of a shadow from one question to the next is what would be found from nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import spread

import hetsim as hs
from hetsim.engine.views.shadow import EarliestFit, Shadows

POLICIES = {"one head": "easy_backfill", "a rule": {"scheduler": "easy_backfill", "placement": "best_fit"}}


def system(seed: int, wrong: bool, policy: Any) -> dict[str, Any]:
    error = {"estimates": {"error": {"distribution": "lognormal", "cv": 0.8}}} if wrong else {}
    return {
        "name": "gangs",
        "seed": seed,
        "cluster": {
            "nodes": [
                {"count": 3, "cpus": 12, "gpus": {"type": "g", "count": 8}},
                {"count": 2, "cpus": 6, "gpus": {"type": "g", "count": 4}},
            ]
        },
        "workload": [
            {
                "name": "jobs", "count": 300, "arrivals": {"process": "poisson", "rate": "0.65/s"},
                "classes": [
                    {"class": f"g{gpus}", "weight": weight, "gpus": gpus, "cpus": cpus,
                     "gpu_time": {"distribution": "exponential", "mean": "20 s"}, **error}
                    for gpus, cpus, weight in ((1, 1, 6), (2, 4, 3), (4, 2, 2), (8, 0, 1))
                ],
            }
        ],
        "policy": policy,
    }  # fmt: skip


def from_nothing(shadows: Shadows, task: Any, mode: Any) -> EarliestFit:
    """The shadow as found by one who looks at what runs for the first time."""
    another = Shadows(
        shadows.state, shadows.forecast, shadows.placing, shadows.stops, shadows.questions, fleets=shadows.fleets
    )
    return EarliestFit(another, task, mode)


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("seed", spread(range(3), 1))
def test_a_kept_shadow_is_the_one_found_from_nothing(
    seed: int, wrong: bool, policy: str, monkeypatch: pytest.MonkeyPatch
):
    find, found, last = Shadows.shadow_of, {"anew": 0, "kept": 0, "later": 0}, {}

    def compared(self: Shadows, task: Any, mode: Any = None) -> EarliestFit:
        shadow = find(self, task, mode)
        found["kept" if last.get(task.index) is shadow else "anew"] += 1
        last[task.index] = shadow
        fresh = from_nothing(self, task, mode)
        assert shadow.time == fresh.time
        if shadow.time > self.forecast.now:  # else several nodes may count as ready now, as overdue as they are
            found["later"] += 1
            assert shadow.placement == fresh.placement
        return shadow

    monkeypatch.setattr(Shadows, "shadow_of", compared)
    result = hs.run(system(seed, wrong, POLICIES[policy]), check=True)
    assert (result.tasks["status"] == "completed").all() and (result.tasks["wait"] > 0).mean() > 0.2
    assert found["later"] > 30 and found["anew"] > 20
    if not wrong:
        assert found["kept"] > 20
