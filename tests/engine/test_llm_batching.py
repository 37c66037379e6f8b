"""Rules by which servers batch: tokens of a step, reservations, virtual token counters, pauses, clients that abort."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from llm_oracle import C, F, P, S
from test_llm import TIGHT, load_of, requests, run, scenario, with_prefixes
from test_llm_faults import events
from tiers import spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UsageError
from hetsim.model.record import ABORTED, COMPLETED, REJECTED
from hetsim.results.one_run.steps import steps_table
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit
from hetsim_policies.batching.continuous import VirtualTokens

# Tokens of a step -------------------------------------------------------------------------------------------------


def test_decodes_and_chunks_share_the_tokens_of_a_step():
    """1,024 prompt tokens beside 40 answers and 512 tokens a step: 472, 472 and 80 in three steps."""
    service = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
    record = requests([0] * 40 + [1.0], [1] * 40 + [1024], [400] * 40 + [2], service)
    steps = record.steps
    reading = steps["prompt_tokens"][1:]
    assert reading[reading > 0].tolist() == [472, 472, 80]
    assert (steps["sequences"][steps["prompt_tokens"] > 40] == 40).all()
    assert (steps["sequences"] + steps["prompt_tokens"]).max() == 512


def test_whole_prompts_fill_a_step_and_a_longer_one_is_cut():
    """prefill_first with 100 tokens a step: 60 and 40 fit together, 60 and 50 do not; 250 take three steps."""
    service = {"max_num_batched_tokens": 100, "max_num_seqs": 8, "batching": {"name": "continuous",
               "phases": "prefill_first"}}  # fmt: skip
    record = requests([0] * 5, [60, 40, 60, 50, 250], [1] * 5, service)
    assert record.steps["prompt_tokens"].tolist() == [100, 60, 50, 100, 100, 50]


# Reservations, counters, clients ------------------------------------------------------------------------------------


def reserved(reserve, arrival, prompt, output, **more):
    batching = {"name": "continuous", "phases": "prefill_first", "reserve": reserve}
    service = {"kv": {"tokens": 100, "block": 1}, "max_output_tokens": "exact", "batching": batching, **more}
    return requests(arrival, prompt, output, service, entry={"tokens": {"prompt": 10, "output": 1}})


def test_a_whole_reservation_counts_longest_answers_and_a_peak_what_has_ended_by_then():
    """100 tokens: twice 20 + 30 less the last token fit together, a third of 10 + 1 does not, reserved whole.

    At the peak, when the first two have all their tokens, the third has long ended.
    """
    whole = reserved("whole", [0, 0, 0.001], [20, 20, 10], [30, 30, 1])
    assert whole.start[2] == whole.finish[0] == whole.finish[1]
    peak = reserved("peak", [0, 0, 0.001], [20, 20, 10], [30, 30, 1])
    assert peak.start[2] == pytest.approx(F + 40 * P)
    assert whole.preemptions is None and peak.preemptions is None


def test_an_announced_answer_ends_there_and_is_what_is_reserved():
    """Of 100 tokens three answers of at most 20 to prompts of 20 take 117: two go first, whatever they become."""
    record = reserved("whole", [0] * 3, [20] * 3, [5, 20, 5], max_output_tokens=20)
    assert record.start.tolist() == [0, 0, pytest.approx(record.finish[0])]
    entry = {"arrivals": {"process": "all_at_once", "count": 1}, "tokens": {"prompt": 10, "output": 50}}
    built = load(scenario({"max_output_tokens": 20}, entry)).build()
    assert built.tasks.extra["output_tokens"].tolist() == [20]


def test_a_request_beyond_all_reservations_is_rejected():
    record = reserved("whole", [0, 0], [20, 20], [5, 5], max_output_tokens=82)
    assert (record.status == REJECTED).all()
    assert "needs 101 KV blocks, a replica has 100" in record.reasons[0]


def backlogged(weights=(1.0, 2.0), client_weight=None):
    """Two clients with all their requests there from the start: one sends many short ones, the other few long ones."""
    prompts, outputs = [50] * 200 + [400] * 25, [20] * 200 + [160] * 25
    clients = ["short"] * 200 + ["long"] * 25
    batching = {"name": "continuous", "order": "vtc", "input_weight": weights[0], "output_weight": weights[1]}
    service = {"max_num_seqs": 3, "batching": batching}
    entry = {"arrivals": {"process": "all_at_once", "count": 225}, "users": ["long", "short"]}
    run_ = load(scenario(service, entry)).build()
    run_.tasks.arrival = np.arange(225) * 1e-9
    run_.tasks.extra["prompt_tokens"], run_.tasks.extra["output_tokens"] = np.array(prompts), np.array(outputs)
    run_.tasks.user_code = np.array([run_.tasks.users.index(client) for client in clients], dtype=np.int32)
    if client_weight is not None:
        run_.tasks.weight = np.array([client_weight[client] for client in clients], dtype=float)
    return Simulation(run_, check=True).run(), np.array(clients), np.array(prompts), np.array(outputs)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("weights", "shares"), [((1.0, 2.0), {}), ((3.0, 1.0), {}), ((1.0, 2.0), {"long": 2.0})])
def test_two_clients_with_a_backlog_are_served_alike(weights, shares):
    """Theorem 4.4 of the paper: services differ by at most 2 max(w_p longest prompt, w_q tokens in a batch) while both
    wait, here counted when a request ends; divided by weights where clients have some."""
    client_weight = {"short": 1.0, "long": 1.0, **shares} if shares else None
    record, clients, prompts, outputs = backlogged(weights, client_weight)
    both = min(record.start[clients == name].max() for name in ("short", "long"))
    served = {}
    for name in ("short", "long"):
        mine = (clients == name) & (record.start < both)
        made = np.clip((both - record.first_token[mine]) / (record.finish - record.first_token)[mine], 0, 1)
        tokens = weights[0] * prompts[mine] + weights[1] * made * (outputs[mine] - 1)
        served[name] = tokens.sum() / (client_weight or {}).get(name, 1.0)
    bound = 2 * max(weights[0] * 400, weights[1] * 3 * 560)
    assert abs(served["short"] - served["long"]) <= bound
    assert min(served.values()) > bound  # otherwise the bound says nothing


def test_first_come_first_served_is_not_fair_to_who_sends_less():
    fair, clients, prompts, outputs = backlogged()
    record = requests([i * 1e-9 for i in range(225)], prompts, outputs, {"max_num_seqs": 3})
    assert record.start[clients == "long"].min() >= record.start[clients == "short"].max()
    assert fair.start[clients == "long"].min() < 0.1


def test_a_client_that_aborts_frees_its_blocks_between_two_steps():
    """Four blocks: the first holds all of them and would decode for long; at 100 ms its client goes, its step ends at
    the next boundary, and the second joins there."""
    service, clients = {"kv": {"tokens": 64, "block": 16}}, {"timeout": "100 ms", "at_timeout": "cancel"}
    record = requests([0, 0.05], [40, 40], [20, 2], service, entry={"clients": clients})
    steps = [F + 40 * P, *(F + S + C * (40 + k) for k in range(1, 20))]
    boundary = next(end for end in np.cumsum(steps) if end >= 0.1)
    assert record.finish[0] == pytest.approx(boundary) == record.start[1]
    assert [record.status[0], record.status[1]] == [ABORTED, COMPLETED]
    assert record.reasons[0] == "timed out after 0.1 s"
    rows = steps_table(record)
    assert rows["kv_free"].iloc[-1] == 64 // 16 - 3 and rows["kv_used"].max() <= 4


def test_aborted_requests_are_counted_and_met_no_deadline():
    entry = {"arrivals": {"process": "poisson", "rate": "12/s"}, "count": 150}
    result = run({"max_num_seqs": 4, "slo": {"ttft": "30 s"}}, {**entry, "tokens": {"prompt": 100, "output": 40},
                 "clients": {"timeout": "1 s", "at_timeout": "cancel"}}, gpus=1)  # fmt: skip
    gone = result.tasks["status"] == "aborted"
    assert 20 < gone.sum() == result.metric("aborted_count") < 150
    assert result.metric("completed_count") == 150 - gone.sum()
    assert (result.tasks.loc[gone, "finish"] - result.tasks.loc[gone, "arrival"]).between(1, 1.1).all()
    assert result.tasks.loc[gone, "tpot"].isna().all() and result.tasks.loc[gone, "response"].isna().all()
    assert not result.tasks.loc[gone, "met_deadline"].any()
    assert result.tasks["energy_j"].sum() == pytest.approx(result.metric("energy_tasks_j"))
    assert audit(result.record) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", [{"disaggregated": {"prefill": 1, "decode": 1}},
                                  {"scale": {"name": "target_requests", "max": 2, "target": 4}}, {"preemption": "swap"},
                                  {"batching": {"name": "continuous", "order": "vtc"}, "replicas": 2}])  # fmt: skip
def test_whoever_aborts_wherever_nothing_is_left_behind(form):
    """Requests wait, are read, move, decode or are swapped when their clients go; some leave with a failing device."""
    arrival, prompt, output = load_of(np.random.default_rng(9), 250, 20, 80, 60)
    prompt, output = np.minimum(prompt, 400).tolist(), np.minimum(output, 200).tolist()
    kv = {"kv": {"per_token": "1 MB"}, "max_num_batched_tokens": 256}
    clients = {"timeout": "1.3 s", "at_timeout": "cancel"}
    for failing in (False, True):
        entry = {"arrivals": {"process": "all_at_once", "count": 250}, "clients": clients}
        built = load(scenario({**kv, **form}, entry, gpus=3, memory="700 MB")).build()
        built.tasks.arrival = np.array(arrival)
        built.tasks.extra["prompt_tokens"], built.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
        if failing:
            built.faults = events((3.0, 0, "down"), (4.0, 0, "up"))
        simulation = Simulation(built, check=True)
        record = simulation.run()
        assert set(record.status.tolist()) == {ABORTED, COMPLETED}
        assert audit(record) == []
        for replica in simulation.parts.serving.sets[0].all:
            assert replica.idle and replica.free_blocks == replica.blocks and not replica.decoding


@dataclass(eq=False)
class Asking:
    """A request as virtual token counters see it."""

    client: str
    arrival: float
    prompt: int
    weight: float
    produced: int = 0
    begun: int | None = None


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_an_index_of_counters_names_the_client_that_a_recount_names(seed):
    """Requests queue, join, decode, and leave complete or preempted, at random; weights are powers of two, so that all
    sums are exact."""
    rng = np.random.default_rng(seed)
    tokens, steps, charged = VirtualTokens(1.0, 2.0), 0, dict.fromkeys("abcdef", 0.0)
    waiting, inside, looks = [], [], 0

    def counter(client):
        mine = [one for one in inside if one.client == client and one.begun is not None]
        return charged[client] + sum(2.0 * (steps - one.begun) / one.weight for one in mine)

    def heads():
        return {one.client: one for one in sorted(waiting, key=lambda one: -one.arrival)}

    def turn():
        return min(heads(), key=lambda client: (counter(client), heads()[client].arrival, client))

    def queue(one):
        tokens.queued(one, heads(), steps)
        others = {other.client for other in waiting}
        if others and one.client not in others:
            charged[one.client] += max(0.0, min(map(counter, others)) - counter(one.client))
        waiting.append(one)

    for now in range(600):
        what = rng.integers(6)
        if what == 0:
            weight = float(rng.choice([0.5, 1.0, 2.0]))
            queue(Asking(str(rng.choice(list(charged))), float(now), int(rng.integers(1, 60)), weight))
        elif what == 1 and len({one.client for one in waiting}) > 1:
            looks += 1
            assert tokens.turn(heads(), steps) == turn()
            own = turn()
            soonest = tokens.steps_until_turn(own, heads(), steps, 40)
            before = steps
            for steps in range(before + 1, before + 41):
                if steps - before == soonest or any(counter(one) < counter(own) for one in heads()):
                    break
            assert steps - before == soonest, "another client's turn is before the time of line"
            assert soonest == 40 or any(counter(one) <= counter(own) for one in heads() if one != own)
            steps = before
        elif what == 2 and waiting:
            one = heads()[turn()]
            waiting.remove(one)
            inside.append(one)
            tokens.joined(one)
            charged[one.client] += 0.0 if one.produced else one.prompt / one.weight
        elif what == 3 and inside:
            one = inside[int(rng.integers(len(inside)))]
            if one.begun is None:
                one.begun, one.produced = steps, one.produced + 1
                tokens.decodes(one, steps)
        elif what == 4 and inside:
            one, over = inside[int(rng.integers(len(inside)))], bool(rng.random() < 0.7)
            tokens.leave(one, over, steps)
            inside.remove(one)
            if one.begun is not None:
                charged[one.client] += 2.0 * (steps - one.begun) / one.weight
                one.produced, one.begun = one.produced + steps - one.begun, None
            elif not over and not one.produced:
                charged[one.client] -= one.prompt / one.weight
            if not over:
                queue(one)
        else:
            steps += int(rng.integers(4))
    assert looks > 20


# What comes out ------------------------------------------------------------------------------------------------------


def test_preemptions_are_told_by_kind():
    arrival, prompt, output = load_of(np.random.default_rng(3), 100, 40, 80, 60)
    prompt, output = np.minimum(prompt, 300).tolist(), np.minimum(output, 200).tolist()
    for kind in ("recompute", "swap"):
        record = requests(arrival, prompt, output, {**TIGHT, "preemption": kind}, memory="800 MB")
        found = record.preemptions_by
        assert sum(column.sum() for column in found.values()) == record.preemptions.sum() > 10
        assert found[kind].sum() > 0
        assert "failure" not in found and (kind == "swap" or "swap" not in found)


def test_tokens_that_prefixes_serve_are_counted():
    record = with_prefixes([0, 1, 2], [100, 100, 50], [2, 2, 2], [(1, 2, 3), (1, 2, 9), (7,)], 100)
    result = hs.Result(record)
    assert result.tasks["cached_tokens"].tolist() == [0, 64, 0]
    assert (result.metric("prefix_tokens_requested"), result.metric("prefix_tokens_served")) == (250, 64)
    assert result.metric("prefix_hit_rate") == 64 / 250
    assert math.isnan(run().metric("prefix_hit_rate"))


def busy(**more):
    entry = {"arrivals": {"process": "poisson", "rate": "8/s"}, "count": 120,
             "tokens": {"prompt": {"distribution": "lognormal", "mean": 80, "cv": 1}, "output": 30}}  # fmt: skip
    service = {"kv": {"tokens": 1600}, "max_num_batched_tokens": 64, "max_num_seqs": 32, **more}
    return run(service, entry, gpus=2)


def test_metrics_of_steps_are_those_of_their_table():
    result = busy(replicas=2)
    rows = result.steps
    assert set(rows["replica"]) == {0, 1}
    assert result.metric("kv_used_max") == (rows["kv_used"] / rows["kv_blocks"]).max() <= 1
    assert result.metric("tokens_per_step") == pytest.approx(rows["tokens"].sum() / rows["steps"].sum())
    assert rows["tokens"].sum() == (result.tasks["prompt_tokens"] + result.tasks["output_tokens"] - 1).sum()
    gaps, number = result.token_gaps
    every = np.sort(np.repeat(gaps, number.astype(int)))
    assert len(every) == (result.tasks["output_tokens"] - 1).sum()
    assert every.sum() == pytest.approx((result.tasks["tpot"] * (result.tasks["output_tokens"] - 1)).sum())
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert result.metric(f"itl_{name}") == pytest.approx(np.quantile(every, share))
    assert result.metric("itl_mean") == pytest.approx(every.mean())
    seconds = rows["end"] - rows["start"]
    held = ((rows["kv_used_start"] + rows["kv_used"]) / 2 * seconds).sum() / (rows["kv_blocks"] * seconds).sum()
    assert result.metric("kv_used_mean") == pytest.approx(held)


def test_a_slower_device_makes_longer_gaps():
    """At half the speed every gap is twice as long, in jumps too."""
    entry = {"tokens": {"prompt": 100, "output": 40}}
    slow = load(scenario({}, entry)).build()
    slow.faults = events((0.0, 0, "slow", 2.0))
    result, alone = hs.Result(Simulation(slow, check=True).run()), run({}, entry)
    assert result.metric("itl_p50") == pytest.approx(2 * alone.metric("itl_p50"))
    assert result.metric("itl_max") == pytest.approx(2 * (F + S + 139 * C))


@pytest.mark.slow
def test_steps_are_saved_and_read_again(tmp_path):
    result = busy()
    loaded = hs.Result.load(result.save(tmp_path / "run"))
    assert loaded.steps.equals(result.steps)
    assert loaded.values() == pytest.approx(result.values(), nan_ok=True)
    fresh = hs.results.one_run.steps.steps_table(loaded.record)
    assert fresh.astype({"service": str, "device": str}).equals(result.steps.astype({"service": str, "device": str}))
    assert loaded.record.preemptions_by.keys() == result.record.preemptions_by.keys()
    jobs = {"name": "jobs", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 1}}
    other = hs.run({"cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]}, "workload": [jobs]})
    assert not len(other.steps) and math.isnan(other.metric("itl_p50"))
    assert not (other.save(tmp_path / "other") / "steps.parquet").exists()


@pytest.mark.slow
def test_the_picture_of_steps_shows_its_panels():
    picture = hs.plots.serving(busy())
    labels = [panel.y.label for panel in picture.panels]
    assert labels == ["KV blocks (%)", "requests", "tokens a step", "tokens (%)"]
    assert len(hs.plots.serving(run()).panels) == 3
    jobs = {"name": "jobs", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 1}}
    with pytest.raises(UsageError, match="the run has no language model, so there are no steps to draw"):
        hs.plots.serving(hs.run({"cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]}, "workload": [jobs]}))


def test_steps_up_to_the_horizon_are_in_the_table():
    entry = {"tokens": {"prompt": 100, "output": 400}}
    result = run({}, entry, horizon="1 s")
    first = F + 100 * P
    ends = first + np.cumsum([F + S + (100 + k) * C for k in range(1, 400)])
    assert result.steps["steps"].sum() - 1 == (ends < 1).sum()
    assert result.steps["end"].iloc[-1] == pytest.approx(ends[ends < 1][-1])


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "entry", "words"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, {}, "step of 8 tokens cannot decode 16 sequences"),
        ({"max_num_batched_tokens": 0}, {}, "at least 1"),
        ({"kv": {"block": 4}}, {}, "the size of the cache is missing; give per_token"),
        ({"kv": {"tokens": 3, "block": 4}}, {}, "tokens must be at least one block"),
        ({"kv": {"tokens": 100}, "preemption": "swap"}, {}, r"give per_token \(bytes\)"),
        ({"kv": {"tokens": 9000, "per_token": "1 MB"}}, {}, "9,000 tokens need 9 GB, but one g has 8 GB"),
        ({"batching": {"name": "continuous", "reserve": "peak"}}, {}, "give max_output_tokens"),
        ({"batching": {"name": "continuous", "reserve": "peak"}, "max_output_tokens": 500,
          "kv": {"tokens": 512}}, {}, "the smallest request reserves 614 tokens, prompt and longest answer.* a "
                                      "replica has room for 512"),
        ({"batching": {"name": "continuous", "order": "vtc", "input_weight": 0}}, {}, "input_weight .the price"),
        ({"batching": {"name": "continuous", "order": "vtc", "output_weight": -2}}, {}, "output_weight .the price"),
        ({"batching": {"name": "continuous", "min_decode_steps": -1}}, {}, "at least 0"),
        ({"max_output_tokens": 0}, {}, "at least 1"),
        ({}, {"tokens": {"prompt": 0, "output": 4}}, "at least one token"),
        ({}, {"tokens": {"prompt": 4, "output": 0}}, "at least one token"),
    ],
)  # fmt: skip
def test_what_cannot_be_batched_is_said(service, entry, words):
    with pytest.raises(ScenarioError, match=words):
        hs.run(scenario(service, entry, memory="8 GB"))
