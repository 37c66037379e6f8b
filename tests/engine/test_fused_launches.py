"""Several kernels launched as one: by hand, against the row of kernels, in saved plans, after stops and failures."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from machines import simulation
from test_plan_transfers import with_engine
from tiers import some

import hetsim as hs
from hetsim.cli.program import hetsim
from hetsim.errors import PolicyError, ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.faults import FaultEvent
from hetsim.model.fusion import fused_mode, fused_seconds, fusible, fusion_of, users_of_items
from hetsim.model.mode import Shape
from hetsim.model.plan import Placement, Plan, Step
from hetsim.model.plan_table import write_plan
from hetsim.model.record import FAILED, LAUNCH_COMPLETED, LAUNCH_LOST
from hetsim.model.tasks import Item, KernelWork
from hetsim.policy import PlanProblem, Scheduler, Start, Stop, Wait
from hetsim.policy.planned import Following
from hetsim.testing.audit import audit
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.parts import as_one, chains
from hetsim_policies.static.constraint_injection import ConstraintInjection
from hetsim_policies.static.recorded import AsPlanned, Replay, read_plan

NET = """id,class,flops,bytes,predecessors,reads,writes
conv,conv,4e9,300000000,,x;w,a
norm,norm,1e8,200000000,conv,a,b
act,act,5e7,200000000,norm,b,c
"""
"""1 TFLOP/s and 100 GB/s: 4 ms and 3 ms, 0.1 and 2 ms, 0.05 and 2 ms, each with 1 ms to launch."""


def net(tmp_path, launches=("f", "f", "f"), table=NET, **more):
    """A convolution, a normalization and an activation in a row, launched as the column `launch` says."""
    (tmp_path / "net.csv").write_text(table, encoding="utf-8")
    rows = "".join(f"{name},0,n0/g0,{order},{one}\n" for order, (name, one) in
                   enumerate(zip(("conv", "norm", "act"), launches, strict=True)))  # fmt: skip
    (tmp_path / "plan.csv").write_text("task,mode,device,order,launch\n" + rows, encoding="utf-8")
    peak = {"flops": "1 TFLOP/s", "bandwidth": "100 GB/s", "launch_overhead": "1 ms"}
    gpus = {"type": "acc", "count": 1, "memory": "1 GB", "peak": peak}
    return {
        "name": "net",
        "cluster": {"nodes": [{"cpus": 1, "gpus": gpus, "pcie": {"upload": "1 GB/s", "download": "1 GB/s"}}]},
        "data": [{"name": name, "size": "100 MB"} for name in "xwabc"],
        "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "net.csv")}}],
        "policy": {"name": "replay", "plan": str(tmp_path / "plan.csv")},
        **more,
    }


def measured(result):
    names = ("makespan", "launch_count", "bytes_moved", "memory_traffic", "peak_memory")
    return [result.metric(name) for name in names]


def test_a_network_by_hand(tmp_path):
    """Apart: 0.2 s of upload, (1 + 4) + (1 + 2) + (1 + 2) ms, 0.1 s of download; x, w, b and c lie there at once.
    As one: 1 ms, and the greater of 4 + 0.1 + 0.05 ms and (x + w + c) / 100 GB/s = 3 ms; only x, w and c lie there."""
    plain = hs.run(net(tmp_path, ("", "", "")), check=True)
    assert measured(plain) == pytest.approx([0.311, 3, 300e6, 700e6, 400e6], rel=1e-12)
    fused = hs.run(net(tmp_path), check=True)
    assert measured(fused) == pytest.approx([0.30515, 1, 300e6, 300e6, 300e6], rel=1e-12)
    assert audit(plain.record) == audit(fused.record) == []


def test_part_of_a_network_by_hand(tmp_path):
    """conv + norm: a stays inside, b is written: 1 + max(4.1, 3) ms; then 3 ms."""
    result = hs.run(net(tmp_path, ("f", "f", "")), check=True)
    assert measured(result) == pytest.approx([0.2 + 0.0051 + 0.003 + 0.1, 2, 300e6, 500e6, 400e6], rel=1e-12)
    assert result.launches["fused"].tolist() == ["conv+norm", ""]
    assert result.launches["members"].tolist() == [2, 1]


def test_a_result_read_outside_is_written(tmp_path):
    table = NET + "probe,probe,1e9,100000000,conv,a,\n"
    given = net(tmp_path, table=table)
    with open(tmp_path / "plan.csv", "a", encoding="utf-8") as plan:
        plan.write("probe,0,n0/g0,3,\n")
    result = hs.run(given, check=True)
    # conv writes a: (x + w + a + c) / 100 GB/s = 4 ms, still below 4.15 ms; probe takes 1 + 1 ms.  Uploads follow one
    # another, then the launch has all to itself.
    assert measured(result) == pytest.approx([0.2 + 0.00515 + 0.1 + 0.002, 2, 300e6, 500e6, 400e6], rel=1e-12)


@pytest.mark.slow
def test_its_members_share_times_and_tables_say_so(tmp_path):
    result = hs.run(net(tmp_path), check=True)
    tasks = result.tasks
    assert tasks["ready"].tolist() == [0, 0, 0] and tasks["start"].tolist() == [0, 0, 0]
    assert len(set(tasks["finish"])) == 1
    assert result.launches["fused"].tolist() == ["conv+norm+act"]
    assert np.isnan(result.metric("makespan_bound")) and np.isnan(result.metric("makespan_ratio"))
    result.save(tmp_path / "out")
    again = hs.Result.load(tmp_path / "out")
    assert measured(again) == measured(result) and again.record.fused == result.record.fused


def test_explain_and_the_picture_show_it(tmp_path):
    given = net(tmp_path)
    given["cluster"]["nodes"][0]["pcie"] = {"upload": "1 TB/s", "download": "1 TB/s"}  # most of the time it computes
    result = hs.run(given)
    result.save(tmp_path / "out")
    said = CliRunner().invoke(hetsim, ["explain", str(tmp_path / "out"), "norm"], prog_name="hetsim")
    assert "it was launched as one kernel with conv, act" in said.output
    (axes,) = hs.plots.gantt(result).figure().axes
    assert "conv+norm+act" in [text.get_text() for text in axes.texts]


# The rule -----------------------------------------------------------------------------------------------------------


def random_net(rng, size, known=True):
    """Kernels in a random graph on one accelerator; every edge is an item, and some inputs are shared."""
    gpu = DeviceType("gpu", kind="gpu", memory=10_000, link=Link(upload=50.0, download=70.0, latency=0.01))
    before = [tuple(sorted({int(rng.integers(task)) for _ in range(rng.integers(3))})) if task else () for task in
              range(size)]  # fmt: skip
    items = [Item(f"r{task}", int(rng.integers(1, 9))) for task in range(size)]
    items += [Item(f"i{number}", int(rng.integers(1, 9)), home=0) for number in range(3)]
    reads = [(*one, *(size + int(k) for k in np.flatnonzero(rng.random(3) < 0.3))) for one in before]
    overhead, operations = rng.uniform(0, 1, (size, 1)), rng.uniform(0, 3, (size, 1))
    moved = np.array([[sum(items[item].size for item in (*row, task))] for task, row in enumerate(reads)], dtype=float)
    traffic = moved * rng.uniform(0, 0.3)
    work = KernelWork(overhead, operations, traffic, moved) if known else None
    times = (overhead + np.maximum(operations, traffic)).tolist()
    mode = gpu_mode(gpu, fixed=0.0 if known else 0.25)
    tasks = workload([(0, 0, *time) for time in times], [Shape([mode])], items=items, reads=reads,
                     writes=[(task,) for task in range(size)], predecessors=before, work=work)  # fmt: skip
    return PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 1),))]))


def cuts(rng, size):
    """The launch of each of so many tasks in a row: stretches of random length."""
    numbers = np.cumsum(rng.random(size) < 0.5).tolist()
    return [number if numbers.count(number) > 1 else None for number in numbers]


@pytest.mark.parametrize("known", [True, False])
def test_a_launch_as_one_is_never_slower_than_the_row_of_its_kernels(known):
    rng = np.random.default_rng(17)
    shorter = 0
    for _ in range(some(25, 8)):
        given = random_net(rng, 8, known)
        launches = cuts(rng, 8)
        row = Plan([Step(task, 0, ("n0/g0",)) for task in range(8)])
        joined = Plan([Step(task, 0, ("n0/g0",), launch) for task, launch in enumerate(launches)])
        plain, fused = (play(given, plan) for plan in (row, joined))
        assert audit(fused) == [] and (fused.status == 1).all()
        assert fused.finish.max() <= plain.finish.max() + 1e-9
        assert fused.stats["bytes_moved"] <= plain.stats["bytes_moved"] + 1e-9
        assert fused.stats["peak_memory"] <= sum(item.size for item in given.tasks.items)
        shorter += fused.finish.max() < plain.finish.max() - 1e-9
    assert shorter > some(15, 4)


def play(given, plan, **more):
    return simulation(specs_of(given), given.tasks, Following(plan), **more).run()


def specs_of(given):
    return [node.spec for node in given.cluster.nodes]


def test_what_is_read_outside_is_written_and_what_is_not_stays_inside():
    """The rule of `fusion_of` against a count of its own: who touches what, in which order."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        tasks = random_net(rng, 7).tasks
        size = int(rng.integers(2, 7))
        rows = sorted(rng.choice(7, size, replace=False).tolist())
        found = fusion_of(tasks, rows, *users_of_items(tasks))
        for item in range(len(tasks.items)):
            outside = [r for r in range(7) if r not in rows and item in tasks.reads[r]]
            within = [r for r in rows if item in tasks.reads[r]]
            written = item in rows  # task k writes item k
            assert (item in found.inside) == (written and not outside and bool(within))
            assert (item in found.outputs) == (written and (bool(outside) or not within))
            assert (item in found.inputs) == (not written and bool(within))


def test_an_item_updated_in_place_is_an_input_that_is_not_written_once_nobody_needs_it():
    mode = gpu_mode(DeviceType("gpu", kind="gpu"))
    tasks = workload([(0, 0, 1)] * 2, [Shape([mode])], items=[Item("x", 5)], reads=[(0,), (0,)], writes=[(0,), ()],
                     predecessors=[(), (0,)])  # fmt: skip
    found = fusion_of(tasks, (0, 1), *users_of_items(tasks))
    assert (found.inputs, found.outputs, found.inside) == ((0,), (), ())
    back = workload([(0, 0, 1)] * 2, [Shape([mode])], items=[Item("x", 5)], reads=[(0,), (0,)], writes=[(0,), (0,)],
                    predecessors=[(), (0,)])  # fmt: skip
    assert fusion_of(back, (0, 1), *users_of_items(back)).outputs == (0,)


def test_without_work_times_add_up_but_for_what_a_mode_computes_once():
    mode = gpu_mode(DeviceType("gpu", kind="gpu"), fixed=0.5)
    tasks = workload([(0, 0, 2), (0, 0, 3)], [Shape([mode])])
    fusion = fusion_of(tasks, (0, 1), *users_of_items(tasks))
    assert fused_seconds(tasks, fusion, (0, 0), (mode, mode), (2.0, 3.0), (1.0, 1.0)) == 5.5


def test_times_that_differ_from_the_work_scale_it():
    """Twice the time of its roofline: overhead, operations and traffic twice as long."""
    mode = gpu_mode(DeviceType("gpu", kind="gpu"))
    work = KernelWork(*(np.array([[one], [one]]) for one in (0.5, 1.5, 1.0, 10.0)))
    tasks = workload([(0, 0, 4), (0, 0, 2)], [Shape([mode])], work=work)
    fusion = fusion_of(tasks, (0, 1), *users_of_items(tasks))
    assert fused_seconds(tasks, fusion, (0, 0), (mode, mode), (4.0, 2.0), (1.0, 1.0)) == 1.0 + 3.0 + 1.5


def test_the_memory_of_the_members_is_reused_along_the_chain():
    gpu = DeviceType("gpu", kind="gpu", memory=10)
    shapes = [Shape([gpu_mode(gpu, gpu_memory=size)]) for size in (7, 4)]
    tasks = workload([(0, 0, 1), (0, 1, 1)], shapes, predecessors=[(), (0,)])
    given = PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 1),))]))
    record = play(given, Plan([Step(0, 0, ("n0/g0",), 0), Step(1, 0, ("n0/g0",), 0)]))
    assert record.stats["peak_memory"] == 7 and record.finish.tolist() == [2, 2]


def test_kernels_on_a_core_are_launched_as_one():
    tasks = workload([(0, 0, 2), (0, 0, 3)], [Shape([cpu_mode(fixed=0.5)])], predecessors=[(), (0,)])
    given = PlanProblem(tasks, Cluster([node(cpus=2)]))
    record = play(given, Plan([Step(0, 0, ("n0/cpu1",), 4), Step(1, 0, ("n0/cpu1",), 4)]))
    assert record.finish.tolist() == [5.5, 5.5]


# When it starts -----------------------------------------------------------------------------------------------------


def three(arrivals=(0, 0, 0), before=((), (0,), (1,)), gpus=1, **columns):
    gpu = DeviceType("gpu", kind="gpu")
    tasks = workload([(at, 0, 2) for at in arrivals], [Shape([gpu_mode(gpu, fixed=1.0)])], predecessors=list(before),
                     **columns)  # fmt: skip
    return PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, gpus),))]))


def together(*numbers, device="n0/g0"):
    return Plan([Step(task, 0, (device,), number) for task, number in enumerate(numbers)])


def test_a_launch_waits_for_the_last_of_its_tasks_to_arrive():
    record = play(three((0, 4, 7)), together(0, 0, 0))
    assert record.start.tolist() == [7] * 3 and record.finish.tolist() == [14] * 3
    assert record.ready.tolist() == [0, 4, 7]


def test_a_launch_waits_for_what_its_later_members_need():
    """0 and 1 are launched as one, 1 also waits for 2 on the other device."""
    given = three(before=((), (0, 2), ()), gpus=2)
    plan = Plan([Step(2, 0, ("n0/g1",)), Step(0, 0, ("n0/g0",), 0), Step(1, 0, ("n0/g0",), 0)])
    record = play(given, plan)
    assert record.start.tolist() == [3, 3, 0] and record.ready.tolist() == [0, 3, 0]


def test_what_never_runs_is_left_out_of_its_launch():
    given = three(before=((), (), ()), expires=np.array([np.inf, np.inf, 2.0]))
    plan = Plan([Step(0, 0, ("n0/g0",)), Step(1, 0, ("n0/g0",), 0), Step(2, 0, ("n0/g0",), 0)])
    record = play(given, plan)
    assert record.finish.tolist() == [3, 6, 2] and record.status.tolist() == [1, 1, 3]


class Breaks(Following):
    """Follows a plan, and stops what runs at a time."""

    def __init__(self, plan, at, keep):
        super().__init__(plan)
        self.at, self.keep, self.over = at, keep, False

    def schedule(self, view):
        if view.now >= self.at and not self.over:
            self.over = True
            yield Stop(view.running()[0], self.keep)
        yield from super().schedule(view)
        if not self.over:
            yield Wait(self.at)


@pytest.mark.parametrize("keep", [True, False])
def test_a_stopped_launch_begins_again_from_nothing(keep):
    given = three()
    record = simulation(specs_of(given), given.tasks, Breaks(together(0, 0, 0), 3.0, keep)).run()
    assert record.finish.tolist() == [10] * 3 and record.preemptions.tolist() == [1] * 3
    assert record.launches["outcome"].tolist() == [LAUNCH_LOST, LAUNCH_COMPLETED]
    assert record.launches["busy"].tolist() == [3, 7] and record.launches["lost"].tolist() == [3, 0]
    assert audit(record) == []


def test_a_launch_on_a_failed_device_begins_again_from_nothing():
    given = three()
    record = play(given, together(0, 0, 0), faults=[FaultEvent(3.0, 1, "down"), FaultEvent(5.0, 1, "up")])
    assert record.finish.tolist() == [12] * 3 and record.launches["lost"].tolist() == [3, 0]
    assert audit(record) == []


def test_a_launch_over_its_time_limit_fails_with_all_its_tasks():
    given = three(time_limit=np.array([np.inf, 4.0, np.inf]))
    record = play(given, together(0, 0, 0), grace=0.0)
    assert record.status.tolist() == [FAILED] * 3 and record.finish.tolist() == [4] * 3


class Illegal(Scheduler):
    def __init__(self, parts, rows):
        self.parts, self.rows = parts, rows

    def begin(self, view):
        self.tasks = []

    def ready(self, task):
        self.tasks.append(task)

    def schedule(self, view):
        mode = self.tasks[0].shape.modes[0]
        yield Start([self.tasks[row] for row in self.rows], Placement(fused_mode([mode] * self.parts),
                                                                      (view.cluster.nodes[0].accelerators[0],)))


@pytest.mark.parametrize(("parts", "rows"), [(3, (0, 1)), (2, (0, 0))])
def test_an_illegal_launch_of_several_is_named(parts, rows):
    given = three(before=((), (), ()))
    with pytest.raises(PolicyError, match="started task 0"):
        simulation(specs_of(given), given.tasks, Illegal(parts, rows)).run()


# Saved plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_plan_replays_to_the_last_digit(tmp_path):
    rng = np.random.default_rng(8)
    for number in range(6):
        given = random_net(rng, 8)
        plan = Plan([Step(task, 0, ("n0/g0",), launch) for task, launch in enumerate(cuts(rng, 8))])
        path = tmp_path / f"plan{number}.{'csv' if number % 2 else 'parquet'}"
        write_plan(plan, given.tasks, path)
        again = read_plan(path, given.tasks, given.cluster)
        assert [[plan.steps[n].task for n in one] for one in plan.launches()] == [
            [again.steps[n].task for n in one] for one in again.launches()]  # fmt: skip
        first = play(given, plan)
        for scheduler in (Replay(path), AsPlanned(Replay(path))):
            second = simulation(specs_of(given), given.tasks, scheduler).run()
            assert second.finish.tolist() == first.finish.tolist() and second.start.tolist() == first.start.tolist()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("0,0,n0/g0,0,f", "1,0,n0/g0,1,", "2,0,n0/g0,2,f"), "tasks 0, 2 are fused into one launch, but other "
                                                             "steps are between"),
        (("0,0,n0/g0,0,f", "1,0,n0/g1,1,f", "2,0,n0/g0,2,"), "but on different devices: n0/g0, n0/g1"),
        (("0,0,n0/g0,0,f", "1,0,n0/g1,1,", "2,0,n0/g0,2,f"), "contradict the predecessors: 0\\+2 → 1 → 0\\+2"),
        (("1,0,n0/g0,0,f", "0,0,n0/g0,1,f", "2,0,n0/g0,2,"), "tasks 1, 0 are fused into one launch, but 1 is "
                                                             "before its"),
        (("0,0,n0/g0,0,f", "1,0,n0/g0,1,f", "7,0,n0/g0,2,f"), 'there is no task "7"'),
        (("0,0,n0/g0,0,f", "0,0,n0/g0,1,f", "2,0,n0/g0,2,"), "task 0 is planned twice"),
        (("0,0,n0/g0,0,f", "1,0,n0/g7,1,f", "2,0,n0/g0,2,"), "which the cluster lacks"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_when_the_plan_is_loaded(rows, said, tmp_path):
    given = three(before=((), (0,), (0, 1)), gpus=2)
    (tmp_path / "plan.csv").write_text("\n".join(["task,mode,device,order,launch", *rows]) + "\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=said):
        read_plan(tmp_path / "plan.csv", given.tasks, given.cluster)


def test_gangs_and_parts_of_a_gpu_are_not_launched_as_one():
    gpu = DeviceType("gpu", kind="gpu")
    other = DeviceType("other", kind="gpu")
    assert fusible([gpu_mode(gpu), gpu_mode(gpu)]) is None
    assert "does not run on exactly one core or one whole accelerator" in fusible([gpu_mode(gpu, 2)])
    assert "does not run on exactly one core or one whole accelerator" in fusible([gpu_mode(gpu), gpu_mode(gpu, 0.5)])
    assert "different types" in fusible([gpu_mode(gpu), gpu_mode(other)])


# Planning -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_constraint_injection_launches_chains_as_one_where_that_is_faster(tmp_path):
    given = net(tmp_path)
    result = hs.run(given | {"policy": "constraint_injection"}, check=True)
    assert result.launches["fused"].tolist() == ["conv+norm+act"]
    assert result.metric("planned_makespan") == result.metric("makespan") == pytest.approx(0.30515)
    assert "lower_bound" not in result.notes
    alone = hs.run(given | {"policy": {"name": "constraint_injection", "max_fused": 1}}, check=True)
    assert alone.metric("makespan") == pytest.approx(0.311) and "fused" not in alone.launches
    only = {"name": "constraint_injection", "patterns": [["norm", "act"], ["conv", "act"]]}
    assert hs.run(given | {"policy": only}).launches["fused"].tolist() == ["", "norm+act"]


@pytest.mark.slow
def test_equal_kernels_with_inputs_in_common_are_launched_as_one():
    """Six times two launch lines: what they read in common is read once a launch."""
    given = {
        "name": "equal",
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "v100"}, "pcie": {"upload": "12 GB/s"}}]},
        "data": [{"name": "x", "size": "20 MB"}],
        "workload": [{"name": "a", "arrivals": {"process": "all_at_once", "count": 6},
                      "work": {"flops": "1 MFLOP", "bytes": "21 MB"}, "reads": ["x"]}],
    }  # fmt: skip
    upload, launch, whole, rest = 20e6 / 12e9, 5e-6, 21e6 / 900e9, 1e6 / 900e9
    for most, launches in ((1, 6), (3, 2), (6, 1)):
        policy = {"name": "constraint_injection", "max_fused": most}
        result = hs.run(given, policy=policy, check=True)
        assert result.metric("launch_count") == launches
        assert result.metric("makespan") == pytest.approx(upload + launches * (launch + whole) + (6 - launches) * rest)


def test_patterns_of_unknown_classes_are_refused(tmp_path):
    policy = {"name": "constraint_injection", "patterns": [["conv", "nrom"]]}
    with pytest.raises(ScenarioError, match='no class "nrom"; did you mean "norm"'):
        hs.run(net(tmp_path), policy=policy)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("id,flops,bytes\na,-1,5\n", 'column flops: "-1" is negative'),
        ("id,bytes\na,5\n", "or flops"),
        ("id,gpu_time,bytes\na,5,5\n", 'column "bytes" needs the column "flops" next to it'),
        ("id,flops,efficiency\na,5,1.5\n", "must be a share above 0 and at most 1"),
        ("id,gpu_time,flops,bytes\na,5,,5\n", "must be empty for a task without flops"),
    ],
)
def test_bad_work_is_refused_with_its_place(table, said, tmp_path):
    with pytest.raises(ScenarioError, match=said):
        hs.run(net(tmp_path, table=table))


def test_work_on_devices_of_which_nothing_is_known_is_refused(tmp_path):
    given = net(tmp_path)
    del given["cluster"]["nodes"][0]["gpus"]["peak"]
    with pytest.raises(ScenarioError, match="the speed of cpu, acc is unknown; give them a peak under cluster"):
        hs.run(given)


def test_a_stated_peak_is_saved_with_a_run(tmp_path):
    result = hs.run(net(tmp_path))
    result.save(tmp_path / "out")
    peaks = [[one.peak for one in run.record.input.cluster.types.values()] for run in
             (result, hs.Result.load(tmp_path / "out"))]  # fmt: skip
    assert peaks[0] == peaks[1] and any(peaks[0])


@pytest.mark.slow
def test_the_timetable_of_a_plan_with_launches_as_one_is_that_of_the_run():
    rng = np.random.default_rng(2)
    joined = 0
    for _ in range(4):
        given = with_engine(random_net(rng, 9))
        plan = ConstraintInjection(candidates=4).plan(given)
        record = play(given, plan)
        joined += bool(plan.fused)
        tasks = [step.task for step in plan.steps]
        assert plan.makespan == record.finish.max()
        if plan.fused:
            assert plan.timetable.tolist() == np.column_stack([record.start[tasks], record.finish[tasks]]).tolist()
            assert plan.bound is None
    assert joined


def test_chains_are_of_kernels_with_one_user():
    tasks = workload([(0, 0, 1)] * 6, [Shape([cpu_mode()])], predecessors=[(), (0,), (1,), (1,), (2, 3), (4,)])
    assert chains(tasks, 9) == [(0, 1), (2, 4, 5)]
    assert chains(tasks, 2) == [(0, 1), (2, 4)]


def test_groups_that_cannot_be_joined_together_are_joined_one_by_one():
    """(0, 3) would go round over 1 on the same device; (1, 2) is possible."""
    work = KernelWork(*(np.ones((4, 1)) for _ in range(4)))
    tasks = workload([(0, 0, 2)] * 4, [Shape([cpu_mode()])], predecessors=[(), (0,), (), (1,)], work=work)
    plan = Plan([Step(task, 0, ("n0/cpu0",)) for task in range(4)])
    joined = as_one(plan, tasks, [(0, 3), (1, 2)])
    assert [[joined.steps[number].task for number in one] for one in joined.fused] == [[1, 2]]
