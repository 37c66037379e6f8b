"""Placements: each against a plain recount on small clusters; fragmentation; what a gang spans."""

from __future__ import annotations

import csv
import inspect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import yaml
from machines import Job, cpu_mode, gpu_mode, simulate, simulation
from tiers import spread

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import SpanSpeeds, Stopping, enclosures
from hetsim.model.device_type import WHOLE, DeviceType, micro_share
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.randomness import RandomTree
from hetsim.model.record import RunInput
from hetsim.model.tasks import Tasks
from hetsim.policy import ListScheduler
from hetsim.results.one_run.result import Result
from hetsim_policies.placement_rules.common.fragmentation import Mix, NodeStates

DATA = Path(__file__).parents[3] / "shared" / "data" / "openb"
A, B = DeviceType("a"), DeviceType("b")
CPU = DeviceType("cpu", kind="cpu")
MIB = 2**20


def rule_of(name, **parameters):
    item = registry.policy("placement", name)
    return item(**parameters) if inspect.isclass(item) else item


class Watched:
    """A rule that is checked at every decision: `check(task, view, placement)`."""

    def __init__(self, rule, check):
        self.rule, self.check, self.decisions = rule, check, 0

    def __call__(self, task, view):
        placement = self.rule(task, view)
        if placement is None:
            assert not any(view.fits(mode) for mode in task.modes), "it declined what fits"
        else:
            self.decisions += 1
            assert view.fits(placement.mode, placement)
            self.check(task, view, placement)
        return placement


def random_jobs(seed, count=60, gangs=False):
    """Tasks with fractions, whole GPUs and gangs, on cores and memory, that come and go."""
    random = np.random.default_rng(seed)
    modes = [
        [gpu_mode(A, size, millicores=1000 * cores, memory=10 * cores)]
        for size in (0.2, 0.35, 0.5, 1, 2)
        for cores in (0, 1, 3)
    ]
    modes += [[gpu_mode(A, size), gpu_mode(B, size)] for size in (0.25, 0.5, 1)]
    modes.append([cpu_mode(CPU, 2)])
    if gangs:
        modes += [[gpu_mode(A, size, millicores=1000 * cores, span_any=True)] for size in (3, 5, 7) for cores in (0, 5)]
    jobs, now = [], 0.0
    for _ in range(count):
        now += random.exponential(1.0)
        mode = modes[random.integers(len(modes))]
        time = float(random.exponential(6.0))
        jobs.append(Job(mode, [time] * len(mode), now))
    return jobs


NODES = [
    NodeSpec(cpus=8, memory=100, accelerators=((A, 2),), count=2, cpu_type=CPU),
    NodeSpec(cpus=4, memory=60, accelerators=((A, 4),), cpu_type=CPU),
    NodeSpec(cpus=6, memory=80, accelerators=((B, 2),), cpu_type=CPU),
    NodeSpec(cpus=16, memory=200, cpu_type=CPU),
]


def watch(name, check, seed, gangs=False, **parameters):
    watched = Watched(rule_of(name, **parameters), check)
    simulate(NODES, random_jobs(seed, gangs=gangs), ListScheduler(placement=watched, discipline="skip"))
    assert watched.decisions >= 60
    return watched


# A plain recount ------------------------------------------------------------------------------------------------


def free_of(view, node):
    """Free share of each of a node's GPUs."""
    return [round(1 - view.load(device), 6) for device in node.accelerators]


def ways(task, view):
    """Every placement on one node that fits, of the modes that differ in their type only (all these tests have)."""
    found = []
    for mode in task.modes:
        for node in view.cluster.nodes:
            if mode.on_cpu:
                options = [(node.cpu,)]
            else:
                options = list(itertools.combinations([d for d in node.accelerators if d.type is mode.type], mode.gpus))
            found += [p for devices in options if view.fits(mode, p := Placement(mode, devices))]
    return found


def left(view, node):
    """Cores, memory and GPUs left on a node."""
    memory = float(view.nodes.memory[node.index])
    return np.array([view.free("cpu", node.index), memory, sum(free_of(view, node))])


def whole(node):
    return np.array([node.cpus, node.memory, len(node.accelerators)], dtype=float)


def asked(mode):
    return np.array([mode.millicores / 1000, mode.memory, mode.gpu_share])


def node_of(placement, view):
    return view.cluster.nodes[placement.devices[0].node]


def allocated(placement, view):
    node = node_of(placement, view)
    columns = zip(left(view, node), asked(placement.mode), whole(node), strict=True)
    part = [1 - (free - want) / there for free, want, there in columns if there]
    return sum(part) / len(part)


def dot(placement, view):
    scale = np.max([whole(node) for node in view.cluster.nodes], axis=0)
    return float((left(view, node_of(placement, view)) / scale) @ (asked(placement.mode) / scale))


def packing_class(placement, view):
    node = node_of(placement, view)
    if placement.mode.gpus and not placement.mode.whole_devices and view.load(placement.devices[0]) > 0:
        return 0
    return 2 if all(share == 1 for share in free_of(view, node)) else 1


def room(placement, view):
    node, mode = node_of(placement, view), placement.mode
    if mode.gpus and not mode.whole_devices:
        return (1 - view.load(placement.devices[0]),)
    return (sum(free_of(view, node)) if mode.gpus else 0.0, view.free("cpu", node.index))


SCORES = {
    "best_fit": room,
    "worst_fit": lambda p, view: tuple(-value for value in room(p, view)),
    "dot_product": lambda p, view: -dot(p, view),
    "pack": lambda p, view: -allocated(p, view),
    "spread": allocated,
    "gpu_packing": packing_class,
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("seed", spread(range(3), 1))
def test_no_other_place_scores_better(name, seed):
    def check(task, view, placement):
        view.nodes.refresh()
        score = SCORES[name]
        best, own = min(score(p, view) for p in ways(task, view)), score(placement, view)
        assert np.allclose(own, best, atol=1e-5), (task, placement)

    watch(name, check, seed)


def test_dot_product_may_take_the_least():
    def check(task, view, placement):
        view.nodes.refresh()
        assert dot(placement, view) == pytest.approx(min(dot(p, view) for p in ways(task, view)))

    watch("dot_product", check, 0, smallest=True)


def test_spread_takes_the_emptiest_gpu_and_packing_the_fullest():
    """Within the node that it chose."""

    def loads(task, view, placement):
        return [view.load(p.devices[0]) for p in ways(task, view) if p.devices[0].node == placement.devices[0].node]

    def emptiest(task, view, placement):
        if placement.mode.gpus and not placement.mode.whole_devices:
            assert view.load(placement.devices[0]) == min(loads(task, view, placement))

    def fullest(task, view, placement):
        if placement.mode.gpus and not placement.mode.whole_devices:
            assert view.load(placement.devices[0]) == max(loads(task, view, placement))

    watch("spread", emptiest, 1)
    watch("gpu_packing", fullest, 1)


@pytest.mark.slow
def test_random_takes_every_node_that_fits_about_as_often():
    node = NodeSpec(accelerators=((A, 2),), count=4)
    jobs = [Job([gpu_mode(A, 0.5)], [0.5], float(arrival)) for arrival in range(400)]
    record = simulate(node, jobs, ListScheduler(placement=rule_of("random")))
    places = [record.places[place][0][0] for place in record.place]
    count = np.bincount(places, minlength=12)
    count = count[count > 0]
    assert len(count) == 8 and scipy.stats.chisquare(count).pvalue > 0.001
    again = simulate(node, jobs, ListScheduler(placement=rule_of("random")))
    assert (again.place == record.place).all()


def test_clustering_goes_where_the_least_is_held_by_other_demands():
    def check(task, view, placement):
        def others(place):
            running = [o for device in node_of(place, view).accelerators for o in view.running("start", device)]
            shares = [o.modes[0].share for o in running if o.modes[0].gpu_share != place.mode.gpu_share]
            return round(sum(shares) / WHOLE, 5)

        assert others(placement) == min(others(p) for p in ways(task, view))

    watch("gpu_clustering", check, 2)


# Fragmentation --------------------------------------------------------------------------------------------------


def plain_fragmentation(free, cores, memory, kind, requests):
    """FGD's F_n of one node with GPUs of one type; requests: (part, modes)."""
    total = 0.0
    for part, modes in requests:
        lost = [sum(free)]
        for mode in modes:
            if mode.on_cpu:
                continue  # uses no GPU
            if mode.type is kind and mode.millicores <= cores and mode.memory <= memory:
                good = [share for share in free if round(share * WHOLE) >= mode.share]
                if len(good) >= mode.gpus:
                    lost.append(sum(free) - sum(good))
        total += part * min(lost)
    return total


def rise(placement, view, requests):
    """What the fragmentation of the node grows by."""
    node, mode = node_of(placement, view), placement.mode
    kind = node.accelerators[0].type if node.accelerators else None
    free = free_of(view, node)
    cores, memory = round(view.free("cpu", node.index) * 1000), float(view.nodes.memory[node.index])
    after = list(free)
    for device in placement.devices:
        if device.local >= 0:
            after[device.local] = round(after[device.local] - mode.share / WHOLE, 6)
    before = plain_fragmentation(free, cores, memory, kind, requests)
    return plain_fragmentation(after, cores - mode.millicores, memory - mode.memory, kind, requests) - before


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(4), 2))
def test_fgd_raises_fragmentation_no_more_than_any_other_place(seed):
    """Not more than best_fit's either, then, by its own measure of the mix."""
    counts = {}
    best_fit = rule_of("best_fit")
    better = 0

    def check(task, view, placement):
        nonlocal better
        view.nodes.refresh()
        requests = [(count / sum(counts.values()), shape.modes) for shape, count in counts.items()]
        own = rise(placement, view, requests)
        assert own <= min(rise(p, view, requests) for p in ways(task, view)) + 1e-6
        better += own < rise(best_fit(task, view), view, requests) - 1e-6

    watched = Watched(rule_of("fgd", growth=1.0001), check)

    def counted(task, view):
        if task.memo is None:
            task.memo = "counted"
            counts[task.shape] = counts.get(task.shape, 0) + 1
        return watched(task, view)

    simulate(NODES, random_jobs(seed), ListScheduler(placement=counted, discipline="skip"))
    assert watched.decisions >= 60 and better > 0


def test_fragmentation_worked_by_hand():
    """Free shares 0.3, 0.5, 1 and 2 cores; a half of the tasks wants 0.4 of a GPU, a quarter a whole one, a quarter 3
    cores and 0.1 of a GPU: lost are 0.3, 0.8 and, as the cores do not suffice, 1.8."""
    modes = [gpu_mode(A, 0.4), gpu_mode(A, 1), gpu_mode(A, 0.1, millicores=3000)]
    run = simulation(
        NodeSpec(cpus=2, accelerators=((A, 3),)), [Job([gpu_mode(A, 0.7)], [1.0]), Job([gpu_mode(A, 0.5)], [1.0])]
    )
    while run.advance():
        for decision in run.input.scheduler.schedule(run.view):
            run.apply(decision)
        break
    states = NodeStates(run.view)
    states.refresh(run.view)
    mix = Mix({Shape([modes[0]]): 2, Shape([modes[1]]): 1, Shape([modes[2]]): 1})
    assert list(run.view.nodes.accelerators.share[0]) == [300_000, 500_000, WHOLE]
    assert mix.fragmentation(states.states[states.number[0]]) == pytest.approx(0.5 * 0.3 + 0.25 * 0.8 + 0.25 * 1.8)
    assert set(mix.rises(states.states[0], gpu_mode(A, 0.4))) == {500_000, WHOLE}


def test_the_metric_and_its_course_over_time():
    """Two GPUs; 0.6 held on one in [0, 10) and the other whole in [4, 10): the 0.4 left are too little for both kinds
    of task, so 0.4 are lost of 1.4 free GPUs in [0, 4), and all of the 0.4 in [4, 10)."""
    jobs = [Job([gpu_mode(A, 0.6)], [10.0]), Job([gpu_mode(A, 1)], [6.0], 4.0)]
    result = Result(simulate(NodeSpec(accelerators=((A, 2),)), jobs))
    table = result.fragmentation_over_time
    assert table.time.tolist() == [0, 4, 10]
    assert table.allocated_gpus.tolist() == pytest.approx([0.6, 1.6, 0])
    assert table.fragmented_gpus.tolist() == pytest.approx([0.4, 0.4, 0])
    assert table.allocation.tolist() == pytest.approx([0.3, 0.8, 0])
    weighted = 4 * 0.4 / 1.4 + 6 * 1.0
    assert result.metric("fragmentation") == pytest.approx(weighted / 10)
    (ax,) = hs.plots.fragmentation(result).figure().axes
    assert ax.get_ylim()[1] > 100 and len(ax.collections) == 2


def test_a_request_that_any_of_several_types_serves_is_no_fragment_on_the_others():
    jobs = [Job([gpu_mode(A, 0.5), gpu_mode(B, 0.5)], [10.0, 10.0])]
    result = Result(simulate([NodeSpec(accelerators=((kind, 1),)) for kind in (A, B)], jobs))
    assert result.metric("fragmentation") == 0


# Gangs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_consolidate_uses_the_least_possible_number_of_nodes(seed):
    spanning = 0

    def check(task, view, placement):
        nonlocal spanning
        mode = placement.mode
        if not mode.span_any:
            return
        devices = [d for d in view.cluster.devices if d.type is mode.type and view.load(d) == 0]
        used = len({device.node for device in placement.devices})
        nodes = list(dict.fromkeys(device.node for device in devices))
        for few in range(1, used):
            for chosen in itertools.combinations(nodes, few):
                there = [device for device in devices if device.node in chosen]
                for gang in itertools.combinations(there, mode.gpus):
                    assert not view.fits(mode, Placement(mode, gang)), f"{gang} are on fewer nodes than {placement}"
        spanning += used > 1

    watch("consolidate", check, seed, gangs=True)
    assert spanning


SPEEDS = SpanSpeeds(island=1.0, switch=0.9, node=0.8, rack=0.5, cluster=0.25)
RACKS = [
    NodeSpec(accelerators=((A, 4),), count=2, switch_size=2, rack="r0"),
    NodeSpec(accelerators=((A, 4),), count=1, switch_size=2, island_size=4, rack="r1"),
]


@pytest.mark.parametrize(
    ("devices", "level", "rate"),
    [
        (("n0/g0", "n0/g1"), "switch", 0.9),
        (("n0/g1", "n0/g2"), "node", 0.8),
        (("n2/g1", "n2/g2"), "island", 1.0),
        (("n0/g0", "n1/g0"), "rack", 0.5),
        (("n0/g0", "n2/g0"), "cluster", 0.25),
    ],
)
def test_a_gang_computes_at_the_rate_of_the_narrowest_part_that_holds_it(devices, level, rate):
    """Ten seconds of work take 10 / rate, and the view says so beforehand."""
    mode = gpu_mode(A, 2, span_any=True, span_speeds=SPEEDS)

    def there(task, view):
        placement = Placement(mode, tuple(view.cluster.by_name[name] for name in devices))
        assert enclosures(placement.devices)[0] == level
        assert view.duration(task, placement) == pytest.approx(10 / rate)
        return placement

    record = simulate(RACKS, [Job([mode], [10.0])], ListScheduler(placement=there))
    assert record.finish[0] == pytest.approx(10 / rate)


def test_nodes_without_a_rack_are_in_none():
    nodes = Cluster([NodeSpec(accelerators=((A, 1),), count=2)]).nodes
    assert enclosures([node.accelerators[0] for node in nodes]) == ["cluster"]


@pytest.mark.parametrize("seed", range(6))
def test_topology_finds_the_fastest_part_that_is_free(seed):
    """Against all gangs of the free GPUs, with single GPUs held at random."""
    random = np.random.default_rng(seed)
    held = random.permutation(12)[: random.integers(1, 9)]
    size = int(random.integers(2, 5))
    gang = gpu_mode(A, size, span_any=True, span_speeds=SPEEDS)
    single = gpu_mode(A, 1)
    topology = rule_of("topology")
    names = [f"n{index // 4}/g{index % 4}" for index in range(12)]

    def place(task, view):
        if task.modes[0] is single:
            return Placement(single, (view.cluster.by_name[names[held[task.index]]],))
        placement = topology(task, view)
        free = [d for d in view.cluster.devices if d.type is A and view.load(d) == 0]
        best = max((SPEEDS.rate_of(devices) for devices in itertools.combinations(free, size)), default=None)
        assert (placement is None) == (best is None)
        if placement is not None:
            assert SPEEDS.rate_of(placement.devices) == best
        return placement

    jobs = [Job([single], [5.0]) for _ in held] + [Job([gang], [1.0], 1.0)]
    simulate(RACKS, jobs, ListScheduler(placement=place))


def test_topology_leaves_whole_switches_to_gangs():
    """A single GPU comes from the switch that is broken into already."""
    mode = gpu_mode(A, 1)
    jobs = [Job([mode], [100.0], float(arrival)) for arrival in range(4)]
    record = simulate(RACKS[0], jobs, ListScheduler(placement=rule_of("topology")))
    names = [record.input.cluster.devices[record.places[place][0][0]].name for place in record.place]
    assert names == ["n0/g0", "n0/g1", "n0/g2", "n0/g3"]


SPANS = """
name: spans
cluster:
  nodes: [{count: 2, gpus: {type: a, count: 4}, rack: r, island: 2, pcie: {switch: {size: 4, upload: 10 GB/s}}}]
workload:
  - {name: w, count: 1, arrivals: {process: poisson, rate: 1/s}, gpus: 4, span: any, gpu_time: 10 s, SPEEDS}
policy: fcfs
"""


def test_span_speeds_in_a_scenario():

    def ran(speeds):
        return hs.run(yaml.safe_load(SPANS.replace("SPEEDS", speeds)))

    run = ran("span_speeds: {island: 1, switch: 0.8, rack: 0.5}")
    assert run.tasks.compute[0] == pytest.approx(10 / 0.8)
    for wrong, message in (
        ("span_speeds: {node: 0.5, rack: 0.8}", "must not be faster than within one"),
        ("span_speeds: {}", "at least one"),
        ("span_speeds: {node: 0.5}, span_speed: 0.5", "span_speed and span_speeds exclude each other"),
        ("span_speeds: {node: 2}", "node"),
    ):
        with pytest.raises(ScenarioError, match=message):
            ran(wrong)


# The experiment of the paper: fill a cluster without departures ---------------------------------------------------


def filled(specs, shapes, part, rule, seed, load=1.3):
    """Tasks drawn from a mix arrive until they ask for `load` times the GPUs, and none leaves: the allocated part."""
    cluster = Cluster(specs)
    random = np.random.default_rng(seed)
    size = np.array([shape.modes[0].gpu_share for shape in shapes])
    gpus = sum(len(node.accelerators) for node in cluster.nodes)
    drawn = random.choice(len(shapes), int(3 * load * gpus / (size @ part)), p=part)
    drawn = drawn[: int(np.searchsorted(np.cumsum(size[drawn]), load * gpus))]
    time = np.full((len(drawn), max(len(shape.modes) for shape in shapes)), 1e9)
    tasks = Tasks(np.arange(len(drawn), dtype=float), drawn.astype(np.int32), shapes, time, time)
    scheduler = ListScheduler(placement=rule, discipline="skip")
    run = RunInput("filled", cluster, tasks, scheduler, random=RandomTree(seed), horizon=float(len(drawn)))
    record = Simulation(run).run()
    return size[drawn[~np.isnan(record.start)]].sum() / gpus


def small_pods():
    """A cluster of 46 GPUs and a mix like that of openb: shares of one GPU, with few or many cores."""
    specs = [
        NodeSpec(cpus=96, memory=384, accelerators=((A, 8),), count=3, cpu_type=CPU),
        NodeSpec(cpus=104, memory=512, accelerators=((B, 2),), count=11, cpu_type=CPU),
    ]
    demands = [
        (1, 0.2, 3, 6),
        (0.81, 0.1, 3, 6),
        (1, 0.2, 12, 48),
        (0.47, 0.15, 8, 30),
        (0.23, 0.15, 4, 30),
        (0.32, 0.1, 6, 12),
    ]
    demands += [(2, 0.03, 16, 64), (4, 0.02, 32, 128)]
    shapes = [
        Shape([gpu_mode(kind, size, millicores=1000 * cores, memory=memory) for kind in (A, B)])
        for size, _, cores, memory in demands
    ]
    shapes.append(Shape([cpu_mode(CPU, 12, memory=57)]))
    part = np.array([*(part for _, part, _, _ in demands), 0.05])
    return specs, shapes, part / part.sum()


@pytest.mark.slow
def test_fgd_fills_a_small_cluster_further_than_best_fit():
    specs, shapes, part = small_pods()
    gain = [
        filled(specs, shapes, part, rule_of("fgd"), seed) - filled(specs, shapes, part, rule_of("best_fit"), seed)
        for seed in range(20)
    ]
    assert scipy.stats.ttest_1samp(gain, 0, alternative="greater").pvalue < 0.01


def openb_nodes():
    types: dict[str, DeviceType] = {}
    specs = []
    with open(DATA / "openb_node_list_all_node.csv") as file:
        for row in csv.DictReader(file):
            kind = types.setdefault(row["model"], DeviceType(row["model"])) if int(row["gpu"]) else None
            accelerators = ((kind, int(row["gpu"])),) if kind else ()
            cores, memory = int(row["cpu_milli"]) // 1000, int(row["memory_mib"]) * MIB
            specs.append(NodeSpec(cpus=cores, memory=memory, accelerators=accelerators, cpu_type=CPU))
    return specs, types


def openb_pods(types, started):
    """Rows (arrival, duration, shape number) and the shapes: a mode for each type of GPU, all equally fast."""
    shapes: dict[tuple, Shape] = {}
    rows = []
    with open(DATA / "openb_pod_list_default_first2000.csv") as file:
        for row in csv.DictReader(file):
            if started and not row["scheduled_time"]:
                continue
            key = tuple(int(row[name]) for name in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
            if key not in shapes:
                cpus, memory, gpus, milli = key
                share = WHOLE if gpus > 1 else micro_share(milli / 1000)
                host = {"millicores": cpus, "memory": memory * MIB}
                on_gpus = [Mode(name, kind, gpus=gpus, share=share, **host) for name, kind in types.items()]
                shapes[key] = Shape(on_gpus if gpus else [Mode("cpu", CPU, **host)])
            ended, began = (float(row[name] or "nan") for name in ("deletion_time", "scheduled_time"))
            rows.append((float(row["creation_time"]), ended - began, list(shapes).index(key)))
    return rows, list(shapes.values())


needs_openb = pytest.mark.skipif(
    not DATA.exists(), reason="the excerpt of openb lies beside a development checkout only"
)


@needs_openb
@pytest.mark.slow
def test_fgd_places_the_excerpt_of_openb_on_all_nodes():
    """1,842 pods that started, on 1,523 nodes: nobody waits."""
    specs, types = openb_nodes()
    rows, shapes = openb_pods(types, started=True)
    rows.sort(key=lambda row: row[0])
    arrival, duration, shape = (np.array(column) for column in zip(*rows, strict=True))
    time = np.repeat(duration[:, None], len(types), axis=1)
    tasks = Tasks(arrival, shape.astype(np.int32), shapes, time, time)
    scheduler = ListScheduler(placement=rule_of("fgd"))
    record = Simulation(RunInput("openb", Cluster(specs), tasks, scheduler, random=RandomTree(1))).run()
    assert len(record.start) == 1842 and (record.start == record.ready).all()


@pytest.mark.slow
@needs_openb
def test_fgd_fills_openb_further_than_best_fit():
    """Pods of the excerpt, resampled to 130 % of the 6,212 GPUs, without departures; three seeds, paired.

    So many GPUs leave little to chance: the gain is 1.1, 1.3 and 1.0 points.
    """
    specs, types = openb_nodes()
    rows, shapes = openb_pods(types, started=True)
    part = np.bincount([shape for _, _, shape in rows], minlength=len(shapes)) / len(rows)
    ends = np.array(
        [[filled(specs, shapes, part, rule_of(name), seed) for name in ("fgd", "best_fit")] for seed in range(3)]
    )
    gain = ends[:, 0] - ends[:, 1]
    assert scipy.stats.ttest_1samp(gain, 0, alternative="greater").pvalue < 0.01
    assert math.isclose(ends[:, 0].mean(), 0.960, abs_tol=0.005)


# Defragmentation ------------------------------------------------------------------------------------------------


def scattered(**parameters):
    """Two nodes of two GPUs, each with one single task for 100 s; at 10 s a pair comes.  A move costs 1 + 2 s."""
    stopping = Stopping(save=1.0, restore=2.0)
    first = [Job([gpu_mode(A, 1)], [100.0], stopping=stopping) for _ in range(2)]
    jobs = [*first, Job([gpu_mode(A, 2)], [5.0], 10.0)]
    scheduler = registry.policy("scheduler", "defragment")(placement=rule_of("worst_fit"), **parameters)
    return simulate(NodeSpec(accelerators=((A, 2),), count=2), jobs, scheduler)


def test_defragment_moves_a_task_so_that_a_pair_fits():
    """The pair starts once the state of the mover is saved, and the mover loses its pause and no more."""
    record = scattered()
    assert record.migrations.sum() == 1 and record.preemptions is None or not record.preemptions.any()
    assert record.start[2] == pytest.approx(11.0) and sorted(record.finish[:2]) == pytest.approx([100.0, 103.0])


@pytest.mark.parametrize("parameters", [{"margin": 100.0}, {"minimum_run": 50.0}])
def test_defragment_leaves_tasks_alone_where_it_does_not_pay_or_they_have_just_begun(parameters):
    """90 s of two GPUs are spared and 3 s of one lost: a margin of 100 is not reached."""
    record = scattered(**parameters)
    assert record.migrations is None or not record.migrations.any()
    assert record.start[2] == pytest.approx(100.0)
