"""Metrics of one run, against answers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_made import GPU, cluster, gpu_mode, record, three, workload
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from tiers import examples

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Power
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, EXPIRED, REJECTED, UNFINISHED
from hetsim.results.one_run import metrics
from hetsim.results.one_run.bounds import area_bound
from hetsim.results.one_run.fairness import rho
from hetsim.results.one_run.measured import quantile
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.usage_metrics import littles_law

NAN, INF = math.nan, math.inf


def test_the_summary_of_three():
    """9 s of work back to back; waits 0, 3, 5; responses 4, 6, 7; E = 9 s × 250 W, of which 450 J idle."""
    values = three().values()
    expected = {
        "task_count": 3, "completed_count": 3, "unfinished_count": 0, "rejected_count": 0,
        "wait_mean": 8 / 3, "wait_p50": 3, "wait_max": 5,
        "response_mean": 17 / 3, "response_p95": 6.9, "slowdown_mean": 6.5 / 3, "bounded_slowdown_10s_mean": 1,
        "bsld_swf_mean": 1, "makespan": 9, "throughput": 3 / 9, "gpu_utilization": 1, "gpu_allocation": 1,
        "queue_length_mean": 8 / 9, "jobs_in_system_mean": 17 / 9, "preemptions": 0, "energy_j": 2250,
        "energy_tasks_j": 1800, "energy_idle_j": 450, "energy_wasted_j": 0, "energy_sleep_j": 0,
    }  # fmt: skip
    for name, value in expected.items():
        assert values[name] == pytest.approx(value), name
    for name in ("goodput", "goodput_fraction", "slo_attainment", "cpu_utilization"):
        assert math.isnan(values[name]), name


def test_littles_law_holds_exactly_in_a_drained_run():
    left, right = littles_law(three())
    assert left == pytest.approx(right)


def test_the_window_selects_tasks_by_arrival_and_device_time_by_the_clock():
    """`three` with warmup 2 and horizon 8: one task in the window, unfinished; finishes at 4 and 7 are inside."""
    tasks = workload([0, 1, 2], [4, 3, 2])
    result = Result(record(cluster(), tasks, [0, 4, 7], [4, 7, NAN], [(1,)] * 3, end=8.0, warmup=2.0, horizon=8.0))
    values = result.values()
    assert (values["task_count"], values["unfinished_count"]) == (1, 1)
    assert values["throughput"] == pytest.approx(2 / 6)
    assert math.isnan(values["response_mean"]) and values["response_p50"] == INF
    assert values["wait_p50"] == 5, "a task that started has a wait though it is unfinished"
    assert math.isnan(values["makespan"])
    assert values["queue_length_mean"] == pytest.approx((2 * 2 + 3) / 6)
    assert "unfinished" in result.warnings[0]


def test_unfinished_tasks_count_as_infinite_in_percentiles():
    """Values 1..8 and two infinite: of 10 the median lies between the 5th and 6th, the 95th percentile is infinite."""
    values = np.arange(1.0, 9.0)
    assert quantile(values, 0.5, 2) == 5.5
    assert quantile(values, 0.95, 2) == INF
    assert quantile(values, 1.0) == 8 and math.isnan(quantile(np.array([]), 0.5))
    assert quantile(values, 7 / 9, 2) == pytest.approx(8), "exactly the last known value is still known"


@examples(50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_are_numpys(values, share):
    assert quantile(np.array(values), share) == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-9)


def test_an_infinite_percentile_is_shown_as_at_least_and_is_valid_json():
    rec = record(cluster(), workload([0, 1], [2, 2]), [0, NAN], [2, NAN], [(1,), None], end=3.0)
    result = Result(rec)
    assert result.text("response_p95") == "≥ 2 s"
    assert result.to_json()["summary"]["response_p95"] == "Infinity"
    assert result.to_json()["summary"]["makespan"] is None


def test_deadlines():
    """Four with a deadline: one met, one late, one rejected, one expired; one without.  Run of 10 s."""
    tasks = workload([0] * 5, [1] * 5, deadline=np.array([5.0, 5, 5, 5, NAN]))
    rec = record(
        cluster(), tasks, [0, 8, NAN, NAN, 9], [1, 9, 0, 3, 10], [(1,), (1,), None, None, (1,)],
        status=[COMPLETED, COMPLETED, REJECTED, EXPIRED, COMPLETED],
    )  # fmt: skip
    result = Result(rec)
    assert result.metric("slo_attainment") == 1 / 4
    assert result.metric("attainment_admitted") == 1 / 3
    assert result.metric("goodput_fraction") == 1 / 5
    assert result.metric("goodput") == 1 / 10


def test_makespan_bound_with_release_times():
    """Two GPUs.  All the area over 2 from 0: 12 / 2 = 6; what comes at 5 or later: 5 + 8 / 2 = 9; one alone: 5 + 3."""
    tasks = workload([0, 5, 5, 5], [4, 3, 3, 2])
    rec = record(cluster(gpus=2), tasks, [0, 5, 5, 8], [4, 8, 8, 10], [(1,), (1,), (2,), (1,)])
    assert Result(rec).metric("makespan_bound") == pytest.approx(9)


def test_makespan_bound_weights_gangs_and_follows_the_critical_path():
    """A gang of 2 for 3 s and two singles of 1 s on two GPUs: (6 + 2) / 2 = 4; in a chain 3 + 1 + 1 = 5."""
    chain: dict = {}
    for predecessors, bound in ((None, 4), ([(), (0,), (1,)], 5)):
        chain["predecessors"] = predecessors
        tasks = workload([0, 0, 0], [3, 1, 1], [[gpu_mode(2)], [gpu_mode()]], [0, 1, 1], **chain)
        rec = record(cluster(gpus=2), tasks, [0, 3, 4], [3, 4, 5], [(1, 2), (1,), (1,)])
        assert Result(rec).metric("makespan_bound") == pytest.approx(bound)


@examples(30)
@given(st.integers(1, 3), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_area_bound_is_the_linear_program(kinds, count, random):
    """min λ: every task split over the types, load of each type at most λ × capacity."""
    areas = np.array([[random.uniform(0.1, 10) for _ in range(kinds)] for _ in range(count)])
    capacity = np.array([random.randint(1, 4) for _ in range(kinds)], dtype=float)
    loads = np.zeros((kinds, count * kinds + 1))
    for kind in range(kinds):
        loads[kind, kind : count * kinds : kinds] = areas[:, kind]
        loads[kind, -1] = -capacity[kind]
    ones = np.zeros((count, count * kinds + 1))
    for task in range(count):
        ones[task, task * kinds : (task + 1) * kinds] = 1
    exact = linprog([*[0] * (count * kinds), 1], loads, np.zeros(kinds), ones, np.ones(count)).fun
    assert area_bound(areas, capacity) == pytest.approx(exact, rel=1e-6)


def test_rho_is_response_over_the_time_on_ones_own_share():
    """Two gangs of 2 on 2 GPUs, 4 s each, both there from 0 to 8, one after the other: the first (0-4) saw 2 active.

    T_iso of the first = 4 × 2 × 2 / 2 = 8, so ρ = 4 / 8; the second saw (2·4 + 1·4) / 8 = 1.5: ρ = 8 / 6.
    A single on half the cluster needs no more than its own time: 2 active, ρ = response / time.
    """
    tasks = workload([0, 0], [4, 4], [[gpu_mode(2)]])
    result = Result(record(cluster(gpus=2), tasks, [0, 4], [4, 8], [(1, 2)] * 2))
    assert list(rho(result.measured)) == pytest.approx([0.5, 8 / 6])
    assert result.metric("rho_max") == pytest.approx(8 / 6) and result.metric("rho_unfair_share") == 0.5
    singles = Result(record(cluster(gpus=2), workload([0, 0], [4, 4]), [0, 2], [4, 6], [(1,), (2,)]))
    assert list(rho(singles.measured)) == pytest.approx([1, 1.5])


def test_rho_of_tasks_that_take_no_time_is_without_limit():
    """They waited for 1 s and more; the percentile is told, not computed from differences of infinities."""
    result = Result(record(cluster(), workload([0, 0, 0], [0, 0, 0]), [1, 2, 3], [1, 2, 3], [(1,)] * 3))
    with np.errstate(invalid="raise"):
        assert result.metric("rho_p95") == result.metric("rho_max") == math.inf


def test_jain():
    """One GPU for 10 s, two users who both want 10 s and are entitled to 5: one got 8, the other 2.

    x = 1.6 and 0.4: (2.0)² / (2 × (2.56 + 0.16)) = 4 / 5.44.
    """
    tasks = workload([0] * 4, [8, 2, 2, 8], user_code=np.array([0, 0, 1, 1]), users=["ann", "bob"])
    rec = record(
        cluster(), tasks, [0, NAN, 8, NAN], [8, NAN, 10, NAN], [(1,), None, (1,), None], end=10.0,
    )  # fmt: skip
    assert Result(rec).metric("jain") == pytest.approx(4 / 5.44)


def test_fragmentation():
    """Two GPUs on a node; half of the requests want 1 GPU, half 0.5.  0.75 of one GPU is taken all the time.

    Unallocated 1.25.  A whole GPU fits: the 0.25 is lost to it; 0.5 fits as well: 0.25 lost.  F = 0.25 / 1.25.
    """
    most = gpu_mode(share=3 * WHOLE // 4)
    tasks = workload([0, 20, 20], [10, 1, 1], [[most], [gpu_mode()], [gpu_mode(share=WHOLE // 2)]], [0, 1, 2])
    status = [COMPLETED, UNFINISHED, UNFINISHED]
    rec = record(cluster(gpus=2), tasks, [0, NAN, NAN], [10, NAN, NAN], [(1,), None, None], status=status, end=10.0)
    # The 0.75 request itself (a third of the mix) fits too and cannot use the 0.25 either.
    assert Result(rec).metric("fragmentation") == pytest.approx(0.25 / 1.25)


def test_a_request_that_fits_nowhere_strands_all():
    """A gang of 2 on a node with one free GPU: everything unallocated is fragmented for it."""
    tasks = workload([0, 0], [10, 1], [[gpu_mode(2)]])
    tasks.shapes.append(type(tasks.shapes[0])([gpu_mode()]))
    tasks.shapes[1].index = 1
    tasks.shape[0] = 1
    rec = record(cluster(gpus=2), tasks, [0, NAN], [10, NAN], [(1,), None], end=10.0)
    assert Result(rec).metric("fragmentation") == pytest.approx(0.5), "half of the mix is the gang, half the single"


def test_groups():
    tasks = workload([0, 1, 2], [4, 3, 2], class_code=np.array([0, 1, 0]), classes=["a", "b"])
    result = Result(record(cluster(), tasks, [0, 4, 7], [4, 7, 9], [(1,)] * 3))
    found = result.by("class")
    assert list(found.index) == ["a", "b"] and list(found.task_count) == [2, 1] and list(found.wait_mean) == [2.5, 3]
    with pytest.raises(UsageError, match="whole run"):
        result.by("class", ["energy_j"])


def test_every_metric_is_documented_and_computable():
    for name, function in metrics.metrics().items():
        assert function.__doc__, name
        assert isinstance(float(three().metric(name)), float)
    empty = Result(record(cluster(), workload([5.0], [1]), [NAN], [NAN], [None], end=3.0, status=[-1]))
    assert empty.metric("task_count") == 0 and math.isnan(empty.metric("response_p99"))
    for name in metrics.metrics():
        empty.metric(name)


def test_rows_of_energy_sum_to_the_whole_and_to_the_devices():
    """CPU watts are per core: 4 cores at 2 W idle and 6 W busy, one of them busy 3 s; the GPU of `three` beside."""
    cpu_type = DeviceType("cpu", kind="cpu", power=Power(idle=2, busy=6))
    where = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 1),), cpu_type=cpu_type)])
    cpu = Mode("cpu", cpu_type, millicores=1000)
    tasks = workload([0, 0], [3, 5], [[cpu], [gpu_mode()]], [0, 1])
    result = Result(record(where, tasks, [0, 0], [3, 5], [(0,), (1,)]))
    values = result.values()
    assert values["energy_idle_j"] == 4 * 2 * 5 + 50 * 5
    assert values["energy_tasks_j"] == 4 * 3 + 200 * 5 == result.tasks.energy_j.sum()
    rows = sum(values[f"energy_{name}_j"] for name in ("tasks", "wasted", "idle", "sleep"))
    assert rows == values["energy_j"] == result.devices.energy_j.sum()


@pytest.mark.quick(1)
@pytest.mark.parametrize("watts", [None, "10 W"])
def test_the_energy_of_a_cluster_without_watts_is_undefined(watts):
    """Nobody said what it draws, which is not that it draws nothing; one device with watts is enough to know some."""
    gpus = {"type": "g", "count": 1}
    nodes = {"cpus": 2, "gpus": gpus if watts is None else {**gpus, "power": {"sleep": watts}}}
    work = {"name": "w", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 10, "gpu_time": "1 s"}
    scenario = {"name": "t", "cluster": {"nodes": [nodes]}, "workload": [work]}
    names = [f"energy{part}_j" for part in ("", "_tasks", "_wasted", "_idle", "_sleep", "_of_tasks")]
    result = hs.run(scenario)
    tables = [result.tasks["energy_j"], result.launches["energy_j"], result.devices.filter(like="energy").stack()]
    figures = [*result.values(names).values(), *(value for table in tables for value in table)]
    assert len(figures) > 6 and all(math.isnan(value) if watts is None else value == 0 for value in figures)
    assert result.to_json()["summary"]["energy_j"] == (0.0 if watts else None)
    several = hs.replicate(scenario, replications=3)
    assert math.isnan(several.summary.loc["energy_j", "mean"]) == (watts is None)
    found = hs.compare(scenario, ["fcfs", "sjf"], metrics=["energy_j"], replications=2)
    assert found.cells("energy_j") == (["–", "–"] if watts is None else ["0 J", "0 J"])
    swept = hs.sweep(scenario, {"cluster.nodes.0.cpus": [1, 2]}, policies=["fcfs", "sjf"], metrics=["energy_j"])
    assert swept.table["energy_j"].isna().all() == (watts is None)
