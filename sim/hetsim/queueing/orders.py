"""Models of which the scheduler's order decides: sharing, priorities, sizes."""

from __future__ import annotations

import math

from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Density, Facts, Match, PredictedRow, density_of
from hetsim.queueing.families import SMALL, matched, own_order, predicted_rows, require, rows_of, sized_tasks
from hetsim.results.declared import RESPONSE_MEAN, WAIT_MEAN
from hetsim.theory import general, levels, priorities, sizes


def sharing(facts: Facts, model: str) -> Match:
    """M/G/1-PS on a GPU that shares by time slices."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    require(understood)
    kind = facts.only_mode.type.sharing
    facts.suppose("the GPU shares by time slices, at no cost", kind.kind == "timeslice" and not kind.switch_cost,
                  "cluster.nodes.gpus.sharing", kind.kind)  # fmt: skip
    law = facts.law
    load = facts.rate * law.mean
    facts.one_gpu(load)
    require(facts.steady(load, 1, law))
    prediction = general.mg1_ps(facts.rate, law.mean)
    rows = [*rows_of(facts, prediction, load, False), PredictedRow("slowdown_mean", 1 / (1 - load))]
    return matched(facts, model, prediction, rows)


def priority_classes(facts: Facts, model: str) -> Match:
    """Cobham's priorities, or preemptive-resume ones."""
    preemptive = bool(facts.parameter("scheduler", "preemptive", False))
    understood = own_order(facts)
    aging = facts.parameter("scheduler", "aging", 0)
    facts.suppose("priorities do not change", not aging, "policy.scheduler.aging", f"{aging:g}/s")
    ranks = sorted({one.priority for one in facts.customers}, reverse=True)
    labels = [one.label for one in facts.customers]
    apart = len(ranks) == len(labels) == len(set(labels))
    facts.suppose("each class has a priority of its own", apart, "workload", ", ".join(map(str, ranks)))
    require(understood, apart)
    servers = facts.servers
    ordered = sorted(facts.customers, key=lambda one: -one.priority)
    classes = [priorities.Class(one.rate, one.law.mean, one.law.scv) for one in ordered if one.law is not None]
    if servers > 1:
        kinds = {one.law for one in ordered}
        common = all(law is not None and law.kind == "exponential" for law in kinds)
        common = common and len(kinds) <= (2 if len(ordered) == 2 else 1)
        text = "at several servers: exponential service, the same for all or of two classes"
        require(facts.suppose(text, common, facts.time_key, facts.law.shown))
    require(facts.steady(facts.rate * facts.law.mean, servers, facts.law))
    if servers > 1 and len(kinds) > 1:
        quick = levels.are_quick(classes, servers, preemptive)
        require(facts.suppose(SMALL, quick, "cluster.nodes", f"{servers} servers"))
    solve = priorities.preemptive_resume if preemptive else priorities.nonpreemptive
    rows = []
    for one, prediction in zip(ordered, solve(classes, servers), strict=True):
        if not preemptive:  # suspended time is not part of the simulator's wait
            rows.append(PredictedRow(WAIT_MEAN, prediction.wait_mean, one.label))
        rows.append(PredictedRow(RESPONSE_MEAN, prediction.response_mean, one.label))
    load = facts.rate * facts.law.mean
    return matched(facts, model.replace("M/G/1", "M/G/1" if servers == 1 else f"M/M/{servers}"), None,
                   [*rows, PredictedRow(facts.busy_metric, facts.busy_share(load))])  # fmt: skip


def by_size(facts: Facts, _: str) -> Match:
    """M/G/1 in the order of sizes, remaining times or attained service."""
    understood = own_order(facts)
    discipline = str(facts.parameter("scheduler", "discipline", "block"))
    facts.suppose("the first of the order is next", "keep" not in discipline, "policy.scheduler.discipline", discipline)
    require(understood)
    text = f"{facts.servers} servers" if facts.servers != 1 else facts.policies.scheduler.name
    single = facts.suppose("one server has this order", facts.servers == 1, "policy.scheduler", text)
    densities = [density_of(*one.timing) if one.timing else None for one in facts.customers]
    smooth = facts.suppose("times have a density that is known", None not in densities, facts.time_key, facts.law.shown)
    law, rate = facts.law, facts.rate
    require(single, smooth)
    require(facts.steady(rate * law.mean, 1, law))
    by_class = [(one, each) for one, each in zip(facts.customers, densities, strict=True) if each is not None]
    mixture = Density(tuple((one.rate / rate * share, part) for one, each in by_class for share, part in each.parts))
    if facts.scheduler == declared.ATTAINED:
        given, width = facts.parameter("scheduler", "thresholds", None) or [3600.0], facts.only_mode.width
        prediction = sizes.las(rate, mixture, mixture.edges, thresholds=[float(one) / width for one in given])
    else:
        prediction = (sizes.sjf if facts.scheduler == declared.SHORTEST else sizes.srpt)(rate, mixture, mixture.edges)
    rows = [PredictedRow(WAIT_MEAN, prediction.wait_mean), PredictedRow(RESPONSE_MEAN, prediction.response_mean)]
    labels = [one.label for one in facts.customers]
    if len(labels) == len(set(labels)) > 1:
        rows += [PredictedRow(RESPONSE_MEAN, prediction.response_of(each), one.label) for one, each in by_class]
    rows += predicted_rows({
        "slowdown_mean": None if math.isnan(prediction.slowdown_mean) else prediction.slowdown_mean,
        "jobs_in_system_mean": prediction.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(rate * law.mean),
    })  # fmt: skip
    return matched(facts, prediction.model, prediction, rows)
