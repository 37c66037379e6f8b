"""Which exact model a scenario is, or comes near to: its assumptions one by one, and what it predicts.

A scenario suggests one model: services batches, several priorities Cobham's formula, a limit on the queue M/M/c/K, and
so on.  Each assumption of that model is then looked up in the scenario, with the key that decides it.  Where a hard one
fails there is no prediction; where only soft ones fail (a service that is not quite exponential, a short warm-up) it is
given as near.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.errors import UsageError
from sim.theory import admission, batches, general, networks, priorities, queues, tolls
from sim.theory.prediction import Prediction

if TYPE_CHECKING:
    from sim.model.tasks import Mode
    from sim.results.statistics import Interval
    from sim.scenario.scenario import Scenario

BLIND = ("lcfs", "random")
"""Orders that look at no sizes, besides the order of arrival: the same means."""

PLACEMENTS = ("best_fit", "earliest_finish", "fastest_device", "first_fit", "worst_fit")
"""Those that leave no task waiting where devices are equal and one is free."""

IN_ORDER = ("fcfs", "fcfs_skip")

AT_ONCE = 1e-3
"""Patience below this part of a service is none."""

MANY_STREAMS = 16

STABLE = "the load is below 1"


class Assumption(NamedTuple):
    """What a model supposes; `key` is that of the scenario which decides, `found` what stands there."""

    text: str
    holds: bool
    key: str = ""
    found: str = ""
    soft: bool = False
    """Where it fails the prediction is still near."""


class Row(NamedTuple):
    """A predicted figure: a metric of the simulator, of one class or of all."""

    metric: str
    value: float
    class_: str = ""


@dataclass
class Match:
    """A scenario seen through a model."""

    model: str
    assumptions: list[Assumption]
    rows: list[Row] = field(default_factory=list)
    approximate: bool = False

    @property
    def verdict(self) -> str:
        """matches, nearly (an approximation, or soft assumptions fail) or none."""
        if any(not one.holds and not one.soft for one in self.assumptions):
            return "none"
        if self.approximate or any(not one.holds for one in self.assumptions):
            return "nearly"
        return "matches"

    @property
    def failed(self) -> list[Assumption]:
        return [one for one in self.assumptions if not one.holds]


class Law(NamedTuple):
    """What is known of a distribution: exponential, constant or general, with two moments."""

    mean: float
    scv: float
    kind: str

    def times(self, factor: float) -> Law:
        return Law(self.mean * factor, self.scv, self.kind)

    def plus(self, other: Law) -> Law:
        """The sum with an independent one."""
        if other.mean == 0:
            return self
        if self.mean == 0:
            return other
        mean = self.mean + other.mean
        variance = self.scv * self.mean**2 + other.scv * other.mean**2
        return Law(mean, variance / mean**2, "constant" if variance == 0 else "general")

    @property
    def shown(self) -> str:
        from sim.results.wording import seconds

        more = f", scv {self.scv:.3g}" if self.kind == "general" else ""
        return f"{self.kind}, mean {seconds(self.mean)}{more}"


NOTHING = Law(0.0, 0.0, "constant")


def law_of(distribution: Any) -> Law:
    scv = float(distribution.scv)
    named = getattr(distribution, "distribution", "")
    memoryless = named == "exponential" or (named in ("gamma", "weibull") and abs(scv - 1) < 1e-12)
    kind = "constant" if scv == 0 else "exponential" if memoryless else "general"
    return Law(float(distribution.mean), scv, kind)


def mixed(parts: Iterable[tuple[float, Law]]) -> Law:
    """One of several, by their weights."""
    known = [(weight, law) for weight, law in parts if weight > 0]
    if all(law == known[0][1] for _, law in known):
        return known[0][1]
    total = sum(weight for weight, _ in known)
    mean = sum(weight * law.mean for weight, law in known) / total
    second = sum(weight * law.mean**2 * (1 + law.scv) for weight, law in known) / total
    return Law(mean, second / mean**2 - 1, "general")


class Customers(NamedTuple):
    """Tasks of one kind: a class of an entry, or the entry."""

    label: str
    rate: float
    demand: Any
    key: str
    law: Law | None
    priority: float


class Facts:
    """What a scenario says, as far as models ask."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.model = scenario.model
        self.input = scenario.build()
        self.cluster = self.input.cluster
        self.policies = scenario.policies
        self.assumptions: list[Assumption] = []

    def suppose(self, text: str, holds: bool, key: str = "", found: str = "", soft: bool = False) -> bool:
        self.assumptions.append(Assumption(text, bool(holds), key, found, soft))
        return bool(holds)

    # Customers

    @cached_property
    def customers(self) -> list[Customers]:
        from sim.scenario.build import entry_names

        found = []
        names = entry_names(self.scenario.document.data.get("workload") or [])
        for number, entry in enumerate(self.model.workload):
            key, name = f"workload.{number}", names[number] or f"stream{number}"
            arrivals: Any = entry.arrivals
            rate = 0.0 if arrivals is None or arrivals.closed else arrivals.rate_mean or 0.0
            kinds = [(one.over(entry), one.weight, f"{key}.classes.{k}") for k, one in enumerate(entry.classes or ())]
            kinds = kinds or [(entry, 1.0, key)]
            total = sum(weight for _, weight, _ in kinds)
            for demand, weight, where in kinds:
                if weight > 0:
                    label, law, priority = demand.class_ or name, self._law(demand), demand.priority or 0.0
                    found.append(Customers(label, rate * weight / total, demand, where, law, priority))
        return found

    @property
    def rate(self) -> float:
        return sum(one.rate for one in self.customers)

    @cached_property
    def mode(self) -> Mode | None:
        """The one way to run that all tasks have in common; None if there are several."""
        shapes = {id(mode): mode for shape in self.input.tasks.shapes for mode in shape.modes}
        return next(iter(shapes.values())) if len(shapes) == 1 else None

    def _law(self, demand: Any) -> Law | None:
        """Computing time in the one mode; None where no distribution says it."""
        mode = self.mode
        if mode is None or demand.work or demand.profile or demand.scaling:
            return None
        kind = mode.type
        if demand.modes is not None:
            way = demand.modes[0]
            if way.time is None or not hasattr(way.time, "scv"):
                return None
            return law_of(way.time).times(1.0 if way.device == kind.name != kind.kind else 1 / kind.speed)
        if mode.on_cpu:
            given = demand.cpu_time
            return law_of(given).times(1 / kind.speed) if hasattr(given, "scv") else None
        for name in (kind.name, kind.kind):
            typed = demand.typed_gpu_time.get(f"gpu_time.{name}")
            if typed is not None:
                return law_of(typed)
        return None if demand.gpu_time is None else law_of(demand.gpu_time).times(1 / kind.speed)

    @property
    def law(self) -> Law:
        return mixed((one.rate or 1.0, one.law) for one in self.customers if one.law is not None)

    @cached_property
    def servers(self) -> int:
        """How many tasks can run at once."""
        mode = self.mode
        return 0 if mode is None else sum(self._slots(node, mode) for node in self.cluster.nodes)

    @staticmethod
    def _slots(node: Any, mode: Mode) -> int:
        room = math.inf
        if mode.cpus:
            room = min(room, node.cpus * 1000 // mode.cpus)
        if mode.memory and node.memory is not None:
            room = min(room, node.memory // mode.memory)
        if mode.on_cpu:
            return int(room) if node.cpu.type is mode.type else 0
        devices = [device for device in node.accelerators if device.type is mode.type]
        if mode.gpus > 1:
            return int(min(room, len(devices) // mode.gpus))
        each = 1 if mode.whole else 1_000_000 // mode.share
        if mode.gpu_memory and mode.type.memory is not None:
            each = min(each, mode.type.memory // mode.gpu_memory)
        return int(min(room, len(devices) * each))

    @property
    def busy_metric(self) -> str:
        return "cpu_utilisation" if self.mode is not None and self.mode.on_cpu else "gpu_utilisation"

    def busy_share(self, computing: float) -> float:
        """The metric from the mean number of tasks that compute."""
        mode = self.mode
        assert mode is not None
        if mode.on_cpu:
            return computing * mode.width / sum(node.cpus for node in self.cluster.nodes)
        return computing * mode.width / sum(len(node.accelerators) for node in self.cluster.nodes)

    # Assumptions that several models share

    def arrivals(self, allowed: tuple[str, ...] = ("poisson",)) -> bool:
        self._all_the_time()
        text = {"poisson": "arrivals are Poisson"}.get(allowed[0]) if len(allowed) == 1 else None
        holds, key, shown = True, "", []
        for number, entry in enumerate(self.model.workload):
            here = f"workload.{number}"
            kind = "a trace" if entry.trace is not None else entry.arrivals.process  # type: ignore[union-attr]
            shown.append(kind)
            if kind not in allowed and holds:
                holds, key = False, f"{here}.trace" if entry.trace is not None else f"{here}.arrivals.process"
        if len(shown) > 1 and holds and set(shown) != {"poisson"}:
            holds, key = False, "workload"
        return self.suppose(
            text or "arrivals are Poisson, or one stream with independent gaps",
            holds, key or "workload.0.arrivals.process", ", ".join(dict.fromkeys(shown)),
        )  # fmt: skip

    def _all_the_time(self) -> None:
        """Every stream goes on as long as the run."""
        text = "arrivals go on at one rate to the end"
        entries = self.model.workload
        ends = [min(math.inf if entry.until is None else entry.until, self.input.horizon) for entry in entries]
        for number, (entry, end) in enumerate(zip(entries, ends, strict=True)):
            if len(entries) > 1 and (entry.count is not None or end != ends[0]):
                key = "until" if entry.count is None else "count"
                self.suppose(text, False, f"workload.{number}.{key}", "streams of different length")
                return
        early = math.isfinite(self.input.horizon) and self.last_arrival < 0.9 * self.input.horizon
        key = "until" if entries[0].count is None else "count"
        shown = f"the last at {self.last_arrival:.6g} s" if early else ""
        self.suppose(text, not early, f"workload.0.{key}" if early else "", shown, soft=True)

    def one_way(self) -> bool:
        """All tasks run in one mode on equal devices."""
        if self.mode is not None:
            return self.suppose("all tasks run in the same way on equal devices", True, "cluster.nodes", str(self.mode))
        modes = list(dict.fromkeys(str(mode) for shape in self.input.tasks.shapes for mode in shape.modes))
        key = "cluster.nodes"
        for one in self.customers:
            given = one.demand
            named = [k for k in ("scaling", "modes", "cpu_time") if getattr(given, k)]
            if named and len(modes) > 1:
                key = f"{one.key}.{named[0]}"
                break
            if given.gpus is not None or given.cpus is not None:
                key = f"{one.key}.{'gpus' if given.gpus is not None else 'cpus'}"
        return self.suppose("all tasks run in the same way on equal devices", False, key, ", ".join(modes[:4]))

    def sizes_known(self) -> bool:
        for one in self.customers:
            if one.law is None:
                given = ("profile", "work", "scaling", "modes", "cpu_time")
                key = next((k for k in given if getattr(one.demand, k)), "")
                return self.suppose("times are drawn from a distribution", False, f"{one.key}.{key}".rstrip("."), "")
        return self.suppose("times are drawn from a distribution", True, self.time_key, self.law.shown)

    @property
    def time_key(self) -> str:
        one = self.customers[0]
        mode = self.mode
        name = "cpu_time" if mode is not None and mode.on_cpu else "gpu_time"
        return f"{one.key}.{'modes' if one.demand.modes else name}"

    def exponential(self, law: Law | None = None, what: str = "service is exponential", key: str = "") -> bool:
        law = self.law if law is None else law
        return self.suppose(what, law.kind == "exponential", key or self.time_key, law.shown, soft=True)

    def nothing_moves(self) -> bool:
        """No data, private or named."""
        return self.without("no data move", ("bytes_in", "bytes_out", "upload", "download", "reads", "writes"))

    def no_items(self) -> bool:
        return self.without("no named data", ("reads", "writes"))

    def without(self, text: str, keys: tuple[str, ...]) -> bool:
        for one in self.customers:
            for key in keys:
                value = getattr(one.demand, key)
                if value and getattr(value, "mean", 1):
                    return self.suppose(text, False, f"{one.key}.{key}", "given")
        return self.suppose(text, True)

    def undisturbed(self, sharing: bool = True) -> None:
        """Devices work at their own pace all the time."""
        faults = getattr(self.model, "faults", None)
        self.suppose("no device fails", not faults, "faults", f"{len(faults)} given" if faults else "none")
        mode = self.mode
        if not sharing or mode is None or mode.on_cpu:
            return
        overhead = mode.type.preemption.overhead
        if overhead:
            key = "cluster.nodes.gpus.preemption.overhead"
            self.suppose("kernels run at full speed", False, key, f"{overhead:.0%}")
        kind = mode.type.sharing
        alone = kind.kind == "exclusive" or (kind.kind == "mps" and not kind.interference)
        alone = alone or (mode.whole and mode.type.streams == 1)
        self.suppose("tasks do not slow each other down", alone, "cluster.nodes.gpus.sharing", kind.kind)

    def one_in_flight(self) -> None:
        mode = self.mode
        if mode is not None and not mode.on_cpu:
            streams = mode.type.streams
            self.suppose("a GPU takes one task at a time", streams == 1, "cluster.nodes.gpus.streams", str(streams))

    def order(self, blind: bool = True) -> str:
        """fcfs, blind or other; the assumption holds for the first, and for the second where the model says so."""
        name = self.scheduler
        single = len({one.priority for one in self.customers}) == 1
        level = name == "priority" and single and not self.parameter("scheduler", "preemptive", False)
        alike = name in IN_ORDER or level
        text = "first come, first served" + (", or an order that does not look at sizes" if blind else "")
        self.suppose(text, alike or (blind and name in BLIND), "policy.scheduler", name)
        placement = self.parameter("scheduler", "placement", None)
        named = getattr(placement, "name", None)
        if named is not None and named not in PLACEMENTS:
            self.suppose("a free device is always taken", False, "policy.scheduler.placement", named)
        return "fcfs" if alike else "blind" if name in BLIND else "other"

    @property
    def scheduler(self) -> str:
        return self.policies.scheduler.name

    def parameter(self, part: str, key: str, default: Any) -> Any:
        spec = getattr(self.policies, part)
        return default if spec is None else spec.parameters.get(key, default)

    @property
    def admission(self) -> str:
        return "accept_all" if self.policies.admission is None else self.policies.admission.name

    def open_door(self) -> None:
        self.suppose("everybody gets in", self.admission == "accept_all", "policy.admission", self.admission)

    def nobody_leaves(self) -> None:
        self.without("nobody gives up", ("patience",))

    def steady(self, load: float, servers: int, law: Law, bounded: bool = False) -> bool:
        """Stable, and long enough under way to have forgotten the start."""
        from sim.results.wording import seconds

        if not bounded and not self.suppose(
            STABLE, load < servers, "workload.0.arrivals.rate", f"{load / servers:.4g}"
        ):
            return False
        distance = math.sqrt(servers) - math.sqrt(load)
        spread = law.mean * (1 + law.scv)
        relaxation = 5 * spread if bounded else spread / 2 / max(distance**2, 1e-9)
        warm, lasts = self.warmup, self.lasts
        known = not math.isnan(warm)
        self.suppose(
            "the start is forgotten: warm-up of 3 relaxation times", not known or warm >= 3 * relaxation, "warmup",
            f"{seconds(warm) if known else 'auto'}, relaxation time {seconds(relaxation)}", soft=True,
        )  # fmt: skip
        warm = warm if known else 0.0
        self.suppose(
            "the run is long: 30 relaxation times", lasts - warm >= 30 * relaxation, "horizon", seconds(lasts - warm),
            soft=True,
        )  # fmt: skip
        return True

    @property
    def warmup(self) -> float:
        """Seconds; NaN where the run finds them out itself."""
        given: Any = self.model.warmup
        return float(given) if isinstance(given, int | float) else math.nan

    @property
    def lasts(self) -> float:
        """Seconds that the run is to last, or that tasks arrive."""
        return self.input.horizon if math.isfinite(self.input.horizon) else self.last_arrival

    @cached_property
    def last_arrival(self) -> float:
        import numpy as np

        arrival = self.input.tasks.arrival
        known = arrival[np.isfinite(arrival)]
        return float(known.max()) if len(known) else 0.0

    # Transfers

    def transfer(self, key: str, loads: bool) -> Law:
        """Time of an upload or download alone on its link."""
        mode = self.mode
        assert mode is not None
        link = mode.type.link
        parts = []
        for one in self.customers:
            law = NOTHING
            sent = getattr(one.demand, key)
            if sent is not None:
                bandwidth = link.upload if loads else link.download
                law = law_of(sent).times(1 / bandwidth) if math.isfinite(bandwidth) else NOTHING
                if link.latency:
                    law = law.plus(Law(link.latency, 0.0, "constant"))
            fixed = (mode.upload if loads else mode.download).of(1)
            parts.append((one.rate or 1.0, law.plus(Law(fixed, 0.0, "constant")) if fixed else law))
        return mixed(parts)

    def links_alone(self) -> None:
        """Each device has a link to itself."""
        mode = self.mode
        assert mode is not None
        for number, nodes in enumerate(self.model.cluster.nodes):
            switch = nodes.pcie.switch is not None
            links = [nodes.pcie, *(gpu.pcie for gpu in nodes.gpus if gpu.pcie is not None)]
            half = any(link.duplex == "half" for link in links)
            if switch or half:
                key = f"cluster.nodes.{number}.pcie.{'switch' if switch else 'duplex'}"
                self.suppose("each GPU has a link of its own, both ways", False, key, "shared")
                return
        self.suppose("each GPU has a link of its own, both ways", True)


# The models -------------------------------------------------------------------------------------------------------


def match(scenario: Scenario) -> Match:
    """The model that a scenario suggests, with its assumptions, and its prediction unless a hard one fails."""
    facts = Facts(scenario)
    return _family(facts)(facts)


def _family(facts: Facts) -> Any:
    entries = facts.model.workload
    if any(entry.service is not None for entry in entries):
        return _services
    if any(entry.trace is not None for entry in entries):
        return _delay
    if any(getattr(entry.arrivals, "closed", False) for entry in entries):
        return _closed
    if facts.admission == "queue_limit":
        return _limited
    if facts.admission == "token_bucket":
        return _bucket
    if facts.admission == "trunk_reservation":
        return _trunks
    if facts.admission == "naor":
        return _naor
    if facts.admission == "predicted_wait" and facts.parameter("admission", "max_wait", None) is not None:
        return _workload
    if any(one.demand.patience is not None for one in facts.customers):
        return _impatient
    if facts.scheduler == "processor_sharing":
        return _sharing
    if facts.scheduler == "priority" and len({one.priority for one in facts.customers}) > 1:
        return _priorities
    if _moves(facts) and facts.mode is not None and facts.mode.type.streams > 1:
        return _tandem
    return _delay


def _moves(facts: Facts) -> bool:
    keys = ("bytes_in", "bytes_out", "upload", "download")
    return any(getattr(one.demand, key) for one in facts.customers for key in keys)


def _common(facts: Facts, *, moves: bool = False) -> bool:
    """What all models of tasks suppose; False where no figures can be had."""
    known = facts.one_way() and facts.sizes_known()
    if moves:
        facts.no_items()
    else:
        facts.nothing_moves()
    if facts.parameter("scheduler", "preemptive", False):
        facts.without("stopping costs nothing", ("stopping",))
    return known


def _result(facts: Facts, model: str, found: Prediction | None = None, rows: Iterable[Row] = (), **more: Any) -> Match:
    match = Match(model, facts.assumptions, **more)
    if match.verdict != "none":
        match.rows = list(rows)
        if found is not None:
            match.approximate = match.approximate or found.approximate
    return match


def _rows(facts: Facts, found: Prediction, computing: float, tails: bool, loss: bool = False) -> list[Row]:
    """The figures of a prediction under the names of the simulator's metrics."""
    rows = [Row("wait_mean", found.wait_mean)]
    if tails and found.wait_above is not None:
        rows.append(Row("wait_p95", found.wait_percentile(0.95)))
    rows.append(Row("response_mean", found.response_mean))
    if tails and found.response_above is not None:
        rows.append(Row("response_p95", found.response_percentile(0.95)))
    rows.append(Row("queue_length_mean", found.queue_length_mean))
    rows.append(Row("jobs_in_system_mean", found.jobs_in_system_mean))
    rows.append(Row(facts.busy_metric, facts.busy_share(computing)))
    return [*rows, Row("loss", found.loss)] if loss else rows


def _delay(facts: Facts) -> Match:
    """M/M/c, M/D/1, M/G/1, GI/M/1 and, near, G/G/c: nobody is lost."""
    model = "G/G/c, first come, first served"
    entries = facts.model.workload
    if not facts.arrivals(("poisson", "renewal", "deterministic")) or any(entry.trace is not None for entry in entries):
        return _result(facts, model)
    moves = _moves(facts)
    known = _common(facts, moves=moves)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed()
    order = facts.order()
    facts.one_in_flight()
    if not known:
        return _result(facts, model)
    law, compute, servers = facts.law, facts.law, facts.servers
    if moves:
        facts.links_alone()
        alone = facts.mode is not None and facts.mode.gpus == 1 and facts.mode.whole
        facts.suppose("a server is one whole GPU", alone, f"{facts.customers[0].key}.gpus", str(facts.mode))
        law = facts.transfer("bytes_in", True).plus(law).plus(facts.transfer("bytes_out", False))
    rate = facts.rate
    if not facts.steady(rate * law.mean, servers, law):
        return _result(facts, model)
    found = _delay_system(facts, rate, law, servers)
    if law.kind == "general" and servers == 1 and order == "blind":
        found = replace(found, wait_above=None, response_above=None)
    rows = _rows(facts, found, rate * compute.mean, order == "fcfs")
    return _result(facts, found.model, found, rows)


def _delay_system(facts: Facts, rate: float, law: Law, servers: int) -> Prediction:
    arrivals: Any = facts.model.workload[0].arrivals
    if arrivals.process == "poisson":
        if law.kind == "exponential":
            return queues.mmc(rate, law.mean, servers)
        if servers == 1:
            return general.md1(rate, law.mean) if law.kind == "constant" else general.mg1(rate, law.mean, law.scv)
        found = general.allen_cunneen(rate, law.mean, servers, 1.0, law.scv)
        return replace(found, model=f"M/G/{servers} (Allen and Cunneen)")
    scv = 0.0 if arrivals.process == "deterministic" else float(arrivals.scv)
    if servers == 1 and law.kind == "exponential":
        return general.gim1(rate, law.mean, _transform(arrivals, rate, scv), "D/M/1" if scv == 0 else "GI/M/1")
    found = general.allen_cunneen(rate, law.mean, servers, scv, law.scv)
    # Equal means of arrivals are no longer Poisson: never exact here.
    return replace(found, model=f"G/G/{servers} (Allen and Cunneen)", approximate=True)


def _transform(arrivals: Any, rate: float, scv: float) -> Any:
    """E[exp(-s gap)] of a renewal process of ours."""
    if scv == 0:
        return lambda s: math.exp(-s / rate)
    if arrivals.family == "hyperexponential" or (arrivals.family == "auto" and scv > 1):
        share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
        return lambda s: sum(p * (2 * p * rate) / (2 * p * rate + s) for p in (share, 1 - share))
    return lambda s: math.exp(-math.log1p(s * scv / rate) / scv)


def _limited(facts: Facts) -> Match:
    """M/M/c/K by a limit on the queue."""
    known = facts.arrivals() & _common(facts)
    limit = facts.parameter("admission", "limit", None)
    only = limit is not None and not any(facts.parameter("admission", key, None) for key in ("per_class", "per_device"))
    facts.suppose("one limit for all who wait", only, "policy.admission", f"limit: {limit}")
    facts.nobody_leaves()
    facts.undisturbed()
    order = facts.order()
    facts.one_in_flight()
    if not (known and only):
        return _result(facts, "M/M/c/K")
    law, servers = facts.law, facts.servers
    insensitive = limit == 0  # M/G/c/c
    if not insensitive:
        facts.exponential()
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    found = queues.mmck(facts.rate, law.mean, servers, servers + limit)
    rows = _rows(facts, found, found.throughput * law.mean, order == "fcfs", loss=True)
    return _result(facts, f"M/G/{servers}/{servers}" if insensitive else found.model, found, rows)


def _bucket(facts: Facts) -> Match:
    """The loss at a token bucket, whatever lies behind it."""
    poisson = facts.arrivals()
    refuses = facts.parameter("admission", "excess", "reject") == "reject"
    facts.suppose("who finds no token is refused", refuses, "policy.admission.excess")
    common = facts.parameter("admission", "per", "all") == "all"
    facts.suppose("one bucket for all", common, "policy.admission.per")
    refill, depth = facts.parameter("admission", "rate", None), float(facts.parameter("admission", "burst", 1))
    warm = 3 * depth / refill
    facts.suppose("the full bucket at the start is forgotten", not facts.warmup < warm, "warmup",
                  f"{facts.warmup:g} s, wanted {warm:.4g} s", soft=True)  # fmt: skip
    rows = [Row("loss", admission.token_bucket(facts.rate, refill, depth))] if poisson else []
    return _result(facts, "token bucket with Poisson arrivals (M/D/1/b): loss only", rows=rows)


def _trunks(facts: Facts) -> Match:
    """Trunk reservation by class."""
    model = "trunk reservation, M/M/c/c of several classes"
    known = facts.arrivals() & _common(facts)
    facts.nobody_leaves()
    facts.undisturbed()
    facts.one_in_flight()
    given = facts.parameter("admission", "servers", None)
    servers = facts.servers
    facts.suppose("all servers are counted", given in (None, servers), "policy.admission.servers",
                  f"{servers if given is None else given}")  # fmt: skip
    labels = [one.label for one in facts.customers]
    apart = facts.suppose("classes have names of their own", len(set(labels)) == len(labels), "workload")
    if not (known and apart):
        return _result(facts, model)
    reserve = facts.parameter("admission", "reserve", {})
    for one in facts.customers:
        if one.law is not None:
            facts.exponential(one.law, f"service of {one.label} is exponential", one.key)
    facts.steady(0, servers, facts.law, bounded=True)
    laws = [(one, one.law) for one in facts.customers if one.law is not None]
    streams = [admission.Stream(one.rate, law.mean, reserve.get(one.label, 0)) for one, law in laws]
    try:
        found = admission.trunk_reservation(servers, streams)
    except UsageError as error:
        facts.suppose("the exact chain can be solved", False, "policy.admission.reserve", str(error))
        return _result(facts, model)
    rows = [Row("loss", lost, label) for lost, label in zip(found.loss, labels, strict=True)]
    rows.append(Row(facts.busy_metric, facts.busy_share(found.utilisation * servers)))
    return _result(facts, model, rows=rows)


def _naor(facts: Facts) -> Match:
    """M/M/1/n, with Naor's threshold for n."""
    model = "M/M/1 with Naor's threshold"
    known = facts.arrivals() & _common(facts)
    facts.nobody_leaves()
    facts.undisturbed()
    order = facts.order()
    facts.one_in_flight()
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    if not (known and single):
        return _result(facts, model)
    law = facts.law
    facts.exponential()
    told = [facts.parameter("admission", key, None) for key in ("arrival_rate", "service_time")]
    facts.suppose("the rates are known, not estimated", None not in told, "policy.admission.arrival_rate",
                  "estimated online" if None in told else "given", soft=True)  # fmt: skip
    facts.steady(0, 1, law, bounded=True)
    reward, cost = (facts.parameter("admission", key, 1.0) for key in ("reward", "cost"))
    thresholds = tolls.naor(told[0] or facts.rate, told[1] or law.mean, reward, cost)
    objective = facts.parameter("admission", "objective", "social")
    found = queues.mmck(facts.rate, law.mean, 1, getattr(thresholds, objective))
    rows = _rows(facts, found, found.throughput * law.mean, order == "fcfs", loss=True)
    return _result(facts, f"{found.model} (Naor, {objective})", found, rows)


def _workload(facts: Facts) -> Match:
    """M/M/1 with a limit on the work ahead."""
    model = "M/M/1 with a limit on the work ahead"
    known = facts.arrivals() & _common(facts)
    facts.without("times are known exactly", ("estimates",))
    facts.nobody_leaves()
    facts.undisturbed()
    facts.order(blind=False)
    facts.one_in_flight()
    single = facts.suppose("there is one server", facts.servers == 1, "cluster.nodes", str(facts.servers))
    if not (known and single):
        return _result(facts, model)
    law = facts.law
    facts.exponential()
    facts.steady(0, 1, law, bounded=True)
    found = admission.workload_limit(facts.rate, law.mean, float(facts.parameter("admission", "max_wait", 0.0)))
    rows = _rows(facts, found, found.throughput * law.mean, True, loss=True)
    return _result(facts, model, found, rows)


def _impatient(facts: Facts) -> Match:
    """M/M/c+M, or with no patience at all M/G/c/c."""
    known = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.undisturbed()
    facts.order(blind=False)
    facts.one_in_flight()
    given = [one.demand.patience for one in facts.customers]
    alike = all(one == given[0] for one in given)
    facts.suppose("one patience for all", alike, f"{facts.customers[0].key}.patience")
    if not (known and alike):
        return _result(facts, "M/M/c+M")
    law, servers, patience = facts.law, facts.servers, law_of(given[0])
    facts.steady(facts.rate * law.mean, servers, law, bounded=True)
    if patience.kind == "constant" and patience.mean <= AT_ONCE * law.mean:
        found = queues.mmck(facts.rate, law.mean, servers, servers)
        leaving = facts.rate * found.loss * patience.mean  # they do wait, for as long as their patience
        found = replace(found, queue_length_mean=leaving, jobs_in_system_mean=found.jobs_in_system_mean + leaving)
        rows = _rows(facts, found, found.throughput * law.mean, False, loss=True)
        return _result(facts, f"M/G/{servers}/{servers} (Erlang B)", found, rows)
    facts.exponential()
    facts.exponential(patience, "patience is exponential", f"{facts.customers[0].key}.patience")
    found = queues.mmc_abandonment(facts.rate, law.mean, servers, patience.mean)
    return _result(facts, found.model, found, _rows(facts, found, found.throughput * law.mean, False, loss=True))


def _closed(facts: Facts) -> Match:
    """The machine repair model."""
    model = "closed loop, M/M/c//N"
    one = len(facts.model.workload) == 1
    facts.suppose("one closed loop and nothing else", one, "workload", f"{len(facts.model.workload)} entries")
    known = _common(facts)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed()
    order = facts.order()
    facts.one_in_flight()
    if not (known and one):
        return _result(facts, model)
    law, servers = facts.law, facts.servers
    facts.exponential()
    arrivals: Any = facts.model.workload[0].arrivals
    facts.steady(0, servers, law, bounded=True)
    found = queues.closed_loop(arrivals.clients, law_of(arrivals.think).mean, law.mean, servers)
    rows = _rows(facts, found, found.throughput * law.mean, order == "fcfs")
    return _result(facts, found.model, found, [*rows, Row("throughput", found.throughput)])


def _sharing(facts: Facts) -> Match:
    """M/G/1-PS on a GPU that shares by time slices."""
    model = "M/G/1-PS"
    known = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed(sharing=False)
    mode = facts.mode
    if not known or mode is None:
        return _result(facts, model)
    kind = mode.type.sharing
    facts.suppose("the GPU shares by time slices, at no cost", kind.kind == "timeslice" and not kind.switch_cost,
                  "cluster.nodes.gpus.sharing", kind.kind)  # fmt: skip
    facts.suppose("there is one GPU, and a task has all of it", facts.servers == 1, "cluster.nodes.gpus.count",
                  f"{facts.servers}")  # fmt: skip
    law = facts.law
    load = facts.rate * law.mean
    if not facts.steady(load, 1, law):
        return _result(facts, model)
    enough = load ** (mode.type.streams + 1) < 1e-6
    facts.suppose("there are streams for all who come", enough, "cluster.nodes.gpus.streams", str(mode.type.streams))
    found = general.mg1_ps(facts.rate, law.mean)
    return _result(facts, model, found, [*_rows(facts, found, load, False), Row("slowdown_mean", 1 / (1 - load))])


def _priorities(facts: Facts) -> Match:
    """Cobham's priorities, or preemptive-resume ones."""
    preemptive = bool(facts.parameter("scheduler", "preemptive", False))
    model = f"M/G/1 with {'preemptive-resume' if preemptive else 'non-preemptive'} priorities"
    known = facts.arrivals() & _common(facts)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed()
    facts.one_in_flight()
    aging = facts.parameter("scheduler", "aging", 0)
    facts.suppose("priorities do not change", not aging, "policy.scheduler.aging", f"{aging:g}/s")
    levels = sorted({one.priority for one in facts.customers}, reverse=True)
    labels = [one.label for one in facts.customers]
    apart = len(levels) == len(labels) == len(set(labels))
    facts.suppose("each class has a priority of its own", apart, "workload", ", ".join(map(str, levels)))
    if not (known and apart):
        return _result(facts, model)
    servers = facts.servers
    ordered = sorted(facts.customers, key=lambda one: -one.priority)
    classes = [priorities.Class(one.rate, one.law.mean, one.law.scv) for one in ordered if one.law is not None]
    if servers > 1:
        common = all(one.law == ordered[0].law for one in ordered) and facts.law.kind == "exponential"
        text = "at several servers: one exponential service for all"
        if not facts.suppose(text, common, facts.time_key, facts.law.shown):
            return _result(facts, model)
    if not facts.steady(facts.rate * facts.law.mean, servers, facts.law):
        return _result(facts, model)
    solve = priorities.preemptive_resume if preemptive else priorities.nonpreemptive
    rows = []
    for one, found in zip(ordered, solve(classes, servers), strict=True):
        if not preemptive:  # suspended time is no part of the simulator's wait
            rows.append(Row("wait_mean", found.wait_mean, one.label))
        rows.append(Row("response_mean", found.response_mean, one.label))
    load = facts.rate * facts.law.mean
    return _result(facts, model.replace("M/G/1", "M/G/1" if servers == 1 else f"M/M/{servers}"), None,
                   [*rows, Row(facts.busy_metric, facts.busy_share(load))])  # fmt: skip


def _tandem(facts: Facts) -> Match:
    """Upload, compute and download as stations in a row."""
    model = "tandem of M/M/1: upload → compute → download"
    known = facts.arrivals() & _common(facts, moves=True)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed()
    facts.order(blind=False)
    mode = facts.mode
    if not known or mode is None:
        return _result(facts, model)
    facts.links_alone()
    facts.suppose("there is one GPU, and a task has all of it", facts.servers == 1 and mode.whole,
                  "cluster.nodes.gpus.count", f"{facts.servers}")  # fmt: skip
    facts.suppose("no launch waits for a stream", mode.type.streams >= MANY_STREAMS, "cluster.nodes.gpus.streams",
                  str(mode.type.streams), soft=True)  # fmt: skip
    stages = {
        "upload": facts.transfer("bytes_in", True),
        "compute": facts.law,
        "download": facts.transfer("bytes_out", False),
    }
    used = {name: law for name, law in stages.items() if law.mean > 0}
    for name, law in used.items():
        facts.exponential(law, f"{name} is exponential", _STAGE_KEYS[name].format(facts.customers[0].key))
    slowest = max(used.values(), key=lambda law: law.mean)
    if not facts.steady(facts.rate * slowest.mean, 1, slowest):
        return _result(facts, model)
    network = networks.tandem(facts.rate, [networks.Station(law.mean, 1, name) for name, law in used.items()])
    rows = [Row("response_mean", network.response_mean)]
    if all(law.kind == "exponential" for law in used.values()):
        rows.append(Row("response_p95", network.response_percentile(0.95)))
    rows.append(Row("jobs_in_system_mean", network.jobs_in_system_mean))
    rows.append(Row("gpu_utilisation", facts.busy_share(facts.rate * facts.law.mean)))
    return _result(facts, f"tandem of M/M/1: {' → '.join(used)}", None, rows)


_STAGE_KEYS = {"upload": "{}.bytes_in", "compute": "{}.gpu_time", "download": "{}.bytes_out"}


def _services(facts: Facts) -> Match:
    """Greedy batch service on one device."""
    model = "greedy batches, M/D^[1,b]/1"
    one = len(facts.model.workload) == 1
    facts.suppose("one service and nothing else", one, "workload", f"{len(facts.model.workload)} entries")
    facts.suppose("requests are served in batches", not facts.input.language, "workload.0.service.kind",
                  "a language model" if facts.input.language else "batches")  # fmt: skip
    facts.arrivals()
    batching = facts.policies.of_service.get(0, facts.policies.batching)
    name = "serial_greedy" if batching is None else batching.name
    facts.suppose("an idle device takes all who wait", name == "serial_greedy", "policy.batching", name)
    facts.open_door()
    facts.nobody_leaves()
    facts.undisturbed(sharing=False)
    if facts.input.language or len(facts.input.services) != 1 or not one:
        return _result(facts, model)
    service, given = facts.input.services[0], facts.model.workload[0].service
    here = "workload.0.service"
    facts.suppose("there is one device", facts.mode is not None and facts.cluster.count(facts.mode.type.name) == 1,
                  "cluster.nodes", facts.cluster.describe())  # fmt: skip
    facts.suppose("all requests take the same", service.alike, f"{here}.compute.per_item",
                  "" if service.alike else "drawn", soft=True)  # fmt: skip
    facts.suppose("batches take what they should", not service.noise, f"{here}.noise", f"{service.noise:g}", soft=True)
    facts.suppose("no results are kept", service.cache is None, f"{here}.cache")
    away = service.request_delay or service.response_delay
    facts.suppose("the front end is next to the device", not away, f"{here}.network")
    weights = "weights to load" if getattr(given, "model", None) else ""
    facts.suppose("the model is loaded already", not weights, f"{here}.model", weights, soft=True)
    facts.without("nothing moves besides the stages", ("bytes_in", "bytes_out", "reads", "writes"))
    mode = facts.mode
    if mode is None:
        return _result(facts, model)
    per_item = mode.upload.per_item + service.per_item[0] + mode.download.per_item
    fixed = mode.upload.fixed + mode.fixed + mode.download.fixed
    limits = [limit for limit in (mode.batch_limit, batching and batching.parameters.get("max_batch")) if limit]
    most: int | None = min(limits)
    if most is not None and most > 1_000_000:
        most = None
    rate = facts.rate
    load = rate * per_item if most is None else rate * (per_item + fixed / most)
    if not facts.steady(load, 1, Law(per_item + fixed, 0.0, "constant")) or not one:
        return _result(facts, model)
    if any(not a.holds and not a.soft for a in facts.assumptions):
        return _result(facts, model)
    try:
        found = batches.greedy_batches(rate, per_item, fixed, most)
    except UsageError as error:
        facts.suppose("the exact chain is small enough", False, "workload.0.arrivals.rate", str(error))
        return _result(facts, model)
    computing = rate * (service.per_item[0] + mode.fixed / found.batch_mean)
    rows = [row for row in _rows(facts, found, computing, True) if row.metric != "wait_p95" or most is None]
    return _result(facts, f"{model} with {'b = ' + str(most) if most is not None else 'no largest batch'}", found, rows)


# Beside the simulation -------------------------------------------------------------------------------------------


LEAST = 10
"""Replications where the scenario has fewer than two."""


class Beside(NamedTuple):
    """A predicted figure beside the interval of the simulation."""

    row: Row
    interval: Interval

    @property
    def covered(self) -> bool:
        value, interval = self.row.value, self.interval
        # Where nothing is random (nobody ever waits) the interval is a point, and only rounding is left.
        return interval.covers(value) or math.isclose(value, interval.mean, rel_tol=1e-9, abs_tol=1e-15)


def simulate(
    scenario: Scenario, rows: list[Row], *, confidence: float = 0.95, replications: int | None = None, **running: Any
) -> list[Beside]:
    """The scenario's own replications, ten if it has none, and their intervals for the predicted figures."""
    from sim.experiment.run import run
    from sim.results.replications import Replications
    from sim.results.statistics import student_interval

    given = scenario.model.replications
    if replications is None and isinstance(given, int) and given < 2:
        replications = LEAST
    metrics = [row.metric for row in rows if row.metric != "loss"]
    by_class = any(row.class_ for row in rows)
    if by_class:
        running["workers"] = 1  # the runs themselves are kept
    runs = run(scenario, replications=replications, metrics=metrics, keep=by_class, **running)
    if not isinstance(runs, Replications):
        raise UsageError("an interval needs at least two replications; ask for more (--replications 10)")
    tables = [one.by("class", list(dict.fromkeys(metrics_of_tasks(rows)))) for one in runs] if by_class else []
    found = []
    for row in rows:
        if row.class_ and row.metric == "loss":
            values = [float(((table["rejected"] + table["expired"]) / table["tasks"])[row.class_]) for table in tables]
            interval = student_interval(values, confidence, row.metric)
        elif row.class_:
            values = [float(table[row.metric][row.class_]) for table in tables]
            interval = student_interval(values, confidence, row.metric)
        elif row.metric == "loss":
            lost = (runs.column("rejected") + runs.column("expired")) / runs.column("tasks")
            interval = student_interval(lost.to_numpy(), confidence, row.metric)
        else:
            interval = runs.interval(row.metric, confidence)
        found.append(Beside(row, interval))
    return found


def metrics_of_tasks(rows: list[Row]) -> list[str]:
    """Those that are wanted of each class."""
    named = [row.metric for row in rows if row.class_ and row.metric != "loss"]
    return [*named, "rejected", "expired", "tasks"]
