"""Classes that come together: a request of several tasks, which wait for each other or do not."""

from __future__ import annotations

from typing import Any

import pytest

import hetsim as hs
from hetsim.errors import ScenarioError

EACH = {"process": "deterministic", "interval": "20 s"}
DIAMOND = [
    {"class": "read", "cpu_time": "1 s"}, {"class": "left", "gpu_time.a": "4 s", "after": ["read"]},
    {"class": "right", "gpu_time.b": "6 s", "after": "read"},
    {"class": "merge", "cpu_time": "2 s", "after": ["left", "right"]},
]  # fmt: skip


def together(classes: Any, **entry: Any) -> dict[str, Any]:
    nodes = {"cpus": 2, "gpus": [{"type": "a"}, {"type": "b"}]}
    job = {"name": "jobs", "arrivals": EACH, "count": 3, "together": True, "classes": classes, **entry}
    return {"name": "s", "policy": "fcfs_skip", "cluster": {"nodes": nodes}, "workload": [job]}


def test_a_request_takes_its_longest_way() -> None:
    run = hs.run(together(DIAMOND, slo="8.5 s", users={"count": 2}), check=True)
    assert run.metric("task_count") == run.metric("completed_count") == len(run.tasks) == 3
    assert run.tasks["response"].tolist() == [9] * 3 and run.tasks["slowdown"].tolist() == [1] * 3
    assert run.tasks["wait"].tolist() == [0] * 3 and run.tasks["compute"].tolist() == [9] * 3
    assert run.metric("slo_attainment") == 0 and run.metric("jobs_in_system_mean") == pytest.approx(3 * 9 / run.end)
    assert set(run.tasks["class"]) == {"jobs"} and run.tasks["user"].isin(["u0", "u1"]).all()
    assert run.stages["stage"].cat.categories.tolist() == ["jobs read", "jobs left", "jobs right", "jobs merge"]
    starts = run.stages.loc[run.stages["request"] == "0", "start"].tolist()
    assert starts == [0, 1, 1, 7]
    assert hs.run(together(DIAMOND, slo={"factor": 1})).metric("slo_attainment") == 1


def test_parts_that_wait_for_none_run_at_once() -> None:
    """On a core each: two at a time of 3 and 5 s; the second request begins on the core that is free first."""
    run = hs.run(together([{"cpu_time": "3 s"}, {"cpu_time": "5 s"}], count=2, arrivals={
        "process": "deterministic", "interval": "1 s"}), check=True)  # fmt: skip
    assert run.tasks["response"].tolist() == [5, 9] and run.tasks["wait"].tolist() == [0, 2]
    assert run.stages["stage"].cat.categories.tolist() == ["jobs part 1", "jobs part 2"]


def test_a_chain_adds_up_as_the_stages_of_a_pipeline_do() -> None:
    chain = [{"class": "a", "gpu_time.a": "3 s"}, {"class": "b", "gpu_time.b": "2 s", "after": "a"}]
    run = hs.run(together(chain, count=20, arrivals={"process": "all_at_once", "count": 20}), check=True)
    assert run.tasks["response"].tolist() == [3 * k + 2 for k in range(1, 21)]
    assert run.tasks["wait"].tolist() == [3.0 * k for k in range(20)] and run.tasks["compute"].tolist() == [5] * 20


def test_one_part_that_is_refused_ends_the_request() -> None:
    classes = [{"class": "a", "cpu_time": "1 s"}, {"class": "b", "cpu_time": "9 s", "patience": "1 s"},
               {"class": "c", "cpu_time": "1 s", "after": "b"}]  # fmt: skip
    run = hs.run(together(classes, arrivals={"process": "all_at_once", "count": 3}), check=True)
    assert run.metric("completed_count") + run.metric("expired_count") == 3 and run.metric("expired_count") >= 1


@pytest.mark.parametrize(("changes", "place", "says"), [
    ({"together": False}, "classes.1.after", "after needs together: true"),
    ({"classes": [{"cpu_time": "1 s", "after": "x"}]}, "classes.0.after", 'no classes are "x"'),
    ({"classes": [{"class": "a", "cpu_time": "1 s"}] * 2 + [{"cpu_time": "1 s", "after": "a"}]}, "classes.2.after",
     'after must name one class above; 2 classes are "a"'),
    ({"classes": [{"cpu_time": "1 s", "weight": 2}]}, "classes.0.weight", "weight has no effect with together"),
    ({"classes": None, "cpu_time": "1 s"}, "together", "together needs classes"),
    ({"arrivals": {"process": "closed", "clients": 2, "think": "1 s"}}, "together", "a closed loop needs single tasks"),
    ({"classes": [{"cpu_time": "1 s", "slo": "2 s"}]}, "", "leave out slo"),
    ({"clients": {"timeout": "1 s"}}, "", "leave out clients"),
])  # fmt: skip
def test_what_contradicts_itself_is_refused_with_its_place(changes: dict[str, Any], place: str, says: str) -> None:
    given = together(DIAMOND)
    entry = {key: value for key, value in {**given["workload"][0], **changes}.items() if value is not None}
    with pytest.raises(ScenarioError) as error:
        hs.run({**given, "workload": [entry]})
    assert place in str(error.value) and says in str(error.value)
