"""What the policies that ship do: one behavior a test, on loads whose right answers fit on paper."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Link, Sharing
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan, Step
from hetsim.model.plan_table import write_plan
from hetsim.model.record import COMPLETED, EXPIRED
from hetsim.model.tasks import Item
from hetsim.policy import ListScheduler
from hetsim.testing import System
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload
from hetsim_policies.dynamic.preemptive import Edf, Priority, Srtf
from hetsim_policies.dynamic.turns import ProcessorSharing, RoundRobin
from hetsim_policies.orders import FcfsSkip, RandomOrder, fcfs, largest_first, lcfs, ljf, sjf, smallest_first, wspt
from hetsim_policies.placements import BestFit, EarliestFinish, SlowReserve, fastest_device, first_fit, worst_fit
from hetsim_policies.static.recorded import Replay, read_plan

GPU = DeviceType("g")


def run(scheduler, cluster, tasks):
    return Simulation(System("test", cluster, tasks).run_input(scheduler), check=True).run()


def one_server(rows, **columns):
    """One core, tasks (arrival, time)."""
    stopping = columns.pop("stopping", Stopping())
    shape = Shape([cpu_mode()], stopping)
    return Cluster([node(cpus=1)]), workload([(arrival, 0, time) for arrival, time in rows], [shape], **columns)


def devices(record):
    """Names of each task's devices."""
    names = [device.name for device in record.input.cluster.devices]
    return ["+".join(names[index] for index in record.places[place][0]) for place in record.place]


# Registry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scheduler", "placement", "admission"])
def test_every_registered_policy_loads_and_tells_its_reference(kind):
    for name in registry.policies(kind):
        item = registry.policy(kind, name)
        assert callable(item)
        module = inspect.getmodule(item)
        if name not in ("accept_all", "replay"):
            text = (item.__doc__ or "") + (module.__doc__ or "")
            assert "Reference" in text, name


# Orders ---------------------------------------------------------------------------------------------------------


def test_fcfs_lets_nothing_pass_the_head():
    """Two cores: the task of two cores waits for both, and the one of one core behind it waits too."""
    shapes = [Shape([cpu_mode()]), Shape([cpu_mode(2)])]
    tasks = workload([(0, 0, 10), (1, 1, 1), (2, 0, 1)], shapes)
    record = run(ListScheduler(fcfs), Cluster([node(cpus=2)]), tasks)
    assert record.start.tolist() == [0, 10, 11]


def test_fcfs_skip_lets_whatever_fits_pass():
    shapes = [Shape([cpu_mode()]), Shape([cpu_mode(2)])]
    tasks = workload([(0, 0, 10), (1, 1, 1), (2, 0, 1)], shapes)
    record = run(FcfsSkip(), Cluster([node(cpus=2)]), tasks)
    assert record.start.tolist() == [0, 10, 2]


@pytest.mark.parametrize(
    ("order", "expected"),
    [(fcfs, [1, 2, 3, 4]), (lcfs, [4, 3, 2, 1]), (sjf, [2, 4, 3, 1]), (ljf, [1, 3, 4, 2]), (wspt, [3, 2, 4, 1])],
)
def test_orders_start_the_waiting_tasks_in_their_order(order, expected):
    """Task 0 occupies the server while the others arrive."""
    rows = [(0, 10), (1, 8), (2, 2), (3, 5), (4, 4)]
    record = run(ListScheduler(order), *one_server(rows, weight=np.array([1.0, 1, 1, 10, 1])))
    assert np.argsort(record.start).tolist() == [0, *expected]


def test_a_newcomer_that_becomes_the_head_may_start_at_once():
    """The head needs both cores and is blocked; the shorter newcomer needs the one that is free."""
    shapes = [Shape([cpu_mode()]), Shape([cpu_mode(2)])]
    tasks = workload([(0, 0, 10), (1, 1, 5), (2, 0, 1)], shapes)
    assert run(ListScheduler(sjf), Cluster([node(cpus=2)]), tasks).start.tolist() == [0, 10, 2]


def test_sjf_believes_estimates_not_the_truth():
    rows = [(0, 10), (1, 1), (2, 9)]
    record = run(ListScheduler(sjf), *one_server(rows, estimate=[[10], [7], [3]]))
    assert np.argsort(record.start).tolist() == [0, 2, 1]


def test_sjf_takes_the_time_on_the_best_mode():
    """Task 1 is short on the GPU although long on the core."""
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    tasks = workload([(0, 0, 50, 10), (0, 0, 50, 10), (1, 0, 9, 8), (1, 0, 99, 2)], [shape])
    record = run(ListScheduler(sjf), Cluster([node(cpus=1, accelerators=((GPU, 1),))]), tasks)
    assert record.start[3] == 10
    assert record.start[2] == 12


def test_smallest_and_largest_first_look_at_width():
    shapes = [Shape([gpu_mode(GPU, size)]) for size in (4, 1, 2)]
    tasks = workload([(0, 0, 5), (1, 1, 1), (1, 0, 1), (1, 2, 1)], shapes)
    cluster = Cluster([node(accelerators=((GPU, 4),))])
    assert run(ListScheduler(smallest_first), cluster, tasks).start.tolist() == [0, 5, 6, 5]
    assert run(ListScheduler(largest_first), cluster, tasks).start.tolist() == [0, 6, 5, 6]


def test_random_order_is_drawn_from_the_run_not_from_the_world():
    rows = [(0, 1)] * 12
    one, two = (run(RandomOrder(), *one_server(rows)) for _ in range(2))
    assert (one.start == two.start).all()
    assert one.start.tolist() != sorted(one.start)


# Preemption -----------------------------------------------------------------------------------------------------


def test_srtf_stops_the_longer_task():
    record = run(Srtf(), *one_server([(0, 10), (2, 3)]))
    assert record.finish.tolist() == [13, 5]
    assert record.preemptions.tolist() == [1, 0]


def test_srtf_leaves_a_task_that_has_less_left():
    record = run(Srtf(), *one_server([(0, 10), (8, 3)]))
    assert record.finish.tolist() == [10, 13]
    assert record.preemptions is None


def test_srtf_margin_keeps_what_is_hardly_longer():
    rows = [(0, 10), (2, 7)]
    assert run(Srtf(), *one_server(rows)).preemptions is not None
    assert run(Srtf(margin=2.0), *one_server(rows)).preemptions is None


def test_srtf_equal_tasks_never_stop_each_other():
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    tasks = workload([(0, 0, 7.3, 3.1)] * 6, [shape])
    record = run(Srtf(), Cluster([node(cpus=1, accelerators=((GPU, 1),))]), tasks)
    assert record.preemptions is None


def test_srtf_pays_for_stops():
    """Saving 1 s delays the newcomer, restoring 2 s the one that was stopped."""
    record = run(Srtf(), *one_server([(0, 10), (2, 3)], stopping=Stopping(save=1.0, restore=2.0)))
    assert record.finish.tolist() == [2 + 1 + 3 + 2 + 8, 2 + 1 + 3]


def test_srtf_makes_room_for_a_gang_by_stopping_only_what_it_must():
    shapes = [Shape([gpu_mode(GPU, size)]) for size in (1, 2)]
    tasks = workload([(0, 0, 10), (0, 0, 20), (0, 0, 30), (1, 1, 2)], shapes)
    record = run(Srtf(), Cluster([node(accelerators=((GPU, 4),))]), tasks)
    assert record.preemptions.tolist() == [0, 0, 1, 0]
    assert record.start[3] == 1
    assert record.finish.tolist() == [10, 20, 32, 3]


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(5))
def test_srtf_has_no_greater_mean_response_than_sjf_on_one_server(seed):
    """Schrage (1968): a theorem on one server with exact estimates and free stops, so it holds on every load."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1.2, 150))
    rows = list(zip(arrival.tolist(), random.lognormal(-0.5, 1.2, 150).tolist(), strict=True))
    cluster, tasks = one_server(rows)
    mean = {
        policy: np.mean(run(scheduler, cluster, tasks).finish - tasks.arrival)
        for policy, scheduler in (("srtf", Srtf()), ("sjf", ListScheduler(sjf)), ("fcfs", ListScheduler(fcfs)))
    }
    assert mean["srtf"] <= mean["sjf"] + 1e-9
    assert mean["srtf"] < mean["fcfs"]


def test_priority_waits_for_the_running_task_unless_preemptive():
    cluster, tasks = one_server([(0, 10), (1, 2), (2, 3)], priority=np.array([0.0, 1.0, 2.0]))
    assert run(Priority(), cluster, tasks).start.tolist() == [0, 13, 10]
    record = run(Priority(preemptive=True), cluster, tasks)
    assert record.finish.tolist() == [15, 6, 5]  # 1 runs from 1 to 2 and from 5 to 6


def test_priority_equals_do_not_stop_each_other():
    cluster, tasks = one_server([(0, 10), (1, 2)], priority=np.array([1.0, 1.0]))
    assert run(Priority(preemptive=True), cluster, tasks).preemptions is None


def test_priority_aging_saves_the_old():
    """The old task has priority 0, newer ones 1 each second; with 0.5/s it passes those that came 2 s later."""
    rows = [(0, 1), (0, 1), *((i, 1) for i in range(1, 9))]
    priority = np.array([1.0, 0.0, *[1.0] * 8])
    cluster, tasks = one_server(rows, priority=priority)
    assert run(Priority(), cluster, tasks).start[1] == 9
    assert run(Priority(aging=0.4), cluster, tasks).start[1] == 3  # first newer task: arrival > 1 / 0.4 = 2.5


def test_priority_does_not_stop_what_is_not_preemptible():
    shapes = [Shape([cpu_mode()], preemptible=False), Shape([cpu_mode()])]
    tasks = workload([(0, 0, 10), (1, 1, 1)], shapes, priority=np.array([0.0, 5.0]))
    assert run(Priority(preemptive=True), Cluster([node(cpus=1)]), tasks).start.tolist() == [0, 10]


def test_edf_takes_the_nearest_deadline_and_those_without_last():
    cluster, tasks = one_server([(0, 5), (1, 1), (1, 1), (1, 1)], deadline=np.array([np.nan, np.nan, 30, 20]))
    assert np.argsort(run(Edf(), cluster, tasks).start).tolist() == [0, 3, 2, 1]


def test_preemptive_edf_meets_deadlines_that_the_other_misses():
    cluster, tasks = one_server([(0, 5), (1, 1)], deadline=np.array([10.0, 3.0]))
    assert run(Edf(), cluster, tasks).finish.tolist() == [5, 6]
    assert run(Edf(preemptive=True), cluster, tasks).finish.tolist() == [6, 2]


def test_edf_can_drop_what_has_expired():
    cluster, tasks = one_server([(0, 5), (1, 1), (1, 1)], deadline=np.array([10.0, 3.0, 8.0]))
    record = run(Edf(drop_expired=True), cluster, tasks)
    assert record.status.tolist() == [COMPLETED, EXPIRED, COMPLETED]
    assert record.finish.tolist() == [5, 5, 6]
    assert "deadline" in record.reasons[1]


def test_round_robin_takes_turns_of_a_quantum():
    """A and B of 3 s each: A B A B A B, a second a turn."""
    record = run(RoundRobin(quantum=1.0), *one_server([(0, 3), (0, 3)]))
    assert record.finish.tolist() == [5, 6]
    assert record.preemptions.tolist() == [2, 2]


def test_round_robin_lets_a_lone_task_run():
    record = run(RoundRobin(quantum=1.0), *one_server([(0, 5), (7.5, 2), (8, 1)]))
    # The second one's turn ends at 8.5, when somebody waits.
    assert record.finish.tolist() == [5, 10.5, 9.5]


def test_round_robin_does_not_stop_transfers_again_and_again():
    """An upload of 3 s does not fit into a turn of 1 s; both tasks end all the same."""
    gpu = DeviceType("u", link=Link(upload=GB))
    tasks = workload([(0, 0, 2), (0, 0, 2)], [Shape([gpu_mode(gpu)])], bytes_in=np.array([3 * GB, 3 * GB]))
    record = run(RoundRobin(quantum=1.0), Cluster([node(accelerators=((gpu, 1),))]), tasks)
    assert record.finish.max() <= 20


def test_round_robin_refuses_a_quantum_of_nothing():
    with pytest.raises(ValueError, match="quantum"):
        RoundRobin(quantum=0.0)


def test_processor_sharing_gives_equal_shares():
    """Three tasks at once on one GPU: 1, 2 and 3 s of work end at 3, 5 and 6 s."""
    gpu = DeviceType("g", streams=10, sharing=Sharing("timeslice"))
    tasks = workload([(0, 0, 1), (0, 0, 2), (0, 0, 3)], [Shape([gpu_mode(gpu)])])
    record = run(ProcessorSharing(), Cluster([node(accelerators=((gpu, 1),))]), tasks)
    assert record.finish.tolist() == pytest.approx([3, 5, 6])
    assert record.start.tolist() == [0, 0, 0]


def test_processor_sharing_joins_the_least_loaded_device():
    gpu = DeviceType("g", streams=10, sharing=Sharing("timeslice"))
    tasks = workload([(0, 0, 4)] * 4, [Shape([gpu_mode(gpu)])])
    record = run(ProcessorSharing(), Cluster([node(accelerators=((gpu, 1),), count=4)]), tasks)
    assert sorted(devices(record)) == ["n0/g0", "n1/g0", "n2/g0", "n3/g0"]


# Placements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "expected"), [(first_fit, "n0/g1"), (BestFit(), "n2/g0"), (worst_fit, "n1/g0")])
def test_fits_choose_the_node_they_claim(rule, expected):
    """One task occupies a GPU of n0: 2, 3 and 1 GPUs are free."""
    tasks = workload([(0, 0, 9), (1, 0, 9)], [Shape([gpu_mode(GPU)])])
    cluster = Cluster([node(accelerators=((GPU, count),)) for count in (3, 3, 1)])

    def scripted(task, view):
        return rule(task, view) if task.index else first_fit(task, view)

    assert devices(run(ListScheduler(fcfs, scripted), cluster, tasks))[1] == expected


@pytest.mark.parametrize(("rule", "expected"), [(BestFit(), "n1/cpu"), (worst_fit, "n0/cpu")])
def test_fits_of_cpu_modes_look_at_cores(rule, expected):
    tasks = workload([(0, 0, 9)], [Shape([cpu_mode()])])
    cluster = Cluster([node(cpus=count) for count in (8, 2, 4)])
    assert devices(run(ListScheduler(fcfs, rule), cluster, tasks)) == [expected]


def test_worst_fit_takes_the_node_with_the_most_room():
    shapes = [Shape([gpu_mode(GPU, size)]) for size in (1, 2)]
    tasks = workload([(0, 0, 9), (0, 0, 9), (0, 1, 9), (0, 0, 9)], shapes)
    cluster = Cluster([node(accelerators=((GPU, 4),), count=2)])
    names = devices(run(ListScheduler(fcfs, worst_fit), cluster, tasks))
    assert [name[:2] for name in names] == ["n0", "n1", "n0", "n1"]


def test_best_fit_keeps_the_large_hole_for_the_gang():
    """3 and 2 GPUs are free: best fit puts the single on the node of 2 and the gang of 3 still fits."""
    shapes = [Shape([gpu_mode(GPU, size)]) for size in (1, 2, 3)]
    tasks = workload([(0, 0, 9), (0, 1, 9), (1, 0, 9), (2, 2, 9)], shapes)
    cluster = Cluster([node(accelerators=((GPU, 4),)), node(accelerators=((GPU, 2),)), node(accelerators=((GPU, 2),))])
    spread = run(ListScheduler(fcfs, worst_fit), cluster, tasks)
    packed = run(ListScheduler(fcfs, BestFit()), cluster, tasks)
    assert packed.start[3] == 2
    assert spread.start[3] > 2


@pytest.mark.parametrize(("rule", "expected"), [(BestFit(), "n0/g0"), (worst_fit, "n1/g1")])
def test_fractions_are_scored_by_gpu(rule, expected):
    """n0/g0 is three quarters full, n0/g1 and n1/g0 half, n1/g1 a quarter."""
    shapes = [Shape([gpu_mode(GPU, share)]) for share in (0.75, 0.5, 0.25, 0.125)]
    tasks = workload([(0, 0, 9), (0, 1, 9), (0, 1, 9), (0, 2, 9), (1, 3, 1)], shapes)
    cluster = Cluster([node(accelerators=((GPU, 2),), count=2)])
    gpus = [device for device in cluster.devices if device.type is GPU]

    def scripted(task, view):
        if task.index < 4:
            return next(o for o in view.options(task, task.modes[0]) if o.devices[0] is gpus[task.index])
        return rule(task, view)

    assert devices(run(ListScheduler(fcfs, scripted), cluster, tasks))[4] == expected


def cpu_and_gpu(rows, rule, discipline="block"):
    """One core and one GPU; tasks (arrival, time on the core, time on the GPU)."""
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    tasks = workload([(arrival, 0, cpu, gpu) for arrival, cpu, gpu in rows], [shape])
    return run(ListScheduler(fcfs, rule, discipline), Cluster([node(cpus=1, accelerators=((GPU, 1),))]), tasks)


def test_fastest_device_waits_for_it():
    rows = [(0, 20, 4), (0, 20, 4), (0, 2, 4)]
    assert cpu_and_gpu(rows, first_fit).finish.tolist() == [4, 20, 8]
    record = cpu_and_gpu(rows, fastest_device)
    assert record.finish.tolist() == [4, 8, 6]
    assert devices(record) == ["n0/g0", "n0/g0", "n0/cpu"]


def test_a_slow_reserve_starts_as_an_arrival_makes_the_queue_long_enough():
    """From two waiting tasks on the core is used, at the arrival that makes them two, whatever the discipline."""
    rows = [(0, 20, 4), (1, 20, 4), (2, 20, 4)]
    for discipline in ("block", "skip", "keep"):
        record = cpu_and_gpu(rows, SlowReserve(2), discipline)
        assert (record.start.tolist(), devices(record)) == ([0, 2, 4], ["n0/g0", "n0/cpu", "n0/g0"])
    assert cpu_and_gpu(rows, SlowReserve(1)).start.tolist() == [0, 1, 4]
    assert cpu_and_gpu(rows, SlowReserve(3)).start.tolist() == [0, 4, 8]
    with pytest.raises(ValueError, match="threshold must be at least 1"):
        SlowReserve(0)


def test_earliest_finish_waits_only_where_that_is_sooner():
    """The second task would end at 8 on the busy GPU: sooner than 20 on the core, later than 7."""
    assert devices(cpu_and_gpu([(0, 20, 4), (0, 20, 4)], EarliestFinish())) == ["n0/g0", "n0/g0"]
    assert devices(cpu_and_gpu([(0, 20, 4), (0, 7, 4)], EarliestFinish())) == ["n0/g0", "n0/cpu"]
    assert devices(cpu_and_gpu([(0, 20, 4), (0, 20, 4)], EarliestFinish(patient=False))) == ["n0/g0", "n0/cpu"]


def test_earliest_finish_counts_transfers():
    """The GPU computes in 1 s and the core in 3 s, but the input needs 4 s to the GPU."""
    gpu = DeviceType("g", link=Link(upload=GB))
    shape = Shape([cpu_mode(), gpu_mode(gpu)])
    tasks = workload([(0, 0, 3, 1), (0, 0, 3, 1)], [shape], bytes_in=np.array([4 * GB, 0]))
    record = run(ListScheduler(fcfs, EarliestFinish()), Cluster([node(cpus=1, accelerators=((gpu, 1),))]), tasks)
    assert devices(record) == ["n0/cpu", "n0/g0"]
    assert devices(cpu_and_gpu([(0, 3, 1)], first_fit)) == ["n0/g0"]


def test_earliest_finish_goes_where_the_data_are():
    """The second task reads what the first one left on n0/g0."""
    gpu = DeviceType("g", memory=8 * GB, link=Link(upload=GB, download=GB))
    tasks = workload(
        [(0, 0, 1), (5, 0, 1)], [Shape([gpu_mode(gpu)])],
        items=[Item("weights", 2 * GB, home=0)], reads=[(0,), (0,)], writes=[(), ()],
    )  # fmt: skip
    network = Link(upload=GB, download=GB)
    cluster = Cluster([node(accelerators=((gpu, 1),), network=network, count=2)])
    record = run(ListScheduler(fcfs, EarliestFinish()), cluster, tasks)
    assert devices(record) == ["n0/g0", "n0/g0"]
    assert record.finish.tolist() == pytest.approx([3, 6])


# Replay ---------------------------------------------------------------------------------------------------------


def paper_plan():
    """Two GPUs and a core; what a planner might say."""
    shape = Shape([cpu_mode(), gpu_mode(GPU), gpu_mode(GPU, 2)])
    rows = [(0, 0, 9, 3, 2), (0, 0, 9, 3, 2), (0, 0, 4, 3, 2), (0, 0, 9, 3, 2)]
    tasks = workload(rows, [shape], id=np.array(["a", "b", "c", "d"], dtype=object), predecessors=[(), (), (0,), ()])
    cluster = Cluster([node(cpus=2, accelerators=((GPU, 2),))])
    steps = [Step(3, 1, ("n0/g0",)), Step(0, 1, ("n0/g1",)), Step(1, 2, ("n0/g0", "n0/g1")), Step(2, 0, ("n0/cpu1",))]
    return cluster, tasks, Plan(steps)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_replay_does_what_the_plan_says(tmp_path, suffix):
    cluster, tasks, plan = paper_plan()
    path = tmp_path / f"plan.{suffix}"
    write_plan(plan, tasks, path)
    assert read_plan(path, tasks, cluster).steps == plan.steps
    record = run(Replay(path), cluster, tasks)
    assert devices(record) == ["n0/g1", "n0/g0+n0/g1", "n0/cpu", "n0/g0"]
    assert record.places[record.place[2]] == ((0,), (1,))  # the core that the plan names
    assert record.start.tolist() == [0, 3, 3, 0]


def test_replay_keeps_the_order_on_a_device_although_another_task_could_start():
    cluster, tasks = one_server([(5, 1), (6, 1)])
    plan = Plan([Step(1, 0, ("n0/cpu0",)), Step(0, 0, ("n0/cpu0",))])
    assert read_back(plan, cluster, tasks).start.tolist() == [7, 6]


def read_back(plan, cluster, tasks):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.csv"
        write_plan(plan, tasks, path)
        return run(Replay(path), cluster, tasks)


def test_replay_refuses_a_cycle_and_names_it():
    """c comes before its predecessor a on the same device."""
    cluster, tasks, plan = paper_plan()
    steps = [Step(2, 1, ("n0/g1",)), Step(0, 1, ("n0/g1",)), *plan.steps[2:3], plan.steps[0]]
    with pytest.raises(ScenarioError, match="contradict the predecessors: (a → c → a|c → a → c)"):
        read_back(Plan(steps), cluster, tasks)


def test_replay_lists_every_problem(tmp_path):
    cluster, tasks, _ = paper_plan()
    path = tmp_path / "plan.csv"
    path.write_text("task,mode,device,order\nz,1 g,n0/g0,0\na,warp drive,n0/g0,1\nb,1 g,n0/g0,soon\n")
    with pytest.raises(ScenarioError) as caught:
        read_plan(path, tasks, cluster)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]
    assert 'there is no task "z"' in str(caught.value)
    assert 'task a has no mode "warp drive"; its modes are 1 cores, 1 g, 2 g' in str(caught.value)
    path.write_text("task,mode,device,order\na,1 g,n7/g0,0\nb,2 g,n0/g0,1\nc,1 cores,n0/g0,2\n")
    with pytest.raises(ScenarioError) as caught:
        read_plan(path, tasks, cluster)
    assert len(caught.value.problems) == 4  # no such device; two devices needed; wrong type; d is missing


def test_replay_needs_its_columns(tmp_path):
    cluster, tasks, _ = paper_plan()
    path = tmp_path / "plan.csv"
    path.write_text("task,device\na,n0/g0\n")
    with pytest.raises(ScenarioError, match="missing: mode, order"):
        read_plan(path, tasks, cluster)
