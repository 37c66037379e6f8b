"""Models of services: greedy batches on one device, and lines that requests choose."""

from __future__ import annotations

import math
from typing import Any, cast

from hetsim.errors import UsageError
from hetsim.model.batch_times import StageTable
from hetsim.model.tasks import Mode
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Facts, Law, Match, law_of
from hetsim.queueing.families import SMALL, matched, require, rows_of
from hetsim.theory import batches
from hetsim.theory.routing import MAX_CHAIN, power_of_choices


def shorter_lines(facts: Facts, _: str) -> Match:
    """Replicas that serve one request after the other, and a router by the length of their lines."""
    entries = facts.model.workload
    one = facts.suppose("one service and nothing else", len(entries) == 1, "workload", f"{len(entries)} entries")
    facts.arrivals()
    facts.open_door()
    facts.order(blind=False)
    require(facts.recognized, one)
    service, model, (key, output) = cast(Any, entries[0].service), facts.input.language[0], _answers(facts)
    own = facts.policies.routing_of.get(0)
    given = own or facts.policies.routing
    name = "least_outstanding" if given is None else given.name
    lines, routing = model.kinds[0].replicas, facts.declared("routing", name)
    place = f"{key}.service.routing" if own else "policy.routing"
    choices = 2 if routing == declared.SHORTER else lines
    known = routing == declared.SHORTER or (routing == declared.SHORTEST_LINE and lines <= MAX_CHAIN)
    known = facts.suppose(f"the shorter of two lines is joined, or the shortest of {MAX_CHAIN}", known, place, name)
    single = facts.suppose("a replica serves one request after the other", model.max_sequences == 1,
                           f"{key}.service.max_num_seqs", f"{model.max_sequences}")  # fmt: skip
    require(known, single)
    law = output.times(service.step.fixed)
    facts.exponential(law, "answers are exponential", f"{key}.tokens.output")
    load = facts.rate * law.mean
    require(facts.steady(load / lines, 1, law))
    facts.suppose("answers of any length, not of whole tokens", False, f"{key}.tokens.output",
                  f"mean {output.mean:g}", soft=True, error=2 / output.mean**2 / (1 - load / lines))  # fmt: skip
    prediction = power_of_choices(facts.rate, law.mean, lines, min(choices, lines))
    return matched(facts, prediction.model, prediction, rows_of(facts, prediction, load, False))


def _answers(facts: Facts) -> tuple[str, Law]:
    """The one kind of requests: its key, and how many tokens their answers have."""
    kind, tokens = facts.customers[0], facts.customers[0].demand.tokens
    alike = len(facts.customers) == 1 and tokens is not None and hasattr(tokens.output, "scv")
    require(facts.suppose("there is one kind of requests", alike, f"{kind.key}.tokens"))
    return kind.key, law_of(tokens.output)


def greedy_services(facts: Facts, model: str) -> Match:
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
    require(facts.recognized, not facts.input.language, len(facts.input.services) == 1, one)
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
    require(facts.steady(load, 1, Law(per_item + fixed, 0.0, "constant")))
    require(*(a.holds or a.soft for a in facts.assumptions))
    try:
        prediction = batches.greedy_batches(rate, per_item, fixed, max_batch)
    except UsageError as error:
        require(facts.suppose(SMALL, False, "workload.0.arrivals.rate", str(error)))
    computing = rate * (service.per_item[0] + mode.fixed / prediction.batch_mean)
    rows = [row for row in rows_of(facts, prediction, computing, True) if row.metric != "wait_p95" or max_batch is None]
    largest = f"b = {max_batch}" if max_batch is not None else "no largest batch"
    return matched(facts, f"{model} with {largest}", prediction, rows)


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
    require(facts.suppose("batch time is linear in batch size", not text, "workload.0.service.compute", text))
    return per_item, fixed


SIZES = 64
"""Batch sizes at which the line is compared with the clock."""
