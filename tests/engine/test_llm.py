"""Language models: replicas against hand-computed runs and against a replica that takes every step by itself."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from llm_oracle import C, F, P, S, step_by_step
from tiers import spread

import hetsim as hs
from benchmarks import language
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.ragged import Ragged
from hetsim.model.record import COMPLETED, EXPIRED, REJECTED
from hetsim.policy import BatchStep, IterationPolicy, OpenReplicas
from hetsim.results.one_run.usage_metrics import littles_law
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit

STEP = {"fixed": "10 ms", "per_sequence": "1 ms", "per_prompt_token": "0.1 ms", "per_context_token": "0.01 ms"}

SCALE = {"name": "target_requests", "min": 1}


def scenario(service=None, entry=None, gpus=1, memory=None, nodes=None, **more):
    """One replica of a small model, requests of fixed length unless the entry says otherwise."""
    gpu = {"type": "g", "count": gpus, "power": {"idle": "50 W", "busy": "150 W"}, "pcie": {"upload": "1 GB/s"}}
    if memory is not None:
        gpu["memory"] = memory
    workload = {
        "name": "chat",
        "service": {"kind": "llm", "step": STEP, **(service or {})},
        "tokens": {"prompt": 100, "output": 4},
        "arrivals": {"process": "all_at_once", "count": 1},
        **(entry or {}),
    }
    return {"name": "llm", "cluster": {"nodes": nodes or [{"gpus": gpu}]}, "workload": [workload], **more}


def run(*arguments, check=True, **keys):
    return hs.run(scenario(*arguments, **keys), check=check)


def requests(arrival, prompt, output, service=None, check=True, **keys):
    """The record of a run with exactly these requests."""
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}}
    run = load(scenario(service, {**entry, **keys.pop("entry", {})}, **keys)).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"] = np.array(prompt)
    run.tasks.extra["output_tokens"] = np.array(output)
    return Simulation(run, check=check).run()


# By hand --------------------------------------------------------------------------------------------------------


def test_one_request_alone():
    """100 prompt tokens in one step give the first token; the other three see contexts of 101, 102 and 103."""
    result = run()
    task = result.tasks.iloc[0]
    assert task["ttft"] == pytest.approx(F + 100 * P)
    further = 3 * (F + S) + (101 + 102 + 103) * C
    assert task["finish"] == pytest.approx(F + 100 * P + further)
    assert task["tpot"] == pytest.approx(further / 3)
    assert task["slowdown"] == pytest.approx(1)
    assert (task["prompt_tokens"], task["output_tokens"]) == (100, 4)
    assert result.metric("output_rate") == pytest.approx(4 / task["finish"])
    assert result.metric("ttft_p99") == pytest.approx(task["ttft"])
    row = result.launches.iloc[0]
    assert (row["members"], row["compute_start"], row["compute_end"]) == (1, 0, pytest.approx(task["finish"]))
    assert task["energy_j"] == pytest.approx(100 * task["finish"]) == result.metric("energy_tasks_j")


def test_chunks_read_the_prompt_over_several_steps():
    """100 tokens in chunks of 40: three steps, 30 ms fixed."""
    task = run({"max_num_batched_tokens": 40}).tasks.iloc[0]
    assert task["ttft"] == pytest.approx(3 * F + 100 * P)
    assert task["slowdown"] == pytest.approx(1)


def test_a_request_that_comes_in_mid_step_joins_at_the_boundary():
    """A prefill of 20 ms, then a step of 12.01 ms; whoever comes within it joins at its end, and is read in one step
    with the first one's next token."""
    record = requests([0, 0.025], [100, 100], [10, 10])
    boundary = (F + 100 * P) + (F + S + 101 * C)
    assert record.start[1] == pytest.approx(boundary)
    assert record.first_token[1] == pytest.approx(boundary + F + 100 * P + S + 102 * C)


# The same step by step ------------------------------------------------------------------------------------------


def load_of(rng, count, rate, prompt=200, output=60):
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    tokens = [np.maximum(1, rng.geometric(1 / mean, count)) for mean in (prompt, output)]
    return arrival.tolist(), tokens[0].tolist(), tokens[1].tolist()


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(4), 1))
@pytest.mark.parametrize("phases", ["mixed", "prefill_first"])
@pytest.mark.parametrize(
    ("budget", "most", "blocks"), [(None, 256, None), (64, 8, None), (64, 64, 150), (None, 20, 120)]
)
def test_jumping_over_steps_is_taking_each(seed, phases, budget, most, blocks):
    rng = np.random.default_rng(seed)
    arrival, prompt, output = load_of(rng, 150, 6)
    if blocks is not None:
        prompt, output = np.minimum(prompt, 1200).tolist(), np.minimum(output, 300).tolist()
    service = {"max_num_seqs": most, "batching": {"name": "continuous", "phases": phases}}
    if budget is not None:
        service["max_num_batched_tokens"] = budget
    if blocks is not None:
        service["kv"] = {"per_token": "1 kB"}
    memory = None if blocks is None else f"{blocks * 16} kB"
    record = requests(arrival, prompt, output, service, memory=memory)
    extra = {} if blocks is None else {"blocks": blocks}
    known = step_by_step(arrival, prompt, output, budget=budget, most=most, phases=phases, **extra)
    assert np.allclose(record.first_token, known.first, rtol=1e-9)
    assert np.allclose(record.finish, known.finish, rtol=1e-9)
    if blocks is not None:
        assert record.preemptions.tolist() == known.stops
        assert sum(known.stops) > 0
    else:
        assert record.preemptions is None


def test_prompts_may_be_read_only_when_all_answers_have_ended():
    """decode_first: the second waits for the first one's last token."""
    record = requests([0, 0.021], [100, 100], [6, 2], {"batching": {"name": "continuous", "phases": "decode_first"}})
    assert record.start[1] == record.finish[0]


def test_one_sequence_at_a_time_is_a_queue_with_one_server():
    """max_num_seqs: 1 is first come, first served, with the time alone as service time (Lindley's recursion)."""
    rng = np.random.default_rng(7)
    arrival, prompt, output = load_of(rng, 400, 1.2)
    record = requests(arrival, prompt, output, {"max_num_seqs": 1, "max_num_batched_tokens": 128})
    end = 0.0
    for at, p, o, finish in zip(arrival, prompt, output, record.finish, strict=True):
        contexts = sum(p + k for k in range(1, o))
        alone = F * (math.ceil(p / 128) + o - 1) + P * p + S * (o - 1) + C * contexts
        end = max(at, end) + alone
        assert finish == pytest.approx(end)


@pytest.mark.slow
def test_the_mean_wait_is_pollaczeks_and_khinchines():
    """M/G/1 by max_num_seqs: 1 at 60 % load: the interval of 40 replications covers the exact mean wait."""
    tokens = {"prompt": 100, "output": {"distribution": "uniform", "low": 0.5, "high": 20.5}}
    times = np.array([F + 100 * P + (o - 1) * (F + S) + C * sum(100 + k for k in range(1, o)) for o in range(1, 21)])
    rate = 0.6 / times.mean()
    exact = rate * (times**2).mean() / (2 * (1 - 0.6))
    entry = {"arrivals": {"process": "poisson", "rate": f"{rate}/s"}, "tokens": tokens, "count": 1500}
    found = hs.replicate(scenario({"max_num_seqs": 1}, entry, replications=40)).summary.loc["wait_mean"]
    assert found["ci_low"] - (found["ci_high"] - found["mean"]) < exact < found["ci_high"] * 1.05
    assert found["mean"] == pytest.approx(exact, rel=0.08)


# Memory ---------------------------------------------------------------------------------------------------------

TIGHT = {"kv": {"per_token": "1 MB"}}
"""A KV block is 16 MB; copying it over 1 GB/s takes 16 ms."""


def test_who_came_last_gives_way_and_is_computed_again():
    """Three blocks: two prompts of 16 tokens take one each and their next tokens would need two more, so the second
    gives way; it is read again, with the token it had, when the first has ended."""
    record = requests([0, 0], [16, 16], [3, 3], TIGHT, memory="48 MB")
    prefill = F + 32 * P
    first = prefill + 2 * (F + S) + (17 + 18) * C
    assert record.finish[0] == pytest.approx(first)
    assert record.preemptions.tolist() == [0, 1]
    again = first + F + 17 * P  # gives its second token
    assert record.finish[1] == pytest.approx(again + F + S + 18 * C)
    assert record.first_token.tolist() == pytest.approx([prefill, prefill])


def test_who_came_last_is_copied_to_the_host_and_back():
    """The same with swap: one block out before the first one's step, one block in before its own."""
    record = requests([0, 0], [16, 16], [3, 3], {**TIGHT, "preemption": "swap"}, memory="48 MB")
    first = F + 32 * P + 0.016 + 2 * (F + S) + (17 + 18) * C
    assert record.finish[0] == pytest.approx(first)
    assert record.finish[1] == pytest.approx(first + 0.016 + 2 * (F + S) + (17 + 18) * C)
    busy = record.launches["busy"].sum()
    assert busy == pytest.approx(record.finish[1] - 2 * 0.016)  # while it copies it does not compute


@pytest.mark.quick(2)
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("order", ["fcfs", "shortest_prompt", "priority"])
def test_under_memory_pressure_everything_finishes(preemption, order):
    arrival, prompt, output = load_of(np.random.default_rng(3), 200, 40, 80, 60)
    output = np.minimum(output, 200).tolist()
    prompt = np.minimum(prompt, 500).tolist()
    batching = {"name": "continuous", "order": order}
    service = {**TIGHT, "preemption": preemption, "max_num_batched_tokens": 100, "batching": batching}
    record = requests(arrival, prompt, output, service, memory="800 MB")
    assert (record.status == COMPLETED).all()
    assert record.preemptions.sum() > 10
    assert (record.finish >= record.first_token).all()


def test_a_request_beyond_all_memory_is_rejected():
    record = requests([0, 0], [100, 10], [10, 2], TIGHT, memory="64 MB")
    assert record.status.tolist() == [REJECTED, COMPLETED]
    assert "needs 7 KV blocks, a replica has 4" in record.reasons[0]


def test_seven_gpus_hold_what_one_does_not():
    nodes = [{"gpus": {"type": "g", "count": 8, "memory": "10 GB"}}]
    service = {"gpus": 4, "model": "30 GB", "kv": {"per_token": "1 MB"}, "replicas": 2}
    result = run(service, nodes=nodes)
    assert result.record.input.language[0].kinds[0].blocks == 10_000 // 16
    assert result.tasks["device"].astype(str).tolist() == ["n0/g0+n0/g1+n0/g2+n0/g3"]
    assert result.metric("gpu_allocation") == 1
    assert result.metric("gpu_utilization") == pytest.approx(0.5)


# Prefixes -------------------------------------------------------------------------------------------------------


def with_prefixes(arrival, prompt, output, names, blocks, **service):
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}}
    kv = {"kv": {"per_token": "1 MB"}, "prefix_cache": {"tokens": 32}, **service}
    run = load(scenario(kv, entry, memory=f"{16 * blocks} MB")).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    run.tasks.hash_ids = Ragged.from_rows(names)
    return Simulation(run, check=True).run()


def test_a_prefix_that_is_here_is_not_read_again():
    """64 of the second prompt's 100 tokens have names that the first one left."""
    record = with_prefixes([0, 1], [100, 100], [2, 2], [(1, 2, 3), (1, 2, 9)], 100)
    first = record.first_token - record.input.tasks.arrival
    assert first[0] == pytest.approx(F + 100 * P)
    assert first[1] == pytest.approx(F + 36 * P)


def test_a_whole_prompt_that_is_here_costs_one_token():
    record = with_prefixes([0, 1], [64, 64], [2, 2], [(1, 2), (1, 2)], 100)
    assert (record.first_token - record.input.tasks.arrival)[1] == pytest.approx(F + P)


def test_the_least_recent_prefix_is_evicted():
    """Eight blocks, four a prompt: the third evicts the first's, the second's is still there."""
    names = [(1, 2), (3, 4), (5, 6), (3, 4), (1, 2)]
    record = with_prefixes(range(5), [64] * 5, [1] * 5, names, 8)
    first = record.first_token - record.input.tasks.arrival
    assert first == pytest.approx([F + 64 * P] * 3 + [F + P] + [F + 64 * P])


@pytest.mark.slow
def test_prefixes_under_memory_pressure():
    rng = np.random.default_rng(5)
    arrival, prompt, output = load_of(rng, 300, 30, 150, 40)
    prompt, output = np.minimum(prompt, 600).tolist(), np.minimum(output, 150).tolist()
    names = [tuple(1000 * g + k for k in range(20)) for g in rng.integers(0, 12, 300).tolist()]
    for preemption in ("recompute", "swap"):
        record = with_prefixes(arrival, prompt, output, names, 60, preemption=preemption, max_num_batched_tokens=128)
        assert (record.status == COMPLETED).all()
        assert record.preemptions.sum() > 0


# Replicas -------------------------------------------------------------------------------------------------------


ROUTERS = ("round_robin", "least_outstanding", "power_of_two", "prefix_affinity", "scored", "foresight")


@pytest.mark.parametrize("routing", ROUTERS)
def test_every_router_serves_everybody(routing):
    rng = np.random.default_rng(2)
    count, each = (200, 30) if routing != "foresight" else (30, 3)  # each of its choices is three forecasts
    arrival, prompt, output = load_of(rng, count, 30)
    service = {"replicas": 3, "routing": routing, "max_num_batched_tokens": 128}
    record = requests(arrival, prompt, output, service, gpus=3)
    assert (record.status == COMPLETED).all()
    served = np.bincount(record.place, minlength=4)
    assert (served[record.place] > each).all()
    again = requests(arrival, prompt, output, service, gpus=3, check=False)
    assert again.finish.tobytes() == record.finish.tobytes()


def test_routers_choose():
    class One:
        def __init__(self, number, outstanding, cached=0, speed=1.0):
            self.number, self.outstanding, self._cached, self.speed = number, outstanding, cached, speed

        def cached(self, request):
            return self._cached

    def choose(name, ones, rounds=1):
        policy = registry.policy("routing", name)()
        random = np.random.default_rng(0)
        return [policy.choose(None, OpenReplicas(ones), random).number for _ in range(rounds)]

    ones = [One(0, 5), One(1, 2, 512), One(4, 2)]
    assert choose("round_robin", ones, 4) == [0, 1, 4, 0]
    assert choose("least_outstanding", ones) == [1]
    assert choose("prefix_affinity", [One(0, 1), One(1, 8, 64), One(2, 9, 512)]) == [1]
    assert 0 not in choose("power_of_two", ones, 50)
    assert set(choose("power_of_two", ones, 50)) == {1, 4}
    unlike = [One(0, 2, speed=100.0), One(1, 5, speed=300.0)]  # 3/100 and 6/300 s a token
    assert choose("least_outstanding", unlike) == [1] == choose("prefix_affinity", unlike)
    assert set(choose("power_of_two", unlike, 20)) == {1}
    unlike = [One(0, 2, 512, speed=100.0), One(1, 2, speed=300.0)]  # as 9 and 3 requests of the fast one
    assert choose("prefix_affinity", unlike) == [0]
    assert choose("prefix_affinity", [One(0, 4, 512, speed=100.0), unlike[1]]) == [1]


def test_a_cold_replica_loads_the_model_first():
    """Two requests each: the fifth at 0 s calls for a third replica, which has loaded 2 GB at 2 s and is sent what
    comes then; when all is done the replicas above the least are given up."""
    scale = {"scale": {"name": "target_requests", "min": 1, "max": 3, "target": 2, "cooldown": "0 s"}, "model": "2 GB"}
    arrival = [0, 0, 0, 0, 0, 2.5, 2.5, 30]
    record = requests(arrival, [10] * 8, [400] * 5 + [5, 5, 1], scale, gpus=3)
    assert record.place[:5].tolist() == [1] * 5
    assert record.place[5:7].tolist() == [2, 3]
    rows = record.launches
    loads = rows["upload_end"] - rows["upload_start"]
    assert loads[~np.isnan(loads)].tolist() == pytest.approx([2, 2])
    assert record.place[7] == 1
    held = np.bincount(rows["place"], weights=rows["end"] - rows["decided"])
    assert held[1] == pytest.approx(record.end)
    assert held[2] < record.end and held[3] < record.end


def test_scaling_up_and_down_loses_nobody():
    scale = {"scale": SCALE | {"max": 4, "target": 8, "cooldown": "2 s"}, "model": "4 GB", "max_num_seqs": 16}
    rng = np.random.default_rng(1)
    arrival = sorted([*rng.uniform(0, 60, 120), *rng.uniform(20, 30, 300)])
    record = requests(arrival, [50] * 420, rng.geometric(1 / 40, 420), scale, gpus=4)
    assert (record.status == COMPLETED).all()
    assert len(set(record.place.tolist())) == 4
    rows = record.launches
    first = np.array([rows["decided"][rows["place"] == place].min() for place in (2, 3, 4)])
    assert np.diff(np.sort(first)).min() >= 0
    assert rows["members"].sum() == 420
    assert audit(record) == []


# Prefill and decode apart ---------------------------------------------------------------------------------------

APART = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "1 MB"}}


def test_keys_and_values_move_between_replicas():
    """The prefill ends at 20 ms with the first token; 100 MB over two links of 1 GB/s, one after the other at once,
    take 100 ms; then two steps."""
    result = run(APART, {"tokens": {"prompt": 100, "output": 3}}, gpus=2)
    task = result.tasks.iloc[0]
    assert task["ttft"] == pytest.approx(F + 100 * P)
    assert task["finish"] == pytest.approx(F + 100 * P + 0.1 + 2 * (F + S) + (101 + 102) * C)
    assert task["overhead"] == pytest.approx(0.1)
    assert task["device"] == "n0/g1"
    rows = result.launches
    assert rows["busy"].sum() == pytest.approx(task["finish"] - 0.1)
    assert task["energy_j"] == pytest.approx(100 * rows["busy"].sum())


def test_between_nodes_the_network_is_the_way():
    """Out of one node at 0.5 GB/s: 200 ms, and 10 ms of latency."""
    node = {"gpus": {"type": "g", "count": 1}, "network": {"upload": "0.5 GB/s", "latency": "5 ms"}, "count": 2}
    task = run(APART, {"tokens": {"prompt": 100, "output": 2}}, nodes=[node]).tasks.iloc[0]
    assert task["finish"] == pytest.approx(F + 100 * P + 0.2 + 0.01 + F + S + 101 * C)


@pytest.mark.slow
def test_apart_under_load_and_tight_memory_nothing_is_lost():
    arrival, prompt, output = load_of(np.random.default_rng(9), 250, 20, 80, 60)
    prompt, output = np.minimum(prompt, 400).tolist(), np.minimum(output, 200).tolist()
    service = {**APART, "disaggregated": {"prefill": 2, "decode": 2}, "max_num_batched_tokens": 128}
    for preemption in ("recompute", "swap"):
        record = requests(arrival, prompt, output, {**service, "preemption": preemption}, gpus=4, memory="700 MB")
        assert (record.status == COMPLETED).all()
        assert record.preemptions.sum() > 0
        assert (record.compute > 0).all()
        assert audit(record) == []


# Anything goes --------------------------------------------------------------------------------------------------


def drawn_service(random):
    """Any of the ways to serve, in little memory; and how many GPUs that takes."""
    batching = {
        "name": "continuous",
        "order": str(random.choice(["fcfs", "shortest_prompt", "priority"])),
        "phases": str(random.choice(["mixed", "prefill_first", "decode_first"])),
    }
    service = {
        "kv": {"per_token": "1 MB"},
        "preemption": str(random.choice(["recompute", "swap"])),
        "max_num_seqs": int(random.choice([1, 3, 64])),
        "routing": str(random.choice(["round_robin", "least_outstanding", "power_of_two", "prefix_affinity"])),
        "batching": batching,
    }
    if random.random() < 0.6:
        service["max_num_batched_tokens"] = int(random.choice([64, 71, 100]))
    if random.random() < 0.4:
        service["prefix_cache"] = {"tokens": 32}
    form = random.integers(3)
    if form == 0:
        service["replicas"] = 2
    elif form == 1:
        scale = SCALE | {"max": 3, "target": float(random.choice([1, 4])), "cooldown": "0.1 s"}
        service |= {"scale": scale, "model": "50 MB"}
    else:
        service["disaggregated"] = {"prefill": 1, "decode": int(random.integers(1, 3))}
    return service


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", spread(range(60), 15))
def test_whatever_is_drawn_adds_up(seed):
    random = np.random.default_rng(seed)
    blocks, count = int(random.integers(8, 100)), 40
    entry = {"arrivals": {"process": "all_at_once", "count": count}}
    if seed % 4 == 0:
        entry["patience"] = "1 s"
    keys = {"horizon": "1.5 s"} if seed % 3 == 0 else {}
    memory = f"{16 * blocks + 50} MB"
    run = load(scenario(drawn_service(random), entry, gpus=3, memory=memory, **keys)).build(seed)
    tasks = run.tasks
    tasks.arrival = np.sort(random.exponential(2, count)).round(2)
    tasks.extra["prompt_tokens"] = np.minimum(random.geometric(1 / 60, count), 8 * blocks)
    tasks.extra["output_tokens"] = np.minimum(random.geometric(1 / 40, count), 8 * blocks)
    tasks.priority = random.integers(0, 3, count).astype(float)
    groups = random.integers(0, 4, count)
    tasks.hash_ids = Ragged.from_rows([tuple(1000 * int(g) + k for k in range(40)) for g in groups])
    simulation = Simulation(run, check=True)
    record = simulation.run()
    assert audit(record) == []
    assert np.nansum(record.energy) == pytest.approx(100 * record.launches["busy"].sum())
    done = record.status == COMPLETED
    assert (tasks.arrival <= record.start)[done].all()
    assert (record.start < record.first_token)[done].all() and (record.first_token <= record.finish)[done].all()
    if not keys:
        assert set(record.status.tolist()) <= {COMPLETED, EXPIRED}
        for replica in simulation.parts.serving.sets[0].all:
            assert replica.idle and replica.free_blocks == blocks_there(replica, blocks)
            sequences = replica.sequences
            assert not (sequences.count or sequences.context or any(sequences.residues))


def blocks_there(replica, blocks):
    return (16 * blocks + 50 - round(replica.kind.weights / 1e6)) // 16


# Tables and metrics ---------------------------------------------------------------------------------------------


def busy_service(**more):
    entry = {
        "tokens": {"prompt": {"distribution": "lognormal", "mean": 80, "cv": 1}, "output": 30},
        "arrivals": {"process": "poisson", "rate": "4/s"},
        "count": 200,
        **more,
    }
    return {"replicas": 2, "max_num_batched_tokens": 64, "slo": {"ttft": "60 ms", "tpot": "16 ms"}}, entry


def test_limits_on_both_times_are_what_is_met():
    service, entry = busy_service()
    result = run(service, entry, gpus=2)
    tasks = result.tasks
    met = (tasks["ttft"] <= 0.06) & (tasks["tpot"] <= 0.016)
    assert tasks["met_deadline"].tolist() == met.tolist()
    assert 0.05 < result.metric("slo_attainment") == met.mean() < 0.95


def test_energy_utilization_and_numbers_in_system_add_up():
    service, entry = busy_service()
    result = run(service, entry, gpus=2)
    tasks, rows = result.tasks, result.launches
    assert tasks["energy_j"].sum() == pytest.approx(result.metric("energy_tasks_j"))
    assert tasks["energy_j"].sum() == pytest.approx(100 * rows["busy"].sum())
    assert result.metric("gpu_utilization") == pytest.approx(rows["busy"].sum() / (2 * result.end))
    assert result.metric("gpu_allocation") == pytest.approx(1)
    assert rows["members"].sum() == 200
    low, high = littles_law(result)
    assert low == pytest.approx(high)
    waiting = tasks["wait"].sum() / result.end
    assert result.metric("queue_length_mean") == pytest.approx(waiting)
    line = result.timeline
    seconds = np.diff(line["time"], append=result.end)
    assert (line["waiting"] * seconds).sum() / result.end == pytest.approx(waiting)
    assert (line["busy_gpus"] * seconds).sum() == pytest.approx(rows["busy"].sum())
    assert result.explain()["wait"].sum() == pytest.approx(tasks["wait"].sum())


def test_a_horizon_cuts_what_is_under_way():
    service, entry = busy_service()
    whole = run(service, entry, gpus=2)
    cut = run(service, entry, gpus=2, horizon="10.123 s")
    done = cut.tasks[cut.tasks["status"] == "completed"]
    same = whole.tasks.set_index("id").loc[done["id"]]
    assert same["finish"].tolist() == done["finish"].tolist()
    assert 0 < (cut.tasks["status"] == "unfinished").sum() < 20
    assert cut.tasks["energy_j"].sum() == pytest.approx(cut.metric("energy_tasks_j"))
    assert cut.metric("gpu_allocation") == pytest.approx(1)
    assert len(cut.launches) <= len(whole.launches) + 2


@pytest.mark.parametrize("end", [0.015, 0.06, 0.2, 1.0, 3.0])
def test_what_a_horizon_leaves_of_requests_between_replicas(end):
    arrival, prompt, output = load_of(np.random.default_rng(9), 100, 20, 80, 60)
    record = requests(arrival, prompt, output, APART, gpus=2, horizon=f"{end} s")
    assert (record.launches["members"] <= 100).all()
    assert set(record.launches["task"].tolist()) <= set(range(100))
    busy = 100 * record.launches["busy"].sum()
    assert np.nansum(record.energy) == pytest.approx(busy)
    assert audit(record) == []


def test_a_result_is_saved_and_read_again(tmp_path):
    service, entry = busy_service()
    result = run(service, entry, gpus=2)
    loaded = hs.Result.load(result.save(tmp_path / "run"))
    assert loaded.values() == pytest.approx(result.values(), nan_ok=True)
    assert loaded.metric("tpot_p95") == result.metric("tpot_p95")
    assert loaded.record.first_token.tobytes() == result.record.first_token.tobytes()
    assert loaded.tasks["ttft"].tolist() == result.tasks["ttft"].tolist()


def test_clients_that_wait_for_answers_and_patience():
    entry = {"arrivals": {"process": "closed", "clients": 6, "think": "0 s"}, "count": 60}
    tasks = run({"max_num_seqs": 4}, entry).tasks
    assert len(tasks) == 60 and (tasks["status"] == "completed").all()
    entry = {"arrivals": {"process": "all_at_once", "count": 10}, "patience": "100 ms"}
    tasks = run({"max_num_seqs": 2}, entry).tasks
    assert [(tasks["status"] == name).sum() for name in ("completed", "expired")] == [4, 6]


def test_other_tasks_use_the_gpus_that_replicas_leave():
    whole = scenario({"replicas": 1}, gpus=2)
    other = {"name": "jobs", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 3}}
    batches = {
        "name": "images",
        "service": {"compute": {"per_item": "1 ms", "fixed": "5 ms"}},
        "arrivals": {"process": "poisson", "rate": "20/s"},
        "count": 50,
    }
    whole["workload"] += [other, batches]
    result = hs.run(whole, check=True)
    assert (result.tasks["status"] == "completed").all()
    by_class = result.tasks.groupby("class", observed=True)["device"].agg(lambda found: set(found.astype(str)))
    assert by_class["chat"] == {"n0/g0"} and by_class["jobs"] == by_class["images"] == {"n0/g1"}


# Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "entry", "keys", "words"),
    [
        ({"step": {}}, {}, {}, "every step must take time; give fixed, or per_prompt_token and per_sequence"),
        ({"gpus": 2}, {}, {}, "2 × g exceed the 1 of any node"),
        ({"replicas": 3}, {}, {}, "no node has 1 × g free for replica 2 of 3 of chat;"),
        ({"model": "9 GB"}, {}, {"memory": "8 GB"}, "the model needs 9 GB; one g has 8 GB"),
        ({"model": "8 GB", "kv": {"per_token": "1 MB"}}, {}, {"memory": "8 GB"},
            "the model and one KV block do not fit into the"),
        ({"max_num_seqs": 0}, {}, {}, "greater than or equal to 1|at least 1"),
        ({"kind": "lm"}, {}, {}, "llm"),
        ({"batching": "serial_greedy"}, {}, {}, "forms whole batches"),
        ({"routing": "best"}, {}, {}, "unknown routing"),
        ({"routing": "round_robbin"}, {}, {}, 'did you mean "round_robin"'),
        ({"scale": {"name": "target_requests", "min": 3, "max": 2, "target": 1}}, {}, {}, "max must be at least min"),
        ({"preemption": "swap"}, {}, {}, "give kv"),
        ({"prefix_cache": True}, {}, {}, "give kv"),
        ({}, {"tokens": None}, {}, "give tokens"),
        ({}, {"tokens": {"prompt": 10}}, {}, "output"),
        ({}, {"gpu_time": "1 s"}, {}, "leave out gpu_time"),
        ({"device": "cpu"}, {}, {}, "no accelerator cpu"),
        ({}, {}, {"policy": "mct"}, "plans all tasks in advance"),
        ({}, {}, {"policy": {"batching": "serial_greedy"}}, "forms whole batches"),
    ],
)
def test_what_is_wrong_is_said(service, entry, keys, words):
    with pytest.raises(ScenarioError, match=words):
        hs.run(scenario(service, entry, **keys))


def test_tokens_and_continuous_are_for_language_models():
    jobs = {"name": "jobs", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 1}}
    cluster = {"nodes": [{"gpus": {"type": "g", "count": 1}}]}
    with pytest.raises(ScenarioError, match="requests to a language model"):
        hs.run({"cluster": cluster, "workload": [{**jobs, "tokens": {"prompt": 1, "output": 1}}]})
    batches = {"name": "b", "service": {"compute": {"fixed": "1 ms", "per_item": "1 ms"}}, "arrivals": jobs["arrivals"]}
    with pytest.raises(ScenarioError, match="needs a language model"):
        hs.run({"cluster": cluster, "workload": [batches], "policy": {"batching": "continuous"}})
    with pytest.raises(ScenarioError, match="routing needs a service with replicas, but no workload entry"):
        hs.run({"cluster": cluster, "workload": [batches], "policy": {"routing": "round_robin"}})


def test_more_load_than_replicas_can_serve_is_announced():
    result = run({"max_num_seqs": 4}, {"arrivals": {"process": "poisson", "rate": "100/s"}}, horizon="5 s")
    assert any("the queue grows without bound" in text for text in result.warnings)


def test_a_limit_on_the_tokens_of_a_step_that_the_load_does_not_allow_is_a_warning():
    """A request reads 100 tokens (10 ms) and decodes once (1 ms and 1.01 ms of context): 83/s without steps' own 10 ms.
    With 50 tokens a step its 101 take 2.02 steps: 20.2 ms more, 31/s."""
    keys = {"entry": {"arrivals": {"process": "poisson", "rate": "50/s"}, "tokens": {"prompt": 100, "output": 2}}}

    def told(**service):
        found = scenario(service, horizon="2 s", **keys)
        return [text for text in hs.run(found).warnings if "/s: the queue grows without bound" in text]

    assert not told()
    assert not told(max_num_batched_tokens=200)
    (text,) = told(max_num_batched_tokens=50)
    assert "chat: 50 requests/s arrive, but with at most 50 tokens in a step (max_num_batched_tokens)" in text
    assert "its replicas serve at most 31.05/s" in text


@pytest.mark.slow
def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "llm.md").read_text(encoding="utf-8")
    example, *_ = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    result = hs.run(yaml.safe_load(example), check=True)
    assert result.metric("completed_count") == 1000
    assert not result.warnings
    assert 0.5 < result.metric("slo_attainment") <= 1


@pytest.mark.slow
def test_the_benchmark_runs(capsys):
    language.main(["--quick"])
    assert capsys.readouterr().out.count("requests/s, ") == len(language.CASES)


class Greedy(IterationPolicy):
    """Prefills more than there is."""

    def step(self, replica):
        return BatchStep([(request, request.to_prefill + 1) for request in replica.prefilling])


@pytest.mark.slow
def test_an_illegal_step_names_the_policy_and_the_time():
    hs.register("too_greedy", Greedy, kind="batching")
    with pytest.raises(hs.errors.PolicyError, match=r"chat: its policy prefills 101 tokens .* 100 left \(t = 0 s\)"):
        run({"batching": "too_greedy"})
