"""`gradient`, `dagor`, `class_shedding` and `adaptive_lifo`, by hand and by second implementations."""

import heapq
import math
import zlib

import numpy as np
import pytest
from test_admission_decisions import Seen, admitted, gpu_tasks, machine

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim_policies.admission.feedback import ALL, LEVELS, ClassShedding, Dagor, Gradient

close = pytest.approx


def scenario(policy, *, rate, servers, mean, count, seed=1, law="exponential", **entry):
    time = {"distribution": law, "mean": f"{mean} s"} if law == "exponential" else f"{mean} s"
    entry = {"arrivals": {"process": "poisson", "rate": f"{rate}/s"}, "cpu_time": time, "count": count, **entry}
    return {"name": "s", "seed": seed, "cluster": {"nodes": {"cpus": servers}}, "policy": policy,
            "workload": [{"name": "jobs", **entry}]}  # fmt: skip


# Gradient ---------------------------------------------------------------------------------------------------------


def answers(policy, view, tasks, responses):
    """Tasks end after these responses, counted from 0."""
    for task, response in zip(tasks, responses, strict=True):
        view.now = response
        policy.finished(task)


@pytest.mark.parametrize(("base", "then", "last"), [("minimum", 9.25, 1.5), ("average", 9.8, 2.5)])
def test_gradient_by_hand(base, then, last):
    """R = 1.5 makes the base, g = 1: 10 / 2 + 12 / 2 = 11.  With R = 5 g = 1.2 · 1.5 / 5, that is 0.5, and 11 / 2 +
    7.5 / 2 = 9.25; the average base is 1.5 + 3.5 · 2 / 7 = 2.5, g = 0.6: 11 / 2 + 8.6 / 2 = 9.8."""
    policy = Gradient(start=10, queue=2, tolerance=1.2, smoothing=0.5, window=2.0, samples=3, base=base, memory=6)
    view, tasks = Seen(), gpu_tasks(30)
    policy.begin(view)
    for task in tasks[:6]:
        assert admitted(policy.admit(task, view))
    answers(policy, view, tasks[:2], (1.0, 1.4))
    policy.gone(tasks[2])  # no answer
    assert policy.limit == 10
    answers(policy, view, tasks[3:4], (2.1,))
    assert policy.limit == close(11) and policy.base_response == close(1.5)
    for task in tasks[6:15]:
        assert admitted(policy.admit(task, view))
    assert not admitted(policy.admit(tasks[15], view))
    answers(policy, view, tasks[4:7], (5.0, 5.0, 5.0))
    assert policy.limit == close(then) and policy.base_response == close(last)
    answers(policy, view, tasks[7:9], (7.1, 7.1))  # too few answers
    policy.gone(tasks[9])
    assert policy.limit == close(then)


def test_gradient_does_not_move_while_less_than_half_is_used_and_keeps_its_bounds():
    policy = Gradient(start=10, queue=2, window=1.0, samples=1, max_limit=11)
    view, tasks = Seen(), gpu_tasks(30)
    policy.begin(view)
    for task in tasks[:4]:
        policy.admit(task, view)
    answers(policy, view, tasks[:4], (1.0, 2.0, 3.0, 4.0))
    assert policy.limit == 10
    for task in tasks[4:9]:
        policy.admit(task, view)
    answers(policy, view, tasks[4:8], (4.5, 5.1, 6.2, 7.3))
    assert policy.limit == close(10 + 0.2 * (1.5 / 5.1 < 0.5) * (2 - 5) + 0)
    assert Gradient(start=10, max_limit=7).limit == 7 and Gradient(start=1, min_limit=4).limit == 4


def test_the_average_base_comes_down_after_a_long_overload():
    """2.5 − 1.5 · 2 / 7 is more than twice 1, and shrinks by 5 % besides."""
    policy = Gradient(samples=1, base="average", memory=6)
    policy.base_response = 2.5
    policy._update(1.0)
    assert policy.base_response == close(0.95 * (2.5 - 3 / 7))


@pytest.mark.slow
def test_gradient_on_saturated_servers_rests_at_its_fixed_point():
    """Four servers of 1 s that never idle: L tasks take L / 4 s each, the base is 1 s, so L = 4 + 1.5 · 4 = 10."""
    policy = {"scheduler": "fcfs", "admission": {"name": "gradient", "start": 4}}
    table = hs.run(scenario(policy, rate=40, servers=4, mean=1, count=12_000, law="equal"), check=True).tasks
    done = table[table["status"] == "completed"]
    late = done[done["arrival"] > 200]["response"]
    # The next arrival after one leaves comes after 1/40 s on average: 10 − 4/40 are there, by Little for a fourth of
    # that in seconds; at most three rounds of the servers.
    assert late.max() <= 3 and late.mean() == close(9.9 / 4, rel=0.01)
    assert len(done) / table["finish"].max() == close(4, rel=0.02)


# DAGOR ------------------------------------------------------------------------------------------------------------


def levels(users, hour=0):
    return [zlib.crc32(f"{user}/{hour}".encode()) % LEVELS for user in users]


def window(policy, view, tasks, end, wait):
    """Ask about tasks, let those that are admitted leave their queue after a wait, and end the window."""
    answers = [admitted(policy.admit(task, view)) for task in tasks]
    view.now = end
    for task, is_in in zip(tasks, answers, strict=True):
        task.ready = end - wait
        if is_in:
            policy.leaving(task, view)
    return answers


def test_dagor_by_hand():
    """40 users, one task each.  Overloaded: 0.95 · 40 = 38 are wanted, and the two lowest levels go.  The next window
    admits 38 and was overloaded again: 36.1 are wanted, so 36 are let in; then 36 + 0.01 · 40 = 36.4 are: none more,
    but of 100 tasks of which 90 come in one more is let in."""
    users = [f"u{i}" for i in range(200) if levels([f"u{i}"])[0] not in levels(f"u{j}" for j in range(i))][:40]
    view, policy = Seen(), Dagor(target=0.02)
    tasks = gpu_tasks(40, users=users)
    ranks = np.argsort(np.argsort(levels(users)))
    assert all(window(policy, view, tasks, 1.0, 0.03))
    assert window(policy, view, tasks, 2.0, 0.03) == (ranks < 38).tolist()
    assert window(policy, view, tasks, 3.0, 0.01) == (ranks < 36).tolist()
    assert window(policy, view, tasks, 4.0, 0.03) == (ranks < 36).tolist()
    assert window(policy, view, tasks, 5.0, 0.0) == (ranks < 34).tolist()
    lots = [task for task in tasks for _ in range(3)]
    assert window(policy, view, lots, 6.0, 0.0) == np.repeat(ranks < 34, 3).tolist()  # 102 of 120; 103.2 are wanted
    assert window(policy, view, tasks[:1], 7.0, 0.0) == [ranks[0] < 34]


def test_dagor_admits_more_by_one_hundredth_of_the_arrivals():
    """A level of one task comes back after a window of 100; those that are empty in a window come back with it."""
    view, policy = Seen(), Dagor()
    names = sorted({levels([f"u{i}"])[0]: f"u{i}" for i in range(500)}.items())
    (task,), (higher,) = gpu_tasks(1, users=[names[60][1]]), gpu_tasks(1, users=[names[70][1]])
    policy.cut = (0.0, names[60][0])
    low = gpu_tasks(1, users=[names[3][1]]) * 99
    assert window(policy, view, [*low, task], 1.0, 0.0) == [True] * 99 + [False]
    assert window(policy, view, [*low[:9], task, higher], 2.0, 0.0) == [True] * 11
    assert policy.cut == ALL


def test_dagor_by_priority_requests_and_hours():
    """The window ends with its 10th arrival; business goes before users, and levels change with the hour."""
    tasks = gpu_tasks(10, users=["a"] * 10)
    for number, task in enumerate(tasks):
        task._table.priority = np.array([2.0] * 4 + [0.0] * 6)
        assert task.priority == (2.0 if number < 4 else 0.0)
    view, policy = Seen(), Dagor(requests=10)
    assert all(window(policy, view, tasks, 0.5, 0.03))
    assert window(policy, view, tasks, 0.9, 0.0) == [True] * 4 + [False] * 6
    assert policy.cut == (0.0, levels(["a"])[0])
    view.now, policy._end = 3600.0, math.inf
    first, second = levels(["a"], 0)[0], levels(["a"], 1)[0]
    assert first != second
    policy.cut = (0.0, max(first, second))
    policy._arrived = 0
    assert admitted(policy.admit(tasks[9], view)) == (second < first)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_window_in_which_no_task_leaves_was_overloaded_if_some_wait(waiting):
    view, policy = Seen(in_all=waiting), Dagor()
    (task,) = gpu_tasks(1, users=["a"])
    policy.admit(task, view)
    view.now = 1.0
    policy.admit(task, view)
    assert policy.cut == ((0.0, levels(["a"])[0]) if waiting else ALL)


# Class shedding ---------------------------------------------------------------------------------------------------


def test_class_shedding_by_hand():
    """Three GPUs: a is refused from six tasks on, b from three on, c never; by device type."""
    tasks = gpu_tasks(12, classes=["b"] * 4 + ["a"] * 4 + ["c"] * 4)
    view, policy = Seen(machine(gpus=3)), ClassShedding({"a": 2.0, "b": 1.0})
    policy.begin(view)
    assert [admitted(policy.admit(task, view)) for task in tasks] == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1]
    policy.gone(tasks[3])  # it was refused, and does not count
    for task in tasks[:2] + tasks[4:6]:
        policy.finished(task)
    policy.gone(tasks[8])
    assert [admitted(policy.admit(tasks[7], view)) for _ in range(3)] == [True, False, False]


def test_an_averaged_load_follows_with_its_memory():
    """Two tasks from 0 on: after 4 s the average is 2 (1 − 1/e) = 1.264; 1.2 is below it, 1.3 above."""
    for limit, expected in ((1.2, False), (1.3, True)):
        tasks = gpu_tasks(3, classes=["c", "c", "a"])
        view, policy = Seen(machine(gpus=1)), ClassShedding({"a": limit}, memory=4.0)
        policy.begin(view)
        policy.admit(tasks[0], view), policy.admit(tasks[1], view)
        view.now = 4.0
        policy.finished(tasks[1])
        assert admitted(policy.admit(tasks[2], view)) == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_one_class_and_no_memory_is_a_queue_limit(seed):
    """Three servers and a load of 7/3: as many as a queue limit of 4 lets in."""
    given = [{"name": "class_shedding", "limits": {"jobs": 7 / 3}}, {"name": "queue_limit", "limit": 4}]
    one, two = (hs.run(scenario({"scheduler": "fcfs", "admission": admission}, rate=9, servers=3, mean=0.4, count=800,
                                seed=seed), check=True).tasks for admission in given)  # fmt: skip
    assert one["status"].equals(two["status"]) and one["start"].equals(two["start"])
    assert 0.05 < (one["status"] == "rejected").mean() < 0.5


# Adaptive LIFO ----------------------------------------------------------------------------------------------------


def lifo(arrivals, sizes, servers, target, timeout):
    """When each task starts, and which expire when: a loop over arrivals and completions."""
    start, expired, waiting, busy, empty_at = {}, {}, [], [], 0.0
    events = [(time, 1, who) for who, time in enumerate(arrivals)]
    heapq.heapify(events)
    while events:
        now, is_arrival, who = heapq.heappop(events)
        if is_arrival:
            empty_at = empty_at if waiting else now
            standing = now - empty_at > target
            waiting.append((who, now + (math.inf if timeout is None else timeout if standing else target)))
        else:
            busy.remove(who)
        while waiting:
            if waiting[0][1] <= now:
                expired[waiting.pop(0)[0]] = now
                continue
            one = waiting[-1] if now - empty_at > target else waiting[0]
            if one[1] <= now:
                expired[one[0]] = now
            elif len(busy) < servers:
                start[one[0]] = now
                busy.append(one[0])
                heapq.heappush(events, (now + sizes[one[0]], 0, one[0]))
            else:
                break
            waiting.remove(one)
        if not waiting:
            empty_at = now
    return start, expired


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(16))
def test_adaptive_lifo_is_a_second_event_loop(seed):
    random = np.random.default_rng(seed)
    servers, target = int(random.integers(1, 4)), float(random.choice([0.3, 1.0, 4.0]))
    timeout = [None, 0.4, 2.0, 0.4][seed % 4]
    policy = {"name": "adaptive_lifo", "target": f"{target} s", **({"timeout": f"{timeout} s"} if timeout else {})}
    given = scenario(policy, rate=random.choice([0.8, 1.3, 2.0]) * servers / 0.7, servers=servers, mean=0.7, count=400,
                     seed=seed)  # fmt: skip
    table = hs.run(given, check=True).tasks
    tasks = hs.load(given).build().tasks
    start, expired = lifo(tasks.arrival.tolist(), tasks.time[:, 0].tolist(), servers, target, timeout)
    assert table["start"].dropna().to_dict() == close(start, abs=1e-9)
    assert table.loc[table["status"] == "expired", "finish"].to_dict() == close(expired, abs=1e-9)
    assert len(start) + len(expired) == 400 and bool(expired) == (timeout is not None)


def test_adaptive_lifo_by_hand():
    """One server of 3 s, a task a second, target 4 s: the queue stands from 1 s on, and at 6 s the newest goes."""
    arrivals = {"process": "deterministic", "interval": "1 s"}
    given = scenario({"name": "adaptive_lifo", "target": "4 s"}, rate=1, servers=1, mean=3, count=8, law="equal",
                     arrivals=arrivals)  # fmt: skip
    assert hs.run(given, check=True).tasks["start"].tolist() == [0, 3, 21, 18, 15, 12, 6, 9]
    given["policy"]["timeout"] = "2500 ms"
    table = hs.run(given, check=True).tasks
    # Those of 1 to 5 s may wait for 4 s, those of 6 and 7 s for 2.5 s.
    assert table["start"].fillna(-1).tolist() == [0, 3, -1, -1, -1, -1, 6, 9]
    assert table["finish"].tolist() == [3, 6, 6, 7, 9, 9, 9, 12]


def test_a_task_that_was_stopped_is_as_old_as_before(tmp_path):
    """The core fails from 1.5 to 2.5 s; the task of 0 s is the oldest of three, and goes first, from its beginning."""
    arrivals = {"process": "deterministic", "interval": "1 s"}
    given = scenario({"name": "adaptive_lifo", "target": "1 min"}, rate=1, servers=1, mean=3, count=4, law="equal",
                     arrivals=arrivals)  # fmt: skip
    (tmp_path / "faults.csv").write_text("time,device,event\n1.5,n0,down\n2.5,n0,up\n")
    table = hs.run(given | {"faults": {"file": str(tmp_path / "faults.csv")}}, check=True).tasks
    assert table["start"].tolist() == [0, 5.5, 8.5, 11.5] and table["finish"].tolist()[0] == 5.5


def test_with_requests_it_says_who_serves_them():
    given = scenario("adaptive_lifo", rate=1, servers=1, mean=1, count=2)
    del given["workload"][0]["cpu_time"]
    given["workload"][0]["service"] = {"device": "cpu", "compute": {"per_item": "1 s"}}
    with pytest.raises(ScenarioError, match="does not serve requests in batches"):
        hs.run(given)
