"""Retries in chains: the stages of a pipeline call each other, and each retries by itself.

Amplification by its closed form and by hand, and every attempt of random settings next to processes of SimPy.
"""

import numpy as np
import pytest
import simpy
from test_fork import look

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.record import NOT_ARRIVED
from hetsim.policy import Accept, Admission, Reject
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit

NAMES = ("web", "app", "data", "disk")


def chain(folder, clients, seconds, count=4, policy="fcfs", arrivals=None, **more):
    """Calls through stages of one server each, which take this long; one every 10 s."""
    names = NAMES[: len(seconds)]
    rows = ["layer,activations,weights," + ",".join(f"seconds.{name}" for name in names)]
    for number, own in enumerate(seconds):
        times = [str(own if k == number else 1000) for k in range(len(names))]
        rows.append(f"layer{number},{4 - number},0," + ",".join(times))
    (folder / "layers.csv").write_text("\n".join(rows) + "\n")
    entry = {"name": "calls", "arrivals": arrivals or {"process": "deterministic", "interval": "10 s"}, "count": count,
             "pipeline": {"profile": str(folder / "layers.csv")}, "clients": clients, **more}  # fmt: skip
    servers = [{"type": name, "kind": "server"} for name in names]
    return {"name": "s", "policy": policy, "cluster": {"nodes": {"accelerators": servers}}, "workload": [entry]}


def attempts(result):
    """Attempts at each stage."""
    return result.tasks["class"].value_counts(sort=False).tolist()


class LastStageRefuses(Admission):
    def admit(self, task, view):
        return Reject(reason="down") if task.class_ == "calls stage 3" else Accept()


@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_what_the_last_stage_refuses_comes_there_as_often_as_all_stages_retry(tmp_path, monkeypatch, way):
    """(1 + R)^k attempts at stage k of each call, R = 2."""
    monkeypatch.setitem(hs.registry._registered, "admission", {"last_refuses": LastStageRefuses})
    clients = {"at_timeout": way, "retry": {"times": 2, "wait": {"first": "100 ms"}}}
    policy = {"scheduler": "fcfs", "admission": "last_refuses"}
    result = hs.run(chain(tmp_path, clients, (0.02, 0.01, 0.05), policy=policy), check=True)
    assert attempts(result) == [4 * 3, 4 * 9, 4 * 27]
    assert (result.calls["status"] != "completed").all() and result.calls["attempts"].tolist() == [3 + 9 + 27] * 4
    assert result.metric("wasted_device_s") == pytest.approx(4 * (3 * 0.02 + 9 * 0.01))
    assert set(result.tasks["status"]) == {"aborted", "rejected"}


@pytest.mark.parametrize(("way", "right"), [("leave", [3, 9, 27]), ("cancel", [3, 3, 3])])
def test_a_last_stage_that_is_too_slow(tmp_path, way, right):
    """A client that leaves does not keep the server from trying on; one that cancels does, and at all stages."""
    given = chain(tmp_path, {"timeout": "1 s", "at_timeout": way, "retry": {"times": 2}}, (0.02, 0.01, 5), count=1)
    result = hs.run(given, check=True)
    assert attempts(result) == right and result.calls["finish"].tolist() == [3]
    busy = [0.02 * right[0], 0.01 * right[1], 5 * right[2] if way == "leave" else 3 * 0.97]
    assert result.metric("wasted_device_s") == pytest.approx(sum(busy))
    assert result.end == pytest.approx(3 if way == "cancel" else 0.03 + 5 * 27)


def test_a_call_is_answered_when_all_stages_are(tmp_path):
    """The second call comes 20 ms later and waits for each stage in turn."""
    arrivals = {"process": "deterministic", "interval": "20 ms"}
    given = chain(tmp_path, {"timeout": "1 s"}, (0.1, 0.2, 0.3), count=2, arrivals=arrivals, slo="700 ms")
    result = hs.run(given, check=True)
    assert result.calls["response"].tolist() == pytest.approx([0.6, 0.88])
    assert attempts(result) == [2, 2, 2] and result.metric("call_goodput") == pytest.approx(1 / 0.9)
    assert result.metric("slo_attainment") == 0.5 and result.metric("wasted_device_s") == 0
    assert result.tasks["finish"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.6, 0.9])


def test_a_hedge_and_a_budget_at_each_stage(tmp_path):
    """Each stage hedges its call once: 2^k attempts at stage k, of which the first answers; a budget of 50 % pays for
    every other hedge of each stage."""
    hedge = {"hedge": {"after": "0 s"}}
    result = hs.run(chain(tmp_path, hedge, (0.02, 0.01)), check=True)
    assert attempts(result) == [8, 16] and result.calls["response"].tolist() == pytest.approx([0.03] * 4)
    retry = {"retry": {"times": 1, "on": ["failed"], "budget": 0.5}}
    result = hs.run(chain(tmp_path, {**hedge, **retry}, (0.02, 0.01)), check=True)
    assert attempts(result) == [4 + 2, 6 + 3]


class Replay:
    """Processes of SimPy: calls, and their attempts, which go on when their client has left."""

    def __init__(self, run, servers):
        self.environment = simpy.Environment()
        self.resources = [simpy.Resource(self.environment, 1) for _ in range(servers)]
        self.tasks, self.calls, (self.clients,) = run.tasks, run.calls, run.calls.clients
        self.sent, self.start, self.finish, self.end, self.tokens = {}, {}, {}, {}, {}
        for row in np.flatnonzero(self.tasks.arrival < np.inf).tolist():
            self.environment.process(self.outside(row))
        self.environment.run()

    def outside(self, row):
        yield self.environment.timeout(self.tasks.arrival[row])
        yield from self.call(row, 0)

    def call(self, first, stage):
        retry, row, answered = self.clients.retry, first, False
        if retry is not None and retry.budget is not None:
            bucket = self.calls.bucket[first]
            self.tokens[bucket] = min(10, self.tokens.get(bucket, 0) + retry.budget)
        while not (answered := (yield from self.send(row, stage))):
            for _ in range(self.clients.copies):
                row = self.calls.following[row]
            if row < 0 or not self.pays(row):
                break
            number = int(self.calls.number[row]) // self.clients.copies - 1
            yield self.environment.timeout(retry.wait.seconds(number, self.calls.drawn[row]))
        self.end[first] = self.environment.now
        return answered

    def pays(self, row):
        if self.clients.retry is None or self.clients.retry.budget is None:
            return True
        enough = self.tokens[self.calls.bucket[row]] > 1 - 1e-9
        self.tokens[self.calls.bucket[row]] -= enough
        return enough

    def send(self, row, stage):
        """An attempt and its hedges until one is answered, or none is awaited."""
        environment, hedge, awaited, due = self.environment, self.clients.hedge, [], None
        while True:
            if due is None or due.processed and self.pays(row):
                limit = self.clients.timeout if self.calls.timeout is None else self.calls.timeout[row]
                awaited.append((environment.process(self.attempt(row, stage)), environment.timeout(limit)))
                last = hedge is None or self.calls.number[row] % self.clients.copies == hedge.times
                row, due = self.calls.following[row], environment.timeout(np.inf if last else hedge.after)
            elif due.processed:
                due = environment.timeout(np.inf)  # nor are hedges after one that cannot be paid
            yield environment.any_of([due, *sum(awaited, ())])
            if any(attempt.processed and attempt.value for attempt, _ in awaited):
                return True
            awaited = [pair for pair in awaited if not (pair[0].processed or pair[1].processed)]
            if not awaited:
                return False

    def attempt(self, row, stage):
        self.sent[row] = self.environment.now
        with self.resources[stage].request() as seat:
            yield seat
            self.start[row] = self.environment.now
            yield self.environment.timeout(self.tasks.time[row, 0])
        self.finish[row] = self.environment.now
        if self.calls.child[row] < 0:
            return True
        return (yield from self.call(int(self.calls.child[row]), stage + 1))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(20))
def test_attempts_are_those_of_processes_of_simpy(tmp_path, seed):
    random = np.random.default_rng(seed)
    seconds = random.choice([0.05, 0.1, 0.17], int(random.integers(2, 4))).tolist()
    retry = {"times": int(random.integers(1, 3)), "wait": {"first": f"{random.choice([0.1, 0.4])} s", "jitter": "full"}}
    clients = {"timeout": f"{random.choice([0.35, 0.6, 1.1])} s", "retry": retry}
    arrivals = {"process": "poisson", "rate": f"{random.choice([3, 6])}/s"}
    given = chain(tmp_path, clients, seconds, count=60, arrivals=arrivals) | {"seed": seed}
    same_as_replay(given, len(seconds))


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_hedges_and_budgets_of_several_clients_are_those_of_processes_of_simpy(tmp_path, seed):
    """Stages take longer than a hedge is waited for, so that no two attempts come at the same instant."""
    random = np.random.default_rng(seed)
    seconds = random.uniform(0.1, 0.2, 2 + seed % 2).round(4).tolist()
    retry = {"times": 1, "wait": {"first": "0.1 s", "jitter": "full"}, "budget": float(random.choice([0.3, 0.6]))}
    clients = {"timeout": {"distribution": "exponential", "mean": "1 s"}, "retry": retry, "count": 2 + seed,
               "hedge": {"after": "83 ms", "times": 1 + seed // 3}}  # fmt: skip
    arrivals = {"process": "poisson", "rate": "1.5/s"}
    right = same_as_replay(chain(tmp_path, clients, seconds, 60, arrivals=arrivals) | {"seed": seed}, len(seconds))
    assert set(right.tokens) == set(range((2 + seed) * len(seconds)))  # each stage has a budget for each client
    hedges = right.calls.number[list(right.sent)] % right.clients.copies > 0
    assert 10 < hedges.sum() < 0.4 * len(hedges)


def same_as_replay(given, stages):
    """Every attempt and call, next to processes of SimPy."""
    right, record = Replay(load(given).build(), stages), Simulation(load(given).build(), check=True).run()
    assert np.flatnonzero(record.status != NOT_ARRIVED).tolist() == sorted(right.sent)
    for column, known in ((record.input.tasks.arrival, right.sent), (record.start, right.start),
                          (record.finish, right.finish), (record.call_end, right.end)):  # fmt: skip
        assert column[list(known)] == pytest.approx(list(known.values()), abs=1e-9)
    assert audit(record) == []
    return right


@pytest.mark.slow
def test_a_fork_goes_on_to_the_same_calls(tmp_path):
    retry = {"times": 1, "wait": {"first": "100 ms", "jitter": "full"}, "budget": 0.5}
    for way in ("leave", "cancel"):
        given = chain(tmp_path, {"timeout": "500 ms", "at_timeout": way, "hedge": {"after": "200 ms"}, "retry": retry},
                      (0.05, 0.2), count=40, arrivals={"process": "poisson", "rate": "4/s"})  # fmt: skip
        look(load(given).build, 3, forks=4)


def test_more_attempts_than_a_stream_can_have_are_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"items × stages\); got .*e\+"):
        load(chain(tmp_path, {"timeout": "1 s", "retry": {"times": 100}}, (0.1,) * 4)).build()


def test_copies_of_a_chain_are_not_apart(tmp_path):
    with pytest.raises(ScenarioError, match=r"clients\.hedge\.apart: apart needs plain tasks, .* or a pipeline"):
        load(chain(tmp_path, {"hedge": {"after": "0 s", "apart": True}}, (0.1, 0.1))).build()


def test_items_of_a_training_job_have_no_clients(tmp_path):
    given = chain(tmp_path, {"timeout": "1 s"}, (0.1, 0.1))
    given["workload"][0]["pipeline"]["training"] = True
    with pytest.raises(ScenarioError, match="a training pipeline has no requests, so clients cannot be given"):
        load(given)


@pytest.mark.slow
def test_a_policy_that_forks_the_run_knows_nothing_of_what_is_called_next(tmp_path):
    clients = {"timeout": "500 ms", "at_timeout": "cancel", "retry": {"times": 1}}
    given = chain(tmp_path, clients, (0.05, 0.2), count=12, arrivals={"process": "poisson", "rate": "4/s"})
    result = hs.run({**given, "policy": "rollout"}, check=True)
    assert result.calls["finish"].notna().all()
