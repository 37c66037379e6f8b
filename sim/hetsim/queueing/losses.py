"""Models in which tasks are lost: limits, thresholds, token buckets, patience."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hetsim.errors import UsageError
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Facts, Match, PredictedRow, law_of
from hetsim.queueing.families import matched, matched_with_loss, predicted_rows, require, sized_tasks
from hetsim.queueing.gangs import gangs_with_loss
from hetsim.theory import admission, optimal_pricing, queues
from hetsim.theory.blocking import retrials, retries_in_vain

MAX_IN_VAIN = 1e-6
"""Share of calls that run out of retries, below which they have no end."""


def limited(facts: Facts, _: str) -> Match:
    """M/M/c/K by a limit on the queue."""
    limit = facts.parameter("admission", "limit", None)
    if limit == 0 and len({mode.gpus for mode in facts.modes}) > 1 and not any(mode.on_cpu for mode in facts.modes):
        return gangs_with_loss(facts)
    understood = facts.arrivals() & sized_tasks(facts)
    only = limit is not None and not any(facts.parameter("admission", key, None) for key in ("per_class", "per_device"))
    facts.suppose("one limit for all waiting tasks", only, "policy.admission", f"limit: {limit}")
    order = facts.one_by_one()
    require(understood, only)
    law, servers = facts.law, facts.servers
    insensitive = limit == 0  # M/G/c/c
    if not insensitive:
        facts.exponential()
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    prediction = queues.mmck(facts.rate, law.mean, servers, servers + limit)
    model = f"M/G/{servers}/{servers}" if insensitive else prediction.model
    return matched_with_loss(facts, model, prediction, order == "fcfs")


def tries_again(facts: Facts, model: str) -> Match:
    """M/M/c with retrials: rejected calls wait and try again, and none gives up."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.one_by_one()
    given = facts.policies.admission
    plain = given is not None and given.parameters == {"limit": 0}
    facts.suppose("no task waits for a server", plain, "policy.admission", "queue_limit")
    all_clients, key = [entry.clients for entry in facts.model.workload], "workload.0.clients.retry"
    first = all_clients[0]
    retry = None if first is None or any(one != first for one in all_clients) else first.retry
    again = retry is not None and "rejected" in retry.on
    facts.suppose("clients are alike, and try again when they are rejected", again, f"{key}.on")
    require(understood, plain, again)
    wait: Any = retry and retry.wait
    even = wait.jitter == "exponential" and wait.first > 0 and (wait.factor == 1 or wait.longest <= wait.first)
    require(facts.suppose("times between tries are exponential, with one mean", even, f"{key}.wait", wait.jitter))
    law, servers, mean, times = facts.law, facts.servers, min(wait.first, wait.longest), cast(Any, retry).times
    facts.exponential()
    load = facts.rate * law.mean
    require(facts.steady(load, servers, law, memory=(mean + law.mean) / max(1e-9, 1 - load / servers)))
    prediction = retrials(facts.rate, law.mean, servers, mean)
    in_vain = retries_in_vain(facts.rate, law.mean, servers, mean, times)
    require(facts.suppose("no call runs out of retries (one in a million at most)", in_vain < MAX_IN_VAIN,
                          f"{key}.times", f"{times}, too few for {in_vain:.2g} of the calls"))  # fmt: skip
    attempts = 1 + prediction.wait_mean / mean
    rows = {"attempts_per_call": attempts, "loss": 1 - 1 / attempts, facts.busy_metric: facts.busy_share(load)}
    return matched(facts, prediction.model, prediction, predicted_rows(rows))


def token_bucket(facts: Facts, model: str) -> Match:
    """The loss at a token bucket, which does not depend on the servers behind it."""
    understood = facts.arrivals() & facts.recognized
    facts.order()
    refuses = facts.parameter("admission", "excess", "reject") == "reject"
    facts.suppose("a task that finds no token is refused", refuses, "policy.admission.excess")
    common = facts.parameter("admission", "per", "all") == "all"
    facts.suppose("one bucket for all", common, "policy.admission.per")
    refill, depth = facts.parameter("admission", "rate", None), float(facts.parameter("admission", "burst", 1))
    warm = 3 * depth / refill
    facts.suppose("the full bucket at the start is forgotten", not facts.warmup < warm, "warmup",
                  f"{facts.warmup:g} s, wanted {warm:.4g} s", soft=True, error=facts.transient(warm / 3))  # fmt: skip
    require(understood)
    return matched(facts, model, rows=[PredictedRow("loss", admission.token_bucket(facts.rate, refill, depth))])


def trunk_reservation(facts: Facts, model: str) -> Match:
    """Trunk reservation by class."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.one_by_one()
    servers, given = facts.servers, facts.parameter("admission", "servers", None)
    if given is None and (mode := facts.mode) is not None and mode.width:  # as the policy counts them
        given = int(facts.cluster.count(mode.type.name) / mode.width + 1e-9)
    facts.suppose("all servers are counted", given in (None, servers), "policy.admission.servers", f"{given}")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have names of their own", len(set(labels)) == len(labels), "workload")
    require(understood, apart)
    reserve = facts.parameter("admission", "reserve", {})
    for one in facts.customers:
        if one.law is not None:
            facts.exponential(one.law, f"service of {one.label} is exponential", one.key)
    facts.steady(0, servers, facts.law, bounded=True)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    streams = [admission.Stream(one.rate, law.mean, reserve.get(one.label, 0)) for one, law in laws]
    try:
        losses = admission.trunk_reservation(servers, streams)
    except UsageError as error:
        require(facts.suppose("the exact chain can be solved", False, "policy.admission.reserve", str(error)))
    rows = [PredictedRow("loss", lost, label) for lost, label in zip(losses.loss, labels, strict=True)]
    rows.append(PredictedRow(facts.busy_metric, facts.busy_share(losses.utilization * servers)))
    return matched(facts, model, rows=rows)


def naor(facts: Facts, _: str) -> Match:
    """M/M/1/n, with Naor's threshold for n."""
    understood = facts.arrivals() & sized_tasks(facts)
    order = facts.one_by_one()
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    require(understood, single)
    law = facts.law
    facts.exponential()
    given = [facts.parameter("admission", key, None) for key in ("arrival_rate", "service_time")]
    facts.suppose("the rates are known, not estimated", None not in given, "policy.admission.arrival_rate",
                  "estimated online" if None in given else "given", soft=True)  # fmt: skip
    facts.steady(0, 1, law, bounded=True)
    reward, cost = (facts.parameter("admission", key, 1.0) for key in ("reward", "cost"))
    thresholds = optimal_pricing.naor(given[0] or facts.rate, given[1] or law.mean, reward, cost)
    objective = facts.parameter("admission", "objective", "social")
    prediction = queues.mmck(facts.rate, law.mean, 1, getattr(thresholds, objective))
    return matched_with_loss(facts, f"{prediction.model} (Naor, {objective})", prediction, order == "fcfs")


def work_limit(facts: Facts, model: str) -> Match:
    """M/M/1 with a limit on the work ahead."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.one_by_one(blind=False)
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    require(understood, single)
    law = facts.law
    facts.exponential()
    facts.steady(0, 1, law, bounded=True)
    prediction = admission.workload_limit(facts.rate, law.mean, float(facts.parameter("admission", "max_wait", 0.0)))
    return matched_with_loss(facts, model, prediction, True)


def impatient(facts: Facts, _: str) -> Match:
    """M/M/c+M, or with no patience at all M/G/c/c."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    facts.one_by_one(blind=False)
    given = [one.demand.patience for one in facts.customers]
    alike = all(one == given[0] for one in given)
    facts.suppose("one patience for all", alike, f"{facts.customers[0].key}.patience")
    require(understood, alike)
    law, servers, patience = facts.law, facts.servers, law_of(given[0])
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    if patience.kind == "constant" and patience.mean <= declared.AT_ONCE * law.mean:
        prediction = queues.mmck(facts.rate, law.mean, servers, servers)
        leaving = facts.rate * prediction.loss * patience.mean  # they do wait, for as long as their patience
        present = prediction.jobs_in_system_mean + leaving
        prediction = replace(prediction, queue_length_mean=leaving, jobs_in_system_mean=present)
        return matched_with_loss(facts, f"M/G/{servers}/{servers} (Erlang B)", prediction, False)
    facts.exponential()
    facts.exponential(patience, "patience is exponential", f"{facts.customers[0].key}.patience")
    prediction = queues.mmc_abandonment(facts.rate, law.mean, servers, patience.mean)
    return matched_with_loss(facts, prediction.model, prediction, False)
