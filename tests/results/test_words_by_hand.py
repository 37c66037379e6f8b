"""Numbers as people read them, and sentences about runs: whole texts written out by hand."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, workload

from hetsim.errors import UsageError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Sharing
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, EXPIRED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED, REJECTED, UNFINISHED
from hetsim.results import formatting as f
from hetsim.results.many_runs.difference import Difference, decisions
from hetsim.results.one_run import network, plans
from hetsim.results.one_run.over_bins import device_bars, fill_lanes
from hetsim.results.one_run.plans import forecasts
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.steps import UNLIMITED, weighted_quantile
from hetsim.results.one_run.store import write_csv

NAN, INF = math.nan, math.inf

# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("write", "texts"), [
    (f.seconds, {0.0: "0 s", 1e-10: "0.1 ns", 1e-9: "1 ns", 9.99e-7: "999 ns", 1e-6: "1 µs", 1e-3: "1 ms",
        0.9994: "999 ms",
                 1: "1 s", 119.9: "120 s", 120: "2 min", 5399: "90 min", 5400: "1.5 h", 172799: "48 h", 172800: "2 d",
                 -120: "-2 min", NAN: "–", INF: "∞", -INF: "-∞"}),
    (f.data_size, {0: "0 B", 999: "999 B", 1000: "1 kB", 1.5e6: "1.5 MB", 1e9: "1 GB", 1e12: "1 TB",
        2.5e18: "2,500 PB"}),
    (f.energy, {850: "850 J", 1000: "1 kJ", 359_999: "360 kJ", 360_000: "0.1 kWh", 3.6e9: "1 MWh", 3.6e12: "1 GWh"}),
    (f.rate, {0: "0/s", 0.2: "0.2/s", 0.199: "11.9/min", 1 / 60: "1/min", 0.99 / 60: "59.4/h", 0.5 / 3600: "0.5/h",
              0.49 / 3600: "11.8/d", 12.5: "12.5/s"}),
    (f.share, {0: "0 %", 0.004: "0.4 %", 1: "100 %", 1.5: "150 %", 0.99974: "99.974 %",
                1 - 1.23456e-10: "99.99999998765 %"}),
    (f.count, {3: "3", 1240: "1,240", 12.5: "12.5", NAN: "–", INF: "∞", 1e7: "10,000,000"}),
    (f.figures, {0: "0", 0.0123456: "0.0123", 45.678: "45.7", 1234.5: "1,234", 1e7 - 1: "9,999,999", 1e7: "1.00e+07",
                 1e-4: "0.0001", 9.99e-5: "9.99e-05", -0.5: "-0.5", 100.0: "100", 999.96: "1,000"}),
    (f.clock, {0: "0 s", 86.17691: "86.1769 s", 99999.94: "99999.9 s", 100_000: "100,000 s", 1_234_567.0: "1,234,567 s",
               123456.78: "123,456.8 s", 9.99e-4: "999 µs", 1e-3: "0.001 s", -5e-4: "-500 µs", NAN: "–", -INF: "-∞"}),
])  # fmt: skip
def test_numbers_with_units(write: Any, texts: dict[float, str]):
    assert {value: write(value) for value in texts} == texts


def test_figures_have_the_digits_asked_for():
    assert [f.figures(12.3456, digits) for digits in (1, 2, 4, 6)] == ["12", "12", "12.35", "12.3456"]
    assert f.figures(1.5e9, 2) == "1.5e+09"


@pytest.mark.parametrize(("value", "half", "text"), [
    (12.345, 0.4, "12.35 ± 0.40"), (1234.5, 67.0, "1,234 ± 67"), (5.0, NAN, "5"), (INF, 1.0, "∞"), (5.0, INF, "5"),
    (5.0, 4e-9, "5"), (5.0, 0.0, "5"), (5.0, 6e-9, "5.000000000 ± 0.000000006"), (0.0231, 0.0229, "0.0231 ± 0.0229"),
    (-3.0, 3.0, "-3.0 ± 3.0"), (10.0, 99.6, "10 ± 100"), (0.1, 1.0, "0.1 ± 1.0"), (-0.0231, 0.0229, "-0.0231 ± 0.0229"),
    (1e-12, 1e-12, "0.000000000 ± 0.000000000"), (4.04, 4.0, "4.04 ± 4.00"), (4.0001, 4.0, "4.0 ± 4.0"),
])  # fmt: skip
def test_values_with_their_half_widths(value: float, half: float, text: str):
    assert f.pair(value, half) == text


def test_several_values_have_the_unit_of_the_middle_one():
    assert f.several([0.5, 2.0, 300.0], f.SECONDS) == ["0.5 s", "2 s", "300 s"]
    assert f.several([1.0, 300.0], f.SECONDS) == ["1 s", "300 s"]  # of two the smaller
    assert f.several([300.0, 400.0, 1.0], f.SECONDS, [60.0, NAN, 0.6]) == [
        "5.0 ± 1.0 min",
        "6.67 min",
        "0.017 ± 0.010 min",
    ]
    assert f.several([NAN, INF, 0.0], f.SECONDS) == ["–", "∞", "0 s"] and f.several([0.1], f.PER_TIME) == ["6/min"]
    assert f.fitting([], f.BYTES) == (1.0, "B") and f.fitting([], f.PERCENT) == (0.01, "%")
    assert f.fitting([86400 * 2 * (1 - 1e-13)], f.SECONDS)[1] == "d"
    assert f.lower_bound(90.0, f.SECONDS) == "≥ 90 s" and f.lower_bound(INF, f.SECONDS) == "∞"
    assert [f.listed(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert f.with_unit("12", "") == "12" and f.with_unit("∞", "s") == "∞" and f.plain(12.345) == "12.3"


def test_what_metrics_are_shown_in():
    names = ("wait_mean", "wait", "upload", "output_tokens", "colour", "slo_attainment", "energy_j", "throughput")
    assert [f.unit_of(name) for name in names] == ["s", "s", "s", "tokens", "", "share", "J", "1/s"]
    shown = [
        f.formatter(name)(1234.5) for name in ("wait_mean", "slowdown_mean", "task_count", "energy_j", "unheard_of")
    ]
    assert shown == ["20.6 min", "1,234", "1,234", "1.23 kJ", "1,234"]
    assert f.gap("wait_mean", -63, 47) == "63 ± 47 s" and f.gap("wait_mean", 0.5, 200) == "0.0 ± 3.3 min"
    assert f.gap("slo_attainment", -0.27, 0.12) == "27 ± 12 percentage points" and f.gap("wait_mean", 3.0) == "3 s"
    assert f.finite(NAN) == 0 == f.finite(INF) and f.finite(2.5) == 2.5 and f.finite(NAN, 7.0) == 7
    assert (
        f.metric_name("rho_max") == "ρ max"
        and f.metric_name("energy_j") == "energy"
        and f.metric_name("a_b_j") == "a b"
    )


def test_numbers_as_json_can_hold_them():
    given = {"a": NAN, "b": INF, "c": -INF, "d": np.int64(3), "e": 2.5, "f": np.float32(0.5), "g": True}
    made = f.json_values(given)
    assert made == {"a": None, "b": "Infinity", "c": "-Infinity", "d": 3, "e": 2.5, "f": 0.5, "g": 1}
    assert json.dumps(made)


# Plans and forecasts --------------------------------------------------------------------------------------------------


def test_what_a_plan_leaves_open():
    notes = {
        "optimal": False, "gap": 0.0123, "deterministic": False, "deadlines_missed": 1234, "deadline_missed_by": 90.0,
        "covers": {"transfers": "partly", "memory": "covered", "faults": "ignored"},
    }  # fmt: skip
    assert plans.reservations(notes) == [
        "not proven optimal, gap 1.23 %", "stopped by its time limit: another run may give another plan",
        "1,234 deadlines missed, by 90 s at most",
        "the planner's bound and timetable leave out: transfers partly, faults ignored",
    ]  # fmt: skip
    assert plans.reservations({"optimal": False, "gap": -1.0, "deadlines_missed": 1}) == [
        "not proven optimal", "1 deadlines missed",
    ]  # fmt: skip
    assert plans.reservations({"optimal": False, "gap": 0}) == ["not proven optimal, gap 0 %"]
    assert plans.reservations({"deadlines_missed": 2, "deadline_missed_by": 0.0}) == [
        "2 deadlines missed, by 0 s at most"
    ]
    assert (
        plans.reservations({"optimal": True, "deterministic": True, "deadlines_missed": 0, "covers": {"a": "covered"}})
        == []
    )
    assert plans.reservations({"optimal": None, "covers": "all"}) == []


def test_notes_as_plain_values():
    class Own:
        def __str__(self) -> str:
            return "own"

    given = {1: (np.float64(2.5), [np.int64(3)]), "a": np.arange(2), "b": None, "c": True, "d": Own()}
    assert plans.plain_note(given) == {"1": [2.5, [3]], "a": [0, 1], "b": None, "c": True, "d": "own"}
    numbers = [plans.number({"x": value}, "x") for value in (3, 2.5, True, "3", None)]
    assert numbers[:2] == [3.0, 2.5] and all(math.isnan(one) for one in [*numbers[2:], plans.number({}, "x")])
    assert [plans.ratio(6.0, 4.0), plans.ratio(0.0, 0.0)] == [1.5, 1.0]
    assert math.isnan(plans.ratio(1.0, 0.0)) and math.isnan(plans.ratio(NAN, 2.0)) and math.isnan(plans.ratio(1.0, NAN))


def planned(notes: dict[str, Any], *, late: bool = False, exact: bool = True, open_: bool = False) -> Result:
    """Two tasks of 4 and 3 s, one after the other on one GPU."""
    tasks = workload([0, 0], [4, 3])
    if not exact:
        tasks.estimate = tasks.time + 1
    end = 9 if late else 7
    rec = record(cluster(), tasks, [0, 4], [4, NAN if open_ else end], [(1,)] * 2, end=float(end))
    rec.notes, rec.planning = notes, 0.5
    return Result(rec)


def test_the_table_of_plans():
    """7 s are the best on one GPU; the planner of b proved it, and its proof holds for a."""
    runs = {"a": planned({}, late=True), "b": planned({"planned_makespan": 7.5, "lower_bound": 7.25})}
    table = plans.plans_table(runs)
    assert list(table.columns) == ["planned_makespan", "makespan", "lower_bound", "ratio", "planning_s"]
    assert table.loc["b"].tolist() == [7.5, 7, 7.25, 7 / 7.25, 0.5]
    assert table.loc["a"].tolist()[1:4] == [9, 7.25, 9 / 7.25] and table.loc["a"].isna().tolist() == [1, 0, 0, 0, 1]
    assert plans.plans_table({"a": runs["a"]}).empty and plans.plans_table({}).empty
    assert runs["b"].metric("makespan_ratio") == 7 / 7.25 and runs["a"].metric("makespan_ratio") == 9 / 7
    estimates = planned({"planned_makespan": 7.5, "lower_bound": 7.25}, exact=False)
    assert plans.lower_bounds({"b": estimates}) == {"b": 7.0}
    assert math.isnan(plans.lower_bounds({"b": planned({"lower_bound": 7.25}, open_=True)})["b"])
    assert plans.certified(runs["b"]) == 7.25 and math.isnan(plans.certified(runs["a"]))
    assert plans.all_completed(runs["a"]) and not plans.all_completed(planned({}, open_=True))
    assert plans.has_plan(runs["b"]) and not plans.has_plan(runs["a"])


@pytest.mark.parametrize(("outcome", "lost", "pieces"), [
    (0, 0.0, False), (LAUNCH_STOPPED, 3.0, True), (LAUNCH_MOVED, 3.0, True), (LAUNCH_LOST, 3.0, False), (LAUNCH_LOST,
        2.9, True),
])  # fmt: skip
def test_work_kept_across_a_stop(outcome: int, lost: float, pieces: bool):
    """Then the planner's bound no longer holds, and the general one does."""
    found = planned({"planned_makespan": 7.5, "lower_bound": 7.25})
    found.record.launches = launches([
        {"task": 0, "place": 0, "start": 0, "end": 3, "outcome": outcome, "lost": lost},
        {"task": 0, "place": 0, "start": 3, "end": 4}, {"task": 1, "place": 0, "start": 4, "end": 7},
    ])  # fmt: skip
    assert plans.in_pieces(found.record) == pieces
    assert plans.lower_bounds({"b": found}) == {"b": 7.0 if pieces else 7.25}


MPS = DeviceType("m", streams=2, sharing=Sharing("mps"))
LONE = DeviceType("m", sharing=Sharing("mps"))
TURNS = DeviceType("m", streams=2, sharing=Sharing("timeslice"))
CORES = DeviceType("cpu", kind="cpu")


@pytest.mark.parametrize(("mode", "usual", "wide"), [
    (gpu_mode(), True, True), (gpu_mode(2), False, True), (gpu_mode(share=WHOLE // 2), False, False),
    (gpu_mode(kind=MPS), False, False), (gpu_mode(kind=LONE), True, True), (gpu_mode(kind=TURNS), True, True),
    (Mode("c", CORES, millicores=1000), True, True), (Mode("c", CORES, millicores=2000), False, True),
    (Mode("c", CORES, millicores=1500), False, False), (gpu_mode(memory=8), True, True),
    (gpu_mode(memory=9), False, False), (gpu_mode(batch_limit=2), True, True),
    (gpu_mode(batch_limit=2, fixed=0.5), False, False), (gpu_mode(fixed=0.5), True, True),
])  # fmt: skip
def test_which_modes_a_planner_has_foreseen(mode: Mode, usual: bool, wide: bool):
    """A proof counts where a task takes one core or device; a planner of parallel tasks knows gangs too.

    One of the nodes, which are alike but for their memory, has 8 bytes only.
    """
    where = Cluster([
        NodeSpec(cpus=4, memory=size, cpu_type=CORES, accelerators=((mode.type if mode.gpus else GPU, 2),))
        for size in (16, 8)
    ])  # fmt: skip
    rec = record(where, workload([0], [4], [[mode]]), [0], [4], [(1,) if mode.gpus else (0,)])
    for covers, counts in ((None, usual), ({"parallel": "partly"}, usual), ({"parallel": "covered"}, wide)):
        rec.notes = {"lower_bound": 3.0, **({} if covers is None else {"covers": covers})}
        bound = plans.certified(Result(rec))
        assert bound == 3.0 if counts else math.isnan(bound), covers


def test_the_accuracy_of_forecasts():
    notes = {
        "forecast_count": 1234, "forecast_mape": 0.23, "forecast_pinball": 1.2345, "forecast_quantile": 0.9,
        "forecast_fallback": 0.1, "duration_count": 3, "duration_pinball": 90.0, "duration_quantile": 0.5,
        "duration_fallback": 0,
    }  # fmt: skip
    assert forecasts(notes) == [
        ("load forecast", "MAPE 23 %, pinball loss at 0.9 1.23 devices (1,234 predictions), 10 % by the fall-back"),
        ("durations", "pinball loss 90 s (3 predictions)"),
    ]  # fmt: skip
    assert forecasts({"duration_count": 0, "duration_mape": 0.1}) == [] == forecasts({})
    assert forecasts({"duration_count": 1, "duration_mape": 0, "duration_pinball": 0, "duration_quantile": 0})[0][
        1
    ] == ("MAPE 0 %, pinball loss at 0 0 s (1 predictions)")


# Lanes, quantiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_each_interval_is_on_the_lowest_free_lane(seed: int):
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 20, 30).astype(float)
    end = begin + rng.integers(0, 6, 30)
    lanes, used = fill_lanes(begin, end)
    done: list[int] = []
    for at in sorted(range(30), key=lambda one: (begin[one], end[one])):
        taken = {lanes[one] for one in done if end[one] > begin[at]}
        assert lanes[at] == next(lane for lane in range(31) if lane not in taken)
        done.append(at)
    assert used == lanes.max() + 1


def test_lanes_of_nothing_and_of_rounded_sums():
    assert fill_lanes(np.zeros(0), np.zeros(0))[1] == 1
    assert fill_lanes(np.array([0.0, 0.3]), np.array([0.1 + 0.2, 1.0]))[1] == 1  # 0.30000000000000004
    assert fill_lanes(np.array([0.0, 0.3]), np.array([0.3001, 1.0]))[1] == 2


def test_the_bars_of_launches():
    """A gang on two GPUs is two bars; cores by number are on the line of their node; what runs ends with the run."""
    tasks = workload([0, 0, 0], [4, 3, 9])
    rec = record(cluster(gpus=2, cpus=4), tasks, [0, 4, 5], [4, 7, NAN], [(1, 2), (0,), (2,)], end=8.0)
    rec.places = [((1, 2), None), ((0,), (3,)), ((2,), None)]
    bars = device_bars(Result(rec))
    assert bars[["task", "line", "core", "cpu", "end"]].to_numpy().tolist() == [
        [0, "n0/g0", -1, False, 4], [0, "n0/g1", -1, False, 4], [1, "n0/cpu", 3, True, 7], [2, "n0/g1", -1, False, 8],
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.05, 0.25, 0.5, 0.77, 0.95, 1.0])
def test_the_quantile_of_repeated_values(share: float):
    values, weights = np.array([3.0, 1.0, 7.0, 2.0]), np.array([4.0, 2.0, 1.0, 6.0])
    wanted = np.quantile(np.repeat(values, weights.astype(int)), share)
    assert weighted_quantile(values, weights, share) == pytest.approx(wanted)
    assert math.isnan(weighted_quantile(values[:0], weights[:0], share))


def test_the_value_that_is_exceeded_for_a_share_of_the_time():
    values, length = np.array([0.5, 0.0, 1.0]), np.array([3.0, 6.0, 1.0])
    assert [network.over_time(values, length, share) for share in (0.1, 0.6, 0.61, 0.9, 0.91, 1.0)] == [
        0,
        0,
        0.5,
        0.5,
        1,
        1,
    ]
    assert math.isnan(network.over_time(values, np.zeros(3), 0.5))


# Two runs -------------------------------------------------------------------------------------------------------------


def run_of(policy: str, finishes: list[float], start: list[float] | None = None, **more: Any) -> Result:
    """Tasks a, b, ... of 2 s, which come second by second, on four GPUs."""
    count = len(finishes)
    ids = np.array(more.pop("ids", list("abcdefgh")[:count]), dtype=object)
    status = more.pop("status", None)
    tasks = workload([float(n) for n in range(count)], [2.0] * count, id=ids, user_code=np.arange(count) % 2,
                     users=["u", "v"])  # fmt: skip
    begun = [one - 2 for one in finishes] if start is None else start
    rec = record(cluster(gpus=4), tasks, begun, finishes, [None if math.isnan(one) else (1 + n % 4,)
                 for n, one in enumerate(begun)], status=status, end=20.0)  # fmt: skip
    return Result(rec, policy=policy, **more)


@pytest.mark.slow
def test_two_runs_in_words():
    a, b = run_of("fcfs", [2, 5, 4, 9]), run_of("sjf", [2, 4, 4, 6])
    found = Difference(a, b)
    assert found.sentences == [
        "mean response is 1 s (28.6 %) shorter in sjf than in fcfs: of 4 tasks 2 gained, 0 lost, 2 did not change",
        "the first decision that differs is at 2 s: fcfs makes no further decision · sjf starts b on n0/g1",
    ]  # fmt: skip
    assert found.tasks[["id", "change"]].to_numpy().tolist() == [["d", -3], ["b", -1], ["a", 0], ["c", 0]]
    assert (
        Difference(b, a)
        .sentences[0]
        .startswith("mean response is 1 s (40 %) longer in fcfs than in sjf: of 4 tasks 0 gained")
    )
    by = found.by("user")
    assert by.index.tolist() == ["v", "u"] and by.loc["v"].tolist() == [2, 2, 0, (4 + 6) / 2, 3.0, -2, -4]
    assert by.loc["u"].tolist() == [2, 0, 0, 2, 2, 0, 0]
    assert Difference(a, a).labels == ("the first run", "the second run")
    assert Difference(a, a).sentences == ["every task has the same response in both runs", "all decisions are the same"]
    other = run_of("fcfs", [2, 5, 4, 9], seed=4, replication=2)
    assert Difference(a, other).labels == ("seed 0, replication 0", "seed 4, replication 2")
    started = Difference(a, b, "finish").sentences[0]
    told = "mean finish is 1 s (20 %) less in sjf than in fcfs: of 4 tasks 2 gained, 0 lost, 2 did not change"
    assert started == told
    even = Difference(run_of("p", [2, 5]), run_of("q", [3, 4])).sentences[0]
    assert even == "mean response is the same in q as in p: of 2 tasks 1 gained, 1 lost, 0 did not change"


def test_runs_of_different_tasks():
    status = [COMPLETED, REJECTED, EXPIRED, UNFINISHED]
    a = run_of("p", [2, 3, 4, NAN], [0, NAN, NAN, NAN], status=status, seed=1)
    b = run_of("q", [2, 5, 6], [0, 3, 4], ids=["a", "b", "c"], seed=2)
    found = Difference(a, b)
    assert found.only == (1, 0) and found.sentences[0] == (
        "the runs did not have the same tasks: 3 are in both, 1 only in p, 0 only in q"
    )
    assert found.sentences[1:-1] == [
        "every task has the same response in both runs", "1 task of p that were rejected completed in q",
        "1 task of p that expired completed in q",
    ]  # fmt: skip
    assert found.to_json()["statuses"][0]["tasks"] == 1 and found.to_json(1)["tasks"] == [
        {"id": "a", "class": "", "user": "u", "status_a": "completed", "status_b": "completed", "a": 2, "b": 2,
         "change": 0},
    ]  # fmt: skip
    later = run_of("q", [3, 5, 6, 9])
    later.record.input.tasks.arrival = later.record.input.tasks.arrival + 0.5
    unlike = Difference(run_of("p", [2, 5, 6, 9], seed=1), later)
    assert unlike.unlike == {"arrival": 4}
    assert unlike.sentences[0] == (
        "of the common tasks 4 with another arrival: the runs did not have the same load; their seeds are 1 and 0: use "
        "the same seed"
    )
    with pytest.raises(UsageError, match='has several tasks'):
        _ = Difference(run_of("p", [2, 5], ids=["a", "a"]), later).tasks
    with pytest.raises(UsageError, match='group must be class or user; got "status"'):
        found.by("status")
    with pytest.raises(UsageError, match='energy_j; got "device"'):
        Difference(a, b, "device")


def test_everything_that_was_decided():
    tasks = workload([0, 0, 0, 1], [4] * 4, id=np.array(list("abcd"), dtype=object))
    rec = record(cluster(gpus=2), tasks, [0, 5, 1, NAN], [4, 9, NAN, 1], [(1,), (2,), (2,), None], end=9.0,
                 status=[COMPLETED, COMPLETED, UNFINISHED, REJECTED])  # fmt: skip
    rec.launches = launches([
        {"task": 0, "place": 0, "start": 0, "end": 4, "members": 3},
        {"task": 2, "place": 1, "start": 1, "end": 2, "outcome": LAUNCH_STOPPED},
        {"task": 2, "place": 1, "start": 2, "end": 3, "outcome": LAUNCH_MOVED},
        {"task": 2, "place": 0, "start": 4, "end": 5, "outcome": LAUNCH_LOST},
        {"task": 1, "place": 1, "decided": 4.5, "start": 5, "end": 9, "members": 2},
    ])  # fmt: skip
    rec.device_log = [(1.5, 1, "frequency", 1234.5), (6.0, 2, "sleep", 0.0), (7.0, 2, "wake", 0.0), (8.0, 2, "awake",
        0.0),
                      (8.5, 1, "down", 0.0)]  # fmt: skip
    table = decisions(Result(rec)).sort_values(["time", "what"])
    assert table.to_numpy().tolist() == [
        [0, "starts a and 2 more on n0/g0"], [1, "rejects d"], [1, "starts c on n0/g1"], [1.5,
            "sets n0/g0 to frequency 1,234"],
        [2, "starts c on n0/g1"], [2, "stops c on n0/g1"], [3, "moves c on n0/g1"], [4, "starts c on n0/g0"],
        [4.5, "starts b and 1 more on n0/g1"], [5, "loses c on n0/g0"], [6, "sets n0/g1 to sleep"], [7,
            "sets n0/g1 to wake"],
    ]  # fmt: skip


def test_of_many_decisions_six_are_told():
    a, b = run_of("p", [float(n + 20) for n in range(8)], [20.0] * 8), run_of("q", [40.0] * 8, [30.0] * 8)
    said = Difference(a, b).sentences[-1]
    names = ", ".join(f"starts {name} on n0/g{n % 4}" for n, name in enumerate("abcdef"))
    assert said == f"the first decision that differs is at 20 s: p {names} and 2 more · q makes no further decision"
    fewer = Difference(run_of("p", [22.0] * 6, [20.0] * 6), run_of("q", [40.0] * 6, [30.0] * 6)).sentences[-1]
    assert fewer == f"the first decision that differs is at 20 s: p {names} · q makes no further decision"


def test_the_settings_that_differ():
    a, b = run_of("p", [2.0]), run_of("q", [2.0])
    assert Difference(a, b).settings == {}
    a.scenario = "seed: 1\npolicy: {x: [1, 2], y: {}}\nnodes: [{cpus: 1}, {cpus: 2}]\n"
    b.scenario = "seed: 1\npolicy: {x: [1, 3]}\nnodes: [{cpus: 1}, {cpus: 4}, {cpus: 2}]\n"
    assert Difference(a, b).settings == {
        "nodes.1.cpus": (2, 4), "nodes.2.cpus": (None, 2), "policy.x": ([1, 2], [1, 3]), "policy.y": ({}, None),
    }  # fmt: skip


# One run --------------------------------------------------------------------------------------------------------------


def test_warnings_of_a_run():
    """One task in a hundred may be unfinished without a word."""

    def of(count: int, open_: int) -> Result:
        status = [UNFINISHED] * open_ + [COMPLETED] * (count - open_)
        finish = [NAN] * open_ + [2.0] * (count - open_)
        rec = record(cluster(gpus=4), workload([0.0] * count, [2.0] * count), [0.0] * count, finish, [(1,)] * count,
                     status=status, end=2.0)  # fmt: skip
        return Result(rec, policy="p")

    assert of(100, 1).warnings == [] == of(1, 0).warnings
    assert of(100, 2).warnings == [
        "2 of 100 tasks (2.0%) were unfinished when the run ended: means leave them out, so means are too low"
    ]
    run = of(2, 0)
    run.error, run.undeclared = "it broke", "it opened a file"
    run.record.input.warnings, run.record.notes = ["careful"], {"optimal": False, "gap": 0.0525}
    assert run.warnings == [
        "the run failed, so the tables end at the failure: it broke", "careful", "it opened a file",
        "the plan of p is not proven optimal: gap 5.25 %",
    ]  # fmt: skip
    run = Result(record(cluster(), workload([9.0], [1]), [NAN], [NAN], [None], end=3.0, status=[-1]))
    run.record.notes = {"optimal": False}
    run.policy = ""
    assert run.warnings == ["no task arrived in the window", "the plan of the policy is not proven optimal"]
    late = record(cluster(), workload([0, 0], [1, 1], deadline=np.array([9.0, 9.0])), [0, NAN], [1, NAN], [(1,), None],
                  end=3.0, horizon=3.0)  # fmt: skip
    assert Result(late).warnings[-1] == (
        "every deadline (2 tasks) lies after the end of the run: the number met is undefined; make the horizon "
        "longer than the deadlines"
    )


def test_percentiles_that_touch_unfinished_tasks_are_at_least_the_greatest():
    rec = record(cluster(gpus=2), workload([0, 0], [3, 3]), [0, NAN], [3, NAN], [(1,), None], end=9.0)
    found = Result(rec)
    assert [found.text(name) for name in ("response_p99", "response_max", "response_mean", "task_count")] == [
        "≥ 3 s", "≥ 3 s", "3 s", "2",
    ]  # fmt: skip
    rec = record(cluster(), workload([0.0], [3]), [NAN], [NAN], [None], end=9.0)
    assert Result(rec).text("response_max") == "∞"
    shown = repr(found).splitlines()
    assert shown[0] == "<Result by hand · paper · seed 0>" and shown[-1].startswith("! 1 of 2 tasks (50.0%)")
    assert (
        "<caption>by hand · paper · seed 0</caption>" in found._repr_html_() and "<div>⚠ 1 of 2" in found._repr_html_()
    )
    assert found.to_json()["summary"]["response_p99"] == "Infinity" and found.window == (0, 9)
    with pytest.raises(UsageError, match='by must be "type" or "node"; got "user"'):
        found.timeline_by("user")
    with pytest.raises(UsageError, match="one run gives no confidence interval for wait_mean"):
        found.interval("wait_mean")


def test_text_that_a_spreadsheet_would_run(tmp_path: Any):
    table = pd.DataFrame({"=x": ["=1+1", "-2.5", "+3", "@a", "-", "\tb", "a=b"], "n": [1.5, -2, 0, 1, 2, 3, 4]},
                         index=pd.MultiIndex.from_tuples([("+a", n) for n in range(7)], names=["k", "m"]))  # fmt: skip
    write_csv(table, tmp_path / "t.csv")
    found = pd.read_csv(tmp_path / "t.csv", dtype=str, keep_default_na=False)
    assert found.columns.tolist() == ["k", "m", "'=x", "n"] and set(found["k"]) == {"'+a"}
    assert found["'=x"].tolist() == ["'=1+1", "-2.5", "+3", "'@a", "'-", "'\tb", "a=b"]
    write_csv(table, tmp_path / "u.csv", index=False)
    assert pd.read_csv(tmp_path / "u.csv").columns.tolist() == ["'=x", "n"]


def test_links_between_jobs(monkeypatch: pytest.MonkeyPatch):
    """Two links of 10 B/s; a link is in use from 0 to 6 of the window from 2 to 10, in it shared for 1 s."""
    rec = record(cluster(nodes=2), workload([0], [10]), [0], [10], [(1,)])
    found = Result(rec)
    link = np.array([1, 0, 1, 1, 1])
    rec.links = {"link": link, "time": np.array([0.0, 3.0, 4.0, 5.0, 6.0]), "busy": np.array([0.5, 1.0, 1.0, 0.25,
        0.0]),
                 "jobs": np.array([1, 1, 2, 1, 0])}  # fmt: skip
    monkeypatch.setattr(network, "link_rates", lambda _: [10.0, math.inf])
    table = network.links_table(rec, 2.0, 10.0)
    assert table["link"].tolist() == ["n0/network", "n1/network"] and table["kind"].tolist() == ["node", "node"]
    assert table.loc[0, ["bytes", "utilization", "utilization_p95", "use", "shared"]].tolist() == [70, 7 / 8, 1, 7, 0]
    assert math.isnan(table.loc[1, "bytes"])
    assert table.loc[1, ["utilization", "utilization_p95", "use", "shared"]].tolist() == [(1 + 1 + 0.25) / 8, 1, 4, 1]
    rec.stays = {name: np.array(values, float) for name, values in {
        "task": [0, 1, 0], "seconds": [5, 9, 6], "contention": [1, 0, 2], "nominal": [3, 9, 2], "here": [3.5, 9, 3],
        "bytes": [4, 0, 6], "across": [1, 0, 4],
    }.items()}  # fmt: skip
    assert network.stretch(found, 0) == {"seconds": 11, "alone": 5, "placement": 1.5, "neighbors": 3, "devices": 1.5}
    assert network.stretch(found, 2) is None
    measured: Any = SimpleNamespace(result=found)
    assert network.cross_rack_fraction(measured) == 0.5


# Language models ------------------------------------------------------------------------------------------------------


def serving(low: float = 0.0, end: float = 20.0) -> Result:
    """Two replicas with 10 blocks and one without a limit; rows from start to end, some outside of the window."""
    rec = record(cluster(gpus=3), workload([0.0], [1.0]), [0.0], [1.0], [(1,)], end=end, warmup=low)
    rec.places = [((1,), None), ((2,), None), ((3,), None)]
    rec.replicas = [("b", 0, 10, 0), ("a", 0, 10, 1), ("b", 1, UNLIMITED, 2)]
    rows = [(0, 0.0, 4.0, 2, 3, 0, 8, 1, 1, 0), (0, 4.0, 10.0, 1, 2, 30, 6, 2, 2, 1),
            (1, 2.0, 6.0, 4, 1, 0, 10, 0, 0, 2), (2, 1.0, 3.0, 1, 0, 12, 0, 5, 0, 0),
            (0, 18.0, 26.0, 1, 5, 0, 4, 4, 0, 3)]  # fmt: skip
    names = ("replica", "start", "end", "steps", "sequences", "prompt_tokens", "free", "taken", "cached", "waiting")
    rec.steps = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}
    rec.steps["running"] = np.array([3, 4, 1, 2, 5])
    return Result(rec)


def test_the_steps_of_replicas():
    table = serving().steps
    assert table["service"].tolist() == ["b", "b", "a", "b", "b"] and table["replica"].tolist() == [0, 0, 0, 1, 0]
    assert table["device"].tolist() == ["n0/g0", "n0/g0", "n0/g1", "n0/g2", "n0/g0"]
    assert table["tokens"].tolist() == [6, 32, 4, 12, 5] and table["running"].tolist() == [3, 4, 1, 2, 5]
    for name, values in {
        "kv_blocks": [10, 10, 10, NAN, 10], "kv_used_start": [2, 4, 0, NAN, 6], "kv_used": [3, 6, 0, NAN, 10],
        "kv_free": [7, 4, 10, NAN, 0], "kv_cached": [1, 2, 0, NAN, 0], "waiting": [0, 1, 2, 0, 3],
    }.items():  # fmt: skip
        assert table[name].tolist() == pytest.approx(values, nan_ok=True), name


@pytest.mark.parametrize("low", [0.0, 3.0, 5.0, 10.0])
def test_memory_and_tokens_of_replicas_in_a_window(low: float):
    """Blocks in use row by row, each weighted by its seconds inside; steps count where they end inside."""
    result = serving(low)
    result.token_gaps = np.zeros(0), np.zeros(0)
    rows = [(0, 4, 2, 3, 2, 6), (4, 10, 4, 6, 1, 32), (2, 6, 0, 0, 4, 4), (18, 26, 6, 10, 1, 5)]
    inside = [max(0, min(end, 20) - max(start, low)) for start, end, *_ in rows]
    used = sum((first + last) / 2 * seconds for (_, _, first, last, *_), seconds in zip(rows, inside, strict=True))
    assert result.metric("kv_used_mean") == pytest.approx(used / 10 / sum(inside))
    assert result.metric("kv_used_max") == 1.0 and serving(low, 18.0).metric("kv_used_max") == pytest.approx(
        0.6 if low < 10 else NAN, nan_ok=True
    )
    ended = [(steps, tokens) for _, end, _, _, steps, tokens in [*rows, (1, 3, 0, 0, 1, 12)] if low < end <= 20]
    mean = sum(tokens for _, tokens in ended) / sum(steps for steps, _ in ended) if ended else NAN
    assert result.metric("tokens_per_step") == pytest.approx(mean, nan_ok=True)
    assert all(math.isnan(result.metric(name)) for name in ("itl_mean", "prefix_hit_rate", "output_rate"))


def test_requests_and_tokens_that_were_there():
    """Prompts of 8 and 6 tokens of which 4 and 0 were cached; a third has not joined.  Gaps of 1, 1, 1 and 4 s."""
    tasks = workload([0.0, 0.0, 0.0], [1.0] * 3, extra={"output_tokens": np.array([3, 2, 2.0]),
                                                       "prompt_tokens": np.array([8, 6, 9.0])})  # fmt: skip
    rec = record(cluster(), tasks, [1.0, 2.0, NAN], [5.0, 9.0, NAN], [(1,), (1,), None], end=10.0)
    shape = SimpleNamespace(index=7)
    rec.input.language = [SimpleNamespace(rows=np.arange(3), ttft=INF, tpot=INF, shape=shape, prefix_block=4)]
    rec.first_token, rec.cached_tokens = np.array([2.0, 5.0, NAN]), np.array([4, 0, 0])
    rec.preemptions_by = {"recompute": np.array([2, 0, 1])}
    result = Result(rec)
    result.token_gaps = np.array([1.0, 4.0]), np.array([3.0, 1.0])
    values = {
        "prefix_tokens_requested": 14, "prefix_tokens_served": 4, "prefix_hit_rate": 4 / 14, "output_rate": 0.5,
        "itl_mean": 7 / 4, "itl_max": 4, "itl_p50": 1, "itl_p95": 1 + 3 * 0.85, "preemptions_recompute": 3,
        "preemptions_swap": 0, "ttft_mean": 3.5, "tpot_mean": (3 / 2 + 4) / 2, "aborted_count": 0,
    }  # fmt: skip
    for name, value in values.items():
        assert result.metric(name) == pytest.approx(value), name
    assert result.tasks["cached_tokens"].tolist() == pytest.approx([4, 0, NAN], nan_ok=True)
