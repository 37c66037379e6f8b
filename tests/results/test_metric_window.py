"""Metrics of a window against loops over tasks: every status, every order of arrival, warmup and horizon, batches."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, three, workload

from hetsim.errors import UnknownName
from hetsim.model.device_type import WHOLE
from hetsim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED, UNFINISHED
from hetsim.results.one_run import language_metrics, metrics, usage_metrics
from hetsim.results.one_run.measured import Measured, quantile
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.usage_metrics import littles_law

NAN, INF = math.nan, math.inf
END = 40.0
STATUS = (COMPLETED, COMPLETED, COMPLETED, REJECTED, EXPIRED, FAILED, UNFINISHED)


def made(seed, low=0.0, horizon=INF, unfinished=True, count=30):
    """A record of tasks with times of their own on four GPUs, and plain rows of what was put into it."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.integers(0, 30, count)).astype(float)
    rows = []
    for number in range(count):
        status = int(rng.choice(STATUS[: 7 if unfinished else 6]))
        came = arrival[number]
        start = came + float(rng.integers(0, 4))
        finish = start + float(rng.integers(1, 12))
        if status == COMPLETED and finish > END:
            finish = END
        if status in (REJECTED, EXPIRED):
            start, finish = NAN, min(came + float(rng.integers(0, 3)), END)
        elif status == UNFINISHED:
            start, finish = (start if rng.random() < 0.5 else NAN), NAN
        elif status == FAILED:
            finish = min(finish, END)
        rows.append(SimpleNamespace(
            arrival=came, start=start, finish=finish, status=status, weight=float(rng.integers(1, 5)),
            deadline=float(rng.choice([NAN, came + 6.0])), preemptions=int(rng.integers(0, 3)),
            migrations=int(rng.integers(0, 2)), mode=int(rng.integers(3)),
        ))  # fmt: skip
    modes = [gpu_mode(), gpu_mode(share=WHOLE // 2), gpu_mode(2)]
    tasks = workload(
        [row.arrival for row in rows], [2.0] * count, [[mode] for mode in modes], [row.mode for row in rows],
        weight=np.array([row.weight for row in rows]), deadline=np.array([row.deadline for row in rows]),
    )  # fmt: skip
    rec = record(
        cluster(gpus=4), tasks, [row.start for row in rows], [row.finish for row in rows],
        [None if math.isnan(row.start) else ((1, 2) if row.mode == 2 else (1 + i % 4,)) for i, row in enumerate(rows)],
        status=[row.status for row in rows], end=END, warmup=low, horizon=horizon,
        preemptions=np.array([row.preemptions for row in rows]), migrations=np.array([row.migrations for row in rows]),
    )  # fmt: skip
    return Result(rec), rows


def sorted_quantile(values, share):
    """Linear between order statistics; infinite as soon as an infinite one has weight."""
    values = sorted(values)
    place = share * (len(values) - 1)
    low, part = int(place), place - int(place)
    if part == 0 or values[low] == values[low + 1]:
        return values[low]
    return values[low] + part * (values[low + 1] - values[low])


WINDOWS = [(0.0, INF), (5.0, 24.0), (0.0, 24.0), (10.0, INF)]


@pytest.mark.quick(6)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_tasks_are_loops_over_the_tasks_that_came_in_the_window(seed, window):
    low, horizon = window
    result, rows = made(seed, low, horizon)
    inside = [row for row in rows if low <= row.arrival < horizon]
    found = result.metric
    assert found("task_count") == len(inside)
    names = {COMPLETED: "completed", REJECTED: "rejected", EXPIRED: "expired", FAILED: "failed",
             UNFINISHED: "unfinished"}  # fmt: skip
    for status, name in names.items():
        assert found(f"{name}_count") == sum(row.status == status for row in inside), name
    done = [row for row in inside if row.status == COMPLETED]
    responses = [row.finish - row.arrival for row in done]
    waits = [row.start - row.arrival for row in inside if not math.isnan(row.start)]
    open_ = sum(row.status == UNFINISHED for row in inside)
    unstarted = sum(row.status == UNFINISHED and math.isnan(row.start) for row in inside)
    for name, values, missing in (("response", responses, open_), ("wait", waits, unstarted)):
        assert found(f"{name}_mean") == pytest.approx(np.mean(values))
        for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert found(f"{name}_{label}") == pytest.approx(sorted_quantile([*values, *[INF] * missing], share))
        assert found(f"{name}_max") == (INF if missing else max(values))
    assert found("rejected_fraction") == sum(row.status == REJECTED for row in inside) / len(inside)
    assert found("preemptions") == sum(row.preemptions for row in inside)
    assert found("migrations") == sum(row.migrations for row in inside)
    ran = [max(1.0, (row.finish - row.arrival) / max(row.finish - row.start, 10.0)) for row in done]
    assert found("bsld_swf_mean") == pytest.approx(np.mean(ran))
    valued = [row.weight for row in done if not row.finish > row.deadline]
    assert found("value_fraction") == pytest.approx(sum(valued) / sum(row.weight for row in inside))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_time_are_integrals_over_the_window(seed, window):
    low, horizon = window
    result, rows = made(seed, low, horizon)
    high = result.window[1]
    duration = high - low

    def seconds(begin, end):
        return max(0.0, min(end, high) - max(begin, low)) if begin == begin else 0.0

    ends = [END if math.isnan(row.finish) else row.finish for row in rows]
    there = sum(seconds(row.arrival, end) for row, end in zip(rows, ends, strict=True))
    running = sum(seconds(row.start, end) for row, end in zip(rows, ends, strict=True))
    assert result.metric("jobs_in_system_mean") == pytest.approx(there / duration)
    assert result.metric("queue_length_mean") == pytest.approx((there - running) / duration)
    done = [row for row in rows if row.status == COMPLETED and low <= row.finish <= high]
    assert result.metric("throughput") == pytest.approx(len(done) / duration)


@pytest.mark.parametrize("seed", range(4))
def test_deadlines_that_all_lie_before_the_end(seed):
    """Whatever the rule at the end of a run, here it takes every task of the window."""
    result, rows = made(seed, 5.0)
    inside = [row for row in rows if row.arrival >= 5.0]
    having = [row for row in inside if row.deadline == row.deadline]
    met = [row for row in having if row.status == COMPLETED and row.finish <= row.deadline]
    assert result.metric("slo_attainment") == pytest.approx(len(met) / len(having))
    assert result.metric("goodput") == pytest.approx(len(met) / 35.0)
    admitted = [row for row in having if row.status != REJECTED]
    assert result.metric("attainment_admitted") == pytest.approx(len(met) / len(admitted))


def test_a_makespan_is_from_the_first_arrival_to_the_last_completion():
    result, rows = made(1, unfinished=False)
    done = [row.finish for row in rows if row.status == COMPLETED]
    assert result.metric("makespan") == max(done) - min(row.arrival for row in rows)
    assert math.isnan(made(1)[0].metric("makespan"))
    nothing = record(cluster(), workload([2.0], [1]), [NAN], [3.0], [None], status=[REJECTED], end=4.0)
    assert math.isnan(Result(nothing).metric("makespan"))


def test_littles_law_by_hand():
    """Two tasks, there 4 and 6 of 6 s."""
    rec = record(cluster(gpus=2), workload([0, 0], [4, 6]), [0, 0], [4, 6], [(1,), (2,)])
    assert littles_law(Result(rec)) == pytest.approx((10 / 6, 10 / 6))


def test_tasks_after_the_horizon_are_in_no_window():
    tasks = workload([5.0], [1.0])
    rec = record(cluster(), tasks, [NAN], [NAN], [None], end=3.0, horizon=3.0, status=[UNFINISHED])
    assert Result(rec).metric("task_count") == 0


def test_groups_are_measured_by_their_rows():
    result, rows = made(2)
    chosen = np.array([1, 4, 7, 8])
    group = Measured(result, chosen)
    weights = np.arange(float(len(rows)))
    assert group.chosen(weights).tolist() == [1.0, 4.0, 7.0, 8.0]
    assert len(group.tasks) == len(group.status) == 4
    assert group.column("arrival").tolist() == [rows[i].arrival for i in chosen]
    assert metrics.metric("task_count")(group) == 4
    everything = Measured(result)
    assert everything.rows is None
    assert everything.chosen(weights) is weights
    assert everything.tasks is result.tasks
    assert made(2, 5.0)[0].measured.rows.tolist() == [i for i, row in enumerate(rows) if row.arrival >= 5.0]
    assert made(2, 0.0, 24.0)[0].measured.rows.tolist() == [i for i, row in enumerate(rows) if row.arrival < 24.0]


def test_completions_at_both_ends_of_the_window_count():
    """Finishes at 2, 5 and 6 of a window from 2 to 6; the first came before it."""
    rec = record(cluster(), workload([0, 0, 0], [2, 3, 1]), [0, 2, 5], [2, 5, 6], [(1,)] * 3, warmup=2.0)
    assert Result(rec).metric("throughput") == pytest.approx(3 / 4)


def served():
    """Three requests to one replica from 1, 2, 3 to 4, 5, 6, in one busy period; next to a plain task from 0 to 2."""
    modes = [[gpu_mode()], [gpu_mode()]]
    tasks = workload([0, 0, 1, 2], [1] * 4, modes, [1, 0, 0, 0])
    rec = record(cluster(gpus=2), tasks, [0, 1, 2, 3], [2, 4, 5, 6], [(2,), (1,), (1,), (1,)])
    rec.launches = launches([
        {"task": 0, "place": 0, "start": 0, "end": 2},
        {"task": 1, "place": 1, "members": 3, "start": 1, "end": 6},
    ])  # fmt: skip
    service = SimpleNamespace(shape=tasks.shapes[0], rows=np.array([1, 2, 3]), name="chat", ttft=INF, tpot=INF)
    return rec, service


def test_requests_of_a_busy_period_run_from_their_own_start_to_their_own_finish():
    """They wait 1 + 1 + 1 s of the 6; the replica's launch, which has three members for 5 s, says nothing of that."""
    rec, service = served()
    rec.input.language = [service]
    rec.input.tasks.extra["output_tokens"] = np.array([np.nan, 4.0, 4.0, 4.0])
    result = Result(rec)
    assert result.metric("queue_length_mean") == pytest.approx(3 / 6)
    line = result.timeline
    assert list(line["time"]) == [0, 1, 2, 3, 4, 5, 6]
    assert list(line["running"]) == [1, 2, 2, 3, 2, 1, 0]
    assert list(line["waiting"]) == [1, 1, 1, 0, 0, 0, 0]


def test_batches_count_all_their_members_as_running():
    """Three requests come at 0 and run as one launch from 2 to 6: 3 × 2 s of waiting in 6 s."""
    rec = record(cluster(), workload([0, 0, 0], [1, 1, 1]), [2, 2, 2], [6, 6, 6], [(1,)] * 3, batch=np.zeros(3, int))
    rec.launches = launches([{"task": 0, "place": 0, "members": 3, "start": 2, "end": 6}])
    result = Result(rec)
    assert result.metric("queue_length_mean") == pytest.approx(1.0)
    assert result.metric("jobs_in_system_mean") == pytest.approx(3.0)


def test_times_a_hundred_times_as_short_make_rates_a_hundred_times_as_high():
    """A window of a third of a second is one."""
    modes = [[gpu_mode()]]
    whole, part = (
        Result(record(
            cluster(), workload([0, s, 2 * s], [4 * s, 3 * s, 2 * s], modes, deadline=np.array([9.0, 9.0, 1.0]) * s),
            [0, 4 * s, 7 * s], [4 * s, 7 * s, 9 * s], [(1,)] * 3,
        ))
        for s in (1.0, 0.01)
    )  # fmt: skip
    for name in ("throughput", "goodput"):
        assert part.metric(name) == pytest.approx(100 * whole.metric(name))
    for name in ("queue_length_mean", "jobs_in_system_mean", "gpu_utilization", "gpu_allocation", "slo_attainment"):
        assert part.metric(name) == pytest.approx(whole.metric(name)), name
    assert whole.metric("throughput") == pytest.approx(1 / 3)
    assert whole.metric("goodput") == pytest.approx(2 / 9)


def test_a_window_of_no_length_has_no_rates():
    tasks = workload([0.0], [0.0], deadline=np.array([1.0]), extra={"output_tokens": np.array([3.0])})
    result = Result(record(cluster(), tasks, [0.0], [0.0], [(1,)], end=0.0))
    for name in ("throughput", "goodput", "queue_length_mean", "jobs_in_system_mean", "output_rate",
                 "gpu_utilization"):  # fmt: skip
        assert math.isnan(result.metric(name)), name


def test_fractions_of_no_tasks_are_not_defined():
    rec = record(cluster(), workload([5.0], [1]), [NAN], [NAN], [None], end=3.0, status=[-1])
    result = Result(rec)
    for name in ("rejected_fraction", "value_fraction", "slo_attainment", "goodput", "bsld_swf_mean", "response_mean",
                 "response_max", "cache_hit_fraction"):  # fmt: skip
        assert math.isnan(result.metric(name)), name


def test_gpu_seconds_are_of_work_that_counted():
    """A gang of 2 for 3 s, half a GPU for 4 s, both in the window; a whole one that came before it."""
    modes = [[gpu_mode(2)], [gpu_mode(share=WHOLE // 2)], [gpu_mode()]]
    tasks = workload([0, 2, 2], [5, 3, 4], modes, [2, 0, 1])
    rec = record(cluster(gpus=4), tasks, [0, 2, 2], [5, 5, 6], [(4,), (1, 2), (3,)], warmup=1.0)
    assert Result(rec).metric("gpu_seconds") == pytest.approx(2 * 3 + 0.5 * 4)
    assert Result(rec).metric("energy_of_tasks_j") == pytest.approx(200 * (2 * 3 + 0.5 * 4))


def test_hits_of_a_result_cache():
    """Of a service with a cache, completed requests of the window: one of three had no place.  Others do not count."""
    tasks = workload([0, 2, 2, 3, 3, 3], [1] * 6)
    rec = record(
        cluster(), tasks, [0, 2, 2, 3, NAN, 3], [1, 3, 2, 4, 3, 4], [None, (1,), None, (1,), None, None],
        status=[COMPLETED] * 4 + [REJECTED, COMPLETED], warmup=1.0,
    )  # fmt: skip
    service = SimpleNamespace(name="kept", cache=object(), rows=np.array([0, 1, 2, 3, 4]))
    other = SimpleNamespace(name="plain", cache=None, rows=np.array([5]))
    result = Result(rec)
    measured = result.measured
    for services, share in (([service, other], 1 / 3), ([other], NAN)):
        rec.input.services = services
        assert usage_metrics.cache_hit_fraction(measured) == pytest.approx(share, nan_ok=True)
    service.rows = np.array([0, 4])  # before the window, and rejected
    rec.input.services = [service]
    assert math.isnan(usage_metrics.cache_hit_fraction(measured))


def test_tokens_a_second():
    """Completed at 3 and at 6 of a window from 2 to 6, with 5 and 7 tokens; at 1 and unfinished ones do not count."""
    rec = record(
        cluster(gpus=4), workload([0, 0, 2, 2], [1] * 4, extra={"output_tokens": np.array([9.0, 5.0, 7.0, 4.0])}),
        [0, 0, 2, 2], [1, 3, 6, NAN], [(1,), (2,), (3,), (4,)], warmup=2.0, end=6.0,
    )  # fmt: skip
    result = Result(rec)
    assert math.isnan(three().metric("output_rate"))  # without requests to language models
    assert language_metrics.output_rate(result.measured) == pytest.approx(12 / 4)


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.6, 3.4), (1.0, 5.0)])
def test_quantiles_by_hand(share, wanted):
    values = np.array([3.0, 1.0, 5.0, 2.0, 4.0])
    assert quantile(values, share) == pytest.approx(wanted)
    assert quantile(values[:0], share, 2) == INF
    assert quantile(np.array([7.0]), share) == 7.0


def test_quantiles_with_infinite_values_at_every_share():
    values = np.array([1.0, 2.0, 4.0])
    for share in np.linspace(0, 1, 41):
        assert quantile(values, share, 2) == pytest.approx(sorted_quantile([1.0, 2.0, 4.0, INF, INF], share))


def test_the_summary_leaves_out_what_is_made_when_asked_for():
    names = metrics.summary_names()
    assert set(names) < set(metrics.metrics())
    assert "bounded_slowdown_60s_mean" in metrics.summary_names(60.0)
    counts = ["task_count", "completed_count"]
    assert list(metrics.evaluate(made(0)[0].measured, counts)) == counts
    assert metrics.metric("bounded_slowdown_60s_mean", 60.0)
    with pytest.raises(UnknownName, match="wait_mean"):
        metrics.metric("wait_meen")


def test_power_of_the_hand_made_gpu():
    """What the figures above rest on."""
    assert GPU.power.busy - GPU.power.idle == 200
