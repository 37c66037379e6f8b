"""Faults from scenario files: who is struck, what is lost, and that nothing goes astray."""

from __future__ import annotations

import numpy as np
import pytest
from machines import Job, Scripted, gpu_mode, simulation
from tiers import spread

import hetsim as hs
from hetsim.engine.control import faults as injected
from hetsim.errors import PolicyError, ScenarioError
from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType, Power
from hetsim.model.faults import FaultEvent, Maintenance
from hetsim.policy import Set
from hetsim.results.statistics import student_interval


def scenario(faults, jobs=None, nodes=None, policy="fcfs", **more):
    jobs = jobs or [{"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 s"}]
    nodes = nodes or {"cpus": 4, "gpus": {"type": "g", "count": 1}}
    return {"name": "f", "cluster": {"nodes": nodes}, "workload": jobs, "faults": faults, "policy": policy, **more}


def events(tmp_path, rows):
    file = tmp_path / "faults.csv"
    file.write_text("time,device,event,factor\n" + "\n".join(rows) + "\n")
    return {"file": str(file)}


def run(*arguments, **named):
    return hs.run(scenario(*arguments, **named), check=True)


@pytest.mark.parametrize(
    ("stopping", "finish"),
    [
        ({}, 16.0),  # 4 s are lost; from 6 on the whole 10 s
        ({"interval": "3 s"}, 13.0),  # 3 s are safe: 7 s from 6 on
        ({"interval": "3 s", "restore": "500 ms"}, 13.5),
    ],
)
def test_what_ran_falls_back_to_its_last_checkpoint(tmp_path, stopping, finish):
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 s", "stopping": stopping}
    result = run([events(tmp_path, ["4,n0/g0,down,", "6,n0/g0,up,"])], [job])
    assert result.tasks["finish"][0] == pytest.approx(finish)
    assert result.tasks["status"][0] == "completed"
    assert result.launches["lost"].sum() == pytest.approx(4.0 if not stopping else 1.0)


@pytest.mark.parametrize("lost", ["n0", "n0/g0"])
@pytest.mark.parametrize("duplex", ["full", "half"])
def test_nothing_takes_its_turn_on_a_device_that_fails(tmp_path, lost, duplex):
    """When it fails, the first of four computes, the next waits for that, the third uploads, the last waits for it."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 4}, "gpu_time": "10 s", "bytes_in": "1 MB"}
    link = {"upload": "1 MB/s", "duplex": duplex}
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 1, "streams": 4}, "pcie": link}
    result = run([events(tmp_path, [f"2.5,{lost},down,", f"6,{lost},up,"])], [job], nodes)
    ended = result.launches[:4]
    assert ended["outcome"].tolist() == ["lost"] * 4
    assert ended["upload_start"].tolist() == pytest.approx([0, 1, 2, np.nan], nan_ok=True)
    assert ended["compute_start"].tolist() == pytest.approx([1, np.nan, np.nan, np.nan], nan_ok=True)
    assert result.tasks["start"].tolist() == [0, 1, 2, 9]


def test_a_straggler_takes_longer_while_it_is_slow(tmp_path):
    result = run([events(tmp_path, ["5,n0/g0,slow,2", "9,n0/g0,slow,1"])])
    assert result.tasks["finish"][0] == pytest.approx(9 + (5 - 2))


def test_a_failed_node_takes_its_accelerators_along_and_reasons_add_up(tmp_path):
    """The GPU is down from 2 to 8, its node from 4 to 5 besides: it comes back at 8."""
    rows = ["2,n0/g0,down,", "4,n0,down,", "5,n0,up,", "8,n0/g0,up,"]
    assert run([events(tmp_path, rows)]).tasks["finish"][0] == pytest.approx(18.0)
    both = [{"name": "job", "arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "10 s"}]
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 2}}
    assert run([events(tmp_path, ["4,n0,down,", "6,n0,up,"])], both, nodes).tasks["finish"].tolist() == [16.0, 16.0]


def test_what_the_device_hook_tells_and_what_starts_follow_from_all_reasons():
    """Two maintenances with drain, a failure, and sleep: a launch starts when none of them is left."""
    kind = DeviceType("g", power=Power(wake=4.0))
    hooks = []

    class Watching(Scripted):
        def device(self, device, up):
            hooks.append((device.name, up))

    def told(state):
        return lambda view: [Set(view.cluster.by_name["n0/g0"], state)]

    windows = [Maintenance((0,), 10.0, 10.0, 5.0), Maintenance((0,), 24.0, 6.0, 8.0)]
    down = [FaultEvent(32.0, 1, "down", source="a"), FaultEvent(40.0, 1, "up", source="a")]
    jobs = [Job([gpu_mode(kind)], [1.0], arrival=6.0)]
    for script, start, last in (
        ([], 30.0, []),
        ([(7.0, "off"), (18.0, "on")], 30.0, []),  # it is awake at 22, and closed until the second maintenance is over
        ([(7.0, "off"), (33.0, "wake")], 40.0, [False, True]),  # awake at 37, and down until 40
        ([(7.0, "off"), (38.0, "wake")], 42.0, [False, True]),  # up at 40, and asleep until 42
    ):
        hooks.clear()
        run = simulation(NodeSpec(accelerators=((kind, 1),)), jobs, Watching([(t, told(what)) for t, what in script]),
                         faults=windows + down)  # fmt: skip
        assert run.run().start == pytest.approx([start])
        assert not last or [up for name, up in hooks if name == "n0/g0"][-2:] == last


def test_racks_fail_together():
    nodes = {"count": 3, "cpus": 4, "gpus": {"type": "g", "count": 1}, "rack": "r"}
    jobs = [{"name": "job", "arrivals": {"process": "all_at_once", "count": 3}, "gpu_time": "100 s",
             "stopping": {"interval": "1 s"}}]  # fmt: skip
    fault = {"on": "node", "every": {"distribution": "exponential", "mean": "100 s"}, "repair": "5 s"}
    alone = run([fault], jobs, nodes, seed=5)
    together = run([{**fault, "together": 1.0}], jobs, nodes, seed=5)
    down = [row for row in together.record.device_log if row[2] == "down"]
    times = {time for time, *_ in down}
    assert len(down) == 3 * len(times)
    assert len(down) > len([row for row in alone.record.device_log if row[2] == "down"])


def test_before_a_maintenance_nothing_new_starts_and_at_its_start_what_runs_is_stopped():
    jobs = [
        {"name": "long", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "30 s"},
        {"name": "short", "arrivals": {"process": "deterministic", "interval": "4 s", "first": "1 s"}, "count": 4,
         "gpu_time": "1 s"},
    ]  # fmt: skip
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 2}}
    window = {"maintenance": {"nodes": "n0", "from": "20 s", "for": "5 s", "announced": "8 s"}}
    tasks = run([window], jobs, nodes).tasks.set_index("class")
    assert tasks.loc["long", "finish"] == pytest.approx(55.0)  # stopped at 20, again from 25
    assert tasks.loc["short", "start"].tolist() == pytest.approx([1.0, 5.0, 25.0, 26.0])
    undrained = {"maintenance": {**window["maintenance"], "drain": False}}
    tasks = run([undrained], jobs, nodes).tasks.set_index("class")
    assert tasks.loc["short", "start"].tolist() == pytest.approx([1.0, 5.0, 9.0, 13.0])


BUSY = [{"name": "job", "arrivals": {"process": "poisson", "rate": "30/h"}, "until": "15 h", "gpus": 2,
         "gpu_time": {"distribution": "lognormal", "mean": "20 min", "cv": 1},
         "stopping": {"interval": "5 min"}}]  # fmt: skip
CLUSTER = {"count": 3, "cpus": 8, "gpus": {"type": "g", "count": 4}, "rack": "r1"}
MANY = [
    {"name": "gpus", "on": "gpu", "every": {"distribution": "weibull", "mean": "20 h", "shape": 0.7},
     "repair": {"distribution": "exponential", "mean": "1 h"}},
    {"name": "nodes", "on": "node", "every": {"distribution": "exponential", "mean": "40 h"}, "repair": "30 min",
     "together": "30%"},
    {"name": "slow", "on": "g", "every": {"distribution": "exponential", "mean": "10 h"}, "slow": 1.5, "for": "1 h"},
]  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "policy", spread(["fcfs", "fcfs_skip", "srtf", {"name": "round_robin", "quantum": "10 min"}], 2)
)
def test_every_task_ends_once_whatever_breaks(policy):
    result = run(MANY, BUSY, CLUSTER, policy, seed=2)
    assert (result.tasks["status"] == "completed").all()
    assert result.metric("preemptions") > 3


@pytest.mark.slow
def test_every_policy_meets_the_same_faults_and_they_do_not_stretch_the_run():
    first, second = (run(MANY, BUSY, CLUSTER, policy, seed=2) for policy in ("fcfs", "srtf"))
    until = min(first.end, second.end)

    def log(result):
        return [row[:3] for row in result.record.device_log if row[0] < until]

    assert log(first) == log(second)
    assert first.end == first.tasks["finish"].max()


@pytest.mark.slow
def test_the_share_of_time_down_is_that_of_the_renewal_process():
    """Mean time to repair over mean cycle: 1 / 21."""
    faults = [{"on": "gpu", "every": {"distribution": "exponential", "mean": "20 h"},
               "repair": {"distribution": "exponential", "mean": "1 h"}}]  # fmt: skip
    nodes = {"count": 4, "cpus": 8, "gpus": {"type": "g", "count": 8}}
    jobs = [{"name": "job", "arrivals": {"process": "poisson", "rate": "1/h"}, "gpu_time": "1 min"}]
    shares = []
    for seed in range(10):
        log = run(faults, jobs, nodes, horizon="400 h", seed=seed).record.device_log
        down = sum(min(row[0], 400 * 3600) * (1 if row[2] == "up" else -1) for row in log)
        unrepaired = sum(1 if row[2] == "down" else -1 for row in log)
        shares.append((down + unrepaired * 400 * 3600) / (32 * 400 * 3600))
    interval = student_interval(np.array(shares), 0.99)
    # The first repairs come late: the exact mean share over [0, T] is p (1 - (1 - exp(-rT)) / (rT)), r = 1/20 + 1/1.
    exact = 1 / 21 * (1 - 1 / (1.05 * 400))
    assert interval.low <= exact <= interval.high


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"on": "gpus", "every": "1 h", "repair": "1 h"}, 'the cluster has no "gpus"'),
        ({"on": "uplink", "every": "1 h", "repair": "1 h"}, 'no "uplink"; racks with an uplink have one'),
        ({"on": "gpu", "repair": "1 h"}, "a distribution of the time between two faults"),
        ({"on": "gpu", "every": "1 h"}, "must be a distribution of the duration of a fault"),
        ({"on": "gpu", "every": "1 h", "repair": "1 h", "together": 0.5}, "together: rack needs on: node"),
        ({"on": "gpu", "every": "1 h", "slow": 0.5, "for": "1 h"}, "at least 1"),
        ({"maintenance": {"nodes": "n7", "from": "1 h", "for": "1 h"}}, 'no node "n7"'),
        ({"maintenance": {"nodes": "n0", "from": "1 h", "for": "1 h", "announced": "2 h"}}, "before it begins"),
        ({}, "a fault needs exactly one of"),
        ({"file": "nowhere.csv"}, "the file .* does not exist"),
    ],
)
def test_what_makes_no_sense_is_said(fault, said):
    with pytest.raises(ScenarioError, match=said):
        run([fault])


def test_a_damaged_file_is_told_by_line(tmp_path):
    rows = ["4,n0/g0,down,", "x,n0/g0,up,", "5,n0/g9,up,", "6,n0/g0,gone,", "7,n0/g0,slow,0.5"]
    with pytest.raises(ScenarioError) as caught:
        run([events(tmp_path, rows)])
    assert [problem.line for problem in caught.value.problems] == [3, 4, 5, 6]


def test_a_job_that_can_hardly_finish_is_told_and_one_that_cannot_is_refused():
    fault = {"on": "gpu", "every": {"distribution": "exponential", "mean": "1 h"}, "repair": "1 min"}
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "6 h"}
    patient = hs.run(scenario([fault], [job], horizon="10 h"))
    assert any("or more attempts between two checkpoints, because" in text for text in patient.warnings)
    with pytest.raises(ScenarioError, match="will practically never finish; give"):
        run([fault], [job | {"gpu_time": "100 h"}])
    run([fault], [job | {"gpu_time": "100 h", "stopping": {"interval": "10 min"}}])


@pytest.mark.parametrize("every", ["45 min", {"distribution": "uniform", "low": "30 min", "high": "59 min"}])
def test_a_checkpoint_longer_than_any_time_between_failures_is_refused(every):
    """However often it tries; where it would take no more than e^2 attempts if the times were exponential."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 h"}
    fault = {"on": "gpu", "every": every, "repair": "1 min"}
    with pytest.raises(ScenarioError, match=r"infinitely many; it takes 60 min.*will practically never finish"):
        run([fault], [job | {"stopping": {"interval": "1 h"}}])
    with pytest.raises(ScenarioError, match="infinitely many; it takes 70 min"):
        run([fault], [job | {"stopping": {"interval": "20 min", "restore": "50 min"}}])
    unfinished = hs.run(scenario([fault], [job | {"stopping": {"interval": "1 h"}}], horizon="20 h"))
    assert unfinished.metric("unfinished_count") == 1
    run([fault], [job | {"stopping": {"interval": "20 min", "restore": "1 min"}}])
    if every == "45 min":  # the end comes before a fault of the same instant
        run([fault], [job | {"gpu_time": "45 min"}])


def test_a_maintenance_names_nodes_by_ranges_and_patterns():
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 4}, "gpu_time": "10 s"}
    for names in ("n[1-3]", ["n1", "n[2-3]"], "n*"):
        window = {"maintenance": {"nodes": names, "from": "0 s", "for": "100 s"}}
        found = hs.run({"cluster": {"nodes": {"count": 4, "cpus": 1, "gpus": {"type": "g", "count": 1}}},
                         "workload": [job], "faults": [window]}, check=True)  # fmt: skip
        first = 100 if names == "n*" else 0
        assert found.tasks["start"].min() == first
        assert (found.tasks["start"] < 100).sum() == (0 if names == "n*" else 4)


# Checkpoints that take time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down", "finish", "lost"),
    [
        (None, 10 + 3 * 0.5, 0.0),  # at 3, 6 and 9 s of work; none at the end
        (3.4, 4.4 + 11.5, 3.4),  # while the first is written: all is lost, up again at 4.4
        (3.5, 12.5, 0.0),  # it is just written
        (5.0, 12.5 + 1.5, 1.5),  # back to the end of the first
    ],
)
def test_a_checkpoint_takes_time_and_counts_when_it_is_written(tmp_path, down, finish, lost):
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 s",
           "stopping": {"interval": "3 s", "checkpoint": "500 ms"}}  # fmt: skip
    rows = [] if down is None else [f"{down},n0/g0,down,", f"{down + 1},n0/g0,up,"]
    result = run([events(tmp_path, rows)] if rows else [], [job])
    assert result.tasks["finish"][0] == pytest.approx(finish)
    assert result.launches["lost"].sum() == pytest.approx(lost)


def test_a_checkpoint_time_without_an_interval_is_refused():
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 s",
           "stopping": {"checkpoint": "1 s"}}  # fmt: skip
    with pytest.raises(ScenarioError, match="the time between two checkpoints"):
        run([], [job])


def expected_time(work: float, interval: float, checkpoint: float, restore: float, mean: float, repair: float) -> float:
    """Mean time of a job under failures with exponential times between them, which spare a device only while it is
    repaired: segment by segment, each ended by its checkpoint, but the last by the end of the job."""

    def fails(length: float) -> float:
        """Probability that an attempt of this length ends with a failure; times `mean`, its mean duration."""
        return float(1 - np.exp(-length / mean))

    def until_done(again: float, first: float) -> float:
        """Of one segment: its first attempt takes `first` seconds, each later one `again`."""
        later = fails(again) * (mean + repair) / (1 - fails(again))
        return fails(first) * (mean + repair + later)

    count = int(np.ceil(work / interval - 1e-9))
    lengths = [interval + checkpoint] * (count - 1) + [work - interval * (count - 1)]
    return sum(until_done(length + (restore if k else 0), length) for k, length in enumerate(lengths))


@pytest.mark.slow
@pytest.mark.parametrize("interval", [600, 2000, 9000])
def test_the_mean_time_with_checkpoints_is_that_of_theory(interval):
    """Too often, about as often as Young's rule has it (the root of 2 x 240 s x 2 h is 1,859 s), and too seldom."""
    costs = {"checkpoint": 240.0, "restore": 120.0}
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 h",
           "stopping": {"interval": interval, **costs}}  # fmt: skip
    job["stopping"] = {key: f"{value} s" for key, value in job["stopping"].items()}
    fault = {"on": "gpu", "every": {"distribution": "exponential", "mean": "2 h"}, "repair": "10 min"}
    found = hs.replicate(scenario([fault], [job]), replications=300).interval("response_mean", confidence=0.99)
    assert found.low <= expected_time(36_000, interval, **costs, mean=7_200, repair=600) <= found.high


def test_the_best_interval_is_about_that_of_young():
    times = {interval: expected_time(36_000, interval, 240, 120, 7_200, 600) for interval in (600, 900, 2_000, 9_000)}
    assert min(times, key=times.__getitem__) == 2_000


def test_a_checkpoint_longer_than_the_mean_time_between_failures_is_told():
    fault = {"on": "gpu", "every": {"distribution": "exponential", "mean": "1 h"}, "repair": "1 min"}
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "4 h"}
    for stopping, told in [({"interval": "70 min"}, True), ({"interval": "50 min"}, False),
                           ({"interval": "50 min", "checkpoint": "15 min"}, True)]:  # fmt: skip
        warnings = hs.run(scenario([fault], [job | {"stopping": stopping}], horizon="10 h")).warnings
        assert any("or more attempts between two checkpoints, because" in text for text in warnings) is told


def test_what_is_a_multiple_of_a_task_s_time_counts_its_checkpoints():
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "100 s",
           "stopping": {"interval": "30 s", "checkpoint": "5 s"}, "deadline": {"factor": 1.1},
           "estimates": {"basis": "mean"}}  # fmt: skip
    result = run([], [job])
    assert result.tasks["finish"].tolist() == [115.0]
    assert result.tasks["deadline"].tolist() == pytest.approx([1.1 * 115])
    assert result.record.input.tasks.estimate.tolist() == [[115.0]]


def test_a_mean_that_is_known_is_not_that_of_the_tasks_to_come():
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 3},
           "gpu_time": {"distribution": "exponential", "mean": "60 s"}, "estimates": {"basis": "mean"}}  # fmt: skip
    tasks = run([], [job]).record.input.tasks
    assert len(set(tasks.estimate[:, 0])) == 1
    assert tasks.estimate[0, 0] != pytest.approx(tasks.time.mean(), rel=1e-6)
    assert tasks.estimate[0, 0] == pytest.approx(60, rel=4 / 20_000**0.5)


# What is down and asleep -----------------------------------------------------------------------------------------

POWER = {"idle": "100 W", "busy": "200 W", "sleep": "0 W", "wake": "10 s"}


def test_a_device_that_sleeps_through_a_fault_takes_no_power_after_it(tmp_path):
    """Asleep from 160 s (a minute of patience after the job) to the end, but for the fault."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "100 s"}
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 1, "power": POWER}}
    policy = {"scheduler": {"name": "power_down", "patience": "1 min", "safety": 0}}
    faults = [events(tmp_path, ["7200,n0/g0,down,", "7260,n0/g0,up,"])]
    for given in ([], faults):
        found = run(given, [job], nodes, policy, horizon="10 h")
        gpu = found.devices.set_index("kind").loc["gpu"]
        assert gpu["energy_j"] == pytest.approx(100 * 200 + 60 * 100)
        assert (gpu["up"], gpu["asleep"]) == (160, 36_000 - 160 - (60 if given else 0))


def test_the_accelerators_of_a_failed_node_are_down_with_it(tmp_path):
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "600 s"}
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 1, "power": POWER}}
    same = []
    for device in ("n0", "n0/g0"):
        found = run([events(tmp_path, [f"3600,{device},down,", f"28800,{device},up,"])], [job], nodes, horizon="10 h")
        gpu = found.devices.set_index("kind").loc["gpu"]
        assert gpu["up"] == 10_800
        same.append((gpu["energy_j"], gpu["utilization"], gpu["allocation"]))
    assert same[0] == same[1]


@pytest.mark.parametrize("clients", [3, 5])
def test_clients_that_wait_for_a_batch_that_never_fills_are_an_error_although_faults_go_on(clients, monkeypatch):
    """Batches of 4: three clients never fill one, and send nothing before they are answered."""
    monkeypatch.setattr(injected, "IDLE_LIMIT", 500)
    web = {
        "name": "web", "count": 30, "arrivals": {"process": "closed", "clients": clients, "think": "1 s"},
        "service": {"compute": {"per_item": "10 ms"}, "batching": {"name": "fixed_size", "size": 4}},
    }  # fmt: skip
    described = scenario([{"on": "gpu", "every": "20 min", "repair": "1 min"}], [web])
    if clients == 5:  # the last two of thirty go as a batch of two
        assert (hs.run(described).tasks["status"] == "completed").all()
        return
    with pytest.raises(PolicyError, match="no task runs, no task will arrive, and 3 tasks wait"):
        hs.run(described)
    with pytest.raises(PolicyError, match="no task runs, no task will arrive, and 3 tasks wait"):
        hs.run(described | {"faults": []})


def test_clients_that_think_for_long_are_something_to_come(monkeypatch):
    """Faults of a second while the only client thinks for hours are not the end."""
    monkeypatch.setattr(injected, "IDLE_LIMIT", 500)
    web = {
        "name": "web", "count": 3, "arrivals": {"process": "closed", "clients": 1, "think": "2 h"},
        "service": {"compute": {"per_item": "10 ms"}},
    }  # fmt: skip
    result = hs.run(scenario([{"on": "gpu", "every": "10 s", "repair": "1 s"}], [web]))
    assert (result.tasks["status"] == "completed").all() and result.tasks["finish"].max() > 4 * 3600 - 1


def test_jobs_lost_with_a_node_do_not_keep_the_engines_of_its_accelerators(tmp_path):
    """Two accelerators of two streams fail at one instant; each is free when it is back, not when its job would end."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "10 s"}
    nodes = {"cpus": 4, "gpus": {"type": "g", "count": 2, "streams": 2}}
    result = run([events(tmp_path, ["1,n0,down,", "2,n0,up,"])], [job], nodes)
    assert result.tasks["finish"].tolist() == [12.0, 12.0]


def test_two_sources_of_slowdowns_by_hand():
    """100 s of work.  Alone, the first source halves the speed from 10 on: 190 s.  The second one makes it an eighth
    for 10 s in every 30 from 20 on.  15 s are done at 20; 7 cycles of 11.25 s at 230; 1.25 s more at 240, 5 at 250."""
    job = [{"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "100 s"}]
    first = {"on": "gpu", "every": "10 s", "slow": 2, "for": "1000 s"}
    second = {"on": "gpu", "every": "20 s", "slow": 4, "for": "10 s"}
    for faults, finish in (([first], 190.0), ([first, second], 250.0), ([second, first], 250.0)):
        assert run(faults, job, horizon="400 s").tasks["finish"][0] == pytest.approx(finish)


def test_the_rows_of_one_file_are_one_source_and_those_of_two_are_two(tmp_path):
    """10 s of work, 2 times slower from 2 to 8 and 4 times from 4 to 6: a row of a file replaces the one before it,
    so that one file gives full speed from 6 on; two files multiply."""
    first = ["2,n0/g0,slow,2", "8,n0/g0,slow,1"]
    other = ["4,n0/g0,slow,4", "6,n0/g0,slow,1"]
    both = [events(tmp_path, sorted(first + other))]
    assert run(both).tasks["finish"][0] == pytest.approx(6 + 10 - (2 + 2 / 2 + 2 / 4))
    apart = []
    for name, rows in (("a", first), ("b", other)):
        (tmp_path / name).mkdir()
        apart.append(events(tmp_path / name, rows))
    assert run(apart).tasks["finish"][0] == pytest.approx(8 + 10 - (2 + 2 / 2 + 2 / 8 + 2 / 2))
    assert {event.source for event in hs.load(scenario(apart)).build().faults} == {"fault0", "fault1"}
