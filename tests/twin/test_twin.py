"""The twin of a live cluster: what a snapshot says, what is drawn from a log, and what comes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from click.testing import CliRunner

from hetsim.cli.program import hetsim
from hetsim.errors import ScenarioError
from hetsim.traces.command import read as read_log
from hetsim.twin.forecast import SnapshotCluster, Twin, TwinForecast
from hetsim.twin.judge import earlier_instants, judge, look_back
from hetsim.twin.widening import ENOUGH_STARTS, SHARES, Past, Widening, widening
from hetsim.workload.logs.history import DAY, ArrivalTimes, JobHistory, RunTimes, history_of
from hetsim.workload.readers.snapshot import SnapshotJob, gpus_of, read

HEAD = ("JOBID|PARTITION|USER|ACCOUNT|QOS|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|CPUS|TRES_PER_NODE|NODES|NODELIST|"
        "REASON|PRIORITY")  # fmt: skip
NODES = {"g1": ["batch"], "g2": ["batch", "short"]}


def line(name, state="PENDING", user="ann", partition="batch", start="N/A", gpus=1, node="", reason="Priority", rank=1):
    return (f"{name}|{partition}|{user}|phys|normal|{state}|2026-03-12T08:00:00|{start}|02:00:00|8|gres/gpu:{gpus}|1|"
            f"{node}|{reason}|{rank}")  # fmt: skip


def running(name, node="g1", start="2026-03-12T09:00:00", **more):
    return line(name, "RUNNING", start=start, node=node, reason="None", **more)


def write(path, *lines):
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


# Snapshots ------------------------------------------------------------------------------------------------------


def test_a_snapshot_says_what_runs_and_what_waits(tmp_path):
    lines = [running(1, gpus=2), line("2_[4-6%2]", rank=7), line(3, reason="JobHeldUser"), line(4, "CANCELLED")]
    found = read(write(tmp_path / "q", *lines), NODES)
    assert [(job.id, job.runs, job.gpus) for job in found.jobs] == [
        ("1", True, 2), ("2_4", False, 1), ("2_5", False, 1), ("2_6", False, 1)
    ]  # fmt: skip
    assert found.jobs[0].nodes == ("g1",) and found.jobs[0].limit == 7200 and found.jobs[1].priority == 7
    assert found.latest == datetime(2026, 3, 12, 9, tzinfo=UTC).timestamp()
    assert sorted(found.left_out.values()) == [1, 1]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (line(1, "RUNING"), r':2: column STATE: "RUNING" is not a known state .* did you mean "RUNNING"'),
        (running(1, node="g[1-3]"), r':2: column NODELIST: the cluster has no node "g3"; it has 2 nodes'),
        (line(1, partition="bach"), r':2: column PARTITION: the cluster has no partition "bach"; did you mean "batch"'),
        (line(1, "RUNNING"), "a running job must have a start"),
        (line(1).replace("02:00:00", "soon"), "is not a time such as"),
        (line(1, reason="Dependency"), "has no running or waiting jobs"),
        (line(1).replace("02:00:00", "soon"), ":2: column TIME_LIMIT:"),
        (line("1_[x-3]"), r':2: column JOBID: "1_\[x-3\]" is not a job or array'),
        (f"{running(1)}\n{running(1)}", ":3: column JOBID: job 1 is also in line 2"),
    ],
)
def test_what_is_wrong_in_a_snapshot_is_said(tmp_path, bad, said):
    with pytest.raises(ScenarioError, match=said):
        read(write(tmp_path / "q", bad), NODES)


@pytest.mark.parametrize(
    ("text", "found"),
    [("gres/gpu:a100:2", (2, "a100")), ("gres:gpu:4", (4, "")), ("gpu:3", (3, "")), ("gres/gpu=2", (2, "")),
     ("gres/gpu:v100=8", (8, "v100")), ("N/A", (0, "")), ("", (0, "")), ("gres/gpu:2080ti:2", (2, "2080ti")),
     ("gpu:1g.5gb:3", (3, "1g.5gb")), ("gres/gpu", (1, "")), ("gres/gpu:a100", (1, "a100")),
     ("gres/gpu:a100:1,gres/gpu:v100:2", (3, "")), ("gres:gpu:2,gres:mps:50", (2, "")),
     ("cpu=8,mem=4G,node=2,billing=8,gres/gpu=4,gres/gpu:a100=4", (4, "a100"))],
)  # fmt: skip
def test_gpus_as_slurm_writes_them(text, found):
    assert gpus_of(text) == found


def test_forms_in_which_squeue_prints_what_it_prints(tmp_path):
    """Limits that are not set, round numbers in units, lists of tasks cut short, a line for each partition."""
    lines = [line(1).replace("02:00:00", "NOT_SET"), line(2).replace("|8|", "|2K|"), line("3_[1-2,5,1...%4]"),
             line(4), line(4, partition="short"), line("5_[0-9:4]")]  # fmt: skip
    found = read(write(tmp_path / "q", *lines), NODES)
    assert [job.id for job in found.jobs] == ["1", "2", "3_1", "3_2", "3_5", "4", "5_0", "5_4", "5_8"]
    assert found.jobs[0].limit == math.inf and found.jobs[1].cpus == 2048
    said = "\n".join(found.notes)
    assert "array 3 are cut short" in said and "1 jobs left out: they are listed before, in another partition" in said


@pytest.mark.parametrize("kept", [
    line(2, "REQUEUE_HOLD"), line(2, "SE"), line(2, "RESV_DEL_HOLD"), line(2, reason="JobHoldMaxRequeue"),
    line(2, reason="(job requeued in held state)"), line(2, reason="PartitionTimeLimit"),
])  # fmt: skip
def test_jobs_that_someone_has_to_release_are_left_out(tmp_path, kept):
    found = read(write(tmp_path / "q", line(1), kept, line(3, "REQUEUE_FED")), NODES)
    assert [job.id for job in found.jobs] == ["1", "3"] and list(found.left_out.values()) == [1]


def test_gpus_by_job_stand_in_the_allocation(tmp_path):
    """--gpus=8 over two nodes: nothing by node, and eight in all."""
    text = write(tmp_path / "q", line(1)).read_text().replace("TRES_PER_NODE", "TRES_ALLOC")
    (tmp_path / "q").write_text(text.replace("gres/gpu:1|1|", "cpu=8,node=2,gres/gpu=8|2|"))
    (job,) = read(tmp_path / "q", NODES).jobs
    assert job.gpus == 8 and job.count == 2
    (tmp_path / "q").write_text(text.replace("TRES_ALLOC", "FEATURES"))
    assert "no column TRES_PER_NODE" in read(tmp_path / "q", NODES).notes[0]


# Models ---------------------------------------------------------------------------------------------------------


def history(submit, runtime, start=None, user=None, limit=10_000.0, cpus=1.0):
    count = len(submit)
    submit, runtime = np.array(submit, dtype=float), np.broadcast_to(np.array(runtime, dtype=float), (count,))
    texts = {name: np.full(count, "", dtype=object) for name in ("class", "partition", "account", "qos")}
    texts["user"] = np.array(user or ["ann"] * count, dtype=object)
    start = submit if start is None else np.array(start, dtype=float)
    full = [np.full(count, float(value)) for value in (limit, cpus, 0.0)]
    return JobHistory("log", submit, start, runtime.copy(), *full, np.full(count, "", dtype=object), texts)


def test_run_times_are_drawn_from_those_of_the_user_as_parts_of_limits():
    times = [1000.0] * 30 + [9000.0] * 30
    model = RunTimes(history(np.arange(60) * 10.0, times, user=["ann"] * 30 + ["bob"] * 30))
    random = np.random.default_rng(1)
    assert set(model.draw("ann", "", 5000.0, 0.0, 50, random)) == {500.0}
    assert set(model.draw("bob", "", 5000.0, 0.0, 50, random)) == {4500.0}
    mixed = model.draw("cho", "", 5000.0, 0.0, 400, random)  # unknown: of all
    assert set(mixed) == {500.0, 4500.0} and 0.4 < (mixed == 500.0).mean() < 0.6
    # Ann's has run longer than any of hers: then as long as those of others that ran longer.
    assert set(model.draw("ann", "", 5000.0, 600.0, 50, random)) == {4500.0}
    beyond = model.draw("ann", "", 5000.0, 4600.0, 50, random)
    assert (beyond > 4600.0).all() and (beyond <= 5000.0).all()


def test_arrivals_are_those_of_the_same_hours_of_earlier_days():
    """At noon of each of ten days come two jobs more than on the day before."""
    submit = [day * DAY + 43_200.0 + k for day in range(10) for k in range(2 * day + 2)]
    model = ArrivalTimes(history(submit, 1.0), 6 * 3600.0, 10 * DAY + 10 * 3600.0)
    random = np.random.default_rng(2)
    counts = set()
    for _ in range(100):
        at, rows = model.draw(random)
        assert at[0] == 7200.0 and len(rows) == len(at)
        counts.add(len(at))
    assert counts == set(range(4, 21, 2))  # of the first day only the end is known


def test_too_few_samples_are_said():
    with pytest.raises(ScenarioError, match="or more ended jobs; got 3"):
        RunTimes(history([1, 2, 3], 1.0))
    with pytest.raises(ScenarioError, match="h of log before the snapshot are too short for a forecast of 24 h"):
        ArrivalTimes(history(np.arange(30) * 60.0, 1.0), DAY, 1800.0)


def test_a_history_knows_the_users_of_its_log(files):
    log = history_of(read_log(files / "sacct", "slurm", ()), "log")
    assert set(log.labels["user"].tolist()) == {"ann"} and set(log.labels["qos"].tolist()) == {""}


# Forecasts ------------------------------------------------------------------------------------------------------


def one_core(past, jobs, now, hours=1.0, **more):
    return Twin(jobs, now, past, SnapshotCluster([{"name": "n", "cpus": 1}]), hours * 3600.0, "fcfs", **more)


def job(name, start=math.nan, submit=0.0, limit=1000.0, nodes=(), **more):
    return SnapshotJob(name, 0, "ann", "", submit, start, limit, 1.0, nodes=nodes, **more)


def test_where_all_is_certain_the_start_is_too():
    """Jobs of this user always take half their limit, and none comes in the next hour."""
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    now = 100_000.0
    jobs = [job("r", now - 100.0, nodes=("n",)), job("late"), job("first", priority=5.0)]
    told = one_core(past, jobs, now).forecast(5)
    assert [one.id for one in told.jobs] == ["first", "late"]
    assert np.allclose(told.starts, [[400.0, 900.0]] * 5, atol=0.1)
    assert np.allclose(told.by_limits, [900.0, 1900.0], atol=0.1)
    assert np.allclose(told.free["n"], 400.0) and np.allclose(told.free["all"], 400.0)
    assert told.capacity == 1 and told.occupied[:, 1].tolist() == [1.0] * 5


def test_jobs_on_nodes_that_have_gone_begin_again():
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    now = 100_000.0
    jobs = [job("r", now - 100.0, nodes=("gone",), submit=-5.0), job("w")]
    told = one_core(past, jobs, now).forecast(3)
    assert [one.id for one in told.jobs] == ["r", "w"] and np.allclose(told.starts, [[0.0, 500.0]] * 3, atol=0.1)


def test_nothing_after_the_snapshot_changes_a_forecast():
    random = np.random.default_rng(3)
    submit = np.sort(random.uniform(0, 3 * DAY, 400))
    past = history(submit, random.exponential(300.0, 400))
    jobs = [job("r", 2 * DAY - 50.0, nodes=("n",)), *(job(f"w{k}") for k in range(5))]
    other = past.take(np.arange(400))
    later = other.submit > 2 * DAY
    other.submit[later] += 0.3 * (other.submit[later] - 2 * DAY)
    other.start[later] = other.submit[later]
    other.runtime[other.end > 2 * DAY] *= 2
    one, two = (one_core(log, jobs, 2 * DAY, 2.0).forecast(8, seed=4) for log in (past, other))
    assert one.starts.tobytes() == two.starts.tobytes() and one.occupied.tobytes() == two.occupied.tobytes()


@pytest.mark.slow
def test_judging_knows_when_intervals_hold():
    """On one core that serves in order jobs of one length, every start is told to the second."""
    submit = np.concatenate([day * DAY + 3600.0 + np.arange(60) * 10.0 for day in range(8)])
    start = np.concatenate([day * DAY + 3600.0 + np.arange(60) * 500.0 for day in range(8)])
    log = history(submit, 500.0, start=start, limit=1000.0)
    judged = judge(log, SnapshotCluster([{"name": "n", "cpus": 1}]), 40, 6 * 3600.0, 4, "fcfs")
    rows = {row["method"]: row for row in judged.table()}
    assert len(judged.actual) > 20
    assert rows["twin"]["error_mean"] < 1.0 < rows["time limits"]["error_mean"]
    assert rows["twin"]["width_90"] < 1.0 < rows["waits of the user"]["width_90"]


def limited(jobs, now, overrides=(), **limits):
    nodes = [{"name": name, "cpus": 2, "partitions": ["batch"]} for name in "ab"]
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    past.labels["partition"][:] = "batch"
    cluster = SnapshotCluster(nodes, {"site": {"partitions": {"batch": limits}}})
    return Twin(jobs, now, past, cluster, 3600.0, "easy_backfill", overrides).forecast(2)


def in_batch(name, begun=math.nan, nodes=()):
    return SnapshotJob(name, 0, "ann", "batch", 0.0, begun, 1000.0, 1.0, nodes=nodes)


def test_limits_of_partitions_count_what_runs():
    """A job runs on each of two nodes of two cores; with a limit of two cores the third waits for the first end."""
    now = 100_000.0
    jobs = [in_batch("r1", now - 100.0, ("a",)), in_batch("r2", now - 300.0, ("b",)), in_batch("w")]
    told = limited(jobs, now, max_cpus=2)
    assert np.allclose(told.starts, 200.0, atol=0.1) and not told.notes
    assert np.allclose(limited(jobs, now).starts, 0.0, atol=0.1)


def test_a_site_that_is_replaced_keeps_the_jobs_that_run():
    now, site = 100_000.0, {"partitions": {"batch": {"max_cpus": 2}}}
    jobs = [in_batch("r1", now - 100.0, ("a",)), in_batch("r2", now - 300.0, ("b",)), in_batch("w")]
    told = limited(jobs, now, overrides={"site": site})
    assert np.allclose(told.starts, 200.0, atol=0.1) and told.occupied[0, 0] == 2 and not told.notes


def test_where_more_runs_than_a_limit_allows_the_last_to_end_are_waited_for():
    now = 100_000.0
    jobs = [in_batch("r1", now - 300.0, ("a",)), in_batch("r2", now - 100.0, ("b",)), in_batch("w")]
    told = limited(jobs, now, max_cpus=1)
    assert np.allclose(told.starts, 400.0, atol=0.1) and np.allclose(told.free["a"], 200.0)
    assert told.occupied[:, 0].tolist() == [2.0, 2.0] and "runs more than its limits allow:" in told.notes[0]


def test_jobs_of_several_nodes_take_equal_parts_of_as_many():
    """Two nodes of three are in use: the job for two waits for them, and that for one does not."""
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0, cpus=8.0)
    past.nodes[:] = 2
    now, wide = 100_000.0, {"count": 2.0, "limit": 1000.0, "cpus": 8.0}
    jobs = [SnapshotJob("r", 0, "ann", "", 0.0, now - 100.0, nodes=("a", "b"), **wide),
            SnapshotJob("wide", 0, "ann", "", 0.0, math.nan, **wide),
            SnapshotJob("narrow", 0, "ann", "", 0.0, math.nan, 1000.0, 4.0)]  # fmt: skip
    nodes = [{"name": name, "cpus": 4} for name in "abc"]
    told = Twin(jobs, now, past, SnapshotCluster(nodes), 3600.0, "easy_backfill").forecast(2)
    assert not told.notes and np.allclose(told.starts, [[400.0, 0.0]] * 2, atol=0.1)


@pytest.mark.parametrize(("count", "start"), [(1.0, 400.0), (0.0, 0.0)])
def test_a_job_of_one_node_does_not_use_the_gpus_of_two(count, start):
    """One GPU of each node is free: enough for a job of two GPUs whose number of nodes is unknown."""
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    now = 100_000.0
    jobs = [job(f"r{node}", now - 100.0, gpus=1.0, nodes=(node,)) for node in "ab"]
    jobs.append(job("w", gpus=2.0, count=count))
    nodes = [{"name": name, "cpus": 4, "gpus": {"type": "g", "count": 2}} for name in "ab"]
    told = Twin(jobs, now, past, SnapshotCluster(nodes), 3600.0, "easy_backfill").forecast(2)
    assert not told.notes and np.allclose(told.starts, start, atol=0.1)


def test_running_jobs_of_unknown_nodes_are_placed_the_widest_first():
    """Two jobs of one GPU and one of two on two nodes: in this order, the last would find a GPU on each node."""
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    now = 100_000.0
    jobs = [job("r0", now - 100.0, gpus=1.0, nodes=("a",)), job("r1", now - 100.0, gpus=1.0),
            job("r2", now - 100.0, gpus=2.0, count=1.0)]  # fmt: skip
    nodes = [{"name": name, "cpus": 4, "gpus": {"type": "g", "count": 2}} for name in "ba"]
    told = Twin([*jobs, job("w", gpus=2.0, count=1.0)], now, past, SnapshotCluster(nodes), 3600.0, "fcfs").forecast(2)
    assert (told.occupied[:, 0] == 4).all() and np.allclose(told.starts, 400.0, atol=0.1)


def test_running_jobs_without_room_are_named():
    """Two jobs of 1,000 s run on one core, so squeue and the node list do not agree."""
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    now = 100_000.0
    told = one_core(past, [job("r1", now - 100.0, nodes=("n",)), job("r2", now - 90.0, nodes=("n",))], now).forecast(2)
    assert told.notes == ["1 jobs that run do not fit next to the others, and start later or never: r2"]
    assert not one_core(past, [job("r1", now - 100.0, nodes=("n",)), job("w")], now).forecast(2).notes


def test_a_job_that_cannot_be_simulated_is_told_with_its_own_line():
    past = history(np.arange(100) * 600.0, 500.0, limit=1000.0)
    cluster = SnapshotCluster([{"name": "n", "cpus": 1}], source="squeue.txt")
    given = replace(job("w"), line=7, gpus=1e30)
    with pytest.raises(ScenarioError) as caught:
        Twin([job("r", 99_900.0, nodes=("n",)), given], 100_000.0, past, cluster, 3600.0, "fcfs")
    assert str(caught.value).startswith("squeue.txt:7: job w: column gpus: "), caught.value
    past.gpus[3] = 1e30
    with pytest.raises(ScenarioError) as caught:
        one_core(past, [job("w")], 100_000.0)
    assert str(caught.value).startswith(f"{past.source}: an ended job: column gpus: "), caught.value


# Widening -------------------------------------------------------------------------------------------------------


def pasts(random, count=400, jobs=5, known=0.0):
    """Snapshots whose jobs are told to start around an hour, 10 min to either side, and do within a wide range."""
    told = np.tile(3600.0 + 600.0 * np.array([-1.0, -0.4, 0.0, 0.4, 1.0]), (jobs, 1))
    return [Past(known, told, random.uniform(1000.0, 9000.0, jobs)) for _ in range(count)]


def test_widened_intervals_hold_as_often_as_they_say():
    random = np.random.default_rng(1)
    wide = widening(pasts(random), 0.0)
    low, quarter, middle, three, high = wide.moved(pasts(random)[0].forecast[0], 86_400.0)
    actual = np.concatenate([past.actual for past in pasts(random, 2000)])
    assert middle == 3600.0
    assert abs(((low <= actual) & (actual <= high)).mean() - 0.9) < 0.02
    assert abs(((quarter <= actual) & (actual <= three)).mean() - 0.5) < 0.03


def test_what_was_not_known_yet_widens_nothing():
    random = np.random.default_rng(2)
    known, late = pasts(random, 10), pasts(random, 10, known=50.0)
    for past in late:
        past.actual[:] = 80_000.0
    assert widening([*known, *late], 49.0) == widening(known, 49.0) != widening([*known, *late], 50.0)
    assert widening(known[: (ENOUGH_STARTS - 1) // 5], 0.0) is None


def test_widened_quantiles_stay_in_order_and_within_the_horizon():
    random = np.random.default_rng(3)
    for _ in range(50):
        some = [Past(0.0, np.sort(random.exponential(5000.0, (40, 5)), axis=1), random.exponential(5000.0, 40))]
        moved = widening(some, 0.0).moved(np.sort(random.exponential(5000.0, (30, 5)), axis=1), 9000.0)
        assert (np.diff(moved, axis=1) >= 0).all() and (moved >= 0).all() and (moved <= 9000.0).all()


def test_an_interval_up_to_the_horizon_misses_below_it_alone():
    """Of twenty samples two are later: the interval of 90 % begins at the second, and 18 of them are not before it."""
    nothing = np.zeros(0)
    starts = np.concatenate([np.arange(1.0, 19.0), [math.inf, math.inf]])
    told = TwinForecast(
        [job("w")] * 2, horizon=100.0, starts=np.column_stack([starts, np.arange(1.0, 21.0)]), by_limits=nothing,
        times=nothing, occupied=nothing, capacity=1.0, unit="GPUs", free={}, came=nothing
    )
    assert told.drawn(0, SHARES) == [1, 5, 10, 16, math.inf] and told.ends(0) == [2, 5, 10, 16, math.inf]
    assert told.ends(1) == told.drawn(1, SHARES) == [1, 5, 10, 16, 20]
    told.starts[5:, 0] = math.inf
    assert told.ends(0) == [2, math.inf, math.inf, math.inf, math.inf] and told.quantiles(0, SHARES)[0] == 1
    told.widening = Widening((0.0,) * 5, 30, 1)
    assert told.quantiles(0, [0.05, 0.95]) == [2, math.inf] and told.quantiles(1, [0.05, 0.95]) == [1, 20]
    for count in (19, 20, 30, 50, 99, 100):  # the share of further samples that the interval contains
        told.starts = np.arange(1.0, count + 1)[:, None]
        low, quarter, _, upper, high = told.drawn(0, SHARES)
        assert 0.9 <= (high - low) / (count + 1) < 0.9 + 2 / (count + 1)
        assert 0.5 <= (upper - quarter) / (count + 1) < 0.5 + 2 / (count + 1)


@pytest.mark.slow
def test_a_forecast_learns_from_what_its_history_did():
    """The cluster of the record starts a job half an hour late, for a reason that no model knows."""
    submit = np.concatenate([day * DAY + np.arange(24) * 3600.0 + 3 * k for day in range(6) for k in range(3)])
    submit = np.sort(submit)
    log = history(submit, 900.0, start=submit + 1800.0, limit=1000.0)
    cluster = SnapshotCluster([{"name": "n", "cpus": 8}])
    now = float(submit[-1])
    instants = [at + 60.0 for at in np.round(np.array(earlier_instants(0.0, now, 7200.0, 12)) / 3600.0) * 3600.0]
    found = look_back(log, cluster, instants, 7200.0, 4, "fcfs")
    told = Twin([job("w", submit=now)], now, log, cluster, 7200.0, "fcfs").forecast(4)
    assert told.quantiles(0, SHARES) == told.drawn(0, SHARES) and told.quantiles(0, [0.95])[0] < 60.0
    told.widening = widening(found, now)
    assert told.widening.starts >= ENOUGH_STARTS
    low, high = told.quantiles(0, [0.05, 0.95])
    assert low < 60.0 and 1700.0 < high < 1800.0


# The command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    rows = ["JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|AllocTRES|NodeList"]
    for k in range(200):
        begin = datetime(2026, 3, 8, tzinfo=UTC).timestamp() + k * 1800
        at, end = (f"{datetime.fromtimestamp(t, UTC):%Y-%m-%dT%H:%M:%S}" for t in (begin, begin + 3600 + 20 * (k % 7)))
        rows.append(f"{k}|ann|phys|batch|{at}|{at}|{end}|COMPLETED|02:00:00|cpu=8,gres/gpu=1|g1")
    (tmp_path / "sacct").write_text("\n".join(rows) + "\n")
    (tmp_path / "nodes").write_text("".join(
        f"NodeName=g{k} CPUTot=64 Gres=gpu:a100:2 State={state} Partitions=batch\n"
        for k, state in ((1, "MIXED"), (2, "IDLE"), (3, "DOWN"))
    ))  # fmt: skip
    lines = [running(1, gpus=2), running(2, "g2", gpus=2), *(line(10 + k, rank=100 - k) for k in range(5))]
    write(tmp_path / "squeue", *lines)
    return tmp_path


def call(files, *more):
    command = ["twin", "--squeue", f"{files}/squeue", "--nodes", f"{files}/nodes", "--history", f"{files}/sacct"]
    asked = ["--samples", "4", "--hours", "12", "--now", "2026-03-12T09:30:00"]
    return CliRunner().invoke(hetsim, [*command, *asked, *more])


def test_the_command_tells_tables_json_and_a_page(files):
    done = call(files, "--json", "-q", "--what-if", "without=g2", "--page", f"{files}/page.html")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [one["id"] for one in found["jobs"]] == [str(10 + k) for k in range(5)]
    assert found["capacity"] == 4 and found["what_if"]["capacity"] == 2  # g3 is down
    first, changed = found["jobs"][0], found["what_if"]["jobs"]
    assert 0 < first["start_p5"] <= first["start_p50"] <= first["start_p95"] <= first["start_by_limits"] <= 5400
    assert len(changed) == 6  # what ran on g2 waits as well
    assert "1 jobs run on nodes that the cluster lacks; these jobs start again" in found["what_if"]["notes"]
    assert "data-picture" in (files / "page.html").read_text()
    text = call(files, "-q", "--job", "10", "--policy", "{name: fcfs, discipline: skip}").stdout
    assert found["widened_by"] is None and "but errors need 30 or more" in call(files).stderr
    assert "by time limits" in text and "\n10 " in text and "\n11 " not in text


def test_a_site_file_brings_the_policy_that_is_not_given(files):
    """As a conversion of slurm.conf writes it."""
    for policy in ("heft", {"scheduler": {"name": "slurm_multifactor", "age": 10, "bf_interval": "20 s"}}):
        site = {"site": {"partitions": {"batch": {"max_gpus": 3}}}, "policy": policy}
        (files / "site.yaml").write_text(json.dumps(site))
        alone, given = (call(files, "-q", "--site", f"{files}/site.yaml", *more)
                        for more in ((), ("--policy", "easy_backfill")))  # fmt: skip
        assert given.exit_code == 0 and alone.exit_code == (3 if policy == "heft" else 0), alone.output
        assert ("plans all tasks in advance" in alone.stderr) == (policy == "heft")
    assert alone.stdout != call(files, "-q").stdout  # at most three GPUs of the partition at once


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--policy", "heft"), 3, "plans all tasks in advance"),
        (("--hours", "700"), 3, "106 h of log before the snapshot are too short for a forecast of 700 h"),
        (("--what-if", "without=g7"), 2, "no node g7"),
        (("--what-if", "without"), 2, "KEY=VALUE"),
        (("--what-if", "without="), 2, "must have at least one node"),
        (("--what-if", "site.partitions.batch.max_gpus=many"), 3, "--what-if site.partitions.batch.max_gpus: "),
        (("--what-if", "site=3"), 3, "--what-if site: site: must be a mapping; got"),
        (("--what-if", "site.partitions=3"), 3, "--what-if site.partitions: site.partitions: must be a mapping; got"),
        (("--set", "seed=3"), 3, "--set seed: seed: not recognized: seed; a forecast defines jobs, times, "
                                 "arrivals and horizon; leave this key out"),
        (("--what-if", "workload.jobs.patience=1 h"), 3, "--what-if workload.jobs.patience: workload.0.patience: "),
        (("--set", "policy.admission=accept_all"), 3, "not recognized: policy.admission"),
        (("--judge", "2"), 2, "--judge uses only the history;"),
        (("--now", "2026-03-12T08:30:00"), 2, "--now must be the time of the snapshot, but it is before the "
                                              "start of 2"),
        (("--now", "soon"), 2, "--now must be a date such as 2026-06-09T18:41:01"),
        (("--job", "77"), 2, "--job must be the id of a waiting job of"),
    ],
)
def test_what_cannot_be_forecast_is_said_and_nothing_is_written(files, more, code, said):
    done = call(files, *more, "--page", f"{files}/page.html")
    assert done.exit_code == code and said in done.output and "Traceback" not in done.output
    assert not (files / "page.html").exists()
