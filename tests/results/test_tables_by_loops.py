"""The tables of tasks and launches against plain loops over random launches at whole seconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hand_made import gpu_mode, launches, record, workload
from tiers import spread

from hetsim.model.cluster import WHOLE, Cluster, DeviceType, NodeSpec, Power, Price
from hetsim.model.record import COMPLETED, LAUNCH_RUNNING, LAUNCH_STOPPED, NOT_ARRIVED, UNFINISHED, Record
from hetsim.model.tasks import Mode
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
