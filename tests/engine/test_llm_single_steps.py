"""Every way to serve a language model, and pairs of them, against replicas that take every step by themselves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from llm_oracle import step_by_step
from test_llm import load_of, scenario
from test_llm_faults import events
from tiers import by_night, spread

from hetsim.engine.simulation import Simulation
from hetsim.model.ragged import Ragged
from hetsim.model.record import ABORTED
from hetsim.results.one_run.steps import steps_table, token_gaps
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit
from hetsim_policies.routing.routers import LeastOutstanding, PrefixAffinity, RoundRobinRouting

COUNT, SETS = 60, 320
TIMES = (0.010007, 0.0010093, 0.00010103, 0.000010139)
"""Of a step, with which two replicas do not end one at the same instant by chance."""
ROUTERS = {"round_robin": RoundRobinRouting, "least_outstanding": LeastOutstanding, "prefix_affinity": PrefixAffinity}


def watched(router, seen):
    """The router, which writes down what it finds at each of the replicas that it chooses from."""

    class Watched(ROUTERS[router]):
        def choose(self, request, replicas, random):
            for one in replicas:
                produced = sum(member.produced for member in one.members)
                looks = (one.cached(request), one.blocks_for(request), one.free_blocks, one.steps)
                seen.append((request.row, one.number, *looks, one.outstanding, produced))
            return super().choose(request, replicas, random)

    return Watched()


def faults_of(rng, devices):
    """Devices that fail and come up again, or slow down for a while; some fail while they are slow."""
    drawn = []
    for device in range(devices):
        at = 0.0
        for _ in range(int(rng.integers(1, 4))):
            at += float(rng.exponential(4.0))
            what, lasts = int(rng.integers(3)), float(rng.exponential(0.5))
            if what:
                drawn.append((at, device, "slow", float(rng.choice([0.5, 1.5, 3.0]))))
            if what != 1:
                drawn.append((at + (0.3 * lasts if what else 0.0), device, "down"))
            if what:
                drawn.append((at + 0.6 * lasts, device, "slow", 1.0))
            if what != 1:
                drawn.append((at + lasts, device, "up"))
            at += lasts
    return sorted(drawn)


def drawn(seed):
    """A load and a way to serve it, at random: what the oracle and what the scenario are given."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    arrival, prompt, output = load_of(rng, COUNT, pick(4.0, 12.0), 120, 50)
    prompt, output = np.minimum(prompt, 500).tolist(), np.minimum(output, 200).tolist()
    block, timeout = pick(1, 16), pick(math.inf, math.inf, 3.0)
    rules = {
        "order": pick("fcfs", "shortest_prompt", "priority", "vtc"), "reserve": pick("none", "none", "whole", "peak"),
        "phases": pick("mixed", "prefill_first", "decode_first"), "watermark": pick(0.0, 0.01, 0.05),
        "pause": pick(0, 0, 7), "weights": pick((1.0, 2.0), (0.5, 3.0)),
    }  # fmt: skip
    tokens, most, budget = pick(800, 1600), pick(6, 40), pick(None, 64, 200)
    apart, replicas = pick(None, None, (1, 1), (2, 2), (1, 2)), pick(1, 1, 2, 3)
    devices = replicas if apart is None else sum(apart)
    way = {
        "swap": pick(False, True), "prefix": pick(0, 16, 32), "token_bytes": pick(20_011, 400_009), "apart": apart,
        "replicas": replicas, "devices": devices + pick(0, 1), "routing": pick(*ROUTERS), "model": pick(0.2e9, 1e9),
        "faults": faults_of(rng, devices) if rng.random() < 0.4 else [],
    }  # fmt: skip
    groups, depths = rng.integers(0, 5, COUNT).tolist(), rng.integers(0, 30, COUNT).tolist()
    names = [
        tuple(100 * (group if k < depth else 10 + row) + k for k in range(40))
        for row, (group, depth) in enumerate(zip(groups, depths, strict=True))
    ]
    requests = {
        "client": [str(one) for one in rng.choice(["a", "b", "c"], COUNT, p=[0.6, 0.3, 0.1])],
        "priority": rng.integers(0, 3, COUNT).tolist(), "names": names, "timeout": timeout,
    }  # fmt: skip
    limits = {"times": TIMES, "budget": budget, "most": most, "blocks": tokens // block, "block": block}
    engine = {"late": pick(False, True), "every": pick(1, 1, 5), "waits": pick((0.0, 0), (0.5, 3), (1.0, 12))}
    return (arrival, prompt, output), {**rules, **way, **requests, **limits, **engine}


def simulated(load_, given):
    """The record of the engine, and what its router has seen."""
    batching = {
        "name": "continuous", **{key: given[key] for key in ("order", "phases", "reserve")},
        "watermark": 0.0 if given["reserve"] != "none" else given["watermark"], "min_decode_steps": given["pause"],
        "input_weight": given["weights"][0], "output_weight": given["weights"][1],
    }  # fmt: skip
    keys = ("fixed", "per_sequence", "per_prompt_token", "per_context_token")
    kv = {"tokens": given["blocks"] * given["block"], "block": given["block"], "per_token": f"{given['token_bytes']} B"}
    service = {
        "step": {key: f"{seconds} s" for key, seconds in zip(keys, given["times"], strict=True)}, "kv": kv,
        "max_num_seqs": given["most"], "batching": batching, "max_output_tokens": "exact",
        "async_scheduling": given["late"], "scheduler_recv_interval": given["every"],
        "model": f"{given['model']:.0f} B", "preemption": "swap" if given["swap"] else "recompute",
    }  # fmt: skip
    if given["budget"] is not None:
        service["max_num_batched_tokens"] = given["budget"]
        if given["waits"][1]:
            keys = "batch_wait_max_tokens_ratio", "batch_wait_timeout_iters"
            service |= dict(zip(keys, given["waits"], strict=True))
    if given["prefix"]:
        service["prefix_cache"] = {"tokens": given["prefix"]}
    if given["apart"] is None:
        service["replicas"] = given["replicas"]
    else:
        service["disaggregated"] = dict(zip(("prefill", "decode"), given["apart"], strict=True))
    entry = {"arrivals": {"process": "all_at_once", "count": COUNT}, "users": sorted(set(given["client"]))}
    if given["timeout"] < math.inf:
        entry["clients"] = {"timeout": f"{given['timeout']} s", "at_timeout": "cancel"}
    run = load(scenario(service, entry, gpus=given["devices"])).build()
    tasks, seen = run.tasks, []
    arrival, prompt, output = map(np.array, load_)
    tasks.arrival, tasks.priority = arrival.astype(float), np.array(given["priority"], dtype=float)
    tasks.extra["prompt_tokens"], tasks.extra["output_tokens"] = prompt, output
    tasks.user_code = np.array([tasks.users.index(client) for client in given["client"]], dtype=np.int32)
    tasks.hash_ids = Ragged.from_rows(given["names"])
    iteration = [(run.iteration[0][0], watched(given["routing"], seen), run.iteration[0][2])]
    run = replace(run, faults=events(*given["faults"]), iteration=iteration)
    return Simulation(run, check=True).run(), seen


def compare(load_, given):
    known = step_by_step(*load_, **given)
    record, seen = simulated(load_, given)
    kept = ~np.array(known.aborted)
    assert ((record.status != ABORTED) == kept).all()
    assert record.finish == pytest.approx(known.finish, rel=1e-9)
    assert record.first_token[kept] == pytest.approx(np.array(known.first)[kept], rel=1e-9)
    stops = np.zeros(COUNT, int) if record.preemptions is None else record.preemptions
    assert stops.tolist() == known.stops
    assert seen == known.seen
    if given["reserve"] == "whole" and not given["faults"]:
        assert not sum(known.stops)  # all that answers may come to need is there
    assert audit(record) == []
    gaps, number = token_gaps(record)
    assert np.sort(np.repeat(gaps, number.astype(int))) == pytest.approx(np.sort(known.gaps), rel=1e-9)
    rows, single = steps_table(record), np.array(known.rows)
    assert rows["steps"].sum() == len(single)
    assert rows["tokens"].sum() == single[:, 2].sum()
    assert rows["kv_used"].max() == single[:, 3].max() <= rows["kv_blocks"].min()
    if given["apart"] is None:  # keys and values on their way count among those that run
        assert rows["running"].max() == single[:, 4].max()
    assert (rows["kv_used"] + rows["kv_free"] == rows["kv_blocks"]).all()
    assert (rows["kv_used_start"] <= rows["kv_used"]).all() and (rows["kv_cached"] <= rows["kv_free"]).all()


@pytest.mark.slow
def test_every_pair_of_ways_is_drawn():
    ways = []
    for seed in range(SETS):
        given = drawn(seed)[1]
        ways.append((given["order"], given["phases"], given["swap"], given["prefix"] > 0, given["apart"] is not None,
                     bool(given["faults"]), given["timeout"] < math.inf, given["reserve"], given["late"],
                     given["every"]))  # fmt: skip
    for one, other in itertools.combinations(zip(*ways, strict=True), 2):
        assert set(zip(one, other, strict=True)) == set(itertools.product(set(one), set(other)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", by_night(spread(range(SETS), 8), 3))
def test_every_way_to_serve_gives_what_single_steps_give(seed):
    compare(*drawn(seed))
