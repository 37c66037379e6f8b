"""Jobs over several nodes that share links: closed forms, an oracle that simulates every phase, scenarios by hand."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import hetsim as hs
import hetsim.plots
from hetsim.engine.flight.link_delays import ContendingJobs, Stake, delay_ratios, enter
from hetsim.errors import ScenarioError, UsageError
from hetsim.formulas.contention import Contention, step_times
from hetsim.report.overview import overview

# Closed forms ---------------------------------------------------------------------------------------------------


def test_times_of_a_step_by_hand() -> None:
    assert step_times([1, 1], [1, 1]) == pytest.approx([2.5, 2.5], rel=1e-12)
    assert step_times([1, 4], [1, 0.5]) == pytest.approx([19 / 9, 4.75], rel=1e-12)
    assert step_times([1] * 4, [1] * 4) == pytest.approx([4.0625] * 4, rel=1e-12)
    assert step_times([1, 4], [1, 0.5], "aligned") == pytest.approx([3, 5])
    assert step_times([1, 4, 1], [1, 0.5, 2], "interleaved") == pytest.approx([3.5, 4.5, 3.5])
    assert step_times([1, 4], [1, 0.5], "none") == pytest.approx([2, 4.5])
    assert step_times([1, 4], [1, 0.0], "aligned") == pytest.approx([2, 4]), "who needs no link delays nobody"


def test_times_of_a_step_on_a_link_wider_than_the_cards() -> None:
    """Two jobs of 1 + 1 s on a link that is c = 1.5 cards wide: G = 1 + 2 + 2/1.5, without one 2."""
    assert step_times([1, 1], [1, 1], width=1.5) == pytest.approx([13 / 6] * 2, rel=1e-12)
    assert step_times([1] * 4, [1] * 4, width=4) == pytest.approx([2] * 4, rel=1e-12), "there is room for all"
    assert step_times([1] * 4, [1] * 4, "aligned", 1.6) == pytest.approx([3.5] * 4)
    assert step_times([1] * 4, [1] * 4, "interleaved", 1.6) == pytest.approx([2.5] * 4)
    assert step_times([1, 1, 1], [1, 1, 1], "aligned", [1, 1, 10]) == pytest.approx([1 + 1 / 0.45] * 2 + [2])


@pytest.mark.quick(2)
@pytest.mark.parametrize("width", [Fraction(1), Fraction(12, 5), Fraction(8)])
@pytest.mark.parametrize("count", [2, 7, 61, 140])
def test_the_recursion_is_the_sum_over_states(count: int, width: Fraction) -> None:
    """Against T_j = G(all) / G(all but j) in fractions."""

    def normalized(own: list[Fraction], link: list[Fraction], without: int | None = None) -> Fraction:
        product = [Fraction(1)]
        for job, (rest, time) in enumerate(zip(own, link, strict=True)):
            if job != without:
                padded = [*product, Fraction(0)]
                product = [rest * a + time * b for a, b in zip(padded, [Fraction(0), *product], strict=True)]
        found, factor = Fraction(0), Fraction(1)
        for k, coefficient in enumerate(product):
            factor *= max(Fraction(1), k / width)
            found += factor * coefficient
        return found

    draw = random.Random(count)
    own = [Fraction(draw.randint(0, 1000), 100) for _ in range(count)]
    link = [Fraction(draw.randint(1, 1000), 100) for _ in range(count)]
    found = step_times([float(x) for x in own], [float(x) for x in link], width=float(width))
    whole = normalized(own, link)
    for job in (0, count - 1):
        assert found[job] == pytest.approx(float(whole / normalized(own, link, job)), rel=1e-11)


@pytest.mark.slow
def test_many_jobs_on_a_link_that_never_rests() -> None:
    for count, width in ((300, 1.0), (200, 2.5)):  # alike: each waits for all
        found = step_times([1.0] * count, [1.0] * count, width=width)
        assert found == pytest.approx([count / width] * count, rel=1e-4)


def phases(own: list[float], link: list[float], steps: int, seed: int) -> np.ndarray:
    """Mean times of a step, every phase simulated: jobs compute, then share one link equally; 10 % of jitter."""
    draw, count = random.Random(seed), len(own)

    def jittered(seconds: float) -> float:
        return seconds * draw.uniform(0.9, 1.1)

    left = [draw.random() * (c + s) for c, s in zip(own, link, strict=True)]  # they start anywhere
    sending, done, now, first = [False] * count, [0] * count, 0.0, [0.0] * count
    last = [0.0] * count
    while min(done) < steps:
        busy = sum(sending)
        length, job = min((left[i] * (busy if sending[i] else 1), i) for i in range(count))
        now += length
        for i in range(count):
            left[i] -= length / busy if sending[i] else length
        if sending[job]:
            done[job] += 1
            last[job] = now
            if done[job] == steps // 20:  # what the start was is forgotten by then
                first[job] = now
        sending[job] = not sending[job]
        left[job] = jittered(link[job] if sending[job] else own[job])
    return np.array([(last[i] - first[i]) / (done[i] - steps // 20) for i in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_phases_that_meet_at_random(number: int) -> None:
    """Ten sets of two to five jobs, each phase simulated: within 0.5 % of the closed form."""
    draw = random.Random(number)
    count = 2 + number % 4
    own = [draw.uniform(0.5, 3) for _ in range(count)]
    link = [draw.uniform(0.1, 1.5) for _ in range(count)]
    assert phases(own, link, 40_000, number) == pytest.approx(step_times(own, link), rel=5e-3)


def flows(own: list[float], link: list[float], rate: list[float], crosses: list[list[int]], capacity: list[float],
          steps: int, seed: int) -> np.ndarray:  # fmt: skip
    """As `phases` on several links: a job sends over all that it crosses at one rate, at most its own, max-min fair."""
    draw, count = random.Random(seed), len(own)
    users = [[job for job in range(count) if at in crosses[job]] for at in range(len(capacity))]

    def rates(sending: list[bool]) -> list[float]:
        found, room = [0.0] * count, list(capacity)
        active = {job for job in range(count) if sending[job]}
        level = 0.0
        while active:
            on = [sum(1 for job in some if job in active) for some in users]
            step = min([room[at] / number for at, number in enumerate(on) if number]
                       + [rate[job] - level for job in active])  # fmt: skip
            level += step
            room = [size - step * number for size, number in zip(room, on, strict=True)]
            full = {at for at, size in enumerate(room) if size < 1e-9}
            for job in [job for job in active if rate[job] - level < 1e-9 or full.intersection(crosses[job])]:
                found[job] = level
                active.discard(job)
        return found

    sending, done, now = [False] * count, [0] * count, 0.0
    first, last = [0.0] * count, [0.0] * count
    left = [draw.random() * seconds for seconds in own]
    known: dict[tuple[bool, ...], list[float]] = {}
    speed = [1.0] * count
    while min(done) < steps:
        length, job = min((rest / fast, number) for number, (rest, fast) in enumerate(zip(left, speed, strict=True)))
        now += length
        left = [rest - length * fast for rest, fast in zip(left, speed, strict=True)]
        if sending[job]:
            done[job] += 1
            last[job] = now
            first[job] = now if done[job] == steps // 20 else first[job]
        sending[job] = not sending[job]
        left[job] = (link if sending[job] else own)[job] * draw.uniform(0.9, 1.1)
        state = tuple(sending)
        if state not in known:
            known[state] = [one / most if on else 1.0 for one, most, on in
                            zip(rates(sending), rate, sending, strict=True)]  # fmt: skip
        speed = known[state]
    return np.array([(last[i] - first[i]) / (done[i] - steps // 20) for i in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "count"), [(1, 4), (2, 6), (2.4, 8), (4, 12), (8, 16)])
def test_phases_on_a_link_wider_than_the_cards(width: float, count: int) -> None:
    """Each phase simulated: within 0.5 % of the closed form."""
    draw = random.Random(count)
    own = [draw.uniform(0.5, 3) for _ in range(count)]
    link = [draw.uniform(0.5, 2.5) for _ in range(count)]
    true = flows(own, link, [1.0] * count, [[0]] * count, [width], 60_000 // count, count)
    assert step_times(own, link, width=width) == pytest.approx(true, rel=5e-3)


def overlapped(compute: list[float], hidden: list[float], link: list[float], steps: int, seed: int) -> np.ndarray:
    """As `phases`, but the link is needed from `hidden` seconds before the computing of a step is over."""
    draw, count = random.Random(seed), len(compute)

    def jittered(seconds: float) -> float:
        return seconds * draw.uniform(0.9, 1.1)

    before = [draw.random() * seconds for seconds in compute]
    rest: list[list[float] | None] = [None] * count  # seconds to compute and to send, once both go on
    done, now, first, last = [0] * count, 0.0, [0.0] * count, [0.0] * count
    while min(done) < steps:
        busy = sum(1 for both in rest if both and both[1] > 0)
        events = []
        for i, both in enumerate(rest):
            if both is None:
                events.append((before[i], i))
            else:
                events.append((min(v for v in (both[0], both[1] * busy) if v > 0), i))
        length, job = min(events)
        now += length
        for i, both in enumerate(rest):
            if both is None:
                before[i] -= length
                continue
            both[0] = 0.0 if both[0] - length < 1e-12 else both[0] - length
            if both[1] > 0:
                both[1] = 0.0 if both[1] - length / busy < 1e-12 else both[1] - length / busy
        both = rest[job]
        if both is None:
            rest[job] = [jittered(hidden[job]), jittered(link[job])]
        elif both == [0, 0]:
            rest[job], done[job], last[job] = None, done[job] + 1, now
            first[job] = now if done[job] == steps // 20 else first[job]
            before[job] = jittered(compute[job] - hidden[job])
    return np.array([(last[i] - first[i]) / (done[i] - steps // 20) for i in range(count)])


@pytest.mark.slow
def test_communication_behind_computing_still_loads_its_links() -> None:
    """Six sets of two to four jobs: 3 % on average and 10 % at most.  The exposed part alone as the load of a link
    would be off by up to 52 %."""
    draw, errors, exposed = random.Random(3), [], []
    for number in range(6):
        count = 2 + number % 3
        compute = [draw.uniform(0.5, 2) for _ in range(count)]
        share = [draw.choice([0.2, 0.5]) for _ in range(count)]
        link = [draw.uniform(0.3, 1.2) for _ in range(count)]
        hidden = [c * h for c, h in zip(compute, share, strict=True)]
        true = overlapped(compute, hidden, link, 8_000, number)
        found = _steps(compute, share, link)
        errors += list(abs(found / true - 1))
        alone = [max(0.0, x - h) for x, h in zip(link, hidden, strict=True)]
        exposed += list(abs(step_times(compute, alone) / true - 1))
    assert np.mean(errors) < 0.03 and max(errors) < 0.10
    assert max(exposed) > 0.5


def _steps(compute: list[float], share: list[float], link: list[float]) -> np.ndarray:
    """Steps of jobs that all have one node in each of two racks, of which one has an uplink of 1 GB/s."""
    jobs = [
        {"name": f"j{n}", "arrivals": {"process": "all_at_once", "count": 1}, "nodes": 2, "cpu_time": "1000 h",
         "communication": {"pattern": "ring", "bytes": f"{x} GB", "every": f"{c} s", "overlap": s}}
        for n, (c, s, x) in enumerate(zip(compute, share, link, strict=True))
    ]  # fmt: skip
    cluster = {
        "nodes": {"name": "n", "count": 2 * len(jobs), "cpus": 1, "network": {"out": "1 PB/s"}},
        "racks": {"nodes": len(jobs), "uplinks": {"r0": "1 GB/s"}},
    }
    policy = {"scheduler": "fcfs", "placement": "spread_racks"}
    run = {"cluster": cluster, "workload": jobs, "policy": policy, "horizon": "1 h"}
    return hs.run(run).tasks["step"].to_numpy()


# The jobs on one link -------------------------------------------------------------------------------------------


class Job:
    def __init__(self, alone: float):
        self.alone = alone
        self.stakes: list[Stake] = []


def on_links(
    own: list[float], phases: list[dict[int, list[tuple[float, float, float]]]], rule: Any = "random"
) -> list[Any]:
    """Jobs that compute for `own` seconds and send in phases of (seconds of the full link, seconds, slack) by link."""
    groups: dict[int, ContendingJobs] = {}
    members = []
    for rest, mine in zip(own, phases, strict=True):
        alone = rest + max(sum(seconds for _, seconds, _ in some) for some in mine.values())
        member = Job(alone)
        members.append(member)
        for link, some in mine.items():
            group = groups.setdefault(link, ContendingJobs(link, rule))
            member.stakes.append(Stake(member, group, some))
        enter(member.stakes)
    return members


def steps_of(members: list[Any], only: int | None = None) -> list[float]:
    """Seconds of a step of each job; those that a change of the links of one reaches, nan for the others."""
    changed = members if only is None else [members[only]]
    groups = {stake.group.link: stake.group for member in changed for stake in member.stakes}
    ratios = delay_ratios(groups.values())
    return [ratios.get(member, np.nan) * member.alone for member in members]


@pytest.mark.parametrize("rule", get_args(Contention))
@pytest.mark.parametrize("width", [1.0, 2.4])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_jobs_on_a_link_go_by_the_formulas_whatever_came_and_went(count: int, width: float, rule: Any) -> None:
    draw = np.random.default_rng(count)
    own, link = draw.uniform(0.0, 3.0, count + 3), draw.uniform(0.1, 2.0, count + 3)
    members = on_links(own.tolist(), [{0: [(seconds / width, seconds, 0.0)]} for seconds in link], rule)
    steps_of(members)
    gone = set(draw.permutation(count + 3)[:3].tolist())
    for number in gone:
        enter(members[number].stakes, leave=True)
    own, link = np.delete(own, list(gone)), np.delete(link, list(gone))
    rest = [member for number, member in enumerate(members) if number not in gone]
    assert steps_of(rest) == pytest.approx(step_times(own.tolist(), link.tolist(), rule, width), rel=1e-9)


def test_a_delay_counts_as_far_as_it_exceeds_what_hides_it() -> None:
    """Two jobs compute 1 s and send 3 s, aligned: each is delayed by 3 s.  Of one a third of that falls on a phase
    with 0.4 s of slack, the rest on one with 1.5 s: 0.6 + 0.5 s are left, of a step of 4 s."""
    members = on_links([1.0, 1.0], [{0: [(1.0, 1.0, 0.4), (2.0, 2.0, 1.5)]}, {0: [(3.0, 3.0, 0.0)]}], "aligned")
    assert steps_of(members) == pytest.approx([4 + 1.1, 4 + 3])


def on_racks(number: int, width: float) -> tuple[list[float], list[float], list[list[int]], int]:
    """Jobs that cross two or three racks in a row, of two to five, and the number of racks."""
    draw = random.Random(number)
    racks, count = draw.randint(2, 5), draw.randint(4, 10)
    own = [draw.uniform(0.5, 3) for _ in range(count)]
    link = [draw.uniform(0.1, 1.5) for _ in range(count)]
    first = [draw.randrange(racks) for _ in range(count)]
    return own, link, [[(one + n) % racks for n in range(min(racks, draw.choice([2, 2, 3])))] for one in first], racks


def errors_on_racks(numbers: Any, width: float) -> list[float]:
    found = []
    for number in numbers:
        own, link, crosses, racks = on_racks(number, width)
        true = flows(own, link, [1.0] * len(own), crosses, [width] * racks, 3_000, number)
        loads = [{at: [(s / width, s, 0.0)] for at in some} for s, some in zip(link, crosses, strict=True)]
        members = on_links(own, loads)
        found += list(np.array(steps_of(members)) / true - 1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "worst"), [(1, 0.05), (2, 0.05), (2.4, 0.05), (4, 0.05)])
def test_jobs_on_several_links(width: float, worst: float) -> None:
    """Phases on max-min fair links: 1.5 % on average and 5 % at most."""
    errors = np.abs(errors_on_racks(range(4), width))
    assert errors.mean() < 0.015 and errors.max() < worst


@pytest.mark.slow
def test_jobs_of_unlike_widths_on_a_link() -> None:
    """Jobs that alone use between a tenth and all of a link: 1 % on average and 5 % at most."""
    draw, errors = random.Random(1), []
    for number in range(8):
        count = 3 + number
        own = [draw.uniform(0.5, 3) for _ in range(count)]
        link = [draw.uniform(0.1, 1.5) for _ in range(count)]
        share = [draw.choice([0.1, 0.25, 0.5, 1]) for _ in range(count)]
        true = flows(own, link, share, [[0]] * count, [1.0], 3_000, number)
        errors += list(abs(step_times(own, link, width=[1 / one for one in share]) / true - 1))
    assert np.mean(errors) < 0.01 and max(errors) < 0.05


def chain(jobs: Any) -> list[Any]:
    """Jobs on links 0+1, 1+2, 2+3 and so on."""
    return on_links([1.0] * len(jobs), [{n: [(1.0, 1.0, 0.0)], n + 1: [(0.5, 1.0, 0.0)]} for n in jobs])


def test_a_change_of_jobs_reaches_just_the_links_of_the_jobs_there() -> None:
    """More jobs than are solved together: without the first the second and the third change, and they are what all
    anew would be."""
    members = chain(range(14))
    before = steps_of(members)
    enter(members[0].stakes, leave=True)
    after = steps_of(members, only=0)
    assert after[1] < before[1] and after[2] != before[2] and np.isnan(after[3:]).all()
    assert [*after[1:3], *before[3:]] == pytest.approx(steps_of(chain(range(1, 14))), rel=1e-12)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("count", "gone"), [(4, 0), (11, 0), (12, 5), (19, 9), (9, 4)])
def test_connected_jobs_are_what_all_anew_would_be_whatever_came_and_went(count: int, gone: int) -> None:
    """A job leaves and comes back: sets that are solved together grow out of larger ones, and merge into them."""
    members = chain(range(count))
    known = np.array(steps_of(members))
    for change in ("drop", "add"):
        enter(members[gone].stakes, leave=change == "drop")
        found = np.array(steps_of(members, only=gone))
        known = np.where(np.isnan(found), known, found)
        there = [n for n in range(count) if change == "add" or n != gone]
        assert known[there] == pytest.approx(steps_of(chain(there)), rel=1e-7)


# Scenarios ------------------------------------------------------------------------------------------------------


def scenario(
    steps: list[float], rule: str = "random", pattern: str = "ring", size: str = "25 GB", nodes: int = 3, **more: Any
) -> dict[str, Any]:
    """Racks of two nodes with uplinks of 25 GB/s.  A job computes 1 s a step; a ring of 25 GB over racks takes 1 s."""
    sending = {"pattern": pattern, "bytes": size, "every": "1 s"}
    jobs = [
        {"name": f"j{number}", "arrivals": {"process": "all_at_once", "count": 1}, "nodes": nodes,
         "cpu_time": f"{count} s", "communication": sending}
        for number, count in enumerate(steps)
    ]  # fmt: skip
    cluster = {
        "nodes": {"name": "n", "count": 6, "cpus": 1, "network": {"out": more.pop("network", "1000 GB/s")}},
        "racks": {"nodes": 2, "uplink": "25 GB/s"} | more.pop("racks", {}), "contention": rule,
    }  # fmt: skip
    return {"cluster": cluster, "workload": jobs, "policy": "fcfs"} | more


@pytest.mark.parametrize(
    ("rule", "shorter", "longer"),
    [("random", 12.5, 22.5), ("aligned", 15, 25), ("interleaved", 10, 20), ("none", 10, 20)],
)
def test_two_jobs_on_one_uplink(rule: str, shorter: float, longer: float) -> None:
    result = hs.run(scenario([10, 5], rule), check=True)
    assert result.devices["busy"].sum() == pytest.approx(3 * (shorter + longer)), "each on three nodes"
    found = result.tasks.set_index("class")
    assert found.loc["j1", "finish"] == pytest.approx(shorter, rel=1e-12)
    assert found.loc["j0", "finish"] == pytest.approx(longer, rel=1e-12)
    assert found["contention"].to_numpy() == pytest.approx([shorter - 10] * 2, abs=1e-9)
    assert found["communication"].to_numpy() == pytest.approx([10, 5])
    assert found["step"].to_numpy() == pytest.approx([longer / 10, shorter / 5])
    assert found["racks"].tolist() == [2, 2]


def test_jobs_of_two_nodes_share_links_as_well() -> None:
    """Each has a node in both of two racks: seconds on the uplinks from a run in which nothing delays it."""
    policy = {"scheduler": "fcfs", "placement": "spread_racks"}
    steps = {
        rule: hs.run(scenario([10, 10], rule, nodes=2, racks={"nodes": 3}, policy=policy)).tasks["step"].to_numpy()
        for rule in ("none", "random")
    }
    assert (steps["none"] > 1.5).all()
    assert steps["random"] == pytest.approx(step_times([1, 1], (steps["none"] - 1).tolist()), rel=1e-9)


def test_jobs_that_slow_each_other_down_bring_their_results_home_afterwards() -> None:
    """As above on GPUs, with a second of download each: the links are left when a job has computed."""
    described = scenario([10, 5])
    del described["cluster"]["nodes"]["cpus"]
    described["cluster"]["nodes"] |= {"gpus": {"type": "g", "count": 1}, "pcie": {"download": "1 GB/s"}}
    for job in described["workload"]:
        job |= {"gpus": 1, "gpu_time": job.pop("cpu_time"), "bytes_out": "3 GB"}
    found = hs.run(described, check=True).tasks.set_index("class")
    assert found.loc[["j0", "j1"], "finish"].tolist() == pytest.approx([23.5, 13.5], rel=1e-12)


def test_a_ring_is_indifferent_to_its_racks_and_an_all_to_all_is_not() -> None:
    """Cards and uplinks of 25 GB/s, 10 GB, four nodes: 0.6 s anywhere; 0.3 s in one rack, 0.4 s on 2 + 2."""

    def step(pattern: str, size: int) -> float:
        run = scenario([1], pattern=pattern, size="10 GB", nodes=4, network="25 GB/s", racks={"nodes": size})
        return float(hs.run(run, check=True).tasks["finish"].iloc[0]) - 1

    assert [step("all_reduce", size) for size in (4, 2)] == pytest.approx([0.6, 0.6])
    assert [step("all_to_all", size) for size in (4, 2)] == pytest.approx([0.3, 0.4])


def test_oversubscription_is_a_part_of_the_rates_of_the_nodes() -> None:
    run = scenario([1], network="25 GB/s", pattern="all_to_all", size="10 GB", nodes=4)
    run["cluster"]["racks"] = {"nodes": 2, "oversubscription": 4}
    found = hs.run(run, check=True)
    assert found.tasks["finish"].iloc[0] == pytest.approx(1 + 10 / 12.5)
    assert dict(zip(found.links["link"], found.links["rate"], strict=True))["r0/uplink"] == 12.5e9


def test_a_rack_of_its_own() -> None:
    """The uplink that both use is 1.6 times as fast as that of each one's own rack, which sets its pace."""
    found = hs.run(scenario([10, 5], racks={"uplinks": {"r1": "40 GB/s"}}), check=True).tasks
    together = float(step_times([1, 1], [1, 1], width=1.6)[0])
    assert found["finish"].to_numpy() == pytest.approx([5 * together + 5 * 2, 5 * together])


def test_the_table_of_links_and_the_metrics() -> None:
    found = hs.run(scenario([10, 5]), check=True)
    links = found.links.set_index("link")
    shared = links.loc["r1/uplink"]
    assert shared["bytes"] == pytest.approx(15 * 25e9) and shared["shared"] == pytest.approx(12.5)
    assert shared["utilization"] == pytest.approx(15 / 22.5) and shared["utilization_p95"] == pytest.approx(0.8)
    assert links.loc["r2/uplink", "use"] == pytest.approx(12.5) and links.loc["r2/uplink", "shared"] == 0
    busy = 22.5 + 12.5  # of jobs that are alike in width
    assert found.metric("contention_fraction") == pytest.approx(5 / busy)
    assert found.metric("communication_fraction") == pytest.approx(15 / busy)
    assert found.metric("cross_rack_fraction") == pytest.approx(2 / 3)
    assert found.metric("network_utilization") == pytest.approx((10 + 15 + 5) / 22.5 / 3)
    assert found.metric("bubble_fraction") == 0


def test_the_summary_tells_steps_and_links() -> None:
    """GPUs and cores that wait for the network are busy: the summary says what of that is no computing."""

    def told(found: Any) -> dict[str, str]:
        return {line.split("  ")[0]: " ".join(line.split()[1:]) for line in overview(found)}

    found = told(hs.run(scenario([10, 5])))
    assert found["steps"] == "communication 42.9 %, contention 14.3 % of the jobs' device time"
    assert found["network"] == "uplinks of racks 44.4 % busy, 66.7 % of the bytes across racks"
    one = scenario([10], network="25 GB/s")
    one["cluster"].pop("racks")
    assert told(hs.run(one))["network"] == "links of nodes 25 % busy", "three of six, half of the time"
    assert not {"steps", "network"} & set(told(hs.run("first-steps")))


def test_a_run_that_was_saved_has_its_links(tmp_path: Path) -> None:
    found = hs.run(scenario([10, 5]))
    again = type(found).load(found.save(tmp_path / "run"))
    assert again.links.equals(found.links) and again.tasks.equals(found.tasks)
    assert again.metric("cross_rack_fraction") == found.metric("cross_rack_fraction")
    assert again.record.input.cluster.fabric == found.record.input.cluster.fabric


def test_a_stretch_is_split_into_place_and_neighbors(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from hetsim.cli.program import hetsim as command

    hs.run(scenario([10, 5])).save(tmp_path / "run")
    text = CliRunner().invoke(command, ["explain", str(tmp_path / "run"), "0"]).output
    assert "computed for 22.5 s: 10.2 s in the best place" in text
    assert "9.75 s more for its place, 2.5 s more for others on its links" in text


def test_a_picture_of_the_links() -> None:
    (panel,) = hs.plots.links(hs.run(scenario([10, 5]))).panels
    assert panel.y.ticks[0][1] == "r1/uplink"
    with pytest.raises(UsageError, match="no job of this run sends data between nodes; give jobs `training` or"):
        hs.plots.links(hs.run({"cluster": {"nodes": {"cpus": 1}}, "workload": [{
            "name": "a", "arrivals": {"process": "all_at_once", "count": 1}, "cpu_time": "1 s"}]}))  # fmt: skip


def test_a_link_that_is_down_and_one_that_is_slow(tmp_path: Path) -> None:
    """10 steps and 5: two each by 5 s; down until 15 s; two more by 20 s; then three times as slow: alone 4 s a step,
    together 6.25 s."""
    (tmp_path / "f.csv").write_text(
        "time,device,event,factor\n5,r1/uplink,down,\n15,r1/uplink,up,\n20,r1/uplink,slow,3\n"
    )
    run = scenario([10, 5], faults=[{"file": str(tmp_path / "f.csv")}])
    found = hs.run(run, check=True).tasks
    assert found["finish"].to_numpy() == pytest.approx([26.25 + 5 * 4, 26.25])
    assert found["contention"].to_numpy() == pytest.approx([0.5 * 4 + 2.25] * 2)
    other = hs.run(scenario([10, 5], faults=[{"on": "uplink", "every": "5 s", "slow": 3, "for": "2 s"}]), check=True)
    assert (other.tasks["finish"] > [22.5, 12.5]).all()


def test_a_job_that_waits_for_a_link_leaves_its_other_links_to_the_rest(tmp_path: Path) -> None:
    """Two jobs share the uplink of r1.  That of r0, which only one of them needs, is down from 2.5 s, when both have
    made a step, to 20 s: the other has 4 steps of 2 s more, the first 9 of 2 s from 20 s on."""
    (tmp_path / "f.csv").write_text("time,device,event,factor\n2.5,r0/uplink,down,\n20,r0/uplink,up,\n")
    found = hs.run(scenario([10, 5], faults=[{"file": str(tmp_path / "f.csv")}]), check=True).tasks
    assert found["finish"].to_numpy() == pytest.approx([38, 10.5])


def test_a_run_with_neighbors_forks_to_the_same_bytes() -> None:
    from hetsim.engine.simulation import Simulation
    from hetsim.scenario.building.run_input import build
    from hetsim.scenario.scenario import load

    simulation = Simulation(build(load(scenario([10, 5, 7]))))
    simulation.advance()
    for decision in simulation.state.scheduler.schedule(simulation.view):
        simulation.apply(decision)
    copy = simulation.fork()
    first, second = copy.run(), simulation.run()
    assert (first.finish == second.finish).all() and first.links is not None and second.links is not None
    assert all((first.links[name] == second.links[name]).all() for name in first.links)


def test_a_job_that_is_stopped_leaves_its_links(tmp_path: Path) -> None:
    """A node of the shorter one fails from 5 to 6 s, and it begins anew: 2 + 0.5 steps of the other by then, 5 more by
    18.5 s, and what is left alone."""
    (tmp_path / "f.csv").write_text("time,device,event,factor\n5,n5,down,\n6,n5,up,\n")
    found = hs.run(scenario([10, 5], faults=[{"file": str(tmp_path / "f.csv")}]), check=True).tasks
    assert found["finish"].to_numpy() == pytest.approx([23.5, 18.5])
    assert found["contention"].to_numpy() == pytest.approx([0.2 * 17.5] * 2)


def test_jobs_on_one_node_tell_their_steps_and_share_nothing() -> None:
    found = hs.run(scenario([4], nodes=1), check=True)
    assert found.tasks["step"].iloc[0] == 1 and found.tasks["contention"].iloc[0] == 0 and not len(found.links)


# Placements -----------------------------------------------------------------------------------------------------


def place(placement: Any, largest: str = "100%") -> str:
    """The nodes of a job on two that comes while the first of six, in racks of two, is taken."""
    run = scenario([100, 1], nodes=2, policy={"scheduler": "fcfs", "placement": placement})
    run["workload"][0]["nodes"] = 1
    run["workload"][1]["communication"] = run["workload"][1]["communication"] | {"largest": largest}
    return str(hs.run(run, check=True).tasks.set_index("class").loc["j1", "node"])


def test_where_a_job_goes() -> None:
    assert place("first_fit") == place("skew", "5%") == "n1+n2"
    assert place("pack_racks") == place("skew") == place("least_contention") == "n2+n3"
    assert place({"name": "skew", "threshold": 0.01}, "5%") == "n2+n3"
    assert place("spread_racks") == "n2+n4"


def test_a_skewed_job_waits_for_its_rack() -> None:
    """Racks of three, jobs on two nodes: the third would lie in two racks."""

    def starts(placement: str) -> list[float]:
        run = scenario([5, 9, 5], nodes=2, racks={"nodes": 3}, policy={"scheduler": "fcfs", "placement": placement})
        return list(hs.run(run, check=True).tasks["start"])

    assert starts("pack_racks") == [0, 0, 0]
    assert starts("skew") == pytest.approx([0, 0, 5 * 1.025])


def test_least_contention_spares_the_neighbors() -> None:
    """Two racks have one node free each besides that of a busy uplink: the idle ones are taken together."""
    run = scenario([50, 5, 5], nodes=3, racks={"nodes": 3, "uplink": "25 GB/s"})
    run["cluster"]["nodes"]["count"] = 12
    run["workload"][0]["nodes"] = 4  # n0 to n3, over r0 and r1
    run["workload"][1]["nodes"] = 1  # n4
    run["workload"][2]["nodes"] = 4
    taken = {}
    for placement in ("first_fit", "least_contention"):
        run["policy"] = {"scheduler": "fcfs", "placement": placement}
        found = hs.run(run, check=True)
        taken[placement] = found.tasks.set_index("class").loc["j2", "node"], found.metric("contention_fraction")
    assert taken["first_fit"][0] == "n5+n6+n7+n8" and taken["first_fit"][1] > 0
    assert taken["least_contention"][1] == 0


@pytest.mark.slow
def test_the_figures_of_the_shipped_scenario() -> None:
    expected = {"first_fit": (9.40, 0.385, 0.224), "spread_racks": (23.05, 0.782, 0.427),
                "pack_racks": (5.47, 0.220, 0.141), "skew": (14.54, 0.497, 0.311),
                "least_contention": (3.03, 0.091, 0.0219)}  # fmt: skip
    for placement, (hours, across, lost) in expected.items():
        found = hs.run("oversubscribed-racks", policy={"scheduler": "fcfs", "placement": placement})
        assert found.metric("response_mean") / 3600 == pytest.approx(hours, rel=5e-3)
        assert found.metric("cross_rack_fraction") == pytest.approx(across, rel=5e-3)
        assert found.metric("contention_fraction") == pytest.approx(lost, rel=5e-3)


# Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("racks", "key", "sentence"),
    [
        ({"uplink": 0}, "cluster.racks.uplink", "must be above 0"),
        ({"uplinks": {"r9": "1 GB/s"}}, "cluster.racks.uplinks.r9", 'there are r0, r1, r2'),
        ({"uplinks": {"r1": 0}}, "cluster.racks.uplinks.r1", "must be above 0"),
        ({"oversubscription": 2}, "cluster.racks.oversubscription", "oversubscription and uplink both define the "
                                                                    "uplink; give one of them"),
        ({"oversubscription": 0, "uplink": None}, "cluster.racks.oversubscription", "0"),
        ({"nodes": None}, "cluster.racks", "no node has a rack; give the number of nodes of each rack"),
        ({"upling": "1 GB/s"}, "cluster.racks.upling", 'unknown key "upling"'),
    ],
)
def test_what_cannot_be_is_said(racks: dict[str, Any], key: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        hs.run(scenario([1], racks=racks))
    assert key in str(error.value) and sentence in str(error.value)


def test_other_things_that_cannot_be() -> None:
    run = scenario([1])
    run["cluster"]["contention"] = "rndom"
    with pytest.raises(ScenarioError, match="cluster.contention"):
        hs.run(run)
    run = scenario([1])
    run["cluster"]["nodes"]["rack"] = "a"
    with pytest.raises(ScenarioError, match="rack and cluster.racks.nodes exclude each other; leave one out"):
        hs.run(run)
    run = scenario([1])
    run["cluster"]["racks"] = {"nodes": 2, "oversubscription": 2}
    del run["cluster"]["nodes"]["network"]
    with pytest.raises(ScenarioError, match="give the nodes a network"):
        hs.run(run)
    with pytest.raises(ScenarioError, match='no "r7/uplink"; did you mean'):
        hs.run(scenario([1], faults=[{"on": "r7/uplink", "every": "5 s", "repair": "2 s"}]))
