"""The parts of the dual approximation by themselves, with tasks whose side is already fixed: program, counts, lists.

The makespan seldom shows what is lost in a part, as the others make up for it; so each is compared with what its
definition gives, by trying all assignments.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import tiers
from machines import Job, cpu_mode, gpu_mode, tasks_of
from scipy.optimize import linprog
from test_static_lists import problem as static_problem

import hetsim as hs
from benchmarks.dual_as_published import as_published, pairs, predecessors
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.policy import PlanProblem
from hetsim_policies.static import dual_approximation
from hetsim_policies.static.common.bounds import Relaxation, by_gain, relaxation
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.timing import timing
from hetsim_policies.static.dual_approximation import (
    RATIO,
    DualApproximation,
    Shelves,
    Solution,
    TwoSidedSchedule,
    attempt,
    counting_refuses,
    counts,
    descend,
    earliest_finish,
    longest_first,
    rivals,
    sequenced,
    shortest,
    solve,
    weights,
)

TOLERANCE = 1e-9


def mask(n, chosen):
    found = np.zeros(n, bool)
    found[list(chosen)] = True
    return found


def fixed(n, cpu=(), gpu=()):
    """A relaxation that says nothing but where some tasks run."""
    return Relaxation(mask(n, cpu), mask(n, gpu), mask(n, gpu))


def some(rng, n, relaxed_cpu, relaxed_gpu):
    """n tasks with whole times, and which of them are fixed."""
    p, q = rng.integers(1, 13, n).astype(float), rng.integers(1, 13, n).astype(float)
    chosen = rng.permutation(n)
    return p, q, fixed(n, chosen[:relaxed_cpu], chosen[relaxed_cpu : relaxed_cpu + relaxed_gpu])


# The program ----------------------------------------------------------------------------------------------------------


def min_area(p, q, m, k, guess, relaxed, units):
    """Least CPU area in all of any assignment that the program allows, by trying them; inf if there is none."""
    limit, free = guess * (1 + TOLERANCE), relaxed.free
    room = k * limit - q[relaxed.gpu].sum()
    least = math.inf
    for sides in product([False, True], repeat=len(free)):
        gpu = relaxed.gpu.copy()
        gpu[free] = sides
        area = np.floor(q[free][list(sides)] / (room / units) * (1 - TOLERANCE)).sum() if any(sides) else 0
        shelves = weights(p[~gpu], limit).sum() <= 2 * m and (k < 2 or weights(q[gpu], limit).sum() <= 2 * k)
        if shelves and area <= units and room >= 0:
            least = min(least, float(p[~gpu].sum()))
    return least


@pytest.mark.quick(1)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_program_with_fixed_tasks_finds_the_least_cpu_area(k):
    """What the fixed tasks take of both areas and of both shelves counts; answers of both kinds occur."""
    rng = np.random.default_rng(31 + k)
    answers = []
    for _ in range(tiers.some(60, 20)):
        m = int(rng.integers(1, 4))
        p, q, relaxed = some(rng, 8, int(rng.integers(0, 3)), int(rng.integers(0, 3)))
        guess = float(rng.uniform(0.7, 1.3)) * max(13.0, np.minimum(p, q).sum() / (m + k))
        for units in (1, 6, 40):
            least = min_area(p, q, m, k, guess, relaxed, units)
            found = Shelves(p, q, m, k, guess, relaxed).assignment(units)
            possible = least <= m * guess * (1 + TOLERANCE)
            assert (found is not None) == possible
            answers.append(possible)
            if found is not None:
                assert p[~found].sum() == pytest.approx(least)
                assert found[relaxed.gpu].all()
                assert not found[relaxed.cpu].any()
    assert 0.1 < np.mean(answers) < 0.95


def test_the_cpu_area_of_fixed_tasks_counts():
    """A task of 7 is fixed on the only CPU and another of 4 is free, with no room on the GPU: 11 s do not fit 10."""
    p, q = np.array([7.0, 4.0, 1.0]), np.array([1.0, 2.0, 9.0])
    relaxed = fixed(3, cpu=[0], gpu=[2])
    assert Shelves(p, q, 1, 1, 10.0, relaxed).assignment(3) is None
    enough = Shelves(p, q, 1, 1, 11.0, relaxed).assignment(3)
    assert enough is not None
    assert enough.tolist() == [False, True, True]  # 2 s of GPU area are left then
    assert Shelves(p, q, 1, 1, 10.0, fixed(3, gpu=[2])).assignment(3).tolist() == [True, False, True]


def test_what_fixed_tasks_leave():
    """3 CPUs and 2 GPUs at a guess of 9: long is more than 6, medium more than 3."""
    p = np.array([7.0, 4.0, 2.0, 8.0, 8.0, 5.0])
    q = np.array([9.0, 9.0, 9.0, 7.0, 2.0, 5.0])
    shelves = Shelves(p, q, 3, 2, 9.0, fixed(6, cpu=[0, 1, 2], gpu=[3]))
    assert shelves.cpu_area == pytest.approx(27 - 13)
    assert shelves.gpu_area == pytest.approx(18 - 7)
    # CPU shelves have 6 - 3 left and the free tasks weigh 2 + 1: that cannot bind.  GPU: 4 - 2 left, the free weigh 1.
    assert (shelves.cpu_weight, shelves.gpu_weight) == (0, 0)
    assert not shelves.on_cpu.any() and not shelves.on_gpu.any()
    tight = Shelves(p, q, 2, 2, 9.0, fixed(6, cpu=[0], gpu=[3]))
    assert (tight.cpu_weight, tight.on_cpu.tolist()) == (2, [2, 1, 0, 2, 2, 1])
    assert (tight.gpu_weight, tight.on_gpu.tolist()) == (2, [2, 2, 2, 2, 0, 1])
    assert Shelves(p, q, 2, 1, 9.0, fixed(6, cpu=[0])).gpu_weight == 0
    assert tight.cells_a_unit == 4 * 3 * 3
    assert shelves.cells_a_unit == 2
    full = Shelves(p[:2], q[:2], 1, 2, 9.0, fixed(2, cpu=[0, 1]))
    assert (full.cpu_weight, full.cells_a_unit) == (-1, 1)
    assert full.assignment(4) is None


def test_units_are_a_third_of_the_guess_over_the_free_tasks():
    p, q = np.full(5, 2.0), np.full(5, 3.0)
    shelves = Shelves(p, q, 2, 2, 6.0, fixed(5, gpu=[0]))  # 4 free, an area of 9
    assert shelves.units(coarseness=1) == math.ceil(3 * 4 * 9 * (1 + 1e-9) / 6)
    assert shelves.units(coarseness=4) == math.ceil(3 * 4 * 9 / 24 * (1 + 1e-9))
    assert shelves.units(coarseness=1e9) == 1


def test_a_task_fits_a_gpu_that_it_fills_to_the_last_unit():
    """Rounding down, by a hair less than the times themselves, refuses nothing that fits."""
    p, q = np.array([np.inf, np.inf]), np.array([3.0, 6.0])
    for units in (1, 3, 9, 90):
        found = Shelves(p, q, 1, 1, 9.0, fixed(2)).assignment(units)
        assert found is not None and found.all()
    assert Shelves(p, q, 1, 1, 8.0, fixed(2)).assignment(90) is None


def test_tasks_without_gpu_time_take_no_area_at_all():
    """Not even where nothing is left of it."""
    p, q = np.array([5.0, 5.0, 5.0]), np.array([0.0, 0.0, 4.0])
    found = Shelves(p, q, 1, 1, 5.0, fixed(3)).assignment(5)
    assert found.tolist() == [True, True, True]
    full = Shelves(p, q, 1, 1, 5.0, fixed(3))
    full.gpu_area = 0.0
    assert full.assignment(5).tolist() == [True, True, False]


def test_weights_and_counts_at_their_borders():
    assert weights(np.array([0.0, 3.0, 3.1, 6.0, 6.1, 9.0]), 9.0).tolist() == [0, 0, 1, 1, 2, 2]
    part = np.array([0.0, 0.3, 1 / 3, 0.34, 0.5, 0.51, 2 / 3, 0.67, 1.0])
    assert counts(part, 1).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert (counts(part, 2) * 2).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (counts(np.array([0.25, 0.26, 0.5, 0.51, 0.76, 1.0]), 3) * 3).tolist() == [0, 1, 1, 2, 3, 3]


def test_shelves_bind_where_areas_do_not():
    """Five medium tasks of 3.1 at a guess of 9 take 15.5 s of two devices' 18, but only two fit behind each other."""
    medium, never = np.full(5, 3.1), np.full(5, np.inf)
    for k in (0, 1):
        assert Shelves(medium, never, 2, k, 9.0, fixed(5)).assignment(60) is None
        assert Shelves(medium[:4], never[:4], 2, k, 9.0, fixed(4)).assignment(60) is not None
    assert Shelves(never, medium, 1, 2, 9.0, fixed(5)).assignment(60) is None
    assert Shelves(never[:4], medium[:4], 1, 2, 9.0, fixed(4)).assignment(60).all()
    three = Shelves(medium, np.full(5, 5.0), 2, 1, 9.0, fixed(5)).assignment(60)  # one on the GPU, four on the cores
    assert three.sum() == 1


# Counting -------------------------------------------------------------------------------------------------------------


def impossible(p, q, m, k, guess, relaxed, slack, most=6):
    """No fractions of all tasks, the fixed ones with theirs, keep areas and counts with so much slack: devices."""
    n = len(p)
    rows, room = [], []
    for what in [lambda part: part] + [lambda part, s=s: counts(part, s) for s in range(1, most + 1)]:
        cpu, gpu = what(p / guess / (1 + TOLERANCE)), what(q / guess / (1 + TOLERANCE))
        rows += [cpu, -gpu]
        room += [m + slack, k + slack - gpu.sum()]
    bounds = [(1, 1) if relaxed.cpu[j] else (0, 0) if relaxed.gpu[j] else (0, 1) for j in range(n)]
    return linprog(np.zeros(n), A_ub=np.array(rows), b_ub=np.array(room), bounds=bounds).status == 2


@pytest.mark.slow
def test_counting_with_fixed_tasks_is_the_linear_program_of_all_tasks():
    """x_j = 1 is the CPUs.  Where a little slack either way decides, nothing is said, nor where the areas refuse."""
    rng = np.random.default_rng(41)
    answers = []
    for _ in range(200):
        m, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        n = int(rng.integers(4, 9))
        p, q, relaxed = some(rng, n, int(rng.integers(0, n // 2 + 1)), int(rng.integers(0, n // 2 + 1)))
        guess = float(rng.uniform(0.7, 1.2)) * max(12.0, np.minimum(p, q).sum() / (m + k))
        if impossible(p, q, m, k, guess, relaxed, -1e-3, most=0):
            continue
        refused = counting_refuses(p, q, m, k, guess, relaxed)
        if impossible(p, q, m, k, guess, relaxed, 1e-3):
            assert refused
        elif not impossible(p, q, m, k, guess, relaxed, 1e-9):
            assert not refused
        answers.append(refused)
    assert 0.1 < np.mean(answers) < 0.9


@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_areas_of_fixed_tasks_and_counts_refuse_together(side):
    """At 10, a task of 5 fixed on a device leaves room for 0.98 of the others (5.1 each); the other takes one."""
    time = np.array([5.0, 5.1, 5.1])
    assert counting_refuses(time, time, 1, 1, 10.0, fixed(3, **{side: [0]}))
    none = np.array([0.0, 5.1, 5.1])
    assert not counting_refuses(none, none, 1, 1, 10.0, fixed(3, **{side: [0]}))


def test_counting_where_all_tasks_are_fixed():
    """Three tasks of 0.6 on two CPUs: their area fits, their number does not; so on the GPUs."""
    time = np.full(3, 0.6)
    assert counting_refuses(time, time, 2, 3, 1.0, fixed(3, cpu=[0, 1, 2]))
    assert not counting_refuses(time, time, 3, 1, 1.0, fixed(3, cpu=[0, 1, 2]))
    assert counting_refuses(time, time, 3, 2, 1.0, fixed(3, gpu=[0, 1, 2]))
    assert not counting_refuses(time, time, 1, 3, 1.0, fixed(3, gpu=[0, 1, 2]))


def test_counting_is_left_out_where_there_are_too_many_tasks(monkeypatch):
    time = np.full(5, 0.6)
    nothing = fixed(5)
    assert counting_refuses(time, time, 2, 2, 1.0, nothing)
    monkeypatch.setattr(dual_approximation, "LARGEST_LINEAR", 5)
    assert counting_refuses(time, time, 2, 2, 1.0, nothing)
    monkeypatch.setattr(dual_approximation, "LARGEST_LINEAR", 4)
    assert not counting_refuses(time, time, 2, 2, 1.0, nothing)


# The recursion as published -------------------------------------------------------------------------------------------


def test_states_of_the_published_recursion():
    assert pairs(0) == [(0, 0)]
    assert pairs(1) == [(0, 0), (1, 0), (2, 0), (0, 1)]
    for devices in range(5):
        wanted = {(a, b) for a in range(2 * devices + 1) for b in range(devices + 1) if a / 2 + b <= devices}
        assert set(pairs(devices)) == wanted
        assert len(pairs(devices)) == (devices + 1) ** 2
    small, medium, long = predecessors(pairs(1))
    assert small.tolist() == [0, 1, 2, 3]
    assert medium.tolist() == [-1, 0, 1, -1]
    assert long.tolist() == [-1, -1, -1, 0]


def test_the_published_recursion_refuses_what_is_too_long_and_takes_what_just_fits():
    p, q = np.array([5.0, 9.0]), np.array([9.0, 5.0])
    found = as_published(p, q, 1, 1, 5.0)
    assert found is not None
    assert found.on_gpu.tolist() == [False, True]
    assert as_published(p, q, 1, 1, 4.99) is None
    both = as_published(np.array([5.0, 5.0]), np.array([9.0, 9.0]), 1, 1, 5.0)
    assert both is None
    assert as_published(np.array([5.0, 5.0]), np.array([9.0, 9.0]), 2, 1, 5.0).on_gpu.tolist() == [False, False]


# Schedules ------------------------------------------------------------------------------------------------------------


def test_longest_first_by_hand():
    """CPUs: 5, 4, 3 on two: 5 alone, then 4 and 3.  The GPU: 6, then 2."""
    p, q = np.array([3.0, 5.0, 4.0, 9.0, 9.0]), np.array([9.0, 9.0, 9.0, 2.0, 6.0])
    found = longest_first(p, q, 2, 1, mask(5, [3, 4]))
    assert found.starts.tolist() == [4.0, 0.0, 0.0, 6.0, 0.0]
    assert found.lanes[0] == found.lanes[2] != found.lanes[1]
    assert found.lanes[3:].tolist() == [0, 0]
    assert found.makespan == 8.0


def test_sequenced_by_hand():
    """Lanes 0 and 1 are cores, 2 is the GPU; longest first on each, no gaps."""
    p, q = np.array([3.0, 5.0, 4.0, 9.0, 1.0]), np.array([9.0, 9.0, 9.0, 2.0, 6.0])
    found = sequenced(p, q, 2, np.array([0, 0, 1, 2, 2]))
    assert found.starts.tolist() == [5.0, 0.0, 0.0, 6.0, 0.0]
    assert found.on_gpu.tolist() == [False, False, False, True, True]
    assert found.lanes.tolist() == [0, 0, 1, 0, 0]
    assert found.makespan == 8.0
    nothing = sequenced(p[:0], q[:0], 2, np.zeros(0, dtype=np.int64))
    assert (nothing.makespan, len(nothing.starts)) == (0.0, 0)


def test_earliest_finish_by_hand():
    """One core and one GPU.  Order 0, 1, 2: 4 on both: the GPU; then 3 on the core; then 3 + 3 on the core or 4 + 1."""
    p, q = np.array([4.0, 3.0, 3.0]), np.array([4.0, 5.0, 1.0])
    found = earliest_finish(p, q, 1, 1, np.array([0, 1, 2]))
    assert found.on_gpu.tolist() == [True, False, True]
    assert found.makespan == 5.0
    one = earliest_finish(p, q, 1, 0, np.array([2, 1, 0]))
    assert one.makespan == 10.0 and not one.on_gpu.any()
    assert earliest_finish(p, q, 0, 1, np.array([2, 1, 0])).makespan == 10.0


def test_earliest_finish_fills_the_lane_that_is_free_first():
    """Five tasks of 1, 1, 1, 1, 1 on three cores, in this order: 2, 2 and 1 to a core."""
    ones = np.ones(5)
    found = earliest_finish(ones, np.full(5, np.inf), 3, 0, np.arange(5))
    assert sorted(np.bincount(found.lanes, minlength=3).tolist()) == [1, 2, 2]
    other = earliest_finish(np.full(5, np.inf), ones, 2, 3, np.arange(5))
    assert sorted(np.bincount(other.lanes, minlength=3).tolist()) == [1, 2, 2]
    assert other.on_gpu.all()


def test_earliest_finish_looks_at_what_is_there_already():
    """5 s on the core, 4 on the GPU: the first goes to the GPU, the second to the core, the third to the GPU."""
    found = earliest_finish(np.full(3, 5.0), np.full(3, 4.0), 1, 1, np.arange(3))
    assert found.on_gpu.tolist() == [True, False, True]
    assert found.makespan == 8.0


@pytest.mark.parametrize(("m", "k"), [(2, 0), (0, 2)])
def test_earliest_finish_keeps_the_order_where_that_is_better(m, k):
    """3, 2, 2, 3, 2 on two lanes: 3 + 3 and 2 + 2 + 2; longest first would take 7."""
    times, never = np.array([3.0, 2.0, 2.0, 3.0, 2.0]), np.full(5, np.inf)
    found = earliest_finish(*((times, never) if m else (never, times)), m, k, np.arange(5))
    assert found.makespan == 6.0
    assert longest_first(*((times, never) if m else (never, times)), m, k, np.full(5, k > 0)).makespan == 7.0


def test_rivals_are_three_orders():
    """Shortest time, mean time over all devices, ratio of the two times; each listed by earliest finish."""
    rng = np.random.default_rng(51)
    for _ in range(20):
        n, m, k = 9, int(rng.integers(1, 4)), int(rng.integers(1, 4))
        p, q = rng.uniform(1, 10, n), rng.uniform(1, 10, n)
        keys = np.minimum(p, q), (m * p + k * q) / (m + k), np.maximum(p / q, q / p)
        wanted = [earliest_finish(p, q, m, k, np.argsort(-key, kind="stable")) for key in keys]
        found = rivals(p, q, m, k)
        assert [one.makespan for one in found] == [one.makespan for one in wanted]
        assert all((a.lanes == b.lanes).all() for a, b in zip(found, wanted, strict=True))
    only = rivals(np.array([2.0, 1.0]), np.full(2, np.inf), 1, 0)
    assert [one.makespan for one in only] == [3.0] * 3
    assert rivals(np.zeros(2), np.zeros(2), 1, 1)[2].makespan == 0.0  # 0/0: neither side is faster


def of_lanes(p, q, m, lanes):
    return sequenced(p, q, m, np.array(lanes))


def loads(p, q, m, k, schedule):
    found = np.zeros(m + k)
    lane = schedule.lanes + np.where(schedule.on_gpu, m, 0)
    np.add.at(found, lane, np.where(schedule.on_gpu, q, p))
    return found, lane


def test_descent_ends_where_no_move_and_no_exchange_helps():
    """From a bad start, by trying all moves and exchanges of the longest lane; and nothing is made worse."""
    rng = np.random.default_rng(52)
    better = 0
    for _ in range(60):
        n, m, k = 8, int(rng.integers(1, 4)), int(rng.integers(1, 4))
        p, q = rng.integers(1, 20, n).astype(float), rng.integers(1, 20, n).astype(float)
        begin = of_lanes(p, q, m, rng.integers(0, m + k, n))
        found = descend(p, q, m, k, begin, 0.0)
        assert found.makespan <= begin.makespan
        better += found.makespan < begin.makespan
        load, lane = loads(p, q, m, k, found)
        longest = int(load.argmax())
        assert load[longest] == pytest.approx(found.makespan)

        def time(task, to, m=m, p=p, q=q):
            return p[task] if to < m else q[task]

        for task in np.flatnonzero(lane == longest):
            for to in range(m + k):
                if to != longest:
                    assert load[to] + time(task, to) >= load[longest] * (1 - 1e-9)
            for other in np.flatnonzero(lane != longest):
                to = int(lane[other])
                here = load[longest] - time(task, longest) + time(other, longest)
                there = load[to] - time(other, to) + time(task, to)
                assert max(here, there) >= load[longest] * (1 - 1e-9)
    assert better > 40


def test_descent_by_an_exchange_alone():
    """Cores with 6 + 4 and 4 + 3: no move helps, and exchanging 4 for 3 gives 9 and 8; from there nothing helps."""
    p, q = np.array([6.0, 4.0, 4.0, 3.0]), np.full(4, np.inf)
    found = descend(p, q, 2, 0, of_lanes(p, q, 2, [0, 0, 1, 1]), 0.0)
    assert found.makespan == 9.0
    assert sorted(loads(p, q, 2, 0, found)[0].tolist()) == [8.0, 9.0]
    same = of_lanes(p, q, 2, [0, 1, 1, 0])
    assert descend(p, q, 2, 0, same, 0.0).makespan == 9.0


def test_descent_stops_where_it_is_short_enough():
    p, q = np.array([6.0, 4.0, 4.0, 3.0]), np.full(4, np.inf)
    begin = of_lanes(p, q, 2, [0, 0, 1, 1])  # 10 and 7
    assert descend(p, q, 2, 0, begin, 10.0) is begin
    assert descend(p, q, 2, 0, begin, 9.99).makespan == 9.0
    piled = of_lanes(p, q, 2, [0, 0, 0, 0])  # 17; moving 6, 4 or 3 leaves 11, 13 or 14
    assert descend(p, q, 2, 0, piled, 17.0) is piled


def test_descent_has_a_budget(monkeypatch):
    """Each step looks at the tasks of the longest lane times all: 4 · 4, then 3 · 4 after moving the 3, then 2 · 4."""
    p, q = np.array([6.0, 4.0, 4.0, 3.0]), np.full(4, np.inf)
    piled = of_lanes(p, q, 2, [0, 0, 0, 0])
    for pairs_, makespan in ((15, 17.0), (16, 14.0), (27, 14.0), (28, 10.0), (35, 10.0), (36, 9.0)):
        monkeypatch.setattr(dual_approximation, "PAIRS", pairs_)
        assert descend(p, q, 2, 0, piled, 0.0).makespan == makespan


def test_descent_begins_with_the_schedule_that_it_is_given(monkeypatch):
    """Without a budget nothing moves, though the cores would be ten times as fast."""
    monkeypatch.setattr(dual_approximation, "PAIRS", 0)
    p, q = np.full(4, 1.0), np.full(4, 10.0)
    for lanes, makespan in (([2, 2, 2, 2], 40.0), ([3, 3, 0, 0], 20.0), ([2, 3, 2, 1], 20.0)):
        assert descend(p, q, 2, 2, of_lanes(p, q, 2, lanes), 0.0).makespan == makespan


def test_the_shortest_is_the_first_of_equals():
    one, two, three = (
        TwoSidedSchedule(mask(1, []), np.zeros(1), np.zeros(1), makespan) for makespan in (3.0, 2.0, 2.0)
    )
    assert shortest([one, two, three]) is two


@pytest.mark.parametrize(
    ("arrival", "end"),
    [([2, 2, 6, 1], 9), ([1, 1, 9, 4], 11), ([0, 0, 0, 0], 7), ([0, 20, 0, 0], 24)],
)
def test_lanes_wait_for_their_tasks(arrival, end):
    """Core: arrives 2, takes 3, then one of 4 that is there: 2 + 3 + 4 = 9.  GPU: arrives 6, takes 2: 8."""
    given = static_problem([[3, 9], [4, 9], [9, 2], [9, 1]], [1, 2], [float(at) for at in arrival])
    found = timing(runnable(given, "paper"), [(0, 0, 0), (2, 1, 0), (3, 1, 1), (1, 0, 0)])
    assert found.finish.max() == end and found.exact


def exact_makespan(p, q, m, k):
    """By trying all lanes for all tasks."""
    least = math.inf
    times = np.column_stack([*[p] * m, *[q] * k])
    for lanes in product(range(m + k), repeat=len(p)):
        load = np.bincount(lanes, weights=times[range(len(p)), lanes], minlength=m + k)
        least = min(least, load.max())
    return least


def test_bounds_and_schedules_enclose_what_trying_all_finds():
    rng = np.random.default_rng(55)
    for m, k in ((2, 1), (1, 2), (1, 1), (2, 1), (1, 2)):
        p, q = rng.uniform(2, 9, 5), rng.uniform(2, 9, 5)
        best = exact_makespan(p, q, m, k)
        found = solve(p, q, m, k)
        assert found.bound <= best * (1 + 1e-9)
        assert best <= found.makespan * (1 + 1e-9)
        assert found.makespan <= RATIO * 1.001 * best


# Bisection ------------------------------------------------------------------------------------------------------------


def test_what_a_solution_proves():
    schedule = TwoSidedSchedule(mask(1, []), np.zeros(1), np.zeros(1), 6.0)
    assert Solution(schedule, 4.0, RATIO, 3, 5.0).ratio == 1.5
    assert Solution(schedule, 0.0, RATIO, 3, 5.0).ratio == 1.0
    assert Solution(schedule, 4.0, RATIO, 3, 5.0).makespan == 6.0


@pytest.mark.quick(2)
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-5])
def test_bisection_ends_at_its_tolerance(tolerance):
    """At the end bound < guess ≤ bound · (1 + tolerance) unless the schedule meets the bound, and makespan ≤ ratio."""
    rng = np.random.default_rng(53)
    guesses = 0
    for _ in range(tiers.some(15)):
        p, q = rng.integers(3, 30, 7).astype(float), rng.integers(3, 30, 7).astype(float)
        found = solve(p, q, 2, 1, tolerance=tolerance)
        assert found.bound <= found.guess <= found.bound * (1 + tolerance)
        assert found.bound <= found.makespan * (1 + 1e-12)
        assert found.makespan <= found.guarantee * found.bound * (1 + 1e-9)
        assert found.guarantee == pytest.approx(RATIO * (1 + tolerance))
        guesses += found.guesses
    assert guesses > 0 or tolerance > 0.1


def test_bisection_halves_the_logarithm(monkeypatch):
    """Guesses are geometric means: with everything refused they approach the first schedule from the bound."""
    p, q = np.array([6.0, 6.0, 6.0]), np.full(3, 100.0)
    seen = []

    def refuse(p, q, m, k, guess, **named):
        seen.append(guess)

    monkeypatch.setattr(dual_approximation, "attempt", refuse)
    found = solve(p, q, 2, 0, tolerance=0.01)
    low, wanted = 9.0, []
    while low * 1.01 < 12.0:
        low = math.sqrt(low * 12.0)
        wanted.append(low)
    assert seen == pytest.approx(wanted)
    assert (found.makespan, found.guess, found.guesses) == (12.0, 12.0, len(wanted))
    assert found.bound == pytest.approx(low)


def test_a_schedule_at_hand_within_the_ratio_is_an_answer(monkeypatch):
    """The program is not refined where the best known schedule is already within the ratio of the guess."""
    rng = np.random.default_rng(54)
    p, q = rng.uniform(1, 10, 9), rng.uniform(1, 10, 9)
    best = solve(p, q, 2, 2)
    asked = []
    real = Shelves.assignment

    def watched(self, units):
        asked.append(units)
        return real(self, units)

    monkeypatch.setattr(Shelves, "assignment", watched)
    monkeypatch.setattr(dual_approximation, "FIRST_UNITS", 2)
    monkeypatch.setattr(dual_approximation, "relaxation", lambda p, q, m, k, guess, order: fixed(9))
    guess = best.makespan
    nowhere = TwoSidedSchedule(mask(9, []), np.zeros(9), np.zeros(9), math.inf)
    found = attempt(p, q, 2, 2, guess, RATIO, by_gain(p, q), best.schedule)
    assert found is not None
    assert len(asked) == 1 and asked[0] == 2
    asked.clear()
    finest = Shelves(p, q, 2, 2, guess, fixed(9)).units(coarseness=1)
    tight = attempt(p, q, 2, 2, guess, 1e-9, by_gain(p, q), nowhere)
    assert tight is not None
    assert asked == [2, 16, finest] if finest <= 128 else asked[:3] == [2, 16, 128]
    assert asked[-1] == finest
    assert tight.makespan <= RATIO * guess * (1 + 1e-9)


@pytest.mark.parametrize(("largest", "units"), [(1, [1]), (20 * 9, [20]), (100 * 9, [55])])
def test_programs_have_a_largest_size(monkeypatch, largest, units):
    """In cells: units times 9 free tasks, as no shelf can bind; the finest are 55, a hair above 3 · 9 · 10 / 5."""
    asked = []
    real = Shelves.assignment
    monkeypatch.setattr(Shelves, "assignment", lambda self, units: asked.append(units) or real(self, units))
    monkeypatch.setattr(dual_approximation, "LARGEST", largest)
    monkeypatch.setattr(dual_approximation, "relaxation", lambda p, q, m, k, guess, order: fixed(9))
    p = np.full(9, 1.0)
    known = TwoSidedSchedule(mask(9, []), np.zeros(9), np.zeros(9), math.inf)
    assert Shelves(p, p, 2, 2, 5.0, fixed(9)).cells_a_unit == 9
    assert attempt(p, p, 2, 2, 5.0, 0.1, by_gain(p, p), known) is not None
    assert asked == units


def test_coarse_programs_are_as_coarse_as_the_ratio_allows(monkeypatch):
    """With c times the units, 4/3 + (c - 1) / (3k): a ratio of 5/3 on 2 GPUs allows c = 3."""
    asked = []

    def watched(self, coarseness):
        asked.append(coarseness)
        return 1

    monkeypatch.setattr(Shelves, "units", watched)
    monkeypatch.setattr(dual_approximation, "relaxation", lambda p, q, m, k, guess, order: fixed(len(p)))
    monkeypatch.setattr(dual_approximation, "counting_refuses", lambda *_, **named: False)
    p = np.full(9, 9.0)
    known = TwoSidedSchedule(mask(9, []), np.zeros(9), np.zeros(9), math.inf)
    for ratio, k, wanted in ((RATIO, 2, 1.0), (5 / 3, 2, 3.0), (5 / 3, 1, 2.0)):
        attempt(p, p, 1, k, 9.0, ratio, by_gain(p, p), known)
        assert asked.pop() == pytest.approx(wanted)


def test_the_relaxation_without_a_cut_in_reach_goes_on_to_the_program():
    """The cut is taken where it is within the ratio, and only there."""
    p, q = np.array([4.0, 4.0, 4.0, 4.0]), np.array([4.0, 4.0, 4.0, 4.0])
    relaxed = relaxation(p, q, 2, 2, 4.0)
    cut = longest_first(p, q, 2, 2, relaxed.cut)
    assert cut.makespan == 4.0
    known = TwoSidedSchedule(mask(4, []), np.zeros(4), np.zeros(4), math.inf)
    assert attempt(p, q, 2, 2, 4.0, RATIO, by_gain(p, q), known).makespan == 4.0
    assert attempt(p, q, 2, 2, 3.99, RATIO, by_gain(p, q), known) is None


# Input and plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k"), [(-1, 1), (1, -1)])
def test_counts_of_devices_are_not_negative(m, k):
    with pytest.raises(ScenarioError, match="times must match the devices; got"):
        solve(np.ones(2), np.ones(2), m, k)


def test_times_are_columns():
    with pytest.raises(ScenarioError, match="times must match the devices; got"):
        solve(np.ones((2, 2)), np.ones((2, 2)), 1, 1)


def test_every_kind_of_wrong_time_is_told_with_its_number():
    with pytest.raises(ScenarioError) as told:
        solve(np.array([1.0, np.nan, -1.0, np.inf]), np.array([-2.0, 1.0, np.nan, np.inf]), 1, 1)
    text = str(told.value)
    assert "task 1: its time is NaN (2 such tasks)" in text
    assert "task 0: its time is negative (2 such tasks)" in text
    assert "task 3: its time is infinite wherever there is a device (1 such tasks)" in text


def test_a_time_without_a_device_is_not_looked_at_and_zero_is_a_time():
    assert solve(np.array([np.inf, np.inf]), np.array([3.0, 0.0]), 0, 1).makespan == 3.0
    assert solve(np.array([0.0]), np.array([np.inf]), 1, 1).makespan == 0.0


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.inf, math.nan])
def test_tolerances_are_positive_numbers(tolerance):
    with pytest.raises(ScenarioError, match="tolerance must be above 0; got"):
        solve(np.ones(1), np.ones(1), 1, 1, tolerance=tolerance)


def test_ratios_are_four_thirds_or_more():
    assert DualApproximation(ratio=4 / 3).ratio == RATIO
    assert solve(np.ones(1), np.ones(1), 1, 1, ratio=4 / 3 - 1e-10).makespan == 1.0
    for ratio in (1.3333, math.inf, math.nan):
        with pytest.raises(ScenarioError, match="at least 4/3"):
            solve(np.ones(1), np.ones(1), 1, 1, ratio=ratio)


def planned(workload, nodes):
    plans = []

    class Kept(DualApproximation):
        def plan(self, problem):
            plans.append(super().plan(problem))
            return plans[-1]

    hs.register("dual", Kept)
    result = hs.run({"cluster": {"nodes": nodes}, "workload": workload, "policy": "dual"}, check=True)
    return plans[0], result


def test_a_plan_of_tasks_that_come_one_after_the_other_promises_no_ratio():
    """Two tasks of 4 s, the second 10 s later, on one core: 14 s, which the bound with arrivals proves optimal."""
    workload = {"arrivals": {"process": "deterministic", "interval": "10 s"}, "count": 2, "cpu_time": "4 s"}
    plan, result = planned(workload, {"cpus": 1})
    assert plan.makespan == pytest.approx(result.metric("makespan")) == 14.0
    assert plan.bound == 14.0
    assert plan.notes["ratio_certified"] == 1.0
    assert "ratio_guaranteed" not in plan.notes
    assert plan.notes["guess"] == 8.0


def test_a_plan_of_tasks_that_are_there_at_once_names_its_guarantee():
    workload = {"arrivals": {"process": "all_at_once", "count": 3}, "cpu_time": "6 s", "gpu_time": "6 s"}
    plan, result = planned(workload, {"cpus": 1, "gpus": {"type": "g", "count": 1}})
    assert plan.makespan == result.metric("makespan") == 12.0
    assert plan.notes["ratio_guaranteed"] == pytest.approx(RATIO * 1.001)
    assert plan.notes["ratio_certified"] == pytest.approx(12.0 / plan.bound)
    starts = sorted(result.tasks["start"])
    assert starts == [0.0, 0.0, 6.0]


def problem(times, cpus=1, gpus=1, arrival=0.0, **more):
    """Tasks with times on a core and on a GPU, for a planner."""
    cpu, gpu = DeviceType("cpu", kind="cpu"), DeviceType("g")
    both = [cpu_mode(cpu), gpu_mode(gpu)]
    where = Cluster([NodeSpec(cpus=cpus, accelerators=((gpu, gpus),), cpu_type=cpu)])
    return PlanProblem(tasks_of([Job(both, one, arrival=arrival) for one in times]), where, **more)


def test_a_plan_in_mid_run_begins_where_lanes_come_free():
    """At 10 the core is free, at 14 the GPU.  (2, 9), (9, 3) and (4, 9) s: 6 on the core, 14 + 3 on the GPU."""
    times = [(2.0, 9.0), (9.0, 3.0), (4.0, 9.0)]
    plan = DualApproximation().plan(problem(times, arrival=10.0, now=10.0, in_mid_run=True, free_at={"n0/g0": 14.0}))
    assert plan.makespan == 7.0
    assert 6.0 <= plan.bound <= 7.0
    assert {step.task: step.devices[0] for step in plan.steps} == {0: "n0/cpu0", 1: "n0/g0", 2: "n0/cpu0"}


def test_a_plan_of_nothing_to_do_is_certain():
    plan = DualApproximation().plan(problem([(0.0, 0.0), (0.0, 0.0)]))
    assert (plan.makespan, plan.bound) == (0.0, 0.0)
    assert plan.notes["ratio_certified"] == 1.0


def test_steps_of_a_plan_stand_in_the_order_of_their_starts():
    """On one core, longest first: 5, 3, 2; the GPU takes what it is a tenth of the time for."""
    plan = DualApproximation().plan(problem([(2.0, 90.0), (3.0, 90.0), (5.0, 90.0), (90.0, 9.0)]))
    assert [step.task for step in plan.steps if step.devices == ("n0/cpu0",)] == [2, 1, 0]
    assert [step.task for step in plan.steps if step.devices == ("n0/g0",)] == [3]
    assert plan.makespan == 10.0


def test_tasks_with_predecessors_and_clusters_of_three_types_are_refused():
    nodes = [{"cpus": 1, "gpus": [{"type": "a", "count": 1}, {"type": "b", "count": 1}]}]
    workload = {"arrivals": {"process": "all_at_once", "count": 2}, "cpu_time": "1 s"}
    with pytest.raises(ScenarioError, match="one CPU and one GPU type; the cluster has cpu, a, b"):
        planned(workload, nodes)
