"""Models in which tasks are lost or retried, and models of gangs."""

import math
from dataclasses import replace
from itertools import product
from typing import Any, cast

from hetsim.errors import UsageError
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import NOTHING, Facts, Law, Match, PredictedRow, law_of
from hetsim.queueing.families import (
    JOBS_IN_SYSTEM,
    QUEUE_LENGTH,
    equal_service,
    matched,
    matched_with_loss,
    own_lines,
    predicted_rows,
    require,
    sized_tasks,
)
from hetsim.results.declared import RESPONSE_MEAN, THROUGHPUT
from hetsim.theory import admission, optimal_pricing, queues
from hetsim.theory.blocking import multiserver_jobs, retrials, retries_in_vain
from hetsim.theory.routing import redundancy

MAX_IN_VAIN = 1e-6  # share of calls that run out of retries, below which they have no end


def limited(facts: Facts, _: str) -> Match:
    """Match the scenario to M/M/c/K: a limit on the queue."""
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
    """Match the scenario to M/M/c with retrials of rejected or reneged calls."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.one_by_one()
    first, *others = (entry.clients for entry in facts.model.workload)
    alike: Any = first if first is not None and others.count(first) == len(others) else None
    key, retry, patience = "workload.0.clients", alike and alike.retry, 0.0
    if facts.admission == declared.LIMIT:
        cause, plain = "rejected", cast(Any, facts.policies.admission).parameters == {"limit": 0}
        facts.suppose("no task waits for a server", plain, "policy.admission", "queue_limit")
    else:
        facts.open_door()
        cause, law = "timeout", law_of(alike.timeout) if alike is not None and alike.is_drawn else NOTHING
        plain = facts.suppose("timeouts are exponential", law.kind == "exponential", f"{key}.timeout", law.shown)
        waits = alike is not None and alike.at_timeout == "stay"
        plain, patience = facts.suppose("only tasks that wait time out", waits, f"{key}.at_timeout") and plain, law.mean
    key, again = f"{key}.retry", retry is not None and cause in retry.on
    text = {"rejected": "are rejected", "timeout": "have timed out"}[cause]
    facts.suppose(f"clients are alike, and try again when they {text}", again, f"{key}.on")
    require(understood, plain, again)
    wait = retry.wait
    even = wait.jitter == "exponential" and wait.first > 0 and (wait.factor == 1 or wait.longest <= wait.first)
    require(facts.suppose("times between tries are exponential, with one mean", even, f"{key}.wait", wait.jitter))
    law, servers, mean, times = facts.law, facts.servers, min(wait.first, wait.longest), retry.times
    facts.exponential()
    load = facts.rate * law.mean
    require(facts.steady(load, servers, law, memory=(mean + law.mean) / max(1e-9, 1 - load / servers) ** 2))
    prediction = retrials(facts.rate, law.mean, servers, retry_mean=mean, patience_mean=patience)
    between = prediction.wait_mean / max(1e-9, facts.lasts - (0.0 if math.isnan(facts.warmup) else facts.warmup))
    facts.suppose("few calls are between two tries at the end of the run", between < 1e-3, "horizon",
                  f"a share of {between:.2g} of the calls", soft=True, error=between)  # fmt: skip
    in_vain = retries_in_vain(facts.rate, law.mean, servers, retry_mean=mean, times=times, patience_mean=patience)
    require(facts.suppose("at most one call in a million runs out of retries", in_vain < MAX_IN_VAIN,
                          f"{key}.times", f"{times} retries are too few for {in_vain:.2g} of the calls"))  # fmt: skip
    attempts = 1 / (1 - prediction.loss) if patience else 1 + prediction.wait_mean / mean
    own = {QUEUE_LENGTH: prediction.queue_length_mean, JOBS_IN_SYSTEM: prediction.jobs_in_system_mean}
    rows = {"attempts_per_call": attempts, facts.busy_metric: facts.busy_share(load),
            **(own if patience else {"loss": 1 - 1 / attempts})}  # fmt: skip
    return matched(facts, prediction.model, prediction, predicted_rows(rows))


def copies(facts: Facts, _: str) -> Match:
    """Match copies of tasks on all servers (which act as one: M/M/1), or on d servers."""
    first, *others = (entry.clients for entry in facts.model.workload)
    hedge: Any = first.hedge if first is not None and others.count(first) == len(others) else None
    key, apart = "workload.0.clients.hedge", hedge is not None and hedge.apart
    if apart:
        servers = len(facts.modes)
        understood = own_lines(facts) & facts.suppose("copies may go to every server", {
            len(shape.modes) for shape in facts.input.tasks.shapes} <= {1, servers}, facts.time_key)  # fmt: skip
    else:
        understood, servers = facts.arrivals() & sized_tasks(facts), facts.servers
        facts.open_door()
        facts.one_by_one(blind=False)
    at_once = hedge is not None and hedge.after == 0 and (apart or hedge.times >= servers - 1)
    text = "all copies are sent at once" if apart else "each server has a copy of each task at once"
    facts.suppose(text, at_once, f"{key}.{'after' if apart else 'times'}", f"{servers} servers")
    require(understood, at_once)
    facts.suppose("copies have independent service times", hedge.size == "new", f"{key}.size", hedge.size)
    canceled = first is not None and first.at_timeout != "leave"
    facts.suppose("all copies are canceled when one ends", canceled, "workload.0.clients.at_timeout")
    law = equal_service(facts, product(facts.modes, facts.customers)) if apart else facts.law
    if not apart:
        facts.exponential()
    load = facts.rate * law.mean
    require(facts.steady(load, servers, law))
    rows = {"attempts_per_call": hedge.times + 1.0, facts.busy_metric: facts.busy_share(load)}
    if apart:
        line = redundancy(facts.rate, law.mean, servers, hedge.times + 1)
        return matched(facts, line.model, line, predicted_rows({RESPONSE_MEAN: line.response_mean, **rows}))
    line = queues.mmc(facts.rate, law.mean / servers, 1)
    rows = {"call_response_p99": line.response_percentile(0.99), **rows}
    return matched(facts, f"copies at all of {servers} servers, as M/M/1", line, predicted_rows(rows))


def token_bucket(facts: Facts, model: str) -> Match:
    """Match the scenario to a token bucket, whose loss is independent of the servers."""
    understood = facts.arrivals() & facts.recognized
    facts.order()
    for text, key, wanted in (("a task without a token is rejected", "excess", "reject"),
                              ("all tasks share one bucket", "per", "all")):  # fmt: skip
        facts.suppose(text, facts.parameter("admission", key, wanted) == wanted, f"policy.admission.{key}")
    refill, depth = facts.parameter("admission", "rate", None), float(facts.parameter("admission", "burst", 1))
    warm = 3 * depth / refill
    facts.suppose("the warm-up outlasts the initially full bucket", not facts.warmup < warm, "warmup",
                  f"{facts.warmup:g} s, wanted {warm:.4g} s", soft=True, error=facts.transient(warm / 3))  # fmt: skip
    require(understood)
    return matched(facts, model, rows=[PredictedRow("loss", admission.token_bucket(facts.rate, refill, depth))])


def trunk_reservation(facts: Facts, model: str) -> Match:
    """Match the scenario to the queueing model of trunk reservation by class."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.one_by_one()
    servers, given = facts.servers, facts.parameter("admission", "servers", None)
    if given is None and (mode := facts.mode) is not None and mode.width:  # as the policy counts them
        given = int(facts.cluster.count(mode.type.name) / mode.width + 1e-9)
    facts.suppose("the policy counts all servers", given in (None, servers), "policy.admission.servers", f"{given}")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have different names", len(set(labels)) == len(labels), "workload")
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
    """Match the scenario to M/M/1/n, with n from Naor's threshold."""
    order, law = _one_server(facts, blind=True)
    given = [facts.parameter("admission", key, None) for key in ("arrival_rate", "service_time")]
    facts.suppose("the rates are known, not estimated", None not in given, "policy.admission.arrival_rate",
                  "estimated online" if None in given else "given", soft=True)  # fmt: skip
    reward, cost = (facts.parameter("admission", key, 1.0) for key in ("reward", "cost"))
    thresholds = optimal_pricing.naor(given[0] or facts.rate, given[1] or law.mean, reward, cost)
    objective = facts.parameter("admission", "objective", "social")
    prediction = queues.mmck(facts.rate, law.mean, 1, getattr(thresholds, objective))
    return matched_with_loss(facts, f"{prediction.model} (Naor, {objective})", prediction, order == "fcfs")


def work_limit(facts: Facts, model: str) -> Match:
    """Match the scenario to M/M/1 with a limit on the work ahead."""
    _, law = _one_server(facts, blind=False)
    prediction = admission.workload_limit(facts.rate, law.mean, float(facts.parameter("admission", "max_wait", 0.0)))
    return matched_with_loss(facts, model, prediction, True)


def _one_server(facts: Facts, blind: bool) -> tuple[str, Law]:
    """Require M/M/1; return its order and service time.  blind: as in `Facts.order`."""
    understood = facts.arrivals() & sized_tasks(facts)
    order = facts.one_by_one(blind)
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    require(understood, single)
    facts.exponential()
    facts.steady(0, 1, facts.law, bounded=True)
    return order, facts.law


def impatient(facts: Facts, _: str) -> Match:
    """Match the scenario to M/M/c+M, or to M/G/c/c if the patience is nearly 0."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    facts.one_by_one(blind=False)
    given = [one.demand.patience for one in facts.customers]
    alike = all(one == given[0] for one in given)
    facts.suppose("all tasks have the same patience", alike, f"{facts.customers[0].key}.patience")
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


def _gangs(facts: Facts, blind: bool) -> tuple[bool, int]:
    """Record the assumptions of gang models; return (can predict, number of GPUs)."""
    understood = facts.arrivals() & facts.recognized & facts.sizes_known()
    facts.order(blind)
    facts.alone()
    modes, nodes = facts.modes, [node for node in facts.cluster.nodes if node.accelerators]
    first, servers = modes[0], len(nodes[0].accelerators)
    of_one_kind = (len(nodes) == 1 and all(mode.type is first.type and mode.whole_devices for mode in modes)
                   and all(one.type is first.type for one in nodes[0].accelerators))  # fmt: skip
    one_way = all(len(shape.modes) == 1 for shape in facts.input.tasks.shapes)
    alike = facts.suppose("gangs take whole GPUs of one node, all alike",
                          of_one_kind and one_way and not any(one.demand.modes for one in facts.customers),
                          "cluster.nodes", facts.shown_modes)  # fmt: skip
    room = all(facts.slots(nodes[0], mode) == servers // mode.gpus
               and mode.millicores * servers <= nodes[0].cpus * 1000 * mode.gpus
               and (nodes[0].memory is None or mode.memory * servers <= nodes[0].memory * mode.gpus)
               for mode in modes)  # fmt: skip
    facts.suppose("cores and memory are enough for all GPUs at once", room, "cluster.nodes")
    return understood & alike, servers


def gangs_with_loss(facts: Facts) -> Match:
    """Match the scenario to gangs of several widths with loss (Kaufman, Roberts)."""
    understood, servers = _gangs(facts, blind=True)
    plain = {*cast(Any, facts.policies.admission).parameters} <= {"limit"}
    facts.suppose("one limit for all waiting tasks", plain, "policy.admission", "limit: 0")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have different names", len(set(labels)) == len(labels), "workload")
    require(understood, apart)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    facts.steady(0, servers, facts.law, bounded=True)
    losses = admission.kaufman_roberts(servers, [(one.rate, law.mean, one.demand.gpus or 1) for one, law in laws])
    rows = [PredictedRow("loss", lost, label) for lost, label in zip(losses.loss, labels, strict=True)]
    rows.append(PredictedRow(facts.busy_metric, losses.utilization))
    return matched(facts, "gangs with loss (Kaufman, Roberts)", None, rows)


def gangs_in_line(facts: Facts, _: str) -> Match:
    """Match the scenario to multiserver jobs: gangs that wait in one FCFS queue."""
    understood, servers = _gangs(facts, blind=False)
    discipline = getattr(facts.policies.scheduler.make(), "discipline", "")
    facts.suppose("gangs start in order, without overtaking", discipline == "block", "policy.scheduler", discipline)
    facts.open_door()
    require(understood)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    for one, law in laws:
        facts.exponential(law, f"service of {one.label} is exponential", f"{one.key}.gpu_time")
    gangs = multiserver_jobs(servers, [(one.rate, law.mean, one.demand.gpus or 1) for one, law in laws])
    name, limit = f"gangs in one queue on {servers} GPUs", f"{gangs.throughput:.4g}/s"
    share = min(1.0, gangs.load)  # of the time in which as many come as when saturated
    facts.steady(share * servers, servers, facts.law, bounded=share == 1)
    if share == 1:
        warm = 0.0 if math.isnan(facts.warmup) else facts.warmup
        more = (facts.rate - gangs.throughput) * warm
        lasting = more > 6 * math.sqrt((facts.rate + gangs.throughput) * warm) + servers
        facts.suppose("the queue after the warm-up never becomes empty", lasting, "warmup",
                      f"{more:.3g} more gangs arrive than end", soft=True)  # fmt: skip
    rows = {THROUGHPUT: share * gangs.throughput, facts.busy_metric: share * gangs.utilization}
    return matched(facts, f"{name}, {'stable below' if share < 1 else 'saturated at'} {limit}", None,
                   predicted_rows(rows))  # fmt: skip
