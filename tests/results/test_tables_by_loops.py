"""The tables of tasks and launches against plain loops over random launches at whole seconds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, workload
from tiers import spread

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Power, Price
from hetsim.model.mode import Mode
from hetsim.model.record import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    LAUNCH_RUNNING,
    LAUNCH_STOPPED,
    NOT_ARRIVED,
    REJECTED,
    UNFINISHED,
    Record,
)
from hetsim.results.one_run.calls import RATES, not_back, rates_over
from hetsim.results.one_run.fragmentation_metrics import request_mix
from hetsim.results.one_run.launches import launches_of
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.tables import batch_members

END = 30
NAN = math.nan
SHARED = DeviceType("s", streams=3, power=Power(idle=50, busy=250), price=Price(3.0))
PLAIN = DeviceType("g", power=Power(idle=30, busy=130), price=Price(2.0))
CPU = DeviceType("cpu", kind="cpu", power=Power(idle=2, busy=12), price=Price(0.5))
SHAPES = [
    [gpu_mode(kind=SHARED, millicores=1500), gpu_mode(kind=PLAIN, millicores=500)],
    [gpu_mode(kind=SHARED, share=WHOLE // 4)], [gpu_mode(2, kind=SHARED, millicores=3000)],
    [Mode("cores", CPU, millicores=2000)],
    [Mode("many", CPU, millicores=6000, span_any=True)],
]  # fmt: skip
PLACES: dict[str, list[tuple[tuple[int, ...], tuple[int, ...] | None]]] = {
    "0 0": [((1,), None), ((2,), None), ((5,), None)], "0 1": [((3,), None), ((6,), None)],
    "1 0": [((1,), None), ((2,), None)], "2 0": [((1, 2), None), ((2, 5), None)], "3 0": [((0,), (2, 3)), ((4,), None)],
    "4 0": [((0, 7), (2, 3, 4, 5, 6, 9))],  # two cores of the first node, four of the third
}  # fmt: skip
"""By shape and mode: device 0 is the cores of the first node, 1 to 3 its GPUs; 4 to 6 are those of the second.
Device 7 is the cores of the third."""


def machine() -> Cluster:
    return Cluster([
        NodeSpec(cpus=4, accelerators=((SHARED, 2), (PLAIN, 1)), cpu_type=CPU, rack="a"),
        NodeSpec(cpus=8, accelerators=((SHARED, 1), (PLAIN, 1)), cpu_type=CPU, rack="b"),
        NodeSpec(cpus=8, cpu_type=CPU, rack="c", price=Price(4.0)),
    ])  # fmt: skip


def made(seed: int) -> tuple[Record, list[dict[str, Any]], list[dict[str, Any]]]:
    """A record, its launches (`of`: the tasks of each), and its tasks; groups of one to three are launched together."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []
    for _ in range(9):
        shape = int(rng.integers(len(SHAPES)))
        group = list(range(len(tasks), len(tasks) + int(rng.integers(1, 4))))
        ready = float(rng.integers(0, 6))
        now, stopped = ready + float(rng.integers(0, 4)), bool(rng.random() < 0.4)
        for last in [False, True] if stopped else [True]:
            mode = int(rng.integers(len(SHAPES[shape])))
            places = PLACES[f"{shape} {mode}"]
            since = np.cumsum([now, *rng.integers(0, 3, 2), rng.integers(1, 6), rng.integers(0, 3)])
            decided, start, compute, computed, end = (float(one) for one in since)
            runs = last and bool(rng.random() < 0.2)
            row: dict[str, Any] = {
                "launch": len(rows), "task": group[0], "members": len(group), "mode": mode,
                "decided": decided, "start": start, "compute_start": compute, "compute_end": NAN if runs else computed,
                "end": NAN if runs else end, "busy": float(rng.integers(0, 20)), "energy": float(rng.integers(0, 900)),
                "lost": float(rng.integers(0, 12)), "of": group, "at": places[int(rng.integers(len(places)))],
                "outcome": LAUNCH_RUNNING if runs else 0 if last else LAUNCH_STOPPED, "made": SHAPES[shape][mode],
            }  # fmt: skip
            if rng.random() < 0.5 and compute > start:
                row |= {"upload_start": start, "upload_end": compute}
            if rng.random() < 0.5 and not runs:
                row["download_start"] = computed
            rows.append(row)
            now = end + float(rng.integers(0, 3))
        tasks += [{"shape": shape, "arrival": ready - 0.25 * n, "ready": ready, "last": rows[-1],
                   "first": rows[-2 if stopped else -1], "stops": int(stopped)} for n in range(len(group))]  # fmt: skip
    order = sorted(range(len(tasks)), key=lambda one: tasks[one]["arrival"])
    tasks = [tasks[one] for one in order]
    for row in rows:
        row["of"] = [order.index(one) for one in row["of"]]
        row["task"] = row["of"][0]
    kept = workload(
        [one["arrival"] for one in tasks], [[2.0, 3.0]] * len(tasks), SHAPES, [one["shape"] for one in tasks],
        id=np.array([f"t{number}" for number in range(len(tasks))], dtype=object),
    )  # fmt: skip
    finish = [one["last"]["end"] for one in tasks]
    rec = record(
        machine(), kept, [one["first"]["start"] for one in tasks], finish, [None] * len(tasks), end=float(END),
        ready=np.array([one["ready"] for one in tasks]), mode=[one["last"]["mode"] for one in tasks],
        status=[UNFINISHED if math.isnan(one) else COMPLETED for one in finish],
        batch=np.array([one["last"]["launch"] for one in tasks], dtype=np.int64),
        preemptions=np.array([one["stops"] for one in tasks]),
    )  # fmt: skip
    rec.places = list(dict.fromkeys(row["at"] for row in rows))
    rec.place[:] = [rec.places.index(one["last"]["at"]) for one in tasks]
    extra = ("of", "at", "made")
    rec.launches = launches([
        {key: value for key, value in row.items() if key not in extra} | {"place": rec.places.index(row["at"])}
        for row in rows
    ])  # fmt: skip
    return rec, rows, tasks


def until(row: dict[str, Any]) -> float:
    return float(END) if math.isnan(row["end"]) else row["end"]


def factors(rows: list[dict[str, Any]], where: Cluster) -> list[float]:
    """Of each device what launches hold of it together, second by second, over what they hold one by one."""
    found = []
    for device in where.devices:
        mine = [row for row in rows if device.index in row["at"][0] and not row["made"].on_cpu]
        each = sum((until(row) - row["decided"]) * row["made"].share / WHOLE for row in mine)
        together = 0.0
        for second in range(END):
            level = sum(row["made"].share / WHOLE for row in mine if row["decided"] <= second < until(row))
            together += min(1.0, level) if device.type.streams > 1 else level
        found.append(together / each if each else 1.0)
    return found


def cost_of(row: dict[str, Any], where: Cluster, factor: list[float]) -> float:
    """Its GPUs at their price, and its cores at the mean price of those of its nodes, by what it has of each node."""
    devices, cores = row["at"]
    hosts = [where.nodes[where.devices[one].node].cpu.index for one in devices]
    amounts = [2, 4] if len(devices) > 1 and cores is not None else [1] * len(devices)
    price = [one.up for one in where.prices]
    of_cores = sum(price[host] * amount for host, amount in zip(hosts, amounts, strict=True)) / sum(amounts)
    of_gpus = sum(price[one] * factor[one] * row["made"].share / WHOLE for one in devices if not row["made"].on_cpu)
    return (until(row) - row["decided"]) * (of_gpus + row["made"].millicores / 1000 * of_cores)


def shared_out(rows: list[dict[str, Any]], tasks: list[dict[str, Any]], values: list[float]) -> list[float]:
    """Equal parts for the tasks whose last launch it was; if there are none, all to its first."""
    parts = [0.0] * len(tasks)
    for row, value in zip(rows, values, strict=True):
        mine = [number for number in row["of"] if tasks[number]["last"] is row] or row["of"][:1]
        for number in mine:
            parts[number] += value / len(mine)
    return parts


@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_tasks_of_batches_that_are_stopped_and_start_again(seed: int):
    rec, rows, tasks = made(seed)
    where = rec.input.cluster
    table = Result(rec).tasks
    factor = factors(rows, where)
    counted = [row["energy"] * (1 - (min(row["lost"] / row["busy"], 1.0) if row["busy"] else 0.0)) for row in rows]
    assert table["energy_j"].tolist() == pytest.approx(shared_out(rows, tasks, counted))
    costs = [cost_of(row, where, factor) for row in rows]
    assert table["cost"].tolist() == pytest.approx(shared_out(rows, tasks, costs))
    for number, task in enumerate(tasks):
        row, last, line = task["first"], task["last"], table.iloc[number]
        done = not math.isnan(last["end"])
        assert (line["id"], line["arrival"], line["ready"]) == (f"t{number}", task["arrival"], task["ready"])
        assert (line["start"], line["wait"]) == (row["start"], row["start"] - task["ready"])
        assert (line["batch"], line["preemptions"], line["migrations"]) == (last["launch"], task["stops"], 0)
        assert line["status"] == ("completed" if done else "unfinished")
        assert line["device_type"] == last["made"].type.name
        up = last["upload_end"] - last["upload_start"] if done and "upload_end" in last else 0.0
        down = last["end"] - last["download_start"] if done and "download_start" in last else 0.0
        run = last["compute_end"] - last["compute_start"] if done else 0.0
        assert (line["upload"], line["compute"], line["download"]) == (up, run, down)
        over = last["end"] - row["start"] - up - run - down if done else NAN
        response = last["end"] - task["arrival"] if done else NAN
        alone = 2.0  # the first mode of each has 2 s
        wanted = [over, response, response / alone, max(1.0, response / 10) if done else NAN]
        found = [line[name] for name in ("overhead", "response", "slowdown", "bounded_slowdown_10s")]
        assert found == pytest.approx(wanted, nan_ok=True)
        nodes = sorted({where.devices[one].node for one in last["at"][0]})
        assert line["node"] == "+".join(f"n{one}" for one in nodes)
        assert (line["hosts"], line["racks"]) == (len(nodes), len(nodes))
    members = batch_members(rec)
    assert members is not None and members.tolist() == [len(task["last"]["of"]) for task in tasks]
    assert Result(rec).metric("cost_held") == pytest.approx(sum(costs))


@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_launches_of_batches_that_are_stopped_and_start_again(seed: int):
    rec, rows, tasks = made(seed)
    table = Result(rec).launches
    several = "n0/cpu2+n0/cpu3+n2/cpu0+n2/cpu1+n2/cpu2+n2/cpu5"
    names = {((0,), (2, 3)): "n0/cpu2+n0/cpu3", ((0, 7), (2, 3, 4, 5, 6, 9)): several, ((1, 2), None): "n0/g0+n0/g1"}
    outcomes = {0: "completed", LAUNCH_STOPPED: "stopped", LAUNCH_RUNNING: "running"}
    for row, (_, line) in zip(rows, table.iterrows(), strict=True):
        for name in ("launch", "members", "decided", "start", "compute_start", "compute_end", "end", "busy", "lost"):
            assert line[name] == pytest.approx(row[name], nan_ok=True), name
        assert (line["energy_j"], line["task"], line["outcome"]) == (
            row["energy"], f"t{row['task']}", outcomes[row["outcome"]],
        )  # fmt: skip
        assert line["fill"] == row["decided"] - tasks[row["task"]]["ready"]
        assert (line["mode"], line["device_type"]) == (row["made"].name, row["made"].type.name)
        if names.get(row["at"]):
            assert line["device"] == names[row["at"]]
        for name in ("upload_start", "upload_end", "download_start"):
            assert line[name] == pytest.approx(row.get(name, NAN), nan_ok=True)


def test_a_launch_without_a_number_follows_the_others():
    """A batch of two (number 7) and two launches of one task, which the engine did not number."""
    rec = record(
        Cluster([NodeSpec(accelerators=((PLAIN, 3),))]), workload([0, 0, 1, 2], [4] * 4, [[gpu_mode(kind=PLAIN)]]),
        [0, 0, 1, 2], [4, 4, 6, 9], [(1,), (1,), (2,), (3,)], batch=np.array([7, 7, -1, -1]),
    )  # fmt: skip
    rows: list[dict[str, float]] = [
        {"task": 2, "place": 1, "launch": -1, "start": 1, "end": 6, "members": 1, "energy": 50.0},
        {"task": 0, "place": 0, "launch": 7, "start": 0, "end": 4, "members": 2, "energy": 300.0},
        {"task": 3, "place": 2, "launch": -1, "start": 2, "end": 9, "members": 1, "energy": 70.0},
    ]
    rec.launches = launches(rows)
    found = Result(rec)
    assert found.launches["launch"].tolist() == [8, 7, 9]
    assert found.tasks["energy_j"].tolist() == [150, 150, 50, 70]
    assert found.tasks["batch"].isna().tolist() == [False, False, True, True]
    members = batch_members(rec)
    assert members is not None and members.tolist() == [2, 2, 1, 1]
    assert batch_members(record(machine(), workload([0], [1], SHAPES), [0], [1], [(1,)])) is None


def test_columns_of_the_workload_are_its_own():
    """Classes, users, ids, limits and columns of the source; the fifth task never arrives."""
    tasks = workload(
        [0, 1, 2, 3, math.inf], [4, 4, 4, 0, 4], class_code=np.array([1, 0, 1, 1, 0]), classes=["b", "a"],
        user_code=np.array([0, 1, 1, 2, 0]), users=["u", "v", "u"], id=np.array([5, 6, 7, 8, 9]),
        deadline=np.array([4.0, 4.5, NAN, 3.0, 1.0]), extra={"note": np.array(list("vwxyz")), "node": np.arange(5)},
    )  # fmt: skip
    rec = record(
        Cluster([NodeSpec(accelerators=((PLAIN, 4),))]), tasks, [0, 1, 3, 3, NAN], [4, 5, 7, 3, NAN],
        [(1,), (2,), (3,), (4,), None], status=[COMPLETED] * 4 + [NOT_ARRIVED], attempt_of=np.array([0, -1, 0, -1, -1]),
        reasons={2: "again", 0: "late", 3: "again"}, migrations=np.array([0, 2, 0, 1, 9]),
    )  # fmt: skip
    found = Result(rec).tasks
    assert found["id"].tolist() == [5, 6, 7, 8] and found["attempt_of"].tolist() == [5, 6, 5, 8]
    assert found["class"].tolist() == ["a", "b", "a", "a"] and found["user"].tolist() == ["u", "v", "v", "u"]
    assert found["met_deadline"].tolist()[:2] == [True, False] and found["met_deadline"].isna().tolist() == [
        False, False, True, False,
    ]  # fmt: skip
    assert found["deadline"].tolist()[::3] == [4.0, 3.0] and found["slowdown"].tolist() == [1, 1, 1.25, 1]
    assert found["reason"].tolist()[2:] == ["again", "again"] and found["reason"].isna().tolist() == [0, 1, 0, 0]
    assert found["note"].tolist() == list("vwxy") and found["node_given"].tolist() == [0, 1, 2, 3]
    assert found["migrations"].tolist() == [0, 2, 0, 1] and found["preemptions"].tolist() == [0] * 4


# Calls of clients that try again --------------------------------------------------------------------------------------


def calling(seed: int) -> tuple[Record, list[list[int]], list[float]]:
    """Calls of one to three attempts, of which one at most is answered; further rows are tasks of nobody."""
    rng = np.random.default_rng(seed)
    plans: list[tuple[float, int, int]] = []  # arrival, call, number of the attempt
    ends: list[float] = []
    for call in range(10):
        begin = float(rng.integers(0, 8))
        plans += [(begin + 3.0 * number, call, number) for number in range(int(rng.integers(1, 4)))]
        ends.append(NAN)
    plans += [(float(one), -1, 0) for one in rng.integers(0, 8, 3)]
    plans.sort()
    count = len(plans)
    of_call: list[list[int]] = [[row for row, one in enumerate(plans) if one[1] == call] for call in range(10)]
    status = [int(rng.choice([COMPLETED, ABORTED, REJECTED, EXPIRED, UNFINISHED])) for _ in range(count)]
    for mine in of_call:
        for row in mine[:-1]:  # an attempt after it was sent: this one was not answered
            status[row] = int(rng.choice([ABORTED, REJECTED, EXPIRED]))
    start = [one[0] + float(rng.integers(0, 3)) for one in plans]
    length = [float(rng.integers(1, 5)) for _ in plans]
    ran = [one in (COMPLETED, ABORTED, UNFINISHED) for one in status]
    finish = [
        NAN if one == UNFINISHED else begin + size for one, begin, size in zip(status, start, length, strict=True)
    ]
    attempt_of = np.array([of_call[one[1]][0] if one[1] >= 0 else -1 for one in plans])
    call_end = np.full(count, NAN)
    for call, mine in enumerate(of_call):
        if status[mine[-1]] != UNFINISHED:
            ends[call] = call_end[mine[0]] = finish[mine[-1]]
        elif call % 2:  # the client gave up, and the attempt goes on
            ends[call] = call_end[mine[0]] = 25.0
    deadline = np.array([one[0] + 5.0 for one in plans])
    tasks = workload(
        [one[0] for one in plans], [2.0] * count, deadline=deadline,
        id=np.array([f"t{row}" for row in range(count)], dtype=object),
    )  # fmt: skip
    rec = record(
        Cluster([NodeSpec(accelerators=((PLAIN, count),))]), tasks,
        [begin if run else NAN for begin, run in zip(start, ran, strict=True)], finish,
        [(1 + row,) if run else None for row, run in enumerate(ran)], status=status, end=30.0, warmup=2.0,
        attempt_of=attempt_of, call_end=call_end,
    )  # fmt: skip
    return rec, of_call, ends


@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_calls_by_loops(seed: int):
    rec, of_call, ends = calling(seed)
    result = Result(rec)
    table, tasks = result.calls, result.tasks
    order = sorted(range(10), key=lambda call: of_call[call][0])
    assert table["id"].tolist() == [f"t{of_call[call][0]}" for call in order]
    names = {ABORTED: "aborted", REJECTED: "rejected", EXPIRED: "expired"}
    wasted = 0.0
    good, measured, responses = 0, [], []
    for call, (_, row) in zip(order, table.iterrows(), strict=True):
        mine, end = of_call[call], ends[call]
        answers = [one for one in mine if rec.status[one] == COMPLETED]
        assert (row["attempts"], row["deadline"]) == (len(mine), rec.input.tasks.deadline[mine[0]])  # type: ignore[index]
        assert row["finish"] == pytest.approx(end, nan_ok=True)
        arrival = rec.input.tasks.arrival[mine[0]]
        if answers:
            wanted, response = ("completed", f"t{answers[0]}"), end - arrival
        else:
            last = int(rec.status[mine[-1]])
            wanted = ("unfinished" if math.isnan(end) else names.get(last, "aborted"), None)  # type: ignore[assignment]
            response = NAN
        assert (row["status"], None if pd.isna(row["answered_by"]) else row["answered_by"]) == wanted
        assert row["response"] == pytest.approx(response, nan_ok=True)
        for one in mine:
            goes_on = math.isnan(end) and one == mine[-1] and rec.status[one] == UNFINISHED
            if rec.status[one] != COMPLETED and not goes_on and not math.isnan(rec.start[one]):
                until_then = 30.0 if math.isnan(rec.finish[one]) else rec.finish[one]
                wasted += max(0.0, until_then - max(rec.start[one], 2.0))
        if arrival >= 2.0:
            measured.append(len(mine))
            responses.append(response if answers else math.inf)
            good += bool(answers) and end <= min(30.0, rec.input.tasks.deadline[mine[0]])  # type: ignore[index]
    assert result.metric("wasted_device_s") == pytest.approx(wasted)
    assert result.metric("attempts_per_call") == pytest.approx(np.mean(measured))
    assert result.metric("call_goodput") == pytest.approx(good / 28.0)
    worst = sorted(responses)
    at = 0.99 * (len(worst) - 1)
    low, high = worst[math.floor(at)], worst[math.ceil(at)]
    wanted_p99 = math.inf if math.isinf(high) else low + (high - low) * (at - math.floor(at))
    assert result.metric("call_response_p99") == pytest.approx(wanted_p99)
    edges = np.array([0.0, 4.0, 9.0, 30.0])
    rates = rates_over(rec, result.modes, edges)
    sent = [rec.input.tasks.arrival[one] for mine in of_call for one in mine]
    answered = [ends[call] for call in range(10) if any(rec.status[one] == COMPLETED for one in of_call[call])]
    for number, (low, high) in enumerate(pairwise(edges)):
        inside = [sum(low <= one < high or one == high == 30.0 for one in times) for times in (answered, sent)]
        assert [rates[name][number] * (high - low) for name in RATES[:2]] == pytest.approx(inside)
    assert (rates[RATES[2]] * np.diff(edges)).sum() >= wasted - 1e-9
    assert tasks["attempt_of"].isna().sum() == 0


def outage(rate_after: int, answered_after: float, burst: int = 50, quiet: bool = False) -> Record:
    """60 parts of a minute: 20 calls each are answered, then 5 parts with a burst, then the rest as it is given."""
    arrival, done = [], []
    for part in range(60):
        number = 20 if part < 20 else burst if part < 25 else rate_after
        for one in range(number):
            arrival.append(60.0 * part + 60.0 * (one + 0.5) / number)
            share = 1.0 if part < 20 and not quiet else 0.0 if part < 25 else answered_after
            done.append((one + 1) * share // 1 > one * share // 1)
    arrival[-1] = 3600.0
    rows = np.arange(len(arrival))
    return record(
        Cluster([NodeSpec(accelerators=((PLAIN, 1),))]), workload(arrival, [1.0] * len(arrival)), arrival,
        [one + 1 for one in arrival], [(1,)] * len(arrival), attempt_of=rows,
        status=[COMPLETED if one else ABORTED for one in done], call_end=np.array(arrival) + 1.0,
    )  # fmt: skip


def test_goodput_that_does_not_come_back():
    """The burst ends after 25 of 60 parts; 20 calls a minute were served, and 40 % or none of as many are now."""
    said = "goodput has not recovered 2100 s after the last arrival above capacity: {} of the calls are answered, at a "
    said += "rate of {}/s; 0.333/s was served before"
    assert not_back(outage(20, 0.4)) == [said.format("40%", 0.333)]
    assert not_back(outage(10, 0.0)) == [said.format("0%", 0.167)]
    for fine in (outage(20, 0.5), outage(20, 0.9), outage(40, 0.0), outage(20, 0.0, quiet=True)):
        assert not_back(fine) == []
    assert not_back(outage(33, 0.0)) != []  # 20 + 3 sqrt(20) = 33.4 are not clearly more
    few = outage(20, 0.0)
    assert few.attempt_of is not None
    few.attempt_of[599:] = -1
    assert not_back(few) == [] and not_back(record(machine(), workload([0], [1], SHAPES), [0], [1], [(1,)])) == []


@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_deadlines_of_calls_and_tasks_by_loops(seed: int):
    """A call is judged once, by its first attempt's deadline, and met by any attempt that is in time for its own."""
    rec, of_call, _ = calling(seed)
    rng = np.random.default_rng(seed)
    tasks = rec.input.tasks
    count = len(rec.status)
    tasks.deadline = tasks.arrival + rng.choice([2.0, 5.0, 40.0, NAN], count, p=[0.3, 0.4, 0.2, 0.1])
    tasks.weight = rng.integers(1, 5, count).astype(float)
    result = Result(rec)
    known = 30.0 if (rec.status == UNFINISHED).any() else math.inf

    def in_time(row: int) -> bool:
        return bool(rec.status[row] == COMPLETED and rec.finish[row] <= tasks.deadline[row])  # type: ignore[index]

    firsts = {mine[0]: mine for mine in of_call}
    retries = {row for mine in of_call for row in mine[1:]}
    window = [row for row in range(count) if tasks.arrival[row] >= 2.0]
    ours = [row for row in window if row not in retries]
    met = {row: any(map(in_time, firsts.get(row, [row]))) for row in ours}
    done = {row: any(rec.status[one] == COMPLETED for one in firsts.get(row, [row])) for row in ours}
    judged = [row for row in ours if tasks.deadline[row] <= known]
    later = [row for row in ours if tasks.deadline[row] > known]
    number = sum(met[row] for row in judged)
    values = {name: result.metric(name) for name in (
        "slo_attainment", "attainment_admitted", "goodput_fraction", "goodput", "deadline_after_end", "value_fraction",
    )}  # fmt: skip
    admitted = [row for row in judged if rec.status[row] != REJECTED]
    fraction = number / (len(ours) - len(later)) if judged else NAN
    counted = [row for row in ours if row not in later]
    good = [row for row in counted if done[row] and (met[row] or row not in judged)]
    assert values == pytest.approx({
        "slo_attainment": number / len(judged) if judged else NAN,
        "attainment_admitted": number / len(admitted) if admitted else NAN,
        "goodput_fraction": fraction, "goodput": fraction * len(ours) / 28.0, "deadline_after_end": len(later),
        "value_fraction": sum(tasks.weight[row] for row in good) / sum(tasks.weight[row] for row in counted),
    }, nan_ok=True)  # fmt: skip
    column = result.tasks["met_deadline"]
    assert [None if pd.isna(one) else bool(one) for one in column] == [
        (any(map(in_time, firsts.get(row, [row]))) if row not in retries and tasks.deadline[row] <= known else None)
        for row in range(count)
    ]


# What the mix of requests cannot use ----------------------------------------------------------------------------------


def test_the_mix_of_requests():
    """Equal demands on several types are one request; modes on cores count with their first accelerator mode."""
    cores = Mode("c", CPU, millicores=1000)
    shapes = [
        [gpu_mode(kind=PLAIN), gpu_mode(kind=SHARED)], [gpu_mode(kind=SHARED), gpu_mode(kind=PLAIN)],
        [cores, gpu_mode(kind=PLAIN)], [gpu_mode(kind=PLAIN, share=WHOLE // 2)], [cores], [gpu_mode(2, kind=PLAIN)],
    ]  # fmt: skip
    codes = [0, 0, 1, 2, 3, 4, 4, 5]
    rec = record(
        machine(), workload([0.0] * 7 + [math.inf], [1] * 8, shapes, codes), [NAN] * 8, [NAN] * 8, [None] * 8, end=1.0,
        status=[UNFINISHED] * 7 + [NOT_ARRIVED],
    )  # fmt: skip
    requests, mix = request_mix(rec)
    kinds = [[(mode.type.name, mode.gpus, mode.share / WHOLE) for mode in ways] for ways in requests]
    assert kinds == [
        [("g", 1, 1.0), ("s", 1, 1.0)],
        [("g", 1, 1.0)],
        [("g", 1, 0.5)],
        [("cpu", 0, 0.0)],
        [("g", 2, 1.0)],
    ]
    assert mix.tolist() == pytest.approx([3 / 7, 1 / 7, 1 / 7, 2 / 7, 0.0])
    alone = record(machine(), workload([0.0], [1], shapes[:1]), [NAN], [NAN], [None], end=1.0)
    assert request_mix(alone)[1].tolist() == [1.0]


def test_a_gpu_that_sleeps_for_another_price():
    """Up for 6 s at 2 a second, asleep for 4 s at 0.5; a launch holds half of it for 3 s, at the price of being up."""
    kind = DeviceType("g", streams=2, price=Price(2.0, 0.5), power=GPU.power)
    rec = record(Cluster([NodeSpec(accelerators=((kind, 1),))]), workload([0], [3], [[gpu_mode(share=WHOLE // 2,
                 kind=kind)]]), [0], [3], [(1,)], end=10.0)  # fmt: skip
    rec.device_log = [(5.0, 1, "sleep", 0.0), (9.0, 1, "wake", 0.0), (9.5, 1, "awake", 0.0)]
    row = Result(rec).devices.iloc[0]
    assert (row["up"], row["asleep"], row["cost"]) == (6, 4, 14) and row["cost_held"] == pytest.approx(3.0)


def test_launches_that_say_nothing_of_their_work():
    """It follows from their length: 3 s on two GPUs and half of one are 6 and 1.5 GPU-seconds, at 200 W a GPU."""
    modes = [gpu_mode(2), gpu_mode(share=WHOLE // 2)]
    tasks = workload([0, 0], [3, 3], [[mode] for mode in modes], [0, 1])
    rec = record(cluster(gpus=3), tasks, [0, 0], [3, 3], [(1, 2), (3,)])
    rec.launches = launches([{"task": row, "place": row, "start": 0, "end": 3} for row in (0, 1)])
    for name in ("busy", "energy"):
        del rec.launches[name]
    found = launches_of(rec, Result(rec).modes)
    assert found.busy.tolist() == [6, 1.5] and found.energy.tolist() == [1200, 300]
