"""The model of services: greedy batches on one device."""

from __future__ import annotations

import math

from hetsim.errors import UsageError
from hetsim.model.batch_times import StageTable
from hetsim.model.tasks import Mode
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Facts, Law, Match
from hetsim.queueing.families import SMALL, matched, require, rows_of
from hetsim.theory import batches


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
