"""Policies for clusters of several types of device: programs over time fractions, matching, pairs, sleep."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate
from scipy.optimize import linear_sum_assignment, linprog
from tiers import some, spread

from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType, Power, Price, Sharing
from hetsim.policy import ListScheduler
from hetsim.testing import examine, random_system, small_systems
from hetsim_policies.dynamic.common import fractions
from hetsim_policies.dynamic.common.fractions import (
    ModeOffers,
    best_ratio,
    equal_share,
    max_min,
    max_sum,
    min_worst_ratio,
)
from hetsim_policies.dynamic.common.rounds import RoundScheduler
from hetsim_policies.dynamic.packing import Similarity, likeness
from hetsim_policies.dynamic.power_down import PowerDown, break_even
from hetsim_policies.dynamic.sharing import Gandiva, SharingByTable, finish_times
from hetsim_policies.dynamic.time_fractions import (
    FcfsRounds,
    FinishTimeFairness,
    Isolated,
    MaxMinFairness,
    MaxThroughput,
    MinMakespan,
)
from hetsim_policies.dynamic.unlike import AlloX, JobMode, MultiGeneration, matching

OLD, NEW = DeviceType("old"), DeviceType("new")


def offers(times, capacity, width=None, weight=None):
    """A job a row, a type a column."""
    times = np.array(times, dtype=float)
    jobs, kinds = times.shape
    widths = np.ones(jobs) if width is None else np.array(width, dtype=float)
    return ModeOffers(
        np.repeat(np.arange(jobs), kinds), np.tile(np.arange(kinds), jobs), np.repeat(widths, kinds), times.ravel(),
        np.array(capacity, dtype=float), np.ones(jobs) if weight is None else np.array(weight, dtype=float),
    )  # fmt: skip


def drawn(seed, jobs, kinds=3):
    random = np.random.default_rng(seed)
    times = random.lognormal(5, 1, (jobs, 1)) * random.lognormal(0, 0.7, (jobs, kinds))
    return offers(times, random.integers(1, 9, kinds), random.choice([1, 2], jobs), random.integers(1, 4, jobs))


def check_feasible(found, fraction):
    assert (fraction >= 0).all()
    assert (np.bincount(found.job, fraction, found.jobs) <= 1 + 1e-6).all()
    used = np.bincount(found.kind, fraction * found.width, len(found.capacity))
    assert (used <= found.capacity * (1 + 1e-6)).all()


# Programs over fractions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", spread(range(8), 4))
@pytest.mark.parametrize("levels", [1, 4])
def test_max_min_is_feasible_and_nobody_is_below_an_equal_share(seed, levels):
    found = drawn(seed, 12)
    share = equal_share(found)
    check_feasible(found, share)
    fraction = max_min(found, found.progress(share), levels)
    check_feasible(found, fraction)
    assert (found.progress(fraction) >= found.progress(share) * (1 - 1e-6)).all()


@pytest.mark.parametrize("seed", spread(range(6), 3))
def test_max_min_against_all_fractions_on_a_grid(seed):
    """Two jobs, two types: the optimum is at least the best of a grid, and at most one step better."""
    random = np.random.default_rng(seed)
    found = offers(random.integers(1, 9, (2, 2)), [1, 1])
    base = found.progress(equal_share(found))

    def least(fraction):
        return float((found.progress(np.asarray(fraction)) / base).min())

    steps = 20
    grid = np.arange(steps + 1) / steps
    # With capacity one each, a job's fractions on the other type are bounded by what the first leaves.
    best = max(
        least((a, b, c, d))
        for a, b in itertools.product(grid, grid) if a + b <= 1 + 1e-9
        for c in (min(1 - a, 1.0), *grid) if a + c <= 1 + 1e-9
        for d in (min(1 - b, 1 - c),)
    )  # fmt: skip
    optimum = least(max_min(found, base))
    assert optimum >= best - 1e-6
    assert optimum <= best * (1 + 4 / steps) + 1e-6


def test_water_filling_gives_the_rest_to_those_who_can_use_it():
    """Job 0 runs on the first type only, and shares it with nobody who could leave; job 1 also on the second."""
    found = offers([[1, 1e9], [1, 1], [1, 1]], [1, 1])
    base = np.array([1.0, 1.0, 1.0])
    progress = found.progress(max_min(found, base, levels=4))
    assert progress == pytest.approx([2 / 3, 2 / 3, 2 / 3], rel=1e-5)
    narrow = offers([[1, 1e9], [2, 1e9], [1e9, 1]], [1, 1])
    progress = narrow.progress(max_min(narrow, np.ones(3), levels=4))
    assert progress == pytest.approx([1 / 3, 1 / 3, 1], rel=1e-5)


def test_alike_jobs_count_once_and_get_the_same():
    found = offers([[4, 2], [8, 4], [4, 2], [1, 7]], [1, 1])
    fraction = max_min(found, found.progress(equal_share(found))).reshape(4, 2)
    assert np.allclose(fraction[0], fraction[1])
    assert np.allclose(fraction[0], fraction[2])


def one_mode_each(seed):
    """Random jobs with one mode each, on one to three types, and their bases."""
    random = np.random.default_rng(seed)
    count, kinds = int(random.integers(1, 30)), int(random.integers(1, 4))
    width = random.choice([1.0, 2.0, 4.0, 8.0], count) if seed % 2 else np.ones(count)
    times = random.choice([128.0, 256.0, 512.0], count) if seed % 3 else random.lognormal(7, 1.5, count)
    found = ModeOffers(
        np.arange(count), random.integers(0, kinds, count), width, time=times,
        capacity=random.integers(8, 40, kinds).astype(float), weight=random.choice([1.0, 2.0], count),
    )  # fmt: skip
    return found, found.fair_progress if seed % 5 else random.lognormal(-7, 1, count)


def filled_exactly(found, base):
    """Progress / base by water filling in fractions of whole numbers, job by job."""
    gain = [Fraction(rate) / Fraction(one) for rate, one in zip(found.rate.tolist(), base.tolist(), strict=True)]
    width, kind = [Fraction(one) for one in found.width.tolist()], found.kind.tolist()
    free = [Fraction(one) for one in found.capacity.tolist()]
    levels, rises = [Fraction(0)] * found.jobs, set(range(found.jobs))
    while rises:
        asked = [sum(width[job] / gain[job] for job in rises if kind[job] == one) for one in range(len(free))]
        full = [room / some if some else None for room, some in zip(free, asked, strict=True)]
        level = min([gain[job] for job in rises] + [one for one in full if one is not None])
        near = level * (1 + Fraction(1, 10**9))  # the bases are rounded
        fixed = {job for job in rises if gain[job] <= near or full[kind[job]] <= near}
        for job in fixed:
            levels[job] = level
            free[kind[job]] -= width[job] * level / gain[job]
        rises -= fixed
    return np.array([float(level) for level in levels])


@pytest.mark.parametrize("seed", spread(range(40), 20))
def test_jobs_of_one_mode_are_filled_up_without_a_program(seed, monkeypatch):
    """To 1e-9 as in exact arithmetic; to the slack of the programs as by them, which agree on the least and the sum."""
    found, base = one_mode_each(seed)
    by_programs = [fractions._max_min(found, base, levels) for levels in (60, 1)]
    monkeypatch.setattr(fractions, "linprog", None)
    all_levels, one_level = (max_min(found, base, levels) for levels in (60, 1))
    for fraction in (all_levels, one_level):
        check_feasible(found, fraction)
    assert found.progress(all_levels) / base == pytest.approx(filled_exactly(found, base), rel=1e-9)
    assert found.progress(all_levels) == pytest.approx(found.progress(by_programs[0]), rel=20 * fractions.SLACK)
    ours, theirs = (found.progress(fraction) / base for fraction in (one_level, by_programs[1]))
    assert ours.min() == pytest.approx(theirs.min(), rel=2 * fractions.SLACK)
    assert ours.sum() == pytest.approx(theirs.sum(), rel=20 * fractions.SLACK)


def test_what_is_above_the_levels_goes_to_the_greatest_progress_for_a_device():
    """Three jobs on two devices: the first, on its base all the time, needs one; of the others one gains twice as much
    for a device.  Two that are alike have equal parts."""
    capacity, weight = np.array([2.0]), np.ones(3)
    found = ModeOffers(np.arange(3), np.zeros(3, dtype=int), np.ones(3), np.array([1.0, 0.25, 0.125]), capacity, weight)
    assert max_min(found, np.ones(3), 1).tolist() == pytest.approx([1, 0.25, 0.75])
    alike = ModeOffers(np.arange(3), np.zeros(3, dtype=int), np.ones(3), np.array([1.0, 0.25, 0.25]), capacity, weight)
    assert max_min(alike, np.ones(3), 1).tolist() == pytest.approx([1, 0.5, 0.5])
    absent = ModeOffers(np.arange(1, 3), np.zeros(2, dtype=int), np.ones(2), np.ones(2), np.ones(1), weight)
    assert max_min(absent, np.array([1.0, 0.0, 2.0]), 4).tolist() == [0, 1]


@pytest.mark.slow
def test_512_jobs_and_4_types_take_two_programs(monkeypatch):
    random = np.random.default_rng(1)
    times = random.lognormal(7, 1.5, (512, 1)) / [1, 2, 4, 8] * random.lognormal(0, 0.5, (512, 4))
    found = offers(times, [128] * 4, random.choice([1, 2, 4, 8], 512, p=[0.6, 0.15, 0.15, 0.1]))
    base = found.progress(equal_share(found))
    solved = []
    monkeypatch.setattr(fractions, "linprog", lambda *a, **k: solved.append(1) or linprog(*a, **k))
    check_feasible(found, max_min(found, base, levels=1))
    assert len(solved) == 2  # the level, and the sum above it


def test_min_makespan_is_the_least_of_all_preemptive_schedules():
    """Lawler and Labetoulle: two jobs that each want the same fast device, worked out on paper."""
    found = offers([[2, 6], [2, 6]], [1, 1])
    progress = found.progress(max_min(found, np.ones(2)))
    assert 1 / progress.min() == pytest.approx(3.0)  # half of the time on each: 1/4 + 1/12 = 1/3 job a second


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_the_worst_finish_time_ratio_is_least(seed):
    """A ratio that is one per cent better asks for more than there is."""
    found = drawn(seed, 6)
    random = np.random.default_rng(seed)
    alone = 1 / found.progress(equal_share(found))
    elapsed = random.random(6) * alone * 2
    left = random.random(6) * 0.9 + 0.1
    fraction = min_worst_ratio(found, elapsed, left, alone)
    check_feasible(found, fraction)
    worst = float(np.max((elapsed + left / found.progress(fraction)) / alone))
    aim = worst * 0.99 * alone - elapsed
    if (aim > 0).all():
        base = left / aim
        assert float(np.min(found.progress(max_min(found, base)) / base)) < 1


def test_throughput_takes_the_comparative_advantage_and_keeps_deadlines():
    found = offers([[10, 1], [4, 2]], [1, 1])
    value = found.rate / found.fastest()[found.job]
    fraction = max_sum(found, value, np.zeros(2)).reshape(2, 2)
    assert fraction == pytest.approx(np.array([[0, 1], [1, 0]]))
    least = np.array([0.0, 0.4])
    with_deadline = max_sum(found, value, least)
    assert found.progress(with_deadline)[1] >= 0.4 * (1 - 1e-6)
    check_feasible(found, max_sum(found, value, np.array([5.0, 5.0])))  # impossible ones: as near as can be


def test_the_ratio_to_the_cost_is_the_best_of_any_single_offer():
    found = drawn(3, 5)
    value = found.rate / found.fastest()[found.job]
    cost = found.width * np.array([1.0, 3.0, 0.5])[found.kind]
    fraction = best_ratio(found, value, cost, np.zeros(5))
    assert (value @ fraction) / (cost @ fraction) == pytest.approx(float(np.max(value / cost)), rel=1e-4)


# Rounds ---------------------------------------------------------------------------------------------------------


class Watched(MaxMinFairness):
    """Writes down how far everybody is from what is due, at the end of each round, in rounds."""

    strays: list

    def _account(self, view):
        super()._account(view)
        for job in self.jobs.values():
            gaps = (due - got for due, got in zip(job.due, job.received, strict=True))
            self.strays += [gap / self.round_length for gap in gaps]


def strays(scheduler, count, specs, modes, times):
    scheduler.strays = []
    simulate(specs, [Job(modes, times(i)) for i in range(count)], scheduler)
    return np.array(scheduler.strays)


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [3, 5, 7, 16])
def test_by_deficit_nobody_lags_by_more_than_the_bound(count):
    """Equal width, one type: 1 + ln n rounds (Adler et al., 2003)."""
    specs = NodeSpec(accelerators=((OLD, 2),))
    found = strays(Watched(1.0, "deficit"), count, specs, [gpu_mode(OLD)], lambda i: [40.0 + i])
    assert found.max() <= 1 + math.log(count) + 1e-6


@pytest.mark.quick(1)
@pytest.mark.parametrize("rule", ["ratio", "deficit"])
def test_realized_fractions_come_near_on_several_types(rule):
    """Two types, six jobs of unlike ratios: a few rounds, while each runs for a hundred or so."""
    specs = [NodeSpec(accelerators=((OLD, 2),)), NodeSpec(accelerators=((NEW, 1),))]
    found = strays(Watched(1.0, rule), 6, specs, [gpu_mode(OLD), gpu_mode(NEW)], lambda i: [200.0, 200.0 / (1 + i)])
    assert found.size
    assert np.percentile(found, 90) <= 2.5


def test_isolated_gives_an_equal_share_and_no_more():
    found = offers([[5, 1], [3, 2], [4, 4], [9, 8]], [2, 1])
    assert equal_share(found).reshape(4, 2) == pytest.approx(np.tile([0.5, 0.25], (4, 1)))
    specs = NodeSpec(accelerators=((OLD, 1),))
    jobs = [Job([gpu_mode(OLD)], [10.0]) for _ in range(4)]
    record = simulate(specs, jobs, Isolated(round_length=1.0))
    # A quarter each, for ever the same: the last ends when all the work is done, and the first not much before.
    assert record.finish.max() == pytest.approx(40, abs=1.5)
    assert record.finish.min() > 34
    alone = simulate(NodeSpec(accelerators=((OLD, 2),)), [Job([gpu_mode(OLD, 2)], [10.0])] * 2, Isolated(1.0))
    assert alone.finish.max() == pytest.approx(20, abs=1.5)


def test_the_fast_device_goes_to_whoever_makes_most_of_it():
    specs = NodeSpec(accelerators=((OLD, 1), (NEW, 1)))
    modes = [gpu_mode(OLD), gpu_mode(NEW)]
    record = simulate(specs, [Job(modes, [100.0, 80.0]), Job(modes, [100.0, 10.0])], MaxThroughput(1.0))
    assert record.mode.tolist() == [1, 1] or record.mode.tolist() == [0, 1]
    assert record.finish[1] == pytest.approx(10)


@pytest.mark.slow
def test_makespan_of_rounds_comes_near_the_program():
    specs = NodeSpec(accelerators=((OLD, 1), (NEW, 1)))
    modes = [gpu_mode(OLD), gpu_mode(NEW)]
    jobs = [Job(modes, [60.0, 20.0]), Job(modes, [60.0, 20.0])]
    record = simulate(specs, jobs, MinMakespan(0.5))
    assert 30 - 1e-6 <= record.finish.max() <= 32


def ends(policy, times, arrivals=None, count=2, **specs):
    """When jobs of one type of device end, in their order."""
    came = arrivals or [0.0] * len(times)
    jobs = [Job([gpu_mode(OLD)], [time], arrival=at) for time, at in zip(times, came, strict=True)]
    return simulate(NodeSpec(accelerators=((OLD, count),), **specs), jobs, policy).finish.tolist()


@pytest.mark.parametrize("policy", [MaxMinFairness, FinishTimeFairness, MinMakespan, MaxThroughput])
def test_within_a_round_nothing_starts_if_told_so(policy):
    """Two devices, rounds of 10 s: the first job ends at 2, and its device stands idle until 10."""
    assert ends(policy(10.0), [2.0, 15.0, 3.0], [0, 0, 0.5]) == pytest.approx([2, 15, 5])
    assert ends(policy(10.0, mid_round=False), [2.0, 15.0, 3.0], [0, 0, 0.5]) == pytest.approx([2, 15, 13])
    # One that comes while a device is idle waits as well.
    assert ends(policy(10.0, mid_round=False), [15.0, 3.0], [0, 1]) == pytest.approx([15, 13])


def test_a_round_ends_early_where_nothing_runs():
    assert ends(MaxMinFairness(10.0, mid_round=False), [2.0, 3.0], [0, 1], count=1) == pytest.approx([2, 5])
    # The next one begins then: the third, which comes at 11, waits until 12.
    found = ends(MaxMinFairness(10.0, mid_round=False), [2.0, 15.0, 1.0], [0, 1, 11], count=2)
    assert found == pytest.approx([2, 17, 13])


def test_first_come_first_served_in_rounds_moves_up_and_nothing_passes():
    """The first has the new device until 20; then the second, half done on the old one, moves there."""
    specs = [NodeSpec(accelerators=((OLD, 1),)), NodeSpec(accelerators=((NEW, 1),))]
    modes = [gpu_mode(OLD), gpu_mode(NEW)]
    record = simulate(specs, [Job(modes, [80.0, 20.0]), Job(modes, [40.0, 10.0])], FcfsRounds(10.0))
    assert record.finish.tolist() == pytest.approx([20, 25])
    blind = simulate(specs, [Job(modes, [80.0, 20.0]), Job(modes, [40.0, 10.0])], FcfsRounds(10.0, blind=True))
    assert blind.finish.tolist() == pytest.approx([80, 10])
    wide = NodeSpec(accelerators=((OLD, 2),))
    jobs = [Job([gpu_mode(OLD)], [15.0]), Job([gpu_mode(OLD, 2)], [10.0]), Job([gpu_mode(OLD)], [1.0])]
    assert simulate(wide, jobs, FcfsRounds(10.0)).finish.tolist() == pytest.approx([15, 30, 31])


def test_equal_shares_with_spare_devices_are_fair_and_blind():
    """Alone on two unlike devices it takes turns: 10 s of 30 and 10 s of 10 are more than the whole."""
    specs = [NodeSpec(accelerators=((OLD, 1),)), NodeSpec(accelerators=((NEW, 1),))]
    modes = [gpu_mode(OLD), gpu_mode(NEW)]
    record = simulate(specs, [Job(modes, [300.0, 100.0])], Isolated(1.0, spare=True))
    assert record.finish[0] == pytest.approx(150, abs=2)  # half of the time on each: 2 / (1/300 + 1/100)
    # Three on two devices: nothing stands idle, where plain equal shares leave a third of the last seconds unused.
    assert max(ends(Isolated(1.0, spare=True), [20.0, 20.0, 20.0])) == pytest.approx(30, abs=1)


ROUNDS = [MaxMinFairness, FinishTimeFairness, MinMakespan, MaxThroughput, Isolated, FcfsRounds]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ROUNDS)
@pytest.mark.parametrize(("length", "rule"), [(2.3, "ratio"), (3.1, "deficit")])
def test_short_rounds_keep_the_contract(policy, length, rule):
    """The rounds of a few seconds that the small systems need for hands to change at all."""
    assert issubclass(policy, RoundScheduler)
    slow = policy is FinishTimeFairness
    some = [s for s in small_systems() if s.name != "all at once"] + [random_system(n) for n in range(2 if slow else 8)]
    half = (ROUNDS.index(policy) + (rule == "ratio")) % 2  # each policy meets every system, and so does each rule
    for system in some[:: 3 if slow else 1][half::2]:
        assert examine(lambda _: policy(length, rule), system) == []


def test_a_price_for_a_type_that_is_not_there_is_refused():
    from types import SimpleNamespace

    problem = SimpleNamespace(cluster=SimpleNamespace(types={"old": OLD}))
    for policy in (MaxThroughput(costs={"odl": 2.0}), MultiGeneration(measure="cost", costs={"odl": 2.0})):
        with pytest.raises(ScenarioError, match='no type "odl"'):
            policy.check(problem)
    with pytest.raises(ScenarioError, match="measure: cost"):
        MultiGeneration(costs={"old": 2.0})


# Matching -------------------------------------------------------------------------------------------------------


def least_total(times, delays):
    """Sum of completion times, least over all orders on all machines, by trying them."""
    machines = [(kind, delay) for kind, some in enumerate(delays) for delay in some]
    best = math.inf
    for order in itertools.permutations(range(len(times))):
        for where in itertools.product(range(len(machines)), repeat=len(times)):
            clock = [delay for _, delay in machines]
            total = 0.0
            for job, machine in zip(order, where, strict=True):
                clock[machine] += times[job][machines[machine][0]]
                total += clock[machine]
            best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_matching_has_the_least_sum_of_completion_times(seed):
    random = np.random.default_rng(seed)
    times = random.integers(1, 10, (4, 2)).astype(float)
    delays = [np.zeros(2), np.zeros(1)]
    found = matching([[JobMode(0, 0, a, 1), JobMode(1, 1, b, 1)] for a, b in times], delays)
    assert len(found) == 4
    total = sum(times[place.job][place.kind] * (place.behind + 1) for place in found)
    assert total == pytest.approx(least_total(times, delays))


def all_places(ways, delays):
    """The least cost of a matching over every place of every device, none left out."""
    cost = [
        [min((w.time * (1 + k * w.width) + d for w in some if w.kind == kind), default=math.inf)
         for kind, some_delays in enumerate(delays) for d in some_delays for k in range(len(ways))]
        for some in ways
    ]  # fmt: skip
    rows, columns = linear_sum_assignment(np.minimum(np.array(cost), 1e12))
    return sum(min(cost[row][column], 1e12) for row, column in zip(rows, columns, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_no_place_that_could_matter_is_left_out(seed):
    """Gangs, several modes on a type, busy devices: as cheap as with all places of all devices."""
    random = np.random.default_rng(seed)
    delays = [np.sort(random.choice([0.0, 0.0, 3.0, 8.0, 20.0], size)) for size in random.integers(1, 9, 3)]
    ways = []
    for _ in range(int(random.integers(1, 14))):
        modes = random.integers(0, 3, int(random.integers(1, 5)))
        widths = random.choice([1.0, 2.0, 4.0], len(modes))
        times = random.integers(1, 30, len(modes)).astype(float)
        ways.append([JobMode(p, int(k), t, w) for p, (k, t, w) in enumerate(zip(modes, times, widths, strict=True))])
    found = matching(ways, delays)
    total = 0.0
    for place in found:
        way = ways[place.job][place.mode]
        assert way.kind == place.kind
        total += way.time * (1 + place.behind * way.width) + delays[place.kind][place.device]
    assert total + 1e12 * (len(ways) - len(found)) == pytest.approx(all_places(ways, delays))
    assert len({(p.kind, p.device, p.behind) for p in found}) == len(found)


@pytest.mark.slow
def test_allox_keeps_its_books_when_jobs_are_stopped_and_devices_fail():
    """Whoever runs is in its lists, and nobody else."""
    for system in [s for s in small_systems() if s.name != "all at once"][:: some(1, 3)]:
        assert examine(lambda _: AlloX(window=3), system) == []


def test_allox_realizes_its_matching():
    """All there at once, two devices free: the responses add up to the least possible."""
    random = np.random.default_rng(2)
    times = random.integers(1, 10, (5, 2)).astype(float)
    specs = NodeSpec(accelerators=((OLD, 1), (NEW, 1)))
    jobs = [Job([gpu_mode(OLD), gpu_mode(NEW)], list(row)) for row in times]
    record = simulate(specs, jobs, AlloX())
    assert record.finish.sum() == pytest.approx(least_total(times, [np.zeros(1), np.zeros(1)]))
    assert record.finish.sum() < simulate(specs, jobs, ListScheduler()).finish.sum()


# Pairs ----------------------------------------------------------------------------------------------------------


def two_on_one(interference):
    kind = DeviceType("g", sharing=Sharing("mps", interference=interference))
    modes = [gpu_mode(kind), gpu_mode(kind, 0.5)]
    return NodeSpec(accelerators=((kind, 1),)), modes


@pytest.mark.parametrize(("interference", "slower", "shared"), [(0.0, 1.2, True), (0.2, 1.2, True), (2.0, 1.9, False)])
def test_sharing_only_where_it_shortens_the_mean_response(interference, slower, shared):
    specs, modes = two_on_one(interference)
    jobs = [Job(modes, [10.0, 10.0 * slower], 0.0), Job(modes, [10.0, 10.0 * slower], 1.0)]
    record = simulate(specs, jobs, SharingByTable())
    assert (record.start[1] == 1.0) == shared
    apart = simulate(specs, jobs, SharingByTable(margin=0.99))
    assert record.finish.sum() <= apart.finish.sum() + 1e-9
    assert apart.finish.tolist() == [10.0, 20.0]


def test_finish_times_of_two_that_slow_each_other_down():
    assert finish_times(2, 2, 10, 2) == (4, 12)
    assert finish_times(10, 2, 2, 2) == (12, 4)


def test_gandiva_undoes_a_pair_that_does_not_pay_and_keeps_one_that_does():
    bad, modes = two_on_one(0.0)
    jobs = [Job(modes, [100.0, 300.0], 0.0), Job(modes, [100.0, 300.0], 1.0), Job(modes, [50.0, 150.0], 2.0)]
    policy = Gandiva(trial=5.0)
    record = simulate(bad, jobs, policy)
    assert list(policy.measured.values()) == [pytest.approx(2 / 3)]
    assert record.preemptions.sum() == 1  # tried once; the third job, of the same class, was not tried
    good = [Job(modes, [100.0, 120.0], 0.0), Job(modes, [100.0, 120.0], 1.0)]
    policy = Gandiva(trial=5.0)
    record = simulate(bad, good, policy)
    assert list(policy.measured.values()) == [pytest.approx(2 / 1.2)]
    assert record.finish.max() < 130


# Where, and which generation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefer", "same"), [("apart", False), ("together", True)])
def test_similar_jobs_lie_together_or_apart(prefer, same):
    specs = NodeSpec(accelerators=((OLD, 1), (NEW, 1)), count=2)
    only_old, only_new = [gpu_mode(OLD)], [gpu_mode(NEW)]
    jobs = [Job(only_old, [9.0]), Job(only_new, [9.0], 1.0)]
    assert likeness_of(jobs) == 0.0
    alike = [Job([gpu_mode(OLD), gpu_mode(NEW)], [5.0, 9.0])] * 2
    assert likeness_of(alike) == pytest.approx(1.0)
    wide = NodeSpec(accelerators=((OLD, 2),), count=2)
    record = simulate(wide, [Job(only_old, [9.0]), Job(only_old, [9.0], 1.0)], Similarity(prefer))
    first, second = (record.places[place][0][0] for place in record.place)
    assert (abs(first - second) == 1) == same  # neighbors on one node, or one on each
    assert simulate(specs, jobs, Similarity(prefer)).finish.tolist() == [9.0, 10.0]


def likeness_of(jobs):
    found = []

    class Compare(ListScheduler):
        def ready(self, task):
            found.append(task)
            super().ready(task)

    simulate(NodeSpec(accelerators=((OLD, 2), (NEW, 2))), jobs, Compare())
    return likeness(*found)


def test_the_new_generation_within_a_budget_of_energy():
    old, new = DeviceType("old", power=Power(0, 100)), DeviceType("new", power=Power(0, 300))
    modes = [gpu_mode(old), gpu_mode(new)]
    specs = NodeSpec(accelerators=((old, 2), (new, 1)))
    # Twice as fast costs 1.5 times the energy; five times as fast saves energy.
    jobs = [Job(modes, [10.0, 5.0]), Job(modes, [10.0, 2.0])]
    assert simulate(specs, jobs, MultiGeneration(budget=1.0)).mode.tolist() == [0, 1]
    assert simulate(specs, jobs, MultiGeneration(budget=10.0)).mode.tolist()[1] == 1
    alone = [Job(modes, [10.0, 5.0])]
    assert simulate(specs, alone, MultiGeneration(budget=1.4)).mode.tolist() == [0]
    assert simulate(specs, alone, MultiGeneration(budget=1.6)).mode.tolist() == [1]


# Sleep ----------------------------------------------------------------------------------------------------------


def test_idle_devices_sleep_after_their_patience_and_wake_for_a_task():
    kind = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=4))
    specs = NodeSpec(accelerators=((kind, 1),))
    jobs = [Job([gpu_mode(kind)], [10.0]), Job([gpu_mode(kind)], [10.0], 100.0)]
    record = simulate(specs, jobs, PowerDown(patience=20.0, safety=0.0, memory=1.0))
    assert [(time, what) for time, _, what, _ in record.device_log] == [
        (30.0, "sleep"), (100.0, "wake"), (104.0, "awake"),
    ]  # fmt: skip
    assert record.finish.tolist() == [10.0, 114.0]
    assert (record.preemptions is None) or record.preemptions.sum() == 0


def test_sleep_pays_after_the_time_to_break_even():
    kind = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=9))
    assert break_even(kind) == pytest.approx(10)
    assert pytest.approx(5 * 10 + 50 * 9) == 50 * 10


def test_the_forecast_keeps_devices_awake_while_demand_is_high():
    kind = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=60))
    policy = PowerDown(memory=600.0)
    mode = gpu_mode(kind)
    assert policy.wanted_awake(kind, 0.0) == 0
    for second in range(0, 600, 20):
        policy._ask(mode, float(second))
    assert policy.wanted_awake(kind, 600.0) >= 3  # one each 20 s, a minute to wake
    assert policy.wanted_awake(kind, 6000.0) == 0


def test_levels_below_the_tolerance_of_the_solver_are_reached():
    """Two jobs of two days, of nearly the same length: each has a GPU for all the time."""
    days = offers([[1 / 5.798681379854221e-06], [1 / 5.798614131222638e-06]], [32])
    assert max_min(days, np.ones(2)).tolist() == pytest.approx([1.0, 1.0])


# Fractions of a round, by hand ----------------------------------------------------------------------------------------


def ahead(remaining, deadline=math.inf):
    """A job with this part of it left."""
    task = SimpleNamespace(deadline=deadline)
    return SimpleNamespace(remaining=lambda view: remaining, task=task, alone=1 - remaining)


@pytest.mark.parametrize("rule", [MaxThroughput(), MinMakespan(), MaxThroughput(costs={"old": 1.0, "new": 1.0})])
def test_a_job_without_devices_takes_nothing_from_others(rule):
    """Two jobs on two types of which one is down: the job that only the other type can run is left out."""
    found = ModeOffers(np.array([0, 1, 1]), np.array([0, 0, 1]), np.ones(3), np.array([4.0, 2.0, 1.0]),
                       np.array([0.0, 1.0]), np.ones(2))  # fmt: skip
    rule._kinds = ["old", "new"]
    view = SimpleNamespace(now=3.0, cluster=Cluster([NodeSpec(accelerators=((OLD, 1), (NEW, 1)))]))
    with np.errstate(all="raise"):
        fraction = rule.fractions(found, [ahead(0.5), ahead(1.0)], view)
    assert fraction.tolist() == pytest.approx([0, 0, 1], abs=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_prices_of_the_cluster_count_as_costs_do(seed):
    """The ratio of progress to cost is that of the program with the prices written out; deadlines are kept first."""
    random = np.random.default_rng(seed)
    kinds = [DeviceType("old", price=Price(up=2 / 3600)), DeviceType("new", price=Price(up=5 / 3600))]
    priced = Cluster([NodeSpec(accelerators=tuple((kind, 3) for kind in kinds))])
    plain = Cluster([NodeSpec(accelerators=((OLD, 3), (NEW, 3)))])
    found = drawn(seed, 6, 2)
    jobs = [ahead(float(part)) for part in random.uniform(0.2, 1, 6)]
    if seed % 2:
        jobs[2].task.deadline = 3.0 + 2 * found.time[found.job == 2].min()
    given = []
    for cluster, costs in ((priced, "prices"), (plain, {"old": 2.0, "new": 5.0}), (plain, {"new": 2.5})):
        rule = MaxThroughput(costs=costs)
        rule._kinds = ["old", "new"]
        given.append(rule.fractions(found, jobs, SimpleNamespace(now=3.0, cluster=cluster)))
        assert rule.moving == bool(seed % 2)
    fastest = found.fastest()
    value = found.rate / np.maximum(fastest, 1e-300)[found.job] * found.weight[found.job] * (fastest > 0)[found.job]
    price = np.array([2.0, 5.0])[found.kind] * found.width
    least = np.zeros(6)
    if seed % 2:
        least[2] = min(fastest[2], jobs[2].remaining(None) / (2 * found.time[found.job == 2].min()))
    best = best_ratio(found, value, price, least)
    for fraction in given:
        check_feasible(found, fraction)
        assert value @ fraction / (price @ fraction) == pytest.approx(value @ best / (price @ best), rel=1e-4)
        assert (found.progress(fraction) >= least * (1 - 1e-5)).all()
    free = MaxThroughput()
    assert free.spare and not MaxThroughput(costs="prices").spare
    best = max_sum(found, value, least)
    assert value @ free.fractions(found, jobs, SimpleNamespace(now=3.0)) == pytest.approx(value @ best)
