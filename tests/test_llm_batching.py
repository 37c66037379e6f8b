"""Rules by which servers batch: tokens of a step, reservations, virtual token counters, pauses, clients that abort."""

from __future__ import annotations

import math

import numpy as np
import pytest
from llm_oracle import step_by_step
from test_llm import load_of, requests, scenario
from tiers import spread

from sim.engine.simulation import Simulation
from sim.model.record import ABORTED
from sim.results.steps import steps_table, token_gaps
from sim.scenario.scenario import load
from sim.testing.audit import audit


def by_clients(arrival, prompt, output, clients, service, memory=None, **keys):
    """A run with exactly these requests, each of a client."""
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}, "users": sorted(set(clients))}
    run = load(scenario(service, {**entry, **keys.pop("entry", {})}, memory=memory, **keys)).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    run.tasks.user_code = np.array([run.tasks.users.index(client) for client in clients], dtype=np.int32)
    return Simulation(run, check=True).run()


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


# Every rule against every step taken ---------------------------------------------------------------------------------


def drawn(seed):
    """A small load and rules, at random; what the oracle and what the scenario are told."""
    rng = np.random.default_rng(seed)
    arrival, prompt, output = load_of(rng, 120, float(rng.choice([4, 12])), 120, 50)
    prompt, output = np.minimum(prompt, 500).tolist(), np.minimum(output, 200).tolist()
    clients = [str(c) for c in rng.choice(["a", "b", "c"], 120, p=[0.6, 0.3, 0.1])]
    order, reserve = str(rng.choice(["fcfs", "vtc", "vtc"])), str(rng.choice(["none", "whole", "peak"]))
    rules = {"order": order, "phases": str(rng.choice(["mixed", "prefill_first", "decode_first"])), "reserve": reserve}
    block, budget = int(rng.choice([1, 16])), [None, 64, 200][int(rng.integers(3))]
    tokens, pause, most = int(rng.choice([800, 1600])), int(rng.choice([0, 0, 7])), int(rng.choice([6, 40]))
    timeout = float(rng.choice([math.inf, 3.0]))
    weights = (1.0, 2.0) if rng.random() < 0.5 else (0.5, 3.0)
    known = step_by_step(
        arrival, prompt, output, budget=budget, most=most, blocks=tokens // block, block=block, pause=pause,
        timeout=timeout, client=clients, weights=weights, **rules,
    )  # fmt: skip
    batching = {"name": "continuous", **rules, "min_decode_steps": pause, "input_weight": weights[0],
                "output_weight": weights[1]}  # fmt: skip
    service = {"kv": {"tokens": tokens, "block": block}, "max_num_seqs": most, "batching": batching,
               "max_output_tokens": "exact"}  # fmt: skip
    if budget is not None:
        service["max_num_batched_tokens"] = budget
    if timeout < math.inf:
        service["timeout"] = f"{timeout} s"
    return known, by_clients(arrival, prompt, output, clients, service), rules


@pytest.mark.parametrize("seed", spread(range(48), 12))
def test_every_rule_gives_what_single_steps_give(seed):
    known, record, rules = drawn(seed)
    aborted = np.array(known.aborted)
    assert ((record.status == ABORTED) == aborted).all()
    assert np.allclose(record.finish, known.finish, rtol=1e-9)
    assert np.allclose(np.nan_to_num(record.first_token), known.first, rtol=1e-9)
    stops = np.zeros(120, int) if record.preemptions is None else record.preemptions
    assert stops.tolist() == known.stops
    if rules["reserve"] == "whole":
        assert not sum(known.stops)
    assert audit(record) == []
    gaps, number = token_gaps(record)
    assert np.allclose(np.sort(np.repeat(gaps, number.astype(int))), np.sort(known.gaps), rtol=1e-9, atol=1e-12)
    rows, single = steps_table(record), np.array(known.rows)
    assert rows["steps"].sum() == len(single)
    assert rows["tokens"].sum() == single[:, 2].sum()
    assert rows["running"].max() == single[:, 4].max()
    assert rows["kv_used"].max() == single[:, 3].max() <= rows["kv_blocks"].min()
    assert (rows["kv_used"] + rows["kv_free"] == rows["kv_blocks"]).all()
    assert (rows["kv_used_start"] <= rows["kv_used"]).all() and (rows["kv_free"] >= 0).all()
