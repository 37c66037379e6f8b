"""Fits step times so that a simulated server reproduces a request log.

The log has the arrival, the tokens, the first token and the end of each request.  The server is a scenario: the user
states its replicas, memory, batching and orders.  The numbers of its step are fitted, in the form that the scenario
uses: for a line `fixed`, `per_prompt_token` and `per_context_token`; for a roofline the shares of the peaks and
`fixed`; in both forms also `front_end`, the constant time of each request.

Unless the scenario has a roofline, step times are inferred from the log itself if they explain it
(`hetsim.calibrate.request_log`).  The step is then a line or a table for reading, and only the pace (a factor on all
times) and `front_end` are found by simulation.  Otherwise, and for a roofline, all numbers are fitted by Nelder and
Mead's simplex on their logarithms.

Every trial simulates the whole log, since under some orders later requests delay earlier ones, and is judged by the
first part of the requests in order of arrival.  The other requests are held back, and the error is measured on them.
Inferred step times, and their pace, are finally determined once more from the whole log.

Several logs of one server are fitted together: steps are inferred from the requests of all logs, and the error of a
trial is the mean of the errors of the logs, weighted by their load (requests per second).
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.calibrate import request_log
from hetsim.calibrate.request_log import Log, Reading
from hetsim.engine.simulation import Simulation
from hetsim.errors import Problem, ScenarioError, file_error
from hetsim.model.files import write_text, write_whole
from hetsim.model.record import COMPLETED, Record, RunInput
from hetsim.model.step_times import LinearSteps, StepTimes, scaled
from hetsim.scenario.file import document
from hetsim.scenario.file.profile_files import anchored
from hetsim.scenario.scenario import Scenario, from_document
from hetsim.scenario.schema.language_model import LanguageModel
from hetsim.silicon.engines import QUANTILE, Interval, interval

HELD_BACK = 0.3  # share of the requests, those that arrive last, that are not used for fitting
PARTS = 10  # of a log, whose differences give the standard error of its pace
REACH = (0.1, 0.5, 1.5)  # logarithms of factors on all steps among which the pace is searched
DROPPED = ("workload", "horizon", "warmup", "sweep", "replications")  # keys of --server that are not used
RUN_TO_RUN = 0.02  # relative standard deviation of a server's speed between runs, unless the service has a drift


class Server:
    """A server with the requests of a log; only the first `fitted` are used to fit.

    `demand`: keys arrivals, count and tokens of its `workload:` entry, if they differ from the log.  `service`: a file
    that has the service, in place of the scenario's.
    """

    def __init__(self, path: Path, log: Log, demand: dict[str, Any] | None = None, service: Path | None = None):
        self.path, self.log, self.replication = path, log, 0  # replication: of the simulations' random numbers
        self.count = self.fitted = len(log) - max(1, int(HELD_BACK * len(log)))  # `count`: those judged at present
        self.load = len(log) / max(float(log.arrival[-1]), 1e-9)
        self._folder = tempfile.TemporaryDirectory()
        requests = Path(self._folder.name) / "requests.csv"
        columns: dict[str, Any] = {"arrival": log.arrival, "prompt_tokens": log.prompt, "output_tokens": log.output}
        columns |= {} if log.user is None else {"user": log.user}
        text = pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")
        write_whole(requests, partial(write_text, text=text))
        demand = demand or {"trace": {"format": "requests", "path": str(requests)}}
        profile = {} if service is None else {"service": {"kind": "llm", "profile": str(service.resolve())}}
        self._scenario = _with_requests(path, demand | profile)
        spec = self._scenario.model.workload[0].service
        assert isinstance(spec, LanguageModel)
        if spec.also_on:
            raise file_error(path, "steps are fitted to one type of device; leave out also_on")
        self.service = spec
        written = entry_of(path)["service"]
        step = written.get("step")
        asked = "profile" in written or (isinstance(step, dict) and "roofline" in step)
        # the scenario itself has a roofline; that of a preset is only an estimate, which a fit replaces
        self.wants_roofline = spec.step.roofline is not None and spec.engine is None and asked
        tried = self.build()
        if (served := len(tried.tasks)) != len(self.log):
            raise file_error(self.path, f"must serve all {len(self.log):,} requests of the log; it serves {served:,}")
        (language,), tokens = tried.language, tried.tasks.extra
        blocks = -(-(tokens["prompt_tokens"] + tokens["output_tokens"] - 1) // language.block)
        if beyond := int((blocks > language.kinds[0].blocks).sum()):
            text = f"{beyond:,} of {served:,} requests need more KV blocks than a replica has and are rejected"
            raise file_error(self.path, f"must serve all requests of {log.path}; {text}")

    def start(self) -> dict[str, float]:
        """Return initial values of the numbers to fit, from the log or from the scenario."""
        log, step = self.log, self.service.step
        several = log.output > 1
        each = (log.latency - log.ttft)[several] / (log.output[several] - 1)
        front = self.service.front_end or max(1e-3, float(log.ttft.min()) / 4)
        if (one := step.roofline) is not None:
            return {"memory": one.memory, "compute": one.compute, "fixed": step.fixed or 1e-3, "front_end": front}
        token = float(np.quantile(log.ttft / log.prompt, 0.02)) if len(log) else 1e-4
        fixed = float(np.quantile(each, 0.05)) if several.any() else 0.02
        return {
            "fixed": step.fixed or max(fixed, 1e-4) * 0.9, "per_context_token": step.per_context_token or 1e-6,
            "per_prompt_token": step.per_prompt_token or max(token, 1e-6) / 2, "front_end": front,
        }  # fmt: skip

    def step_of(self, numbers: dict[str, float]) -> dict[str, Any]:
        """Return fitted `numbers`, without `front_end`, as the value of the key `step`."""
        change = {key: value for key, value in numbers.items() if key != "front_end"}
        if self.service.step.roofline is not None:
            return {"roofline": {key: change.pop(key) for key in ("memory", "compute")}, **change}
        return change

    def times_of(self, numbers: dict[str, float]) -> StepTimes:
        step, change = self.service.step, self.step_of(numbers)
        if step.roofline is not None:
            change["roofline"] = step.roofline.model_copy(update=change["roofline"])
        return step.model_copy(update=change).times(self.service.figures)

    def spans(self) -> request_log.Spans | None:
        """Return the spans from first to last token, from which step times are inferred.

        None if impossible: a roofline, disaggregated or several replicas, scaling, or answers of one token only.
        """
        service, log, count = self.service, self.log, self.count
        several = service.disaggregated is not None or service.scale is not None or service.replicas not in (None, 1)
        if self.wants_roofline or several or not (log.output[:count] > 1).any():
            return None
        arrival, prompt, output, ttft, latency = (
            one[:count] for one in (log.arrival, log.prompt, log.output, log.ttft, log.latency)
        )  # fmt: skip
        later = (log.arrival + log.ttft)[count:]
        until = float(later.min()) if len(later) else math.inf  # from then on steps do what those requests want
        budget = service.max_num_batched_tokens
        return request_log.spans(arrival, prompt, output, ttft=ttft, latency=latency, budget=budget, until=until)

    def error(self, times: StepTimes, front_end: float) -> float:
        """Return the mean relative error of TTFT, latency, and latency minus TTFT."""
        log, count = self.log, self.count
        ttft, latency = (one[:count] for one in self.simulated(times, front_end)[:2])
        several = log.output[:count] > 1
        own = _off((latency - ttft)[several], (log.latency - log.ttft)[:count][several])
        return (_off(ttft, log.ttft[:count]) + _off(latency, log.latency[:count]) + own) / 3

    def delays(self, times: StepTimes) -> np.ndarray:
        """Return measured - simulated TTFT of requests with the shortest simulated TTFT."""
        ttft = self.simulated(times, 0.0)[0][: self.count]
        quiet = ttft <= np.quantile(defined(ttft), QUIET)
        return (self.log.ttft[: self.count] - ttft)[quiet]

    def figures(self, times: StepTimes, front_end: float, first: int) -> "list[Figure]":
        """Simulate the log; compare total time, and metrics of requests from `first` on."""
        log, rest = self.log, slice(first, None)
        ttft, latency, record = self.simulated(times, front_end)
        p99 = float(np.quantile(log.latency[rest], 0.99)), float(np.quantile(defined(latency[rest]), 0.99))
        return [
            Figure("mean time to first token", float(log.ttft[rest].mean()), float(defined(ttft[rest]).mean())),
            Figure("mean latency", float(log.latency[rest].mean()), float(defined(latency[rest]).mean())),
            Figure("p99 latency", *p99),
            Figure("total time", float((log.arrival + log.latency).max()), float(defined(record.finish).max())),
        ]

    def behind(self, times: StepTimes, front_end: float, parts: int = 1, first: int = 0) -> np.ndarray:
        """Return log(measured / simulated) of the decoding seconds, one value per part.

        Positive: the simulated server is too fast.  Decoding seconds: the sum of the times between the first and the
        last token of each request.  The log from index `first` on is split into `parts` parts of consecutive requests.
        It is simulated with the step times `times` and a constant `front_end` in seconds per request.
        """
        ttft, latency, _ = self.simulated(times, front_end)
        several = first + np.flatnonzero(self.log.output[first:] > 1)
        pairs = np.stack([self.log.latency - self.log.ttft, latency - ttft])[:, several]
        sums = [np.nansum(part, axis=1) for part in np.array_split(pairs, parts, axis=1)]
        return np.array([math.log(one / other) if one > 0 and other > 0 else 0.0 for one, other in sums])

    def standard_error(self, times: StepTimes, front_end: float) -> float:
        """Return the standard error of `behind` (how far simulated steps are off).

        It follows from the spread between `PARTS` parts of the log.  It is multiplied by t / z (Student's and normal
        quantile), since parts are few, and larger if neighboring parts are correlated.  Infinite if fewer than `PARTS`
        answers have several tokens.
        """
        if (self.log.output > 1).sum() < PARTS:
            return math.inf
        parts = self.behind(times, front_end, PARTS)
        off = parts - parts.mean()
        alike = float(off[1:] @ off[:-1] / max(off @ off, 1e-300)) + 1 / PARTS  # correlation, without its bias
        return deviation(parts) * math.sqrt((1 + 2 * max(0.0, alike)) / PARTS)

    @property
    def drift(self) -> float:
        """Relative standard deviation of the server's speed from run to run."""
        return RUN_TO_RUN if self.service.drift is None else self.service.drift.cv

    def build(self) -> RunInput:
        return self._scenario.build(replication=self.replication)

    def simulated(self, times: StepTimes, front_end: float) -> tuple[np.ndarray, np.ndarray, Record]:
        """Return simulated seconds to first token and to end (NaN: never), and the record."""
        run = self.build()
        delay = self.service.network.request_delay + front_end
        (service,) = run.language
        steps = times if self.service.drift is None else scaled(times, self.service.drift.mean)
        service = replace(service, kinds=(replace(service.kinds[0], step=steps),), request_delay=delay)
        record = Simulation(replace(run, language=[service])).run()
        arrival = record.input.tasks.arrival
        first = np.full(len(arrival), math.nan) if record.first_token is None else record.first_token
        return first - arrival, np.where(record.status == COMPLETED, record.finish - arrival, math.nan), record


def defined(values: np.ndarray) -> np.ndarray:
    """Return the values that are not NaN; a single NaN if there are none."""
    return values[~np.isnan(values)] if not np.isnan(values).all() else np.array([math.nan])


def deviation(values: np.ndarray) -> float:
    """Return the standard deviation, times t / z: larger if values are few."""
    from scipy.special import ndtri, stdtrit

    return float(values.std(ddof=1) * stdtrit(len(values) - 1, 0.95) / ndtri(0.95))


def entry_of(path: Path) -> dict[str, Any]:
    """Return the one `workload:` entry of a server's scenario file, as it is written.

    Raise ScenarioError unless it is the only entry and describes a language model (`kind: llm`).
    """
    read = document.read(path)
    workload = read.data.get("workload")
    entries = [workload] if isinstance(workload, dict) else workload
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise ScenarioError(read.problem(("workload",), "--server: the scenario must have exactly one workload entry"))
    service = entries[0].get("service")
    if not isinstance(service, dict) or service.get("kind") != "llm":
        text = "the workload entry must have service: {kind: llm, ...}"
        raise ScenarioError(read.problem(("workload", 0, "service"), text))
    return entries[0]


def service_of(path: Path) -> dict[str, Any]:
    """Return a scenario's `service:` with its profile merged in and absolute paths."""
    service = dict(anchored(entry_of(path)["service"], path.parent))
    if (included := service.pop("profile", None)) is not None:  # a profile must not include another one
        beside = path.parent / included
        service = {**anchored(document.read(beside).data["service"], beside.parent), **service}
    return service


def _with_requests(path: Path, demand: dict[str, Any]) -> Scenario:
    entry = {key: value for key, value in entry_of(path).items() if key in ("name", "service")} | demand
    read = document.read(path)
    workload = entry if isinstance(read.data["workload"], dict) else [entry]  # in both forms the lines are known
    read.data = {key: value for key, value in read.data.items() if key not in DROPPED} | {"workload": workload}
    return from_document(read, path.parent)


TRIALS = 300
# size of the first simplex of each search, in logarithms; each search starts at the last result
REACHES = (0.5, -1.0, 1.5, -0.5, 2.5)
GAIN = 2e-3  # minimum reduction of the error that justifies another search
# steps around the best pace so far at which the next paces are tried, for inferred steps
PACES = (0.02, 0.01, 0.005, 0.0025)
QUIET = 0.25  # share of requests, with the shortest times to the first token, that determine `front_end`
CLOSE = 0.5  # mean error above which a fit is rejected


@dataclass(frozen=True)
class Figure:
    """A metric of the requests not used for fitting: its measured and simulated value."""

    name: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1 if self.measured else math.nan


@dataclass
class Fitted:
    """Step times and front-end delay fitted to logs; errors on the held-out requests."""

    step: dict[str, Any]  # as in the service's `step`, in seconds; for a roofline `roofline` and `fixed`
    front_end: float
    trials: int
    figures: list[Figure]
    held_back: int
    fitted_error: float  # on the requests used for fitting
    spread: float  # standard deviation of the logarithm of the factor by which steps are off

    @property
    def interval(self) -> list[float]:
        """90 % bounds of real / fitted step time; empty if the logs are too short for it."""
        half = math.exp(QUANTILE * self.spread)
        return [round(1 / half, 6), round(half, 6)] if math.isfinite(half) else []


def _off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return mean |error| / measured mean; a missing (NaN) time is an error of 100 %."""
    scale = float(theirs.mean()) if len(theirs) else 0.0
    if scale <= 0:
        return 0.0
    return float(np.where(np.isnan(ours), theirs, np.abs(ours - theirs)).mean()) / scale


@dataclass
class _Search:
    servers: list[Server]
    trials: int = 0

    def error(self, times: StepTimes, front_end: float) -> float:
        self.trials += 1
        errors = [one.error(times, front_end) for one in self.servers]
        return float(np.average(errors, weights=[one.load for one in self.servers]))

    def front_end(self, times: StepTimes) -> float:
        """Return the median of `delays` (s), at least 0 and at most the minimum TTFT."""
        self.trials += 1
        late = float(np.median(np.concatenate([one.delays(times) for one in self.servers])))
        return min(max(0.0, late), *(float(one.log.ttft[: one.count].min()) for one in self.servers))

    def read_off(self) -> Reading | None:
        spans = [one.spans() for one in self.servers]
        return None if None in spans else request_log.fit(request_log.joined([one for one in spans if one is not None]))


@dataclass
class _Found:
    times: StepTimes
    front_end: float
    error: float


def fit(servers: list[Server], tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """Fit the step times of a server to the first part of each log; judge by the rest.

    ScenarioError if `step` has a form that cannot be fitted, or if no step times explain the logs.
    """
    search = _Search(servers)
    reading = search.read_off()
    fitted = None
    if reading is not None:
        tell(f"step times read from the log are off by {reading.error:.1%}; fitting speed and front_end")
        fitted = _paced(search, reading)
    if fitted is not None and fitted.error < CLOSE:
        late, figures = _late(servers, fitted), _figures(servers, fitted)
        for one in servers:
            one.count = len(one.log)
        if (full_reading := search.read_off()) is not None:
            fitted = replace(_paced(search, full_reading), error=fitted.error)
        assert isinstance(fitted.times, LinearSteps)
        step = request_log.written(fitted.times)
    else:
        given = servers[0].service.step
        if given.decode is not None or given.prefill is not None:
            text = "a table is not fitted; give a line (fixed, per_prompt_token, per_context_token) or a roofline"
            raise ScenarioError(Problem(text, file=str(servers[0].path), key="workload.service.step"))
        numbers, fitted = _by_simplex(search, tell)
        step, late, figures = servers[0].step_of(numbers), _late(servers, fitted), _figures(servers, fitted)
    held_back = sum(len(one.log) - one.fitted for one in servers)
    return Fitted(step, fitted.front_end, search.trials, figures=figures, held_back=held_back,
                  fitted_error=fitted.error, spread=_spread(servers, fitted, late))  # fmt: skip


def _figures(servers: list[Server], fitted: "_Found") -> list[Figure]:
    names = {one.log.path.name for one in servers}
    return [
        replace(figure, name=f"{one.log.path.name if len(names) == len(servers) else one.log.path}: {figure.name}"
                if len(servers) > 1 else figure.name)
        for one in servers for figure in one.figures(fitted.times, fitted.front_end, one.fitted)
    ]  # fmt: skip


def verified(servers: list[Server]) -> list[Figure]:
    """Compare all requests with a simulation of the service; nothing is fitted."""
    service = servers[0].service
    factor = 1.0 if service.interval is None else math.exp(Interval(*service.interval).normal[0])
    for one in servers:
        one.fitted = 0
    return _figures(servers, _Found(service.times_of(factor), service.front_end, 0.0))


def _late(servers: list[Server], fitted: "_Found") -> list[float]:
    """Return log(measured / simulated decoding time) by server, on held-out requests."""
    return [float(one.behind(fitted.times, fitted.front_end, first=one.fitted)[0]) for one in servers]


def _spread(servers: list[Server], fitted: "_Found", late: list[float]) -> float:
    """Return the standard deviation of log(true / fitted step time).

    It includes the standard error of the fit to each request log, the drift between runs, and `late`: for each request
    log, the error on requests that were not used for the fit.
    """
    weights = np.array([one.load for one in servers]) / sum(one.load for one in servers)
    errors = weights * [one.standard_error(fitted.times, fitted.front_end) for one in servers]
    another = servers[0].service.drift is None  # otherwise `drift` draws the factor of another run
    runs = servers[0].drift * float(another + weights @ weights) ** 0.5
    return math.hypot(*errors, float(weights @ np.square(late)) ** 0.5, runs)


def pace(server: Server, times: StepTimes, front_end: float) -> tuple[float, float]:
    """Return the logarithm of the factor by which all steps must be multiplied.

    With it simulated decoding takes as long as measured.  Also returns its standard error (inf: too few answers).
    """
    from scipy.optimize import brentq

    def behind(factor: float) -> float:
        return float(server.behind(scaled(times, math.exp(factor)), front_end)[0])

    if (server.log.output > 1).sum() < PARTS:
        return 0.0, math.inf
    start = behind(0.0)
    for reach in REACH:
        low, high = start - reach, start + reach
        if abs(start) < REACH[-1] and (ends := (behind(low), behind(high)))[0] > 0 > ends[1]:
            factor = brentq(behind, low, high, xtol=1e-4)
            error = server.standard_error(scaled(times, math.exp(factor)), front_end)
            return factor, error * (high - low) / (ends[0] - ends[1])
    text = f"no factor on the steps of {server.path} explains it"
    raise file_error(server.log.path, f"{text}; does the scenario describe this server?")


def observed(servers: list[Server]) -> tuple[Interval, Interval]:
    """Return the interval of real / predicted step times before and after using logs."""
    server = servers[0]
    service, within = server.service, server.drift
    if service.interval is not None:
        prior = Interval(*service.interval)
        within = 0.0 if service.drift is not None else within  # otherwise the interval is that of another run
    elif service.engine is None or service.figures is None:
        text = "names no engine, whose interval a log could narrow; give engine: vllm-0.15, say, or fit it with --from"
        raise file_error(server.path, text)
    else:
        tokens = float((server.log.prompt + server.log.output).mean())
        prior = interval(*service.figures, service.engine, (tokens, service.max_sequences))
    posterior, paces = prior, [pace(one, service.times, service.front_end) for one in servers]
    finite = [(factor, error) for factor, error in paces if not math.isinf(error)]
    for number, (factor, error) in enumerate(finite, start=1):
        again = number == len(finite) and service.drift is None  # the interval is that of another run
        posterior = posterior.updated(factor, error, server.drift, within=within, again=again)
        within = 0.0
    return prior, posterior


def _paced(search: _Search, reading: Reading) -> _Found:
    """Fit step-time factor, front-end delay, and whether steps mix prefill and decode."""
    tried: dict[tuple[bool, float], float] = {}
    front = {one: search.front_end(reading.times(one)) for one in (True, False)}

    def error(between: bool, pace: float) -> float:
        if (between, pace) not in tried:
            tried[between, pace] = search.error(reading.times(between, pace), front[between])
        return tried[between, pace]

    between, pace = error(True, 1.0) <= error(False, 1.0), 1.0
    for reach in PACES:
        better = True
        while better:
            near = min((round(pace + sign * reach, 6) for sign in (-1, 1)), key=lambda one: error(between, one))
            better = error(between, near) < error(between, pace)
            pace = near if better else pace
    times = reading.times(between, pace)
    front_end = search.front_end(times)
    return _Found(times, front_end, search.error(times, front_end))


def _by_simplex(search: _Search, tell: Callable[[str], None]) -> tuple[dict[str, float], _Found]:
    from scipy.optimize import minimize

    server, starts = search.servers[0], [one.start() for one in search.servers]
    names = list(starts[0])
    start = {name: min(one[name] for one in starts) for name in names}

    def numbers_of(point: np.ndarray) -> dict[str, float]:
        numbers = {name: math.exp(min(10.0, float(value))) for name, value in zip(names, point, strict=True)}
        return {name: min(1.0, value) if name in ("memory", "compute") else value for name, value in numbers.items()}

    def error(point: np.ndarray) -> float:
        numbers = numbers_of(point)
        return search.error(server.times_of(numbers), numbers["front_end"])

    point = np.log([start[name] for name in names])
    tell(f"fitting {', '.join(names)} to {sum(one.fitted for one in search.servers):,} requests")
    best, converged = math.inf, False
    for reach in REACHES:  # a simplex that has shrunk to a point beside a step of the error begins anew
        simplex = np.vstack([point, *(point + reach * row for row in np.eye(len(names)))])
        options = {"maxfev": TRIALS, "xatol": 2e-3, "fatol": 1e-5, "initial_simplex": simplex}
        simplex_result = minimize(error, point, method="Nelder-Mead", options=options)
        converged |= bool(simplex_result.success)
        if not simplex_result.fun < best:
            break
        point, gained, best = simplex_result.x, best - simplex_result.fun, float(simplex_result.fun)
        if gained < GAIN or best < GAIN:
            break
    numbers = numbers_of(point)
    converged |= best < GAIN  # several numbers may give the same times
    if not converged or not best < CLOSE:
        shown = ", ".join(f"{name} = {value:.3g}" for name, value in numbers.items())
        why = f"after {search.trials} trials the mean error is still {best:.0%} ({shown})"
        hint = "check the scenario's server (GPUs, memory, max_num_seqs, max_num_batched_tokens, batching)"
        raise file_error(server.log.path, f"the fit does not converge: {why}; {hint}")
    return numbers, _Found(server.times_of(numbers), numbers["front_end"], best)
