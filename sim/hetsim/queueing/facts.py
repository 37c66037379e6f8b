"""Assumptions of exact models, checked in a scenario.

`Facts` checks and records each assumption, with the key that decides it; `Match` has them and the verdict.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hetsim import registry
from hetsim.model.mode import Mode
from hetsim.results.formatting import seconds
from hetsim.scenario.building.streams_and_items import entry_names
from hetsim.scenario.readers import not_understood
from hetsim.scenario.scenario import Scenario
from hetsim.theory.levels import MAX_PHASES, PhaseType

# Declarations (`queueing`) of schedulers: order of arrival, another order that does not depend on sizes (same means),
# priorities, all at once, by size, remaining time or attained service, on devices that sleep when idle
ORDER, BLIND = "order of arrival", "blind to sizes"
PRIORITIES, SHARING = "priorities", "processor sharing"
SHORTEST, REMAINING, ATTAINED = "shortest job first", "shortest remaining time first", "least attained service"
ASLEEP = "order of arrival, asleep when idle"

# Declarations (`queueing`) of admission policies; a model reads the policy's parameters by its name
OPEN, LIMIT, BUCKET, TRUNKS, TOLLS, WORK = (
    "open", "limit", "token bucket", "trunk reservation", "optimal pricing", "limit of work",
)  # fmt: skip

GREEDY = "greedy batches"  # declaration of batching policies: an idle device starts all waiting requests
SHORTER, SHORTEST_LINE = "shorter of two lines", "shortest line"  # declarations of routing policies
UNTIL_THE_END = 0.002  # share of the measured time without arrivals at its end that is not reported
# declarations of placements: no task waits while an equal device is free; slow devices used when many wait
CONSERVING, RESERVE = "work-conserving", "slow reserve"

NEARLY = 0.1  # relative error up to which a scenario nearly matches
AT_ONCE = 1e-3  # patience below this fraction of a service counts as 0

STABLE = "the load is below 1"


class Assumption(NamedTuple):
    text: str
    holds: bool
    key: str = ""
    value: str = ""
    soft: bool = False  # there is a prediction even if the assumption fails, with an error
    error: float = math.inf  # if it fails: maximum relative error of the prediction; inf if unknown


class PredictedRow(NamedTuple):
    """A predicted figure: a simulator metric, for one class or for all tasks."""

    metric: str
    value: float
    class_: str = ""


@dataclass
class Match:
    """The result of matching a scenario to a queueing model."""

    model: str
    assumptions: list[Assumption]
    rows: list[PredictedRow] = field(default_factory=list)
    formula_error: float = 0.0  # relative error of the formula, if approximate; inf if unknown

    @property
    def verdict(self) -> str:
        """Verdict of the match: matches, nearly (error ≤ `NEARLY`), approximation or none."""
        if any(not one.holds and not one.soft for one in self.assumptions):
            return "none"
        if not self.formula_error and not self.failed:
            return "matches"
        return "nearly" if self.error <= NEARLY else "approximation"

    @property
    def error(self) -> float:
        """Relative error: the formula's, plus the largest error of violated assumptions."""
        return abs(self.formula_error) + max((one.error for one in self.failed), default=0.0)

    @property
    def failed(self) -> list[Assumption]:
        return [one for one in self.assumptions if not one.holds]


class Law(NamedTuple):
    """A distribution: exponential, constant, or general with known moments."""

    mean: float
    scv: float
    kind: str
    third: float = 0.0  # third central moment / mean³; inf if unknown

    def times(self, factor: float) -> "Law":
        return self._replace(mean=self.mean * factor)

    def plus(self, other: "Law") -> "Law":
        """Return the distribution of the sum with an independent time."""
        if other.mean == 0:
            return self
        if self.mean == 0:
            return other
        mean = self.mean + other.mean
        scv = (self.scv * self.mean**2 + other.scv * other.mean**2) / mean**2
        third = (self.third * self.mean**3 + other.third * other.mean**3) / mean**3
        return Law(mean, scv, "constant" if scv == 0 else "general", third)

    @property
    def shown(self) -> str:
        more = f", scv {self.scv:.3g}" if self.kind == "general" else ""
        return f"{self.kind}, mean {seconds(self.mean)}{more}"


NOTHING = Law(0.0, 0.0, "constant")


class Density(NamedTuple):
    """A density of times: a weighted sum of scipy.stats distributions."""

    parts: tuple[tuple[float, Any], ...]

    def pdf(self, x: Any) -> Any:
        return sum(weight * law.pdf(x) for weight, law in self.parts)

    @property
    def edges(self) -> list[float]:
        return [end for _, law in self.parts for end in law.support()]


def density_of(distribution: Any, factor: float, weight: float = 1.0) -> Density | None:
    """Return `weight` times the density of `factor` × `distribution`; None if unknown."""
    from scipy import stats

    one, name = distribution, getattr(distribution, "distribution", "")
    if name == "hyperexponential":
        parts = zip(*one._mixture, strict=True)
        return Density(tuple((weight * share, stats.expon(scale=factor * mean)) for share, mean in parts))
    laws: dict[str, Callable[[float], Any]] = {
        "exponential": lambda mean: stats.expon(scale=mean),
        "gamma": lambda mean: stats.gamma(1 / one.scv, scale=mean * one.scv),
        "lognormal": lambda mean: stats.lognorm(math.sqrt(math.log1p(one.scv)), scale=mean / math.sqrt(1 + one.scv)),
        "weibull": lambda mean: stats.weibull_min(one.shape, scale=mean / math.gamma(1 + 1 / one.shape)),
        "uniform": lambda mean: stats.uniform(factor * one.low, factor * (one.high - one.low)),
        "pareto": lambda mean: stats.truncpareto(one.shape, one.high / one.low, scale=factor * one.low),
    }
    return Density(((weight, laws[name](factor * one.mean)),)) if name in laws else None


def phases_of(distribution: Any, factor: float) -> PhaseType | None:
    """Return the phases of a distribution times `factor`.

    None if the distribution has no phases (exponential, hyperexponential and Erlang distributions have), or too many.
    """
    law, name = law_of(distribution).times(factor), getattr(distribution, "distribution", "")
    if law.kind == "exponential":
        return PhaseType(np.ones(1), np.zeros((1, 1)), np.ones(1) / law.mean)
    if name == "hyperexponential":
        shares, means = distribution._mixture
        return PhaseType(shares, np.zeros((len(means), len(means))), 1 / (means * factor))
    number = round(1 / law.scv) if law.scv > 0 else 0
    if name != "gamma" or not 1 <= number <= MAX_PHASES or not math.isclose(number * law.scv, 1, rel_tol=1e-9):
        return None
    first, rate = np.eye(number)[0], number / law.mean
    return PhaseType(first, np.diag(np.full(number - 1, rate), 1), rate * first[::-1])


def law_of(distribution: Any) -> Law:
    scv = float(distribution.scv)
    named = getattr(distribution, "distribution", "")
    memoryless = named == "exponential" or (named in ("gamma", "weibull") and abs(scv - 1) < 1e-12)
    kind = "constant" if scv == 0 else "exponential" if memoryless else "general"
    raw = math.inf  # the third moment over mean³
    if named == "weibull":
        power = 1 / distribution.shape
        raw = math.exp(min(700.0, math.lgamma(1 + 3 * power) - 3 * math.lgamma(1 + power)))
    elif named == "pareto":
        raw = distribution._moment(3) / distribution._moment(1) ** 3
    elif named == "hyperexponential":
        shares, means = distribution._mixture
        raw = 6 * float(shares @ means**3) / distribution.mean**3
    powers = {"constant": 0.0, "uniform": 0.0, "exponential": 2.0, "gamma": 2 * scv**2, "lognormal": scv**2 * (3 + scv)}
    return Law(float(distribution.mean), scv, kind, powers.get(named, raw - 3 * scv - 1))


def mixed(parts: Iterable[tuple[float, Law]]) -> Law:
    """Return the mixture of distributions, given as pairs (weight, distribution)."""
    positive = [(weight, law) for weight, law in parts if weight > 0]
    if all(law == positive[0][1] for _, law in positive):
        return positive[0][1]
    total = sum(weight for weight, _ in positive)
    mean = sum(weight * law.mean for weight, law in positive) / total
    scv = sum(weight * law.mean**2 * (1 + law.scv) for weight, law in positive) / total / mean**2 - 1
    cubes = sum(weight * law.mean**3 * (law.third + 3 * law.scv + 1) for weight, law in positive) / total
    return Law(mean, scv, "general", cubes / mean**3 - 3 * scv - 1)


class Customers(NamedTuple):
    """Tasks with the same demand: one class of a workload entry, or the whole entry."""

    label: str
    rate: float
    demand: Any
    key: str
    timing: tuple[Any, float] | None  # distribution of the times, and the factor on these devices
    priority: float

    @property
    def law(self) -> Law | None:
        return None if self.timing is None else law_of(self.timing[0]).times(self.timing[1])

    @property
    def phases(self) -> PhaseType | None:
        return None if self.timing is None else phases_of(*self.timing)


class Unmatched(Exception):
    """A required assumption of a model does not hold, so the model gives no figures."""


class Facts:
    """Properties of a scenario that models need; each check records an assumption."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.model = scenario.model
        self.input = scenario.build()
        self.cluster = self.input.cluster
        self.policies = scenario.policies
        self.assumptions: list[Assumption] = []
        self.recognized = False

    def suppose(
        self, text: str, holds: bool, key: str = "", value: str = "", soft: bool = False, error: float = math.inf
    ) -> bool:
        self.assumptions.append(Assumption(text, bool(holds), key, value=value, soft=soft, error=error))
        return bool(holds)

    def recognize(self, family: str) -> None:
        """Check that a model family covers all scenario keys; record the uncovered keys."""
        unknown = not_understood(self.scenario, family)
        self.recognized = not unknown
        for one in unknown:
            place = ":".join(str(part) for part in (one.file, one.line, one.column) if part is not None)
            self.suppose(one.message, False, one.key, place)
        if self.recognized:
            self.suppose("the model covers each key that is set, or the key has no effect on it", True)

    # Customers

    @cached_property
    def customers(self) -> list[Customers]:
        classes = []
        names = entry_names(self.scenario.document.data.get("workload") or [])
        for number, entry in enumerate(self.model.workload):
            key, name = f"workload.{number}", names[number] or f"stream{number}"
            arrivals: Any = entry.arrivals
            rate = 0.0 if arrivals is None or arrivals.closed else arrivals.rate_mean or 0.0
            kinds = [(one.over(entry), one.weight, f"{key}.classes.{k}") for k, one in enumerate(entry.classes or ())]
            kinds = kinds or [(entry, 1.0, key)]
            total = sum(weight for _, weight, _ in kinds)
            for demand, weight, where in kinds:
                if entry.together:
                    weight, total = 1.0, 1.0
                if weight > 0:
                    label, timing, priority = demand.class_ or name, self._timing(demand), demand.used("priority")
                    classes.append(
                        Customers(label, rate * weight / total, demand, key=where, timing=timing, priority=priority)
                    )
        return classes

    @property
    def rate(self) -> float:
        return sum(one.rate for one in self.customers)

    @cached_property
    def mode(self) -> Mode | None:
        """The mode in which all tasks run; None if there are several."""
        return self.modes[0] if len(self.modes) == 1 else None

    @cached_property
    def modes(self) -> list[Mode]:
        return list({id(mode): mode for mode in self.input.tasks.modes}.values())

    @property
    def shown_modes(self) -> str:
        return ", ".join(list(dict.fromkeys(map(str, self.modes)))[:4])

    @property
    def only_mode(self) -> Mode:
        """The mode in which all tasks run; Unmatched if there are several."""
        if self.mode is None:
            raise Unmatched
        return self.mode

    def _timing(self, demand: Any) -> tuple[Any, float] | None:
        return None if len({mode.type for mode in self.modes}) != 1 else self.timing_on(self.modes[0], demand)

    @staticmethod
    def timing_on(mode: Mode, demand: Any) -> tuple[Any, float] | None:
        """Return a distribution and a factor, whose product is the compute time in a mode.

        None if the demand states the time otherwise (`work`, `profile`, `scaling`, several modes, or no distribution).
        """
        if demand.work or demand.profile or demand.scaling:
            return None
        kind = mode.type
        at_speed = 1 / kind.speed
        if demand.modes is not None:
            way = demand.modes[0]
            if way.time is None or not hasattr(way.time, "scv") or len(demand.modes) > 1:
                return None
            return way.time, 1.0 if way.device == kind.name else at_speed
        if mode.on_cpu:
            return (demand.cpu_time, at_speed) if hasattr(demand.cpu_time, "scv") else None
        for name in (kind.name, kind.kind):
            typed = demand.typed_gpu_time.get(f"gpu_time.{name}")
            if typed is not None:
                return typed, 1.0
        return None if demand.gpu_time is None else (demand.gpu_time, at_speed)

    @property
    def law(self) -> Law:
        return mixed((one.rate or 1.0, one.law) for one in self.customers if one.law is not None)

    @property
    def phases(self) -> PhaseType | None:
        """Phases of the service of all customers; None if a service has no phases."""
        from scipy.linalg import block_diag

        kinds = [(one.rate / self.rate, one.phases) for one in self.customers if one.rate > 0]
        parts = [(share, part) for share, part in kinds if part is not None]
        if len(parts) < len(kinds):
            return None
        start = np.concatenate([share * part.start for share, part in parts])
        onward = block_diag(*(part.onward for _, part in parts))
        return PhaseType(start, onward, np.concatenate([part.ends for _, part in parts]))

    @cached_property
    def servers(self) -> int:
        """Number of tasks that can run at once."""
        mode = self.mode
        return 0 if mode is None else sum(self.slots(node, mode) for node in self.cluster.nodes)

    @staticmethod
    def slots(node: Any, mode: Mode, per_device: int = 1) -> int:
        """Return the number of tasks that a node can run at once in a mode."""
        room = math.inf
        if mode.millicores:
            room = min(room, node.cpus * 1000 // mode.millicores)
        if mode.memory and node.memory is not None:
            room = min(room, node.memory // mode.memory)
        if mode.on_cpu:
            return int(room) if node.cpu.type is mode.type else 0
        devices = [device for device in node.accelerators if device.type is mode.type]
        if mode.gpus > 1:
            return int(min(room, len(devices) // mode.gpus))
        per_device = per_device if mode.whole_devices else 1_000_000 // mode.share
        if mode.gpu_memory and mode.type.memory is not None:
            per_device = min(per_device, mode.type.memory // mode.gpu_memory)
        return int(min(room, len(devices) * per_device))

    def side_by_side(self, slots: list[list[int]]) -> bool:
        """Return True if cores and memory suffice for `slots`: servers by node and mode."""
        return all(
            sum(count * mode.millicores for count, mode in zip(here, self.modes, strict=True)) <= node.cpus * 1000
            and (node.memory is None
                 or sum(count * mode.memory for count, mode in zip(here, self.modes, strict=True)) <= node.memory)
            for here, node in zip(slots, self.cluster.nodes, strict=True)
        )  # fmt: skip

    @property
    def busy_metric(self) -> str:
        return "cpu_utilization" if self.modes and self.modes[0].on_cpu else "gpu_utilization"

    def busy_share(self, computing: float) -> float:
        """Return the utilization if `computing` tasks compute on average."""
        mode = self.modes[0]
        devices = sum(node.cpus if mode.on_cpu else len(node.accelerators) for node in self.cluster.nodes)
        return computing * mode.width / devices

    # Assumptions that several models share

    def arrivals(self, allowed: tuple[str, ...] = ("poisson",)) -> bool:
        self._all_the_time()
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
            "arrivals are Poisson" + (", modulated, or one stream with independent gaps" if len(allowed) > 1 else ""),
            holds, key or "workload.0.arrivals.process", ", ".join(dict.fromkeys(shown)),
        )  # fmt: skip

    def _all_the_time(self) -> None:
        text = "arrivals are stationary to the end of the run"
        entries = self.model.workload
        ends = [min(math.inf if entry.until is None else entry.until, self.input.horizon) for entry in entries]
        for number, (entry, end) in enumerate(zip(entries, ends, strict=True)):
            if len(entries) > 1 and (entry.count is not None or end != ends[0]):
                key = "until" if entry.count is None else "count"
                self.suppose(text, False, f"workload.{number}.{key}", "streams of different length")
                return
        key, end, idle = "until" if entries[0].count is None else "count", self.input.horizon, 0.0
        if math.isfinite(end) and (entries[0].count is not None or ends[0] < end):
            warm = 0.0 if math.isnan(self.warmup) else self.warmup
            idle = (end - self.last_arrival) / max(end - warm, 1e-9)  # the part by which means over time are off
        early = idle > UNTIL_THE_END
        shown = f"the last at {self.last_arrival:.6g} s" if early else ""
        self.suppose(text, not early, f"workload.0.{key}" if early else "", shown, soft=True, error=idle)

    def one_way(self) -> bool:
        """Check that all tasks run in one mode on equal devices; return the result."""
        if self.mode is not None:
            return self.suppose("all tasks run in one mode on equal devices", True, "cluster.nodes", str(self.mode))
        key = "cluster.nodes"
        for one in self.customers:
            given = one.demand
            named = [k for k in ("scaling", "modes", "cpu_time") if getattr(given, k)]
            if named and len(self.modes) > 1:
                key = f"{one.key}.{named[0]}"
                break
            if given.gpus is not None or given.cpus is not None:
                key = f"{one.key}.{'gpus' if given.gpus is not None else 'cpus'}"
        return self.suppose("all tasks run in one mode on equal devices", False, key, self.shown_modes)

    def sizes_known(self) -> bool:
        all_known = all(one.law is not None for one in self.customers) and self.law.mean > 0
        shown = self.law.shown if all_known else ""
        return self.suppose("times are drawn from a distribution", all_known, self.time_key, shown)

    @property
    def time_key(self) -> str:
        one = self.customers[0]
        name = "cpu_time" if self.modes and self.modes[0].on_cpu else "gpu_time"
        return f"{one.key}.{'modes' if one.demand.modes else name}"

    def exponential(self, law: Law | None = None, what: str = "service is exponential", key: str = "") -> bool:
        law = self.law if law is None else law
        return self.suppose(what, law.kind == "exponential", key or self.time_key, law.shown, soft=True)

    def undisturbed(self) -> None:
        """Check that tasks that share a device do not slow each other down."""
        mode = self.mode
        if mode is None or mode.on_cpu:
            return
        kind = mode.type.sharing
        alone = kind.kind == "exclusive" or (kind.kind == "mps" and not kind.interference)
        alone = alone or (mode.whole_devices and mode.type.streams == 1)
        self.suppose("tasks do not slow each other down", alone, "cluster.nodes.gpus.sharing", kind.kind)

    def one_by_one(self, blind: bool = True) -> str:
        """Check that a device runs one task at a time; check and return `order(blind)`."""
        self.undisturbed()
        order = self.order(blind)
        self.one_in_flight()
        return order

    def alone(self) -> None:
        """Record the assumption that GPUs of all types run one task at a time."""
        gpus = [mode.type for mode in self.modes if not mode.on_cpu]
        holds = all(one.sharing.kind == "exclusive" and one.streams == 1 for one in gpus)
        self.suppose("a GPU takes one task at a time", holds, "cluster.nodes.gpus.sharing")

    def one_in_flight(self) -> None:
        mode = self.mode
        if mode is not None and not mode.on_cpu:
            streams = mode.type.streams
            self.suppose("a GPU takes one task at a time", streams == 1, "cluster.nodes.gpus.streams", str(streams))

    def one_gpu(self, load: float, soft: bool = False) -> None:
        """Check for one GPU with enough memory and streams for all tasks in the system.

        load: utilization of the GPU.  Memory and streams are enough if P(more tasks than fit) is below 1e-6.  soft: if
        they are not, the model still matches, but only approximately.
        """
        mode: Any = self.mode
        text, holds = "there is one GPU, and a task has all of it", self.servers == 1 and mode.whole_devices
        self.suppose(text, holds, "cluster.nodes.gpus.count", f"{self.servers}")
        room = max(self.slots(node, mode, mode.type.streams) for node in self.cluster.nodes)
        key = "cluster.nodes.gpus.streams" if room == mode.type.streams else self.customers[0].key
        text = "GPU memory and streams are enough for all tasks in the system"
        self.suppose(text, load ** (room + 1) < 1e-6, key, f"for {room}", soft=soft)

    def order(self, blind: bool = True) -> str:
        """Check that tasks start first come, first served.

        blind: any order that does not depend on the sizes of tasks is accepted, too.
        Returns `fcfs`, `blind` or `other`.
        """
        name, order = self.policies.scheduler.name, self.scheduler
        single = len({one.priority for one in self.customers}) == 1
        level = order == PRIORITIES and single and not self.parameter("scheduler", "preemptive", False)
        alike = order == ORDER or level
        text = "first come, first served" + (", or an order independent of sizes" if blind else "")
        self.suppose(text, alike or (blind and order == BLIND), "policy.scheduler", name)
        self.free_taken()
        return "fcfs" if alike else "blind" if order == BLIND else "other"

    def free_taken(self) -> None:
        named = getattr(self.parameter("scheduler", "placement", None), "name", None)
        if named is not None and self.declared("placement", named) not in (CONSERVING, RESERVE):
            self.suppose("no device idles while a task waits", False, "policy.scheduler.placement", named)

    @staticmethod
    def declared(kind: str, name: str) -> str:
        """Return the queueing model that a policy declares."""
        return getattr(registry.policy(kind, name), "queueing", "")

    @property
    def scheduler(self) -> str:
        """Queueing model that the scheduler declares."""
        return self.declared("scheduler", self.policies.scheduler.name)

    def parameter(self, part: str, key: str, default: Any) -> Any:
        spec = getattr(self.policies, part)
        return default if spec is None else spec.parameters.get(key, default)

    @property
    def admission(self) -> str:
        """Queueing model that the admission policy declares; `open` without a policy."""
        given = self.policies.admission
        return OPEN if given is None else self.declared("admission", given.name)

    def open_door(self) -> None:
        given = self.policies.admission
        name = "accept_all" if given is None else given.name
        self.suppose("no blocking: every task is admitted", self.admission == OPEN, "policy.admission", name)

    def steady(self, load: float, servers: int, law: Law, bounded: bool = False, memory: float = 0.0) -> bool:
        """Record three assumptions: the load is stable, warm-up and run are long enough.

        The warm-up must last 3 or more relaxation times, the run after it 30 or more.  load: offered load, in busy
        servers.  law: service time.  bounded: the number of tasks in the system is limited, so every load is stable.
        memory: relaxation time of the arrivals, in seconds.  Returns False only if the load is not stable.
        """
        if not bounded and not self.suppose(
            STABLE, load < servers, "workload.0.arrivals.rate", f"{load / servers:.4g}"
        ):
            return False
        distance = math.sqrt(servers) - math.sqrt(load)
        spread = law.mean * (1 + law.scv)
        relaxation = max(memory, 5 * spread if bounded else spread / 2 / max(distance**2, 1e-9))
        warm, lasts = self.warmup, self.lasts
        is_finite = not math.isnan(warm)
        self.suppose(
            "the warm-up is 3 or more relaxation times", not is_finite or warm >= 3 * relaxation, "warmup",
            f"{seconds(warm) if is_finite else 'auto'}, relaxation time {seconds(relaxation)}", soft=True,
            error=self.transient(relaxation),
        )  # fmt: skip
        warm = warm if is_finite else 0.0
        self.suppose(
            "the run is 30 or more relaxation times", lasts - warm >= 30 * relaxation, "horizon", seconds(lasts - warm),
            soft=True, error=self.transient(relaxation),
        )  # fmt: skip
        return True

    def transient(self, relaxation: float) -> float:
        """Return the relative bias of means from the empty start; `relaxation`: time in s."""
        warm = 0.0 if math.isnan(self.warmup) else self.warmup
        lasts = self.lasts - warm
        return math.exp(-warm / relaxation) * min(1.0, relaxation / lasts) if lasts > 0 else 1.0

    @property
    def warmup(self) -> float:
        """Seconds of warm-up; NaN if the run determines it."""
        given: Any = self.model.warmup
        return float(given) if isinstance(given, int | float) else math.nan

    @property
    def lasts(self) -> float:
        """The horizon in seconds; the time of the last arrival if the horizon is infinite."""
        return self.input.horizon if math.isfinite(self.input.horizon) else self.last_arrival

    @cached_property
    def last_arrival(self) -> float:
        arrival = self.input.tasks.arrival
        finite = arrival[np.isfinite(arrival)]
        return float(finite.max()) if len(finite) else 0.0

    # Transfers

    @property
    def whole_time(self) -> Law:
        """Distribution of upload, compute and download time together, over all classes."""
        computing = [(one, one.law) for one in self.customers if one.law is not None]
        moves = [(one, self.transfer("bytes_in", [one]).plus(law)) for one, law in computing]
        return mixed((one.rate or 1.0, law.plus(self.transfer("bytes_out", [one]))) for one, law in moves)

    def transfer(self, key: str, customers: list[Customers]) -> Law:
        """Return the distribution of an upload or download time without contention.

        key: `bytes_in` (upload) or `bytes_out` (download); classes are weighted by their arrival rates.
        """
        mode: Any = self.mode
        link, loads, parts = mode.type.link, key == "bytes_in", []
        bandwidth = link.upload if loads else link.download
        for one in customers:
            law, sent = NOTHING, getattr(one.demand, key)
            if sent is not None:
                law = law_of(sent).times(1 / bandwidth) if math.isfinite(bandwidth) else NOTHING
                law = law.plus(Law(link.latency, 0.0, "constant"))
            fixed = (mode.upload if loads else mode.download).seconds_for(1)
            parts.append((one.rate or 1.0, law.plus(Law(fixed, 0.0, "constant")) if fixed else law))
        return mixed(parts)

    def links_alone(self) -> None:
        """Check that each device has a link of its own."""
        for number, nodes in enumerate(self.model.cluster.nodes):
            switch = nodes.pcie.switch is not None
            links: list[Any] = [nodes.pcie, *(one.pcie for one in (*nodes.gpus, *nodes.accelerators))]
            half = any(link is not None and link.duplex == "half" for link in links)
            if switch or half:
                key = f"cluster.nodes.{number}.pcie.{'switch' if switch else 'duplex'}"
                self.suppose("each GPU has its own link, separate in both directions", False, key, "shared")
                return
        self.suppose("each GPU has its own link, separate in both directions", True)
