"""Parts of results by hand and by plain loops: differences of runs, batch means, groups, saved objects."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, slow_link, three, workload
from tiers import spread

from hetsim.errors import DamagedFile, UsageError
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode, Shape
from hetsim.model.record import (
    COMPLETED,
    EXPIRED,
    LAUNCH_MOVED,
    LAUNCH_RUNNING,
    LAUNCH_STOPPED,
    NOT_ARRIVED,
    REJECTED,
    UNFINISHED,
    Record,
)
from hetsim.model.tasks import Item, KernelWork
from hetsim.results import declared, saved_input
from hetsim.results.many_runs import point_differences
from hetsim.results.many_runs.difference import Difference, decisions
from hetsim.results.one_run import estimands, network
from hetsim.results.one_run import groups as g
from hetsim.results.one_run.modes import ModeTable, exclusive_time, mode_time, transfers
from hetsim.results.one_run.network import has_steps
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import read_mark, write_directory
from hetsim.results.statistics import student_interval
from hetsim.results.stored_files import open_stored, parse_json, parse_yaml, read_frame, sealed

NAN, INF = math.nan, math.inf

# Two runs -------------------------------------------------------------------------------------------------------------


def random_run(seed: int, names: list[str], *, policy: str, classes: dict[str, int]) -> Result:
    """Tasks with these ids on plenty of GPUs, in any order; some rejected, some expired, some without an end."""
    rng = np.random.default_rng(seed)
    count = len(names)
    arrival = sorted(float(one) for one in rng.integers(0, 9, count))
    start = [one + float(rng.integers(0, 4)) for one in arrival]
    status = [int(one) for one in rng.choice([COMPLETED, COMPLETED, COMPLETED, REJECTED, EXPIRED, UNFINISHED], count)]
    finish = [begin + float(rng.integers(1, 5)) for begin in start]
    runs = [one in (COMPLETED, UNFINISHED) for one in status]
    tasks = workload(
        arrival, [2.0] * count, id=np.array(names, dtype=object), class_code=np.array([classes[one] for one in names]),
        classes=["x", "y", "z"], user_code=np.arange(count) % 2, users=["ann", "bob"],
    )  # fmt: skip
    rec = record(
        cluster(gpus=count), tasks, [begin if run else NAN for begin, run in zip(start, runs, strict=True)],
        [NAN if one == UNFINISHED else end for one, end in zip(status, finish, strict=True)],
        [(1 + n,) if run else None for n, run in enumerate(runs)], status=status, end=20.0,
    )  # fmt: skip
    rec.input.policy = policy
    return Result(rec, seed=seed)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(12), 4))
@pytest.mark.parametrize("column", ["response", "finish"])
def test_the_difference_of_two_runs_task_by_task(seed: int, column: str):
    rng = np.random.default_rng(100 + seed)
    names = [f"t{n}" for n in range(14)]
    classes = {name: int(rng.integers(0, 3)) for name in names}
    other = classes | {names[3]: (classes[names[3]] + 1) % 3}
    kept = [list(rng.permutation(names)[: int(rng.integers(9, 14))]) for _ in range(2)]
    one, two = (random_run(seed + n, kept[n], policy="pq"[n], classes=(classes, other)[n]) for n in range(2))
    found = Difference(one, two, column)
    rows = [{row["id"]: row for _, row in run.tasks.iterrows()} for run in (one, two)]
    both = [name for name in kept[0] if name in rows[1]]
    values = {name: [rows[n][name][column] for n in range(2)] for name in both}
    change = {name: pair[1] - pair[0] for name, pair in values.items()}
    order = sorted(both, key=lambda name: -abs(change[name]) if change[name] == change[name] else 1.0)
    assert found.tasks["id"].tolist() == order
    assert found.tasks["change"].tolist() == pytest.approx([change[name] for name in order], nan_ok=True)
    assert found.tasks["a"].tolist() == pytest.approx([values[name][0] for name in order], nan_ok=True)
    assert found.tasks["status_b"].tolist() == [rows[1][name]["status"] for name in order]
    assert found.only == (len(kept[0]) - len(both), len(kept[1]) - len(both)) and found.labels == ("p", "q")
    unlike = {
        what: sum(rows[0][name][what] != rows[1][name][what] for name in both) for what in ("arrival", "class", "user")
    }
    assert found.unlike == {what: count for what, count in unlike.items() if count}
    numbers = [one for one in change.values() if one == one]
    told = found.to_json(3)
    assert (told["common"], told["only_a"], told["only_b"], told["column"]) == (len(both), *found.only, column)
    assert (told["gained"], told["lost"]) == (sum(one < 0 for one in numbers), sum(one > 0 for one in numbers))
    assert told["mean_change"] == (pytest.approx(np.mean(numbers)) if numbers else None) and len(told["tasks"]) == 3
    assert told["tasks"][0]["id"] == order[0] and json.dumps(told)
    by = {}
    for name in both:
        by.setdefault(rows[0][name]["class"], []).append(name)
    table = found.by("class")
    means = {}
    for group, mine in by.items():
        some = [change[name] for name in mine if change[name] == change[name]]
        means[group] = np.mean(some) if some else NAN
        row = table.loc[group]
        assert (row["tasks"], row["gained"], row["lost"]) == (
            len(mine), sum(one < 0 for one in some), sum(one > 0 for one in some),
        )  # fmt: skip
        assert row["change_sum"] == pytest.approx(sum(some)) and row["change_mean"] == pytest.approx(
            means[group], nan_ok=True
        )
        firsts = [values[name][0] for name in mine if change[name] == change[name]]
        assert row["mean_a"] == pytest.approx(np.mean(firsts) if firsts else NAN, nan_ok=True)
    shown = [table.loc[group, "change_mean"] for group in table.index]
    assert shown == sorted(shown, key=lambda one: INF if math.isnan(one) else one)
    ended = [(rows[0][name]["status"], rows[1][name]["status"]) for name in both]
    pairs = {pair: ended.count(pair) for pair in set(ended) if pair[0] != pair[1]}
    assert {(row.status_a, row.status_b): row.tasks for row in found.statuses.itertuples()} == pairs
    assert found.statuses["tasks"].tolist() == sorted(pairs.values(), reverse=True)


@pytest.mark.slow
def test_what_is_said_of_two_runs():
    def run(waits: list[float], policy: str = "p", **more: Any) -> Result:
        tasks = workload([0.0, 10.0, 20.0], [2, 2, 2], id=np.array(["a", "b", "c"], dtype=object))
        start = [one + wait for one, wait in zip((0.0, 10.0, 20.0), waits, strict=True)]
        rec = record(cluster(), tasks, start, [one + 2 for one in start], [(1,)] * 3)
        rec.input.policy = policy
        return Result(rec, seed=7, **more)

    base = run([0, 1, 3])
    assert Difference(base, run([0, 0, 0], "q")).sentences == [
        "mean response is 1.33 s (40 %) shorter in q than in p: of 3 tasks 2 gained, 0 lost, 1 did not change",
        "the first decision that differs is at 10 s: p makes no further decision · q starts b on n0/g0",
    ]
    assert Difference(base, run([0, 2, 2], "q")).sentences[0] == (
        "mean response is the same in q as in p: of 3 tasks 1 gained, 1 lost, 1 did not change"
    )
    longer = run([0, 3, 3], "q")
    assert "mean wait is 667 ms (50 %) longer in q than in p" in Difference(base, longer, "wait").sentences[0]
    assert (
        "mean slowdown is 0.333 (20 %) more in q than in p"
        in (Difference(base, run([0, 3, 3], "q"), "slowdown").sentences[0])
    )
    assert "mean start is 667 ms" in Difference(base, run([0, 3, 3], "q"), "start").sentences[0]
    assert Difference(base, run([0, 1, 3])).labels == ("the first run", "the second run")
    assert Difference(base, run([0, 1, 3], replication=2)).labels == ("seed 7, replication 0", "seed 7, replication 2")
    renamed = run([0, 1, 3]).record
    renamed.input.name = "other"
    assert Difference(base, Result(renamed, seed=7)).labels == ("by hand", "other")
    settings = [run([0, 1, 3], scenario=text) for text in (
        "a: {b: 1, c: [1, 2]}\nd: [{e: 1}, 3]\n", "a: {b: 2, c: [1, 2]}\nd: [{e: 1}, 4]\nf: {}\n")]  # fmt: skip
    assert Difference(*settings).settings == {"a.b": (1, 2), "d.1": (3, 4), "f": (None, {})}
    assert Difference(base, settings[0]).settings == {}


def test_all_decisions_of_a_run():
    """A batch of three that is stopped, one that moves, a rejection, and what is done to devices."""
    tasks = workload([0, 0, 0, 1, 2], [4] * 5, id=np.array(list("abcde"), dtype=object))
    rec = record(
        cluster(gpus=2), tasks, [0, 0, 0, 1, NAN], [9, 9, 9, 8, 2], [(1,), (1,), (1,), (2,), None],
        status=[COMPLETED] * 4 + [REJECTED],
    )  # fmt: skip
    rec.launches = launches([
        {"task": 0, "place": 0, "members": 3, "start": 0, "end": 3, "outcome": LAUNCH_STOPPED},
        {"task": 3, "place": 1, "start": 1, "end": 4, "outcome": LAUNCH_MOVED},
        {"task": 0, "place": 0, "members": 2, "start": 5, "end": 9},
    ])  # fmt: skip
    rec.device_log = [(6.0, 2, "frequency", 0.75), (7.0, 1, "sleep", 0.0), (7.5, 1, "down", 0.0), (8.0, 1, "wake", 0.0)]
    found = decisions(Result(rec))
    assert sorted(zip(found["time"], found["what"], strict=True)) == [
        (0.0, "starts a and 2 more on n0/g0"), (1.0, "starts d on n0/g1"), (2.0, "rejects e"),
        (3.0, "stops a on n0/g0"), (4.0, "moves d on n0/g1"), (5.0, "starts a and 1 more on n0/g0"),
        (6.0, "sets n0/g1 to frequency 0.75"), (7.0, "sets n0/g0 to sleep"), (8.0, "sets n0/g0 to wake"),
    ]  # fmt: skip


# Batch means ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_batches_and_their_correlation_by_loops(seed: int):
    rng = np.random.default_rng(seed)
    values = rng.normal(5, 1, int(rng.integers(20, 60)))
    count = int(rng.integers(3, 9))
    size = len(values) // count
    rest = list(values[len(values) - size * count :])
    means = [sum(rest[size * n : size * (n + 1)]) / size for n in range(count)]
    assert estimands.means_of(values, count).tolist() == pytest.approx(means)
    middle = sum(means) / count
    around = sum((one - middle) ** 2 for one in means)
    steps = sum((means[n + 1] - means[n]) ** 2 for n in range(count - 1))
    assert estimands.lag_one(np.array(means)) == pytest.approx(1 - steps / (2 * around))
    assert estimands.lag_one(np.ones(5)) == 0.0


def test_batches_that_are_correlated_are_refused():
    """Of 40 × n batches the lag is tested against 1.2816 × sqrt((m - 2) / (m² - 1)), m = 4 × 10."""
    values = np.tile(np.repeat([1.0, 2.0], 25), 20)  # 40 batches of 25, which alternate
    assert estimands.lag_one(estimands.means_of(values, 40)) < 0
    found = estimands.batch_interval(values, "response_mean", 10, 0.9)
    student = student_interval(estimands.means_of(values, 10), 0.9)
    assert (found.mean, found.low, found.high, found.n, found.confidence, found.method, found.metric) == (
        student.mean, student.low, student.high, 10, 0.9, "batch means of one run", "response_mean",
    )  # fmt: skip
    trend = np.repeat(np.arange(40.0), 25)
    lag, limit = estimands.lag_one(np.arange(40.0)), 1.2815515655 * math.sqrt(38 / (40**2 - 1))
    with pytest.raises(UsageError, match=f"of 25 tasks are still correlated .lag 1: {lag:.2f}, above {limit:.2f}."):
        estimands.batch_interval(trend, "response_mean", 10)
    with pytest.raises(UsageError, match="999 tasks are too few for 10 batch means; 1,000 are needed"):
        estimands.batch_interval(values[:999], "response_mean", 10)
    with pytest.raises(UsageError, match="response_mean is infinite for some task"):
        estimands.batch_interval(np.where(np.arange(1000) == 3, INF, values), "response_mean", 10)
    rng = np.random.default_rng(5)
    for level in np.linspace(-0.1, 0.5, 25):  # around the limit
        noise = rng.normal(0, 1, 40)
        mixed = noise + level * np.concatenate([[0.0], noise[:-1]])
        lag = estimands.lag_one(mixed)
        if lag > limit:
            with pytest.raises(UsageError, match="still correlated"):
                estimands.batch_interval(np.repeat(mixed, 25), "response_mean", 10)
        else:
            assert estimands.batch_interval(np.repeat(mixed, 25), "response_mean", 10).n == 10


def test_the_values_of_batch_means_are_those_of_the_metric():
    """By arrival, of the tasks of the window; of shares of deadlines ones and zeros."""
    arrival = [0.0, 1, 2, 3, 4, 5]
    deadline = np.array([9.0, 2.5, NAN, 9.0, 9.0, 50.0])
    rec = record(
        cluster(gpus=6), workload(arrival, [1.0] * 6, deadline=deadline), [0, 2, 2, NAN, 4, NAN], [4, 3, 3, 3, 12, NAN],
        [(1,), (2,), (3,), None, (5,), None], status=[COMPLETED] * 3 + [REJECTED, COMPLETED, UNFINISHED], end=20.0,
        warmup=0.5,
    )  # fmt: skip
    result = Result(rec)

    def values(metric: str) -> list[float]:
        return estimands._values(result, metric).tolist()

    assert values("response_mean") == [2.0, 1.0, 8.0] and values("wait_mean") == [1.0, 0.0, 0.0]
    assert values("slowdown_mean") == [2.0, 1.0, 8.0] and values("bounded_slowdown_10s_mean") == [1.0, 1.0, 1.0]
    assert values("ttft_mean") == []
    counted = [name for name in ("slo_attainment", "attainment_admitted") if name]
    assert values(counted[0]) == [0.0, 0.0, 0.0] and values(counted[1]) == [0.0, 0.0]
    assert estimands.candidates(result) == ["response_mean", "wait_mean", "slowdown_mean", "slo_attainment"]
    for metric, why in (("response_p95", "the percentile of a short "
                                         "batch"), ("makespan", "it is not a mean over tasks")):
        with pytest.raises(UsageError, match=f"{metric} has no batch means: {why}"):
            estimands._values(result, metric)
    for batches in (9, 101, True, 10.0):
        with pytest.raises(UsageError, match=f"batches must be from 10 to 100; got {batches}"):
            estimands.batch_means(result, "wait_mean", batches)  # type: ignore[arg-type]
    for batches in (10, 100):
        with pytest.raises(UsageError, match="3 tasks are too few"):
            estimands.batch_means(result, "wait_mean", batches)


# Groups ---------------------------------------------------------------------------------------------------------------

CPU = DeviceType("cpu", kind="cpu")


def test_the_groups_of_sizes():
    def label(*gpus: float) -> str:
        return g.gpus_label(Shape([
            Mode("m", GPU, gpus=math.ceil(one), share=round(WHOLE * one) if one < 1 else WHOLE) if one else
            Mode("c", CPU, millicores=1000) for one in gpus
        ]))  # fmt: skip

    wanted = {1: "1", 3: "3", 8: "8", 9: "9–15", 15: "9–15", 16: "16", 17: "17–31", 31: "17–31", 32: "32", 33: "33–63"}
    assert {count: label(count) for count in wanted} == wanted
    assert (label(0), label(0.5), label(0.25, 0.5), label(0, 2)) == ("none", "part of one", "part of one", "2")
    assert (label(1, 4, 2), label(0.5, 1), label(16, 8)) == ("1 to 4", "0.5 to 1", "8 to 16")

    def cores(*amounts: int) -> str:
        return g.cores_label(Shape([Mode("c", CPU, millicores=one) for one in amounts]))

    wanted = {500: "below 1 core", 999: "below 1 core", 1000: "1 core", 1999: "1 core", 2000: "2–3 cores",
              3999: "2–3 cores", 4000: "4–7 cores", 9000: "8–15 cores"}  # fmt: skip
    assert {amount: cores(amount) for amount in wanted} == wanted and cores(4000, 1500) == "1.5 to 4 cores"
    names = ["none", "part of one", "1", "2", "1 to 2", "8", "0.5 to 8", "1 to 8", "9–15", "16", "8 to 16"]
    some = ["below 1 core", "1 core", "2–3 cores", "1 to 2 cores", "4–7 cores"]
    for given in (names, [some[0], some[1], some[3], some[2], some[4]]):
        mixed = given[::-1]
        mixed.sort(key=g.by_number)
        assert mixed == given
    assert g.title("gpus", ["1 core", "2–3 cores"]) == "cores asked for" and g.title("gpus", ["1 core", "2"]) == (
        "GPUs asked for"
    )
    assert (g.title("gpus"), g.title("user"), g.title("other")) == ("GPUs asked for", "user", "other")
    assert g.checked("user") == ["user"] and g.checked(["class", "user", "class"]) == ["class", "user"]
    with pytest.raises(UsageError, match='tasks cannot be grouped by "clas"; did you mean "class"'):
        g.checked(["clas"])
    with pytest.raises(UsageError, match='tasks cannot be grouped by "x9"; it is one of class, gpus, user'):
        g.checked("x9")


def of_users(count: int, gpus: bool = True) -> Result:
    """User n has n tasks of one GPU-second (or core-second); their tasks come in turns."""
    codes = [user for user in range(count) for _ in range(user)]
    mode = gpu_mode() if gpus else Mode("c", CPU, millicores=1000)
    tasks = workload(
        [float(n) for n in range(len(codes))], [1.0] * len(codes), [[mode]], user_code=np.array(codes),
        users=[f"u{n}" for n in range(count)],
    )  # fmt: skip
    begun = [float(n) for n in range(len(codes))]
    place = (1,) if gpus else (0,)
    return Result(record(cluster(cpus=2), tasks, begun, [one + 1 for one in begun], [place] * len(codes)))


@pytest.mark.quick(4)
@pytest.mark.parametrize("gpus", [True, False])
@pytest.mark.parametrize(("count", "named"), [(3, 3), (10, 10), (11, 11), (12, 10), (13, 10)])
def test_the_users_with_the_most_demand_are_named(count: int, named: int, gpus: bool):
    result = of_users(count, gpus)
    users = g.named_users(result.record.input)
    assert users == [f"u{n}" for n in reversed(range(count))][:named]
    (grouping,) = g.groupings(result.record.input, ["user"])
    table = g.by_group(result, grouping)
    rest = [n for n in range(count) if f"u{n}" not in users]
    sizes = [*(int(name[1:]) for name in users), sum(rest)]
    assert table["task_count"].tolist() == [size for size in sizes if size]
    assert (g.OTHERS in table.index) == bool(sum(rest))


def test_groups_are_measured_by_their_own_rows():
    result = of_users(4)
    frame = result.tasks
    for by in ("user", "status"):
        table = g.by_group(result, g.Grouping(by, metrics=("wait_mean", "task_count", "response_p95")))
        assert table.index.name == by and list(table.columns) == ["wait_mean", "task_count", "response_p95"]
        for name, row in table.iterrows():
            mine = np.flatnonzero(frame[by] == name)
            assert row["task_count"] == len(mine)
            assert row["wait_mean"] == 0 and row["response_p95"] == 1
    kept = g.kept_values(result, g.Grouping("user", metrics=("wait_mean",)))
    columns = g.kept_by([*kept, "jain"], "user")
    assert {group for group, _ in columns} == {"u1", "u2", "u3"} and columns["u1", "wait_mean"] == (
        '_by:["user", "u1", "wait_mean"]'
    )
    assert g.kept_by(kept, "class") == {} and ("u3", "_started") in columns and kept[columns["u3", "_started"]] == 3
    with pytest.raises(UsageError, match='tasks have no column "colour" to group by; there are gpus, id, class'):
        g.by_group(result, g.Grouping("colour"))
    with pytest.raises(UsageError, match="gpu_utilization is a metric of the whole run; groups of tasks have no such"):
        g.by_group(result, g.Grouping("user", metrics=("gpu_utilization",)))


def test_groupings_are_asked_for_as_texts():
    grouping = g.Grouping("user", ("é", "b"), ("jain",))
    assert g.Grouping.parse(grouping.text) == grouping and g.Grouping.parse("jain") is None
    assert grouping.text == 'by:["user", ["é", "b"], ["jain"]]' and g.Grouping.parse(g.Grouping("class").text) == (
        g.Grouping("class")
    )
    run = of_users(3).record.input
    names = g.groupings(run, ["class", "gpus", "user"], ["wait_p50", "gpu_utilization", "no_such", "wait_mean"])
    assert [one.by for one in names] == ["user"] and names[0].named == ("u2", "u1", "u0")
    assert names[0].metrics == (*g.group_metrics(), *(["wait_p50"] if "wait_p50" not in g.group_metrics() else []))
    run.tasks.classes, run.tasks.shapes = ["a", "b"], [Shape([gpu_mode()]), Shape([gpu_mode(2)])]
    run.tasks.users = ["one"]
    assert [one.by for one in g.groupings(run, ["class", "gpus", "user"])] == ["class", "gpus"]


# The time alone -------------------------------------------------------------------------------------------------------


def test_items_that_stay_on_devices_are_not_uploaded_alone():
    """Item 0 is read (1 GB), item 1 lasting, item 2 written and read, item 3 (0.5 GB) written and not read."""
    kind = slow_link()
    items = [
        Item("in", 10**9),
        Item("weights", 4 * 10**9, lasting=True),
        Item("between", 10**9),
        Item("out", 5 * 10**8),
    ]
    tasks = workload(
        [0, 0, 0], [1.0, 2.0, 3.0], [[gpu_mode(kind=kind)], [gpu_mode(2, kind=kind)]], [0, 0, 1],
        reads=[(0, 1), (2, 1), (0,)], writes=[(2,), (3,), (3,)], items=items,
        bytes_in=np.array([0, 10**9, 10**9]), bytes_out=np.array([10**8, 0, 0]),
    )  # fmt: skip
    moved = transfers(tasks)
    assert moved.items is not None and moved.items.tolist() == [1e9, 1e9, 1e9]
    assert moved.output is not None and moved.output.tolist() == [1e8, 5e8, 5e8]
    table = ModeTable(tasks, cluster(gpus=2, kind=kind))
    up = [1.0 + 0.1, 2.0 + 0.1, 0.5 + 1 + 0.1]
    down = [0.2 + 0.1, 1.0 + 0.1, 0.5 + 0.1]
    assert exclusive_time(table).tolist() == pytest.approx([n + 1 + up[n] + down[n] for n in range(3)])
    assert mode_time(table, 0, moved).tolist() == pytest.approx(exclusive_time(table).tolist())
    plain = workload([0], [1], bytes_in=np.array([5]))
    assert transfers(plain).private is plain.bytes_in and transfers(plain).items is None is transfers(plain).output
    only = workload([0, 0], [1, 1], reads=[(0,), ()], items=[Item("in", 7)])
    alone = transfers(only)
    assert alone.output is None and alone.items is not None and alone.items.tolist() == [7, 0]
    written = transfers(workload([0, 0], [1, 1], writes=[(), (0, 1)], items=[Item("a", 7), Item("b", 2)]))
    assert written.items is None and written.output is not None and written.output.tolist() == [0, 9]


# Saved objects --------------------------------------------------------------------------------------------------------


def test_values_are_written_and_read_again():
    writer = saved_input._Writer()
    shared = np.arange(3)
    values = [None, True, 3, -(2**63), 2**70, 1.5, INF, -INF, "é", (1, (2.0,)), {"a": [1], (1, 2): "t"}, shared, shared,
              np.float32(0.5), np.array(["x", None], dtype=object), np.zeros((2, 0))]  # fmt: skip
    plain = writer.encode(values)
    assert plain[4] == {"int": hex(2**70)} and plain[6] == {"float": "inf"} and plain[12] == {"same": 0}
    assert plain[9] == {"tuple": [1, {"tuple": [2.0]}]} and len(writer.arrays) == 2 and json.dumps(plain)
    reader = saved_input._Reader(writer.arrays, saved_input.VERSION)
    again = reader.decode(json.loads(json.dumps(plain)))
    assert again[:11] == values[:11] and again[11] is again[12] and again[11].tolist() == [0, 1, 2]
    assert again[13] == 0.5 and again[14].tolist() == ["x", None] and again[15].shape == (2, 0)
    assert math.isnan(reader.decode(writer.encode(NAN)))
    mode = gpu_mode(2, kind=slow_link())
    same = saved_input._Reader([], saved_input.VERSION).decode(saved_input._Writer().encode(mode))
    assert same is not mode and (same.name, same.gpus, same.type) == (mode.name, mode.gpus, mode.type)
    with pytest.raises(UsageError, match="a SimpleNamespace cannot be saved with a run: it has no tag"):
        writer.encode(SimpleNamespace())


@pytest.mark.parametrize(("value", "said"), [
    ({"same": 7}, 'it refers to the object "7", which is not defined before'),
    ({"number": 0, "array": 1}, 'it has no array "1"'), ({"number": 0, "array": -1}, 'it has no array "-1"'),
    ({"number": 0, "tag": "os.system", "fields": {}}, 'it names the class "os.system", which does not exist'),
    ({"number": 0, "tag": "mode", "fields": {"colour": 1}}, 'its mode has the field "colour", which does not exist'),
])  # fmt: skip
def test_objects_that_no_run_has(value: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        saved_input._Reader([np.zeros(1)], saved_input.VERSION).decode(value)


def test_tags_of_the_first_version():
    named = {"class": "hetsim.model.demand:StageTime", "fields": {"a": 1}}
    assert saved_input._tagged(named) == ("stage_time", {"a": 1})
    assert saved_input._tagged({"shape": [[1], 2]}) == ("shape", {"modes": [1], "stopping": 2})
    assert saved_input._tagged({"cluster": [1], "partitions": 2, "fabric": 3}) == (
        "cluster", {"specs": [1], "partitions": 2, "fabric": 3},
    )  # fmt: skip


def test_a_directory_is_written_as_a_whole_or_not_at_all(tmp_path: Path):
    def fails(folder: Path) -> None:
        (folder / "a").write_text("x")
        (folder / "none" / "b").write_text("y")

    target = tmp_path / "out"
    with pytest.raises(OSError, match="No such file") as problem:
        write_directory(target, fails)
    assert problem.value.filename == str(target / "none" / "b") and list(tmp_path.iterdir()) == []

    def unnamed(folder: Path) -> None:
        raise OSError("no file at all")

    with pytest.raises(OSError, match="no file at all") as problem:
        write_directory(target, unnamed)
    assert problem.value.filename is None
    write_directory(target / "deep", lambda folder: (folder / "mine").write_text("1"), "mine")  # type: ignore[arg-type,return-value]
    write_directory(target / "deep", lambda folder: (folder / "mine").write_text("2"), "mine")  # type: ignore[arg-type,return-value]
    assert (target / "deep" / "mine").read_text() == "2" and [one.name for one in target.iterdir()] == ["deep"]
    (target / "link").symlink_to(target / "deep")
    for name in ("deep", "link"):
        with pytest.raises(UsageError, match=f"{name} exists and is not a run directory; it was not changed"):
            write_directory(target / name, fails)


# Fused launches -------------------------------------------------------------------------------------------------------


def test_launches_name_what_was_fused():
    rec = three().record
    rec.launches = launches([{"task": n, "place": 0, "start": s, "end": e, "launch": n + 4}
                             for n, (s, e) in enumerate([(0, 4), (4, 7), (7, 9)])])  # fmt: skip
    assert "fused" not in Result(rec).launches
    rec.fused = {5: ((1, 2), (0.0, 3.0))}
    assert Result(rec).launches["fused"].tolist() == ["", "1+2", ""]
    assert not has_steps(Result(rec).modes)


def test_tasks_that_never_came_are_in_no_group():
    rec = record(
        cluster(gpus=2), workload([0, 1, INF], [1, 1, 1], class_code=np.array([1, 0, 1]), classes=["a", "b"]),
        [0, 1, NAN], [1, 2, NAN], [(1,), (2,), None], status=[COMPLETED, COMPLETED, NOT_ARRIVED],
    )  # fmt: skip
    table = g.by_group(Result(rec), g.Grouping("class", metrics=("task_count",)))
    assert table["task_count"].to_dict() == {"a": 1, "b": 1}
    gpus = g.by_group(Result(rec), g.Grouping("gpus", metrics=("task_count",)))
    assert gpus["task_count"].to_dict() == {"1": 2} and isinstance(gpus, pd.DataFrame)


# Limits of what is read -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_limits_of_stored_files(tmp_path: Path):
    """A hundred lists inside one another, a million values, 200,000 rows of nothing and 100 MB of holes are read."""
    assert len(json.dumps(parse_yaml("r", "[" * 100 + "1" + "]" * 100))) == 201
    assert parse_yaml("r", "a: " + "[[], []]\nb: [1]") == {"a": [[], []], "b": [1]}  # closed ones do not count
    with pytest.raises(DamagedFile, match="it is not a file as hetsim writes it"):
        parse_yaml("r", "[" * 101 + "1" + "]" * 101)
    for text in ("a: &x 1\nb: *x", "a: b: c"):
        with pytest.raises(DamagedFile):
            parse_yaml("r", text)
    million = b"[" + b"0," * 999_999 + b"0]"
    assert len(parse_json(tmp_path, million)) == 1_000_000
    with pytest.raises(DamagedFile, match="it has 1,000,001 values in only 2,000,003 bytes"):
        parse_json(tmp_path, b"[0," + million[1:])
    long = b"[" + b"1000," * 1_200_000 + b"1000]"  # five bytes each
    assert len(parse_json(tmp_path, long)) == 1_200_001
    with pytest.raises(DamagedFile, match="it has 1,200,002 values"):
        parse_json(tmp_path, b"[0," + long[1:-3] + b"]")
    for rows, fine in ((200_000, True), (200_001, False)):
        path = tmp_path / f"{rows}.parquet"
        pd.DataFrame({"a": np.zeros(rows, np.int8)}).to_parquet(path)
        assert path.stat().st_size < 40_000
        if fine:
            assert len(read_frame(path)) == rows
        else:
            with pytest.raises(DamagedFile, match="it states 200,001 rows in only"):
                read_frame(path)
    for columns, fine in ((5_000, True), (5_001, False)):
        path = tmp_path / f"{columns}.parquet"
        names = [str(number) for number in range(columns)]
        pd.DataFrame(np.zeros((1, columns), np.int8), columns=names).to_parquet(path)
        if fine:
            assert read_frame(path).shape == (1, columns)
        else:
            with pytest.raises(DamagedFile, match="it has 5,001 columns"):
                read_frame(path)
    for size, fine in ((100_000_000, True), (100_000_001, False)):
        path = tmp_path / f"{size}"
        path.touch()
        os.truncate(path, size)
        if path.stat().st_blocks:
            continue  # a file system without holes
        if fine:
            open_stored(path).close()
        else:
            with pytest.raises(DamagedFile, match="almost all of the file is holes without data"):
                open_stored(path)


def test_metrics_of_packages_are_loaded_with_the_first_look(monkeypatch: pytest.MonkeyPatch):
    declared.declarations()
    asked: list[str] = []
    monkeypatch.setattr(declared.registry, "of_packages", lambda kind: {"x": "mine.metrics:thing", "y": "plain"})
    monkeypatch.setattr(declared.importlib, "import_module", asked.append)
    declared._load_packages.cache_clear()
    try:
        for look in (declared.declarations, declared.added_to_summaries):
            declared._load_packages.cache_clear()
            asked.clear()
            look()
            look()
            assert asked == ["mine.metrics", "plain"]
    finally:
        declared._load_packages.cache_clear()


def test_names_of_metrics():
    names = {"tasks": "task_count", "tasks_ci_low": "task_count_ci_low", "launches": "launch_count", "x": "x",
             "completed": "completed_count", "jain_ci_high": "jain_ci_high"}  # fmt: skip
    assert {one: declared.current_name(one) for one in names} == names
    assert declared.declaration("bounded_slowdown_2.5s_mean") is declared.declaration("bounded_slowdown_10s_mean")
    assert declared.declaration("no_such") is None and declared.declaration("no_such_2s_mean") is None
    asked = ("jain", "wait_mean", "task_count", "rejected_count", "x")
    assert [declared.higher_is_better(name) for name in asked] == [True, False, False, False, False]
    assert [declared.has_direction(name) for name in asked] == [True, True, False, True, True]
    assert [declared.of_groups(name) for name in asked] == [False, True, True, True, True]
    assert [declared.hide_if_zero(name) for name in asked] == [False, False, False, True, False]
    usual = declared.in_set("usual")
    places = [declared.declarations()[name].sets["usual"] for name in usual]
    assert places == sorted(places) and "jain" in declared.declarations()
    assert "bounded_slowdown_2s_mean" in declared.declarations(2.0)


def test_numbers_that_find_the_rows_of_a_sweep():
    """24 an hour was swept, and once a minute: in base units that is 1/150 and 1/60 a second."""
    rates = ["24/h", "1/min", "24/h"]
    frame = pd.DataFrame({"point": [0, 1, 2], "rate": [24 / 3600, 1 / 60, 24 / 3600], "policy": ["p"] * 3})
    columns: list[str] = []
    points: Any = SimpleNamespace(
        points=pd.DataFrame({"rate": rates}, dtype=object), keys=["rate"], table=frame, _column=columns.append
    )
    for value, rows in (
        (24 / 3600, [0, 2]), (24 / 3600 * (1 + 1e-10), [0, 2]),
        ("24/h", [0, 2]), ("0.4/min", [0, 2]), ("1/min", [1]), (1 / 60, [1]), ("60/h", [1]),
    ):  # fmt: skip
        assert point_differences.rows_where(points, frame, {"rate": value})["point"].tolist() == rows
    for value in ("24 s", 24, "nonsense", True, math.inf):
        with pytest.raises(UsageError, match="no row has rate = .*; there are 24/h, 1/min$"):
            point_differences.rows_where(points, frame, {"rate": value})
    assert set(columns) == {"rate"}
    flags: Any = SimpleNamespace(
        points=pd.DataFrame({"on": [True, False, 1]}, dtype=object), keys=["on"], _column=lambda name: None
    )
    table = pd.DataFrame({"point": [0, 1, 2], "on": ["true", "false", "1"]})
    assert point_differences.rows_where(flags, table, {"on": True})["point"].tolist() == [0]
    many: Any = SimpleNamespace(
        points=pd.DataFrame({"n": range(30)}, dtype=object), keys=["n"], _column=lambda name: None
    )
    shown = point_differences.MAX_SHOWN
    with pytest.raises(UsageError, match=f"no row has n = 99; there are 0, 1, .*{shown - 1} and {30 - shown} more"):
        point_differences.rows_where(many, pd.DataFrame({"point": range(30), "n": range(30)}), {"n": 99})


# Jobs with steps, and kernels -----------------------------------------------------------------------------------------


def test_jobs_with_steps_on_one_node_and_on_several():
    """A step of 4 s, of which 2 are communication and 0.5 bubbles; at the peak it would take 1 s.

    Task 0 computes 8 s, so two steps; 1 has stays of two launches; 2 has no steps; 3 still runs, for 6 s at the end.
    """
    profile = SimpleNamespace(parts=(2.0, 0.5))
    exchange: Any = SimpleNamespace(nominal=4.0, at_peak=1.0, pipeline=None, on={(0,): profile}.__getitem__)
    one, two = gpu_mode(exchange=exchange), gpu_mode(2, node_count=2, exchange=exchange)
    rec = record(
        cluster(nodes=2, gpus=2), workload([0.0] * 4, [[4.0, 4.0]] * 4, [[one, two], [gpu_mode()]], [0, 0, 1, 0]),
        [1, 1, 1, 4], [9, 20, 3, NAN], [(1,), (2, 4), (5,), (2,)], mode=[0, 1, 0, 0], end=10.0,
        status=[COMPLETED, COMPLETED, COMPLETED, UNFINISHED],
    )  # fmt: skip
    rec.stays = {
        "task": np.array([1, 1]), "seconds": np.array([6.0, 10.0]), "contention": np.array([1.0, 2.0]),
        "communication": np.array([3.0, 4.0]), "bubble": np.array([0.25, 0.5]), "steps": np.array([2.0, 2.0]),
        "bytes": np.array([7.0, 8.0]), "peak": np.array([1.0, 3.0]), "across": np.array([3.0, 3.0]),
    }  # fmt: skip
    columns = network.task_columns(rec, Result(rec).modes)
    wanted = {
        "step": [4, 4, NAN, 4], "communication": [4, 7, NAN, 3], "bubble": [1, 0.75, NAN, 0.75],
        "contention": [0, 3, NAN, 0], "network_bytes": [0, 15, NAN, 0], "mfu": [0.25, 0.25, NAN, 0.25],
    }  # fmt: skip
    assert {name: pytest.approx(values, nan_ok=True) for name, values in wanted.items()} == {
        name: list(values) for name, values in columns.items()
    }
    result = Result(rec)
    assert result.tasks["step"].isna().tolist() == [False, False, True, False] and has_steps(result.modes)
    weight, seconds = np.array([1, 2, 1]), np.array([8.0, 19.0, 6.0])  # devices, and time that they computed
    for name, part in (("communication", [4, 7, 3]), ("bubble", [1, 0.75, 0.75]), ("contention", [0, 3, 0])):
        share = float((weight * part).sum() / (weight * seconds).sum())
        assert result.metric(f"{name}_fraction") == pytest.approx(share)
    assert result.metric("cross_rack_fraction") == 0.4 and math.isnan(three().metric("communication_fraction"))
    assert math.isnan(three().metric("cross_rack_fraction")) and math.isnan(result.metric("network_utilization"))


def test_the_memory_traffic_of_kernels():
    """Of completed launches; of fused ones what the kernels move less what stays inside, never below 0."""
    modes = [[gpu_mode(), gpu_mode(2)]]
    moved = np.array([[10.0, 11.0], [20.0, 21.0], [30.0, 31.0], [40.0, 41.0]])
    nothing = np.zeros((4, 2))
    tasks = workload([0.0] * 4, [[1.0, 1.0]] * 4, modes, work=KernelWork(nothing, nothing, nothing, moved))
    rec = record(
        cluster(gpus=4), tasks, [0] * 4, [4, 4, 4, NAN], [(1,), (2,), (3, 4), (2,)], mode=[0, 0, 1, 0], end=9.0
    )
    assert Result(rec).metric("memory_traffic") == 10 + 20 + 31
    rec.launches = launches([
        {"task": 0, "place": 0, "start": 0, "end": 4, "launch": 5},
        {"task": 2, "place": 2, "mode": 1, "start": 0, "end": 2, "outcome": LAUNCH_STOPPED, "launch": 6},
        {"task": 2, "place": 2, "mode": 1, "start": 2, "end": 4, "launch": 7},
    ])  # fmt: skip
    rec.fused = {5: ((0, 1), (4.0, 25.0))}
    assert Result(rec).metric("memory_traffic") == (10 - 4) + 0 + 31 and Result(rec).metric("launch_count") == 3
    rec.input.warmup, rec.end = 1.0, 3.0
    assert Result(rec).metric("launch_count") == 1
    rec.launches["members"] = np.array([2, 1, 1])
    assert Result(rec).metric("memory_traffic") == 37  # a fused launch has members of its own
    rec.launches["members"] = np.array([2, 1, 2])
    assert math.isnan(Result(rec).metric("memory_traffic")) and math.isnan(three().metric("memory_traffic"))
    rec.stats = {"bytes_moved": 5.0, "peak_memory": 7.0}
    assert (Result(rec).metric("bytes_moved"), Result(rec).metric("peak_memory")) == (5, 7)
    assert math.isnan(three().metric("bytes_moved")) and math.isnan(three().metric("peak_memory"))


def test_columns_of_modes():
    """One value a mode, and 0 for tasks without one (code -1); codes count the modes of all shapes through."""
    tasks = workload(
        [0, 0], [[1.0, 1.0]] * 2,
        [[gpu_mode(2, millicores=500), Mode("c", CPU, millicores=3000)], [gpu_mode(share=WHOLE // 4)]], [0, 1],
    )  # fmt: skip
    table = ModeTable(tasks, cluster(gpus=2, cpus=4))
    assert table.share.tolist() == [1.0, 0.0, 0.25, 0.0] and table.cores.tolist() == [0.5, 3.0, 0.0, 0.0]
    assert table.units.tolist() == [2.0, 3.0, 0.25, 0.0] and table.on_cpu.tolist() == [False, True, False, False]
    assert table.dynamic_watts.tolist() == [400.0, 0.0, 50.0, 0.0] and table.width == 2
    codes = table.codes(np.array([0, 0, 1, 1]), np.array([0, 1, 0, -1]))
    assert codes.tolist() == [0, 1, 2, -1] and table.share[codes].tolist() == [1.0, 0.0, 0.25, 0.0]
    assert table.by_shape(1, lambda mode: mode.millicores, -5.0).tolist() == [3000.0, -5.0]
    assert table.by_shape(0, lambda mode: mode.gpus, 0.0).tolist() == [2, 1]


def test_windows_and_uploads_of_no_length():
    rec = three().record
    rec.links = {"link": np.array([0, 0]), "time": np.array([0.0, 4.0]), "busy": np.array([0.5, 0.0]),
                 "jobs": np.array([1, 0])}  # fmt: skip
    table = network.links_table(rec, 5.0, 5.0)
    assert table["utilization"].isna().all() and table["use"].tolist() == [0.0]
    assert network.links_table(rec, 0.0, 8.0)["utilization"].tolist() == [0.25]
    stages = {"upload": np.array([0.0, 1.0, 0.0]), "compute": np.array([4.0, 2.0, 2.0]), "download": np.zeros(3)}
    moved = three().record
    moved.upload, moved.compute, moved.download = stages["upload"], stages["compute"], stages["download"]
    found = Result(moved).launches
    assert found["upload_start"].isna().tolist() == [True, False, True] and found["download_start"].isna().all()


def test_an_input_of_the_first_version_names_none(tmp_path: Path):
    """Its version is 0 where none is written; others are refused by name."""
    for version in (saved_input.VERSION + 1, -1, True):
        (tmp_path / saved_input.OBJECTS).write_text(json.dumps({"version": version}))
        with pytest.raises(UsageError, match=f"it has version .*; this hetsim reads 0 to {saved_input.VERSION}"):
            saved_input.load_input(tmp_path)
    (tmp_path / saved_input.OBJECTS).write_text("{}")
    with pytest.raises(OSError, match="arrays|No such file"):  # read on: the arrays are missing
        saved_input.load_input(tmp_path)


def test_names_in_a_mark_stay_in_their_folder(tmp_path: Path):
    (tmp_path / "run.json").write_text(sealed({"files": {"../outside": "0" * 64}}, 1))
    with pytest.raises(DamagedFile):
        read_mark(tmp_path)
    (tmp_path / "run.json").write_text(sealed({"files": ["a"]}, 1))
    with pytest.raises(DamagedFile, match="the entry `files` must map names to digests"):
        read_mark(tmp_path)


def test_overhead_is_not_the_rounding_of_clocks():
    """Finishes are sums of stages; where nothing came between them the remainder is exactly 0."""
    rng = np.random.default_rng(3)
    start, up, run, down = rng.uniform(0, 1e5, 200), *rng.uniform(0, 1, (3, 200))
    held = np.where(np.arange(200) % 2, 1e-3, 0.0)
    tasks = workload(list(np.sort(start)), [1.0] * 200)
    begin = np.sort(start)
    rec = record(cluster(), tasks, list(begin), list(begin + up + run + down + held), [(1,)] * 200)
    rec.upload, rec.compute, rec.download = up, run, down
    overhead = Result(rec).tasks["overhead"].to_numpy()
    assert (overhead[held == 0] == 0).all() and overhead[held > 0] == pytest.approx(1e-3, rel=1e-6)


# A run that comes back ------------------------------------------------------------------------------------------------


def eventful() -> Record:
    """Launches that stop, deadlines (one after the end), causes, a log of devices, fused kernels, notes."""
    tasks = workload(
        [0, 1, 2, 3, INF], [4, 3, 2, 5, 1], id=np.array(["a", "b", "c", "d", "e"], dtype=object),
        deadline=np.array([9.0, 3.0, NAN, 99.0, NAN]), class_code=np.array([0, 1, 0, 1, 0]), classes=["x", "y"],
        user_code=np.array([1, 0, 0, 1, 0]), users=["ann", "bob"], weight=np.array([1.0, 2.0, 3.0, 4.0, 5.0]),
    )  # fmt: skip
    rec = record(
        cluster(nodes=2, gpus=2, cpus=2), tasks, [0, 2, 3, 4, NAN], [7, 5, NAN, NAN, NAN],
        [(1,), (2,), (4,), (5,), None], status=[COMPLETED, COMPLETED, EXPIRED, UNFINISHED, NOT_ARRIVED], end=12.0,
        warmup=0.5, horizon=11.0, mode=[0, 0, 0, 0, -1],
    )  # fmt: skip
    rec.finish[2] = 6.0
    rec.launches = launches([
        {"task": 0, "place": 0, "start": 0, "end": 2, "outcome": LAUNCH_STOPPED, "lost": 1.0},
        {"task": 0, "place": 0, "start": 3, "end": 7}, {"task": 1, "place": 1, "decided": 1, "start": 2, "end": 5},
        {"task": 2, "place": 2, "start": 3, "end": 6, "outcome": LAUNCH_STOPPED, "lost": 3.0},
        {"task": 3, "place": 3, "start": 4, "end": NAN, "outcome": LAUNCH_RUNNING},
    ])  # fmt: skip
    rec.preemptions, rec.migrations = np.array([1, 0, 1, 0, 0]), np.array([0, 2, 0, 0, 0])
    rec.preemptions_by = {"recompute": np.array([1, 0, 0, 0, 0]), "failure": np.array([0, 0, 1, 0, 0])}
    rec.reasons, rec.stats = {2: "too late"}, {"events": 17.0}
    rec.device_log = [(1.0, 4, "sleep", 0.0), (2.0, 4, "wake", 0.5), (2.5, 4, "awake", 0.0), (8.0, 5, "down", 0.0)]
    rec.holds, rec.fused = [(1.0, 1, "quota"), (2.5, 2, "reservation")], {1: ((0, 1), (8.0, 0.0))}
    rec.cycles = {"asked": np.array([1.0, 5.0]), "decided": np.array([1.5, 5.5])}
    rec.token_gaps = np.array([[1.0, 0.25], [2.0, 0.5]])
    rec.notes = {
        "gap": 0.125, "optimal": False, "bound": INF, "worst": -INF, "nothing": None, "name": "Infinite",
        "rows": [1, [2.5, INF], {"deep": -INF, "why": "so"}], "texts": ["a", "Infinity!"],
    }  # fmt: skip
    return rec


def test_a_run_comes_back_with_all_that_it_knows(tmp_path: Path):
    """All columns and texts of the record, all tables and metrics, and the same folder again, byte by byte."""
    rec = eventful()
    inputs = {"jobs.csv": "12ab"}
    run = Result(rec, name="n", seed=3, replication=4, policy="p", error="it broke", inputs=inputs, bound=2)
    run.record.input.warnings = ["careful"]
    again = Result.load(run.save(tmp_path / "one"))
    facts = ("name", "seed", "replication", "policy", "error", "inputs", "bound")
    for name in (*facts, "warnings", "end", "warmup", "horizon", "notes"):
        assert getattr(again, name) == getattr(run, name), name
    assert again.directory == tmp_path / "one" and run.directory is None and again.scenario is None
    assert again.notes["rows"][1] == [2.5, INF] and again.notes["rows"][2] == {"deep": -INF, "why": "so"}
    for name in ("tasks", "launches", "devices", "timeline"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(run, name), obj=name)
    assert again.values() == pytest.approx(run.values(), nan_ok=True) and list(again.values()) == list(run.values())
    found = again.record
    for name in ("status", "ready", "start", "finish", "mode", "place", "preemptions", "migrations", "token_gaps"):
        np.testing.assert_array_equal(getattr(found, name), getattr(rec, name), err_msg=name)
    for name in ("launches", "cycles", "preemptions_by"):
        mine, its = getattr(rec, name), getattr(found, name)
        assert its.keys() == mine.keys()
        for key in mine:
            np.testing.assert_array_equal(its[key], mine[key], err_msg=f"{name}.{key}")
    for name in ("end", "places", "reasons", "device_log", "holds", "fused", "stats", "notes", "replicas"):
        assert getattr(found, name) == getattr(rec, name), name
    for name in ("upload", "batch", "steps", "stays", "links", "attempt_of", "first_token"):
        assert getattr(found, name) is None, name
    for name in ("arrival", "deadline", "weight", "class_code", "user_code", "time"):
        np.testing.assert_array_equal(getattr(found.input.tasks, name), getattr(rec.input.tasks, name), err_msg=name)
    assert found.input.policy == "p" and math.isnan(again.planning)
    for by in ("class", "user"):
        pd.testing.assert_frame_equal(again.explain(by=by), run.explain(by=by))
    copied = again.save(tmp_path / "other")
    names = sorted(path.relative_to(tmp_path / "one").as_posix() for path in (tmp_path / "one").rglob("*"))
    assert names == sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*"))
    assert all((copied / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
               for name in names if (copied / name).is_file())  # fmt: skip
