"""Device tables and timeline against a count second by second, on random launches at whole seconds.

Everything changes at whole seconds only, so that a sum over seconds in which nothing changes is exact.  The count
below knows nothing of intervals, windows or sweeps: it asks at every second of every launch whether it is there.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_made import gpu_mode, launches, record, workload
from tiers import spread

from hetsim.errors import UsageError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Power
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, UNFINISHED
from hetsim.results.one_run.over_bins import power_over_time
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.usage import overlap, usage

END = 24
SHARED = DeviceType("s", streams=3, power=Power(idle=50, busy=250, sleep=5))
PLAIN = DeviceType("g", power=Power(idle=30, busy=130, sleep=3))
CPU = DeviceType("cpu", kind="cpu", power=Power(idle=2, busy=12, sleep=1))
MODES = [
    gpu_mode(kind=SHARED, millicores=1500),
    gpu_mode(kind=SHARED, share=WHOLE // 4),
    gpu_mode(2, kind=SHARED, millicores=3000),
    gpu_mode(kind=PLAIN),
    Mode("cores", CPU, millicores=2000),
]
PLACES = [[(1,), (2,), (5,)], [(1,), (2,), (5,)], [(1, 2), (2, 5)], [(3,), (6,)], [(0,), (4,)]]
"""Of each mode: devices 0 to 3 are the cores, two shared GPUs and a plain one of the first node; then the second."""


def machine():
    """Four cores, two GPUs of three streams and a plain one; then eight cores and one of each."""
    return Cluster([
        NodeSpec(cpus=4, accelerators=((SHARED, 2), (PLAIN, 1)), cpu_type=CPU),
        NodeSpec(cpus=8, accelerators=((SHARED, 1), (PLAIN, 1)), cpu_type=CPU),
    ])  # fmt: skip


def random_rows(rng, count):
    """Launches with stages at whole seconds; some uploads, downloads, members, lost work; some without an end."""
    rows = []
    for task in range(count):
        mode = int(rng.integers(len(MODES)))
        times = np.cumsum([rng.integers(0, 12), *rng.integers(0, 3, 2), rng.integers(1, 6), rng.integers(0, 3)])
        decided, start, compute, computed, end = (float(t) for t in times)
        open_ = bool(rng.random() < 0.15)
        if open_:
            end = computed = math.nan
        length = (END if open_ else computed) - compute
        size = MODES[mode].millicores / 1000 if MODES[mode].on_cpu else MODES[mode].gpu_share
        busy = length * size
        row = {
            "task": task, "mode": 0, "code": mode, "where": PLACES[mode][int(rng.integers(len(PLACES[mode])))],
            "decided": decided, "start": start, "compute_start": compute, "compute_end": computed, "end": end,
            "members": int(rng.integers(1, 4)), "busy": busy, "energy": busy * 70.0,
            "lost": busy * float(rng.choice([0.0, 0.0, 0.5, 1.0])), "outcome": 3 if open_ else 0,
        }  # fmt: skip
        if not MODES[mode].on_cpu and compute > start:
            row |= {"upload_start": start, "upload_end": compute}
        if not MODES[mode].on_cpu and not open_ and end > computed:
            row["download_start"] = computed
        rows.append(row)
    return rows


LOG = [(2.0, 1, "sleep"), (6.0, 1, "wake"), (7.0, 1, "awake"), (5.0, 3, "down"), (9.0, 3, "up"), (10.0, 4, "down"),
       (13.0, 4, "up"), (11.0, 6, "sleep"), (20.0, 6, "wake"), (15.0, 0, "sleep"), (17.0, 2, "frequency")]  # fmt: skip


def made(seed, low=0.0, count=14):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, count)
    where = machine()
    begun, ended = [row["start"] for row in rows], [row["end"] for row in rows]
    tasks = workload(
        [max(0.0, row["decided"] - float(rng.integers(0, 3))) for row in rows], [1.0] * count,
        [[mode] for mode in MODES], [row["code"] for row in rows],
    )  # fmt: skip
    rec = record(
        where, tasks, begun, ended, [row["where"] for row in rows], end=float(END), warmup=low,
        status=[UNFINISHED if math.isnan(end) else COMPLETED for end in ended],
    )  # fmt: skip
    kept = [{key: value for key, value in row.items() if key not in ("code", "where")} for row in rows]
    for row, full in zip(rows, kept, strict=True):
        full["place"] = next(i for i, (devices, _) in enumerate(rec.places) if devices == row["where"])
    rec.launches = launches(kept)
    rec.device_log = [(time, device, what, 0.0) for time, device, what in sorted(LOG)]
    return rec, rows


def there(row, since, until, second, open_is=True):
    """Is the launch between two of its times during a second?"""
    begin, end = row.get(since, math.nan), row.get(until, math.nan)
    if math.isnan(begin):
        return False
    return begin <= second and (second < end or (math.isnan(end) and open_is))


def state_at(device, second, where):
    """Up, asleep or down during a second, by the last entry of the log for the device and for its node."""
    def last(index, kinds):
        found = [what for time, one, what in sorted(LOG) if one == index and what in kinds and time <= second]
        return found[-1] if found else None

    host = where.nodes[where.devices[device].node].cpu.index
    if "down" in (last(device, ("down", "up")), last(host, ("down", "up"))):
        return "down"
    return "asleep" if last(device, ("sleep", "wake", "awake")) == "sleep" else "up"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("low", "high"), [(0, END), (4, 19), (0, 7), (17, END)])
def test_devices_second_by_second(seed, low, high):
    rec, rows = made(seed)
    use = usage(rec, Result(rec).modes, float(low), float(high))
    where = rec.input.cluster
    seconds = range(low, high)
    for index, device in enumerate(where.devices):
        on_cpu = device.type.kind == "cpu"
        count = where.nodes[device.node].cpus if on_cpu else 1
        wanted = dict.fromkeys(("up", "asleep", "busy", "allocated", "uploading", "downloading", "energy", "lost"), 0.0)
        for second in seconds:
            state = state_at(index, second, where)
            wanted["up"] += state == "up"
            wanted["asleep"] += state == "asleep"
            held = 0.0
            for row in rows:
                mode, places = MODES[row["code"]], row["where"]
                here = index in places
                if there(row, "decided", "end", second):
                    if on_cpu:
                        at = sum(where.nodes[where.devices[one].node].cpu.index == index for one in places)
                        held += mode.millicores / 1000 * at / len(places)
                    elif here:
                        held += mode.share / WHOLE
                if not here:
                    continue
                if there(row, "compute_start", "compute_end", second):
                    length = (END if math.isnan(row["compute_end"]) else row["compute_end"]) - row["compute_start"]
                    part = 1 / length / (len(places) if not mode.on_cpu else 1)
                    wanted["busy"] += row["busy"] * part
                    wanted["energy"] += row["energy"] * part
                    wanted["lost"] += row["energy"] * part * row["lost"] / row["busy"]
                wanted["uploading"] += there(row, "upload_start", "upload_end", second)
                wanted["downloading"] += there(row, "download_start", "end", second)
            wanted["allocated"] += min(1.0, held) if device.type.streams > 1 else held
        power = device.type.power
        found = {name: float(getattr(use, name)[index]) for name in
                 ("up", "asleep", "busy", "allocated", "uploading", "downloading")}  # fmt: skip
        for name, value in found.items():
            assert value == pytest.approx(wanted[name]), (device.name, name)
        assert use.wasted[index] == pytest.approx(wanted["lost"])
        assert use.dynamic[index] == pytest.approx(wanted["energy"] - wanted["lost"])
        assert use.idle[index] == pytest.approx(wanted["up"] * power.idle * count)
        assert use.sleep[index] == pytest.approx(wanted["asleep"] * power.sleep * count)
        begun = sum(index in row["where"] and low <= row["decided"] < high for row in rows)
        assert use.launches[index] == begun
        assert use.count[index] == count
    last = [(state_at(i, END, where), d) for i, d in enumerate(where.devices)]
    watts = sum(
        (d.type.power.idle * (state == "up") + d.type.power.sleep * (state == "asleep"))
        * (where.nodes[d.node].cpus if d.type.kind == "cpu" else 1)
        for state, d in last
    )  # fmt: skip
    assert use.watts_at_end == pytest.approx(watts)


def test_the_devices_table_is_its_columns():
    rec, _ = made(3, 4.0)
    result = Result(rec)
    table, use = result.devices, result.usage
    assert list(table["count"]) == [4, 1, 1, 1, 8, 1, 1]
    assert "cost" not in table and "cost_held" not in table  # a cluster without prices
    assert list(table["up"]) == pytest.approx(list(use.up * use.count))
    assert list(table["asleep"]) == pytest.approx(list(use.asleep * use.count))
    np.testing.assert_allclose(table["utilization"], use.busy / (use.up * use.count))
    np.testing.assert_allclose(table["allocation"], use.allocated / (use.up * use.count))
    np.testing.assert_allclose(table["energy_j"], use.dynamic + use.wasted + use.idle + use.sleep)
    assert table["energy_j"].sum() == pytest.approx(result.metric("energy_j"))
    gpus = np.array([False, True, True, True, False, True, True])
    for metric, seconds, chosen in (
        ("gpu_utilization", use.busy, gpus), ("gpu_allocation", use.allocated, gpus),
        ("cpu_utilization", use.busy, ~gpus), ("cpu_allocation", use.allocated, ~gpus),
    ):  # fmt: skip
        wanted = seconds[chosen].sum() / (use.up * use.count)[chosen].sum()
        assert result.metric(metric) == pytest.approx(wanted), metric
    for name, column in (("tasks", use.dynamic), ("wasted", use.wasted), ("idle", use.idle), ("sleep", use.sleep)):
        assert result.metric(f"energy_{name}_j") == pytest.approx(column.sum())


def test_nodes_without_cores_are_no_row():
    rec = record(
        Cluster([NodeSpec(accelerators=((PLAIN, 2),))]), workload([0], [4], [[gpu_mode(kind=PLAIN)]]), [0], [4], [(2,)]
    )
    table = Result(rec).devices
    assert list(table["device"]) == ["n0/g0", "n0/g1"]
    assert list(table["busy"]) == [0.0, 4.0]
    assert list(table["launches"]) == [0, 1]


@pytest.mark.parametrize("seed", spread(range(6), 3))
@pytest.mark.parametrize("by", [None, "type", "node"])
def test_the_timeline_second_by_second(seed, by):
    """Every row is what holds from its time on; all times at which something changes have a row."""
    rec, rows = made(seed)
    result = Result(rec)
    table = result.timeline if by is None else result.timeline_by(by)
    where = rec.input.cluster
    times = {0.0, float(END)}
    for row in rows:
        for name in ("decided", "start", "compute_start", "compute_end", "end", "upload_start", "upload_end"):
            times.add(row.get(name, math.nan))
    times |= set(rec.ready)
    assert list(table["time"]) == sorted(time for time in times if time <= END)
    for found in table.itertuples():
        now = found.time
        names = ("running", "waiting", "uploading", "downloading", "busy_cores", "busy_gpus")
        state = dict.fromkeys((*names, "held"), 0.0)
        groups: dict[str, float] = {}
        for number, row in enumerate(rows):
            mode = MODES[row["code"]]
            size = mode.millicores / 1000 if mode.on_cpu else mode.gpu_share
            running = row["members"] * there(row, "start", "end", now)
            state["running"] += running
            state["waiting"] += (rec.ready[number] <= now and not (row["end"] <= now)) - running
            state["uploading"] += there(row, "upload_start", "upload_end", now)
            state["downloading"] += there(row, "download_start", "end", now)
            busy = there(row, "compute_start", "compute_end", now)
            held = there(row, "decided", "end", now)
            state["busy_cores" if mode.on_cpu else "busy_gpus"] += size * busy
            state["held"] += size * held * (not mode.on_cpu)
            for one in row["where"]:
                name = mode.type.name if by == "type" else where.nodes[where.devices[one].node].name
                for what, is_so in (("busy", busy), ("allocated", held)):
                    key = f"{what}.{name}"
                    groups[key] = groups.get(key, 0.0) + size / len(row["where"]) * is_so
        for name in names:
            assert getattr(found, name) == pytest.approx(state[name]), (now, name)
        assert found.allocated_gpus == pytest.approx(state["held"])
        if by is not None:
            line = table[table["time"] == now].iloc[0]
            for key, value in groups.items():
                assert line[key] == pytest.approx(value), (now, key)


def test_seconds_inside_a_window():
    nan = math.nan
    begin = np.array([0.0, 2.0, 5.0, 9.0, nan, 3.0, 0.0])
    end = np.array([1.0, 4.0, 9.0, 12.0, 6.0, nan, 99.0])
    assert overlap(begin, end, 3.0, 8.0).tolist() == [0.0, 1.0, 3.0, 0.0, 0.0, 0.0, 5.0]


@pytest.mark.parametrize("bins", [24, 5, 1])
@pytest.mark.parametrize("seed", spread(range(4), 2))
def test_watts_over_time(seed, bins):
    """A stretch has of each second the part of it that is inside."""
    rec, rows = made(seed)
    where, result = rec.input.cluster, Result(rec)
    inside = np.array([[max(0.0, min(second + 1, (one + 1) * END / bins) - max(second, one * END / bins))
                        for one in range(bins)] for second in range(END)])  # fmt: skip
    drawn, idle, asleep = np.zeros((3, len(where.devices), END))
    counts = [where.nodes[one.node].cpus if one.type.kind == "cpu" else 1 for one in where.devices]
    for index, device in enumerate(where.devices):
        for second in range(END):
            state, power = state_at(index, second, where), device.type.power
            idle[index, second] = (state == "up") * power.idle * counts[index]
            asleep[index, second] = (state == "asleep") * power.sleep * counts[index]
            for row in rows:
                if index in row["where"] and there(row, "compute_start", "compute_end", second):
                    length = (END if math.isnan(row["compute_end"]) else row["compute_end"]) - row["compute_start"]
                    drawn[index, second] += row["energy"] / length / len(row["where"])
    width = END / bins
    watts = power_over_time(result, bins)
    assert list(watts)[:4] == ["time", "cpu.work", "cpu.idle", "cpu.sleep"]
    for kind in ("cpu", "s", "g"):
        mine = [index for index, device in enumerate(where.devices) if device.type.name == kind]
        for what, seconds in (("work", drawn), ("idle", idle), ("sleep", asleep)):
            assert watts[f"{kind}.{what}"].to_numpy() == pytest.approx(seconds[mine].sum(axis=0) @ inside / width,
                abs=1e-9)


def test_stretches_that_are_none():
    with pytest.raises(UsageError, match="bins must be at least 1; got 0"):
        power_over_time(Result(made(0)[0]), 0)
    only = NodeSpec(cpus=4, cpu_type=CPU)
    nothing = record(Cluster([only]), workload([0], [0], [[MODES[4]]]), [0], [0], [(0,)], end=0.0)
    assert power_over_time(Result(nothing), 2)["time"].tolist() == [0.0, 0.5]
