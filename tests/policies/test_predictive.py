"""Scaling and reserving by forecast: the parts by hand, what never happens, and the shipped scenarios."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from functools import cache, partial

import numpy as np
import pytest
from click.testing import CliRunner
from machines import Job, Scripted, cpu_mode, gpu_mode, simulate, simulation
from test_shipped_scenarios import runs, states
from tiers import spread

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType, Power
from hetsim.policy import ListScheduler, Set
from hetsim.results.statistics import student_interval
from hetsim.testing import examine, random_system, small_systems
from hetsim_policies.dynamic.power_down import PowerDown
from hetsim_policies.dynamic.qssf import Qssf
from hetsim_policies.hybrid.predictive import DevicePool, Predictive
from hetsim_policies.orders import sjf
from hetsim_policies.prediction.predictors import Autoregressive, Ewma, HoltWinters, LastValue

SLEEPY = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=40))


def jobs_at(arrivals, seconds=5.0, kind=SLEEPY):
    mode = gpu_mode(kind)
    return [Job([mode], [seconds], float(arrival)) for arrival in arrivals]


def told(record):
    return [(time, device, what) for time, device, what, _ in record.device_log]


def of_class(runs, name, metric):
    """A metric of one class by replication."""
    return np.array([run.by("class", [metric]).loc[name, metric] for run in runs])


# Long gaps ------------------------------------------------------------------------------------------------------

OFTEN = {
    "last_value": {"predictor": LastValue},
    "ewma": {"predictor": partial(Ewma, 300.0)},
    "ar": {"predictor": partial(Autoregressive, window=40)},
    "a season": {"predictor": partial(HoltWinters, season=3600.0, slot=600.0)},
    "utilization": {"predictor": LastValue, "signal": "utilization"},
}
GPUS = NodeSpec(cpus=1, accelerators=((SLEEPY, 4),))


class Counting(Predictive):
    """Counts rounds and measured intervals; `always`: with a round for each interval, as if something could change."""

    def __init__(self, always=False, **more):
        super().__init__(**more)
        self.always, self.rounds, self.measured = always, 0, 0

    def schedule(self, view):
        self.rounds += 1
        yield from super().schedule(view)

    def _measure(self, end):
        self.measured += 1
        super()._measure(end)

    def _nothing_to_come(self):
        return not self.always and super()._nothing_to_come()


def with_gap(seconds, always=False, **parameters):
    """Two crowds of jobs, hours long, with a time between them in which nothing comes."""
    random = np.random.default_rng(8)
    crowds = [np.cumsum(random.exponential(60.0, 120)), 9000.0 + seconds + np.cumsum(random.exponential(60.0, 60))]
    jobs = jobs_at(np.concatenate(crowds), 150.0)
    policy = Counting(always, interval=60.0, memory=120.0, **parameters)
    return policy, simulate(GPUS, jobs, policy)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", spread(OFTEN, 3))
def test_a_gap_1000_times_as_long_costs_no_more(name):
    short, _ = with_gap(86400.0, **OFTEN[name])
    long, record = with_gap(86400.0 * 1000, **OFTEN[name])
    assert long.rounds < 1.2 * short.rounds < 3000
    assert long.measured < 4 * short.measured
    assert long.notes["forecast_count"] > 1e6  # all intervals count, measured or not
    assert np.isfinite(record.finish).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("name", spread(OFTEN, 1))
def test_no_decision_depends_on_rounds_in_which_nothing_changes(name, reserve):
    more = {"reserve": [""], "ahead": 300.0} if reserve else {}
    if reserve and name == "utilization":
        more |= {"scale": False, "signal": "arrivals"}
    few, one = with_gap(90000.0, **{**OFTEN[name], **more})
    many, other = with_gap(90000.0, always=True, **{**OFTEN[name], **more})
    # A season is reserved for as long as it expects a billionth of a device.
    assert few.rounds < many.rounds - 500 or (reserve and name == "a season")
    assert one.start.tobytes() == other.start.tobytes()
    assert one.finish.tobytes() == other.finish.tobytes()
    assert told(one) == told(other)
    assert few.notes == pytest.approx(many.notes, rel=1e-9)


# Waking without taking work -------------------------------------------------------------------------------------


def test_a_waking_device_takes_no_launch_before_it_is_awake():
    """Device 1 sleeps from 0 and wakes from 5 to 45; the second task rather waits for device 0, free after 20."""
    spec = NodeSpec(accelerators=((SLEEPY, 2),))

    def run(how):
        script = [
            (0.0, lambda view: [Set(view.cluster.devices[2], "off")]),
            (5.0, lambda view: [Set(view.cluster.devices[2], how)]),
        ]
        return simulate(spec, jobs_at([0.0, 6.0, 7.0], 20.0), Scripted(script))

    patient, eager = run("wake"), run("on")
    log = [(0.0, 2, "sleep"), (5.0, 2, "wake"), (45.0, 2, "awake")]
    assert told(patient) == told(eager) == log
    assert patient.finish.tolist() == [20.0, 40.0, 60.0]
    assert eager.finish.tolist() == [20.0, 65.0, 40.0]


def test_an_awakening_starts_who_waits_for_it():
    script = [
        (0.0, lambda view: [Set(view.cluster.devices[1], "off")]),
        (5.0, lambda view: [Set(view.cluster.devices[1], "wake")]),
        (6.0, lambda view: [Set(view.cluster.devices[1], "wake")]),
    ]
    record = simulate(NodeSpec(accelerators=((SLEEPY, 1),)), jobs_at([1.0]), Scripted(script))
    assert record.finish.tolist() == [50.0]


def test_waking_can_be_called_off_or_made_open():
    def run(*later):
        script = [
            (0.0, lambda view: [Set(view.cluster.devices[1], "off")]),
            (5.0, lambda view: [Set(view.cluster.devices[1], "wake")]),
            *[(time, lambda view, how=how: [Set(view.cluster.devices[1], how)]) for time, how in later],
        ]
        return simulate(NodeSpec(accelerators=((SLEEPY, 1),)), jobs_at([1.0]), Scripted(script))

    off = run((10.0, "off"), (20.0, "wake"))
    assert told(off) == [(0, 1, "sleep"), (5, 1, "wake"), (10, 1, "sleep"), (20, 1, "wake"), (60, 1, "awake")]
    assert off.finish.tolist() == [65.0]
    opened = run((10.0, "on"))
    assert told(opened) == [(0, 1, "sleep"), (5, 1, "wake"), (45, 1, "awake")]
    assert opened.finish.tolist() == [50.0]


def service_alone(policy):
    return {
        "name": "alone", "seed": 3, "horizon": "30 min",
        "cluster": {"nodes": {"gpus": {"type": "g", "count": 4, "power": {"idle": "50 W", "wake": "1 min"}}}},
        "workload": {
            "name": "s", "arrivals": {"process": "poisson", "rate": "0.4/s"}, "slo": "20 s",
            "service": {"compute": {"fixed": "2 s", "per_item": "1 s"}, "max_batch": 4},
        },
        "policy": policy,
    }  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "batching", ["serial_greedy", "clockwork", {"name": "size_or_timeout", "batch_timeout": "4 s"}]
)
def test_a_service_alone_may_have_sleeping_devices(batching):
    """Its batches must not go the short way, in which nothing can change devices."""
    policy = {"scheduler": {"name": "predictive", "target": 0.5}, "batching": batching}
    result = hs.run(service_alone(policy), check=True)
    assert result.devices.asleep.sum() > 0
    assert result.metric("completed_count") > 600


def test_power_down_says_that_it_does_not_serve_requests():
    with pytest.raises(ScenarioError, match="PowerDown does not serve requests in batches"):
        hs.run(service_alone({"scheduler": {"name": "power_down"}}))


# The pool -------------------------------------------------------------------------------------------------------


def test_the_pool_keeps_the_greatest_want_of_its_window():
    rng = np.random.default_rng(1)
    cluster = Cluster([NodeSpec(accelerators=((SLEEPY, 9),))])
    pool = DevicePool(SLEEPY, cluster.nodes[0].accelerators, min_awake=2, stabilization=30.0)
    wants = deque()
    for step in range(300):
        number = float(rng.uniform(0, 12))
        wants.append((10.0 * step, max(2, math.ceil(number))))
        pool.want(10.0 * step, number)
        assert pool.wanted == min(9, max(want for time, want in wants if time >= 10.0 * step - 30.0))


def test_utilization_scales_as_kubernetes_does():
    """Desired = ceil(awake x busy / target): one of four devices always busy at 0.5 makes two."""
    policy = Predictive(
        predictor=LastValue, signal="utilization", target=0.5, interval=10.0, stabilization=0.0, min_replicas=0
    )
    spec = NodeSpec(accelerators=((SLEEPY, 4),))
    record = simulate(spec, jobs_at(range(0, 100, 5)), policy)
    assert told(record)[:2] == [(10.0, 4, "sleep"), (10.0, 3, "sleep")]
    assert not any(what == "wake" for _, _, what in told(record))
    assert policy.notes["forecast_mape"] == 0


def test_arrivals_are_measured_in_devices():
    """A task of 5 s every 2 s is a load of 2.5 devices, which at 0.7 needs four."""
    policy = Predictive(predictor=LastValue, target=0.7, interval=10.0, stabilization=0.0)
    spec = NodeSpec(accelerators=((SLEEPY, 9),))
    tasks = jobs_at(np.arange(1, 200, 2))
    run = simulation(spec, tasks, policy)
    record = run.run()
    assert policy.pools[SLEEPY].wanted == 4
    down = {device for _, device, what in told(record) if what == "sleep"}
    assert down == {5, 6, 7, 8, 9}


def test_what_waits_for_a_gang_is_woken_when_nothing_runs():
    """All but one device sleep when a gang of four comes; nobody else would ever free a node for it."""
    one, gang = gpu_mode(SLEEPY), gpu_mode(SLEEPY, 4)
    jobs = [*(Job([one], [1.0], float(k)) for k in range(0, 300, 10)), Job([gang], [5.0], 305.0)]
    policy = Predictive(predictor=LastValue, interval=10.0, stabilization=20.0)
    record = simulate(NodeSpec(accelerators=((SLEEPY, 4),)), jobs, policy)
    assert record.finish[-1] < 305 + 10 + 40 + 10 + 5 + 1


def test_scaling_with_foresight_is_awake_in_time():
    """Ten tasks at once each 1,000 s, devices that wake for 40 s: from the second time on nobody waits."""
    arrivals = np.repeat(np.arange(500.0, 6000.0, 1000.0), 10)
    policy = Predictive(
        predictor=partial(HoltWinters, season=1000.0, slot=10.0, gamma=0.0, alpha=0.0),
        target=1.0, interval=10.0, stabilization=0.0, min_replicas=0,
    )  # fmt: skip
    spec = NodeSpec(accelerators=((SLEEPY, 10),))
    record = simulate(spec, jobs_at(arrivals, 10.0), policy)
    wait = record.start - record.input.tasks.arrival
    assert wait[:10].min() >= 40
    assert wait[10:].max() == 0
    blind = Predictive(predictor=LastValue, target=1.0, interval=10.0, stabilization=0.0, min_replicas=0)
    late = simulate(spec, jobs_at(arrivals, 10.0), blind)
    assert (late.start - late.input.tasks.arrival).min() >= 40


# Reserving ------------------------------------------------------------------------------------------------------


def reserving(**more):
    return {
        "name": "reserving", "seed": 5, "horizon": "20 h",
        "cluster": {"nodes": {"gpus": {"type": "g", "count": 6}}},
        "workload": [
            {"name": "quick", "arrivals": {"process": "poisson", "rate": "60/h"}, "gpu_time": "2 min", "slo": "5 min"},
            {"name": "slow", "arrivals": {"process": "poisson", "rate": "9/h"},
             "gpu_time": {"distribution": "exponential", "mean": "40 min"}},
        ],
        "policy": {"scheduler": {"name": "predictive", "scale": False, "reserve": ["quick"], **more}},
    }  # fmt: skip


@cache
def kept():
    """Runs with room kept for quick tasks, which several tests look at."""
    return hs.replicate(reserving(predictor="ewma"), replications=6, keep=True)


@pytest.mark.slow
def test_others_never_hold_what_is_kept():
    """At every start of a task that is not protected there is room beside what the forecast keeps."""
    scenario = hs.load(reserving(predictor="ewma"))
    run = scenario.build()
    policy = run.scheduler
    starts = []
    hold = policy._hold

    def watch(start):
        hold(start)
        held = sum(share for _, share in policy._others.values())
        kept = next(iter(policy.kept.values()))
        if start.tasks.class_ == "slow":
            starts.append((held, kept))
            assert held <= 6 - kept

    policy._hold = watch
    Simulation(run, check=True).run()
    assert len(starts) > 50
    assert max(kept for _, kept in starts) >= 3
    assert max(held for held, _ in starts) >= 3


@pytest.mark.slow
def test_who_is_held_back_is_told_why():
    record = kept().results[0].record
    classes = [record.input.tasks.classes[record.input.tasks.class_code[row]] for _, row, _ in record.holds]
    assert len(classes) > 20
    assert set(classes) == {"slow"}
    assert {cause for _, _, cause in record.holds} == {"reservation"}


@pytest.mark.slow
@pytest.mark.parametrize("placement", spread([None, "best_fit", "fastest_device"], 1))
def test_who_is_held_back_on_gpus_may_run_on_cores(placement):
    """All GPUs are kept, the cores are idle: the others run there at once."""
    scenario = reserving(predictor="ewma", target=0.1, base={"name": "fcfs", "discipline": "skip"})
    if placement is not None:
        scenario["policy"]["scheduler"]["base"]["placement"] = placement
    scenario["cluster"]["nodes"]["cpus"] = 64
    scenario["workload"][1]["cpu_time"] = {"speedup": 2}
    result = hs.run(scenario, check=True)
    slow = result.tasks[result.tasks["class"] == "slow"]
    if placement == "fastest_device":  # a rule that would not have cores anyway
        assert (slow.device_type == "cpu").sum() == 0
        return
    assert (slow.device_type == "cpu").sum() > 0.9 * len(slow)
    assert slow.wait.max() < 1


@pytest.mark.slow
def test_who_is_held_back_wide_may_run_narrow():
    """Three of six GPUs are kept: a job for four of them runs on two."""
    scenario = reserving(predictor="last_value", target=1)
    scenario["workload"] = [
        {"name": "quick", "class": "quick", "arrivals": {"process": "deterministic", "interval": "1 min"},
         "until": "18 h", "gpu_time": "3 min"},
        {"name": "slow", "class": "slow", "arrivals": {"process": "deterministic", "interval": "4 h", "first": "2 h"},
         "until": "18 h", "gpu_time": "40 min", "scaling": {1: 1, 2: 1.9, 4: 3.4}},
    ]  # fmt: skip
    result = hs.run(scenario, check=True)
    slow = result.tasks[result.tasks["class"] == "slow"]
    assert len(slow) >= 4
    assert slow.wait.max() < 120
    assert (slow.upload + slow.compute > 40 * 60 / 3.4 * 1.5).all()


@pytest.mark.slow
def test_reserving_helps_whom_it_is_for():
    skipping = {"scheduler": {"name": "fcfs", "discipline": "skip"}}
    free = hs.replicate(reserving(), policy=skipping, replications=6, keep=True)
    with_room, without = (of_class(runs, "quick", "slo_attainment") for runs in (kept(), free))
    assert student_interval(with_room - without, 0.99).low > 0.1


@pytest.mark.slow
def test_a_service_beside_batch_jobs_gets_its_devices():
    """Batch jobs of an hour come all the time; the service's requests are due after 20 s."""
    reserving = {"name": "predictive", "scale": False, "reserve": ["s"], "predictor": "ewma"}
    scenario = service_alone({"scheduler": reserving})
    scenario["horizon"] = "4 h"
    batch = {"name": "b", "arrivals": {"process": "poisson", "rate": "3/h"}, "gpu_time": "1 h"}
    scenario["workload"] = [scenario["workload"], batch]
    kept, free = hs.run(scenario), hs.run(scenario, policy="fcfs")
    late = [1 - run.by("class", ["slo_attainment"]).loc["s", "slo_attainment"] for run in (kept, free)]
    assert late[0] < 0.5 * late[1]
    assert kept.tasks[kept.tasks["class"] == "b"].start.notna().sum() >= 3


# The contract ---------------------------------------------------------------------------------------------------

SETTINGS = [
    {"predictor": LastValue, "interval": 0.5, "stabilization": 0.0},
    {"predictor": Autoregressive, "interval": 0.3, "stabilization": 1.0, "min_replicas": 0, "target": 1.0},
    {"signal": "utilization", "predictor": Ewma, "interval": 0.5},
    {"interval": 0.7, "predictor": partial(HoltWinters, season=8.0, slot=1.0), "ahead": 2.0},
]


@pytest.mark.parametrize("number", spread(range(len(SETTINGS)), 1))
@pytest.mark.slow
def test_keeps_the_contract(number):
    for system in small_systems():
        assert not examine(lambda _: Predictive(**SETTINGS[number]), system), system.name
    for seed in range(3):
        make = [lambda _: Predictive(base=Qssf(quantile=0.5), **SETTINGS[number])]
        make.append(lambda _: Predictive(base=ListScheduler(sjf, discipline="skip"), **SETTINGS[number]))
        for one in make:
            assert not examine(one, random_system(seed))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_everything_ends_although_devices_sleep(seed):
    """Tasks, gangs and tasks on cores, on two nodes whose devices take their time to wake."""
    rng = np.random.default_rng(seed)
    cpu = DeviceType("c", kind="cpu")
    modes = [gpu_mode(SLEEPY), gpu_mode(SLEEPY, 0.5), gpu_mode(SLEEPY, 2), gpu_mode(SLEEPY, 4), cpu_mode(cpu)]
    arrivals = np.sort(rng.uniform(0, 3000, 60))
    jobs = [Job([modes[rng.choice(5, p=[0.5, 0.2, 0.1, 0.1, 0.1])]], [rng.exponential(20)], a) for a in arrivals]
    specs = [NodeSpec(cpus=2, cpu_type=cpu, accelerators=((SLEEPY, 4),)) for _ in range(2)]
    policy = Predictive(
        predictor=[LastValue, Ewma][seed % 2], interval=15.0, stabilization=30.0,
        signal=["arrivals", "utilization"][seed // 2 % 2], min_replicas=seed % 2,
    )  # fmt: skip
    record = simulate(specs, jobs, policy)
    assert np.isfinite(record.finish).all()
    assert any(what == "wake" for _, _, what in told(record))


@pytest.mark.slow
def test_a_device_that_fails_counts_as_down():
    scenario = reserving()
    scenario["cluster"]["nodes"]["gpus"]["power"] = {"idle": "50 W", "wake": "2 min"}
    scenario["cluster"]["nodes"]["count"] = 2
    scenario["faults"] = {"on": "g", "every": {"distribution": "exponential", "mean": "5 h"}, "repair": "20 min"}
    scenario["policy"] = {"scheduler": {"name": "predictive", "predictor": "ewma"}}
    assert hs.run(scenario, check=True).metric("completed_count") > 1000


# What the user sees ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_errors_of_forecasts_are_shown(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(reserving(predictor="ewma")))
    shown = CliRunner().invoke(hetsim, ["run", str(path)])
    assert shown.exit_code == 0, shown.output
    line = next(line for line in shown.output.splitlines() if line.startswith("load forecast"))
    assert "MAPE" in line
    assert "pinball loss" in line
    notes = kept().results[0].notes
    assert f"{notes['forecast_count']:,} predictions" in line


def test_qssf_notes_how_wrong_it_was():
    result = hs.run(reserving(), policy="qssf")
    assert result.notes["duration_count"] == result.metric("completed_count")
    assert 0 < result.notes["duration_pinball"] < 3600


@pytest.mark.slow
def test_qssf_beside_a_service_learns_from_tasks_only():
    scenario = service_alone("qssf")
    jobs = {"name": "b", "arrivals": {"process": "poisson", "rate": "3/min"}, "gpu_time": "10 s"}
    scenario["workload"] = [scenario["workload"], jobs]
    result = hs.run(scenario, check=True)
    ended = result.tasks[result.tasks.status == "completed"]
    assert result.notes["duration_count"] == (ended["class"] == "b").sum() > 50
    assert result.notes["duration_mape"] < 10


@pytest.mark.slow
def test_a_season_longer_than_the_run_is_told():
    short, long = (hs.run(reserving(predictor={"name": "holt_winters", "season": s})).notes for s in ("5 h", "24 h"))
    assert short["forecast_fallback"] == pytest.approx(0.25, abs=0.01)
    assert long["forecast_fallback"] == 1


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"predictor": "holtwinters"}, 'unknown predictor "holtwinters"; did you mean "holt_winters"'),
        ({"predictor": {"name": "holt_winters", "alpha": -1}}, "alpha: must be at least 0; got -1"),
        ({"interval": 0}, "interval: "),
        ({"target": 1.5}, "target: "),
        ({"signal": "load"}, "signal: "),
        ({"reserve": ["quik"]}, 'no class "quik" to reserve for; did you mean "quick"'),
        ({"base": {"name": "max_min_fairness"}}, "name a list scheduler such as fcfs"),
        ({"scale": True, "base": "power_down"}, "PowerDown puts devices to sleep itself: set scale to false, "
                                                "or use another"),
        ({"predicter": "ewma"}, 'has no parameter "predicter"; did you mean "predictor"'),
    ],
)
def test_wrong_parameters_are_told(parameters, text):
    with pytest.raises(ScenarioError, match=text.replace("(", r"\(")):
        hs.load(reserving(**parameters)).build()


def test_power_down_says_that_it_sets_devices():
    assert PowerDown.sets_devices
    assert Predictive.sets_devices
    assert not ListScheduler.sets_devices


# The shipped scenarios ------------------------------------------------------------------------------------------

EWMA = {"name": "predictive", "target": 0.85, "predictor": {"name": "ewma", "memory": "5 min"}}
KUBERNETES = {"name": "predictive", "target": 1, "predictor": "last_value", "signal": "utilization"}


def awake(runs):
    """GPU-hours awake (or waking) by replication."""
    return np.array([run.devices.loc[run.devices.kind == "gpu", "up"].sum() / 3600 for run in runs])


def missed(runs):
    return 1 - np.array([run.metric("slo_attainment") for run in runs])


@pytest.mark.slow
def test_opening_hours():
    """At equal cost the forecast cuts misses by far more than a quarter (paired, 95 %)."""
    name = "opening-hours"
    found = {key: runs(name, p) for key, p in (("own", None), ("rate", EWMA), ("busy", KUBERNETES), ("on", "fcfs"))}
    cost = {key: awake(one) for key, one in found.items()}
    late = {key: missed(one) for key, one in found.items()}
    assert len(late["own"]) == 4
    for key in ("rate", "busy"):
        assert cost["own"].mean() <= 1.01 * cost[key].mean()
        assert student_interval(late["own"] - 0.75 * late[key], 0.95).high < 0
    shown = [value for key in ("rate", "busy", "own") for value in (100 * late[key].mean(), cost[key].mean())]
    states(name, "misses 2.0 % of the deadlines at 243 GPU-hours", *shown[:2])
    states(name, "2.2 % at 244", *shown[2:4])
    states(name, "0.21 % at 238", *shown[4:])
    fewer = [student_interval(100 * (late[key] - late["own"]), 0.95) for key in ("rate", "busy")]
    phrase = "1.8 ± 0.6 and 2.0 ± 1.3 points fewer"
    states(name, phrase, *(value for one in fewer for value in (one.mean, one.half_width)))
    states(name, "0.00 % of the deadlines are missed at 576 GPU-hours", 100 * late["on"].mean(), cost["on"].mean())


@pytest.mark.slow
def test_no_headroom_makes_up_for_a_forecast():
    """For each target of autoscalers that react there is one with a forecast that costs no more and misses less.

    At target 1 there is none: demand is never less than what is measured, so the forecast costs some more there.
    One run each, of the same load: it has thousands of requests, and what the forecast spares is most of the misses.
    """
    name = "opening-hours"

    def point(policy, target):
        found = hs.run(name, policy={"scheduler": {**policy, "target": target}})
        return awake([found]).item(), missed([found]).item()

    forecast = [point({"name": "predictive"}, target) for target in (0.7, 0.85, 1.0)]
    reacting = [point(EWMA, target) for target in (0.6, 0.7, 0.95)] + [point(KUBERNETES, t) for t in (0.8, 0.9)]
    for cost, late in reacting:
        assert any(own <= 1.01 * cost and misses <= 0.75 * late for own, misses in forecast), (cost, late)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["day-two-hours-early", "day-two-hours-late", "day-half-as-busy-again", "flash-crowd"]
)
def test_a_day_unlike_those_learned(name):
    """At equal cost the forecast misses no more than what only reacts; docs/hybrid.md has 30 paired replications."""
    own, reacting = (runs(name, policy) for policy in hs.load(name).raw["sweep"]["policy"])
    assert abs(awake(own).mean() / awake(reacting).mean() - 1) <= 0.02
    assert (missed(own) - missed(reacting)).mean() <= 0.002
    text = " ".join(hs.load(name).description.split())
    (told,) = re.findall(r"misses .*? at .*? awake.*? at \d+", text)
    shown = [value for found in (reacting, own) for value in (100 * missed(found).mean(), awake(found).mean())]
    states(name, told, *shown)
    fewer = student_interval(100 * (missed(reacting) - missed(own)), 0.95)
    for phrase in re.findall(r"[\d.]+ ± [\d.]+ points fewer", text):  # said where it is above 0
        assert fewer.low > 0
        states(name, phrase, fewer.mean, fewer.half_width)


@pytest.mark.slow
def test_room_for_the_peak():
    name = "room-for-the-peak"
    none, reacting, own = hs.load(name).raw["sweep"]["policy"]
    late, batch = [], []
    for policy in (none, reacting, own):
        found = runs(name, policy)
        late.append(100 * (1 - of_class(found, "answers", "slo_attainment")))
        batch.append(of_class(found, "batch", "response_mean") / 60)
    assert student_interval(late[2] - 0.75 * late[1], 0.95).high < 0
    assert student_interval(batch[2] - batch[1], 0.95).high < 0
    states(name, "23 % of the answers are late", late[0].mean())
    states(name, "mean response of batch jobs is 149 min", batch[0].mean())
    states(name, "8.4 % of the answers are late, and batch jobs take 207 min", late[1].mean(), batch[1].mean())
    states(name, "0.75 % of the answers are late, and batch jobs take 179 min", late[2].mean(), batch[2].mean())


@pytest.mark.slow
def test_known_users():
    """Predicted durations do as well as what users say, within a tenth, and much better than none."""
    name = "known-users"
    median = runs(name, {"name": "qssf", "quantile": 0.5})
    predicted, said, none = runs(name), runs(name, "sjf"), runs(name, "fcfs")
    exact = runs(name, "sjf", {"workload.jobs.estimates": "exact"})
    slow = [found.column("slowdown_mean").to_numpy() for found in (none, said, predicted, exact)]
    states(name, "slowdown is 18.0 under fcfs", slow[0].mean())
    states(name, "2.72 under sjf by the users' estimates", slow[1].mean())
    states(name, "2.63 under qssf", slow[2].mean())
    states(name, "2.37 under sjf with exact durations", slow[3].mean())
    mape = [100 * next(iter(found)).notes["duration_mape"] for found in (predicted, median)]
    states(name, "off by 131 % on average, by the median 78 %", *mape)
    assert student_interval(slow[2] - slow[0], 0.95).high < 0
    assert student_interval(slow[3] - slow[2], 0.95).high < 0
    assert student_interval(slow[2] - 1.1 * slow[1], 0.95).high < 0
