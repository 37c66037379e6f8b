"""Scaling policies and routers with signals of an age, against loops of a few lines and closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from test_llm import requests, scenario

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, RunError, ScenarioError
from hetsim.model.ragged import Ragged
from hetsim.model.record import COMPLETED
from hetsim.model.service import ScaleBounds
from hetsim.policy import OpenReplicas, Scaling, ServiceSignals
from hetsim.results.one_run import store
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load
from hetsim.testing import audit
from hetsim.testing.conformance import fingerprint
from hetsim_policies import CATALOGUE
from hetsim_policies.prediction.predictors import LastValue
from hetsim_policies.routing.routers import LeastOutstanding, Scored
from hetsim_policies.scaling.scalers import Predicted, QueueKv

MOMENT = 1e-12  # a step in no time


def serverless(arrivals, keep, load):
    """Starts of requests in no time on one replica that stays for `keep`, and the number of loads."""
    starts, loads, ready, idle = [], 0, -math.inf, -math.inf
    for at in arrivals:
        if at > ready and at > idle + keep:
            ready, loads = at + load, loads + 1
        starts.append(max(at, ready))
        idle = starts[-1]
    return np.array(starts), loads


def cold(arrivals, keep=10.0, load=5.0, more=None):
    scale = {"name": "keep_alive", "min": 0, "max": 1, "keep": f"{keep} s"}
    service = {"scale": scale, "model": f"{load} GB", "step": {"fixed": f"{MOMENT} s"}, **(more or {})}
    return requests(arrivals, [1] * len(arrivals), [1] * len(arrivals), service, gpus=1)


@pytest.mark.parametrize("seed", range(2))
def test_keep_alive_start_by_start(seed):
    """All that come during a load are served at its end; K counts from when the replica falls idle."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(10.0, 200))
    record = cold(arrivals)
    starts, loads = serverless(arrivals, 10.0, 5.0)
    assert record.start == pytest.approx(starts, abs=1e-9) and (record.status == COMPLETED).all()
    assert np.isfinite(record.launches["upload_start"]).sum() == loads > 20
    assert Result(record).metric("cold_start_fraction") == loads / 200  # of which the closed form below is the mean


def test_keep_alive_at_its_very_end_by_hand():
    """Cold at 0 s; 3 s and 4.5 s wait for 5 s.  At 15 s, K after it fell idle, an arrival comes before the end of K.
    26 s is past 25 s (+ a moment), so it loads until 31 s; 41.5 s is past 41 s and loads again."""
    record = cold([0.0, 3.0, 4.5, 15.0, 26.0, 41.5])
    assert record.start == pytest.approx([5.0, 5.0, 5.0, 15.0, 31.0, 46.5], abs=1e-9)
    assert np.isfinite(record.launches["upload_start"]).sum() == 3


def test_keep_alive_share_and_wait_in_closed_form():
    """The loop above, which the engine follows start by start, on 40 long paths: 1 / (LS + e^(LK)) and so on."""
    rate, keep, load = 0.1, 10.0, 5.0
    below = rate * load + math.exp(rate * keep)
    shares, waits = [], []
    for seed in range(40):
        arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, 2000))
        starts, loads = serverless(arrivals, keep, load)
        shares.append(loads / len(arrivals))
        waits.append((starts - arrivals).mean())
    for values, exact, printed in ((shares, 1 / below, 0.3107), (waits, (load + rate * load**2 / 2) / below, 1.942)):
        half = 2.7 * np.std(values, ddof=1) / math.sqrt(len(values))
        assert exact == pytest.approx(printed, abs=5e-4) and abs(np.mean(values) - exact) < half < 0.02 * exact


def seen_count(line, t, refresh, delay):
    """Requests (arrival, end) of a replica as they are seen at t."""
    if refresh:
        k = math.floor((t - delay) / refresh)
        k += ((k + 1) * refresh + delay <= t) - (k * refresh + delay > t)
        return sum(at < k * refresh <= end for at, end in line)
    return sum(at + delay <= t < end + delay for at, end in line)


@pytest.mark.parametrize(("refresh", "delay"), [(0.7, 0), (0.7, 0.2), (0, 0.4), (0.3, 1.1), (0, 0)])
@pytest.mark.parametrize("replicas", [2, 4])
def test_the_shortest_queue_with_an_age_start_by_start(refresh, delay, replicas):
    """One request at a time, of geometric length: the first replica with the fewest requests as they are seen."""
    rng = np.random.default_rng(replicas)
    count = 250
    arrivals = np.cumsum(rng.exponential(1 / (0.85 * replicas), count))
    tokens = rng.geometric(0.1, count)
    routing = {"name": "least_outstanding", "refresh": f"{refresh} s", "delay": f"{delay} s"}
    service = {"replicas": replicas, "max_num_seqs": 1, "step": {"fixed": "100 ms"}, "routing": routing}
    record = requests(arrivals, [1] * count, tokens, service, gpus=replicas)
    lines: list[list[tuple[float, float]]] = [[] for _ in range(replicas)]
    chosen, starts = [], []
    for at, length in zip(arrivals.tolist(), tokens.tolist(), strict=True):
        counts = [seen_count(line, at, refresh, delay) for line in lines]
        line = lines[counts.index(min(counts))]
        starts.append(max(at, line[-1][1] if line else at))
        line.append((at, starts[-1] + 0.1 * length))
        chosen.append(counts.index(min(counts)) + 1)
    assert record.place.tolist() == chosen
    assert record.start == pytest.approx(starts, abs=1e-9)


# The other rules ------------------------------------------------------------------------------------------------

BOUNDS = ScaleBounds(min_replicas=0, max_replicas=8, every=10.0)


def signals(replicas=2, waiting=0, kv=0.0, rate=0.0, outstanding=0):
    role = SimpleNamespace(replicas=replicas, ready=replicas, waiting=waiting, kv_used=kv, outstanding=outstanding)
    return ServiceSignals({"replicas": role}, BOUNDS, source=SimpleNamespace(rates=lambda: (rate, math.nan, math.nan)))


def test_queue_and_kv_as_kubernetes_by_hand():
    """ceil(replicas × value / target), the larger of two; within a tenth nothing changes; down after the window."""
    policy = QueueKv(waiting=4.0, kv=0.8, stabilization=30.0)

    def ask(now, **values):
        return policy.wanted(None, signals(**values), now)["replicas"]

    assert ask(0, waiting=9) == 3  # 9 / 4 = 2.25
    assert ask(10, replicas=3, waiting=13) == 3  # 3.25 is within 10 % of 3
    assert ask(20, replicas=3, kv=0.99) == 4  # 3 × 0.99 / 0.8 = 3.7
    assert ask(40, replicas=4, kv=0.2) == 4  # one replica would do, but 4 were wanted 20 s ago
    assert ask(51, replicas=4, kv=0.2) == 1  # those that were wanted 31 s ago count no more
    assert ask(60, replicas=0, waiting=1) == 1 and ask(61, replicas=8, waiting=90) == 8


def test_predicted_replicas_by_hand():
    """The last value, 4.2/s, keeps 4.2 replicas busy at 1/s each; a request that is there wants one."""
    policy = Predicted(1.0, predictor=LastValue, lead=10.0)
    assert policy.wanted(None, signals(rate=4.2), 10.0) == {"replicas": 5}
    assert policy.wanted(None, signals(rate=0.0), 20.0) == {"replicas": 0}
    assert policy.wanted(None, signals(rate=0.0, outstanding=1), 30.0) == {"replicas": 1}


def test_questions_at_equal_intervals_by_hand():
    """Four requests of 20 s each at 0 s; asked at 5, 10, ... s only: two wait at 5 s, which is one replica more."""
    scale = {"name": "queue_kv", "max": 2, "waiting": 2, "every": "5 s", "stabilization": "0 s"}
    service = {"scale": scale, "max_num_seqs": 1, "model": "1 GB", "step": {"fixed": "1 s"}}
    record = requests([0.0, 0.0, 0.0, 0.0], [1] * 4, [20] * 4, service, gpus=2)
    assert record.start.tolist() == [0.0, 20.0, 40.0, 60.0]  # all were sent to the first before
    record = requests([0.0, 0.0, 0.0, 0.0, 7.0], [1] * 5, [20] * 5, service, gpus=2)
    assert record.place.tolist() == [1, 1, 1, 1, 2] and record.start[4] == 7.0


def test_a_reading_comes_before_all_else_of_its_instant():
    """Read at 1 s: the first one's, before the second arrives then.  Read at 2 s: one that ends then is still there."""
    routing = {"name": "least_outstanding", "refresh": "1 s"}
    service = {"replicas": 2, "max_num_seqs": 1, "step": {"fixed": "1 s"}, "routing": routing}
    assert requests([0.0, 1.0], [1, 1], [5, 5], service, gpus=2).place.tolist() == [1, 2]
    assert requests([0.0, 2.5], [1, 1], [2, 1], service, gpus=2).place.tolist() == [1, 2]


def test_the_longest_idle_replica_leaves_first():
    """The second, loaded at 2.5 s, serves the request of 3 s until 11 s, the first the other two until 5 s: it leaves
    at 15 s, and at 16 s only the second is there."""
    scale = {"name": "keep_alive", "min": 0, "max": 2, "keep": "10 s", "target": 1}
    service = {"scale": scale, "model": "1 GB", "max_num_seqs": 1, "step": {"fixed": "1 s"}}
    record = requests([0.0, 1.5, 3.0, 16.0], [1] * 4, [3, 1, 8, 1], service, gpus=2)
    assert record.place.tolist() == [1, 1, 2, 2] and record.start.tolist() == [1.0, 4.0, 3.0, 16.0]


class Watches(Scaling):
    def __init__(self):
        self.seen = []

    def wanted(self, service, signals, now):
        self.seen.append((now, signals.arrival_rate, signals.ttft, signals.tpot))
        return {"replicas": 0}


def test_counters_of_the_last_window_by_hand(monkeypatch):
    """One after the other: first tokens 1 s and 3 s after the arrivals at 1 s and 2 s, and 1 s after that at 12 s."""
    monkeypatch.setitem(registry._registered, "scale", {"watches": Watches})
    service = {"scale": {"name": "watches", "max": 1, "every": "10 s"}, "max_num_seqs": 1, "step": {"fixed": "1 s"}}
    run = load(scenario(service, {"arrivals": {"process": "all_at_once", "count": 3}}, horizon="31 s")).build()
    run.tasks.arrival = np.array([1.0, 2.0, 12.0])
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.ones(3, int), np.full(3, 3)
    Simulation(run, check=True).run()
    expected = [(10.0, 0.2, 2.0, 1.0), (20.0, 0.1, 1.0, 1.0), (30.0, 0.0, math.nan, math.nan)]
    assert run.iteration[0][2].seen == [pytest.approx(one, nan_ok=True) for one in expected]


def test_questions_alone_do_not_keep_a_run_alive(monkeypatch):
    monkeypatch.setitem(registry._registered, "scale", {"watches": Watches})
    service = {"scale": {"name": "watches", "min": 0, "max": 1, "every": "10 s"}, "model": "1 GB"}
    with pytest.raises(RunError, match="1 requests wait for replicas, and no event is left"):
        requests([1.0], [1], [1], service)


def test_both_roles_scale_to_zero_and_back():
    """One replica of each role at 0 s; both leave 5 s after they have fallen idle and come back with the request of
    100 s, which reads its prompt 1 s and decodes when a replica for that has loaded for another second."""
    scale = {"name": "keep_alive", "min": 0, "max": 2, "keep": "5 s"}
    apart = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "1 B"}, "step": {"fixed": "1 s"}}
    record = requests([0.0, 100.0], [1, 1], [3, 3], {**apart, "scale": scale, "model": "1 GB"}, gpus=2)
    assert (record.status == COMPLETED).all() and audit(record) == []
    assert record.start.tolist() == [0.0, 101.0] and record.first_token.tolist() == pytest.approx([1.0, 102.0])
    assert record.finish.tolist() == pytest.approx([3.0, 105.0], abs=1e-6)
    assert np.isfinite(record.launches["upload_start"]).sum() == 2 and record.cold_start.tolist() == [0, 1]


def test_one_role_alone_scales():
    scale = {"name": "target_requests", "roles": "decode", "max": 3, "target": 1}
    apart = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "1 B"}, "step": {"fixed": "1 s"}}
    record = requests([0.0, 2.0, 4.0], [1] * 3, [40] * 3, {**apart, "scale": scale, "model": "1 GB"}, gpus=4)
    assert (record.status == COMPLETED).all() and len(set(record.place.tolist())) > 1 and audit(record) == []


OWN = {"predicted": {"rate": 2, "every": "3 s"}, "queue_kv": {"every": "3 s"}, "target_requests": {"target": 3}}


@pytest.mark.parametrize("name", CATALOGUE["scale"])
def test_every_scaling_policy_serves_all_requests(name):
    rng = np.random.default_rng(3)
    arrivals = [*np.sort(rng.uniform(0, 60, 80)), *np.sort(rng.uniform(300, 320, 60))]
    scale = {"name": name, "min": 0, "max": 3, **OWN.get(name, {})}
    record = requests(arrivals, [50] * 140, rng.geometric(1 / 30, 140), {"scale": scale, "model": "1 GB"}, gpus=3)
    assert (record.status == COMPLETED).all() and audit(record) == []
    assert np.isfinite(record.launches["upload_start"]).sum() >= 1


class ByType(Scaling):
    """A policy of one's own: one replica more on the second type while anything waits."""

    def wanted(self, service, signals, now):
        return {"a": 1, "b": np.int64(min(1, signals.roles["replicas"].outstanding // 3))}


class Wrong(Scaling):
    answer: object = None

    def wanted(self, service, signals, now):
        return self.answer


def test_a_policy_of_ones_own_by_type(monkeypatch):
    monkeypatch.setitem(registry._registered, "scale", {"by_type": ByType, "wrong": Wrong})
    nodes = [{"gpus": {"type": name, "count": 2, "pcie": {"upload": "1 GB/s"}}} for name in "ab"]
    service = {"scale": {"name": "by_type", "max": 2}, "device": "a", "model": "1 GB", "max_num_seqs": 1,
               "also_on": [{"device": "b", "step": {"fixed": "1 s"}}], "step": {"fixed": "1 s"}}  # fmt: skip
    record = requests([0.0, 0.0, 0.0, 5.0], [1] * 4, [9] * 4, service, nodes=nodes)
    assert record.mode.tolist() == [0, 0, 0, 1]  # the last one goes to the replica on b, loaded at 1 s
    for answer, said in (({"c": 1}, "some of replicas, a, b"), ({"a": -1}, "numbers of replicas"), ([1], "got"),
                         ({"a": 3, "b": 0}, "from 1 to 2")):  # fmt: skip
        Wrong.answer = answer
        with pytest.raises(PolicyError, match=said):
            requests([0.0], [1], [1], service | {"scale": {"name": "wrong", "max": 2}}, nodes=nodes)


APART = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "1 B"}}


@pytest.mark.parametrize(("service", "said"), [
    ({"timeout": "5 s"}, "timeout: timeout is now a key of the entry's clients: clients: {timeout: 5 min, at_timeout:"),
    ({"autoscale": {"max": 2, "target": 1}}, "autoscale: autoscale is now a policy: scale: {name: target_requests"),
    ({"scale": {"name": "keep_alive", "min": 3, "max": 2}}, "scale.max: max must be at least min (3); got 2"),
    ({"scale": {"name": "keep_alive", "max": 2, "kep": "1 s"}}, 'scale.kep: scale "keep_alive" has no parameter "kep"'),
    ({"scale": {"name": "keep", "max": 2}}, 'scale.name: unknown scale "keep"'),
    ({"scale": {"name": "queue_kv", "max": 2, "every": "0 s"}}, "scale.every: "),
    ({"scale": {"name": "predicted", "max": 2, "rate": 1}}, "scale: predicted measures at intervals"),
    ({"scale": {"name": "queue_kv", "max": 2, "roles": "decode"}}, "scale.roles: roles are for disaggregated"),
    (APART | {"scale": {"name": "queue_kv", "min": 0, "max": 2, "roles": "decode"}},
     "scale.min: min must be at least 1, as the 1 replicas for prefill need replicas of the other"),
    (APART | {"scale": {"name": "queue_kv", "min": 2, "max": 2}}, "disaggregated.prefill: must be from"),
    ({"scale": {"name": "keep_alive", "max": 2}, "replicas": 2}, "replicas: scale defines the number"),
    ({"routing": {"name": "scored", "weights": {"cpu": 1}}}, "routing.weights.cpu"),
    ({"routing": {"name": "scored", "weights": {"kv": 0}}}, "routing: scored: weights are all 0"),
    ({"routing": {"name": "scored", "delay": "1 s"}}, "routing: scored: delay needs refresh here, because"),
    ({"routing": {"name": "foresight", "refresh": "1 s"}}, "routing: foresight: the forecast uses the current state"),
    ({"routing": {"name": "least_outstanding", "refresh": "-1 s"}}, "routing.refresh"),
])  # fmt: skip
def test_bad_input_with_its_place(service, said):
    with pytest.raises(ScenarioError) as error:
        load(scenario({"model": "1 MB", **service}, gpus=4)).build()
    assert said in str(error.value)


def test_bad_input_with_its_line(tmp_path):
    text = (
        "name: a\ncluster: {nodes: [{gpus: {type: g, count: 2}}]}\nworkload:\n  - name: chat\n"
        "    arrivals: {process: all_at_once, count: 1}\n    tokens: {prompt: 1, output: 1}\n    service:\n"
        "      kind: llm\n      step: {fixed: 1 ms}\n      scale: {name: keep_alive, min: 2, max: 1}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=r"a\.yaml:10:\d+: workload\.0\.service\.scale\.max: max must be at "
                                            r"least min"):
        load(tmp_path / "a.yaml")


# Routers ----------------------------------------------------------------------------------------------------------


class One:
    def __init__(self, cached, waiting, kv_used):
        self.waiting, self.kv_used, self.outstanding, self.speed = waiting, kv_used, waiting, 1.0
        self.cached = lambda request: cached


def test_scores_by_hand():
    """Prefix 0.5, 0, 0 of the prompt; queue 0, 1/2, 1; free KV 0.5, 0.9, 0.1: with 3, 2, 2 it is 2.5, 2.8, 2.2."""
    ones = OpenReplicas([One(50, 4, 0.5), One(0, 2, 0.1), One(0, 0, 0.9)])
    request = SimpleNamespace(prompt=100, row=0)
    for weights, place in ((None, 1), ({"prefix": 1.0}, 0), ({"queue": 1.0}, 2), ({"running": 1.0, "kv": 0.1}, 2)):
        assert Scored(weights).choose(request, ones, None) is ones[place]


def test_scored_sees_prefixes_of_the_last_reading():
    """All prompts begin alike.  At 1 s both replicas look empty, so the first one takes it; the prefix is there from
    the reading at 10 s on, after which all go there, whatever waits."""
    routing = {"name": "scored", "weights": {"prefix": 3, "queue": 2}, "refresh": "10 s"}
    service = {"replicas": 2, "prefix_cache": True, "kv": {"tokens": 8192}, "routing": routing, "max_num_seqs": 1}
    run = load(scenario(service, {"arrivals": {"process": "all_at_once", "count": 4}}, gpus=2)).build()
    run.tasks.arrival = np.array([1.0, 2.0, 11.0, 11.5])
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.full(4, 600), np.full(4, 2)
    run.tasks.hash_ids = Ragged.from_rows([(7,)] * 4)
    record = Simulation(run, check=True).run()
    assert record.place.tolist() == [1] * 4 and record.cached_tokens.tolist()[2:] == [512, 512]


def test_foresight_routes_to_the_earlier_answer():
    """A long answer and a short one are there; two requests are on each replica, and only a forecast tells."""
    service = {"replicas": 2, "max_num_seqs": 1, "step": {"fixed": "1 s"}, "routing": "foresight"}
    record = requests([0.0, 0.0, 1.0, 1.5], [1] * 4, [90, 3, 3, 3], service, gpus=2)
    assert record.place.tolist() == [1, 2, 2, 2] and record.start.tolist() == pytest.approx([0.0, 0.0, 3.0, 6.0])


class Looks(LeastOutstanding):
    """The shortest queue, which looks at a forecast of the true replica too."""

    def choose(self, request, replicas, random):
        assert all(one.replica.foresee(request).ends[request.row] > one.replica.now for one in replicas)
        return super().choose(request, replicas, random)


def test_a_forecast_leaves_old_signals_alone(monkeypatch):
    rng = np.random.default_rng(2)
    arrivals, tokens = np.cumsum(rng.exponential(0.5, 40)), rng.geometric(0.1, 40)
    monkeypatch.setitem(registry._registered, "routing", {"looks": Looks})
    places = []
    for name in ("least_outstanding", "looks"):
        service = {"replicas": 2, "max_num_seqs": 1, "routing": {"name": name, "delay": "0.4 s"}}
        record = requests(arrivals, [1] * 40, tokens, service | {"step": {"fixed": "0.1 s"}}, gpus=2)
        places.append(record.place.tolist())
    assert places[0] == places[1] and len(set(places[0])) == 2


# Classes and metrics ----------------------------------------------------------------------------------------------


def test_classes_have_limits_and_priorities_of_their_own():
    """Each request takes 3 steps of 1 s; the second one comes first, by its priority, and waits 0 s, the first 3 s: of
    1 s to the first token and of 2 s, the service's, one is kept; of 5 s both."""
    classes = [{"class": "now", "weight": 1, "ttft": "LIMIT", "priority": 1}, {"class": "later", "weight": 1}]
    for limit, kept in (("0.9 s", 0), ("1 s", 1), ("5 s", 1)):
        classes[0]["ttft"] = limit
        service = {"max_num_seqs": 1, "step": {"fixed": "1 s"}, "slo": {"ttft": "2 s"}}
        entry = {"classes": classes, "arrivals": {"process": "all_at_once", "count": 40}}
        entry |= {"tokens": {"prompt": 1, "output": 3}}
        result = hs.run(scenario(service, entry, policy={"batching": {"name": "continuous", "order": "priority"}}))
        tasks = result.tasks
        now = tasks["class"] == "now"
        assert tasks["start"][now].max() < tasks["start"][~now].min() and not tasks["met_deadline"][~now].any()
        assert tasks["met_deadline"][now].sum() == (kept if limit != "5 s" else 2)


@pytest.mark.parametrize(("entry", "service"), [({"ttft": "1 s"}, {"compute": {"fixed": "1 s"}, "max_batch": 1})])
def test_limits_of_classes_are_those_of_language_models(entry, service):
    data = scenario({}, {"arrivals": {"process": "all_at_once", "count": 1}, **entry})
    data["workload"][0]["service"] = service
    del data["workload"][0]["tokens"]
    with pytest.raises(ScenarioError, match="ttft: limits of classes are for requests to a language model"):
        load(data)


def test_cold_starts_and_the_cost_of_idle_gpus_by_hand():
    """As in the path by hand above: the requests of 0, 26 and 41.5 s start a replica, three of six.  The GPU is held
    from 0 to 25 s, 26 to 41 s and 41.5 to 46.5 s, 45 s, and computes for no time: at 1 a second that is 45."""
    service = {"scale": {"name": "keep_alive", "min": 0, "max": 1, "keep": "10 s"}, "model": "5 GB",
               "step": {"fixed": f"{MOMENT} s"}}  # fmt: skip
    data = scenario(service, {"tokens": {"prompt": 1, "output": 1}, "arrivals": {"process": "all_at_once", "count": 6}})
    data["cluster"]["prices"] = {"g": "1/s"}
    run = load(data).build()
    run.tasks.arrival = np.array([0.0, 3.0, 4.5, 15.0, 26.0, 41.5])
    result = Result(Simulation(run, check=True).run())
    assert result.metric("cold_start_fraction") == 0.5
    assert result.metric("cost_held_idle") == pytest.approx(45)


def test_a_fork_in_mid_flight_ends_with_the_same_bytes():
    """Scaling policies, readings of signals that are on their way and questions to come are copied, too."""
    for name, routing in (("queue_kv", {"refresh": "0.7 s", "delay": "0.2 s"}), ("keep_alive", {"delay": "0.4 s"})):
        scale = {"name": name, "min": 0, "max": 3, **OWN.get(name, {"keep": "2 s", "target": 2})}
        service = {"model": "1 GB", "scale": scale, "routing": {"name": "least_outstanding", **routing}}
        entry = {"arrivals": {"process": "poisson", "rate": "2/s"}, "count": 60}
        build = load(scenario(service, entry, gpus=3, horizon="1 min")).build
        whole, run = fingerprint(Simulation(build()).run()), Simulation(build())
        clock = run.state.clock
        for at in (3.0, 8.0, 14.1):
            clock.end, end = at, clock.end
            while run.advance():
                pass
            clock.end = end
            assert fingerprint(run.fork().run()) == whole
        assert fingerprint(run.run()) == whole


def test_a_service_without_initial_replicas_is_no_overload():
    scale = {"name": "keep_alive", "keep": "1 s", "min": 0, "max": 1}
    service = {"kind": "llm", "scale": scale, "model": "1 GB", "step": {"fixed": "1 us"}}
    entry = {"arrivals": {"process": "poisson", "rate": "1/s"}, "count": 20, "tokens": {"prompt": 1, "output": 1}}
    cluster = {"nodes": [{"gpus": {"type": "gpu", "count": 1, "memory": "8 GB"}, "pcie": {"upload": "1 GB/s"}}]}
    result = hs.run({"name": "x", "cluster": cluster, "workload": [entry | {"service": service}], "policy": "fcfs"})
    assert not [text for text in result.warnings if "grows without bound" in text]


# Models of several services on the same GPUs ----------------------------------------------------------------------


class Largest(hs.policy.Eviction):
    """The largest model gives way."""

    def victim(self, kept, now):
        return max(kept, key=lambda one: one.size)


class NoModel(hs.policy.Eviction):
    """Nothing that is there gives way."""

    def victim(self, kept, now):
        return hs.policy.KeptModel("another", 1, now, now)


def shared(gpus, policy="fcfs", **entries):
    """Services of requests of 1 s by name: gigabytes over 1 GB/s, arrivals, and what else their scaling says."""
    workload = []
    for name, (size, first, more) in entries.items():
        scale = {"name": "keep_alive", "min": 0, "max": 1, **({} if "name" in more else {"keep": "1000 s"}), **more}
        service = {"kind": "llm", "device": "g", "model": f"{size} GB", "step": {"fixed": "1 s"}, "scale": scale}
        arrivals = {"process": "piecewise_poisson", "rate": [["0 s", "1/s"]]}
        workload.append({"name": name, "tokens": {"prompt": 1, "output": 1}, "service": service, "count": len(first),
                         "arrivals": arrivals})  # fmt: skip
    cluster = {"nodes": {"gpus": {"type": "g", "count": gpus}, "pcie": {"upload": "1 GB/s"}}}
    run = load({"name": "s", "cluster": cluster, "workload": workload, "policy": policy, "horizon": "200 s"}).build()
    run.tasks.arrival = np.sort([at for _, first, _ in entries.values() for at in first]).astype(float)
    of = {at: number for number, (_, first, _) in enumerate(entries.values()) for at in first}
    order = [of[at] for at in run.tasks.arrival]
    run.tasks.shape = np.array([run.language[number].shape.index for number in order], run.tasks.shape.dtype)
    run.tasks.class_code = np.array(order, run.tasks.class_code.dtype)
    for number, service in enumerate(run.language):
        object.__setattr__(service, "rows", np.flatnonzero(np.array(order) == number))
    return Result(Simulation(run, check=True).run())


def test_an_idle_replica_gives_way_to_another_service():
    """`a` loads for 5 s and serves until 6 s; `b`, which waits since 1 s, gets the GPU then, loads for 3 s and serves
    from 9 to 10 s; its second request finds it.  Both stay for 1000 idle seconds if no request needs the GPU."""
    result = shared(1, a=(5, [0], {}), b=(3, [1, 20], {}))
    assert result.tasks["start"].tolist() == [5.0, 9.0, 20.0]
    assert result.launches["end"].tolist() == [6.0, 10.0, 21.0, 200.0]
    assert result.metric("cold_start_fraction") == pytest.approx(2 / 3)
    assert result.by("class")["cold_start_fraction"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(("eviction", "starts"), [("lru", [65.0, 87.0]), ("largest", [60.0, 87.0])])
def test_the_policy_says_which_idle_replica_gives_way(eviction, starts):
    """Two GPUs: `a` is idle from 6 s, `b` from 14 s; at 40 s `c` comes.  By lru `a` gives way, at 60 s `b` to it, and
    at 80 s `c` to that; by size first `b`, of 7 GB, which at 80 s comes back in place of `a`, of 5 GB."""
    hs.register("largest", Largest, "eviction")
    entries = {"a": (5, [0, 60], {}), "b": (7, [6, 80], {}), "c": (2, [40], {})}
    result = shared(2, {"eviction": eviction}, **entries)
    assert result.tasks["start"].tolist() == [5.0, 13.0, 42.0, *starts]


def test_replicas_that_have_to_stay_and_wrong_answers():
    """`min: 1` of `a` keeps its replica: `b` waits for ever; an eviction that names nothing of them is an error."""
    assert np.isnan(shared(1, a=(5, [0], {"min": 1}), b=(3, [1], {})).tasks["start"][1])
    hs.register("no_model", NoModel, "eviction")
    with pytest.raises(PolicyError, match="evicts .*another.*not an idle replica there"):
        shared(1, {"eviction": "no_model"}, a=(5, [0], {}), b=(3, [20], {}))


def test_a_replica_that_served_nothing_yet_stays():
    """Three GPUs, loads of 2 s; both services want two replicas.  That of `a`, ready at 2.2 s, is not evicted for `b`,
    whose requests have a replica; it serves the request of 2.5 s at once.  Else each would evict the other's anew."""
    more = {"max": 2, "target": 1}
    result = shared(3, a=(2, [0, 0.2, 2.5], more), b=(2, [0.1, 0.3], more))
    assert result.tasks["start"].tolist() == [2.0, 2.1, 2.0, 2.1, 2.5]


def test_an_eviction_begins_no_cooldown():
    """`a` starts a replica at 0 s, which `b` evicts at 5 s; it starts another one at 10 s and not at 50 s."""
    scale = {"name": "target_requests", "target": 1, "cooldown": "50 s"}
    assert shared(1, a=(2, [0, 10], scale), b=(2, [5], {})).tasks["start"].tolist() == [2.0, 7.0, 12.0]


def pooled(gpus, *entries):
    """Tasks of a run on GPUs that load 1 GB/s; each entry has one task, at 0 s."""
    workload = [{"arrivals": {"process": "all_at_once", "count": 1}, **entry} for entry in entries]
    cluster = {"nodes": {"gpus": {"type": "g", "count": gpus}, "pcie": {"upload": "1 GB/s"}}}
    return hs.run({"name": "p", "cluster": cluster, "workload": workload, "policy": "fcfs", "horizon": "90 s"}).tasks


def served(name, **more):
    service = {"kind": "llm", "device": "g", "model": "2 GB", "step": {"fixed": "1 s"}, "kv": {"per_token": "1 B"},
               "scale": {"name": "keep_alive", "min": 0, "max": 1}} | more  # fmt: skip
    return {"name": name, "tokens": {"prompt": 1, "output": 1}, "service": service}


def test_what_an_eviction_leaves_is_for_tasks():
    """`a` loads 1 GB on each of two GPUs until 1 s and ends at 2 s; `b` takes one of them, the job the other one."""
    tasks = pooled(2, served("a", gpus=2), served("b"), {"name": "job", "gpu_time": "5 s"})
    assert tasks["start"].tolist() == [1.0, 4.0, 2.0]


def test_a_replica_that_is_idle_from_the_beginning_gives_way():
    """`a` begins with two decode replicas, one above the minimum, and has no request before 60 s."""
    scale = {"name": "queue_kv", "min": 1, "max": 2}
    arrivals = {"process": "piecewise_poisson", "rate": [["0 s", "0/s"], ["60 s", "1/s"]]}
    apart = served("a", disaggregated={"prefill": 1, "decode": 2}, scale=scale) | {"arrivals": arrivals, "count": 1}
    assert pooled(3, apart, served("b"))["start"][0] == 2.0


def test_a_run_before_version_7_has_no_share_of_cold_starts(tmp_path, monkeypatch):
    """Its record does not tell which requests started a replica: the share is unknown, and not 0."""
    service = {"kind": "llm", "step": {"fixed": "1 s"}, "scale": {"name": "keep_alive", "min": 0, "max": 1}}
    entry = {"name": "a", "arrivals": {"process": "all_at_once", "count": 2}, "tokens": {"prompt": 1, "output": 1}}
    nodes = {"gpus": {"type": "g", "count": 1}, "pcie": {"upload": "1 GB/s"}}
    data = {"name": "s", "cluster": {"nodes": nodes}, "workload": [entry | {"service": service | {"model": "1 GB"}}]}
    folder = hs.run(data | {"policy": "fcfs"}).save(tmp_path / "run")
    assert Result.load(folder).by("class")["cold_start_fraction"].tolist() == [0.5]
    read = store.read_json
    monkeypatch.setattr(store, "read_json", lambda path: {k: v for k, v in read(path).items() if k != "occupied"})
    assert np.isnan(Result.load(folder).by("class")["cold_start_fraction"]).all()
