"""Admission as tasks leave the queue: what is dropped never starts, and `head_codel` is the pseudocode of RFC 8289."""

import math
from collections import deque

import numpy as np
import pytest

import hetsim as hs
from hetsim import registry
from hetsim.errors import PolicyError
from hetsim.policy import Admission, Reject


class Choosy(Admission):
    """Drops what has waited for 2 s and more; every other one expires."""

    def leaving(self, task, view):
        return Reject(reason="too late", expired=bool(task.index % 2)) if view.now - task.ready >= 2 else None


class Wrong(Admission):
    def leaving(self, task, view):
        return True


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    own = {"choosy": Choosy, "wrong_leaving": Wrong}
    monkeypatch.setitem(registry._registered, "admission", {**registry._registered.get("admission", {}), **own})


def scenario(admission, scheduler="fcfs", service=None, cpus=1, time="4 s", **entry):
    arrivals = {"process": "deterministic", "interval": "1 s"}
    work = {"service": service} if service else {"cpu_time": time}
    entry = {"arrivals": arrivals, "count": 7, **work, **entry}
    policy = {"scheduler": scheduler, "admission": admission}
    return {"name": "s", "seed": 1, "cluster": {"nodes": {"cpus": cpus}}, "policy": policy, "workload": [entry]}


def test_a_task_that_is_dropped_never_starts_and_the_next_one_is_asked():
    """At 4 s those of 1 and 2 s are too old, at 8 s those of 4, 5 and 6 s."""
    table = hs.run(scenario("choosy"), check=True).tasks
    assert table["start"].fillna(-1).tolist() == [0, -1, -1, 4, -1, -1, -1]
    assert table["finish"].tolist() == [4, 4, 4, 8, 8, 8, 8]
    assert table["status"].tolist()[1:] == ["expired", "rejected", "completed", "rejected", "expired", "rejected"]


def test_requests_behind_those_that_are_dropped_join_the_batch():
    """Batches of two: at 4 s those of 1 and 2 s are dropped, and those of 3 and 4 s are the batch."""
    service = {"device": "cpu", "compute": {"fixed": "4 s"}, "max_batch": 2}
    result = hs.run(scenario("choosy", service=service), check=True)
    assert result.tasks["start"].fillna(-1).tolist() == [0, -1, -1, 4, 4, -1, -1]
    assert result.launches["members"].tolist() == [1, 2]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["lcfs", "sjf", "fcfs_skip", "easy_backfill", "conservative_backfill", "srtf", "edf",
                                  "processor_sharing", "eft", "wfp3", "drf"])  # fmt: skip
def test_whatever_the_scheduler_no_task_that_waited_too_long_starts(name):
    given = scenario("choosy", name, cpus=2, time={"distribution": "exponential", "mean": "3 s"}, count=60)
    table = hs.run(given, check=True).tasks
    dropped = table["status"].isin(["rejected", "expired"])
    # A task that was stopped is asked about again when it goes on.
    first = table[~dropped | (table["preemptions"] == 0)]
    assert (first["wait"].dropna() < 2).all() and dropped.any() and (table["status"] == "completed").any()


def test_what_the_hook_answers_is_checked():
    with pytest.raises(PolicyError, match="must answer Reject or None"):
        hs.run(scenario("wrong_leaving"))


@pytest.mark.parametrize("order", ["fcfs", "vtc"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_replica_asks_before_a_request_joins(order, apart):
    """Requests of three users, of 5 s each, two at a time, one a second: who waits for 2 s does not join.  Where other
    replicas decode they are asked again there, after their start."""
    service = {"kind": "llm", "step": {"fixed": "1 s"}, "max_num_seqs": 2, "kv": {"per_token": "1 kB"},
               "batching": {"name": "continuous", "order": order}}  # fmt: skip
    service |= {"disaggregated": {"prefill": 1, "decode": 1}} if apart else {}
    entry = {"arrivals": {"process": "deterministic", "interval": "1 s"}, "count": 20, "users": ["a", "b", "c"],
             "tokens": {"prompt": 9, "output": 5}, "service": service}  # fmt: skip
    nodes = {"gpus": {"type": "a100", "count": 2, "memory": "40 GB"}}
    policy = {"scheduler": "fcfs", "admission": "choosy"}
    table = hs.run({"name": "s", "policy": policy, "cluster": {"nodes": nodes}, "workload": [entry]}, check=True).tasks
    done = table["status"] == "completed"
    assert (table["wait"].dropna() < 2).all() and 4 < done.sum() < 16
    assert (table["finish"] - table["arrival"])[~done].between(2, 8).all()
    assert table["start"][~done].notna().any() == apart


def codel(arrivals, sizes, target, interval):
    """One server that dequeues by RFC 8289, section 5: when each starts, and who is dropped when."""
    start, dropped, queue = {}, {}, deque(range(len(arrivals)))
    first_above = drop_next = 0.0
    dropping, count, last_count, free = False, 0, 0, 0.0

    def dodequeue(now):
        nonlocal first_above
        if not queue or arrivals[queue[0]] > now:
            first_above = 0.0
            return None, False
        who = queue.popleft()
        if now - arrivals[who] < target:
            first_above = 0.0
        elif not first_above:
            first_above = now + interval
        else:
            return who, now >= first_above
        return who, False

    while queue:
        now = max(free, arrivals[queue[0]])
        who, drop = dodequeue(now)
        if dropping and not drop:
            dropping = False
        elif dropping:
            while dropping and now >= drop_next:
                dropped[who] = now
                count += 1
                who, drop = dodequeue(now)
                if drop:
                    drop_next += interval / math.sqrt(count)
                else:
                    dropping = False
        elif drop:
            dropped[who] = now
            who, _ = dodequeue(now)
            dropping, delta = True, count - last_count
            count = delta if delta > 1 and now - drop_next < 16 * interval else 1
            drop_next, last_count = now + interval / math.sqrt(count), count
        if who is not None:
            start[who] = now
            free = now + sizes[who]
    return start, dropped


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_head_codel_is_the_pseudocode_of_the_rfc(seed):
    admission = {"name": "head_codel", "target": "1 s", "interval": "5 s"}
    law = {"distribution": "exponential", "mean": "500 ms"}
    given = scenario(admission, time=law, count=1500, arrivals={"process": "poisson", "rate": f"{2 + 0.2 * seed:g}/s"})
    given["seed"] = seed
    table = hs.run(given, check=True).tasks
    tasks = hs.load(given).build().tasks
    start, dropped = codel(tasks.arrival.tolist(), tasks.time[:, 0].tolist(), 1.0, 5.0)
    assert table["start"].dropna().to_dict() == pytest.approx(start, abs=1e-9)
    rejected = table.loc[table["status"] == "rejected", "finish"].to_dict()
    assert rejected == pytest.approx(dropped, abs=1e-9) and len(rejected) > 5
    assert np.isclose(len(start) + len(dropped), 1500)
