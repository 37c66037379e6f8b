"""MIG: slices with a share and a memory, layouts, profiles and positions, and the decision `Partition`."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from cases import Chaos
from machines import Job, Scripted, gpu_mode, simulate, simulation
from test_fork import end, look

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Sharing
from hetsim.model.slices import PROFILES, Slice, arrangements, full_layouts
from hetsim.policy import Partition, Scheduler, Start, Stop
from hetsim.testing import audit, check_policy
from hetsim.testing.audit import occupations
from hetsim.testing.generate import random_system
from hetsim.testing.systems import small_systems
from hetsim_policies.dynamic.backfilling import EasyBackfill

GB = 10**9


def mig(*layouts, memory=40 * GB, name="g", **more):
    return DeviceType(name, memory=memory, sharing=Sharing("mig", layouts=layouts, **more))


def node(kind, count=1):
    return NodeSpec(accelerators=((kind, count),))


def described(sharing, *entries, count=1, policy="fcfs", **gpu):
    gpus = {"type": "a100", "count": count, "sharing": {"kind": "mig", **sharing}, **gpu}
    work = [{"name": f"w{n}", "arrivals": {"process": "all_at_once", "count": 1}, **e} for n, e in enumerate(entries)]
    return {"name": "m", "cluster": {"nodes": {"cpus": 8, "gpus": gpus}}, "workload": work, "policy": policy}


def record_of(*arguments, **named):
    return Simulation(hs.load(described(*arguments, **named)).build(), check=True).run()


# Which layout an empty GPU takes ------------------------------------------------------------------------------


def test_quarters_are_cut_from_a_gpu_that_has_one_large_slice():
    """Two GPUs of three slices each: 30 tasks in 5 rounds of 300 s, after the 10 s of cutting."""
    small = {"arrivals": {"process": "all_at_once", "count": 30}, "gpus": 0.25, "gpu_time": "5 min"}
    sharing = {"layouts": [[1.0], [0.5, 0.25, 0.25]], "reconfigure": "10 s"}
    record = record_of(sharing, small, count=2)
    assert np.sort(record.finish) == pytest.approx(np.repeat(10 + 300 * np.arange(1, 6), 6))


def by_hand(kind, share, memory):
    """The rule in words: the layout with the smallest fitting slice, of those the one that leaves most."""
    ranked = []
    for number, layout in enumerate(kind.sharing.cuts):
        sizes = [(one.share, one.bytes_of(kind.memory)) for one in layout]
        fitting = sorted(size for size in sizes if size[0] >= share and size[1] >= memory)
        if fitting:
            ranked.append((fitting[0], fitting[0][0] - sum(size[0] for size in sizes), number != 0, number))
    return min(ranked)


@pytest.mark.parametrize("seed", range(12))
def test_an_empty_gpu_takes_the_layout_of_the_rule(seed):
    draw = np.random.default_rng(seed)
    layouts = []
    for _ in range(4):
        parts = draw.integers(1, 9, int(draw.integers(1, 5)))
        shares = parts / max(8, parts.sum())
        layouts.append(tuple(Slice(float(share), int(draw.integers(1, 11)) * GB) for share in shares))
    kind = mig((Slice(1.0, 40 * GB),), *layouts, reconfigure=3.0)
    mode = gpu_mode(kind, float(draw.choice([0.1, 0.25, 0.4])), gpu_memory=int(draw.integers(0, 8)) * GB)
    seen = []

    class Look(Scheduler):
        def schedule(self, view):
            for task in list(view.waiting()):
                yield Start(task, view.first(mode))
            seen.append((view.slices(view.cluster.devices[1]), view.slices(view.cluster.devices[1], idle=True)))

    record = simulate(node(kind), [Job([mode], [5.0])], Look())
    size, _, changed, number = by_hand(kind, mode.share / 1e6, mode.gpu_memory)
    layout, idle = seen[0]
    (taken,) = (Counter(layout) - Counter(idle)).elements()
    assert (taken.share, taken.bytes_of(kind.memory)) == size
    assert sum(one.share for one in layout) == pytest.approx(sum(one.share for one in kind.sharing.cuts[number]))
    assert record.finish[0] == pytest.approx(8.0 if changed else 5.0)


# Memory, half-slices and waits by hand ------------------------------------------------------------------------


def test_memory_is_cut_in_proportion():
    """Of 40 GB a half has 20: 15 GB fit twice, 25 GB only in the whole GPU, one after the other."""
    kind = mig((0.5, 0.5), (1.0,))
    small, large = (gpu_mode(kind, 0.25, gpu_memory=size * GB) for size in (15, 25))
    assert simulate(node(kind), [Job([small], [4.0])] * 2).finish == pytest.approx([4.0, 4.0])
    assert simulate(node(kind), [Job([large], [4.0])] * 2).finish == pytest.approx([4.0, 8.0])


def test_a_slice_has_the_memory_that_the_layout_says():
    """A quarter with 20 GB serves what asks for 15 GB; the half, with 10 GB, does not."""
    kind = mig((Slice(0.5, 10 * GB), Slice(0.25, 20 * GB), Slice(0.25, 10 * GB)))
    wide, plain = gpu_mode(kind, 0.25, gpu_memory=15 * GB), gpu_mode(kind, 0.5, gpu_memory=10 * GB)
    record = simulate(node(kind), [Job([wide], [4.0]), Job([plain], [1.0]), Job([wide], [4.0])])
    assert record.finish == pytest.approx([4.0, 1.0, 8.0])


def test_a_small_task_in_a_half_keeps_the_half():
    """Three tasks of a quarter on two halves: the third waits although half of the GPU's share is free."""
    kind = mig((0.5, 0.5))
    record = simulate(node(kind), [Job([gpu_mode(kind, 0.25)], [4.0]) for _ in range(3)])
    assert record.finish == pytest.approx([4.0, 4.0, 8.0])


def test_a_wait_for_a_slice_is_not_the_policys_choice():
    """Shares are free in half-used slices: the third task waits 4 s for want of a slice, not by choice."""
    found = hs.run(described({"layouts": [[0.5, 0.5]]}, *[{"gpus": 0.25, "gpu_time": "4 s"}] * 3)).explain(2)
    assert list(zip(found.cause, found.seconds, strict=True)) == [("fragmentation", pytest.approx(4.0))]


@pytest.mark.parametrize(("recut", "starts"), [("empty", [0.0, 0.0, 12.0]), ("idle", [0.0, 2.0, 2.0])])
def test_idle_slices_are_cut_next_to_busy_ones_where_the_type_says_so(recut, starts):
    """A half is busy until 10.  idle: the other half is cut into quarters, ready at 2; empty: it serves one quarter,
    and the other waits until the GPU is empty at 10 and cut at 12."""
    kind = mig((0.5, 0.5), (0.5, 0.25, 0.25), reconfigure=2.0, recut=recut)
    jobs = [Job([gpu_mode(kind, share)], [10.0]) for share in (0.5, 0.25, 0.25)]
    assert simulate(node(kind), jobs).finish - 10.0 == pytest.approx(starts)


def test_a_slice_that_is_kept_is_ready_at_once():
    """Cutting the idle half at 0 (5 s) delays its quarters, not the task that takes the other idle half at 1."""
    kind = mig((0.5, 0.25, 0.25), (0.5, 0.5), reconfigure=5.0, recut="idle")
    half, quarter = gpu_mode(kind, 0.5), gpu_mode(kind, 0.25)
    jobs = [Job([half], [1.0]), Job([half], [3.0]), Job([half], [1.0], arrival=1.5), Job([quarter], [1.0], arrival=6.5)]
    record = simulate(node(kind), jobs)
    assert record.finish == pytest.approx([1.0, 8.0, 2.5, 12.5])


def test_only_the_slice_whose_state_is_being_saved_waits():
    """A task stopped at 1 saves for 4 s: the task that takes its slice begins at 5, that of the other half at 1."""
    kind = mig((0.5, 0.5))
    half = gpu_mode(kind, 0.5)
    jobs = [Job([half], [9.0], stopping=Stopping(save=4.0)), Job([half], [2.0], arrival=1.0),
            Job([half], [2.0], arrival=1.0)]  # fmt: skip

    def stop(view):
        yield Stop(view.running()[0])

    class StopFirst(Scripted):
        def place_named(self, task, view):
            return None if task.index == 0 and view.now >= 1 and len(view.waiting()) > 1 else view.fit(task)

    record = simulate(node(kind), jobs, StopFirst([(1.0, stop)]))
    assert sorted(record.finish[1:]) == pytest.approx([3.0, 7.0])


def test_backfilling_knows_that_a_head_needs_all_slices():
    """EASY: the whole GPU is free for the head at 10; a half of 20 s would delay it, one of 9 s does not."""
    kind = mig((0.5, 0.5), (1.0,))
    half, whole = gpu_mode(kind, 0.5), gpu_mode(kind)
    jobs = [Job([half], [10.0]), Job([whole], [5.0]), Job([half], [20.0]), Job([half], [9.0])]
    record = simulate(node(kind), jobs, EasyBackfill())
    assert record.finish == pytest.approx([10.0, 15.0, 35.0, 9.0])


# NVIDIA's profiles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PROFILES)
def test_arrangements_are_all_sets_of_slices_that_do_not_overlap(family):
    """Counted by bit masks of the eight memory slices, profile by profile."""
    placed = [(((1 << size) - 1) << at) for _, size, starts in PROFILES[family].values() for at in starts]

    def count(at, taken):
        if at == len(placed):
            return 1
        return count(at + 1, taken) + (count(at + 1, taken | placed[at]) if not taken & placed[at] else 0)

    every = arrangements(family)
    assert len(every) == len(set(every)) == count(0, 0)
    assert all(sum(one.share for one in layout) <= 1 + 1e-9 for layout in every)
    assert max(sum(one.memory for one in layout) for layout in every) <= int(family[-2:]) * GB


def test_without_the_wide_profile_there_are_the_19_configurations_that_nvidia_lists():
    plain = [layout for layout in arrangements("A100-40") if all(one.profile != "1g.10gb" for one in layout)]
    longer = {layout[:at] + layout[at + 1 :] for layout in plain for at in range(len(layout))}
    assert sum(layout not in longer for layout in plain) == 19


def test_slices_by_name_and_by_size_share_a_gpu():
    """3g.20gb, and what needs 15 GB next to it: the other 3g (or 4g); what needs 8 GB then finds no 2g left."""
    record = record_of(
        {"profiles": "A100-40", "recut": "idle"},
        {"slice": "3g.20gb", "gpu_time": "10 s"},
        {"gpus": 0.1, "gpu_memory": "15 GB", "gpu_time": "20 s"},
        {"gpus": 0.1, "gpu_memory": "8 GB", "gpu_time": "5 s"},
    )  # fmt: skip
    assert record.finish == pytest.approx([10.0, 20.0, 15.0])


def test_a_slice_by_name_waits_for_its_position():
    """4g.20gb begins at 0 only: it waits for the 1g slices that a layout has put there."""
    sharing = {"profiles": "A100-40", "recut": "idle", "layouts": [
        {"slices": ["1g.5gb", "3g.20gb"], "positions": [0, 4]}, {"slices": ["4g.20gb", "3g.20gb"]}]}  # fmt: skip
    entries = [{"slice": "1g.5gb", "gpu_time": "7 s"}, {"slice": "4g.20gb", "gpu_time": "1 s"}]
    assert record_of(sharing, *entries).finish == pytest.approx([7.0, 8.0])


def test_a_batch_holds_as_many_requests_as_its_slice_has_memory_for():
    """Halves of 20 GB and 2 GB a request: at most 10 in a batch, not 20."""
    service = {"compute": {"per_item": "1 ms", "fixed": "1 ms"}, "gpus": 0.5, "gpu_memory_per_item": "2 GB"}
    entry = {"service": service, "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 3}
    run = hs.load(described({"layouts": [[0.5, 0.5]]}, entry, memory="40 GB")).build()
    (mode,) = run.services[0].shape.modes
    assert mode.batch_limit == 10
    entry["service"]["model"] = "30 GB"
    with pytest.raises(ScenarioError, match="need 32 GB, a slice of a100 has 20 GB"):
        hs.load(described({"layouts": [[0.5, 0.5]]}, entry, memory="40 GB")).build()


def test_batch_by_batch_each_slice_is_a_gpu():
    """Two halves of a GPU serve batches as two GPUs that are as fast do, each with one batch at a time."""
    service = {"compute": {"per_item": "1 ms", "fixed": "5 ms"}, "gpus": 0.5, "max_batch": 4}
    entry = {"service": service, "arrivals": {"process": "poisson", "rate": "700/s"}, "count": 200}
    halves = described({"layouts": [[0.5, 0.5]]}, entry, policy={"batching": "serial_greedy"})
    whole = described({}, {**entry, "service": {**service, "gpus": 1}}, count=2, policy={"batching": "serial_greedy"})
    one, other = (Simulation(hs.load(scenario).build(), check=True).run().finish for scenario in (halves, whole))
    assert one == pytest.approx(other)


def test_a_task_table_names_slices_as_entries_do(tmp_path):
    """A column `slice` is what the entry's key is for each row; rows without one take `gpus`, or the entry's slice."""
    rows = [("3g.20gb", ""), ("1g.5gb", ""), ("", "1"), ("2g.10gb", "1"), ("", ""), ("", "0.1")]
    lines = [f"0,{10 + number},{','.join(row)}" for number, row in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n".join(["arrival,gpu_time,slice,gpus", *lines]))
    trace = {"trace": {"path": str(tmp_path / "t.csv"), "format": "tasks"}, "slice": "4g.20gb"}
    del (scenario := described({"profiles": "A100-40", "recut": "idle"}, trace))["workload"][0]["arrivals"]
    asked = [{"slice": "3g.20gb"}, {"slice": "1g.5gb"}, {"gpus": 1}, {"slice": "2g.10gb"}, {"slice": "4g.20gb"},
             {"gpus": 0.1}]  # fmt: skip
    entries = [{**one, "gpu_time": f"{10 + number} s"} for number, one in enumerate(asked)]
    finish = record_of({"profiles": "A100-40", "recut": "idle"}, *entries).finish
    assert Simulation(hs.load(scenario).build(), check=True).run().finish == pytest.approx(finish)


# Partition ----------------------------------------------------------------------------------------------------


def test_a_policy_cuts_ahead_and_the_layout_stays():
    """Cut at 0, the halves are ready at 4; a quarter that comes at 5 takes one of them and cuts nothing."""
    kind = mig((1.0,), (0.5, 0.5), (0.25,) * 4, reconfigure=4.0)
    seen = []

    def cut(view):
        yield Partition(view.cluster.devices[1], [0.5, 0.5])

    def release(view):
        seen.append(view.slices(view.cluster.devices[1]))
        yield Partition(view.cluster.devices[1], None)

    jobs = [Job([gpu_mode(kind, 0.25)], [1.0], arrival=at) for at in (5.0, 5.0, 5.0, 20.0)]
    record = simulate(node(kind), jobs, Scripted([(0.0, cut), (10.0, release)]))
    assert record.finish == pytest.approx([6.0, 6.0, 7.0, 25.0])
    assert [one.share for one in seen[0]] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("device", "layout", "recut", "text"),
    [
        (1, [0.5, 0.25], "idle", r"partitions n0/g0 into \[0.5, 0.25\], which is not one of the GPU's layouts "
                                 r"with the"),
        (1, [0.5, 0.5], "empty", r"partitions n0/g0 into \[0.5, 0.5\], but the GPU has busy slices \(with recut: idle"),
        (1, [1.0], "idle", r"partitions n0/g0 into \[1.0\], which is not one of the GPU's layouts with the "
                           r"slices that are"),
        (1, "halves", "idle", r"partitions n0/g0 into \[halves\], which is not one of the GPU's layouts"),
        (1, 3, "idle", r"partitions n0/g0 into \[3\], which is not one of the GPU's layouts"),
        (0, [0.5, 0.5], "idle", r"partitions n0/cpu, which is not a MIG GPU"),
        (None, [0.5, 0.5], "idle", r"None is not a device of this cluster"),
    ],
)  # fmt: skip
def test_a_partition_that_cannot_be_is_refused_with_policy_device_and_time(device, layout, recut, text):
    kind = mig((0.5, 0.25, 0.25), (0.5, 0.5), (1.0,), recut=recut)

    def cut(view):
        yield Partition(None if device is None else view.cluster.devices[device], layout)

    run = simulation(node(kind), [Job([gpu_mode(kind, 0.5)], [9.0])], Scripted([(2.0, cut)]))
    run.input.policy = "mine"
    with pytest.raises(PolicyError, match=rf'policy "mine" .*{text}.*\(t = 2 s\)'):
        run.run()


class CutsForTheHead(Scheduler):
    """Cuts an empty GPU for the task that has waited longest, with a layout of its own choice."""

    def schedule(self, view):
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement is not None:
                yield Start(task, placement)
        for device in view.cluster.devices:
            if view.slices(device) and view.slices(device) == view.slices(device, idle=True):
                cuts = device.type.sharing.cuts
                yield Partition(device, cuts[int(view.random.integers(len(cuts)))])
                yield Partition(device, None)


def test_a_policy_that_partitions_keeps_the_contract():
    systems = [one for one in small_systems() if one.name == "GPU instances"]
    check_policy(CutsForTheHead, [*systems, *systems_with_slices(range(4))], hash_seed=False)


# Whole runs ---------------------------------------------------------------------------------------------------


def systems_with_slices(seeds):
    for seed in seeds:
        draw = np.random.default_rng(seed)
        features = ["sharing", *(one for one in ("fractions", "memory", "stops", "transfers") if draw.random() < 0.7)]
        system = random_system(seed, nodes=2, tasks=20, features=features)
        if any(device.type.sharing.slices for device in system.cluster.devices):
            yield system


def seated(modes, slices):
    """Can each of the modes have a slice of its own?"""
    fitting = modes[0].type.slices_for(modes[0].share, modes[0].gpu_memory, modes[0].slice) if modes else ()
    rest = ((one, slices[:at] + slices[at + 1 :]) for at, one in enumerate(slices))
    return not modes or any(one in fitting and seated(modes[1:], others) for one, others in rest)


def without_a_slice(record):
    """Launches that no layout has a slice for, next to those that are there as well."""
    launches = list(occupations(record))
    for launch, device in ((one, there) for one in launches for there in one.devices if there.type.sharing.slices):
        here = [one.mode for one in launches if device in one.devices and one.start <= launch.start < one.end]
        if not any(seated(here, layout) for layout in device.type.sharing.cuts):
            yield launch


@pytest.mark.slow
def test_every_launch_has_a_slice_of_its_own_whatever_is_decided():
    """Random layouts, starts, stops, moves and partitions: the invariants hold, and a second count finds a seat."""
    tried = 0
    for system in systems_with_slices(range(30)):
        record = Simulation(system.run_input(Chaos(system.seed)), check=True).run()
        assert audit(record) == [] == list(without_a_slice(record))
        tried += 1
    assert tried >= 8


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [3, 8, 14])
def test_forks_end_as_the_run_does(seed):
    system = next(systems_with_slices(itertools.count(100 * seed)))
    look(lambda: system.run_input(Chaos(seed)), seed)
    assert end(Simulation(system.run_input(Chaos(seed))))


# Bad input ----------------------------------------------------------------------------------------------------

SCENARIO = """\
cluster:
  nodes:
    gpus:
      type: a100
      memory: 40 GB
      sharing:
        kind: mig
        %s
workload:
  - name: small
    arrivals: {process: all_at_once, count: 3}
    %s
    gpu_time: 5 min
policy: fcfs
"""
NAMED = "profiles: A100-40"


@pytest.mark.parametrize(
    ("sharing", "demand", "where", "text"),
    [
        ("layouts: [[1], {slices: [0.5, 0.5], memory: [30 GB, 20 GB]}]", "gpus: 0.5", "8:45",
         "the slices have 50 GB in all, but the GPU has 40 GB"),
        ("profiles: A100-80", "gpus: 0.5", "8:9", "the slices have 80 GB in all, but the GPU has 40 GB"),
        ("profiles: A10-040", "gpus: 0.5", "8:9", 'unknown profiles "A10-040"; did you mean "A100-40"'),
        (f"{NAMED}\n        layouts: [[2g.20gb]]", "gpus: 0.5", "9:19", 'unknown profile of an A100-40 "2g.20gb"'),
        ("layouts: [[1], [2g.10gb]]", "gpus: 0.5", "8:24", "2g.10gb is not a share; profiles by name need the "
                                                           "GPU (profiles:"),
        (f"{NAMED}\n        layouts: [{{slices: [3g.20gb, 2g.10gb], positions: [0, 2]}}]", "gpus: 0.5", "9:48",
         "slices must not overlap and must start at allowed positions (3g.20gb may start at 0, 4; 2g.10gb may "
         "start at 0, 2, 4)"),
        (f"{NAMED}\n        layouts: [[7g.40gb, 1g.5gb]]", "gpus: 0.5", "9:19", "slices must not overlap and "
                                                                                "must start at allowed positions"),
        ("layouts: [{slices: [0.5], positions: [0]}]", "gpus: 0.5", "8:35", "leave this key out"),
        ("layouts: [[0.5, 0.6]]", "gpus: 0.5", "8:19", "got [0.5, 0.6]"),
        ("layouts: [{slices: [0.5], memory: [1 GB, 2 GB]}]", "gpus: 0.5", "8:35",
            "must have a value for each of 1 slices"),
        ("layouts: [[0.5, 0.5]]", "slice: 2g.10gb", "10:5", "a100 has no slice 2g.10gb"),
        (NAMED, "slice: 2g.20gb", "10:5", "a100 has no slice 2g.20gb; its profiles are "),
        (NAMED, "slice: 2g.10gb\n    gpus: 0.25", "10:5", "gpus and slice exclude each other; give one of them"),
        ("layouts: [[0.5, 0.5]]", "gpus: 0.5\n    gpu_memory: 30 GB", "10:5",
         "30 GB of GPU memory for a share of 0.5 exceed the memory of any slice in the layouts of a100"),
    ],
)  # fmt: skip
def test_bad_input_is_told_with_its_place(tmp_path, sharing, demand, where, text):
    file = tmp_path / "m.yaml"
    file.write_text(SCENARIO % (sharing, demand))
    with pytest.raises(ScenarioError) as caught:
        hs.load(file).build()
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}:{where}: ") and text in str(problem)


def test_profiles_alone_are_all_that_nvidia_allows():
    kind = hs.load(described({"profiles": "h100-80"}, {"gpus": 1, "gpu_time": "1 s"})).build().cluster.devices[1].type
    assert kind.sharing.cuts == tuple(tuple(sorted(layout)) for layout in full_layouts("H100-80"))
    assert isinstance(Cluster([node(kind)]), Cluster)
