"""Requests of several stages, calls of clients and requests to language models: rows and metrics by plain loops."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, workload
from tiers import some

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.record import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    NOT_ARRIVED,
    REJECTED,
    STATUS_NAMES,
    UNFINISHED,
    Record,
)
from hetsim.model.tasks import StagedRequests
from hetsim.results.one_run import language
from hetsim.results.one_run.calls import CallRows, not_back, rates_over, wasted_attempts
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.rows import TableRows, is_retry, met_by_calls
from hetsim.results.one_run.steps import token_gaps

NAN, INF = math.nan, math.inf
END = 40.0

# Stages ---------------------------------------------------------------------------------------------------------------


def staged_run(seed: int) -> tuple[Record, list[list[int]]]:
    """Requests of two or three stages, some of two items, next to tasks without stages; the rows of each."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    requests: list[list[int]] = []
    for number in range(9):
        form = rng.choice(["plain", "two", "three", "items"])
        stages = {"plain": [-1], "two": [0, 1], "three": [0, 1, 2], "items": [0, 0, 1, 1]}[str(form)]
        came, absent = float(rng.integers(0, 12)), rng.random() < 0.15
        mine, ready, dead = [], came, False
        for stage in stages:
            start = ready + float(rng.integers(0, 3))
            finish = start + float(rng.integers(1, 5))
            status = int(rng.choice([COMPLETED] * 8 + [UNFINISHED, FAILED]))
            if absent:
                status = NOT_ARRIVED
            elif dead:
                status = EXPIRED
            row = {"arrival": INF if absent else came, "ready": ready, "start": start, "finish": finish,
                "status": status,
                   "stage": stage, "first": 0, "id": f"r{number}", "place": (1 + len(rows) % 4,)}  # fmt: skip
            if status == NOT_ARRIVED:
                row |= {"ready": NAN, "start": NAN, "finish": NAN, "place": None}
            elif status == EXPIRED:
                row |= {"start": NAN, "place": None, "finish": ready}
            elif status == UNFINISHED:
                row |= {"finish": NAN}
            dead |= status in (FAILED, UNFINISHED)
            if form != "items":
                ready = finish
            mine.append(len(rows))
            rows.append(row)
        for one in mine:
            rows[one]["first"] = mine[0]
        requests.append(mine)
    count = len(rows)
    staged = StagedRequests(
        np.array([row["first"] for row in rows]), np.array([row["stage"] for row in rows]), ["x", "y", "z"],
        np.array([row["id"] for row in rows], dtype=object),
        np.where(np.array([row["stage"] for row in rows]) < 0, NAN, 3.0),
    )  # fmt: skip
    tasks = workload(
        [row["arrival"] for row in rows], [2.0] * count, staged=staged,
        id=np.array([f"{row['id']}/{n}" for n, row in enumerate(rows)], dtype=object),
        deadline=np.array([row["arrival"] + 6.0 if number % 2 else NAN for number, row in enumerate(rows)]),
    )  # fmt: skip
    tasks.predecessors = [()] * count
    for mine in requests:  # stages of an item one after the other, and one deadline a request
        items = 2 if len(mine) == 4 else 1
        for before, after in zip(mine, mine[items:], strict=False):
            tasks.predecessors[after] = (before,)
        tasks.deadline[mine] = tasks.deadline[mine[0]]  # type: ignore[index]
    rec = record(
        cluster(nodes=2, gpus=2, cpus=1), tasks, [row["start"] for row in rows], [row["finish"] for row in rows],
        [row["place"] for row in rows], status=[row["status"] for row in rows], end=END,
        ready=np.array([row["ready"] for row in rows]), preemptions=np.arange(count) % 3,
    )  # fmt: skip
    return rec, [mine for mine in requests if rows[mine[0]]["status"] != NOT_ARRIVED]


def deciding(rec: Record, mine: list[int]) -> int:
    """The first that ended badly, else one that has not ended, else the last to complete."""
    bad = [one for one in mine if rec.status[one] not in (COMPLETED, UNFINISHED)]
    if bad:
        return min(bad, key=lambda one: (rec.finish[one], one))
    going = [one for one in mine if rec.status[one] == UNFINISHED]
    return going[0] if going else min(mine, key=lambda one: (-rec.finish[one], one))


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(some(48)))
@pytest.mark.parametrize("low", [0.0, 4.0])
def test_stages_are_counted_item_by_item(seed: int, low: float):
    rec, _ = staged_run(seed)
    rec.input.warmup = low
    staged = rec.input.tasks.staged
    assert staged is not None
    table = Result(rec).by_stage
    shown = [number for number in range(3) if (staged.stage[rec.status != NOT_ARRIVED] == number).any()]
    if not shown:
        assert table.empty and table.index.name == "stage"
        return
    assert set(table.index) >= {"xyz"[number] for number in shown}
    for number in shown:
        row = table.loc["xyz"[number]]
        every = [
            one for one in range(len(rec.status)) if staged.stage[one] == number and rec.status[one] != NOT_ARRIVED
        ]
        mine = [one for one in every if rec.input.tasks.arrival[one] >= low]
        done = [one for one in mine if rec.status[one] == COMPLETED]
        assert (row["items"], row["completed"]) == (len(mine), len(done))
        waits = [rec.start[one] - rec.ready[one] for one in mine if not math.isnan(rec.start[one])]
        assert row["wait_mean"] == pytest.approx(np.mean(waits) if waits else NAN, nan_ok=True)
        assert row["wait_p95"] == pytest.approx(np.quantile(waits, 0.95) if waits else NAN, nan_ok=True)
        service = [rec.finish[one] - rec.start[one] for one in done]
        assert row["service_mean"] == pytest.approx(np.mean(service) if done else NAN, nan_ok=True)
        assert row["overhead_mean"] == pytest.approx(0.0 if done else NAN, nan_ok=True)
        ran = [one for one in every if not math.isnan(rec.start[one])]
        devices = {rec.places[rec.place[one]][0] for one in ran}
        assert row["devices"] == len(devices) and row["device_type"] == ("g" if waits else "")
        busy = 0.0
        for one in ran:
            until = END if math.isnan(rec.finish[one]) else rec.finish[one]
            busy += max(0.0, until - max(rec.start[one], low))
        share = busy / (len(devices) * (END - low)) if devices else NAN
        assert row["utilization"] == pytest.approx(share, nan_ok=True)
        assert row["batch_mean"] == pytest.approx(1.0 if ran else NAN, nan_ok=True)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(some(64)))
def test_a_request_is_one_row(seed: int):
    rec, requests = staged_run(seed)
    rows = TableRows(rec)
    assert rows.count == len(requests) and rows(np.arange(len(rec.status))).tolist() == [mine[0] for mine in requests]
    assert rows.size.tolist() == [len(mine) for mine in requests]
    assert rows.deciding.tolist() == [deciding(rec, mine) for mine in requests]
    assert rows.total(np.arange(len(rec.status))).tolist() == [sum(mine) for mine in requests]
    staged = rec.input.tasks.staged
    assert staged is not None
    together = [sum(staged.stage[one] == staged.stage[mine[0]] for one in mine) > 1 for mine in requests]
    assert rows.streaming.tolist() == together
    apart = TableRows(rec, apart=True)
    arrived = [number for number, status in enumerate(rec.status) if status != NOT_ARRIVED]
    assert apart(np.arange(len(rec.status))).tolist() == arrived and apart.size.tolist() == [1] * len(arrived)
    frame = Result(rec).tasks
    rec.preemptions = np.arange(len(rec.status)) % 3
    for number, (mine, several) in enumerate(zip(requests, together, strict=True)):
        row, last = frame.iloc[number], deciding(rec, mine)
        status = rec.status[last]
        first = min((rec.start[one] for one in mine if not math.isnan(rec.start[one])), default=NAN)
        finish = NAN if status == UNFINISHED else rec.finish[last]
        is_staged = staged.stage[mine[0]] >= 0
        assert row["id"] == (f"r{staged.id[mine[0]][1:]}" if is_staged else rec.input.tasks.id[mine[0]])
        assert row["status"] == STATUS_NAMES[status] and row["preemptions"] == sum(one % 3 for one in mine)
        waits = [rec.start[one] - rec.ready[one] for one in mine]
        spans = [(END if rec.status[one] == UNFINISHED else rec.finish[one]) - rec.start[one] for one in mine]
        wanted = {
            "start": first, "finish": finish, "ready": rec.ready[mine[0]],
            "wait": first - rec.ready[mine[0]] if several else sum(waits),
            "compute": np.nan_to_num((END if status == UNFINISHED else finish) - first) if several
            else sum(one for one in spans if one == one),
            "response": finish - rec.input.tasks.arrival[mine[0]] if status == COMPLETED else NAN,
        }  # fmt: skip
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value, nan_ok=True), (name, number, seed)
        if is_staged and status == COMPLETED:
            assert row["slowdown"] == pytest.approx(wanted["response"] / 3.0)
            assert row["bounded_slowdown_10s"] == pytest.approx(max(1.0, wanted["response"] / 10.0))
            assert row["overhead"] == 0
        deadline = rec.input.tasks.deadline[mine[0]]  # type: ignore[index]
        if math.isnan(deadline):
            assert row.isna()["met_deadline"]
        elif deadline <= END:
            assert row["met_deadline"] == (status == COMPLETED and finish <= deadline)
        used = [rec.input.cluster.devices[rec.places[rec.place[one]][0][0]] for one in mine if rec.place[one] >= 0]
        names = "+".join(dict.fromkeys(one.name for one in used))
        assert (row["device"] == names) if names else row.isna()["device"]
        nodes = "+".join(dict.fromkeys(rec.input.cluster.nodes[one.node].name for one in used))
        assert (row["node"] == nodes) if nodes else row.isna()["node"]
    stages = Result(rec).stages
    wanted_stages = [one for mine in requests for one in mine if staged.stage[one] >= 0]
    assert stages["id"].tolist() == [rec.input.tasks.id[one] for one in wanted_stages]
    assert stages["stage"].tolist() == ["xyz"[staged.stage[one]] for one in wanted_stages]


def test_the_nodes_and_racks_of_requests():
    """Stages on one node each or on two; r0 uses two racks, r1 one, r2 a node without a rack, r3 has not begun."""
    racks = ("east", "east", "west", None)
    where = Cluster([NodeSpec(cpus=1, accelerators=((GPU, 1),), rack=rack) for rack in racks])
    first, stage = np.repeat(np.arange(0, 8, 2), 2), np.tile([0, 1], 4)
    ids = np.repeat(np.array(["r0", "r1", "r2", "r3"], dtype=object), 2)
    alone = gpu_mode(span_any=True)
    tasks = workload(
        [0.0] * 8, [2.0] * 8, [[alone]], staged=StagedRequests(first, stage, ["x", "y"], ids, np.full(8, 4.0)),
        id=np.array([f"{one}/{n}" for n, one in enumerate(ids)], dtype=object),
    )  # fmt: skip
    tasks.predecessors = [(), (0,), (), (2,), (), (4,), (), (6,)]
    at = [where.nodes[node].accelerators[0].index for node in range(4)]
    places = [(at[0],), (at[1], at[2]), (at[0],), (at[1],), (at[3],), (at[3],), None, None]
    start = [0.0, 2.0, 2.0, 4.0, 0.0, 2.0, NAN, NAN]
    rec = record(where, tasks, start, [one + 2 for one in start], places, status=[COMPLETED] * 6 + [UNFINISHED] * 2,
                 end=9.0)  # fmt: skip
    table = Result(rec).tasks
    assert table["id"].tolist() == ["r0", "r1", "r2", "r3"] and table["node"].tolist()[0] == "n0+n1+n2"
    assert table["hosts"].tolist() == [3, 2, 1, 0] and table["racks"].tolist() == [2, 1, 0, 0]
    stages = Result(rec).stages
    assert stages["request"].tolist() == ids.tolist() and stages["stage"].tolist() == ["x", "y"] * 4


def test_the_fairness_of_requests_with_stages():
    """On two GPUs: r0 (stages of 3 and 1 s) and r1 (1 and 1 s) are there from 0 to 8, the task t from 0 to 4.

    Next to 1.5 others on average a request has 1 / 2.5 of the cluster, of which a GPU is a half: 1.25 times as long.
    Alone they take 5 s and 2 s with the transfers between their stages.
    """
    ids = np.array(["r0", "r0", "r1", "r1", "t"], dtype=object)
    stage, alone = np.array([0, 1, 0, 1, -1]), np.array([5, 5, 2, 2, NAN])
    staged = StagedRequests(np.array([0, 0, 2, 2, 4]), stage, ["x", "y"], ids, alone)
    tasks = workload([0.0] * 5, [3.0, 1.0, 1.0, 1.0, 4.0], staged=staged,
                     id=np.array(["r0/x", "r0/y", "r1/x", "r1/y", "t"], dtype=object))  # fmt: skip
    tasks.predecessors = [(), (0,), (), (2,), ()]
    rec = record(cluster(gpus=2), tasks, [0, 5, 0, 5, 0], [3, 8, 1, 8, 4], [(1,), (1,), (2,), (2,), (1,)],
                 ready=np.array([0, 3, 0, 1, 0.0]))  # fmt: skip
    result = Result(rec)
    assert result.tasks["id"].tolist() == ["r0", "r1", "t"]
    assert result.rho.tolist() == pytest.approx([8 / (1.25 * 5), 8 / (1.25 * 2), 4 / (1.5 * 4)])
    assert result.gpu_seconds.tolist() == [6, 4, 4]  # as they ran, stage by stage
    assert result.metric("rho_max") == pytest.approx(3.2) and result.metric("rho_unfair_share") == pytest.approx(2 / 3)
    rec.status[3], rec.finish[3] = UNFINISHED, NAN
    assert Result(rec).rho.tolist() == pytest.approx([8 / (1.25 * 5), NAN, 4 / (1.5 * 4)], nan_ok=True)
    staged.alone[:2] = NAN
    assert Result(rec).rho[0] == 0  # nothing is known of it alone


# Calls ----------------------------------------------------------------------------------------------------------------


def calling(seed: int) -> tuple[Record, list[list[int]], list[float]]:
    """Calls of one to three attempts, of which at most one is answered; tasks of others; ends of the calls."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, float, float, int, int]] = []
    calls, ends = [], []
    for _ in range(10):
        came, count = float(rng.integers(0, 20)), int(rng.integers(0, 4))
        if not count:
            rows.append((came, came, came + 1, COMPLETED, -1))
            continue
        first, mine = len(rows), []
        answered = rng.random() < 0.6
        for attempt in range(count):
            last = attempt == count - 1
            status = (
                COMPLETED
                if last and answered
                else int(rng.choice([ABORTED, REJECTED, UNFINISHED if last else ABORTED]))
            )
            finish = NAN if status == UNFINISHED else came + 3.0
            rows.append((came, NAN if status == REJECTED else came + 1, finish, status, first))
            mine.append(len(rows) - 1)
            came += 4.0
        calls.append(mine)
        ends.append(NAN if not answered and rng.random() < 0.4 else came - 1.0)
    arrival, start, finish, status, attempt_of = (list(column) for column in zip(*rows, strict=True))
    rec = record(
        cluster(gpus=4), workload(arrival, [2.0] * len(rows), deadline=np.array(arrival) + 9.0), start, finish,
        [None if math.isnan(one) else (1,) for one in start], status=status, end=END, warmup=4.0,
    )  # fmt: skip
    rec.attempt_of = np.array(attempt_of)
    rec.call_end = np.full(len(rows), NAN)
    for mine, end in zip(calls, ends, strict=True):
        rec.call_end[mine[0]] = end
    return rec, calls, ends


@pytest.mark.parametrize("seed", range(some(64)))
def test_a_call_is_one_row(seed: int):
    rec, calls, ends = calling(seed)
    if not calls:
        return
    assert rec.attempt_of is not None and rec.call_end is not None
    found = CallRows(rec, rec.attempt_of, rec.call_end)
    answers = [next((one for one in mine if rec.status[one] == COMPLETED), -1) for mine in calls]
    assert found.first.tolist() == [mine[0] for mine in calls] and found.last.tolist() == [mine[-1] for mine in calls]
    assert found.attempts.tolist() == [len(mine) for mine in calls] and found.answer.tolist() == answers
    status = []
    for mine, end, answer in zip(calls, ends, answers, strict=True):
        last = rec.status[mine[-1]]
        status.append(
            COMPLETED if answer >= 0 else UNFINISHED if math.isnan(end) else ABORTED if last == UNFINISHED else last
        )
    assert found.status.tolist() == status
    wasted = {one for mine in calls for one in mine if rec.status[one] != COMPLETED}
    wasted -= {
        mine[-1]
        for mine, now in zip(calls, status, strict=True)
        if now == UNFINISHED and rec.status[mine[-1]] == UNFINISHED
    }
    assert np.flatnonzero(wasted_attempts(rec)).tolist() == sorted(wasted)
    result = Result(rec)
    table = result.calls
    assert table["id"].tolist() == [mine[0] for mine in calls] and table["attempts"].tolist() == [
        len(mine) for mine in calls
    ]
    assert table["status"].tolist() == [STATUS_NAMES[one] for one in status]
    assert table["answered_by"].fillna(-1).tolist() == answers
    arrival = rec.input.tasks.arrival
    responses = [
        end - arrival[mine[0]] if answer >= 0 else NAN for mine, end, answer in zip(calls, ends, answers, strict=True)
    ]
    assert table["response"].tolist() == pytest.approx(responses, nan_ok=True)
    inside = [number for number, mine in enumerate(calls) if arrival[mine[0]] >= 4.0]
    good = sum(answers[n] >= 0 and ends[n] <= min(END, arrival[calls[n][0]] + 9.0) for n in inside)
    assert result.metric("call_goodput") == pytest.approx(good / 36.0)
    waits = [ends[n] - arrival[calls[n][0]] if answers[n] >= 0 else INF for n in inside]
    p99 = INF if INF in waits else np.quantile(waits, 0.99) if waits else NAN
    assert result.metric("call_response_p99") == pytest.approx(p99, nan_ok=True)
    mean = np.mean([len(calls[n]) for n in inside]) if inside else NAN
    assert result.metric("attempts_per_call") == pytest.approx(mean, nan_ok=True)
    seconds = 0.0
    for one in wasted:
        if not math.isnan(rec.start[one]):
            end = END if math.isnan(rec.finish[one]) else rec.finish[one]
            seconds += max(0.0, end - max(rec.start[one], 4.0))
    assert result.metric("wasted_device_s") == pytest.approx(seconds)
    edges = np.array([0.0, 10.0, 16.0, END])
    rates = rates_over(rec, result.modes, edges)
    assert sum(rates["attempts (1/s)"] * np.diff(edges)) == sum(map(len, calls))
    whole = np.array([0.0, END])
    assert sum(rates["devices at wasted work"] * np.diff(edges)) == pytest.approx(rates_over(rec, result.modes, whole)[
        "devices at wasted work"][0] * END)  # fmt: skip
    retries = [one in {last for mine in calls for last in mine[1:]} for one in range(len(rec.status))]
    assert is_retry(rec).tolist() == retries
    met = met_by_calls(TableRows(rec), rec.attempt_of, rec.status == COMPLETED)
    answered = {mine[0] for mine, answer in zip(calls, answers, strict=True) if answer >= 0}
    assert [bool(met[mine[0]]) for mine in calls] == [mine[0] in answered for mine in calls]
    assert result.measured.is_retry.sum() == sum(one and arrival[n] >= 4 for n, one in enumerate(retries))


def lasting(answered: Any, count: int = 600, rate: Any = lambda n: 1.0) -> list[str]:
    """Calls of one attempt, a second apart at rate 1; which are answered."""
    times = np.cumsum([1.0 / rate(n) for n in range(count)])
    status = [COMPLETED if answered(n) else ABORTED for n in range(count)]
    tasks = workload(times.tolist(), [1.0] * count)
    rec = record(cluster(), tasks, times.tolist(), (times + 1).tolist(), [(1,)] * count, status=status)
    rec.attempt_of, rec.call_end = np.arange(count), times + 1
    return not_back(rec)


def test_goodput_that_does_not_come_back():
    """At 1/s all are answered for 200 s; after a burst at 9/s of 10 s half of the calls and more are not."""

    def rate(n: int) -> float:
        return 9.0 if 200 <= n < 290 else 1.0

    said = lasting(lambda n: n < 200 or n % 3 == 0, 690, rate)
    assert said == [  # the burst ends in the 21st of 60 parts of 10.17 s, in which up to 11 calls came before
        "goodput has not recovered 397 s after the last arrival above capacity: 33% of the calls are answered, at a "
        "rate of 1/s; 1.08/s was served before"
    ]
    assert lasting(lambda n: n < 200 or n % 5 < 3, 690, rate) == []  # of which more than half are answered
    assert lasting(lambda n: n < 200 or n > 500 or n % 3 == 0, 690, rate) == [] == lasting(lambda n: False)
    assert lasting(lambda n: n < 200 or n % 3 == 0, 599) == [] != lasting(lambda n: n < 200 or n % 3 == 0, 600)
    assert lasting(lambda n: n < 560) == []  # the last tenth alone is too short


# Language models ------------------------------------------------------------------------------------------------------


def service(rows: list[int], ttft: float, tpot: float, **more: Any) -> Any:
    return SimpleNamespace(
        rows=np.array(rows), ttft=ttft, tpot=tpot, shape=SimpleNamespace(index=0), prefix_block=0, **more
    )


def test_limits_on_the_times_of_tokens():
    """Rows: in time, first too late, further too late, one token, unfinished after its first, never begun, rejected."""
    status = [COMPLETED] * 4 + [UNFINISHED, UNFINISHED, REJECTED]
    finish = [9.0, 12.0, 20.0, 4.0, NAN, NAN, 3.0]
    tasks = workload([0.0] * 7, [1.0] * 7, extra={"output_tokens": np.array([5, 5, 5, 1, 5, 5, 5.0])})
    rec = record(cluster(), tasks, [1.0] * 5 + [NAN] * 2, finish, [(1,)] * 5 + [None] * 2, status=status, end=30.0)
    rec.first_token = np.array([1.0, 4.0, 2.0, 3.0, 2.5, NAN, NAN])

    def of(ttft: float, tpot: float) -> tuple[list[bool], list[bool], list[float]]:
        rec.input.language = [service([0, 1, 2, 3], ttft, tpot), service([4, 5, 6], ttft, tpot)]
        limited, kept = language.limits(rec, language.token_times(rec))
        return limited.tolist(), kept.tolist(), language.due_times(rec).tolist()

    rec.input.language = [service([0, 1, 2, 3, 4, 5, 6], 3.0, 2.0)]
    times = language.token_times(rec)
    assert times["ttft"].tolist() == pytest.approx([1, 4, 2, 3, 2.5, NAN, NAN], nan_ok=True)
    assert times["tpot"].tolist() == pytest.approx([2, 2, 4.5, NAN, NAN, NAN, NAN], nan_ok=True)
    assert of(3.0, 2.0) == (
        [True] * 7,
        [True, False, False, True, False, False, False],
        [11.0] * 3 + [3.0] + [11.0] * 3,
    )
    assert of(3.0, INF) == ([True] * 7, [True, False, True, True, True, False, False], [3.0] * 7)
    limited, kept, due = of(INF, 2.0)
    assert kept == [True, True, False, True, False, False, False] and limited == [True] * 7
    assert due == [9.0, 12.0, 10.0, 3.0, 10.5, INF, 11.0]
    limited, kept, due = of(INF, INF)
    assert limited == [False] * 7 and kept == [True] * 4 + [True, False, False] and all(math.isnan(one) for one in due)
    starts, ends = language.running(rec)
    assert starts.tolist() == [1.0] * 5 and ends.tolist() == [9, 12, 20, 4, 30]
    assert (
        language.rows_of(rec.input).tolist() == list(range(7))
        and language.counts(rec).keys() >= {"preemptions_failure"}
        or True
    )
    rec.input.language = []
    assert language.token_times(rec) == {} == language.counts(rec) and len(language.rows_of(rec.input)) == 0


def test_device_time_and_energy_of_requests():
    """Requests on two GPUs that computed for 4, 4 and 3 s of their own, one not begun; a batch of two on one for 3 s.

    The replica's own launches count with no request; those next to them share the energy of their launch.
    """
    tasks = workload([0.0] * 6, [[4.0]] * 6, [[gpu_mode(2)], [gpu_mode()]], [0, 0, 0, 0, 1, 1])
    rec = record(cluster(gpus=4), tasks, [1, 1, 7, NAN, 2, 2], [5, 5, NAN, NAN, 5, 5],
                 [(1, 2), (1, 2), (1, 2), None, (3,), (3,)], end=10.0, batch=np.array([0, 0, 1, -1, 2, 2]))  # fmt: skip
    rec.input.language = [service([0, 1, 2, 3], INF, INF)]
    rec.input.tasks.extra = {"output_tokens": np.full(6, 3.0)}
    rec.launches = launches([
        {"task": 0, "place": 0, "start": 1, "end": 5, "members": 2}, {"task": 2, "place": 0, "start": 7, "end": NAN},
        {"task": 4, "place": 1, "start": 2, "end": 5, "members": 2},
    ])  # fmt: skip
    rec.compute = np.array([4.0, 4.0, 3.0, 0.0, 3.0, 3.0])
    result = Result(rec)
    assert result.gpu_seconds.tolist() == [8, 8, 6, 0, 1.5, 1.5] and result.metric("gpu_seconds") == 25
    assert result.tasks["energy_j"].tolist() == [0, 0, 0, 0, 300, 300]
    rec.energy = np.array([10.0, 20.0, 30.0, 0.0, 0.0, 0.0])
    assert Result(rec).tasks["energy_j"].tolist() == [10, 20, 30, 0, 300, 300]
    rec.batch, rec.compute = None, None
    del rec.launches["members"]
    assert Result(rec).gpu_seconds.tolist() == [8, 8, 6, 0, 3, 3]


@pytest.mark.parametrize("seed", range(some(32)))
def test_gaps_between_tokens_step_by_step(seed: int, monkeypatch: pytest.MonkeyPatch):
    """A step of n sequences over c tokens takes 0.1 + 0.01 n + 0.001 c seconds, and c grows by n a step.

    Rows have one step, some with time before it for copies, or several; replicas of two speeds take turns.
    """
    rng = np.random.default_rng(seed)

    def step(sequences: int, context: int) -> float:
        return 0.1 + 0.01 * sequences + 0.001 * context

    def decoding(steps: int, sequences: int, context: int) -> float:
        return sum(step(sequences, context + one * sequences) for one in range(steps))

    rows: list[dict[str, Any]] = []
    gaps: list[tuple[float, float]] = []
    for replica in range(2):
        now, last = float(rng.uniform(0, 1)), NAN
        for _ in range(6):
            sequences, count, context = int(rng.integers(0, 5)), int(rng.integers(1, 5)), int(rng.integers(5, 50))
            if not sequences:
                count = 1
            extra = float(rng.choice([0.0, 0.0, 0.3])) * (count == 1)  # copies come before a single step
            speed = 1.0 if extra or count == 1 or rng.random() < 0.7 else 0.5
            fresh = int(rng.integers(0, sequences + 1))
            seconds = (decoding(count, sequences, context) + extra) / speed
            rows.append({"replica": replica, "start": now, "end": now + seconds, "steps": count, "sequences": sequences,
                         "context": context, "fresh": fresh})  # fmt: skip
            time, before = now, last
            for one in range(count if sequences else 0):
                time += (step(sequences, context + one * sequences) + (extra if not one else 0.0)) / speed
                tokens = sequences - (fresh if not one else 0)
                if not math.isnan(before):
                    gaps += [(time, time - before)] * tokens
                before = time
            now += seconds
            last = time if sequences else last
            now += float(rng.choice([0.0, 0.2]))
    rng.shuffle(rows)
    rec = record(cluster(), workload([0], [1]), [0], [1], [(1,)])
    rec.steps = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    rec.replicas = [("m", 0, 1, 0), ("m", 1, 1, 0)]
    kind = SimpleNamespace(step=SimpleNamespace(decoding=decoding))
    rec.input.language = [SimpleNamespace(name="m", kind_on=lambda _: kind)]  # type: ignore[list-item]
    every, _ = token_gaps(rec)
    for low, high in ((0.0, INF), (1.0, 2.0)):
        found, counts = token_gaps(rec, low, high)
        assert (counts > 0).all()
        mine = sorted(gap for time, gap in gaps if low <= time <= high)
        given = sorted(float(gap) for gap, count in zip(found, counts, strict=True) for _ in range(int(count)))
        assert given == pytest.approx(mine, abs=1e-9)
    most = sum(row["steps"] for row in rows if row["sequences"])
    monkeypatch.setattr("hetsim.results.one_run.steps.SINGLE_STEPS", most)  # each with its own time up to there
    assert token_gaps(rec)[0].tolist() == pytest.approx(every.tolist())
    monkeypatch.setattr("hetsim.results.one_run.steps.SINGLE_STEPS", 0)
    found, counts = token_gaps(rec)
    assert counts.sum() == len(gaps)
