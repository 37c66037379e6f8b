"""Constraint injection: the walk through the tree, what the optimizer sees, and plans judged by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from test_static_lists import problem, random_graph

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.device_type import Link
from hetsim.model.tasks import Item
from hetsim.testing import System, audit, check_policy, random_system, small_systems
from hetsim_policies.static.common.assignment import Apart, Before, Cap, Fuse, Pin, Together, by_place, violated
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.parts import Dealing, Groups, dealt, in_blocks
from hetsim_policies.static.common.ranks import traffic_of
from hetsim_policies.static.constraint_injection import ConstraintInjection, ConstraintNode, SharingTree, assigned, walk
from hetsim_policies.static.programs import IntegerProgram, LinearProgram

LINK = Link(upload=1.0, download=1.0)


def shared(copies=4, size=5, kinds=2):
    """Tasks of 1 s on two GPUs (100 s on the core): some read one item, then some the other, `size` seconds each."""
    reads = [(task // copies,) for task in range(copies * kinds)]
    items = [Item(f"w{kind}", size) for kind in range(kinds)]
    times = [[100, 1]] * len(reads)
    return problem(times, [1, 2], link=LINK, reads=reads, writes=[()] * len(reads), items=items)


def run(scheduler, given, **options):
    return Simulation(System("test", given.cluster, given.tasks).run_input(scheduler), check=True, **options).run()


def makespan(scheduler, given):
    record = run(scheduler, given)
    return float(record.finish.max() - given.tasks.arrival.min())


def sharing(given):
    instance = runnable(given, "test")
    sites = by_place(instance)
    traffic = traffic_of(instance, given.tasks.predecessors or [()] * len(given.tasks))
    return SharingTree(instance, sites, traffic, 10.0)


# The walk ---------------------------------------------------------------------------------------------------------


def node(name, *children):
    return ConstraintNode(name, (name,), children)


def test_the_walk_goes_down_before_it_goes_on():
    tree = [node("a", node("a1", node("a1x")), node("a2")), node("b")]
    found = list(walk(tree, lambda constraints: constraints))
    assert [names[-1] for names, _ in found] == ["a", "a1", "a1x", "a2", "b"]
    assert dict(found)["a", "a1", "a1x"] == ("a", "a1", "a1x")  # a child has all constraints above it


def test_an_infeasible_node_is_dropped_with_all_below_it():
    asked = []

    def solve(constraints):
        asked.append(constraints[-1])
        return None if constraints[-1] in ("a1", "b") else constraints

    tree = [node("a", node("a1", node("never")), node("a2")), node("b", node("nor this")), node("c")]
    assert [names[-1] for names, _ in walk(tree, solve)] == ["a", "a2", "c"]
    assert asked == ["a", "a1", "a2", "b", "c"]


def test_an_infeasible_sibling_gives_way_to_the_next_one():
    """With the real program: together and pinned to different places cannot be, the next sibling can."""
    instance = runnable(shared(), "test")
    sites = by_place(instance)
    tree = [
        ConstraintNode("both", (Together((0, 1)),), (
            ConstraintNode("torn", (Pin((0,), (1,)), Pin((1,), (2,))), (ConstraintNode("below", (Apart((2, 3)),)),)),
            ConstraintNode("left", (Pin((0,), (1,)),)),
        )),
        ConstraintNode("apart", (Apart((0, 1)),)),
    ]  # fmt: skip
    found = list(walk(tree, lambda constraints: assigned(instance, sites, constraints, 10.0)))
    assert [names for names, _ in found] == [("both",), ("both", "left"), ("apart",)]
    for names, site_of in found:
        assert (site_of[0] == site_of[1]) == (names[0] == "both")
    assert found[1][1][0] == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("max_variables", [10_000, 1])
def test_assignments_keep_what_is_injected(max_variables):
    """In integers, and relaxed and rounded, where a rounding that breaks a constraint counts as infeasible."""
    rng = np.random.default_rng(1)
    kept = 0
    for _ in range(15):
        times = rng.uniform(1, 5, (8, 2))
        instance = runnable(problem(times, [2, 3]), "test")
        sites = by_place(instance)
        cap = Cap(tuple((task, 1, 1.0) for task in range(8)), upper=2.0)
        constraints = [Together((0, 1)), Apart((2, 3)), Pin((4,), (0, 3)), Fuse((5, 6)), Before(6, 7), cap]
        found = assigned(instance, sites, constraints, 10.0, max_variables=max_variables)
        if found is not None:
            kept += 1
            hard = constraints if max_variables > 1 else constraints[:-1]
            assert violated(hard, found) == []
    assert kept >= (15 if max_variables > 1 else 3)


# What the optimizer sees --------------------------------------------------------------------------------------------


def test_readers_of_one_item_are_grouped():
    found = sharing(shared()).groups("inputs", 10.0, [(task,) for task in range(8)])
    assert found == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_groups_are_no_larger_than_the_limit():
    found = sharing(shared()).groups("inputs", 2.0, [(task,) for task in range(8)])
    assert [len(group) for group in found] == [2] * 4
    assert all(group[0] // 4 == group[1] // 4 for group in found)


def test_what_flows_is_grouped_by_the_bytes_it_saves():
    """Three tasks in a chain with 1 and 9 bytes between them: of at most two tasks a group the latter pair is one."""
    chain = {"predecessors": [(), (0,), (1,)], "reads": [(), (0,), (1,)], "writes": [(0,), (1,), ()],
             "items": [Item("x", 1), Item("y", 9)]}  # fmt: skip
    given = problem([[9, 1]] * 3, [1, 2], link=LINK, **chain)
    alone = [(0,), (1,), (2,)]
    assert sharing(given).groups("flow", 2.0, alone) == [(0,), (1, 2)]
    assert sharing(given).groups("flow", 3.0, alone) == [(0, 1, 2)]
    assert sharing(given).groups("inputs", 3.0, alone) == alone


def test_a_group_uploads_what_it_shares_once():
    seen = sharing(shared(size=5))
    gpu = seen.devices[0]
    assert seen._upload((0, 1, 2), gpu) == 5
    assert seen._upload((0, 4), gpu) == 10


def test_tasks_that_no_device_pays_for_are_pinned_to_the_cores():
    """(3, 1) with 2 bytes to bring: 3.1 on the GPU, whose busiest engine needs 2; the program would put it there."""
    given = problem([[3, 1.1], [3, 1]], [1, 1], link=LINK, bytes_in=np.array([2, 1]), streams=2)
    (pin,) = sharing(given)._beside_their_data()
    assert pin == Pin((0,), (0,))
    assert sharing(given).tree()[0].name == "beside data"


def test_equal_kernels_are_fused_in_a_group():
    assert list(sharing(shared())._equal_kernels((0, 3, 5, 6))) == [(0, 3), (5, 6)]


def test_chains_follow_one_another():
    chain = {"predecessors": [(), (), (0,), (1,)], "reads": [(), (), (0,), (1,)], "writes": [(0,), (1,), (), ()],
             "items": [Item("x", 1), Item("y", 1)]}  # fmt: skip
    given = problem([[9, 1]] * 4, [1, 2], link=LINK, **chain)
    assert list(sharing(given)._one_chain_after_the_other((0, 1, 2, 3))) == [Before(2, 1)]


# Parts --------------------------------------------------------------------------------------------------------------


def random_groups(rng, count=7, parts=2):
    inputs = [dict.fromkeys(sorted(rng.choice(4, rng.integers(0, 3), replace=False).tolist())) for _ in range(count)]
    reads = [{w: float(rng.uniform(0, 2)) for w in range(g) if rng.random() < 0.3} for g in range(count)]
    switch = [0] * parts if rng.random() < 0.5 else [None] * parts
    return Groups(rng.uniform(1, 3, (count, parts)), inputs, rng.uniform(0, 4, (4, parts)), reads, switch)


def loads(groups, part_of):
    """By definition."""
    work = [0.0] * groups.work.shape[1]
    moved = list(work)
    for part in range(len(work)):
        inside = [g for g, p in enumerate(part_of) if p == part]
        items = {item for g in inside for item in groups.inputs[g]}
        moved[part] = sum(groups.cost[item, part] for item in items)
        moved[part] += sum(s for g in inside for w, s in groups.reads[g].items() if part_of[w] != part)
        work[part] = moved[part] + sum(groups.work[g, part] for g in inside)
    return work, moved


def test_loads_are_kept_up_to_date():
    rng = np.random.default_rng(2)
    for _ in range(30):
        groups = random_groups(rng)
        start = rng.integers(0, 2, 7).tolist()
        dealing = Dealing(groups, start)
        for _ in range(10):
            group = int(rng.integers(7))
            dealing.take(group)
            dealing.put(group, int(rng.integers(2)))
        work, moved = loads(groups, dealing.part_of)
        assert dealing.load == pytest.approx(work)
        assert dealing.uploads == pytest.approx(moved)


def test_the_search_ends_near_the_best_parts():
    """Never worse than the start, and on average within 15 % of the best of all assignments."""
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(20):
        groups = random_groups(rng)
        start = in_blocks(groups.work.mean(axis=1).tolist(), 2)
        found = dealt(groups, start)
        value = {name: Dealing(groups, parts).value() for name, parts in (("start", start), ("found", found))}
        assert value["found"] <= value["start"] * (1 + 1e-9)
        best = min(Dealing(groups, parts).value() for parts in itertools.product(range(2), repeat=7))
        ratios.append(value["found"] / best)
    assert np.mean(ratios) <= 1.15


def test_blocks_are_consecutive_and_even():
    assert in_blocks([1, 1, 1, 1], 2) == [0, 0, 1, 1]
    assert in_blocks([3, 1, 1, 1], 2) == [0, 1, 1, 1]
    assert in_blocks([0, 0], 2) == [0, 0]


# Plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shared_inputs_are_uploaded_once():
    """Eight tasks of 1 s on two GPUs, two inputs of 5 s: 5 + 4 if each GPU has one kind, 10 + 4 if both have both."""
    given = shared()
    assert makespan(ConstraintInjection(), given) == 9
    assert makespan(LinearProgram(), given) == makespan(IntegerProgram(), given) == 14
    record = run(ConstraintInjection(), given)
    assert record.notes["planned_makespan"] == 9
    assert record.notes["unconstrained_makespan"] == min(makespan(p(), given) for p in (LinearProgram, IntegerProgram))
    assert record.notes["constraints"].startswith("inputs")


@pytest.mark.slow
def test_nothing_is_lost_against_the_programs():
    """Random graphs with items: the unconstrained plans are among the candidates."""
    rng = np.random.default_rng(4)
    gains = []
    for _ in range(8):
        size = 14
        items = [Item(f"w{n}", int(rng.integers(1, 6))) for n in range(4)]
        items += [Item(f"x{n}", int(rng.integers(1, 4))) for n in range(size)]
        graph = random_graph(rng, size)
        reads = [(int(rng.integers(4)), *(4 + before for before in graph[task])) for task in range(size)]
        writes = [(4 + task,) for task in range(size)]
        times = np.column_stack([rng.uniform(5, 20, size), rng.uniform(0.5, 2, size)])
        given = problem(times, [2, 2], link=LINK, predecessors=graph, reads=reads, writes=writes, items=items)
        record = run(ConstraintInjection(candidates=8), given)
        free = min(makespan(policy(), given) for policy in (LinearProgram, IntegerProgram))
        assert record.finish.max() <= free * (1 + 1e-12)
        assert record.notes["unconstrained_makespan"] == pytest.approx(free)
        assert record.notes["planned_makespan"] == pytest.approx(float(record.finish.max()))
        assert record.notes["candidates"] <= 8 + 1  # the best once more, with prefetches
        assert record.notes["lower_bound"] <= record.finish.max()
        gains.append(1 - float(record.finish.max()) / free)
    assert max(gains) > 0.05


@pytest.mark.slow
def test_the_budget_counts_simulations():
    """Two are the plans without constraints; with these alone nothing is injected."""
    given = shared()
    assert run(ConstraintInjection(candidates=2), given).notes["constraints"] == ""
    assert run(ConstraintInjection(candidates=2), given).notes["candidates"] == 2 + 1  # the best, with prefetches
    spans = [makespan(ConstraintInjection(candidates=number), given) for number in (2, 4, 8, 24)]
    assert spans == sorted(spans, reverse=True)


def test_without_data_there_is_nothing_to_inject():
    given = problem([[4, 1], [4, 1], [2, 3]], [1, 1])
    notes = run(ConstraintInjection(), given).notes
    assert (notes["constraints"], notes["candidates"], notes["planned_makespan"]) == ("", 2, 2)


@pytest.mark.slow
def test_limited_memory_and_one_stream_more():
    """Whatever the devices are like, plans are followed to the end: random systems with every feature it plans."""
    planned = 0
    for seed in range(12):
        system = random_system(seed, tasks=10, features=("transfers", "memory", "items", "graph", "streams"))
        try:
            record = Simulation(system.run_input(ConstraintInjection(candidates=6)), check=True).run()
        except ScenarioError:
            continue
        planned += 1
        assert audit(record) == []
        assert math.isfinite(record.notes["planned_makespan"])
    assert planned >= 3


@pytest.mark.slow
def test_it_keeps_the_contract():
    planned = []
    for system in small_systems():
        try:
            runnable(sim_problem(system), "constraint_injection")
        except ScenarioError:
            continue
        planned.append(system)
    assert planned
    check_policy(lambda: ConstraintInjection(candidates=5), planned)


def sim_problem(system):
    from hetsim.policy import PlanProblem

    return PlanProblem(system.tasks, system.cluster)


def test_it_is_registered_with_checked_parameters():
    assert registry.policy("scheduler", "constraint_injection") is ConstraintInjection
    with pytest.raises(ScenarioError, match="candidates"):
        hs.run("list-lemma", policy={"name": "constraint_injection", "candidates": 1})
