"""`theory.kaufman_roberts` against the product form over all states and Erlang's B; scenarios that it knows."""

import math
from itertools import product
from typing import Any

import pytest

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate

GANGS = [(2.0, 1.0, 1), (0.5, 2.0, 2), (5.0, 0.1, 4)]


def test_gangs_by_the_product_form():
    found = theory.kaufman_roberts(8, GANGS)
    weights = {}
    for state in product(range(9), range(5), range(3)):
        if sum(n * width for n, (_, _, width) in zip(state, GANGS, strict=True)) <= 8:
            parts = zip(state, GANGS, strict=True)
            weights[state] = math.prod((rate * mean) ** n / math.factorial(n) for n, (rate, mean, _) in parts)
    total = sum(weights.values())
    busy = {state: sum(n * width for n, (_, _, width) in zip(state, GANGS, strict=True)) for state in weights}
    for lost, (_, _, width) in zip(found.loss, GANGS, strict=True):
        assert lost == pytest.approx(sum(w for s, w in weights.items() if busy[s] + width > 8) / total, rel=1e-12)
    assert found.loss == pytest.approx((0.09853, 0.21459, 0.49005), abs=5e-6)
    carried = sum(rate * mean * width * (1 - lost) for lost, (rate, mean, width) in zip(found.loss, GANGS, strict=True))
    assert found.utilization == pytest.approx(carried / 8, rel=1e-12)


def test_gangs_of_one_are_erlangs_and_bad_input_is_refused():
    many = theory.kaufman_roberts(5000, [(2000, 1.0, 1), (1500, 2.0, 1)])
    assert many.loss[0] == pytest.approx(theory.erlang_b(5000, 5000), rel=1e-9)
    for classes in ([], [(1, 1, 9)]):
        with pytest.raises(UsageError, match="gangs with loss need classes"):
            theory.kaufman_roberts(8, classes)


def gangs(**changes: Any) -> Any:
    def entry(number: int) -> dict[str, Any]:
        times = {"distribution": ("exponential", "lognormal", "exponential")[number], "mean": "1 s"}
        cv = {"cv": 1.5} if number == 1 else {}
        return {"name": f"width {2**number}", "arrivals": {"process": "poisson", "rate": f"{2 / 2**number}/s"},
                "gpus": 2**number, "gpu_time": times | cv}  # fmt: skip

    return hs.load({
        "name": "gangs", "seed": 1, "warmup": "5 min", "horizon": "90 min", "workload": [entry(n) for n in range(3)],
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": 8}}]},
        "policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 0}},
    } | changes)  # fmt: skip


def test_a_scenario_of_gangs_with_loss_is_recognized():
    found = match(gangs())
    assert found.verdict == "matches"
    *losses, busy = (row.value for row in found.rows)
    assert losses == pytest.approx((0.09853, 0.21459, 0.49005), abs=5e-6)
    assert busy == pytest.approx(sum(2 * (1 - lost) for lost in losses) / 8)


@pytest.mark.slow
def test_the_engine_loses_as_many():
    for one in simulate(gangs(), match(gangs()).rows, confidence=0.9999):
        assert one.covered, one


@pytest.mark.parametrize(("changes", "failed"), [
    ({"cluster": {"nodes": [{"count": 2, "gpus": {"type": "g", "count": 8}}]}},
     "gangs take whole GPUs of one node, all alike"),
    ({"policy": {"scheduler": "sjf", "admission": {"name": "queue_limit", "limit": 0}}},
     "first come, first served, or an order independent of sizes"),
    ({"cluster": {"nodes": [{"gpus": {"type": "g", "count": 8, "streams": 2}}]}}, "a GPU takes one task at a time"),
    ({"workload": [{"name": f"by modes {width}", "arrivals": {"process": "poisson", "rate": "2/s"},
                    "modes": [{"device": "g", "gpus": width, "time": "1 s"}]} for width in (1, 4)]},
     "gangs take whole GPUs of one node, all alike"),
    ({"cluster": {"nodes": [{"cpus": 4, "gpus": {"type": "g", "count": 2}}]},
      "workload": {"arrivals": {"process": "poisson", "rate": "2/s"}, "gpu_time": "1 s", "cpu_time": "5 s"}},
     "all tasks run in one mode on equal devices"),
    ({"policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 1}}},
     "all tasks run in one mode on equal devices"),
])  # fmt: skip
def test_what_else_is_set_is_not_recognized(changes: dict[str, Any], failed: str):
    found = match(gangs(**changes))
    assert found.verdict == "none" and failed in [one.text for one in found.failed]
