"""Waits split by cause, against a small cluster whose history is worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_made import cluster, gpu_mode, launches, record, three, workload
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, UsageError
from hetsim.model.device_type import WHOLE, DeviceType, Link
from hetsim.model.record import RunInput
from hetsim.policy import Annotate, Scheduler, Start
from hetsim.policy.lists import ListScheduler
from hetsim.results.one_run.explain import CAUSES, causes, ending, explain, explain_all
from hetsim.results.one_run.result import Result

NAN = math.nan


def story() -> Result:
    """Two nodes with two GPUs each (devices n0: 1, 2; n1: 4, 5).

    A runs on n0 0-10, B on n1 0-6.  C, a gang of two on one node, is ready at 1: two GPUs are free, but not on
    one node, until B ends: fragmentation 1-6; it runs on n1 6-9.  D (1 GPU) is ready at 2 and would fit; C is
    before it: head of line 2-6; then only the policy keeps it, until it starts on n0 at 8: choice 6-8.
    E (1 GPU) is ready at 3: head of line 3-5; the policy says quota at 5, but between 8 and 9 nothing is free;
    quota 5-8 and 9-12.  Decided at 12, its first stage begins at 13: transfer.
    """
    tasks = workload(
        [0, 0, 1, 2, 3], [10, 6, 3, 6, 2], [[gpu_mode()], [gpu_mode(2)]], [0, 0, 1, 0, 0],
        id=np.array(list("ABCDE"), dtype=object),
        class_code=np.array([0, 0, 1, 0, 0]), classes=["single", "gang"],
    )  # fmt: skip
    rec = record(
        cluster(nodes=2, gpus=2), tasks, [0, 0, 6, 8, 13], [10, 6, 9, 14, 15], [(1,), (4,), (4, 5), (2,), (4,)]
    )
    rec.launches = launches(
        [
            {"task": 0, "place": 0, "start": 0, "end": 10},
            {"task": 1, "place": 1, "start": 0, "end": 6},
            {"task": 2, "place": 2, "start": 6, "end": 9},
            {"task": 3, "place": 3, "start": 8, "end": 14},
            {"task": 4, "place": 1, "decided": 12, "start": 13, "end": 15},
        ]
    )
    rec.holds = [(5.0, 4, "quota")]
    return Result(rec)


def test_every_cause_of_the_story():
    found = causes(story()).set_index("id")
    expected = {
        "A": {}, "B": {},
        "C": {"fragmentation": 5},
        "D": {"head_of_line": 4, "choice": 2},
        "E": {"head_of_line": 2, "quota": 6, "no_capacity": 1, "transfer": 1},
    }  # fmt: skip
    for task, seconds in expected.items():
        assert {cause: found.loc[task, cause] for cause in CAUSES if found.loc[task, cause]} == seconds


def test_one_task_as_stretches():
    found = explain(story(), "E")
    assert list(found.cause) == ["head_of_line", "quota", "no_capacity", "quota", "transfer"]
    assert list(found["from"]) == [3, 5, 8, 9, 12] and list(found["to"]) == [5, 8, 9, 12, 13]
    assert found.detail[0] == "behind task C"
    assert found.seconds.sum() == 10
    assert explain(story(), "A").empty


def test_by_class():
    found = explain_all(story())
    assert list(found.index) == ["gang", "single"]
    assert list(found.loc["single", ["tasks", "wait", "head_of_line"]]) == [4, 16, 6]
    assert found.loc["gang", "fragmentation"] == 5
    with pytest.raises(UsageError, match='color'):
        explain_all(story(), "color")


def test_a_busy_gpu_is_no_capacity_and_ids_may_be_text():
    """On one GPU tasks 1 and 2 of `three` wait for it alone."""
    assert list(causes(three()).no_capacity) == [0, 3, 5]
    assert list(explain(three(), "2").cause) == ["no_capacity"]


def test_a_device_that_is_down_asleep_or_waking_is_no_capacity():
    """Idle GPU, one task ready at 0: down 0-2, asleep 3-5, waking 5-6; started at 7, so choice 2-3 and 6-7."""
    rec = record(cluster(), workload([0], [1]), [7], [8], [(1,)])
    rec.device_log = [(0.0, 1, "down", 0.0), (2.0, 1, "up", 0.0), (3.0, 1, "sleep", 0.0), (5.0, 1, "wake", 0.0),
                      (6.0, 1, "awake", 0.0)]  # fmt: skip
    row = causes(Result(rec)).iloc[0]
    assert (row.no_capacity, row.choice) == (5, 2)


def test_what_never_started_waits_until_the_end():
    """One task runs for ever; another is ready at 1 and still waits at 6."""
    rec = record(cluster(), workload([0, 1], [9, 9]), [0, NAN], [NAN, NAN], [(1,), None], end=6.0)
    row = causes(Result(rec)).iloc[1]
    assert (row.wait, row.no_capacity) == (5, 5)


def test_memory_and_streams_are_capacity():
    """One GPU of 10 bytes with two streams: a second launch fits beside one of 4 bytes, not beside one of 8."""
    kind = DeviceType("g", memory=10, streams=2)
    for held, cause in ((4, "choice"), (8, "no_capacity")):
        modes = [[gpu_mode(kind=kind, gpu_memory=held)], [gpu_mode(kind=kind, gpu_memory=6)]]
        tasks = workload([0, 0], [3, 1], modes, [0, 1])
        found = causes(Result(record(cluster(kind=kind), tasks, [0, 3], [3, 4], [(1,)] * 2)))
        assert found[cause][1] == 3


def test_a_stopped_task_that_waits_again_is_before_later_ones():
    """X (gang of 2) runs 0-1, is stopped and waits again while Y holds one GPU 1-5; Z, ready at 2, would fit."""
    tasks = workload([0, 1, 2], [5, 4, 1], [[gpu_mode(2)], [gpu_mode()]], [0, 1, 1])
    rec = record(cluster(gpus=2), tasks, [0, 1, 6], [9, 5, 7], [(1, 2), (1,), (1,)])
    rec.launches = launches(
        [
            {"task": 0, "place": 0, "start": 0, "end": 1, "outcome": 1},
            {"task": 1, "place": 1, "start": 1, "end": 5},
            {"task": 0, "place": 0, "start": 7, "end": 9},
            {"task": 2, "place": 1, "start": 6, "end": 7},
        ]
    )
    row = causes(Result(rec)).iloc[2]
    assert (row.head_of_line, row.choice) == (3, 1)


def test_of_a_real_run_under_strict_fcfs_nothing_is_the_policys_choice():
    """The replayed capacity is the engine's: whenever the head fitted, it started; and T* bounds the response."""
    random = np.random.default_rng(5)
    kind = DeviceType("g", streams=2, link=Link(5e9, 10e9, 1e-4))
    modes = [[gpu_mode(kind=kind)], [gpu_mode(2, kind=kind)], [gpu_mode(share=WHOLE // 4, kind=kind)]]
    count = 300
    sizes = random.integers(0, 10**9, count)
    tasks = workload(
        list(np.cumsum(random.exponential(0.2, count))), list(random.exponential(1, count)), modes,
        random.integers(0, 3, count), bytes_in=sizes, bytes_out=sizes,
    )  # fmt: skip
    run = RunInput("strict", cluster(nodes=2, gpus=3, kind=kind), tasks, ListScheduler())
    result = Result(Simulation(run, check=True).run())
    found = causes(result)
    np.testing.assert_allclose(found[list(CAUSES)].sum(axis=1), found.wait, rtol=0, atol=1e-9)
    assert found.choice.sum() < 1e-9 * found.wait.sum() and found.fragmentation.sum() > 0 and found.transfer.sum() > 0
    assert result.tasks.slowdown.min() > 1 - 1e-9


def test_an_unknown_task_gets_a_suggestion():
    with pytest.raises(UsageError, match='no task "Q"'):
        explain(story(), "Q")
    with pytest.raises(UsageError, match="0 to 2"):
        explain(three(), 3)


def test_an_id_needs_its_stream_only_where_another_stream_has_it_too():
    tasks = workload([0, 1, 2], [4, 3, 2], id=np.array(["s/a", "s/b", "t/b"], dtype=object))
    result = Result(record(cluster(), tasks, [0, 4, 7], [4, 7, 9], [(1,)] * 3))
    assert explain(result, "a").empty
    with pytest.raises(UsageError, match="s/b or t/b"):
        explain(result, "b")


class OneAtATime(Scheduler):
    """At most one task runs, by quota; this class is known to nobody else."""

    def schedule(self, view):
        for task in list(view.waiting()):
            if view.running():
                yield Annotate(task, "quota")
            elif placement := view.fit(task):
                yield Start(task, placement)


HELD = {
    "name": "held",
    "cluster": {"nodes": [{"gpus": {"type": "k20", "count": 2}}]},
    "workload": [{"name": "a", "arrivals": {"process": "all_at_once", "count": 3}, "gpu_time": "2 s"}],
}


def test_a_policy_says_why_it_holds_tasks_back():
    found = hs.run(HELD, policy=OneAtATime).explain(by="class")
    assert list(found.loc["a", ["tasks", "wait", "quota"]]) == [3, 6, 6]


def test_a_saved_run_is_explained_without_its_policy(tmp_path):
    """The policy may have been a class of a script: the causes are in the record."""
    hs.run(HELD, policy=OneAtATime).save(tmp_path / "run")
    again = hs.Result.load(tmp_path / "run")
    assert list(again.explain(2).cause) == ["quota"]
    assert again.record.input.policy == "OneAtATime"


class Sulks(Scheduler):
    """Starts the first task and nothing more."""

    def schedule(self, view):
        for task in list(view.waiting())[: 1 - bool(view.now)]:
            yield Start(task, view.fit(task))


def test_what_a_run_that_failed_left_lying_waits_until_its_end():
    with pytest.raises(PolicyError) as caught:
        hs.run(HELD, policy=Sulks)
    found = causes(caught.value.result)
    assert list(found.wait) == [0, 2, 2] and list(found.choice) == [0, 2, 2]


@examples(30)
@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0.01, 20), st.sampled_from([0, 1, 2]), st.floats(0, 5)),
        min_size=1, max_size=25,
    )
)  # fmt: skip
def test_causes_sum_to_the_wait(rows):
    """Random loads served in order on two GPUs by single, half and gang tasks, with pauses: causes sum to the wait."""
    rows.sort()
    modes = [[gpu_mode()], [gpu_mode(share=WHOLE // 2)], [gpu_mode(2)]]
    start, finish, place, free = [], [], [], [0.0, 0.0]
    for arrival, time, shape, pause in rows:
        used = (0, 1) if shape == 2 else (int(free[1] < free[0]),)
        begin = max([arrival, *(free[gpu] for gpu in used)]) + pause
        start.append(begin)
        finish.append(begin + time)
        place.append(tuple(gpu + 1 for gpu in used))
        for gpu in used:
            free[gpu] = begin + time
    tasks = workload([row[0] for row in rows], [row[1] for row in rows], modes, [row[2] for row in rows])
    result = Result(record(cluster(gpus=2), tasks, start, finish, place))
    found = causes(result)
    for row in found.to_dict("records"):
        assert sum(row[cause] for cause in CAUSES) == sum(row[cause] for cause in reversed(CAUSES)) == row["wait"]
    np.testing.assert_array_equal(found.wait, result.tasks.wait)
    assert (found[list(CAUSES)] >= -1e-12).all(axis=None)
    for task in range(len(rows)):
        stretches = explain(result, task).groupby("cause").seconds.sum()
        assert sum(stretches) == found.wait[task]
        for cause, seconds in stretches.items():
            assert seconds == pytest.approx(found[cause][task], abs=1e-9)


def test_nobody_waits_behind_a_head_of_a_partition_elsewhere(tmp_path):
    """The third job is kept by its policy, not by the second, which waits for a node that it may not use."""
    file = tmp_path / "jobs.csv"
    file.write_text("id,arrival,gpus,gpu_time,partition\na,0,2,10,p\nb,1,2,10,p\nc,2,1,10,q\nd,3,1,10,p\n")
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 2}, "partitions": name} for name in "pq"]

    class ByTheRow(Scheduler):
        """As fcfs in one queue for all."""

        def schedule(self, view):
            for task in view.waiting():
                placement = view.fit(task)
                if placement is None:
                    return
                yield Start(task, placement)

    scenario = {"cluster": {"nodes": nodes}, "workload": [{"trace": {"format": "tasks", "path": str(file)}}]}
    result = hs.run(scenario, policy=ByTheRow, check=True)
    assert result.tasks["start"].tolist() == [0, 10, 10, 20]
    found = {task: result.explain(task)[["cause", "detail", "seconds"]].to_numpy().tolist() for task in "cd"}
    assert found["c"] == [["choice", "", 8]]
    assert found["d"] == [["no_capacity", "", 17]]


def test_a_partition_of_all_nodes_beside_tasks_that_are_bound_to_none(tmp_path):
    """And a task that can run nowhere, which is rejected as it comes."""
    file = tmp_path / "jobs.csv"
    file.write_text("id,arrival,gpus,gpu_time,partition\na,0,2,10,p\nx,0,9,10,p\nb,1,2,10,p\nc,2,1,10,\n")
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 2}, "partitions": "p"}]
    trace = {"format": "tasks", "path": str(file)}
    result = hs.run({"cluster": {"nodes": nodes}, "workload": [{"trace": trace, "unfit": "reject"}]}, check=True)
    found = causes(result).set_index("id")
    assert found.loc["b", "no_capacity"] == found.loc["b", "wait"] == 9
    assert found.loc["c", "no_capacity"] == found.loc["c", "wait"] == 18
    assert ending(result, "x")["status"] == "rejected"
    assert "9 × g exceed the 2 of any node of partition p" in ending(result, "x")["reason"]
