"""plan_and_repair, and planning in mid-run: what a planner is told of the rest of a run, and what it makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_shipped_scenarios import runs, states
from tiers import some

import hetsim as hs
from benchmarks.hybrid_instances import FAMILIES, hybrid
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan
from hetsim.model.tasks import Item
from hetsim.policy import ListScheduler, PlannedScheduler, PlanProblem, Progress
from hetsim.results.statistics import student_interval
from hetsim.testing import System
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload
from hetsim_policies.hybrid.common.planned_lanes import Experience
from hetsim_policies.hybrid.plan_and_repair import PlanAndRepair
from hetsim_policies.static.dual_approximation import DualApproximation
from hetsim_policies.static.greedy_best_fit import GreedyBestFit
from hetsim_policies.static.insertion import Cpop, Heft, Peft
from hetsim_policies.static.lists import Graham, MaxMin, Mct, MinMin, Sufferage
from hetsim_policies.static.programs import Hlp, LinearProgram
from hetsim_policies.static.vertices import Lst

GPU = DeviceType("g")
PLANNERS = (Cpop, DualApproximation, Graham, Heft, Hlp, LinearProgram, Lst, MaxMin, Mct, MinMin, Peft, Sufferage)


def run(scheduler, cluster, tasks, disturb=lambda simulation: None):
    simulation = Simulation(System("test", cluster, tasks).run_input(scheduler), check=True)
    disturb(simulation)
    return simulation.run()


def gpus(count, cpus=0):
    return Cluster([node(cpus=cpus, accelerators=((GPU, count),))])


def fails(name, *times):
    """A disturbance: the device goes down and up at these times, in turn."""

    def disturb(simulation):
        device = simulation.input.cluster.by_name[name]
        for number, at in enumerate(times):
            simulation.at(at, lambda up=bool(number % 2): simulation.parts.devices.set_up(device, up))

    return disturb


# Planning in mid-run ----------------------------------------------------------------------------------------------


def in_mid_run(tasks, cluster, **known):
    return PlanProblem(tasks, cluster, in_mid_run=True, **known)


@pytest.mark.parametrize("planner", PLANNERS)
def test_planners_see_what_still_runs(planner):
    """At 4 one of two GPUs is busy until 10: two tasks of 3 s go to the other and end then, 6 s from now."""
    tasks = workload([(4, 0, 3.0)] * 2, [Shape([gpu_mode(GPU)])])
    plan = planner().plan(in_mid_run(tasks, gpus(2), now=4.0, free_at={"n0/g0": 10.0}))
    assert [step.devices for step in plan.steps] == [("n0/g1",)] * 2
    assert plan.makespan == pytest.approx(6)
    assert plan.bound is None or plan.bound <= 6 * (1 + 1e-9)


@pytest.mark.parametrize("planner", [*PLANNERS, GreedyBestFit])
def test_a_lane_that_is_down_is_none(planner):
    tasks = workload([(0, 0, 3.0)] * 3, [Shape([gpu_mode(GPU)])])
    plan = planner().plan(in_mid_run(tasks, gpus(2), free_at={"n0/g0": math.inf}))
    assert [step.devices for step in plan.steps] == [("n0/g1",)] * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rest_by_dual_approximation_lies_between_its_bound_and_list_scheduling(family):
    """The bound is one of the schedules with what runs as tasks; longest first from the free times is always tried."""
    rng = np.random.default_rng(8)
    p, q = FAMILIES[family](rng, 30)
    cluster = gpus(3, cpus=4)
    tasks = workload([(5, 0, *both) for both in zip(p, q, strict=True)], [Shape([cpu_mode(), gpu_mode(GPU)])])
    free_at = {name: 5 + rng.uniform(0, 10) for name in ("n0/cpu1", "n0/cpu2", "n0/g0", "n0/g2")}
    plan = DualApproximation().plan(in_mid_run(tasks, cluster, now=5.0, free_at=free_at))
    free, ends = dict(free_at), []
    for step in plan.steps:
        (lane,) = step.devices
        free[lane] = free.get(lane, 5.0) + float(tasks.time[step.task, step.mode])
        ends.append(free[lane])
    assert not plan.problems(tasks, cluster)
    assert plan.makespan == pytest.approx(max(*ends, *free_at.values()) - 5)
    assert plan.bound <= plan.makespan * (1 + 1e-9)
    assert plan.makespan <= 2 * plan.bound


def test_heft_knows_where_data_lie_by_now():
    """1 GB takes 1 s to the GPU that lacks it; the one that has it is busy for half a second more."""
    kind = DeviceType("g", link=Link(upload=GB, download=GB))
    cluster = Cluster([node(accelerators=((kind, 2),))])
    tasks = workload([(0, 0, 1.0)], [Shape([gpu_mode(kind)])], items=[Item("x", GB)], reads=[(0,)])
    g0, g1 = cluster.nodes[0].accelerators
    for device in (g0, g1):
        given = in_mid_run(tasks, cluster, free_at={device.name: 0.5}, data={0: [device]})
        assert Heft().plan(given).steps[0].devices == (device.name,)
        assert Heft().plan(given).makespan == pytest.approx(1.5)
    assert Heft().plan(in_mid_run(tasks, cluster, free_at={g0.name: 0.5})).steps[0].devices == (g1.name,)


class Asks(ListScheduler):
    """Asks for the rest of the run once, at a time."""

    def __init__(self, at, **how):
        super().__init__()
        self.at, self.how, self.rest = at, how, None

    def prepare(self, problem):
        self.progress = Progress(problem)

    def ready(self, task):
        self.progress.ready(task)
        super().ready(task)

    def finished(self, task):
        self.progress.ended(task)

    def schedule(self, view):
        yield from super().schedule(view)
        if view.now >= self.at and self.rest is None:
            self.rest = self.progress.rest(view, **self.how)


def graph_in_mid_run(**how):
    """Two cores; tasks 0 to 2 of 4 s, of which 0 and 1 start at once, 3 after 0, 4 after 1 and 3; 5 comes at 20."""
    tasks = workload(
        [(0, 0, 4.0), (0, 0, 6.0), (0, 0, 4.0), (0, 0, 1.0), (0, 0, 1.0), (20, 0, 1.0)],
        [Shape([cpu_mode()])],
        predecessors=[(), (), (), (0,), (1, 3), ()],
    )
    scheduler = Asks(4.0, **how)
    run(scheduler, Cluster([node(cpus=2)]), tasks)
    return scheduler.rest


def test_the_rest_of_a_run_is_what_has_not_started():
    """At 4 task 0 has ended and 2 begins where it ran; 1 runs until 6.  Task 3 can start, 4 when 1 and 3 have ended."""
    rest = graph_in_mid_run(foresight=False)
    assert rest.rows == [3, 4]
    assert rest.problem.tasks.arrival.tolist() == [4, 6]
    assert rest.problem.tasks.predecessors == [(), (0,)]
    assert sorted(rest.problem.free_at.items()) == [("n0/cpu0", 6.0), ("n0/cpu1", 8.0)]  # unnamed cores: any
    assert (rest.problem.now, rest.problem.in_mid_run) == (4, True)
    assert graph_in_mid_run(foresight=True).rows == [3, 4, 5]


def test_what_waits_for_a_task_that_is_not_wanted_is_left_out_too():
    assert graph_in_mid_run(wanted=lambda row: row != 3).rows == [5]


def test_the_rest_of_a_stopped_task_is_what_it_has_left():
    """The GPU fails at 3 for a second; a task of 5 s that saves its work every second has 2 s left."""
    from hetsim.model.demand import Stopping

    tasks = workload([(0, 0, 5.0)] * 2, [Shape([gpu_mode(GPU)], Stopping(interval=1.0))])
    scheduler = Asks(3.0, foresight=False)
    run(scheduler, gpus(1), tasks, fails("n0/g0", 3.0, 4.0))
    assert scheduler.rest.problem.tasks.time[:, 0].tolist() == [2.0, 5.0]


# The policy: nothing unforeseen -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_with_exact_estimates_it_is_as_good_as_its_plan(family):
    rng = np.random.default_rng(4)
    for _ in range(5):
        system = hybrid(*FAMILIES[family](rng, 24), 3, 2)
        planned = run(DualApproximation(), system.cluster, system.tasks)
        repaired = run(PlanAndRepair(), system.cluster, system.tasks)
        assert repaired.finish.max() <= planned.finish.max() * (1 + 1e-9)
        assert repaired.notes["plans"] == 1
        assert repaired.notes["planned_makespan"] <= planned.notes["planned_makespan"] * (1 + 1e-9)


@pytest.mark.slow
def test_the_planner_can_be_named():
    system = hybrid(*FAMILIES["all-accelerated"](np.random.default_rng(1), 20), 3, 2)
    found = {planner: run(PlanAndRepair(planner()), system.cluster, system.tasks) for planner in PLANNERS}
    assert all(record.notes["planned_makespan"] > 0 for record in found.values())
    assert found[MinMin].notes["planned_makespan"] > found[DualApproximation].notes["planned_makespan"]


# The policy: repairs ------------------------------------------------------------------------------------------------


def test_an_idle_lane_steals_from_the_one_that_is_late():
    """Two GPUs, four tasks of 1 s by estimate; the first takes 10 s.  The other GPU does the rest and ends at 3."""
    tasks = workload([(0, 0, time) for time in (10.0, 1, 1, 1)], [Shape([gpu_mode(GPU)])], estimate=[[1.0]] * 4)
    record = run(PlanAndRepair(threshold=100), gpus(2), tasks)
    assert sorted(record.finish.tolist()) == [1, 2, pytest.approx(3), 10]
    assert record.notes["stolen"] == 1
    plan = run(DualApproximation(), gpus(2), tasks)
    assert plan.finish.max() == 11


def test_a_lane_passes_over_a_step_that_waits_for_a_late_predecessor():
    """One core of two has 1 (after 0, which is late) and then 2; nothing is delayed if 2 goes first."""
    tasks = workload(
        [(0, 0, 9.0), (0, 0, 1.0), (0, 0, 2.0)], [Shape([cpu_mode()])],
        estimate=[[4.0], [1.0], [2.0]], predecessors=[(), (0,), ()],
    )  # fmt: skip

    class ByHand(PlannedScheduler):
        def plan(self, problem):
            from hetsim.model.plan import Step

            order = [(0, "n0/cpu0"), (1, "n0/cpu1"), (2, "n0/cpu1")]
            return Plan([Step(task, 0, (lane,)) for task, lane in order if task < len(problem.tasks)])

    record = run(PlanAndRepair(ByHand()), Cluster([node(cpus=2)]), tasks)
    assert record.notes["reordered"] == 1
    assert record.start.tolist() == [0, 9, 0]


@pytest.mark.parametrize(("restart", "finish"), [(True, 10.75), (False, 50)])
def test_what_runs_late_on_a_core_is_started_over_on_an_idle_gpu(restart, finish):
    """Task 0, on the core, takes ten times its estimate of 5 s; the GPU, ten times as fast, has 5 s of other work.

    When that has ended nothing is late yet.  At 5.75 task 0 has taken 1.15 of its estimate and is expected to take 1.3
    of it: 0.75 s more on the core, or 0.65 s from scratch on the GPU.
    """
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    tasks = workload([(0, 0, 50.0, 5.0), (0, 0, 99.0, 5.0)], [shape], estimate=[[5.0, 0.5], [99.0, 5.0]])
    record = run(PlanAndRepair(ByTable([0, 1]), restart=restart), gpus(1, cpus=1), tasks)
    assert record.finish.tolist() == [finish, 5]


def test_a_restart_ends_sooner_where_the_gpu_is_much_faster():
    """Task 0, ten times as long on the core, is there while the GPU works for 2 s; then it starts over on the GPU."""
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    rows = [(0, 0, 30.0, 3.0), (0, 0, 100.0, 2.0)]
    record = run(PlanAndRepair(ByTable([0, 1])), gpus(1, cpus=1), workload(rows, [shape]))
    assert record.notes["restarted"] == 1
    assert record.finish.tolist() == [5, 2]
    record = run(PlanAndRepair(ByTable([0, 1]), restart=False), gpus(1, cpus=1), workload(rows, [shape]))
    assert record.finish.tolist() == [30, 2]


class ByTable(PlannedScheduler):
    """Each task in a given mode, in the order of the table, on the first lane of its type."""

    def __init__(self, modes):
        super().__init__()
        self.modes = modes

    def plan(self, problem):
        from hetsim.model.plan import Step

        lanes = ("n0/cpu0", "n0/g0")
        return Plan([Step(task, self.modes[task], (lanes[self.modes[task]],)) for task in range(len(problem.tasks))])


def test_a_device_that_fails_is_planned_around():
    """g0 fails at 1 and stays down for 100 s: the other GPU does its work; a plan alone would wait for it."""
    tasks = workload([(0, 0, 4.0)] * 6, [Shape([gpu_mode(GPU)])])
    record = run(PlanAndRepair(), gpus(2), tasks, fails("n0/g0", 1.0, 101.0))
    assert record.finish.max() == 24
    assert run(DualApproximation(), gpus(2), tasks, fails("n0/g0", 1.0, 101.0)).finish.max() > 100


def test_what_only_a_device_that_is_down_can_run_waits_for_it():
    tasks = workload([(0, 0, 4.0), (2, 0, 4.0)], [Shape([gpu_mode(GPU)])])
    record = run(PlanAndRepair(), gpus(1, cpus=1), tasks, fails("n0/g0", 1.0, 9.0))
    assert record.finish.max() == 17


def test_a_device_that_comes_back_is_used():
    tasks = workload([(0, 0, 4.0)] * 8, [Shape([gpu_mode(GPU)])])
    record = run(PlanAndRepair(), gpus(2), tasks, fails("n0/g0", 1.0, 5.0))
    assert record.finish.max() <= 20


@pytest.mark.parametrize("dynamic", ["acceleration", "longest", "arrival"])
def test_newcomers_find_a_place(dynamic):
    """Nothing is known of those that come later; one GPU is enough for all that come, and none waits for nothing."""
    rows = [(0, 0, 5.0), (1, 0, 1.0), (1, 0, 2.0), (7, 0, 1.0)]
    record = run(PlanAndRepair(dynamic=dynamic), gpus(2), workload(rows, [Shape([gpu_mode(GPU)])]))
    assert record.finish[0] == 5
    assert sorted(record.finish[1:3].tolist()) in ([2, 4], [3, 4])
    assert record.finish[3] == 8


def test_with_foresight_the_planner_knows_what_will_come():
    """A short task now and a long one at 1, on one core and a GPU that is faster for both: HEFT keeps the GPU free."""
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    tasks = workload([(0, 0, 9.0, 8.0), (1, 0, 40.0, 8.0)], [shape])
    policies = [PlanAndRepair(Heft(), foresight=known, restart=False) for known in (False, True)]
    blind, knowing = (run(policy, gpus(1, cpus=1), tasks) for policy in policies)
    assert blind.finish.max() == 16
    assert knowing.finish.max() == 9


def test_what_cannot_be_planned_runs_beside():
    """A gang of two GPUs among single ones: it runs when both are free, and everything ends."""
    shapes = [Shape([gpu_mode(GPU)]), Shape([gpu_mode(GPU, 2)])]
    record = run(PlanAndRepair(), gpus(2), workload([(0, 0, 3.0), (0, 1, 5.0), (0, 0, 3.0)], shapes))
    assert record.finish.max() == 8


def test_a_planner_that_can_plan_nothing_says_so():
    tasks = workload([(0, 0, 3.0)], [Shape([gpu_mode(GPU, 2)])])
    with pytest.raises(ScenarioError, match="min_min plans tasks of one core or one whole GPU"):
        run(PlanAndRepair(MinMin()), gpus(2), tasks)


def test_a_planner_that_tries_plans_out_is_told_that_it_cannot():
    from hetsim_policies.static.recorded import AsPlanned

    tasks = workload([(0, 0, 3.0)], [Shape([gpu_mode(GPU)])])
    with pytest.raises(ScenarioError, match="AsPlanned cannot plan during a run: it must simulate a scheduler "
                                            r"\(`rehearse`\), which is possible only before the run"):
        run(PlanAndRepair(AsPlanned()), gpus(1), tasks)


# No storms ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_started_over_twice_with_exact_estimates():
    """From a core to a GPU, once: however old the forecast is, a second GPU is no faster than the first."""
    rng = np.random.default_rng(4)
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    rows = [(arrival, 0, 4 * seconds, seconds) for arrival, seconds in rng.exponential((1.0, 2.0), (400, 2)).tolist()]
    rows = [(float(at), *row[1:]) for at, row in zip(np.cumsum([row[0] for row in rows]), rows, strict=True)]
    record = run(PlanAndRepair(foresight=True), gpus(4, cpus=8), workload(rows, [shape]))
    assert 0 < record.notes["restarted"] <= 400
    assert record.preemptions.max() == 1


@pytest.mark.slow
def test_the_queue_beside_the_plan_does_not_try_everything_every_round(monkeypatch):
    """1,000 gangs wait for two GPUs: a round tries one of them, not all."""
    record = run(PlanAndRepair(), gpus(2), workload([(0, 0, 1.0)] * 1000, [Shape([gpu_mode(GPU, 2)])]))
    assert record.finish.max() == 1000
    tried = []
    monkeypatch.setattr(PlanAndRepair, "_key", lambda self, task: tried.append(task.index) or (0.0, task.index))
    run(PlanAndRepair(), gpus(2), workload([(0, 0, 1.0)] * 1000, [Shape([gpu_mode(GPU, 2)])]))
    assert len(tried) == 1000


class Counted(Mct):
    def __init__(self):
        super().__init__()
        self.times = []

    def plan(self, problem):
        self.times.append(problem.now)
        return super().plan(problem)


@pytest.mark.slow
def test_plans_keep_a_distance():
    """A GPU that fails every 0.2 s, in a run of some 100 s: 1,000 occasions, and no more plans than pauses."""
    rng = np.random.default_rng(2)
    times = rng.uniform(0.5, 3, 150)
    tasks = workload([(0, 0, t) for t in times], [Shape([gpu_mode(GPU)])], estimate=(times * 2)[:, None])
    planner = Counted()
    flapping = np.arange(0.1, 200, 0.1)
    record = run(PlanAndRepair(planner, threshold=0), gpus(3), tasks, fails("n0/g0", *flapping))
    assert record.notes["plans"] <= 80
    assert len(planner.times) == record.notes["plans"] + 1  # one to see what it can plan
    late = np.array(planner.times[1:])
    assert np.diff(late[late < 20]).min() > 1


def test_experience():
    known = Experience()
    assert known.ratio(0.5) == 1
    assert known.ratio(1.5) == 2
    for took in (0.5, 1.0, 2.0, 3.0, 4.0):
        known.add(1.0, took)
    assert known.ratio(1.0) == 1
    assert known.ratio(1.5) == 3  # the mean of 2, 3 and 4
    assert known.ratio(2.5) == 4  # two were as late: late again by as much


# Shipped ------------------------------------------------------------------------------------------------------------

ERRORS, STATED = (0, 0.1, 0.3, 1), 0.3  # the scenarios have that one themselves


def makespans(name, policy, error=None):
    given = {"distribution": "lognormal", "cv": error} if error else 1
    overrides = None if error in (None, STATED) else {"workload.0.estimates.error": given}
    return runs(name, policy, overrides).column("makespan").to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan", "dynamic", "unit", "tells"),
    [
        ("wrong-estimates", "dual_approximation", "heteroprio", 1, (
            "of dual_approximation ends after 295, 324, 393 and 643 s on average",
            "does not plan, after 337, 340, 362 and 382 s", "ends after 295, 300, 324 and 365 s",
        )),
        ("wrong-estimates-graph", "heft", "dmda", 1e3, (
            "of heft ends after 181, 177, 179 and 293 ms on average", "after 145, 146, 144 and 155 ms",
            "ends after 135, 136, 138 and 153 ms",
        )),
    ],
)  # fmt: skip
def test_repaired_plans_beat_plans_and_no_plans(name, plan, dynamic, unit, tells):
    """At every error within 1.02 of the better of both; of independent tasks surely below both at 10 and 30 %."""
    policies = (plan, dynamic, "plan_and_repair")
    assert hs.load(name).raw["workload"][0]["estimates"]["error"]["cv"] == STATED
    found = {policy: [makespans(name, policy, error) for error in ERRORS] for policy in policies}
    for text, runs_ in zip(tells, found.values(), strict=True):
        states(name, text, *(unit * spans.mean() for spans in runs_))
    ratios = []
    for planned, decided, repaired in zip(*found.values(), strict=True):
        assert len(repaired) == (20 if name == "wrong-estimates" else 8)
        better = min(planned, decided, key=np.mean)
        ratios.append(repaired.mean() / better.mean())
        assert ratios[-1] <= 1.02
    if name == "wrong-estimates":
        states(name, "100, 93, 89 and 95 % of the better", *(100 * ratio for ratio in ratios))
        for number in (1, 2):
            for other in (plan, dynamic):
                paired = student_interval(found["plan_and_repair"][number] / found[other][number], 0.95)
                assert paired.high < 0.96


@pytest.mark.slow
def test_repaired_plans_under_faults_and_late_arrivals():
    name = "broken-and-late"
    planned, decided, repaired = (makespans(name, policy) for policy in ("heft", "heteroprio", "plan_and_repair"))
    states(name, "ends after 528 s on average", planned.mean())
    states(name, "does not plan, after 427 s", decided.mean())
    plans = np.mean([run_.notes["plans"] for run_ in runs(name, "plan_and_repair")])
    states(name, "plans 23 times, and ends after 417 s", plans, repaired.mean())
    assert repaired.mean() <= 1.02 * decided.mean()
    assert student_interval(repaired / planned, 0.95).high < 0.9


@pytest.mark.slow
def test_restarts_are_those_of_a_look_at_everything_that_runs(monkeypatch):
    """What is left unlooked at could not have ended sooner: every answer is compared with that of a full look."""
    from hetsim_policies.hybrid import plan_and_repair as module

    asked, restartable = [], module.restartable

    def full(board, lane, view):
        ends = {row: board.finish(job.task, view) for row, (job, _) in board.running.items()}
        for row in sorted(ends, key=lambda row: -ends[row]):
            here = board.at(board.running[row][0].task, lane, view, module.from_scratch)
            late = board.lateness(row, view.now)
            if here is not None and here.seconds * late < (ends[row] - view.now) * (1 - module.ROUNDING):
                return here
        return None

    def compared(board, lane, view, known):
        found, wanted = restartable(board, lane, view, known), full(board, lane, view)
        assert (found and (found.row, found.seconds)) == (wanted and (wanted.row, wanted.seconds))
        asked.append(found is not None)
        return found

    monkeypatch.setattr(module, "restartable", compared)
    times = {"distribution": "lognormal", "mean": "10 s", "cv": 1}
    for cv, moved in ((0.5, {}), (1, {}), (0.5, {"bytes_in": "20 GB"})):
        kernels = {"name": "k", "arrivals": {"process": "all_at_once", "count": some(50, 20)}, **moved,
                   "gpu_time": times, "cpu_time": {**times, "mean": "40 s"},
                   "estimates": {"error": {"distribution": "lognormal", "mean": 1, "cv": cv}}}  # fmt: skip
        nodes = {"count": 2, "cpus": 6, "gpus": {"type": "v100", "count": 2}, "pcie": {"upload": "10 GB/s"}}
        given = {"name": "r", "seed": 5, "cluster": {"nodes": [nodes]}, "workload": [kernels]}
        hs.run(given, policy="plan_and_repair")
    assert True in asked and False in asked


@pytest.mark.slow
def test_what_is_kept_by_lane_is_what_a_look_at_all_lanes_finds(monkeypatch):
    """Forecasts that are mended, lanes that are not tried again and steps worth moving: each against a full look."""
    from hetsim_policies.hybrid import plan_and_repair as repairs
    from hetsim_policies.hybrid.common import planned_lanes

    seen = {"forecasts": 0, "movable": 0, "refused": 0}
    forecast, of, startable = planned_lanes.Board.forecast, repairs.Movable.towards, planned_lanes.Board.startable

    def mended(board, view):
        found, whole = forecast(board, view), board._forecast(view)
        assert (found.start, found.finish, found.lane) == (whole.start, whole.finish, whole.lane)
        seen["forecasts"] += board.separable(view)
        return found

    def moved(movable, forecast_, now):
        found = of(movable, forecast_, now)
        lanes = movable.board.loaded.values()
        whole = {lane.number: rows for lane in lanes if (rows := full(lane, movable.kind, forecast_, now))}
        assert {lane.number: [job.row for job in jobs] for lane, jobs in found} == whole
        seen["movable"] += bool(found)
        return found

    def full(lane, kind, forecast_, now):
        end = forecast_.lane.get(lane.number, 0.0)
        return [row for row, job in lane.queue.items() if job.task is not None and job.alone
                and now + repairs.min_seconds(job.task, kind) < forecast_.finish.get(row, end)]  # fmt: skip

    def tried(board, view):
        freed = board._released if view.changes.releases == board._releases else None
        for number, place in board._refused.items():
            if freed is not None and place not in freed and number in board.due:
                head = list(board.lanes.values())[number].head()
                assert head is None or head.task is None or not board.fits(head.task, head.placement, view)
                seen["refused"] += 1
        yield from startable(board, view)

    class Known(repairs.Movable):
        def __init__(self, kind, loaded):
            super().__init__(kind, loaded)
            self.board = boards[-1]

    boards = []
    prepare = PlanAndRepair.prepare

    def prepared(policy, problem):
        prepare(policy, problem)
        boards.append(policy._board)

    monkeypatch.setattr(PlanAndRepair, "prepare", prepared)
    monkeypatch.setattr(planned_lanes.Board, "forecast", mended)
    monkeypatch.setattr(planned_lanes.Board, "startable", tried)
    monkeypatch.setattr(repairs, "Movable", Known)
    monkeypatch.setattr(Known, "towards", moved)
    times = {"distribution": "lognormal", "mean": "10 s", "cv": 1}
    poisson = {"arrivals": {"process": "poisson", "rate": "0.6/s"}, "until": f"{some(100, 40)} s"}
    for arrivals in ({"arrivals": {"process": "all_at_once", "count": some(60, 25)}}, poisson):
        kernels = {"name": "k", **arrivals, "gpu_time": times, "cpu_time": {"speedup": 3}, "cpus": 1,
                   "estimates": {"error": {"distribution": "lognormal", "mean": 1, "cv": 0.6}}}  # fmt: skip
        nodes = {"count": 2, "cpus": 5, "gpus": {"type": "v100", "count": 2}}
        fails = {"distribution": "exponential", "mean": "60 s"}
        for faults in ({}, {"faults": [{"on": "gpu", "every": fails, "repair": fails}]}):
            given = {"name": "r", "seed": 5, "cluster": {"nodes": [nodes]}, "workload": [kernels], **faults}
            hs.run(given, policy="plan_and_repair")
    assert all(seen.values()), seen
