"""Model match: the queueing model of a scenario, its assumptions and predictions.

A scenario suggests one model: services batches, several priorities Cobham's formula, a limit on the queue M/M/c/K, and
so on.  Each assumption of that model is then looked up in the scenario, with the key that decides it.  If a hard one
fails, there is no prediction; if only soft ones fail (a service that is not quite exponential, a short warm-up), or the
formula is approximate, it has an error: near where that is known to be small, else an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.batch_times import StageTable
from hetsim.model.faults import FaultProcess
from hetsim.model.tasks import Mode
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Density, Facts, Law, Match, PredictedRow, Unmatched, density_of, law_of, mixed
from hetsim.results.declared import RESPONSE_MEAN, THROUGHPUT, WAIT_MEAN
from hetsim.scenario.scenario import Scenario
from hetsim.theory import admission, batches, general, levels, networks, optimal_pricing, priorities, queues, sizes
from hetsim.theory.breakdowns import completion, mg1_breakdowns, mg1_setup, mmc_breakdowns, varies_finitely
from hetsim.theory.prediction import Prediction
from hetsim.theory.transient import mmc_periodic

SMALL = "the exact chain is small enough"
MAX_CLIENTS = 1_000_000
"""States of closed loops that take about a second."""


def match(scenario: Scenario) -> Match:
    """Match a scenario to a model; a failed hard assumption gives no prediction."""
    facts = Facts(scenario)
    family = _family(facts)
    facts.recognize(family)
    model, solve = FAMILIES[family]
    try:
        return solve(facts, model)
    except UsageError as error:
        facts.suppose("the model can be solved", False, value=str(error))
    except Unmatched:
        pass
    return Match(model, facts.assumptions)


def _family(facts: Facts) -> str:
    """Return the family of models by workload, admission, tasks and scheduler."""
    entries = facts.model.workload
    if any(entry.service is not None for entry in entries):
        return "batches"
    if any(entry.trace is not None for entry in entries):
        return "delay"
    if any(getattr(entry.arrivals, "closed", False) for entry in entries):
        return "closed"
    if facts.admission in BY_ADMISSION:
        return BY_ADMISSION[facts.admission]
    if facts.admission == declared.WORK and facts.parameter("admission", "max_wait", None) is not None:
        return "work"
    if any(one.demand.patience is not None for one in facts.customers):
        return "patience"
    if facts.scheduler == declared.SHARING:
        return "sharing"
    if facts.scheduler in BY_SIZE:
        return BY_SIZE[facts.scheduler]
    if facts.scheduler == declared.PRIORITIES and len({one.priority for one in facts.customers}) > 1:
        return "preemptive" if facts.parameter("scheduler", "preemptive", False) else "priorities"
    if facts.scheduler == declared.ASLEEP:
        return "setup"
    if facts.model.faults:
        return "faults"
    if len({mode.type for mode in facts.modes}) > 1:
        return "unlike"
    return "tandem" if _moves(facts) and facts.mode is not None and facts.mode.type.streams > 1 else "delay"


def _moves(facts: Facts) -> bool:
    keys = ("bytes_in", "bytes_out", "upload", "download")
    return any(getattr(one.demand, key) for one in facts.customers for key in keys)


def _common(facts: Facts) -> bool:
    """Check what all models of tasks assume; False if no figures can be computed."""
    return facts.recognized & facts.one_way() and facts.sizes_known()


def _need(*held: bool) -> None:
    """Go on only where assumptions hold without which no figures can be computed."""
    if not all(held):
        raise Unmatched


def _result(facts: Facts, model: str, found: Prediction | None = None, rows: Iterable[PredictedRow] = ()) -> Match:
    match = Match(model, facts.assumptions)
    if match.verdict != "none":
        match.rows = list(rows)
        if found is not None:
            match.formula_error = found.error
    return match


def _rows(facts: Facts, found: Prediction, computing: float, tails: bool, loss: bool = False) -> list[PredictedRow]:
    """The figures of a prediction under the names of the simulator's metrics."""
    return _predicted({
        WAIT_MEAN: found.wait_mean,
        "wait_p95": found.wait_percentile(0.95) if tails and found.wait_above is not None else None,
        RESPONSE_MEAN: found.response_mean,
        "response_p95": found.response_percentile(0.95) if tails and found.response_above is not None else None,
        "queue_length_mean": found.queue_length_mean,
        "jobs_in_system_mean": found.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(computing),
        "loss": found.loss if loss else None,
    })  # fmt: skip


def _predicted(figures: Mapping[str, float | None]) -> list[PredictedRow]:
    """A row for each figure that there is."""
    return [PredictedRow(metric, value) for metric, value in figures.items() if value is not None]


def _with_loss(facts: Facts, model: str, found: Prediction, tails: bool) -> Match:
    """The match of a model in which tasks are lost."""
    return _result(facts, model, found, _rows(facts, found, found.throughput * facts.law.mean, tails, loss=True))


def _delay(facts: Facts, _: str) -> Match:
    """M/M/c, M/D/c, M/PH/c, M/G/1, GI/M/1, MMPP/M/c and, near, G/G/c: no loss."""
    _need(facts.arrivals(("poisson", "renewal", "deterministic", "mmpp", "piecewise_poisson")))
    moves = _moves(facts)
    understood = _common(facts)
    facts.open_door()
    order = facts.one_by_one()
    _need(understood)
    law, compute, servers = facts.law, facts.law, facts.servers
    if moves:
        facts.links_alone()
        alone = facts.mode is not None and facts.mode.gpus == 1 and facts.mode.whole_devices
        facts.suppose("a server is one whole GPU", alone, f"{facts.customers[0].key}.gpus", str(facts.mode))
        law = facts.whole_time
    rate, arrivals = facts.rate, cast(Any, facts.model.workload[0].arrivals)
    if getattr(arrivals, "process", None) == "piecewise_poisson":
        return _periodic(facts, arrivals, law)
    varied, memory, phases = law, 0.0, None if moves else facts.phases
    if getattr(arrivals, "process", None) == "mmpp":
        if law.kind != "exponential" and _phases_fit(len(arrivals.rates), phases, servers):
            facts.suppose("service has phases", True, facts.time_key, law.shown)
        else:
            facts.exponential(law)
        more, memory = levels.modulation(arrivals.rates, arrivals.switching_rates)
        varied = law._replace(scv=law.scv + more)
    elif getattr(arrivals, "process", None) == "renewal":
        varied = law._replace(scv=law.scv + max(0.0, float(arrivals.scv) - 1))
    _need(facts.steady(rate * law.mean, servers, varied, memory=memory))
    prediction = _delay_system(facts, rate, law, servers, phases=phases)
    if law.kind == "general" and servers == 1 and order == "blind":
        prediction = replace(prediction, wait_above=None, response_above=None)
    rows = _rows(facts, prediction, rate * compute.mean, order == "fcfs")
    return _result(facts, prediction.model, prediction, rows)


def _delay_system(facts: Facts, rate: float, law: Law, servers: int, phases: levels.PhaseType | None) -> Prediction:
    arrivals: Any = facts.model.workload[0].arrivals
    if arrivals.process == "mmpp":
        if law.kind == "exponential" or not _phases_fit(len(arrivals.rates), phases, servers):
            return levels.mmpp_mc(arrivals.rates, arrivals.switching_rates, law.mean, servers)
        chain = levels.map_phc(arrivals.switching_rates, np.diag(arrivals.rates), cast(Any, phases), servers)
        return replace(chain, model=f"MMPP/PH/{servers}")
    if arrivals.process == "poisson":
        if law.kind == "exponential":
            return queues.mmc(rate, law.mean, servers)
        if servers == 1:
            return general.md1(rate, law.mean) if law.kind == "constant" else general.mg1(rate, law.mean, law.scv)
        if law.kind == "constant":
            return general.mdc(rate, law.mean, servers)
        if _phases_fit(1, phases, servers):
            return levels.mphc(rate, cast(Any, phases), servers)
        figures = {"arrival_scv": 1.0, "service_scv": law.scv, "service_third": law.third}
        prediction = general.allen_cunneen(rate, law.mean, servers, **figures)
        return replace(prediction, model=f"M/G/{servers} (Allen and Cunneen)")
    scv = 0.0 if arrivals.process == "deterministic" else float(arrivals.scv)
    if servers == 1 and law.kind == "exponential":
        return general.gim1(rate, law.mean, _gap_complement(arrivals, rate, scv), "D/M/1" if scv == 0 else "GI/M/1")
    gaps = declared.phases_of(arrivals.gaps, 1.0) if scv > 0 else None
    if gaps is not None and _phases_fit(len(gaps.start), phases, servers):
        chain = levels.map_phc(gaps.onward, np.outer(gaps.ends, gaps.start), cast(Any, phases), servers)
        return replace(chain, model=f"PH/PH/{servers}")
    prediction = general.allen_cunneen(rate, law.mean, servers, arrival_scv=scv, service_scv=law.scv)
    # An scv of 1 does not make arrivals Poisson: never exact here, and the error was not measured.
    return replace(prediction, model=f"G/G/{servers} (Allen and Cunneen)", error=math.inf)


def _periodic(facts: Facts, arrivals: Any, law: Law) -> Match:
    """M/M/c under a rate that moves in a cycle."""
    key, period, servers = "workload.0.arrivals", arrivals.period, facts.servers
    _need(facts.suppose("the rate moves in a cycle", period is not None, f"{key}.period"),
          facts.suppose("the rate moves in steps", arrivals.between == "step", f"{key}.between"))  # fmt: skip
    facts.exponential(law)
    _need(facts.steady(facts.rate * law.mean, servers, law, memory=period))
    cycles = (facts.lasts - (0.0 if math.isnan(facts.warmup) else facts.warmup)) / period
    uncut = abs(cycles - round(cycles)) < 1e-6 and not math.isnan(facts.warmup)
    facts.suppose("the run without its warm-up is whole cycles", uncut, "horizon", f"{cycles:.4g}", soft=True,
                  error=1 / cycles)  # fmt: skip
    times, rates = zip(*arrivals.rate, strict=True)
    pieces = [(end - begin, rate) for begin, end, rate in zip(times, [*times[1:], period], rates, strict=True)]
    try:
        prediction = mmc_periodic(pieces, law.mean, servers)
    except UsageError as error:
        _need(facts.suppose(SMALL, False, f"{key}.period", str(error)))
    return _result(facts, prediction.model, prediction, _rows(facts, prediction, facts.rate * facts.law.mean, False))


def _phases_fit(states: int, phases: levels.PhaseType | None, servers: int) -> bool:
    """Return True if a chain of these phases takes about a second."""
    return phases is not None and levels.is_quick(states * levels.states_of(phases, servers), servers)


def _unlike(facts: Facts, model: str) -> Match:
    """M/M/c of unlike servers, the fastest free one first."""
    understood = facts.arrivals() & facts.recognized
    facts.open_door()
    facts.order(blind=False)
    modes, first = facts.modes, facts.modes[0]
    types = {mode.type for mode in modes}
    devices = len({(mode.on_cpu, mode.gpus, mode.millicores, mode.memory) for mode in modes}) == 1
    devices = devices and all(len(shape.modes) == len(types) == len(modes) for shape in facts.input.tasks.shapes)
    devices = devices and (first.on_cpu or all(mode.whole_devices for mode in modes))
    facts.suppose("a server is whole devices, as many of each type", devices, facts.customers[0].key, facts.shown_modes)
    facts.alone()
    slots = [[facts.slots(node, mode) for mode in modes] for node in facts.cluster.nodes]
    room = all(sum(here) * first.millicores <= node.cpus * 1000
               and (node.memory is None or sum(here) * first.memory <= node.memory)
               for here, node in zip(slots, facts.cluster.nodes, strict=True))  # fmt: skip
    facts.suppose("servers of a node do not wait for its cores or memory", room, "cluster.nodes")
    placement = facts.parameter("scheduler", "placement", None)
    facts.suppose("the fastest free server is taken", placement is None, "policy.scheduler.placement",
                  getattr(placement, "name", ""))  # fmt: skip
    drawn = [one.demand.cpu_time if first.on_cpu else one.demand.gpu_time for one in facts.customers]
    own = any(one.demand.modes or one.demand.typed_gpu_time or one.demand.scaling for one in facts.customers)
    timed = all(hasattr(one, "scv") for one in drawn) and not own and any(one.mean > 0 for one in drawn)
    facts.suppose("times are drawn, and differ by the speeds of types only", timed, facts.time_key)
    _need(understood, devices, timed)
    law = mixed((one.rate, law_of(each)) for one, each in zip(facts.customers, drawn, strict=True))
    facts.exponential(law)
    means = [law.mean / mode.type.speed for mode in modes]
    kinds = sorted((mean, sum(counts)) for mean, counts in zip(means, zip(*slots, strict=True), strict=True))
    servers = sum(count for _, count in kinds)
    states = math.prod(sorted(count + 1 for _, count in kinds)[:-1])
    _need(facts.suppose(SMALL, levels.is_quick(states, servers), "cluster.nodes"))
    mean = servers / sum(count / each for each, count in kinds)
    _need(facts.steady(facts.rate * mean, servers, law._replace(mean=mean)))
    prediction = levels.unlike_servers(facts.rate, kinds)
    rows = _rows(facts, prediction, prediction.utilization * servers, True)
    return _result(facts, prediction.model, prediction, rows)


def _gap_complement(arrivals: Any, rate: float, scv: float) -> Any:
    """E[1 - exp(-s gap)] of a renewal process of a workload."""
    if scv == 0:
        return lambda s: -math.expm1(-s / rate)
    if arrivals.family == "hyperexponential" or (arrivals.family == "auto" and scv > 1):
        share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
        return lambda s: sum(p * s / (2 * p * rate + s) for p in (share, 1 - share))
    return lambda s: -math.expm1(-math.log1p(s * scv / rate) / scv)


def _limited(facts: Facts, _: str) -> Match:
    """M/M/c/K by a limit on the queue."""
    limit = facts.parameter("admission", "limit", None)
    if limit == 0 and len({mode.gpus for mode in facts.modes}) > 1 and not any(mode.on_cpu for mode in facts.modes):
        return _gangs(facts)
    understood = facts.arrivals() & _common(facts)
    only = limit is not None and not any(facts.parameter("admission", key, None) for key in ("per_class", "per_device"))
    facts.suppose("one limit for all waiting tasks", only, "policy.admission", f"limit: {limit}")
    order = facts.one_by_one()
    _need(understood, only)
    law, servers = facts.law, facts.servers
    insensitive = limit == 0  # M/G/c/c
    if not insensitive:
        facts.exponential()
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    prediction = queues.mmck(facts.rate, law.mean, servers, servers + limit)
    model = f"M/G/{servers}/{servers}" if insensitive else prediction.model
    return _with_loss(facts, model, prediction, order == "fcfs")


def _gangs(facts: Facts) -> Match:
    """Gangs of several widths with loss, by Kaufman and Roberts."""
    understood = facts.arrivals() & facts.recognized & facts.sizes_known()
    facts.order()
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
    given = facts.policies.admission
    plain = given is not None and {*given.parameters} <= {"limit"}
    facts.suppose("one limit for all waiting tasks", plain, "policy.admission", "limit: 0")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have names of their own", len(set(labels)) == len(labels), "workload")
    _need(understood, alike, apart)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    facts.steady(0, servers, facts.law, bounded=True)
    losses = admission.kaufman_roberts(servers, [(one.rate, law.mean, one.demand.gpus or 1) for one, law in laws])
    rows = [PredictedRow("loss", lost, label) for lost, label in zip(losses.loss, labels, strict=True)]
    rows.append(PredictedRow(facts.busy_metric, losses.utilization))
    return _result(facts, "gangs with loss (Kaufman, Roberts)", None, rows)


def _bucket(facts: Facts, model: str) -> Match:
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
    _need(understood)
    return _result(facts, model, rows=[PredictedRow("loss", admission.token_bucket(facts.rate, refill, depth))])


def _trunks(facts: Facts, model: str) -> Match:
    """Trunk reservation by class."""
    understood = facts.arrivals() & _common(facts)
    facts.one_by_one()
    servers, given = facts.servers, facts.parameter("admission", "servers", None)
    if given is None and (mode := facts.mode) is not None and mode.width:  # as the policy counts them
        given = int(facts.cluster.count(mode.type.name) / mode.width + 1e-9)
    facts.suppose("all servers are counted", given in (None, servers), "policy.admission.servers", f"{given}")
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have names of their own", len(set(labels)) == len(labels), "workload")
    _need(understood, apart)
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
        _need(facts.suppose("the exact chain can be solved", False, "policy.admission.reserve", str(error)))
    rows = [PredictedRow("loss", lost, label) for lost, label in zip(losses.loss, labels, strict=True)]
    rows.append(PredictedRow(facts.busy_metric, facts.busy_share(losses.utilization * servers)))
    return _result(facts, model, rows=rows)


def _naor(facts: Facts, _: str) -> Match:
    """M/M/1/n, with Naor's threshold for n."""
    understood = facts.arrivals() & _common(facts)
    order = facts.one_by_one()
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    _need(understood, single)
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
    return _with_loss(facts, f"{prediction.model} (Naor, {objective})", prediction, order == "fcfs")


def _workload(facts: Facts, model: str) -> Match:
    """M/M/1 with a limit on the work ahead."""
    understood = facts.arrivals() & _common(facts)
    facts.one_by_one(blind=False)
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    _need(understood, single)
    law = facts.law
    facts.exponential()
    facts.steady(0, 1, law, bounded=True)
    prediction = admission.workload_limit(facts.rate, law.mean, float(facts.parameter("admission", "max_wait", 0.0)))
    return _with_loss(facts, model, prediction, True)


def _impatient(facts: Facts, _: str) -> Match:
    """M/M/c+M, or with no patience at all M/G/c/c."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.one_by_one(blind=False)
    given = [one.demand.patience for one in facts.customers]
    alike = all(one == given[0] for one in given)
    facts.suppose("one patience for all", alike, f"{facts.customers[0].key}.patience")
    _need(understood, alike)
    law, servers, patience = facts.law, facts.servers, law_of(given[0])
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    if patience.kind == "constant" and patience.mean <= declared.AT_ONCE * law.mean:
        prediction = queues.mmck(facts.rate, law.mean, servers, servers)
        leaving = facts.rate * prediction.loss * patience.mean  # they do wait, for as long as their patience
        present = prediction.jobs_in_system_mean + leaving
        prediction = replace(prediction, queue_length_mean=leaving, jobs_in_system_mean=present)
        return _with_loss(facts, f"M/G/{servers}/{servers} (Erlang B)", prediction, False)
    facts.exponential()
    facts.exponential(patience, "patience is exponential", f"{facts.customers[0].key}.patience")
    prediction = queues.mmc_abandonment(facts.rate, law.mean, servers, patience.mean)
    return _with_loss(facts, prediction.model, prediction, False)


def _closed(facts: Facts, _: str) -> Match:
    """The machine repair model, or several loops with one service."""
    entries = facts.model.workload
    loops: list[Any] = [entry.arrivals for entry in entries if getattr(entry.arrivals, "closed", False)]
    labels = [one.label for one in facts.customers]
    one = len(loops) == len(entries) and (len(loops) == 1 or len(labels) == len(set(labels)) == len(loops))
    facts.suppose("closed loops and nothing else, each of one class if several", one, "workload")
    changing = next((n for n, loop in enumerate(loops) if len(loop.changes) > 1), None)
    one = one and facts.suppose("the number of clients does not change", changing is None,
                                f"workload.{changing or 0}.arrivals.clients")  # fmt: skip
    understood = _common(facts)
    facts.open_door()
    order = facts.one_by_one(blind=len(loops) == 1)  # a random order keeps the number that a task drew
    _need(understood, one)
    law, servers = facts.law, facts.servers
    facts.exponential()
    horizon = facts.input.horizon
    clients, think = [loop.changes[0][1] for loop in loops], [law_of(loop.think).mean for loop in loops]
    facts.steady(0, servers, law, bounded=True)
    if len(loops) > 1:
        states = math.prod(count + 1 for count in clients)
        _need(facts.suppose("every loop has clients", min(clients) > 0, "workload"),
              facts.suppose(SMALL, states <= MAX_CLIENTS, "workload", f"{states:,} states"))  # fmt: skip
        solved = networks.closed_classes(clients, think, [law.mean] * len(loops), servers)
        throughputs, model = solved.throughput, f"closed loops of {len(loops)} classes, M/M/{servers}"
        by_class = zip(solved.response_mean, labels, strict=True)
        rows = [PredictedRow(RESPONSE_MEAN, each, label) for each, label in by_class]
        if order == "fcfs":
            rows += [PredictedRow(WAIT_MEAN, row.value - law.mean, row.class_) for row in rows]
        rows.append(PredictedRow(facts.busy_metric, facts.busy_share(solved.utilization * servers)))
    else:
        prediction = queues.closed_loop(clients[0], think[0], law.mean, servers)
        throughputs, model = (prediction.throughput,), prediction.model
        rows = _rows(facts, prediction, prediction.throughput * law.mean, order == "fcfs")
    for number, (entry, rate) in enumerate(zip(entries, throughputs, strict=True)):
        early = (entry.until or math.inf) < horizon
        bounded = math.isfinite(horizon) or len(loops) > 1  # else the run lasts as long as its tasks do
        early = early or (bounded and (entry.count or math.inf) < 1.2 * rate * horizon)
        key = f"workload.{number}.{'count' if entry.count else 'until'}"
        facts.suppose("clients send tasks to the end of the run", not early, key if early else "")
    return _result(facts, model, None, [*rows, PredictedRow(THROUGHPUT, sum(throughputs))])


def _faults(facts: Facts, model: str) -> Match:
    """M/G/1 and M/M/c whose GPUs fail and are repaired."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.one_by_one(blind=False)
    _need(understood)
    mode, fault, built = facts.only_mode, facts.model.faults[0], facts.input.faults
    servers, law = facts.servers, facts.law
    gpus = [device.index for node in facts.cluster.nodes for device in node.accelerators]
    alone = not mode.on_cpu and mode.gpus == 1 and mode.whole_devices and servers == len(gpus)
    facts.suppose("a server is one whole GPU", alone, f"{facts.customers[0].key}.gpus", str(mode))
    process = built[0] if len(built) == 1 and fault.on is not None else None
    fails = isinstance(process, FaultProcess) and sorted(process.devices) == gpus
    facts.suppose("each GPU fails by itself, and nothing else does", fails, "faults")
    _need(alone, fails)
    between, repair = law_of(fault.every), law_of(fault.repair)
    _need(facts.suppose("times to a fault are exponential", between.kind == "exponential", "faults.0.every"))
    interval = {shape.stopping.interval for shape in facts.input.tasks.shapes}
    lost = interval == {math.inf}
    key, share = f"{facts.customers[0].key}.stopping.interval", between.mean / (between.mean + repair.mean)
    load, memory = facts.rate * law.mean / share, 1 / (1 / between.mean + 1 / repair.mean)
    if lost and servers == 1:
        service = law.mean if law.kind == "constant" else facts.phases
        _need(facts.suppose("service has phases, or is constant", service is not None, facts.time_key, law.shown))
        given = cast(Any, service), between.mean, repair.mean
        try:
            prediction, mean, square = mg1_breakdowns(facts.rate, *given, repair.scv), *completion(*given, repair.scv)
        except UsageError as error:
            _need(facts.suppose("there is a mean response", False, "faults.0.every", str(error)))
        facts.suppose("waits have a variance", varies_finitely(*given[:2]), "faults.0.every", between.shown, soft=True,
                      error=math.inf)  # fmt: skip
        completes = law._replace(mean=mean, scv=square / mean**2 - 1)
        _need(facts.steady(prediction.load, 1, completes, memory=memory))
        rows = _predicted({WAIT_MEAN: prediction.wait_mean})
    else:
        _need(facts.suppose("work is kept at a fault, but for one interval", not lost, key, "all is lost"))
        facts.exponential()
        _need(facts.suppose("repairs are exponential", repair.kind == "exponential", "faults.0.repair", repair.shown))
        _need(facts.steady(load, servers, law, memory=memory))
        repeated = 2 * max(interval) / between.mean / (1 - load / servers)  # twice the load that is added, at most
        facts.suppose("no work is lost", False, key, f"at most {max(interval):g} s a fault", soft=True,
                      error=repeated if repeated <= declared.NEARLY else math.inf)  # fmt: skip
        _need(facts.suppose(SMALL, levels.is_quick(servers + 1, servers), "cluster.nodes", f"{servers} servers"))
        prediction = mmc_breakdowns(facts.rate, law.mean, servers, uptime_mean=between.mean, repair_mean=repair.mean)
        rows = []
    return _result(facts, prediction.model, prediction, [*rows, *_inside(prediction)])


def _inside(found: Prediction) -> list[PredictedRow]:
    """How many are in the system and for how long."""
    return _predicted({RESPONSE_MEAN: found.response_mean, "jobs_in_system_mean": found.jobs_in_system_mean})


def _setup(facts: Facts, model: str) -> Match:
    """M/G/1 on a GPU that sleeps when it was idle, and takes a while to wake."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.undisturbed()
    facts.one_in_flight()
    facts.free_taken()
    _need(understood)
    mode, law, rate = facts.only_mode, facts.law, facts.rate
    devices = [device for node in facts.cluster.nodes for device in node.accelerators]
    single = not mode.on_cpu and mode.whole_devices and facts.servers == len(devices) == 1
    _need(facts.suppose("there is one GPU, and a task has all of it", single, "cluster.nodes.gpus.count"))
    power, memory = mode.type.power, facts.parameter("scheduler", "memory", 3600.0)
    # What is asked for within the memory, less and less, and 6 deviations of it: a GPU is kept awake from 0.5 on.
    wanted = power.wake * (rate + 6 * math.sqrt(rate / 2 / memory) + 1 / memory)
    never = facts.parameter("scheduler", "safety", 1.0) == 0 and wanted < 0.5
    facts.suppose("the forecast keeps no GPU awake", never, "policy.scheduler.safety", f"wants up to {wanted:.2g}")
    _need(facts.suppose("the GPU saves energy asleep", power.sleep < power.idle, "cluster.nodes.gpus.power"))
    patience = facts.parameter("scheduler", "patience", None)
    after = power.wake * power.idle / (power.idle - power.sleep) if patience is None else patience
    _need(facts.steady(rate * law.mean, 1, law, memory=power.wake + after))
    prediction = mg1_setup(rate, law.mean, law.scv, power.wake, sleep_after=after)
    return _result(facts, prediction.model, prediction, _inside(prediction))


def _sharing(facts: Facts, model: str) -> Match:
    """M/G/1-PS on a GPU that shares by time slices."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    _need(understood)
    kind = facts.only_mode.type.sharing
    facts.suppose("the GPU shares by time slices, at no cost", kind.kind == "timeslice" and not kind.switch_cost,
                  "cluster.nodes.gpus.sharing", kind.kind)  # fmt: skip
    law = facts.law
    load = facts.rate * law.mean
    facts.one_gpu(load)
    _need(facts.steady(load, 1, law))
    prediction = general.mg1_ps(facts.rate, law.mean)
    rows = [*_rows(facts, prediction, load, False), PredictedRow("slowdown_mean", 1 / (1 - load))]
    return _result(facts, model, prediction, rows)


def _priorities(facts: Facts, model: str) -> Match:
    """Cobham's priorities, or preemptive-resume ones."""
    preemptive = bool(facts.parameter("scheduler", "preemptive", False))
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.undisturbed()
    facts.one_in_flight()
    facts.free_taken()
    aging = facts.parameter("scheduler", "aging", 0)
    facts.suppose("priorities do not change", not aging, "policy.scheduler.aging", f"{aging:g}/s")
    ranks = sorted({one.priority for one in facts.customers}, reverse=True)
    labels = [one.label for one in facts.customers]
    apart = len(ranks) == len(labels) == len(set(labels))
    facts.suppose("each class has a priority of its own", apart, "workload", ", ".join(map(str, ranks)))
    _need(understood, apart)
    servers = facts.servers
    ordered = sorted(facts.customers, key=lambda one: -one.priority)
    classes = [priorities.Class(one.rate, one.law.mean, one.law.scv) for one in ordered if one.law is not None]
    if servers > 1:
        kinds = {one.law for one in ordered}
        common = all(law is not None and law.kind == "exponential" for law in kinds)
        common = common and len(kinds) <= (2 if len(ordered) == 2 else 1)
        text = "at several servers: exponential service, the same for all or of two classes"
        _need(facts.suppose(text, common, facts.time_key, facts.law.shown))
    _need(facts.steady(facts.rate * facts.law.mean, servers, facts.law))
    if servers > 1 and len(kinds) > 1:
        quick = levels.are_quick(classes, servers, preemptive)
        _need(facts.suppose(SMALL, quick, "cluster.nodes", f"{servers} servers"))
    solve = priorities.preemptive_resume if preemptive else priorities.nonpreemptive
    rows = []
    for one, prediction in zip(ordered, solve(classes, servers), strict=True):
        if not preemptive:  # suspended time is not part of the simulator's wait
            rows.append(PredictedRow(WAIT_MEAN, prediction.wait_mean, one.label))
        rows.append(PredictedRow(RESPONSE_MEAN, prediction.response_mean, one.label))
    load = facts.rate * facts.law.mean
    return _result(facts, model.replace("M/G/1", "M/G/1" if servers == 1 else f"M/M/{servers}"), None,
                   [*rows, PredictedRow(facts.busy_metric, facts.busy_share(load))])  # fmt: skip


def _by_size(facts: Facts, _: str) -> Match:
    """M/G/1 in the order of sizes, remaining times or attained service."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.undisturbed()
    facts.one_in_flight()
    facts.free_taken()
    discipline = str(facts.parameter("scheduler", "discipline", "block"))
    facts.suppose("the first of the order is next", "keep" not in discipline, "policy.scheduler.discipline", discipline)
    _need(understood)
    text = f"{facts.servers} servers" if facts.servers != 1 else facts.policies.scheduler.name
    single = facts.suppose("one server has this order", facts.servers == 1, "policy.scheduler", text)
    densities = [density_of(*one.timing) if one.timing else None for one in facts.customers]
    smooth = facts.suppose("times have a density that is known", None not in densities, facts.time_key, facts.law.shown)
    law, rate = facts.law, facts.rate
    _need(single, smooth)
    _need(facts.steady(rate * law.mean, 1, law))
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
    rows += _predicted({
        "slowdown_mean": None if math.isnan(prediction.slowdown_mean) else prediction.slowdown_mean,
        "jobs_in_system_mean": prediction.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(rate * law.mean),
    })  # fmt: skip
    return _result(facts, prediction.model, prediction, rows)


def _tandem(facts: Facts, _: str) -> Match:
    """Upload, compute and download as stations in a row."""
    understood = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.undisturbed()
    facts.order(blind=False)
    _need(understood)
    facts.links_alone()
    stages = {
        "upload": facts.transfer("bytes_in", facts.customers),
        "compute": facts.law,
        "download": facts.transfer("bytes_out", facts.customers),
    }
    used = {name: law for name, law in stages.items() if law.mean > 0}
    for name, law in used.items():
        facts.exponential(law, f"{name} is exponential", _STAGE_KEYS[name].format(facts.customers[0].key))
    slowest = max(used.values(), key=lambda law: law.mean)
    facts.one_gpu(facts.rate * slowest.mean, soft=True)
    _need(facts.steady(facts.rate * slowest.mean, 1, slowest))
    network = networks.tandem(facts.rate, [networks.Station(law.mean, 1, name) for name, law in used.items()])
    exponential = all(law.kind == "exponential" for law in used.values())
    rows = _predicted({
        RESPONSE_MEAN: network.response_mean,
        "response_p95": network.response_percentile(0.95) if exponential else None,
        "jobs_in_system_mean": network.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(facts.rate * facts.law.mean),
    })  # fmt: skip
    return _result(facts, f"tandem of M/M/1: {' → '.join(used)}", None, rows)


_STAGE_KEYS = {"upload": "{}.bytes_in", "compute": "{}.gpu_time", "download": "{}.bytes_out"}


def _services(facts: Facts, model: str) -> Match:
    """Greedy batch service on one device."""
    one = len(facts.model.workload) == 1
    facts.suppose("one service and nothing else", one, "workload", f"{len(facts.model.workload)} entries")
    facts.suppose("requests are served in batches", not facts.input.language, "workload.0.service.kind",
                  "a language model" if facts.input.language else "batches")  # fmt: skip
    facts.arrivals()
    batching = facts.policies.of_service.get(0, facts.policies.batching)
    name = "serial_greedy" if batching is None else batching.name
    greedy = facts.declared("batching", name) == declared.GREEDY
    facts.suppose("an idle device takes all waiting requests", greedy, "policy.batching", name)
    facts.open_door()
    facts.order()
    _need(facts.recognized, not facts.input.language, len(facts.input.services) == 1, one)
    mode, service = facts.only_mode, facts.input.services[0]
    facts.suppose("there is one device", facts.cluster.count(mode.type.name) == 1, "cluster.nodes",
                  facts.cluster.describe())  # fmt: skip
    facts.suppose("all requests take the same", service.alike, "workload.0.service.compute.per_item",
                  "" if service.alike else "drawn", soft=True)  # fmt: skip
    facts.suppose("stage times have no noise", not service.noise, "workload.0.service.noise", f"{service.noise:g}",
                  soft=True)  # fmt: skip
    weights = getattr(facts.model.workload[0].service, "model", None)
    facts.suppose("the model is loaded already", not weights, "workload.0.service.model",
                  "weights to load" if weights else "", soft=True)  # fmt: skip
    per_item, fixed = _line_of_batches(facts, mode, service.per_item[0])
    largest = min(limit for limit in (mode.batch_limit, batching and batching.parameters.get("max_batch")) if limit)
    max_batch: int | None = largest if largest <= UNLIMITED else None
    rate = facts.rate
    load = rate * per_item if max_batch is None else rate * (per_item + fixed / max_batch)
    _need(facts.steady(load, 1, Law(per_item + fixed, 0.0, "constant")))
    _need(*(a.holds or a.soft for a in facts.assumptions))
    try:
        prediction = batches.greedy_batches(rate, per_item, fixed, max_batch)
    except UsageError as error:
        _need(facts.suppose(SMALL, False, "workload.0.arrivals.rate", str(error)))
    computing = rate * (service.per_item[0] + mode.fixed / prediction.batch_mean)
    rows = [row for row in _rows(facts, prediction, computing, True) if row.metric != "wait_p95" or max_batch is None]
    largest = f"b = {max_batch}" if max_batch is not None else "no largest batch"
    return _result(facts, f"{model} with {largest}", prediction, rows)


UNLIMITED = 1_000_000
"""Batches that may be larger than this have no limit in the formula."""


def _line_of_batches(facts: Facts, mode: Mode, own: float) -> tuple[float, float]:
    """Return seconds by request and by batch; Unmatched where batches take others."""
    measured = any(isinstance(stage, StageTable) for stage in (mode.upload, mode.table, mode.download))
    per_item = mode.upload.per_item + own + mode.download.per_item
    fixed = mode.upload.fixed + mode.fixed + mode.download.fixed
    sizes = range(1, min(mode.batch_limit, SIZES) + 1)
    off = [n for n in sizes if not math.isclose(mode.stages(n, n * own).total, n * per_item + fixed, rel_tol=1e-9)]
    text = "measured by size" if measured else f"a batch of {off[0]} takes another time" if off else ""
    _need(facts.suppose("batch time is linear in batch size", not text, "workload.0.service.compute", text))
    return per_item, fixed


SIZES = 64
"""Batch sizes at which the line is compared with the clock."""

BY_SIZE = {declared.SHORTEST: "sjf", declared.REMAINING: "srtf", declared.ATTAINED: "las"}
"""Families of models of which the scheduler decides."""

BY_ADMISSION = {declared.LIMIT: "limit", declared.BUCKET: "bucket", declared.TRUNKS: "trunks", declared.TOLLS: "naor"}
"""Families of models of which the admission decides."""

Solve = Callable[[Facts, str], Match]
FAMILIES: dict[str, tuple[str, Solve]] = {
    "delay": ("G/G/c, first come, first served", _delay),
    "unlike": ("M/M/c of unlike servers", _unlike),
    "tandem": ("tandem of M/M/1: upload → compute → download", _tandem),
    "sharing": ("M/G/1-PS", _sharing),
    "priorities": ("M/G/1 with non-preemptive priorities", _priorities),
    "preemptive": ("M/G/1 with preemptive-resume priorities", _priorities),
    **{name: (f"M/G/1, {order}", _by_size) for order, name in BY_SIZE.items()},
    "limit": ("M/M/c/K", _limited),
    "bucket": ("token bucket with Poisson arrivals (M/D/1/b): loss only", _bucket),
    "trunks": ("trunk reservation, M/M/c/c of several classes", _trunks),
    "naor": ("M/M/1 with Naor's threshold", _naor),
    "work": ("M/M/1 with a limit on the work ahead", _workload),
    "patience": ("M/M/c+M", _impatient),
    "closed": ("closed loop, M/M/c//N", _closed),
    "faults": ("M/M/c with breakdowns", _faults),
    "setup": ("M/G/1 with set-up", _setup),
    "batches": ("greedy batches, M/D^[1,b]/1", _services),
}
"""By the names under which `hetsim.scenario.readers` has the keys that they understand: what each is called where it
gives no figures, and how it is solved."""
