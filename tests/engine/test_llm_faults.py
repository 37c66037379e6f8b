"""Replicas of language models on devices that fail, slow down or run at other frequencies: by hand, and against a
replica that takes every step by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_fork import look
from test_llm import C, F, P, S, load_of, requests, scenario
from tiers import spread

from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, RunError
from hetsim.model.faults import FaultEvent, FaultProcess
from hetsim.model.record import COMPLETED, EXPIRED, LAUNCH_LOST, REJECTED
from hetsim.policy import Scheduler, Set, Wait
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit

LOADED = 2.0
"""Seconds to load the model: 2 GB over 1 GB/s."""
MODEL = {"model": "2 GB"}


def events(*what):
    """(time, device, what, factor) of GPUs of one node, in order."""
    return [FaultEvent(time, 1 + gpu, kind, *factor) for time, gpu, kind, *factor in what]


def broken(faults, arrival, prompt, output, service=None, scheduler=None, check=True, **keys):
    """The record of a run with exactly these requests and faults."""
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}}
    run = load(scenario(service, entry, **keys)).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    run = replace(run, faults=faults, **({"scheduler": scheduler} if scheduler else {}))
    record = Simulation(run, check=check).run()
    assert audit(record) == []
    return record


def decode(context, count=1):
    return sum(F + S + (context + k) * C for k in range(count))


READ = F + 100 * P


# By hand --------------------------------------------------------------------------------------------------------------


def test_a_slow_device_stretches_the_step_under_way_and_those_after_it():
    """The third token's step is half done when the device begins to take four times as long; the fifth's is, too, when
    it recovers."""
    slow = READ + decode(101) + decode(102) / 2
    sound = READ + decode(101) + decode(102) / 2 + 4 * (decode(102) / 2 + decode(103) + decode(104) / 2)
    record = broken(events((slow, 0, "slow", 4.0), (sound, 0, "slow", 1.0)), [0], [100], [6])
    assert record.finish[0] == pytest.approx(sound + decode(104) / 2 + decode(105), rel=1e-12)
    assert record.energy[0] == pytest.approx(100 * record.finish[0])


class At(Scheduler):
    """Sets the frequency of every accelerator at a time."""

    def __init__(self, time, frequency):
        self.time, self.frequency = time, frequency

    def schedule(self, view):
        if view.now < self.time:
            yield Wait(until=self.time)
        elif view.now == self.time:
            for device in view.cluster.devices[1:]:
                yield Set(device, self.frequency)


def test_at_half_the_frequency_a_step_takes_twice_as_long_and_an_eighth_of_the_power():
    """Set in the middle of reading the prompt, of one device of the two that a replica has: both wait for it."""
    record = broken([], [0], [100], [3], {"gpus": 2}, At(READ / 2, 0.5), gpus=2)
    whole = READ + decode(101, 2)
    assert record.finish[0] == pytest.approx(READ / 2 + 2 * (whole - READ / 2), rel=1e-12)
    joules = 200 * (READ / 2 + 0.5**3 * (record.finish[0] - READ / 2))
    assert record.energy[0] == pytest.approx(joules)
    assert record.launches["energy"].sum() == pytest.approx(joules)


def test_a_device_that_a_replica_holds_cannot_sleep():
    with pytest.raises(PolicyError, match="puts n0/g0 to sleep while replica 0 of chat is on it"):
        broken([], [0], [100], [3], scheduler=At(0.01, "off"))


def test_the_requests_of_a_failed_replica_go_to_another_with_the_tokens_they_have():
    """Two replicas, one request each; the first has made three tokens and is in a step when its device fails.  The
    other finishes its step, and then reads 103 tokens beside decoding its own."""
    service = {"replicas": 2, "routing": "round_robin"}
    fails = READ + decode(101, 2) + decode(103) / 2
    record = broken(events((fails, 0, "down")), [0, 0], [100, 100], [6, 30], service, gpus=2)
    boundary = READ + decode(101, 3)
    joined = boundary + F + 103 * P + S + 104 * C  # the fourth token of both
    both = sum(F + 2 * S + (104 + k + 105 + k) * C for k in range(2))
    assert record.finish[0] == pytest.approx(joined + both, rel=1e-12)
    assert record.first_token.tolist() == pytest.approx([READ, READ])
    assert record.preemptions.tolist() == [1, 0]
    assert record.launches["outcome"].tolist().count(LAUNCH_LOST) == 1
    paused = boundary - fails
    assert record.compute[0] == pytest.approx(record.finish[0] - paused)


def test_without_another_replica_requests_wait_for_one_to_load():
    """The only device fails in the second step, and is back after 5 s; then the model is loaded.  A request that has
    come meanwhile is read in the same step."""
    fails = READ + decode(101) / 2
    faults = events((fails, 0, "down"), (fails + 5, 0, "up"))
    record = broken(faults, [0, 1.0], [100, 50], [3, 1], MODEL)
    back = fails + 5 + LOADED
    assert record.finish[1] == pytest.approx(back + F + (101 + 50) * P)
    assert record.finish[0] == pytest.approx(record.finish[1] + decode(102))
    loading = record.launches["upload_end"] - record.launches["upload_start"]
    assert np.nanmax(loading) == pytest.approx(LOADED)


def test_a_device_that_fails_while_it_loads_begins_to_load_again():
    faults = events((0.005, 0, "down"), (1, 0, "up"), (2, 0, "down"), (10, 0, "up"))
    record = broken(faults, [0], [100], [1], MODEL)
    assert record.finish[0] == pytest.approx(10 + LOADED + READ)


def test_another_device_that_is_free_takes_the_place_of_the_one_that_failed():
    record = broken(events((0.005, 0, "down")), [0], [100], [1], MODEL, gpus=2)
    assert record.finish[0] == pytest.approx(0.005 + LOADED + READ)
    places = [record.places[code][0] for code in record.place.tolist()]
    assert [record.input.cluster.devices[device].name for (device,) in places] == ["n0/g1"]


@pytest.mark.parametrize("gpu", [0, 1])
def test_where_prefill_is_separate_a_failure_of_either_side_makes_a_request_be_read_anew(gpu):
    """16 tokens of 20 MB each are 0.32 s on their way; the reader or the answerer fails in the middle of that."""
    service = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "20 MB"}, "model": "1 GB"}
    fails = F + 16 * P + 0.1
    record = broken(events((fails, gpu, "down"), (fails + 1, gpu, "up")), [0], [16], [3], service, gpus=2,
                    memory="8 GB")  # fmt: skip
    assert (record.status == COMPLETED).all()
    again = F + 17 * P
    if gpu == 0:  # the answerer reads it itself
        assert record.finish[0] == pytest.approx(fails + again + F + S + 18 * C)
    else:  # the reader reads it again; by the time it has, the answerer is not there yet
        loaded = fails + 1 + 1
        assert record.finish[0] == pytest.approx(loaded + 17 * 0.02 + F + S + 18 * C)


def test_requests_for_which_no_replica_comes_back_are_named():
    with pytest.raises(RunError, match=r"2 requests to language models wait.*1 of their replicas have failed"):
        broken(events((0.005, 0, "down")), [0, 3], [100, 100], [3, 3])


# Against steps taken one by one ---------------------------------------------------------------------------------------


class Lost(Exception):
    """The replica failed; the message is the time at which it is back."""


def piecewise(faults):
    """`walk(now, seconds)`: when work of so many seconds at full speed is done; Lost where the device fails before."""
    def walk(now, seconds):
        factor = 1.0
        for number, event in enumerate(faults):
            if event.time <= now:
                factor = event.factor if event.what == "slow" else factor
                continue
            if now + seconds * factor <= event.time:
                break
            if event.what == "down":
                raise Lost(faults[number + 1].time)
            seconds -= (event.time - now) / factor
            now, factor = event.time, event.factor if event.what == "slow" else factor
        return now + seconds * factor

    return walk


def steps(faults, arrival, prompt, output, loading):
    """One replica that takes every step by itself: first tokens and ends."""
    walk, now, waiting, members = piecewise(faults), 0.0, [], []
    coming, left = list(range(len(arrival))), list(prompt)
    made, first, finish = [0] * len(arrival), [0.0] * len(arrival), [0.0] * len(arrival)
    down = [(one.time, two.time) for one, two in zip(faults, faults[1:], strict=False) if one.what == "down"]
    while coming or waiting or members:
        if not waiting and not members:
            idle, now = now, max(now, arrival[coming[0]])
            now = max([now, *(up + loading for since, up in down if idle <= since <= now)])
        while coming and arrival[coming[0]] <= now:
            waiting.append(coming.pop(0))
        members += waiting
        waiting = []
        read = [r for r in members if left[r]]
        rest = [r for r in members if not left[r]]
        seconds = F + P * sum(left[r] for r in read) + sum(S + C * (prompt[r] + made[r]) for r in rest)
        try:
            now = walk(now, seconds)
        except Lost as lost:
            now = lost.args[0] + loading
            waiting, members = sorted(members), []
            for r in waiting:
                left[r] = prompt[r] + made[r]
            continue
        for r in [*rest, *read]:
            left[r] = 0
            made[r] += 1
            first[r] = first[r] or now
            if made[r] == output[r]:
                finish[r] = now
                members.remove(r)
    return first, finish


@pytest.mark.parametrize("seed", spread(range(8), 2))
def test_jumps_over_steps_that_are_stretched_or_lost_are_those_steps(seed):
    random = np.random.default_rng(seed)
    arrival, prompt, output = load_of(random, 80, 4)
    found, now = [], 0.0
    while now < arrival[-1]:
        now += random.exponential(3.0)
        if random.random() < 0.3:
            found += [(now, 0, "down"), (now + 1.5, 0, "up")]
            now += 1.5 + LOADED
        else:
            found.append((now, 0, "slow", random.choice([1.0, 1.5, 3.0])))
    faults = events(*found)
    record = broken(faults, arrival, prompt, output, MODEL)
    first, finish = steps(faults, arrival, prompt, output, LOADED)
    assert np.allclose(record.first_token, first, rtol=1e-9)
    assert np.allclose(record.finish, finish, rtol=1e-9)
    assert record.preemptions.sum() > 0


# Everything at once ---------------------------------------------------------------------------------------------------

SERVICES = {
    "swap": {"kv": {"per_token": "1 MB"}, "preemption": "swap", "replicas": 3},
    "prefixes": {"kv": {"per_token": "1 MB"}, "max_num_batched_tokens": 64, "replicas": 3},
    "apart": {"kv": {"per_token": "1 MB"}, "disaggregated": {"prefill": 2, "decode": 2}},
    "scaled": {"scale": {"name": "target_requests", "min": 1, "max": 4, "target": 6, "cooldown": "2 s"}},
}


def stormy(name, seed):
    """Many requests to replicas on two nodes whose devices fail and slow down all the time."""
    def exponential(mean):
        return lambda random, count: random.exponential(mean, count)

    gpu = {"type": "g", "count": 3, "memory": "2.4 GB", "pcie": {"upload": "1 GB/s"}}
    entry = {"arrivals": {"process": "poisson", "rate": "8/s"}, "count": 150, "patience": "60 s",
             "tokens": {"prompt": {"distribution": "uniform", "low": 1, "high": 300},
                        "output": {"distribution": "uniform", "low": 1, "high": 200}}}  # fmt: skip
    run = load(scenario({"model": "2 GB", **SERVICES[name]}, entry, nodes=[{"count": 2, "gpus": gpu}])).build(seed)
    every = range(len(run.cluster.devices))
    gpus = [device.index for device in run.cluster.devices if device.type.kind == "gpu"]
    failing = FaultProcess("fail", every, exponential(20.0), exponential(3.0))
    slow = FaultProcess("slow", gpus, exponential(5.0), exponential(2.0), factor=2.5)
    return replace(run, faults=[failing, slow])


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(6), 1))
@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_lost_in_a_storm(name, seed):
    record = Simulation(stormy(name, seed), check=True).run()
    assert audit(record) == []
    told = record.status == COMPLETED
    assert np.isin(record.status, (COMPLETED, REJECTED, EXPIRED)).all()  # too long for the memory, or out of patience
    assert told.mean() > 0.25 and record.preemptions.sum() > 5
    assert (record.finish[told] >= record.first_token[told]).all()
    assert (record.launches["outcome"] == LAUNCH_LOST).sum() > 3


@pytest.mark.parametrize("name", SERVICES)
def test_routers_see_the_replicas_of_now_and_their_loads(name, monkeypatch):
    """Whenever a request is sent: exactly those that are loaded and stay, each with what is outstanding there."""
    plain, asked = ReplicaSet.open_to, []

    def open_to(replicas, prefilled):
        takes = plain(replicas, prefilled)
        apart = replicas.prefillers if replicas.service.prefillers and not prefilled else replicas.replicas
        assert list(takes) == [one for one in apart if one.loaded and not one.draining]
        assert takes.loads.tolist() == [(one.outstanding + 1) / one.speed for one in takes]
        asked.append(len(takes))
        return takes

    monkeypatch.setattr(ReplicaSet, "open_to", open_to)
    Simulation(stormy(name, 3)).run()
    assert len(asked) >= 150 and len(set(asked)) > 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SERVICES)
def test_a_fork_in_a_storm_ends_with_the_same_bytes(name):
    look(lambda: stormy(name, 7))


def test_requests_without_faults_are_as_they_were():
    arrival, prompt, output = load_of(np.random.default_rng(1), 60, 5)
    plain, watched = requests(arrival, prompt, output), broken([], arrival, prompt, output)
    assert plain.finish.tobytes() == watched.finish.tobytes()


def test_measured_steps_are_stretched_too():
    """A table that is the line gives the line's times, on a device that slows down and fails."""
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    tables = {
        "fixed": f"{F} s",
        "decode": {size: f"{F + S * size} s" for size in sizes},
        "prefill": {size: f"{F + P * size} s" for size in (1, 1000)},
        "per_context_token": f"{C} s",
    }
    random = np.random.default_rng(5)
    arrival, prompt, output = load_of(random, 60, 4)
    prompt = np.minimum(prompt, 900).tolist()
    faults = events((2.0, 0, "slow", 2.5), (6.0, 0, "down"), (7.0, 0, "up"), (9.0, 0, "slow", 1.0))
    service = {**MODEL, "max_num_batched_tokens": 1000}
    line = broken(faults, arrival, prompt, output, service)
    table = broken(faults, arrival, prompt, output, {**service, "step": tables})
    assert np.allclose(line.finish, table.finish, rtol=1e-9)


def test_what_has_lost_its_replica_runs_nowhere_at_the_horizon():
    """The one device fails while the second token is made, and comes up again after the end."""
    record = broken(events((READ + F / 2, 0, "down"), (12, 0, "up")), [0], [100], [6], horizon="10 s")
    assert record.launches["outcome"].tolist() == [LAUNCH_LOST]
    assert record.launches["end"].tolist() == [READ + F / 2]
    assert record.launches["busy"].sum() == pytest.approx(READ + F / 2)
