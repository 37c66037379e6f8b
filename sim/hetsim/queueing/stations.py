"""Models of equal servers without loss: queues, closed loops, batches, replicas."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.batch_times import StageTable
from hetsim.model.mode import Mode
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Facts, Law, Match, PredictedRow, law_of
from hetsim.queueing.families import SMALL, WAIT_P95, matched, moves_data, require, rows_of, sized_tasks
from hetsim.results.declared import RESPONSE_MEAN, THROUGHPUT, WAIT_MEAN
from hetsim.theory import batches, general, levels, networks, queues
from hetsim.theory.prediction import Prediction
from hetsim.theory.routing import MAX_CHAIN, power_of_choices
from hetsim.theory.transient import mmc_periodic

MAX_CLIENTS = 1_000_000  # states of closed loops that take about a second


def delay(facts: Facts, _: str) -> Match:
    """Match the scenario to an exact model without loss, or else to G/G/c."""
    require(facts.arrivals(("poisson", "renewal", "deterministic", "mmpp", "piecewise_poisson")))
    moves = moves_data(facts)
    understood = sized_tasks(facts)
    facts.open_door()
    order = facts.one_by_one()
    require(understood)
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
            facts.suppose("service is phase-type", True, facts.time_key, law.shown)
        else:
            facts.exponential(law)
        more, memory = levels.modulation(arrivals.rates, arrivals.switching_rates)
        varied = law._replace(scv=law.scv + more)
    elif getattr(arrivals, "process", None) == "renewal":
        varied = law._replace(scv=law.scv + max(0.0, float(arrivals.scv) - 1))
    require(facts.steady(rate * law.mean, servers, varied, memory=memory))
    prediction = _delay_system(facts, rate, law, servers, phases=phases)
    if law.kind == "general" and servers == 1 and order == "blind":
        prediction = replace(prediction, wait_above=None, response_above=None)
    rows = rows_of(facts, prediction, rate * compute.mean, order == "fcfs")
    return matched(facts, prediction.model, prediction, rows)


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
    key, period, servers = "workload.0.arrivals", arrivals.period, facts.servers
    require(facts.suppose("the rate moves in a cycle", period is not None, f"{key}.period"),
          facts.suppose("the rate moves in steps", arrivals.between == "step", f"{key}.between"))  # fmt: skip
    facts.exponential(law)
    require(facts.steady(facts.rate * law.mean, servers, law, memory=period))
    cycles = (facts.lasts - (0.0 if math.isnan(facts.warmup) else facts.warmup)) / period
    uncut = abs(cycles - round(cycles)) < 1e-6 and not math.isnan(facts.warmup)
    facts.suppose("the run after its warm-up is whole cycles", uncut, "horizon", f"{cycles:.4g}", soft=True,
                  error=1 / cycles)  # fmt: skip
    times, rates = zip(*arrivals.rate, strict=True)
    pieces = [(end - begin, rate) for begin, end, rate in zip(times, [*times[1:], period], rates, strict=True)]
    try:
        prediction = mmc_periodic(pieces, law.mean, servers)
    except UsageError as error:
        require(facts.suppose(SMALL, False, f"{key}.period", str(error)))
    return matched(facts, prediction.model, prediction, rows_of(facts, prediction, facts.rate * facts.law.mean, False))


def _phases_fit(arrival_states: int, phases: levels.PhaseType | None, servers: int) -> bool:
    """Return True if phases exist and the chain can be solved in about a second."""
    return phases is not None and levels.is_quick(arrival_states * levels.states_of(phases, servers), servers)


def _gap_complement(arrivals: Any, rate: float, scv: float) -> Any:
    """Return the function s -> E[1 - exp(-s G)] of the times G between arrivals."""
    if scv == 0:
        return lambda s: -math.expm1(-s / rate)
    if arrivals.family == "hyperexponential" or (arrivals.family == "auto" and scv > 1):
        share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
        return lambda s: sum(p * s / (2 * p * rate + s) for p in (share, 1 - share))
    return lambda s: -math.expm1(-math.log1p(s * scv / rate) / scv)


def closed(facts: Facts, _: str) -> Match:
    """Match one closed loop to the machine repair model, several to a product form."""
    entries = facts.model.workload
    loops: list[Any] = [entry.arrivals for entry in entries if getattr(entry.arrivals, "closed", False)]
    labels = [one.label for one in facts.customers]
    one = len(loops) == len(entries) and (len(loops) == 1 or len(labels) == len(set(labels)) == len(loops))
    facts.suppose("all arrivals are closed loops, each of one class if several", one, "workload")
    changing = next((n for n, loop in enumerate(loops) if len(loop.changes) > 1), None)
    one = one and facts.suppose("the number of clients does not change", changing is None,
                                f"workload.{changing or 0}.arrivals.clients")  # fmt: skip
    understood = sized_tasks(facts)
    facts.open_door()
    order = facts.one_by_one(blind=len(loops) == 1)  # a random order keeps the number that a task drew
    require(understood, one)
    law, servers = facts.law, facts.servers
    facts.exponential()
    horizon = facts.input.horizon
    clients, think = [loop.changes[0][1] for loop in loops], [law_of(loop.think).mean for loop in loops]
    facts.steady(0, servers, law, bounded=True)
    if len(loops) > 1:
        states = math.prod(count + 1 for count in clients)
        require(facts.suppose("every loop has at least one client", min(clients) > 0, "workload"),
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
        rows = rows_of(facts, prediction, prediction.throughput * law.mean, order == "fcfs")
    for number, (entry, rate) in enumerate(zip(entries, throughputs, strict=True)):
        early = (entry.until or math.inf) < horizon
        bounded = math.isfinite(horizon) or len(loops) > 1  # else the run lasts as long as its tasks do
        early = early or (bounded and (entry.count or math.inf) < 1.2 * rate * horizon)
        key = f"workload.{number}.{'count' if entry.count else 'until'}"
        facts.suppose("clients send tasks to the end of the run", not early, key if early else "")
    return matched(facts, model, None, [*rows, PredictedRow(THROUGHPUT, sum(throughputs))])


def shorter_lines(facts: Facts, _: str) -> Match:
    """Match the scenario to replicas whose router joins the shortest of d queues."""
    facts.arrivals()
    facts.open_door()
    facts.order(blind=False)
    key, kinds = "workload.0", facts.customers
    tokens: Any = kinds[0].demand.tokens if len(kinds) == 1 else None
    alike = facts.suppose("all requests are of one class", hasattr(getattr(tokens, "output", None), "scv"), "workload")
    require(facts.recognized, facts.one_way(), alike)
    service: Any = facts.model.workload[0].service
    model, given = facts.input.language[0], facts.policies.routing_of.get(0, facts.policies.routing)
    name = "least_outstanding" if given is None else given.name
    lines, routing = model.kinds[0].replicas, facts.declared("routing", name)
    pair = routing == declared.SHORTER
    routed = facts.suppose(f"requests join the shorter of two queues, or the shortest of {MAX_CHAIN}",
                           pair or (routing == declared.SHORTEST_LINE and lines <= MAX_CHAIN),
                           f"{key}.service.routing" if service.routing else "policy.routing", name)  # fmt: skip
    require(routed, facts.suppose("a replica serves one request after the other", model.max_sequences == 1,
                                  f"{key}.service.max_num_seqs", f"{model.max_sequences}"))  # fmt: skip
    output = law_of(tokens.output)
    law = output.times(service.step.fixed)
    facts.exponential(law, "answers are exponential", f"{key}.tokens.output")
    load = facts.rate * law.mean
    require(facts.steady(load / lines, 1, law))
    facts.suppose("answers are not rounded to whole tokens", False, f"{key}.tokens.output",
                  f"mean {output.mean:g}", soft=True, error=2 / output.mean**2 / (1 - load / lines))  # fmt: skip
    prediction = power_of_choices(facts.rate, law.mean, lines, min(2, lines) if pair else lines)
    return matched(facts, prediction.model, prediction, rows_of(facts, prediction, load, False))


def greedy_services(facts: Facts, model: str) -> Match:
    """Match the scenario to greedy batch service on one device."""
    one = len(facts.model.workload) == 1
    facts.suppose("one service is the whole workload", one, "workload", f"{len(facts.model.workload)} entries")
    facts.suppose("requests are served in batches", not facts.input.language, "workload.0.service.kind",
                  "a language model" if facts.input.language else "batches")  # fmt: skip
    facts.arrivals()
    batching = facts.policies.of_service.get(0, facts.policies.batching)
    name = "serial_greedy" if batching is None else batching.name
    greedy = facts.declared("batching", name) == declared.GREEDY
    facts.suppose("an idle device starts all waiting requests as one batch", greedy, "policy.batching", name)
    facts.open_door()
    facts.order()
    require(facts.recognized, not facts.input.language, len(facts.input.services) == 1, one)
    mode, service = facts.only_mode, facts.input.services[0]
    facts.suppose("there is one device", facts.cluster.count(mode.type.name) == 1, "cluster.nodes",
                  facts.cluster.describe())  # fmt: skip
    facts.suppose("all requests have the same service time", service.alike, "workload.0.service.compute.per_item",
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
    require(facts.steady(load, 1, Law(per_item + fixed, 0.0, "constant")))
    require(*(a.holds or a.soft for a in facts.assumptions))
    try:
        prediction = batches.greedy_batches(rate, per_item, fixed, max_batch)
    except UsageError as error:
        require(facts.suppose(SMALL, False, "workload.0.arrivals.rate", str(error)))
    computing = rate * (service.per_item[0] + mode.fixed / prediction.batch_mean)
    rows = [row for row in rows_of(facts, prediction, computing, True) if row.metric != WAIT_P95 or max_batch is None]
    largest = f"b = {max_batch}" if max_batch is not None else "no largest batch"
    return matched(facts, f"{model} with {largest}", prediction, rows)


UNLIMITED = 1_000_000  # batches that may be larger than this have no limit in the formula


def _line_of_batches(facts: Facts, mode: Mode, own: float) -> tuple[float, float]:
    measured = any(isinstance(stage, StageTable) for stage in (mode.upload, mode.table, mode.download))
    per_item = mode.upload.per_item + own + mode.download.per_item
    fixed = mode.upload.fixed + mode.fixed + mode.download.fixed
    sizes = range(1, min(mode.batch_limit, SIZES) + 1)
    off = [n for n in sizes if not math.isclose(mode.stages(n, n * own).total, n * per_item + fixed, rel_tol=1e-9)]
    text = "measured by size" if measured else f"the time of a batch of {off[0]} is off the line" if off else ""
    require(facts.suppose("batch time is linear in batch size", not text, "workload.0.service.compute", text))
    return per_item, fixed


SIZES = 64  # batch sizes at which the line is compared with the clock
