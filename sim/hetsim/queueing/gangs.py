"""Gangs of several widths on one node: lost, or in one line."""

from __future__ import annotations

import math

from hetsim.queueing.facts import Facts, Match, PredictedRow
from hetsim.queueing.families import matched, predicted_rows, require
from hetsim.results.declared import THROUGHPUT
from hetsim.theory import admission
from hetsim.theory.blocking import multiserver_jobs


def _gangs(facts: Facts, blind: bool) -> tuple[bool, int]:
    """Check what models of gangs assume; False if no figures can be computed.  Return the number of GPUs, too."""
    understood = facts.arrivals() & facts.recognized & facts.sizes_known()
    facts.order(blind)
    facts.alone()
    modes, nodes = facts.modes, [node for node in facts.cluster.nodes if node.accelerators]
    first, servers = modes[0], len(nodes[0].accelerators)
    alike = len(nodes) == 1 and all(mode.type is first.type and mode.whole_devices for mode in modes)
    alike = alike and all(one.type is first.type for one in nodes[0].accelerators)
    one_way = all(len(shape.modes) == 1 for shape in facts.input.tasks.shapes)
    alike = alike and one_way and not any(one.demand.modes for one in facts.customers)
    alike = facts.suppose("gangs take whole GPUs of one node, all alike", alike, "cluster.nodes", facts.shown_modes)
    room = all(facts.slots(nodes[0], mode) == servers // mode.gpus
               and mode.millicores * servers <= nodes[0].cpus * 1000 * mode.gpus
               and (nodes[0].memory is None or mode.memory * servers <= nodes[0].memory * mode.gpus)
               for mode in modes)  # fmt: skip
    facts.suppose("there are cores and memory for all GPUs at once", room, "cluster.nodes")
    return understood & alike, servers


def gangs_with_loss(facts: Facts) -> Match:
    """Gangs of several widths with loss, by Kaufman and Roberts."""
    understood, servers = _gangs(facts, blind=True)
    given = facts.policies.admission
    plain = given is not None and {*given.parameters} <= {"limit"}
    facts.suppose("one limit for all waiting tasks", plain, "policy.admission", "limit: 0")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have names of their own", len(set(labels)) == len(labels), "workload")
    require(understood, apart)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    facts.steady(0, servers, facts.law, bounded=True)
    losses = admission.kaufman_roberts(servers, [(one.rate, law.mean, one.demand.gpus or 1) for one, law in laws])
    rows = [PredictedRow("loss", lost, label) for lost, label in zip(losses.loss, labels, strict=True)]
    rows.append(PredictedRow(facts.busy_metric, losses.utilization))
    return matched(facts, "gangs with loss (Kaufman, Roberts)", None, rows)


def gangs_in_line(facts: Facts, _: str) -> Match:
    """Multiserver jobs: the throughput up to which they are stable, or that of a line that never ends."""
    understood, servers = _gangs(facts, blind=False)
    discipline = getattr(facts.policies.scheduler.make(), "discipline", "")
    facts.suppose("no gang overtakes one that does not fit", discipline == "block", "policy.scheduler", discipline)
    facts.open_door()
    require(understood)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    for one, law in laws:
        facts.exponential(law, f"service of {one.label} is exponential", f"{one.key}.gpu_time")
    gangs = multiserver_jobs(servers, [(one.rate, law.mean, one.demand.gpus or 1) for one, law in laws])
    name, limit = f"gangs in one line on {servers} GPUs", f"{gangs.throughput:.4g}/s"
    if gangs.load < 1:
        facts.steady(gangs.load * servers, servers, facts.law)
        busy = sum(one.rate * law.mean * (one.demand.gpus or 1) for one, law in laws) / servers
        rows = {THROUGHPUT: facts.rate, facts.busy_metric: busy}
        return matched(facts, f"{name}, stable below {limit}", None, predicted_rows(rows))
    facts.steady(0, servers, facts.law, bounded=True)
    warm = 0.0 if math.isnan(facts.warmup) else facts.warmup
    more = (facts.rate - gangs.throughput) * warm
    lasting = more > 6 * math.sqrt((facts.rate + gangs.throughput) * warm) + servers
    facts.suppose("the line is so long after the warm-up that it never ends", lasting, "warmup",
                  f"{more:.3g} gangs more come than end", soft=True)  # fmt: skip
    rows = {THROUGHPUT: gangs.throughput, facts.busy_metric: gangs.utilization}
    return matched(facts, f"{name}, saturated at {limit}", None, predicted_rows(rows))
