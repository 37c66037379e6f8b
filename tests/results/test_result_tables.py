"""The tables of a run, against answers worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, slow_link, three, workload
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from hetsim.errors import UnknownName, UsageError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import StageTime
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, EXPIRED, FAILED, LAUNCH_STOPPED, NOT_ARRIVED, REJECTED, UNFINISHED, Record
from hetsim.model.tasks import Item
from hetsim.results.one_run import store
from hetsim.results.one_run.metrics import metric
from hetsim.results.one_run.result import Result

NAN = math.nan
COLUMNS = [
    "id", "class", "user", "arrival", "ready", "start", "finish", "wait", "response", "slowdown",
    "bounded_slowdown_10s", "device_type", "device", "node", "batch", "upload", "compute", "download", "overhead",
    "status", "reason", "preemptions", "migrations", "deadline", "met_deadline", "energy_j",
]  # fmt: skip


def test_columns_are_those_of_the_documentation_in_order():
    assert list(three().tasks.columns) == COLUMNS


def test_three_tasks_on_one_gpu():
    """Waits 0, 3, 5; responses 4, 6, 7; alone they need 4, 3, 2, so slowdowns 1, 2, 3.5."""
    tasks = three().tasks
    assert list(tasks.id) == [0, 1, 2]
    assert list(tasks.wait) == [0, 3, 5]
    assert list(tasks.response) == [4, 6, 7]
    assert list(tasks.slowdown) == [1, 2, 3.5]
    assert list(tasks.bounded_slowdown_10s) == [1, 1, 1]
    assert list(tasks.compute) == [4, 3, 2] and list(tasks.overhead) == [0, 0, 0]
    assert set(tasks.device) == {"n0/g0"} and set(tasks.node) == {"n0"} and set(tasks.device_type) == {"g"}
    assert list(tasks.energy_j) == [800, 600, 400]
    assert tasks.met_deadline.isna().all() and tasks.batch.isna().all()


def test_the_bound_of_the_slowdown_is_a_parameter_and_shows_in_the_name():
    """With a bound of 1 s nothing is bounded here."""
    result = Result(three().record, bound=1)
    assert list(result.tasks.bounded_slowdown_1s) == [1, 2, 3.5]
    assert "bounded_slowdown_1s_mean" in result.summary.index


def test_transfers_count_in_the_exclusive_time_and_the_rest_is_overhead():
    """2 GB up at 1 GB/s + 0.1 s, 5 s, 1 GB down at 0.5 GB/s + 0.1 s: T* = 2.1 + 5 + 2.1 = 9.2 s.

    Start at 1 and finish at 12: overhead = 12 - 1 - 9.2 = 1.8; response / T* = 12 / 9.2.
    """
    kind = slow_link()
    tasks = workload(
        [0], [5], [[gpu_mode(kind=kind)]], bytes_in=np.array([2_000_000_000]), bytes_out=np.array([1_000_000_000])
    )
    stages = {"upload": np.array([2.1]), "compute": np.array([5.0]), "download": np.array([2.1])}
    row = Result(record(cluster(kind=kind), tasks, [1], [12], [(1,)], **stages)).tasks.iloc[0]
    assert row.overhead == pytest.approx(1.8)
    assert row.slowdown == pytest.approx(12 / 9.2)


def test_items_read_are_uploaded_and_only_final_items_downloaded():
    """Reads 1 GB: 1.1 s up.  Writes 0.5 GB that nobody reads: 1.1 s down.  A written item with a reader stays."""
    kind = slow_link()
    items = [Item("in", 10**9), Item("between", 10**9), Item("out", 5 * 10**8)]
    tasks = workload([0, 0], [1, 1], [[gpu_mode(kind=kind)]], reads=[(0,), (1,)], writes=[(1,), (2,)], items=items)
    result = Result(record(cluster(kind=kind), tasks, [0, 4], [4, 8], [(1,)] * 2))
    assert list(result.tasks.response / result.tasks.slowdown) == pytest.approx([1.1 + 1, 1.1 + 1 + 1.1])


def test_a_gang_uploads_its_input_in_parts_and_items_on_every_device():
    """Two GPUs: 2 GB of input in two parts and an item of 1 GB on each: 0.1 + 2 s, then 1 s of computing."""
    kind = slow_link()
    tasks = workload(
        [0], [1], [[gpu_mode(2, kind=kind)]], bytes_in=np.array([2 * 10**9]), reads=[(0,)], items=[Item("in", 10**9)]
    )
    result = Result(record(cluster(gpus=2, kind=kind), tasks, [0], [3.1], [(1, 2)]))
    assert result.tasks.slowdown[0] == pytest.approx(1)


def test_the_exclusive_time_is_of_the_fastest_mode_the_cluster_offers():
    """A CPU mode of 6 s; a GPU mode of 1 + 1 + 2 s with its stages; an 8-GPU mode of 1 s that no node can hold."""
    cpu = Mode("cpu", DeviceType("cpu", kind="cpu"), millicores=1000)
    staged = gpu_mode(fixed=1.0, upload=StageTime(0.5, 0.5))
    tasks = workload([0, 0], [[6, 2, 1], [6, math.inf, 1]], [[cpu, staged, gpu_mode(8)]])
    result = Result(record(cluster(cpus=2), tasks, [0, 0], [6, 6], [(0,), (0,)]))
    assert list(result.tasks.slowdown) == [6 / 4, 1]


def test_rows_that_never_arrived_are_dropped_and_every_status_is_named():
    tasks = workload([0, 0, 0, 0, 0, math.inf], [1] * 6, extra={"tokens": np.arange(6), "wait": np.arange(6)})
    status = [COMPLETED, REJECTED, EXPIRED, FAILED, UNFINISHED, NOT_ARRIVED]
    rec = record(
        cluster(), tasks, [0, NAN, NAN, 1, NAN, NAN], [1, 0, 2, 3, NAN, NAN], [(1,), None, None, (1,), None, None],
        status=status, end=5.0, reasons={1: "too long", 3: "device failed"},
    )  # fmt: skip
    found = Result(rec).tasks
    assert list(found.status) == ["completed", "rejected", "expired", "failed", "unfinished"]
    assert list(found.reason.astype(object).where(found.reason.notna(), None)) == [
        None, "too long", None, "device failed", None,
    ]  # fmt: skip
    assert list(found.tokens) == [0, 1, 2, 3, 4] and list(found.wait_given) == [0, 1, 2, 3, 4]
    assert found.response.notna().sum() == 1 and found.device.isna().sum() == 3


def test_deadlines_are_missed_by_whatever_did_not_complete_in_time():
    tasks = workload([0, 0, 0], [1, 1, 1], deadline=np.array([2.0, 2.0, NAN]))
    found = Result(record(cluster(gpus=3), tasks, [0, 1.5, 0], [1, 2.5, 1], [(1,), (2,), (3,)])).tasks
    assert list(found.met_deadline[:2]) == [True, False] and found.met_deadline.isna()[2]


@examples(30)
@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 2, *[st.floats(0, 1e4)] * 4), min_size=1, max_size=20))
def test_response_is_the_sum_of_its_parts(rows):
    """response = (start - arrival) + upload + compute + download + overhead, which is never noise below zero."""
    rows.sort()
    arrival, delay, up, run, down, held = (np.array(column) for column in zip(*rows, strict=True))
    start = arrival + delay
    finish = start + up + run + down + held
    tasks = workload(list(arrival), list(run))
    stages = {"upload": up, "compute": run, "download": down}
    found = Result(record(cluster(), tasks, list(start), list(finish), [(1,)] * len(rows), **stages)).tasks
    parts = found.start - found.arrival + found.upload + found.compute + found.download + found.overhead
    np.testing.assert_allclose(parts, found.response, rtol=1e-9, atol=1e-9)
    assert (found.overhead >= 0).all() or held.min() < 1e-6


def test_launches_derive_from_the_tasks():
    found = three().launches
    assert list(found.start) == [0, 4, 7] and list(found.end) == [4, 7, 9]
    assert list(found.busy) == [4, 3, 2] and set(found.outcome) == {"completed"}
    assert found.upload_start.isna().all()


def test_derived_launches_compute_between_their_transfers():
    """Half a second up and a quarter down around half a second of a gang of two; one that never starts has no row."""
    tasks = workload([0, 0], [0.5, 1], [[gpu_mode(2)]])
    stages = {"upload": np.array([0.5, 0.0]), "compute": np.array([0.5, 0.0]), "download": np.array([0.25, 0.0])}
    found = Result(record(cluster(gpus=2), tasks, [1, NAN], [2.25, NAN], [(1, 2), None], end=4.0, **stages)).launches
    row = found.iloc[0]
    assert len(found) == 1 and (row.busy, row.energy_j, row.device) == (1.0, 200.0, "n0/g0+n0/g1")
    assert (row.upload_start, row.upload_end, row.compute_start, row.compute_end) == (1, 1.5, 1.5, 2)
    assert (row.download_start, row.end, row.outcome, row.fill) == (2, 2.25, "completed", 1)
    still = record(cluster(), workload([0], [9]), [1], [NAN], [(1,)], end=1.25, upload=np.array([0.5]),
        compute=np.array([0.0]))
    row = Result(still).launches.iloc[0]
    assert row.busy == 0 and math.isnan(row.compute_end) and math.isnan(row.end) and row.outcome == "running"


def test_a_written_launch_table_and_a_derived_one_agree():
    plain = three()
    rows = [{"task": i, "place": 0, "start": s, "end": e} for i, (s, e) in enumerate([(0, 4), (4, 7), (7, 9)])]
    rec = three().record
    rec.launches = launches(rows)
    pd.testing.assert_frame_equal(plain.launches, Result(rec).launches, check_dtype=False)
    pd.testing.assert_frame_equal(plain.devices, Result(rec).devices)
    pd.testing.assert_frame_equal(plain.timeline, Result(rec).timeline)


def test_devices_are_clipped_to_the_window():
    """Window [2, 8) of `three`: the GPU is busy all 6 s; two launches begin in it (at 4 and 7); 6 × 250 W."""
    rec = three().record
    rec.input.warmup, rec.end = 2.0, 8.0
    row = Result(rec).devices.iloc[0]
    assert (row.busy, row.up, row.utilization, row.launches) == (6, 6, 1, 2)
    assert row.energy_j == 6 * 250


def test_a_gang_and_a_fraction_count_by_their_share():
    """4 GPUs for 10 s: a gang of 2 for 10 s, a quarter of one GPU for 4 s; a CPU core held by the gang's node."""
    gang, quarter = gpu_mode(2, millicores=3000), gpu_mode(1, share=WHOLE // 4)
    tasks = workload([0, 0], [10, 4], [[gang], [quarter]], [0, 1])
    found = Result(record(cluster(gpus=4, cpus=8), tasks, [0, 0], [10, 4], [(1, 2), (3,)])).devices.set_index("device")
    assert list(found.busy) == [0, 10, 10, 1, 0]
    assert list(found.allocated) == [30, 10, 10, 1, 0]
    assert found.allocation["n0/cpu"] == pytest.approx(30 / 80)


def test_two_streams_do_not_allocate_more_than_the_gpu():
    """In flight 0-6 and 4-10 on one GPU with two streams: allocated 10 s, not 12."""
    kind = DeviceType("g", streams=2)
    tasks = workload([0, 0], [5, 5], [[gpu_mode(kind=kind)]])
    result = Result(record(cluster(kind=kind), tasks, [0, 4], [6, 10], [(1,)] * 2))
    assert result.devices.allocated[0] == 10


def test_a_gpu_with_two_streams_on_which_nothing_runs_allocates_nothing():
    """A task on the cores of its node, and one on the other GPU type."""
    idle = DeviceType("g", streams=2)
    other = DeviceType("h")
    where = Cluster([NodeSpec(cpus=2, accelerators=((idle, 1), (other, 1)))])
    on_cores = Mode("cpu", where.devices[0].type, millicores=1000)
    cases: list[tuple[list[Mode], tuple[int, ...], list[float]]] = [
        ([on_cores], (0,), [5, 0, 0]),
        ([gpu_mode(kind=other)], (2,), [0, 0, 5]),
    ]
    for modes, place, expected in cases:
        tasks = workload([0], [5], [modes])
        assert list(Result(record(where, tasks, [0], [5], [place])).devices.allocated) == expected


def test_sleep_and_failure_are_not_up_time():
    """Of 9 s: asleep 1-3, waking 3-4 (up), down 5-6: up 6 s at 50 W, asleep 2 s at 5 W, 9 s of work at 200 W."""
    rec = three().record
    rec.device_log = [(1.0, 1, "sleep", 0.0), (3.0, 1, "wake", 0.0), (4.0, 1, "awake", 0.0), (5.0, 1, "down", 0.0),
                      (6.0, 1, "up", 0.0)]  # fmt: skip
    row = Result(rec).devices.iloc[0]
    assert (row.up, row.asleep) == (6, 2)
    assert (row.energy_idle_j, row.energy_sleep_j, row.energy_tasks_j) == (300, 10, 1800)


def test_lost_work_is_wasted_energy():
    """A launch of 3 s stopped with all its work lost, then one of 5 s: 600 J wasted, 1000 J of the task."""
    rec = record(cluster(), workload([0], [5]), [0], [9], [(1,)], compute=np.array([5.0]))
    rec.launches = launches(
        [
            {"task": 0, "place": 0, "start": 0, "end": 3, "lost": 3.0, "outcome": LAUNCH_STOPPED},
            {"task": 0, "place": 0, "start": 4, "end": 9},
        ]
    )
    result = Result(rec)
    values = result.values(["energy_wasted_j", "energy_tasks_j", "energy_idle_j", "energy_j"])
    assert list(values.values()) == [600, 1000, 450, 2050]
    assert result.tasks.energy_j.sum() == 1000 and result.tasks.overhead[0] == 4


def test_the_timeline_is_a_step_function():
    """Waiting 0, 1, 2 at 0, 1, 2; 1 from 4; 0 from 7; nothing at 9."""
    found = three().timeline
    assert list(found.time) == [0, 1, 2, 4, 7, 9]
    assert list(found.waiting) == [0, 1, 2, 1, 0, 0]
    assert list(found.running) == [1, 1, 1, 1, 1, 0]
    assert list(found.busy_gpus) == [1, 1, 1, 1, 1, 0] == list(found.allocated_gpus)
    by_node = three().timeline_by("node")
    assert list(by_node["busy.n0"]) == [1, 1, 1, 1, 1, 0]


def test_what_still_runs_is_in_the_last_row_of_the_timeline():
    tasks = workload([0, 0], [9, 9])
    found = Result(record(cluster(), tasks, [0, NAN], [NAN, NAN], [(1,), None], end=5.0)).timeline
    last = found.iloc[-1]
    assert (last.time, last.waiting, last.running, last.busy_gpus) == (5, 1, 1, 1)


def test_members_of_a_batch_share_its_energy():
    """Two tasks in one launch of 4 s: 800 J, 400 J each; both carry the batch's 4 s."""
    rec = record(
        cluster(), workload([0, 0], [2, 2]), [0, 0], [4, 4], [(1,)] * 2,
        compute=np.array([4.0, 4.0]), batch=np.array([0, 0]),
    )  # fmt: skip
    rec.launches = launches([{"task": 0, "place": 0, "members": 2, "start": 0, "end": 4}])
    result = Result(rec)
    assert list(result.tasks.energy_j) == [400, 400] and list(result.tasks.batch) == [0, 0]
    assert result.metric("energy_tasks_j") == 800
    assert list(result.timeline.running) == [2, 0]


def test_a_mixed_cluster_and_core_names():
    other = DeviceType("h")
    where = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 1), (other, 1))), NodeSpec(cpus=2)])
    cpu = Mode("cpu", where.nodes[0].cpu.type, millicores=1000)
    rec = record(where, workload([0], [1], [[cpu]]), [0], [1], [(3,)])
    rec.places = [((3,), (1,))]
    found = Result(rec)
    assert found.tasks.device[0] == "n1/cpu1" and found.tasks.node[0] == "n1"
    assert found.metric("cpu_utilization") == pytest.approx(1 / 6)
    assert found.metric("gpu_utilization") == 0


# Saving -------------------------------------------------------------------------------------------------------


def test_a_saved_run_comes_back(tmp_path):
    result = three()
    result.scenario = "name: by hand\n"
    result.save(tmp_path / "run")
    loaded = Result.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.tasks.drop(columns="reason"), result.tasks.drop(columns="reason"))
    assert loaded.tasks.reason.isna().all(), "the type of no categories at all is not kept"
    pd.testing.assert_frame_equal(loaded.launches, result.launches)
    pd.testing.assert_frame_equal(loaded.summary, result.summary)
    pd.testing.assert_frame_equal(loaded.by("class"), result.by("class"))
    assert (loaded.name, loaded.seed, loaded.policy, loaded.scenario) == ("by hand", 7, "paper", "name: by hand\n")
    assert isinstance(loaded.record, Record) and loaded.metric("makespan_bound") == 9
    json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=pytest.fail)


def test_saving_replaces_a_run_but_nothing_else(tmp_path):
    three().save(tmp_path / "run")
    three().save(tmp_path / "run")
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter1.txt").write_text("precious")
    with pytest.raises(UsageError, match="not a run directory"):
        three().save(other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "thesis"]


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_save_record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        three().save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_keeps_its_error(tmp_path):
    result = Result(three().record, error='policy "x" looped')
    result.save(tmp_path / "partial")
    loaded = Result.load(tmp_path / "partial")
    assert loaded.error == 'policy "x" looped' and "looped" in repr(loaded)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        Result.load(tmp_path)


def test_ids_of_several_kinds_can_be_saved(tmp_path):
    rec = three().record
    rec.input.tasks.id = np.array([1, "b", 2.5], dtype=object)
    run = Result(rec)
    run.save(tmp_path / "run")
    assert list(run.tasks.id) == ["1", "b", "2.5"]
    assert set(run.launches.task) <= set(run.tasks.id)
    pd.testing.assert_frame_equal(Result.load(tmp_path / "run").tasks[["id"]], run.tasks[["id"]])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mean_wait", "wait_mean"), ("ttf", "ttft_mean"), ("p95_latency", "response_p95"), ("wait", "wait_mean"),
    ],
)  # fmt: skip
def test_an_unknown_metric_is_answered_with_metrics_that_share_its_parts(name, near):
    from hetsim.results.one_run.metrics import check

    for ask in (metric, check):
        with pytest.raises(UnknownName, match=rf"near: .*\b{near}\b.*; hetsim list metrics\)"):
            ask(name)


def test_an_unknown_metric_gets_a_suggestion():
    with pytest.raises(UnknownName, match='did you mean "response_mean"'):
        three().metric("respons_mean")
    with pytest.raises(UsageError, match="no column"):
        three().by("color")
