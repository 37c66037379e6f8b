"""Clients that time out, give up, try again and hedge: a second event loop replays random settings attempt by attempt;
closed forms; calculations by hand; what is refused."""

import heapq
import math

import numpy as np
import pytest
from test_fork import look

import hetsim as hs
from hetsim import theory
from hetsim.errors import ScenarioError
from hetsim.queueing.matching import match
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load

FINISH, ARRIVAL, TIMER, ROUND = range(4)


def scenario(clients, *, rate=8, cpus=4, count=300, seed=1, policy="fcfs", service=None, time=None, **entry):
    time = time or {"distribution": "exponential", "mean": "400 ms"}
    work = {"service": service} if service else {"cpu_time": time}
    entry = {"name": "calls", "arrivals": {"process": "poisson", "rate": f"{rate}/s"}, "count": count, **work, **entry}
    nodes = {"cpus": cpus, **({"gpus": {"type": "a100", "count": 1}} if service else {})}
    return {"name": "s", "seed": seed, "policy": policy, "cluster": {"nodes": nodes}, "workload": [
        {**entry, "clients": clients}]}  # fmt: skip


class Replay:
    """Servers in order of arrival and clients, by a heap of instants; attempt k of call i has the number k n + i, where
    the first and each retry is followed by its hedges."""

    def __init__(self, arrivals, sizes, servers, drawn, *, batch=None, limit=None, timeout=math.inf, leave=True,
                 give_up=math.inf, times=0, first=0.0, factor=2.0, longest=math.inf, budget=None, after=None,
                 hedges=0):  # fmt: skip
        self.__dict__.update(locals())
        self.n = len(arrivals)
        self.sent, self.start, self.finish, self.fate = {}, {}, {}, {}
        self.call_end, self.queue, self.busy, self.gone = {}, [], {}, set()
        self.credit, self.now = 0.0, 0.0
        self.open = [set() for _ in arrivals]
        """Attempts of each call that are awaited, or certain to be sent at this instant."""
        self.heap = [(time, ARRIVAL, i, i) for i, time in enumerate(arrivals)]
        self.number = self.n
        heapq.heapify(self.heap)
        while self.heap:
            self.now, kind, _, who = heapq.heappop(self.heap)
            (self.end, self.arrive, self.timer)[kind](who)
            if not self.heap or self.heap[0][0] > self.now:
                self.serve()

    def at(self, time, kind, who):
        self.number += 1
        heapq.heappush(self.heap, (time, kind, self.number, who))

    def arrive(self, who):
        call, copy = who % self.n, who // self.n % (1 + self.hedges)
        self.sent[who] = self.now
        if who < self.n and self.budget is not None:
            self.credit = min(10.0, self.credit + self.budget)
        due = min(self.now + self.timeout, self.arrivals[call] + self.give_up)
        if due < math.inf:
            self.at(due, TIMER, who)
        copies = []
        if self.after == 0 and not copy:
            copies = [who + k * self.n for k in range(1, 1 + self.hedges) if self.pays()]
        elif self.after and copy < self.hedges and self.now + self.after < self.arrivals[call] + self.give_up:
            self.at(self.now + self.after, TIMER, -(who + self.n))
        self.open[call] |= {who, *copies}
        self.join(who)
        for one in copies:
            self.arrive(one)

    def join(self, who):
        if self.limit is not None and len(self.queue) + len(self.busy) >= self.servers + self.limit:
            self.fate[who], self.finish[who] = "rejected", self.now
            self.again(who)
        else:
            self.queue.append(who)

    def pays(self):
        paid = self.budget is None or self.credit > 1 - 1e-9
        self.credit -= paid and self.budget is not None
        return paid

    def serve(self):
        while self.queue and len(self.busy) < self.servers:
            number = 1 if self.batch is None else min(len(self.queue), self.batch[0])
            members, self.queue = self.queue[:number], self.queue[number:]
            took = self.sizes[members[0]] if self.batch is None else self.batch[1] + self.batch[2] * number
            self.number += 1
            self.busy[self.number] = members
            for who in members:
                self.start[who] = self.now
            heapq.heappush(self.heap, (self.now + took, FINISH, self.number, self.number))

    def end(self, launch):
        for who in self.busy.pop(launch, ()):
            self.finish[who] = self.now
            self.fate[who] = "aborted" if who in self.gone else "completed"
            if who not in self.gone:
                self.call_end[who % self.n] = self.now
                rivals, self.open[who % self.n] = self.open[who % self.n] - {who}, set()
                for rival in rivals:
                    self.leave_it(rival)

    def timer(self, who):
        if who < 0:
            if self.hedge_is_due(-who):
                self.arrive(-who)
        elif who not in self.fate and who not in self.gone:
            self.leave_it(who)
            self.again(who)

    def hedge_is_due(self, who):
        """The try of the hedge is still awaited, and the budget pays for it."""
        tries = {one // self.n // (1 + self.hedges) for one in self.open[who % self.n]}
        return who // self.n // (1 + self.hedges) in tries and self.pays()

    def leave_it(self, who):
        self.gone.add(who)
        if not self.leave:
            running = [number for number, members in self.busy.items() if who in members]
            if who in self.queue:
                self.queue.remove(who)
            if not running or self.batch is None:
                self.fate[who], self.finish[who] = "aborted", self.now
                for number in running:
                    del self.busy[number]

    def again(self, who):
        call, made = who % self.n, who // self.n // (1 + self.hedges)
        self.open[call].discard(who)
        if self.open[call]:
            return
        if made < self.times:
            next_try = (made + 1) * (1 + self.hedges) * self.n + call
            wait = min(self.longest, self.first * self.factor**made) * self.drawn(next_try)
            if self.now + wait < self.arrivals[call] + self.give_up and self.pays():
                self.at(self.now + wait, ARRIVAL, next_try)
                return
        self.call_end[call] = self.now


class Replicas(Replay):
    """Replicas of a language model, whose steps all take equally long; a request of n tokens takes part in n steps."""

    def __init__(self, *arguments, seats, replicas, step, **clients):
        self.seats, self.step = seats, step
        self.members, self.line = [{} for _ in range(replicas)], [[] for _ in range(replicas)]
        self.busy_until = [None] * replicas
        super().__init__(*arguments, servers=0, **clients)

    def join(self, who):
        sent = [len(inside) + len(waiting) for inside, waiting in zip(self.members, self.line, strict=True)]
        self.line[sent.index(min(sent))].append(who)

    def serve(self):
        for number, (inside, waiting) in enumerate(zip(self.members, self.line, strict=True)):
            if self.busy_until[number] is not None:
                continue
            while waiting and len(inside) < self.seats:
                who = waiting.pop(0)
                inside[who], self.start[who] = self.sizes[who], self.now
            if inside:
                self.busy_until[number] = self.now + self.step
                heapq.heappush(self.heap, (self.busy_until[number], FINISH, number, number))

    def end(self, number):
        self.busy_until[number], inside = None, self.members[number]
        for who in list(inside):
            inside[who] -= 1
        over = sorted(who for who in inside if not inside[who] or (who in self.gone and not self.leave))
        for who in over:
            del inside[who]
        for who in over:
            self.finish[who] = self.now
            self.fate[who] = "aborted" if who in self.gone else "completed"
            if who not in self.gone:
                self.call_end[who % self.n] = self.now
                rivals, self.open[who % self.n] = self.open[who % self.n] - {who}, set()
                for rival in rivals:
                    self.leave_it(rival)

    def leave_it(self, who):
        """What waits goes at once, what takes part in a step when that is over."""
        self.gone.add(who)
        for number, waiting in enumerate(self.line):
            between = who in self.members[number] and self.busy_until[number] is None
            if not self.leave and (who in waiting or between):
                waiting[:] = [one for one in waiting if one != who]
                self.members[number].pop(who, None)
                self.fate[who], self.finish[who] = "aborted", self.now


def compare(given, replay_of, limit=None, replay=Replay, sizes=lambda tasks: tasks.time[:, 0]):
    """The run of a scenario next to its replay: every attempt and every call, to 1e-9."""
    loaded = load(given).build()
    calls, tasks = loaded.calls, loaded.tasks
    n = int((calls.number == 0).sum())
    entry = given["workload"][0]
    clients, retry, hedge = entry["clients"], entry["clients"].get("retry", {}), entry["clients"].get("hedge", {})

    def seconds(value, other):
        return other if value is None else float(value.removesuffix(" s"))

    wait = retry.get("wait", {})
    replay = replay(
        tasks.arrival[:n].tolist(), sizes(tasks).tolist(), drawn=lambda row: float(calls.drawn[row]), limit=limit,
        timeout=seconds(clients.get("timeout"), math.inf), leave=clients.get("at_timeout", "leave") == "leave",
        give_up=seconds(clients.get("give_up_after"), math.inf), times=retry.get("times", 0),
        first=seconds(wait.get("first"), 0.0), factor=wait.get("factor", 2), longest=seconds(wait.get("max"), math.inf),
        budget=retry.get("budget"), after=seconds(hedge.get("after"), None), hedges=hedge.get("times", 0), **replay_of,
    )  # fmt: skip
    result = hs.run(given, check=True)
    table = result.tasks.set_index("id")
    assert set(table.index) == set(replay.sent)
    assert table["status"].astype(str).to_dict() == replay.fate
    for column, right in (("arrival", replay.sent), ("start", replay.start), ("finish", replay.finish)):
        told = table[column].dropna().to_dict()
        assert told.keys() == right.keys()
        assert [told[who] for who in told] == pytest.approx([right[who] for who in told], abs=1e-9)
    ends = result.calls.set_index("id")["finish"].to_dict()
    assert [ends[call] for call in range(n)] == pytest.approx([replay.call_end[call] for call in range(n)], abs=1e-9)
    made = np.bincount(np.array(list(replay.sent)) % n)
    assert (result.calls.sort_values("id")["attempts"].to_numpy() == made).all()
    return result


def drawn_clients(pick, hedged):
    retry = {"times": pick(1, 2, 3), "size": pick("same", "new")}
    if pick(0, 1):
        retry["wait"] = {"first": pick("0.1 s", "1 s"), "factor": pick(1, 2, 3), "jitter": pick("full", "none")}
        retry["wait"] |= pick({}, {"max": "1.5 s"})
    retry |= pick({}, {"budget": 0.1}, {"budget": 0.5})
    clients = {"timeout": pick("0.5 s", "1 s", "2 s"), "at_timeout": pick("leave", "cancel")}
    clients |= pick({}, {"give_up_after": "2.5 s"}) | pick({}, {"retry": retry}, {"retry": retry})
    if hedged:
        clients["hedge"] = {"after": pick("0 s", "0.1 s", "0.3 s"), "times": pick(1, 2, 3), "size": pick("same", "new")}
    return clients


@pytest.mark.quick(3)
@pytest.mark.parametrize("hedged", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_tasks_are_those_of_a_second_event_loop(seed, hedged):
    random = np.random.default_rng(seed)

    def pick(*values):
        return values[int(random.integers(len(values)))]

    limit = pick(None, None, 0, 3)
    policy = "fcfs" if limit is None else {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": limit}}
    given = scenario(drawn_clients(pick, hedged), rate=pick(5, 9, 14), cpus=4, seed=seed, policy=policy)
    compare(given, {"servers": 4}, limit)


@pytest.mark.quick(3)
@pytest.mark.parametrize("hedged", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_requests_are_those_of_a_second_event_loop(seed, hedged):
    random = np.random.default_rng(1000 + seed)

    def pick(*values):
        return values[int(random.integers(len(values)))]

    service = {"device": "gpu", "compute": {"fixed": "300 ms", "per_item": "50 ms"}, "max_batch": 8}
    given = scenario(drawn_clients(pick, hedged), rate=pick(5, 9, 14), seed=seed, service=service)
    compare(given, {"servers": 1, "batch": (8, 0.3, 0.05)})


def language_model(clients, *, step="100 ms", seats=2, prompt=9, output=5, service=(), **more):
    """Calls of a language model whose steps all take equally long."""
    served = {"kind": "llm", "step": {"fixed": step}, "max_num_seqs": seats, **dict(service)}
    given = scenario(clients, service=served, **more)
    given["workload"][0]["tokens"] = {"prompt": prompt, "output": output}
    given["cluster"]["nodes"] = {"gpus": {"type": "a100", "count": 2, "memory": "40 GB"}}
    return given


@pytest.mark.quick(3)
@pytest.mark.parametrize("hedged", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_calls_of_a_language_model_are_those_of_a_second_event_loop(seed, hedged):
    random = np.random.default_rng(2000 + seed)

    def pick(*values):
        return values[int(random.integers(len(values)))]

    clients, seats, lengths = drawn_clients(pick, hedged), pick(1, 3), {"distribution": "uniform", "low": 1, "high": 9}
    # Copies sent at once to two replicas end at one instant, and either may be the answer.
    replicas = 1 if clients.get("hedge", {}).get("after") == "0 s" else pick(1, 2)
    given = language_model(clients, step="0.1337 s", seats=seats, output=lengths, count=120, rate=pick(2, 4, 8),
                           seed=seed, service={"replicas": replicas})  # fmt: skip
    result = compare(given, {"seats": seats, "replicas": replicas, "step": 0.1337}, replay=Replicas,
                     sizes=lambda tasks: tasks.extra["output_tokens"])  # fmt: skip
    wasted = result.tasks["status"] == "aborted"
    assert (result.metric("wasted_device_s") > 0) == result.tasks["start"][wasted].notna().any()
    assert sum(result.record.received) == pytest.approx(result.launches["busy"].sum())


# By hand --------------------------------------------------------------------------------------------------------


def two(clients, count=2, policy="fcfs", seconds="5 s", service=None, **more):
    """A call a second from 0 on, on one core that takes 5 s for each."""
    given = scenario(clients, count=count, cpus=1, policy=policy, time=seconds, service=service, **more)
    given["workload"][0]["arrivals"] = {"process": "deterministic", "interval": "1 s"}
    return given


def seen(result, *columns):
    table = result.tasks.sort_values("id")
    return [[None if value != value else value for value in table[one].astype(object)] for one in columns]


def test_a_running_attempt_that_is_canceled_frees_its_core_at_that_instant():
    result = hs.run(two({"timeout": "3 s", "at_timeout": "cancel"}), check=True)
    assert seen(result, "start", "finish", "status") == [[0, 3], [3, 4], ["aborted"] * 2]
    assert result.metric("wasted_device_s") == 4 and result.metric("call_goodput") == 0
    assert result.metric("call_response_p99") == math.inf and result.tasks["reason"][0] == "timed out after 3 s"


def test_a_server_that_does_not_know_works_on():
    result = hs.run(two({"timeout": "6 s"}), check=True)
    assert seen(result, "start", "finish", "status") == [[0, 5], [5, 10], ["completed", "aborted"]]
    assert result.calls["finish"].tolist() == [5, 7] and result.calls["answered_by"][0] == 0
    assert result.metric("wasted_device_s") == 5 and result.metric("call_goodput") == pytest.approx(1 / 10)


def test_a_task_that_cannot_be_stopped_runs_on():
    result = hs.run(two({"timeout": "3 s", "at_timeout": "cancel"}, stopping={"preemptible": False}), check=True)
    assert seen(result, "start", "finish", "status") == [[0, None], [5, 4], ["aborted"] * 2]


def test_a_client_whose_attempt_runs_may_stay():
    """The first runs when its 3 s are over and is awaited; the second waits, and is canceled."""
    result = hs.run(two({"timeout": "3 s", "at_timeout": "stay"}), check=True)
    assert seen(result, "start", "finish", "status") == [[0, None], [5, 4], ["completed", "aborted"]]
    assert result.metric("wasted_device_s") == 0 and result.metric("call_goodput") == 1 / 5


def test_each_attempt_has_a_timeout_of_its_own():
    """Of attempts that never start: exponential times, also of a call's second one."""
    law = {"distribution": "exponential", "mean": "2 s"}
    clients = {"timeout": law, "at_timeout": "cancel", "retry": {"times": 1}}
    tasks = hs.run(scenario(clients, count=400, cpus=1, seed=2, stopping={"preemptible": False}, time="1 h")).tasks
    waits = (tasks["finish"] - tasks["arrival"])[tasks["start"].isna()]
    is_first = tasks["attempt_of"].isna() | (tasks["attempt_of"] == tasks["id"])
    first, second = waits[is_first].to_numpy(), waits[~is_first].to_numpy()
    for times in (first, second):
        assert len(times) >= 399 and abs(times.mean() - 2) < 0.4 and abs((times > 4).mean() - math.exp(-2)) < 0.07
    assert abs(np.corrcoef(first[:399], second[:399])[0, 1]) < 0.2 and len({*first, *second}) > 790
    plain, same = (hs.run(two({"timeout": one})) for one in ("6 s", {"distribution": "constant", "value": "6 s"}))
    assert plain.tasks.equals(same.tasks)


def test_copies_apart_are_on_other_types_of_device():
    clients = {"at_timeout": "cancel", "hedge": {"after": "0 s", "times": 1, "apart": True}}
    given = scenario(clients, count=60, rate=0.2, time="1 s")
    del given["workload"][0]["cpu_time"]
    given |= {"policy": "fcfs_skip", "cluster": {"nodes": [{"gpus": {"type": kind, "speed": 1 + (kind == "c")}}
                                                           for kind in "abc"]}}  # fmt: skip
    given["workload"][0]["gpu_time"] = "1 s"
    tasks = hs.run(given, check=True).tasks
    built = load(given).build()
    kinds = np.array([built.tasks.shapes[shape].modes[0].type.name for shape in built.tasks.shape])
    pairs = ["".join(sorted(kinds[built.calls.attempt_of == first])) for first in np.unique(built.calls.attempt_of)]
    assert {pair: pairs.count(pair) > 10 for pair in pairs} == {"ab": True, "ac": True, "bc": True}
    ended = tasks[tasks["status"] == "completed"]
    assert ended["compute"].tolist() == [1 - 0.5 * (kind == "c") for kind in ended["device_type"]]
    given["workload"][0]["clients"]["hedge"]["times"] = 3
    with pytest.raises(ScenarioError, match="hedge.apart: apart needs 4 types of device for 4 copies; .* on 3"):
        hs.run(given)


def test_a_client_leaves_while_admission_defers_its_attempt():
    policy = {"scheduler": "fcfs", "admission": {"name": "token_bucket", "rate": "0.1/s", "excess": "defer"}}
    result = hs.run(two({"timeout": "3 s", "at_timeout": "cancel"}, policy=policy), check=True)
    assert seen(result, "start", "finish") == [[0, None], [3, 4]] and result.end == 4


@pytest.mark.parametrize(
    ("way", "starts", "ends"), [("4 s", [None] * 3, [3, 4, 5]), ("1 s", [1, 2.5, 4], [3.5, 5, 6.5])]
)
def test_a_client_leaves_while_its_request_or_the_response_is_on_its_way(way, starts, ends):
    service = {"device": "cpu", "compute": {"fixed": "1.5 s"}, "max_batch": 4, "network": way}
    result = hs.run(two({"timeout": "3 s", "at_timeout": "cancel"}, 3, service=service), check=True)
    assert seen(result, "start", "finish", "status") == [starts, ends, ["aborted"] * 3]
    assert result.metric("wasted_device_s") == (0 if way == "4 s" else 4.5)


def test_requests_of_a_batch_share_the_seconds_that_are_wasted():
    """Three wait from 1, 2 and 3 s on and run from 4 to 8 s; only the last client is still there."""
    service = {"device": "cpu", "compute": {"fixed": "4 s"}, "max_batch": 4}
    result = hs.run(two({"timeout": "5.5 s"}, 4, service=service), check=True)
    assert seen(result, "start", "finish") == [[0, 4, 4, 4], [4, 8, 8, 8]]
    assert seen(result, "status") == [["completed", "aborted", "aborted", "completed"]]
    assert result.metric("wasted_device_s") == pytest.approx(8 / 3)


def test_the_call_is_given_up_and_its_attempts_have_what_is_left_of_it():
    retry = {"times": 5, "wait": {"first": "1 s", "factor": 1}}
    result = hs.run(two({"timeout": "3 s", "give_up_after": "6 s", "retry": retry}, 1), check=True)
    assert seen(result, "arrival", "start", "finish", "status") == [[0, 4], [0, 5], [5, 10], ["aborted"] * 2]
    assert result.tasks["reason"].tolist() == ["timed out after 3 s", "its call was given up after 6 s"]
    assert result.calls[["finish", "attempts"]].to_numpy().tolist() == [[6, 2]]


def test_deadlines_are_those_of_calls():
    """Attempts of 0 and 3 s, each 2 s on a core that is busy until 3.5 s: answered at 5.5 s."""
    given = two({"timeout": "3 s", "at_timeout": "cancel", "retry": {"times": 1}}, 1, seconds="2 s", slo="6 s")
    arrivals = given["workload"][0]["arrivals"]
    given["workload"].insert(0, {"name": "first", "arrivals": arrivals, "count": 1, "cpu_time": "3.5 s"})
    result = hs.run(given, check=True)
    table = result.tasks.set_index("id")
    assert table["attempt_of"].tolist() == [0, 1, 1] and table["deadline"].tolist()[1:] == [6, 6]
    assert table["met_deadline"].tolist()[1] and table["met_deadline"].isna().tolist() == [True, False, True]
    assert result.metric("slo_attainment") == 1 and result.metric("goodput_fraction") == 0.5
    assert result.metric("attempts_per_call") == 2 and result.metric("call_response_p99") == 5.5
    late = hs.run(given, overrides=["workload.calls.slo=5 s"])
    assert late.metric("slo_attainment") == 0 == late.metric("call_goodput")


@pytest.mark.parametrize(("way", "service"), [("leave", False), ("cancel", False), ("cancel", True)])
def test_the_first_answer_ends_a_hedged_call(way, service):
    """Two cores: the answer comes at 5 s, and a hedge of 1 s ends at 6 s, or is stopped; one that waits for the next
    batch leaves its queue."""
    begin, end = 5 if service else 1, 5 if way == "cancel" else 6
    given = two({"at_timeout": way, "hedge": {"after": "1 s"}}, 1, slo="5 s")
    given["cluster"]["nodes"]["cpus"] = 2
    if service:
        given["workload"][0]["service"] = {"device": "cpu", "compute": {"fixed": "5 s"}, "max_batch": 4}
        del given["workload"][0]["cpu_time"]
    result = hs.run(given, check=True)
    assert seen(result, "arrival", "start", "finish", "status") == [
        [0, 1], [0, None if service else 1], [5, end], ["completed", "aborted"]]  # fmt: skip
    assert result.tasks["reason"].tolist()[1] == "another attempt of its call was answered"
    assert result.calls[["finish", "attempts", "answered_by"]].to_numpy().tolist() == [[5, 2, 0]]
    assert result.metric("wasted_device_s") == end - begin and result.metric("slo_attainment") == 1


def test_attempts_that_a_client_still_awaits_at_the_end_are_not_wasted():
    """Of three attempts from 0, 2 and 4 s on the first is left at 5 s; the run ends at 6 s, while all run."""
    given = two({"timeout": "5 s", "hedge": {"after": "2 s", "times": 2}}, 1, seconds="9 s")
    given["cluster"]["nodes"]["cpus"] = 3
    result = hs.run({**given, "horizon": "6 s"}, check=True)
    assert seen(result, "start", "status") == [[0, 2, 4], ["unfinished"] * 3]
    assert result.metric("wasted_device_s") == 6 and result.metric("attempts_per_call") == 3


@pytest.mark.parametrize(("after", "sent"), [("1 s", [0, 0.5]), ("0 s", [0, 0, 0.5, 0.5])])
def test_a_retry_comes_when_every_attempt_sent_is_lost(after, sent):
    """All are rejected at once: a hedge that was to come later is not sent any more."""
    retry = {"times": 1, "on": ["rejected"], "wait": {"first": "500 ms"}}
    policy = {"scheduler": "fcfs", "admission": "slo_feasible"}
    table = hs.run(two({"hedge": {"after": after}, "retry": retry}, 1, policy=policy, slo="1 s"), check=True).tasks
    assert sorted(table["arrival"]) == sent and (table["status"] == "rejected").all()


@pytest.mark.parametrize(("timeout", "rate"), [("900 ms", "99/s"), ("9 s", "99/s"), ("9 s", "2/s")])
def test_a_batching_policy_learns_how_many_attempts_may_still_come(timeout, rate):
    """Batches of four of 1 s; those at the end, of fewer, go as soon as no other attempt can come, admitted or not."""
    policy = {"scheduler": "fcfs", "admission": {"name": "token_bucket", "rate": rate}}
    service = {"device": "cpu", "compute": {"fixed": "1 s"}, "max_batch": 4, "batching": "fixed_size"}
    retry = {"times": 1, "wait": {"first": "1 s"}}
    clients = {"timeout": timeout, "hedge": {"after": "300 ms", "times": 2}, "retry": retry}
    result = hs.run(scenario(clients, count=30, service=service, rate=4, policy=policy), check=True)
    assert result.calls["finish"].notna().all() and result.tasks["finish"].notna().all()


def test_hedges_are_as_long_as_the_retry_that_they_follow():
    clients = {"timeout": "2 s", "hedge": {"after": "1 s", "times": 2}, "retry": {"times": 1, "size": "new"}}
    sizes = load(scenario(clients, count=20)).build().tasks.time.reshape(2, 3, 20)
    assert (sizes == sizes[:, :1]).all() and (sizes[0] != sizes[1]).any()


def test_attempts_of_another_size_ask_for_the_same_input():
    """A cache tells requests apart by it."""
    cache, hedge = {"inputs": 10, "size": 5, "hit": "1 ms", "zipf": 1}, {"after": "0 s", "times": 2, "size": "new"}
    service = {"device": "cpu", "compute": {"fixed": "9 ms"}, "max_batch": 4, "cache": cache}
    clients = {"timeout": "1 s", "hedge": hedge, "retry": {"times": 1, "size": "new"}}
    inputs = load(scenario(clients, count=40, service=service)).build().tasks.extra["input"].reshape(6, 40)
    assert (inputs == inputs[0]).all() and len(set(inputs[0].tolist())) > 4


def test_a_hedge_uses_the_budget_as_a_retry_does():
    """Calls of 5 s, one a second, on cores enough; each adds half an attempt, until 5 s."""
    for after, calls in (("2 s", [2, 2, 1, 2, 1, 1]), ("0 s", [1, 2, 1, 2, 1, 2])):
        retry = {"times": 1, "on": ["timeout"], "budget": 0.5}
        given = two({"timeout": "6 s", "hedge": {"after": after}, "retry": retry}, 6)
        given["cluster"]["nodes"]["cpus"] = 20
        assert hs.run(given, check=True).calls.sort_values("id")["attempts"].tolist() == calls


def test_clients_of_a_closed_loop_send_again_or_hedge_before_they_think():
    given = two({"timeout": "2 s", "at_timeout": "cancel", "retry": {"times": 1, "wait": {"first": "1 s"}}})
    given["workload"][0]["arrivals"] = {"process": "closed", "clients": 1, "think": "10 s"}
    result = hs.run(given, check=True)
    assert result.tasks["arrival"].tolist() == [10, 25, 13, 28] and result.calls["finish"].tolist() == [15, 30]
    given["workload"][0]["clients"] = {"hedge": {"after": "1 s"}}
    given["cluster"]["nodes"]["cpus"] = 2
    result = hs.run(given, check=True)
    assert result.tasks["arrival"].tolist() == [10, 25, 11, 26] and result.calls["finish"].tolist() == [15, 30]


def test_patience_of_tasks_and_of_requests_and_clients_share_their_deadlines():
    """Three streams of two, each with a device of its own that is busy until 5 s when the second ones leave."""
    arrivals, service = {"process": "deterministic", "interval": "1 s"}, {"compute": {"fixed": "5 s"}, "max_batch": 1}
    common = {"arrivals": arrivals, "count": 2}
    nodes = {"cpus": 2, "gpus": [{"type": "a100"}, {"type": "t4"}]}
    for clients in ({}, {"clients": {"timeout": "6.5 s"}}):
        workload = [
            {"name": "tasks", **common, "gpu_time.t4": "5 s", "patience": "2 s"},
            {"name": "requests", **common, "service": {"device": "a100", **service}, "patience": "2.5 s"},
            {"name": "calls", **common, "cpu_time": "5 s", "cpus": 2, **clients},
        ]
        given = {"name": "s", "policy": "fcfs_skip", "cluster": {"nodes": nodes}, "workload": workload}
        table = hs.run(given, check=True).tasks.set_index("class")
        right = {"tasks": [5, 3], "requests": [5, 3.5], "calls": [5, 10]}
        assert {name: sorted(table.loc[name, "finish"]) for name in right} == {k: sorted(v) for k, v in right.items()}
        fates = {"aborted": len(clients), "completed": 4 - len(clients), "expired": 2}
        assert sorted(table["status"]) == [fate for fate, number in fates.items() for _ in range(number)]


# Language models ----------------------------------------------------------------------------------------------------


def model_of(clients, count=1, output=5, **more):
    """A call a second from 0 on, of five steps of 1 s, one at a time."""
    given = language_model(clients, count=count, step="1 s", seats=1, output=output, **more)
    given["workload"][0]["arrivals"] = {"process": "deterministic", "interval": "1 s"}
    return given


def test_a_sequence_leaves_at_the_next_step_and_its_retry_waits_there():
    """The second one waits for the first and has two of its steps; its retry, of 7.5 s, joins as the third one left."""
    clients = {"timeout": "6.5 s", "at_timeout": "cancel", "retry": {"times": 1}}
    result = hs.run(model_of(clients, 3), check=True)
    assert seen(result, "arrival", "start", "finish", "status", "ttft") == [
        [0, 1, 2, 7.5, 8.5], [0, 5, 8, 9, 14], [5, 8, 9, 14, 16], ["completed", "aborted", "aborted", "completed",
        "aborted"], [1, 5, None, 2.5, 6.5]]  # fmt: skip
    assert result.calls["finish"].tolist() == [5, 14, 15] and result.tasks["reason"][1] == "timed out after 6.5 s"
    assert result.metric("wasted_device_s") == 3 + 1 + 2 and result.metric("call_goodput") == 2 / 16
    assert result.metric("aborted_count") == 3 and result.metric("call_response_p99") == math.inf


def test_a_replica_that_does_not_know_works_on():
    """No client sees a token that comes after it has left."""
    result = hs.run(model_of({"timeout": "6.5 s"}, 3), check=True)
    assert seen(result, "finish", "status", "ttft") == [
        [5, 10, 15], ["completed", "aborted", "aborted"], [1, 5, None]]  # fmt: skip
    assert result.calls["finish"].tolist() == [5, 7.5, 8.5] and result.metric("wasted_device_s") == 10
    cut = hs.run({**model_of({"timeout": "6.5 s"}, 3), "horizon": "12 s"}, check=True)
    assert cut.metric("wasted_device_s") == 7 and hs.run(
        {**model_of({"timeout": "6.5 s"}, 3), "warmup": "6 s"}).metric("wasted_device_s") == 9  # fmt: skip


@pytest.mark.parametrize(("limit", "met"), [("9.9 s", 1), ("10.1 s", 2)])
def test_limits_on_first_tokens_are_those_of_calls(limit, met):
    """The second of three calls is sent again at 8.5 s and has its first token at 11 s, 10 s after its begin."""
    clients = {"timeout": "7.5 s", "at_timeout": "cancel", "retry": {"times": 1}}
    result = hs.run(model_of(clients, 3, service={"slo": {"ttft": limit}}), check=True)
    assert seen(result, "arrival", "start") == [[0, 1, 2, 8.5, 9.5], [0, 5, 9, 10, 15]]
    table = result.tasks.sort_values("id")["met_deadline"]
    assert table.tolist()[:3] == [True, met == 2, False] and table[3:].isna().all()
    assert result.metric("slo_attainment") == pytest.approx(met / 3)


@pytest.mark.parametrize(("way", "end"), [("cancel", 6.5), ("leave", 7.5)])
def test_a_hedge_at_another_replica_leaves_at_the_end_of_its_own_step(way, end):
    """Six steps of 1 s from 0 on, and from 1.5 s on at the other replica; the answer comes in a step there."""
    given = model_of({"at_timeout": way, "hedge": {"after": "1.5 s"}}, 1, output=6, service={"replicas": 2})
    result = hs.run(given, check=True)
    assert seen(result, "arrival", "start", "finish", "status") == [
        [0, 1.5], [0, 1.5], [6, end], ["completed", "aborted"]]  # fmt: skip
    assert result.metric("wasted_device_s") == end - 1.5 and result.calls["answered_by"].tolist() == [0]


def test_a_loop_of_clients_and_the_way_to_the_replica():
    """One client that thinks for 10 s; 1 s there and back: its first call is left on the way back, and sent again."""
    network = {"network": {"request": "1 s", "response": "1 s"}}
    clients = {"timeout": "6.5 s", "at_timeout": "cancel", "retry": {"times": 1}}
    given = language_model(clients, count=2, step="1 s", seats=1, output=5, service=network)
    given["workload"][0]["arrivals"] = {"process": "closed", "clients": 1, "think": "10 s"}
    table = hs.run(given, check=True).tasks
    assert table["arrival"].tolist() == [10, 33, 16.5, 39.5] and (table["status"] == "aborted").all()
    assert (table["finish"] - table["arrival"]).tolist() == [6.5] * 4 and table["ttft"].tolist() == [3] * 4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_a_fork_of_a_language_model_goes_on_to_the_same_attempts(way):
    given = language_model({**STORM, **HEDGE, "at_timeout": way}, rate=9, count=60, service={"replicas": 2})
    look(load(given).build, 3, forks=4)


def test_runs_of_language_models_are_saved_and_their_collapse_is_told(tmp_path):
    """Three times the rate for 20 of 200 s; calls of 0.5 s, two at a time, on clients that wait for 2 s."""
    given = language_model({"timeout": "2 s", "retry": {"times": 3, "size": "new"}}, count=800)
    rates = [["0 s", "3/s"], ["40 s", "12/s"], ["60 s", "3/s"]]
    given["workload"][0]["arrivals"] = {"process": "piecewise_poisson", "rate": rates}
    result = hs.run({**given, "horizon": "200 s"})
    assert any(text.startswith("goodput has not recovered 1") for text in result.warnings)
    loaded = Result.load(result.save(tmp_path / "run"))
    assert loaded.calls.equals(result.calls)
    assert loaded.metric("wasted_device_s") == result.metric("wasted_device_s") > 100


# Theory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_without_a_queue_and_clients_that_come_back_is_the_m_m_1_with_retrials():
    """Falin and Templeton, Retrial Queues (1997), section 1.2: of those in orbit there are rho (lambda + rho theta) /
    ((1 - rho) theta) on average, and a time until the answer of that and rho, over lambda."""
    rate, theta = 0.4, 0.5
    wait = {"first": "2 s", "factor": 1, "jitter": "exponential"}
    clients = {"retry": {"times": 80, "on": ["rejected"], "wait": wait, "size": "same"}}
    policy = {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 0}}
    law = {"distribution": "exponential", "mean": "1 s"}
    means = []
    for seed in range(10):
        calls = hs.run(scenario(clients, rate=rate, cpus=1, count=4000, seed=seed, policy=policy, time=law)).calls
        assert (calls["status"] == "completed").all()
        means.append(calls["response"][500:].mean())
    right = (rate * (rate + rate * theta) / ((1 - rate) * theta) + rate) / rate
    assert abs(np.mean(means) - right) < 2.262 * np.std(means, ddof=1) / math.sqrt(10)


@pytest.mark.parametrize("size", ["same", "new"])
def test_hedges_of_calls_that_never_wait(size):
    """Servers enough: the time until the answer is the shorter of X1 and a hedge's time after it was sent, X2."""
    given = scenario({"at_timeout": "cancel", "hedge": {"after": "500 ms", "size": size}}, cpus=300)
    sizes = load(given).build().tasks.time[:, 0].reshape(2, -1)
    assert (sizes[0] == sizes[1]).all() == (size == "same")
    result = hs.run(given, check=True)
    calls, right = result.calls.sort_values("id"), np.minimum(sizes[0], 0.5 + sizes[1])
    hedged = sizes[0] > 0.5
    assert calls["response"].to_numpy() == pytest.approx(right, abs=1e-9)
    assert (calls["attempts"].to_numpy() == 1 + hedged).all() and 50 < hedged.sum() < 250
    assert (calls["answered_by"].to_numpy() >= 300).tolist() == (0.5 + sizes[1] < sizes[0]).tolist()
    assert result.metric("wasted_device_s") == pytest.approx(np.where(hedged, right - np.where(
        0.5 + sizes[1] < sizes[0], 0, 0.5), 0).sum(), abs=1e-6)  # fmt: skip


@pytest.mark.slow
def test_copies_at_all_servers_are_one_server_that_takes_the_shortest():
    """Redundancy-d with d = c (Gardner and others 2017): exponential times make it the M/M/1 of rate c mu."""
    clients = {"at_timeout": "cancel", "hedge": {"after": "0 s", "times": 2, "size": "new"}}
    means = []
    for seed in range(5):
        given = scenario(
            clients, rate=1.5, cpus=3, count=3000, seed=seed, time={"distribution": "exponential", "mean": "1 s"}
        )
        tasks, calls = load(given).build().tasks, hs.run(given).calls.sort_values("id")
        free, ends = 0.0, []
        for arrival, shortest in zip(tasks.arrival[:3000], tasks.time[:, 0].reshape(3, -1).min(axis=0), strict=True):
            free = max(free, arrival) + shortest
            ends.append(free)
        assert calls["finish"].to_numpy() == pytest.approx(ends, abs=1e-9)
        means.append(calls["response"][300:].mean())
    right = theory.redundancy(1.5, 1.0, 3, 3).response_mean
    assert abs(np.mean(means) - right) < 2.776 * np.std(means, ddof=1) / math.sqrt(5)


def test_patience_and_clients_that_leave_the_queue_are_the_same():
    """Where nothing can be stopped, as a client that leaves what runs changes nothing there."""
    same = {"stopping": {"preemptible": False}, "rate": 12}
    clients = hs.run(scenario({"timeout": "700 ms", "at_timeout": "cancel"}, **same)).tasks
    given = scenario({"timeout": "1 s"}, **same)
    del given["workload"][0]["clients"]
    given["workload"][0]["patience"] = "700 ms"
    patience = hs.run(given).tasks
    assert clients["start"].equals(patience["start"]) and clients["finish"].equals(patience["finish"])


# Forks, saved runs, schedulers ------------------------------------------------------------------------------------


HEDGE = {"hedge": {"after": "200 ms", "times": 2, "size": "new"}}
STORM = {"timeout": "700 ms", "retry": {"times": 2, "wait": {"first": "100 ms", "jitter": "full"}, "budget": 0.5}}


@pytest.mark.slow
@pytest.mark.parametrize(("way", "more"), [("leave", {}), ("cancel", {}), ("cancel", HEDGE)])
def test_a_fork_goes_on_to_the_same_attempts(way, more):
    given = scenario({**STORM, "at_timeout": way, **more}, rate=14)
    for seed in range(3):
        look(load(given).build, seed, forks=4)


@pytest.mark.quick(0)
def test_a_policy_that_forks_the_run_knows_nothing_of_its_clients():
    """What it imagines has no further calls; it decides as well as it can, and every attempt ends."""
    result = hs.run(scenario({**STORM, **HEDGE, "at_timeout": "cancel"}, count=40, policy="rollout"), check=True)
    assert result.calls["finish"].notna().all()


def test_saved_runs_have_their_calls(tmp_path):
    result = hs.run(scenario({**STORM, **HEDGE}))
    loaded = Result.load(result.save(tmp_path / "run"))
    assert loaded.calls.equals(result.calls) and loaded.tasks.equals(result.tasks)
    assert loaded.metric("wasted_device_s") == result.metric("wasted_device_s") > 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["leave", "cancel"])
@pytest.mark.parametrize(
    "name", ["easy_backfill", "srtf", "las", "processor_sharing", "edf", "eft", "lws", "fcfs_skip"]
)
def test_every_call_ends_under_other_schedulers(name, way):
    result = hs.run(scenario({**STORM, **HEDGE, "at_timeout": way}, rate=14, policy=name), check=True)
    assert result.calls["finish"].notna().all() and len(result.calls) == 300
    assert (result.tasks.groupby("attempt_of")["status"].apply(lambda one: (one == "completed").sum()) <= 1).all()


# What is refused ----------------------------------------------------------------------------------------------------


CLOSED = "arrivals: {process: closed, clients: 2, think: 1 s}"


@pytest.mark.parametrize(
    ("clients", "place", "says", "more"),
    [
        ("{retry: {times: 2, on: [timeout]}}", "6:31: workload.0.clients.retry.on", "retries have no cause", ""),
        ("{retry: {times: 2, on: [timeout, timeout]}}", "6:31: workload.0.clients.retry.on", "give a timeout", ""),
        ("{retry: {times: 2}}", "6:13: workload.0.clients.retry.on", "; no attempt fails", ""),
        ("{timeout: 1 s, retry: {times: 2, on: [rejected]}}", "6:45: workload.0.clients.retry.on",
         "nothing rejects an attempt (name a policy.admission", ""),
        ("{timeout: 1 s, retry: {times: 2, on: [failed, rejected]}}", "6:45: workload.0.clients.retry.on",
         "no attempt fails (what a fault", "faults: {on: node, every: 9 s, repair: 1 s}"),
        ("{timeout: 2 s, give_up_after: 2 s, retry: {times: 2, on: [timeout]}}",
         "6:65: workload.0.clients.retry.on", "below give_up_after", ""),
        ("{timeout: 1 s, count: 3e9, retry: {times: 1, budget: 10%}}", "6:27: workload.clients.count", "at most", ""),
        ("{timeout: 1 s, retry: {times: 2, on: []}}", "6:45: workload.clients.retry.on",
            "give at least one of timeout, rejected and failed", ""),
        ("{timeout: 1 s, retry: {times: 2, on: [late]}}", "6:50: workload.clients.retry.on.0", "timeout", ""),
        ("{retry: {times: 2, budget: 120%}}", "6:31: workload.clients.retry.budget", "100%", ""),
        ("{timeout: 1 s, hedge: {after: 1 s}}", "6:35: workload.clients.hedge.after",
            "the time must be below the 1 s after which the client leaves", ""),
        ("{give_up_after: 2 s, hedge: {after: 3 s}}", "6:41: workload.clients.hedge.after",
            "the time must be below the 2 s after which the client leaves", ""),
        ("{hedge: {after: 1 s, times: 0}}", "6:33: workload.clients.hedge.times", "at least 1", ""),
        ("{hedge: {after: 1 s, times: 21}}", "6:33: workload.clients.hedge.times", "at most 20", ""),
        ("{hedge: {times: 1}}", "6:13: workload.clients.hedge.after", "missing", ""),
        ("{timeout: 0 s}", "6:13: workload.clients.timeout", "leave the key out if clients wait without limit", ""),
        ("{at_timeout: cancel}", "6:3: workload.clients.timeout", "at least one of timeout, give_up_after", ""),
        ("{timeout: 1 s, count: 3}", "6:27: workload.clients.count", "has an effect only with retry.budget", ""),
        ("{timeout: 1 s}", "7:3: workload.patience", "patience is a short form of clients; give "
                                                     "either", "  patience: 1 s"),
        ("{count: 3, retry: {times: 1, budget: 10%}}", "6:13: workload.clients.count", "closed loop", CLOSED),
        ("{timeout: 1 s}", "6:3: workload.0.clients", "plans all tasks in advance, but retries", "policy: heft"),
        ("{hedge: {after: 0 s, apart: true}}", "6:33: workload.0.clients.hedge.apart", "these tasks run on 1", ""),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_with_its_place(tmp_path, clients, place, says, more):
    arrivals = more if more == CLOSED else "arrivals: {process: poisson, rate: 1/s}"
    lines = ["name: s", "cluster: {nodes: {cpus: 2}}", "workload:", f"  {arrivals}", "  cpu_time: 1 s",
             f"  clients: {clients}", "" if more == CLOSED else more, "horizon: 9 s"]  # fmt: skip
    file = tmp_path / "s.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ScenarioError) as error:
        hs.run(file)
    assert f"s.yaml:{place}: " in str(error.value) and says in str(error.value)


SERVICE = {"device": "cpu", "compute": {"fixed": "1 s"}, "max_batch": 2}
BOUNDED = {"name": "token_bucket", "rate": "1/s"}


@pytest.mark.parametrize(
    ("reacts", "policy", "service", "batching"),
    [
        (False, "fcfs", None, None),
        (False, {"scheduler": "fcfs", "admission": "accept_all"}, None, None),
        (False, {"scheduler": "fcfs", "admission": {**BOUNDED, "excess": "defer"}}, None, None),
        (False, {"scheduler": "edf"}, None, None),
        (False, "eft", None, None),
        (False, "max_min_fairness", None, None),
        (True, {"scheduler": "fcfs", "admission": BOUNDED}, None, None),
        (True, {"scheduler": "fcfs", "admission": {"name": "naor", "reward": 5, "cost": 1}}, None, None),
        (True, {"scheduler": {"name": "edf", "drop_expired": True}}, None, None),
        (True, {"scheduler": {"name": "fcfs", "drop_expired": True}}, None, None),
        (False, "fcfs", SERVICE, "serial_greedy"),
        (False, "fcfs", SERVICE, "fixed_size"),
        (False, "fcfs", SERVICE, "clipper_aimd"),
        (False, "fcfs", SERVICE, "size_or_timeout"),
        (True, "fcfs", SERVICE, {"name": "size_or_timeout", "max_enqueued_batches": 1}),
        (True, "fcfs", SERVICE, "nexus"),
    ],
)  # fmt: skip
def test_retries_of_what_is_rejected_need_a_policy_that_rejects(reacts, policy, service, batching):
    given = scenario({"retry": {"times": 1, "on": ["rejected"]}}, policy=policy, service=service, slo="9 s")
    if batching:
        given["workload"][0]["service"] = {**service, "batching": batching}
    if reacts:
        assert load(given).build().calls is not None
    else:
        with pytest.raises(ScenarioError, match="workload.0.clients.retry.on: retries have no cause: nothing"):
            load(given).build()


def test_each_entry_is_asked_what_its_own_retries_can_react_to():
    """The requests of the second service alone may be discarded; the entry between has no clients."""
    retry = {"clients": {"retry": {"times": 1, "on": ["rejected"]}}}
    common = {"arrivals": {"process": "deterministic", "interval": "1 s"}, "count": 2, "slo": "9 s"}
    workload = [
        {"name": "first", **common, "service": SERVICE},
        {"name": "tasks", **common, "cpu_time": "1 s"},
        {"name": "second", **common, **retry, "service": {**SERVICE, "batching": "nexus"}},
    ]
    given = {"name": "s", "policy": "fcfs", "cluster": {"nodes": {"cpus": 2}}, "workload": workload}
    load(given).build()
    workload[0] |= retry
    with pytest.raises(ScenarioError, match="workload.0.clients") as error:
        load(given).build()
    assert "workload.2" not in str(error.value)


def test_retries_of_what_fails_need_tasks_that_are_killed_at_their_limits():
    """A task of 5 s with a limit of 2 s is killed at 2 s, and its retry at 4 s."""
    given = two({"retry": {"times": 1, "on": ["failed"]}}, 1, time_limit="2 s")
    with pytest.raises(ScenarioError, match="no attempt fails"):
        load(given).build()
    result = hs.run({**given, "site": {"at_limit": "kill"}}, check=True)
    assert seen(result, "start", "finish", "status") == [[0, 2], [2, 4], ["failed"] * 2]


@pytest.mark.parametrize(("longest", "attempts"), [("1 s", 101), (None, 26)])
def test_a_wait_that_grows_beyond_all_numbers_is_the_longest_or_never_over(longest, attempts):
    wait = {"first": "1e-300 s", "factor": 1e25} | ({"max": longest} if longest else {})
    given = scenario({"timeout": "1 ms", "retry": {"times": 100, "wait": wait}}, count=1)
    assert hs.run({**given, "horizon": "200 s"}).calls.attempts.max() <= attempts


def test_theory_does_not_know_clients():
    given = scenario({"timeout": "1 s"})
    assert "clients" in str(match(load(given)))


def _alone(clients, seconds="5 s", gpus=1, policy="fcfs", **more):
    entry = {"name": "low", "arrivals": {"process": "deterministic", "interval": "1 s", "first": "0 s"}, "count": 1}
    entry |= {"gpu_time": seconds, "clients": {"at_timeout": "stay", **clients}, **more}
    return {"cluster": {"nodes": [{"gpus": {"type": "g", "count": gpus}}]}, "policy": policy, "workload": [entry]}


def test_who_stays_does_so_for_an_attempt_that_was_stopped():
    scenario = _alone({"timeout": "3 s"}, policy={"scheduler": {"name": "priority", "preemptive": True}})
    high = {"name": "high", "priority": 1, "count": 1, "gpu_time": "3 s"}
    scenario["workload"].append({**high, "arrivals": {"process": "deterministic", "interval": "1 s", "first": "2 s"}})
    tasks = hs.run(scenario, check=True).tasks
    assert tasks["status"].tolist() == ["completed"] * 2 and tasks["finish"].tolist() == [8.0, 5.0]


def test_no_hedge_is_sent_for_a_call_that_was_given_up():
    result = hs.run(_alone({"give_up_after": "3 s", "hedge": {"after": "2 s", "times": 3}}, "10 s", 4), check=True)
    assert result.tasks["arrival"].tolist() == [0.0, 2.0] and result.calls["attempts"].tolist() == [2]


def test_a_task_that_admission_drops_as_it_starts_takes_no_other_along():
    """Backfilling keeps its window: whatever waits behind a dropped task is still there."""
    codel = {"name": "head_codel", "target": "50 ms", "interval": "100 ms"}
    scenario = {"cluster": {"nodes": [{"gpus": {"type": "g", "count": 4}}]}, "seed": 1,
                "policy": {"scheduler": "easy_backfill", "admission": codel},
                "workload": [{"arrivals": {"process": "poisson", "rate": "4/s"}, "count": 120, "gpu_time":
                              {"distribution": "exponential", "mean": "1 s"},
                              "classes": [{"class": "a", "gpus": 1}, {"class": "b", "gpus": 3}]}]}  # fmt: skip
    counts = hs.run(scenario, check=True).tasks["status"].value_counts()
    assert counts["completed"] + counts["rejected"] == 120 and counts["rejected"] > 10
